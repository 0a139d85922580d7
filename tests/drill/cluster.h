/* SPDX-License-Identifier: Apache-2.0
 *
 * What the coordinators say about themselves: the status document (format in coord/README.md) of every rank, fetched
 * over the rank's socket in the run directory. Read-only; a second opinion beside the engines' own logs and the
 * clients' clocks, and compared with them.
 */
#ifndef GMS_DRILL_CLUSTER_H
#define GMS_DRILL_CLUSTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plan.h"

enum { DRILL_MAX_TAKEOVERS = 16, DRILL_MAX_POOLS = 16, DRILL_ENDPOINT_BYTES = 128 };

struct drill_status_engine {
    uint32_t engine;
    uint64_t incarnation;
    char role[16];
    int32_t pid;          /* as the coordinator sees it; 0: unknown there */
    char containment[16]; /* pid-namespace, cgroup, subreaper, none; "": not said */
    bool connected;       /* has a session with this rank now */
};

struct drill_status_pool {
    char name[64];
    uint32_t index;
    bool kv;
    uint32_t quarantined; /* slots, now */
};

/* Moments of one takeover on one rank, CLOCK_MONOTONIC ns; 0: not reached. */
struct drill_status_takeover {
    uint64_t epoch, from_incarnation, to_incarnation;
    int32_t from_engine, to_engine;
    char cause[16];
    uint64_t detect_ns, condemn_ns, fence_ns, classify_ns, promote_ns, adopt_ns, serve_ns;
    uint32_t sealed_here, adoptable_here, adopted, idle, quarantined, damaged;
    uint32_t reclaimed;  /* slots that came back to the successor so far */
    uint64_t reclaim_ns; /* the last of them; 0: none */
};

struct drill_status {
    uint32_t rank, ranks;
    int32_t pid;
    uint64_t world, epoch, serving_incarnation;
    char deployment[64], takeover[16];
    int32_t serving_engine; /* -1: nobody */
    bool keeper;            /* it has one */
    uint32_t copy_holders;  /* gms-exec that have copies of what the keeper holds */
    char endpoint[DRILL_ENDPOINT_BYTES];
    uint32_t pending, given_up;                        /* dead writers: not known to be quiet yet; never will be */
    uint32_t engine_count, pool_count, takeover_count; /* takeovers: the latest DRILL_MAX_TAKEOVERS */
    struct drill_status_engine engines[DRILL_MAX_ENGINES];
    struct drill_status_pool pools[DRILL_MAX_POOLS];
    struct drill_status_takeover takeovers[DRILL_MAX_TAKEOVERS];
};

/* Reads a status document. Errors: PROTOCOL (what is missing or wrong), VERSION. */
gms_status drill_status_parse(const char *json, size_t bytes, struct drill_status *ret_status,
                              struct gms_error *ret_error);

/* Asks one coordinator rank; bounded by `deadline_ns`. Errors: as gms_channel_connect and drill_status_parse. */
gms_status drill_status_fetch(const char *run_dir, uint32_t rank, uint64_t deadline_ns, struct drill_status *ret_status,
                              struct gms_error *ret_error);
/* Asks all of them, ret_all[0..ranks-1]. */
gms_status drill_status_fetch_all(const char *run_dir, uint32_t ranks, uint64_t deadline_ns,
                                  struct drill_status *ret_all, struct gms_error *ret_error);
/* Asks rank 0's coordinator for a planned stop of the coordinator job. */
gms_status drill_cluster_shutdown(const char *run_dir, uint64_t deadline_ns, struct gms_error *ret_error);

/* OK when all ranks say the same about world, epoch, who serves and where every takeover went and what it adopted, and
 * every one speaks for itself. MISMATCH names the ranks, the field and both values. */
gms_status drill_status_agree(const struct drill_status *all, uint32_t ranks, struct gms_error *ret_error);

const struct drill_status_engine *drill_status_engine(const struct drill_status *status, uint32_t engine);
/* The takeover that ended in `to_incarnation`, NULL: none. */
const struct drill_status_takeover *drill_status_takeover(const struct drill_status *status, uint64_t to_incarnation);

#endif
