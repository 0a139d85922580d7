/* SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

void plan_clear(struct plan *plan)
{
    plan->header = (struct plan_header){.kind = PLAN_STEP};
}

void plan_free(struct plan *plan)
{
    free(plan->rows);
    free(plan->blocks);
    free(plan->acquires);
    free(plan->releases);
    free(plan->seals);
    free(plan->salvages);
    free(plan->notes);
    memset(plan, 0, sizeof *plan);
}

/* Room for `more` elements after `count`; returns the array (moved or not), NULL when memory is short. */
static void *reserve(void *array, uint32_t *capacity, uint32_t count, uint32_t more, size_t element_bytes)
{
    if (count + more <= *capacity && array != NULL)
        return array;
    uint32_t wanted = (count + more) * 2 + 16;
    void *grown = realloc(array, wanted * element_bytes);
    if (grown != NULL)
        *capacity = wanted;
    return grown;
}

#define RESERVE(plan, array, capacity, count, more)                                                                    \
    __extension__({                                                                                                    \
        void *grown_ = reserve((plan)->array, &(plan)->capacity, (count), (more), sizeof *(plan)->array);              \
        if (grown_ != NULL)                                                                                            \
            (plan)->array = grown_;                                                                                    \
        grown_ != NULL;                                                                                                \
    })

bool plan_add_row(struct plan *plan, struct plan_row row)
{
    if (!RESERVE(plan, rows, row_capacity, plan->header.row_count, 1))
        return false;
    plan->rows[plan->header.row_count++] = row;
    return true;
}

bool plan_add_blocks(struct plan *plan, const uint32_t *slots, uint32_t count)
{
    if (!RESERVE(plan, blocks, block_capacity, plan->header.block_count, count))
        return false;
    memcpy(plan->blocks + plan->header.block_count, slots, count * sizeof *slots);
    plan->header.block_count += count;
    return true;
}

bool plan_add_acquire(struct plan *plan, uint32_t slot)
{
    if (!RESERVE(plan, acquires, acquire_capacity, plan->header.acquire_count, 1))
        return false;
    plan->acquires[plan->header.acquire_count++] = slot;
    return true;
}

bool plan_add_release(struct plan *plan, uint32_t slot)
{
    if (!RESERVE(plan, releases, release_capacity, plan->header.release_count, 1))
        return false;
    plan->releases[plan->header.release_count++] = slot;
    return true;
}

bool plan_add_seal(struct plan *plan, const struct plan_seal *seal)
{
    if (!RESERVE(plan, seals, seal_capacity, plan->header.seal_count, 1))
        return false;
    plan->seals[plan->header.seal_count++] = *seal;
    return true;
}

bool plan_add_salvage(struct plan *plan, const struct plan_progress *salvage)
{
    if (!RESERVE(plan, salvages, salvage_capacity, plan->header.salvage_count, 1))
        return false;
    plan->salvages[plan->header.salvage_count++] = *salvage;
    return true;
}

bool plan_add_note(struct plan *plan, const struct plan_progress *note)
{
    if (!RESERVE(plan, notes, note_capacity, plan->header.note_count, 1))
        return false;
    plan->notes[plan->header.note_count++] = *note;
    return true;
}

size_t plan_payload_bytes(const struct plan_header *h)
{
    return h->row_count * sizeof(struct plan_row) + h->seal_count * sizeof(struct plan_seal) +
           ((size_t)h->salvage_count + h->note_count) * sizeof(struct plan_progress) +
           ((size_t)h->block_count + h->acquire_count + h->release_count) * sizeof(uint32_t);
}

static uint8_t *put(uint8_t *out, const void *from, size_t bytes)
{
    if (bytes == 0)
        return out; /* NULL, of an empty plan */
    memcpy(out, from, bytes);
    return out + bytes;
}

void plan_encode(const struct plan *plan, void *payload)
{
    const struct plan_header *h = &plan->header;
    uint8_t *out = payload;
    out = put(out, plan->rows, h->row_count * sizeof *plan->rows);
    out = put(out, plan->blocks, h->block_count * sizeof *plan->blocks);
    out = put(out, plan->acquires, h->acquire_count * sizeof *plan->acquires);
    out = put(out, plan->releases, h->release_count * sizeof *plan->releases);
    out = put(out, plan->seals, h->seal_count * sizeof *plan->seals);
    out = put(out, plan->salvages, h->salvage_count * sizeof *plan->salvages);
    put(out, plan->notes, h->note_count * sizeof *plan->notes);
}

static const uint8_t *take(const uint8_t *in, void *to, size_t bytes)
{
    if (bytes == 0)
        return in; /* NULL, of an empty plan */
    memcpy(to, in, bytes);
    return in + bytes;
}

bool plan_decode(struct plan *plan, const struct plan_header *h, const void *payload)
{
    if (!RESERVE(plan, rows, row_capacity, 0, h->row_count) ||
        !RESERVE(plan, blocks, block_capacity, 0, h->block_count) ||
        !RESERVE(plan, acquires, acquire_capacity, 0, h->acquire_count) ||
        !RESERVE(plan, releases, release_capacity, 0, h->release_count) ||
        !RESERVE(plan, seals, seal_capacity, 0, h->seal_count) ||
        !RESERVE(plan, salvages, salvage_capacity, 0, h->salvage_count) ||
        !RESERVE(plan, notes, note_capacity, 0, h->note_count))
        return false;
    plan->header = *h;
    const uint8_t *in = payload;
    in = take(in, plan->rows, h->row_count * sizeof *plan->rows);
    in = take(in, plan->blocks, h->block_count * sizeof *plan->blocks);
    in = take(in, plan->acquires, h->acquire_count * sizeof *plan->acquires);
    in = take(in, plan->releases, h->release_count * sizeof *plan->releases);
    in = take(in, plan->seals, h->seal_count * sizeof *plan->seals);
    in = take(in, plan->salvages, h->salvage_count * sizeof *plan->salvages);
    take(in, plan->notes, h->note_count * sizeof *plan->notes);
    return true;
}
