/* SPDX-License-Identifier: Apache-2.0
 *
 * standby.serve_after_standby: the first engine of a group serves only when as many shadows are parked as the
 * deployment wants, or after standby.serve_wait. A parked engine is held back here, on each rank by itself, before it
 * becomes a fact; the wait is bounded on each rank, so it is bounded for the group, and whoever is parked counts for
 * the others: two that wait for each other are two. Once an engine has served, nothing waits any more: a shadow is then
 * worth more than the rule.
 */
#include <event2/event.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/daemon_state.h"

static bool must_wait(const struct gms_daemon *daemon)
{
    struct gms_core_view view;
    gms_core_look(daemon->core, &view);
    return daemon->options.config->serve_after_standby && view.epoch == 0 && view.serving_engine < 0;
}

static void let_all_go(struct gms_daemon *daemon)
{
    if (daemon->standby_deadline != NULL)
        event_del(daemon->standby_deadline);
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++) {
        if (daemon->waiting_parked[engine] != 0)
            gms_daemon_push_fact(daemon, engine, daemon->waiting_parked[engine], GMS_FACT_PARKED);
        daemon->waiting_parked[engine] = 0;
    }
}

static void on_deadline(evutil_socket_t fd, short what, void *context)
{
    struct gms_daemon *daemon = context;
    (void)fd;
    (void)what;
    gms_log(GMS_LOG_WARNING, "standby.serve_wait is over and fewer than %u shadows are parked: an engine serves now",
            daemon->options.config->standby_count);
    let_all_go(daemon);
    gms_daemon_run_events(daemon);
}

void gms_daemon_parked(struct gms_daemon *daemon, uint32_t engine, uint64_t incarnation)
{
    const uint64_t wait_ns = daemon->options.config->serve_wait_ns;
    const struct timeval wait = {.tv_sec = (time_t)(wait_ns / GMS_NS_PER_S),
                                 .tv_usec = (suseconds_t)(wait_ns % GMS_NS_PER_S / 1000)};
    uint32_t waiting = 0;
    daemon->waiting_parked[engine] = incarnation;
    for (uint32_t i = 0; i < GMS_MAX_ENGINES; i++)
        waiting += daemon->waiting_parked[i] != 0;
    if (daemon->standby_deadline == NULL)
        daemon->standby_deadline = evtimer_new(daemon->base, on_deadline, daemon);
    if (!must_wait(daemon) || waiting > daemon->options.config->standby_count || daemon->standby_deadline == NULL) {
        let_all_go(daemon);
        return;
    }
    gms_log(GMS_LOG_NOTICE, "engine %u is parked; it serves when %u more are (standby.serve_after_standby)", engine,
            daemon->options.config->standby_count + 1 - waiting);
    if (!evtimer_pending(daemon->standby_deadline, NULL))
        event_add(daemon->standby_deadline, &wait);
}

void gms_daemon_parked_gone(struct gms_daemon *daemon, uint32_t engine, uint64_t incarnation)
{
    if (daemon->waiting_parked[engine] == incarnation)
        daemon->waiting_parked[engine] = 0;
}
