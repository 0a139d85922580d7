/* SPDX-License-Identifier: Apache-2.0
 * gms-relay before engines with an OpenAI server, played by the test as vLLM and SGLang speak. */
#include "relay_bench.h"

#include <netinet/in.h>
#include <sys/socket.h>

static const char sse_head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                               "Transfer-Encoding: chunked\r\n\r\n";

/* One event in a chunk, the chunk in two pieces. */
static void event(struct peer *peer, const char *json)
{
    char text[2048];
    int length = snprintf(text, sizeof text, "%zx\r\ndata: %s\n\n\r\n", strlen(json) + 8, json);
    peer_send_bytes(peer, text, (size_t)length / 2);
    peer_send_bytes(peer, text + length / 2, (size_t)length - (size_t)length / 2);
}

static void a_completion_goes_on_with_its_tokens(void **state)
{
    struct relay_bench *bench = *state;
    struct bench_engines engines;
    bench_begin(bench, (const char *const[]){"--exact", "greedy", NULL}, BENCH_OPENAI, &engines);
    struct peer client = client_post(bench, "/v1/completions",
                                     "{\"model\":\"m\",\"prompt\":\"hi\",\"max_tokens\":4,\"temperature\":0,"
                                     "\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
    struct peer peer = engine_asked(engines.listener[0], "POST /v1/completions HTTP/1.1", "\"return_token_ids\":true");
    peer_send(&peer, sse_head);
    event(&peer,
          "{\"id\":\"x\",\"choices\":[{\"index\":0,\"text\":\"A\",\"token_ids\":[11],\"prompt_token_ids\":[5,6]}]}");
    event(&peer,
          "{\"id\":\"x\",\"choices\":[{\"index\":0,\"text\":\"BC\",\"token_ids\":[12,13],\"finish_reason\":null}]}");
    peer_until(&client, "GMS-Resume: exact\r\n");
    peer_until(&client, "\"text\":\"BC\"");
    bench_serves(bench, 1, 2, 2, engines.endpoint[1]);
    peer_close(&peer);
    peer = engine_asked(engines.listener[1], "POST /v1/completions HTTP/1.1", "\"max_tokens\":1");
    assert_true(peer_has(&peer, "\"prompt\":[5,6,11,12,13]"));
    peer_send(&peer, sse_head);
    event(&peer, "{\"choices\":[{\"index\":0,\"text\":\"D\",\"token_ids\":[14],\"prompt_token_ids\":[5,6,11,12,13],"
                 "\"finish_reason\":\"length\"}]}");
    event(&peer, "{\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}");
    event(&peer, "[DONE]");
    peer_until(&client, "\"text\":\"D\"");
    peer_until(&client, "\"finish_reason\":\"length\"");
    peer_until(&client, "\"prompt_tokens\":2,\"completion_tokens\":4");
    peer_until(&client, "data: [DONE]");
    peer_close(&peer);
    peer_close(&client);
    bench_end(bench, &engines);
}

static void chat_goes_on_as_a_completion(void **state)
{
    struct relay_bench *bench = *state;
    struct bench_engines engines;
    bench_begin(bench, (const char *const[]){NULL}, BENCH_OPENAI, &engines);
    struct peer client = client_post(bench, "/v1/chat/completions",
                                     "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"temperature\":0}");
    struct peer peer =
        engine_asked(engines.listener[0], "POST /v1/chat/completions HTTP/1.1", "\"return_token_ids\":true");
    peer_send(&peer, sse_head);
    event(&peer, "{\"prompt_token_ids\":[5],\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}");
    event(&peer, "{\"choices\":[{\"delta\":{\"content\":\"A\"},\"token_ids\":[11]}]}");
    bench_await_metric(bench, "gms_relay_tokens_total", 1);
    /* The API server says that its engine is dead, and lives on for a moment. */
    event(&peer, "{\"error\":{\"message\":\"EngineCore encountered an issue\",\"code\":500}}");
    bench_serves(bench, 1, 2, 2, engines.endpoint[1]);
    peer_end(&peer);
    peer_close(&peer);
    peer = engine_asked(engines.listener[1], "POST /v1/completions HTTP/1.1", "\"prompt\":[5,11]");
    assert_false(peer_has(&peer, "messages"));
    peer_send(&peer, sse_head);
    event(&peer, "{\"choices\":[{\"text\":\"B\",\"token_ids\":[12],\"finish_reason\":\"stop\"}]}");
    /* It dies after its last token: the answer is whole all the same. */
    peer_close(&peer);
    peer_until(&client, "HTTP/1.1 200 OK");
    peer_until(&client, "GMS-Resume: continued; reason=");
    peer_until(&client, "\"content\":\"AB\"");
    peer_until(&client, "\"finish_reason\":\"stop\"");
    peer_close(&client);
    bench_end(bench, &engines);
}

static void without_token_ids_a_visible_answer_cannot_go_on(void **state)
{
    struct relay_bench *bench = *state;
    struct bench_engines engines;
    bench_begin(bench, (const char *const[]){NULL}, BENCH_OPENAI, &engines);
    struct peer client = client_post(bench, "/v1/completions", "{\"prompt\":\"hi\",\"stream\":true}");
    struct peer peer = engine_asked(engines.listener[0], "POST /v1/completions", "\"prompt\":\"hi\"");
    peer_send(&peer, sse_head);
    event(&peer, "{\"choices\":[{\"text\":\"A\"}]}");
    peer_until(&client, "GMS-Resume: none; reason=\"the engine does not tell its tokens\"");
    peer_until(&client, "\"text\":\"A\"");
    bench_serves(bench, 1, 2, 2, engines.endpoint[1]);
    peer_close(&peer);
    peer_until(&client, "data: {\"error\":");
    peer_until(&client, "cannot be continued");
    peer_end(&client);
    assert_false(engine_is_asked(engines.listener[1], 50));
    peer_close(&client);
    /* A whole answer that nobody has seen begins anew. */
    client = client_post(bench, "/v1/completions", "{\"prompt\":\"hi\"}");
    peer = engine_asked(engines.listener[1], "POST /v1/completions", "\"prompt\":\"hi\"");
    peer_send(&peer, sse_head);
    event(&peer, "{\"choices\":[{\"text\":\"half\"}]}");
    bench_await_metric(bench, "gms_relay_tokens_total", 2);
    bench_serves(bench, 0, 3, 3, engines.endpoint[0]);
    peer_close(&peer);
    peer = engine_asked(engines.listener[0], "POST /v1/completions", "\"prompt\":\"hi\"");
    peer_send(&peer, sse_head);
    event(&peer, "{\"choices\":[{\"text\":\"whole\",\"finish_reason\":\"stop\"}]}");
    event(&peer, "[DONE]");
    peer_until(&client, "\"text\":\"whole\"");
    peer_close(&peer);
    peer_close(&client);
    bench_end(bench, &engines);
}

static void more_than_text_is_passed_on_as_it_is(void **state)
{
    struct relay_bench *bench = *state;
    struct bench_engines engines;
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[{\"type\":\"function\"}]}";
    static const char answer[] = "{\"choices\":[{\"message\":{\"tool_calls\":[{\"id\":\"t\"}]}}]}";
    char text[512];
    bench_begin(bench, (const char *const[]){NULL}, BENCH_OPENAI, &engines);
    struct peer client = client_post(bench, "/v1/chat/completions", body);
    struct peer peer = engine_asked(engines.listener[0], "POST /v1/chat/completions", body);
    snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(answer), answer);
    peer_send(&peer, text);
    peer_until(&client, "GMS-Resume: none; reason=\"the request uses tools\"");
    peer_until(&client, answer);
    peer_close(&peer);
    peer_close(&client);
    /* The engine separates its reasoning: nothing was seen yet, so it is asked again in the client's words. */
    client = client_post(bench, "/v1/chat/completions",
                         "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stream\":true}");
    peer = engine_asked(engines.listener[0], "POST /v1/chat/completions", "return_token_ids");
    peer_send(&peer, sse_head);
    event(&peer, "{\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}");
    peer_end(&peer);
    peer_close(&peer);
    peer = engine_asked(engines.listener[0], "POST /v1/chat/completions", "\"stream\":true}");
    assert_false(peer_has(&peer, "return_token_ids"));
    peer_send(&peer, sse_head);
    event(&peer, "{\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}");
    event(&peer, "{\"choices\":[{\"delta\":{\"content\":\"A\"}}]}");
    event(&peer, "[DONE]");
    peer_until(&client, "GMS-Resume: none");
    peer_until(&client, "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}");
    peer_until(&client, "data: {\"choices\":[{\"delta\":{\"content\":\"A\"}}]}");
    peer_until(&client, "data: [DONE]");
    peer_close(&peer);
    peer_close(&client);
    bench_end(bench, &engines);
}

static void errors_of_engines(void **state)
{
    struct relay_bench *bench = *state;
    struct bench_engines engines;
    bench_begin(bench, (const char *const[]){NULL}, BENCH_OPENAI, &engines);
    /* SGLang refuses token ids in streamed chat: asked again without. */
    struct peer client = client_post(bench, "/v1/chat/completions",
                                     "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stream\":true}");
    struct peer peer = engine_asked(engines.listener[0], "POST /v1/chat/completions", "return_token_ids");
    peer_send(&peer,
              "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
              "{\"object\":\"error\",\"message\":\"return_token_ids is not supported with stream=true\",\"code\":400}");
    peer_close(&peer);
    peer = engine_asked(engines.listener[0], "POST /v1/chat/completions", "\"stream\":true}");
    peer_send(&peer, sse_head);
    event(&peer, "{\"choices\":[{\"delta\":{\"content\":\"A\"}}]}");
    event(&peer, "[DONE]");
    peer_until(&client, "GMS-Resume: none");
    peer_until(&client, "[DONE]");
    peer_close(&peer);
    peer_close(&client);
    /* Its own refusals are passed on. */
    client = client_post(bench, "/v1/completions", "{\"prompt\":\"hi\",\"model\":\"other\"}");
    peer = engine_asked(engines.listener[0], "POST /v1/completions", "\"model\":\"other\"");
    peer_send(&peer, "HTTP/1.1 404 Not Found\r\nContent-Length: 48\r\n\r\n"
                     "{\"error\":{\"message\":\"no such model\",\"code\":404}}");
    peer_until(&client, "HTTP/1.1 404");
    peer_until(&client, "no such model");
    peer_close(&peer);
    peer_close(&client);
    /* Busy: tried again. Broken: 502. */
    client = client_post(bench, "/v1/completions", "{\"prompt\":\"hi\"}");
    peer = engine_asked(engines.listener[0], "POST /v1/completions", "hi");
    peer_send(&peer, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n");
    peer_close(&peer);
    peer = engine_asked(engines.listener[0], "POST /v1/completions", "hi");
    peer_send(&peer, sse_head);
    event(&peer, "not json");
    peer_until(&client, "HTTP/1.1 502");
    peer_close(&peer);
    peer_close(&client);
    client = client_post(bench, "/v1/completions", "{\"prompt\":\"hi\"}");
    peer = engine_asked(engines.listener[0], "POST /v1/completions", "hi");
    peer_send(&peer, "SSH-2.0-x\r\n\r\n");
    peer_until(&client, "HTTP/1.1 502");
    peer_close(&peer);
    peer_close(&client);
    /* The list of models is the engine's own. */
    client = client_get(bench, "/v1/models");
    peer = engine_accept(engines.listener[0]);
    peer_until(&peer, "GET /v1/models HTTP/1.1");
    peer_send(&peer,
              "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 19\r\n\r\n{\"data\":[\"theirs\"]}");
    peer_until(&client, "{\"data\":[\"theirs\"]}");
    peer_close(&peer);
    peer_close(&client);
    bench_end(bench, &engines);
}

/* A host that does not even refuse: no crash, and no waiting for ever. */
static void a_host_that_does_not_answer(void **state)
{
    struct relay_bench *bench = *state;
    struct sockaddr_in address;
    socklen_t bytes = sizeof address;
    char endpoint[160];
    int full[8], deaf = engine_listen(bench, NULL, endpoint);
    assert_int_equal(listen(deaf, 0), 0);
    assert_int_equal(getsockname(deaf, (struct sockaddr *)&address, &bytes), 0);
    for (size_t i = 0; i < sizeof full / sizeof full[0]; i++) { /* its queue is full: further ones hang */
        full[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(full[i], (struct sockaddr *)&address, bytes);
    }
    bench_start(bench, (const char *const[]){"--wait", "500ms", NULL});
    bench_serves(bench, 0, 1, 1, endpoint);
    bench_await_metric(bench, "gms_relay_serving_engine", 0);
    struct peer client = client_post(bench, "/v1/completions", "{\"prompt\":\"hi\"}");
    peer_until(&client, "HTTP/1.1 503");
    peer_until(&client, "Retry-After");
    assert_int_equal(bench_metric(bench, "gms_relay_crashes_total"), 0);
    peer_close(&client);
    for (size_t i = 0; i < sizeof full / sizeof full[0]; i++)
        gms_fd_close(&full[i]);
    gms_fd_close(&deaf);
    assert_int_equal(bench_stop(bench), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_setup, bench_teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_completion_goes_on_with_its_tokens),
        TEST(chat_goes_on_as_a_completion),
        TEST(without_token_ids_a_visible_answer_cannot_go_on),
        TEST(more_than_text_is_passed_on_as_it_is),
        TEST(errors_of_engines),
        TEST(a_host_that_does_not_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
