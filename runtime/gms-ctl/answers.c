/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-ctl/answers.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gms-ctl/control.h"

static void ask(const char *run_dir, uint64_t timeout_ns, struct gms_answer *answer)
{
    struct gms_message request = {.type = GMS_MESSAGE_STATUS}, reply;
    struct gms_control control;
    json_error_t where;

    answer->status = gms_control_open(run_dir, answer->rank, timeout_ns, &control, &answer->error);
    if (answer->status != GMS_OK) {
        return;
    }
    answer->status = gms_control_ask(&control, &request, GMS_MESSAGE_STATUS_REPLY, timeout_ns, &reply, &answer->error);
    if (answer->status == GMS_OK) {
        answer->raw = strndup(reply.status_reply.json.data, reply.status_reply.json.length);
        answer->document = answer->raw == NULL ? NULL : json_loads(answer->raw, 0, &where);
        if (answer->document == NULL || !json_is_object(answer->document)) {
            json_decref(answer->document);
            answer->document = NULL;
            answer->status = gms_fail(&answer->error, GMS_E_PROTOCOL, "rank %u's status is not a JSON object: %s",
                                      answer->rank, answer->raw == NULL ? "out of memory" : where.text);
        }
    }
    gms_control_close(&control);
}

gms_status gms_answers_collect(const char *run_dir, int64_t rank, uint64_t timeout_ns, struct gms_answers *ret_answers,
                               struct gms_error *ret_error)
{
    struct gms_answers answers = {.count = 1};
    uint32_t *ranks = NULL;

    if (rank < 0) {
        gms_status status = gms_control_find_ranks(run_dir, &ranks, &answers.count, ret_error);

        if (status != GMS_OK) {
            return status;
        }
    }
    answers.items = calloc(answers.count, sizeof *answers.items);
    if (answers.items == NULL) {
        free(ranks);
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for %zu ranks", answers.count);
    }
    for (size_t i = 0; i < answers.count; i++) {
        answers.items[i].rank = rank < 0 ? ranks[i] : (uint32_t)rank;
        ask(run_dir, timeout_ns, &answers.items[i]);
    }
    free(ranks);
    *ret_answers = answers;
    return GMS_OK;
}

void gms_answers_free(struct gms_answers *answers)
{
    for (size_t i = 0; i < answers->count; i++) {
        json_decref(answers->items[i].document);
        free(answers->items[i].raw);
    }
    free(answers->items);
    *answers = (struct gms_answers){0};
}

/* ----------------------------------------------------------------------------------------------------- goals ---- */

__attribute__((format(printf, 2, 3))) static int say(char text[GMS_MISSING_BYTES], const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, GMS_MISSING_BYTES, format, arguments);
    va_end(arguments);
    for (char *c = text; *c != '\0'; c++) { /* parts come from a document */
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            *c = '?';
        }
    }
    return 0;
}

static int64_t number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_integer(value) ? json_integer_value(value) : -1;
}

static const char *word(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));

    return value != NULL ? value : "-";
}

/* The engine of this role and, unless -1, incarnation; -1 for none. */
static int64_t engine_in_role(const json_t *document, const char *role, int64_t incarnation, int64_t *ret_incarnation)
{
    const json_t *engine;
    size_t index;

    json_array_foreach(json_object_get(document, "engines"), index, engine)
    {
        if (strcmp(word(engine, "role"), role) == 0 &&
            (incarnation < 0 || number(engine, "incarnation") == incarnation)) {
            *ret_incarnation = number(engine, "incarnation");
            return number(engine, "engine");
        }
    }
    return -1;
}

int gms_answers_reach(const struct gms_answers *answers, enum gms_goal goal, char text[GMS_MISSING_BYTES])
{
    const json_t *first = answers->count > 0 ? answers->items[0].document : NULL;
    int64_t serving = -1, shadow = -1, incarnation = -1;

    for (size_t i = 0; i < answers->count; i++) {
        if (answers->items[i].document == NULL) {
            return say(text, "coordinator rank %u does not answer: %s", answers->items[i].rank,
                       answers->items[i].error.text);
        }
    }
    /* Of several hosts, those of this one: what they say is agreed by all. */
    const int64_t wanted =
        first != NULL && number(first, "local_ranks") > 0 ? number(first, "local_ranks") : number(first, "ranks");
    if (first == NULL || wanted != (int64_t)answers->count) {
        return say(text, "%zu of %" PRId64 " coordinator ranks answer", answers->count, wanted);
    }
    for (size_t i = 1; i < answers->count; i++) {
        if (number(answers->items[i].document, "world") != number(first, "world")) {
            return say(text, "ranks 0 and %u are of different starts", answers->items[i].rank);
        }
    }
    if (goal == GMS_GOAL_UP) {
        return say(text, "%zu coordinator ranks answer", answers->count), 1;
    }
    serving = number(first, "serving_engine");
    for (size_t i = 0; i < answers->count; i++) {
        const json_t *document = answers->items[i].document;

        if (number(document, "serving_engine") < 0) {
            return say(text, "no engine serves on rank %u (takeover: %s, %zu engines have joined)",
                       answers->items[i].rank, word(document, "takeover"),
                       json_array_size(json_object_get(document, "engines")));
        }
        if (number(document, "serving_incarnation") != number(first, "serving_incarnation")) {
            return say(text, "ranks 0 and %u differ about who serves", answers->items[i].rank);
        }
    }
    if (goal == GMS_GOAL_SERVING) {
        return say(text, "engine %" PRId64 " serves at %s", serving, word(first, "endpoint")), 1;
    }
    shadow = engine_in_role(first, "parked", -1, &incarnation);
    for (size_t i = 0; i < answers->count; i++) {
        if (shadow < 0 || engine_in_role(answers->items[i].document, "parked", incarnation, &incarnation) < 0) {
            return say(text, "engine %" PRId64 " serves, no shadow is parked on rank %u", serving,
                       answers->items[i].rank);
        }
    }
    return say(text, "engine %" PRId64 " serves at %s, engine %" PRId64 " stands by", serving, word(first, "endpoint"),
               shadow),
           1;
}
