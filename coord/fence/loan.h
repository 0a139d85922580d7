/* SPDX-License-Identifier: Apache-2.0
 *
 * Loans: how memory is given to an incarnation so that its return can be seen.
 *
 * Every incarnation gets an open file description of its own of a file (a KV pool, a directory). The description
 * carries a read lock on the byte whose offset is the incarnation. Descriptors made from it (dup, fork, SCM_RIGHTS,
 * also one that lies in a socket and was never received) and mappings made through it keep the description, and with it
 * the lock; the kernel drops the lock with the last of them. So one fcntl tells whether anybody can still reach the
 * file through what the incarnation was given: a process that nobody knows of included, across restarts of the
 * coordinators, and without reading about anybody else.
 *
 * What it does not see: a file opened anew through /proc/PID/fd. Then `gms_loan_is_out` may say false while the process
 * that did so still has the file. That takes the permission to trace the engine, and so to write into any other's
 * memory: README.md says what follows.
 */
#ifndef GMS_COORD_LOAN_H
#define GMS_COORD_LOAN_H

#include <stdbool.h>
#include <stdint.h>

#include "gms/status.h"

/* Host memory can be lent. A GPU's cannot: its descriptors name a device, and opening that anew is another thing. */
bool gms_loan_possible(int fd);

/* *ret_fd: to be sent to the incarnation and closed; a copy kept here would be a holder. `fd` stays the caller's.
 * Errors: DESCRIPTORS, SYSTEM; UNSUPPORTED: what it is cannot be lent. */
gms_status gms_loan_give(int fd, uint64_t incarnation, int *ret_fd, struct gms_error *ret_error);

/* Does anybody have a descriptor or a mapping of what was lent to `incarnation`? `fd`: any other descriptor of the
 * file. True too where it cannot be asked: unknown is never gone. */
bool gms_loan_is_out(int fd, uint64_t incarnation);

#endif
