/* SPDX-License-Identifier: Apache-2.0
 *
 * Agreement rounds over MPI: the only file with MPI beside main.c. Every collective is nonblocking and driven by
 * MPI_Test under a deadline of ours, because on stock Open MPI a collective with a dead peer never returns. A
 * collective that misses its deadline has no outcome: the caller exits for restart and never uses this object again.
 *
 * All ranks make the same calls in the same order. Not thread-safe; main thread only (MPI_THREAD_FUNNELED).
 */
#ifndef GMS_COORD_ROUND_MPI_H
#define GMS_COORD_ROUND_MPI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/ballot.h"

struct gms_round;

/* Asked about once a millisecond while a collective is pending: true ends the wait with PEER_LOST. */
typedef bool (*gms_round_watch)(void *context);

/*
 * After MPI_Init: duplicates MPI_COMM_WORLD, commits the ballot's datatype and makes the operation. The caller owns
 * *ret_round; end it with gms_round_close before MPI_Finalize. Errors: NO_MEMORY, PEER_LOST (MPI said no).
 */
gms_status gms_round_open(uint64_t timeout_ns, struct gms_round **ret_round, struct gms_error *ret_error);
void gms_round_close(struct gms_round *round); /* NULL allowed */

uint32_t gms_round_rank(const struct gms_round *round);
uint32_t gms_round_size(const struct gms_round *round);
/* The number of this rank's program in an MPMD launch, 0 in a plain one. */
int gms_round_application(const struct gms_round *round);

/* From here on every collective may take `timeout_ns`; `watch` (NULL: none) is asked meanwhile. */
void gms_round_set_deadline(struct gms_round *round, uint64_t timeout_ns, gms_round_watch watch, void *context);

/* Rank 0's bytes to everybody, then a comparison of what arrived. Errors: ROUND_TIMEOUT, PEER_LOST, DIVERGED (some rank
 * received something else). */
gms_status gms_round_share(struct gms_round *round, void *data, size_t bytes, struct gms_error *ret_error);

/* The same from rank `root`. `bytes` equal on all ranks. */
gms_status gms_round_share_from(struct gms_round *round, uint32_t root, void *data, size_t bytes,
                                struct gms_error *ret_error);

/* Everybody's `bytes` (equal on all ranks) at `mine`, in order of ranks into ret_all. Errors: ROUND_TIMEOUT, PEER_LOST,
 * INVALID. */
gms_status gms_round_gather(struct gms_round *round, const void *mine, size_t bytes, void *ret_all,
                            struct gms_error *ret_error);

/*
 * Everybody brings how it fared (`mine`, status OK or an error with its text); all get the error of the lowest rank
 * that failed, with `rank` set, or OK. Errors of the exchange itself: ROUND_TIMEOUT, PEER_LOST.
 */
gms_status gms_round_concur(struct gms_round *round, const struct gms_error *mine, struct gms_error *ret_error);

/* The greatest of all ranks' values. Errors: ROUND_TIMEOUT, PEER_LOST. */
gms_status gms_round_greatest(struct gms_round *round, uint64_t value, uint64_t *ret_greatest,
                              struct gms_error *ret_error);

/* One agreement round: *ret_merged is the merge of all ranks' ballots. Errors: ROUND_TIMEOUT, PEER_LOST. */
gms_status gms_round_run(struct gms_round *round, const struct gms_ballot *mine, struct gms_ballot *ret_merged,
                         struct gms_error *ret_error);

/* What the bulk sub-round did, for logs and benches. */
struct gms_round_bulk_result {
    uint32_t adoptable_here, adoptable; /* before and after */
    uint32_t unequal;                   /* slots whose digests differed between ranks */
};

/*
 * The bulk sub-round for `slot_count` slots (equal on all ranks, MISMATCH where not): both bitmaps become the AND over
 * all ranks, and a slot whose digests differ between ranks leaves `adoptable` (it stays usable only if it is usable
 * everywhere). Digests are exchanged one by one only if a digest over all of them differs. Bitmaps are
 * (slot_count + 7) / 8 bytes, bit i of byte i / 8; all caller-owned. Errors: ROUND_TIMEOUT, PEER_LOST, NO_MEMORY,
 * MISMATCH.
 */
gms_status gms_round_bulk(struct gms_round *round, uint32_t slot_count, uint8_t *adoptable, uint8_t *usable,
                          const uint32_t *digests, struct gms_round_bulk_result *ret_result,
                          struct gms_error *ret_error);

#endif
