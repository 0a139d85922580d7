/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine rank whose gms-exec was told to end (SIGTERM, as schedulers tell a whole job) ends as planned, and the
 * coordinators may be told the same in a moment. Its end is held back on this rank for timeouts.told_to_end before it
 * becomes a fact: if the coordinators stop meanwhile nobody is taken over from (V44); else the takeover comes, later by
 * that much. An end that nobody ordered is a fact at once.
 */
#include <event2/event.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/daemon_state.h"

void gms_daemon_told_to_end(struct gms_daemon *daemon, uint32_t engine)
{
    struct gms_client *client = gms_sessions_engine(daemon->sessions, engine);
    if (client == NULL || client->told_to_end)
        return;
    client->told_to_end = true;
    gms_log(GMS_LOG_NOTICE, "engine %u incarnation %llu is told to end here", engine,
            (unsigned long long)client->incarnation);
}

static void push_held(struct gms_daemon *daemon)
{
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++) {
        struct gms_held_end *held = &daemon->held_ends[engine];
        if (held->incarnation != 0)
            gms_daemon_push_fact(daemon, engine, held->incarnation, held->fact);
        held->incarnation = 0;
    }
}

static void on_deadline(evutil_socket_t fd, short what, void *context)
{
    struct gms_daemon *daemon = context;
    (void)fd;
    (void)what;
    push_held(daemon);
    gms_daemon_run_events(daemon);
}

void gms_daemon_push_end(struct gms_daemon *daemon, const struct gms_client *client)
{
    const uint64_t hold_ns = daemon->options.config->told_to_end_ns;
    const struct timeval hold = {.tv_sec = (time_t)(hold_ns / GMS_NS_PER_S),
                                 .tv_usec = (suseconds_t)(hold_ns % GMS_NS_PER_S / 1000)};
    enum gms_fact fact = client->leaving ? GMS_FACT_LEFT : GMS_FACT_GONE;
    if (client->told_to_end && daemon->held_deadline == NULL)
        daemon->held_deadline = evtimer_new(daemon->base, on_deadline, daemon);
    if (!client->told_to_end || client->condemned || daemon->held_deadline == NULL) {
        gms_daemon_push_fact(daemon, client->engine_id, client->incarnation, fact);
        return;
    }
    daemon->held_ends[client->engine_id] = (struct gms_held_end){.incarnation = client->incarnation, .fact = fact};
    if (!evtimer_pending(daemon->held_deadline, NULL)) /* one for all: those that are told together end together */
        event_add(daemon->held_deadline, &hold);
}
