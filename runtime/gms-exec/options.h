/* SPDX-License-Identifier: Apache-2.0
 * The command line of gms-exec. */
#ifndef GMS_EXEC_OPTIONS_H
#define GMS_EXEC_OPTIONS_H

#include <stdint.h>

#include "base/log.h"

/* Exit codes of gms-exec itself; otherwise the engine's: its code, or 128 + the signal that ended it. */
enum {
    GMS_EXEC_USAGE = 64,
    GMS_EXEC_NO_COORDINATOR = 69, /* nobody answered within --wait, or the coordinator refused us */
    GMS_EXEC_SYSTEM = 71,         /* the cohort cannot be contained here */
    GMS_EXEC_CANNOT_RUN = 126,    /* as shells do */
    GMS_EXEC_NOT_FOUND = 127,
    GMS_EXEC_SIGNAL = 128,
};

enum gms_exec_containment {
    GMS_EXEC_AUTO,
    GMS_EXEC_PID_NAMESPACE,
    GMS_EXEC_SUBREAPER,
    GMS_EXEC_CGROUP,
    GMS_EXEC_CONTAINMENT_COUNT,
    GMS_EXEC_AS_DEPLOYED = GMS_EXEC_CONTAINMENT_COUNT, /* what the coordinator says */
};

struct gms_exec_options {
    const char *run_dir, *launch, *log_destination; /* borrowed from argv and the environment */
    uint32_t rank, engine;
    uint64_t wait_ns;
    enum gms_exec_containment containment;
    enum gms_log_level log_level;
    char **command; /* borrowed, NULL-terminated, at least one word */
};

/* Parses or ends the program (--help, --version, 64 with the reason). Defaults come from the launcher's environment. */
void gms_exec_options_parse(int argc, char **argv, struct gms_exec_options *ret_options);

#endif
