/* SPDX-License-Identifier: Apache-2.0 */
#include "adopt.h"

#include "log.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Chained over the sealed slots in order. */
static XXH128_canonical_t sealed_digest(const struct adopted_slot *slots, uint32_t slot_count)
{
    struct {
        XXH128_canonical_t before;
        struct block_hash hash;
        uint32_t slot;
    } link = {0};
    for (uint32_t i = 0; i < slot_count; i++)
        if (slots[i].use == ADOPTED_SEALED) {
            link.hash = slots[i].hash;
            link.slot = i;
            XXH128_canonicalFromHash(&link.before, XXH3_128bits(&link, sizeof link));
        }
    return link.before;
}

bool adopt_agree(struct ranks *ranks, struct adopted_slot *slots, uint32_t slot_count)
{
    /* The least of a digest and the least of its complement meet only if all ranks have the same. */
    XXH128_canonical_t digest = sealed_digest(slots, slot_count);
    const size_t size = sizeof digest.digest;
    uint8_t *votes = calloc(2 * size + slot_count, 1);
    uint8_t fine = votes != NULL;
    ranks_least_bytes(ranks, &fine, 1);
    if (!fine) {
        free(votes);
        note(NOTE_ERROR, "out of memory on a rank while the ranks compared adopted slots");
        return false;
    }
    for (size_t i = 0; i < size; i++) {
        votes[i] = digest.digest[i];
        votes[size + i] = (uint8_t)~digest.digest[i];
    }
    for (uint32_t i = 0; i < slot_count; i++)
        votes[2 * size + i] = slots[i].use != ADOPTED_UNUSABLE;
    ranks_least_bytes(ranks, votes, 2 * size + slot_count);
    bool equal = true;
    for (size_t i = 0; i < size; i++)
        equal &= votes[i] + votes[size + i] == UINT8_MAX;
    for (uint32_t i = 0; i < slot_count; i++)
        if (!votes[2 * size + i])
            slots[i].use = ADOPTED_UNUSABLE;
    free(votes);
    if (!equal)
        note(NOTE_ERROR, "the ranks were given different adopted blocks; this engine may not serve from them");
    return equal;
}

bool adopt_tails_agree(struct ranks *ranks, const struct prefix_tail *tails, uint32_t count)
{
    XXH128_canonical_t digest;
    uint8_t votes[2 * sizeof digest.digest];
    const size_t size = sizeof digest.digest;
    bool equal = true;
    XXH128_canonicalFromHash(&digest, XXH3_128bits(count != 0 ? (const void *)tails : "", count * sizeof *tails));
    for (size_t i = 0; i < size; i++) {
        votes[i] = digest.digest[i];
        votes[size + i] = (uint8_t)~digest.digest[i];
    }
    ranks_least_bytes(ranks, votes, sizeof votes);
    for (size_t i = 0; i < size; i++)
        equal &= votes[i] + votes[size + i] == UINT8_MAX;
    if (!equal)
        note(NOTE_WARNING, "the ranks were given different unfinished blocks; all of them are computed again");
    return equal;
}

enum { DEPTH_UNKNOWN = 0 };
#define DEPTH_BROKEN UINT32_MAX

static const struct block_hash no_block;

/* Distance from the start of the chain (first block: 1). Walks down to a known depth, then back up. */
static uint32_t find_depth(const struct adopted_slot *slots, const struct prefix *prefix, uint32_t *depths,
                           uint32_t *path, uint32_t slot_count, uint32_t slot)
{
    uint32_t length = 0, depth = DEPTH_UNKNOWN;
    while (depth == DEPTH_UNKNOWN) {
        path[length++] = slot;
        if (memcmp(&slots[slot].parent, &no_block, sizeof no_block) == 0) {
            depth = 0;
            break;
        }
        slot = prefix_find(prefix, &slots[slot].parent);
        /* A ring cannot be a chain of hashes, but what was read from shared memory is not trusted to end. */
        depth = slot == PREFIX_NONE || length == slot_count ? DEPTH_BROKEN : depths[slot];
    }
    while (length > 0) {
        depth = depth == DEPTH_BROKEN ? depth : depth + 1;
        depths[path[--length]] = depth;
    }
    return depth;
}

struct order {
    uint32_t slot, depth;
};

static int deepest_first(const void *a, const void *b)
{
    const struct order *x = a, *y = b;
    if (x->depth != y->depth)
        return x->depth < y->depth ? 1 : -1;
    return x->slot < y->slot ? -1 : 1;
}

struct prefix *adopt_build(const struct adopted_slot *slots, uint32_t slot_count, uint32_t *ret_adopted)
{
    struct prefix *prefix = prefix_open(slot_count);
    uint32_t *depths = calloc(slot_count, sizeof *depths), *path = calloc(slot_count + 1, sizeof *path);
    struct order *order = calloc(slot_count, sizeof *order);
    uint32_t count = 0;
    if (prefix == NULL || depths == NULL || path == NULL || order == NULL) {
        prefix_close(prefix);
        prefix = NULL;
        goto out;
    }
    for (uint32_t i = 0; i < slot_count; i++) {
        if (slots[i].use == ADOPTED_UNUSABLE)
            prefix_exclude(prefix, i);
        else if (slots[i].use == ADOPTED_SEALED && prefix_adopt(prefix, i, &slots[i].hash))
            order[count++].slot = i;
        else if (slots[i].use == ADOPTED_SEALED)
            prefix_exclude(prefix, i); /* a second copy of a block */
    }
    for (uint32_t i = 0; i < count; i++)
        order[i].depth = find_depth(slots, prefix, depths, path, slot_count, order[i].slot);
    qsort(order, count, sizeof *order, deepest_first);
    for (uint32_t i = 0; i < count; i++) { /* in use and out again: each becomes the newest in turn */
        prefix_reference(prefix, order[i].slot);
        prefix_unreference(prefix, order[i].slot);
    }
    *ret_adopted = count;
out:
    free(order);
    free(depths);
    free(path);
    return prefix;
}

void adopt_poison_page(float *page, size_t count)
{
    uint64_t state = 0x5eed;
    for (size_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        page[i] = ((float)(state >> 40) * 0x1p-24f - 0.5f) * 4.0f;
    }
}
