/* SPDX-License-Identifier: Apache-2.0
 *
 * A memory limit for one process of the drill: a cgroup where one can be made and is enforced, else RLIMIT_AS.
 */
#ifndef GMS_DRILL_MEMORY_LIMIT_H
#define GMS_DRILL_MEMORY_LIMIT_H

#include <sys/types.h>

#include "gms/status.h"

enum { DRILL_MEMORY_MORE = 48 << 20 }; /* bytes that the process may take beside what it has */

struct drill_memory_limit {
    const char *kind; /* "cgroup v2", "cgroup v1", "RLIMIT_AS"; NULL: none was set */
    char cgroup[320]; /* its directory; "": none */
};

/* Puts `pid` under the limit. A cgroup counts only where a child of the drill that takes more is killed in it. Errors:
 * SYSTEM. */
gms_status drill_memory_limit_set(pid_t pid, struct drill_memory_limit *ret_limit, struct gms_error *ret_error);
/* Removes the cgroup, once nobody is in it. */
void drill_memory_limit_drop(struct drill_memory_limit *limit);

#endif
