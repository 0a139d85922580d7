/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-relay/openai.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What only chat or only the client's own form of the stream has. */
static const char *const chat_only[] = {"messages",
                                        "max_completion_tokens",
                                        "stream_options",
                                        "chat_template",
                                        "add_generation_prompt",
                                        "chat_template_kwargs",
                                        "tools",
                                        "tool_choice",
                                        "response_format",
                                        "parallel_tool_calls",
                                        "reasoning_effort",
                                        NULL};

static void add_numbers(json_t *array, const uint32_t *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        json_array_append_new(array, json_integer(values[i]));
}

static json_t *continuation(const struct relay_openai_ask *ask)
{
    json_t *body = json_copy(ask->call->body), *prompt = json_array();
    for (size_t i = 0; chat_only[i] != NULL; i++)
        json_object_del(body, chat_only[i]);
    add_numbers(prompt, ask->prompt, ask->prompt_count);
    add_numbers(prompt, ask->tokens, ask->token_count);
    json_object_set_new(body, "prompt", prompt);
    /* Not said: completions stop at 16 tokens, chat at the end of the context. */
    uint32_t most = ask->call->max_tokens != 0 ? ask->call->max_tokens : ask->call->chat ? 0 : 16;
    json_object_set_new(body, "max_tokens",
                        most == 0 ? json_null() : json_integer((json_int_t)most - (json_int_t)ask->token_count));
    const json_t *least = json_object_get(body, "min_tokens");
    if (json_is_integer(least))
        json_object_set_new(body, "min_tokens",
                            json_integer(json_integer_value(least) > (json_int_t)ask->token_count
                                             ? json_integer_value(least) - (json_int_t)ask->token_count
                                             : 0));
    return body;
}

char *relay_openai_request(const struct relay_openai_ask *ask, size_t *ret_bytes)
{
    if (ask->call->get != NULL) {
        struct relay_text get = {0};
        relay_text_print(&get, "GET %s%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", ask->prefix,
                         ask->call->get, ask->host);
        *ret_bytes = get.bytes;
        return get.data;
    }
    bool continues = ask->token_count > 0;
    json_t *body = continues ? continuation(ask) : json_copy(ask->call->body);
    if (body != NULL && !ask->verbatim) {
        json_object_set_new(body, "stream", json_true());
        json_object_set_new(body, "stream_options", json_pack("{s:b}", "include_usage", 1));
        json_object_set_new(body, "return_token_ids", json_true());
    }
    char *text = body != NULL ? json_dumps(body, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    json_decref(body);
    if (text == NULL)
        return NULL;
    struct relay_text out = {0};
    relay_text_print(&out,
                     "POST %s%s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAccept: text/event-stream, "
                     "application/json\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n",
                     ask->prefix, ask->call->chat && !continues ? "/v1/chat/completions" : "/v1/completions", ask->host,
                     strlen(text));
    relay_text_add(&out, text, strlen(text));
    free(text);
    if (out.failed) {
        relay_text_free(&out);
        return NULL;
    }
    *ret_bytes = out.bytes;
    return out.data;
}

/* ------------------------------------------------------------------------------------------------- events ----- */

static const json_t *integers(const json_t *array)
{
    if (!json_is_array(array))
        return NULL;
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *value = json_array_get(array, i);
        if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > UINT32_MAX)
            return NULL;
    }
    return array;
}

static void take_text(const json_t *value, struct relay_delta *delta)
{
    if (!json_is_string(value))
        return;
    delta->text = json_string_value(value);
    delta->text_bytes = json_string_length(value);
}

static bool is_empty(const json_t *value)
{
    return value == NULL || json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

static void take_choice(const json_t *choice, struct relay_delta *delta)
{
    json_t *part = json_object_get(choice, "delta"), *value;
    const char *name, *reason = json_string_value(json_object_get(choice, "finish_reason"));
    if (reason != NULL)
        snprintf(delta->reason, sizeof delta->reason, "%s", reason);
    take_text(json_object_get(choice, "text"), delta);
    json_object_foreach(part, name, value)
    {
        if (strcmp(name, "content") == 0)
            take_text(value, delta);
        else if (strcmp(name, "role") != 0 && !is_empty(value))
            delta->foreign = true;
    }
    delta->tokens = integers(json_object_get(choice, "token_ids"));
    if (delta->prompt == NULL)
        delta->prompt = integers(json_object_get(choice, "prompt_token_ids"));
}

static uint64_t natural(const json_t *object, const char *name)
{
    json_int_t value = json_integer_value(json_object_get(object, name));
    return value > 0 ? (uint64_t)value : 0;
}

static void take_error(const json_t *error, struct relay_delta *delta)
{
    const char *text =
        json_is_string(error) ? json_string_value(error) : json_string_value(json_object_get(error, "message"));
    const json_t *code = json_object_get(error, "code");
    snprintf(delta->error, sizeof delta->error, "%s",
             text != NULL && text[0] != '\0' ? text : "an error without a text");
    if (json_is_integer(code) && json_integer_value(code) >= 400 && json_integer_value(code) <= 599)
        delta->error_status = (int)json_integer_value(code);
    /* vLLM's words for it; releases up to 0.13 give them code 400 in a stream. */
    delta->engine_died = strstr(delta->error, "EngineCore encountered an issue") != NULL;
}

bool relay_openai_read(const char *data, size_t bytes, struct relay_delta *ret_delta, const char **ret_why)
{
    *ret_delta = (struct relay_delta){0};
    json_t *root = json_loadb(data, bytes, 0, NULL);
    if (!json_is_object(root)) {
        json_decref(root);
        *ret_why = "an event that is no JSON object";
        return false;
    }
    ret_delta->root = root;
    const json_t *error = json_object_get(root, "error"), *usage = json_object_get(root, "usage");
    if (error != NULL && !json_is_null(error))
        take_error(error, ret_delta);
    else if (json_is_string(json_object_get(root, "object")) &&
             strcmp(json_string_value(json_object_get(root, "object")), "error") == 0)
        take_error(root, ret_delta);
    ret_delta->prompt = integers(json_object_get(root, "prompt_token_ids"));
    const json_t *choices = json_object_get(root, "choices");
    if (json_array_size(choices) > 0)
        take_choice(json_array_get(choices, 0), ret_delta);
    if (json_is_object(usage)) {
        ret_delta->usage.known = true;
        ret_delta->usage.prompt = natural(usage, "prompt_tokens");
        ret_delta->usage.completion = natural(usage, "completion_tokens");
        ret_delta->usage.cached = natural(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
    }
    return true;
}

void relay_delta_free(struct relay_delta *delta)
{
    json_decref(delta->root);
    *delta = (struct relay_delta){0};
}
