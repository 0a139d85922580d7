/* SPDX-License-Identifier: Apache-2.0
 * gms-relay's HTTP: bad input, limits, slow and early-leaving clients, pipelining. After each the relay still serves.
 */
#include "relay_bench.h"

#include <sys/socket.h>

static const char post_head[] = "POST /v1/completions HTTP/1.1\r\nHost: t\r\n";
static const char small[] = "{\"prompt\":\"a\",\"max_tokens\":2,\"stream\":true}";

/* A status line comes, and then the end of the connection. */
static void refused_with(struct peer *peer, int status)
{
    char wanted[32];
    snprintf(wanted, sizeof wanted, "HTTP/1.1 %d ", status);
    peer_until(peer, wanted);
    peer_until(peer, "Connection: close");
    peer_end(peer);
    peer_close(peer);
}

static void still_serves(struct relay_bench *bench)
{
    struct peer peer = client_get(bench, "/health");
    peer_until(&peer, "HTTP/1.1 200 OK");
    peer_close(&peer);
}

static void start(struct relay_bench *bench, const char *const *words, int *ret_engine)
{
    char endpoint[160];
    bench_start(bench, words);
    *ret_engine = engine_listen(bench, "e0", endpoint);
    bench_serves(bench, 0, 1, 1, endpoint);
    bench_await_metric(bench, "gms_relay_serving_engine", 0);
}

static void bad_requests_get_a_status(void **state)
{
    struct relay_bench *bench = *state;
    int engine;
    static const struct {
        int status;
        const char *text;
    } cases[] = {{400, "nonsense\r\n\r\n"},
                 {400, "GET /health HTTP/1.1\r\n\r\n"},
                 {505, "GET /health HTTP/3.0\r\nHost: t\r\n\r\n"},
                 {400, "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: x\r\n\r\n"},
                 {413, "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 1048577\r\n\r\n"},
                 {501, "POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: br\r\n\r\n"},
                 {400, "POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"},
                 {400, "\x16\x03\x01\x02\x01\xfc\x03\x03\r\n\r\n"}};
    start(bench, (const char *const[]){NULL}, &engine);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct peer peer = client_connect(bench);
        peer_send(&peer, cases[i].text);
        refused_with(&peer, cases[i].status);
    }
    /* A head without an end. */
    struct peer peer = client_connect(bench);
    peer_send(&peer, "GET / HTTP/1.1\r\nHost: t\r\nX: ");
    static char much[20000];
    memset(much, 'x', sizeof much);
    peer_send_bytes(&peer, much, sizeof much);
    refused_with(&peer, 431);
    still_serves(bench);
    gms_fd_close(&engine);
    assert_int_equal(bench_stop(bench), 0);
}

static void requests_that_are_read_but_wrong(void **state)
{
    struct relay_bench *bench = *state;
    int engine;
    static const struct {
        const char *path, *body, *status, *says;
    } cases[] = {{"/v1/completions", "{", "400", "not JSON"},
                 {"/v1/completions", "{}", "400", "prompt is missing"},
                 {"/v1/completions", "{\"prompt\":\"a\",\"top_p\":0.5}", "400", "does not support top_p"},
                 {"/v1/completions", "{\"prompt\":\"a\",\"n\":3}", "400", "does not support n"},
                 {"/v1/completions", "{\"prompt\":\"a\",\"model\":\"other\"}", "404", "not served here"},
                 {"/v1/chat/completions", "{\"messages\":[]}", "400", "messages"},
                 {"/v1/embeddings", "{}", "404", "no such path"},
                 {"/health", "{}", "405", "GET"}};
    start(bench, (const char *const[]){"--model", "mini", NULL}, &engine);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct peer peer = client_post(bench, cases[i].path, cases[i].body);
        char wanted[32];
        snprintf(wanted, sizeof wanted, "HTTP/1.1 %s ", cases[i].status);
        peer_until(&peer, wanted);
        peer_until(&peer, "\"error\":{\"message\":");
        peer_until(&peer, cases[i].says);
        peer_until(&peer, "\"code\":");
        /* The connection is good for more. */
        peer_send(&peer, "GET /v1/models HTTP/1.1\r\nHost: t\r\n\r\n");
        peer_until(&peer, "\"id\":\"mini\"");
        peer_close(&peer);
    }
    struct peer peer = client_get(bench, "/v1/completions");
    peer_until(&peer, "HTTP/1.1 405");
    peer_until(&peer, "Allow: POST");
    peer_close(&peer);
    assert_false(engine_is_asked(engine, 0));
    gms_fd_close(&engine);
    assert_int_equal(bench_stop(bench), 0);
}

static void bodies_may_come_in_any_form(void **state)
{
    struct relay_bench *bench = *state;
    int engine;
    char text[512], id[129];
    start(bench, (const char *const[]){NULL}, &engine);
    for (int form = 0; form < 3; form++) {
        struct peer client = client_connect(bench);
        if (form == 0) { /* byte by byte */
            snprintf(text, sizeof text, "%sContent-Length: %zu\r\n\r\n%s", post_head, sizeof small - 1, small);
            for (size_t i = 0; text[i] != '\0'; i++)
                peer_send_bytes(&client, text + i, 1);
        } else if (form == 1) {
            snprintf(text, sizeof text,
                     "%sTransfer-Encoding: chunked\r\n\r\n5;x=y\r\n%.5s\r\n%zx\r\n%s\r\n0\r\nT: x\r\n\r\n", post_head,
                     small, sizeof small - 1 - 5, small + 5);
            peer_send(&client, text);
        } else {
            snprintf(text, sizeof text, "%sExpect: 100-continue\r\nContent-Length: %zu\r\n\r\n", post_head,
                     sizeof small - 1);
            peer_send(&client, text);
            peer_until(&client, "HTTP/1.1 100 Continue\r\n\r\n");
            peer_send(&client, small);
        }
        struct peer peer = engine_accept(engine);
        const char *line = engine_greet(&peer, 1, id);
        assert_non_null(strstr(line, "\"prompt\":\"a\""));
        engine_token(&peer, id, 0, 'x');
        engine_token(&peer, id, 1, 'y');
        engine_done(&peer, id, 1);
        peer_until(&client, "200 OK");
        peer_until(&client, "GMS-Resume: exact");
        peer_until(&client, "\"text\":\"x\"");
        peer_until(&client, "\"text\":\"y\"");
        peer_until(&client, "data: [DONE]\n\n\r\n0\r\n\r\n");
        peer_end(&peer);
        peer_close(&peer);
        peer_close(&client);
    }
    gms_fd_close(&engine);
    assert_int_equal(bench_stop(bench), 0);
}

static void too_much_body(void **state)
{
    struct relay_bench *bench = *state;
    int engine;
    static char piece[60000];
    start(bench, (const char *const[]){"--max-body", "64KiB", NULL}, &engine);
    /* Sent whatever the relay says: the status must not be lost with it. */
    struct peer client = client_connect(bench);
    peer_send(&client, post_head);
    peer_send(&client, "Content-Length: 6000000\r\n\r\n");
    for (int i = 0; i < 100; i++)
        peer_send_bytes(&client, piece, sizeof piece);
    refused_with(&client, 413);
    client = client_connect(bench);
    peer_send(&client, post_head);
    peer_send(&client, "Transfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 3; i++) {
        peer_send(&client, "EA60\r\n");
        peer_send_bytes(&client, piece, sizeof piece);
        peer_send(&client, "\r\n");
    }
    refused_with(&client, 413);
    still_serves(bench);
    gms_fd_close(&engine);
    assert_int_equal(bench_stop(bench), 0);
}

static void slow_requests_are_ended(void **state)
{
    struct relay_bench *bench = *state;
    int engine;
    start(bench, (const char *const[]){"--head-time", "250ms", "--body-time", "250ms", "--idle", "250ms", NULL},
          &engine);
    struct peer slow = client_connect(bench), body = client_connect(bench), idle = client_connect(bench);
    peer_send(&slow, "GET /health HT");
    peer_send(&body, post_head);
    peer_send(&body, "Content-Length: 10\r\n\r\n{");
    refused_with(&slow, 408);
    refused_with(&body, 408);
    peer_end(&idle);
    assert_int_equal(idle.bytes, 0);
    peer_close(&idle);
    /* One byte now and then does not buy time. */
    slow = client_connect(bench);
    uint64_t begun_ns = gms_clock_ns();
    while (!peer_has(&slow, "408") && gms_clock_ns() - begun_ns < 10 * GMS_NS_PER_S) {
        struct pollfd wait = {.fd = slow.fd, .events = POLLIN};
        peer_send(&slow, "G");
        if (poll(&wait, 1, 10) == 1)
            peer_until(&slow, "HTTP/1.1 408");
    }
    assert_true(gms_clock_ns() - begun_ns >= 50 * GMS_NS_PER_MS); /* the loop's clock lags a little */
    peer_close(&slow);
    bench_await_metric(bench, "gms_relay_request_timeouts_total", 3);
    gms_fd_close(&engine);
    assert_int_equal(bench_stop(bench), 0);
}

static void too_many_connections_and_requests(void **state)
{
    struct relay_bench *bench = *state;
    int engine;
    char id[129];
    start(bench, (const char *const[]){"--max-connections", "4", "--max-requests", "2", NULL}, &engine);
    struct peer one = client_post(bench, "/v1/completions", small), two = client_post(bench, "/v1/completions", small);
    struct peer first = engine_accept(engine), second = engine_accept(engine);
    struct peer three = client_post(bench, "/v1/completions", small);
    peer_until(&three, "HTTP/1.1 503");
    peer_until(&three, "Retry-After: 1");
    peer_until(&three, "--max-requests");
    struct peer four = client_get(bench, "/health");
    peer_until(&four, "200 OK");
    struct peer five = client_connect(bench); /* says nothing */
    peer_until(&five, "HTTP/1.1 503");
    peer_end(&five);
    peer_close(&five);
    peer_close(&four);
    peer_close(&three);
    /* Who leaves makes room. */
    engine_greet(&first, 1, id);
    peer_close(&one);
    peer_end(&first);
    peer_close(&first);
    three = client_post(bench, "/v1/completions", small);
    first = engine_accept(engine);
    peer_close(&three);
    peer_close(&two);
    peer_close(&first);
    peer_close(&second);
    gms_fd_close(&engine);
    assert_int_equal(bench_stop(bench), 0);
}

static void who_leaves_early_costs_nothing_more(void **state)
{
    struct relay_bench *bench = *state;
    int engine;
    char id[129];
    start(bench, (const char *const[]){NULL}, &engine);
    /* Before the engine said a word, in the middle, and with a reset. */
    for (int when = 0; when < 3; when++) {
        struct peer client = client_post(bench, "/v1/completions", small);
        struct peer peer = engine_accept(engine);
        engine_greet(&peer, 1, id);
        if (when > 0) {
            engine_token(&peer, id, 0, 'x');
            peer_until(&client, "\"text\":\"x\"");
        }
        struct linger reset = {.l_onoff = 1, .l_linger = 0};
        if (when == 2)
            assert_int_equal(setsockopt(client.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
        peer_close(&client);
        peer_end(&peer); /* the engine sees it, and stops */
        peer_close(&peer);
    }
    /* And while nobody serves. */
    bench_serves(bench, -1, 0, 2, "");
    bench_await_metric(bench, "gms_relay_serving_engine", -1);
    struct peer client = client_post(bench, "/v1/completions", small);
    bench_await_metric(bench, "gms_relay_requests_waiting", 1);
    peer_close(&client);
    bench_await_metric(bench, "gms_relay_requests_waiting", 0);
    bench_await_metric(bench, "gms_relay_requests_total{api=\"completions\",outcome=\"client_gone\"}", 4);
    gms_fd_close(&engine);
    assert_int_equal(bench_stop(bench), 0);
}

static void pipelined_requests_are_answered_in_order(void **state)
{
    struct relay_bench *bench = *state;
    int engine;
    char text[2048], id[129];
    start(bench, (const char *const[]){NULL}, &engine);
    struct peer client = client_connect(bench);
    snprintf(text, sizeof text,
             "GET /health HTTP/1.1\r\nHost: t\r\n\r\n%sContent-Length: %zu\r\n\r\n%s\r\nGET /nope HTTP/1.1\r\nHost: "
             "t\r\n\r\n%sContent-Length: %zu\r\n\r\n%sGET /v1/models HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
             post_head, sizeof small - 1, small, post_head, sizeof small - 1, small);
    peer_send(&client, text);
    for (int i = 0; i < 2; i++) {
        struct peer peer = engine_accept(engine);
        assert_false(engine_is_asked(engine, 50)); /* one at a time */
        engine_greet(&peer, 1, id);
        engine_token(&peer, id, 0, (char)('p' + i));
        engine_token(&peer, id, 1, (char)('r' + i));
        engine_done(&peer, id, 1);
        peer_end(&peer);
        peer_close(&peer);
    }
    peer_until(&client, "\"status\":\"serving\"");
    peer_until(&client, "\"text\":\"p\"");
    peer_until(&client, "[DONE]");
    peer_until(&client, "HTTP/1.1 404");
    peer_until(&client, "\"text\":\"q\"");
    peer_until(&client, "[DONE]");
    peer_until(&client, "\"object\":\"list\"");
    peer_end(&client);
    peer_close(&client);
    gms_fd_close(&engine);
    assert_int_equal(bench_stop(bench), 0);
}

static void what_is_sent_ahead_is_bounded(void **state)
{
    struct relay_bench *bench = *state;
    int engine;
    char id[129];
    static char much[65536];
    start(bench, (const char *const[]){NULL}, &engine);
    struct peer client = client_post(bench, "/v1/completions", small);
    struct peer peer = engine_accept(engine);
    engine_greet(&peer, 1, id);
    /* The relay takes its buffer's worth, then the sockets fill and the client blocks. */
    memset(much, 'x', sizeof much);
    size_t sent = 0;
    for (;;) {
        ssize_t n = send(client.fd, much, sizeof much, MSG_DONTWAIT | MSG_NOSIGNAL);
        struct pollfd wait = {.fd = client.fd, .events = POLLOUT};
        if (n < 0 && poll(&wait, 1, 200) == 0)
            break;
        sent += n > 0 ? (size_t)n : 0;
        assert_true(sent < 64 * 1024 * 1024);
    }
    assert_true(bench_metric(bench, "gms_relay_resident_bytes_most") < 64e6);
    engine_token(&peer, id, 0, 'x');
    peer_until(&client, "\"text\":\"x\"");
    engine_token(&peer, id, 1, 'y');
    engine_done(&peer, id, 1);
    peer_until(&client, "[DONE]");
    peer_close(&client);
    peer_close(&peer);
    still_serves(bench);
    gms_fd_close(&engine);
    assert_int_equal(bench_stop(bench), 0);
}

static void old_clients_get_no_chunks(void **state)
{
    struct relay_bench *bench = *state;
    int engine;
    char text[512], id[129];
    start(bench, (const char *const[]){NULL}, &engine);
    struct peer client = client_connect(bench);
    snprintf(text, sizeof text, "POST /v1/completions HTTP/1.0\r\nContent-Length: %zu\r\n\r\n%s", sizeof small - 1,
             small);
    peer_send(&client, text);
    struct peer peer = engine_accept(engine);
    engine_greet(&peer, 1, id);
    engine_token(&peer, id, 0, 'x');
    engine_token(&peer, id, 1, 'y');
    engine_done(&peer, id, 1);
    peer_end(&client);
    assert_true(peer_has(&client, "Connection: close"));
    assert_false(peer_has(&client, "chunked"));
    assert_string_equal(client.text + client.bytes - 14, "data: [DONE]\n\n");
    peer_close(&client);
    peer_close(&peer);
    client = client_connect(bench);
    peer_send(&client, "HEAD /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    peer_end(&client);
    assert_string_equal(client.text + client.bytes - 4, "\r\n\r\n");
    peer_close(&client);
    gms_fd_close(&engine);
    assert_int_equal(bench_stop(bench), 0);
}

static void one_relay_an_address(void **state)
{
    struct relay_bench *bench = *state, other = {.pidfd = -1};
    int engine;
    char listen_on[32];
    start(bench, (const char *const[]){NULL}, &engine);
    snprintf(listen_on, sizeof listen_on, "127.0.0.1:%u", bench->port);
    char program[512];
    snprintf(program, sizeof program, "%s/gms-relay", getenv("GMS_BIN"));
    other.pid = fork();
    assert_true(other.pid >= 0);
    if (other.pid == 0) {
        int err = open(bench->err_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        child_check(dup2(err, 2) == 2);
        execl(program, program, "--run-dir", bench->dir, "--listen", listen_on, NULL);
        _exit(99);
    }
    int status = unit_wait(other.pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 69);
    still_serves(bench);
    gms_fd_close(&engine);
    assert_int_equal(bench_stop(bench), 0);
}

static uint64_t random_state;

static uint32_t draw(uint32_t below)
{
    uint64_t z = (random_state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((z ^ (z >> 31)) % below);
}

/* Conversations that are cut, spoiled, split and left at any moment; engines that do the same. Whatever happens, the
 * relay lives, and in the end nothing is left of it all. */
static void conversations_gone_wrong(void **state)
{
    struct relay_bench *bench = *state;
    int engine;
    static const char *const texts[] = {
        "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 44\r\n\r\n"
        "{\"prompt\":\"a\",\"max_tokens\":2,\"stream\":true}",
        "POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
        "E\r\n{\"prompt\":\"a\"}\r\n0\r\n\r\n",
        "POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 43\r\n\r\n"
        "{\"messages\":[{\"role\":\"u\",\"content\":\"x\"}]}GET /health HTTP/1.1\r\nHost: t\r\n\r\n",
        "GET /metrics HTTP/1.0\r\n\r\n",
    };
    static const char *const words[] = {
        "{\"hello\":\"minillm\",\"engine\":0,\"incarnation\":1,\"epoch\":1,\"pid\":1}\n",
        "{\"hello\":\"minillm\",\"engine\":0,\"incarnation\":1,\"epoch\":1,\"pid\":1}\n{\"id\":\"x\",\"index\":0}\n",
        "{\"error\":\"no\"}\n", "nonsense\n"};
    start(bench,
          (const char *const[]){"--wait", "40ms", "--silence", "40ms", "--head-time", "1s", "--body-time", "1s",
                                "--idle", "1s", "--max-requests", "8", "--max-connections", "16", NULL},
          &engine);
    const char *seed = getenv("GMS_SEED");
    random_state = seed != NULL ? strtoull(seed, NULL, 0) : (uint64_t)getpid() << 20 ^ gms_clock_ns();
    print_message("GMS_SEED=%llu\n", (unsigned long long)random_state);
    for (int round = 0; round < 300; round++) {
        char text[512];
        struct peer client = client_connect(bench);
        const char *chosen = texts[draw(4)];
        size_t bytes = strlen(chosen);
        memcpy(text, chosen, bytes);
        for (uint32_t spoil = draw(3); spoil > 0; spoil--)
            text[draw((uint32_t)bytes)] = (char)draw(256);
        if (draw(4) == 0)
            bytes = draw((uint32_t)bytes) + 1;
        size_t first = draw((uint32_t)bytes + 1);
        peer_send_bytes(&client, text, first);
        if (draw(2) == 0)
            poll(NULL, 0, (int)draw(3));
        peer_send_bytes(&client, text + first, bytes - first);
        while (engine_is_asked(engine, (int)draw(4))) {
            struct peer peer = engine_accept(engine);
            peer_send(&peer, words[draw(4)]);
            if (draw(2) == 0)
                poll(NULL, 0, (int)draw(3));
            peer_close(&peer);
        }
        if (draw(10) == 0)
            bench_serves(bench, draw(2) == 0 ? 0 : -1, 1, 1, "unix:/nowhere");
        peer_close(&client);
    }
    bench_serves(bench, -1, 0, 9, "");
    bench_await_metric(bench, "gms_relay_requests_running", 0);
    bench_await_metric(bench, "gms_relay_requests_waiting", 0);
    bench_await_metric(bench, "gms_relay_connections", 1); /* the one that asks */
    gms_fd_close(&engine);
    assert_int_equal(bench_stop(bench), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_setup, bench_teardown)
    const struct CMUnitTest tests[] = {
        TEST(bad_requests_get_a_status),
        TEST(requests_that_are_read_but_wrong),
        TEST(bodies_may_come_in_any_form),
        TEST(too_much_body),
        TEST(slow_requests_are_ended),
        TEST(too_many_connections_and_requests),
        TEST(who_leaves_early_costs_nothing_more),
        TEST(pipelined_requests_are_answered_in_order),
        TEST(what_is_sent_ahead_is_bounded),
        TEST(old_clients_get_no_chunks),
        TEST(one_relay_an_address),
        TEST(conversations_gone_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
