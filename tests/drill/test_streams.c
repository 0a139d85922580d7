/* SPDX-License-Identifier: Apache-2.0
 * Client streams against a server played by the test, in the same thread: every step is one pump of the loop. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/clock.h"
#include "base/fd.h"
#include "streams.h"

struct fixture {
    char dir[64], socket_path[2][96], serving_path[96];
    int listener, client;
    struct drill_streams streams;
    struct drill_stream *stream;
};

static void listen_at(struct fixture *fixture, int which)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/e%d", fixture->dir, which);
    memcpy(fixture->socket_path[which], address.sun_path, strlen(address.sun_path) + 1);
    gms_fd_close(&fixture->listener);
    fixture->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fixture->listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fixture->listener, 8), 0);
}

static void publish(struct fixture *fixture, int which, int incarnation)
{
    char text[256];
    int length = snprintf(text, sizeof text, "{\"engine\":%d,\"incarnation\":%d,\"epoch\":%d,\"endpoint\":\"unix:%s\"}",
                          which, incarnation, incarnation, fixture->socket_path[which]);
    assert_int_equal(gms_file_replace(fixture->serving_path, text, (size_t)length, NULL), GMS_OK);
}

static void pump_until(struct fixture *fixture, enum drill_stream_state state)
{
    uint64_t deadline_ns = gms_clock_ns() + 10 * GMS_NS_PER_S;
    while (fixture->stream->state != state) {
        if (gms_clock_ns() > deadline_ns || fixture->stream->state == DRILL_STREAM_FAILED)
            fail_msg("state %d instead of %d: %s", fixture->stream->state, state, fixture->stream->error);
        drill_streams_pump(&fixture->streams, gms_clock_ns() + 50 * GMS_NS_PER_MS, NULL, 0);
    }
}

static void pump_until_tokens(struct fixture *fixture, uint32_t count)
{
    uint64_t deadline_ns = gms_clock_ns() + 10 * GMS_NS_PER_S;
    while (fixture->stream->token_count < count) {
        if (gms_clock_ns() > deadline_ns || fixture->stream->state == DRILL_STREAM_FAILED)
            fail_msg("%u tokens instead of %u: %s", fixture->stream->token_count, count, fixture->stream->error);
        drill_streams_pump(&fixture->streams, gms_clock_ns() + 50 * GMS_NS_PER_MS, NULL, 0);
    }
}

static void say(const struct fixture *fixture, const char *text)
{
    assert_int_equal(send(fixture->client, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

/* Accepts the stream's connection and greets it. Returns its request. */
static json_t *serve(struct fixture *fixture, int incarnation)
{
    pump_until(fixture, DRILL_STREAM_GREETING);
    fixture->client = accept4(fixture->listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(fixture->client >= 0);
    char hello[160];
    snprintf(hello, sizeof hello, "{\"hello\":\"minillm\",\"engine\":%d,\"incarnation\":%d,\"epoch\":%d,\"pid\":%d}\n",
             incarnation - 1, incarnation, incarnation, (int)getpid());
    say(fixture, hello);
    pump_until(fixture, DRILL_STREAM_RUNNING);
    for (int i = 0; i < 100 && fixture->stream->out_sent < fixture->stream->out_bytes; i++)
        drill_streams_pump(&fixture->streams, gms_clock_ns() + 10 * GMS_NS_PER_MS, NULL, 0);
    static char text[65536];
    ssize_t length = recv(fixture->client, text, sizeof text, 0);
    assert_true(length > 0 && text[length - 1] == '\n');
    json_t *request = json_loadb(text, (size_t)length, 0, NULL);
    assert_non_null(request);
    return request;
}

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    *state = fixture;
    fixture->listener = fixture->client = -1;
    snprintf(fixture->dir, sizeof fixture->dir, "/tmp/drill-streams-XXXXXX");
    if (mkdtemp(fixture->dir) == NULL)
        return -1;
    char path[96];
    snprintf(path, sizeof path, "%s/serving", fixture->dir);
    memcpy(fixture->serving_path, path, sizeof path);
    if (drill_streams_open(fixture->dir, 2, &fixture->streams, NULL) != GMS_OK)
        return -1;
    fixture->stream = drill_streams_add(&fixture->streams, "s0", "Gr\xc3\xbc\xc3\x9f dich", 7, 0.5, 4);
    return fixture->stream != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    drill_streams_close(&fixture->streams);
    gms_fd_close(&fixture->listener);
    gms_fd_close(&fixture->client);
    unlink(fixture->socket_path[0]);
    unlink(fixture->socket_path[1]);
    unlink(fixture->serving_path);
    int result = rmdir(fixture->dir);
    free(fixture);
    return result;
}

static void whole_stream(void **state)
{
    struct fixture *fixture = *state;
    drill_stream_start(fixture->stream);
    drill_streams_pump(&fixture->streams, gms_clock_ns() + 10 * GMS_NS_PER_MS, NULL, 0);
    assert_int_equal(fixture->stream->state, DRILL_STREAM_WAITING); /* nobody serves yet */
    listen_at(fixture, 0);
    publish(fixture, 0, 1);
    json_t *request = serve(fixture, 1);
    assert_string_equal(json_string_value(json_object_get(request, "prompt")), "Gr\xc3\xbc\xc3\x9f dich");
    assert_int_equal(json_integer_value(json_object_get(request, "seed")), 7);
    assert_int_equal(json_array_size(json_object_get(request, "generated")), 0);
    json_decref(request);
    assert_int_equal(fixture->stream->greeting.peer_pid, getpid());
    assert_true(fixture->stream->greeting.namespaced_pid_fits);
    say(fixture, "{\"id\":\"s0\",\"index\":0,\"token\":17}\n{\"id\":\"s0\",\"ind"); /* lines come in any pieces */
    pump_until_tokens(fixture, 1);
    say(fixture, "ex\":1,\"token\":18}\n{\"id\":\"s0\",\"done\":true,\"reason\":\"end\",\"prompt_tokens\":12,"
                 "\"cached_tokens\":0,\"computed_tokens\":12}\n");
    pump_until(fixture, DRILL_STREAM_DONE);
    assert_int_equal(fixture->stream->token_count, 2);
    assert_int_equal(fixture->stream->tokens[1].token, 18);
    assert_int_equal(fixture->stream->computed_tokens, 12);
    assert_int_equal(fixture->stream->resumes, 0);
    assert_true(drill_streams_finished(&fixture->streams));
}

static void resumes_after_the_kill(void **state)
{
    struct fixture *fixture = *state;
    listen_at(fixture, 0);
    publish(fixture, 0, 1);
    drill_stream_start(fixture->stream);
    json_decref(serve(fixture, 1));
    say(fixture, "{\"id\":\"s0\",\"index\":0,\"token\":17}\n");
    pump_until_tokens(fixture, 1);
    fixture->streams.killed_incarnation = 1;
    gms_fd_close(&fixture->client);
    pump_until(fixture, DRILL_STREAM_WAITING);
    /* The dead engine's endpoint is still published: the stream waits for another incarnation. */
    for (int i = 0; i < 5; i++)
        drill_streams_pump(&fixture->streams, gms_clock_ns() + 10 * GMS_NS_PER_MS, NULL, 0);
    assert_int_equal(fixture->stream->state, DRILL_STREAM_WAITING);
    listen_at(fixture, 1);
    publish(fixture, 1, 2);
    json_t *request = serve(fixture, 2);
    const json_t *generated = json_object_get(request, "generated");
    assert_int_equal(json_array_size(generated), 1);
    assert_int_equal(json_integer_value(json_array_get(generated, 0)), 17);
    assert_int_equal(json_integer_value(json_object_get(request, "max_tokens")), 4);
    json_decref(request);
    say(fixture, "{\"id\":\"s0\",\"index\":1,\"token\":18}\n");
    pump_until_tokens(fixture, 2);
    assert_int_equal(fixture->stream->resumes, 1);
    assert_int_equal(fixture->stream->resent_tokens, 1);
    assert_int_equal(fixture->stream->tokens[0].incarnation, 1);
    assert_int_equal(fixture->stream->tokens[1].incarnation, 2);
    assert_true(drill_streams_first_token(&fixture->streams, 2) == fixture->stream->tokens[1].at_ns);
}

static void pump_until_failed(struct fixture *fixture, const char *says)
{
    uint64_t deadline_ns = gms_clock_ns() + 10 * GMS_NS_PER_S;
    while (fixture->stream->state != DRILL_STREAM_FAILED) {
        assert_true(gms_clock_ns() < deadline_ns);
        drill_streams_pump(&fixture->streams, gms_clock_ns() + 50 * GMS_NS_PER_MS, NULL, 0);
    }
    if (strstr(fixture->stream->error, says) == NULL)
        fail_msg("'%s' does not say '%s'", fixture->stream->error, says);
}

static void break_without_a_fault(void **state)
{
    struct fixture *fixture = *state;
    listen_at(fixture, 0);
    publish(fixture, 0, 1);
    drill_stream_start(fixture->stream);
    json_decref(serve(fixture, 1));
    gms_fd_close(&fixture->client);
    pump_until_failed(fixture, "nobody had killed it");
}

static void bad_lines(void **state)
{
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"{\"id\":\"s0\",\"index\":1,\"token\":18}\n", "token 1 came when 0 was due"},
        {"{\"id\":\"s1\",\"index\":0,\"token\":18}\n", "for request 's1'"},
        {"{\"index\":0,\"token\":18}\n", "without the id of a request"},
        {"{\"id\":\"s0\",\"error\":\"no room\"}\n", "the engine says: no room"},
        {"{\"error\":\"too many clients\"}\n", "too many clients"},
        {"nonsense\n", "not JSON"},
        {"{\"id\":\"s0\",\"done\":true}\n", "prompt_tokens"},
        {"{\"id\":\"s0\",\"index\":0}\n", "'token' is missing"},
        {"[1]\n", "no JSON object"},
        {"{\"id\":\"s0\",\"index\":0,\"token\":1}\n{\"id\":\"s0\",\"index\":1,\"token\":1}\n{\"id\":\"s0\",\"index\":2,"
         "\"token\":1}\n"
         "{\"id\":\"s0\",\"index\":3,\"token\":1}\n{\"id\":\"s0\",\"index\":4,\"token\":1}\n",
         "more than the 4 tokens"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        void *inner = NULL;
        assert_int_equal(setup(&inner), 0);
        struct fixture *fixture = inner;
        listen_at(fixture, 0);
        publish(fixture, 0, 1);
        drill_stream_start(fixture->stream);
        json_decref(serve(fixture, 1));
        say(fixture, cases[i].line);
        pump_until_failed(fixture, cases[i].says);
        assert_int_equal(teardown(&inner), 0);
    }
    (void)state;
}

static void bad_hello_and_endpoint(void **state)
{
    struct fixture *fixture = *state;
    listen_at(fixture, 0);
    publish(fixture, 0, 1);
    drill_stream_start(fixture->stream);
    pump_until(fixture, DRILL_STREAM_GREETING);
    fixture->client = accept4(fixture->listener, NULL, NULL, SOCK_CLOEXEC);
    say(fixture, "{\"hello\":\"minillm\",\"engine\":0}\n");
    pump_until_failed(fixture, "not a hello");

    int fd = -1;
    pid_t peer;
    struct gms_error error;
    assert_int_equal(drill_endpoint_connect("tcp:127.0.0.1:80", &fd, &peer, &error), GMS_E_INVALID);
    assert_non_null(strstr(error.text, "unix:PATH"));
    assert_int_equal(drill_endpoint_connect("unix:/nowhere/e", &fd, &peer, &error), GMS_E_DISCONNECTED);
    assert_int_equal(fd, -1);
}

/* Somebody else's claim to be the engine is not believed: the kernel knows who owns the socket. */
static void pid_proof(void **state)
{
    (void)state;
    assert_true(drill_pid_is(getpid(), getpid()));
    assert_false(drill_pid_is(getpid(), getppid()));
    assert_false(drill_pid_is(0, getpid()));
    assert_false(drill_pid_is(-1, getpid()));
}

static void serving_file(void **state)
{
    struct fixture *fixture = *state;
    static const char *const bad[] = {"", "{", "{\"incarnation\":3}", "{\"incarnation\":0,\"endpoint\":\"unix:/x\"}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(gms_file_replace(fixture->serving_path, bad[i], strlen(bad[i]), NULL), GMS_OK);
        assert_false(drill_streams_look(&fixture->streams));
        assert_int_equal(fixture->streams.serving.incarnation, 0);
    }
    listen_at(fixture, 1);
    publish(fixture, 1, 2);
    assert_true(drill_streams_look(&fixture->streams));
    assert_int_equal(fixture->streams.serving.engine, 1);
    /* An older claim that comes late changes nothing. */
    publish(fixture, 1, 1);
    drill_streams_look(&fixture->streams);
    assert_int_equal(fixture->streams.serving.incarnation, 2);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(whole_stream),           T(resumes_after_the_kill),   T(break_without_a_fault), cmocka_unit_test(bad_lines),
        T(bad_hello_and_endpoint), cmocka_unit_test(pid_proof), T(serving_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
