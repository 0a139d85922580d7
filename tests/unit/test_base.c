/* SPDX-License-Identifier: Apache-2.0 */
#include "unit_support.h"

#include <limits.h>
#include <locale.h>
#include <sys/socket.h>

#include "base/run_dir.h"
#include "base/units.h"

/* ------------------------------------------------------------------------------------------------ status ----- */

static void status_names_and_texts(void **state)
{
    (void)state;
    assert_string_equal(gms_status_name(GMS_OK), "GMS_OK");
    assert_string_equal(gms_status_name(GMS_E_BUSY), "GMS_E_BUSY");
    assert_string_equal(gms_status_text(GMS_E_DIVERGED), "ranks hold different replicated state");
    assert_non_null(gms_status_name((gms_status)77));
    assert_non_null(gms_status_text((gms_status)-5));
    assert_false(gms_status_is_fatal_to_engine(GMS_E_UNSUPPORTED));
    assert_true(gms_status_is_fatal_to_engine(GMS_E_CONDEMNED));
    assert_false(gms_status_is_fatal_to_engine(GMS_E_DISCONNECTED));
}

static void fail_fills_cuts_and_keeps_errno(void **state)
{
    struct gms_error error;
    char long_text[2 * GMS_ERROR_TEXT_BYTES];

    (void)state;
    memset(&error, 0x5a, sizeof(error));
    memset(long_text, 'x', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = '\0';
    errno = EXDEV;
    assert_int_equal(gms_fail(&error, GMS_E_STALE, "epoch %d of %s", 3, "rank 1"), GMS_E_STALE);
    assert_int_equal(errno, EXDEV);
    assert_int_equal(error.status, GMS_E_STALE);
    assert_int_equal(error.rank, -1);
    assert_string_equal(error.text, "epoch 3 of rank 1");
    assert_int_equal(gms_fail(&error, GMS_E_BUSY, "%s", long_text), GMS_E_BUSY);
    assert_int_equal(strlen(error.text), GMS_ERROR_TEXT_BYTES - 1);
    assert_int_equal(gms_fail(NULL, GMS_E_TIMEOUT, "nobody reads this"), GMS_E_TIMEOUT);
}

/* ------------------------------------------------------------------------------------------------- clock ----- */

static void poll_ms_rounds_up_and_saturates(void **state)
{
    const uint64_t now_ns = gms_clock_ns();

    (void)state;
    assert_true(gms_clock_ns() >= now_ns);
    assert_int_equal(gms_clock_poll_ms(0), 0);
    assert_int_equal(gms_clock_poll_ms(now_ns), 0);
    assert_int_equal(gms_clock_poll_ms(UINT64_MAX), -1);
    assert_int_equal(gms_clock_poll_ms(UINT64_MAX - 1), INT_MAX);
    /* An hour ahead: whatever this test takes, the answer lies within a minute below, and is never above. */
    const int hour_ms = gms_clock_poll_ms(gms_clock_ns() + 3600 * GMS_NS_PER_S);
    assert_true(hour_ms <= 3600 * 1000 && hour_ms > 3540 * 1000);
    /* A deadline that is not over is never 0, or a loop would spin or give up early. */
    for (int i = 0; i < 1000; i++) {
        const uint64_t deadline_ns = gms_clock_ns() + 50000;
        const int left_ms = gms_clock_poll_ms(deadline_ns);
        if (gms_clock_ns() < deadline_ns) {
            assert_int_equal(left_ms, 1);
        }
    }
}

/* ------------------------------------------------------------------------------------------------- units ----- */

static void sizes_that_are_right(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } rows[] = {
        {"0B", 0},
        {"1B", 1},
        {"2GB", UINT64_C(2000000000)},
        {"3KB", 3000},
        {"4MB", 4000000},
        {"5TB", UINT64_C(5000000000000)},
        {"256MiB", UINT64_C(268435456)},
        {"10 GiB", UINT64_C(10737418240)}, /* the number that libconfig would wrap */
        {"1KiB", 1024},
        {"1TiB", UINT64_C(1099511627776)},
        {"010KiB", 10240}, /* decimal, never octal */
        {"18446744073709551615B", UINT64_MAX},
        {"16777215TiB", UINT64_C(16777215) << 40},
    };
    struct gms_error error;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint64_t bytes = 12345;
        assert_ok(gms_parse_size(rows[i].text, &bytes, &error));
        assert_int_equal(bytes, rows[i].bytes);
    }
}

static void durations_that_are_right(void **state)
{
    static const struct {
        const char *text;
        uint64_t ns;
    } rows[] = {
        {"0s", 0},
        {"1ns", 1},
        {"2us", 2000},
        {"250ms", UINT64_C(250000000)},
        {"10s", UINT64_C(10000000000)},
        {"10 s", UINT64_C(10000000000)},
        {"5min", UINT64_C(300000000000)},
        {"1h", UINT64_C(3600000000000)},
        {"18446744073709551615ns", UINT64_MAX},
    };
    struct gms_error error;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint64_t ns = 12345;
        assert_ok(gms_parse_duration(rows[i].text, &ns, &error));
        assert_int_equal(ns, rows[i].ns);
    }
}

/* Each kind of wrong number; the text shows the value and how to write it. */
static void numbers_that_are_wrong(void **state)
{
    static const char *const common[] = {
        "",
        "5", /* no unit */
        "10737418240",
        "-1",
        "0x10",
        "1e3",
        " ",
        "1.5",
        "0xFFFFFFFF",
        "abc",
        "ten",
        "\xc2\xa0\x35", /* a no-break space, then 5 */
        "5\xc2\xb5s",   /* micro sign */
        "99999999999999999999999999999999999999",
        "nan",
        "inf",
    };
    static const char *const sizes[] = {
        "-1B",
        "+1B",
        " 1B",
        "1B ",
        "1  B",
        "1\tB",
        "1.5GiB",
        "1,5GiB",
        "1_000B",
        "1b",
        "1kb",
        "1kB",
        "1K",
        "1M",
        "1mib",
        "1MIB",
        "1PiB",
        "1Bytes",
        "0x1B",
        "1e3B",
        "B",
        "MiB",
        "1MiBB",
        "1MiB1",
        "1 MiB ",
        "１GB",
        "10s",
        "18446744073709551616B",
        "16777216TiB",
        "18446744073709552KB",
        "99999999999999999999TB",
    };
    static const char *const durations[] = {
        "-1s",
        "+1s",
        " 1s",
        "1s ",
        "1.5s",
        "1,5s",
        "1S",
        "1sec",
        "1m",
        "1M",
        "1d",
        "1hour",
        "1MiB",
        "s",
        "1 min ",
        "18446744073709551616ns",
        "18446744073709552us",
        "5124096h",
        "1h30min",
    };
    struct gms_error error;
    uint64_t value = 4711;

    (void)state;
    for (size_t i = 0; i < sizeof(common) / sizeof(common[0]); i++) {
        assert_status(gms_parse_size(common[i], &value, &error), GMS_E_INVALID);
        assert_text_has(common[i]);
        assert_text_has("256MiB");
        assert_status(gms_parse_duration(common[i], &value, &error), GMS_E_INVALID);
        assert_text_has(common[i]);
        assert_text_has("250ms");
    }
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        assert_status(gms_parse_size(sizes[i], &value, &error), GMS_E_INVALID);
        assert_text_has(sizes[i]);
        assert_text_has("2GB");
    }
    for (size_t i = 0; i < sizeof(durations) / sizeof(durations[0]); i++) {
        assert_status(gms_parse_duration(durations[i], &value, &error), GMS_E_INVALID);
        assert_text_has(durations[i]);
        assert_text_has("10s");
    }
    assert_status(gms_parse_size(NULL, &value, &error), GMS_E_INVALID);
    assert_int_equal(value, 4711);
    assert_int_equal(gms_parse_size("5", &value, NULL), GMS_E_INVALID);
    assert_status(gms_parse_size("5", &value, &error), GMS_E_INVALID);
    assert_text_has("no unit");
    assert_status(gms_parse_size("16777216TiB", &value, &error), GMS_E_INVALID);
    assert_text_has("larger than");
}

static void a_long_value_is_shown_cut(void **state)
{
    struct gms_error error;
    char text[4097];
    uint64_t value;

    (void)state;
    memset(text, '7', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    assert_status(gms_parse_size(text, &value, &error), GMS_E_INVALID);
    assert_text_has("256MiB");
}

static void numbers_for_people(void **state)
{
    char text[32];

    (void)state;
    /* A locale with decimal commas, where there is one, changes nothing. */
    (void)setlocale(LC_ALL, "de_DE.UTF-8");
    assert_string_equal(gms_format_size(0, text, sizeof(text)), "0 B");
    assert_string_equal(gms_format_size(1023, text, sizeof(text)), "1023 B");
    assert_string_equal(gms_format_size(1024, text, sizeof(text)), "1.0 KiB");
    assert_string_equal(gms_format_size(1536, text, sizeof(text)), "1.5 KiB");
    assert_string_equal(gms_format_size(UINT64_C(268435456), text, sizeof(text)), "256.0 MiB");
    assert_string_equal(gms_format_size((UINT64_C(1) << 30) - 1, text, sizeof(text)), "1023.9 MiB");
    assert_string_equal(gms_format_size(UINT64_MAX, text, sizeof(text)), "15.9 EiB");
    assert_string_equal(gms_format_duration(0, text, sizeof(text)), "0 ns");
    assert_string_equal(gms_format_duration(999, text, sizeof(text)), "999 ns");
    assert_string_equal(gms_format_duration(1250000, text, sizeof(text)), "1.25 ms");
    assert_string_equal(gms_format_duration(999999, text, sizeof(text)), "999.99 us");
    assert_string_equal(gms_format_duration(10 * GMS_NS_PER_S, text, sizeof(text)), "10.00 s");
    assert_string_equal(gms_format_duration(90 * GMS_NS_PER_S, text, sizeof(text)), "1.50 min");
    assert_string_equal(gms_format_duration(7200 * GMS_NS_PER_S, text, sizeof(text)), "2.00 h");
    (void)setlocale(LC_ALL, "C");
    memset(text, 'x', sizeof(text));
    assert_string_equal(gms_format_size(UINT64_C(268435456), text, 5), "256.");
    assert_int_equal(text[5], 'x');
    gms_format_duration(1, text, 0);
}

/* ----------------------------------------------------------------------------------------- run directory ----- */

/* An absolute path of exactly `bytes` bytes, made of `unit` where it fits. */
static void long_path(char *ret_path, size_t bytes, const char *unit)
{
    size_t at = 1;

    ret_path[0] = '/';
    while (at + strlen(unit) <= bytes) {
        memcpy(ret_path + at, unit, strlen(unit));
        at += strlen(unit);
    }
    memset(ret_path + at, 'z', bytes - at);
    ret_path[bytes] = '\0';
}

static void path_lengths(void **state)
{
    /* What the whole path has, whether that is right, for one-byte and three-byte characters. */
    static const struct {
        size_t bytes;
        bool right;
    } rows[] = {{106, true}, {107, true}, {108, false}, {109, false}, {4096, false}};
    static const char *const units[] = {"a", "\xe2\x82\xac"};
    struct gms_error error;

    (void)state;
    for (size_t u = 0; u < 2; u++) {
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
            static char run_dir[5000];
            char path[GMS_RUN_PATH_BYTES];
            char number[32];

            long_path(run_dir, rows[i].bytes - strlen("/c1023"), units[u]);
            memset(path, 'x', sizeof(path));
            if (rows[i].right) {
                assert_ok(gms_run_dir_path(run_dir, "c", 1023, path, &error));
                assert_int_equal(strlen(path), rows[i].bytes);
                assert_memory_equal(path, run_dir, strlen(run_dir));
                assert_string_equal(path + strlen(run_dir), "/c1023");
            } else {
                assert_status(gms_run_dir_path(run_dir, "c", 1023, path, &error), GMS_E_INVALID);
                assert_int_equal(path[0], 'x');
                snprintf(number, sizeof(number), "%zu bytes", rows[i].bytes);
                assert_text_has(number);
                assert_text_has("107");
            }
        }
    }
}

static void names_with_a_long_common_part_do_not_collide(void **state)
{
    struct gms_error error;
    char run_dir[128];
    char one[GMS_RUN_PATH_BYTES];
    char two[GMS_RUN_PATH_BYTES];

    (void)state;
    long_path(run_dir, 104, "a"); /* "/c1" ends at byte 107; "/c10" and "/c11" share 107 bytes */
    assert_ok(gms_run_dir_path(run_dir, "c", 1, one, &error));
    assert_ok(gms_run_dir_path(run_dir, "c", 2, two, &error));
    assert_string_not_equal(one, two);
    assert_status(gms_run_dir_path(run_dir, "c", 10, one, &error), GMS_E_INVALID);
    assert_status(gms_run_dir_path(run_dir, "c", 11, two, &error), GMS_E_INVALID);
}

static void path_forms(void **state)
{
    struct gms_error error;
    char path[GMS_RUN_PATH_BYTES];

    (void)state;
    assert_ok(gms_run_dir_path("/run/x", "keeper", -1, path, &error));
    assert_string_equal(path, "/run/x/keeper");
    assert_ok(gms_run_dir_path("/run/x///", "store.", 0, path, &error));
    assert_string_equal(path, "/run/x/store.0");
    assert_ok(gms_run_dir_path("/", "b", 7, path, &error));
    assert_string_equal(path, "/b7");
    assert_status(gms_run_dir_path("run/x", "b", 7, path, &error), GMS_E_INVALID);
    assert_status(gms_run_dir_path("", "b", 7, path, &error), GMS_E_INVALID);
    assert_status(gms_run_dir_path(NULL, "b", 7, path, &error), GMS_E_INVALID);
    assert_status(gms_run_dir_path("/x", "../b", 7, path, &error), GMS_E_INVALID);
    assert_status(gms_run_dir_path("/x", "", 7, path, &error), GMS_E_INVALID);
}

static void run_dir_is_made_and_checked(void **state)
{
    struct gms_error error;
    struct stat info;
    char path[128];
    char other[128];

    snprintf(path, sizeof(path), "%s/run", (char *)*state);
    snprintf(other, sizeof(other), "%s/link", (char *)*state);
    assert_status(gms_run_dir_check(path, 2, 0, &error), GMS_E_SYSTEM);
    const mode_t mask = umask(0277);
    assert_ok(gms_run_dir_check(path, 2, 1, &error));
    umask(mask);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0700);
    assert_ok(gms_run_dir_check(path, 2, 1, &error));
    assert_ok(gms_run_dir_check(path, 1024, 0, &error));

    assert_int_equal(chmod(path, 0750), 0);
    assert_status(gms_run_dir_check(path, 2, 1, &error), GMS_E_PERMISSION);
    assert_text_has("0750");
    assert_int_equal(chmod(path, 0700), 0);

    /* Not a real directory: a link to one, with and without a slash at the end, and a file. */
    assert_int_equal(symlink(path, other), 0);
    assert_status(gms_run_dir_check(other, 2, 1, &error), GMS_E_INVALID);
    strcat(other, "/");
    assert_status(gms_run_dir_check(other, 2, 1, &error), GMS_E_INVALID);
    snprintf(other, sizeof(other), "%s/file", (char *)*state);
    close(open(other, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    assert_status(gms_run_dir_check(other, 2, 1, &error), GMS_E_INVALID);

    if (geteuid() == 0) {
        assert_int_equal(chown(path, 65534, 65534), 0);
        assert_status(gms_run_dir_check(path, 2, 1, &error), GMS_E_PERMISSION);
        assert_text_has("65534");
    } else {
        print_message("skipped: another owner needs root\n");
    }
}

/* The longest name of all ranks decides, before anything is made. */
static void run_dir_too_long_for_the_last_rank(void **state)
{
    struct gms_error error;
    struct stat info;
    char path[256];
    const size_t base = strlen(*state);

    /* "/store.1023" and "/keeper.lock": 12 bytes for the longest, so 95 for the directory. */
    snprintf(path, sizeof(path), "%s/", (char *)*state);
    memset(path + base + 1, 'a', 95 - base - 1);
    path[95] = '\0';
    assert_ok(gms_run_dir_check(path, 1024, 1, &error));
    path[95] = 'a';
    path[96] = '\0';
    assert_status(gms_run_dir_check(path, 1024, 1, &error), GMS_E_INVALID);
    assert_text_has("108 bytes");
    assert_text_has("107");
    assert_int_equal(stat(path, &info), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_names_and_texts),
        cmocka_unit_test(fail_fills_cuts_and_keeps_errno),
        cmocka_unit_test(poll_ms_rounds_up_and_saturates),
        cmocka_unit_test(sizes_that_are_right),
        cmocka_unit_test(durations_that_are_right),
        cmocka_unit_test(numbers_that_are_wrong),
        cmocka_unit_test(a_long_value_is_shown_cut),
        cmocka_unit_test(numbers_for_people),
        cmocka_unit_test(path_lengths),
        cmocka_unit_test(names_with_a_long_common_part_do_not_collide),
        cmocka_unit_test(path_forms),
        cmocka_unit_test_setup_teardown(run_dir_is_made_and_checked, unit_make_dir, unit_remove_dir),
        cmocka_unit_test_setup_teardown(run_dir_too_long_for_the_last_rank, unit_make_dir, unit_remove_dir),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
