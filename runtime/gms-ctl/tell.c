/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/units.h"
#include "gms-ctl/commands.h"
#include "gms-ctl/control.h"
#include "gms-ctl/handover.h"

/* Connects to the first of `ranks` that answers. */
static gms_status open_any(const struct gms_ctl_options *options, const uint32_t *ranks, size_t count,
                           struct gms_control *ret_control, struct gms_error *ret_error)
{
    gms_status status = GMS_E_NOT_FOUND;

    for (size_t i = 0; i < count; i++) {
        status = gms_control_open(options->run_dir, ranks[i], gms_ctl_timeout(options, 5), ret_control, ret_error);
        if (status == GMS_OK) {
            return GMS_OK;
        }
    }
    return status;
}

int gms_ctl_takeover(const struct gms_ctl_options *options, uint32_t engine)
{
    struct gms_message request = {.type = GMS_MESSAGE_TAKEOVER}, reply;
    struct gms_control control;
    struct gms_error error;
    uint32_t *ranks;
    size_t count;
    gms_status status = gms_ctl_pick_ranks(options, &ranks, &count, &error);

    if (status != GMS_OK) {
        return gms_ctl_complain(status, &error);
    }
    status = open_any(options, ranks, count, &control, &error);
    free(ranks);
    if (status != GMS_OK) {
        return gms_ctl_complain(status, &error);
    }
    request.takeover.engine_id = engine;
    status = gms_control_ask(&control, &request, GMS_MESSAGE_REPLY, gms_ctl_timeout(options, 5), &reply, &error);
    gms_control_close(&control);
    if (status == GMS_E_NOT_FOUND) { /* the coordinator's answer: it was reached */
        gms_log(GMS_LOG_ERROR, "%s", error.text);
        return GMS_CTL_REFUSED;
    }
    if (status != GMS_OK) {
        return gms_ctl_complain(status, &error);
    }
    printf("engine %u is told to end; see: gms-ctl status\n", engine);
    return 0;
}

/* Who serves on all ranks here, and is a shadow parked? */
static gms_status look_at_group(const struct gms_ctl_options *options, int64_t *ret_serving, bool *ret_shadow,
                                struct gms_error *ret_error)
{
    struct gms_answers answers;
    char missing[GMS_MISSING_BYTES];
    gms_status status = gms_answers_collect(options->run_dir, -1, 5 * GMS_NS_PER_S, &answers, ret_error);

    if (status != GMS_OK) {
        return status;
    }
    *ret_serving = -1;
    *ret_shadow = gms_answers_reach(&answers, GMS_GOAL_STANDBY, missing) != 0;
    if (gms_answers_reach(&answers, GMS_GOAL_SERVING, missing) != 0) {
        *ret_serving = (int64_t)json_integer_value(json_object_get(answers.items[0].document, "serving_engine"));
    } else {
        gms_fail(ret_error, GMS_E_NOT_FOUND, "%s", missing);
    }
    gms_answers_free(&answers);
    return GMS_OK;
}

int gms_ctl_drain(const struct gms_ctl_options *options, uint32_t engine)
{
    uint64_t deadline_ns = gms_clock_ns() + gms_ctl_timeout(options, 30), say_ns = gms_clock_ns() + GMS_NS_PER_S;
    struct gms_error error = {.status = GMS_OK};
    int64_t serving = -1;
    bool shadow = false;
    int exit_code;
    gms_status status = look_at_group(options, &serving, &shadow, &error);

    if (status != GMS_OK) {
        return gms_ctl_complain(status, &error);
    }
    if (serving != (int64_t)engine) {
        printf("engine %u does not serve\n", engine);
        return 0;
    }
    if (!shadow) {
        gms_log(GMS_LOG_ERROR,
                "no shadow is parked: nobody would serve after engine %u; gms-ctl takeover ends it anyway", engine);
        return GMS_CTL_REFUSED;
    }
    exit_code = gms_ctl_takeover(options, engine);
    while (exit_code == 0) {
        status = look_at_group(options, &serving, &shadow, &error);
        if (status == GMS_OK && serving >= 0 && serving != (int64_t)engine) {
            printf("engine %" PRId64 " serves\n", serving);
            return 0;
        }
        if (gms_clock_ns() >= deadline_ns) {
            gms_log(GMS_LOG_ERROR, "no other engine serves yet: %s", error.text);
            return GMS_CTL_REFUSED;
        }
        if (gms_clock_ns() >= say_ns) {
            fprintf(stderr, "gms-ctl: waiting for the successor of engine %u\n", engine);
            say_ns += GMS_NS_PER_S;
        }
        poll(NULL, 0, 50);
    }
    return exit_code;
}

static int hand_over(const struct gms_ctl_options *options, uint32_t engine, uint64_t seconds,
                     gms_status (*run)(const char *, uint32_t, uint64_t, char *, struct gms_error *))
{
    char text[256];
    struct gms_error error;
    gms_status status = run(options->run_dir, engine, gms_clock_ns() + gms_ctl_timeout(options, seconds), text, &error);

    if (status != GMS_OK) {
        return gms_ctl_complain(status, &error);
    }
    printf("%s\n", text);
    return 0;
}

int gms_ctl_park(const struct gms_ctl_options *options, uint32_t engine)
{
    return hand_over(options, engine, 600, gms_handover_park);
}

int gms_ctl_wake(const struct gms_ctl_options *options, uint32_t engine)
{
    return hand_over(options, engine, 60, gms_handover_wake);
}

/* Holds a connection to every rank here, tells one, and waits until all connections have ended. */
int gms_ctl_down(const struct gms_ctl_options *options)
{
    struct gms_message request = {.type = GMS_MESSAGE_SHUTDOWN}, reply;
    uint64_t started_ns = gms_clock_ns();
    uint64_t deadline_ns = started_ns + gms_ctl_timeout(options, 30);
    struct gms_control *controls;
    struct gms_error error;
    uint32_t *ranks;
    size_t count, open = 0, gone = 0;
    gms_status status = gms_control_find_ranks(options->run_dir, &ranks, &count, &error);

    if (status != GMS_OK) {
        return gms_ctl_complain(status, &error);
    }
    controls = calloc(count, sizeof *controls);
    if (controls == NULL) {
        free(ranks);
        gms_log(GMS_LOG_ERROR, "no memory for %zu ranks", count);
        return GMS_CTL_REFUSED;
    }
    for (size_t i = 0; i < count; i++) {
        status = gms_control_open(options->run_dir, ranks[i], 5 * GMS_NS_PER_S, &controls[open], &error);
        if (status == GMS_OK) {
            open++;
        } else {
            gms_log(GMS_LOG_WARNING, "rank %u: %s", ranks[i], error.text);
        }
    }
    if (open == 0) {
        status = GMS_E_DISCONNECTED;
        gms_fail(&error, status, "no coordinator answers in %.200s: nothing to stop", options->run_dir);
    } else {
        size_t told = 0;

        for (size_t i = 0; i < open; i++) { /* any rank will do; --rank picks one */
            told = options->rank >= 0 && controls[i].rank == (uint32_t)options->rank ? i : told;
        }
        status = gms_control_ask(&controls[told], &request, GMS_MESSAGE_REPLY, 5 * GMS_NS_PER_S, &reply, &error);
        if (status == GMS_E_DISCONNECTED) {
            status = GMS_OK; /* it ended before its answer could leave */
        }
    }
    while (status == GMS_OK && gone < open) {
        uint64_t look_ns = gms_clock_ns() + GMS_NS_PER_S;

        status = gms_control_wait_end(&controls[gone], look_ns < deadline_ns ? look_ns : deadline_ns, &error);
        if (status == GMS_OK) {
            gone++;
        } else if (status == GMS_E_TIMEOUT && gms_clock_ns() < deadline_ns) {
            char waited[64];

            fprintf(stderr, "gms-ctl: %zu of %zu coordinators are gone, waiting for rank %u (%s)\n", gone, open,
                    controls[gone].rank, gms_format_duration(gms_clock_ns() - started_ns, waited, sizeof waited));
            status = GMS_OK;
        } else if (status == GMS_E_TIMEOUT) {
            gms_fail(&error, GMS_E_REFUSED, "rank %u still runs after --timeout; %zu of %zu are gone",
                     controls[gone].rank, gone, open);
            status = GMS_E_REFUSED;
        }
    }
    for (size_t i = 0; i < open; i++) {
        gms_control_close(&controls[i]);
    }
    free(controls);
    free(ranks);
    if (status != GMS_OK) {
        return gms_ctl_complain(status, &error);
    }
    printf("%zu coordinators have stopped; engines that run go on, and no fault of theirs is handled until the next "
           "start, which goes on with them\n",
           open);
    return 0;
}
