/* SPDX-License-Identifier: Apache-2.0
 *
 * The named descriptors that a keeper holds, in byte order of their names. Memory outlives its users because these are
 * open. Not thread-safe.
 */
#ifndef GMS_KEEPER_SHELF_H
#define GMS_KEEPER_SHELF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gms/status.h"
#include "wire/message.h"

struct shelf_item {
    char *name; /* owned, NUL-terminated */
    void *meta; /* owned; NULL when empty */
    uint32_t meta_bytes;
    int fd; /* owned */
};

struct shelf {
    struct shelf_item *items; /* owned, sorted by name */
    size_t count, capacity;
};

/* 1 to GMS_KEEPER_NAME_BYTES - 1 bytes, each a visible ASCII character. */
gms_status shelf_check_name(struct gms_bytes name, struct gms_error *ret_error);

/* Puts `fd` under `name`, in place of what was there. Takes ownership of `fd` on success; name and meta are copied.
 * Errors: NO_MEMORY; then nothing changed. */
gms_status shelf_put(struct shelf *shelf, struct gms_bytes name, int fd, struct gms_bytes meta,
                     struct gms_error *ret_error);
/* NULL when there is none. Borrowed until the shelf changes. */
const struct shelf_item *shelf_find(const struct shelf *shelf, struct gms_bytes name);
/* Closes and forgets; false when there was none. */
bool shelf_drop(struct shelf *shelf, struct gms_bytes name);
/* Names that begin with `prefix` and come after `after`, "NAME\0" repeated, as many as fit; *ret_more: not all did. */
uint32_t shelf_list(const struct shelf *shelf, struct gms_bytes prefix, struct gms_bytes after, char *ret_names,
                    uint32_t capacity, bool *ret_more);
void shelf_clear(struct shelf *shelf);

#endif
