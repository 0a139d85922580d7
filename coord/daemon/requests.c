/* SPDX-License-Identifier: Apache-2.0
 *
 * What clients say becomes events for the core. A message of an older incarnation, or of a condemned one, is refused
 * here, whoever sends it.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/fd.h"
#include "base/log.h"
#include "daemon/calibration.h"
#include "daemon/daemon_state.h"
#include "daemon/reclaim.h"

static void copy_text(char *to, size_t capacity, const struct gms_bytes *from)
{
    size_t length = from->length < capacity ? from->length : capacity - 1;
    if (length > 0)
        memcpy(to, from->data, length);
    to[length] = '\0';
}

__attribute__((format(printf, 4, 5))) static void refuse(struct gms_client *client, uint32_t request_id,
                                                         gms_status status, const char *format, ...)
{
    char text[GMS_ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    gms_log(GMS_LOG_WARNING, "refused %s %u (pid %d): %s", client->role == GMS_CLIENT_ENGINE ? "engine" : "client",
            client->engine_id, (int)client->pid, text);
    gms_sessions_answer(client, request_id, status, text);
}

/* Is this the joined, living incarnation of the session? Answers when not. */
static bool check_incarnation(struct gms_client *client, uint32_t request_id, uint64_t incarnation)
{
    if (client->condemned) {
        refuse(client, request_id, GMS_E_CONDEMNED, "incarnation %llu is condemned: it must end",
               (unsigned long long)client->incarnation);
        return false;
    }
    if (client->incarnation == 0) {
        refuse(client, request_id, GMS_E_REFUSED, "this session has not joined");
        return false;
    }
    if (incarnation != client->incarnation) {
        refuse(client, request_id, GMS_E_STALE, "the message names incarnation %llu, this session is %llu",
               (unsigned long long)incarnation, (unsigned long long)client->incarnation);
        return false;
    }
    return true;
}

/* ---------------------------------------------------------------------------------------------- collective ----- */

/* Names end up in paths of the keeper, labels in /proc and JSON. */
static bool pool_name_is_good(const struct gms_bytes *name)
{
    const char *text = name->data;
    for (uint32_t i = 0; i < name->length; i++)
        if (!isalnum((unsigned char)text[i]) && text[i] != '.' && text[i] != '_' && text[i] != '-')
            return false;
    return name->length < GMS_NAME_BYTES;
}

/* The ranks compare the fields, and each acts on the rest: a call that says two things would be agreed on as one and
 * done as the other, here only. */
static bool names_what_it_says(const struct gms_message *message)
{
    const uint64_t *fields = message->propose.fields;
    if (fields[0] != XXH3_64bits(message->propose.pool.data, message->propose.pool.length))
        return false;
    return message->propose.kind != GMS_OPERATION_ALLOCATE ||
           (fields[1] == message->propose.pool_kind && fields[2] == message->propose.slot_count &&
            fields[3] == message->propose.block_bytes);
}

static bool check_call(struct gms_client *client, const struct gms_message *message)
{
    uint32_t kind = message->propose.kind;
    bool on_pool = kind == GMS_OPERATION_ALLOCATE || kind == GMS_OPERATION_PUBLISH || kind == GMS_OPERATION_RELEASE;
    bool exchange = kind == GMS_OPERATION_EXCHANGE;
    if (kind != GMS_OPERATION_JOIN && kind != GMS_OPERATION_ADOPT && kind != GMS_OPERATION_BUDGET && !on_pool &&
        !exchange) {
        refuse(client, message->request_id, GMS_E_PROTOCOL, "no engine proposes an operation of kind %u", kind);
        return false;
    }
    if (on_pool && (message->propose.pool.length == 0 || !pool_name_is_good(&message->propose.pool))) {
        refuse(client, message->request_id, GMS_E_INVALID,
               "a pool's name has 1 to %d bytes of letters, digits, '.', '_' and '-'", GMS_NAME_BYTES - 1);
        return false;
    }
    if (exchange && (message->propose.pool.length == 0 || !pool_name_is_good(&message->propose.pool) ||
                     !names_what_it_says(message) || message->propose.payload.length > GMS_BALLOT_EXCHANGE_BYTES)) {
        refuse(
            client, message->request_id, GMS_E_INVALID,
            "an exchange has a name of 1 to %d bytes of letters, digits, '.', '_' and '-', its digest, and at most %d "
            "bytes; this one has %u",
            GMS_NAME_BYTES - 1, GMS_BALLOT_EXCHANGE_BYTES, message->propose.payload.length);
        return false;
    }
    if (on_pool && !names_what_it_says(message)) {
        refuse(client, message->request_id, GMS_E_PROTOCOL,
               "the digests that the ranks compare are not those of the call: pool %.*s, kind %u, %u slots of %llu "
               "bytes",
               (int)message->propose.pool.length, (const char *)message->propose.pool.data, message->propose.pool_kind,
               message->propose.slot_count, (unsigned long long)message->propose.block_bytes);
        return false;
    }
    if (kind == GMS_OPERATION_JOIN) {
        if (client->incarnation == 0 && message->propose.incarnation == 0)
            return true;
        refuse(client, message->request_id, GMS_E_STALE, "this session has joined already, as incarnation %llu",
               (unsigned long long)client->incarnation);
        return false;
    }
    return check_incarnation(client, message->request_id, message->propose.incarnation);
}

/* What this rank can spare for kv pools is its own word, not the engine's; the group takes the least. While a kv pool
 * is there the agreed number stands, and is not measured again. */
static uint64_t spare_bytes(const struct gms_daemon *daemon, const struct gms_client *client, bool asked)
{
    struct gms_core_pool_view pool;
    struct gms_budget budget;
    for (uint32_t index = 0; index < GMS_CORE_MAX_POOLS; index++)
        if (gms_core_look_pool(daemon->core, index, &pool) && pool.kind == GMS_POOL_KV &&
            gms_core_look_budget(daemon->core, &budget))
            return budget.bytes;
    return gms_calibration_budget(daemon->calibration, client->identity_digest, asked);
}

static void say_budget(const struct gms_daemon *daemon, const struct gms_client *client, struct gms_proposal *proposal)
{
    if (proposal->key.kind == GMS_OPERATION_BUDGET)
        proposal->fields[GMS_BUDGET_FIELD_HERE] = spare_bytes(daemon, client, true);
    else if (proposal->key.kind == GMS_OPERATION_ALLOCATE && proposal->fields[1] == GMS_POOL_KV)
        proposal->fields[GMS_ALLOCATE_FIELD_BUDGET] = spare_bytes(daemon, client, false);
}

static void propose(struct gms_daemon *daemon, struct gms_client *client, const struct gms_message *message)
{
    if (!check_call(client, message))
        return;
    struct gms_call call = {.request_id = message->request_id,
                            .slot_count = message->propose.slot_count,
                            .block_bytes = message->propose.block_bytes,
                            .bytes = message->propose.bytes,
                            .local_digest = message->propose.local_digest,
                            .payload_bytes = message->propose.payload.length};
    call.proposal.key = (struct gms_operation_key){.incarnation = message->propose.incarnation,
                                                   .launch = message->propose.launch,
                                                   .sequence = message->propose.sequence,
                                                   .kind = message->propose.kind};
    _Static_assert((int)GMS_WIRE_FIELDS == (int)GMS_PROPOSAL_FIELDS, "wire and core agree");
    memcpy(call.proposal.fields, message->propose.fields, sizeof call.proposal.fields);
    say_budget(daemon, client, &call.proposal);
    copy_text(call.proposal.pool, sizeof call.proposal.pool, &message->propose.pool);
    call.proposal.pool_kind = message->propose.pool_kind;
    if (call.payload_bytes > 0) {
        call.payload = malloc(call.payload_bytes);
        if (call.payload == NULL) {
            refuse(client, message->request_id, GMS_E_NO_MEMORY, "no memory for a payload of %u bytes",
                   call.payload_bytes);
            return;
        }
        memcpy(call.payload, message->propose.payload.data, call.payload_bytes);
    }
    gms_call_clear(&client->call);
    client->call = call;

    struct gms_event event = {.type = GMS_EVENT_PROPOSE};
    event.propose.engine = client->engine_id;
    event.propose.session = client->id;
    event.propose.since = message->propose.since;
    event.propose.proposal = call.proposal;
    if (call.proposal.key.kind == GMS_OPERATION_EXCHANGE && call.payload_bytes > 0) {
        event.propose.exchange_bytes = call.payload_bytes;
        memcpy(event.propose.exchange, call.payload, call.payload_bytes);
    }
    gms_daemon_push(daemon, &event);
}

/* ------------------------------------------------------------------------------------------------- transfers --- */

static void remember_wait(struct gms_client *client, uint64_t id, uint32_t request_id)
{
    size_t place = GMS_SESSION_WAITS;
    for (size_t i = 0; i < GMS_SESSION_WAITS; i++) {
        if (client->waits[i].id == id)
            place = i; /* asked again */
        else if (client->waits[i].id == 0 && place == GMS_SESSION_WAITS)
            place = i;
    }
    if (place == GMS_SESSION_WAITS)
        place = (size_t)(id % GMS_SESSION_WAITS); /* a forgotten one is answered under request 0 */
    client->waits[place].id = id;
    client->waits[place].request_id = request_id;
}

static void transfer(struct gms_daemon *daemon, struct gms_client *client, const struct gms_message *message)
{
    if (!check_incarnation(client, message->request_id, message->transfer.incarnation))
        return;
    struct gms_event event = {0};
    if (message->type == GMS_MESSAGE_TRANSFER_DISPATCH) {
        event.type = GMS_EVENT_TRANSFER_DISPATCH;
        event.transfer_dispatch.engine = client->engine_id;
        event.transfer_dispatch.incarnation = client->incarnation;
        event.transfer_dispatch.session = client->id;
        event.transfer_dispatch.id = message->transfer.id;
        event.transfer_dispatch.part_count = message->transfer.part_count;
        event.transfer_dispatch.again = message->transfer.again != 0;
        event.transfer_dispatch.ended_mask = message->transfer.ended_mask;
        event.transfer_dispatch.failed_mask = message->transfer.failed_mask;
        client->transfer_request = message->request_id;
    } else if (message->type == GMS_MESSAGE_TRANSFER_END) {
        event.type = GMS_EVENT_TRANSFER_END_PART;
        event.transfer_end.engine = client->engine_id;
        event.transfer_end.incarnation = client->incarnation;
        event.transfer_end.session = client->id;
        event.transfer_end.id = message->transfer.id;
        event.transfer_end.part = message->transfer.part;
        event.transfer_end.failed = message->transfer.failed != 0;
        client->transfer_request = message->request_id;
    } else {
        event.type = GMS_EVENT_TRANSFER_WAIT;
        event.transfer_wait.engine = client->engine_id;
        event.transfer_wait.incarnation = client->incarnation;
        event.transfer_wait.session = client->id;
        event.transfer_wait.id = message->transfer.id;
        remember_wait(client, message->transfer.id, message->request_id);
    }
    gms_daemon_push(daemon, &event);
}

/* ---------------------------------------------------------------------------------------------- engine's word -- */

static void engine_said(struct gms_daemon *daemon, struct gms_client *client, struct gms_message *message)
{
    uint32_t id = message->request_id;
    char text[256];
    if (message->type == GMS_MESSAGE_PROPOSE) {
        propose(daemon, client, message);
    } else if (message->type == GMS_MESSAGE_TRANSFER_DISPATCH || message->type == GMS_MESSAGE_TRANSFER_END ||
               message->type == GMS_MESSAGE_TRANSFER_WAIT) {
        transfer(daemon, client, message);
    } else if (message->type == GMS_MESSAGE_PARKED) {
        if (!check_incarnation(client, id, message->plain.incarnation))
            return;
        gms_calibration_parked(daemon->calibration, client->engine_id, client->incarnation);
        gms_daemon_parked(daemon, client->engine_id, client->incarnation);
        gms_reclaim_witness(daemon->reclaim, client->incarnation); /* it may be promoted and die within milliseconds */
        gms_fence_rehearse(daemon->fence);
        gms_sessions_answer(client, id, GMS_OK, "");
    } else if (message->type == GMS_MESSAGE_MEMORY) {
        if (!check_incarnation(client, id, message->memory.incarnation))
            return;
        if (!gms_calibration_tags(daemon->calibration, client->engine_id, message))
            gms_sessions_hang_up(client, "a list of tags that cannot be read");
    } else if (message->type == GMS_MESSAGE_READY) {
        if (!check_incarnation(client, id, message->ready.incarnation))
            return;
        if (message->ready.endpoint.length >= sizeof client->endpoint) {
            refuse(client, id, GMS_E_INVALID, "the endpoint has %u bytes, the limit is %zu",
                   message->ready.endpoint.length, sizeof client->endpoint - 1);
            return;
        }
        struct gms_core_view view;
        gms_core_look(daemon->core, &view);
        enum gms_role role = view.engines[client->engine_id].role;
        bool again = role == GMS_ROLE_SERVING && client->attached_again; /* the coordinator is new, and was not told */
        client->attached_again = false;
        if ((role != GMS_ROLE_PROMOTED && !again) || view.writer_incarnation != client->incarnation) {
            refuse(client, id, GMS_E_REFUSED, "READY comes once, after the promotion and the adoption");
            return;
        }
        copy_text(client->endpoint, sizeof client->endpoint, &message->ready.endpoint);
        struct gms_member *member = gms_members_find(daemon->members, client->incarnation);
        if (member != NULL)
            gms_member_set_endpoint(member, client->endpoint);
        gms_daemon_push_fact(daemon, client->engine_id, client->incarnation, GMS_FACT_READY);
    } else if (message->type == GMS_MESSAGE_LEAVING) {
        if (check_incarnation(client, id, message->plain.incarnation))
            client->leaving = true; /* a fact when its session ends: until then it may still write */
    } else if (message->type == GMS_MESSAGE_STICKY) {
        if (!check_incarnation(client, id, message->sticky.incarnation))
            return;
        copy_text(text, sizeof text, &message->sticky.text);
        gms_log(GMS_LOG_ERROR, "engine %u incarnation %llu reports a sticky error %d: %s", client->engine_id,
                (unsigned long long)client->incarnation, message->sticky.code, text);
        struct gms_member *member = gms_members_find(daemon->members, client->incarnation);
        if (member != NULL)
            gms_member_set_device_error(member, message->sticky.code);
        gms_daemon_push_fact(daemon, client->engine_id, client->incarnation, GMS_FACT_STICKY);
        gms_sessions_answer(client, id, GMS_OK, "");
    } else {
        refuse(client, id, GMS_E_PROTOCOL, "an engine rank does not say %s", gms_message_name(message->type));
        gms_sessions_hang_up(client, "unexpected message");
    }
}

/* -------------------------------------------------------------------------------------------- exec and control - */

static void exec_said(struct gms_daemon *daemon, struct gms_client *client, struct gms_message *message)
{
    if (message->type == GMS_MESSAGE_ENVIRONMENT) {
        gms_daemon_give_environment(daemon, client, message->request_id);
        return;
    }
    if (message->type == GMS_MESSAGE_LEAVING) {
        gms_daemon_told_to_end(daemon, client->engine_id);
        return;
    }
    if (message->type != GMS_MESSAGE_CONTAINER) {
        refuse(client, message->request_id, GMS_E_PROTOCOL, "gms-exec does not say %s",
               gms_message_name(message->type));
        gms_sessions_hang_up(client, "unexpected message");
        return;
    }
    uint32_t kind = message->container.kind;
    bool known = kind == GMS_CONTAINER_PID_NAMESPACE || kind == GMS_CONTAINER_SUBREAPER || kind == GMS_CONTAINER_CGROUP;
    if (message->fd_count < 2 || !known || message->container.engine_id != client->engine_id) {
        refuse(client, message->request_id, GMS_E_PROTOCOL,
               "CONTAINER of kind %u for engine %u with %u descriptors from gms-exec of engine %u", kind,
               message->container.engine_id, message->fd_count, client->engine_id);
        return;
    }
    struct gms_container container = GMS_NO_CONTAINER;
    int *places[] = {&container.guardian_fd, &container.engine_fd, &container.exec_fd, &container.cgroup_fd};
    container.kind = kind;
    for (uint32_t i = 0; i < message->fd_count; i++) {
        *places[i] = message->fds[i];
        message->fds[i] = -1;
    }
    struct gms_error error;
    gms_status status = gms_sessions_offer_container(daemon->sessions, client, &container, &error);
    if (status == GMS_OK)
        gms_sessions_answer(client, message->request_id, GMS_OK, "");
    else
        refuse(client, message->request_id, status, "%s", error.text);
    gms_container_close(&container);
    if (status == GMS_OK)
        gms_daemon_tell_copies(daemon, client);
}

static void take_over_from(struct gms_daemon *daemon, struct gms_client *client, const struct gms_message *message)
{
    uint32_t engine = message->takeover.engine_id;
    struct gms_core_view view;
    gms_core_look(daemon->core, &view);
    if (engine >= GMS_MAX_ENGINES || view.engines[engine].role == GMS_ROLE_EMPTY) {
        refuse(client, message->request_id, GMS_E_NOT_FOUND, "engine %u is not in the group", engine);
        return;
    }
    gms_log(GMS_LOG_NOTICE, "an operator (pid %d) orders a takeover from engine %u", (int)client->pid, engine);
    gms_daemon_push_fact(daemon, engine, view.engines[engine].incarnation, GMS_FACT_COMMANDED);
    gms_sessions_answer(client, message->request_id, GMS_OK, "");
}

/* PARK: an engine that serves is asked to hand over by itself, on each rank by the rank that was told. */
static void ask_to_park(struct gms_daemon *daemon, struct gms_client *client, const struct gms_message *message)
{
    uint32_t engine = message->takeover.engine_id;
    struct gms_core_view view;
    gms_core_look(daemon->core, &view);
    enum gms_role role = engine < GMS_MAX_ENGINES ? view.engines[engine].role : GMS_ROLE_EMPTY;
    struct gms_client *rank = role == GMS_ROLE_EMPTY ? NULL : gms_sessions_engine(daemon->sessions, engine);
    if (role != GMS_ROLE_SERVING) {
        refuse(client, message->request_id, role == GMS_ROLE_EMPTY ? GMS_E_NOT_FOUND : GMS_E_REFUSED,
               "engine %u does not serve: there is nothing to hand over", engine);
        return;
    }
    bool shadow = false;
    for (uint32_t i = 0; i < GMS_MAX_ENGINES; i++)
        shadow = shadow || view.engines[i].role == GMS_ROLE_PARKED;
    if (!shadow) {
        refuse(client, message->request_id, GMS_E_REFUSED, "no shadow is parked: nobody would serve after engine %u",
               engine);
        return;
    }
    gms_log(GMS_LOG_NOTICE, "an operator (pid %d) wants engine %u out of service", (int)client->pid, engine);
    if (rank != NULL && rank->incarnation == view.engines[engine].incarnation) {
        struct gms_message asked = {.type = GMS_MESSAGE_ASKED, .plain = {.incarnation = rank->incarnation}};
        gms_sessions_send(rank, &asked);
    }
    gms_sessions_answer(client, message->request_id, GMS_OK, "");
}

/* WAKE: this shadow is the next, now. The wish is a fact like any other, so all ranks choose alike. */
static void wake(struct gms_daemon *daemon, struct gms_client *client, const struct gms_message *message)
{
    static const char *const why[GMS_ROLE_COUNT] = {[GMS_ROLE_EMPTY] = "is not in the group",
                                                    [GMS_ROLE_JOINED] = "is not parked on all ranks yet",
                                                    [GMS_ROLE_PROMOTED] = "is being promoted",
                                                    [GMS_ROLE_SERVING] = "serves already",
                                                    [GMS_ROLE_CONDEMNED] = "is condemned"};
    uint32_t engine = message->takeover.engine_id;
    struct gms_core_view view;
    gms_core_look(daemon->core, &view);
    enum gms_role role = engine < GMS_MAX_ENGINES ? view.engines[engine].role : GMS_ROLE_EMPTY;
    if (role != GMS_ROLE_PARKED) {
        refuse(client, message->request_id, role == GMS_ROLE_EMPTY ? GMS_E_NOT_FOUND : GMS_E_REFUSED,
               "engine %u %s: only a parked shadow can be woken", engine, why[role]);
        return;
    }
    if (view.takeover != GMS_TAKEOVER_SERVING) {
        refuse(client, message->request_id, GMS_E_AGAIN, "a takeover is under way: see who serves in the end");
        return;
    }
    gms_log(GMS_LOG_NOTICE, "an operator (pid %d) wakes engine %u: it takes over from engine %d", (int)client->pid,
            engine, view.serving_engine);
    gms_daemon_push_fact(daemon, engine, view.engines[engine].incarnation, GMS_FACT_WANTED);
    gms_daemon_push_fact(daemon, (uint32_t)view.serving_engine, view.engines[view.serving_engine].incarnation,
                         GMS_FACT_COMMANDED);
    gms_sessions_answer(client, message->request_id, GMS_OK, "");
}

static void control_said(struct gms_daemon *daemon, struct gms_client *client, const struct gms_message *message)
{
    if (message->type == GMS_MESSAGE_STATUS) {
        char *json = gms_daemon_status(daemon);
        if (json == NULL) {
            refuse(client, message->request_id, GMS_E_NO_MEMORY, "no memory for the status");
            return;
        }
        struct gms_message reply = {.type = GMS_MESSAGE_STATUS_REPLY, .request_id = message->request_id};
        reply.status_reply.json = (struct gms_bytes){json, (uint32_t)strlen(json)};
        gms_sessions_send(client, &reply);
        free(json);
    } else if (message->type == GMS_MESSAGE_ENVIRONMENT) {
        if (message->plain.incarnation >= GMS_MAX_ENGINES) {
            refuse(client, message->request_id, GMS_E_INVALID, "engine %llu: from 0 to %d",
                   (unsigned long long)message->plain.incarnation, GMS_MAX_ENGINES - 1);
            return;
        }
        gms_daemon_show_environment(daemon, client, message->request_id, (uint32_t)message->plain.incarnation);
    } else if (message->type == GMS_MESSAGE_WATCH) {
        if (daemon->rank != 0) {
            refuse(client, message->request_id, GMS_E_INVALID, "rank 0 alone knows where an engine serves; watch it");
            return;
        }
        client->watches = true;
        gms_daemon_watch_tell(daemon, client, message->request_id);
    } else if (message->type == GMS_MESSAGE_TAKEOVER) {
        take_over_from(daemon, client, message);
    } else if (message->type == GMS_MESSAGE_PARK) {
        ask_to_park(daemon, client, message);
    } else if (message->type == GMS_MESSAGE_WAKE) {
        wake(daemon, client, message);
    } else if (message->type == GMS_MESSAGE_SHUTDOWN) {
        gms_log(GMS_LOG_NOTICE, "an operator (pid %d) orders a planned stop; engines go on", (int)client->pid);
        gms_sessions_answer(client, message->request_id, GMS_OK, "");
        gms_daemon_push(daemon, &(struct gms_event){.type = GMS_EVENT_SHUTDOWN});
    } else {
        refuse(client, message->request_id, GMS_E_PROTOCOL, "gms-ctl does not say %s", gms_message_name(message->type));
        gms_sessions_hang_up(client, "unexpected message");
    }
}

void gms_daemon_received(void *context, struct gms_client *client, struct gms_message *message)
{
    struct gms_daemon *daemon = context;
    switch (client->role) {
    case GMS_CLIENT_ENGINE:
        engine_said(daemon, client, message);
        break;
    case GMS_CLIENT_EXEC:
        exec_said(daemon, client, message);
        break;
    case GMS_CLIENT_CONTROL:
        control_said(daemon, client, message);
        break;
    }
    gms_daemon_run_events(daemon);
}

/* ------------------------------------------------------------------------------------------------ coming back -- */

/* In time that does not depend on where they differ. */
static bool secrets_equal(const uint8_t *a, const uint8_t *b)
{
    unsigned difference = 0;
    for (size_t i = 0; i < GMS_SECRET_BYTES; i++)
        difference |= (unsigned)(a[i] ^ b[i]);
    return difference == 0;
}

gms_status gms_daemon_recognise(void *context, const struct gms_client *client, const struct gms_message *hello,
                                bool *ret_contained, struct gms_error *ret_error)
{
    struct gms_daemon *daemon = context;
    uint64_t incarnation = hello->hello.incarnation;
    const struct gms_member *member = gms_members_find(daemon->members, incarnation);
    if (member == NULL || member->engine != client->engine_id)
        return gms_fail(ret_error, GMS_E_CONDEMNED,
                        "incarnation %llu of engine %u does not belong to the group any more: it must end",
                        (unsigned long long)incarnation, client->engine_id);
    if (hello->hello.secret.length != GMS_SECRET_BYTES || !secrets_equal(hello->hello.secret.data, member->secret))
        return gms_fail(ret_error, GMS_E_PERMISSION, "this is not the secret of incarnation %llu of engine %u",
                        (unsigned long long)incarnation, client->engine_id);
    /* A child of it has the secret too, and must not speak for it. */
    if (hello->fd_count == 1 && gms_pidfd_pid(member->pidfd) > 0 && !gms_pidfd_same(member->pidfd, hello->fds[0]))
        return gms_fail(ret_error, GMS_E_REFUSED, "incarnation %llu of engine %u joined as process %d, this is %d",
                        (unsigned long long)incarnation, client->engine_id, (int)gms_pidfd_pid(member->pidfd),
                        (int)gms_pidfd_pid(hello->fds[0]));
    *ret_contained = member->container.kind != 0;
    return GMS_OK;
}

void gms_daemon_attached(void *context, struct gms_client *client)
{
    struct gms_daemon *daemon = context;
    struct gms_member *member = gms_members_find(daemon->members, client->incarnation);
    struct gms_event event = {.type = GMS_EVENT_ATTACHED};
    if (member == NULL)
        return; /* it was recognised just now */
    gms_member_set_present(member, true);
    client->identity_digest = member->identity_digest;
    client->attached_again = true;
    if (client->container.kind == 0) /* gms-exec has not said it again yet */
        (void)gms_container_copy(&member->container, &client->container, NULL);
    snprintf(client->endpoint, sizeof client->endpoint, "%s", member->endpoint);
    gms_log(GMS_LOG_NOTICE, "engine %u incarnation %llu (pid %d) is attached again", client->engine_id,
            (unsigned long long)client->incarnation, (int)client->pid);
    event.attached.engine = client->engine_id;
    event.attached.incarnation = client->incarnation;
    gms_daemon_push(daemon, &event);
    gms_reclaim_attached(daemon->reclaim, client);
    gms_reclaim_witness(daemon->reclaim, client->incarnation);
    gms_daemon_run_events(daemon);
}

void gms_daemon_gone(void *context, struct gms_client *client, const char *why)
{
    struct gms_daemon *daemon = context;
    if (client->role != GMS_CLIENT_ENGINE)
        return;
    gms_log(GMS_LOG_NOTICE, "engine %u incarnation %llu (pid %d): %s%s", client->engine_id,
            (unsigned long long)client->incarnation, (int)client->pid, why,
            client->leaving ? ", after saying goodbye" : "");
    if (client->incarnation != 0) {
        gms_daemon_parked_gone(daemon, client->engine_id, client->incarnation);
        gms_daemon_push_end(daemon, client);
    }
    struct gms_event event = {.type = GMS_EVENT_SESSION_GONE};
    event.session_gone.engine = client->engine_id;
    event.session_gone.session = client->id;
    gms_daemon_push(daemon, &event);
    gms_daemon_run_events(daemon);
}
