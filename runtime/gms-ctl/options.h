/* SPDX-License-Identifier: Apache-2.0
 *
 * gms-ctl's command line: what it says of itself, and what it was given.
 */
#ifndef GMS_CTL_OPTIONS_H
#define GMS_CTL_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"

enum { GMS_CTL_REFUSED = 1, GMS_CTL_USAGE = 64, GMS_CTL_UNREACHABLE = 69 };

struct gms_ctl_options {
    const char *run_dir, *log_destination; /* borrowed from the command line and the environment */
    const char *words[2];                  /* the command and its argument */
    int word_count;
    int64_t rank; /* -1: not given */
    bool json;
    uint64_t watch_ns, timeout_ns; /* 0: not given */
    enum gms_log_level log_level;
};

/* Fills it in. Ends the process, with GMS_CTL_USAGE and the reason, on what it does not understand; --help ends it too.
 */
void gms_ctl_parse(int argc, char **argv, struct gms_ctl_options *ret_options);

/* A decimal number from 0 to `limit` and nothing else. */
bool gms_ctl_parse_number(const char *text, uint32_t limit, uint32_t *ret_value);

/* --timeout, or so many seconds where it was not given. In ns. */
uint64_t gms_ctl_timeout(const struct gms_ctl_options *options, uint64_t seconds);

#endif
