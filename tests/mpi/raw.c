/* SPDX-License-Identifier: Apache-2.0 */
#include "raw.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/run_dir.h"

struct raw *raw_new(struct engine_rank *rank)
{
    struct raw *raw = calloc(1, sizeof *raw);
    if (raw != NULL) {
        raw->rank = rank;
        raw->fd = -1;
    }
    return raw;
}

void raw_free(struct raw *raw)
{
    if (raw != NULL)
        gms_fd_close(&raw->fd);
    free(raw);
}

gms_status raw_connect(struct raw *raw, struct gms_error *error)
{
    char path[GMS_RUN_PATH_BYTES];
    gms_fd_close(&raw->fd);
    gms_status status = gms_run_dir_path(raw->rank->cluster->run_dir, "c", (int32_t)raw->rank->rank, path, error);
    return status == GMS_OK ? gms_channel_connect(path, 2000, &raw->fd, error) : status;
}

gms_status raw_send(struct raw *raw, struct gms_message *message)
{
    struct gms_error error;
    message->request_id = ++raw->request;
    return gms_channel_send_until(raw->fd, message, gms_clock_ns() + 10 * GMS_NS_PER_S, &error);
}

gms_status raw_ask(struct raw *raw, struct gms_message *message)
{
    struct gms_error error;
    uint64_t deadline_ns = gms_clock_ns() + 10 * GMS_NS_PER_S;
    gms_status status = raw_send(raw, message);
    while (status == GMS_OK || status == GMS_E_DISCONNECTED) { /* a refusal may wait behind a closed connection */
        status = gms_channel_receive_until(raw->fd, raw->buffer, deadline_ns, &raw->reply, &error);
        if (status != GMS_OK)
            return status;
        gms_message_close_fds(&raw->reply);
        if (raw->reply.type == GMS_MESSAGE_REPLY &&
            (raw->reply.request_id == raw->request || raw->reply.request_id == 0))
            return (gms_status)raw->reply.reply.status;
        if (raw->reply.type == GMS_MESSAGE_WELCOME || raw->reply.type == GMS_MESSAGE_SERVING)
            return GMS_OK;
    }
    return status;
}

gms_status raw_hello(struct raw *raw, const int *fds, uint32_t fd_count)
{
    struct gms_message hello = {.type = GMS_MESSAGE_HELLO, .fd_count = fd_count};
    hello.hello.role = GMS_CLIENT_ENGINE;
    hello.hello.pid = (uint32_t)getpid();
    hello.hello.engine_id = raw->rank->engine;
    hello.hello.rank = raw->rank->rank;
    hello.hello.launch = (struct gms_bytes){raw->rank->launch, (uint32_t)strlen(raw->rank->launch)};
    hello.hello.version = (struct gms_bytes){"test", 4};
    hello.hello.incarnation = raw->incarnation;
    if (raw->incarnation != 0)
        hello.hello.secret = (struct gms_bytes){raw->secret, sizeof raw->secret};
    for (uint32_t i = 0; i < fd_count; i++)
        hello.fds[i] = fds[i];
    return raw_ask(raw, &hello);
}

gms_status raw_plain(struct raw *raw, enum gms_message_type type, uint64_t incarnation)
{
    struct gms_message message = {.type = type};
    message.plain.incarnation = incarnation; /* the first field of all that are sent so */
    return raw_ask(raw, &message);
}

gms_status raw_propose(struct raw *raw, enum gms_operation kind, uint64_t incarnation, uint32_t sequence,
                       uint64_t field0, uint64_t field1)
{
    struct gms_message message = {.type = GMS_MESSAGE_PROPOSE};
    message.propose.kind = kind;
    message.propose.incarnation = incarnation;
    message.propose.sequence = sequence;
    message.propose.launch = kind == GMS_OPERATION_JOIN ? 77 : 0;
    message.propose.fields[0] = field0;
    message.propose.fields[1] = field1;
    return raw_ask(raw, &message);
}
