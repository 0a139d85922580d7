/* SPDX-License-Identifier: Apache-2.0
 *
 * Hung, not dead: looks at whoever serves, or is about to, a few times within detection.progress_timeout. While nobody
 * does there is no timer.
 */
#include <event2/event.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/daemon_state.h"
#include "host/threads.h"

static bool is_watched(const struct gms_core_engine_view *engine)
{
    return engine->role == GMS_ROLE_PROMOTED || engine->role == GMS_ROLE_SERVING;
}

static bool anybody_is_watched(const struct gms_daemon *daemon)
{
    struct gms_core_view view;
    gms_core_look(daemon->core, &view);
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++)
        if (is_watched(&view.engines[engine]))
            return true;
    return false;
}

/* The counters are in the directory of the first KV pool. */
static const struct gms_directory *directory_of(const struct gms_daemon *daemon, uint64_t incarnation)
{
    for (uint32_t index = 0; index < GMS_MAX_POOLS; index++) {
        const struct gms_directory *directory = gms_pools_directory(daemon->pools, incarnation, index);
        if (directory != NULL)
            return directory;
    }
    return NULL;
}

static void look_at(struct gms_daemon *daemon, uint32_t engine, const struct gms_core_engine_view *slot, bool on_time,
                    uint64_t now_ns)
{
    const struct gms_directory *directory = directory_of(daemon, slot->incarnation);
    struct gms_progress_look look = {.incarnation = slot->incarnation};
    pid_t pid = 0;
    uint64_t still_ns = 0;
    if (directory == NULL)
        return; /* it has nothing that anybody could see moving, and nothing that it could write */
    gms_directory_activity(directory, &look.activity);
    gms_fence_look(daemon->fence, slot->incarnation, &pid, NULL);
    if (pid > 0 && gms_threads_doomed(pid)) {
        gms_log(GMS_LOG_ERROR, "engine %u incarnation %llu (pid %d) was killed and does not end: it counts as gone",
                engine, (unsigned long long)slot->incarnation, (int)pid);
        gms_daemon_push_fact(daemon, engine, slot->incarnation, GMS_FACT_GONE);
        return;
    }
    bool stopped = pid > 0 && gms_threads_stopped(pid);
    look.has_work = slot->role == GMS_ROLE_PROMOTED || stopped;
    if (!gms_progress_look(&daemon->progress, engine, &look, now_ns, &still_ns) || !on_time)
        return;
    gms_log(
        GMS_LOG_ERROR,
        "engine %u incarnation %llu (pid %d) %s and has made no progress for %llu ms (detection.progress_timeout): it "
        "counts as hung",
        engine, (unsigned long long)slot->incarnation, (int)pid,
        stopped                           ? "is stopped"
        : slot->role == GMS_ROLE_PROMOTED ? "is being promoted"
                                          : "has work",
        (unsigned long long)(still_ns / GMS_NS_PER_MS));
    gms_daemon_push_fact(daemon, engine, slot->incarnation, GMS_FACT_STALLED);
}

static void on_look(evutil_socket_t fd, short what, void *context)
{
    struct gms_daemon *daemon = context;
    struct gms_core_view view;
    uint64_t now_ns = gms_clock_ns();
    (void)fd;
    (void)what;
    gms_core_look(daemon->core, &view);
    bool on_time = gms_progress_begin(&daemon->progress, now_ns);
    if (!on_time)
        gms_log(GMS_LOG_NOTICE,
                "this coordinator stood still itself: what it saw of its engines before counts no more");
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++)
        if (is_watched(&view.engines[engine]))
            look_at(daemon, engine, &view.engines[engine], on_time, now_ns);
    gms_daemon_run_events(daemon);
    gms_daemon_seek_hung(daemon);
}

gms_status gms_daemon_hung_open(struct gms_daemon *daemon, struct gms_error *ret_error)
{
    daemon->progress.timeout_ns = daemon->options.config->progress_timeout_ns;
    daemon->hung_timer = evtimer_new(daemon->base, on_look, daemon);
    return daemon->hung_timer != NULL ? GMS_OK : gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a timer");
}

void gms_daemon_seek_hung(struct gms_daemon *daemon)
{
    bool pending = evtimer_pending(daemon->hung_timer, NULL) != 0;
    if (!anybody_is_watched(daemon)) {
        evtimer_del(daemon->hung_timer);
        gms_progress_rest(&daemon->progress);
        return;
    }
    if (pending)
        return;
    if (daemon->progress.last_look_ns == 0)
        (void)gms_progress_begin(&daemon->progress,
                                 gms_clock_ns()); /* from here on there is something to be late for */
    uint64_t interval_ns = gms_progress_interval_ns(&daemon->progress);
    const struct timeval interval = {.tv_sec = (time_t)(interval_ns / GMS_NS_PER_S),
                                     .tv_usec = (suseconds_t)(interval_ns % GMS_NS_PER_S / 1000)};
    evtimer_add(daemon->hung_timer, &interval);
}
