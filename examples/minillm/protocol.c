/* SPDX-License-Identifier: Apache-2.0 */
#include "protocol.h"

#include "ending.h"
#include "text.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 2, 3))) static bool wrong(char *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, PROTOCOL_TEXT_BYTES, format, arguments);
    va_end(arguments);
    return false;
}

/* An optional integer with a range; absent takes `fallback`. */
static bool take_integer(const json_t *object, const char *key, json_int_t least, json_int_t most, json_int_t fallback,
                         json_int_t *ret, char *text)
{
    const json_t *value = json_object_get(object, key);
    if (value == NULL) {
        *ret = fallback;
        return true;
    }
    if (!json_is_integer(value) || json_integer_value(value) < least || json_integer_value(value) > most)
        return wrong(text, "%s must be an integer from %" JSON_INTEGER_FORMAT " to %" JSON_INTEGER_FORMAT, key, least,
                     most);
    *ret = json_integer_value(value);
    return true;
}

static bool take_id(const json_t *object, struct protocol_message *m, char *text)
{
    const json_t *value = json_object_get(object, "id");
    if (!json_is_string(value) || json_string_length(value) == 0 || json_string_length(value) > PROTOCOL_ID_BYTES)
        return wrong(text, "id must be a string of 1 to %d bytes", PROTOCOL_ID_BYTES);
    memcpy(m->id, json_string_value(value), json_string_length(value) + 1);
    m->id_json = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    return m->id_json != NULL || wrong(text, "out of memory");
}

static bool count_tokens(const json_t *value, const char *key, bool text_allowed, uint32_t limit, uint32_t vocabulary,
                         uint32_t *ret_count, char *text)
{
    size_t count;
    if (text_allowed && json_is_string(value)) {
        if (vocabulary < 256)
            return wrong(text, "%s as text needs a vocabulary of 256, this model has %" PRIu32, key, vocabulary);
        count = text_to_tokens(json_string_value(value), json_string_length(value), NULL);
    } else if (json_is_array(value)) {
        count = json_array_size(value);
    } else {
        return wrong(text, "%s must be %san array of tokens", key, text_allowed ? "a string or " : "");
    }
    if (count > limit)
        return wrong(text, "%s has %zu tokens, the context is %" PRIu32, key, count, limit);
    *ret_count = (uint32_t)count;
    return true;
}

static bool copy_tokens(const json_t *value, const char *key, uint32_t vocabulary, uint32_t *out, char *text)
{
    if (json_is_string(value)) {
        text_to_tokens(json_string_value(value), json_string_length(value), out);
        return true;
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *token = json_array_get(value, i);
        if (!json_is_integer(token) || json_integer_value(token) < 0 || json_integer_value(token) >= vocabulary)
            return wrong(text, "%s[%zu] must be a token from 0 to %" PRIu32, key, i, vocabulary - 1);
        out[i] = (uint32_t)json_integer_value(token);
    }
    return true;
}

static bool parse_generate(const json_t *object, uint32_t vocabulary, uint32_t limit, struct protocol_message *m,
                           char *text)
{
    m->operation = PROTOCOL_GENERATE;
    json_int_t max_tokens = 0, seed = 0;
    if (!take_id(object, m, text) || !take_integer(object, "max_tokens", 1, limit, 16, &max_tokens, text) ||
        !take_integer(object, "seed", 0, INT64_MAX, 0, &seed, text))
        return false;
    m->max_tokens = (uint32_t)max_tokens;
    m->seed = (uint64_t)seed;
    const json_t *temperature = json_object_get(object, "temperature");
    if (temperature != NULL && !json_is_number(temperature))
        return wrong(text, "temperature must be a number from 0 to 100");
    m->temperature = temperature == NULL ? 0 : json_number_value(temperature);
    if (!(m->temperature >= 0 && m->temperature <= 100))
        return wrong(text, "temperature must be a number from 0 to 100");
    const json_t *with_text = json_object_get(object, "text");
    if (with_text != NULL && !json_is_boolean(with_text))
        return wrong(text, "text must be true or false");
    m->with_text = json_is_true(with_text);
    if (m->with_text && vocabulary > 256)
        return wrong(text, "text needs a vocabulary of at most 256, this model has %" PRIu32, vocabulary);
    const json_t *prompt = json_object_get(object, "prompt"), *generated = json_object_get(object, "generated");
    if (!count_tokens(prompt, "prompt", true, limit, vocabulary, &m->prompt_count, text))
        return false;
    if (generated != NULL && !count_tokens(generated, "generated", false, limit, vocabulary, &m->generated_count, text))
        return false;
    m->tokens = calloc((size_t)m->prompt_count + m->generated_count + 1, sizeof *m->tokens);
    if (m->tokens == NULL)
        return wrong(text, "out of memory");
    return copy_tokens(prompt, "prompt", vocabulary, m->tokens, text) &&
           (generated == NULL || copy_tokens(generated, "generated", vocabulary, m->tokens + m->prompt_count, text));
}

static bool parse_arm(const json_t *object, uint32_t world_size, struct protocol_message *m, char *text)
{
    static const struct {
        const char *name;
        enum drill_phase phase;
    } phases[] = {{"prefill", DRILL_PREFILL}, {"decode", DRILL_DECODE}, {"seal", DRILL_SEAL}};
    m->operation = PROTOCOL_ARM;
    json_int_t rank = 0, after = 0;
    const char *who = json_string_value(json_object_get(object, "rank"));
    if (who != NULL && strcmp(who, "all") == 0)
        rank = DRILL_EVERY_RANK;
    else if (!take_integer(object, "rank", 0, (json_int_t)world_size - 1, 0, &rank, text))
        return false;
    if (!take_integer(object, "after", 1, 1000000000, 1, &after, text))
        return false;
    const char *at = json_string_value(json_object_get(object, "at"));
    const json_t *how = json_object_get(object, "how");
    enum ending ending = ENDING_SIGKILL;
    if (how != NULL && (!json_is_string(how) || !ending_parse(json_string_value(how), &ending)))
        return wrong(text, "how must be %s", ending_names);
    for (size_t i = 0; at != NULL && i < sizeof phases / sizeof phases[0]; i++)
        if (strcmp(at, phases[i].name) == 0) {
            m->drill = (struct plan_drill){phases[i].phase, (uint32_t)rank, (uint32_t)after, (uint32_t)ending};
            return true;
        }
    return wrong(text, "at must be \"prefill\", \"decode\" or \"seal\"");
}

static bool parse_object(const json_t *object, uint32_t vocabulary, uint32_t limit_tokens, uint32_t world_size,
                         struct protocol_message *m, char *text)
{
    const char *op = json_string_value(json_object_get(object, "op"));
    if (op != NULL && strcmp(op, "generate") == 0)
        return parse_generate(object, vocabulary, limit_tokens, m, text);
    if (op != NULL && strcmp(op, "arm") == 0)
        return parse_arm(object, world_size, m, text);
    if (op != NULL && strcmp(op, "stats") == 0) {
        m->operation = PROTOCOL_STATS;
        return true;
    }
    return wrong(text, "op must be \"generate\", \"stats\" or \"arm\"");
}

bool protocol_parse(const char *line, size_t length, uint32_t vocabulary, uint32_t limit_tokens, uint32_t world_size,
                    struct protocol_message *ret_message, char ret_text[PROTOCOL_TEXT_BYTES])
{
    *ret_message = (struct protocol_message){0};
    ret_text[0] = 0;
    json_error_t error;
    json_t *object = json_loadb(line, length, JSON_REJECT_DUPLICATES, &error);
    if (object == NULL)
        return wrong(ret_text, "not a JSON object: column %d: %.120s", error.column, error.text);
    bool fine = json_is_object(object)
                    ? parse_object(object, vocabulary, limit_tokens, world_size, ret_message, ret_text)
                    : wrong(ret_text, "a line must be one JSON object");
    json_decref(object);
    return fine;
}

void protocol_free(struct protocol_message *message)
{
    free(message->id_json);
    free(message->tokens);
    message->id_json = NULL;
    message->tokens = NULL;
}

char *protocol_error(const char *id_json, const char *text)
{
    /* Texts quote pieces of a client's line; json_stringn refuses broken UTF-8, so fall back to a fixed one. */
    json_t *string = json_string(text);
    if (string == NULL)
        string = json_string("malformed line");
    char *encoded = string == NULL ? NULL : json_dumps(string, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    json_decref(string);
    if (encoded == NULL)
        return NULL;
    char *line = NULL;
    int length = id_json == NULL ? asprintf(&line, "{\"error\":%s}\n", encoded)
                                 : asprintf(&line, "{\"id\":%s,\"error\":%s}\n", id_json, encoded);
    free(encoded);
    return length < 0 ? NULL : line;
}
