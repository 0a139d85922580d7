/* SPDX-License-Identifier: Apache-2.0
 * Actions as lines that people can read and tests can compare. */
#include "checks.h"

#include <stdio.h>

const char *cluster_action_name(enum gms_action_type type)
{
    static const char *const names[GMS_ACTION_TYPE_COUNT] = {
        "RING",      "ENTER_ROUND", "STORE",           "PREPARE",       "COMMIT",           "ABORT",
        "REPLY",     "BULK",        "FENCE",           "CLASSIFY",      "PROMOTE",          "SERVING",
        "CONDEMNED", "FORGET",      "TRANSFER_ANSWER", "TRANSFER_DONE", "TRANSFER_STALLED", "RECLAIM",
        "NOTE",      "RESTART",     "SHUTDOWN",
    };
    return (unsigned)type < GMS_ACTION_TYPE_COUNT ? names[type] : "?";
}

static const char *work_name(enum gms_reclaim_work work)
{
    static const char *const names[GMS_RECLAIM_WORK_COUNT] = {"STAMP", "ASK",   "LOOK",  "FREE",
                                                              "CLEAR", "GRANT", "ENDED", "STOP"};
    return (unsigned)work < GMS_RECLAIM_WORK_COUNT ? names[work] : "?";
}

void cluster_print_action(const struct cluster *cluster, uint32_t rank, const struct gms_action *action)
{
    printf("%6llu rank %u: %s", (unsigned long long)cluster->steps, rank, cluster_action_name(action->type));
    switch (action->type) {
    case GMS_ACTION_RING:
        printf(" %llu", (unsigned long long)action->round);
        break;
    case GMS_ACTION_ENTER_ROUND:
        printf(" %llu", (unsigned long long)action->ballot->round_least);
        break;
    case GMS_ACTION_STORE:
        printf(" kind %u ticket %llu", (unsigned)action->store.kind, (unsigned long long)action->store.ticket);
        break;
    case GMS_ACTION_COMMIT:
    case GMS_ACTION_ABORT:
        printf(" engine %u %s: %d %s", action->commit.engine,
               gms_operation_name((enum gms_operation)action->commit.outcome.key.kind), action->commit.outcome.status,
               action->commit.outcome.text);
        break;
    case GMS_ACTION_REPLY:
        printf(" session %llu: %d %s", (unsigned long long)action->reply.session, action->reply.outcome.status,
               action->reply.outcome.text);
        break;
    case GMS_ACTION_PREPARE:
        printf(" engine %u %s", action->prepare.engine,
               gms_operation_name((enum gms_operation)action->prepare.proposal.key.kind));
        break;
    case GMS_ACTION_FENCE:
        printf(" engine %u incarnation %llu", action->fence.engine, (unsigned long long)action->fence.incarnation);
        break;
    case GMS_ACTION_CLASSIFY:
        printf(" engine %u incarnation %llu from %llu", action->classify.engine,
               (unsigned long long)action->classify.incarnation, (unsigned long long)action->classify.source);
        break;
    case GMS_ACTION_PROMOTE:
    case GMS_ACTION_SERVING:
    case GMS_ACTION_CONDEMNED:
    case GMS_ACTION_FORGET:
        printf(" engine %u incarnation %llu epoch %llu source %llu", action->promote.engine,
               (unsigned long long)action->promote.incarnation, (unsigned long long)action->promote.epoch,
               (unsigned long long)action->promote.source);
        break;
    case GMS_ACTION_TRANSFER_ANSWER:
    case GMS_ACTION_TRANSFER_DONE:
    case GMS_ACTION_TRANSFER_STALLED:
        printf(" %d %s", action->transfer.status, action->transfer.text);
        break;
    case GMS_ACTION_RECLAIM:
        printf(" %s step %llu owner %llu", work_name(action->reclaim.work), (unsigned long long)action->reclaim.step,
               (unsigned long long)action->reclaim.owner);
        if (action->reclaim.work == GMS_RECLAIM_ASK || action->reclaim.work == GMS_RECLAIM_ENDED)
            printf(" suspect %llu", (unsigned long long)action->reclaim.suspect);
        if (action->reclaim.work == GMS_RECLAIM_ENDED)
            printf(" %s", gms_reclaim_answer_name(action->reclaim.answer));
        break;
    case GMS_ACTION_NOTE:
    case GMS_ACTION_RESTART:
        printf(" %d %s", action->note.status, action->note.text);
        break;
    case GMS_ACTION_BULK:
    case GMS_ACTION_SHUTDOWN:
    case GMS_ACTION_TYPE_COUNT:
        break;
    }
    printf("\n");
}
