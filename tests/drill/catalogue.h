/* SPDX-License-Identifier: Apache-2.0
 *
 * The catalogue of faults: one row each, what is done and what must hold. Data only; strike.c carries a row's strikes
 * out, round.c runs one row under load, campaign.c runs many.
 */
#ifndef GMS_DRILL_CATALOGUE_H
#define GMS_DRILL_CATALOGUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "gms/status.h"

/* Who is struck. Where one of several is meant, the seed draws which. */
enum drill_target {
    DRILL_TARGET_NONE,
    DRILL_TARGET_ENGINE_RANK, /* of the engine that serves */
    DRILL_TARGET_ENGINE_ALL,
    DRILL_TARGET_ENGINE_LAUNCHER,
    DRILL_TARGET_SHADOW_RANK, /* of the engine that is parked first */
    DRILL_TARGET_COORDINATOR,
    DRILL_TARGET_COORDINATORS,
    DRILL_TARGET_COORDINATOR_LAUNCHER,
    DRILL_TARGET_KEEPER,
    DRILL_TARGET_UP,
    DRILL_TARGET_RELAY,    /* with streams through it (relayed.h) */
    DRILL_TARGET_RUN_DISK, /* the file system of the run directory */
    DRILL_TARGET_LINK,     /* between two hosts */
    DRILL_TARGET_COUNT
};

enum drill_act {
    DRILL_ACT_KILL, /* SIGKILL by pidfd */
    DRILL_ACT_STOP, /* SIGSTOP by pidfd */
    DRILL_ACT_ARM,  /* the engine does it by its own hand, in the middle of a phase */
    DRILL_ACT_LIMIT_MEMORY,
    DRILL_ACT_FILL,
    DRILL_ACT_CUT,
    DRILL_ACT_COUNT
};

struct drill_strike {
    enum drill_target target;
    enum drill_act act;
    const char *how, *at; /* ARM: minillm's words for what and in which phase (examples/minillm/README.md) */
};

/* What a row needs beside a deployment that the drill has started; bits. */
enum drill_need {
    DRILL_NEED_ARM = 1 << 0,  /* an engine that does it to itself when asked */
    DRILL_NEED_DISK = 1 << 1, /* a mount of its own for the run directory */
    DRILL_NEED_HANG = 1 << 2, /* coordinators that notice an engine that makes no progress */
    DRILL_NEED_CUDA = 1 << 3,
    DRILL_NEED_HOSTS = 1 << 4, /* two hosts made of namespaces */
};

/* What must come of it. */
enum drill_outcome {
    DRILL_OUTCOME_TAKEOVER,  /* the engine ends, the parked one goes on with its streams */
    DRILL_OUTCOME_UNNOTICED, /* no stream feels anything, the group is whole again; then it survives a SIGKILL of a rank
                                of the serving engine as well */
    DRILL_OUTCOME_HELD, /* while it lasts nobody decides and nobody is promoted; then the same engine goes on with its
                           streams, the group is whole again, and survives a SIGKILL as well */
    DRILL_OUTCOME_COUNT
};

enum { DRILL_STRIKES = 2 };

struct drill_fault {
    const char *name;
    const char *done;                           /* what the drill does */
    const char *checked;                        /* beside what every row checks: catalogue_checks */
    struct drill_strike strikes[DRILL_STRIKES]; /* at once, ARM and LIMIT_MEMORY before the others */
    bool one_by_one;                            /* UNNOTICED: whole again between them */
    const char *successor_dies;                 /* --die-after of the engine that is parked first; NULL: it lives */
    uint32_t needs;                             /* enum drill_need */
    enum drill_outcome outcome;
    uint32_t shadows; /* parked engines that it takes */
    bool in_short;    /* part of the short form */
};

/* What every row checks. */
extern const char drill_catalogue_checks[];

size_t drill_catalogue_count(void);
const struct drill_fault *drill_catalogue_at(size_t index);
/* NULL: no such row. */
const struct drill_fault *drill_catalogue_find(const char *name);

/* Bit per row: "short", "all", or names with commas. Errors: INVALID (the name, and how to see all). */
gms_status drill_catalogue_choose(const char *words, uint64_t *ret_rows, struct gms_error *ret_error);

const char *drill_need_name(enum drill_need need);
/* What --sabotage each does to rows of that outcome. */
const char *drill_outcome_sabotage(enum drill_outcome outcome);
const char *drill_outcome_name(enum drill_outcome outcome);
/* Everything, for people; and for programs (README.md), owned by the caller, NULL: no memory. */
void drill_catalogue_print(FILE *stream);
char *drill_catalogue_json(void);

#endif
