/* SPDX-License-Identifier: Apache-2.0
 *
 * What outlives a world (one start of the coordinator job): the snapshot of the replicated state that each rank stores,
 * what all ranks conclude from what each of them still has, and a core that goes on from a snapshot. Pure, like the
 * core.
 *
 * Storing. Whenever a step's actions hold a GMS_ACTION_STORE, the driver stores in ONE transaction all STORE records of
 * that step and the snapshot taken after the step, tells the keeper its world and round, and only then carries out the
 * step's other actions and gives back STORED, in the order of the STOREs. Transactions become durable in the order of
 * the steps. If the transaction fails: STORE_FAILED for every record of it. (Only completed rounds change replicated
 * state, and only they emit STOREs.)
 *
 * A new world's round 0, in the driver:
 *
 *   store, keeper --> report --allgather--> gms_recovery_decide (same answer on all ranks)
 *        FRESH:    gms_core_init; the mirror is round 0 of the new world
 *        REFUSE:   exit 70 with the text
 *        else:     rank `from_rank` shares its snapshot; every rank gives these bytes to gms_core_restore, stores the
 *                  snapshot of the restored core as the new world's first, and only then carries out its actions
 */
#ifndef GMS_CORE_RECOVERY_H
#define GMS_CORE_RECOVERY_H

#include "core/core.h"

enum {
    GMS_SNAPSHOT_MAX_BYTES = 128 * 1024,
    GMS_SNAPSHOT_OUTCOMES = 32, /* decided operations per engine slot that a snapshot keeps, the newest */
    GMS_RECOVERY_REPORT_VERSION = 2,
    GMS_RECOVERY_TEXT_BYTES = 512,
};

/* Writes the replicated state as it is after the last completed round: explicit little-endian, with magic, version,
 * world, round and a digest over all of it (README.md has the format). Ranks that completed the same round write the
 * same bytes. Returns the bytes written, never more than GMS_SNAPSHOT_MAX_BYTES; 0: `capacity` is too small, nothing
 * useful written. */
size_t gms_core_snapshot(const struct gms_core *core, void *buffer, size_t capacity);

struct gms_snapshot_view {
    uint64_t world, round; /* of the last completed round; ordered by world, then round */
    uint64_t digest;       /* equal bytes, equal digest */
    uint32_t world_size;
    uint32_t prepared;           /* engine slots with an operation under way that has no outcome */
    uint32_t engines;            /* engine slots that are not empty */
    uint32_t pools;              /* pools that have memory: all but unpublished weights whose maker is gone */
    uint64_t epoch, incarnation; /* the highest of each given so far */
};

/* Looks at stored bytes; they are untrusted, all of them are checked. CORRUPT (cut, changed, impossible), VERSION. */
gms_status gms_snapshot_look(const void *snapshot, size_t bytes, struct gms_snapshot_view *ret_view);

/* ------------------------------------------------------------------------------------------------- round 0 ---- */

/*
 * When is the group in doubt? All that a rank ever told is in a snapshot that it had stored before, and of which its
 * keeper had been told (the mirror: world and round, comparable between ranks). So nothing can be missing as long as
 * the greatest snapshot that is left is not older than any mirror: a store that is lost, damaged or put back as an old
 * copy is no loss then, the rank gets what the others have. A rank is in doubt when
 *
 *   - its mirror is later than every snapshot that is left, or
 *   - its store is not there, its keeper is new and remembers nothing of it, and others have stores, or
 *   - its store names memory that its keeper has not, and something may live: nobody's memory is no loss.
 *
 * In doubt, and something may live: REFUSE, an operator decides. In doubt, and nothing lives: on with what is left
 * (SALVAGE, else FRESH); but somebody who has not joined yet, and so is not known to any keeper, may have been told
 * that its join failed, or may ask once more. So a new LIFE of the group begins: a launch that asked in an older life
 * is refused, by itself or anywhere, and never decided again. A RESTORE or RENEW is the same life, they remember.
 *
 * Nothing notices that a store is put back as an old copy while its keeper ends as well: then nothing of this boot
 * remembers better. A store that is whole is believed.
 */
enum gms_recovery_doubt { /* what is wrong with what a rank has; for texts, but for MEMORY_LOST */
                          GMS_DOUBT_NONE,
                          GMS_DOUBT_MISSING,     /* no store, but the keeper remembers one */
                          GMS_DOUBT_OLDER,       /* an older round, or world, than the keeper remembers */
                          GMS_DOUBT_DAMAGED,     /* does not verify */
                          GMS_DOUBT_OTHER_BOOT,  /* written under another boot of this node */
                          GMS_DOUBT_MEMORY_LOST, /* the store names pools that the keeper no longer has */
                          GMS_DOUBT_COUNT
};

enum gms_recovery_holds { /* may something live here? */
                          GMS_HOLDS_NOTHING,
                          GMS_HOLDS_KEPT,   /* the keeper has memory, directories or sessions */
                          GMS_HOLDS_UNSEEN, /* it has nothing, but the store names engines that nobody saw end */
};

/* Fixed size, no padding, zero what is unused: gathered as bytes. */
struct gms_recovery_report {
    uint32_t version; /* GMS_RECOVERY_REPORT_VERSION */
    uint32_t rank;
    uint32_t has_store;    /* a store of an earlier world of this boot, readable, with or without a snapshot */
    uint32_t doubt;        /* enum gms_recovery_doubt */
    uint32_t keeper_holds; /* enum gms_recovery_holds */
    uint32_t prepared;     /* gms_snapshot_view.prepared */
    uint32_t accept_loss;  /* --accept-store-loss was given */
    uint32_t reserved;
    uint64_t store_world;                /* has_store: the last world that wrote to it, or made it */
    uint64_t world, round, state_digest; /* of its snapshot; round 0: it has none */
    uint64_t mirror_world, mirror_round; /* of the last snapshot that the keeper was told of; world 0: the keeper is
                                            new, round 0: none was stored in that world */
};

enum gms_recovery_verdict {
    GMS_RECOVERY_FRESH,   /* nobody has anything */
    GMS_RECOVERY_RESTORE, /* go on where the group was */
    GMS_RECOVERY_RENEW,   /* nothing lives any more: only the numbers go on (epoch, incarnations, rounds) */
    GMS_RECOVERY_SALVAGE, /* the operator accepted that newer state is lost: engines are ended, contents given up,
                             numbers jump ahead of whatever was told */
    GMS_RECOVERY_REFUSE,  /* an operator must decide */
};

struct gms_recovery_decision {
    enum gms_recovery_verdict verdict;
    uint32_t from_rank;                 /* RESTORE, RENEW, SALVAGE: whose snapshot */
    uint64_t life;                      /* FRESH: gms_core_options.life; 0: the new world */
    char text[GMS_RECOVERY_TEXT_BYTES]; /* one or two sentences for the log, or for whoever has to decide */
};

/* A pure function of all ranks' reports (reports[r].rank is r): the same everywhere. */
void gms_recovery_decide(const struct gms_recovery_report *reports, uint32_t ranks,
                         struct gms_recovery_decision *ret_decision);

/* ------------------------------------------------------------------------------------------------- restore ---- */

/*
 * A core that goes on from `snapshot` (untrusted bytes, the same on all ranks) in the new world `options->world`. Its
 * own snapshot must be in this rank's store before anything of `ret_actions` is carried out: what it says is news.
 * `verdict` is RESTORE, RENEW or SALVAGE. An operation that was under way is rolled back, its number unchanged, so the
 * engine's repeated proposal starts anew. `ret_actions` is what to carry out now, in this order:
 *
 *   NOTE                what was restored
 *   COMMIT or ABORT     of each engine slot's last operation that had a tentative effect: this rank may not have come
 * to it before the old world ended. Both idempotent: complete what "prepared/..." at the keeper holds, or drop it. What
 * is prepared at the keeper and named by none of them is to be dropped FENCE, CONDEMNED    for every condemned
 * incarnation, again CLASSIFY            again, if it was due ENTER_ROUND         the first round, which proves that
 * all ranks restored the same
 *
 * What belongs to an incarnation that gms_core_look shows neither in an engine slot nor as writer is to be dropped: its
 * FORGET may have been lost. After SALVAGE such a one may live: its cohort is to be ended before anything else is done.
 * A COMMIT of a join says nothing of the engine rank's presence: it comes back by itself, with its launch (the join
 * asked again) or with its incarnation. Facts are local and were lost: the driver says anew what it sees (GONE for a
 * dead process), and for each engine rank that re-attaches, in this order: GMS_EVENT_ATTACHED, then the facts that the
 * engine rank repeats (PARKED, STICKY, READY, LEFT), its open transfers (DISPATCH with `again`), its unanswered call
 * with the same key.
 *
 * CORRUPT, VERSION as gms_snapshot_look; MISMATCH: a group of another size wrote it; FOREIGN_WORLD: its world is not
 * below options->world; INVALID: verdict. After failure `memory` holds nothing of use.
 */
gms_status gms_core_restore(void *memory, const struct gms_core_options *options, enum gms_recovery_verdict verdict,
                            const void *snapshot, size_t bytes, uint64_t now_ns, struct gms_core **ret_core,
                            struct gms_actions *ret_actions);

#endif
