/* SPDX-License-Identifier: Apache-2.0 */
#include "follow.h"

#include <poll.h>

#include "base/clock.h"

enum { TURN_MS = 200, QUIET_S = 10, QUIET_LOOK_MS = 20 };

void drill_follow_pump(const struct drill_deployment *deployment, struct drill_streams *streams,
                       struct drill_observation *seen)
{
    struct pollfd ends[DRILL_MAX_RANKS];
    size_t count = 0;
    if (seen != NULL && seen->from_engine >= 0) {
        const struct drill_engine *engine = &deployment->engines[seen->from_engine];
        for (; count < deployment->ranks; count++)
            ends[count] =
                (struct pollfd){.fd = seen->ended_ns[count] == 0 ? engine->pidfds[count] : -1, .events = POLLIN};
    }
    drill_streams_pump(streams, gms_clock_ns() + TURN_MS * GMS_NS_PER_MS, ends, count);
    uint64_t now_ns = gms_clock_ns();
    for (size_t rank = 0; seen != NULL && rank < count; rank++)
        if (ends[rank].revents != 0)
            seen->ended_ns[rank] = now_ns;
}

bool drill_follow_succeeded(const struct drill_streams *streams, uint64_t from_incarnation)
{
    return streams->serving.incarnation != 0 && streams->serving.incarnation != from_incarnation;
}

bool drill_follow_resumed(const struct drill_streams *streams, uint64_t from_incarnation)
{
    for (size_t i = 0; i < streams->count; i++) {
        const struct drill_stream *stream = &streams->items[i];
        if (stream->state == DRILL_STREAM_HELD || stream->state == DRILL_STREAM_DONE ||
            stream->state == DRILL_STREAM_FAILED)
            continue;
        if (stream->token_count == 0 || stream->tokens[stream->token_count - 1].incarnation == from_incarnation)
            return false;
    }
    return true;
}

void drill_follow_check(const struct drill_deployment *deployment, const struct drill_streams *streams, uint32_t number,
                        uint64_t incarnation, struct drill_result *result)
{
    const struct drill_status *status = &deployment->status[0];
    const struct drill_status_engine *engine =
        status->serving_engine >= 0 ? drill_status_engine(status, (uint32_t)status->serving_engine) : NULL;
    if (engine == NULL || status->serving_incarnation != incarnation) {
        drill_result_fail(result, "after failover %u: clients are served by incarnation %llu, status names %llu",
                          number, (unsigned long long)incarnation, (unsigned long long)status->serving_incarnation);
        return;
    }
    size_t proven = 0;
    for (size_t i = 0; i < streams->count; i++) {
        const struct drill_greeting *greeting = &streams->items[i].greeting;
        if (greeting->incarnation != incarnation)
            continue;
        if (greeting->peer_pid == engine->pid && greeting->namespaced_pid_fits && greeting->epoch == status->epoch &&
            greeting->engine == engine->engine) {
            proven++;
            continue;
        }
        drill_result_fail(
            result,
            "after failover %u: stream %s is not proven to talk to the serving engine: the socket belongs to pid "
            "%d, status says pid %d; hello says engine %u, pid %d (%s), epoch %llu, status engine %u, epoch %llu",
            number, streams->items[i].id, (int)greeting->peer_pid, engine->pid, greeting->engine, greeting->claimed_pid,
            greeting->namespaced_pid_fits ? "fits" : "does not fit the owner", (unsigned long long)greeting->epoch,
            engine->engine, (unsigned long long)status->epoch);
        return;
    }
    if (proven == 0)
        drill_result_fail(result,
                          "after failover %u: no client spoke to incarnation %llu, so its readiness is not proven",
                          number, (unsigned long long)incarnation);
}

void drill_follow_quiet(struct drill_deployment *deployment, struct drill_result *result)
{
    const uint64_t deadline_ns = gms_clock_ns() + QUIET_S * GMS_NS_PER_S;
    struct gms_error error;
    do {
        if (drill_deployment_agree(deployment, &error) != GMS_OK)
            return; /* gather says why */
        result->quarantine_known = true;
        result->suspects_pending = result->suspects_given_up = result->left_in_quarantine = 0;
        for (uint32_t rank = 0; rank < deployment->ranks; rank++) {
            const struct drill_status *status = &deployment->status[rank];
            uint32_t slots = 0;
            for (uint32_t i = 0; i < status->pool_count; i++)
                slots += status->pools[i].quarantined;
            if (status->pending > result->suspects_pending)
                result->suspects_pending = status->pending;
            if (status->given_up > result->suspects_given_up)
                result->suspects_given_up = status->given_up;
            if (slots > result->left_in_quarantine)
                result->left_in_quarantine = slots;
        }
        poll(NULL, 0, QUIET_LOOK_MS);
    } while (result->suspects_pending > 0 && gms_clock_ns() < deadline_ns);
}
