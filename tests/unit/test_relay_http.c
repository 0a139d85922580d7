/* SPDX-License-Identifier: Apache-2.0
 * HTTP heads and chunks, whole and in every split. */
#include "unit_support.h"

#include "gms-relay/http.h"

static int read_it(const char *head, struct relay_http_request *ret_request)
{
    const char *why = NULL;
    int status = relay_http_read_request(head, strlen(head), ret_request, &why);
    assert_true((status == 0) == (why == NULL));
    return status;
}

static void heads_are_read(void **state)
{
    (void)state;
    struct relay_http_request request;
    assert_int_equal(read_it("POST /v1/completions?x=1 HTTP/1.1\r\nhost: a\r\nContent-Length:  12 \r\n"
                             "X-Request-Id: ab-1_2.c\r\nExpect: 100-continue\r\n\r\n",
                             &request),
                     0);
    assert_string_equal(request.method, "POST");
    assert_string_equal(request.path, "/v1/completions");
    assert_string_equal(request.id, "ab-1_2.c");
    assert_true(request.keep_alive && request.has_length && request.expects_continue && !request.chunked);
    assert_int_equal(request.length, 12);
    assert_int_equal(read_it("GET / HTTP/1.0\r\n\r\n", &request), 0);
    assert_false(request.keep_alive);
    assert_int_equal(read_it("GET / HTTP/1.0\r\nConnection: foo, Keep-Alive\r\n\r\n", &request), 0);
    assert_true(request.keep_alive);
    assert_int_equal(read_it("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", &request), 0);
    assert_false(request.keep_alive);
    assert_int_equal(read_it("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", &request), 0);
    assert_true(request.chunked);
    assert_int_equal(read_it("GET / HTTP/1.1\r\nHost: a\r\nX-Request-Id: a b\r\n\r\n", &request), 0);
    assert_string_equal(request.id, "");
}

static void bad_heads_are_refused(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *head;
    } cases[] = {
        {400, "\r\n\r\n"},
        {400, "GET\r\n\r\n"},
        {400, "GET /\r\n\r\n"},
        {400, " GET / HTTP/1.1\r\n\r\n"},
        {400, "G<T / HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET  HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET x HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET / HTTX/1.1\r\nHost: a\r\n\r\n"},
        {505, "GET / HTTP/2.0\r\nHost: a\r\n\r\n"},
        {505, "GET / HTTP/1.7\r\nHost: a\r\n\r\n"},
        {501, "ABCDEFGHIJKLMNOPQ / HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a\r\nbad name: x\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a\r\nX: a\x01z\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a\r\nX: a\nb\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1x\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {501, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n"},
        {501, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"},
        {501, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {417, "POST / HTTP/1.1\r\nHost: a\r\nExpect: a-miracle\r\n\r\n"},
    };
    struct relay_http_request request;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (read_it(cases[i].head, &request) != cases[i].status)
            fail_msg("not %d: %s", cases[i].status, cases[i].head);
    char head[8192] = "GET /";
    memset(head + 5, 'a', 300);
    strcpy(head + 305, " HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_int_equal(read_it(head, &request), 414);
    strcpy(head, "GET / HTTP/1.1\r\nHost: a\r\n");
    for (int i = 0; i < 110; i++)
        strcat(head, "X: y\r\n");
    strcat(head, "\r\n");
    assert_int_equal(read_it(head, &request), 431);
}

static void ends_are_found_however_a_head_comes(void **state)
{
    (void)state;
    static const char head[] = "GET / HTTP/1.1\r\nHost: a\r\n\r\nrest";
    for (size_t first = 0; first < sizeof head; first++) {
        size_t scanned = 0, end = relay_http_head_end(head, first, &scanned);
        assert_int_equal(end, first >= 27 ? 27 : 0);
        if (end == 0)
            assert_int_equal(relay_http_head_end(head, sizeof head - 1, &scanned), 27);
    }
}

/* All of the body, or NULL when it is bad or not whole. */
static const char *decode(const char *text, size_t split, char *ret_body, size_t *ret_used)
{
    struct relay_chunks chunks = {.state = RELAY_CHUNK_SIZE};
    size_t bytes = strlen(text), at = 0, got = 0;
    while (at < bytes && chunks.state != RELAY_CHUNK_DONE && chunks.state != RELAY_CHUNK_BAD) {
        size_t most = at < split ? split - at : bytes - at, piece_bytes;
        const char *piece;
        size_t used = relay_http_chunks(&chunks, text + at, most, &piece, &piece_bytes);
        assert_true(used > 0 && used <= most);
        memcpy(ret_body + got, piece, piece_bytes);
        got += piece_bytes;
        at += used;
    }
    ret_body[got] = '\0';
    *ret_used = at;
    return chunks.state == RELAY_CHUNK_DONE ? ret_body : NULL;
}

static void chunks_are_decoded_in_every_split(void **state)
{
    (void)state;
    static const char text[] = "4\r\nabcd\r\n00A;name=value\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nnext";
    char body[64];
    size_t used;
    for (size_t split = 0; split < sizeof text; split++) {
        assert_non_null(decode(text, split, body, &used));
        assert_string_equal(body, "abcd0123456789");
        assert_int_equal(used, sizeof text - 1 - 4);
    }
    static const char *const bad[] = {"\r\n",        "x\r\n",  "4 \nabcd\r\n", "4\nabcd", "4\r\nabcdx\r\n",
                                      "4\r\nabcd\n", "-4\r\n", "0x4\r\n",      "0\r\n\n", "1000000000000000\r\n",
                                      "0\r\na\n\r\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (decode(bad[i], 0, body, &used) != NULL)
            fail_msg("taken: %s", bad[i]);
}

static void answers_of_engines_are_read(void **state)
{
    (void)state;
    struct relay_http_response response;
    const char *why = NULL;
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                               "transfer-encoding: chunked\r\n\r\n";
    assert_int_equal(relay_http_read_response(head, sizeof head - 1, &response, &why), 0);
    assert_int_equal(response.status, 200);
    assert_true(response.chunked && response.event_stream && !response.has_length);
    static const char *const bad[] = {"", "HTTP/1.1", "HTTP/1.1 2x0 OK\r\n\r\n", "SSH-2.0-x\r\n\r\n",
                                      "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(relay_http_read_response(bad[i], strlen(bad[i]), &response, &why), 502);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_are_read),
        cmocka_unit_test(bad_heads_are_refused),
        cmocka_unit_test(ends_are_found_however_a_head_comes),
        cmocka_unit_test(chunks_are_decoded_in_every_split),
        cmocka_unit_test(answers_of_engines_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
