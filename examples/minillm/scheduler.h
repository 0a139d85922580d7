/* SPDX-License-Identifier: Apache-2.0
 *
 * Continuous batching on rank 0: which tokens are computed in the next step, in which slots.
 *
 * A request waits (first come, first served) until every block it can ever need is free or evictable, so a running
 * sequence is never preempted. Each step takes one token of every decoding sequence, then chunks of prompts up to the
 * chunk size. At least the last token of a prompt is computed, whatever is cached. Behind its cached blocks a sequence
 * takes up what a dead engine has left of the next one, if its tokens are the same. A block that two sequences filled
 * with the same tokens is kept once.
 *
 *   WAITING --admit--> RUNNING (prefill, then decode) --> done, or cancelled at any time
 *
 * Knows neither MPI nor sockets. Not thread-safe.
 */
#ifndef MINILLM_SCHEDULER_H
#define MINILLM_SCHEDULER_H

#include "plan.h"
#include "prefix.h"

#include <stdbool.h>
#include <stdint.h>

struct scheduler_options {
    uint32_t block_tokens, context_tokens, vocabulary;
    uint32_t max_batch;    /* sequences that run at once */
    uint32_t chunk_tokens; /* rows of one step, unless more sequences decode */
    uint32_t max_waiting;  /* requests that may wait */
    uint64_t hash_seed;
    bool notes; /* say how far blocks have come after each step */
    bool moody; /* no request gets the seed that it asks for, and none the same twice: an engine that is not exact */
};

enum { SCHEDULER_REASON_LENGTH = 0 };

/* Where the KV of a request's prompt came from. */
struct scheduler_usage {
    uint32_t prompt_tokens, cached_tokens, salvaged_tokens, computed_tokens;
};

/* What happens to a request. Called from scheduler_finish only; must not call back into the scheduler. */
struct scheduler_sink {
    void (*token)(void *context, void *owner, uint32_t index, uint32_t token);
    /* The sequence is gone when this returns. prompt = prompt + re-sent tokens = cached + salvaged + computed. */
    void (*done)(void *context, void *owner, const struct scheduler_usage *usage);
    void *context;
};

/* Copied by scheduler_submit. `generated` is what the client has already; max_tokens counts it too. */
struct scheduler_request {
    const uint32_t *prompt, *generated;
    uint32_t prompt_count, generated_count, max_tokens;
    double temperature;
    uint64_t seed;
    void *owner; /* borrowed, given to the sink */
};

struct scheduler_stats {
    uint32_t sealed, active, waiting, idle, quarantined, adopted;
    uint64_t steps;
};

struct scheduler; /* opaque */
struct sequence;  /* opaque; valid until done was told or it was cancelled */

/* `prefix` is borrowed and must outlive the scheduler. NULL when memory is short. */
struct scheduler *scheduler_open(const struct scheduler_options *options, struct prefix *prefix, uint32_t adopted,
                                 const struct scheduler_sink *sink);
void scheduler_close(struct scheduler *scheduler);

/* NULL with the reason in ret_text when the request is refused. */
struct sequence *scheduler_submit(struct scheduler *scheduler, const struct scheduler_request *request, char *ret_text,
                                  size_t text_bytes);
void scheduler_cancel(struct scheduler *scheduler, struct sequence *sequence);

/* Carried by the next plan. False when that plan carries as many as it can. */
bool scheduler_arm(struct scheduler *scheduler, struct plan_drill drill);

enum scheduler_outcome { SCHEDULER_IDLE = 0, SCHEDULER_PLANNED, SCHEDULER_NO_MEMORY };

/* Fills the next step. PLANNED: it must be executed and then finished; IDLE: there is nothing to do. */
enum scheduler_outcome scheduler_plan(struct scheduler *scheduler, struct plan *plan);
/* `logits` as step_execute gave them for that plan. Tells the sink. */
void scheduler_finish(struct scheduler *scheduler, const float *logits);

/* A slot that was excluded may be used from here on; false: it was not excluded. */
bool scheduler_include(struct scheduler *scheduler, uint32_t slot);

struct scheduler_stats scheduler_get_stats(const struct scheduler *scheduler);

#endif
