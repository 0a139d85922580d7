/* SPDX-License-Identifier: Apache-2.0 */
#include "base/units.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

struct unit {
    const char *name;
    uint64_t factor;
};

/* Ascending; the binary ones are also what gms_format_size prints. */
static const struct unit size_units[] = {
    {"B", 1},
    {"KB", UINT64_C(1000)},
    {"MB", UINT64_C(1000) * 1000},
    {"GB", UINT64_C(1000) * 1000 * 1000},
    {"TB", UINT64_C(1000) * 1000 * 1000 * 1000},
    {"KiB", UINT64_C(1) << 10},
    {"MiB", UINT64_C(1) << 20},
    {"GiB", UINT64_C(1) << 30},
    {"TiB", UINT64_C(1) << 40},
    {NULL, 0},
};

static const struct unit duration_units[] = {
    {"ns", 1},
    {"us", 1000},
    {"ms", GMS_NS_PER_MS},
    {"s", GMS_NS_PER_S},
    {"min", 60 * GMS_NS_PER_S},
    {"h", 3600 * GMS_NS_PER_S},
    {NULL, 0},
};

enum parse_result { PARSE_OK, PARSE_NOT_A_NUMBER, PARSE_NO_UNIT, PARSE_UNKNOWN_UNIT, PARSE_TOO_LARGE };

/* strtoull is not used: it takes signs, blanks, 0x and the locale's grouping, and all of those are mistakes here. */
static enum parse_result parse_with_unit(const char *text, const struct unit *units, uint64_t *ret_value)
{
    uint64_t number = 0;
    bool overflow = false;
    const char *at = text;

    if (!at || *at < '0' || *at > '9') {
        return PARSE_NOT_A_NUMBER;
    }
    for (; *at >= '0' && *at <= '9'; at++) {
        overflow |= __builtin_mul_overflow(number, UINT64_C(10), &number);
        overflow |= __builtin_add_overflow(number, (uint64_t)(*at - '0'), &number);
    }
    if (*at == '\0') {
        return PARSE_NO_UNIT;
    }
    if (*at == ' ') {
        at++;
    }
    for (; units->name; units++) {
        if (strcmp(at, units->name) == 0) {
            overflow |= __builtin_mul_overflow(number, units->factor, &number);
            if (overflow) {
                return PARSE_TOO_LARGE;
            }
            *ret_value = number;
            return PARSE_OK;
        }
    }
    return PARSE_UNKNOWN_UNIT;
}

static gms_status report(enum parse_result result, const char *what, const char *text, const char *unit_list,
                         const char *largest, const char *examples, struct gms_error *ret_error)
{
    const char *shown = text ? text : "";

    switch (result) {
    case PARSE_OK:
        return GMS_OK;
    case PARSE_NO_UNIT:
        return gms_fail(ret_error, GMS_E_INVALID, "%s \"%.64s\" has no unit; write one of %s, for example %s", what,
                        shown, unit_list, examples);
    case PARSE_TOO_LARGE:
        return gms_fail(ret_error, GMS_E_INVALID, "%s \"%.64s\" is larger than %s; write for example %s", what, shown,
                        largest, examples);
    case PARSE_UNKNOWN_UNIT:
    case PARSE_NOT_A_NUMBER:
        break;
    }
    return gms_fail(ret_error, GMS_E_INVALID,
                    "%s \"%.64s\" is not a %s: digits and one of %s, no sign, no fraction, for example %s", what, shown,
                    what, unit_list, examples);
}

gms_status gms_parse_size(const char *text, uint64_t *ret_bytes, struct gms_error *ret_error)
{
    return report(parse_with_unit(text, size_units, ret_bytes), "size", text, "B KB MB GB TB KiB MiB GiB TiB",
                  "2^64-1 bytes", "\"256MiB\" or \"2GB\"", ret_error);
}

gms_status gms_parse_duration(const char *text, uint64_t *ret_ns, struct gms_error *ret_error)
{
    return report(parse_with_unit(text, duration_units, ret_ns), "duration", text, "ns us ms s min h", "2^64-1 ns",
                  "\"10s\" or \"250ms\"", ret_error);
}

/* Whole-number arithmetic, cut and not rounded: no locale's decimal comma, no "1024.0 MiB". */
char *gms_format_size(uint64_t value_bytes, char *ret_text, size_t bytes)
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    unsigned step = 0;

    if (bytes == 0) {
        return ret_text;
    }
    while (step + 1 < sizeof(names) / sizeof(names[0]) && (value_bytes >> (10 * (step + 1))) != 0) {
        step++;
    }
    if (step == 0) {
        snprintf(ret_text, bytes, "%llu B", (unsigned long long)value_bytes);
    } else {
        const uint64_t unit = UINT64_C(1) << (10 * step);
        const uint64_t whole = value_bytes / unit;
        const uint64_t tenths = ((value_bytes % unit) >> (10 * (step - 1))) * 10 / 1024;

        snprintf(ret_text, bytes, "%llu.%llu %s", (unsigned long long)whole, (unsigned long long)tenths, names[step]);
    }
    return ret_text;
}

char *gms_format_duration(uint64_t value_ns, char *ret_text, size_t bytes)
{
    const struct unit *unit = duration_units;

    if (bytes == 0) {
        return ret_text;
    }
    while (unit[1].name && value_ns >= unit[1].factor) {
        unit++;
    }
    if (unit->factor == 1) {
        snprintf(ret_text, bytes, "%llu ns", (unsigned long long)value_ns);
    } else {
        const uint64_t hundredths = value_ns % unit->factor / (unit->factor / 100);

        snprintf(ret_text, bytes, "%llu.%02llu %s", (unsigned long long)(value_ns / unit->factor),
                 (unsigned long long)hundredths, unit->name);
    }
    return ret_text;
}
