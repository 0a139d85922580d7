/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages between a coordinator rank and its clients (engine ranks through libgms, gms-exec, gms-ctl), and the
 * keeper's. One SOCK_SEQPACKET datagram is one message:
 *
 *   u32 magic "GMSW" | u16 version | u16 type | u32 body bytes | u32 request id | body
 *
 * Integers are little-endian. A body is the fields of its type in the order given here; strings and blobs are u32
 * length
 * + bytes. A body with bytes left over, or too few, is malformed. Descriptors travel beside it (SCM_RIGHTS), their
 * count fixed by the type. The table in message.c describes every type once; encode and decode walk it.
 *
 * Replies carry the request id of what they answer. Messages the coordinator sends by itself carry id 0.
 */
#ifndef GMS_WIRE_MESSAGE_H
#define GMS_WIRE_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "gms/engine.h"

enum {
    GMS_WIRE_MAGIC = 0x57534d47, /* "GMSW" */
    GMS_WIRE_VERSION = 4,
    GMS_WIRE_HEADER_BYTES = 16,
    GMS_WIRE_MAX_BYTES = 160 * 1024, /* header included; below the default socket buffer */
    GMS_WIRE_MAX_FDS = 4,
    GMS_WIRE_FIELDS = 6,   /* digests in a proposal */
    GMS_SECRET_BYTES = 16, /* of a session */
};

/* Borrowed bytes: in a message to send, the caller's; in a decoded one, the receive buffer's. Not NUL-terminated. */
struct gms_bytes {
    const void *data;
    uint32_t length;
};

/*
 * X(NAME, value, fds) F(type, name)... Type letters in message.c's table: u32, u64, i32, bytes.
 *
 * client -> coordinator
 *   HELLO        role, pid (own namespace's), engine_id, rank, launch, program version; fds: own pidfd. An engine rank
 *                that had joined before its coordinator ended names its incarnation and the secret it got with it
 *   ENVIRONMENT  (gms-exec; gms-ctl with an engine id as incarnation) -> ENVIRONMENT_REPLY
 *   CONTAINER    (gms-exec) the cohort's container: kind; fds: pidfd of its guardian, of the engine rank, of gms-exec
 *                itself (may be missing), and for CGROUP the control group's directory
 *                -> REPLY; the engine rank runs only after it. How to end and how to know, by kind:
 *                PID_NAMESPACE: the guardian is the namespace's init. SIGKILL the guardian; its end is the end of all.
 *                SUBREAPER: SIGKILL the engine rank only. The guardian then kills whatever else descends from it and
 *                ends when nothing is left: its end with status 0 is the proof. When somebody killed it, gms-exec
 *                cleans up and ends then.
 *                CGROUP: as SUBREAPER, and cgroup.kill ends all that is in the control group, whoever started it.
 *   LEAVING      (gms-exec) somebody told this rank to end (SIGTERM); no answer
 *   PROPOSE      a collective call: kind, sequence, incarnation, fields[6], pool name, pool kind, payload (kind's
 * own) PARKED, READY(endpoint), LEAVING, STICKY(code, text) TRANSFER_DISPATCH, TRANSFER_END, TRANSFER_WAIT STATUS,
 * TAKEOVER(engine), SHUTDOWN     (gms-ctl) coordinator -> client WELCOME      world, world_size, rank, flags REPLY
 * status, rank, text and the outcome's numbers; fds: pool memory, directory (allocate) PROMOTE, SERVING, CONDEMNED,
 * TRANSFER_RESULT, TRANSFER_STALLED, STATUS_REPLY(json) keeper (both ways) KEEPER_WORLD, KEEPER_PUT, KEEPER_GET,
 * KEEPER_LIST, KEEPER_DROP, KEEPER_MIRROR, KEEPER_REPLY
 *   RECLAIMED    coordinator -> engine rank: slots of a pool that were in quarantine and are idle again on every rank;
 *                bit i of the bitmap is slot first + i
 *   MEMORY       (engine rank) what its tags hold, what parking and waking them took; before PARKED and READY, no
 * answer PARK, WAKE   (gms-ctl) an engine that serves is to hand over by itself; a parked one is to be the next ->
 * REPLY ASKED        coordinator -> engine rank: PARK, passed on; no answer WATCH        (gms-ctl, gms-relay; rank 0)
 * -> SERVES at once, and again by itself with every change SERVES       who serves now, under which epoch, where;
 * engine -1 and an empty endpoint: nobody COPY         coordinator -> gms-exec: one of the descriptors that the rank
 * leaves with the keeper (enum gms_copy_kind). The whole list is sent as BEGIN, PUT..., END; what it does not name is
 * forgotten then KEEPER_REFILL gms-exec -> a keeper that is new, without a token: kept if nothing has that name, and
 * only until the rank's coordinator has said with its first KEEPER_MIRROR that it has everything
 */
enum gms_message_type {
    GMS_MESSAGE_HELLO = 1,
    GMS_MESSAGE_WELCOME = 2,
    GMS_MESSAGE_REPLY = 3,
    GMS_MESSAGE_ENVIRONMENT = 4,
    GMS_MESSAGE_ENVIRONMENT_REPLY = 5,
    GMS_MESSAGE_CONTAINER = 6,
    GMS_MESSAGE_PROPOSE = 7,
    GMS_MESSAGE_PARKED = 8,
    GMS_MESSAGE_READY = 9,
    GMS_MESSAGE_LEAVING = 10,
    GMS_MESSAGE_STICKY = 11,
    GMS_MESSAGE_PROMOTE = 12,
    GMS_MESSAGE_SERVING = 13,
    GMS_MESSAGE_CONDEMNED = 14,
    GMS_MESSAGE_TRANSFER_DISPATCH = 15,
    GMS_MESSAGE_TRANSFER_END = 16,
    GMS_MESSAGE_TRANSFER_WAIT = 17,
    GMS_MESSAGE_TRANSFER_RESULT = 18,
    GMS_MESSAGE_TRANSFER_STALLED = 19,
    GMS_MESSAGE_STATUS = 20,
    GMS_MESSAGE_STATUS_REPLY = 21,
    GMS_MESSAGE_TAKEOVER = 22,
    GMS_MESSAGE_SHUTDOWN = 23,
    GMS_MESSAGE_COPY = 24,
    GMS_MESSAGE_RECLAIMED = 25,
    GMS_MESSAGE_MEMORY = 26,
    GMS_MESSAGE_PARK = 27,
    GMS_MESSAGE_WAKE = 28,
    GMS_MESSAGE_ASKED = 29,
    GMS_MESSAGE_WATCH = 30,
    GMS_MESSAGE_SERVES = 31,
    GMS_MESSAGE_KEEPER_WORLD = 40,
    GMS_MESSAGE_KEEPER_PUT = 41,
    GMS_MESSAGE_KEEPER_GET = 42,
    GMS_MESSAGE_KEEPER_LIST = 43,
    GMS_MESSAGE_KEEPER_DROP = 44,
    GMS_MESSAGE_KEEPER_MIRROR = 45,
    GMS_MESSAGE_KEEPER_REPLY = 46,
    GMS_MESSAGE_KEEPER_REFILL = 47,
};

enum gms_client_role { GMS_CLIENT_ENGINE = 1, GMS_CLIENT_EXEC = 2, GMS_CLIENT_CONTROL = 3 };
enum gms_copy_kind { GMS_COPY_BEGIN = 1, GMS_COPY_PUT = 2, GMS_COPY_DROP = 3, GMS_COPY_END = 4 };
enum gms_container_kind { GMS_CONTAINER_PID_NAMESPACE = 1, GMS_CONTAINER_SUBREAPER = 2, GMS_CONTAINER_CGROUP = 3 };

struct gms_message {
    enum gms_message_type type;
    uint32_t request_id;
    union {
        struct {
            uint32_t role, pid, engine_id, rank;
            struct gms_bytes launch, version;
            uint64_t incarnation;    /* 0: has not joined */
            struct gms_bytes secret; /* GMS_SECRET_BYTES with an incarnation, else empty */
        } hello;                     /* fds: pidfd */
        struct {
            uint64_t world;
            uint32_t world_size, rank, kv_verify_full, operation_timeout_ms;
            uint32_t on_device;      /* pools are memory of a GPU */
            struct gms_bytes device; /* which: its UUID, 16 bytes; else empty */
            struct gms_bytes version;
            struct gms_bytes preset, preset_tags; /* how engines park here: its name, its tags (wire/tags.h) */
        } welcome;
        /* ENVIRONMENT, PARKED (incarnation), LEAVING (incarnation), ASKED (incarnation), STATUS, SHUTDOWN, WATCH:
         * `plain.incarnation` or nothing used (still sent) */
        struct {
            uint64_t incarnation;
        } plain;
        struct {
            struct gms_bytes variables; /* "NAME=VALUE\0" repeated */
            uint64_t digest;
            uint32_t containment; /* the deployment's: 0 auto, 1 pid-namespace, 2 subreaper, 3 cgroup */
        } environment_reply;
        struct {
            uint32_t kind, engine_id;
        } container; /* fds: container, engine */
        struct {
            uint64_t incarnation, launch;
            uint32_t sequence, kind, pool_kind, slot_count;
            uint64_t block_bytes, bytes; /* allocate: this rank's own geometry */
            uint64_t local_digest;       /* join: identity, rank included; publish: content, may differ per rank */
            uint64_t since;              /* join: the world in which this launch asked first; else 0 */
            uint64_t fields[GMS_WIRE_FIELDS];
            struct gms_bytes pool; /* name */
            struct gms_bytes
                payload; /* publish: the manifest; join: identity in words, for texts; exchange: rank 0's */
        } propose;
        struct {
            uint64_t incarnation;
            struct gms_bytes endpoint;
        } ready;
        struct {
            uint64_t incarnation;
            int32_t code;
            struct gms_bytes text;
        } sticky;
        struct { /* fds: allocate: pool memory, directory (KV only) */
            int32_t status, rank;
            uint32_t kind, sequence;
            uint64_t incarnation, epoch;
            uint32_t adopted, idle, quarantined, pool_index, created, published;
            uint64_t bytes;
            struct gms_bytes text;
            struct gms_bytes payload; /* allocate of a published weights pool: its manifest; exchange: rank 0's bytes */
            struct gms_bytes secret;  /* join: GMS_SECRET_BYTES, by which this engine rank is known to later worlds */
        } reply;
        struct {
            uint64_t incarnation, epoch, source;
        } promote; /* PROMOTE, SERVING, CONDEMNED; text for CONDEMNED below */
        struct {
            uint64_t incarnation, epoch;
            struct gms_bytes text;
        } condemned;
        struct {
            uint64_t incarnation, id;
            uint32_t part_count, part, failed;
            int32_t timeout_ms;
            /* DISPATCH: said before, to a coordinator that is no more; parts (a bit each) that ended, that failed */
            uint32_t again, ended_mask, failed_mask;
        } transfer; /* DISPATCH, END, WAIT */
        struct {
            uint64_t incarnation, id;
            int32_t status;
            uint32_t finished, failed;
            int32_t first_failed;
            struct gms_bytes failed_bitmap, text;
        } transfer_result; /* RESULT, STALLED */
        struct {
            uint64_t incarnation;
            uint32_t pool, first, slots;
            struct gms_bytes bitmap; /* (slots + 7) / 8 bytes */
        } reclaimed;
        struct {
            struct gms_bytes json;
        } status_reply;
        struct {
            uint64_t incarnation;
            uint32_t awake; /* 1: said after waking, 0: parked */
            struct gms_bytes tags;
        } memory;
        struct {
            uint32_t engine_id;
        } takeover; /* and PARK, WAKE */
        struct {
            uint64_t world, incarnation, epoch;
            int32_t engine; /* -1: nobody serves; incarnation and endpoint are empty then, the epoch is not */
            struct gms_bytes endpoint;
        } serves;
        struct {
            uint64_t world, token;
            uint32_t rank, world_size;
            struct gms_bytes name, meta;
            uint64_t number;
        } keeper; /* all KEEPER_ requests; REFILL without world and token */
        struct {
            int32_t status;
            uint64_t world, token, number;
            struct gms_bytes names, meta, text;
        } keeper_reply;
        struct {
            uint32_t kind; /* enum gms_copy_kind */
            struct gms_bytes name, meta;
        } copy; /* fds: PUT: what is copied */
    };
    int fds[GMS_WIRE_MAX_FDS]; /* to send: borrowed; received: owned by the receiver of the message */
    uint32_t fd_count;
};

/* Encodes into `buffer`. Errors: INVALID (too long: length and limit). */
gms_status gms_message_encode(const struct gms_message *message, void *buffer, size_t capacity, size_t *ret_bytes,
                              struct gms_error *ret_error);
/* Decodes one datagram; byte fields borrow from `buffer`. fds are not touched. Total: any input gives OK, PROTOCOL or
 * VERSION (both versions named). */
gms_status gms_message_decode(const void *buffer, size_t bytes, struct gms_message *ret_message,
                              struct gms_error *ret_error);
const char *gms_message_name(enum gms_message_type type);
/* How many descriptors a message of this type may carry at most. */
uint32_t gms_message_fd_limit(enum gms_message_type type);

#endif
