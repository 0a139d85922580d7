/* SPDX-License-Identifier: Apache-2.0
 *
 * What coordinators ask of the keeper of their run directory. Blocking, each call bounded by 2 s; the keeper answers
 * from memory. Names: "world/<rank>", "pool/<name>/<rank>", "directory/<incarnation>/<pool>/<rank>",
 * "session/<incarnation>/<rank>".
 */
#ifndef GMS_KEEPER_CLIENT_H
#define GMS_KEEPER_CLIENT_H

#include "gms/status.h"

enum {
    GMS_KEEPER_NAME_BYTES = 192, /* terminating NUL included */
    GMS_KEEPER_META_BYTES = 4096,
};

struct gms_keeper_client {
    int fd;
    uint64_t world, token;
    uint32_t rank;
    uint32_t request_id;   /* of the last request; late replies to earlier ones are dropped */
    uint64_t keeper;       /* this start of the keeper */
    uint64_t mirror_world; /* what gms_keeper_mirror last said for this rank, whoever held it; 0: nothing, this keeper
                              is new to the rank */
    uint64_t mirror_round;
};

/* The newest world that this keeper has granted to any rank, 0 for none: a group that takes the greatest of all its
 * ranks' answers plus one has a world that every keeper accepts, whatever the clocks say. Needs no token. */
gms_status gms_keeper_newest_world(const char *run_dir, uint64_t *ret_world, struct gms_error *ret_error);

/*
 * Connects and takes the world token for `rank`: a newer world ends the older one's holder (by its pidfd, waited for)
 * before it is granted. The same process may ask again for its own world. Errors: DISCONNECTED (no keeper: how to start
 * one), FOREIGN_WORLD (the rank has been granted to a newer world, or another live process holds this one), TIMEOUT
 * (the older holder has not ended yet; ask again), DESCRIPTORS, INVALID.
 */
gms_status gms_keeper_connect(const char *run_dir, uint64_t world, uint32_t rank, uint32_t world_size,
                              struct gms_keeper_client *ret_client, struct gms_error *ret_error);
void gms_keeper_disconnect(struct gms_keeper_client *client);

/* Leaves a copy of `fd` (borrowed) and of `meta` with the keeper under `name`; replaces. Errors: STALE (our world is no
 * longer the holder), DESCRIPTORS (used and limit), INVALID (name or meta too long). */
gms_status gms_keeper_put(struct gms_keeper_client *client, const char *name, int fd, const void *meta,
                          uint32_t meta_bytes, struct gms_error *ret_error);
/* A descriptor owned by the caller, and its meta; *inout_meta_bytes is the room in ret_meta, then the meta's length.
 * Errors: NOT_FOUND, NO_CAPACITY (meta is longer than the room: both numbers), STALE. */
gms_status gms_keeper_get(struct gms_keeper_client *client, const char *name, int *ret_fd, void *ret_meta,
                          uint32_t *inout_meta_bytes, struct gms_error *ret_error);
gms_status gms_keeper_drop(struct gms_keeper_client *client, const char *name, struct gms_error *ret_error);
/* Names with this prefix in byte order, "NAME\0" repeated, into the caller's buffer. NO_CAPACITY: does not fit. */
gms_status gms_keeper_list(struct gms_keeper_client *client, const char *prefix, char *ret_names, uint32_t capacity,
                           uint32_t *ret_bytes, struct gms_error *ret_error);
/* Remembers that this rank's store has the state after round `round` of this world; 0: nothing of this world yet. What
 * depends on that state may be told only then: should the store be lost, the group knows by it whether anything is. */
gms_status gms_keeper_mirror(struct gms_keeper_client *client, uint64_t round, struct gms_error *ret_error);

#endif
