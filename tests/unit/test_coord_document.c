/* SPDX-License-Identifier: Apache-2.0
 *
 * What a coordinator tells as JSON is whole or not there: memory runs out at every place where it can.
 */
#include "unit_support.h"

#include "daemon/document.h"

static uint64_t asked, refused; /* allocations so far; which one is refused, from 1; 0: none */

/* One refusal: there is memory again for what comes after it, the text of what was built, say. */
static void *rationed(size_t bytes)
{
    return ++asked == refused ? NULL : malloc(bytes);
}

static json_t *make(void *context)
{
    const char *name = context;
    json_t *root = json_object(), *list = json_array();
    for (uint64_t engine = 0; engine < 8; engine++) {
        json_t *item = json_object();
        gms_document_number(item, "engine", engine);
        gms_document_text(item, "role", "serving");
        gms_document_text(item, "launch", name);
        json_array_append_new(list, item);
    }
    json_object_set_new(root, "engines", list);
    return root;
}

static char *write_refused(uint64_t which)
{
    asked = 0;
    refused = which;
    json_set_alloc_funcs(rationed, free);
    char *text = gms_document_write(make, "up.0");
    json_set_alloc_funcs(malloc, free);
    return text;
}

static void test_whole_or_none(void **state)
{
    (void)state;
    char *full = write_refused(0);
    uint64_t all = asked;
    assert_non_null(full);
    assert_non_null(strstr(full, "{\"engine\":7,\"role\":\"serving\",\"launch\":\"up.0\"}]}"));
    assert_true(all > 8 * 7); /* an object, three values and their names for each engine */
    for (uint64_t which = 1; which <= all; which++) {
        char *text = write_refused(which);
        if (text != NULL)
            fail_msg("without its allocation %d of %d it is told as %s", (int)which, (int)all, text);
    }
    char *text = write_refused(all + 1);
    assert_string_equal(text, full);
    free(text);
    free(full);
}

/* The allocator is the process's: what was set before is set again, whatever became of the document. */
static void test_allocator_is_given_back(void **state)
{
    json_malloc_t allocate;
    json_free_t release;
    (void)state;
    json_set_alloc_funcs(rationed, free);
    for (refused = 0; refused < 5; refused += 4) {
        asked = 0;
        free(gms_document_write(make, "up.0"));
        json_get_alloc_funcs(&allocate, &release);
        assert_true(allocate == rationed && release == free);
    }
    json_set_alloc_funcs(malloc, free);
}

static void test_not_text(void **state)
{
    (void)state;
    char *text = gms_document_write(make, "\xff");
    assert_non_null(text);
    assert_non_null(strstr(text, "\"launch\":\"(not UTF-8)\""));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_or_none),
        cmocka_unit_test(test_allocator_is_given_back),
        cmocka_unit_test(test_not_text),
    };
    return cmocka_run_group_tests_name("what coordinators tell", tests, NULL, NULL);
}
