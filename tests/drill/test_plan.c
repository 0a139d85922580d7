/* SPDX-License-Identifier: Apache-2.0
 * The command line and the plan it becomes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cluster.h"
#include "options.h"
#include "plan.h"
#include "prompts.h"

static char scratch[64];

static gms_status parse(struct drill_plan *plan, struct gms_error *error, char *const *words)
{
    char *argv[32];
    int argc = 0;
    argv[argc++] = (char *)(uintptr_t) "gms-failover-test";
    while (words[argc - 1] != NULL && argc < 31) {
        argv[argc] = words[argc - 1];
        argc++;
    }
    argv[argc] = NULL;
    gms_status status = drill_options_parse(argc, argv, plan, error);
    if (status == GMS_OK) {
        snprintf(plan->bin_dir, sizeof plan->bin_dir, "%s", scratch); /* any programs will do for a plan */
        status = drill_plan_complete(plan, error);
    }
    return status;
}

#define PARSE(plan, error, ...) parse(plan, error, (char *[]){__VA_ARGS__, NULL})
#define W(text)                 ((char *)(uintptr_t)(text))

static void defaults(void **state)
{
    (void)state;
    struct drill_plan plan;
    struct gms_error error = {0};
    assert_int_equal(PARSE(&plan, &error, W("--seed"), W("7")), GMS_OK);
    assert_int_equal(plan.ranks, 2);
    assert_int_equal(plan.engines, 2);
    assert_int_equal(plan.streams, 8);
    assert_int_equal(plan.max_tokens, 96);
    assert_int_equal(plan.repeat, 1);
    assert_int_equal(plan.rank, 0);
    assert_int_equal(plan.seed, 7);
    assert_int_equal(plan.verify, DRILL_VERIFY_AS_CONFIGURED);
    assert_false(drill_plan_armed(&plan));
    assert_true(strstr(plan.prompts, "prompts.txt") != NULL);
    assert_int_equal(plan.sabotage_rank, 1);
}

static void faults_and_command(void **state)
{
    (void)state;
    struct drill_plan plan;
    struct gms_error error = {0};
    assert_int_equal(PARSE(&plan, &error, W("--repeat"), W("3"), W("--rank=all"), W("--when"), W("seal"), W("--ranks"),
                           W("4"), W("--"), W("engine"), W("--layers"), W("2")),
                     GMS_OK);
    assert_int_equal(plan.engines, 4);
    assert_int_equal(plan.rank, DRILL_RANK_ALL);
    assert_int_equal(plan.when, DRILL_WHEN_SEAL);
    assert_true(drill_plan_armed(&plan));
    assert_string_equal(plan.command[0], "engine");
    assert_string_equal(plan.command[2], "2");
    assert_null(plan.command[3]);
    /* Faults come at growing token counts, all of them before the streams are over. */
    uint32_t before = 0;
    for (uint32_t i = 0; i < plan.repeat; i++) {
        uint32_t tokens = drill_plan_fault_tokens(&plan, i);
        assert_true(tokens > before && tokens < plan.streams * plan.max_tokens);
        before = tokens;
    }
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *words[8], *says;
    } cases[] = {
        {{"--rank", "2"}, "ranks 0 to 1"},
        {{"--rank", "-1"}, "--rank -1"},
        {{"--rank", "64"}, "0 to 63"},
        {{"--repeat", "8"}, "room for 7"},
        {{"--repeat", "100001"}, "from 1 to 100000"},
        {{"--catalogue", "sigkil"}, "no fault"},
        {{"--catalogue", "short", "--when", "seal"}, "leave out"},
        {{"--catalogue", "short", "--rate", "0"}, "above 0"},
        {{"--repeat", "3", "--engines", "3"}, "need 4 engines"},
        {{"--engines", "9"}, "from 2 to 8"},
        {{"--when", "later"}, "any, prefill, decode, seal"},
        {{"--fault", "sigterm"}, "'sigterm' is no fault"},
        {{"--kv-verify", "some"}, "full, none"},
        {{"--temperature", "nan"}, "from 0 to 100"},
        {{"--max-tokens", "0"}, "from 1 to"},
        {{"--max-tokens", " 5"}, "whole number"},
        {{"--max-tokens", "18446744073709551617"}, "whole number"},
        {{"--when", "prefill", "--streams", "1"}, "--streams 1"},
        {{"--after", "768"}, "do not fit"},
        {{"--sabotage", "flip-record", "--repeat", "2"}, "one failover"},
        {{"--sabotage-rank", "2"}, "ranks 0 to 1"},
        {{"--attach", "run", "--when", "decode"}, "absolute"},
        {{"--attach", "/run/x", "--sabotage", "flip-record"}, "starts itself"},
        {{"--attach", "/run/x", "--when", "seal"}, "nothing is left to be sealed"},
        {{"--attach", "/run/x", "--config", "/nowhere.cfg"}, "/nowhere.cfg"},
        {{"--config", "/nowhere.cfg"}, "/nowhere.cfg"},
        {{"--prompts", "/nowhere.txt"}, "/nowhere.txt"},
        {{"--config", ""}, "--config"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct drill_plan plan;
        struct gms_error error = {0};
        char *words[9] = {0};
        for (size_t w = 0; cases[i].words[w] != NULL; w++)
            words[w] = W(cases[i].words[w]);
        gms_status status = parse(&plan, &error, words);
        if (status == GMS_OK || strstr(error.text, cases[i].says) == NULL)
            fail_msg("case %zu: status %d, text '%s', expected '%s'", i, (int)status, error.text, cases[i].says);
    }
}

static void attached(void **state)
{
    (void)state;
    struct drill_plan plan;
    struct gms_error error = {0};
    assert_int_equal(PARSE(&plan, &error, W("--attach"), W("/run/x")), GMS_OK);
    assert_int_equal(plan.ranks, 0); /* asked from the deployment */
    assert_true(drill_plan_armed(&plan));
}

static void printed_plan(void **state)
{
    (void)state;
    struct drill_plan plan;
    struct gms_error error = {0};
    assert_int_equal(PARSE(&plan, &error, W("--repeat"), W("2"), W("--rank"), W("1")), GMS_OK);
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    drill_plan_print(&plan, stream);
    fclose(stream);
    assert_non_null(strstr(text, "failover 1   SIGKILL to rank 1 of the serving engine after 192 tokens"));
    assert_non_null(strstr(text, "failover 2   SIGKILL to rank 1 of the serving engine after 384 tokens"));
    assert_non_null(strstr(text, "8 of 96 tokens"));
    free(text);
}

static void prompts(void **state)
{
    (void)state;
    struct drill_plan plan;
    struct gms_error error = {0};
    struct drill_prompts *prompts = calloc(1, sizeof *prompts);
    assert_int_equal(PARSE(&plan, &error, W("--seed"), W("1")), GMS_OK);
    assert_int_equal(drill_prompts_read(plan.prompts, prompts, &error), GMS_OK);
    assert_int_equal(prompts->count, 16);
    for (size_t i = 0; i < prompts->count; i++) {
        assert_in_range(strlen(prompts->items[i]), 100, 600);
        for (size_t j = 0; j < i; j++) /* no two share a first KV block */
            assert_true(strncmp(prompts->items[i], prompts->items[j], 16) != 0);
    }
    drill_prompts_free(prompts);
    char path[96];
    snprintf(path, sizeof path, "%s/p", scratch);
    static const struct {
        const char *text, *says;
    } bad[] = {{"# nothing\n\n", "no prompt"},
               {"good\nb\xff"
                "d\n",
                ":2: not UTF-8"}};
    for (size_t i = 0; i < 2; i++) {
        FILE *file = fopen(path, "w");
        fputs(bad[i].text, file);
        fclose(file);
        assert_int_equal(drill_prompts_read(path, prompts, &error), GMS_E_INVALID);
        assert_non_null(strstr(error.text, bad[i].says));
    }
    unlink(path);
    free(prompts);
}

/* ------------------------------------------------------------------------------------------------- status ----- */

static const char document[] =
    "{\"version\":1,\"deployment\":\"demo\",\"world\":1,\"rank\":%d,\"ranks\":2,\"epoch\":%d,\"round\":57,\"takeover\":"
    "\"serving\","
    "\"serving_engine\":1,\"serving_incarnation\":2,\"successor_engine\":-1,\"endpoint\":\"unix:/x/e1\",\"pid\":100,"
    "\"engines\":[{\"engine\":1,\"incarnation\":2,\"role\":\"serving\",\"launch\":\"l\",\"pid\":4711,"
    "\"containment\":\"pid-namespace\",\"progress\":1}],"
    "\"pools\":[{\"name\":\"kv\",\"kind\":\"kv\",\"index\":1,\"state\":\"ready\",\"bytes\":1,\"slots\":{}}],"
    "\"takeovers\":[{\"epoch\":2,\"from_engine\":0,\"from_incarnation\":1,\"to_engine\":1,\"to_incarnation\":2,"
    "\"cause\":\"gone\",\"detect_ns\":11,\"condemn_ns\":12,\"fence_ns\":13,\"classify_ns\":14,\"promote_ns\":15,"
    "\"adopt_ns\":16,\"serve_ns\":17,\"sealed_here\":9,\"adoptable_here\":9,\"adopted\":%d,\"idle\":40,\"quarantined\":"
    "2,"
    "\"damaged\":0}],\"transfers\":[]}";

static gms_status status_of(int rank, int epoch, int adopted, struct drill_status *ret_status, struct gms_error *error)
{
    char text[2048];
    snprintf(text, sizeof text, document, rank, epoch, adopted);
    return drill_status_parse(text, strlen(text), ret_status, error);
}

static void status_document(void **state)
{
    (void)state;
    struct drill_status all[2];
    struct gms_error error = {0};
    assert_int_equal(status_of(0, 2, 9, &all[0], &error), GMS_OK);
    assert_int_equal(all[0].serving_incarnation, 2);
    assert_int_equal(drill_status_engine(&all[0], 1)->pid, 4711);
    assert_string_equal(drill_status_engine(&all[0], 1)->containment, "pid-namespace");
    assert_null(drill_status_engine(&all[0], 0));
    assert_int_equal(drill_status_takeover(&all[0], 2)->fence_ns, 13);
    assert_null(drill_status_takeover(&all[0], 1));
    assert_true(all[0].pools[0].kv);
    assert_int_equal(status_of(1, 2, 9, &all[1], &error), GMS_OK);
    assert_int_equal(drill_status_agree(all, 2, &error), GMS_OK);
    /* Each thing that ranks may disagree about is noticed. */
    assert_int_equal(status_of(1, 3, 9, &all[1], &error), GMS_OK);
    assert_int_equal(drill_status_agree(all, 2, &error), GMS_E_MISMATCH);
    assert_non_null(strstr(error.text, "epoch is 2 on rank 0 and 3 on rank 1"));
    assert_int_equal(status_of(1, 2, 8, &all[1], &error), GMS_OK);
    assert_int_equal(drill_status_agree(all, 2, &error), GMS_E_MISMATCH);
    assert_non_null(strstr(error.text, "adopted blocks is 9 on rank 0 and 8 on rank 1"));
    assert_int_equal(status_of(0, 2, 9, &all[1], &error), GMS_OK);
    assert_int_equal(drill_status_agree(all, 2, &error), GMS_E_MISMATCH);
    status_of(1, 2, 9, &all[1], &error);
    all[1].serving_incarnation = 3;
    assert_int_equal(drill_status_agree(all, 2, &error), GMS_E_MISMATCH);
}

/* Any cut, and any single byte replaced, is parsed or refused, never a crash. */
static void damaged_status_document(void **state)
{
    (void)state;
    char text[2048];
    struct drill_status status;
    struct gms_error error;
    int length = snprintf(text, sizeof text, document, 0, 2, 9);
    for (int cut = 0; cut < length; cut++)
        assert_int_not_equal(drill_status_parse(text, (size_t)cut, &status, &error), GMS_OK);
    for (int at = 0; at < length; at++)
        for (const char *other = "x0-\"{]\xff"; *other != '\0'; other++) {
            char whole = text[at];
            text[at] = *other;
            drill_status_parse(text, (size_t)length, &status, &error);
            text[at] = whole;
        }
    char *version = strstr(text, "\"version\":1");
    version[10] = '2';
    assert_int_equal(drill_status_parse(text, (size_t)length, &status, &error), GMS_E_VERSION);
}

static int make_scratch(void **state)
{
    (void)state;
    snprintf(scratch, sizeof scratch, "/tmp/drill-plan-XXXXXX");
    if (mkdtemp(scratch) == NULL)
        return -1;
    static const char *const names[] = {"gms-keeper", "gms-coord", "gms-exec"};
    for (size_t i = 0; i < 3; i++) {
        char path[96];
        snprintf(path, sizeof path, "%s/%s", scratch, names[i]);
        if (symlink("/bin/true", path) != 0)
            return -1;
    }
    return 0;
}

static int remove_scratch(void **state)
{
    (void)state;
    static const char *const names[] = {"gms-keeper", "gms-coord", "gms-exec"};
    for (size_t i = 0; i < 3; i++) {
        char path[96];
        snprintf(path, sizeof path, "%s/%s", scratch, names[i]);
        unlink(path);
    }
    return rmdir(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),        cmocka_unit_test(faults_and_command),
        cmocka_unit_test(refusals),        cmocka_unit_test(attached),
        cmocka_unit_test(printed_plan),    cmocka_unit_test(prompts),
        cmocka_unit_test(status_document), cmocka_unit_test(damaged_status_document),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
