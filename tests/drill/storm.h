/* SPDX-License-Identifier: Apache-2.0
 *
 * gms-kill-storm's own files. One thread streams, the main thread does the rest.
 *
 *   storm.c          command line, the order of it all, the report
 *   storm_kills.c    whom to kill and when; is the group whole again, and what it was?
 *   storm_streams.c  the streams, compared with the undisturbed run
 *   storm_worker.c   the third engine, which allocates and releases a pool without a pause
 */
#ifndef GMS_TESTS_DRILL_STORM_H
#define GMS_TESTS_DRILL_STORM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "deployment.h"
#include "plan.h"
#include "prompts.h"
#include "streams.h"

enum {
    MAX_KILLS = 100000,
    STREAMS_MAX = 64,
    WORKER = 2,
    HISTORY = 4096,
    STOP_AHEAD = 200 /* they do hundreds in a second */,
    POLL_MS = 10,
    REASONS = 16,
    REASON_BYTES = 512
};

enum target { TARGET_RANK, TARGET_ALL, TARGET_LAUNCHER, TARGET_KEEPER, TARGET_UP, TARGET_KEEPER_AND_ALL, TARGET_COUNT };
/* What the newest snapshot says that the old world died in. */
enum moment { MOMENT_REST, MOMENT_PREPARED, MOMENT_DECIDED, MOMENT_COUNT };
/* One rank of the third engine, in memory that it shares with the storm. */
struct worker {
    _Atomic uint64_t done, stop_at; /* operations; 0: go on */
    uint64_t digest;                /* of all outcomes */
    uint64_t history[HISTORY];      /* the digest after each operation, a ring by its number */
    int pidfd;
    pid_t pid;
    _Atomic int failed, over, may_close; /* over: it has stopped, well or not */
    char text[GMS_ERROR_TEXT_BYTES];
};

/* How a wait for the group went. */
struct storm_wait {
    enum target target;
    uint64_t took_ns;
    const char *missing; /* what was missing the longest */
    uint64_t longest_ns;
};

struct storm {
    uint32_t kills, doubles_percent, pause_ms, gap_limit_ms, limit_s;
    uint64_t seed, random;
    bool keep;
    struct drill_plan plan;
    char work_dir[DRILL_PATH_BYTES], shared_dir[DRILL_PATH_BYTES];
    struct drill_deployment deployment;
    struct drill_prompts prompts;
    struct worker *workers; /* shared memory */

    /* the stream thread */
    pthread_t streamer;
    _Atomic bool streams_stop, streams_failed;
    _Atomic uint64_t rounds, tokens;
    uint64_t longest_gap_ns, control_gap_ns, wrong_tokens, resumes;
    struct drill_token *reference[STREAMS_MAX];
    uint32_t reference_count[STREAMS_MAX];

    /* what must not change */
    uint64_t epoch, incarnations[WORKER + 1];
    int32_t pids[WORKER + 1][DRILL_MAX_RANKS];

    /* what was found */
    uint32_t by_target[TARGET_COUNT], by_moment[MOMENT_COUNT], restarts;
    uint64_t *took_ns; /* kill to agreed again, of ends of worlds */
    uint32_t took_count;
    struct storm_wait slowest;
    off_t log_read;
    size_t reason_count;
    char reasons[REASONS][REASON_BYTES];
    pthread_mutex_t lock; /* over reasons */
};

/* Notes a reason to fail; any thread. */
__attribute__((format(printf, 2, 3))) void storm_fail(struct storm *storm, const char *format, ...);
/* False once something has failed. */
bool storm_go_on(struct storm *storm);
/* From the seed. */
uint32_t storm_random(struct storm *storm, uint32_t below);

/* One round of all prompts. `reference`: becomes what later ones are compared with. */
bool storm_stream_round(struct storm *storm, bool reference);
/* Rounds until told to stop: a thread's body, `context` is the storm. */
void *storm_stream_on(void *context);

/* What engines the storm starts; NULL-terminated. */
extern const char *const storm_engine_command[];
void storm_start_workers(struct storm *storm);
void storm_check_workers(struct storm *storm);
/* All ranks stop after the same operation, and must have had the same outcomes. */
void storm_stop_workers(struct storm *storm);

/* Waits until the group is whole, in another world than `former_world` (0: in any). *ret_wait: what it waited for. */
void storm_wait_whole(struct storm *storm, uint64_t former_world, struct storm_wait *ret_wait);
/* What must not change from here on. */
void storm_remember(struct storm *storm);
/* By engine. */
extern const char *const storm_roles[WORKER + 1];
const char *storm_target_name(enum target target);
/* All the kills. */
void storm_rage(struct storm *storm);

#endif
