/* SPDX-License-Identifier: Apache-2.0
 *
 * The path of a token: steps and slots. No system call, no message, no allocation in this file.
 *
 * A slot released under a step that still runs waits in its pool's `pending` ring until gms_step_complete. The ring is
 * ordered by token, and an entry whose slot has been leased again in the meantime is dead: the generation tells.
 */
#include "libgms/session.h"

/* --------------------------------------------------------------------------------------------------- steps --- */

gms_token gms_step_begin(gms_session *session)
{
    const gms_token token = atomic_fetch_add_explicit(&session->steps_begun, 1, memory_order_acq_rel) + 1;
    gms_report_step_begun(session, token);
    return token;
}

static bool still_released(const struct gms_pool *pool, const struct gms_pending *entry, uint64_t *ret_generation)
{
    const gms_slot_word word = gms_directory_word(&pool->directory, entry->slot);
    *ret_generation = gms_slot_word_generation(word);
    return gms_slot_word_state(word) == GMS_SLOT_RELEASED && (uint32_t)*ret_generation == entry->generation_low;
}

/* Under slots_lock. */
static void drain(struct gms_pool *pool, uint64_t completed)
{
    while (pool->pending_count > 0) {
        const struct gms_pending *entry = &pool->pending[pool->pending_head & pool->pending_mask];
        if (entry->token > completed)
            return;
        uint64_t generation;
        if (still_released(pool, entry, &generation))
            (void)gms_directory_fence_passed(&pool->directory, entry->slot, generation);
        pool->pending_head++;
        pool->pending_count--;
    }
    pool->pending_head = 0; /* so that its first pages, warm, are all that is ever touched as a rule */
}

/* Under slots_lock. One slot has one generation, so at most slot_count entries are alive, half the ring. */
static void sweep_dead(struct gms_pool *pool)
{
    uint64_t kept = 0;
    for (uint64_t i = 0; i < pool->pending_count; i++) {
        const struct gms_pending entry = pool->pending[(pool->pending_head + i) & pool->pending_mask];
        uint64_t generation;
        if (still_released(pool, &entry, &generation))
            pool->pending[(pool->pending_head + kept++) & pool->pending_mask] = entry;
    }
    pool->pending_count = kept;
}

/* Under slots_lock. Tokens nearly always come in order; one that does not moves up past the later ones. */
static void append(struct gms_pool *pool, struct gms_pending entry)
{
    if (pool->pending_count > pool->pending_mask)
        sweep_dead(pool);
    uint64_t place = pool->pending_count++;
    for (; place > 0; place--) {
        const struct gms_pending *before = &pool->pending[(pool->pending_head + place - 1) & pool->pending_mask];
        if (before->token <= entry.token)
            break;
        pool->pending[(pool->pending_head + place) & pool->pending_mask] = *before;
    }
    pool->pending[(pool->pending_head + place) & pool->pending_mask] = entry;
}

void gms_step_complete(gms_session *session, gms_token token)
{
    const uint64_t begun = atomic_load_explicit(&session->steps_begun, memory_order_acquire);
    if (token > begun)
        token = begun; /* what was never begun cannot be complete */
    uint64_t completed = atomic_load_explicit(&session->steps_completed, memory_order_acquire);
    while (completed < token && !atomic_compare_exchange_weak_explicit(&session->steps_completed, &completed, token,
                                                                       memory_order_acq_rel, memory_order_acquire))
        ;
    if (completed < token)
        completed = token;
    gms_report_step_completed(session, completed);
    gms_spin_lock(&session->slots_lock);
    for (uint32_t i = 0; i < GMS_MAX_POOLS; i++)
        if (session->directories[i] != NULL)
            drain(session->pools[i], completed);
    gms_spin_unlock(&session->slots_lock);
}

bool gms_step_is_done(const struct gms_session *session, gms_token token)
{
    return token <= atomic_load_explicit(&session->steps_completed, memory_order_acquire);
}

/* --------------------------------------------------------------------------------------------------- slots --- */

static gms_status gate(const struct gms_session *session)
{
    return (gms_status)atomic_load_explicit(&session->gate, memory_order_acquire);
}

gms_status gms_slot_acquire(gms_pool *pool, uint32_t slot, uint64_t *ret_generation)
{
    gms_status status = gate(pool->session);
    if (status != GMS_OK)
        return status;
    if (pool->description.kind != GMS_POOL_KV)
        return GMS_E_INVALID;
    const gms_status acquired = gms_directory_acquire(&pool->directory, slot, ret_generation);
    atomic_thread_fence(memory_order_release); /* whoever reads what is written there from now on, and then looks at the
                                                * word, sees that it was leased (gms_tail_salvage) */
    return acquired;
}

gms_status gms_slot_release(gms_pool *pool, uint32_t slot, uint64_t generation, gms_token token)
{
    struct gms_session *session = pool->session;
    const gms_status status = gate(session);
    if (status != GMS_OK && status != GMS_E_CONDEMNED) /* giving back is allowed to the end */
        return status;
    if (pool->description.kind != GMS_POOL_KV || slot >= pool->description.slot_count ||
        generation > GMS_SLOT_GENERATION_MAX ||
        token > atomic_load_explicit(&session->steps_begun, memory_order_acquire))
        return GMS_E_INVALID;
    /* Out of the index first: a lookup must not offer what is about to be handed out again. */
    if (gms_directory_word(&pool->directory, slot) == gms_slot_word_make(GMS_SLOT_SEALED, generation)) {
        gms_spin_lock(&session->slots_lock);
        gms_blocks_remove(session, pool->index, slot);
        gms_spin_unlock(&session->slots_lock);
    }
    const gms_status released = gms_directory_release(&pool->directory, slot, generation);
    if (released != GMS_OK)
        return released;
    if (gms_step_is_done(session, token)) {
        (void)gms_directory_fence_passed(&pool->directory, slot, generation);
        return GMS_OK;
    }
    gms_spin_lock(&session->slots_lock);
    /* Looked at again under the lock: the step may have been completed, and the ring drained, since. */
    if (gms_step_is_done(session, token))
        (void)gms_directory_fence_passed(&pool->directory, slot, generation);
    else
        append(pool, (struct gms_pending){.token = token, .slot = slot, .generation_low = (uint32_t)generation});
    gms_spin_unlock(&session->slots_lock);
    return GMS_OK;
}

enum gms_slot_state gms_slot_state(const gms_pool *pool, uint32_t slot, uint64_t *ret_generation)
{
    if (pool->description.kind != GMS_POOL_KV || slot >= pool->description.slot_count) {
        if (ret_generation != NULL)
            *ret_generation = 0;
        return GMS_SLOT_RETIRED; /* never to be had */
    }
    const gms_slot_word word = gms_directory_word(&pool->directory, slot);
    if (ret_generation != NULL)
        *ret_generation = gms_slot_word_generation(word);
    return gms_slot_word_state(word);
}

void gms_slot_states(const gms_pool *pool, uint32_t first, uint32_t count, uint8_t *ret_states)
{
    const uint32_t slots = pool->description.kind == GMS_POOL_KV ? pool->description.slot_count : 0;
    for (uint32_t i = 0; i < count; i++)
        ret_states[i] = first < slots && i < slots - first
                            ? (uint8_t)gms_slot_word_state(gms_directory_word(&pool->directory, first + i))
                            : (uint8_t)GMS_SLOT_RETIRED;
}

static bool parts_in_range(const struct gms_session *session, const struct gms_block *block)
{
    if (block->part_count < 1 || block->part_count > GMS_RECORD_PARTS)
        return false;
    for (uint32_t i = 0; i < block->part_count; i++) {
        const struct gms_part *part = &block->parts[i];
        if (part->pool >= GMS_MAX_POOLS || session->directories[part->pool] == NULL ||
            part->slot >= session->directories[part->pool]->slot_count)
            return false;
    }
    return true;
}

gms_status gms_block_seal(gms_session *session, const struct gms_block *block, gms_token token)
{
    gms_status status = gate(session);
    if (status != GMS_OK)
        return status;
    if (!parts_in_range(session, block))
        return GMS_E_INVALID;
    if (!gms_step_is_done(session, token))
        return GMS_E_NOT_DONE;
    uint64_t content = 0;
    if (session->kv_verify_full) {
        struct gms_record_part parts[GMS_RECORD_PARTS];
        for (uint32_t i = 0; i < block->part_count; i++)
            parts[i] = (struct gms_record_part){.pool = block->parts[i].pool, .slot = block->parts[i].slot};
        content = gms_content_digest(session, parts, block->part_count);
    }
    status = gms_directory_seal(session->directories, block, content);
    if (status != GMS_OK)
        return status;
    gms_spin_lock(&session->slots_lock);
    gms_blocks_insert(session, block->parts[0].pool, block->parts[0].slot, block->hash);
    gms_spin_unlock(&session->slots_lock);
    return GMS_OK;
}
