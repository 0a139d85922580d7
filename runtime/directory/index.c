/* SPDX-License-Identifier: Apache-2.0 */
#include "directory/index.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "directory/layout.h"

gms_status gms_directory_index_create(uint32_t slot_count, struct gms_directory_index **ret_index,
                                      struct gms_error *ret_error)
{
    struct gms_directory_index *index = calloc(1, sizeof *index);
    if (index != NULL) {
        index->slot_count = slot_count;
        index->seen = malloc(sizeof *index->seen * ((size_t)slot_count + 1));
        index->flags = calloc((size_t)slot_count + 1, 1);
        index->digests = calloc((size_t)slot_count + 1, sizeof *index->digests);
    }
    if (index == NULL || index->seen == NULL || index->flags == NULL || index->digests == NULL) {
        gms_directory_index_free(index);
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for an index of %" PRIu32 " slots", slot_count);
    }
    memset(index->seen, 0xff, sizeof *index->seen * ((size_t)slot_count + 1));
    *ret_index = index;
    return GMS_OK;
}

void gms_directory_index_free(struct gms_directory_index *index)
{
    if (index == NULL)
        return;
    free(index->seen);
    free(index->flags);
    free(index->digests);
    free(index);
}

static bool same_peer(const struct gms_index_peer *peer, const struct gms_directory *directory)
{
    return peer->base == directory->base && peer->incarnation == directory->geometry.incarnation;
}

static struct gms_index_peer peer_of(const struct gms_directory *directory)
{
    return (struct gms_index_peer){.base = directory->base, .incarnation = directory->geometry.incarnation};
}

/* Forgets what no longer fits the files that the caller names now. */
static void meet_peers(struct gms_directory_index *index, const struct gms_directory *source,
                       const struct gms_directory *into)
{
    if (!same_peer(&index->source, source)) {
        memset(index->seen, 0xff, sizeof *index->seen * index->slot_count);
        memset(index->flags, 0, index->slot_count);
        index->spanning = 0;
        index->source = peer_of(source);
    }
    if (into == NULL) { /* what is looked at now is copied nowhere, so a later successor needs all of it */
        index->into = (struct gms_index_peer){0};
        return;
    }
    if (same_peer(&index->into, into))
        return;
    for (uint32_t slot = 0; slot < index->slot_count; slot++)
        if ((index->flags[slot] & GMS_INDEX_VALID) != 0)
            index->seen[slot] = GMS_INDEX_UNSEEN;
    index->into = peer_of(into);
}

static void look(struct gms_directory_index *index, const struct gms_directory *source, uint32_t slot,
                 gms_slot_word word, const struct gms_directory *into)
{
    index->spanning -= (index->flags[slot] & GMS_INDEX_SPANS) != 0;
    index->flags[slot] = 0;
    index->seen[slot] = word;
    if (gms_slot_word_state(word) != GMS_SLOT_SEALED)
        return;
    struct gms_record record;
    gms_directory_copy_record_out(source, slot, &record);
    if (gms_directory_word(source, slot) != word) { /* moved while we copied: look again next time */
        index->seen[slot] = GMS_INDEX_UNSEEN;
        return;
    }
    if (!gms_record_plausible(&record, source->geometry.identity_digest, source->geometry.pool, slot,
                              gms_slot_word_generation(word)))
        return;
    index->flags[slot] = (uint8_t)(GMS_INDEX_VALID | (record.part_count > 1 ? GMS_INDEX_SPANS : 0));
    index->spanning += record.part_count > 1;
    index->digests[slot] = gms_record_comparable_digest(&record);
    if (into != NULL)
        gms_directory_copy_record_in(into, slot, &record);
}

uint32_t gms_directory_index_refresh(struct gms_directory_index *index,
                                     struct gms_directory *const source[GMS_MAX_POOLS], uint32_t pool,
                                     struct gms_directory *into)
{
    if (pool >= GMS_MAX_POOLS || source[pool] == NULL || source[pool]->slot_count != index->slot_count)
        return 0;
    if (into != NULL && (into->slot_count != index->slot_count || !gms_directory_compatible(source[pool], into)))
        into = NULL;
    meet_peers(index, source[pool], into);
    uint32_t looked_at = 0;
    const _Atomic gms_slot_word *words = gms_directory_words(source[pool]);
    for (uint32_t slot = 0; slot < index->slot_count; slot++) {
        const gms_slot_word word = atomic_load_explicit(&words[slot], memory_order_acquire);
        if (word == index->seen[slot])
            continue;
        look(index, source[pool], slot, word, into);
        looked_at++;
    }
    return looked_at;
}
