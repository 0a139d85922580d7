/* SPDX-License-Identifier: Apache-2.0
 *
 * Where and with what a drill ran, for its report.
 */
#ifndef GMS_DRILL_ENVIRONMENT_H
#define GMS_DRILL_ENVIRONMENT_H

#include <stdint.h>

struct drill_environment {
    char program[64], compiler[96], mpi[96];     /* versions */
    char system[160], distribution[96], cpu[96]; /* "": unknown */
    char gpu[96];                                /* "": none */
    char started[32];                            /* UTC, ISO 8601 */
    char command_line[512];                      /* cut when longer */
    uint32_t cores;                              /* that this process may use */
    uint64_t memory_bytes;
};

void drill_environment_read(int argc, char *const *argv, struct drill_environment *ret_environment);

#endif
