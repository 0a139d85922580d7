/* SPDX-License-Identifier: Apache-2.0
 *
 * libgms: what an engine rank calls.
 *
 * The life of an engine rank:
 *
 *   gms_open -> gms_join -> gms_pool_attach (weights, kv) -> [fill weights, gms_publish] -> warm up on scratch KV
 *     -> gms_park -> gms_wait_promotion -> gms_adopt -> gms_wake -> gms_serve
 *     -> { gms_step_begin, gms_slot_acquire / _seal / _release, gms_step_complete, gms_progress } ... -> gms_close
 *
 * The first engine of a deployment takes the same path; it is promoted as soon as it is parked on every rank.
 *
 * Calls marked COLLECTIVE are agreed over all ranks: every rank of the engine must make the same collective calls in
 * the same order. They succeed on every rank or on none, and every rank is told the same outcome. They block for at
 * most the deployment's operation timeout plus one second.
 *
 * Thread rule, unless a function says otherwise: one session belongs to one thread at a time. The slot, step, progress
 * and lookup functions may be called from any thread, but calls that name the same slot must not race each other.
 *
 * Errors: every function that can fail returns a gms_status and fills *ret_error when that is not NULL. Outputs are set
 * only on success. Codes in the engine group (100..199) mean: stop serving and exit.
 *
 * While there is no coordinator the engine may go on producing tokens. A control call then waits for it, at most the
 * operation timeout, and returns GMS_E_AGAIN: ask again. A call that was not answered when the coordinator ended is put
 * to the next one by itself, and has one outcome. The session is attached again inside any control call, and when
 * gms_wait_promotion is called because gms_event_fd is readable; no call is needed for what was said before.
 *
 * Slots are answered from shared memory by a few atomics: no system call, no lock, no message (invariant 6). The engine
 * picks the slot; this library schedules nothing (invariant 10).
 */
#ifndef GMS_ENGINE_H
#define GMS_ENGINE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "gms/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    GMS_NAME_BYTES = 64,       /* pool, tensor and engine names, terminating NUL included */
    GMS_BLOCK_HASH_BYTES = 16, /* 128 bits: chained prefix hash of a KV block */
    GMS_RECORD_PARTS = 4,      /* slots that one record may span */
    GMS_TAIL_ENTRIES = 3,      /* steps of a block's progress that are kept */
    GMS_MAX_POOLS = 16,
    GMS_MAX_TAGS = 32,
    GMS_EXCHANGE_BYTES = 128,
};

typedef struct gms_session gms_session; /* opaque; made by gms_open, ended by gms_close */
typedef struct gms_pool gms_pool;       /* opaque; borrowed from its session, valid until gms_close */

/* ------------------------------------------------------------------------------------------------ session ----- */

struct gms_open_options {
    const char *run_dir; /* borrowed; NULL: environment GMS_RUN_DIR */
    int32_t rank;        /* -1: environment GMS_RANK */
    int32_t engine_id;   /* -1: environment ENGINE_ID */
    const char *launch;  /* borrowed; equal on all ranks of one start; NULL: environment GMS_LAUNCH_ID */
    uint32_t timeout_ms; /* to connect and be welcomed; 0: 10,000 */
};

/*
 * Connects to the local coordinator rank and introduces this process (its pidfd travels along). `options` may be NULL.
 * On success the caller owns *ret_session. Errors: INVALID (no run directory, rank, engine or launch given),
 * TIMEOUT, VERSION (both versions are named), PERMISSION (the coordinator runs as another user), DISCONNECTED.
 */
GMS_API gms_status gms_open(const struct gms_open_options *options, gms_session **ret_session,
                            struct gms_error *ret_error);

/*
 * Leaves: a planned end, not a fault. A serving engine that closes is succeeded by a shadow as after a crash, except
 * that its released slots are idle. Unmaps everything and frees the session. NULL is allowed.
 */
GMS_API void gms_close(gms_session *session);

/* What makes KV of one engine readable by another. All strings borrowed, copied during the call. */
struct gms_identity {
    const char *model;          /* name and revision */
    const char *dtype;          /* "f32", "bf16", ... */
    const char *layout;         /* engine's own name of its KV layout */
    const char *hash_algorithm; /* of block hashes */
    const char *engine_name;
    const char *engine_version;
    uint64_t hash_seed;    /* of block hashes; a difference is a loud refusal, never silent misses (V28) */
    uint32_t block_tokens; /* tokens per KV block */
    uint32_t world_size;   /* TP size */
};

struct gms_membership {
    uint64_t world;       /* this start of the coordinators */
    uint64_t incarnation; /* this start of this engine; unique in the deployment */
    uint64_t epoch;       /* at the time of joining */
    uint32_t rank;
    uint32_t world_size;
    uint32_t engine_id;
    uint32_t kv_verify_full; /* 1: seals carry a content digest that a successor checks */
};

/* COLLECTIVE. Joins the group under the session's engine id. Errors: MISMATCH (names field, ranks, both values),
 * BUSY (the engine id is taken by a live incarnation), EXPIRED (a rank did not come; it is named), TIMEOUT (a takeover
 * is going on, and joins wait for its end: call again), and others. */
GMS_API gms_status gms_join(gms_session *session, const struct gms_identity *identity,
                            struct gms_membership *ret_membership, struct gms_error *ret_error);

/*
 * COLLECTIVE. Gives every rank what rank 0 of this incarnation gives: `bytes` bytes of `data` (at most
 * GMS_EXCHANGE_BYTES; what other ranks give is not looked at). `name` (letters, digits, '.', '_', '-', like a pool's)
 * says what it is about, and `value` something that must be equal on all ranks besides. *ret_data has room for
 * GMS_EXCHANGE_BYTES; rank 0 goes by it, too: a call that is made again after TIMEOUT or AGAIN may give what was given
 * first. Nothing of another incarnation is ever given. Errors: MISMATCH (name or value differs: ranks and both values),
 * EXPIRED (a rank did not ask for it), INVALID, and those of all collective calls.
 */
GMS_API gms_status gms_exchange(gms_session *session, const char *name, uint64_t value, const void *data,
                                uint32_t bytes, void *ret_data, uint32_t *ret_bytes, struct gms_error *ret_error);

/* --------------------------------------------------------------------------------------- tags and regions ----- */

/* What happens to memory while the engine is parked. */
enum gms_park_policy {
    GMS_PARK_KEEP = 1,    /* stays as it is: weights that are shared, captured graphs */
    GMS_PARK_SWAP = 2,    /* kv pools: the scratch is given back, and the group's memory takes its place */
    GMS_PARK_RELEASE = 3, /* given back; wake gets new memory at the same address, contents undefined */
    GMS_PARK_SAVE = 4,    /* given back, contents kept in host memory and there again after wake */
};

struct gms_tag {
    char name[GMS_NAME_BYTES];
    uint32_t policy; /* enum gms_park_policy */
};

/*
 * Names the parts of this engine's memory and what happens to each on park; once, before gms_join, which compares the
 * list over all ranks and names rank, tag and both policies where it differs. Without this call it is the
 * deployment's parking preset, "shadow_failover" unless the deployment file says otherwise: weights and graphs are
 * kept, kv is swapped. Whatever is not kept or swapped costs driver calls in the takeover: release only what a device
 * cannot hold twice. The policy says what the contents need; the preset may have another way of giving that: KEEP and
 * SAVE for each other, either of them for RELEASE (gms_tag_report tells what came of it). Errors: INVALID (a name that
 * is empty or stands there twice, an unknown policy, too many), REFUSED (joined already; the preset would lose
 * contents that this engine needs).
 */
GMS_API gms_status gms_tags_set(gms_session *session, const struct gms_tag *tags, uint32_t count,
                                struct gms_error *ret_error);
/* The name of the deployment's parking preset; valid until gms_close. */
GMS_API const char *gms_parking_preset(const gms_session *session);

/*
 * Private memory of this engine under one of its tags, at an address that stays the same until gms_region_free; of the
 * kind that the deployment's pools are. Contents are undefined. Errors: NOT_FOUND (no such tag), REFUSED (a swapped
 * tag; while parked), NO_MEMORY.
 */
GMS_API gms_status gms_region_alloc(gms_session *session, const char *tag, uint64_t bytes, void **ret_address,
                                    struct gms_error *ret_error);
/* Allowed while parked, too. No work may be in flight there. NOT_FOUND: not the address of a region, or freed before.
 */
GMS_API gms_status gms_region_free(gms_session *session, void *address, struct gms_error *ret_error);

/*
 * The functions for PyTorch's CUDAPluggableAllocator: segments of a torch.cuda.MemPool become regions. Between
 * gms_torch_scope(session, tag) and gms_torch_scope(NULL, NULL), in the same thread, gms_torch_alloc gives memory under
 * the tag; elsewhere, on another GPU than the session's, or when there is none, it gives NULL. gms_torch_free may be
 * called from any thread and waits for the device. No thread may allocate or free while another parks or wakes.
 */
GMS_API gms_status gms_torch_scope(gms_session *session, const char *tag, struct gms_error *ret_error);
GMS_API void *gms_torch_alloc(ssize_t bytes, int device, void *stream);
GMS_API void gms_torch_free(void *address, ssize_t bytes, int device, void *stream);

enum gms_park_state {
    GMS_STATE_RUNNING = 0, /* not parked yet */
    GMS_STATE_PARKING = 1,
    GMS_STATE_PARKED = 2,
    GMS_STATE_WAKING = 3,
    GMS_STATE_AWAKE = 4,
    GMS_STATE_FAILED = 5, /* terminal: the device is lost, or memory could not be put back; exit */
};
GMS_API enum gms_park_state gms_park_state(const gms_session *session);

struct gms_tag_report {
    struct gms_tag tag;
    uint64_t bytes;            /* of regions and pools under it */
    uint64_t park_ns, wake_ns; /* of the last park and wake; 0: none */
};
/* The tag at `index`, from 0 until NOT_FOUND. A pool counts for the tag of its name, else for "weights" or "kv". */
GMS_API gms_status gms_tag_report(const gms_session *session, uint32_t index, struct gms_tag_report *ret_report);

/* Grows whenever other memory is put behind any address of this session: a registration made for an older value is void
 * (V31). */
GMS_API uint64_t gms_mapping_epoch(const gms_session *session);
/* Calls of the device's driver that this library has made in this process; 0 with host memory. */
GMS_API uint64_t gms_driver_calls(void);

/* -------------------------------------------------------------------------------------------------- pools ----- */

enum gms_pool_kind {
    GMS_POOL_WEIGHTS = 1, /* published once, then read-only for everybody */
    GMS_POOL_KV = 2,      /* divided into slots; scratch until this engine parks */
};

struct gms_pool_description {
    char name[GMS_NAME_BYTES];
    uint32_t kind;        /* enum gms_pool_kind */
    uint32_t slot_count;  /* KV: number of slots; weights: 0 */
    uint64_t block_bytes; /* KV: bytes of one slot on this rank; weights: 0 */
    uint64_t bytes;       /* weights: bytes on this rank; KV: 0 (slot_count * block_bytes) */
};

/*
 * COLLECTIVE. How many bytes the kv pools of the group may have on each rank: the least that any rank can spare beside
 * weights and shadows (`budget` in the deployment file), agreed by all ranks, so that an engine which divides it by its
 * block size has the same number of slots everywhere. To be asked after the weights are attached and before the first
 * kv pool. The number stands while the group has a kv pool or an engine that was told it has not parked, and is what a
 * larger pool is refused by (NO_CAPACITY); then it is agreed anew, with what parked shadows were measured to need
 * meanwhile. Errors: UNSUPPORTED (no rank knows how much memory it has), EXPIRED, AGAIN.
 */
GMS_API gms_status gms_kv_budget(gms_session *session, uint64_t *ret_bytes, struct gms_error *ret_error);

/*
 * COLLECTIVE. Creates the pool on all ranks if the group does not have it, else attaches the group's. It is mapped at
 * an address that stays the same for the life of the session: weights  writable for the one engine that is to publish
 * them, read-only once published; kv       private scratch memory of the same size until gms_park puts the group's
 * memory in its place. While another engine is publishing, waits for it (bounded by the operation timeout, then AGAIN).
 * Asked for again as it is, the same pool is given. Errors: NO_CAPACITY (names the rank, what was asked, what is free
 * of the capacity or of the kv budget),
 * MISMATCH, AGAIN, EXPIRED, EXISTS (this session has it with another kind or size), REFUSED (a kv pool after gms_park).
 */
GMS_API gms_status gms_pool_attach(gms_session *session, const struct gms_pool_description *description,
                                   gms_pool **ret_pool, struct gms_error *ret_error);

GMS_API void *gms_pool_address(const gms_pool *pool); /* never NULL, never changes */
GMS_API uint64_t gms_pool_bytes(const gms_pool *pool);
GMS_API uint32_t gms_pool_slot_count(const gms_pool *pool);
/* 1: device memory, which the CPU cannot address. */
GMS_API int gms_pool_on_device(const gms_pool *pool);
/* 1 while this engine must fill the weights and call gms_publish. */
GMS_API int gms_pool_must_publish(const gms_pool *pool);
/* Grows whenever the memory behind the address changes (park): a registration made for an older value is void (V31). */
GMS_API uint64_t gms_pool_mapping_epoch(const gms_pool *pool);

/* Adds one tensor to the manifest of an unpublished weights pool. `name` copied. Overlaps and out-of-range entries are
 * INVALID. The bytes must stay unchanged from here to gms_publish. */
GMS_API gms_status gms_manifest_add(gms_pool *pool, const char *name, uint64_t offset_bytes, uint64_t bytes,
                                    struct gms_error *ret_error);

/* Finds a tensor of a published pool by name. Errors: NOT_FOUND, REFUSED (not published). */
GMS_API gms_status gms_manifest_find(const gms_pool *pool, const char *name, uint64_t *ret_offset_bytes,
                                     uint64_t *ret_bytes, struct gms_error *ret_error);

/*
 * COLLECTIVE. Commits the weights: the manifest must cover every byte of the pool (REFUSED names the first gap), this
 * process's writable mapping is replaced by a read-only one at the same address, and the memory is sealed against any
 * writer. Waits for work that this process has submitted to its device. BUSY if another writable mapping of it exists.
 * After a failure the pool is still unpublished and, where this process had it writable, writable again.
 */
GMS_API gms_status gms_publish(gms_pool *pool, struct gms_error *ret_error);

/* COLLECTIVE. Gives a pool back: unmapped here; the group frees it when no live engine has it attached. */
GMS_API gms_status gms_pool_release(gms_pool *pool, struct gms_error *ret_error);

/* ------------------------------------------------------------------------------------- park, promotion, serve - */

/* Puts the group's KV memory in place of the scratch, gives back what its tag says, and declares this rank ready to be
 * promoted. Waits for work that this process has submitted to its device; refused while a step is in flight (BUSY).
 * Parking twice is OK and does nothing. Scratch contents are lost. STICKY: the device is lost, exit. */
GMS_API gms_status gms_park(gms_session *session, struct gms_error *ret_error);

struct gms_promotion {
    uint64_t epoch;              /* the epoch this engine will serve under */
    uint64_t source_incarnation; /* whose KV may be adopted; 0: nobody's */
};

/*
 * Blocks until this engine is chosen on all ranks. timeout_ms -1: no limit. Errors: TIMEOUT (call again), DISCONNECTED
 * (the same, and there is no coordinator now), CONDEMNED, REFUSED (not parked).
 */
GMS_API gms_status gms_wait_promotion(gms_session *session, int32_t timeout_ms, struct gms_promotion *ret_promotion,
                                      struct gms_error *ret_error);

/* The descriptor on which a promotion or any other coordinator message becomes readable, for engines with a loop of
 * their own; borrowed. gms_wait_promotion(session, 0, ...) then handles it. */
GMS_API int gms_event_fd(const gms_session *session);

struct gms_adoption {
    uint32_t adopted;     /* slots that are SEALED on every rank and now belong to this engine */
    uint32_t idle;        /* slots free on every rank */
    uint32_t quarantined; /* slots that may not be used on some rank */
    uint32_t sealed_here; /* slots that were sealed on this rank before the ranks compared */
    uint32_t bad_here;    /* of those, refused here: content digest or record wrong */
};

/*
 * COLLECTIVE. Checks what the predecessor left (contents too under kv.verify = full), agrees over all ranks which slots
 * are adoptable everywhere with equal content, and makes them this engine's. From here on slots may be acquired.
 * With several KV pools *ret_adoption is the sum.
 */
GMS_API gms_status gms_adopt(gms_session *session, struct gms_adoption *ret_adoption, struct gms_error *ret_error);

/*
 * Brings back what parking gave away; with nothing given away (the preset) it returns at once, without one driver call.
 * Waking twice is OK. Memory that is not there is asked for again every 200 ms, for at most the operation timeout or
 * until gms_wake_cancel; after a failure everything is as it was parked, and the call may be made again. Errors:
 * REFUSED (not promoted), NO_MEMORY, AGAIN (cancelled), STICKY.
 */
GMS_API gms_status gms_wake(gms_session *session, struct gms_error *ret_error);
/* Ends the waiting of a gms_wake that runs in another thread. */
GMS_API void gms_wake_cancel(gms_session *session);

/* 1: an operator wants this engine out of service (gms-ctl park): it should take no more requests, finish or give up
 * what runs, close its session and end; a shadow takes over, and whoever starts engines starts it again, to park. Known
 * when gms_wait_promotion was called because gms_event_fd was readable. An engine that never asks is not affected. */
GMS_API int gms_asked_to_park(const gms_session *session);

/*
 * Declares this rank ready to serve and blocks until every rank has. REFUSED while something that parking gave away is
 * not back. `endpoint` (copied; rank 0's is published; others
 * pass NULL) is where clients reach the engine. After GMS_OK this engine is the only one serving in its epoch.
 */
GMS_API gms_status gms_serve(gms_session *session, const char *endpoint, struct gms_error *ret_error);

/* ------------------------------------------------------------------------------------------------- steps ------ */

/* A step is a batch of work that may still be writing slots after the call that launched it returned. Tokens grow by
 * one; 0 is "already complete". Host engines complete a step when its stores are done. */
typedef uint64_t gms_token;

GMS_API gms_token gms_step_begin(gms_session *session);
/* Steps complete in order: completes `token` and all before it, and makes slots released under them IDLE. */
GMS_API void gms_step_complete(gms_session *session, gms_token token);

/*
 * For work on a device: `token` is all that was submitted to `stream` (CUstream; NULL: the default stream) until now.
 * gms_step_poll completes it when the device has come past that, and gms_block_seal and gms_slot_release of it wait for
 * that. Name the stream that wrote: another one's progress says nothing about it. Steps are submitted in order; up to
 * 256 may be under way. With host memory it is gms_step_complete. Errors: INVALID (never begun, or out of order), BUSY
 * (256 are), STICKY. From the thread that makes control calls.
 */
GMS_API gms_status gms_step_submitted(gms_session *session, gms_token token, void *stream, struct gms_error *ret_error);
/* Completes the steps that the device has come past; never blocks. NOT_DONE: some are still under way. STICKY: they
 * will never be done; report it and exit. */
GMS_API gms_status gms_step_poll(gms_session *session, struct gms_error *ret_error);

/* --------------------------------------------------------------------------------------------------- slots ---- */

enum gms_slot_state {
    GMS_SLOT_IDLE = 0,        /* free and safe to hand out */
    GMS_SLOT_LEASED = 1,      /* this engine may write it */
    GMS_SLOT_SEALED = 2,      /* complete and immutable under its content hash */
    GMS_SLOT_RELEASED = 3,    /* given back, but a launched step may still write it */
    GMS_SLOT_QUARANTINED = 4, /* somebody not proven quiet might still write it */
    GMS_SLOT_RETIRED = 5,     /* its generation is exhausted */
};

/* Leases the slot the engine chose. IDLE, or RELEASED by this same incarnation, else QUARANTINED / BUSY / REFUSED (not
 * promoted and adopted yet). *ret_generation names this lease in seal and release. About 20 ns, no system call. */
GMS_API gms_status gms_slot_acquire(gms_pool *pool, uint32_t slot, uint64_t *ret_generation);

struct gms_part {
    uint32_t pool; /* index as given by gms_pool_index */
    uint32_t slot;
    uint64_t generation;
};

/* What a sealed block is. parts[0] is its home; all parts must be leased by this engine at the given generations. */
struct gms_block {
    uint8_t hash[GMS_BLOCK_HASH_BYTES];
    uint8_t parent_hash[GMS_BLOCK_HASH_BYTES]; /* all zero: first block */
    uint32_t token_count;
    uint32_t part_count; /* 1..GMS_RECORD_PARTS */
    struct gms_part parts[GMS_RECORD_PARTS];
};

GMS_API uint32_t gms_pool_index(const gms_pool *pool);

/*
 * Seals the block: record first, then the slot words. `token` is the step that wrote it: NOT_DONE if that step is not
 * complete (the block stays leased; seal again later). STALE if a generation is not the current lease: ownership was
 * lost, the engine must stop (GMS_E_LOST_OWNERSHIP).
 */
GMS_API gms_status gms_block_seal(gms_session *session, const struct gms_block *block, gms_token token);

/* Gives a LEASED or SEALED slot back. Naming an older generation is STALE, naming the same one again REFUSED; neither
 * changes anything, so a block listed twice is freed once. The slot is IDLE when `token` completes; a token that was
 * never begun is INVALID. Works until the session is closed, for a condemned engine too. */
GMS_API gms_status gms_slot_release(gms_pool *pool, uint32_t slot, uint64_t generation, gms_token token);

GMS_API enum gms_slot_state gms_slot_state(const gms_pool *pool, uint32_t slot, uint64_t *ret_generation);
/* The states of `count` slots from `first` on, a byte each; RETIRED (never to be had) where the pool has no such slot.
 */
GMS_API void gms_slot_states(const gms_pool *pool, uint32_t first, uint32_t count, uint8_t *ret_states);

/*
 * Slots that were in quarantine when this engine adopted, because a dead engine might still write them, come back while
 * it serves. Gives one that is idle on every rank now and was not given before; NOT_FOUND: none at present. Only such a
 * slot may be added to the free list: a word that says IDLE on this rank alone may not do so on others yet. To be asked
 * on the rank that chooses slots, each time gms_wait_promotion was called because gms_event_fd was readable; one
 * thread, the session's. The others need not ask.
 */
GMS_API gms_status gms_returned_next(gms_pool *pool, uint32_t *ret_slot);

/* Finds a sealed block by hash. Validates the record against its slot words before answering (invariant 2). */
GMS_API gms_status gms_lookup(gms_session *session, const uint8_t hash[GMS_BLOCK_HASH_BYTES],
                              struct gms_block *ret_block);

/* Walks all sealed blocks whose home is `pool`. Start with *cursor = 0; NOT_FOUND ends the walk. */
GMS_API gms_status gms_sealed_next(gms_pool *pool, uint32_t *cursor, struct gms_block *ret_block);
/* The same walk, up to `capacity` blocks a call, which is what a language with dear calls wants. *ret_count: how many
 * were given; with OK at least one. After any other status it is 0. */
GMS_API gms_status gms_sealed_list(gms_pool *pool, uint32_t *cursor, struct gms_block *ret_blocks, uint32_t capacity,
                                   uint32_t *ret_count);

/* -------------------------------------------------------------------------------------------------- tails ----- */

/*
 * A block that is not complete is in quarantine after its engine's death: somebody might still write there. But the
 * positions whose step was complete will not be written again, so they may be copied to a slot of the successor's own,
 * and a stream goes on a token or two back instead of a block.
 *
 *   the serving engine    gms_tail_note after each step, for every block that the step has written
 *   its successor         after gms_adopt: gms_tail_next gives what is left, agreed over all ranks; when a request
 * comes that fits: gms_slot_acquire, gms_tail_salvage, go on behind it
 *
 * Condition: positions of a block are written once, in order. An engine that writes a position anew (rejected
 * speculative tokens) may count only positions that are final. A tail is one slot: an engine whose blocks span slots
 * notes each of them, and may use what it finds only where it finds all.
 */

/*
 * Where the positions of a block are: position p of plane q has `position_bytes` bytes at q * plane_bytes +
 * p * position_bytes of the slot. With it salvage copies no more than it must, and with kv.verify = full contents are
 * checked; without it whole slots are copied, and with kv.verify = full nothing is salvaged. For all engines of a
 * deployment alike.
 */
struct gms_tail_layout {
    uint32_t planes;
    uint32_t position_bytes;
    uint64_t plane_bytes;
};
/* Once, after gms_pool_attach. INVALID: not a kv pool, or planes that are not inside the slot. */
GMS_API gms_status gms_tail_layout_set(gms_pool *pool, const struct gms_tail_layout *layout,
                                       struct gms_error *ret_error);

struct gms_tail_entry {
    uint8_t hash[GMS_BLOCK_HASH_BYTES]; /* of the block's first token_count tokens, made as a whole block's is */
    uint32_t token_count;
};

/*
 * The block in `slot`, leased at `generation`, is complete up to `progress`; `token` is the step that wrote its last
 * position (NOT_DONE while that is not complete: on a device, gms_step_poll has to have said so). The ranks have to
 * note the same steps in the same order; what only some have noted is lost, and nothing else. Tens of nanoseconds, no
 * system call; with kv.verify = full and host memory the new positions are digested as well (with device memory nothing
 * is kept then). Errors, after which the earlier notes stand: NOT_DONE, STALE (not the current lease), REFUSED (not
 * leased), INVALID (a count of 0, above 65535 or below the last; another parent than before in this lease), CONDEMNED.
 */
GMS_API gms_status gms_tail_note(gms_pool *pool, uint32_t slot, uint64_t generation,
                                 const uint8_t parent_hash[GMS_BLOCK_HASH_BYTES], const struct gms_tail_entry *progress,
                                 gms_token token);

struct gms_tail {
    uint32_t pool, slot; /* in quarantine; nobody may write there */
    uint64_t generation;
    uint8_t parent_hash[GMS_BLOCK_HASH_BYTES];
    uint32_t entry_count; /* 1..GMS_TAIL_ENTRIES, the longest first; each is complete on every rank */
    struct gms_tail_entry entries[GMS_TAIL_ENTRIES];
};

/* Walks the tails that the predecessor left in `pool`: before gms_serve the same on every rank. Later a slot that has
 * come back from quarantine is passed over, on each rank from its own moment on. Start with *cursor = 0; NOT_FOUND ends
 * the walk. REFUSED before gms_adopt. */
GMS_API gms_status gms_tail_next(gms_pool *pool, uint32_t *cursor, struct gms_tail *ret_tail);

/* Copies `rows` rows of `width_bytes`, `pitch_bytes` from one to the next on both sides; 0: done, or submitted to the
 * stream on which the engine will use them. Anything else is a failure. */
typedef int (*gms_tail_copier)(void *context, void *to, const void *from, uint64_t pitch_bytes, uint64_t width_bytes,
                               uint64_t rows);

/*
 * Copies the first entries[entry].token_count positions of `tail` into `slot`, which this engine has leased at
 * `generation`. The source stays as it is. `copier` NULL: by the CPU, done on return, and noted as this lease's
 * progress. Else the engine's own copier; the engine notes the positions with its next step, and does not lease the
 * source, should it have come back, before a copy that was only submitted is complete. The slot is an ordinary
 * leased slot afterwards. Every rank has to salvage the same. Errors, after which the contents of `slot` are undefined
 * and nothing is noted: REFUSED (not adopted yet, or `slot` is not leased by this engine), STALE (the source has been
 * leased again, before or during the copy), NOT_FOUND (no such tail: not the predecessor's, not agreed, or damaged),
 * INVALID (out of range; device memory without a copier), SYSTEM (the copier failed), CONDEMNED.
 */
GMS_API gms_status gms_tail_salvage(gms_pool *pool, const struct gms_tail *tail, uint32_t entry, uint32_t slot,
                                    uint64_t generation, gms_tail_copier copier, void *context,
                                    struct gms_error *ret_error);

/* ------------------------------------------------------------------------------------------------ reports ----- */

/*
 * An engine that has work and makes no progress for the deployment's detection.progress_timeout is condemned and
 * succeeded, whatever its other threads answer. Progress is gms_progress, gms_step_begin and gms_step_complete. Work is
 * a step that has begun and is not complete, and what gms_work says. All are atomics in shared memory, no system calls,
 * for any thread; they say something from the attach of a kv pool on.
 */

/* The work loop calls this once per step. */
GMS_API void gms_progress(gms_session *session);
/* How much there is to do, running or waiting, as often as it changes; 0: idle. An engine that never says it is watched
 * only while a step is under way. */
GMS_API void gms_work(gms_session *session, uint32_t count);
/* Announces that no progress will be reported for up to `duration_ms` (graph capture and the like). The next progress
 * ends it. */
GMS_API void gms_busy(gms_session *session, uint32_t duration_ms);
/* Reports a device error that will not go away: this engine is condemned and succeeded. `text` copied. */
GMS_API gms_status gms_report_sticky_error(gms_session *session, int32_t code, const char *text,
                                           struct gms_error *ret_error);

/* ----------------------------------------------------------------------------------------------- transfer ----- */

/*
 * A transfer is a named vote over all ranks on work with several parts (KV pages, recurrent state, ...): it ends when
 * every rank has finished or failed every part, keeps the votes of ranks that finished, and is never withdrawn by a
 * timer. A stall is named in the coordinators' log and status, also while nothing else happens. An engine never uses an
 * id twice (count them): after a restart of the coordinators nobody could tell which of the two is meant.
 */
GMS_API gms_status gms_transfer_dispatch(gms_session *session, uint64_t transfer_id, uint32_t part_count,
                                         struct gms_error *ret_error);
GMS_API gms_status gms_transfer_end_part(gms_session *session, uint64_t transfer_id, uint32_t part, int failed,
                                         struct gms_error *ret_error);

struct gms_transfer_result {
    uint32_t finished_ranks;
    uint32_t failed_ranks;
    int32_t first_failed_rank;  /* -1: none */
    uint8_t failed_bitmap[128]; /* bit r: rank r failed */
};

/* Waits until the transfer has ended on every rank. TIMEOUT leaves it running; ask again. Nothing the transfer holds
 * may be freed before this returned GMS_OK. */
GMS_API gms_status gms_transfer_wait(gms_session *session, uint64_t transfer_id, int32_t timeout_ms,
                                     struct gms_transfer_result *ret_result, struct gms_error *ret_error);

/* Version of the library as text, and the protocol version it speaks. Static storage. */
GMS_API const char *gms_version(void);
GMS_API uint32_t gms_protocol_version(void);

#ifdef __cplusplus
}
#endif
#endif
