/* SPDX-License-Identifier: Apache-2.0
 * Measuring, judging and reporting: from observations written by hand to numbers, failures, table and JSON. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "measure.h"
#include "options.h"
#include "report.h"
#include "report_json.h"
#include "verdict.h"

#define MS UINT64_C(1000000)

/* One failover of two ranks, three streams (two and a probe), everything as it should be. */
struct world {
    struct drill_plan plan;
    struct drill_stream streams[3], control[3];
    struct drill_token tokens[3][4], control_tokens[3][4];
    struct drill_streams stream_set, control_set;
    struct drill_observation seen;
    struct drill_status status[2];
    struct drill_logs logs;
    struct drill_log_change changes[4][2];
    struct drill_evidence evidence;
    struct drill_result result;
};

static void set_stream(struct world *world, size_t i, const char *id, uint64_t first_at, uint64_t second_at)
{
    struct drill_stream *stream = &world->streams[i], *control = &world->control[i];
    for (uint32_t t = 0; t < 4; t++) {
        world->control_tokens[i][t].token = (uint32_t)(10 * i + t);
        world->tokens[i][t].token = (uint32_t)(10 * i + t);
        world->tokens[i][t].incarnation = t < 2 && first_at != 0 ? 1 : 2;
        world->tokens[i][t].at_ns = (t < 2 && first_at != 0 ? first_at : second_at) + t * MS;
    }
    snprintf(stream->id, sizeof stream->id, "%s", id);
    stream->prompt = "prompt";
    stream->max_tokens = stream->token_count = 4;
    stream->state = DRILL_STREAM_DONE;
    stream->done_ns = second_at + 4 * MS;
    stream->tokens = world->tokens[i];
    stream->resumes = first_at != 0;
    stream->resent_tokens = first_at != 0 ? 2 : 0;
    stream->prompt_tokens = strlen(stream->prompt) + stream->resent_tokens;
    stream->cached_tokens = first_at != 0 ? 6 : 0;
    stream->computed_tokens = stream->prompt_tokens - stream->cached_tokens;
    stream->control = (uint32_t)i;
    stream->probe = i == 2;
    *control = *stream;
    control->tokens = world->control_tokens[i];
}

static void set_log(struct world *world, size_t i, uint32_t engine, uint64_t incarnation, uint32_t rank, uint64_t first,
                    uint64_t last)
{
    struct drill_log *log = &world->logs.items[i];
    log->engine = engine;
    log->incarnation = incarnation;
    log->rank = rank;
    log->first_activity_ns = first;
    log->last_activity_ns = log->last_ns = last;
    memcpy(log->last_event, "token", 6);
    log->changes = world->changes[i];
    log->change_count = incarnation == 1 ? 2 : 0;
    for (uint32_t c = 0; c < 2; c++)
        world->changes[i][c] =
            (struct drill_log_change){.kind = DRILL_LOG_SEAL, .slot = c, .generation = 1, .hash = "ab"};
    world->logs.count = i + 1;
}

static int setup(void **state)
{
    struct world *world = calloc(1, sizeof *world);
    *state = world;
    drill_plan_defaults(&world->plan);
    world->plan.ranks = 2;
    world->plan.engines = 2;
    world->plan.streams = 2;
    world->plan.sabotage_rank = 0;
    set_stream(world, 0, "s0", 90 * MS, 110 * MS);
    set_stream(world, 1, "s1", 80 * MS, 111 * MS);
    set_stream(world, 2, "p0", 0, 112 * MS);
    world->stream_set = (struct drill_streams){.count = 3, .items = world->streams};
    world->control_set = (struct drill_streams){.count = 3, .items = world->control};
    world->seen = (struct drill_observation){.injected = true,
                                             .completed = true,
                                             .from_engine = 0,
                                             .to_engine = 1,
                                             .from_incarnation = 1,
                                             .to_incarnation = 2,
                                             .signal_ns = 100 * MS,
                                             .ended_ns = {100 * MS + 300000, 101 * MS},
                                             .pids = {11, 12},
                                             .killed = {true},
                                             .tokens_before = 4,
                                             .probe = &world->streams[2]};
    for (uint32_t rank = 0; rank < 2; rank++) {
        world->status[rank].takeover_count = 1;
        world->status[rank].takeovers[0] =
            (struct drill_status_takeover){.epoch = 2,
                                           .from_incarnation = 1,
                                           .to_incarnation = 2,
                                           .to_engine = 1,
                                           .cause = "gone",
                                           .detect_ns = 100 * MS + 400000 + rank * 100000,
                                           .condemn_ns = 101 * MS,
                                           .fence_ns = 102 * MS,
                                           .classify_ns = 103 * MS,
                                           .promote_ns = 104 * MS,
                                           .adopt_ns = 105 * MS,
                                           .serve_ns = 106 * MS,
                                           .sealed_here = 2 + rank,
                                           .adoptable_here = 2,
                                           .adopted = 2,
                                           .idle = 5,
                                           .quarantined = 1};
    }
    set_log(world, 0, 0, 1, 0, 10 * MS, 99 * MS);
    set_log(world, 1, 0, 1, 1, 10 * MS, 98 * MS);
    set_log(world, 2, 1, 2, 0, 107 * MS, 120 * MS);
    set_log(world, 3, 1, 2, 1, 108 * MS, 120 * MS);
    world->evidence = (struct drill_evidence){.ranks = 2,
                                              .repeat = 1,
                                              .observations = &world->seen,
                                              .streams = &world->stream_set,
                                              .control = &world->control_set,
                                              .status = world->status,
                                              .logs = &world->logs};
    world->result.plan = &world->plan;
    return 0;
}

static int teardown(void **state)
{
    free(*state);
    return 0;
}

static void judge(struct world *world)
{
    drill_measure(&world->evidence, &world->result);
    drill_verdict(&world->result);
}

static void must_fail(struct world *world, const char *says)
{
    judge(world);
    assert_int_equal(drill_verdict_exit_code(&world->result), DRILL_EXIT_FAIL);
    for (size_t i = 0; i < world->result.failure_count; i++)
        if (strstr(world->result.failures[i], says) != NULL)
            return;
    fail_msg("'%s' is not among %zu failures, the first is '%s'", says, world->result.failure_count,
             world->result.failures[0]);
}

static void all_is_well(void **state)
{
    struct world *world = *state;
    judge(world);
    if (world->result.failure_count > 0)
        fail_msg("%s", world->result.failures[0]);
    assert_int_equal(drill_verdict_exit_code(&world->result), DRILL_EXIT_PASS);
    const struct drill_failover *failover = &world->result.failovers[0];
    assert_int_equal(failover->steps[DRILL_STEP_DETECT].least_ns, 400000);
    assert_int_equal(failover->steps[DRILL_STEP_DETECT].greatest_ns, 500000);
    assert_int_equal(failover->steps[DRILL_STEP_SERVE].least_ns, 6 * MS);
    assert_int_equal(failover->first_token_ns, 12 * MS); /* token 2 of s0, or token 0 of the probe */
    assert_int_equal(failover->probe_done_ns, 16 * MS);
    assert_int_equal(failover->resumed_streams, 2);
    assert_int_equal(failover->gap_least_ns, 21 * MS);
    assert_int_equal(failover->gap_greatest_ns, 32 * MS);
    assert_int_equal(failover->sealed_everywhere, 2);
    assert_int_equal(failover->sealed_least, 2);
    assert_int_equal(failover->sealed_greatest, 3);
    assert_int_equal(failover->silence_ns, 8 * MS);
    assert_int_equal(failover->ranks[0].ended_ns, 300000);
    assert_true(failover->ranks[0].killed);
    assert_false(failover->ranks[1].killed);
    assert_int_equal(world->result.prompt_tokens, world->result.cached_tokens + world->result.computed_tokens);
}

/* An engine that killed itself: the origin is its own last line. */
static void fault_from_log(void **state)
{
    struct world *world = *state;
    world->seen.signal_ns = 0;
    judge(world);
    assert_int_equal(world->result.failure_count, 0);
    assert_int_equal(world->result.failovers[0].fault_ns, 99 * MS);
    assert_string_equal(world->result.failovers[0].fault_known_from, "log");
    assert_int_equal(world->result.failovers[0].steps[DRILL_STEP_SERVE].least_ns, 7 * MS);
}

static void different_token(void **state)
{
    struct world *world = *state;
    world->tokens[1][3].token = 99;
    must_fail(world, "stream s1 differs from the control run at token 3: 99, undisturbed it is 13");
}

static void shorter_stream(void **state)
{
    struct world *world = *state;
    world->streams[1].token_count = 3;
    must_fail(world, "stream s1 has 3 tokens, the control run 4");
}

static void incomplete_stream(void **state)
{
    struct world *world = *state;
    world->streams[1].state = DRILL_STREAM_WAITING;
    world->streams[1].token_count = 3;
    must_fail(world, "stream s1: not complete, 3 of 4");
}

static void request_error(void **state)
{
    struct world *world = *state;
    world->streams[0].state = DRILL_STREAM_FAILED;
    snprintf(world->streams[0].error, sizeof world->streams[0].error, "no room");
    must_fail(world, "stream s0: request failed: no room");
}

static void prompt_tokens_do_not_add_up(void **state)
{
    struct world *world = *state;
    world->streams[0].computed_tokens++;
    must_fail(world, "are not 6 cached + 0 salvaged + 3 computed");
}

/* What was taken up of unfinished blocks counts. */
static void salvaged_tokens_add_up(void **state)
{
    struct world *world = *state;
    world->streams[0].salvaged_tokens = 1;
    must_fail(world, "are not 6 cached + 1 salvaged + 2 computed");
}

static void prompt_tokens_are_not_what_was_sent(void **state)
{
    struct world *world = *state;
    world->streams[0].resent_tokens = 1;
    must_fail(world, "counted 8 prompt tokens, the client sent 7");
}

static void fewer_adopted_than_sealed(void **state)
{
    struct world *world = *state;
    for (uint32_t rank = 0; rank < 2; rank++)
        world->status[rank].takeovers[0].adopted = 1;
    must_fail(world, "2 blocks were sealed on all ranks, 1 were adopted");
}

static void nothing_adopted(void **state)
{
    struct world *world = *state;
    for (size_t i = 0; i < 4; i++)
        world->logs.items[i].change_count = 0; /* not even anything sealed: still nothing shown */
    for (uint32_t rank = 0; rank < 2; rank++)
        world->status[rank].takeovers[0].adopted = 0;
    must_fail(world, "adopted nothing");
}

/* After a fault of the device it is the deployment's word whether anything may be adopted. */
static void adopted_after_a_device_error(void **state)
{
    struct world *world = *state;
    world->result.adoption = DRILL_ADOPTION_NONE;
    must_fail(world, "which takeover.adopt_after_device_error forbids");
}

static void nothing_adopted_after_a_device_error(void **state)
{
    struct world *world = *state;
    world->result.adoption = DRILL_ADOPTION_NONE;
    for (uint32_t rank = 0; rank < 2; rank++)
        world->status[rank].takeovers[0].adopted = 0;
    for (size_t i = 0; i < 3; i++) {
        world->streams[i].computed_tokens += world->streams[i].cached_tokens;
        world->streams[i].cached_tokens = 0;
    }
    judge(world);
    assert_int_equal(world->result.failure_count, 0);
}

static void more_adopted_than_sealed(void **state)
{
    struct world *world = *state;
    for (uint32_t rank = 0; rank < 2; rank++)
        world->status[rank].takeovers[0].adopted = 3;
    must_fail(world, "3 blocks were adopted, but a rank had only 2 sealed");
}

static void adopted_but_never_used(void **state)
{
    struct world *world = *state;
    for (size_t i = 0; i < 2; i++) {
        world->streams[i].cached_tokens = 0;
        world->streams[i].computed_tokens = world->streams[i].prompt_tokens;
    }
    must_fail(world, "none found an adopted block");
}

static void overlap(void **state)
{
    struct world *world = *state;
    world->logs.items[1].last_activity_ns = 109 * MS;
    must_fail(world, "the new engine acted 2.000 ms before the old one's last act");
}

static void no_logs(void **state)
{
    struct world *world = *state;
    world->evidence.logs = NULL;
    must_fail(world, "overlap cannot be excluded");
}

static void a_rank_without_status(void **state)
{
    struct world *world = *state;
    world->status[1].takeover_count = 0;
    must_fail(world, "some rank's status does not tell of it");
}

static void took_over_from_another(void **state)
{
    struct world *world = *state;
    world->status[1].takeovers[0].from_incarnation = 7;
    must_fail(world, "rank 1 took over from incarnation 7, the drill killed 1");
}

static void fault_not_made(void **state)
{
    struct world *world = *state;
    world->seen.injected = false;
    must_fail(world, "0 of 1 failovers were made");
}

static void not_completed(void **state)
{
    struct world *world = *state;
    world->seen.completed = false;
    must_fail(world, "failover 1: not completed");
}

static void interrupted_nobody(void **state)
{
    struct world *world = *state;
    for (size_t i = 0; i < 2; i++)
        for (size_t t = 0; t < 4; t++)
            world->tokens[i][t].incarnation = 1;
    must_fail(world, "interrupted no stream");
}

/* A damaged record: one block fewer, in quarantine, is what is expected; two fewer is not, nor is none fewer. */
static void damaged_record(void **state)
{
    struct world *world = *state;
    world->plan.sabotage = DRILL_SABOTAGE_FLIP_RECORD;
    world->seen.spoiled = 1;
    world->seen.damage.blocks = 1;
    for (uint32_t rank = 0; rank < 2; rank++) {
        world->status[rank].takeovers[0].adopted = 1;
        world->status[rank].takeovers[0].sealed_here = 2;
    }
    judge(world);
    if (world->result.failure_count > 0)
        fail_msg("%s", world->result.failures[0]);
}

static void damaged_record_adopted(void **state)
{
    struct world *world = *state;
    world->plan.sabotage = DRILL_SABOTAGE_FLIP_RECORD;
    world->seen.spoiled = 1;
    for (uint32_t rank = 0; rank < 2; rank++)
        world->status[rank].takeovers[0].sealed_here = 2;
    must_fail(world, "1 of 2 blocks of rank 0 were damaged, but 2 were adopted");
}

static void damaged_record_not_quarantined(void **state)
{
    struct world *world = *state;
    world->plan.sabotage = DRILL_SABOTAGE_FLIP_RECORD;
    world->seen.spoiled = 1;
    for (uint32_t rank = 0; rank < 2; rank++) {
        world->status[rank].takeovers[0].adopted = 1;
        world->status[rank].takeovers[0].quarantined = 0;
    }
    must_fail(world, "only 0 are in quarantine");
}

static void could_not_run(void **state)
{
    struct world *world = *state;
    world->result.could_not_run = true;
    drill_result_fail(&world->result, "control run: no");
    assert_int_equal(drill_verdict_exit_code(&world->result), DRILL_EXIT_COULD_NOT_RUN);
}

/* ------------------------------------------------------------------------------------------------- report ----- */

static char *table_of(const struct drill_result *result)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    drill_report_table(result, stream);
    fclose(stream);
    return text;
}

static void table(void **state)
{
    struct world *world = *state;
    world->plan.verbose = true;
    judge(world);
    char *text = table_of(&world->result);
    static const char *const lines[] = {"failover 1",
                                        "0 -> 1",
                                        "0.40 .. 0.50",
                                        "6.00 .. 6.00",
                                        "21/32/32",
                                        "killed, ended 0.3",
                                        "fenced, ended 1.0",
                                        "3 of 3 complete, 3 equal",
                                        "PASSED"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        if (strstr(text, lines[i]) == NULL)
            fail_msg("'%s' is not in the table:\n%s", lines[i], text);
    free(text);
    drill_result_fail(&world->result, "something was wrong");
    text = table_of(&world->result);
    assert_non_null(strstr(text, "  - something was wrong"));
    assert_non_null(strstr(text, "FAILED"));
    assert_null(strstr(text, "PASSED"));
    free(text);
}

/* More failures than are kept are still counted. */
static void many_failures(void **state)
{
    struct world *world = *state;
    for (int i = 0; i < DRILL_MAX_FAILURES + 5; i++)
        drill_result_fail(&world->result, "%d", i);
    char *text = table_of(&world->result);
    assert_non_null(strstr(text, "and 5 more"));
    free(text);
}

static void json_has(const json_t *object, const char *name, json_type type)
{
    const json_t *value = json_object_get(object, name);
    if (value == NULL || (json_typeof(value) != type && !(type == JSON_TRUE && json_is_false(value))))
        fail_msg("'%s' is missing or of the wrong type", name);
}

/* The JSON of a campaign with this one round. */
static char *report_of(struct world *world)
{
    struct drill_campaign campaign = {.plan = &world->plan};
    struct drill_round *round = drill_campaign_add(&campaign);
    struct drill_result *result = malloc(sizeof *result);
    assert_non_null(result);
    *result = world->result;
    round->name = round->done = round->checked = round->outcome = "sigkill";
    drill_campaign_take(&campaign, round, result);
    char *text = drill_report_json(&campaign);
    drill_campaign_free(&campaign);
    return text;
}

static void json_schema(void **state)
{
    struct world *world = *state;
    snprintf(world->streams[1].error, sizeof world->streams[1].error, "cut \xc3"); /* in the middle of a character */
    judge(world);
    char *text = report_of(world);
    assert_non_null(text);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    assert_int_equal(json_integer_value(json_object_get(root, "version")), 2);
    assert_string_equal(json_string_value(json_object_get(root, "verdict")), "failed");
    json_has(root, "exit_code", JSON_INTEGER);
    json_has(root, "seconds", JSON_REAL);
    json_has(root, "plan", JSON_OBJECT);
    json_has(root, "environment", JSON_OBJECT);
    json_has(root, "totals", JSON_OBJECT);
    json_has(root, "comparison", JSON_ARRAY);
    const json_t *round = json_array_get(json_object_get(root, "rounds"), 0);
    assert_string_equal(json_string_value(json_object_get(round, "verdict")), "failed");
    json_has(round, "summary", JSON_OBJECT);
    json_has(round, "prompt_tokens", JSON_OBJECT);
    json_has(round, "failures", JSON_ARRAY);
    const json_t *failover = json_array_get(json_object_get(round, "failovers"), 0);
    json_has(failover, "completed", JSON_TRUE);
    json_has(failover, "fault_monotonic_ns", JSON_INTEGER);
    json_has(failover, "first_token_ms", JSON_REAL);
    json_has(failover, "new_request_ms", JSON_REAL);
    json_has(failover, "silence_ms", JSON_REAL);
    const json_t *steps = json_object_get(failover, "steps_ms");
    for (int step = 0; step < DRILL_STEP_COUNT; step++)
        json_has(steps, drill_step_name((enum drill_step)step), JSON_ARRAY);
    const json_t *blocks = json_object_get(failover, "blocks");
    assert_int_equal(json_integer_value(json_object_get(blocks, "adopted")), 2);
    assert_int_equal(json_integer_value(json_object_get(blocks, "sealed_on_all_ranks")), 2);
    const json_t *ranks = json_object_get(failover, "ranks");
    assert_int_equal(json_array_size(ranks), 2);
    json_has(json_array_get(ranks, 0), "killed", JSON_TRUE);
    json_has(json_array_get(ranks, 0), "ended_ms", JSON_REAL);
    const json_t *streams = json_object_get(round, "streams");
    assert_int_equal(json_array_size(streams), 3);
    json_has(json_array_get(streams, 1), "error", JSON_STRING);
    json_decref(root);
    free(text);
}

/* Unknown things are null, not zero. */
static void json_of_a_failure(void **state)
{
    struct world *world = *state;
    world->seen.completed = false;
    world->evidence.logs = NULL;
    world->evidence.status = NULL;
    judge(world);
    char *text = report_of(world);
    json_t *root = json_loads(text, 0, NULL);
    const json_t *round = json_array_get(json_object_get(root, "rounds"), 0);
    const json_t *failover = json_array_get(json_object_get(round, "failovers"), 0);
    json_has(failover, "first_token_ms", JSON_NULL);
    json_has(failover, "silence_ms", JSON_NULL);
    json_has(json_object_get(failover, "steps_ms"), "detect", JSON_NULL);
    json_has(json_object_get(failover, "blocks"), "sealed_on_all_ranks", JSON_NULL);
    json_decref(root);
    free(text);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(all_is_well),
        T(fault_from_log),
        T(different_token),
        T(shorter_stream),
        T(incomplete_stream),
        T(request_error),
        T(prompt_tokens_do_not_add_up),
        T(salvaged_tokens_add_up),
        T(prompt_tokens_are_not_what_was_sent),
        T(fewer_adopted_than_sealed),
        T(nothing_adopted),
        T(more_adopted_than_sealed),
        T(adopted_after_a_device_error),
        T(nothing_adopted_after_a_device_error),
        T(adopted_but_never_used),
        T(overlap),
        T(no_logs),
        T(a_rank_without_status),
        T(took_over_from_another),
        T(fault_not_made),
        T(not_completed),
        T(interrupted_nobody),
        T(damaged_record),
        T(damaged_record_adopted),
        T(damaged_record_not_quarantined),
        T(could_not_run),
        T(table),
        T(many_failures),
        T(json_schema),
        T(json_of_a_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
