/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-ctl/handover.h"

#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "gms-ctl/answers.h"
#include "gms-ctl/control.h"

enum { LOOK_MS = 50, ROLE_BYTES = 16 };
static const uint64_t answer_ns = 5 * GMS_NS_PER_S;

/* What all ranks here say of the engine and of who serves. */
struct look {
    bool equal;                   /* they say the same */
    char role[ROLE_BYTES];        /* "": nobody is in the slot */
    int64_t incarnation, serving; /* serving: engine, -1 nobody */
    uint32_t parked;              /* how many are parked, this one included */
};

static void look_at(const json_t *document, uint32_t engine, struct look *ret_look)
{
    const json_t *item;
    size_t index;
    *ret_look = (struct look){.equal = true, .serving = -1};
    if (json_is_integer(json_object_get(document, "serving_engine")))
        ret_look->serving = (int64_t)json_integer_value(json_object_get(document, "serving_engine"));
    json_array_foreach(json_object_get(document, "engines"), index, item)
    {
        const char *role = json_string_value(json_object_get(item, "role"));
        if (role == NULL)
            continue;
        ret_look->parked += strcmp(role, "parked") == 0 ? 1 : 0;
        if (json_integer_value(json_object_get(item, "engine")) != (json_int_t)engine)
            continue;
        snprintf(ret_look->role, sizeof ret_look->role, "%s", role);
        ret_look->incarnation = (int64_t)json_integer_value(json_object_get(item, "incarnation"));
    }
}

static gms_status look(const char *run_dir, uint32_t engine, struct look *ret_look, struct gms_error *ret_error)
{
    struct gms_answers answers;
    gms_status status = gms_answers_collect(run_dir, -1, answer_ns, &answers, ret_error);
    if (status != GMS_OK)
        return status;
    for (size_t i = 0; i < answers.count && status == GMS_OK; i++) {
        struct look one;
        if (answers.items[i].document == NULL) {
            status = gms_fail(ret_error, answers.items[i].status, "rank %u: %.400s", answers.items[i].rank,
                              answers.items[i].error.text);
            break;
        }
        look_at(answers.items[i].document, engine, &one);
        if (i == 0)
            *ret_look = one;
        ret_look->equal = ret_look->equal && strcmp(one.role, ret_look->role) == 0 &&
                          one.incarnation == ret_look->incarnation && one.serving == ret_look->serving;
        if (one.parked < ret_look->parked)
            ret_look->parked = one.parked;
    }
    gms_answers_free(&answers);
    return status;
}

/* Tells one rank, or every rank here. */
static gms_status tell(const char *run_dir, enum gms_message_type type, uint32_t engine, bool all,
                       struct gms_error *ret_error)
{
    uint32_t *ranks = NULL;
    size_t count = 0, told = 0, agreed = 0;
    gms_status status = gms_control_find_ranks(run_dir, &ranks, &count, ret_error);
    for (size_t i = 0; status == GMS_OK && i < count && (all || told == 0); i++) {
        struct gms_message request = {.type = type, .takeover = {.engine_id = engine}}, reply;
        struct gms_control control;
        if (gms_control_open(run_dir, ranks[i], answer_ns, &control, ret_error) != GMS_OK)
            continue; /* gone; the next look says so */
        told++;
        status = gms_control_ask(&control, &request, GMS_MESSAGE_REPLY, answer_ns, &reply, ret_error);
        gms_control_close(&control);
        if (status == GMS_E_NOT_FOUND) /* the coordinator's answer: it was reached */
            status = GMS_E_REFUSED;
        agreed += status == GMS_OK;
        if (status == GMS_E_REFUSED && agreed > 0) /* an engine that was quick has handed over before all were told */
            status = GMS_OK;
    }
    free(ranks);
    if (status == GMS_OK && told == 0)
        return gms_fail(ret_error, GMS_E_DISCONNECTED, "no coordinator answers in %.200s", run_dir);
    return status;
}

struct waiting {
    uint64_t say_ns;
    char said[256];
};

/* Looks again. Coordinators may be starting again: then what was seen before stands, and *ret_fresh is false. */
static gms_status look_again(const char *run_dir, uint32_t engine, struct look *inout_look, bool *ret_fresh,
                             struct gms_error *ret_error)
{
    gms_status status = look(run_dir, engine, inout_look, ret_error);
    *ret_fresh = status == GMS_OK;
    return status == GMS_E_DISCONNECTED || status == GMS_E_NOT_FOUND || status == GMS_E_TIMEOUT ? GMS_OK : status;
}

/* Waits a moment, and says for what when that changes, and every ten seconds. REFUSED: there is no time left; the text
 * begins with `late`. */
static gms_status wait_for(struct waiting *waiting, const char *what, uint64_t deadline_ns, const char *late,
                           struct gms_error *ret_error)
{
    const uint64_t now_ns = gms_clock_ns();
    if (now_ns >= deadline_ns)
        return gms_fail(ret_error, GMS_E_REFUSED, "%s in time: %s", late, what);
    if (strcmp(waiting->said, what) != 0 || now_ns >= waiting->say_ns) {
        if (waiting->say_ns != 0)
            fprintf(stderr, "gms-ctl: waiting: %s\n", what);
        snprintf(waiting->said, sizeof waiting->said, "%s", what);
        waiting->say_ns = now_ns + 10 * GMS_NS_PER_S;
    }
    (void)poll(NULL, 0, LOOK_MS);
    return GMS_OK;
}

/* ---------------------------------------------------------------------------------------------------- park ---- */

/* The engine is parked; or, roles not following numbers, it has handed over and as many are parked as before: who
 * starts engines again has given the new one another number. */
static bool is_parked(const struct look *first, const struct look *now, uint32_t engine, char ret_text[256])
{
    if (!now->equal)
        return false;
    if (strcmp(now->role, "parked") == 0) {
        snprintf(ret_text, 256, "engine %u is parked (incarnation %" PRId64 ")", engine, now->incarnation);
        return true;
    }
    if (now->role[0] != '\0' || first->serving != (int64_t)engine || now->serving < 0 ||
        now->serving == (int64_t)engine || now->parked < first->parked)
        return false;
    snprintf(ret_text, 256,
             "engine %u has handed over to engine %" PRId64 " and ended; as many are parked as before (%u)", engine,
             now->serving, now->parked);
    return true;
}

static gms_status begin_park(const char *run_dir, uint32_t engine, const struct look *now, struct gms_error *ret_error)
{
    if (strcmp(now->role, "joined") == 0)
        return GMS_OK; /* it parks by itself */
    if (strcmp(now->role, "serving") != 0 && strcmp(now->role, "promoted") != 0)
        return gms_fail(ret_error, GMS_E_REFUSED, "engine %u %s: start it, and it parks", engine,
                        now->role[0] == '\0' ? "is not in the group" : "is condemned and being ended");
    if (now->parked == 0)
        return gms_fail(ret_error, GMS_E_REFUSED,
                        "no other engine is parked: nobody would serve after engine %u; gms-ctl wait standby tells "
                        "when one is",
                        engine);
    return tell(run_dir, GMS_MESSAGE_PARK, engine, true, ret_error);
}

gms_status gms_handover_park(const char *run_dir, uint32_t engine, uint64_t deadline_ns, char ret_text[256],
                             struct gms_error *ret_error)
{
    struct look first, now;
    struct waiting waiting = {0};
    char what[256];
    gms_status status = look(run_dir, engine, &first, ret_error);
    if (status != GMS_OK)
        return status;
    now = first;
    if (strcmp(first.role, "parked") == 0 && first.equal) {
        snprintf(ret_text, 256, "engine %u is parked already", engine);
        return GMS_OK;
    }
    status = begin_park(run_dir, engine, &first, ret_error);
    while (status == GMS_OK) {
        bool fresh;
        status = look_again(run_dir, engine, &now, &fresh, ret_error);
        if (fresh && is_parked(&first, &now, engine, ret_text))
            return GMS_OK;
        if (now.incarnation == first.incarnation && strcmp(now.role, "serving") == 0)
            snprintf(what, sizeof what,
                     "engine %u still serves (it ends when it has handed over; one that never asks "
                     "gms_asked_to_park needs gms-ctl drain)",
                     engine);
        else if (now.role[0] == '\0')
            snprintf(what, sizeof what,
                     "engine %u has ended, and no other has parked in its place yet (gms-up with launch.engines starts "
                     "one)",
                     engine);
        else
            snprintf(what, sizeof what, "engine %u is %s", engine,
                     strcmp(now.role, "joined") == 0 ? "warming up" : now.role);
        if (status == GMS_OK)
            status = wait_for(&waiting, what, deadline_ns, "not parked", ret_error);
    }
    return status;
}

/* ---------------------------------------------------------------------------------------------------- wake ---- */

gms_status gms_handover_wake(const char *run_dir, uint32_t engine, uint64_t deadline_ns, char ret_text[256],
                             struct gms_error *ret_error)
{
    struct look first, now;
    struct waiting waiting = {0};
    char what[256];
    gms_status status = look(run_dir, engine, &first, ret_error);
    if (status != GMS_OK)
        return status;
    now = first;
    if (first.serving == (int64_t)engine && first.equal) {
        snprintf(ret_text, 256, "engine %u serves already", engine);
        return GMS_OK;
    }
    status = tell(run_dir, GMS_MESSAGE_WAKE, engine, false, ret_error);
    while (status == GMS_OK) {
        bool fresh;
        status = look_again(run_dir, engine, &now, &fresh, ret_error);
        if (fresh && now.equal && now.serving == (int64_t)engine) {
            snprintf(ret_text, 256, "engine %u serves (incarnation %" PRId64 ")", engine, now.incarnation);
            return GMS_OK;
        }
        if (fresh && now.equal && now.serving >= 0 && now.serving != first.serving)
            return gms_fail(ret_error, GMS_E_REFUSED, "engine %" PRId64 " serves instead: engine %u %s", now.serving,
                            engine, now.role[0] == '\0' ? "has ended" : now.role);
        snprintf(what, sizeof what, "engine %u is %s", engine, now.role[0] == '\0' ? "gone" : now.role);
        if (status == GMS_OK)
            status = wait_for(&waiting, what, deadline_ns, "does not serve", ret_error);
    }
    return status;
}
