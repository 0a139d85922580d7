/* SPDX-License-Identifier: Apache-2.0
 *
 * What /proc says about other processes: who maps or holds a file. Of
 * processes that this user may read and this PID namespace can see. Evidence against somebody, never proof of nobody
 * (loan.h has that).
 *
 * gms_maps_* that find nothing leave errno: EMFILE, ENFILE, ENOMEM where they could not look, EAGAIN where its threads
 * ended as fast as they were asked by, ESRCH where the process is gone or all its threads are past the start of their
 * exit.
 *
 * By its own number a process shows what its first thread has: nothing, and no error, once that has ended, though
 * others live on. They ask by another's number then, but for the functions that look in pieces.
 *
 * They may have to wait for a process that is stuck in the kernel with its address space locked (dead network
 * file system): the fence asks them in threads of its own.
 */
#ifndef GMS_COORD_MAPS_H
#define GMS_COORD_MAPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct gms_inode {
    dev_t device;
    ino_t inode;
};

/* Is this the errno of a look that could not be made? It says nothing about anybody then. */
bool gms_maps_unknown(int error);

/* False: `fd` cannot be asked. */
bool gms_inode_of(int fd, struct gms_inode *ret_inode);

/* SHARED: through which it could write, now or after mprotect. */
enum gms_maps_access { GMS_MAPS_ANY, GMS_MAPS_SHARED, GMS_MAPS_WRITABLE };

/* Does `pid` map one of these files now? False too when it is gone or may not be read. */
bool gms_maps_has(pid_t pid, const struct gms_inode *inodes, size_t count, enum gms_maps_access access);

/* The lowest index among `inodes` of a file that `pid` maps now; `count`: it maps none, is gone or may not be read. One
 * look, where asking for each would take many. */
size_t gms_maps_first(pid_t pid, const struct gms_inode *inodes, size_t count, enum gms_maps_access access);

/* The same in pieces, for several threads: of the mappings from address *inout_from up to `until`, `most` at most.
 * *inout_from: where to go on; `until`: nothing is left. (Before Linux 6.11 a piece is the whole.) A
 * mapping that is moved meanwhile may be missed, as with the whole. Where it leaves ESRCH, its first thread has no
 * address space (any more), and nothing that was seen in pieces before counts, descriptors neither: then the whole is
 * to be asked. Where it does not, its first thread had all its descriptors until then. */
size_t gms_maps_first_between(pid_t pid, const struct gms_inode *inodes, size_t count, enum gms_maps_access access,
                              size_t most, uint64_t *inout_from, uint64_t until);
/* An address between, from which on there is a mapping to be looked at before `until`. False: there is none, and
 * *ret_middle may be anything. */
bool gms_maps_split(pid_t pid, enum gms_maps_access access, uint64_t from, uint64_t until, uint64_t *ret_middle);

/* Calls `found` for every process but this one that maps one of these files; false from `found` ends the walk. Returns
 * how many were found. */
size_t gms_maps_each(const struct gms_inode *inodes, size_t count, enum gms_maps_access access,
                     bool (*found)(void *context, pid_t pid), void *context);

/* Has `pid` a descriptor that was lent to `incarnation` (loan.h), of one of these files? */
bool gms_maps_borrows(pid_t pid, const struct gms_inode *inodes, size_t count, uint64_t incarnation);

/* The same in pieces, for several threads: numbers are asked for, of which *ret_present (room for `numbers`) says which
 * were there when they were asked; in the end the others are looked at, as they are listed then: whatever lies further
 * on, and what has been given a free number meanwhile. (Only what goes to a number in use that was asked already is not
 * seen: as with the whole, in which that is any lower number.) */
bool gms_maps_borrows_numbers(pid_t pid, const struct gms_inode *inodes, size_t count, uint64_t incarnation, int from,
                              size_t numbers, bool *ret_present);
bool gms_maps_borrows_others(pid_t pid, const struct gms_inode *inodes, size_t count, uint64_t incarnation,
                             const bool *known, size_t known_count);
/* How many descriptors the first thread of `pid` has; 0: none, or it cannot be told (before Linux 6.2). */
size_t gms_maps_descriptors(pid_t pid);

/* Has `pid` a descriptor of one of these files, memory all of them, however it came by it? */
bool gms_maps_has_descriptor(pid_t pid, const struct gms_inode *inodes, size_t count);
/* May it be asked about the mappings of `pid`? errno says why not. */
bool gms_maps_may_be_read(pid_t pid);

#endif
