/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-relay/lines.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *numbers(const uint32_t *values, size_t count)
{
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(array, json_integer(values[i]));
    return array;
}

char *relay_lines_generate(const struct relay_lines_ask *ask, size_t *ret_bytes)
{
    json_t *prompt = ask->prompt != NULL ? json_string(ask->prompt) : numbers(ask->prompt_tokens, ask->prompt_count);
    json_t *root =
        json_pack("{s:s, s:s, s:o, s:o, s:I, s:f, s:I}", "op", "generate", "id", ask->id, "prompt", prompt, "generated",
                  numbers(ask->generated, ask->generated_count), "max_tokens", (json_int_t)ask->max_tokens,
                  "temperature", ask->temperature, "seed", (json_int_t)(ask->seed & INT64_MAX));
    if (root != NULL && ask->with_text)
        json_object_set_new(root, "text", json_true());
    char *text = root != NULL ? json_dumps(root, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    json_decref(root);
    if (text == NULL)
        return NULL;
    size_t length = strlen(text);
    char *line = realloc(text, length + 2);
    if (line == NULL) {
        free(text);
        return NULL;
    }
    line[length] = '\n';
    line[length + 1] = '\0';
    *ret_bytes = length + 1;
    return line;
}

__attribute__((format(printf, 2, 3))) static bool wrong(char *ret_why, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(ret_why, RELAY_LINE_WHY_BYTES, format, arguments);
    va_end(arguments);
    return false;
}

static bool take(const json_t *object, const char *name, uint64_t most, uint64_t *ret_value, char *ret_why)
{
    const json_t *value = json_object_get(object, name);
    if (!json_is_integer(value) || json_integer_value(value) < 0 || (uint64_t)json_integer_value(value) > most)
        return wrong(ret_why, "'%s' is missing or not a number that it can be", name);
    *ret_value = (uint64_t)json_integer_value(value);
    return true;
}

static bool take_small(const json_t *object, const char *name, uint32_t *ret_value, char *ret_why)
{
    uint64_t value = 0;
    if (!take(object, name, UINT32_MAX, &value, ret_why))
        return false;
    *ret_value = (uint32_t)value;
    return true;
}

/* Text that fits; longer or other values become "". */
static void copy(const json_t *object, const char *name, char *to, size_t capacity)
{
    const json_t *value = json_object_get(object, name);
    if (json_string_length(value) < capacity && json_is_string(value))
        memcpy(to, json_string_value(value), json_string_length(value) + 1);
}

static bool read_hello(const json_t *object, struct relay_line *line, char *ret_why)
{
    uint64_t pid = 0;
    line->kind = RELAY_LINE_HELLO;
    if (!take_small(object, "engine", &line->engine, ret_why) ||
        !take(object, "incarnation", INT64_MAX, &line->incarnation, ret_why) ||
        !take(object, "epoch", INT64_MAX, &line->epoch, ret_why) || !take(object, "pid", INT32_MAX, &pid, ret_why))
        return false;
    line->pid = (int32_t)pid;
    return true;
}

static bool read_token(const json_t *object, struct relay_line *line, char *ret_why)
{
    const json_t *text = json_object_get(object, "text");
    line->kind = RELAY_LINE_TOKEN;
    if (!take_small(object, "index", &line->index, ret_why) || !take_small(object, "token", &line->token, ret_why))
        return false;
    if (text == NULL)
        return true;
    if (!json_is_string(text) || json_string_length(text) > sizeof line->text)
        return wrong(ret_why, "the text of token %u is no string of at most %zu bytes", line->index, sizeof line->text);
    line->text_bytes = json_string_length(text);
    memcpy(line->text, json_string_value(text), line->text_bytes);
    return true;
}

static bool read_done(const json_t *object, struct relay_line *line, char *ret_why)
{
    line->kind = RELAY_LINE_DONE;
    if (json_object_get(object, "salvaged_tokens") != NULL &&
        !take(object, "salvaged_tokens", INT64_MAX, &line->salvaged_tokens, ret_why))
        return false;
    copy(object, "reason", line->reason, sizeof line->reason);
    return take(object, "prompt_tokens", INT64_MAX, &line->prompt_tokens, ret_why) &&
           take(object, "cached_tokens", INT64_MAX, &line->cached_tokens, ret_why) &&
           take(object, "computed_tokens", INT64_MAX, &line->computed_tokens, ret_why);
}

static bool read_object(const json_t *object, struct relay_line *line, char *ret_why)
{
    if (!json_is_object(object))
        return wrong(ret_why, "a line that is no JSON object");
    copy(object, "id", line->id, sizeof line->id);
    const json_t *error = json_object_get(object, "error");
    if (json_is_string(error)) {
        line->kind = RELAY_LINE_ERROR;
        snprintf(line->error, sizeof line->error, "%s", json_string_value(error));
        return true;
    }
    if (json_is_string(json_object_get(object, "hello")))
        return read_hello(object, line, ret_why);
    if (line->id[0] == '\0')
        return wrong(ret_why, "a line without the id of a request");
    if (json_is_true(json_object_get(object, "done")))
        return read_done(object, line, ret_why);
    return read_token(object, line, ret_why);
}

bool relay_lines_read(const char *line, size_t bytes, struct relay_line *ret_line, char ret_why[RELAY_LINE_WHY_BYTES])
{
    memset(ret_line, 0, sizeof *ret_line);
    json_t *object = json_loadb(line, bytes, 0, NULL);
    if (object == NULL)
        return wrong(ret_why, "a line that is not JSON: %.*s", bytes < 60 ? (int)bytes : 60, line);
    bool good = read_object(object, ret_line, ret_why);
    json_decref(object);
    return good;
}
