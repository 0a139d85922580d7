/* SPDX-License-Identifier: Apache-2.0
 *
 * What coordinators ask of the keeper of their run directory. Blocking, each call bounded by 2 s; the keeper answers
 * from memory. Names: "world/<rank>", "pool/<name>/<rank>", "directory/<incarnation>/<pool>/<rank>",
 * "session/<incarnation>/<rank>".
 */
#ifndef GMS_KEEPER_CLIENT_H
#define GMS_KEEPER_CLIENT_H

#include "gms/status.h"

struct gms_keeper_client {
    int fd;
    uint64_t world, token;
    uint32_t rank;
};

/*
 * Connects and takes the world token for `rank`: a newer world ends the older one's holder (by its pidfd, waited for)
 * before it is granted. Errors: DISCONNECTED (no keeper: how to start one), FOREIGN_WORLD (a newer world holds it),
 * TIMEOUT.
 */
gms_status gms_keeper_connect(const char *run_dir, uint64_t world, uint32_t rank, uint32_t world_size,
                              struct gms_keeper_client *ret_client, struct gms_error *ret_error);
void gms_keeper_disconnect(struct gms_keeper_client *client);

/* Leaves a copy of `fd` (borrowed) and of `meta` with the keeper under `name`; replaces. STALE: our world is no longer
 * the holder. */
gms_status gms_keeper_put(struct gms_keeper_client *client, const char *name, int fd, const void *meta,
                          uint32_t meta_bytes, struct gms_error *ret_error);
/* A descriptor owned by the caller, and up to *inout_meta_bytes of meta. NOT_FOUND. */
gms_status gms_keeper_get(struct gms_keeper_client *client, const char *name, int *ret_fd, void *ret_meta,
                          uint32_t *inout_meta_bytes, struct gms_error *ret_error);
gms_status gms_keeper_drop(struct gms_keeper_client *client, const char *name, struct gms_error *ret_error);
/* Names with this prefix, "NAME\0" repeated, into the caller's buffer. */
gms_status gms_keeper_list(struct gms_keeper_client *client, const char *prefix, char *ret_names, uint32_t capacity,
                           uint32_t *ret_bytes, struct gms_error *ret_error);
/* Remembers that this rank's store reached record `number` in this world. */
gms_status gms_keeper_mirror(struct gms_keeper_client *client, uint64_t number, struct gms_error *ret_error);

#endif
