/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "storm.h"

static gms_status open_streams(struct storm *storm, struct drill_streams *ret_streams, struct gms_error *ret_error)
{
    gms_status status = drill_streams_open(storm->deployment.run_dir, storm->plan.streams, ret_streams, ret_error);
    for (uint32_t i = 0; i < storm->plan.streams && status == GMS_OK; i++) {
        char id[16];
        snprintf(id, sizeof id, "s%u", i);
        if (drill_streams_add(ret_streams, id, storm->prompts.items[i % storm->prompts.count], storm->plan.seed + i,
                              storm->plan.temperature, storm->plan.max_tokens) == NULL)
            status = gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for stream %u", i);
    }
    for (size_t i = 0; i < ret_streams->count && status == GMS_OK; i++)
        drill_stream_start(&ret_streams->items[i]);
    return status;
}

static uint64_t longest_gap(const struct drill_streams *streams)
{
    uint64_t longest_ns = 0;
    for (size_t i = 0; i < streams->count; i++)
        for (uint32_t t = 1; t < streams->items[i].token_count; t++) {
            uint64_t gap_ns = streams->items[i].tokens[t].at_ns - streams->items[i].tokens[t - 1].at_ns;
            longest_ns = gap_ns > longest_ns ? gap_ns : longest_ns;
        }
    return longest_ns;
}

/* One round of all prompts. `reference`: becomes what later ones are compared with. */
bool storm_stream_round(struct storm *storm, bool reference)
{
    struct drill_streams streams = {.inotify = -1};
    struct gms_error error;
    uint64_t before = 0, news_ns = gms_clock_ns();
    bool good = open_streams(storm, &streams, &error) == GMS_OK;
    if (!good)
        storm_fail(storm, "streams: %s", error.text);
    while (good && !drill_streams_finished(&streams)) {
        drill_streams_pump(&streams, gms_clock_ns() + 100 * GMS_NS_PER_MS, NULL, 0);
        uint64_t total = drill_streams_token_total(&streams);
        if (total != before)
            news_ns = gms_clock_ns();
        before = total;
        if (gms_clock_ns() - news_ns > storm->plan.timeout_s * GMS_NS_PER_S) {
            storm_fail(storm, "no token of any stream for %u s", storm->plan.timeout_s);
            good = false;
        }
    }
    for (size_t i = 0; i < streams.count && good; i++) {
        const struct drill_stream *stream = &streams.items[i];
        if (stream->state != DRILL_STREAM_DONE) {
            storm_fail(storm, "stream %s: %.300s", stream->id, stream->error);
            good = false;
            break;
        }
        storm->resumes += stream->resumes;
        atomic_fetch_add(&storm->tokens, stream->token_count);
        if (reference) {
            storm->reference_count[i] = stream->token_count;
            storm->reference[i] = calloc(stream->token_count, sizeof *stream->tokens);
            if (storm->reference[i] != NULL)
                memcpy(storm->reference[i], stream->tokens, stream->token_count * sizeof *stream->tokens);
            continue;
        }
        bool equal = stream->token_count == storm->reference_count[i];
        for (uint32_t t = 0; t < stream->token_count && t < storm->reference_count[i]; t++)
            if (stream->tokens[t].token != storm->reference[i][t].token) {
                storm->wrong_tokens++;
                equal = false;
            }
        if (!equal) {
            storm_fail(storm, "stream %s differs from the undisturbed run", stream->id);
            good = false;
        }
    }
    uint64_t gap_ns = longest_gap(&streams);
    if (reference)
        storm->control_gap_ns = gap_ns;
    else
        storm->longest_gap_ns = gap_ns > storm->longest_gap_ns ? gap_ns : storm->longest_gap_ns;
    drill_streams_close(&streams);
    atomic_fetch_add(&storm->rounds, 1);
    return good;
}

void *storm_stream_on(void *context)
{
    struct storm *storm = context;
    while (!atomic_load(&storm->streams_stop) && !atomic_load(&storm->streams_failed))
        if (!storm_stream_round(storm, false))
            atomic_store(&storm->streams_failed, true);
    return NULL;
}
