/* SPDX-License-Identifier: Apache-2.0
 * The catalogue: names, choosing, both ways of showing it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "catalogue.h"

static void every_row_says_what_it_is(void **state)
{
    (void)state;
    assert_true(drill_catalogue_count() > 0);
    assert_null(drill_catalogue_at(drill_catalogue_count()));
    for (size_t i = 0; i < drill_catalogue_count(); i++) {
        const struct drill_fault *fault = drill_catalogue_at(i);
        assert_true(strlen(fault->done) > 10 && strlen(fault->checked) > 10);
        assert_true(fault->strikes[0].target != DRILL_TARGET_NONE);
        assert_true(fault->shadows >= 1);
        assert_ptr_equal(drill_catalogue_find(fault->name), fault); /* so no name comes twice */
        assert_int_equal(strcspn(fault->name, ", "), strlen(fault->name));
    }
}

static void rows_are_chosen_by_name_and_set(void **state)
{
    (void)state;
    uint64_t rows = 0, some = 0;
    struct gms_error error;
    char two[128];
    assert_int_equal(drill_catalogue_choose("all", &rows, &error), GMS_OK);
    assert_true(rows == (drill_catalogue_count() == 64 ? UINT64_MAX : (UINT64_C(1) << drill_catalogue_count()) - 1));
    assert_int_equal(drill_catalogue_choose("short", &some, &error), GMS_OK);
    for (size_t i = 0; i < drill_catalogue_count(); i++)
        assert_int_equal(some >> i & 1, drill_catalogue_at(i)->in_short);
    snprintf(two, sizeof two, "%s,%s", drill_catalogue_at(2)->name, drill_catalogue_at(0)->name);
    assert_int_equal(drill_catalogue_choose(two, &rows, &error), GMS_OK);
    assert_true(rows == 5);
    rows = 77;
    assert_int_equal(drill_catalogue_choose("sigkill", &rows, &error), GMS_E_INVALID); /* no abbreviations */
    assert_non_null(strstr(error.text, "'sigkill'"));
    assert_int_equal(drill_catalogue_choose("", &rows, &error), GMS_E_INVALID);
    assert_int_equal(drill_catalogue_choose("all,", &some, &error), GMS_OK);
    assert_int_equal(drill_catalogue_choose(",all", &rows, &error), GMS_E_INVALID);
    assert_true(rows == 77);
}

static void json_has_every_row(void **state)
{
    (void)state;
    char *text = drill_catalogue_json();
    assert_non_null(text);
    json_t *root = json_loads(text, 0, NULL);
    free(text);
    const json_t *faults = json_object_get(root, "faults");
    assert_int_equal(json_integer_value(json_object_get(root, "version")), 1);
    assert_int_equal(json_array_size(faults), drill_catalogue_count());
    for (size_t i = 0; i < json_array_size(faults); i++) {
        const json_t *row = json_array_get(faults, i);
        const struct drill_fault *fault = drill_catalogue_at(i);
        assert_string_equal(json_string_value(json_object_get(row, "name")), fault->name);
        assert_string_equal(json_string_value(json_object_get(row, "done")), fault->done);
        assert_string_equal(json_string_value(json_object_get(row, "outcome")), drill_outcome_name(fault->outcome));
        assert_int_equal(json_is_true(json_object_get(row, "short")), fault->in_short);
    }
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_says_what_it_is),
        cmocka_unit_test(rows_are_chosen_by_name_and_set),
        cmocka_unit_test(json_has_every_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
