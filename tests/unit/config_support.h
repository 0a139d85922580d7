/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the deployment file share: a valid file to spoil, and what was reported of it. Header only.
 */
#ifndef GMS_TESTS_CONFIG_SUPPORT_H
#define GMS_TESTS_CONFIG_SUPPORT_H

#include "unit_support.h"

#include "config/config.h"

enum { TEXT_BYTES = 512 * 1024 };

static char text[TEXT_BYTES];   /* the file of a test */
static char reports[64 * 1024]; /* everything that was reported, a line each */
static unsigned report_count;
static struct gms_config config;
static struct gms_error error;

static inline void collect(void *context, const char *line)
{
    size_t used = strlen(reports);
    (void)context;
    report_count++;
    snprintf(reports + used, sizeof(reports) - used, "%s\n", line);
}

static inline gms_status parse_bytes(const char *data, size_t bytes)
{
    reports[0] = '\0';
    report_count = 0;
    memset(&error, 0, sizeof(error));
    return gms_config_parse("test.cfg", data, bytes, &config, collect, NULL, &error);
}

static inline gms_status parse(const char *data)
{
    return parse_bytes(data, strlen(data));
}

/* A valid file of which one part is replaced; NULL: leave as it is. */
struct parts {
    const char *deployment, *run_dir, *ranks, *capacity, *memory, *more;
};

static inline const char *build(struct parts parts)
{
    snprintf(text, sizeof(text),
             "deployment = %s;\nrun_dir = %s;\nranks = %s;\nmemory : { capacity = %s; %s };\n%s\ncomplete = true;\n",
             parts.deployment ? parts.deployment : "\"demo\"", parts.run_dir ? parts.run_dir : "\"/run/gms\"",
             parts.ranks ? parts.ranks : "2", parts.capacity ? parts.capacity : "\"256MiB\"",
             parts.memory ? parts.memory : "", parts.more ? parts.more : "");
    return text;
}

#define assert_accepted(data)                                                                                          \
    do {                                                                                                               \
        if (parse(data) != GMS_OK)                                                                                     \
            print_error("refused: %s\n%s", data, reports);                                                             \
        assert_int_equal(error.status, GMS_OK);                                                                        \
        assert_int_equal(report_count, 0);                                                                             \
    } while (0)

/* Refused, with "test.cfg:LINE: " and `part` in one of the reports. */
#define assert_refused(data, line, part)                                                                               \
    do {                                                                                                               \
        char place[64];                                                                                                \
        snprintf(place, sizeof(place), "test.cfg:%d: ", line);                                                         \
        if (parse(data) != GMS_E_CONFIG || !strstr(reports, place) || !strstr(reports, part))                          \
            print_error("wants %s...%s\nfile: %.300s\ngot: %s\n", place, part, data, reports);                         \
        assert_int_equal(error.status, GMS_E_CONFIG);                                                                  \
        assert_non_null(strstr(reports, place));                                                                       \
        assert_non_null(strstr(reports, part));                                                                        \
    } while (0)

#endif
