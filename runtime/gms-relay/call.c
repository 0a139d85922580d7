/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-relay/call.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 4, 5))) static bool wrong(struct relay_problem *problem, int status, const char *param,
                                                        const char *format, ...)
{
    va_list arguments;
    problem->status = status;
    snprintf(problem->param, sizeof problem->param, "%s", param);
    va_start(arguments, format);
    vsnprintf(problem->text, sizeof problem->text, format, arguments);
    va_end(arguments);
    return false;
}

/* -------------------------------------------------------------------------------------------------- fields ---- */

/* Fields with an effect beyond text, length, temperature and seed. Absent, null or `neutral` they have none. */
static const struct field {
    const char *name, *neutral; /* JSON */
    bool special;               /* more than the choice of tokens */
} fields[] = {
    {"top_p", "1", false},
    {"top_k", "-1", false},
    {"min_p", "0", false},
    {"presence_penalty", "0", false},
    {"frequency_penalty", "0", false},
    {"repetition_penalty", "1", false},
    {"stop", "[]", false},
    {"stop_regex", "null", false},
    {"stop_token_ids", "[]", false},
    {"bad_words", "[]", false},
    {"allowed_token_ids", "null", false},
    {"logit_bias", "{}", false},
    {"min_tokens", "0", false},
    {"ignore_eos", "false", false},
    {"n", "1", true},
    {"best_of", "1", true},
    {"use_beam_search", "false", true},
    {"logprobs", "false", true},
    {"top_logprobs", "0", true},
    {"prompt_logprobs", "0", true},
    {"echo", "false", true},
    {"suffix", "\"\"", true},
    {"tools", "[]", true},
    {"tool_choice", "\"none\"", true},
    {"functions", "[]", true},
    {"function_call", "\"none\"", true},
    {"response_format", "{\"type\":\"text\"}", true},
    {"structured_outputs", "{}", true},
    {"guided_json", "null", true},
    {"guided_regex", "null", true},
    {"guided_choice", "null", true},
    {"guided_grammar", "null", true},
    {"regex", "null", true},
    {"json_schema", "null", true},
    {"ebnf", "null", true},
    {"modalities", "[\"text\"]", true},
    {"audio", "null", true},
    {"prediction", "null", true},
    {"kv_transfer_params", "null", true},
};

static bool is_neutral(const json_t *value, const char *neutral)
{
    if (value == NULL || json_is_null(value))
        return true;
    json_t *wanted = json_loads(neutral, JSON_DECODE_ANY, NULL);
    bool same = json_is_number(value) && json_is_number(wanted) ? json_number_value(value) == json_number_value(wanted)
                                                                : json_equal(value, wanted) != 0;
    json_decref(wanted);
    return same;
}

static void note_fields(struct relay_call *call)
{
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        char *place = fields[i].special ? call->special : call->sampling;
        if (place[0] == '\0' && !is_neutral(json_object_get(call->body, fields[i].name), fields[i].neutral))
            snprintf(place, RELAY_FIELD_BYTES, "%s", fields[i].name);
    }
    call->holds_back = !is_neutral(json_object_get(call->body, "stop"), "[]") ||
                       !is_neutral(json_object_get(call->body, "stop_regex"), "null");
}

/* An optional member that may be null. */
static const json_t *given(const struct relay_call *call, const char *name)
{
    const json_t *value = json_object_get(call->body, name);
    return json_is_null(value) ? NULL : value;
}

static bool read_flag(const json_t *value, const char *name, bool *ret_flag, struct relay_problem *problem)
{
    if (value != NULL && !json_is_boolean(value))
        return wrong(problem, 400, name, "%s must be true or false", name);
    *ret_flag = json_is_true(value);
    return true;
}

static bool read_max_tokens(struct relay_call *call, uint32_t most, struct relay_problem *problem)
{
    const char *name =
        call->chat && given(call, "max_completion_tokens") != NULL ? "max_completion_tokens" : "max_tokens";
    const json_t *value = given(call, name);
    if (value == NULL)
        return true;
    if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > (json_int_t)most)
        return wrong(problem, 400, name, "%s must be an integer from 1 to %u", name, most);
    call->max_tokens = (uint32_t)json_integer_value(value);
    return true;
}

static bool read_sampling(struct relay_call *call, struct relay_problem *problem)
{
    const json_t *temperature = given(call, "temperature"), *seed = given(call, "seed");
    call->temperature = -1;
    if (temperature != NULL) {
        double value = json_number_value(temperature);
        if (!json_is_number(temperature) || !(value >= 0 && value <= 2))
            return wrong(problem, 400, "temperature", "temperature must be a number from 0 to 2");
        call->temperature = value;
    }
    if (seed != NULL) {
        if (!json_is_integer(seed))
            return wrong(problem, 400, "seed", "seed must be an integer");
        call->has_seed = true;
        call->seed = (uint64_t)json_integer_value(seed);
    }
    return true;
}

static bool all_integers(const json_t *array)
{
    for (size_t i = 0; i < json_array_size(array); i++)
        if (!json_is_integer(json_array_get(array, i)) || json_integer_value(json_array_get(array, i)) < 0 ||
            json_integer_value(json_array_get(array, i)) > UINT32_MAX)
            return false;
    return json_array_size(array) > 0;
}

static bool check_prompt(struct relay_call *call, struct relay_problem *problem)
{
    const json_t *prompt = given(call, "prompt");
    if (json_is_array(prompt) && json_array_size(prompt) == 1 &&
        (json_is_string(json_array_get(prompt, 0)) || json_is_array(json_array_get(prompt, 0))))
        prompt = json_array_get(prompt, 0);
    if (prompt == NULL)
        return wrong(problem, 400, "prompt", "prompt is missing");
    if ((json_is_string(prompt) && json_string_length(prompt) > 0) || (json_is_array(prompt) && all_integers(prompt)))
        return true;
    if (json_is_array(prompt) && json_array_size(prompt) > 1)
        snprintf(call->special, sizeof call->special, "prompt"); /* several at once */
    else
        return wrong(problem, 400, "prompt", "prompt must be a string that is not empty, or an array of tokens");
    return true;
}

static bool is_text(const json_t *content)
{
    for (size_t i = 0; i < json_array_size(content); i++) {
        const char *type = json_string_value(json_object_get(json_array_get(content, i), "type"));
        if (type == NULL || strcmp(type, "text") != 0)
            return false;
    }
    return true;
}

static bool check_messages(struct relay_call *call, struct relay_problem *problem)
{
    const json_t *messages = given(call, "messages");
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return wrong(problem, 400, "messages", "messages must be an array with at least one message");
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!json_is_string(json_object_get(json_array_get(messages, i), "role")))
            return wrong(problem, 400, "messages", "messages[%zu] must be an object with a role", i);
    /* A picture is more than the tokens that stand for it: with those alone nobody could go on. */
    for (size_t i = 0; i < json_array_size(messages) && call->special[0] == '\0'; i++)
        if (!is_text(json_object_get(json_array_get(messages, i), "content")))
            snprintf(call->special, sizeof call->special, "messages of more than text");
    return true;
}

static bool read_fields(struct relay_call *call, uint32_t most_tokens, struct relay_problem *problem)
{
    const json_t *model = given(call, "model"), *options = given(call, "stream_options");
    if (model != NULL && (!json_is_string(model) || json_string_length(model) >= sizeof call->model))
        return wrong(problem, 400, "model", "model must be a string of at most %zu bytes", sizeof call->model - 1);
    if (model != NULL)
        memcpy(call->model, json_string_value(model), json_string_length(model) + 1);
    if (!read_flag(given(call, "stream"), "stream", &call->stream, problem))
        return false;
    if (options != NULL && (!json_is_object(options) || !call->stream))
        return wrong(problem, 400, "stream_options", "stream_options is an object, and only for streams");
    if (!read_flag(json_object_get(options, "include_usage"), "include_usage", &call->include_usage, problem) ||
        !read_max_tokens(call, most_tokens, problem) || !read_sampling(call, problem))
        return false;
    const json_t *n = given(call, "n");
    if (n != NULL && (!json_is_integer(n) || json_integer_value(n) < 1))
        return wrong(problem, 400, "n", "n must be an integer of at least 1");
    note_fields(call);
    return call->chat ? check_messages(call, problem) : check_prompt(call, problem);
}

bool relay_call_read(bool chat, const char *body, size_t bytes, uint32_t most_tokens, struct relay_call *ret_call,
                     struct relay_problem *ret_problem)
{
    json_error_t error;
    memset(ret_problem, 0, sizeof *ret_problem);
    *ret_call = (struct relay_call){.chat = chat};
    ret_call->body = json_loadb(body, bytes, JSON_REJECT_DUPLICATES, &error);
    if (ret_call->body == NULL)
        return wrong(ret_problem, 400, "", "the body is not JSON: line %d, column %d: %.120s", error.line, error.column,
                     error.text);
    bool good = json_is_object(ret_call->body) ? read_fields(ret_call, most_tokens, ret_problem)
                                               : wrong(ret_problem, 400, "", "the body must be one JSON object");
    if (!good)
        relay_call_free(ret_call);
    return good;
}

void relay_call_free(struct relay_call *call)
{
    json_decref(call->body);
    call->body = NULL;
}

/* ------------------------------------------------------------------------------------------ plain prompts ----- */

static bool add_content(struct relay_text *text, const json_t *content)
{
    if (content == NULL || json_is_null(content))
        return true;
    if (json_is_string(content)) {
        relay_text_add(text, json_string_value(content), json_string_length(content));
        return true;
    }
    if (!json_is_array(content))
        return false;
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i), *words = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (type == NULL || strcmp(type, "text") != 0 || !json_is_string(words))
            return false;
        relay_text_add(text, json_string_value(words), json_string_length(words));
    }
    return true;
}

static bool chat_prompt(const struct relay_call *call, char **ret_text, struct relay_problem *problem)
{
    struct relay_text text = {0};
    const json_t *messages = json_object_get(call->body, "messages");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        relay_text_print(&text, "%s: ", json_string_value(json_object_get(message, "role")));
        if (!add_content(&text, json_object_get(message, "content"))) {
            relay_text_free(&text);
            return wrong(problem, 400, "messages", "messages[%zu]: this engine takes content of text only", i);
        }
        relay_text_add(&text, "\n", 1);
    }
    relay_text_print(&text, "assistant:");
    if (text.failed) {
        relay_text_free(&text);
        return wrong(problem, 503, "", "out of memory");
    }
    *ret_text = text.data;
    return true;
}

bool relay_call_prompt(const struct relay_call *call, char **ret_text, uint32_t **ret_tokens, size_t *ret_count,
                       struct relay_problem *ret_problem)
{
    *ret_text = NULL;
    *ret_tokens = NULL;
    *ret_count = 0;
    memset(ret_problem, 0, sizeof *ret_problem);
    const char *field = call->special[0] != '\0' ? call->special : call->sampling;
    if (field[0] != '\0')
        return wrong(ret_problem, 400, field, "this engine does not support %s", field);
    if (call->chat)
        return chat_prompt(call, ret_text, ret_problem);
    const json_t *prompt = json_object_get(call->body, "prompt");
    if (json_is_array(prompt) && !json_is_integer(json_array_get(prompt, 0)))
        prompt = json_array_get(prompt, 0);
    if (json_is_string(prompt)) {
        *ret_text = strdup(json_string_value(prompt));
        return *ret_text != NULL || wrong(ret_problem, 503, "", "out of memory");
    }
    *ret_count = json_array_size(prompt);
    *ret_tokens = calloc(*ret_count, sizeof **ret_tokens);
    if (*ret_tokens == NULL)
        return wrong(ret_problem, 503, "", "out of memory");
    for (size_t i = 0; i < *ret_count; i++)
        (*ret_tokens)[i] = (uint32_t)json_integer_value(json_array_get(prompt, i));
    return true;
}

/* ------------------------------------------------------------------------------------------------ answers ----- */

static void begin(struct relay_text *out, const struct relay_voice *voice, const char *object)
{
    relay_text_print(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":", voice->id, object,
                     voice->created);
    relay_text_json(out, voice->model, strlen(voice->model));
}

static void begin_event(struct relay_text *out, const struct relay_voice *voice)
{
    relay_text_add(out, "data: ", 6);
    begin(out, voice, voice->chat ? "chat.completion.chunk" : "text_completion");
}

void relay_say_role(struct relay_text *out, const struct relay_voice *voice)
{
    begin_event(out, voice);
    relay_text_print(out, ",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                          "\"finish_reason\":null}]}\n\n");
}

void relay_say_piece(struct relay_text *out, const struct relay_voice *voice, const char *text, size_t bytes)
{
    begin_event(out, voice);
    relay_text_print(out, voice->chat ? ",\"choices\":[{\"index\":0,\"delta\":{\"content\":"
                                      : ",\"choices\":[{\"index\":0,\"text\":");
    relay_text_json(out, text, bytes);
    relay_text_print(out, voice->chat ? "},\"finish_reason\":null}]}\n\n"
                                      : ",\"logprobs\":null,\"finish_reason\":null}]}\n\n");
}

void relay_say_end(struct relay_text *out, const struct relay_voice *voice, const char *reason)
{
    begin_event(out, voice);
    relay_text_print(out, voice->chat
                              ? ",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":"
                              : ",\"choices\":[{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":");
    relay_text_json(out, reason, strlen(reason));
    relay_text_print(out, "}]}\n\n");
}

static void add_usage(struct relay_text *out, const struct relay_usage *usage)
{
    relay_text_print(out,
                     ",\"usage\":{\"prompt_tokens\":%" PRIu64 ",\"completion_tokens\":%" PRIu64
                     ",\"total_tokens\":%" PRIu64 ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRIu64 "}}",
                     usage->prompt, usage->completion, usage->prompt + usage->completion, usage->cached);
}

void relay_say_usage(struct relay_text *out, const struct relay_voice *voice, const struct relay_usage *usage)
{
    begin_event(out, voice);
    relay_text_print(out, ",\"choices\":[]");
    add_usage(out, usage);
    relay_text_print(out, "}\n\n");
}

void relay_say_done(struct relay_text *out)
{
    relay_text_print(out, "data: [DONE]\n\n");
}

void relay_say_failure(struct relay_text *out, int status, const char *text)
{
    relay_text_add(out, "data: ", 6);
    relay_say_error(out, status, "", text);
    relay_text_add(out, "\n", 1);
}

void relay_say_whole(struct relay_text *out, const struct relay_voice *voice, const char *text, size_t bytes,
                     const char *reason, const struct relay_usage *usage)
{
    begin(out, voice, voice->chat ? "chat.completion" : "text_completion");
    relay_text_print(out, voice->chat ? ",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
                                      : ",\"choices\":[{\"index\":0,\"text\":");
    relay_text_json(out, text, bytes);
    relay_text_print(out,
                     voice->chat ? "},\"logprobs\":null,\"finish_reason\":" : ",\"logprobs\":null,\"finish_reason\":");
    relay_text_json(out, reason, strlen(reason));
    relay_text_print(out, "}]");
    if (usage->known)
        add_usage(out, usage);
    relay_text_print(out, "}\n");
}

void relay_say_error(struct relay_text *out, int status, const char *param, const char *text)
{
    relay_text_print(out, "{\"error\":{\"message\":");
    relay_text_json(out, text, strlen(text));
    relay_text_print(out, ",\"type\":\"%s\",\"param\":", status < 500 ? "invalid_request_error" : "server_error");
    if (param[0] != '\0')
        relay_text_json(out, param, strlen(param));
    else
        relay_text_print(out, "null");
    relay_text_print(out, ",\"code\":%d}}\n", status);
}
