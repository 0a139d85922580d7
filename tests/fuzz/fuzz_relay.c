/* SPDX-License-Identifier: Apache-2.0
 *
 * What gms-relay reads of others, by the first byte: heads of requests and of engines' answers, chunked bodies, lines
 * of minillm, events of OpenAI servers, bodies of clients. Any bytes are read or refused with a reason; a chunked body
 * gives the same in every split; what is answered is JSON whatever is in it.
 */
#include "fuzz.h"

#include <string.h>

#include "gms-relay/call.h"
#include "gms-relay/http.h"
#include "gms-relay/lines.h"
#include "gms-relay/openai.h"

enum { KIND_REQUEST, KIND_RESPONSE, KIND_CHUNKS, KIND_LINE, KIND_EVENT, KIND_COMPLETION, KIND_CHAT, KIND_TEXT, KINDS };

size_t fuzz_seed(size_t index, uint8_t *ret_data, size_t capacity)
{
    static const struct {
        uint8_t kind;
        const char *text;
    } seeds[] = {
        {KIND_REQUEST, "POST /v1/completions?a=b HTTP/1.1\r\nHost: t\r\nContent-Length: 12\r\nConnection: close\r\n"
                       "X-Request-Id: abc\r\nExpect: 100-continue\r\n\r\n"},
        {KIND_REQUEST, "GET /metrics HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {KIND_RESPONSE, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {KIND_CHUNKS, "5;a=b\r\n01234\r\n00a\r\n0123456789\r\n0\r\nT: x\r\n\r\nrest"},
        {KIND_LINE, "{\"hello\":\"minillm\",\"engine\":0,\"incarnation\":1,\"epoch\":1,\"pid\":4}"},
        {KIND_LINE, "{\"id\":\"s0\",\"index\":2,\"token\":104,\"text\":\"h\"}"},
        {KIND_LINE, "{\"id\":\"s0\",\"done\":true,\"reason\":\"length\",\"prompt_tokens\":4,\"cached_tokens\":3,"
                    "\"computed_tokens\":1}"},
        {KIND_EVENT,
         "{\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"a\"},\"token_ids\":[1],"
         "\"prompt_token_ids\":[2,3],\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":2}}"},
        {KIND_EVENT, "{\"error\":{\"message\":\"no\",\"code\":500}}"},
        {KIND_COMPLETION,
         "{\"model\":\"m\",\"prompt\":[\"a\"],\"max_tokens\":5,\"temperature\":0.5,\"seed\":1,\"stream\":true,"
         "\"stream_options\":{\"include_usage\":true},\"stop\":[\"x\"],\"n\":1,\"top_p\":1}"},
        {KIND_COMPLETION, "{\"prompt\":[[1,2,3]]}"},
        {KIND_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}],"
                    "\"max_completion_tokens\":3}"},
        {KIND_TEXT, "a\"\\\n\x01\xc4\x80\xf0\x9f\x98\x80\xed\xa0\x80"},
    };
    if (index >= sizeof seeds / sizeof seeds[0])
        return 0;
    size_t bytes = strlen(seeds[index].text);
    if (bytes + 1 > capacity)
        return 0;
    ret_data[0] = seeds[index].kind;
    memcpy(ret_data + 1, seeds[index].text, bytes);
    return bytes + 1;
}

static void check_heads(const char *data, size_t bytes, int kind)
{
    const char *why = NULL;
    size_t scanned = 0, end = relay_http_head_end(data, bytes, &scanned);
    FUZZ_CHECK(end <= bytes);
    if (kind == KIND_REQUEST) {
        struct relay_http_request request;
        int status = relay_http_read_request(data, bytes, &request, &why);
        FUZZ_CHECK(status == 0 || (status >= 400 && status <= 599 && why != NULL));
        if (status == 0) {
            FUZZ_CHECK(request.path[0] == '/' && strlen(request.path) < sizeof request.path);
            FUZZ_CHECK(strlen(request.method) > 0 && strlen(request.id) < sizeof request.id);
            FUZZ_CHECK(!(request.chunked && request.has_length));
        }
    } else {
        struct relay_http_response response;
        int status = relay_http_read_response(data, bytes, &response, &why);
        FUZZ_CHECK(status == 0 || (status == 502 && why != NULL));
        FUZZ_CHECK(status != 0 || (response.status >= 0 && response.status <= 999));
    }
}

/* The whole body, fed in pieces of at most `step`. */
static enum relay_chunk_state decode(const char *data, size_t bytes, size_t step, char *ret_body, size_t *ret_bytes,
                                     size_t *ret_used)
{
    struct relay_chunks chunks;
    size_t at = 0;
    memset(&chunks, 0, sizeof chunks);
    *ret_bytes = 0;
    while (at < bytes && chunks.state != RELAY_CHUNK_DONE && chunks.state != RELAY_CHUNK_BAD) {
        const char *piece;
        size_t piece_bytes, most = bytes - at < step ? bytes - at : step;
        size_t used = relay_http_chunks(&chunks, data + at, most, &piece, &piece_bytes);
        FUZZ_CHECK(used > 0 && used <= most);
        FUZZ_CHECK(piece_bytes == 0 || (piece >= data + at && piece + piece_bytes <= data + at + used));
        memcpy(ret_body + *ret_bytes, piece, piece_bytes);
        *ret_bytes += piece_bytes;
        at += used;
    }
    *ret_used = at;
    return chunks.state;
}

static void check_chunks(const char *data, size_t bytes)
{
    char *one = malloc(bytes + 1), *other = malloc(bytes + 1);
    size_t one_bytes, other_bytes, one_used, other_used;
    FUZZ_CHECK(one != NULL && other != NULL);
    enum relay_chunk_state whole = decode(data, bytes, bytes + 1, one, &one_bytes, &one_used);
    enum relay_chunk_state split = decode(data, bytes, 1, other, &other_bytes, &other_used);
    FUZZ_CHECK(whole == split && one_bytes == other_bytes && one_used == other_used);
    FUZZ_CHECK(memcmp(one, other, one_bytes) == 0);
    free(one);
    free(other);
}

static void check_text(const char *data, size_t bytes)
{
    const struct relay_voice voice = {.chat = bytes % 2 == 0, .id = "i", .model = "m", .created = 1};
    struct relay_text text = {0};
    relay_say_piece(&text, &voice, data, bytes);
    FUZZ_CHECK(!text.failed && text.bytes > 8);
    json_t *root = json_loadb(text.data + 6, text.bytes - 8, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    FUZZ_CHECK(root != NULL);
    json_decref(root);
    relay_text_free(&text);
}

static void check_call(const char *data, size_t bytes, bool chat)
{
    struct relay_call call;
    struct relay_problem problem;
    if (!relay_call_read(chat, data, bytes, 1000, &call, &problem)) {
        FUZZ_CHECK(problem.status == 400 && problem.text[0] != '\0' && call.body == NULL);
        return;
    }
    FUZZ_CHECK(call.max_tokens <= 1000 && call.temperature <= 2);
    char *text = NULL;
    uint32_t *tokens = NULL;
    size_t count = 0;
    if (relay_call_prompt(&call, &text, &tokens, &count, &problem))
        FUZZ_CHECK((text != NULL) != (tokens != NULL && count > 0));
    else
        FUZZ_CHECK(problem.status != 0 && problem.text[0] != '\0');
    free(text);
    free(tokens);
    const uint32_t some[] = {1, 2};
    for (size_t so_far = 0; so_far <= 2; so_far += 2) {
        const struct relay_openai_ask ask = {.call = &call,
                                             .host = "h",
                                             .prefix = "",
                                             .prompt = some,
                                             .prompt_count = 2,
                                             .tokens = some,
                                             .token_count = so_far};
        size_t request_bytes;
        char *request = relay_openai_request(&ask, &request_bytes);
        FUZZ_CHECK(request != NULL && strlen(request) == request_bytes);
        free(request);
    }
    relay_call_free(&call);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0)
        return 0;
    /* A copy of its own size: a sanitizer sees what is read past the end. */
    int kind = data[0] % KINDS;
    char *text = malloc(bytes);
    FUZZ_CHECK(text != NULL);
    memcpy(text, data + 1, bytes - 1);
    bytes--;
    if (kind == KIND_REQUEST || kind == KIND_RESPONSE) {
        check_heads(text, bytes, kind);
    } else if (kind == KIND_CHUNKS) {
        check_chunks(text, bytes);
    } else if (kind == KIND_LINE) {
        struct relay_line line;
        char why[RELAY_LINE_WHY_BYTES] = "";
        FUZZ_CHECK(relay_lines_read(text, bytes, &line, why) || why[0] != '\0');
    } else if (kind == KIND_EVENT) {
        struct relay_delta delta;
        const char *why = NULL;
        if (relay_openai_read(text, bytes, &delta, &why))
            relay_delta_free(&delta);
        else
            FUZZ_CHECK(why != NULL);
    } else if (kind == KIND_TEXT) {
        check_text(text, bytes);
    } else {
        check_call(text, bytes, kind == KIND_CHAT);
    }
    free(text);
    return 0;
}
