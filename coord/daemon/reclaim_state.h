/* SPDX-License-Identifier: Apache-2.0
 *
 * What reclaim.c (work), reclaim_ask.c (providers) and reclaim_status.c (what became of whom) share. Nobody else
 * includes this.
 */
#ifndef GMS_COORD_RECLAIM_STATE_H
#define GMS_COORD_RECLAIM_STATE_H

#include "daemon/daemon_state.h"
#include "daemon/reclaim.h"
#include "daemon/worker.h"
#include "quiescence/quiescence.h"

enum { GMS_RECLAIM_STATUSES = 48, GMS_RECLAIM_KEPT = 16 /* of one engine, in its file */ };

/* What became of one dead writer on this rank. */
struct gms_reclaim_status {
    uint64_t incarnation; /* 0: free */
    uint32_t engine;
    enum gms_reclaim_answer verdict;
    uint32_t pages, returned; /* suspected of it when stamped; of them, free again */
    uint64_t trials;          /* how often the provider was asked */
    uint64_t condemned_ns, answered_ns,
        granted_ns;                           /* this host's CLOCK_MONOTONIC; 0: not yet, or in an earlier world */
    char reason[GMS_QUIESCENCE_REASON_BYTES]; /* the provider's last words */
    char provider[32];
};

/* A suspect that is being asked about. */
struct gms_reclaim_question {
    uint64_t incarnation; /* 0: free */
    uint64_t step, pause_ns, due_ns;
    bool under_way; /* with the worker */
};

struct gms_reclaim {
    struct gms_daemon *daemon;
    struct gms_worker *worker;
    const struct gms_quiescence_provider *provider;
    void *provider_context;
    struct gms_reclaim_memory *memory; /* of the pass's owner; NULL: none yet */
    struct event *retry;               /* of `deferred`, for which there was no memory */
    struct gms_action deferred;
    uint8_t deferred_bitmap[GMS_RECLAIM_SLOTS / 8];
    struct gms_reclaim_question questions[GMS_RECLAIM_SUSPECTS];
    struct event *again; /* the next question is due */
    struct gms_reclaim_status statuses[GMS_RECLAIM_STATUSES];
};

/* reclaim_ask.c */
gms_status gms_reclaim_ask_open(struct gms_reclaim *reclaim, struct gms_error *ret_error);
void gms_reclaim_ask_close(struct gms_reclaim *reclaim);
void gms_reclaim_ask(struct gms_reclaim *reclaim, uint64_t incarnation, uint64_t step);
void gms_reclaim_ask_nobody(struct gms_reclaim *reclaim);
void gms_reclaim_provider_forget(struct gms_reclaim *reclaim, uint64_t incarnation);

/* reclaim_status.c */
void gms_reclaim_statuses_load(struct gms_reclaim *reclaim);
/* NULL: unknown. */
struct gms_reclaim_status *gms_reclaim_find_status(struct gms_reclaim *reclaim, uint64_t incarnation);
/* The suspects of the core have one, each pending. */
void gms_reclaim_statuses_renew(struct gms_reclaim *reclaim);
void gms_reclaim_status_write(struct gms_reclaim *reclaim, uint32_t engine);

#endif
