/* SPDX-License-Identifier: Apache-2.0
 * The command line of gms-up. */
#ifndef GMS_UP_OPTIONS_H
#define GMS_UP_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"

enum {
    GMS_UP_WORDS = 64,
    GMS_UP_PATH_BYTES = 512,
    GMS_UP_PLANNED = 0,
    GMS_UP_USAGE = 64,
    GMS_UP_UNAVAILABLE = 69, /* another one looks after this run directory */
    GMS_UP_OPERATOR = 70,
    GMS_UP_SYSTEM = 71,
    GMS_UP_CONFIG = 78,
};

struct gms_up_options {
    const char *config;                 /* borrowed from argv, as all texts here */
    const char *launcher[GMS_UP_WORDS]; /* words before "-n RANKS COORDINATOR --config FILE"; NULL-terminated;
                                           the first NULL: as the file says */
    const char *extra[GMS_UP_WORDS];    /* words after it */
    char coordinator[GMS_UP_PATH_BYTES], keeper[GMS_UP_PATH_BYTES], exec[GMS_UP_PATH_BYTES], self[GMS_UP_PATH_BYTES];
    bool keep_keeper;  /* start one when there is none */
    bool keep_engines; /* a planned stop leaves them running */
    uint64_t settled_ns, grace_ns;
    enum gms_log_level log_level;
    const char *log_destination;
};

/* What --help says, without any option; the programs beside this one, or in PATH. */
void gms_up_options_default(struct gms_up_options *ret_options);
/* Exits by itself on --help, --version and errors (64). */
void gms_up_options_parse(int argc, char **argv, struct gms_up_options *ret_options);

#endif
