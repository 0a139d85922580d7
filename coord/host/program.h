/* SPDX-License-Identifier: Apache-2.0
 *
 * Starts an operator's program from a coordinator: no code of ours and none of MPI's runs in the child, which gets
 * /dev/null for input, our outputs, no other descriptor, and no variable by which a launcher tells a process its place.
 */
#ifndef GMS_COORD_PROGRAM_H
#define GMS_COORD_PROGRAM_H

#include <stdint.h>

#include "gms/status.h"

enum { GMS_PROGRAM_WORDS = 64, GMS_PROGRAM_VARIABLES = 4 };

struct gms_program {
    const char *words; /* "word\0" repeated, `words_bytes` of it; borrowed, as all of this, for the call */
    uint32_t words_bytes;
    const char *last_word;                        /* NULL: none */
    const char *variables[GMS_PROGRAM_VARIABLES]; /* "NAME=VALUE", over the inherited ones; NULL ends */
};
/* *ret_pidfd is the caller's: wait for it by P_PIDFD. Errors: NO_MEMORY, DESCRIPTORS, SYSTEM (it cannot be run). */
gms_status gms_program_start(const struct gms_program *what, int *ret_pidfd, struct gms_error *ret_error);

#endif
