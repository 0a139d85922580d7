/* SPDX-License-Identifier: Apache-2.0
 * gms-relay between engines that the test plays: what a client sees when they die, hang, lie, or are not there. */
#include "relay_bench.h"

#include <sys/socket.h>

static const char stream_body[] = "{\"prompt\":\"a\",\"max_tokens\":4,\"seed\":7,\"stream\":true}";
static const char whole_body[] = "{\"prompt\":\"a\",\"max_tokens\":4,\"seed\":7}";

/* Before anybody is told. Nobody listens for it either: the relay, without news for a moment, would ask it again. */
static void engine_dies(struct bench_engines *engines, int engine, struct peer *peer)
{
    gms_fd_close(&engines->listener[engine]);
    peer_close(peer);
}

/* Accepts, greets, and checks which tokens were sent again. */
static struct peer take_over(const struct bench_engines *engines, int engine, const char *generated, char ret_id[129])
{
    struct peer peer = engine_accept(engines->listener[engine]);
    const char *line = engine_greet(&peer, (uint64_t)engine + 1, ret_id);
    char wanted[64];
    snprintf(wanted, sizeof wanted, "\"generated\":[%s]", generated);
    if (strstr(line, wanted) == NULL)
        fail_msg("%s does not hold %s", line, wanted);
    assert_non_null(strstr(line, "\"max_tokens\":4"));
    assert_non_null(strstr(line, "\"seed\":7"));
    return peer;
}

static void a_stream_goes_on_elsewhere(void **state)
{
    struct relay_bench *bench = *state;
    struct bench_engines engines;
    char id[129], text[64];
    /* With and without news before the end of the connection. */
    bench_begin(bench, (const char *const[]){NULL}, BENCH_MINILLM, &engines);
    struct peer client = client_post(bench, "/v1/completions", stream_body);
    struct peer peer = take_over(&engines, 0, "", id);
    engine_token(&peer, id, 0, 'A');
    engine_token(&peer, id, 1, 'B');
    peer_until(&client, "\"text\":\"B\"");
    engine_dies(&engines, 0, &peer);
    bench_await_metric(bench, "gms_relay_requests_waiting", 1);
    assert_false(engine_is_asked(engines.listener[1], 0));
    bench_serves(bench, -1, 0, 2, "");
    bench_serves(bench, 1, 2, 2, engines.endpoint[1]);
    peer = take_over(&engines, 1, "65,66", id);
    engine_token(&peer, id, 2, 'C');
    engine_token(&peer, id, 3, 'D');
    engine_done(&peer, id, 3);
    peer_until(&client, "data: [DONE]");
    peer_text(&client, text, sizeof text);
    assert_string_equal(text, "ABCD");
    assert_int_equal(bench_metric(bench, "gms_relay_resumes_total"), 1);
    assert_int_equal(bench_metric(bench, "gms_relay_resume_gap_seconds_count"), 1);
    peer_close(&peer);
    peer_close(&client);
    bench_end(bench, &engines);
}

static void news_of_a_hung_engine_are_enough(void **state)
{
    struct relay_bench *bench = *state;
    struct bench_engines engines;
    char id[129], old_id[129], text[64];
    bench_begin(bench, (const char *const[]){NULL}, BENCH_MINILLM, &engines);
    struct peer client = client_post(bench, "/v1/completions", stream_body);
    struct peer old = take_over(&engines, 0, "", old_id);
    engine_token(&old, old_id, 0, 'A');
    peer_until(&client, "\"text\":\"A\"");
    /* It does not end; another serves all the same. What it says then is not heard. */
    bench_serves(bench, 1, 2, 2, engines.endpoint[1]);
    peer_end(&old);
    engine_token(&old, old_id, 1, 'X');
    struct peer peer = take_over(&engines, 1, "65", id);
    engine_token(&peer, id, 1, 'B');
    engine_token(&peer, id, 2, 'C');
    engine_token(&peer, id, 3, 'D');
    engine_done(&peer, id, 2);
    peer_until(&client, "[DONE]");
    peer_text(&client, text, sizeof text);
    assert_string_equal(text, "ABCD");
    peer_close(&old);
    peer_close(&peer);
    peer_close(&client);
    bench_end(bench, &engines);
}

static void a_whole_answer_survives_too(void **state)
{
    struct relay_bench *bench = *state;
    struct bench_engines engines;
    char id[129];
    bench_begin(bench, (const char *const[]){NULL}, BENCH_MINILLM, &engines);
    struct peer client =
        client_post(bench, "/v1/chat/completions",
                    "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":4,\"seed\":7}");
    struct peer peer = take_over(&engines, 0, "", id);
    engine_token(&peer, id, 0, 'A');
    bench_await_metric(bench, "gms_relay_tokens_total", 1);
    bench_serves(bench, 1, 2, 2, engines.endpoint[1]);
    peer_close(&peer);
    peer = take_over(&engines, 1, "65", id);
    engine_token(&peer, id, 1, 'B');
    engine_done(&peer, id, 9);
    peer_until(&client, "HTTP/1.1 200 OK");
    peer_until(&client, "\"object\":\"chat.completion\"");
    peer_until(&client, "\"content\":\"AB\"");
    peer_until(&client, "\"prompt_tokens\":8,\"completion_tokens\":2"); /* re-sent tokens are no prompt */
    peer_close(&peer);
    peer_close(&client);
    bench_end(bench, &engines);
}

static void two_crashes_in_a_row_end_it(void **state)
{
    struct relay_bench *bench = *state;
    struct bench_engines engines;
    char id[129];
    bench_begin(bench, (const char *const[]){NULL}, BENCH_MINILLM, &engines);
    struct peer streaming = client_post(bench, "/v1/completions", stream_body);
    struct peer first = take_over(&engines, 0, "", id);
    engine_token(&first, id, 0, 'A');
    peer_until(&streaming, "\"text\":\"A\"");
    struct peer whole = client_post(bench, "/v1/completions", whole_body);
    struct peer first_whole = take_over(&engines, 0, "", id);
    bench_serves(bench, 1, 2, 2, engines.endpoint[1]);
    peer_close(&first);
    peer_close(&first_whole);
    struct peer second = engine_accept(engines.listener[1]), other = engine_accept(engines.listener[1]);
    engine_greet(&second, 2, id);
    engine_greet(&other, 2, id);
    bench_serves(bench, 2, 3, 3, engines.endpoint[2]);
    peer_until(&streaming, "data: {\"error\":{\"message\":\"this request was in flight in 2 engine crashes in a row");
    peer_end(&streaming); /* and not as if it were whole */
    assert_false(peer_has(&streaming, "[DONE]"));
    assert_false(peer_has(&streaming, "\r\n0\r\n"));
    peer_until(&whole, "HTTP/1.1 502");
    assert_false(engine_is_asked(engines.listener[2], 100));
    assert_int_equal(bench_metric(bench, "gms_relay_crash_failures_total"), 2);
    /* Others go to the third. */
    struct peer next = client_post(bench, "/v1/completions", whole_body);
    struct peer third = take_over(&engines, 2, "", id);
    engine_token(&third, id, 0, 'Z');
    engine_done(&third, id, 1);
    peer_until(&next, "\"text\":\"Z\"");
    peer_close(&next);
    peer_close(&third);
    peer_close(&second);
    peer_close(&other);
    peer_close(&whole);
    peer_close(&streaming);
    bench_end(bench, &engines);
}

static void nobody_serves_for_too_long(void **state)
{
    struct relay_bench *bench = *state;
    struct bench_engines engines;
    char id[129];
    bench_begin(bench, (const char *const[]){"--wait", "300ms", NULL}, BENCH_MINILLM, &engines);
    struct peer client = client_post(bench, "/v1/completions", stream_body);
    struct peer peer = take_over(&engines, 0, "", id);
    engine_token(&peer, id, 0, 'A');
    peer_until(&client, "\"text\":\"A\"");
    bench_serves(bench, -1, 0, 2, "");
    peer_close(&peer);
    struct peer late = client_post(bench, "/v1/completions", stream_body);
    struct peer health = client_get(bench, "/health");
    peer_until(&health, "HTTP/1.1 503");
    peer_close(&health);
    peer_until(&late, "HTTP/1.1 503");
    peer_until(&late, "Retry-After: 1");
    peer_until(&client, "data: {\"error\":");
    peer_end(&client);
    peer_close(&client);
    peer_close(&late);
    bench_end(bench, &engines);
}

static void somebody_serves_in_time(void **state)
{
    struct relay_bench *bench = *state;
    struct bench_engines engines;
    char id[129];
    bench_begin(bench, (const char *const[]){NULL}, BENCH_MINILLM, &engines);
    bench_serves(bench, -1, 0, 2, "");
    bench_await_metric(bench, "gms_relay_serving_engine", -1);
    struct peer early = client_post(bench, "/v1/completions", whole_body);
    bench_await_metric(bench, "gms_relay_requests_waiting", 1);
    bench_serves(bench, 1, 2, 2, engines.endpoint[1]);
    struct peer peer = take_over(&engines, 1, "", id);
    engine_done(&peer, id, 1);
    peer_until(&early, "200 OK");
    peer_close(&early);
    peer_close(&peer);
    bench_end(bench, &engines);
}

static void an_engine_that_is_not_there_yet(void **state)
{
    struct relay_bench *bench = *state;
    struct bench_engines engines;
    char id[129];
    bench_begin(bench, (const char *const[]){NULL}, BENCH_MINILLM, &engines);
    struct peer client = client_post(bench, "/v1/completions", whole_body);
    /* Another incarnation answers, it is full, it hangs up before its hello: none of it is a crash. */
    struct peer peer = engine_accept(engines.listener[0]);
    peer_send(&peer, "{\"hello\":\"minillm\",\"engine\":0,\"incarnation\":9,\"epoch\":1,\"pid\":1}\n");
    peer_end(&peer);
    assert_int_equal(peer.bytes, 0);
    peer_close(&peer);
    peer = engine_accept(engines.listener[0]);
    peer_send(&peer, "{\"error\":\"too many clients; try again later\"}\n");
    peer_close(&peer);
    for (int i = 0; i < 3; i++) {
        peer = engine_accept(engines.listener[0]);
        peer_close(&peer);
    }
    peer = take_over(&engines, 0, "", id);
    engine_token(&peer, id, 0, 'A');
    engine_done(&peer, id, 1);
    peer_until(&client, "\"text\":\"A\"");
    assert_int_equal(bench_metric(bench, "gms_relay_crashes_total"), 0);
    peer_close(&peer);
    peer_close(&client);
    bench_end(bench, &engines);
}

static void engines_that_do_not_keep_to_the_protocol(void **state)
{
    struct relay_bench *bench = *state;
    struct bench_engines engines;
    char id[129];
    static const char *const lines[] = {"garbage\n", "{\"id\":\"%s\",\"index\":5,\"token\":65,\"text\":\"A\"}\n",
                                        "{\"id\":\"another\",\"index\":0,\"token\":65,\"text\":\"A\"}\n",
                                        "{\"id\":\"%s\",\"index\":0,\"token\":65}\n",
                                        "{\"id\":\"%s\",\"done\":true}\n"};
    bench_begin(bench, (const char *const[]){NULL}, BENCH_MINILLM, &engines);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        struct peer client = client_post(bench, "/v1/completions", whole_body);
        struct peer peer = take_over(&engines, 0, "", id);
        const char *place = strstr(lines[i], "%s");
        if (place != NULL) {
            peer_send_bytes(&peer, lines[i], (size_t)(place - lines[i]));
            peer_send(&peer, id);
            peer_send(&peer, place + 2);
        } else {
            peer_send(&peer, lines[i]);
        }
        peer_until(&client, "HTTP/1.1 502");
        peer_end(&peer);
        peer_close(&peer);
        peer_close(&client);
    }
    struct peer client = client_post(bench, "/v1/completions", whole_body);
    struct peer peer = take_over(&engines, 0, "", id);
    static char endless[70000];
    memset(endless, 'x', sizeof endless);
    peer_send_bytes(&peer, endless, sizeof endless);
    peer_until(&client, "HTTP/1.1 502");
    peer_close(&peer);
    peer_close(&client);
    /* What it refuses is passed on. */
    client = client_post(bench, "/v1/completions", whole_body);
    peer = take_over(&engines, 0, "", id);
    char line[256];
    snprintf(line, sizeof line, "{\"id\":\"%s\",\"error\":\"the prompt is too \\\"long\\\"\"}\n", id);
    peer_send(&peer, line);
    peer_until(&client, "HTTP/1.1 400");
    peer_until(&client, "the prompt is too \\\"long\\\"");
    peer_close(&peer);
    peer_close(&client);
    bench_end(bench, &engines);
}

static void a_silent_engine(void **state)
{
    struct relay_bench *bench = *state;
    struct bench_engines engines;
    bench_begin(bench, (const char *const[]){"--silence", "200ms", NULL}, BENCH_MINILLM, &engines);
    struct peer client = client_post(bench, "/v1/completions", whole_body);
    struct peer peer = engine_accept(engines.listener[0]);
    peer_send(&peer, "{\"hello\":\"minillm\",\"engine\":0,\"incarnation\":1,\"epoch\":1,\"pid\":1}\n"); /* if in time */
    peer_until(&client, "HTTP/1.1 504");
    peer_end(&peer);
    peer_close(&peer);
    peer_close(&client);
    bench_end(bench, &engines);
}

/* There is no room for long, and the relay has answered others meanwhile, twice: it had its turn, and left it unread.
 */
static bool is_not_read_on(struct relay_bench *bench, const struct peer *peer)
{
    struct pollfd room = {.fd = peer->fd, .events = POLLOUT};
    for (int turns = 0; poll(&room, 1, 50) == 0; turns++) {
        if (turns == 2)
            return true;
        (void)bench_metric(bench, "gms_relay_requests_running");
    }
    return false;
}

/* One client takes nothing of a long answer: its engine is not read on, others are served, and it is dropped in the
 * end. */
static void a_client_that_does_not_read(void **state)
{
    struct relay_bench *bench = *state;
    struct bench_engines engines;
    char id[129];
    bench_begin(bench, (const char *const[]){"--max-unsent", "64KiB", "--stall", "2s", NULL}, BENCH_MINILLM, &engines);
    struct peer client = client_connect(bench);
    int small = 4096;
    setsockopt(client.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    static const char body[] = "{\"prompt\":\"a\",\"max_tokens\":32768,\"seed\":7,\"stream\":true}";
    char text[512];
    snprintf(text, sizeof text, "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: %zu\r\n\r\n%s",
             sizeof body - 1, body);
    peer_send(&client, text);
    struct peer peer = engine_accept(engines.listener[0]);
    engine_greet(&peer, 1, id);
    uint32_t index = 0;
    for (; index < 32768 && !is_not_read_on(bench, &peer); index++)
        engine_token(&peer, id, index, 'A');
    assert_true(index < 32768); /* the back-pressure has reached the engine */
    struct peer other = client_post(bench, "/v1/completions", whole_body);
    struct peer served = engine_accept(engines.listener[0]);
    engine_greet(&served, 1, id);
    engine_done(&served, id, 1);
    peer_until(&other, "200 OK");
    peer_close(&other);
    peer_close(&served);
    assert_true(bench_metric(bench, "gms_relay_resident_bytes_most") < 64e6);
    bench_await_metric(bench, "gms_relay_requests_running", 0);
    assert_int_equal(bench_metric(bench, "gms_relay_stalled_clients_total"), 1);
    peer_end(&peer);
    peer_close(&peer);
    peer_close(&client);
    bench_end(bench, &engines);
}

static void a_coordinator_that_comes_and_goes(void **state)
{
    struct relay_bench *bench = *state;
    struct bench_engines engines;
    char id[129];
    bench_begin(bench, (const char *const[]){NULL}, BENCH_MINILLM, &engines);
    gms_fd_close(&bench->coordinator);
    bench_await_metric(bench, "gms_relay_coordinator_connected", 0);
    /* Engines serve on without one. */
    struct peer client = client_post(bench, "/v1/completions", whole_body);
    struct peer peer = take_over(&engines, 0, "", id);
    bench_accept_watch(bench);
    bench_serves(bench, 0, 1, 1, engines.endpoint[0]); /* the same: nothing happens */
    bench_await_metric(bench, "gms_relay_coordinator_connected", 1);
    engine_token(&peer, id, 0, 'A');
    engine_done(&peer, id, 1);
    peer_until(&client, "\"text\":\"A\"");
    assert_int_equal(bench_metric(bench, "gms_relay_crashes_total"), 0);
    peer_close(&peer);
    peer_close(&client);
    /* A group that begins anew, with numbers that were there before. */
    bench_serves(bench, 1, 2, 2, engines.endpoint[1]);
    bench_await_metric(bench, "gms_relay_serving_engine", 1);
    bench_serves(bench, 0, 1, 1, engines.endpoint[0]);
    bench_await_metric(bench, "gms_relay_serving_engine", 0);
    client = client_post(bench, "/v1/completions", whole_body);
    peer = take_over(&engines, 0, "", id);
    peer_close(&client);
    peer_close(&peer);
    bench_end(bench, &engines);
}

static void without_a_coordinator_the_file_is_read(void **state)
{
    struct relay_bench *bench = *state;
    char path[256], text[512], endpoint[160], id[129];
    int engine = engine_listen(bench, "e0", endpoint);
    snprintf(path, sizeof path, "%s/serving", bench->dir);
    int length = snprintf(text, sizeof text,
                          "{\"epoch\":4,\"engine\":0,\"incarnation\":1,\"endpoint\":\"%s\",\"pid\":1}", endpoint);
    assert_int_equal(gms_file_replace(path, text, (size_t)length, NULL), GMS_OK);
    bench_start(bench, (const char *const[]){NULL});
    gms_fd_close(&bench->coordinator); /* without a word */
    bench_await_metric(bench, "gms_relay_serving_engine", 0);
    assert_int_equal(bench_metric(bench, "gms_relay_epoch"), 4);
    struct peer client = client_post(bench, "/v1/completions", whole_body);
    struct peer peer = engine_accept(engine);
    engine_greet(&peer, 1, id);
    engine_done(&peer, id, 1);
    peer_until(&client, "200 OK");
    peer_close(&client);
    peer_close(&peer);
    gms_fd_close(&engine);
    assert_int_equal(bench_stop(bench), 0);
}

static void the_end_of_the_relay(void **state)
{
    struct relay_bench *bench = *state;
    struct bench_engines engines;
    char id[129];
    bench_begin(bench, (const char *const[]){NULL}, BENCH_MINILLM, &engines);
    struct peer client = client_post(bench, "/v1/completions", stream_body), idle = client_get(bench, "/health");
    struct peer peer = take_over(&engines, 0, "", id);
    engine_token(&peer, id, 0, 'A');
    peer_until(&client, "\"text\":\"A\"");
    peer_until(&idle, "200 OK");
    gms_pidfd_signal(bench->pidfd, SIGTERM);
    /* No new request on the old connection; what runs is finished. */
    uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    while (!idle.ended && gms_clock_ns() < deadline_ns) {
        struct pollfd wait = {.fd = idle.fd, .events = POLLIN};
        peer_send(&idle, "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
        if (poll(&wait, 1, 10) == 1) {
            char answer[1024];
            idle.ended = recv(idle.fd, answer, sizeof answer, 0) <= 0;
        }
    }
    assert_true(idle.ended);
    for (uint32_t i = 1; i < 4; i++)
        engine_token(&peer, id, i, (char)('A' + i));
    engine_done(&peer, id, 1);
    peer_until(&client, "[DONE]");
    int status = unit_wait(bench->pid);
    bench->pid = 0;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    peer_close(&client);
    peer_close(&idle);
    peer_close(&peer);
    for (int i = 0; i < 3; i++)
        gms_fd_close(&engines.listener[i]);
}

/* SIGKILL: a stream ends visibly, and can be asked again of the next relay. */
static void the_death_of_the_relay(void **state)
{
    struct relay_bench *bench = *state;
    struct bench_engines engines;
    char id[129];
    bench_begin(bench, (const char *const[]){NULL}, BENCH_MINILLM, &engines);
    struct peer client = client_post(bench, "/v1/completions", stream_body);
    struct peer peer = take_over(&engines, 0, "", id);
    engine_token(&peer, id, 0, 'A');
    peer_until(&client, "\"text\":\"A\"");
    gms_pidfd_signal(bench->pidfd, SIGKILL);
    peer_end(&client);
    assert_false(peer_has(&client, "[DONE]"));
    peer_end(&peer); /* the engine knows that nobody wants the rest */
    peer_close(&client);
    peer_close(&peer);
    unit_wait(bench->pid);
    bench->pid = 0;
    gms_fd_close(&bench->pidfd);
    bench_start(bench, (const char *const[]){NULL});
    bench_serves(bench, 0, 1, 1, engines.endpoint[0]);
    client = client_post(bench, "/v1/completions", stream_body);
    peer = take_over(&engines, 0, "", id);
    for (uint32_t i = 0; i < 4; i++)
        engine_token(&peer, id, i, (char)('A' + i));
    engine_done(&peer, id, 1);
    peer_until(&client, "[DONE]");
    peer_close(&client);
    peer_close(&peer);
    bench_end(bench, &engines);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_setup, bench_teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_stream_goes_on_elsewhere),
        TEST(news_of_a_hung_engine_are_enough),
        TEST(a_whole_answer_survives_too),
        TEST(two_crashes_in_a_row_end_it),
        TEST(nobody_serves_for_too_long),
        TEST(somebody_serves_in_time),
        TEST(an_engine_that_is_not_there_yet),
        TEST(engines_that_do_not_keep_to_the_protocol),
        TEST(a_silent_engine),
        TEST(a_client_that_does_not_read),
        TEST(a_coordinator_that_comes_and_goes),
        TEST(without_a_coordinator_the_file_is_read),
        TEST(the_end_of_the_relay),
        TEST(the_death_of_the_relay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
