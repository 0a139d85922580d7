/* SPDX-License-Identifier: Apache-2.0
 * minillm's lines from a client's side. */
#include "unit_support.h"

#include <jansson.h>

#include "gms-relay/lines.h"

static void a_request_is_written(void **state)
{
    (void)state;
    const uint32_t generated[] = {1, 255};
    struct relay_lines_ask ask = {.id = "a\"b",
                                  .prompt = "Gr\xc3\xbc\n",
                                  .generated = generated,
                                  .generated_count = 2,
                                  .max_tokens = 9,
                                  .temperature = 0.5,
                                  .seed = UINT64_MAX,
                                  .with_text = true};
    size_t bytes = 0;
    char *line = relay_lines_generate(&ask, &bytes);
    assert_non_null(line);
    assert_int_equal(strlen(line), bytes);
    assert_ptr_equal(strchr(line, '\n'), line + bytes - 1);
    json_t *root = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    assert_string_equal(json_string_value(json_object_get(root, "op")), "generate");
    assert_string_equal(json_string_value(json_object_get(root, "prompt")), "Gr\xc3\xbc\n");
    assert_int_equal(json_integer_value(json_array_get(json_object_get(root, "generated"), 1)), 255);
    assert_true(json_integer_value(json_object_get(root, "seed")) == INT64_MAX);
    assert_true(json_is_true(json_object_get(root, "text")));
    json_decref(root);
    free(line);

    ask.prompt = NULL;
    ask.prompt_tokens = generated;
    ask.prompt_count = 2;
    ask.with_text = false;
    line = relay_lines_generate(&ask, &bytes);
    assert_non_null(strstr(line, "\"prompt\":[1,255]"));
    assert_null(strstr(line, "text"));
    free(line);

    ask.prompt = "\xff";
    assert_null(relay_lines_generate(&ask, &bytes));
}

static void lines_are_read(void **state)
{
    (void)state;
    struct relay_line line;
    char why[RELAY_LINE_WHY_BYTES];
    static const char hello[] = "{\"hello\":\"minillm\",\"engine\":1,\"incarnation\":7,\"epoch\":3,\"pid\":42}";
    assert_true(relay_lines_read(hello, sizeof hello - 1, &line, why));
    assert_int_equal(line.kind, RELAY_LINE_HELLO);
    assert_true(line.engine == 1 && line.incarnation == 7 && line.epoch == 3 && line.pid == 42);
    static const char token[] = "{\"id\":\"r\",\"index\":2,\"token\":10,\"text\":\"\\n\"}";
    assert_true(relay_lines_read(token, sizeof token - 1, &line, why));
    assert_int_equal(line.kind, RELAY_LINE_TOKEN);
    assert_true(line.index == 2 && line.token == 10 && line.text_bytes == 1 && line.text[0] == '\n');
    static const char done[] = "{\"id\":\"r\",\"done\":true,\"reason\":\"length\",\"prompt_tokens\":5,"
                               "\"cached_tokens\":2,\"computed_tokens\":3}";
    assert_true(relay_lines_read(done, sizeof done - 1, &line, why));
    assert_int_equal(line.kind, RELAY_LINE_DONE);
    assert_true(line.prompt_tokens == 5 && line.cached_tokens == 2 && line.computed_tokens == 3);
    assert_string_equal(line.reason, "length");
    static const char error[] = "{\"error\":\"too many clients\"}";
    assert_true(relay_lines_read(error, sizeof error - 1, &line, why));
    assert_int_equal(line.kind, RELAY_LINE_ERROR);
    assert_string_equal(line.id, "");
    assert_string_equal(line.error, "too many clients");
}

static void other_lines_are_not(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "x",
                                      "[]",
                                      "{}",
                                      "null",
                                      "{\"id\":\"r\"}",
                                      "{\"id\":\"r\",\"index\":-1,\"token\":1}",
                                      "{\"id\":\"r\",\"index\":1,\"token\":4294967296}",
                                      "{\"id\":\"r\",\"index\":1,\"token\":1,\"text\":5}",
                                      ("{\"id\":\"r\",\"index\":1,\"token\":1,\"text\":"
                                       "\"0123456789012345678901234567890123456789012345678901234567890"
                                       "12345\"}"),
                                      "{\"id\":\"r\",\"done\":true}",
                                      "{\"hello\":\"minillm\",\"engine\":1}",
                                      "{\"index\":1,\"token\":1}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct relay_line line;
        char why[RELAY_LINE_WHY_BYTES] = "";
        if (relay_lines_read(bad[i], strlen(bad[i]), &line, why))
            fail_msg("taken: %s", bad[i]);
        assert_true(why[0] != '\0');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_is_written),
        cmocka_unit_test(lines_are_read),
        cmocka_unit_test(other_lines_are_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
