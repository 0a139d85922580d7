/* SPDX-License-Identifier: Apache-2.0
 * Reading engines' own logs: what was sealed everywhere, and who acted when, from logs written by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "logs.h"

static char directory[64];

struct fixture {
    char paths[8][96];
    size_t count;
    struct drill_logs logs;
};

static void put(struct fixture *fixture, const char *name, const char *text)
{
    char *path = fixture->paths[fixture->count++];
    snprintf(path, sizeof fixture->paths[0], "%s/%s", directory, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void must_read(struct fixture *fixture)
{
    struct gms_error error = {0};
    if (drill_logs_read(directory, &fixture->logs, &error) != GMS_OK)
        fail_msg("%s", error.text);
}

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    snprintf(directory, sizeof directory, "/tmp/drill-logs-XXXXXX");
    *state = fixture;
    return mkdtemp(directory) != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    for (size_t i = 0; i < fixture->count; i++)
        unlink(fixture->paths[i]);
    drill_logs_free(&fixture->logs);
    int result = rmdir(directory);
    free(fixture);
    return result;
}

#define H1 "hash=00000000000000000000000000000001"
#define H2 "hash=00000000000000000000000000000002"
#define H3 "hash=00000000000000000000000000000003"
#define H4 "hash=00000000000000000000000000000004"

static void reads_a_log(void **state)
{
    struct fixture *fixture = *state;
    put(fixture, "engine0.1.0.log",
        "100 join\n110 parked\n120 promoted epoch=1\n125 adopted count=0\n130 serving epoch=1\n"
        "140 write slot=4 generation=1\n150 seal slot=4 generation=1 " H1
        "\n160 token id=s0 index=0 token=17\n170 tok");
    put(fixture, "other.log", "not ours\n");
    must_read(fixture);
    assert_int_equal(fixture->logs.count, 1);
    const struct drill_log *log = drill_logs_find(&fixture->logs, 1, 0);
    assert_non_null(log);
    assert_true(log->torn); /* killed in the middle of a line: the line does not count */
    assert_int_equal(log->tokens, 1);
    assert_int_equal(log->first_activity_ns, 140);
    assert_int_equal(log->last_activity_ns, 160);
    assert_int_equal(log->last_ns, 160);
    assert_string_equal(log->last_event, "token");
    assert_int_equal(log->adopted, 0);
    assert_int_equal(log->promoted_ns, 120);
    assert_int_equal(log->serving_ns, 130);
    assert_null(drill_logs_find(&fixture->logs, 1, 1));
}

static void refuses_bad_evidence(void **state)
{
    static const char *const bad[] = {
        "100 join\nnonsense\n",
        "100 join\n90 parked\n", /* time runs backwards */
        "100 write slot=4\n",
        "100 write slot=-4 generation=1\n",
        "100 seal slot=4 generation=1\n",
        "100 seal slot=4 generation=1 hash=xyz\n",
        "100 seal slot=4 generation=1 hash=000000000000000000000000000000000000000000\n",
        "100 adopted\n",
        "-1 join\n",
        "100\n",
        "100 write slot=99999999999 generation=1\n",
    };
    struct fixture *fixture = *state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        put(fixture, "engine0.1.0.log", bad[i]);
        fixture->count = 1;
        struct gms_error error = {0};
        gms_status status = drill_logs_read(directory, &fixture->logs, &error);
        drill_logs_free(&fixture->logs);
        if (status != GMS_E_CORRUPT || strstr(error.text, "engine0.1.0.log:") == NULL)
            fail_msg("case %zu: status %d, '%s'", i, (int)status, error.text);
    }
    struct gms_error error = {0};
    assert_int_equal(drill_logs_read("/nowhere", &fixture->logs, &error), GMS_E_NOT_FOUND);
}

static void sealed_on_all_ranks(void **state)
{
    struct fixture *fixture = *state;
    /* Slot 1: both. Slot 2: rank 1 died before it. Slot 3: sealed, then written anew. Slot 4: another content on
     * rank 1. Slot 0: given back. Slot 5: used again, sealed again on both. */
    put(fixture, "engine0.1.0.log",
        "1 write slot=1 generation=1\n2 seal slot=1 generation=1 " H1 "\n3 seal slot=2 generation=1 " H2 "\n"
        "4 seal slot=3 generation=1 " H3 "\n5 write slot=3 generation=2\n6 seal slot=4 generation=1 " H1 "\n"
        "7 seal slot=0 generation=1 " H1 "\n8 release slot=0 generation=1\n9 seal slot=5 generation=1 " H1 "\n"
        "10 write slot=5 generation=2\n11 seal slot=5 generation=2 " H4 "\n");
    put(fixture, "engine0.1.1.log",
        "2 seal slot=1 generation=1 " H1 "\n4 seal slot=3 generation=1 " H3 "\n6 seal slot=4 generation=1 " H2 "\n"
        "7 seal slot=0 generation=1 " H1 "\n11 seal slot=5 generation=2 " H4 "\n");
    /* The successor adopts these two, uses slot 1 again and seals slot 7. */
    put(fixture, "engine1.2.0.log",
        "20 adopted count=2\n21 write slot=1 generation=2\n22 seal slot=7 generation=1 " H3 "\n");
    put(fixture, "engine1.2.1.log",
        "20 adopted count=2\n21 write slot=1 generation=2\n22 seal slot=7 generation=1 " H3 "\n");
    must_read(fixture);
    struct gms_error error = {0};
    struct drill_blocks first, second;
    assert_int_equal(drill_logs_sealed(&fixture->logs, 1, 2, NULL, &first, &error), GMS_OK);
    assert_int_equal(first.count, 2);
    assert_int_equal(first.items[0].slot, 1);
    assert_int_equal(first.items[1].slot, 5);
    assert_string_equal(first.items[1].hash, &(H4)[5]);
    assert_int_equal(drill_logs_sealed(&fixture->logs, 2, 2, &first, &second, &error), GMS_OK);
    assert_int_equal(second.count, 2);
    assert_int_equal(second.items[0].slot, 5);
    assert_int_equal(second.items[1].slot, 7);
    drill_blocks_free(&first);
    drill_blocks_free(&second);
    assert_int_equal(drill_logs_sealed(&fixture->logs, 2, 3, NULL, &second, &error), GMS_E_NOT_FOUND);
    assert_non_null(strstr(error.text, "rank 2 left no log"));
}

static void no_overlap(void **state)
{
    struct fixture *fixture = *state;
    put(fixture, "engine0.1.0.log", "10 write slot=1 generation=1\n50 token id=s0 index=0 token=1\n");
    put(fixture, "engine0.1.1.log", "12 write slot=1 generation=1\n51 seal slot=1 generation=1 " H1 "\n");
    put(fixture, "engine1.2.0.log", "5 join\n20 parked\n52 promoted epoch=2\n60 write slot=2 generation=1\n");
    put(fixture, "engine1.2.1.log", "5 join\n20 parked\n61 write slot=2 generation=1\n");
    put(fixture, "engine2.3.0.log", "6 join\n20 parked\n"); /* a shadow that never acted overlaps nobody */
    must_read(fixture);
    struct gms_error error = {0};
    assert_int_equal(drill_logs_check_overlap(&fixture->logs, &error), GMS_OK);
    uint64_t first, last;
    assert_true(drill_logs_activity(&fixture->logs, 1, &first, &last));
    assert_int_equal(first, 10);
    assert_int_equal(last, 51);
    assert_false(drill_logs_activity(&fixture->logs, 3, &first, &last));
}

static void overlap_of_different_ranks(void **state)
{
    struct fixture *fixture = *state;
    /* Rank 0 of the old engine is long gone; its rank 1 writes once more after the new rank 0's first write. */
    put(fixture, "engine0.1.0.log", "10 write slot=1 generation=1\n50 token id=s0 index=0 token=1\n");
    put(fixture, "engine0.1.1.log", "12 write slot=1 generation=1\n2000061 write slot=9 generation=1\n");
    put(fixture, "engine1.2.0.log", "60 write slot=2 generation=1\n3000000 token id=s0 index=1 token=2\n");
    put(fixture, "engine1.2.1.log", "3000000 write slot=2 generation=1\n");
    must_read(fixture);
    struct gms_error error = {0};
    assert_int_equal(drill_logs_check_overlap(&fixture->logs, &error), GMS_E_MISMATCH);
    assert_non_null(strstr(error.text, "for 2.000 ms: engine 0 incarnation 1 and engine 1 incarnation 2"));
}

static void overlap_between_the_lines(void **state)
{
    struct fixture *fixture = *state;
    /* No two files overlap, the engines do: the new one acted between the old ranks' acts. */
    put(fixture, "engine0.1.0.log", "10 write slot=1 generation=1\n20 write slot=2 generation=1\n");
    put(fixture, "engine0.1.1.log", "40 write slot=1 generation=1\n");
    put(fixture, "engine1.2.0.log", "30 write slot=2 generation=2\n");
    must_read(fixture);
    struct gms_error error = {0};
    assert_int_equal(drill_logs_check_overlap(&fixture->logs, &error), GMS_E_MISMATCH);
}

static void parked_shadow_that_writes(void **state)
{
    struct fixture *fixture = *state;
    put(fixture, "engine0.1.0.log", "10 token id=s0 index=0 token=1\n50 token id=s0 index=1 token=1\n");
    put(fixture, "engine1.2.0.log", "5 parked\n30 write slot=2 generation=2\n");
    must_read(fixture);
    struct gms_error error = {0};
    assert_int_equal(drill_logs_check_overlap(&fixture->logs, &error), GMS_E_MISMATCH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_a_log, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_bad_evidence, setup, teardown),
        cmocka_unit_test_setup_teardown(sealed_on_all_ranks, setup, teardown),
        cmocka_unit_test_setup_teardown(no_overlap, setup, teardown),
        cmocka_unit_test_setup_teardown(overlap_of_different_ranks, setup, teardown),
        cmocka_unit_test_setup_teardown(overlap_between_the_lines, setup, teardown),
        cmocka_unit_test_setup_teardown(parked_shadow_that_writes, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
