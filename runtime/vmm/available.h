/* SPDX-License-Identifier: Apache-2.0
 * How much host memory could be taken now without the kernel having to choose a victim. */
#ifndef GMS_VMM_AVAILABLE_H
#define GMS_VMM_AVAILABLE_H

#include <stdint.h>

/*
 * The least of MemAvailable and of what each memory cgroup above this process (v1 or v2) still allows, page cache that
 * can be dropped counted as free. `proc` and `cgroup` are "/proc" and "/sys/fs/cgroup", or a test's. UINT64_MAX when
 * nothing could be read: unknown is not none.
 */
uint64_t gms_vmm_available_bytes(const char *proc, const char *cgroup);

/* The least of MemTotal and of the limits of those cgroups: what this process could have if nobody else had any. */
uint64_t gms_vmm_total_bytes(const char *proc, const char *cgroup);

#endif
