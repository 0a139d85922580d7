/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots that come back from quarantine while the engine serves. The coordinator tells of a slot when it is idle on
 * every rank; it may tell twice, so what counts is whether the slot was withheld when this engine adopted and has not
 * been handed on since.
 */
#include "libgms/session.h"

#include <stdlib.h>

static bool take_bit(uint8_t *bitmap, uint32_t slot)
{
    const uint8_t bit = (uint8_t)(1u << (slot % 8));
    const bool was = (bitmap[slot / 8] & bit) != 0;
    bitmap[slot / 8] &= (uint8_t)~bit;
    return was;
}

gms_status gms_returned_create(struct gms_session *session, struct gms_error *ret_error)
{
    for (uint32_t i = 0; i < GMS_MAX_POOLS; i++) {
        struct gms_pool *pool = session->pools[i];
        if (session->directories[i] == NULL || pool->withheld != NULL)
            continue;
        pool->withheld = calloc(2, (pool->description.slot_count + 7u) / 8);
        if (pool->withheld == NULL)
            return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the quarantine of pool %s",
                            pool->description.name);
        pool->returned = pool->withheld + (pool->description.slot_count + 7u) / 8;
    }
    return GMS_OK;
}

void gms_returned_begin(struct gms_session *session)
{
    for (uint32_t i = 0; i < GMS_MAX_POOLS; i++)
        for (uint32_t slot = 0; session->directories[i] != NULL && slot < session->directories[i]->slot_count; slot++)
            if (gms_slot_word_state(gms_directory_word(session->directories[i], slot)) == GMS_SLOT_QUARANTINED)
                session->pools[i]->withheld[slot / 8] |= (uint8_t)(1u << (slot % 8));
}

void gms_returned_file(struct gms_session *session, const struct gms_message *message)
{
    const uint32_t index = message->reclaimed.pool, first = message->reclaimed.first, slots = message->reclaimed.slots;
    const uint8_t *bitmap = message->reclaimed.bitmap.data;
    if (message->reclaimed.incarnation != session->incarnation || session->incarnation == 0 || !session->adopted ||
        index >= GMS_MAX_POOLS || session->directories[index] == NULL ||
        message->reclaimed.bitmap.length < ((uint64_t)slots + 7) / 8)
        return;
    struct gms_pool *pool = session->pools[index];
    for (uint32_t i = 0; i < slots && (uint64_t)first + i < pool->description.slot_count; i++) {
        const uint32_t slot = first + i;
        if ((bitmap[i / 8] >> (i % 8) & 1) == 0 ||
            gms_slot_word_state(gms_directory_word(&pool->directory, slot)) != GMS_SLOT_IDLE ||
            !take_bit(pool->withheld, slot))
            continue;
        pool->returned[slot / 8] |= (uint8_t)(1u << (slot % 8));
        pool->returned_count++;
        if (slot < pool->returned_next)
            pool->returned_next = slot;
    }
}

gms_status gms_returned_next(gms_pool *pool, uint32_t *ret_slot)
{
    while (pool->returned_count > 0 && pool->returned_next < pool->description.slot_count) {
        const uint32_t slot = pool->returned_next++;
        if (!take_bit(pool->returned, slot))
            continue;
        pool->returned_count--;
        *ret_slot = slot;
        return GMS_OK;
    }
    pool->returned_next = UINT32_MAX; /* the next that is told begins anew */
    return GMS_E_NOT_FOUND;
}
