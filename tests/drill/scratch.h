/* SPDX-License-Identifier: Apache-2.0
 *
 * The scratch space of a drill: a work directory (deployments, logs, outputs) and one in shared memory for what MPI
 * keeps there.
 */
#ifndef GMS_DRILL_SCRATCH_H
#define GMS_DRILL_SCRATCH_H

#include "plan.h"

struct drill_scratch {
    char work_dir[DRILL_PATH_BYTES]; /* "": not made */
    char shared_dir[DRILL_PATH_BYTES];
};

/* Makes both: `wanted` (an absolute or relative path that does not exist or is empty), or with "" a new one under
 * TMPDIR. Errors: EXISTS (not empty), SYSTEM. */
gms_status drill_scratch_make(const char *wanted, struct drill_scratch *ret_scratch, struct gms_error *ret_error);
/* Removes what MPI left; the work directory stays, because it is the evidence. */
void drill_scratch_drop_shared(struct drill_scratch *scratch);
/* Removes `dir` and all below it; "" is nothing. */
void drill_scratch_remove(const char *dir);

#endif
