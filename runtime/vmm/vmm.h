/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that outlives its maker, behind one table: physical handles that travel as file descriptors, and virtual
 * ranges that stay put while what is mapped in them changes. Knows nobody else in this project.
 *
 * Two implementations are planned: `host` (memfd, MAP_FIXED over a PROT_NONE reservation) and `cuda` (libcuda, opened
 * at run time). Both pass tests/unit/test_vmm.c. No call prints. Thread rule: different ranges and handles may be used
 * from different threads at once.
 */
#ifndef GMS_VMM_H
#define GMS_VMM_H

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

    /* Address space only, nothing readable. */
    gms_status (*reserve)(uint64_t bytes, void **ret_address, struct gms_error *ret_error);
    gms_status (*unreserve)(void *address, uint64_t bytes, struct gms_error *ret_error);
    /* Physical memory, zero-filled, reserved now (never SIGBUS later: V35); size sealed against shrink and grow.
     * `label` appears in /proc. Errors: NO_MEMORY (asked, available), DESCRIPTORS (used, limit). */
    gms_status (*create)(const char *label, uint64_t bytes, struct gms_vmm_handle *ret_handle,
                         struct gms_error *ret_error);
    /* A new descriptor for the same memory, owned by the caller. */
    gms_status (*export_fd)(const struct gms_vmm_handle *handle, int *ret_fd, struct gms_error *ret_error);
    /* Takes ownership of `fd` on success only. Checks kind, size and seals: MISMATCH, INVALID. */
    gms_status (*import_fd)(int fd, uint64_t bytes, struct gms_vmm_handle *ret_handle, struct gms_error *ret_error);
    /* Maps the whole handle at a reserved address, replacing what was there, in one step: a concurrent reader sees old
     * or new. A mapping made for READ is no writer for freeze and can never become one; mapping for READ over one for
     * READ_WRITE is how a publisher drops its writable alias. REFUSED: READ_WRITE of frozen memory. */
    gms_status (*map)(void *address, const struct gms_vmm_handle *handle, enum gms_vmm_access access,
                      struct gms_error *ret_error);
    /* Private zero memory at a reserved address: scratch. */
    gms_status (*map_scratch)(void *address, uint64_t bytes, struct gms_error *ret_error);
    /* Changes what a mapping allows. One made for READ_WRITE stays a writer for freeze, whatever is set here; one made
     * for READ or NONE cannot be opened for writing: REFUSED. */
    gms_status (*set_access)(void *address, uint64_t bytes, enum gms_vmm_access access, struct gms_error *ret_error);
    /* Back to reserved, unreadable. */
    gms_status (*unmap)(void *address, uint64_t bytes, struct gms_error *ret_error);
    /* Makes the memory read-only for ever and for everybody. BUSY while any writable mapping exists anywhere. */
    gms_status (*freeze)(const struct gms_vmm_handle *handle, struct gms_error *ret_error);
    /* Work submitted by this process so far is complete (host: nothing to wait for). */
    gms_status (*sync)(struct gms_error *ret_error);
    void (*release)(struct gms_vmm_handle *handle); /* closes; empty handles allowed */
};

const struct gms_vmm *gms_vmm_host(void);

#endif
