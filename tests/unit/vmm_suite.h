/* SPDX-License-Identifier: Apache-2.0
 *
 * The suite that every implementation of vmm.h passes. Children are new programs (/proc/self/exe with a role), because
 * a forked one cannot use a CUDA driver that its parent has started.
 */
#ifndef GMS_TESTS_VMM_SUITE_H
#define GMS_TESTS_VMM_SUITE_H

#include "unit_support.h"

#include "vmm/vmm.h"

/* What is tested, and two granules of it: what most cases use. */
extern const struct gms_vmm *vmm;
extern uint64_t size;
extern struct gms_error error;

/* What an address allows now, found out by whoever knows. */
typedef enum gms_vmm_access (*vmm_suite_look)(const void *address);

/* Runs it all; the number of failures. */
int vmm_suite_run(const char *name, const struct gms_vmm *subject, vmm_suite_look look);

/* First thing in main: a child's role, if argv says so; then the process ends here. */
void vmm_suite_role(int argc, char *argv[], const struct gms_vmm *subject);

/* Helpers for what one implementation alone can show. */
struct gms_vmm_handle vmm_make(const char *label);
unsigned char *vmm_reserve(uint64_t bytes);
void vmm_fill(void *address, int byte, uint64_t bytes);
int vmm_byte(const void *address);
/* Starts this program again in a role; `fd` (-1: none) is its descriptor 100. */
pid_t vmm_start_role(const char *role, int fd);

#endif
