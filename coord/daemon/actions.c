/* SPDX-License-Identifier: Apache-2.0
 *
 * The core's actions, carried out one by one in order. What is known at once comes back as the next event.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/run_dir.h"
#include "daemon/daemon_state.h"
#include "daemon/reclaim.h"

/* --------------------------------------------------------------------------------------------- round and store - */

/* What the group says about the writer, for the timeline: this rank may hear of it here first. */
static void note_signs(struct gms_daemon *daemon)
{
    static const enum gms_fact signs[] = {GMS_FACT_STICKY, GMS_FACT_COMMANDED, GMS_FACT_STALLED, GMS_FACT_GONE,
                                          GMS_FACT_LEFT};
    struct gms_core_view view;
    gms_core_look(daemon->core, &view);
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES && view.writer_incarnation != 0; engine++) {
        const struct gms_ballot_facts *facts = &daemon->merged.facts[engine];
        if (facts->incarnation != view.writer_incarnation)
            continue;
        for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++)
            if (facts->count[signs[i]] > 0)
                gms_timeline_sign(&daemon->timeline, view.writer_incarnation, signs[i], gms_clock_ns());
    }
}

static void enter_round(struct gms_daemon *daemon, const struct gms_ballot *ballot)
{
    struct gms_error error;
    gms_status status = gms_round_run(daemon->options.round, ballot, &daemon->merged, &error);
    if (status != GMS_OK)
        gms_daemon_leave(daemon, status, error.text);
    note_signs(daemon);
    gms_daemon_compare_environments(daemon);
    gms_daemon_push(daemon, &(struct gms_event){.type = GMS_EVENT_ROUND_DONE, .merged = &daemon->merged});
}

/* --------------------------------------------------------------------------------------------------- takeover -- */

/* Was it condemned for what it does, rather than for being dead? By the last round's word, the same on every rank. */
static bool hangs(const struct gms_daemon *daemon, uint32_t engine, uint64_t incarnation)
{
    const struct gms_ballot_facts *facts = &daemon->merged.facts[engine];
    return facts->incarnation == incarnation && facts->count[GMS_FACT_GONE] == 0 &&
           facts->count[GMS_FACT_STICKY] + facts->count[GMS_FACT_STALLED] + facts->count[GMS_FACT_COMMANDED] > 0;
}

static void fence(struct gms_daemon *daemon, const struct gms_action *action)
{
    struct gms_core_view view;
    gms_core_look(daemon->core, &view);
    if (action->fence.incarnation == view.writer_incarnation)
        gms_timeline_begin(&daemon->timeline, action->fence.engine, action->fence.incarnation, gms_clock_ns());
    /* The other ranks of one that said goodbye are told so by CONDEMNED, and may come to their own end. */
    if (hangs(daemon, action->fence.engine, action->fence.incarnation))
        gms_fence_start_held(daemon->fence, action->fence.engine, action->fence.incarnation);
    else
        gms_fence_start_leaving(daemon->fence, action->fence.engine, action->fence.incarnation,
                                action->fence.clean ? daemon->options.config->leave_ns : 0);
    gms_reclaim_suspects_changed(daemon->reclaim);
}

/* A broken device may have written anywhere: may what it sealed be adopted? On this rank; adoption takes what all have.
 */
static void distrust(struct gms_daemon *daemon, uint64_t source, uint64_t successor,
                     struct gms_pools_classified *counts)
{
    enum { ECC_UNCORRECTABLE = 214 }; /* the driver's number */
    const struct gms_config *config = daemon->options.config;
    const struct gms_member *member = gms_members_find(daemon->members, source);
    if (member == NULL || member->device_error == 0)
        return;
    bool ecc = member->device_error == ECC_UNCORRECTABLE, trusted = false;
    switch (ecc ? config->adopt_after_ecc_error : config->adopt_after_device_error) {
    case GMS_ADOPT_NEVER:
        break;
    case GMS_ADOPT_VERIFIED:
        trusted = config->kv_verify_full;
        break;
    case GMS_ADOPT_ALWAYS:
        trusted = true;
        break;
    }
    if (trusted)
        return;
    uint32_t given_up = gms_pools_give_up_sealed(daemon->pools, successor, counts);
    gms_log(GMS_LOG_WARNING,
            "incarnation %llu ended with device error %d: %u sealed slots of this rank are not adopted (%s)",
            (unsigned long long)source, member->device_error, given_up,
            ecc ? "takeover.adopt_after_ecc_error" : "takeover.adopt_after_device_error");
}

static void classify(struct gms_daemon *daemon, const struct gms_action *action)
{
    struct gms_error error;
    struct gms_pools_classified counts;
    uint64_t successor = action->classify.incarnation;
    if (gms_pools_classify(daemon->pools, action->classify.source, successor, action->classify.source_clean,
                           action->classify.suspect, &counts, &error) != GMS_OK) {
        gms_log(GMS_LOG_ERROR, "what incarnation %llu left cannot be classified for %llu: %s",
                (unsigned long long)action->classify.source, (unsigned long long)successor, error.text);
        gms_daemon_push_fact(daemon, action->classify.engine, successor, GMS_FACT_STICKY); /* the next one is chosen */
        return;
    }
    distrust(daemon, action->classify.source, successor, &counts);
    struct gms_takeover_record *record = gms_timeline_open(&daemon->timeline);
    if (record != NULL) {
        record->classify_ns = gms_clock_ns();
        record->to_engine = action->classify.engine;
        record->to_incarnation = successor;
        record->classified = counts;
    }
    gms_log(GMS_LOG_NOTICE,
            "incarnation %llu left %u sealed slots here: %u adoptable, %u free, %u quarantined (%u damaged, %u with a "
            "tail)",
            (unsigned long long)action->classify.source, counts.sealed_here, counts.adoptable, counts.free,
            counts.quarantined, counts.damaged, counts.tails);
    gms_daemon_push_fact(daemon, action->classify.engine, successor, GMS_FACT_CLASSIFIED);
}

/* The engine's session here, while it is this incarnation's. */
static struct gms_client *session_of(struct gms_daemon *daemon, uint32_t engine, uint64_t incarnation)
{
    struct gms_client *client = gms_sessions_engine(daemon->sessions, engine);
    return client != NULL && client->incarnation == incarnation ? client : NULL;
}

static void promote(struct gms_daemon *daemon, const struct gms_action *action)
{
    struct gms_client *client = session_of(daemon, action->promote.engine, action->promote.incarnation);
    struct gms_takeover_record *record = gms_timeline_open(&daemon->timeline);
    if (record != NULL) {
        record->promote_ns = gms_clock_ns();
        record->to_engine = action->promote.engine;
        record->to_incarnation = action->promote.incarnation;
        record->epoch = action->promote.epoch;
    }
    gms_log(GMS_LOG_NOTICE, "engine %u incarnation %llu is promoted under epoch %llu", action->promote.engine,
            (unsigned long long)action->promote.incarnation, (unsigned long long)action->promote.epoch);
    gms_reclaim_witness(daemon->reclaim, action->promote.incarnation);
    if (client == NULL)
        return; /* its end is a fact already */
    struct gms_message message = {.type = GMS_MESSAGE_PROMOTE};
    message.promote.incarnation = action->promote.incarnation;
    message.promote.epoch = action->promote.epoch;
    message.promote.source = action->promote.source;
    gms_sessions_send(client, &message);
}

/* Who serves, for clients that look for it. */
static void publish_endpoint(struct gms_daemon *daemon, const struct gms_action *action,
                             const struct gms_member *member)
{
    struct gms_error error;
    char path[GMS_RUN_PATH_BYTES];
    snprintf(daemon->endpoint, sizeof daemon->endpoint, "%s", member != NULL ? member->endpoint : "");
    daemon->endpoint_incarnation = action->promote.incarnation;
    gms_daemon_watch_news(daemon);
    json_t *document =
        json_pack("{s:I,s:i,s:I,s:s,s:i}", "epoch", (json_int_t)action->promote.epoch, "engine",
                  (int)action->promote.engine, "incarnation", (json_int_t)action->promote.incarnation, "endpoint",
                  daemon->endpoint, "pid", member != NULL ? (int)gms_pidfd_pid(member->pidfd) : 0);
    char *text = document != NULL ? json_dumps(document, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    json_decref(document);
    gms_status status = gms_run_dir_path(daemon->options.config->run_dir, "serving", -1, path, &error);
    if (text == NULL)
        status = gms_fail(&error, GMS_E_INVALID, "the endpoint is not UTF-8 text");
    if (status == GMS_OK)
        status = gms_file_publish(path, text, strlen(text), &error);
    if (status != GMS_OK)
        gms_log(GMS_LOG_ERROR, "the endpoint was not published: %s", error.text);
    free(text);
    if (daemon->hooked_epoch == action->promote.epoch)
        return; /* an engine rank was attached again */
    daemon->hooked_epoch = action->promote.epoch;
    gms_daemon_run_hook(daemon, action->promote.epoch);
}

static void serving(struct gms_daemon *daemon, const struct gms_action *action)
{
    struct gms_client *client = session_of(daemon, action->promote.engine, action->promote.incarnation);
    struct gms_takeover_record *record = gms_timeline_open(&daemon->timeline);
    if (record != NULL && record->to_incarnation == action->promote.incarnation)
        record->serve_ns = gms_clock_ns();
    gms_log(GMS_LOG_NOTICE, "engine %u incarnation %llu serves under epoch %llu", action->promote.engine,
            (unsigned long long)action->promote.incarnation, (unsigned long long)action->promote.epoch);
    if (daemon->rank == 0)
        publish_endpoint(
            daemon, action,
            gms_members_find(daemon->members,
                             action->promote.incarnation)); /* before the engine is told: who serves can be found */
    if (client == NULL)
        return;
    struct gms_message message = {.type = GMS_MESSAGE_SERVING};
    message.promote.incarnation = action->promote.incarnation;
    message.promote.epoch = action->promote.epoch;
    gms_sessions_send(client, &message);
}

static void condemned(struct gms_daemon *daemon, const struct gms_action *action)
{
    struct gms_client *client = session_of(daemon, action->promote.engine, action->promote.incarnation);
    gms_log(GMS_LOG_NOTICE, "engine %u incarnation %llu is condemned", action->promote.engine,
            (unsigned long long)action->promote.incarnation);
    if (client == NULL)
        return;
    client->condemned = true;
    static const char text[] = "the group condemned this incarnation";
    struct gms_message message = {.type = GMS_MESSAGE_CONDEMNED};
    message.condemned.incarnation = action->promote.incarnation;
    message.condemned.epoch = action->promote.epoch;
    message.condemned.text = (struct gms_bytes){text, sizeof text - 1};
    gms_sessions_send(client, &message);
}

static void forget(struct gms_daemon *daemon, const struct gms_action *action)
{
    gms_pools_forget(daemon->pools, action->promote.incarnation);
    if (gms_reclaim_wants(daemon->reclaim, action->promote.incarnation))
        return; /* how its processes ended is still a question; then they are forgotten too */
    gms_reclaim_forget(daemon->reclaim, action->promote.incarnation);
    gms_fence_forget(daemon->fence, action->promote.incarnation);
    gms_members_forget(daemon->members, action->promote.incarnation);
}

/* -------------------------------------------------------------------------------------------------- transfers -- */

static uint32_t take_wait(struct gms_client *client, uint64_t id)
{
    for (size_t i = 0; i < GMS_SESSION_WAITS; i++) {
        if (client->waits[i].id != id)
            continue;
        client->waits[i].id = 0;
        return client->waits[i].request_id;
    }
    return 0;
}

static void transfer_result(struct gms_daemon *daemon, const struct gms_action *action, enum gms_message_type type)
{
    struct gms_client *client = gms_sessions_find(daemon->sessions, action->transfer.session);
    if (client == NULL)
        return;
    struct gms_message message = {.type = type};
    if (type == GMS_MESSAGE_TRANSFER_RESULT)
        message.request_id = take_wait(client, action->transfer.id);
    message.transfer_result.incarnation = action->transfer.incarnation;
    message.transfer_result.id = action->transfer.id;
    message.transfer_result.status = action->transfer.status;
    message.transfer_result.finished = action->transfer.finished;
    message.transfer_result.failed = action->transfer.failed;
    message.transfer_result.first_failed = action->transfer.first_failed;
    if (action->transfer.failed_bitmap != NULL)
        message.transfer_result.failed_bitmap = (struct gms_bytes){action->transfer.failed_bitmap, GMS_MAX_RANKS / 8};
    message.transfer_result.text = (struct gms_bytes){action->transfer.text, (uint32_t)strlen(action->transfer.text)};
    gms_sessions_send(client, &message);
}

static void transfer_answer(struct gms_daemon *daemon, const struct gms_action *action)
{
    struct gms_client *client = gms_sessions_find(daemon->sessions, action->transfer.session);
    if (client != NULL)
        gms_sessions_answer(client, client->transfer_request, action->transfer.status, action->transfer.text);
}

/* For whoever starts jobs: this one was not lost, whatever the launcher makes of its end. */
static void mark_stopped(struct gms_daemon *daemon)
{
    char path[GMS_RUN_PATH_BYTES], text[32];
    struct gms_error error;
    gms_status status = gms_run_dir_path(daemon->options.config->run_dir, "stopped", -1, path, &error);
    snprintf(text, sizeof text, "%llu\n", (unsigned long long)daemon->options.world);
    if (status == GMS_OK)
        status = gms_file_publish(path, text, strlen(text), &error);
    if (status != GMS_OK)
        gms_log(GMS_LOG_WARNING, "the planned stop was not noted: %s", error.text);
}

/* ---------------------------------------------------------------------------------------------------- dispatch - */

void gms_daemon_act(struct gms_daemon *daemon, const struct gms_action *action)
{
    switch (action->type) {
    case GMS_ACTION_RING:
        gms_doorbell_ring(daemon->doorbell, action->round);
        return;
    case GMS_ACTION_ENTER_ROUND:
        enter_round(daemon, action->ballot);
        return;
    case GMS_ACTION_STORE:
        return; /* done before, with all others of the step */
    case GMS_ACTION_PREPARE:
        gms_daemon_prepare(daemon, action);
        return;
    case GMS_ACTION_COMMIT:
        gms_daemon_commit(daemon, action);
        return;
    case GMS_ACTION_ABORT:
        gms_daemon_abort(daemon, action);
        return;
    case GMS_ACTION_REPLY:
        gms_daemon_reply(daemon, action);
        return;
    case GMS_ACTION_BULK:
        gms_daemon_bulk(daemon, action);
        return;
    case GMS_ACTION_FENCE:
        fence(daemon, action);
        return;
    case GMS_ACTION_CLASSIFY:
        classify(daemon, action);
        return;
    case GMS_ACTION_PROMOTE:
        promote(daemon, action);
        return;
    case GMS_ACTION_SERVING:
        serving(daemon, action);
        return;
    case GMS_ACTION_CONDEMNED:
        condemned(daemon, action);
        return;
    case GMS_ACTION_FORGET:
        forget(daemon, action);
        return;
    case GMS_ACTION_TRANSFER_ANSWER:
        transfer_answer(daemon, action);
        return;
    case GMS_ACTION_TRANSFER_DONE:
        transfer_result(daemon, action, GMS_MESSAGE_TRANSFER_RESULT);
        return;
    case GMS_ACTION_TRANSFER_STALLED:
        gms_log(GMS_LOG_WARNING, "%s", action->transfer.text);
        transfer_result(daemon, action, GMS_MESSAGE_TRANSFER_STALLED);
        return;
    case GMS_ACTION_RECLAIM:
        gms_reclaim_act(daemon->reclaim, action);
        return;
    case GMS_ACTION_NOTE:
        gms_log(action->note.status == GMS_OK ? GMS_LOG_NOTICE : GMS_LOG_WARNING, "%s", action->note.text);
        return;
    case GMS_ACTION_RESTART:
        gms_daemon_leave(daemon, action->note.status, action->note.text);
    case GMS_ACTION_SHUTDOWN:
        if (daemon->rank == 0)
            mark_stopped(daemon);
        gms_log(GMS_LOG_NOTICE, "planned stop agreed by all ranks");
        gms_doorbell_expect_end(daemon->doorbell);
        daemon->stopped = true;
        return;
    case GMS_ACTION_TYPE_COUNT:
        break;
    }
    gms_daemon_leave(daemon, GMS_E_PROTOCOL, "the core asked for an action that does not exist");
}
