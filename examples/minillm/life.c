/* SPDX-License-Identifier: Apache-2.0 */
#include "life.h"

#include "adopt.h"
#include "kv_gms.h"
#include "log.h"

#include <gms/engine.h>

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct gms_part_of_engine {
    gms_session *session;   /* owned */
    gms_pool *weights, *kv; /* borrowed from the session */
};

enum {
    /* Counted, not timed: every rank sees the same outcome of a collective call, so all give up together. */
    AGAIN_ATTEMPTS = 300,
    AGAIN_PAUSE_US = 200000,
    DISCONNECTED_LIMIT_S = 120, /* a parked engine without a coordinator ends after this long */
};

static int failed(const char *call, gms_status status, const struct gms_error *error)
{
    note(NOTE_ERROR, "%s: %s: %s", call, gms_status_name(status), error->text);
    return gms_status_is_fatal_to_engine(status) ? EXIT_CONDEMNED : EXIT_RUN_FAILED;
}

static int open_session(struct engine *e)
{
    struct gms_part_of_engine *g = e->gms;
    const char *rank_text = getenv("GMS_RANK");
    if (rank_text != NULL && strtol(rank_text, NULL, 10) != (long)ranks_rank(e->ranks)) {
        note(NOTE_ERROR, "GMS_RANK is %s but the MPI rank is %" PRIu32 "; start both with the same ranks", rank_text,
             ranks_rank(e->ranks));
        return EXIT_RUN_FAILED;
    }
    char launch[64] = "";
    if (getenv("GMS_LAUNCH_ID") == NULL) {
        snprintf(launch, sizeof launch, "minillm-%d-%" PRIu64, (int)getpid(), monotonic_ns());
        ranks_broadcast(e->ranks, launch, sizeof launch);
    }
    struct gms_open_options options = {
        .rank = (int32_t)ranks_rank(e->ranks), .engine_id = -1, .launch = launch[0] != 0 ? launch : NULL};
    struct gms_error error;
    gms_status status = gms_open(&options, &g->session, &error);
    return status == GMS_OK ? 0 : failed("gms_open", status, &error);
}

static int join(struct engine *e)
{
    const struct model_config *m = &e->options.model;
    char model[192], layout[96];
    snprintf(model, sizeof model,
             "minillm layers=%" PRIu32 " width=%" PRIu32 " heads=%" PRIu32 "/%" PRIu32 " mlp=%" PRIu32 " vocab=%" PRIu32
             " seed=%" PRIu64,
             m->layers, m->width, m->heads, m->kv_heads, m->mlp, m->vocabulary, m->seed);
    snprintf(layout, sizeof layout, "layer,k|v,token,head,dim tp=%" PRIu32, m->world_size);
    struct gms_identity identity = {.model = model,
                                    .dtype = "f32",
                                    .layout = layout,
                                    .hash_algorithm = "xxh3-128-chain",
                                    .engine_name = "minillm",
                                    .engine_version = "1",
                                    .hash_seed = e->options.hash_seed,
                                    .block_tokens = m->block_tokens,
                                    .world_size = m->world_size};
    struct gms_membership membership;
    struct gms_error error;
    gms_status status = GMS_E_AGAIN;
    for (int attempt = 0; status == GMS_E_AGAIN && attempt < AGAIN_ATTEMPTS; attempt++) {
        if (attempt > 0)
            usleep(AGAIN_PAUSE_US);
        status = gms_join(e->gms->session, &identity, &membership, &error);
    }
    if (status != GMS_OK)
        return failed("gms_join", status, &error);
    e->engine_id = membership.engine_id;
    e->incarnation = membership.incarnation;
    return 0;
}

static int attach(struct engine *e, const struct gms_pool_description *description, gms_pool **ret_pool)
{
    struct gms_error error;
    gms_status status = GMS_E_AGAIN;
    for (int attempt = 0; status == GMS_E_AGAIN && attempt < AGAIN_ATTEMPTS; attempt++) {
        if (attempt > 0)
            usleep(AGAIN_PAUSE_US);
        status = gms_pool_attach(e->gms->session, description, ret_pool, &error);
    }
    if (status == GMS_OK && gms_pool_on_device(*ret_pool) && getenv("MINILLM_DEVICE_IS_HOST") == NULL) {
        note(NOTE_ERROR, "pool %s is memory of a GPU, and minillm computes on the CPU: let memory.backend be host",
             description->name);
        return -1;
    }
    if (status == GMS_OK)
        return 0;
    note(NOTE_ERROR, "pool %s cannot be attached", description->name);
    return failed("gms_pool_attach", status, &error);
}

/* As many as the group's budget for kv has room for, which is the same number on every rank. */
static int slots_of_budget(struct engine *e, uint64_t block_bytes)
{
    struct gms_error error;
    uint64_t bytes = 0;
    gms_status status = GMS_E_AGAIN;
    for (int attempt = 0; status == GMS_E_AGAIN && attempt < AGAIN_ATTEMPTS; attempt++) {
        if (attempt > 0)
            usleep(AGAIN_PAUSE_US);
        status = gms_kv_budget(e->gms->session, &bytes, &error);
    }
    if (status != GMS_OK)
        return failed("gms_kv_budget", status, &error);
    e->options.slots = bytes / block_bytes > MOST_SLOTS ? MOST_SLOTS : (uint32_t)(bytes / block_bytes);
    note(NOTE_INFO, "the budget for kv is %" PRIu64 " bytes: %" PRIu32 " slots", bytes, e->options.slots);
    return 0;
}

static int publish(struct engine *e)
{
    const struct model_config *m = &e->options.model;
    struct gms_error error;
    model_generate(m, e->weights);
    for (uint32_t i = 0; i < model_tensor_count(m); i++) {
        struct model_tensor t = model_tensor_at(m, i);
        gms_status status = gms_manifest_add(e->gms->weights, t.name, t.offset_bytes, t.bytes, &error);
        if (status != GMS_OK)
            return failed("gms_manifest_add", status, &error);
    }
    gms_status status = gms_publish(e->gms->weights, &error);
    return status == GMS_OK ? 0 : failed("gms_publish", status, &error);
}

/* Somebody else published: the tensors must lie where this program expects them. */
static int check_manifest(struct engine *e)
{
    const struct model_config *m = &e->options.model;
    for (uint32_t i = 0; i < model_tensor_count(m); i++) {
        struct model_tensor t = model_tensor_at(m, i);
        uint64_t offset = 0, bytes = 0;
        struct gms_error error;
        gms_status status = gms_manifest_find(e->gms->weights, t.name, &offset, &bytes, &error);
        if (status != GMS_OK)
            return failed("gms_manifest_find", status, &error);
        if (offset != t.offset_bytes || bytes != t.bytes) {
            note(NOTE_ERROR, "published tensor %s lies at %" PRIu64 " with %" PRIu64 " bytes, expected at %zu with %zu",
                 t.name, offset, bytes, t.offset_bytes, t.bytes);
            return EXIT_RUN_FAILED;
        }
    }
    return 0;
}

int life_begin(struct engine *e)
{
    e->gms = calloc(1, sizeof *e->gms);
    if (e->gms == NULL)
        return EXIT_RUN_FAILED;
    int code = open_session(e);
    if (code == 0)
        code = join(e);
    if (code != 0)
        return code;
    const struct kv_geometry geometry = model_kv_geometry(&e->options.model);
    struct gms_pool_description weights = {
        .name = "weights", .kind = GMS_POOL_WEIGHTS, .bytes = model_shard_bytes(&e->options.model)};
    struct gms_pool_description kv = {.name = "kv", .kind = GMS_POOL_KV, .block_bytes = kv_block_bytes(&geometry)};
    code = attach(e, &weights, &e->gms->weights);
    if (code != 0)
        return code;
    e->weights = gms_pool_address(e->gms->weights);
    code = gms_pool_must_publish(e->gms->weights) ? publish(e) : check_manifest(e);
    if (code == 0 && e->options.slots == 0)
        code = slots_of_budget(e, kv.block_bytes);
    kv.slot_count = e->options.slots;
    if (code == 0)
        code = attach(e, &kv, &e->gms->kv);
    if (code != 0)
        return code;
    if (kv_gms_open(&e->kv, e->gms->session, e->gms->kv, &geometry) != 0) {
        note(NOTE_ERROR, "out of memory for %" PRIu32 " slots", e->options.slots);
        return EXIT_RUN_FAILED;
    }
    return 0;
}

/* Blocks until promoted. Polls the session's descriptor so that a request to end is heard too. */
static int wait_promotion(struct engine *e, struct gms_promotion *ret_promotion)
{
    uint64_t disconnected_since = 0;
    for (;;) {
        struct gms_error error;
        gms_status status = gms_wait_promotion(e->gms->session, 0, ret_promotion, &error);
        if (status == GMS_OK)
            return 0;
        if (status == GMS_E_DISCONNECTED) {
            if (disconnected_since == 0) {
                disconnected_since = monotonic_ns();
                note(NOTE_WARNING, "parked without a coordinator; waiting up to %d s for it", DISCONNECTED_LIMIT_S);
            }
            if (monotonic_ns() - disconnected_since > DISCONNECTED_LIMIT_S * UINT64_C(1000000000))
                return failed("gms_wait_promotion", status, &error);
        } else if (status == GMS_E_TIMEOUT) {
            disconnected_since = 0;
        } else {
            return failed("gms_wait_promotion", status, &error);
        }
        struct pollfd fds[2] = {{.fd = e->options.signal_fd, .events = POLLIN},
                                {.fd = gms_event_fd(e->gms->session), .events = POLLIN}};
        /* Without a coordinator the descriptor may be readable for ever; do not spin on it. The long limit otherwise is
         * only a net under a lost wake-up. */
        if (disconnected_since != 0)
            fds[1].fd = -1;
        if (poll(fds, 2, disconnected_since != 0 ? 200 : 10000) > 0 && fds[0].revents != 0) {
            note(NOTE_INFO, "asked to end while parked");
            return EXIT_ASKED_TO_END;
        }
    }
}

/* For drills: what a stray writer would do to a sealed page. Values of the scale of real K and V. */
static void poison(struct engine *e)
{
    const struct engine_options *o = &e->options;
    if (o->poison_rank == POISON_NOWHERE ||
        (o->poison_rank != POISON_EVERY_RANK && (uint32_t)o->poison_rank != o->model.rank))
        return;
    const bool tails = o->poison_slot == POISON_TAILS, every = o->poison_slot == POISON_EVERY_SLOT || tails;
    uint32_t overwritten = 0;
    for (uint32_t slot = every ? 0 : o->poison_slot; slot < (every ? o->slots : o->poison_slot + 1); slot++) {
        if (tails && gms_slot_state(e->gms->kv, slot, NULL) != GMS_SLOT_QUARANTINED)
            continue;
        float *page = kv_plane(e->kv.base, &e->kv.geometry, slot, 0);
        adopt_poison_page(page, kv_block_bytes(&e->kv.geometry) / sizeof *page);
        overwritten++;
    }
    note(NOTE_WARNING, "%" PRIu32 " slots were overwritten on request (--poison)", overwritten);
}

/* For drills: --die-after. */
static void step_done(const struct engine *e, enum waking_step step)
{
    const struct engine_options *o = &e->options;
    if (o->die_after == step && step != WAKING_NONE && o->die_rank == o->model.rank)
        ending_come(ENDING_SIGKILL);
}

static int collect(struct engine *e, struct adopted_slot *slots)
{
    gms_pool *pool = e->gms->kv;
    uint32_t cursor = 0, index = gms_pool_index(pool);
    struct gms_block block;
    gms_status status;
    while ((status = gms_sealed_next(pool, &cursor, &block)) == GMS_OK) {
        const struct gms_part *part = &block.parts[0];
        if (block.part_count != 1 || part->pool != index || part->slot >= e->kv.slot_count ||
            block.token_count != e->kv.geometry.block_tokens)
            continue; /* not of this program's making; it stays out of use */
        struct adopted_slot *slot = &slots[part->slot];
        slot->use = ADOPTED_SEALED;
        memcpy(slot->hash.bytes, block.hash, sizeof slot->hash.bytes);
        memcpy(slot->parent.bytes, block.parent_hash, sizeof slot->parent.bytes);
        e->kv.generation[part->slot] = part->generation;
        e->kv.lease[part->slot] = KV_SEALED;
    }
    if (status != GMS_E_NOT_FOUND) {
        note(NOTE_ERROR, "gms_sealed_next: %s", gms_status_name(status));
        return gms_status_is_fatal_to_engine(status) ? EXIT_CONDEMNED : EXIT_RUN_FAILED;
    }
    for (uint32_t i = 0; i < e->kv.slot_count; i++)
        if (slots[i].use != ADOPTED_SEALED && gms_slot_state(pool, i, NULL) == GMS_SLOT_IDLE)
            slots[i].use = ADOPTED_IDLE;
    return 0;
}

/* Blocks that the predecessor had begun: what all ranks have of them is taken up when a request comes that fits. */
static int take_tails(struct engine *e)
{
    const struct prefix_tail *tails = NULL;
    uint32_t count = 0;
    if (e->options.no_salvage)
        return 0;
    if (kv_gms_take_tails(&e->kv, &tails, &count) != 0) {
        note(NOTE_ERROR, "out of memory for the blocks that the predecessor had begun");
        return EXIT_RUN_FAILED;
    }
    const bool equal = adopt_tails_agree(e->ranks, tails, count);
    for (uint32_t i = 0; equal && e->prefix != NULL && i < count; i++)
        prefix_keep_tail(e->prefix, &tails[i]);
    event_log("tails count=%" PRIu32, equal ? count : 0);
    return 0;
}

int life_take_over(struct engine *e)
{
    struct gms_error error;
    gms_status status = gms_park(e->gms->session, &error);
    if (status != GMS_OK)
        return failed("gms_park", status, &error);
    event_log("parked");
    struct gms_promotion promotion;
    int code = wait_promotion(e, &promotion);
    if (code != 0)
        return code;
    e->epoch = promotion.epoch;
    event_log("promoted epoch=%" PRIu64, promotion.epoch);
    step_done(e, WAKING_PROMOTED);
    poison(e);
    struct gms_adoption adoption;
    status = gms_adopt(e->gms->session, &adoption, &error);
    if (status != GMS_OK)
        return failed("gms_adopt", status, &error);
    struct adopted_slot *slots = calloc(e->kv.slot_count, sizeof *slots);
    if (slots == NULL)
        return EXIT_RUN_FAILED;
    code = collect(e, slots);
    if (code == 0 && !adopt_agree(e->ranks, slots, e->kv.slot_count))
        code = EXIT_RUN_FAILED;
    if (code == 0 && ranks_rank(e->ranks) == 0) {
        e->prefix = adopt_build(slots, e->kv.slot_count, &e->adopted);
        code = e->prefix == NULL ? EXIT_RUN_FAILED : 0;
    }
    free(slots);
    if (code == 0)
        code = take_tails(e);
    if (code != 0)
        return code;
    event_log("adopted count=%" PRIu32, adoption.adopted);
    step_done(e, WAKING_ADOPTED);
    status = gms_wake(e->gms->session, &error);
    if (status != GMS_OK)
        return failed("gms_wake", status, &error);
    struct gms_tag_report tag;
    for (uint32_t i = 0; gms_tag_report(e->gms->session, i, &tag) == GMS_OK; i++)
        event_log("wake tag=%s bytes=%" PRIu64 " ns=%" PRIu64, tag.tag.name, tag.bytes, tag.wake_ns);
    event_log("woken");
    step_done(e, WAKING_WOKEN);
    return 0;
}

int life_serve(struct engine *e, const char *endpoint)
{
    struct gms_error error;
    gms_status status = gms_serve(e->gms->session, endpoint, &error);
    if (status != GMS_OK)
        return failed("gms_serve", status, &error);
    step_done(e, WAKING_SERVING);
    return 0;
}

int life_event_fd(const struct engine *e)
{
    return e->gms == NULL ? -1 : gms_event_fd(e->gms->session);
}

void life_work(struct engine *e, uint32_t requests)
{
    if (e->gms != NULL)
        gms_work(e->gms->session, requests);
}

int life_event(struct engine *e)
{
    struct gms_promotion promotion;
    struct gms_error error;
    gms_status status = gms_wait_promotion(e->gms->session, 0, &promotion, &error);
    /* Anything else, a lost coordinator included, does not stop the serving engine. */
    return gms_status_is_fatal_to_engine(status) ? failed("coordinator", status, &error) : 0;
}

bool life_asked_to_park(const struct engine *e)
{
    return e->gms != NULL && gms_asked_to_park(e->gms->session);
}

void life_end(struct engine *e)
{
    if (e->gms == NULL)
        return;
    gms_close(e->gms->session);
    free(e->gms);
    e->gms = NULL;
}
