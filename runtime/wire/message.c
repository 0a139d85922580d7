/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/message.h"

#include <endian.h>
#include <stdbool.h>
#include <string.h>

/*
 * The only description of the protocol: for each type its name, how many descriptors may come with it and its fields in
 * order of the wire. Encode and decode walk the same rows, so neither can know a field that the other does not.
 */
enum field_kind { FIELD_END, FIELD_U32, FIELD_I32, FIELD_U64, FIELD_BYTES };

struct field {
    enum field_kind kind;
    size_t offset;
};

enum { MAX_FIELDS = 20 };

struct descriptor {
    const char *name;
    uint32_t fd_limit;
    struct field fields[MAX_FIELDS]; /* up to FIELD_END */
};

#define U32(member)                                                                                                    \
    {                                                                                                                  \
        FIELD_U32, offsetof(struct gms_message, member)                                                                \
    }
#define I32(member)                                                                                                    \
    {                                                                                                                  \
        FIELD_I32, offsetof(struct gms_message, member)                                                                \
    }
#define U64(member)                                                                                                    \
    {                                                                                                                  \
        FIELD_U64, offsetof(struct gms_message, member)                                                                \
    }
#define BYTES(member)                                                                                                  \
    {                                                                                                                  \
        FIELD_BYTES, offsetof(struct gms_message, member)                                                              \
    }

#define PLAIN_FIELDS                                                                                                   \
    {                                                                                                                  \
        U64(plain.incarnation)                                                                                         \
    }
#define PROMOTE_FIELDS                                                                                                 \
    {                                                                                                                  \
        U64(promote.incarnation), U64(promote.epoch), U64(promote.source)                                              \
    }
#define TRANSFER_FIELDS                                                                                                \
    {                                                                                                                  \
        U64(transfer.incarnation), U64(transfer.id), U32(transfer.part_count), U32(transfer.part),                     \
            U32(transfer.failed), I32(transfer.timeout_ms), U32(transfer.again), U32(transfer.ended_mask),             \
            U32(transfer.failed_mask)                                                                                  \
    }
#define TRANSFER_RESULT_FIELDS                                                                                         \
    {                                                                                                                  \
        U64(transfer_result.incarnation), U64(transfer_result.id), I32(transfer_result.status),                        \
            U32(transfer_result.finished), U32(transfer_result.failed), I32(transfer_result.first_failed),             \
            BYTES(transfer_result.failed_bitmap), BYTES(transfer_result.text)                                          \
    }
#define KEEPER_FIELDS                                                                                                  \
    {                                                                                                                  \
        U64(keeper.world), U64(keeper.token), U32(keeper.rank), U32(keeper.world_size), BYTES(keeper.name),            \
            BYTES(keeper.meta), U64(keeper.number)                                                                     \
    }

static const struct descriptor descriptors[] = {
    [GMS_MESSAGE_HELLO] = {"HELLO",
                           1,
                           {U32(hello.role), U32(hello.pid), U32(hello.engine_id), U32(hello.rank), BYTES(hello.launch),
                            BYTES(hello.version), U64(hello.incarnation), BYTES(hello.secret)}},
    [GMS_MESSAGE_WELCOME] = {"WELCOME",
                             0,
                             {U64(welcome.world), U32(welcome.world_size), U32(welcome.rank),
                              U32(welcome.kv_verify_full), U32(welcome.operation_timeout_ms), U32(welcome.on_device),
                              BYTES(welcome.device), BYTES(welcome.version), BYTES(welcome.preset),
                              BYTES(welcome.preset_tags)}},
    [GMS_MESSAGE_REPLY] = {"REPLY",
                           2,
                           {I32(reply.status), I32(reply.rank), U32(reply.kind), U32(reply.sequence),
                            U64(reply.incarnation), U64(reply.epoch), U32(reply.adopted), U32(reply.idle),
                            U32(reply.quarantined), U32(reply.pool_index), U32(reply.created), U32(reply.published),
                            U64(reply.bytes), BYTES(reply.text), BYTES(reply.payload), BYTES(reply.secret)}},
    [GMS_MESSAGE_ENVIRONMENT] = {"ENVIRONMENT", 0, PLAIN_FIELDS},
    [GMS_MESSAGE_ENVIRONMENT_REPLY] = {"ENVIRONMENT_REPLY",
                                       0,
                                       {BYTES(environment_reply.variables), U64(environment_reply.digest),
                                        U32(environment_reply.containment)}},
    [GMS_MESSAGE_CONTAINER] = {"CONTAINER", 4, {U32(container.kind), U32(container.engine_id)}},
    [GMS_MESSAGE_PROPOSE] = {"PROPOSE",
                             0,
                             {U64(propose.incarnation), U64(propose.launch), U32(propose.sequence), U32(propose.kind),
                              U32(propose.pool_kind), U32(propose.slot_count), U64(propose.block_bytes),
                              U64(propose.bytes), U64(propose.local_digest), U64(propose.since), U64(propose.fields[0]),
                              U64(propose.fields[1]), U64(propose.fields[2]), U64(propose.fields[3]),
                              U64(propose.fields[4]), U64(propose.fields[5]), BYTES(propose.pool),
                              BYTES(propose.payload)}},
    [GMS_MESSAGE_PARKED] = {"PARKED", 0, PLAIN_FIELDS},
    [GMS_MESSAGE_READY] = {"READY", 0, {U64(ready.incarnation), BYTES(ready.endpoint)}},
    [GMS_MESSAGE_LEAVING] = {"LEAVING", 0, PLAIN_FIELDS},
    [GMS_MESSAGE_STICKY] = {"STICKY", 0, {U64(sticky.incarnation), I32(sticky.code), BYTES(sticky.text)}},
    [GMS_MESSAGE_PROMOTE] = {"PROMOTE", 0, PROMOTE_FIELDS},
    [GMS_MESSAGE_SERVING] = {"SERVING", 0, PROMOTE_FIELDS},
    [GMS_MESSAGE_CONDEMNED] = {"CONDEMNED",
                               0,
                               {U64(condemned.incarnation), U64(condemned.epoch), BYTES(condemned.text)}},
    [GMS_MESSAGE_TRANSFER_DISPATCH] = {"TRANSFER_DISPATCH", 0, TRANSFER_FIELDS},
    [GMS_MESSAGE_TRANSFER_END] = {"TRANSFER_END", 0, TRANSFER_FIELDS},
    [GMS_MESSAGE_TRANSFER_WAIT] = {"TRANSFER_WAIT", 0, TRANSFER_FIELDS},
    [GMS_MESSAGE_TRANSFER_RESULT] = {"TRANSFER_RESULT", 0, TRANSFER_RESULT_FIELDS},
    [GMS_MESSAGE_TRANSFER_STALLED] = {"TRANSFER_STALLED", 0, TRANSFER_RESULT_FIELDS},
    [GMS_MESSAGE_STATUS] = {"STATUS", 0, PLAIN_FIELDS},
    [GMS_MESSAGE_STATUS_REPLY] = {"STATUS_REPLY", 0, {BYTES(status_reply.json)}},
    [GMS_MESSAGE_TAKEOVER] = {"TAKEOVER", 0, {U32(takeover.engine_id)}},
    [GMS_MESSAGE_SHUTDOWN] = {"SHUTDOWN", 0, PLAIN_FIELDS},
    [GMS_MESSAGE_RECLAIMED] = {"RECLAIMED",
                               0,
                               {U64(reclaimed.incarnation), U32(reclaimed.pool), U32(reclaimed.first),
                                U32(reclaimed.slots), BYTES(reclaimed.bitmap)}},
    [GMS_MESSAGE_MEMORY] = {"MEMORY", 0, {U64(memory.incarnation), U32(memory.awake), BYTES(memory.tags)}},
    [GMS_MESSAGE_PARK] = {"PARK", 0, {U32(takeover.engine_id)}},
    [GMS_MESSAGE_WAKE] = {"WAKE", 0, {U32(takeover.engine_id)}},
    [GMS_MESSAGE_ASKED] = {"ASKED", 0, PLAIN_FIELDS},
    [GMS_MESSAGE_COPY] = {"COPY", 1, {U32(copy.kind), BYTES(copy.name), BYTES(copy.meta)}},
    [GMS_MESSAGE_WATCH] = {"WATCH", 0, PLAIN_FIELDS},
    [GMS_MESSAGE_SERVES] = {"SERVES",
                            0,
                            {U64(serves.world), U64(serves.incarnation), U64(serves.epoch), I32(serves.engine),
                             BYTES(serves.endpoint)}},
    [GMS_MESSAGE_KEEPER_WORLD] = {"KEEPER_WORLD", 1, KEEPER_FIELDS},
    [GMS_MESSAGE_KEEPER_PUT] = {"KEEPER_PUT", 1, KEEPER_FIELDS},
    [GMS_MESSAGE_KEEPER_GET] = {"KEEPER_GET", 0, KEEPER_FIELDS},
    [GMS_MESSAGE_KEEPER_LIST] = {"KEEPER_LIST", 0, KEEPER_FIELDS},
    [GMS_MESSAGE_KEEPER_DROP] = {"KEEPER_DROP", 0, KEEPER_FIELDS},
    [GMS_MESSAGE_KEEPER_MIRROR] = {"KEEPER_MIRROR", 0, KEEPER_FIELDS},
    [GMS_MESSAGE_KEEPER_REFILL] = {"KEEPER_REFILL", 1, KEEPER_FIELDS},
    [GMS_MESSAGE_KEEPER_REPLY] = {"KEEPER_REPLY",
                                  1,
                                  {I32(keeper_reply.status), U64(keeper_reply.world), U64(keeper_reply.token),
                                   U64(keeper_reply.number), BYTES(keeper_reply.names), BYTES(keeper_reply.meta),
                                   BYTES(keeper_reply.text)}},
};

static const struct descriptor *find(uint32_t type)
{
    if (type >= sizeof(descriptors) / sizeof(descriptors[0]) || !descriptors[type].name) {
        return NULL;
    }
    return &descriptors[type];
}

const char *gms_message_name(enum gms_message_type type)
{
    const struct descriptor *descriptor = find((uint32_t)type);

    return descriptor ? descriptor->name : "UNKNOWN";
}

uint32_t gms_message_fd_limit(enum gms_message_type type)
{
    const struct descriptor *descriptor = find((uint32_t)type);

    return descriptor ? descriptor->fd_limit : 0;
}

/* ------------------------------------------------------------------------------------------------- bytes ----- */

static void store_u16(unsigned char *at, uint16_t value)
{
    const uint16_t wire = htole16(value);
    memcpy(at, &wire, sizeof(wire));
}

static void store_u32(unsigned char *at, uint32_t value)
{
    const uint32_t wire = htole32(value);
    memcpy(at, &wire, sizeof(wire));
}

static void store_u64(unsigned char *at, uint64_t value)
{
    const uint64_t wire = htole64(value);
    memcpy(at, &wire, sizeof(wire));
}

static uint16_t load_u16(const unsigned char *at)
{
    uint16_t wire;
    memcpy(&wire, at, sizeof(wire));
    return le16toh(wire);
}

static uint32_t load_u32(const unsigned char *at)
{
    uint32_t wire;
    memcpy(&wire, at, sizeof(wire));
    return le32toh(wire);
}

static uint64_t load_u64(const unsigned char *at)
{
    uint64_t wire;
    memcpy(&wire, at, sizeof(wire));
    return le64toh(wire);
}

/* What the field needs on the wire, counted before anything is written. */
static uint64_t field_bytes(const struct gms_message *message, const struct field *field)
{
    switch (field->kind) {
    case FIELD_U32:
    case FIELD_I32:
        return 4;
    case FIELD_U64:
        return 8;
    case FIELD_BYTES:
        return 4 + (uint64_t)((const struct gms_bytes *)((const char *)message + field->offset))->length;
    case FIELD_END:
        break;
    }
    return 0;
}

/* ------------------------------------------------------------------------------------------------ encode ----- */

gms_status gms_message_encode(const struct gms_message *message, void *buffer, size_t capacity, size_t *ret_bytes,
                              struct gms_error *ret_error)
{
    const struct descriptor *descriptor = find((uint32_t)message->type);
    const struct field *field;
    uint64_t total = GMS_WIRE_HEADER_BYTES;
    unsigned char *at = buffer;

    if (!descriptor) {
        return gms_fail(ret_error, GMS_E_INVALID, "message type %u is unknown", (unsigned)message->type);
    }
    if (message->fd_count > descriptor->fd_limit) {
        return gms_fail(ret_error, GMS_E_INVALID, "%s carries %u descriptors, the limit is %u", descriptor->name,
                        message->fd_count, descriptor->fd_limit);
    }
    for (field = descriptor->fields; field->kind != FIELD_END; field++) {
        total += field_bytes(message, field);
    }
    if (total > GMS_WIRE_MAX_BYTES || total > capacity) {
        return gms_fail(ret_error, GMS_E_INVALID, "%s has %llu bytes, the limit is %zu", descriptor->name,
                        (unsigned long long)total, capacity < GMS_WIRE_MAX_BYTES ? capacity : GMS_WIRE_MAX_BYTES);
    }
    store_u32(at, GMS_WIRE_MAGIC);
    store_u16(at + 4, GMS_WIRE_VERSION);
    store_u16(at + 6, (uint16_t)message->type);
    store_u32(at + 8, (uint32_t)total - GMS_WIRE_HEADER_BYTES);
    store_u32(at + 12, message->request_id);
    at += GMS_WIRE_HEADER_BYTES;
    for (field = descriptor->fields; field->kind != FIELD_END; field++) {
        const void *value = (const char *)message + field->offset;

        switch (field->kind) {
        case FIELD_U32:
            store_u32(at, *(const uint32_t *)value);
            break;
        case FIELD_I32:
            store_u32(at, (uint32_t)(*(const int32_t *)value));
            break;
        case FIELD_U64:
            store_u64(at, *(const uint64_t *)value);
            break;
        case FIELD_BYTES: {
            const struct gms_bytes *bytes = value;

            store_u32(at, bytes->length);
            if (bytes->length > 0) {
                memcpy(at + 4, bytes->data, bytes->length);
            }
            break;
        }
        case FIELD_END:
            break;
        }
        at += field_bytes(message, field);
    }
    *ret_bytes = (size_t)total;
    return GMS_OK;
}

/* ------------------------------------------------------------------------------------------------ decode ----- */

gms_status gms_message_decode(const void *buffer, size_t bytes, struct gms_message *ret_message,
                              struct gms_error *ret_error)
{
    const unsigned char *at = buffer;
    const unsigned char *end = at + bytes;
    struct gms_message message;

    if (bytes < GMS_WIRE_HEADER_BYTES) {
        return gms_fail(ret_error, GMS_E_PROTOCOL, "message of %zu bytes is shorter than its header of %d", bytes,
                        GMS_WIRE_HEADER_BYTES);
    }
    if (load_u32(at) != GMS_WIRE_MAGIC) {
        return gms_fail(ret_error, GMS_E_PROTOCOL, "message starts with 0x%08x and not with 0x%08x: not our protocol",
                        (unsigned)load_u32(at), (unsigned)GMS_WIRE_MAGIC);
    }
    if (load_u16(at + 4) != GMS_WIRE_VERSION) {
        return gms_fail(ret_error, GMS_E_VERSION,
                        "the peer speaks protocol version %u, this program %d; run both from one release",
                        (unsigned)load_u16(at + 4), GMS_WIRE_VERSION);
    }
    const struct descriptor *descriptor = find(load_u16(at + 6));
    if (!descriptor) {
        return gms_fail(ret_error, GMS_E_PROTOCOL, "message type %u is unknown", (unsigned)load_u16(at + 6));
    }
    if (bytes > GMS_WIRE_MAX_BYTES || load_u32(at + 8) != bytes - GMS_WIRE_HEADER_BYTES) {
        return gms_fail(ret_error, GMS_E_PROTOCOL, "%s says that its body has %u bytes, but %zu came (limit %d)",
                        descriptor->name, (unsigned)load_u32(at + 8), bytes - GMS_WIRE_HEADER_BYTES,
                        GMS_WIRE_MAX_BYTES - GMS_WIRE_HEADER_BYTES);
    }
    memset(&message, 0, sizeof(message));
    message.type = (enum gms_message_type)load_u16(at + 6);
    message.request_id = load_u32(at + 12);
    at += GMS_WIRE_HEADER_BYTES;
    for (const struct field *field = descriptor->fields; field->kind != FIELD_END; field++) {
        void *value = (char *)&message + field->offset;
        const size_t fixed_bytes = field->kind == FIELD_U64 ? 8 : 4;

        if ((size_t)(end - at) < fixed_bytes) {
            return gms_fail(ret_error, GMS_E_PROTOCOL, "%s ends inside field %td", descriptor->name,
                            field - descriptor->fields + 1);
        }
        switch (field->kind) {
        case FIELD_U32:
            *(uint32_t *)value = load_u32(at);
            break;
        case FIELD_I32:
            *(int32_t *)value = (int32_t)load_u32(at);
            break;
        case FIELD_U64:
            *(uint64_t *)value = load_u64(at);
            break;
        case FIELD_BYTES: {
            const uint32_t length = load_u32(at);

            if (length > (size_t)(end - at) - 4) {
                return gms_fail(ret_error, GMS_E_PROTOCOL, "%s field %td says it has %u bytes, but %td are left",
                                descriptor->name, field - descriptor->fields + 1, (unsigned)length, end - at - 4);
            }
            *(struct gms_bytes *)value = (struct gms_bytes){.data = at + 4, .length = length};
            at += length;
            break;
        }
        case FIELD_END:
            break;
        }
        at += fixed_bytes;
    }
    if (at != end) {
        return gms_fail(ret_error, GMS_E_PROTOCOL, "%s has %td bytes too many", descriptor->name, end - at);
    }
    for (size_t i = 0; i < GMS_WIRE_MAX_FDS; i++) {
        message.fds[i] = -1;
    }
    *ret_message = message;
    return GMS_OK;
}
