/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that outlives its maker, behind one table: physical handles that travel as file descriptors, and virtual
 * ranges that stay put while what is mapped in them changes. Knows nobody else in this project.
 *
 * Two implementations: `host` (memfd, MAP_FIXED over a PROT_NONE reservation) and `cuda` (cuda.h; libcuda, opened at
 * run time). Both pass tests/unit/vmm_suite.c; where they differ, the table says so. No call prints. Thread rule:
 * different ranges and handles may be used from different threads at once.
 */
#ifndef GMS_VMM_H
#define GMS_VMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gms/status.h"

enum gms_vmm_access { GMS_VMM_NONE, GMS_VMM_READ, GMS_VMM_READ_WRITE };

/* Owned by whoever made or imported it; closed by release. */
struct gms_vmm_handle {
    int fd; /* -1: empty */
    uint64_t bytes;
};

struct gms_vmm {
    const char *name;
    uint64_t granularity_bytes; /* sizes and offsets are multiples of this */
    bool cpu_addresses;         /* the CPU may load and store where something is mapped; else read and write alone */
    bool zeroed;                /* new memory is zero (scratch always is) */
    bool freeze_enforced;       /* freeze is kept by the kernel; else it is a promise of who holds descriptors */
    bool swaps_in_one_step;     /* a concurrent access during map sees old or new; else there must be none */

    /* Address space only, nothing readable. */
    gms_status (*reserve)(uint64_t bytes, void **ret_address, struct gms_error *ret_error);
    gms_status (*unreserve)(void *address, uint64_t bytes, struct gms_error *ret_error);
    /* Physical memory, reserved now (never SIGBUS later: V35); its size is fixed. `label` appears in /proc where the
     * memory has a name. Errors: NO_MEMORY (asked, available), DESCRIPTORS (used, limit). */
    gms_status (*create)(const char *label, uint64_t bytes, struct gms_vmm_handle *ret_handle,
                         struct gms_error *ret_error);
    /* A new descriptor for the same memory, owned by the caller. */
    gms_status (*export_fd)(const struct gms_vmm_handle *handle, int *ret_fd, struct gms_error *ret_error);
    /* Takes ownership of `fd` on success only. Checks kind, size and seals: MISMATCH, INVALID (cuda: map does, since
     * only the driver can tell, and importing must not wait for it). */
    gms_status (*import_fd)(int fd, uint64_t bytes, struct gms_vmm_handle *ret_handle, struct gms_error *ret_error);
    /* Maps the whole handle at a reserved address, replacing what was there; when it fails, that is there again. What
     * is replaced goes whole: INVALID when only a part of a mapping lies in the range (cuda). A mapping made for READ
     * is no writer for freeze and can never become one; mapping for READ over one for READ_WRITE is how a publisher
     * drops its writable alias. REFUSED: READ_WRITE of frozen memory. MISMATCH: memory of another device or size. */
    gms_status (*map)(void *address, const struct gms_vmm_handle *handle, enum gms_vmm_access access,
                      struct gms_error *ret_error);
    /* Private zero memory at a reserved address: scratch. On a device at most GMS_VMM_SCRATCH_BYTES of it are taken: a
     * larger range shows them again and again, so that a standby does not need the pool's size twice. */
    gms_status (*map_scratch)(void *address, uint64_t bytes, struct gms_error *ret_error);
    /* Changes what a mapping allows. One made for READ_WRITE stays a writer for freeze, whatever is set here; one made
     * for READ or NONE cannot be opened for writing: REFUSED. */
    gms_status (*set_access)(void *address, uint64_t bytes, enum gms_vmm_access access, struct gms_error *ret_error);
    /* Back to reserved, unreadable. */
    gms_status (*unmap)(void *address, uint64_t bytes, struct gms_error *ret_error);
    /* Makes the memory read-only for ever and for everybody. BUSY while any writable mapping exists anywhere. */
    gms_status (*freeze)(const struct gms_vmm_handle *handle, struct gms_error *ret_error);
    /* Work submitted by this process so far is complete (host: nothing to wait for). STICKY: it never will be. */
    gms_status (*sync)(struct gms_error *ret_error);
    /* Copies between mapped memory and the caller's; done on return. Errors: INVALID (not mapped, or not for this). */
    gms_status (*read)(void *to, const void *from, uint64_t bytes, struct gms_error *ret_error);
    gms_status (*write)(void *to, const void *from, uint64_t bytes, struct gms_error *ret_error);
    void (*release)(struct gms_vmm_handle *handle); /* closes; empty handles allowed */
};

enum { GMS_VMM_SCRATCH_BYTES = 512 * 1024 * 1024 };

const struct gms_vmm *gms_vmm_host(void);

#endif
