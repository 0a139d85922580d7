/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-relay/metrics.h"

#include <inttypes.h>
#include <sys/resource.h>

static const double gap_limits_s[RELAY_GAP_BUCKETS] = {0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30};

void relay_metrics_gap(struct relay_metrics *metrics, uint64_t gap_ns)
{
    uint32_t bucket = 0;
    while (bucket < RELAY_GAP_BUCKETS && (double)gap_ns / 1e9 > gap_limits_s[bucket])
        bucket++;
    metrics->gap_counts[bucket]++;
    metrics->gap_sum_ns += gap_ns;
}

static void head(struct relay_text *out, const char *name, const char *type, const char *help)
{
    relay_text_print(out, "# HELP gms_relay_%s %s\n# TYPE gms_relay_%s %s\n", name, help, name, type);
}

static void one(struct relay_text *out, const char *name, const char *type, const char *help, double value)
{
    head(out, name, type, help);
    relay_text_print(out, "gms_relay_%s %.17g\n", name, value);
}

static void gaps(const struct relay_metrics *metrics, struct relay_text *out)
{
    uint64_t sum = 0;
    head(out, "resume_gap_seconds", "histogram", "From the end of an engine to the next token of a stream it had.");
    for (uint32_t i = 0; i < RELAY_GAP_BUCKETS; i++) {
        sum += metrics->gap_counts[i];
        relay_text_print(out, "gms_relay_resume_gap_seconds_bucket{le=\"%g\"} %" PRIu64 "\n", gap_limits_s[i], sum);
    }
    sum += metrics->gap_counts[RELAY_GAP_BUCKETS];
    relay_text_print(out,
                     "gms_relay_resume_gap_seconds_bucket{le=\"+Inf\"} %" PRIu64
                     "\ngms_relay_resume_gap_seconds_sum %.9f\ngms_relay_resume_gap_seconds_count %" PRIu64 "\n",
                     sum, (double)metrics->gap_sum_ns / 1e9, sum);
}

void relay_metrics_write(const struct relay_metrics *metrics, const struct relay_gauges *gauges, struct relay_text *out)
{
    static const char *const apis[] = {"completions", "chat"};
    static const char *const outcomes[RELAY_OUTCOME_COUNT] = {[RELAY_OUTCOME_DONE] = "done",
                                                              [RELAY_OUTCOME_FAILED] = "failed",
                                                              [RELAY_OUTCOME_REFUSED] = "refused",
                                                              [RELAY_OUTCOME_GONE] = "client_gone"};
    struct rusage usage = {0};
    getrusage(RUSAGE_SELF, &usage);
    head(out, "requests_total", "counter", "Requests that have ended.");
    for (int api = 0; api < 2; api++)
        for (int outcome = 0; outcome < RELAY_OUTCOME_COUNT; outcome++)
            relay_text_print(out, "gms_relay_requests_total{api=\"%s\",outcome=\"%s\"} %" PRIu64 "\n", apis[api],
                             outcomes[outcome], metrics->requests[api][outcome]);
    one(out, "tokens_total", "counter", "Tokens passed on to clients.", (double)metrics->tokens);
    one(out, "resumes_total", "counter", "Answers that another engine went on with.", (double)metrics->resumes);
    one(out, "crashes_total", "counter", "Times a request lost the engine that had it.", (double)metrics->crashes);
    one(out, "crash_failures_total", "counter", "Requests failed for being in flight in crashes in a row.",
        (double)metrics->crash_failures);
    one(out, "unavailable_total", "counter", "Requests that waited for an engine in vain.",
        (double)metrics->unavailable);
    one(out, "takeovers_total", "counter", "Incarnations that began to serve, as heard.", (double)metrics->takeovers);
    gaps(metrics, out);
    one(out, "requests_waiting", "gauge", "Requests without an engine.", gauges->waiting);
    one(out, "requests_running", "gauge", "Requests that an engine has.", gauges->running);
    one(out, "serving_engine", "gauge", "The engine that serves, -1: none.", gauges->engine);
    one(out, "epoch", "gauge", "The epoch it serves under.", (double)gauges->epoch);
    one(out, "coordinator_connected", "gauge", "1: a coordinator tells us who serves.", gauges->coordinator);
    one(out, "connections", "gauge", "Open client connections.", gauges->connections);
    one(out, "connections_total", "counter", "Client connections accepted.", (double)gauges->accepted);
    one(out, "connections_refused_total", "counter", "Client connections over the limit.", (double)gauges->turned_away);
    one(out, "bad_requests_total", "counter", "Requests that could not be read.", (double)gauges->bad_requests);
    one(out, "request_timeouts_total", "counter", "Heads or bodies that did not come in time.",
        (double)gauges->timeouts);
    one(out, "stalled_clients_total", "counter", "Clients dropped because they took nothing.", (double)gauges->stalled);
    one(out, "cpu_seconds_total", "counter", "Processor time of the relay.",
        (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
            ((double)usage.ru_utime.tv_usec + (double)usage.ru_stime.tv_usec) / 1e6);
    one(out, "resident_bytes_most", "gauge", "Most memory it had.", (double)usage.ru_maxrss * 1024);
}
