/* SPDX-License-Identifier: Apache-2.0
 *
 * The core's actions, carried out one by one in order. What is known at once comes back as the next event.
 */
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/run_dir.h"
#include "daemon/calibration.h"
#include "daemon/daemon_state.h"
#include "daemon/reclaim.h"
#include "fence/loan.h"

static bool keys_equal(const struct gms_operation_key *a, const struct gms_operation_key *b)
{
    return a->incarnation == b->incarnation && a->launch == b->launch && a->sequence == b->sequence &&
           a->kind == b->kind;
}

/* The engine's session here, if what it waits for is this operation. */
static struct gms_client *asker(struct gms_daemon *daemon, uint32_t engine, const struct gms_operation_key *key)
{
    struct gms_client *client = gms_sessions_engine(daemon->sessions, engine);
    return client != NULL && keys_equal(&client->call.proposal.key, key) ? client : NULL;
}

static uint64_t current_epoch(const struct gms_daemon *daemon)
{
    struct gms_core_view view;
    gms_core_look(daemon->core, &view);
    return view.epoch;
}

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

/* -------------------------------------------------------------------------------------------------- operations - */

static void prepare(struct gms_daemon *daemon, const struct gms_action *action)
{
    uint32_t engine = action->prepare.engine;
    const struct gms_operation_key *key = &action->prepare.proposal.key;
    struct gms_event event = {.type = GMS_EVENT_PREPARED};
    event.prepared.engine = engine;
    event.prepared.key = *key;
    const struct gms_client *client = asker(daemon, engine, key);
    if (client == NULL) {
        event.prepared.status = GMS_E_DISCONNECTED;
    } else if (key->kind == GMS_OPERATION_JOIN) {
        struct gms_error error;
        event.prepared.status =
            gms_members_prepare(daemon->members, key->launch, client->call.local_digest, client, &error);
        if (event.prepared.status != GMS_OK)
            gms_log(GMS_LOG_ERROR, "engine %u cannot be admitted: %s", engine, error.text);
    } else if (key->kind == GMS_OPERATION_EXCHANGE) {
        event.prepared.status = GMS_OK; /* the core has all of it */
    } else {
        const struct gms_pools_caller caller = {.engine = engine,
                                                .incarnation = key->incarnation,
                                                .epoch = current_epoch(daemon),
                                                .identity_digest = client->identity_digest};
        struct gms_error error;
        event.prepared.status = gms_pools_prepare(daemon->pools, &caller, &client->call, action->prepare.pool_index,
                                                  action->prepare.create, event.prepared.detail, &error);
        if (event.prepared.status != GMS_OK)
            gms_log(GMS_LOG_NOTICE, "engine %u: %s is refused here: %s", engine,
                    gms_operation_name((enum gms_operation)key->kind), error.text);
    }
    if (event.prepared.status == GMS_E_DESCRIPTORS) /* the numbers that matter then */
        gms_fd_usage(&event.prepared.detail[0], &event.prepared.detail[1]);
    gms_daemon_push(daemon, &event);
}

static void welcome_joined(struct gms_client *client, struct gms_member *member)
{
    client->incarnation = member->incarnation;
    client->identity_digest = member->identity_digest;
    gms_member_set_present(member, true);
}

/* From here on the incarnation has a cohort on this rank. */
static void commit_join(struct gms_daemon *daemon, const struct gms_action *action)
{
    uint32_t engine = action->commit.engine;
    uint64_t incarnation = action->commit.outcome.incarnation;
    const struct gms_operation_key *key = &action->commit.proposal.key;
    struct gms_client *client = asker(daemon, engine, key);
    struct gms_core_view view;
    struct gms_error error;
    gms_core_look(daemon->core, &view);
    if (daemon->resuming && view.engines[engine].incarnation != incarnation)
        return; /* it has ended since */
    struct gms_member *member = gms_members_commit(daemon->members, engine, key->launch, incarnation);
    gms_log(GMS_LOG_NOTICE, "engine %u joined as incarnation %llu", engine, (unsigned long long)incarnation);
    if (member != NULL && gms_fence_look(daemon->fence, incarnation, NULL, NULL) == GMS_FENCE_UNKNOWN &&
        gms_fence_add(daemon->fence, engine, incarnation, member->pidfd, &member->container, &error) != GMS_OK)
        gms_daemon_leave(daemon, error.status, error.text); /* an admitted cohort that could not be fenced */
    if (!daemon->resuming)
        gms_calibration_joined(daemon->calibration, engine, incarnation);
    if (member != NULL && client != NULL && client->incarnation == 0)
        welcome_joined(client, member);
    else if (member == NULL || !daemon->resuming)
        gms_daemon_push_fact(daemon, engine, incarnation, GMS_FACT_GONE); /* it went away meanwhile */
    else
        gms_member_set_present(member, false); /* it will come for its answer */
}

/* A restored core repeats the last commit of an engine, however long ago it was: has the group moved on since? */
static bool is_still_so(struct gms_daemon *daemon, const struct gms_action *action)
{
    const struct gms_outcome *outcome = &action->commit.outcome;
    struct gms_core_pool_view pool;
    bool there = gms_core_look_pool(daemon->core, outcome->pool_index, &pool);
    if (outcome->key.kind == GMS_OPERATION_ALLOCATE || outcome->key.kind == GMS_OPERATION_PUBLISH)
        return there && (pool.attached_mask >> action->commit.engine & 1) != 0;
    return outcome->key.kind != GMS_OPERATION_RELEASE; /* what is over goes when all is compared */
}

static void commit(struct gms_daemon *daemon, const struct gms_action *action)
{
    uint32_t engine = action->commit.engine;
    const struct gms_outcome *outcome = &action->commit.outcome;
    const struct gms_proposal *proposal = &action->commit.proposal;
    if (proposal->key.kind == GMS_OPERATION_JOIN) {
        commit_join(daemon, action);
        return;
    }
    if (proposal->key.kind == GMS_OPERATION_EXCHANGE || (daemon->resuming && !is_still_so(daemon, action)))
        return;
    const struct gms_pools_caller caller = {.engine = engine, .incarnation = proposal->key.incarnation};
    struct gms_error error;
    gms_status status = gms_pools_commit(daemon->pools, &caller, outcome, proposal->pool, &error);
    if (status == GMS_E_BUSY) {
        gms_log(GMS_LOG_ERROR, "engine %u made published weights writable again and must end: %s", engine, error.text);
        gms_daemon_push_fact(daemon, engine, proposal->key.incarnation, GMS_FACT_STICKY);
    } else if (status != GMS_OK) {
        gms_daemon_leave(daemon, status, error.text);
    }
}

static void abort_operation(struct gms_daemon *daemon, const struct gms_action *action)
{
    if (action->commit.proposal.key.kind == GMS_OPERATION_JOIN)
        gms_members_abort(daemon->members, action->commit.engine);
    else if (action->commit.proposal.key.kind != GMS_OPERATION_EXCHANGE)
        gms_pools_abort(daemon->pools, action->commit.engine);
}

/* Both outside our PID namespace on an old kernel: then the launch, which nobody else knows, has to do. */
static bool is_process_of(const struct gms_member *member, const struct gms_client *client)
{
    return gms_pidfd_same(member->pidfd, client->pidfd) ||
           (gms_pidfd_pid(member->pidfd) == 0 && gms_pidfd_pid(client->pidfd) == 0 && !gms_pidfd_ended(member->pidfd));
}

/* Host memory that an engine may write leaves here as a loan, never as a copy of our own descriptor. False: nothing
 * leaves. */
static bool lend(struct gms_daemon *daemon, struct gms_message *message, int loans[GMS_WIRE_MAX_FDS],
                 uint64_t incarnation)
{
    struct gms_error error;
    for (uint32_t i = 0; i < message->fd_count; i++) {
        gms_status status;
        if (!gms_loan_possible(message->fds[i]))
            continue;
        do
            status = gms_loan_give(message->fds[i], incarnation, &loans[i], &error);
        while (status == GMS_E_DESCRIPTORS && gms_sessions_spare(daemon->sessions));
        if (status != GMS_OK) {
            gms_log(GMS_LOG_ERROR, "%s", error.text);
            message->fd_count = 0;
            return false;
        }
        message->fds[i] = loans[i];
    }
    return true;
}

static void reply(struct gms_daemon *daemon, const struct gms_action *action)
{
    int loans[GMS_WIRE_MAX_FDS];
    for (size_t i = 0; i < sizeof loans / sizeof loans[0]; i++)
        loans[i] = -1;
    const struct gms_outcome *outcome = &action->reply.outcome;
    struct gms_client *client = gms_sessions_find(daemon->sessions, action->reply.session);
    if (client == NULL)
        return;
    bool asked = keys_equal(&client->call.proposal.key, &outcome->key);
    struct gms_member *member = NULL;
    if (outcome->status == GMS_OK && outcome->key.kind == GMS_OPERATION_JOIN && asked) {
        member = gms_members_find(daemon->members, outcome->incarnation);
        if (member == NULL || !is_process_of(member, client)) {
            uint32_t id = client->call.request_id;
            gms_call_clear(&client->call);
            gms_sessions_answer(client, id, GMS_E_CONDEMNED,
                                "this launch was joined by another process; start it again under a new launch");
            return;
        }
        if (client->incarnation == 0)
            welcome_joined(client, member);
    }

    struct gms_message message = {.type = GMS_MESSAGE_REPLY, .request_id = asked ? client->call.request_id : 0};
    message.reply.status = outcome->status;
    message.reply.rank = outcome->rank;
    message.reply.kind = outcome->key.kind;
    message.reply.sequence = outcome->key.sequence;
    message.reply.incarnation = outcome->incarnation != 0 ? outcome->incarnation : client->incarnation;
    message.reply.epoch = outcome->epoch;
    message.reply.adopted = outcome->adopted;
    message.reply.idle = outcome->idle;
    message.reply.quarantined = outcome->quarantined;
    message.reply.pool_index = outcome->pool_index;
    message.reply.created = outcome->created;
    message.reply.bytes = outcome->budget;
    char text[sizeof outcome->text + sizeof daemon->comparisons[0].text + 4], difference[256] = "";
    const char *more = gms_daemon_environment_text(daemon, outcome);
    if (more[0] == '\0' && outcome->status == GMS_E_MISMATCH && outcome->key.kind == GMS_OPERATION_JOIN &&
        client->call.payload != NULL) { /* digests decide, words tell people (V27, V28) */
        gms_members_tell_difference(daemon->members, client->call.payload, client->call.payload_bytes, difference,
                                    sizeof difference);
        more = difference;
    }
    snprintf(text, sizeof text, "%s%s%s", outcome->text, more[0] != '\0' ? ": " : "", more);
    message.reply.text = (struct gms_bytes){text, (uint32_t)strlen(text)};
    if (member != NULL)
        message.reply.secret = (struct gms_bytes){member->secret, sizeof member->secret};
    if (outcome->status == GMS_OK && outcome->key.kind == GMS_OPERATION_EXCHANGE) {
        const uint8_t *data = NULL;
        if (gms_core_look_exchange(daemon->core, outcome->key.incarnation, outcome->key.sequence, &data,
                                   &message.reply.payload.length)) {
            message.reply.payload.data = data;
        } else { /* only if this rank asks for it after it has asked for another */
            snprintf(text, sizeof text, "call %u: every rank has asked for a later exchange: it is not kept",
                     outcome->key.sequence);
            message.reply.text.length = (uint32_t)strlen(text);
            message.reply.status = GMS_E_STALE;
        }
    }
    struct gms_pool_view pool;
    if (outcome->status == GMS_OK && outcome->key.kind == GMS_OPERATION_ALLOCATE &&
        gms_pools_look(daemon->pools, outcome->pool_index, &pool)) {
        message.reply.published = pool.published;
        message.reply.bytes = pool.bytes;
        message.reply.payload = (struct gms_bytes){pool.manifest, pool.manifest_bytes};
        const struct gms_directory *directory =
            gms_pools_directory(daemon->pools, outcome->key.incarnation, outcome->pool_index);
        message.fds[message.fd_count++] = pool.fd;
        if (directory != NULL)
            message.fds[message.fd_count++] = directory->fd;
        if (directory != NULL && !lend(daemon, &message, loans, outcome->key.incarnation))
            gms_sessions_hang_up(client, "memory cannot be lent to it");
    }
    gms_sessions_send(client, &message);
    for (size_t i = 0; i < sizeof loans / sizeof loans[0]; i++)
        gms_fd_close(&loans[i]);
    if (asked)
        gms_call_clear(&client->call);
}

static void bulk(struct gms_daemon *daemon, const struct gms_action *action)
{
    struct gms_error error;
    struct gms_pools_adopted adopted;
    struct gms_core_view view;
    gms_core_look(daemon->core, &view); /* the writer changes only when this has come back */
    gms_status status = gms_pools_bulk(daemon->pools, daemon->options.round, action->bulk.incarnation,
                                       view.writer_incarnation, &adopted, &error);
    if (status != GMS_OK)
        gms_daemon_leave(daemon, status, error.text);
    struct gms_takeover_record *record = gms_timeline_open(&daemon->timeline);
    if (record != NULL && record->to_incarnation == action->bulk.incarnation) {
        record->adopt_ns = gms_clock_ns();
        record->adopted = adopted;
    }
    struct gms_event event = {.type = GMS_EVENT_BULK_DONE};
    event.bulk.engine = action->bulk.engine;
    event.bulk.key = action->bulk.key;
    event.bulk.status = gms_daemon_take_lock(daemon, action->bulk.engine, &error); /* after the collective */
    if (event.bulk.status != GMS_OK)
        gms_log(GMS_LOG_ERROR, "engine %u may not serve: FAILOVER_LOCK_PATH: %s", action->bulk.engine, error.text);
    event.bulk.adopted = adopted.adopted;
    event.bulk.idle = adopted.idle;
    event.bulk.quarantined = adopted.quarantined;
    gms_daemon_push(daemon, &event);
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
        prepare(daemon, action);
        return;
    case GMS_ACTION_COMMIT:
        commit(daemon, action);
        return;
    case GMS_ACTION_ABORT:
        abort_operation(daemon, action);
        return;
    case GMS_ACTION_REPLY:
        reply(daemon, action);
        return;
    case GMS_ACTION_BULK:
        bulk(daemon, action);
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
