/* SPDX-License-Identifier: Apache-2.0
 *
 * What index.c keeps for classify.c: this folder only.
 */
#ifndef GMS_DIRECTORY_INDEX_H
#define GMS_DIRECTORY_INDEX_H

#include "directory/directory.h"

enum {
    GMS_INDEX_VALID = 1u << 0, /* a plausible record for `seen` was copied out (and into the successor, if any) */
    GMS_INDEX_SPANS = 1u << 1, /* it has more than one part */
};

/* Not a word that the table can make: forces a look. */
#define GMS_INDEX_UNSEEN UINT64_MAX

/* One mapping of one file, for noticing that the caller means another one now. */
struct gms_index_peer {
    const void *base;
    uint64_t incarnation;
};

struct gms_directory_index {
    uint32_t slot_count;
    struct gms_index_peer source, into;
    gms_slot_word *seen;
    uint8_t *flags;
    uint32_t *digests; /* of valid ones: what bulk_vectors would say of the record */
    uint32_t spanning; /* how many slots have GMS_INDEX_SPANS */
};

/* Of what every rank must have equal in a record; never 0. */
uint32_t gms_record_comparable_digest(const struct gms_record *record);

/* May records of `source` be read by the owner of `into`? */
static inline bool gms_directory_compatible(const struct gms_directory *source, const struct gms_directory *into)
{
    return source->geometry.identity_digest == into->geometry.identity_digest &&
           source->geometry.block_bytes == into->geometry.block_bytes && source->geometry.pool == into->geometry.pool;
}

#endif
