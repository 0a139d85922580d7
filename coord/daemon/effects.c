/* SPDX-License-Identifier: Apache-2.0
 *
 * What a collective call of an engine does on this rank: prepared, committed or undone, and at last answered.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "daemon/calibration.h"
#include "daemon/daemon_state.h"
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

void gms_daemon_prepare(struct gms_daemon *daemon, const struct gms_action *action)
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

void gms_daemon_commit(struct gms_daemon *daemon, const struct gms_action *action)
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

void gms_daemon_abort(struct gms_daemon *daemon, const struct gms_action *action)
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

void gms_daemon_reply(struct gms_daemon *daemon, const struct gms_action *action)
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

void gms_daemon_bulk(struct gms_daemon *daemon, const struct gms_action *action)
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
