/* SPDX-License-Identifier: Apache-2.0 */
#include "step.h"

#include "ending.h"
#include "log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

void step_executor_init(struct step_executor *e, struct model *model, struct kv_store *kv, uint32_t rank)
{
    *e = (struct step_executor){.model = model, .kv = kv, .rank = rank};
}

void step_executor_free(struct step_executor *e)
{
    free(e->rows);
    e->rows = NULL;
}

static void drill_pass(struct step_executor *e, enum drill_phase phase)
{
    if (e->drill.phase != (uint32_t)phase || ++e->drill_seen < e->drill.after)
        return;
    e->drill.phase = DRILL_NONE;
    ending_come((enum ending)e->drill.how);
}

struct layer_drill {
    struct step_executor *executor;
    bool prefill, decode;
};

/* "In the middle": half of the layers of this step are done, the rest is not. */
static void at_layer(void *context, uint32_t layer)
{
    struct layer_drill *d = context;
    if (layer != model_get_config(d->executor->model)->layers / 2)
        return;
    if (d->prefill)
        drill_pass(d->executor, DRILL_PREFILL);
    if (d->decode)
        drill_pass(d->executor, DRILL_DECODE);
}

static enum kv_status failed(struct kv_store *kv, const char *what, uint32_t slot)
{
    snprintf(kv->text, sizeof kv->text, "the plan %s slot %" PRIu32 ", whose state here does not allow it", what, slot);
    return KV_FAILED;
}

static struct kv_progress progress_of(const struct plan_progress *p)
{
    return (struct kv_progress){
        .slot = p->slot, .token_count = p->token_count, .hash = p->hash.bytes, .parent = p->parent.bytes};
}

/* Into a slot that was leased just now: the slot where it is left may be among those that are leased next. */
static enum kv_status salvage(struct step_executor *e, const struct plan_progress *p)
{
    struct kv_store *kv = e->kv;
    const struct kv_progress progress = progress_of(p);
    if (p->source >= kv->slot_count || p->token_count > kv->geometry.block_tokens)
        return failed(kv, "salvages into", p->slot);
    event_log("write slot=%" PRIu32 " generation=%" PRIu64, p->slot, kv->generation[p->slot]);
    kv->lease[p->slot] = KV_WRITTEN;
    const enum kv_status status = kv->backend->salvage(kv, p->source, &progress);
    if (status == KV_OK)
        event_log("salvage from=%" PRIu32 " into=%" PRIu32 " tokens=%" PRIu32, p->source, p->slot, p->token_count);
    return status;
}

static enum kv_status release_and_acquire(struct step_executor *e, const struct plan *plan)
{
    struct kv_store *kv = e->kv;
    uint32_t salvaged = 0;
    for (uint32_t i = 0; i < plan->header.release_count; i++) {
        uint32_t slot = plan->releases[i];
        if (slot >= kv->slot_count || kv->lease[slot] == KV_NOT_LEASED)
            return failed(kv, "releases", slot);
        enum kv_status status = kv->backend->release(kv, slot, kv->generation[slot], kv->last_token);
        if (status != KV_OK)
            return status;
        kv->lease[slot] = KV_NOT_LEASED;
    }
    for (uint32_t i = 0; i < plan->header.acquire_count; i++) {
        uint32_t slot = plan->acquires[i];
        if (slot >= kv->slot_count || kv->lease[slot] != KV_NOT_LEASED)
            return failed(kv, "acquires", slot);
        enum kv_status status = kv->backend->acquire(kv, slot, &kv->generation[slot]);
        if (status == KV_OK)
            kv->lease[slot] = KV_LEASED;
        if (status == KV_OK && salvaged < plan->header.salvage_count && plan->salvages[salvaged].slot == slot)
            status = salvage(e, &plan->salvages[salvaged++]);
        if (status != KV_OK)
            return status;
    }
    return salvaged == plan->header.salvage_count ? KV_OK : failed(kv, "salvages into", plan->salvages[salvaged].slot);
}

static enum kv_status note_progress(struct step_executor *e, const struct plan *plan)
{
    struct kv_store *kv = e->kv;
    for (uint32_t i = 0; i < plan->header.note_count; i++) {
        const struct kv_progress progress = progress_of(&plan->notes[i]);
        if (progress.slot >= kv->slot_count || kv->lease[progress.slot] != KV_WRITTEN)
            return failed(kv, "notes", progress.slot);
        const enum kv_status status = kv->backend->note(kv, &progress, kv->last_token);
        if (status != KV_OK)
            return status;
    }
    return KV_OK;
}

/* Translates the rows and announces first stores; refuses a store into a slot that this rank has not leased. */
static enum kv_status prepare_rows(struct step_executor *e, const struct plan *plan, struct layer_drill *drill)
{
    struct kv_store *kv = e->kv;
    if (plan->header.row_count > e->row_capacity) {
        struct model_row *grown = realloc(e->rows, plan->header.row_count * sizeof *grown);
        if (grown == NULL) {
            snprintf(kv->text, sizeof kv->text, "out of memory for %" PRIu32 " rows", plan->header.row_count);
            return KV_FAILED;
        }
        e->rows = grown;
        e->row_capacity = plan->header.row_count;
    }
    for (uint32_t i = 0; i < plan->header.row_count; i++) {
        const struct plan_row *row = &plan->rows[i];
        e->rows[i] = (struct model_row){.token = row->token,
                                        .position = row->position,
                                        .blocks = plan->blocks + row->first_block,
                                        .wants_logits = row->wants_logits};
        drill->decode |= row->is_decode != 0;
        drill->prefill |= row->is_decode == 0;
        uint32_t slot = e->rows[i].blocks[row->position / kv->geometry.block_tokens];
        if (slot >= kv->slot_count || (kv->lease[slot] != KV_LEASED && kv->lease[slot] != KV_WRITTEN))
            return failed(kv, "writes", slot);
        if (kv->lease[slot] == KV_LEASED) {
            event_log("write slot=%" PRIu32 " generation=%" PRIu64, slot, kv->generation[slot]);
            kv->lease[slot] = KV_WRITTEN;
        }
    }
    return KV_OK;
}

static enum kv_status seal(struct step_executor *e, const struct plan *plan)
{
    struct kv_store *kv = e->kv;
    for (uint32_t i = 0; i < plan->header.seal_count; i++) {
        const struct plan_seal *s = &plan->seals[i];
        drill_pass(e, DRILL_SEAL);
        if (s->slot >= kv->slot_count || kv->lease[s->slot] != KV_WRITTEN)
            return failed(kv, "seals", s->slot);
        enum kv_status status = kv->backend->seal(kv, s->slot, kv->generation[s->slot], kv->geometry.block_tokens,
                                                  s->hash.bytes, s->parent.bytes, kv->last_token);
        if (status != KV_OK)
            return status;
        kv->lease[s->slot] = KV_SEALED;
        char hex[2 * KV_HASH_BYTES + 1];
        for (uint32_t b = 0; b < KV_HASH_BYTES; b++)
            snprintf(hex + 2 * b, 3, "%02x", s->hash.bytes[b]);
        event_log("seal slot=%" PRIu32 " generation=%" PRIu64 " hash=%s", s->slot, kv->generation[s->slot], hex);
    }
    return KV_OK;
}

enum kv_status step_execute(struct step_executor *e, const struct plan *plan, const float **ret_logits)
{
    struct kv_store *kv = e->kv;
    *ret_logits = NULL;
    for (uint32_t i = 0; i < plan->header.drill_count; i++) {
        const struct plan_drill *drill = &plan->header.drills[i];
        if (drill->rank != DRILL_EVERY_RANK && drill->rank != e->rank)
            continue;
        e->drill = *drill;
        e->drill_seen = 0;
    }
    enum kv_status status = release_and_acquire(e, plan);
    if (status != KV_OK)
        return status;
    struct layer_drill passing = {.executor = e};
    status = prepare_rows(e, plan, &passing);
    if (status != KV_OK)
        return status;
    if (plan->header.row_count != 0) {
        uint64_t token = kv->backend->step_begin(kv);
        model_forward(e->model, e->rows, plan->header.row_count, kv->base, at_layer, &passing, ret_logits);
        kv->backend->step_complete(kv, token);
        kv->last_token = token;
        status = note_progress(e, plan);
        if (status == KV_OK)
            status = seal(e, plan);
        if (status != KV_OK)
            return status;
    }
    kv->backend->progress(kv);
    return KV_OK;
}
