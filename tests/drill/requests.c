/* SPDX-License-Identifier: Apache-2.0 */
#include "requests.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum { ROUND_BYTES = 32 }; /* room for what makes a prompt another one */

gms_status drill_requests_open(const struct drill_plan *plan, uint32_t count, uint32_t probes,
                               struct drill_requests *ret_requests, struct gms_error *ret_error)
{
    memset(ret_requests, 0, sizeof *ret_requests);
    ret_requests->plan = plan;
    ret_requests->count = count;
    ret_requests->probes = probes;
    gms_status status = drill_prompts_read(plan->prompts, &ret_requests->prompts, ret_error);
    for (uint32_t i = 0; i < count && status == GMS_OK; i++) {
        /* When there are more requests than prompts, later rounds get another beginning. */
        const char *prompt = ret_requests->prompts.items[i % ret_requests->prompts.count];
        size_t round = i / ret_requests->prompts.count, bytes = strlen(prompt) + ROUND_BYTES;
        if ((ret_requests->texts[i] = malloc(bytes)) == NULL)
            status = gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for request %u", i);
        else if (round == 0)
            memcpy(ret_requests->texts[i], prompt, strlen(prompt) + 1);
        else
            snprintf(ret_requests->texts[i], bytes, "(%zu) %s", round + 1, prompt);
    }
    return status;
}

void drill_requests_close(struct drill_requests *requests)
{
    for (size_t i = 0; i < DRILL_MAX_STREAMS; i++) {
        free(requests->texts[i]);
        requests->texts[i] = NULL;
    }
    drill_prompts_free(&requests->prompts);
}

struct drill_stream *drill_requests_add(const struct drill_requests *requests, uint32_t index, const char *id,
                                        struct drill_streams *streams)
{
    const struct drill_plan *plan = requests->plan;
    bool probe = index >= requests->count;
    struct drill_stream *stream =
        drill_streams_add(streams, id, probe ? drill_probe_prompts[index - requests->count] : requests->texts[index],
                          plan->seed + index, plan->temperature, probe ? DRILL_PROBE_TOKENS : plan->max_tokens);
    if (stream != NULL) {
        stream->control = index;
        stream->probe = probe;
    }
    return stream;
}

/* ----------------------------------------------------------------------------------------------- controls ----- */

void drill_control_init(struct drill_control *control)
{
    memset(control, 0, sizeof *control);
    control->first.inotify = control->second.inotify = -1;
}

void drill_control_close(struct drill_control *control)
{
    drill_streams_close(&control->first);
    drill_streams_close(&control->second);
}

static gms_status stream_once(const struct drill_requests *requests, struct drill_deployment *deployment,
                              struct drill_streams *ret_streams, struct gms_error *ret_error)
{
    const struct drill_plan *plan = requests->plan;
    uint32_t all = requests->count + requests->probes;
    gms_status status = drill_streams_open(deployment->run_dir, all, ret_streams, ret_error);
    for (uint32_t i = 0; i < all && status == GMS_OK; i++) {
        char id[16];
        snprintf(id, sizeof id, "%c%u", i >= requests->count ? 'p' : 's',
                 i >= requests->count ? i - requests->count : i);
        struct drill_stream *stream = drill_requests_add(requests, i, id, ret_streams);
        if (stream == NULL)
            status = gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for stream %s", id);
        else
            drill_stream_start(stream);
    }
    uint64_t news_ns = gms_clock_ns(), before = 0;
    while (status == GMS_OK && !drill_streams_finished(ret_streams)) {
        drill_streams_pump(ret_streams, gms_clock_ns() + 200 * GMS_NS_PER_MS, NULL, 0);
        status = drill_deployment_check(deployment, 0, ret_error);
        uint64_t total = drill_streams_token_total(ret_streams);
        if (total != before)
            news_ns = gms_clock_ns();
        before = total;
        if (status == GMS_OK && gms_clock_ns() - news_ns > plan->timeout_s * GMS_NS_PER_S)
            status = gms_fail(ret_error, GMS_E_TIMEOUT,
                              "waited %u s for the next token of any stream; %zu of %zu are complete", plan->timeout_s,
                              drill_streams_in_state(ret_streams, DRILL_STREAM_DONE), ret_streams->count);
    }
    for (size_t i = 0; i < ret_streams->count && status == GMS_OK; i++)
        if (ret_streams->items[i].state != DRILL_STREAM_DONE)
            status = gms_fail(ret_error, GMS_E_REFUSED, "stream %s: %s", ret_streams->items[i].id,
                              ret_streams->items[i].error);
    return status;
}

static void compare(struct drill_control *control)
{
    control->exact = true;
    for (size_t i = 0; i < control->first.count && control->exact; i++) {
        const struct drill_stream *a = &control->first.items[i], *b = &control->second.items[i];
        uint32_t at = 0;
        while (at < a->token_count && at < b->token_count && a->tokens[at].token == b->tokens[at].token)
            at++;
        if (at == a->token_count && at == b->token_count)
            continue;
        control->exact = false;
        if (at < a->token_count && at < b->token_count)
            snprintf(control->divergence, sizeof control->divergence,
                     "undisturbed, stream %s had token %u at %u in the first run and %u in the second", a->id,
                     a->tokens[at].token, at, b->tokens[at].token);
        else
            snprintf(control->divergence, sizeof control->divergence,
                     "undisturbed, stream %s had %u tokens in the first run and %u in the second", a->id,
                     a->token_count, b->token_count);
    }
}

gms_status drill_control_stream(const struct drill_requests *requests, struct drill_deployment *deployment,
                                struct drill_control *ret_control, struct gms_error *ret_error)
{
    uint64_t begun_ns = gms_clock_ns();
    drill_control_init(ret_control);
    gms_status status = stream_once(requests, deployment, &ret_control->first, ret_error);
    if (status == GMS_OK)
        status = stream_once(requests, deployment, &ret_control->second, ret_error);
    if (status == GMS_OK)
        compare(ret_control);
    ret_control->ns = gms_clock_ns() - begun_ns;
    return status;
}

gms_status drill_control_run(const struct drill_requests *requests, const char *scratch_dir, const char *shared_dir,
                             struct drill_control *ret_control, struct gms_error *ret_error)
{
    const struct drill_plan *plan = requests->plan;
    char dir[DRILL_PATH_BYTES];
    snprintf(dir, sizeof dir, "%.500s/c", scratch_dir);
    drill_control_init(ret_control);
    struct drill_deployment *deployment = calloc(1, sizeof *deployment);
    if (deployment == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a deployment");
    gms_status status = drill_deployment_start(plan, dir, shared_dir, "control", deployment, ret_error);
    if (status == GMS_OK) {
        status = drill_deployment_launch(deployment, 0, ret_error);
        if (status == GMS_OK)
            status = drill_deployment_wait(deployment, 0, "serving", 0, plan->timeout_s, ret_error);
        if (status == GMS_OK)
            status = drill_control_stream(requests, deployment, ret_control, ret_error);
        drill_deployment_stop(deployment);
    }
    free(deployment);
    return status;
}
