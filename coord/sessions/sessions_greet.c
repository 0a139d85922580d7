/* SPDX-License-Identifier: Apache-2.0
 *
 * The first words of a session: who comes in as what, and is it who it says?
 */
#include <event2/event.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "gms/version.h"
#include "sessions/sessions_state.h"
#include "wire/tags.h"

/* Does /proc count processes as we do? One of another PID namespace makes its numbers useless to compare. */
static bool proc_is_ours(void)
{
    int self = -1;
    if (gms_pidfd_open(getpid(), &self, NULL) != GMS_OK)
        return false;
    bool ours = gms_pidfd_pid(self) == getpid();
    gms_fd_close(&self);
    return ours;
}

/* Is the pidfd that came with HELLO the process at the other end of the socket? */
static gms_status check_process(struct gms_sessions *sessions, struct gms_client *client, bool contained,
                                const struct gms_message *hello, struct gms_error *ret_error)
{
    if (hello->fd_count != 1 || !gms_pidfd_is(hello->fds[0]))
        return gms_fail(ret_error, GMS_E_PROTOCOL,
                        "HELLO of an engine rank carries %u descriptors, and they are not its pidfd alone",
                        hello->fd_count);
    if (gms_pidfd_ended(hello->fds[0]))
        return gms_fail(ret_error, GMS_E_INVALID, "the process behind HELLO's pidfd has ended");
    pid_t pid = gms_pidfd_pid(hello->fds[0]);
    if (pid > 0 && pid == client->pid)
        return GMS_OK;
    /* Its cohort is known by its container, and the numbers say nothing here. Two numbers that are known and differ are
     * two processes, and the fence must not kill the wrong one. */
    if ((contained || sessions->offers[client->engine_id].container.kind != 0) &&
        (pid <= 0 || client->pid <= 0 || !proc_is_ours()))
        return GMS_OK;
    return gms_fail(ret_error, GMS_E_REFUSED,
                    "HELLO's pidfd names pid %d, the socket's other end is pid %d: this engine rank lives in a PID "
                    "namespace that cannot be seen from here; start it through gms-exec",
                    (int)pid, (int)client->pid);
}

static gms_status greet_engine(struct gms_client *client, struct gms_message *hello, struct gms_error *ret_error)
{
    struct gms_sessions *sessions = client->sessions;
    const struct gms_client *other = gms_sessions_engine(sessions, client->engine_id);
    if (other != NULL)
        return gms_fail(ret_error, GMS_E_BUSY,
                        "engine %u has a session on rank %u already (pid %d): use another --engine, or end that one",
                        client->engine_id, sessions->options.rank, (int)other->pid);
    struct gms_offer *offer = &sessions->offers[client->engine_id];
    struct gms_container *container = &offer->container;
    if (container->kind != 0 && gms_pidfd_ended(container->guardian_fd))
        gms_container_close(container); /* of an earlier try */
    if (container->kind != 0 && strcmp(offer->launch, client->launch) != 0)
        return gms_fail(ret_error, GMS_E_BUSY,
                        "gms-exec is starting engine %u on rank %u as launch %s, this engine rank says launch %s",
                        client->engine_id, sessions->options.rank, offer->launch, client->launch);
    gms_status status = GMS_OK;
    bool contained = false;
    if (hello->hello.incarnation != 0)
        status = sessions->options.recognise(sessions->options.context, client, hello, &contained, ret_error);
    if (status == GMS_OK)
        status = check_process(sessions, client, contained, hello, ret_error);
    if (status != GMS_OK)
        return status;
    client->incarnation = hello->hello.incarnation;
    client->pidfd = hello->fds[0];
    hello->fds[0] = -1;
    client->container = *container;
    *container = GMS_NO_CONTAINER;
    client->ended = event_new(sessions->base, client->pidfd, EV_READ, gms_session_on_ended, client);
    if (client->ended == NULL || event_add(client->ended, NULL) != 0)
        return gms_fail(ret_error, GMS_E_SYSTEM, "the event loop refused the engine's pidfd");
    return GMS_OK;
}

void gms_session_greet(struct gms_client *client, struct gms_message *message)
{
    struct gms_sessions *sessions = client->sessions;
    const struct gms_sessions_options *options = &sessions->options;
    struct gms_error error;
    if (message->type != GMS_MESSAGE_HELLO) {
        gms_fail(&error, GMS_E_PROTOCOL, "%s before HELLO", gms_message_name(message->type));
        gms_session_refuse(client, message->request_id, error.status, error.text);
        return;
    }
    uint32_t role = message->hello.role;
    if (role != GMS_CLIENT_ENGINE && role != GMS_CLIENT_EXEC && role != GMS_CLIENT_CONTROL) {
        gms_fail(&error, GMS_E_PROTOCOL, "HELLO with role %u; known are 1 engine, 2 exec, 3 control", role);
        gms_session_refuse(client, message->request_id, error.status, error.text);
        return;
    }
    if (role != GMS_CLIENT_CONTROL &&
        (message->hello.engine_id >= GMS_MAX_ENGINES || message->hello.rank != options->rank)) {
        gms_fail(&error, GMS_E_INVALID,
                 "engine %u rank %u says HELLO to coordinator rank %u; engines are 0..%d, and each engine rank speaks "
                 "to the coordinator of its own rank",
                 message->hello.engine_id, message->hello.rank, options->rank, GMS_MAX_ENGINES - 1);
        gms_session_refuse(client, message->request_id, error.status, error.text);
        return;
    }
    if (message->hello.launch.length >= sizeof client->launch) {
        gms_fail(&error, GMS_E_INVALID, "the launch name has %u bytes, the limit is %zu", message->hello.launch.length,
                 sizeof client->launch - 1);
        gms_session_refuse(client, message->request_id, error.status, error.text);
        return;
    }
    client->engine_id = role == GMS_CLIENT_CONTROL ? 0 : message->hello.engine_id;
    memcpy(client->launch, message->hello.launch.data, message->hello.launch.length);
    client->launch[message->hello.launch.length] = '\0';
    if (role == GMS_CLIENT_ENGINE && greet_engine(client, message, &error) != GMS_OK) {
        gms_session_refuse(client, message->request_id, error.status, error.text);
        return;
    }
    client->role = (enum gms_client_role)role;
    event_remove_timer(client->readable); /* its HELLO deadline */

    struct gms_message welcome = {.type = GMS_MESSAGE_WELCOME, .request_id = message->request_id};
    welcome.welcome.world = options->world;
    welcome.welcome.world_size = options->world_size;
    welcome.welcome.rank = options->rank;
    welcome.welcome.kv_verify_full = options->kv_verify_full;
    welcome.welcome.operation_timeout_ms = options->operation_timeout_ms;
    welcome.welcome.on_device = options->on_device;
    if (options->on_device)
        welcome.welcome.device = (struct gms_bytes){options->device.bytes, sizeof options->device.bytes};
    welcome.welcome.version = (struct gms_bytes){GMS_VERSION, (uint32_t)strlen(GMS_VERSION)};
    struct gms_tag_report tags[GMS_MAX_TAGS] = {0};
    uint8_t packed[GMS_TAGS_BYTES];
    for (uint32_t i = 0; i < options->parking_count && i < GMS_MAX_TAGS; i++)
        tags[i].tag = options->parking[i];
    welcome.welcome.preset =
        (struct gms_bytes){options->preset, options->preset != NULL ? (uint32_t)strlen(options->preset) : 0};
    welcome.welcome.preset_tags = (struct gms_bytes){packed, gms_tags_pack(tags, options->parking_count, packed)};
    gms_sessions_send(client, &welcome);
    if (client->incarnation != 0)
        options->attached(options->context, client);
}
