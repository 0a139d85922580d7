/* SPDX-License-Identifier: Apache-2.0
 *
 * Who maps a file, from /proc/PID/maps: of processes that this user may read and this PID namespace can see, and only
 * while they map it (a descriptor without a mapping is invisible). Evidence against somebody, never proof of nobody.
 */
#ifndef GMS_COORD_MAPS_H
#define GMS_COORD_MAPS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct gms_inode {
    dev_t device;
    ino_t inode;
};

/* False: `fd` cannot be asked. */
bool gms_inode_of(int fd, struct gms_inode *ret_inode);

enum gms_maps_access { GMS_MAPS_ANY, GMS_MAPS_WRITABLE };

/* Does `pid` map one of these files now? False too when it is gone or may not be read. */
bool gms_maps_has(pid_t pid, const struct gms_inode *inodes, size_t count, enum gms_maps_access access);

/* Calls `found` for every process but this one that maps one of these files; false from `found` ends the walk. Returns
 * how many were found. */
size_t gms_maps_each(const struct gms_inode *inodes, size_t count, enum gms_maps_access access,
                     bool (*found)(void *context, pid_t pid), void *context);

/* Is every thread of `pid` past the start of its exit (or the process gone)? It executes no user instruction then. */
bool gms_threads_exiting(pid_t pid);

#endif
