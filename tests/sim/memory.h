/* SPDX-License-Identifier: Apache-2.0
 *
 * The KV pool of a cluster: what stands in the slot words of every directory, who is suspected of what, and, unknown to
 * the cores, who may really still write which page. It outlives coordinators as the keeper's memory does.
 *
 * Checked here: no page is freed while a dead writer may still write it on any rank; no engine is told of a page that
 * is not free on all ranks; no engine is given a page that somebody else may write.
 */
#ifndef TESTS_SIM_MEMORY_H
#define TESTS_SIM_MEMORY_H

#include "cluster.h"

enum { MEMORY_PAGES = 24, MEMORY_ASKS = 64, MEMORY_RANKS = 16 /* larger clusters are played without pages */ };

enum memory_word { MEMORY_FREE, MEMORY_LEASED, MEMORY_QUARANTINED };

struct cluster_memory {
    bool proof_is_trusted; /* process-death-timeout: nothing is claimed about quiet */
    uint8_t words[CLUSTER_INCARNATIONS][MEMORY_RANKS][MEMORY_PAGES];
    uint32_t suspects[MEMORY_RANKS][MEMORY_PAGES]; /* bits, as the cores give them */
    uint64_t stamps[MEMORY_RANKS][MEMORY_PAGES];
    uint64_t writers[MEMORY_RANKS][MEMORY_PAGES][CLUSTER_INCARNATIONS / 64]; /* the truth, by place */
    struct {
        bool dead, quiet, unknowable;
    } cohorts[CLUSTER_INCARNATIONS][MEMORY_RANKS];
    struct {
        uint64_t step, suspect; /* suspect 0: free */
        bool answered;
    } asks[MEMORY_RANKS][MEMORY_ASKS];
    uint64_t returned, granted, ended[GMS_RECLAIM_ANSWER_COUNT];
};

/* NULL: no memory. */
struct cluster_memory *cluster_memory_new(void);
/* What a rank does to it, and what it has to answer. */
void cluster_memory_act(struct cluster *cluster, uint32_t rank, const struct gms_action *action);
/* All ranks have compared: `engine`'s directory is usable only where it is everywhere. */
void cluster_memory_adopted(struct cluster *cluster, uint64_t incarnation);
void cluster_memory_retired(struct cluster *cluster, uint32_t rank, uint64_t incarnation);
/* The work of a dead cohort has ended on this rank; its provider says so, if asked. Ignored while it lives. */
void cluster_memory_quiet(struct cluster *cluster, uint32_t rank, uint64_t incarnation);
/* The provider will never know. */
void cluster_memory_unknowable(struct cluster *cluster, uint32_t rank, uint64_t incarnation);
/* The coordinators are gone, and what they were asked for with them; the memory is not. */
void cluster_memory_crash(struct cluster *cluster);
/* Nothing lives any more, the memory neither. */
void cluster_memory_lost(struct cluster *cluster);
/* A new world that does not know what the slots hold. */
void cluster_memory_distrust(struct cluster *cluster);
/* Pages of the incarnation's directory in this state, on one rank. */
uint32_t cluster_memory_count(struct cluster *cluster, uint32_t rank, uint64_t incarnation, enum memory_word word);

#endif
