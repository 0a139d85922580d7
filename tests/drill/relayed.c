/* SPDX-License-Identifier: Apache-2.0 */
#include "relayed.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "http_streams.h"
#include "relay_program.h"

enum { POLL_MS = 5, GRACE_MS = 2000 };

struct drill_relayed {
    struct drill_deployment *deployment;   /* borrowed */
    const struct drill_requests *requests; /* borrowed */
    void (*meanwhile)(void *context);
    void *context;
    struct drill_process *process;
    uint16_t port;
    uint32_t count;

    pthread_t thread;
    bool running; /* the thread */
    _Atomic bool stop;
    pthread_mutex_t lock; /* over all below */
    struct http_streams streams;
    char *controls[DRILL_RELAYED_STREAMS]; /* owned; the undisturbed answers */
    uint32_t tokens[DRILL_RELAYED_STREAMS], failed, finished, differing, broken_in_the_middle;
    bool learning;
    char error[200];
};

static void on_finished(void *context, struct http_stream *stream)
{
    struct drill_relayed *relayed = context;
    uint32_t number = stream->ask.number;
    const char *text = stream->text.data != NULL ? stream->text.data : "";
    relayed->finished++;
    if (stream->failed) {
        relayed->failed++;
        relayed->broken_in_the_middle += stream->tokens > 0;
        snprintf(relayed->error, sizeof relayed->error, "%s", stream->error);
    } else if (relayed->learning) {
        relayed->controls[number] = strdup(text);
        relayed->tokens[number] = stream->tokens;
    } else if (relayed->controls[number] == NULL || strcmp(text, relayed->controls[number]) != 0) {
        relayed->differing++;
    }
}

static void *pump(void *context)
{
    struct drill_relayed *relayed = context;
    while (!atomic_load(&relayed->stop)) {
        pthread_mutex_lock(&relayed->lock);
        size_t busy = http_streams_busy(&relayed->streams);
        if (busy > 0)
            http_streams_pump(&relayed->streams, gms_clock_ns() + POLL_MS * GMS_NS_PER_MS);
        pthread_mutex_unlock(&relayed->lock);
        poll(NULL, 0, busy > 0 ? 0 : POLL_MS); /* lets the others have the lock */
    }
    return NULL;
}

static void ask_all(struct drill_relayed *relayed)
{
    pthread_mutex_lock(&relayed->lock);
    relayed->failed = relayed->finished = relayed->differing = 0;
    relayed->streams.port = relayed->port;
    for (uint32_t i = 0; i < relayed->count; i++) {
        const struct drill_plan *plan = relayed->requests->plan;
        const struct http_ask ask = {.prompt = relayed->requests->texts[i],
                                     .number = i,
                                     .max_tokens = plan->max_tokens,
                                     .temperature = plan->temperature,
                                     .seed = plan->seed + i};
        http_stream_ask(&relayed->streams, &relayed->streams.items[i], &ask);
    }
    pthread_mutex_unlock(&relayed->lock);
}

/* Until `ready` of the streams, or TIMEOUT. */
static gms_status wait_until(struct drill_relayed *relayed, bool (*ready)(const struct drill_relayed *relayed),
                             const char *what, struct gms_error *ret_error)
{
    uint64_t deadline_ns = gms_clock_ns() + relayed->requests->plan->timeout_s * GMS_NS_PER_S;
    for (;;) {
        pthread_mutex_lock(&relayed->lock);
        bool done = ready(relayed);
        pthread_mutex_unlock(&relayed->lock);
        if (done)
            return GMS_OK;
        if (gms_clock_ns() >= deadline_ns)
            return gms_fail(ret_error, GMS_E_TIMEOUT, "waited %u s for %s through the relay",
                            relayed->requests->plan->timeout_s, what);
        relayed->meanwhile(relayed->context);
    }
}

static bool all_ended(const struct drill_relayed *relayed)
{
    return relayed->finished == relayed->count;
}

static bool all_in_the_middle(const struct drill_relayed *relayed)
{
    for (uint32_t i = 0; i < relayed->count; i++)
        if (relayed->streams.items[i].busy && relayed->streams.items[i].tokens < 2)
            return false;
    return true;
}

static gms_status learn(struct drill_relayed *relayed, struct gms_error *ret_error)
{
    relayed->learning = true;
    ask_all(relayed);
    gms_status status = wait_until(relayed, all_ended, "the control", ret_error);
    relayed->learning = false;
    if (status != GMS_OK || relayed->failed == 0)
        return status;
    /* An engine that speaks the line protocol without text is a good engine, and none for a relay. */
    bool cannot = strstr(relayed->error, "without its text") != NULL || strstr(relayed->error, "status 400") != NULL;
    return gms_fail(ret_error, cannot ? GMS_E_UNSUPPORTED : GMS_E_REFUSED, "through the relay: %s", relayed->error);
}

gms_status drill_relayed_open(struct drill_deployment *deployment, const struct drill_requests *requests,
                              void (*meanwhile)(void *context), void *context, struct drill_relayed **ret_relayed,
                              struct gms_error *ret_error)
{
    struct drill_relayed *relayed = calloc(1, sizeof *relayed);
    *ret_relayed = relayed;
    if (relayed == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for streams through a relay");
    relayed->deployment = deployment;
    relayed->requests = requests;
    relayed->meanwhile = meanwhile;
    relayed->context = context;
    relayed->count = requests->count < DRILL_RELAYED_STREAMS ? requests->count : DRILL_RELAYED_STREAMS;
    pthread_mutex_init(&relayed->lock, NULL);
    gms_status status = relay_program_start(deployment, &relayed->process, &relayed->port, ret_error);
    if (status == GMS_OK && !http_streams_open(&relayed->streams, relayed->port, relayed->count))
        status = gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for streams through a relay");
    relayed->streams.finished = on_finished;
    relayed->streams.context = relayed;
    if (status == GMS_OK) {
        relayed->running = pthread_create(&relayed->thread, NULL, pump, relayed) == 0;
        if (!relayed->running)
            status = gms_fail(ret_error, GMS_E_SYSTEM, "no thread for streams through a relay");
    }
    if (status == GMS_OK)
        status = learn(relayed, ret_error);
    if (status != GMS_OK)
        return status;
    ask_all(relayed);
    relayed->process->asked_to_end = true; /* it will be killed; its end is no surprise */
    return wait_until(relayed, all_in_the_middle, "a first token", ret_error);
}

gms_status drill_relayed_again(struct drill_relayed *relayed, struct gms_error *ret_error)
{
    gms_status status = wait_until(relayed, all_ended, "the end of what the dead relay had", ret_error);
    if (status != GMS_OK)
        return status;
    if (relayed->broken_in_the_middle == 0)
        return gms_fail(ret_error, GMS_E_MISMATCH, "the relay died while no stream was in the middle of its answer");
    if (relayed->differing > 0)
        return gms_fail(ret_error, GMS_E_MISMATCH, "%u streams of the dead relay ended as if they were whole",
                        relayed->differing);
    if (!drill_process_wait(relayed->process, gms_clock_ns() + GRACE_MS * GMS_NS_PER_MS))
        return gms_fail(ret_error, GMS_E_TIMEOUT, "gms-relay does not end by SIGKILL");
    status = relay_program_start(relayed->deployment, &relayed->process, &relayed->port, ret_error);
    if (status == GMS_OK)
        ask_all(relayed);
    return status == GMS_OK ? wait_until(relayed, all_in_the_middle, "a first token of the next", ret_error) : status;
}

gms_status drill_relayed_finish(struct drill_relayed *relayed, struct gms_error *ret_error)
{
    gms_status status = wait_until(relayed, all_ended, "answers", ret_error);
    if (status != GMS_OK)
        return status;
    if (relayed->failed > 0)
        return gms_fail(ret_error, GMS_E_REFUSED, "%u streams through the next relay failed: %s", relayed->failed,
                        relayed->error);
    if (relayed->differing > 0)
        return gms_fail(ret_error, GMS_E_MISMATCH, "%u streams through the next relay differ from their control",
                        relayed->differing);
    return GMS_OK;
}

uint32_t drill_relayed_broken(const struct drill_relayed *relayed)
{
    return relayed->broken_in_the_middle;
}

void drill_relayed_close(struct drill_relayed *relayed)
{
    if (relayed == NULL)
        return;
    atomic_store(&relayed->stop, true);
    if (relayed->running)
        pthread_join(relayed->thread, NULL);
    http_streams_close(&relayed->streams);
    if (relayed->process != NULL) {
        relayed->process->asked_to_end = true;
        drill_process_end(relayed->process, GRACE_MS);
    }
    for (uint32_t i = 0; i < DRILL_RELAYED_STREAMS; i++)
        free(relayed->controls[i]);
    pthread_mutex_destroy(&relayed->lock);
    free(relayed);
}
