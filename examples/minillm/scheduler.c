/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler.h"

#include "sample.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sequence {
    struct sequence *next, *previous;
    void *owner;
    double temperature;
    uint64_t seed;
    uint32_t prompt_count, resent_count, max_tokens;
    uint32_t token_count; /* known: prompt + generated */
    uint32_t computed;    /* of these, K and V are in blocks */
    uint32_t full_blocks; /* of these blocks, sealed or given to be */
    uint32_t cached_tokens, salvaged_tokens;
    uint32_t block_count, block_limit; /* in hand; ever needed */
    uint32_t step_rows;                /* in the step that is out */
    bool running, decoding, wants_logits;
    uint32_t *tokens, *blocks;
    uint8_t *shared;           /* per block: cached and referenced, not private */
    struct block_hash *hashes; /* per full block */
};

struct list {
    struct sequence *first, *last;
    uint32_t count;
};

/* A block that becomes full in the step that is out. */
struct full_block {
    struct sequence *sequence;
    uint32_t index;
    bool sealed; /* else: the same block is cached or sealed by another sequence in this step */
};

struct scheduler {
    struct scheduler_options options;
    uint64_t moods; /* requests so far, moody */
    struct scheduler_sink sink;
    struct prefix *prefix;
    uint32_t adopted, reserved; /* reserved: blocks promised to running sequences and not yet allocated */
    uint32_t usable;            /* slots that are not excluded */
    uint64_t steps;
    struct list waiting, running;
    struct plan_drill drills[PLAN_DRILLS]; /* for the next plan */
    uint32_t drill_count;
    uint32_t *releases; /* for the next plan */
    uint32_t release_count, release_capacity;
    struct full_block *full;
    uint32_t full_count, full_capacity;
};

static void list_append(struct list *list, struct sequence *s)
{
    s->next = NULL;
    s->previous = list->last;
    if (list->last == NULL)
        list->first = s;
    else
        list->last->next = s;
    list->last = s;
    list->count++;
}

static void list_remove(struct list *list, struct sequence *s)
{
    if (s->previous == NULL)
        list->first = s->next;
    else
        s->previous->next = s->next;
    if (s->next == NULL)
        list->last = s->previous;
    else
        s->next->previous = s->previous;
    list->count--;
}

struct scheduler *scheduler_open(const struct scheduler_options *options, struct prefix *prefix, uint32_t adopted,
                                 const struct scheduler_sink *sink)
{
    struct scheduler *s = calloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    s->options = *options;
    s->sink = *sink;
    s->prefix = prefix;
    s->adopted = adopted;
    struct prefix_counts counts = prefix_count(prefix);
    s->usable = counts.free + counts.cached;
    /* Every usable slot can wait for its release at most once. */
    s->release_capacity = s->usable + counts.excluded + 1;
    s->releases = calloc(s->release_capacity, sizeof *s->releases);
    uint32_t rows = options->chunk_tokens > options->max_batch ? options->chunk_tokens : options->max_batch;
    s->full_capacity = rows + options->max_batch; /* one that was salvaged is sealed with what follows */
    s->full = calloc(s->full_capacity, sizeof *s->full);
    if (s->releases == NULL || s->full == NULL) {
        scheduler_close(s);
        return NULL;
    }
    return s;
}

static void sequence_free(struct sequence *q)
{
    free(q->tokens);
    free(q->blocks);
    free(q->shared);
    free(q->hashes);
    free(q);
}

void scheduler_close(struct scheduler *s)
{
    if (s == NULL)
        return;
    struct list *lists[] = {&s->waiting, &s->running};
    for (size_t i = 0; i < 2; i++)
        while (lists[i]->first != NULL) {
            struct sequence *q = lists[i]->first;
            list_remove(lists[i], q);
            sequence_free(q);
        }
    free(s->releases);
    free(s->full);
    free(s);
}

/* ------------------------------------------------------------------------------------------------ requests ---- */

__attribute__((format(printf, 3, 4))) static bool refused(char *text, size_t bytes, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, bytes, format, arguments);
    va_end(arguments);
    return true;
}

static bool refuse(const struct scheduler *s, const struct scheduler_request *r, char *text, size_t bytes)
{
    const struct scheduler_options *o = &s->options;
    if (r->prompt_count == 0)
        return refused(text, bytes, "prompt is empty; it must have at least one token");
    if (r->max_tokens == 0)
        return refused(text, bytes, "max_tokens is 0; it must be at least 1");
    if (r->generated_count > r->max_tokens)
        return refused(text, bytes, "generated has %" PRIu32 " tokens, more than max_tokens %" PRIu32,
                       r->generated_count, r->max_tokens);
    if (r->prompt_count > o->context_tokens || r->max_tokens > o->context_tokens - r->prompt_count)
        return refused(text, bytes,
                       "prompt of %" PRIu32 " and max_tokens of %" PRIu32 " exceed the context of %" PRIu32
                       " tokens; shorten one",
                       r->prompt_count, r->max_tokens, o->context_tokens);
    uint32_t blocks = (r->prompt_count + r->max_tokens + o->block_tokens - 1) / o->block_tokens;
    if (blocks > s->usable)
        return refused(text, bytes, "request needs %" PRIu32 " KV slots, this engine has %" PRIu32, blocks, s->usable);
    if (s->waiting.count >= o->max_waiting)
        return refused(text, bytes, "queue is full (%" PRIu32 " requests wait); ask again later", s->waiting.count);
    return false;
}

struct sequence *scheduler_submit(struct scheduler *s, const struct scheduler_request *r, char *ret_text,
                                  size_t text_bytes)
{
    if (refuse(s, r, ret_text, text_bytes))
        return NULL;
    const uint32_t limit = r->prompt_count + r->max_tokens;
    const uint32_t blocks = (limit + s->options.block_tokens - 1) / s->options.block_tokens;
    struct sequence *q = calloc(1, sizeof *q);
    if (q == NULL)
        goto no_memory;
    *q = (struct sequence){.owner = r->owner,
                           .temperature = r->temperature,
                           .seed = r->seed + (s->options.moody ? ++s->moods : 0),
                           .prompt_count = r->prompt_count,
                           .resent_count = r->generated_count,
                           .max_tokens = r->max_tokens,
                           .token_count = r->prompt_count + r->generated_count,
                           .block_limit = blocks};
    q->tokens = calloc(limit, sizeof *q->tokens);
    q->blocks = calloc(blocks, sizeof *q->blocks);
    q->shared = calloc(blocks, sizeof *q->shared);
    q->hashes = calloc(blocks, sizeof *q->hashes);
    if (q->tokens == NULL || q->blocks == NULL || q->shared == NULL || q->hashes == NULL)
        goto no_memory;
    memcpy(q->tokens, r->prompt, r->prompt_count * sizeof *q->tokens);
    if (r->generated_count != 0)
        memcpy(q->tokens + r->prompt_count, r->generated, r->generated_count * sizeof *q->tokens);
    list_append(&s->waiting, q);
    return q;
no_memory:
    if (q != NULL)
        sequence_free(q);
    snprintf(ret_text, text_bytes, "out of memory for this request");
    return NULL;
}

/* Takes a sequence out. Its last blocks become the oldest: a prefix is worth more than its tail. */
static void retire(struct scheduler *s, struct sequence *q)
{
    for (uint32_t i = q->block_count; i-- > 0;) {
        if (q->shared[i]) {
            prefix_unreference(s->prefix, q->blocks[i]);
        } else {
            prefix_free(s->prefix, q->blocks[i]);
            s->releases[s->release_count++] = q->blocks[i];
        }
    }
    if (q->running)
        s->reserved -= q->block_limit - q->block_count;
    list_remove(q->running ? &s->running : &s->waiting, q);
    sequence_free(q);
}

void scheduler_cancel(struct scheduler *s, struct sequence *sequence)
{
    retire(s, sequence);
}

bool scheduler_arm(struct scheduler *s, struct plan_drill drill)
{
    if (s->drill_count == PLAN_DRILLS)
        return false;
    s->drills[s->drill_count++] = drill;
    return true;
}

/* ------------------------------------------------------------------------------------------------ planning ---- */

static const struct block_hash no_parent;

static const struct block_hash *parent_of(const struct sequence *q, uint32_t block)
{
    return block == 0 ? &no_parent : &q->hashes[block - 1];
}

static void hash_block(const struct scheduler *s, struct sequence *q, uint32_t block)
{
    q->hashes[block] = prefix_hash(parent_of(q, block), q->tokens + (size_t)block * s->options.block_tokens,
                                   s->options.block_tokens, s->options.hash_seed);
}

/* Blocks for all positions up to `end`. */
static bool extend(struct scheduler *s, struct sequence *q, uint32_t end, struct plan *plan)
{
    while (q->block_count * s->options.block_tokens < end) {
        bool evicted;
        uint32_t slot = prefix_allocate(s->prefix, &evicted);
        if (slot == PREFIX_NONE || (evicted && !plan_add_release(plan, slot)) || !plan_add_acquire(plan, slot))
            return false;
        q->shared[q->block_count] = 0;
        q->blocks[q->block_count++] = slot;
        s->reserved--;
    }
    return true;
}

/* Takes up what a dead engine has left of the block behind the cached ones. False: memory is short. At once, because
 * the slot where it is left may be handed out next. */
static bool take_up_tail(struct scheduler *s, struct sequence *q, struct plan *plan)
{
    const uint32_t size = s->options.block_tokens, block = q->block_count;
    const uint32_t left = q->token_count - 1 - q->computed;
    struct prefix_tail_hit found;
    if (!prefix_find_tail(s->prefix, parent_of(q, block), q->tokens + q->computed, left < size ? left : size,
                          s->options.hash_seed, &found))
        return true;
    if (!extend(s, q, q->computed + 1, plan))
        return false;
    if (q->blocks[block] == found.slot) /* the very slot was the next to be had */
        return true;
    const struct plan_progress salvage = {.slot = q->blocks[block],
                                          .token_count = found.token_count,
                                          .source = found.slot,
                                          .hash = found.hash,
                                          .parent = *parent_of(q, block)};
    if (!plan_add_salvage(plan, &salvage))
        return false;
    q->computed += found.token_count;
    q->salvaged_tokens = found.token_count;
    return true;
}

/* Moves the first waiting sequence to the running ones if all it may need is there. */
static bool admit(struct scheduler *s, struct plan *plan, bool *ret_no_memory)
{
    struct sequence *q = s->waiting.first;
    if (q == NULL || s->running.count >= s->options.max_batch)
        return false;
    uint32_t hits = 0, revived = 0;
    for (; hits < (q->token_count - 1) / s->options.block_tokens; hits++) {
        hash_block(s, q, hits);
        uint32_t slot = prefix_find(s->prefix, &q->hashes[hits]);
        if (slot == PREFIX_NONE)
            break;
        q->blocks[hits] = slot;
        revived += prefix_references(s->prefix, slot) == 0;
    }
    struct prefix_counts counts = prefix_count(s->prefix);
    uint32_t needed = q->block_limit - hits;
    if (needed + revived > counts.free + counts.evictable - s->reserved)
        return false;
    for (uint32_t i = 0; i < hits; i++) {
        prefix_reference(s->prefix, q->blocks[i]);
        q->shared[i] = 1;
    }
    q->block_count = hits;
    q->computed = q->cached_tokens = hits * s->options.block_tokens;
    q->full_blocks = hits;
    s->reserved += needed;
    list_remove(&s->waiting, q);
    q->running = true;
    list_append(&s->running, q);
    *ret_no_memory = !take_up_tail(s, q, plan);
    return !*ret_no_memory;
}

static bool sealed_in_plan(const struct plan *plan, const struct block_hash *hash)
{
    for (uint32_t i = 0; i < plan->header.seal_count; i++)
        if (memcmp(&plan->seals[i].hash, hash, sizeof *hash) == 0)
            return true;
    return false;
}

/* The block with the last position of this step: begun, or full and not sealed yet. */
static bool note_last_block(const struct scheduler *s, const struct sequence *q, uint32_t end, struct plan *plan)
{
    const uint32_t size = s->options.block_tokens, block = (end - 1) / size, count = end - block * size;
    struct plan_progress note = {.slot = q->blocks[block], .token_count = count, .parent = *parent_of(q, block)};
    note.hash = count == size
                    ? q->hashes[block]
                    : prefix_hash(&note.parent, q->tokens + (size_t)block * size, count, s->options.hash_seed);
    return plan_add_note(plan, &note);
}

/* The next `count` tokens of one sequence. */
static bool plan_tokens(struct scheduler *s, struct sequence *q, uint32_t count, struct plan *plan)
{
    const uint32_t size = s->options.block_tokens, end = q->computed + count;
    if (!extend(s, q, end, plan))
        return false;
    const uint32_t first_block = plan->header.block_count;
    if (!plan_add_blocks(plan, q->blocks, q->block_count))
        return false;
    q->step_rows = count;
    q->wants_logits = end == q->token_count && q->token_count - q->prompt_count < q->max_tokens;
    for (uint32_t p = q->computed; p < end; p++) {
        struct plan_row row = {.token = q->tokens[p],
                               .position = p,
                               .first_block = first_block,
                               .wants_logits = q->wants_logits && p + 1 == end,
                               .is_decode = q->decoding};
        if (!plan_add_row(plan, row))
            return false;
    }
    for (; q->full_blocks < end / size; q->full_blocks++) {
        const uint32_t block = q->full_blocks;
        hash_block(s, q, block);
        bool known =
            prefix_find(s->prefix, &q->hashes[block]) != PREFIX_NONE || sealed_in_plan(plan, &q->hashes[block]);
        struct plan_seal seal = {q->blocks[block], q->hashes[block], *parent_of(q, block)};
        if (!known && !plan_add_seal(plan, &seal))
            return false;
        s->full[s->full_count++] = (struct full_block){q, block, !known};
    }
    return !s->options.notes || note_last_block(s, q, end, plan);
}

enum scheduler_outcome scheduler_plan(struct scheduler *s, struct plan *plan)
{
    plan_clear(plan);
    s->full_count = 0;
    for (uint32_t i = 0; i < s->release_count; i++)
        if (!plan_add_release(plan, s->releases[i]))
            return SCHEDULER_NO_MEMORY;
    s->release_count = 0;
    memcpy(plan->header.drills, s->drills, sizeof s->drills);
    plan->header.drill_count = s->drill_count;
    s->drill_count = 0;
    bool no_memory = false;
    while (admit(s, plan, &no_memory))
        continue;
    if (no_memory)
        return SCHEDULER_NO_MEMORY;
    for (struct sequence *q = s->running.first; q != NULL; q = q->next) {
        q->step_rows = 0;
        if (q->decoding && !plan_tokens(s, q, 1, plan))
            return SCHEDULER_NO_MEMORY;
    }
    for (struct sequence *q = s->running.first; q != NULL; q = q->next) {
        if (q->decoding || plan->header.row_count >= s->options.chunk_tokens)
            continue;
        uint32_t room = s->options.chunk_tokens - plan->header.row_count, left = q->token_count - q->computed;
        if (!plan_tokens(s, q, left < room ? left : room, plan))
            return SCHEDULER_NO_MEMORY;
    }
    if (plan->header.row_count == 0 && plan->header.release_count == 0 && plan->header.drill_count == 0)
        return SCHEDULER_IDLE;
    plan->header.step = ++s->steps;
    return SCHEDULER_PLANNED;
}

/* Full blocks enter the cache; one that is there already replaces ours (their contents are bit-equal). */
static void keep_full_blocks(struct scheduler *s)
{
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < s->full_count; i++) {
            struct sequence *q = s->full[i].sequence;
            uint32_t index = s->full[i].index, own = q->blocks[index];
            if (s->full[i].sealed && pass == 0)
                q->shared[index] = prefix_publish(s->prefix, own, &q->hashes[index]);
            if (s->full[i].sealed || pass == 0)
                continue;
            uint32_t slot = prefix_find(s->prefix, &q->hashes[index]);
            if (slot == PREFIX_NONE)
                continue; /* evicted by this very step: ours stays private */
            prefix_reference(s->prefix, slot);
            q->blocks[index] = slot;
            q->shared[index] = 1;
            prefix_free(s->prefix, own);
            s->releases[s->release_count++] = own;
        }
    s->full_count = 0;
}

void scheduler_finish(struct scheduler *s, const float *logits)
{
    keep_full_blocks(s);
    /* Rows that want logits were planned in two passes, decoding sequences first; walk them in the same order. */
    for (uint32_t pass = 0; pass < 2; pass++) {
        struct sequence *next;
        for (struct sequence *q = s->running.first; q != NULL; q = next) {
            next = q->next;
            if (q->step_rows == 0 || q->decoding != (pass == 0))
                continue;
            q->computed += q->step_rows;
            q->step_rows = 0;
            if (q->wants_logits) {
                uint32_t index = q->token_count - q->prompt_count;
                uint32_t token = sample_token(logits, s->options.vocabulary, q->temperature, q->seed, index);
                logits += s->options.vocabulary;
                q->wants_logits = false;
                q->tokens[q->token_count++] = token;
                s->sink.token(s->sink.context, q->owner, index, token);
            } else if (q->computed < q->token_count) {
                continue; /* the prompt goes on in the next step */
            }
            if (q->token_count - q->prompt_count < q->max_tokens) {
                /* Set only for the next step; pass 1 must not meet it again as a decoding one: step_rows is 0. */
                q->decoding = true;
                continue;
            }
            struct scheduler_usage usage = {.prompt_tokens = q->prompt_count + q->resent_count,
                                            .cached_tokens = q->cached_tokens,
                                            .salvaged_tokens = q->salvaged_tokens};
            usage.computed_tokens = usage.prompt_tokens - usage.cached_tokens - usage.salvaged_tokens;
            s->sink.done(s->sink.context, q->owner, &usage);
            retire(s, q);
        }
    }
}

bool scheduler_include(struct scheduler *s, uint32_t slot)
{
    if (!prefix_include(s->prefix, slot))
        return false;
    s->usable++;
    return true;
}

struct scheduler_stats scheduler_get_stats(const struct scheduler *s)
{
    struct prefix_counts counts = prefix_count(s->prefix);
    return (struct scheduler_stats){.sealed = counts.cached,
                                    .active = s->running.count,
                                    .waiting = s->waiting.count,
                                    .idle = counts.free,
                                    .quarantined = counts.excluded,
                                    .adopted = s->adopted,
                                    .steps = s->steps};
}
