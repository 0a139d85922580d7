/* SPDX-License-Identifier: Apache-2.0
 *
 * The lines of the stream protocol: what is read from good ones, what is said about bad ones.
 */
#include "minillm_support.h"

#include "log.h"
#include "ending.h"
#include "protocol.h"
#include "text.h"

enum { VOCABULARY = 256, LIMIT = 2048, RANKS = 2 };

static bool parse(const char *line, struct protocol_message *m, char *text)
{
    return protocol_parse(line, strlen(line), VOCABULARY, LIMIT, RANKS, m, text);
}

static void a_full_request_is_read(void **state)
{
    (void)state;
    struct protocol_message m;
    char text[PROTOCOL_TEXT_BYTES];
    assert_true(parse("{\"op\":\"generate\",\"id\":\"a\\\"b\",\"prompt\":\"h\\u00e9\",\"generated\":[1,255],"
                      "\"max_tokens\":64,\"temperature\":0.5,\"seed\":9007199254740993}",
                      &m, text));
    assert_int_equal(m.operation, PROTOCOL_GENERATE);
    assert_string_equal(m.id, "a\"b");
    assert_string_equal(m.id_json, "\"a\\\"b\"");
    assert_int_equal(m.prompt_count, 3); /* bytes of UTF-8 */
    assert_int_equal(m.generated_count, 2);
    const uint32_t tokens[] = {'h', 0xc3, 0xa9, 1, 255};
    assert_memory_equal(m.tokens, tokens, sizeof tokens);
    assert_int_equal(m.max_tokens, 64);
    assert_true(m.temperature == 0.5);
    assert_true(m.seed == 9007199254740993u);
    protocol_free(&m);
}

/* Every token has text of its own, and text of an answer is its tokens again. */
static void text_is_tokens_and_back(void **state)
{
    (void)state;
    char text[256 * TEXT_TOKEN_BYTES + 1], line[2048];
    size_t bytes = 0;
    for (uint32_t token = 0; token < 256; token++)
        bytes += text_of_token(token, text + bytes);
    text[bytes] = 0;
    uint32_t tokens[sizeof text];
    assert_int_equal(text_to_tokens(text, bytes, NULL), 256);
    assert_int_equal(text_to_tokens(text, bytes, tokens), 256);
    for (uint32_t token = 0; token < 256; token++)
        assert_int_equal(tokens[token], token);
    assert_int_equal(text_to_tokens("\xc3\xa9\xc4", 3, tokens), 3); /* other characters are their bytes */
    assert_true(tokens[0] == 0xc3 && tokens[2] == 0xc4);

    struct protocol_message m;
    char why[PROTOCOL_TEXT_BYTES];
    snprintf(line, sizeof line, "{\"op\":\"generate\",\"id\":\"x\",\"text\":true,\"prompt\":\"\xc4\x80\xc7\xbf\"}");
    assert_true(parse(line, &m, why));
    assert_true(m.with_text && m.prompt_count == 2 && m.tokens[0] == 0 && m.tokens[1] == 255);
    protocol_free(&m);
    assert_false(parse("{\"op\":\"generate\",\"id\":\"x\",\"text\":1,\"prompt\":\"a\"}", &m, why));
    protocol_free(&m);
}

static void a_prompt_may_be_tokens(void **state)
{
    (void)state;
    struct protocol_message m;
    char text[PROTOCOL_TEXT_BYTES];
    assert_true(parse("{\"op\":\"generate\",\"id\":\"x\",\"prompt\":[0,7,255]}", &m, text));
    assert_int_equal(m.prompt_count, 3);
    assert_int_equal(m.tokens[2], 255);
    assert_int_equal(m.generated_count, 0);
    assert_true(m.temperature == 0 && m.seed == 0);
    protocol_free(&m);
}

static void stats_and_arm_are_read(void **state)
{
    (void)state;
    struct protocol_message m;
    char text[PROTOCOL_TEXT_BYTES];
    assert_true(parse("{\"op\":\"stats\"}", &m, text));
    assert_int_equal(m.operation, PROTOCOL_STATS);
    protocol_free(&m);
    assert_true(parse("{\"op\":\"arm\",\"rank\":1,\"at\":\"seal\",\"after\":3}", &m, text));
    assert_int_equal(m.operation, PROTOCOL_ARM);
    assert_int_equal(m.drill.phase, DRILL_SEAL);
    assert_int_equal(m.drill.rank, 1);
    assert_int_equal(m.drill.after, 3);
    protocol_free(&m);
    assert_int_equal(m.drill.how, ENDING_SIGKILL);
    assert_true(parse("{\"op\":\"arm\",\"rank\":1,\"at\":\"seal\",\"how\":\"freeze\"}", &m, text));
    assert_int_equal(m.drill.how, ENDING_FREEZE);
    assert_true(parse("{\"op\":\"arm\",\"rank\":\"all\",\"at\":\"prefill\"}", &m, text));
    assert_true(m.drill.rank == DRILL_EVERY_RANK);
    assert_int_equal(m.drill.after, 1);
    protocol_free(&m);
}

static void bad_lines_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *line, *says;
        bool with_id;
    } cases[] = {
        {"", "not a JSON object", false},
        {"{", "not a JSON object", false},
        {"[1]", "one JSON object", false},
        {"7", "not a JSON object", false},
        {"{} trailing", "not a JSON object", false},
        {"{\"op\":1}", "op must be", false},
        {"{\"op\":\"fly\"}", "op must be", false},
        {"{\"op\":\"stats\",\"op\":\"stats\"}", "duplicate", false},
        {"{\"op\":\"generate\",\"prompt\":\"x\"}", "id must be", false},
        {"{\"op\":\"generate\",\"id\":\"\",\"prompt\":\"x\"}", "id must be", false},
        {"{\"op\":\"generate\",\"id\":5,\"prompt\":\"x\"}", "id must be", false},
        {"{\"op\":\"generate\",\"id\":\"a\"}", "prompt must be", true},
        {"{\"op\":\"generate\",\"id\":\"a\",\"prompt\":{}}", "prompt must be", true},
        {"{\"op\":\"generate\",\"id\":\"a\",\"prompt\":[256]}", "prompt[0] must be a token", true},
        {"{\"op\":\"generate\",\"id\":\"a\",\"prompt\":[1,-1]}", "prompt[1] must be a token", true},
        {"{\"op\":\"generate\",\"id\":\"a\",\"prompt\":[1.5]}", "prompt[0] must be a token", true},
        {"{\"op\":\"generate\",\"id\":\"a\",\"prompt\":[\"b\"]}", "prompt[0] must be a token", true},
        {"{\"op\":\"generate\",\"id\":\"a\",\"prompt\":\"x\",\"generated\":\"y\"}", "generated must be", true},
        {"{\"op\":\"generate\",\"id\":\"a\",\"prompt\":\"x\",\"max_tokens\":0}", "max_tokens must be", true},
        {"{\"op\":\"generate\",\"id\":\"a\",\"prompt\":\"x\",\"max_tokens\":2049}", "max_tokens must be", true},
        {"{\"op\":\"generate\",\"id\":\"a\",\"prompt\":\"x\",\"max_tokens\":\"3\"}", "max_tokens must be", true},
        {"{\"op\":\"generate\",\"id\":\"a\",\"prompt\":\"x\",\"seed\":-1}", "seed must be", true},
        {"{\"op\":\"generate\",\"id\":\"a\",\"prompt\":\"x\",\"seed\":99999999999999999999}", "not a JSON", false},
        {"{\"op\":\"generate\",\"id\":\"a\",\"prompt\":\"x\",\"temperature\":-0.1}", "temperature must be", true},
        {"{\"op\":\"generate\",\"id\":\"a\",\"prompt\":\"x\",\"temperature\":101}", "temperature must be", true},
        {"{\"op\":\"generate\",\"id\":\"a\",\"prompt\":\"x\",\"temperature\":\"hot\"}", "temperature must be", true},
        {"{\"op\":\"arm\",\"rank\":2,\"at\":\"seal\"}", "rank must be an integer from 0 to 1", false},
        {"{\"op\":\"arm\",\"rank\":\"some\",\"at\":\"seal\"}", "rank must be an integer", false},
        {"{\"op\":\"arm\",\"rank\":0,\"at\":\"lunch\"}", "at must be", false},
        {"{\"op\":\"arm\",\"rank\":0,\"at\":\"seal\",\"how\":\"illegal-address\"}", "how must be \"sigkill\"", false},
        {"{\"op\":\"arm\",\"rank\":0,\"at\":\"seal\",\"how\":1}", "how must be", false},
        {"{\"op\":\"arm\",\"rank\":0,\"at\":\"seal\",\"after\":0}", "after must be", false},
        {"{\"op\":\"\xff\xfe\"}", "not a JSON object", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct protocol_message m;
        char text[PROTOCOL_TEXT_BYTES];
        assert_false(parse(cases[i].line, &m, text));
        if (strstr(text, cases[i].says) == NULL)
            print_error("%s: %s\n", cases[i].line, text);
        assert_non_null(strstr(text, cases[i].says));
        assert_int_equal(m.id_json != NULL, cases[i].with_id);
        char *line = protocol_error(m.id_json, text);
        assert_non_null(line);
        assert_true(line[strlen(line) - 1] == '\n');
        free(line);
        protocol_free(&m);
    }
}

static void a_prompt_over_the_context_is_refused_before_it_is_copied(void **state)
{
    (void)state;
    struct protocol_message m;
    char text[PROTOCOL_TEXT_BYTES], *line;
    assert_true(asprintf(&line, "{\"op\":\"generate\",\"id\":\"a\",\"prompt\":\"%0*d\"}", LIMIT + 1, 0) > 0);
    assert_false(parse(line, &m, text));
    assert_non_null(strstr(text, "2049 tokens"));
    protocol_free(&m);
    free(line);
}

/* Any cut and any changed byte: an answer, never a crash (the sanitizers watch). */
static void damaged_lines_are_survived(void **state)
{
    (void)state;
    static const char good[] =
        "{\"op\":\"generate\",\"id\":\"s0\",\"prompt\":[1,2,3],\"generated\":[4],\"max_tokens\":64,"
        "\"temperature\":0.25,\"seed\":7}";
    uint64_t random = 5;
    for (uint32_t turn = 0; turn < 20000; turn++) {
        char line[sizeof good], text[PROTOCOL_TEXT_BYTES];
        struct protocol_message m;
        memcpy(line, good, sizeof good);
        size_t length = turn < sizeof good ? turn : sizeof good - 1;
        for (uint32_t change = 0; turn >= sizeof good && change < 1 + turn % 3; change++)
            line[llm_random(&random) % length] = (char)llm_random(&random);
        bool fine = protocol_parse(line, length, VOCABULARY, LIMIT, RANKS, &m, text);
        assert_true(fine || text[0] != 0);
        protocol_free(&m);
    }
}

static void ids_stay_one_word_in_the_log(void **state)
{
    (void)state;
    char out[24];
    event_log_escape("a b=c%\n", out, sizeof out);
    assert_string_equal(out, "a%20b%3Dc%25%0A");
    event_log_escape("0123456789abcdef0123456789abcdef", out, sizeof out);
    assert_true(strlen(out) < sizeof out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_request_is_read),
        cmocka_unit_test(a_prompt_may_be_tokens),
        cmocka_unit_test(text_is_tokens_and_back),
        cmocka_unit_test(stats_and_arm_are_read),
        cmocka_unit_test(bad_lines_are_named),
        cmocka_unit_test(a_prompt_over_the_context_is_refused_before_it_is_copied),
        cmocka_unit_test(damaged_lines_are_survived),
        cmocka_unit_test(ids_stay_one_word_in_the_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
