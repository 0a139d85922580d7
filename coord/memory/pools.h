/* SPDX-License-Identifier: Apache-2.0
 *
 * Pools and directories of this rank, and the effects of operations on them: prepare makes what can fail, commit cannot
 * fail, abort leaves nothing behind, no descriptor either.
 *
 * What is asked for locally (bytes, slots, manifest) comes with the engine rank's own call; the core knows only what
 * all ranks must have equal.
 *
 * Publishing freezes the memory, which cannot be undone, while a rank may still refuse after this one has prepared. So
 * prepare only looks for writable mappings (/proc), commit freezes, and nobody but the publisher gets the memory before
 * it is frozen: a rank on which the publisher put a writable mapping back in between refuses every attach (BUSY) and
 * freezes as soon as it can. The engine that holds such a mapping breaks its contract; gms_pools_commit says so and the
 * daemon condemns it. Device memory cannot be frozen: there, the publisher is taken at its word (and nobody else ever
 * maps weights for writing).
 *
 * Main thread only.
 */
#ifndef GMS_COORD_POOLS_H
#define GMS_COORD_POOLS_H

#include <stdbool.h>
#include <stdint.h>

#include "directory/directory.h"
#include "directory/quarantine.h"
#include "group/round_mpi.h"
#include "memory/device.h"
#include "sessions/sessions.h"

struct gms_copies;
struct gms_core;
struct gms_pools;

struct gms_pools_options {
    const char *deployment; /* borrowed for the call; part of the memory's label */
    uint32_t rank;
    uint64_t world, capacity_bytes;
    struct gms_device_of_rank device;
    struct gms_copies *copies; /* borrowed; NULL: nobody keeps copies (tests) */
};

gms_status gms_pools_open(const struct gms_pools_options *options, struct gms_pools **ret_pools,
                          struct gms_error *ret_error);
void gms_pools_close(struct gms_pools *pools); /* NULL allowed; copies stay */

/* Who asks. */
struct gms_pools_caller {
    uint32_t engine;
    uint64_t incarnation, epoch, identity_digest;
};

/*
 * The tentative effect of an ALLOCATE (create or attach) or PUBLISH; every other kind is OK. `call` is the rank's own
 * request. Errors: NO_CAPACITY (detail: bytes asked, bytes free), MISMATCH (detail: bytes asked, bytes the pool has),
 * BUSY (detail: pid of a writable mapping), AGAIN (not published yet), NOT_FOUND, REFUSED, INVALID, and those of the
 * vmm.
 */
gms_status gms_pools_prepare(struct gms_pools *pools, const struct gms_pools_caller *caller,
                             const struct gms_call *call, uint32_t pool_index, bool create, uint64_t ret_detail[2],
                             struct gms_error *ret_error);

/* Makes it final; again changes nothing. Errors: DIVERGED (neither prepared nor done: the rank must restart), BUSY
 * (published, but not frozen yet because somebody holds a writable mapping). */
gms_status gms_pools_commit(struct gms_pools *pools, const struct gms_pools_caller *caller,
                            const struct gms_outcome *outcome, const char *pool_name, struct gms_error *ret_error);

void gms_pools_abort(struct gms_pools *pools, uint32_t engine);

/* What is to be forgotten of an incarnation that is retired everywhere and no longer a source. */
void gms_pools_forget(struct gms_pools *pools, uint64_t incarnation);

/* The device that memory of an earlier world is on, as kept beside it. False: no device memory is kept. */
bool gms_pools_kept_device(const struct gms_copies *copies, struct gms_uuid *ret_uuid);

/*
 * Takes up what the copies hold: pools, manifests, directories, and what was prepared. What cannot be read is logged
 * and dropped. Then the core's actions may come (commit, abort), and at last gms_pools_reconcile.
 */
gms_status gms_pools_restore(struct gms_pools *pools, struct gms_error *ret_error);
/* Drops what the core does not know: pools it has not, directories of incarnations that are neither in an engine slot
 * nor the writer, what was prepared. IN_DOUBT: the core has a pool, or an attached KV pool without a directory, that is
 * not here. */
gms_status gms_pools_reconcile(struct gms_pools *pools, const struct gms_core *core, struct gms_error *ret_error);

struct gms_pool_view {
    const char *name; /* all borrowed, until the next commit */
    uint32_t kind, index, slot_count;
    uint64_t bytes, block_bytes, creator;
    bool published;
    int fd;
    const void *manifest;
    uint32_t manifest_bytes;
};
bool gms_pools_look(const struct gms_pools *pools, uint32_t index, struct gms_pool_view *ret_view);
uint64_t gms_pools_used_bytes(const struct gms_pools *pools);
/* What sizes of pools are rounded up to. */
uint64_t gms_pools_granularity(const struct gms_pools *pools);
/* Borrowed; NULL where this incarnation has none for the pool. */
struct gms_directory *gms_pools_directory(const struct gms_pools *pools, uint64_t incarnation, uint32_t index);

/* Who is suspected of the pool's slots; borrowed; NULL: no KV pool is there. */
struct gms_quarantine *gms_pools_quarantine(const struct gms_pools *pools, uint32_t index);
/* After a restore that does not know what the slots hold: whatever any directory here shows as being written is
 * suspected of somebody unknown, for good. */
void gms_pools_distrust(struct gms_pools *pools);

struct gms_pools_classified {
    uint32_t sealed_here, adoptable, free, quarantined, damaged, tails;
};
/* Classifies what `source` left into the directories of `successor`, and notes whom the quarantined slots are suspected
 * of: `suspect` is the source's place in the group's list. Errors: MISMATCH, NO_MEMORY (then nothing is set). */
gms_status gms_pools_classify(struct gms_pools *pools, uint64_t source, uint64_t successor, bool source_clean,
                              uint32_t suspect, struct gms_pools_classified *ret_counts, struct gms_error *ret_error);

/* After it, when what `successor` could adopt here is not to be trusted: sealed slots become free, tails are dropped.
 * Returns how many slots. */
uint32_t gms_pools_give_up_sealed(struct gms_pools *pools, uint64_t successor, struct gms_pools_classified *counts);

/* Prepares that: brings the index for (source, successor) up to date if the source changed anything since. Cheap when
 * not. */
void gms_pools_refresh(struct gms_pools *pools, uint64_t source, uint64_t successor);
/* Tries again what publishing left unfrozen. */
void gms_pools_freeze_pending(struct gms_pools *pools);

struct gms_pools_adopted {
    uint32_t adopted, idle, quarantined;
};
/* The bulk sub-round over all KV pools of the incarnation, then applies it; then, where slots are left in quarantine, a
 * second one over the tails that `source` left in them: what all ranks have alike stays, the rest is dropped. Errors
 * are the round's: the rank must restart. */
gms_status gms_pools_bulk(struct gms_pools *pools, struct gms_round *round, uint64_t incarnation, uint64_t source,
                          struct gms_pools_adopted *ret_adopted, struct gms_error *ret_error);

#endif
