/* SPDX-License-Identifier: Apache-2.0
 *
 * Ways in which an engine rank comes to grief on request, for drills.
 */
#ifndef MINILLM_ENDING_H
#define MINILLM_ENDING_H

#include <stdbool.h>
#include <stdint.h>

enum ending {
    ENDING_SIGKILL,
    ENDING_EXIT,   /* leaves with status 0, without a goodbye */
    ENDING_ABORT,  /* as a failed assertion does */
    ENDING_FREEZE, /* its loop stands still; process, threads and sockets live */
    ENDING_FORK,   /* goes on, but has left a child behind that holds everything and does not want to end */
    ENDING_HOG,    /* takes memory until it is killed for it, or is given no more */
    ENDING_COUNT
};

/* Returns only for FORK. */
void ending_come(enum ending ending);
/* "sigkill", "exit", ...; false: none of them. */
bool ending_parse(const char *text, enum ending *ret_ending);
/* All names, for messages. */
extern const char ending_names[];

/* Steps between promotion and serving at whose end a shadow may be told to be killed. */
enum waking_step { WAKING_NONE, WAKING_PROMOTED, WAKING_ADOPTED, WAKING_WOKEN, WAKING_SERVING, WAKING_COUNT };
bool waking_parse(const char *text, enum waking_step *ret_step);

#endif
