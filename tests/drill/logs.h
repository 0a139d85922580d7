/* SPDX-License-Identifier: Apache-2.0
 *
 * The engines' own logs (format in examples/minillm/README.md): one file per engine rank, one line per event with the
 * monotonic time. They are the drill's witness: who wrote when, and what was sealed, without asking the coordinators.
 * The monotonic clock is one clock for all processes of a host, so lines of different files can be ordered.
 */
#ifndef GMS_DRILL_LOGS_H
#define GMS_DRILL_LOGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plan.h"

enum {
    DRILL_LOG_HASH_BYTES = 33,
    DRILL_LOG_EVENT_BYTES = 16,
    DRILL_LOG_TAGS = 8,
    DRILL_LOG_TAG_BYTES = 32,
    DRILL_MAX_LOGS = DRILL_MAX_ENGINES * DRILL_MAX_RANKS
};

enum drill_log_change_kind { DRILL_LOG_WRITE, DRILL_LOG_SEAL, DRILL_LOG_RELEASE };

/* What happened to a slot, in the order of the log. */
struct drill_log_change {
    enum drill_log_change_kind kind;
    uint32_t slot;
    uint64_t generation;
    char hash[DRILL_LOG_HASH_BYTES]; /* seal only */
};

/* One tag of the engine's memory: how long waking took to bring it back. */
struct drill_log_tag {
    char name[DRILL_LOG_TAG_BYTES];
    uint64_t bytes, wake_ns;
};

struct drill_log {
    uint32_t engine, rank;
    uint64_t incarnation;
    char path[DRILL_PATH_BYTES];
    uint64_t lines, tokens;
    bool torn;        /* the last line is cut short: the writer died in it */
    uint64_t last_ns; /* of the last whole line */
    char last_event[DRILL_LOG_EVENT_BYTES];
    uint64_t first_activity_ns, last_activity_ns;           /* slot writes, seals, tokens; 0: none */
    uint64_t promoted_ns, adopted_ns, woken_ns, serving_ns; /* 0: never */
    uint32_t tag_count;
    struct drill_log_tag tags[DRILL_LOG_TAGS]; /* as they were woken */
    int64_t adopted;                           /* -1: did not adopt */
    struct drill_log_change *changes;          /* owned */
    size_t change_count, change_capacity;
};

struct drill_logs {
    size_t count;
    struct drill_log items[DRILL_MAX_LOGS];
};

/* Reads every engine<E>.<incarnation>.<rank>.log in `dir`. Errors: CORRUPT (file:line and what is wrong: evidence that
 * cannot be read proves nothing), NOT_FOUND, SYSTEM, NO_MEMORY. *ret_logs is owned by the caller; freed by
 * drill_logs_free, also when empty. */
gms_status drill_logs_read(const char *dir, struct drill_logs *ret_logs, struct gms_error *ret_error);
void drill_logs_free(struct drill_logs *logs);
const struct drill_log *drill_logs_find(const struct drill_logs *logs, uint64_t incarnation, uint32_t rank);

/* One block that is sealed. */
struct drill_block {
    uint32_t slot;
    char hash[DRILL_LOG_HASH_BYTES];
};
struct drill_blocks {
    size_t count;
    struct drill_block *items; /* owned, by slot */
};
void drill_blocks_free(struct drill_blocks *blocks);

/*
 * The blocks that `incarnation` left sealed on all ranks 0..ranks-1, by their logs: what it began with (`before`,
 * borrowed, NULL: nothing) minus what it re-used or gave back plus what it sealed. A seal that was cut off before its
 * line is not counted, so the true number may be larger, never smaller. Errors: NOT_FOUND (a rank has no log),
 * NO_MEMORY.
 */
gms_status drill_logs_sealed(const struct drill_logs *logs, uint64_t incarnation, uint32_t ranks,
                             const struct drill_blocks *before, struct drill_blocks *ret_blocks,
                             struct gms_error *ret_error);

/* The span from the first to the last act (slot write, seal, token) of an incarnation over its ranks. False: no act. */
bool drill_logs_activity(const struct drill_logs *logs, uint64_t incarnation, uint64_t *ret_first_ns,
                         uint64_t *ret_last_ns);

/* OK when no two incarnations acted at the same time. MISMATCH names both, the files and by how much they overlap. */
gms_status drill_logs_check_overlap(const struct drill_logs *logs, struct gms_error *ret_error);

#endif
