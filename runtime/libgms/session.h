/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of libgms share. Nothing here is exported.
 *
 * Who may touch what: the session's control state belongs to the thread that makes control calls. The slot side (gate,
 * step counters, pending releases, block index) is used from any thread: atomics, or under `slots_lock`, which is held
 * for a few memory accesses and never across a system call.
 */
#ifndef GMS_LIBGMS_SESSION_H
#define GMS_LIBGMS_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/run_dir.h"
#include "directory/directory.h"
#include "gms/engine.h"
#include "vmm/vmm.h"
#include "wire/channel.h"
#include "wire/tags.h"

enum {
    GMS_TRANSFER_RESULTS = 64,
    GMS_OPEN_TRANSFERS = 64,
    GMS_FAILED_BITMAP_BYTES = 128,
    GMS_ENDPOINT_BYTES = 256,
    GMS_LAUNCH_ID_BYTES = 128,
};

/* ------------------------------------------------------------------------------------------------ spin lock --- */

/* Uncontended it is one exchange and one store: no system call. A holder that lost its processor is waited for by
 * yielding. */
struct gms_spin {
    atomic_flag taken;
};
void gms_spin_lock(struct gms_spin *spin);
void gms_spin_unlock(struct gms_spin *spin);

/* ------------------------------------------------------------------------------------------------- manifest --- */

struct gms_manifest_entry {
    char name[GMS_NAME_BYTES];
    uint64_t offset_bytes, bytes;
};

/* Entries in the order of their offsets, never overlapping. */
struct gms_manifest {
    struct gms_manifest_entry *entries; /* owned */
    uint32_t count, capacity;
};

void gms_manifest_clear(struct gms_manifest *manifest);
gms_status gms_manifest_insert(struct gms_manifest *manifest, const char *name, uint64_t offset_bytes, uint64_t bytes,
                               uint64_t pool_bytes, struct gms_error *ret_error);
const struct gms_manifest_entry *gms_manifest_lookup(const struct gms_manifest *manifest, const char *name);
/* REFUSED names the first gap. */
gms_status gms_manifest_check_whole(const struct gms_manifest *manifest, uint64_t pool_bytes,
                                    struct gms_error *ret_error);
/* Of names and their order: what all ranks have equal. */
uint64_t gms_manifest_names_digest(const struct gms_manifest *manifest);
/* *ret_data is owned by the caller (free). INVALID: does not fit a message. */
gms_status gms_manifest_pack(const struct gms_manifest *manifest, void **ret_data, uint32_t *ret_bytes,
                             struct gms_error *ret_error);
/* Total: any bytes give OK or CORRUPT; *ret_manifest is empty after failure. */
gms_status gms_manifest_unpack(const void *data, uint32_t bytes, uint64_t pool_bytes, struct gms_manifest *ret_manifest,
                               struct gms_error *ret_error);

/* ---------------------------------------------------------------------------------------------- block index --- */

/* Open addressing from block hash to home slot. An answer is only a hint: the record and its words are checked. */
struct gms_block_index_entry {
    uint64_t tag; /* first bytes of the hash; 0: empty */
    uint32_t pool, slot;
};
struct gms_block_index {
    struct gms_block_index_entry *entries; /* owned, mapped */
    uint64_t mask;
};

/* ---------------------------------------------------------------------------------------------------- pools --- */

/* A slot released under a step that was not complete. Ordered by token. */
struct gms_pending {
    uint64_t token;
    uint32_t slot;
    uint32_t generation_low; /* 32 bits suffice to tell a later lease from this one while it waits here */
};

struct gms_pool {
    struct gms_session *session;
    struct gms_pool_description description;
    uint32_t index;
    uint64_t bytes;        /* what the engine sees */
    uint64_t mapped_bytes; /* what is mapped: the memory's real size */
    void *address;
    uint64_t mapping_epoch;
    struct gms_vmm_handle handle; /* KV: until parked; weights: until published */
    bool must_publish, published;
    struct gms_manifest manifest;

    /* KV only, below */
    struct gms_directory directory;
    struct gms_tail_layout tail_layout; /* planes 0: not told */
    uint64_t *tags;                     /* owned; by slot: under which tag the block index has it, 0: not */
    struct gms_pending *pending;        /* owned; a ring */
    uint64_t pending_mask, pending_head, pending_count;
    uint8_t *withheld, *returned; /* bit per slot: in quarantine when adopted; back since, and not handed on. Owned as
                                     one by `withheld` */
    uint32_t returned_count, returned_next;
};

/* ---------------------------------------------------------------------------------------- tags and regions --- */

struct gms_tag_state {
    struct gms_tag tag;
    uint64_t park_ns, wake_ns;
};

/* Private memory of the engine at an address that stays. */
struct gms_region {
    struct gms_region *next;
    uint32_t tag;
    void *address;
    uint64_t bytes, mapped_bytes;
    void *saved; /* owned: contents while parked, under GMS_PARK_SAVE */
    bool mapped;
};

/* A step on the device and the event behind it. */
enum { GMS_MARKS = 256 };
struct gms_mark {
    gms_token token;
    void *event; /* owned; used again */
};

/* -------------------------------------------------------------------------------------------------- session --- */

struct gms_promotion_state {
    bool arrived;
    uint64_t epoch, source;
};

struct gms_transfer_news {
    uint64_t id; /* 0: empty */
    gms_status status;
    struct gms_transfer_result result;
    char text[GMS_ERROR_TEXT_BYTES];
};

/* A transfer that this rank has dispatched and whose end it has not been told: said again to a new coordinator. */
struct gms_open_transfer {
    uint64_t id; /* 0: free */
    uint32_t part_count, ended_mask, failed_mask;
};

/* The diagram is in attach.c. */
enum gms_link { GMS_LINK_UP, GMS_LINK_DOWN, GMS_LINK_GREETING };

struct gms_session {
    int fd; /* to the coordinator; -1 while there is none */
    enum gms_link link;
    int event_fd, timer_fd; /* an epoll of socket and timer: stays the same while sockets come and go */
    uint64_t lost_ns, retry_ns, pause_ns, greeting_deadline_ns;
    char path[GMS_RUN_PATH_BYTES], launch[GMS_LAUNCH_ID_BYTES];
    uint8_t secret[GMS_SECRET_BYTES]; /* of our incarnation */
    bool has_secret;
    bool said_ready; /* and where we can be reached, then */
    uint32_t ready_request;
    char endpoint[GMS_ENDPOINT_BYTES];
    struct gms_open_transfer open_transfers[GMS_OPEN_TRANSFERS];
    uint32_t rank, engine_id;
    uint64_t launch_digest;
    uint64_t world;
    uint64_t asked_world; /* in which this launch asked to join first; 0: not yet */
    uint32_t world_size, kv_verify_full, operation_timeout_ms;
    const struct gms_vmm *vmm; /* the kind of memory that this deployment's pools are */
    uint32_t last_request;
    void *buffer; /* owned; GMS_WIRE_MAX_BYTES; what was received last */

    uint64_t incarnation; /* 0: not joined */
    uint64_t identity_digest;
    uint32_t next_sequence;
    bool parked, adopted;
    enum gms_park_state park_state;
    struct gms_tag_state tags[GMS_MAX_TAGS];
    uint32_t tag_count;
    char preset[GMS_NAME_BYTES]; /* the deployment's, as it was when this session was opened */
    struct gms_tag_report preset_tags[GMS_MAX_TAGS];
    uint32_t preset_count;
    bool asked_to_park;
    struct gms_region *regions; /* owned */
    uint64_t mapping_epoch;
    _Atomic bool wake_cancelled;
    struct gms_mark marks[GMS_MARKS]; /* a ring */
    uint32_t mark_first, mark_count;
    gms_token last_marked;
    struct gms_promotion_state promotion;
    bool promotion_taken; /* told to the engine */
    uint64_t serving_epoch;
    char condemned_text[GMS_ERROR_TEXT_BYTES];
    struct gms_transfer_news transfers[GMS_TRANSFER_RESULTS];
    uint32_t next_transfer;

    struct gms_pool *pools[GMS_MAX_POOLS];            /* owned */
    struct gms_directory *directories[GMS_MAX_POOLS]; /* of KV pools: borrowed from them */
    struct gms_nccl *communicators;                   /* owned */

    /* The slot side. `gate` is what slot calls answer: OK, REFUSED until adopted, CONDEMNED. */
    _Atomic int gate;
    _Atomic uint64_t steps_begun, steps_completed;
    struct gms_spin slots_lock;
    struct gms_block_index blocks;
};

/* attach.c: the connection to the coordinator. */

/* Makes and closes what gms_event_fd gives. */
gms_status gms_link_open(struct gms_session *session, struct gms_error *ret_error);
void gms_link_close(struct gms_session *session);
gms_status gms_link_connect(struct gms_session *session, int timeout_ms, struct gms_error *ret_error);
gms_status gms_link_hello(struct gms_session *session, uint64_t deadline_ns, struct gms_error *ret_error);
/* The answer to HELLO: OK is UP. */
gms_status gms_link_welcomed(struct gms_session *session, const struct gms_message *message,
                             struct gms_error *ret_error);
/* Its end was read. */
void gms_link_lost(struct gms_session *session);
/* Does what is due to bring it back, without blocking: OK (up), DISCONNECTED (not yet), CONDEMNED. */
gms_status gms_link_step(struct gms_session *session, struct gms_error *ret_error);
/* The same until `deadline_ns`. */
gms_status gms_link_wait(struct gms_session *session, uint64_t deadline_ns, struct gms_error *ret_error);

/* exchange.c: the conversation with the coordinator. */

/* Refuses control calls of a condemned session, and before join where `joined`; waits for a coordinator until
 * `deadline_ns`, then AGAIN. */
gms_status gms_session_ready(struct gms_session *session, bool joined, uint64_t deadline_ns,
                             struct gms_error *ret_error);
/* The same without a look at the coordinator, for calls that ask it nothing. */
gms_status gms_session_check(const struct gms_session *session, bool joined, struct gms_error *ret_error);
gms_status gms_session_fail_condemned(const struct gms_session *session, struct gms_error *ret_error);
gms_status gms_session_send(struct gms_session *session, struct gms_message *message, uint64_t deadline_ns,
                            struct gms_error *ret_error);
/* Waits for one message. What the coordinator says by itself is filed and *ret_filed is true; a REPLY, WELCOME or
 * TRANSFER_RESULT that is not filed is handed out and belongs to the caller, descriptors included. */
gms_status gms_session_receive(struct gms_session *session, uint64_t deadline_ns, struct gms_message *ret_message,
                               bool *ret_filed, struct gms_error *ret_error);
/* Lets in what the coordinator has said by itself, without waiting; with no coordinator there is nothing. CONDEMNED. */
gms_status gms_session_let_in(struct gms_session *session, struct gms_error *ret_error);
/* Sends and waits for the REPLY; what it says becomes the result. On GMS_OK *ret_reply belongs to the caller. When the
 * coordinator ends meanwhile the next one is asked the same; AGAIN when there is none until `deadline_ns`. */
gms_status gms_session_ask(struct gms_session *session, struct gms_message *message, uint64_t deadline_ns,
                           struct gms_message *ret_reply, struct gms_error *ret_error);
/* A REPLY that refuses, as an error: its words and its rank. Returns its status, OK when it refuses nothing. */
gms_status gms_reply_error(const struct gms_message *reply, struct gms_error *ret_error);
/* A collective call: fills in incarnation and sequence, asks, and counts the sequence when it was decided. */
gms_status gms_session_propose(struct gms_session *session, struct gms_message *message, struct gms_message *ret_reply,
                               struct gms_error *ret_error);
uint64_t gms_session_deadline(const struct gms_session *session); /* of one collective call that starts now */
gms_status gms_session_condemn(struct gms_session *session, const char *text, size_t length);
bool gms_session_condemned(const struct gms_session *session);

/* pools.c */
void gms_pool_free(struct gms_pool *pool); /* NULL and half-built ones allowed */

/* tags.c */

/* The deployment's preset, from its first WELCOME. PROTOCOL: it cannot be read. */
gms_status gms_tags_take_preset(struct gms_session *session, const struct gms_message *welcome,
                                struct gms_error *ret_error);
/* The preset, where the engine has not said anything. */
void gms_tags_want(struct gms_session *session);
/* Tells the coordinator what tags hold and took; best effort, nothing depends on it. */
void gms_tags_tell(struct gms_session *session);
void gms_tags_note_park(struct gms_session *session, const struct gms_pool *pool, uint64_t duration_ns);
uint64_t gms_tags_digest(const struct gms_session *session);
/* Gives back what is not kept while parked. After a failure some may be given back: gms_regions_whole tells. */
gms_status gms_regions_park(struct gms_session *session, struct gms_error *ret_error);
/* The contrary; all or nothing. NO_MEMORY after `patience_ms` of asking again. */
gms_status gms_regions_wake(struct gms_session *session, uint32_t patience_ms, struct gms_error *ret_error);
/* Every region that is not kept is there again. */
bool gms_regions_whole(const struct gms_session *session);
void gms_regions_free(struct gms_session *session);

/* stream.c, torch.c: before the session's memory goes. */
void gms_marks_free(struct gms_session *session);
void gms_torch_forget(const struct gms_session *session);

/* nccl.c: aborts all; closes all. */
void gms_nccl_condemned(struct gms_session *session);
void gms_nccl_forget(struct gms_session *session);

/* blocks.c; insert and remove need slots_lock */
gms_status gms_blocks_create(struct gms_session *session, struct gms_error *ret_error);
void gms_blocks_free(struct gms_session *session);
void gms_blocks_fill(struct gms_session *session);
void gms_blocks_insert(struct gms_session *session, uint32_t pool, uint32_t slot,
                       const uint8_t hash[GMS_BLOCK_HASH_BYTES]);
void gms_blocks_remove(struct gms_session *session, uint32_t pool, uint32_t slot);

/* returned.c: what comes back from quarantine */
gms_status gms_returned_create(struct gms_session *session, struct gms_error *ret_error);
void gms_returned_begin(struct gms_session *session); /* adopted just now */
void gms_returned_file(struct gms_session *session, const struct gms_message *message);
/* report.c: what the coordinator may see of steps, for telling a hung engine from an idle one. */
void gms_report_step_begun(struct gms_session *session, uint64_t step);
void gms_report_step_completed(struct gms_session *session, uint64_t step);

/* tails.c: under kv.verify = full, drops the entries whose contents are not what was noted. */
void gms_tails_verify(struct gms_session *session);
/* slots.c */
bool gms_step_is_done(const struct gms_session *session, gms_token token);

/* verify.c: the successor's own look at what it is about to adopt. */
gms_status gms_verify_adoption(struct gms_session *session, struct gms_adoption *ret_found,
                               struct gms_error *ret_error);
/* XXH3-64 over the parts' bytes in order; 0: they cannot be read (device memory alone). The parts must be valid slots
 * of KV pools. */
/* Over memory that may be a device's; STICKY and others of the vmm's read. */
gms_status gms_memory_digest(const struct gms_session *session, const void *address, uint64_t bytes,
                             uint64_t *ret_digest, struct gms_error *ret_error);
uint64_t gms_content_digest(const struct gms_session *session, const struct gms_record_part *parts, uint32_t count);

static inline void *gms_pool_slot_address(const struct gms_pool *pool, uint32_t slot)
{
    return (char *)pool->address + (uint64_t)slot * pool->description.block_bytes;
}

#endif
