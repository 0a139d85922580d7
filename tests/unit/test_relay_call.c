/* SPDX-License-Identifier: Apache-2.0
 * Bodies of clients, the words they are answered in, and the OpenAI API from a client's side. */
#include "unit_support.h"

#include "gms-relay/call.h"
#include "gms-relay/metrics.h"
#include "gms-relay/openai.h"

enum { MOST = 1000 };

static struct relay_call read_good(bool chat, const char *body)
{
    struct relay_call call;
    struct relay_problem problem;
    if (!relay_call_read(chat, body, strlen(body), MOST, &call, &problem))
        fail_msg("%s: %s", body, problem.text);
    return call;
}

static void bodies_are_read(void **state)
{
    (void)state;
    struct relay_call call = read_good(false, "{\"model\":\"m\",\"prompt\":\"hi\",\"max_tokens\":5,\"temperature\":0,"
                                              "\"seed\":3,\"stream\":true,\"stream_options\":{\"include_usage\":true},"
                                              "\"n\":1,\"top_p\":1.0,\"stop\":null,\"user\":\"x\"}");
    assert_true(call.stream && call.include_usage && call.has_seed && !call.chat);
    assert_int_equal(call.max_tokens, 5);
    assert_true(call.temperature == 0 && call.seed == 3);
    assert_string_equal(call.model, "m");
    assert_string_equal(call.special, "");
    assert_string_equal(call.sampling, "");
    relay_call_free(&call);
    call = read_good(true, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_completion_tokens\":7,"
                           "\"max_tokens\":9,\"stop\":[\"x\"],\"tools\":[{}]}");
    assert_int_equal(call.max_tokens, 7);
    assert_string_equal(call.special, "tools");
    assert_string_equal(call.sampling, "stop");
    relay_call_free(&call);
    call = read_good(false, "{\"prompt\":[\"a\",\"b\"]}");
    assert_string_equal(call.special, "prompt");
    relay_call_free(&call);
}

static void bad_bodies_are_refused(void **state)
{
    (void)state;
    static const struct {
        bool chat;
        const char *body, *says;
    } cases[] = {
        {false, "", "not JSON"},
        {false, "{", "not JSON"},
        {false, "{\"prompt\":\"a\",\"prompt\":\"b\"}", "duplicate"},
        {false, "{\"prompt\":\"\\ud800\"}", "not JSON"},
        {false, "\xff", "not JSON"},
        {false, "[]", "object"},
        {false, "{}", "prompt is missing"},
        {false, "{\"prompt\":\"\"}", "not empty"},
        {false, "{\"prompt\":[]}", "array of tokens"},
        {false, "{\"prompt\":[-1]}", "array of tokens"},
        {false, "{\"prompt\":5}", "array of tokens"},
        {false, "{\"prompt\":\"a\",\"max_tokens\":0}", "from 1 to 1000"},
        {false, "{\"prompt\":\"a\",\"max_tokens\":1001}", "from 1 to 1000"},
        {false, "{\"prompt\":\"a\",\"max_tokens\":\"5\"}", "max_tokens"},
        {false, "{\"prompt\":\"a\",\"temperature\":3}", "0 to 2"},
        {false, "{\"prompt\":\"a\",\"temperature\":\"hot\"}", "0 to 2"},
        {false, "{\"prompt\":\"a\",\"seed\":1.5}", "seed"},
        {false, "{\"prompt\":\"a\",\"stream\":1}", "stream"},
        {false, "{\"prompt\":\"a\",\"stream_options\":{}}", "only for streams"},
        {false, "{\"prompt\":\"a\",\"n\":0}", "n must be"},
        {false, "{\"prompt\":\"a\",\"model\":7}", "model"},
        {true, "{}", "messages"},
        {true, "{\"messages\":[]}", "messages"},
        {true, "{\"messages\":[1]}", "messages[0]"},
        {true, "{\"messages\":[{\"role\":\"user\"},{\"content\":\"x\"}]}", "messages[1]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct relay_call call;
        struct relay_problem problem;
        if (relay_call_read(cases[i].chat, cases[i].body, strlen(cases[i].body), MOST, &call, &problem))
            fail_msg("taken: %s", cases[i].body);
        assert_int_equal(problem.status, 400);
        if (strstr(problem.text, cases[i].says) == NULL)
            fail_msg("%s: '%s' does not say '%s'", cases[i].body, problem.text, cases[i].says);
    }
    /* Deep nesting is an error, not the end of the stack. */
    static char deep[200000];
    memset(deep, '[', sizeof deep);
    struct relay_call call;
    struct relay_problem problem;
    assert_false(relay_call_read(false, deep, sizeof deep, MOST, &call, &problem));
}

static void plain_prompts(void **state)
{
    (void)state;
    char *text;
    uint32_t *tokens;
    size_t count;
    struct relay_problem problem;
    struct relay_call call =
        read_good(true, "{\"messages\":[{\"role\":\"system\",\"content\":\"be\"},{\"role\":\"user\","
                        "\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
                        "\"text\":\"b\"}]},{\"role\":\"assistant\",\"content\":null}]}");
    assert_true(relay_call_prompt(&call, &text, &tokens, &count, &problem));
    assert_string_equal(text, "system: be\nuser: ab\nassistant: \nassistant:");
    free(text);
    relay_call_free(&call);
    call = read_good(false, "{\"prompt\":[[7,8]]}");
    assert_true(relay_call_prompt(&call, &text, &tokens, &count, &problem));
    assert_null(text);
    assert_int_equal(count, 2);
    assert_int_equal(tokens[1], 8);
    free(tokens);
    relay_call_free(&call);
    static const char *const not_for_it[] = {"{\"prompt\":\"a\",\"top_p\":0.5}",  "{\"prompt\":\"a\",\"n\":2}",
                                             "{\"prompt\":\"a\",\"stop\":\"x\"}", "{\"prompt\":\"a\",\"logprobs\":1}",
                                             "{\"prompt\":[\"a\",\"b\"]}",        "{\"prompt\":\"a\",\"echo\":true}"};
    for (size_t i = 0; i < sizeof not_for_it / sizeof not_for_it[0]; i++) {
        call = read_good(false, not_for_it[i]);
        assert_false(relay_call_prompt(&call, &text, &tokens, &count, &problem));
        assert_int_equal(problem.status, 400);
        assert_non_null(strstr(problem.text, problem.param));
        relay_call_free(&call);
    }
    call = read_good(true, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}");
    assert_false(relay_call_prompt(&call, &text, &tokens, &count, &problem));
    relay_call_free(&call);
}

/* The JSON of "data: ...\n\n". */
static json_t *event_of(const struct relay_text *text)
{
    assert_false(text->failed);
    assert_memory_equal(text->data, "data: ", 6);
    assert_string_equal(text->data + text->bytes - 2, "\n\n");
    json_t *root = json_loadb(text->data + 6, text->bytes - 8, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    return root;
}

static void answers_are_json(void **state)
{
    (void)state;
    static const char piece[] = "a\"\\\n\x01\xc4\x80\xff\xf0\x9f\x98\x80";
    static const char shown[] = "a\"\\\n\x01\xc4\x80?\xf0\x9f\x98\x80";
    for (int chat = 0; chat < 2; chat++) {
        const struct relay_voice voice = {.chat = chat, .id = "i", .model = "m\"n", .created = 5};
        struct relay_text text = {0};
        relay_say_piece(&text, &voice, piece, sizeof piece - 1);
        json_t *root = event_of(&text), *choice = json_array_get(json_object_get(root, "choices"), 0);
        const json_t *said =
            chat ? json_object_get(json_object_get(choice, "delta"), "content") : json_object_get(choice, "text");
        assert_string_equal(json_string_value(said), shown);
        assert_true(json_is_null(json_object_get(choice, "finish_reason")));
        assert_string_equal(json_string_value(json_object_get(root, "model")), "m\"n");
        json_decref(root);
        relay_text_clear(&text);
        relay_say_end(&text, &voice, "length");
        root = event_of(&text);
        json_decref(root);
        relay_text_clear(&text);
        const struct relay_usage usage = {.known = true, .prompt = 3, .completion = 4, .cached = 2};
        relay_say_usage(&text, &voice, &usage);
        root = event_of(&text);
        assert_int_equal(json_integer_value(json_object_get(json_object_get(root, "usage"), "total_tokens")), 7);
        json_decref(root);
        relay_text_clear(&text);
        relay_say_role(&text, &(struct relay_voice){.chat = true, .id = "i", .model = "m"});
        json_decref(event_of(&text));
        relay_text_clear(&text);
        relay_say_whole(&text, &voice, piece, sizeof piece - 1, "stop", &usage);
        root = json_loadb(text.data, text.bytes, 0, NULL);
        assert_non_null(root);
        json_decref(root);
        relay_text_clear(&text);
        relay_say_failure(&text, 502, "it \"ended\"\n");
        root = event_of(&text);
        assert_string_equal(json_string_value(json_object_get(json_object_get(root, "error"), "message")),
                            "it \"ended\"\n");
        json_decref(root);
        relay_text_free(&text);
    }
}

static json_t *body_of(const char *request)
{
    const char *body = strstr(request, "\r\n\r\n");
    assert_non_null(body);
    json_t *root = json_loads(body + 4, 0, NULL);
    assert_non_null(root);
    return root;
}

static void engines_are_asked_and_asked_again(void **state)
{
    (void)state;
    struct relay_call call = read_good(true, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":10,"
                                             "\"temperature\":0.5,\"min_tokens\":3,\"stop\":[\"x\"]}");
    struct relay_openai_ask ask = {.call = &call, .host = "127.0.0.1:1", .prefix = "/p"};
    size_t bytes;
    char *request = relay_openai_request(&ask, &bytes);
    assert_int_equal(strlen(request), bytes);
    assert_memory_equal(request, "POST /p/v1/chat/completions HTTP/1.1\r\n", 38);
    json_t *body = body_of(request);
    assert_true(json_is_true(json_object_get(body, "stream")));
    assert_true(json_is_true(json_object_get(body, "return_token_ids")));
    assert_int_equal(json_array_size(json_object_get(body, "messages")), 1);
    json_decref(body);
    free(request);

    const uint32_t prompt[] = {5, 6}, tokens[] = {7};
    ask.prompt = prompt;
    ask.prompt_count = 2;
    ask.tokens = tokens;
    ask.token_count = 1;
    request = relay_openai_request(&ask, &bytes);
    assert_memory_equal(request, "POST /p/v1/completions HTTP/1.1\r\n", 33);
    body = body_of(request);
    char *prompt_text = json_dumps(json_object_get(body, "prompt"), JSON_COMPACT);
    assert_string_equal(prompt_text, "[5,6,7]");
    free(prompt_text);
    assert_null(json_object_get(body, "messages"));
    assert_int_equal(json_integer_value(json_object_get(body, "max_tokens")), 9);
    assert_int_equal(json_integer_value(json_object_get(body, "min_tokens")), 2);
    assert_non_null(json_object_get(body, "stop"));
    json_decref(body);
    free(request);
    assert_int_equal(json_integer_value(json_object_get(call.body, "max_tokens")), 10); /* the client's stays */
    relay_call_free(&call);

    call = read_good(false, "{\"prompt\":\"a\",\"n\":2}");
    ask = (struct relay_openai_ask){.call = &call, .host = "h", .prefix = "", .verbatim = true};
    request = relay_openai_request(&ask, &bytes);
    assert_non_null(strstr(request, "\r\n\r\n{\"prompt\":\"a\",\"n\":2}"));
    free(request);
    relay_call_free(&call);
}

static struct relay_delta delta_of(const char *text)
{
    struct relay_delta delta;
    const char *why;
    if (!relay_openai_read(text, strlen(text), &delta, &why))
        fail_msg("%s: %s", text, why);
    return delta;
}

static void events_of_engines_are_read(void **state)
{
    (void)state;
    struct relay_delta delta = delta_of("{\"choices\":[{\"index\":0,\"text\":\"ab\",\"token_ids\":[1,2],"
                                        "\"prompt_token_ids\":[9],\"finish_reason\":\"stop\"}],\"usage\":null}");
    assert_int_equal(delta.text_bytes, 2);
    assert_int_equal(json_array_size(delta.tokens), 2);
    assert_int_equal(json_array_size(delta.prompt), 1);
    assert_string_equal(delta.reason, "stop");
    assert_false(delta.foreign || delta.usage.known);
    relay_delta_free(&delta);
    delta = delta_of("{\"prompt_token_ids\":[9,8],\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\","
                     "\"tool_calls\":[],\"reasoning_content\":null}}]}");
    assert_int_equal(json_array_size(delta.prompt), 2);
    assert_false(delta.foreign);
    relay_delta_free(&delta);
    delta = delta_of("{\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}");
    assert_true(delta.foreign);
    relay_delta_free(&delta);
    delta = delta_of("{\"error\":{\"message\":\"no\",\"code\":400}}");
    assert_string_equal(delta.error, "no");
    assert_int_equal(delta.error_status, 400);
    relay_delta_free(&delta);
    delta = delta_of("{\"object\":\"error\",\"message\":\"old form\",\"code\":404}");
    assert_string_equal(delta.error, "old form");
    relay_delta_free(&delta);
    delta = delta_of("{\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":-4}}");
    assert_true(delta.usage.known);
    assert_int_equal(delta.usage.completion, 0);
    relay_delta_free(&delta);
    delta = delta_of("{\"choices\":[{\"text\":\"a\",\"token_ids\":[\"x\"]}]}");
    assert_null(delta.tokens);
    relay_delta_free(&delta);
    const char *why;
    assert_false(relay_openai_read("[1]", 3, &delta, &why));
}

static void metrics_have_a_form(void **state)
{
    (void)state;
    struct relay_metrics metrics = {.tokens = 5};
    struct relay_gauges gauges = {.engine = -1};
    struct relay_text text = {0};
    relay_metrics_gap(&metrics, 7 * GMS_NS_PER_MS);
    relay_metrics_gap(&metrics, 100 * GMS_NS_PER_S);
    relay_metrics_write(&metrics, &gauges, &text);
    assert_non_null(strstr(text.data, "\ngms_relay_tokens_total 5\n"));
    assert_non_null(strstr(text.data, "\ngms_relay_serving_engine -1\n"));
    assert_non_null(strstr(text.data, "{le=\"0.005\"} 0\n"));
    assert_non_null(strstr(text.data, "{le=\"0.01\"} 1\n"));
    assert_non_null(strstr(text.data, "{le=\"30\"} 1\n"));
    assert_non_null(strstr(text.data, "{le=\"+Inf\"} 2\n"));
    for (char *line = strtok(text.data, "\n"); line != NULL; line = strtok(NULL, "\n"))
        assert_true(strncmp(line, "gms_relay_", 10) == 0 || strncmp(line, "# HELP gms_relay_", 17) == 0 ||
                    strncmp(line, "# TYPE gms_relay_", 17) == 0);
    relay_text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bodies_are_read),
        cmocka_unit_test(bad_bodies_are_refused),
        cmocka_unit_test(plain_prompts),
        cmocka_unit_test(answers_are_json),
        cmocka_unit_test(engines_are_asked_and_asked_again),
        cmocka_unit_test(events_of_engines_are_read),
        cmocka_unit_test(metrics_have_a_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
