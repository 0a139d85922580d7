/* SPDX-License-Identifier: Apache-2.0
 *
 * The ranks of one engine over its own MPI job.
 *
 * Waiting inside MPI burns a core, so an idle engine does not wait there: rank 0 tells the others to sleep, they block
 * in poll() on a doorbell (a Unix socket to rank 0), and rank 0 rings before its next broadcast. Ranks on other hosts
 * have no doorbell; then all wait by MPI_Test with a growing sleep. Collectives are nonblocking ones driven by MPI_Test
 * with sched_yield, later short sleeps.
 *
 * A rank whose peer is gone ends this process with EXIT_PEER_LOST: an engine lives and dies as a whole.
 */
#ifndef MINILLM_RANKS_H
#define MINILLM_RANKS_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { EXIT_PEER_LOST = 4 };

struct ranks; /* opaque */

/* MPI_Init and the doorbells. COLLECTIVE. NULL when memory is short. */
struct ranks *ranks_open(int *argc, char ***argv);
/* MPI_Finalize. COLLECTIVE. */
void ranks_close(struct ranks *ranks);

uint32_t ranks_rank(const struct ranks *ranks);
uint32_t ranks_size(const struct ranks *ranks);

/* From rank 0 to all. COLLECTIVE. */
void ranks_broadcast(struct ranks *ranks, void *bytes, size_t count);
/* `count` floats of every rank, in rank order, to all; fits struct model_group. COLLECTIVE. */
void ranks_gather_floats(void *ranks, const float *mine, float *all, size_t count);
/* The least of each byte over all ranks, in place. COLLECTIVE. */
void ranks_least_bytes(struct ranks *ranks, uint8_t *bytes, size_t count);

/* Ranks above 0: true when rank 0 is about to broadcast; false when `other_fd` (-1: none) is readable before. Rank 0:
 * wakes the sleeping ones. */
bool ranks_sleep(struct ranks *ranks, int other_fd);
void ranks_ring(struct ranks *ranks);

/* Rank 0: the doorbells, to poll along while idle; a hang-up on one is a lost peer. Borrowed; may be none. */
uint32_t ranks_doorbells(struct ranks *ranks, struct pollfd *ret_fds, uint32_t capacity);
_Noreturn void ranks_peer_lost(const struct ranks *ranks);

#endif
