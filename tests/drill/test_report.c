/* SPDX-License-Identifier: Apache-2.0
 * Reports of a campaign: JUnit, HTML and the numbers in them, with texts that would like to be more than text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "markup.h"
#include "options.h"
#include "report.h"
#include "report_html.h"
#include "report_json.h"
#include "report_junit.h"

#define MS INT64_C(1000000)

static const char hostile[] = "</td><script>alert('\"1&\")</script>\x01\xff\xc0\xaf \xed\xa0\x80 \xe2\x82\xac";

struct world {
    struct drill_plan plan;
    struct drill_campaign campaign;
};

/* A result of one failover with so many streams that paused 10, 20, 30... ms. */
static struct drill_result *result_of(const struct world *world, size_t streams, size_t failures)
{
    struct drill_result *result = calloc(1, sizeof *result);
    assert_non_null(result);
    result->plan = &world->plan;
    result->ranks = 2;
    result->failover_count = 1;
    struct drill_failover *failover = &result->failovers[0];
    failover->injected = failover->completed = failover->status_known = failover->logs_known = true;
    failover->to_engine = 1;
    failover->first_token_ns = 9 * MS;
    failover->probe_done_ns = 20 * MS;
    failover->resumed_streams = (uint32_t)streams;
    failover->gap_median_ns = 10 * MS;
    failover->sealed_everywhere = failover->adopted = 5;
    for (int step = 0; step < DRILL_STEP_COUNT; step++)
        failover->steps[step] = (struct drill_span){true, (step + 1) * MS, (step + 1) * MS};
    for (size_t i = 0; i < streams; i++) {
        struct drill_stream_result *stream = &result->streams[result->stream_count++];
        snprintf(stream->id, sizeof stream->id, "s%u", (unsigned)i & 0xffff);
        stream->done = stream->equal = true;
        stream->tokens = 4;
        stream->failover_gap_ns = (int64_t)(i + 1) * 10 * MS;
    }
    for (size_t i = 0; i < failures; i++)
        drill_result_fail(result, "%s", hostile);
    return result;
}

static void add(struct world *world, const char *name, struct drill_result *result)
{
    struct drill_round *round = drill_campaign_add(&world->campaign);
    assert_non_null(round);
    round->name = name;
    round->done = "something is done";
    round->checked = "something is checked";
    round->outcome = "takeover";
    round->seconds = 1.5;
    if (result != NULL) {
        drill_campaign_take(&world->campaign, round, result);
    } else {
        round->word = DRILL_WORD_SKIPPED;
        snprintf(round->reason, sizeof round->reason, "%s", hostile);
    }
}

static int setup(void **state)
{
    struct world *world = calloc(1, sizeof *world);
    *state = world;
    drill_plan_defaults(&world->plan);
    world->campaign.plan = &world->plan;
    snprintf(world->campaign.environment.program, sizeof world->campaign.environment.program, "a <program>");
    snprintf(world->campaign.environment.started, sizeof world->campaign.environment.started, "2026-01-02T03:04:05Z");
    return 0;
}

static int teardown(void **state)
{
    struct world *world = *state;
    drill_campaign_free(&world->campaign);
    free(world);
    return 0;
}

static size_t count_of(const char *text, const char *what)
{
    size_t count = 0;
    for (const char *at = strstr(text, what); at != NULL; at = strstr(at + 1, what))
        count++;
    return count;
}

static void text_stays_text(void **state)
{
    (void)state;
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    drill_markup_text(stream, hostile);
    fclose(stream);
    assert_string_equal(text,
                        "&lt;/td&gt;&lt;script&gt;alert(&#39;&quot;1&amp;&quot;)&lt;/script&gt;???? ??? \xe2\x82\xac");
    free(text);
}

static void junit_has_a_case_per_round(void **state)
{
    struct world *world = *state;
    add(world, "good", result_of(world, 3, 0));
    add(world, "bad", result_of(world, 3, 2));
    add(world, "not <here>", NULL);
    char *text = drill_report_junit(&world->campaign);
    assert_non_null(strstr(text, "tests=\"3\" failures=\"1\" errors=\"0\" skipped=\"1\""));
    assert_int_equal(count_of(text, "<testcase "), 3);
    assert_int_equal(count_of(text, "<failure "), 1);
    assert_int_equal(count_of(text, "<skipped "), 1);
    assert_non_null(strstr(text, "name=\"not &lt;here&gt;\""));
    assert_null(strstr(text, "<script"));
    assert_null(strchr(text, '\x01'));
    free(text);
}

/* A run that never began must not look like one without tests. */
static void junit_of_a_run_that_could_not(void **state)
{
    struct world *world = *state;
    world->campaign.could_not_run = true;
    snprintf(world->campaign.reason, sizeof world->campaign.reason, "no keeper");
    char *text = drill_report_junit(&world->campaign);
    assert_non_null(strstr(text, "tests=\"1\" failures=\"0\" errors=\"1\""));
    assert_non_null(strstr(text, "no keeper"));
    free(text);
    assert_int_equal(drill_campaign_exit_code(&world->campaign), DRILL_EXIT_COULD_NOT_RUN);
}

static void page_has_every_round(void **state)
{
    struct world *world = *state;
    add(world, "good", result_of(world, 3, 0));
    add(world, "bad", result_of(world, 3, 2));
    add(world, "not-here", NULL);
    add(world, "good", result_of(world, 3, 0));
    char *text = drill_report_html(&world->campaign);
    assert_non_null(text);
    assert_null(strstr(text, "<script"));
    assert_non_null(strstr(text, "&lt;script&gt;"));
    assert_int_equal(count_of(text, "<details "), 3); /* of the rounds that were carried out */
    assert_non_null(strstr(text, "id=\"verdict\" class=\"pill failed\""));
    assert_non_null(strstr(text, "2 of 2")); /* both good ones in one row */
    assert_int_equal(count_of(text, "</table>"), count_of(text, "<table"));
    assert_int_equal(count_of(text, "</svg>"), count_of(text, "<svg "));
    assert_non_null(strstr(text, "</html>"));
    free(text);
}

static void page_of_nothing(void **state)
{
    struct world *world = *state;
    world->campaign.could_not_run = true;
    snprintf(world->campaign.reason, sizeof world->campaign.reason, "%s", hostile);
    char *text = drill_report_html(&world->campaign);
    assert_non_null(strstr(text, "could not run"));
    assert_null(strstr(text, "<script"));
    assert_null(strstr(text, "nan"));
    free(text);
}

static void numbers_of_all_failovers(void **state)
{
    struct world *world = *state;
    add(world, "a", result_of(world, 10, 0));
    add(world, "b", result_of(world, 10, 0));
    add(world, "c", NULL);
    struct drill_totals totals = drill_campaign_totals(&world->campaign);
    assert_int_equal(totals.failovers, 2);
    assert_int_equal(totals.streams, 20);
    assert_int_equal(totals.equal, 20);
    assert_int_equal(totals.tokens, 80);
    assert_int_equal(totals.adopted, 10);
    assert_int_equal(totals.gap.count, 20);
    assert_true(totals.gap.least == 10 * MS && totals.gap.median == 60 * MS && totals.gap.greatest == 100 * MS);
    assert_true(totals.gap.most_of_ten == 90 * MS);
    assert_true(totals.steps[DRILL_STEP_SERVE].median == 7 * MS);
    assert_int_equal(drill_campaign_exit_code(&world->campaign), DRILL_EXIT_PASS);
    char *text = drill_report_json(&world->campaign);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    assert_int_equal(json_array_size(json_object_get(root, "rounds")), 3);
    const json_t *gap = json_object_get(json_object_get(root, "totals"), "gap_ms");
    assert_true(json_real_value(json_object_get(gap, "nine_of_ten")) == 90.0);
    assert_null(json_object_get(json_array_get(json_object_get(root, "rounds"), 2), "failovers"));
    json_decref(root);
}

static void good_rounds_are_not_kept_for_ever(void **state)
{
    struct world *world = *state;
    for (int i = 0; i < DRILL_KEPT_RESULTS + 3; i++)
        add(world, "good", result_of(world, 1, 0));
    add(world, "bad", result_of(world, 1, 1));
    size_t kept = 0;
    for (size_t i = 0; i < world->campaign.count; i++)
        kept += world->campaign.rounds[i].result != NULL;
    assert_int_equal(kept, DRILL_KEPT_RESULTS + 1); /* a bad one always is */
    assert_int_equal(drill_campaign_totals(&world->campaign).failovers, DRILL_KEPT_RESULTS + 4);
    assert_int_equal(drill_campaign_exit_code(&world->campaign), DRILL_EXIT_FAIL);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_stays_text),
        T(junit_has_a_case_per_round),
        T(junit_of_a_run_that_could_not),
        T(page_has_every_round),
        T(page_of_nothing),
        T(numbers_of_all_failovers),
        T(good_rounds_are_not_kept_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
