/* SPDX-License-Identifier: Apache-2.0
 *
 * What every kind of memory does alike with a handle, which is a descriptor and a size; for the tables of vmm.h.
 */
#ifndef GMS_VMM_HANDLE_H
#define GMS_VMM_HANDLE_H

#include "vmm/vmm.h"

/* *ret_fd: a new descriptor for the same memory, the caller's. Errors: INVALID (empty), DESCRIPTORS. */
gms_status gms_vmm_handle_export(const struct gms_vmm_handle *handle, int *ret_fd, struct gms_error *ret_error);
/* Closes and empties; an empty one is allowed. */
void gms_vmm_handle_release(struct gms_vmm_handle *handle);

#endif
