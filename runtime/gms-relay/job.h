/* SPDX-License-Identifier: Apache-2.0
 *
 * One request on its way: the client's connection, its life (request.h), the engine that has it, and what must be kept
 * to go on with it elsewhere. It answers and ends by itself; the owner of the list hears of it. Main thread only.
 */
#ifndef GMS_RELAY_JOB_H
#define GMS_RELAY_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "gms-relay/call.h"
#include "gms-relay/follow.h"
#include "gms-relay/metrics.h"
#include "gms-relay/options.h"
#include "gms-relay/request.h"
#include "gms-relay/server.h"
#include "gms-relay/upstream.h"

struct event_base;
struct relay_job;

/* What all jobs share. */
struct relay_jobs {
    struct event_base *base;
    const struct relay_options *options;
    struct relay_metrics *metrics;
    const struct relay_serving *(*serving)(void *context);
    /* A job has ended, or waits for an engine from `at_ns` on. */
    void (*changed)(void *context, uint64_t at_ns);
    void *context;
    struct relay_job *first, *last; /* in order of arrival */
    uint32_t count, running;        /* running: an engine has it */
};

struct relay_job {
    struct relay_job *next, *previous;
    struct relay_jobs *jobs;
    struct relay_connection *connection; /* NULL once it is answered */
    struct relay_request life;
    struct relay_call call; /* owned */
    char id[96];
    int64_t created;
    double temperature;
    uint64_t seed;

    struct relay_upstream *upstream;      /* owned; NULL: no engine has it */
    bool openai, verbatim, paused, begun; /* begun: the head of the stream has been sent */
    bool tokens_unknown;
    uint32_t *tokens, *prompt; /* owned: of the answer so far; of the prompt, as an OpenAI engine told */
    uint32_t token_capacity, prompt_count, sent_tokens;
    uint32_t said; /* OpenAI: tokens whose text has come; of later ones an engine keeps half a character to itself */
    struct relay_text text; /* of an answer that is sent whole */
    uint64_t lost_ns;       /* when its engine ended, until the next token */
};

/* Takes the call over. NULL: no memory (the call is freed). The job waits until relay_job_event is told SERVES. */
struct relay_job *relay_job_begin(struct relay_jobs *jobs, struct relay_connection *connection, struct relay_call *call,
                                  const char *id, uint64_t now_ns);
/* Applies an event and does what follows. True: the job is gone. */
bool relay_job_event(struct relay_job *job, const struct relay_event *event);
/* The client took what was written. */
void relay_job_drained(struct relay_job *job);
/* Time passed. True: the job is gone. */
bool relay_job_tick(struct relay_job *job, uint64_t now_ns);
/* Without a word to the client. */
void relay_job_cut(struct relay_job *job);

#endif
