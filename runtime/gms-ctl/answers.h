/* SPDX-License-Identifier: Apache-2.0
 * The status documents of the ranks of one node, asked for one after the other. */
#ifndef GMS_CTL_ANSWERS_H
#define GMS_CTL_ANSWERS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "gms/status.h"

struct gms_answer {
    uint32_t rank;
    gms_status status;
    char *raw;              /* owned, NUL-terminated; NULL unless the rank answered */
    json_t *document;       /* owned; an object, or NULL: see error */
    struct gms_error error; /* why there is no document */
};

struct gms_answers {
    struct gms_answer *items; /* owned, ascending ranks */
    size_t count;
};

/*
 * Asks `rank`, or with -1 every rank that has a socket in the run directory; each answer is waited for at most
 * timeout_ns. A rank that does not answer is an item with an error, not a failure. On success the caller owns
 * *ret_answers (gms_answers_free). Errors: NOT_FOUND (directory, or no rank in it), SYSTEM, NO_MEMORY.
 */
gms_status gms_answers_collect(const char *run_dir, int64_t rank, uint64_t timeout_ns, struct gms_answers *ret_answers,
                               struct gms_error *ret_error);
void gms_answers_free(struct gms_answers *answers);

enum gms_goal {
    GMS_GOAL_UP,      /* every coordinator rank answers */
    GMS_GOAL_SERVING, /* and one engine serves on all of them */
    GMS_GOAL_STANDBY, /* and another is parked on all of them: a fault would be survived */
};

enum { GMS_MISSING_BYTES = 640 };

/* 1: the goal is reached, and `text` says who serves and who stands by. 0: `text` says what is missing. */
int gms_answers_reach(const struct gms_answers *answers, enum gms_goal goal, char text[GMS_MISSING_BYTES]);

#endif
