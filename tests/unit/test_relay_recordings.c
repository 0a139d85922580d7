/* SPDX-License-Identifier: Apache-2.0
 * gms-relay before answers in the very shape in which vLLM and SGLang send them (relay_recordings/README.md): what it
 * asks, what it keeps of them through a failover, and what the client gets. */
#include "relay_bench.h"

#include <stdlib.h>

enum { EVENTS = 16 };

/* An answer as in its file: a head, then events or a body. */
struct recording {
    char *text; /* owned */
    char head[512];
    const char *events[EVENTS];
    size_t count;
};

static struct recording load(const char *name)
{
    struct recording one = {0};
    char path[512];
    snprintf(path, sizeof path, "%s/%s.http", RELAY_RECORDINGS, name);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    one.text = calloc(1, 16384);
    assert_non_null(one.text);
    assert_true(fread(one.text, 1, 16383, file) > 0);
    fclose(file);
    char *end = strstr(one.text, "\n\n");
    assert_non_null(end);
    size_t bytes = 0;
    for (const char *at = one.text; at <= end; at++) { /* lines end with CR LF on the wire */
        if (*at == '\n')
            one.head[bytes++] = '\r';
        one.head[bytes++] = *at;
        assert_true(bytes + 4 < sizeof one.head);
    }
    memcpy(one.head + bytes, "\r\n", 3);
    for (char *at = end + 2; *at != '\0' && one.count < EVENTS;) {
        one.events[one.count++] = at;
        char *next = strstr(at, "\n\n");
        if (next == NULL)
            break;
        *next = '\0';
        at = next + 2;
    }
    return one;
}

/* The head before event 0, then events up to `to`, each a chunk. */
static void play(struct peer *peer, const struct recording *one, size_t from, size_t to)
{
    char text[4096];
    assert_true(to <= one->count);
    if (from == 0)
        peer_send(peer, one->head);
    for (size_t i = from; i < to; i++) {
        snprintf(text, sizeof text, "%zx\r\n%s\n\n\r\n", strlen(one->events[i]) + 2, one->events[i]);
        peer_send(peer, text);
    }
}

/* A whole answer that is no stream, and the end of its connection. */
static void play_whole(struct peer *peer, const char *name)
{
    struct recording one = load(name);
    peer_send(peer, one.head);
    peer_send(peer, one.events[0]);
    peer_close(peer);
    free(one.text);
}

static void play_file(struct peer *peer, const char *name)
{
    struct recording one = load(name);
    play(peer, &one, 0, one.count);
    free(one.text);
}

static const char *const exact[] = {"--exact", "greedy", NULL}; /* the relay's words */

static const char completion[] =
    "{\"model\":\"m\",\"prompt\":\"Wish\",\"max_tokens\":8,\"temperature\":0,\"stream\":true,"
    "\"stream_options\":{\"include_usage\":true}}";

static void undisturbed(struct relay_bench *bench, struct bench_engines *engines, const char *name, unsigned tokens)
{
    char text[256], usage[128];
    struct peer client = client_post(bench, "/v1/completions", completion);
    struct peer peer = engine_asked(engines->listener[0], "POST /v1/completions HTTP/1.1", "\"return_token_ids\":true");
    play_file(&peer, name);
    snprintf(usage, sizeof usage, "\"prompt_tokens\":2,\"completion_tokens\":%u,", tokens);
    peer_until(&client, "GMS-Resume: exact");
    peer_until(&client, "\"finish_reason\":\"stop\"");
    peer_until(&client, usage);
    peer_until(&client, "data: [DONE]");
    peer_text(&client, text, sizeof text);
    assert_string_equal(text, " Zum Glück!");
    peer_close(&peer);
    peer_close(&client);
}

/* The engine dies when it has told a token whose half a character it keeps to itself: that token is not sent on, or the
 * next engine would take its text for said. */
static void within_a_character(struct relay_bench *bench, struct bench_engines *engines, const char *name,
                               const char *continued, unsigned tokens)
{
    char text[256], usage[128];
    struct recording one = load(name);
    struct peer client = client_post(bench, "/v1/completions", completion);
    struct peer peer = engine_asked(engines->listener[0], "POST /v1/completions HTTP/1.1", "\"return_token_ids\":true");
    double before = bench_metric(bench, "gms_relay_tokens_total");
    play(&peer, &one, 0, 3);
    bench_await_metric(bench, "gms_relay_tokens_total", before + 3);
    bench_serves(bench, 1, 2, 2, engines->endpoint[1]);
    peer_close(&peer);
    peer = engine_asked(engines->listener[1], "POST /v1/completions HTTP/1.1", "\"prompt\":[785,6722,9856,2435]");
    assert_true(peer_has(&peer, "\"max_tokens\":6"));
    play_file(&peer, continued);
    snprintf(usage, sizeof usage, "\"prompt_tokens\":2,\"completion_tokens\":%u,", tokens);
    peer_until(&client, usage);
    peer_until(&client, "data: [DONE]");
    peer_text(&client, text, sizeof text);
    assert_string_equal(text, " Zum Glück!");
    peer_close(&peer);
    peer_close(&client);
    free(one.text);
    bench_serves(bench, 0, 3, 3, engines->endpoint[0]);
    bench_await_metric(bench, "gms_relay_serving_engine", 0);
}

static void completions(void **state)
{
    struct relay_bench *bench = *state;
    struct bench_engines engines;
    bench_begin(bench, exact, BENCH_OPENAI, &engines);
    undisturbed(bench, &engines, "vllm-completion", 5);
    undisturbed(bench, &engines, "sglang-completion", 6);
    within_a_character(bench, &engines, "vllm-completion", "vllm-completion-continued", 5);
    bench_end(bench, &engines);
}

static void a_completion_of_sglang(void **state)
{
    struct relay_bench *bench = *state;
    struct bench_engines engines;
    bench_begin(bench, exact, BENCH_OPENAI, &engines);
    within_a_character(bench, &engines, "sglang-completion", "sglang-completion-continued", 6);
    bench_end(bench, &engines);
}

/* Each way in which an API server tells that its engine has died: the client sees none of it. */
static void deaths(void **state)
{
    struct relay_bench *bench = *state;
    static const struct {
        const char *recording;
        bool whole, first; /* no stream; before the first token */
    } ways[] = {{"vllm-engine-dead-400", false, false},  {"vllm-engine-dead-500", false, false},
                {"vllm-engine-dead-first", false, true}, {"vllm-engine-dead-head", true, true},
                {"sglang-aborted", false, false},        {"sglang-error", false, false}};
    struct bench_engines engines;
    uint64_t incarnation = 1;
    bench_begin(bench, exact, BENCH_OPENAI, &engines);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        char text[256];
        int from = (int)(incarnation - 1) % 2, to = 1 - from;
        struct peer client = client_post(bench, "/v1/completions", completion);
        struct peer peer = engine_asked(engines.listener[from], "POST /v1/completions HTTP/1.1", "return_token_ids");
        double crashes = bench_metric(bench, "gms_relay_crashes_total");
        if (ways[i].whole) {
            play_whole(&peer, ways[i].recording);
        } else {
            play_file(&peer, ways[i].recording);
            peer_end(&peer); /* the relay has left it */
        }
        bench_await_metric(bench, "gms_relay_crashes_total", crashes + 1);
        incarnation++;
        bench_serves(bench, to, incarnation, incarnation, engines.endpoint[to]);
        if (!ways[i].whole)
            peer_close(&peer);
        peer = engine_asked(engines.listener[to], "POST /v1/completions HTTP/1.1",
                            ways[i].first ? "\"prompt\":\"Wish\"" : "\"prompt\":[785,6722,9856,2435]");
        play_file(&peer, ways[i].first ? "vllm-completion" : "vllm-completion-continued");
        peer_until(&client, "data: [DONE]");
        assert_false(peer_has(&client, "error"));
        peer_text(&client, text, sizeof text);
        assert_string_equal(text, " Zum Glück!");
        peer_close(&peer);
        peer_close(&client);
    }
    bench_end(bench, &engines);
}

static void chats(void **state)
{
    struct relay_bench *bench = *state;
    static const char chat[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"temperature\":0,\"stream\":true}";
    struct bench_engines engines;
    bench_begin(bench, exact, BENCH_OPENAI, &engines);
    struct peer client = client_post(bench, "/v1/chat/completions", chat);
    struct peer peer = engine_asked(engines.listener[0], "POST /v1/chat/completions", "\"return_token_ids\":true");
    play_file(&peer, "vllm-chat");
    peer_until(&client, "GMS-Resume: exact");
    peer_until(&client, "\"content\":\"Hi\"");
    peer_until(&client, "\"content\":\" you\"");
    peer_until(&client, "\"finish_reason\":\"stop\"");
    peer_until(&client, "[DONE]");
    peer_close(&peer);
    peer_close(&client);
    /* SGLang streams no token ids in chat: asked again in the client's words, and passed on. */
    client = client_post(bench, "/v1/chat/completions", chat);
    peer = engine_asked(engines.listener[0], "POST /v1/chat/completions", "return_token_ids");
    play_whole(&peer, "sglang-chat-refused");
    peer = engine_asked(engines.listener[0], "POST /v1/chat/completions", "\"stream\":true}");
    assert_false(peer_has(&peer, "return_token_ids"));
    play_file(&peer, "sglang-chat");
    peer_until(&client, "GMS-Resume: none");
    peer_until(&client, "\"content\":\"Hello\"");
    peer_until(&client, "[DONE]");
    peer_close(&peer);
    peer_close(&client);
    /* Reasoning is more than text. */
    client = client_post(bench, "/v1/chat/completions", chat);
    peer = engine_asked(engines.listener[0], "POST /v1/chat/completions", "return_token_ids");
    struct recording one = load("vllm-chat-reasoning");
    play(&peer, &one, 0, 2);
    peer_end(&peer);
    peer_close(&peer);
    peer = engine_asked(engines.listener[0], "POST /v1/chat/completions", "\"stream\":true}");
    play(&peer, &one, 0, one.count);
    free(one.text);
    peer_until(&client, "GMS-Resume: none");
    peer_until(&client, "\"reasoning\":\"hm\"");
    peer_until(&client, "[DONE]");
    peer_close(&peer);
    peer_close(&client);
    bench_end(bench, &engines);
}

/* What cannot go on is said before the first byte. */
static void not_promised(void **state)
{
    struct relay_bench *bench = *state;
    struct bench_engines engines;
    bench_begin(bench, exact, BENCH_OPENAI, &engines);
    struct recording one = load("vllm-completion");
    struct peer client = client_post(bench, "/v1/completions",
                                     "{\"prompt\":\"Wish\",\"temperature\":0,\"stream\":true,\"stop\":[\"###\"]}");
    struct peer peer = engine_asked(engines.listener[0], "POST /v1/completions", "\"stop\":[\"###\"]");
    play(&peer, &one, 0, 2);
    peer_until(&client, "GMS-Resume: none; reason=\"an engine holds text back that may become a stop string\"");
    peer_until(&client, "\"text\":\" Gl\"");
    bench_serves(bench, 1, 2, 2, engines.endpoint[1]);
    peer_close(&peer);
    peer_until(&client, "data: {\"error\":");
    peer_end(&client);
    peer_close(&client);
    /* A picture. */
    static const char picture[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"what?\"},"
        "{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:,\"}}]}],\"stream\":true}";
    client = client_post(bench, "/v1/chat/completions", picture);
    peer = engine_asked(engines.listener[1], "POST /v1/chat/completions", picture);
    play_file(&peer, "sglang-chat");
    peer_until(&client, "GMS-Resume: none; reason=\"the request uses messages of more than text\"");
    peer_until(&client, "[DONE]");
    peer_close(&peer);
    peer_close(&client);
    /* A request that the engine refuses is refused. */
    client = client_post(bench, "/v1/completions", completion);
    peer = engine_asked(engines.listener[1], "POST /v1/completions", "Wish");
    play_whole(&peer, "vllm-refused");
    peer_until(&client, "HTTP/1.1 400");
    peer_until(&client, "maximum context length");
    peer_close(&client);
    free(one.text);
    bench_end(bench, &engines);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_setup, bench_teardown)
    const struct CMUnitTest tests[] = {
        TEST(completions), TEST(a_completion_of_sglang), TEST(deaths), TEST(chats), TEST(not_promised),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
