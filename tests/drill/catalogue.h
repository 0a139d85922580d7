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
    DRILL_TARGET_COUNT
};

enum drill_act { DRILL_ACT_KILL /* SIGKILL by pidfd */, DRILL_ACT_COUNT };

struct drill_strike {
    enum drill_target target;
    enum drill_act act;
};

/* What must come of it. */
enum drill_outcome {
    DRILL_OUTCOME_TAKEOVER, /* the engine ends, the parked one goes on with its streams */
    DRILL_OUTCOME_COUNT
};

enum { DRILL_STRIKES = 2 };

struct drill_fault {
    const char *name;
    const char *done;                           /* what the drill does */
    const char *checked;                        /* beside what every row checks: catalogue_checks */
    struct drill_strike strikes[DRILL_STRIKES]; /* in this order, without a pause */
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

const char *drill_outcome_name(enum drill_outcome outcome);
/* Everything, for people; and for programs (README.md), owned by the caller, NULL: no memory. */
void drill_catalogue_print(FILE *stream);
char *drill_catalogue_json(void);

#endif
