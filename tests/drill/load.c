/* SPDX-License-Identifier: Apache-2.0 */
#include "load.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "result.h"

gms_status drill_load_open(const struct drill_requests *requests, const char *run_dir, uint32_t first,
                           struct drill_load *ret_load, struct gms_error *ret_error)
{
    memset(ret_load, 0, sizeof *ret_load);
    ret_load->requests = requests;
    ret_load->first = first;
    return drill_streams_open(run_dir, DRILL_MAX_STREAM_RESULTS, &ret_load->streams, ret_error);
}

void drill_load_close(struct drill_load *load)
{
    drill_streams_close(&load->streams);
}

static size_t open_streams(const struct drill_load *load)
{
    size_t count = 0;
    for (size_t i = 0; i < load->streams.count; i++) {
        enum drill_stream_state state = load->streams.items[i].state;
        count += !load->streams.items[i].probe &&
                 (state == DRILL_STREAM_WAITING || state == DRILL_STREAM_GREETING || state == DRILL_STREAM_RUNNING);
    }
    return count;
}

void drill_load_feed(struct drill_load *load)
{
    const struct drill_plan *plan = load->requests->plan;
    size_t open = open_streams(load);
    while (!load->closing && open < plan->streams && load->streams.count + 1 < load->streams.capacity &&
           gms_clock_ns() >= load->next_ns) {
        char id[16];
        snprintf(id, sizeof id, "r%u", load->asked);
        struct drill_stream *stream =
            drill_requests_add(load->requests, (load->first + load->asked) % load->requests->count, id, &load->streams);
        if (stream == NULL)
            return;
        drill_stream_start(stream);
        load->asked++;
        open++;
        if (plan->rate > 0)
            load->next_ns = gms_clock_ns() + (uint64_t)(1e9 / plan->rate);
    }
}

struct drill_stream *drill_load_probe(struct drill_load *load)
{
    return drill_requests_add(load->requests, load->requests->count, "probe", &load->streams);
}
