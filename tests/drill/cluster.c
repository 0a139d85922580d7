/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/run_dir.h"
#include "gms/version.h"
#include "wire/channel.h"

/* ------------------------------------------------------------------------------------------------ parsing ---- */

/* Reads members of an object and remembers the first that was wrong. */
struct reader {
    const json_t *object;
    const char *where;
    const char *wrong;
};

static int64_t read_integer(struct reader *reader, const char *name, int64_t least, int64_t greatest)
{
    const json_t *value = json_object_get(reader->object, name);
    int64_t number = json_is_integer(value) ? json_integer_value(value) : INT64_MIN;
    if (number >= least && number <= greatest)
        return number;
    if (reader->wrong == NULL)
        reader->wrong = name;
    return least;
}

static uint64_t read_u64(struct reader *reader, const char *name)
{
    return (uint64_t)read_integer(reader, name, 0, INT64_MAX);
}

static uint32_t read_u32(struct reader *reader, const char *name)
{
    return (uint32_t)read_integer(reader, name, 0, UINT32_MAX);
}

static void read_text(struct reader *reader, const char *name, char *ret_text, size_t bytes)
{
    const char *text = json_string_value(json_object_get(reader->object, name));
    ret_text[0] = '\0';
    if (text != NULL && strlen(text) < bytes)
        memcpy(ret_text, text, strlen(text) + 1);
    else if (reader->wrong == NULL)
        reader->wrong = name;
}

static gms_status reader_end(const struct reader *reader, struct gms_error *ret_error)
{
    if (reader->wrong == NULL)
        return GMS_OK;
    return gms_fail(ret_error, GMS_E_PROTOCOL,
                    "status document: %s: '%s' is missing, of the wrong type or out of range", reader->where,
                    reader->wrong);
}

static gms_status parse_engine(const json_t *object, struct drill_status_engine *ret_engine,
                               struct gms_error *ret_error)
{
    struct reader reader = {.object = object, .where = "engines"};
    ret_engine->engine = (uint32_t)read_integer(&reader, "engine", 0, DRILL_MAX_ENGINES - 1);
    ret_engine->incarnation = read_u64(&reader, "incarnation");
    read_text(&reader, "role", ret_engine->role, sizeof ret_engine->role);
    ret_engine->pid = (int32_t)read_integer(&reader, "pid", 0, INT32_MAX);
    ret_engine->connected = json_is_true(json_object_get(object, "connected"));
    if (json_is_string(json_object_get(object, "containment")))
        read_text(&reader, "containment", ret_engine->containment, sizeof ret_engine->containment);
    return reader_end(&reader, ret_error);
}

static gms_status parse_pool(const json_t *object, struct drill_status_pool *ret_pool, struct gms_error *ret_error)
{
    struct reader reader = {.object = object, .where = "pools"};
    char kind[16];
    read_text(&reader, "name", ret_pool->name, sizeof ret_pool->name);
    read_text(&reader, "kind", kind, sizeof kind);
    ret_pool->index = (uint32_t)read_integer(&reader, "index", 0, DRILL_MAX_POOLS - 1);
    ret_pool->kv = strcmp(kind, "kv") == 0;
    ret_pool->quarantined =
        (uint32_t)json_integer_value(json_object_get(json_object_get(object, "slots"), "quarantined"));
    return reader_end(&reader, ret_error);
}

static gms_status parse_takeover(const json_t *object, struct drill_status_takeover *ret_takeover,
                                 struct gms_error *ret_error)
{
    struct reader reader = {.object = object, .where = "takeovers"};
    ret_takeover->epoch = read_u64(&reader, "epoch");
    ret_takeover->from_engine = (int32_t)read_integer(&reader, "from_engine", -1, DRILL_MAX_ENGINES - 1);
    ret_takeover->to_engine = (int32_t)read_integer(&reader, "to_engine", -1, DRILL_MAX_ENGINES - 1);
    ret_takeover->from_incarnation = read_u64(&reader, "from_incarnation");
    ret_takeover->to_incarnation = read_u64(&reader, "to_incarnation");
    read_text(&reader, "cause", ret_takeover->cause, sizeof ret_takeover->cause);
    ret_takeover->detect_ns = read_u64(&reader, "detect_ns");
    ret_takeover->condemn_ns = read_u64(&reader, "condemn_ns");
    ret_takeover->fence_ns = read_u64(&reader, "fence_ns");
    ret_takeover->classify_ns = read_u64(&reader, "classify_ns");
    ret_takeover->promote_ns = read_u64(&reader, "promote_ns");
    ret_takeover->adopt_ns = read_u64(&reader, "adopt_ns");
    ret_takeover->serve_ns = read_u64(&reader, "serve_ns");
    ret_takeover->sealed_here = read_u32(&reader, "sealed_here");
    ret_takeover->adoptable_here = read_u32(&reader, "adoptable_here");
    ret_takeover->adopted = read_u32(&reader, "adopted");
    ret_takeover->idle = read_u32(&reader, "idle");
    ret_takeover->quarantined = read_u32(&reader, "quarantined");
    ret_takeover->damaged = read_u32(&reader, "damaged");
    ret_takeover->reclaimed = (uint32_t)json_integer_value(json_object_get(object, "reclaimed"));
    ret_takeover->reclaim_ns = (uint64_t)json_integer_value(json_object_get(object, "reclaim_ns"));
    return reader_end(&reader, ret_error);
}

static gms_status parse_lists(const json_t *root, struct drill_status *status, struct gms_error *ret_error)
{
    const json_t *engines = json_object_get(root, "engines"), *takeovers = json_object_get(root, "takeovers"),
                 *pools = json_object_get(root, "pools");
    if (!json_is_array(engines) || !json_is_array(takeovers) || !json_is_array(pools))
        return gms_fail(ret_error, GMS_E_PROTOCOL, "status document: 'engines', 'pools' or 'takeovers' is not a list");
    if (json_array_size(pools) > DRILL_MAX_POOLS)
        return gms_fail(ret_error, GMS_E_PROTOCOL, "status document: %zu pools; a group has at most %d",
                        json_array_size(pools), DRILL_MAX_POOLS);
    if (json_array_size(engines) > DRILL_MAX_ENGINES)
        return gms_fail(ret_error, GMS_E_PROTOCOL, "status document: %zu engines; a group has at most %d",
                        json_array_size(engines), DRILL_MAX_ENGINES);
    gms_status result = GMS_OK;
    for (size_t i = 0; i < json_array_size(engines) && result == GMS_OK; i++)
        result = parse_engine(json_array_get(engines, i), &status->engines[status->engine_count++], ret_error);
    for (size_t i = 0; i < json_array_size(pools) && result == GMS_OK; i++)
        result = parse_pool(json_array_get(pools, i), &status->pools[status->pool_count++], ret_error);
    size_t count = json_array_size(takeovers);
    for (size_t i = count > DRILL_MAX_TAKEOVERS ? count - DRILL_MAX_TAKEOVERS : 0; i < count && result == GMS_OK; i++)
        result = parse_takeover(json_array_get(takeovers, i), &status->takeovers[status->takeover_count++], ret_error);
    return result;
}

static void parse_reclaim(const json_t *root, struct drill_status *status)
{
    const json_t *suspects = json_object_get(json_object_get(root, "reclaim"), "suspects"), *item;
    size_t i;
    json_array_foreach(suspects, i, item)
    {
        const char *state = json_string_value(json_object_get(item, "state"));
        status->pending += state != NULL && strcmp(state, "pending") == 0;
        status->given_up += state != NULL && strcmp(state, "quarantined") == 0;
    }
}

gms_status drill_status_parse(const char *json, size_t bytes, struct drill_status *ret_status,
                              struct gms_error *ret_error)
{
    json_error_t error;
    json_t *root = json_loadb(json, bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        return gms_fail(ret_error, GMS_E_PROTOCOL, "status document: %s at byte %d", error.text, error.position);
    struct drill_status status = {0};
    struct reader reader = {.object = root, .where = "top level"};
    gms_status result = GMS_OK;
    int64_t version = read_integer(&reader, "version", 0, INT32_MAX);
    if (reader.wrong == NULL && version != 1)
        result = gms_fail(ret_error, GMS_E_VERSION, "status document: version %lld; this drill reads version 1",
                          (long long)version);
    status.rank = (uint32_t)read_integer(&reader, "rank", 0, DRILL_MAX_RANKS - 1);
    status.ranks = (uint32_t)read_integer(&reader, "ranks", 1, DRILL_MAX_RANKS);
    status.pid = (int32_t)read_integer(&reader, "pid", 1, INT32_MAX);
    status.world = read_u64(&reader, "world");
    status.epoch = read_u64(&reader, "epoch");
    status.serving_engine = (int32_t)read_integer(&reader, "serving_engine", -1, DRILL_MAX_ENGINES - 1);
    status.serving_incarnation = read_u64(&reader, "serving_incarnation");
    read_text(&reader, "deployment", status.deployment, sizeof status.deployment);
    read_text(&reader, "takeover", status.takeover, sizeof status.takeover);
    read_text(&reader, "endpoint", status.endpoint, sizeof status.endpoint);
    status.keeper = json_is_true(json_object_get(root, "keeper"));
    status.copy_holders = (uint32_t)json_integer_value(json_object_get(root, "copy_holders"));
    if (result == GMS_OK)
        result = reader_end(&reader, ret_error);
    if (result == GMS_OK)
        result = parse_lists(root, &status, ret_error);
    parse_reclaim(root, &status);
    json_decref(root);
    if (result == GMS_OK)
        *ret_status = status;
    return result;
}

/* ----------------------------------------------------------------------------------------------- fetching ---- */

/* Connects as a control client and is welcomed. */
static gms_status introduce(const char *run_dir, uint32_t rank, uint64_t deadline_ns, void *buffer, int *ret_fd,
                            struct gms_error *ret_error)
{
    char path[GMS_RUN_PATH_BYTES];
    gms_status status = gms_run_dir_path(run_dir, "c", (int32_t)rank, path, ret_error);
    if (status != GMS_OK)
        return status;
    int fd = -1;
    status = gms_channel_connect(path, gms_clock_poll_ms(deadline_ns), &fd, ret_error);
    if (status != GMS_OK)
        return status;
    struct gms_message hello = {.type = GMS_MESSAGE_HELLO, .request_id = 1};
    hello.hello.role = GMS_CLIENT_CONTROL;
    hello.hello.pid = (uint32_t)getpid();
    hello.hello.rank = rank;
    hello.hello.version = (struct gms_bytes){.data = GMS_VERSION, .length = sizeof GMS_VERSION - 1};
    int self = -1;
    status = gms_pidfd_open(getpid(), &self, ret_error);
    hello.fds[0] = self;
    hello.fd_count = 1;
    if (status == GMS_OK)
        status = gms_channel_send_until(fd, &hello, deadline_ns, ret_error);
    gms_fd_close(&self);
    struct gms_message answer;
    if (status == GMS_OK)
        status = gms_channel_receive_until(fd, buffer, deadline_ns, &answer, ret_error);
    if (status == GMS_OK) {
        gms_message_close_fds(&answer);
        if (answer.type == GMS_MESSAGE_REPLY)
            status = gms_fail(ret_error, (gms_status)answer.reply.status, "coordinator rank %u: %.*s", rank,
                              (int)answer.reply.text.length, (const char *)answer.reply.text.data);
        else if (answer.type != GMS_MESSAGE_WELCOME)
            status = gms_fail(ret_error, GMS_E_PROTOCOL, "coordinator rank %u answered HELLO with %s", rank,
                              gms_message_name(answer.type));
    }
    if (status != GMS_OK)
        gms_fd_close(&fd);
    else
        *ret_fd = fd;
    return status;
}

/* Sends a request without arguments and waits for the answer that carries its id. */
static gms_status request(int fd, enum gms_message_type type, uint64_t deadline_ns, void *buffer,
                          struct gms_message *ret_answer, struct gms_error *ret_error)
{
    struct gms_message message = {.type = type, .request_id = 2};
    gms_status status = gms_channel_send_until(fd, &message, deadline_ns, ret_error);
    while (status == GMS_OK) {
        status = gms_channel_receive_until(fd, buffer, deadline_ns, ret_answer, ret_error);
        if (status == GMS_OK) {
            gms_message_close_fds(ret_answer);
            if (ret_answer->request_id == message.request_id)
                return GMS_OK;
        }
    }
    return status;
}

gms_status drill_status_fetch(const char *run_dir, uint32_t rank, uint64_t deadline_ns, struct drill_status *ret_status,
                              struct gms_error *ret_error)
{
    void *buffer = malloc(GMS_WIRE_MAX_BYTES);
    if (buffer == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a message of %d bytes", GMS_WIRE_MAX_BYTES);
    int fd = -1;
    struct gms_message answer = {0};
    gms_status status = introduce(run_dir, rank, deadline_ns, buffer, &fd, ret_error);
    if (status == GMS_OK)
        status = request(fd, GMS_MESSAGE_STATUS, deadline_ns, buffer, &answer, ret_error);
    if (status == GMS_OK && answer.type != GMS_MESSAGE_STATUS_REPLY)
        status = gms_fail(ret_error, GMS_E_PROTOCOL, "coordinator rank %u answered STATUS with %s", rank,
                          gms_message_name(answer.type));
    if (status == GMS_OK)
        status =
            drill_status_parse(answer.status_reply.json.data, answer.status_reply.json.length, ret_status, ret_error);
    gms_fd_close(&fd);
    free(buffer);
    return status;
}

gms_status drill_status_fetch_all(const char *run_dir, uint32_t ranks, uint64_t deadline_ns,
                                  struct drill_status *ret_all, struct gms_error *ret_error)
{
    gms_status status = GMS_OK;
    for (uint32_t rank = 0; rank < ranks && status == GMS_OK; rank++)
        status = drill_status_fetch(run_dir, rank, deadline_ns, &ret_all[rank], ret_error);
    return status;
}

gms_status drill_cluster_shutdown(const char *run_dir, uint64_t deadline_ns, struct gms_error *ret_error)
{
    void *buffer = malloc(GMS_WIRE_MAX_BYTES);
    if (buffer == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a message of %d bytes", GMS_WIRE_MAX_BYTES);
    int fd = -1;
    struct gms_message answer = {0};
    gms_status status = introduce(run_dir, 0, deadline_ns, buffer, &fd, ret_error);
    if (status == GMS_OK)
        status = request(fd, GMS_MESSAGE_SHUTDOWN, deadline_ns, buffer, &answer, ret_error);
    /* It may be gone before its answer is. */
    if (status == GMS_E_DISCONNECTED)
        status = GMS_OK;
    gms_fd_close(&fd);
    free(buffer);
    return status;
}

/* ---------------------------------------------------------------------------------------------- comparing ---- */

static gms_status differ(uint32_t rank, const char *what, uint64_t first, uint64_t other, struct gms_error *ret_error)
{
    return gms_fail(ret_error, GMS_E_MISMATCH, "ranks disagree: %s is %llu on rank 0 and %llu on rank %u", what,
                    (unsigned long long)first, (unsigned long long)other, rank);
}

gms_status drill_status_agree(const struct drill_status *all, uint32_t ranks, struct gms_error *ret_error)
{
    for (uint32_t rank = 0; rank < ranks; rank++) {
        const struct drill_status *a = &all[0], *b = &all[rank];
        if (b->rank != rank)
            return gms_fail(ret_error, GMS_E_MISMATCH, "the coordinator asked as rank %u says that it is rank %u", rank,
                            b->rank);
        if (b->ranks != ranks)
            return gms_fail(ret_error, GMS_E_MISMATCH, "rank %u says that there are %u ranks; there are %u", rank,
                            b->ranks, ranks);
        if (a->world != b->world)
            return differ(rank, "world", a->world, b->world, ret_error);
        if (a->epoch != b->epoch)
            return differ(rank, "epoch", a->epoch, b->epoch, ret_error);
        if (a->serving_incarnation != b->serving_incarnation)
            return differ(rank, "serving incarnation", a->serving_incarnation, b->serving_incarnation, ret_error);
        if (a->takeover_count != b->takeover_count)
            return differ(rank, "number of takeovers", a->takeover_count, b->takeover_count, ret_error);
        for (uint32_t i = 0; i < a->takeover_count; i++) {
            const struct drill_status_takeover *x = &a->takeovers[i], *y = &b->takeovers[i];
            if (x->epoch != y->epoch)
                return differ(rank, "epoch of a takeover", x->epoch, y->epoch, ret_error);
            if (x->from_incarnation != y->from_incarnation)
                return differ(rank, "source of a takeover", x->from_incarnation, y->from_incarnation, ret_error);
            if (x->to_incarnation != y->to_incarnation)
                return differ(rank, "successor of a takeover", x->to_incarnation, y->to_incarnation, ret_error);
            if (x->adopted != y->adopted)
                return differ(rank, "number of adopted blocks", x->adopted, y->adopted, ret_error);
        }
    }
    return GMS_OK;
}

const struct drill_status_engine *drill_status_engine(const struct drill_status *status, uint32_t engine)
{
    for (uint32_t i = 0; i < status->engine_count; i++)
        if (status->engines[i].engine == engine)
            return &status->engines[i];
    return NULL;
}

const struct drill_status_takeover *drill_status_takeover(const struct drill_status *status, uint64_t to_incarnation)
{
    for (uint32_t i = status->takeover_count; i-- > 0;)
        if (status->takeovers[i].to_incarnation == to_incarnation)
            return &status->takeovers[i];
    return NULL;
}
