/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <errno.h>
#include <libconfig.h>
#include <libgen.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/launcher.h"
#include "base/run_dir.h"
#include "base/units.h"
#include "config_text.h"
#include "environment.h"

/* -------------------------------------------------------------------------------------------------- table ------ */

enum kind {
    NAME,
    DIRECTORY,
    INTEGER,
    SIZE,
    DURATION,
    CHOICE,
    ENVIRONMENT,
    RENAMES,
    WORDS,
    PROGRAM,
    GROUPS,
    SCOPES,
    END
};

struct setting {
    const char *name; /* "[]" marks what every group of a list has */
    enum kind kind;
    bool required;
    size_t offset, size; /* of the member; of lists: the packed bytes' room */
    size_t count_offset; /* of lists: the member that counts bytes (GROUPS: elements) */
    uint64_t least, greatest;
    const char *initial; /* when the file does not say, in the file's own words; CHOICE: one of `choices` */
    const char *choices; /* "a|b|c": stored as 0, 1, 2 */
    const char *help;
};

/* One group of environment.engines or .ranks, before it is packed with the others. */
struct scope {
    uint32_t number, set_bytes;
    char set[GMS_CONFIG_ENVIRONMENT_BYTES];
};

#define MEMBER(member) .offset = offsetof(struct gms_config, member), .size = sizeof(((struct gms_config *)0)->member)
#define OVERRIDE(member)                                                                                               \
    .offset = offsetof(struct gms_config, capacity_of[0].member) - offsetof(struct gms_config, capacity_of),           \
    .size = sizeof(((struct gms_config *)0)->capacity_of[0].member)
#define SCOPED(member) .offset = offsetof(struct scope, member), .size = sizeof(((struct scope *)0)->member)
#define PACKED(member) MEMBER(member), .count_offset = offsetof(struct gms_config, member##_bytes)

#define MIN_CAPACITY UINT64_C(4096)
#define MAX_CAPACITY (UINT64_C(1) << 44)
#define MS           GMS_NS_PER_MS
#define HOUR         (3600 * GMS_NS_PER_S)

static const struct setting table[] = {
    {"deployment", NAME, .required = true, MEMBER(deployment), .help = "name in logs; a-z, 0-9 and -"},
    {"run_dir", DIRECTORY, .required = true, MEMBER(run_dir),
     .help = "directory of the sockets and stores on every node; absolute, made with mode 0700"},
    {"ranks", INTEGER, .required = true, MEMBER(ranks), .least = 1, .greatest = GMS_MAX_RANKS,
     .help = "coordinator ranks, one for each GPU"},
    {"memory.backend", CHOICE, MEMBER(backend), .initial = "host", .choices = "host|cuda",
     .help = "where pools live: host memory, or the memory of each rank's GPU"},
    {"memory.device", CHOICE, MEMBER(device_shared), .initial = "per-rank", .choices = "per-rank|shared",
     .help = "cuda: per-rank: rank N has the visible GPU N, or the only one; no two the same. shared: all have GPU 0"},
    {"memory.capacity", SIZE, .required = true, MEMBER(capacity_bytes), .least = MIN_CAPACITY, .greatest = MAX_CAPACITY,
     .help = "memory for the pools of one rank"},
    {"memory.capacity_of", GROUPS, MEMBER(capacity_of), .count_offset = offsetof(struct gms_config, capacity_of_count),
     .greatest = GMS_CONFIG_OVERRIDES, .help = "ranks that have another capacity"},
    {"memory.capacity_of[].rank", INTEGER, .required = true, OVERRIDE(rank), .least = 0, .greatest = GMS_MAX_RANKS - 1,
     .help = "which rank; below `ranks`"},
    {"memory.capacity_of[].capacity", SIZE, .required = true, OVERRIDE(capacity_bytes), .least = MIN_CAPACITY,
     .greatest = MAX_CAPACITY, .help = "memory for its pools"},
    {"kv.verify", CHOICE, MEMBER(kv_verify_full), .initial = "full", .choices = "none|full",
     .help = "full: sealed KV carries a content digest that a successor checks; none: generations alone; cuda: "
             "none by default"},
    {"timeouts.operation", DURATION, MEMBER(operation_timeout_ns), .least = 100 * MS, .greatest = HOUR,
     .initial = "10s", .help = "how long a collective call waits for all ranks"},
    {"timeouts.round", DURATION, MEMBER(round_timeout_ns), .least = 100 * MS, .greatest = HOUR, .initial = "5s",
     .help = "deadline of one agreement round; a rank that misses it restarts"},
    {"timeouts.heartbeat", DURATION, MEMBER(heartbeat_ns), .least = 100 * MS, .greatest = HOUR, .initial = "5s",
     .help = "how often idle ranks prove their links"},
    {"timeouts.fence_report", DURATION, MEMBER(fence_report_ns), .least = 10 * MS, .greatest = HOUR, .initial = "2s",
     .help = "how long a condemned process may take to end before it is named in the log"},
    {"timeouts.transfer_stall", DURATION, MEMBER(transfer_stall_ns), .least = 10 * MS, .greatest = HOUR,
     .initial = "5s", .help = "how long a transfer may lack votes before it is named in the log"},
    {"timeouts.reattach", DURATION, MEMBER(reattach_ns), .least = 100 * MS, .greatest = HOUR, .initial = "5s",
     .help = "how long a living engine rank may stay away after a restart of the coordinators before it is named"},
    {"timeouts.leave", DURATION, MEMBER(leave_ns), .greatest = 60 * GMS_NS_PER_S, .initial = "1s",
     .help =
         "how long the processes of an engine that said goodbye on a rank may take to end by themselves; a takeover "
         "waits for it"},
    {"reclaim.policy", CHOICE, MEMBER(reclaim_policy), .initial = "gpu-proof",
     .choices = "gpu-proof|process-death-timeout",
     .help = "what brings pages back that a dead engine may still write: proof, or its death and some time"},
    {"reclaim.provider", CHOICE, MEMBER(reclaim_provider), .initial = "auto", .choices = "auto|procmap",
     .help = "who proves that a dead engine is quiet; auto: what fits memory.backend"},
    {"reclaim.grace", DURATION, MEMBER(reclaim_grace_ns), .least = 10 * MS, .greatest = HOUR, .initial = "5s",
     .help = "process-death-timeout: between the two looks that must find it dead"},
    {"reclaim.step", INTEGER, MEMBER(reclaim_step), .least = 1, .greatest = GMS_RECLAIM_SLOTS, .initial = "1024",
     .help = "pages that all ranks return at once"},
    {"reclaim.page_pause", DURATION, MEMBER(reclaim_page_pause_ns), .least = 0, .greatest = GMS_NS_PER_S,
     .initial = "0ms", .help = "what returning one page is made to take: for tests, and to spare a busy host"},
    {"environment.set", ENVIRONMENT, PACKED(environment),
     .help = "NAME=VALUE for every engine rank; ${rank}, ${engine}, ${port}... are expanded"},
    {"environment.engines", SCOPES, PACKED(engine_environment), .greatest = GMS_MAX_ENGINES,
     .help = "engines that have other variables, or more"},
    {"environment.engines[].engine", INTEGER, .required = true, SCOPED(number), .least = 0,
     .greatest = GMS_MAX_ENGINES - 1, .help = "which engine"},
    {"environment.engines[].set", ENVIRONMENT, .required = true, SCOPED(set),
     .count_offset = offsetof(struct scope, set_bytes), .help = "NAME=VALUE for its ranks, over environment.set"},
    {"environment.ranks", SCOPES, PACKED(rank_environment), .greatest = GMS_MAX_RANKS,
     .help = "ranks that have other variables, or more"},
    {"environment.ranks[].rank", INTEGER, .required = true, SCOPED(number), .least = 0, .greatest = GMS_MAX_RANKS - 1,
     .help = "which rank; below `ranks`"},
    {"environment.ranks[].set", ENVIRONMENT, .required = true, SCOPED(set),
     .count_offset = offsetof(struct scope, set_bytes), .help = "NAME=VALUE for it in every engine, over all others"},
    {"environment.rename", RENAMES, PACKED(rename),
     .help = "FROM=TO, both names or PREFIX*: set under TO as well, for launchers that forward only some prefixes"},
    {"environment.port_first", INTEGER, MEMBER(port_first), .least = 1024, .greatest = 65535, .initial = "23000",
     .help = "MASTER_PORT is a free one from here on, another at each start of an engine"},
    {"environment.port_count", INTEGER, MEMBER(port_count), .least = 1, .greatest = 64512, .initial = "1000",
     .help = "how many ports"},
    {"engine.command", WORDS, PACKED(command),
     .help = "program and arguments of an engine rank that gms-failover-test --config starts"},
    {"engine.containment", CHOICE, MEMBER(containment), .initial = "auto", .choices = "auto|pid-namespace|subreaper",
     .help = "checked, but not handed to gms-exec yet: give it --containment"},
    {"hooks.on_serving", PROGRAM, PACKED(on_serving),
     .help = "program and arguments, run on rank 0 when an engine begins to serve (GMS_EPOCH, GMS_ENDPOINT)"},
    {"complete", END, .required = true, .help = "true, as the last setting: the file was not cut short"},
};
enum { SETTINGS = sizeof(table) / sizeof(table[0]) };

static const char *const kind_text[] = {
    [NAME] = "string",
    [DIRECTORY] = "string, an absolute path",
    [INTEGER] = "integer",
    [SIZE] = "size, a string with a unit such as \"256MiB\"",
    [DURATION] = "duration, a string with a unit such as \"10s\" or \"250ms\"",
    [CHOICE] = "string",
    [ENVIRONMENT] = "list of strings",
    [RENAMES] = "list of strings",
    [WORDS] = "list of strings",
    [PROGRAM] = "list of strings",
    [GROUPS] = "list of groups",
    [SCOPES] = "list of groups",
    [END] = "boolean",
};

/* ------------------------------------------------------------------------------------------------- values ------ */

struct reading {
    struct gms_config_problems problems;
    struct gms_config *config;
    const char *name;
    unsigned lines;
};

static const char *file_of(const struct reading *reading, const config_setting_t *node)
{
    const char *file = config_setting_source_file(node);
    return file ? file : reading->name;
}

#define PROBLEM(reading, node, ...)                                                                                    \
    gms_config_problem(&(reading)->problems, file_of(reading, node), config_setting_source_line(node), __VA_ARGS__)

static void store_unsigned(void *base, const struct setting *row, uint64_t value)
{
    char *place = (char *)base + row->offset;
    uint32_t narrow = (uint32_t)value;
    bool flag = value != 0;
    if (row->size == sizeof(uint64_t))
        memcpy(place, &value, sizeof(value));
    else if (row->size == sizeof(uint32_t))
        memcpy(place, &narrow, sizeof(narrow));
    else if (row->size == sizeof(bool))
        memcpy(place, &flag, sizeof(flag));
}

static void limits(const struct setting *row, uint64_t value, char *ret_text, size_t bytes)
{
    char number[32];
    switch (row->kind) {
    case SIZE:
        gms_format_size(value, number, sizeof(number));
        break;
    case DURATION:
        gms_format_duration(value, number, sizeof(number));
        break;
    case INTEGER:
    case NAME:
    case DIRECTORY:
    case CHOICE:
    case ENVIRONMENT:
    case RENAMES:
    case WORDS:
    case PROGRAM:
    case GROUPS:
    case SCOPES:
    case END:
        snprintf(number, sizeof(number), "%llu", (unsigned long long)value);
        break;
    }
    snprintf(ret_text, bytes, "%s", number);
}

/* Checks and stores a number of any kind; `shown` is the value in the file's words. */
static bool take_number(const struct setting *row, void *base, uint64_t value, const char *shown,
                        struct gms_error *ret_error)
{
    char least[32], greatest[32];
    if (value < row->least || value > row->greatest) {
        limits(row, row->least, least, sizeof(least));
        limits(row, row->greatest, greatest, sizeof(greatest));
        gms_fail(ret_error, GMS_E_CONFIG, "%s is out of range: %s to %s", shown, least, greatest);
        return false;
    }
    store_unsigned(base, row, value);
    return true;
}

static bool take_name(const struct setting *row, void *base, const char *text, size_t length,
                      struct gms_error *ret_error)
{
    char quoted[GMS_CONFIG_QUOTE_BYTES];
    if (length == 0 || length >= row->size) {
        gms_fail(ret_error, GMS_E_CONFIG, "is %zu bytes long; 1 to %zu", length, row->size - 1);
        return false;
    }
    if (strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-") != length || text[0] == '-') {
        gms_fail(ret_error, GMS_E_CONFIG, "\"%s\" may hold a-z, 0-9 and, not first, -",
                 gms_config_quote(text, length, quoted));
        return false;
    }
    memcpy((char *)base + row->offset, text, length + 1);
    return true;
}

static bool take_directory(const struct setting *row, void *base, const char *text, size_t length,
                           struct gms_error *ret_error)
{
    char quoted[GMS_CONFIG_QUOTE_BYTES];
    gms_config_quote(text, length, quoted);
    if (length == 0 || length >= row->size) {
        gms_fail(ret_error, GMS_E_CONFIG, "is %zu bytes long; 1 to %zu: \"%s\"", length, row->size - 1, quoted);
        return false;
    }
    if (text[0] != '/') {
        gms_fail(ret_error, GMS_E_CONFIG, "\"%s\" is not an absolute path", quoted);
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) {
            gms_fail(ret_error, GMS_E_CONFIG, "\"%s\" holds a control character", quoted);
            return false;
        }
    }
    memcpy((char *)base + row->offset, text, length + 1);
    return true;
}

static bool take_choice(const struct setting *row, void *base, const char *text, size_t length,
                        struct gms_error *ret_error)
{
    char quoted[GMS_CONFIG_QUOTE_BYTES];
    const char *choice = row->choices;
    for (uint64_t index = 0;; index++) {
        size_t bytes = strcspn(choice, "|");
        if (bytes == length && memcmp(choice, text, length) == 0) {
            store_unsigned(base, row, index);
            return true;
        }
        if (choice[bytes] == '\0')
            break;
        choice += bytes + 1;
    }
    gms_fail(ret_error, GMS_E_CONFIG, "\"%s\" is none of: %s", gms_config_quote(text, length, quoted), row->choices);
    return false;
}

/* A value written as a string. */
static bool take_text(const struct setting *row, void *base, const char *text, struct gms_error *ret_error)
{
    size_t length = strlen(text);
    uint64_t number = 0;
    char quoted[GMS_CONFIG_QUOTE_BYTES];

    switch (row->kind) {
    case NAME:
        return take_name(row, base, text, length, ret_error);
    case DIRECTORY:
        return take_directory(row, base, text, length, ret_error);
    case CHOICE:
        return take_choice(row, base, text, length, ret_error);
    case SIZE:
    case DURATION:
        if (length > 40) { /* no number of 64 bits is that long; keeps the text readable */
            gms_fail(ret_error, GMS_E_CONFIG, "\"%s\" is not a %s", gms_config_quote(text, length, quoted),
                     kind_text[row->kind]);
            return false;
        }
        if ((row->kind == SIZE ? gms_parse_size : gms_parse_duration)(text, &number, ret_error) != GMS_OK)
            return false;
        snprintf(quoted, sizeof(quoted), "\"%s\"", text);
        return take_number(row, base, number, quoted, ret_error);
    case INTEGER: /* only as a default */
        number = strtoul(text, NULL, 10);
        return take_number(row, base, number, text, ret_error);
    case ENVIRONMENT:
    case RENAMES:
    case WORDS:
    case PROGRAM:
    case GROUPS:
    case SCOPES:
    case END:
        break;
    }
    gms_fail(ret_error, GMS_E_CONFIG, "is a string, must be a %s", kind_text[row->kind]);
    return false;
}

/* -------------------------------------------------------------------------------------------------- lists ------ */

enum { MAX_WORDS = 1024 };

/* May the file set `entry`? Else *ret_error says why not. */
static bool environment_entry(const char *entry, size_t *ret_name_bytes, struct gms_error *ret_error)
{
    static const char *const ours[] = {"GMS_RUN_DIR", "GMS_RANK",       "GMS_WORLD_SIZE",  "GMS_LAUNCH_ID",
                                       "ENGINE_ID",   "GMS_RANK_NAMES", "GMS_AGREED_NAMES"};
    size_t bytes = strspn(entry, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789");

    *ret_name_bytes = bytes;
    if (entry[bytes] != '=' || bytes == 0 || (entry[0] >= '0' && entry[0] <= '9')) {
        gms_fail(ret_error, GMS_E_CONFIG, "is not NAME=VALUE with a name of letters, digits and _, no digit first");
        return false;
    }
    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
        if (bytes == strlen(ours[i]) && memcmp(entry, ours[i], bytes) == 0) {
            gms_fail(ret_error, GMS_E_CONFIG, "is set by gms-exec for every rank and cannot be set here");
            return false;
        }
    }
    if (gms_is_launcher_name(entry, bytes)) {
        gms_fail(ret_error, GMS_E_CONFIG, "belongs to the launcher of each job and cannot be set here");
        return false;
    }
    if (strcmp(entry, "FAILOVER_LOCK_PATH=") == 0) {
        gms_fail(ret_error, GMS_E_CONFIG, "names no file; leave it out, or give it a path");
        return false;
    }
    return gms_environment_check_value(entry + bytes + 1, ret_error);
}

static const char *find_variable(const char *packed, size_t bytes, const char *name, size_t name_bytes)
{
    for (const char *entry = packed; entry < packed + bytes; entry += strlen(entry) + 1)
        if (strncmp(entry, name, name_bytes) == 0 && entry[name_bytes] == '=')
            return entry;
    return NULL;
}

/* Packs a list of strings as "word\0" repeated. */
static void take_list(struct reading *reading, const struct setting *row, void *base, const config_setting_t *node)
{
    char *packed = (char *)base + row->offset, quoted[GMS_CONFIG_QUOTE_BYTES];
    int count = config_setting_length(node);
    size_t used = 0, name_bytes = 0;

    if (count > MAX_WORDS) {
        PROBLEM(reading, node, "%s: %d strings, limit %d", row->name, count, MAX_WORDS);
        return;
    }
    for (int i = 0; i < count; i++) {
        const config_setting_t *element = config_setting_get_elem(node, (unsigned)i);
        const char *word = config_setting_get_string(element), *why = NULL;
        struct gms_error error;
        if (!word) {
            PROBLEM(reading, element, "%s: entry %d is not a string", row->name, i + 1);
            continue;
        }
        size_t length = strlen(word);
        gms_config_quote(word, length, quoted);
        if (row->kind == ENVIRONMENT) {
            if (!environment_entry(word, &name_bytes, &error))
                why = error.text;
            else if (find_variable(packed, used, word, name_bytes))
                why = "is set twice";
        } else if (row->kind == RENAMES) {
            if (!gms_environment_check_rename(word, &error))
                why = error.text;
        } else if (i == 0 && length == 0) {
            why = "is no program's name";
        } else if (i == 0 && row->kind == PROGRAM && word[0] != '/') {
            why = "is not an absolute path; a hook is not searched for";
        }
        if (why) {
            PROBLEM(reading, element, "%s: \"%s\" %s", row->name, quoted, why);
            continue;
        }
        if (used + length + 1 > row->size) {
            PROBLEM(reading, element, "%s: longer than %zu bytes in all at entry %d", row->name, row->size, i + 1);
            return;
        }
        memcpy(packed + used, word, length + 1);
        used += length + 1;
    }
    uint32_t total = (uint32_t)used;
    memcpy((char *)base + row->count_offset, &total, sizeof(total));
}

/* --------------------------------------------------------------------------------------------------- walk ------ */

static void walk(struct reading *reading, const config_setting_t *group, const char *prefix, void *base,
                 uint64_t *ret_seen);

/* Rows that stand in the list's groups. */
static bool row_in_list(const struct setting *row, const struct setting *list)
{
    size_t length = strlen(list->name);
    return strncmp(row->name, list->name, length) == 0 && row->name[length] == '[';
}

static void take_groups(struct reading *reading, const struct setting *row, const config_setting_t *node)
{
    struct gms_config *config = reading->config;
    int count = config_setting_length(node);
    char prefix[64];

    if ((uint64_t)count > row->greatest) {
        PROBLEM(reading, node, "%s: %d groups, limit %llu", row->name, count, (unsigned long long)row->greatest);
        return;
    }
    snprintf(prefix, sizeof(prefix), "%s[].", row->name);
    for (int i = 0; i < count; i++) {
        const config_setting_t *element = config_setting_get_elem(node, (unsigned)i);
        uint64_t seen = 0;
        if (!config_setting_is_group(element)) {
            PROBLEM(reading, element, "%s: entry %d is not a group { ... }", row->name, i + 1);
            continue;
        }
        walk(reading, element, prefix, &config->capacity_of[i], &seen);
        for (unsigned r = 0; r < SETTINGS; r++)
            if (row_in_list(&table[r], row) && table[r].required && !(seen & (UINT64_C(1) << r)))
                PROBLEM(reading, element, "%s: is missing in entry %d", table[r].name, i + 1);
    }
    config->capacity_of_count = (uint32_t)count;
}

/* One group's variables, behind those of the others, each with the group's number. */
static void pack_scope(struct reading *reading, const struct setting *row, const config_setting_t *element,
                       const struct scope *scope)
{
    char *packed = (char *)reading->config + row->offset, number[16];
    uint32_t used;
    memcpy(&used, (char *)reading->config + row->count_offset, sizeof(used));
    size_t digits = (size_t)snprintf(number, sizeof(number), "%u ", scope->number);
    for (uint32_t at = 0; at < used; at += (uint32_t)strlen(packed + at) + 1) {
        if (strncmp(packed + at, number, digits) == 0) {
            PROBLEM(reading, element, "%s: %u stands here twice", row->name, scope->number);
            return;
        }
    }
    for (uint32_t at = 0; at < scope->set_bytes; at += (uint32_t)strlen(scope->set + at) + 1) {
        size_t length = strlen(scope->set + at) + 1;
        if (used + digits + length > row->size) {
            PROBLEM(reading, element, "%s: longer than %zu bytes in all", row->name, row->size);
            return;
        }
        memcpy(packed + used, number, digits);
        memcpy(packed + used + digits, scope->set + at, length);
        used += (uint32_t)(digits + length);
    }
    memcpy((char *)reading->config + row->count_offset, &used, sizeof(used));
}

static void take_scopes(struct reading *reading, const struct setting *row, const config_setting_t *node)
{
    int count = config_setting_length(node);
    char prefix[64];
    struct scope *scope = malloc(sizeof(*scope));

    if (!scope) {
        PROBLEM(reading, node, "%s: no memory for %zu bytes", row->name, sizeof(*scope));
        return;
    }
    snprintf(prefix, sizeof(prefix), "%s[].", row->name);
    for (int i = 0; i < count; i++) {
        const config_setting_t *element = config_setting_get_elem(node, (unsigned)i);
        unsigned problems = reading->problems.count;
        uint64_t seen = 0;
        memset(scope, 0, sizeof(*scope));
        if (!config_setting_is_group(element)) {
            PROBLEM(reading, element, "%s: entry %d is not a group { ... }", row->name, i + 1);
            continue;
        }
        walk(reading, element, prefix, scope, &seen);
        for (unsigned r = 0; r < SETTINGS; r++)
            if (row_in_list(&table[r], row) && table[r].required && !(seen & (UINT64_C(1) << r)))
                PROBLEM(reading, element, "%s: is missing in entry %d", table[r].name, i + 1);
        if (reading->problems.count == problems)
            pack_scope(reading, row, element, scope);
    }
    free(scope);
}

/* The type that the file gave a setting, for texts. */
static const char *type_text(const config_setting_t *node)
{
    switch (config_setting_type(node)) {
    case CONFIG_TYPE_GROUP:
        return "group";
    case CONFIG_TYPE_INT:
    case CONFIG_TYPE_INT64:
        return "number without a unit";
    case CONFIG_TYPE_FLOAT:
        return "number with a point";
    case CONFIG_TYPE_STRING:
        return "string";
    case CONFIG_TYPE_BOOL:
        return "boolean";
    case CONFIG_TYPE_ARRAY:
    case CONFIG_TYPE_LIST:
        return "list";
    default:
        return "nothing";
    }
}

static void take(struct reading *reading, const struct setting *row, void *base, const config_setting_t *node)
{
    struct gms_error error;
    int type = config_setting_type(node);
    bool is_list =
             type == CONFIG_TYPE_LIST || (type == CONFIG_TYPE_ARRAY && row->kind != GROUPS && row->kind != SCOPES),
         fits = false;
    char number[24];

    switch (row->kind) {
    case NAME:
    case DIRECTORY:
    case SIZE:
    case DURATION:
    case CHOICE:
        fits = type == CONFIG_TYPE_STRING;
        if (fits && !take_text(row, base, config_setting_get_string(node), &error))
            PROBLEM(reading, node, "%s: %s", row->name, error.text);
        break;
    case INTEGER:
        fits = type == CONFIG_TYPE_INT;
        /* A number that the scan refused may have wrapped: its value here means nothing. */
        if (!fits ||
            gms_config_number_refused(&reading->problems, file_of(reading, node), config_setting_source_line(node)))
            break;
        snprintf(number, sizeof(number), "%d", config_setting_get_int(node));
        if (!take_number(row, base, (uint64_t)config_setting_get_int(node), number, &error))
            PROBLEM(reading, node, "%s: %s", row->name, error.text);
        break;
    case ENVIRONMENT:
    case RENAMES:
    case WORDS:
    case PROGRAM:
        fits = is_list;
        if (fits)
            take_list(reading, row, base, node);
        break;
    case GROUPS:
        fits = is_list;
        if (fits)
            take_groups(reading, row, node);
        break;
    case SCOPES:
        fits = is_list;
        if (fits)
            take_scopes(reading, row, node);
        break;
    case END:
        fits = type == CONFIG_TYPE_BOOL;
        if (fits && !config_setting_get_bool(node))
            PROBLEM(reading, node, "%s: is false: the file says that it is unfinished", row->name);
        else if (fits && config_setting_index(node) != config_setting_length(config_setting_parent(node)) - 1)
            PROBLEM(reading, node, "%s: must be the last setting of the file", row->name);
        break;
    }
    if (!fits &&
        !gms_config_number_refused(&reading->problems, file_of(reading, node), config_setting_source_line(node)))
        PROBLEM(reading, node, "%s: is a %s, must be a %s", row->name, type_text(node), kind_text[row->kind]);
}

static bool is_group_name(const char *path)
{
    size_t length = strlen(path);
    for (unsigned i = 0; i < SETTINGS; i++)
        if (strncmp(table[i].name, path, length) == 0 && table[i].name[length] == '.')
            return true;
    return false;
}

static void walk(struct reading *reading, const config_setting_t *group, const char *prefix, void *base,
                 uint64_t *ret_seen)
{
    int count = config_setting_length(group);
    for (int i = 0; i < count; i++) {
        const config_setting_t *node = config_setting_get_elem(group, (unsigned)i);
        const char *name = config_setting_name(node);
        char path[128], deeper[132];
        unsigned row = 0;

        if (snprintf(path, sizeof(path), "%s%s", prefix, name ? name : "") >= (int)sizeof(path)) {
            PROBLEM(reading, node, "unknown setting with a name of %zu bytes", strlen(name));
            continue;
        }
        while (row < SETTINGS && strcmp(table[row].name, path) != 0)
            row++;
        if (row < SETTINGS) {
            *ret_seen |= UINT64_C(1) << row;
            take(reading, &table[row], base, node);
        } else if (!is_group_name(path)) {
            PROBLEM(reading, node, "%s: unknown setting; --help-config lists all", path);
        } else if (!config_setting_is_group(node)) {
            PROBLEM(reading, node, "%s: is a %s, must be a group { ... }", path, type_text(node));
        } else {
            snprintf(deeper, sizeof(deeper), "%s.", path);
            walk(reading, node, deeper, base, ret_seen);
        }
    }
}

/* ------------------------------------------------------------------------------------------- whole file -------- */

/* Line of the innermost group that a missing setting should stand in; the last line of the file when there is none. */
static unsigned line_for_missing(const struct reading *reading, const config_t *parsed, const char *name)
{
    char group[64];
    const char *dot = strchr(name, '.');
    if (dot) {
        snprintf(group, sizeof(group), "%.*s", (int)(dot - name), name);
        const config_setting_t *node = config_lookup(parsed, group);
        if (node && !config_setting_source_file(node))
            return config_setting_source_line(node);
    }
    return reading->lines;
}

static void fill_missing(struct reading *reading, const config_t *parsed, uint64_t seen)
{
    for (unsigned i = 0; i < SETTINGS; i++) {
        const struct setting *row = &table[i];
        struct gms_error error;
        if ((seen & (UINT64_C(1) << i)) || strstr(row->name, "[]"))
            continue;
        if (row->required)
            gms_config_problem(&reading->problems, reading->name, line_for_missing(reading, parsed, row->name),
                               "%s: is missing%s", row->name,
                               row->kind == END ? "; the last line must be `complete = true;`, this file may have been "
                                                  "cut short"
                                                : "");
        else if (row->initial && !take_text(row, reading->config, row->initial, &error))
            gms_config_problem(&reading->problems, reading->name, 0, "default of %s: %s", row->name, error.text);
    }
}

/* Adds a variable unless the file sets it. False: there is no room. */
static bool add_variable(struct gms_config *config, const char *name, const char *value)
{
    const size_t length = strlen(name), bytes = length + 1 + strlen(value) + 1;
    for (uint32_t at = 0; at < config->environment_bytes; at += (uint32_t)strlen(config->environment + at) + 1)
        if (strncmp(config->environment + at, name, length) == 0 && config->environment[at + length] == '=')
            return true;
    if (bytes > sizeof config->environment - config->environment_bytes)
        return false;
    snprintf(config->environment + config->environment_bytes, bytes, "%s=%s", name, value);
    config->environment_bytes += (uint32_t)bytes;
    return true;
}

/* What one setting alone cannot say. Only after every setting by itself is right. */
static void check_together(struct reading *reading, const config_t *parsed)
{
    struct gms_config *config = reading->config;
    const config_setting_t *overrides = config_lookup(parsed, "memory.capacity_of"), *node;
    static const struct {
        const char *name;
        bool per_rank;
    } paths[] = {{"keeper.lock", false}, {"keeper", false}, {"store.", true}, {"c", true}, {"b", true}};
    struct gms_error error;

    for (uint32_t i = 0; i < config->capacity_of_count; i++) {
        node = config_setting_get_elem(overrides, i);
        if (config->capacity_of[i].rank >= config->ranks)
            PROBLEM(reading, node, "memory.capacity_of: rank %u does not exist; ranks = %u",
                    config->capacity_of[i].rank, config->ranks);
        for (uint32_t j = 0; j < i; j++)
            if (config->capacity_of[i].rank == config->capacity_of[j].rank)
                PROBLEM(reading, node, "memory.capacity_of: rank %u stands here twice", config->capacity_of[i].rank);
    }
    node = config_lookup(parsed, "environment.ranks");
    for (uint32_t at = 0; at < config->rank_environment_bytes;
         at += (uint32_t)strlen(config->rank_environment + at) + 1) {
        unsigned long rank = strtoul(config->rank_environment + at, NULL, 10);
        if (rank >= config->ranks) {
            PROBLEM(reading, node, "environment.ranks: rank %lu does not exist; ranks = %u", rank, config->ranks);
            break;
        }
    }
    if (config->port_first + config->port_count > 65536)
        PROBLEM(reading, config_lookup(parsed, "environment"),
                "environment.port_first %u with port_count %u goes beyond port 65535", config->port_first,
                config->port_count);
    if (config->backend == GMS_MEMORY_CUDA && !config_lookup(parsed, "kv.verify"))
        config->kv_verify_full = false;
    if (config->backend == GMS_MEMORY_CUDA && !add_variable(config, "NCCL_GRAPH_REGISTER", "0"))
        PROBLEM(reading, config_lookup(parsed, "environment.set"),
                "environment.set: no room for NCCL_GRAPH_REGISTER=0");
    if (config->backend == GMS_MEMORY_HOST && config_lookup(parsed, "memory.device"))
        PROBLEM(reading, config_lookup(parsed, "memory.device"),
                "memory.device: says which GPU, but memory.backend is \"host\"; take one of them out");
    node = config_lookup(parsed, "run_dir");
    for (unsigned i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        char path[GMS_RUN_PATH_BYTES];
        if (gms_run_dir_path(config->run_dir, paths[i].name, paths[i].per_rank ? (int32_t)config->ranks - 1 : -1, path,
                             &error) != GMS_OK) {
            PROBLEM(reading, node, "run_dir: %s", error.text);
            return;
        }
    }
}

static gms_status finish(struct reading *reading, struct gms_config *ret_config)
{
    gms_status status = GMS_OK;
    if (reading->problems.count)
        status = GMS_E_CONFIG;
    else
        memcpy(ret_config, reading->config, sizeof(*ret_config)); /* padding too: it is digested and broadcast */
    free(reading->config);
    return status;
}

static gms_status read_text(const char *name, const char *text, size_t bytes, const char *directory,
                            struct gms_config *ret_config, gms_config_report report, void *context,
                            struct gms_error *ret_error)
{
    struct reading reading = {.name = name,
                              .problems = {.report = report, .context = context, .ret_error = ret_error},
                              .config = calloc(1, sizeof(struct gms_config))};
    config_t parsed;
    uint64_t seen = 0;

    if (!reading.config)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "%s: no memory for %zu bytes", name, sizeof(struct gms_config));
    if (!gms_config_text_scan(&reading.problems, name, text, bytes, directory, &reading.lines))
        return finish(&reading, ret_config);

    config_init(&parsed);
    if (directory)
        config_set_include_dir(&parsed, directory);
    if (!config_read_string(&parsed, text)) {
        const char *file = config_error_file(&parsed);
        gms_config_problem(&reading.problems, file ? file : name, (unsigned)config_error_line(&parsed), "%s",
                           config_error_text(&parsed));
    } else {
        walk(&reading, config_root_setting(&parsed), "", reading.config, &seen);
        fill_missing(&reading, &parsed, seen);
        if (reading.problems.count == 0)
            check_together(&reading, &parsed);
    }
    config_destroy(&parsed);
    return finish(&reading, ret_config);
}

gms_status gms_config_parse(const char *name, const char *text, size_t bytes, struct gms_config *ret_config,
                            gms_config_report report, void *context, struct gms_error *ret_error)
{
    gms_status status;
    char *copy;

    if (bytes > GMS_CONFIG_FILE_BYTES) {
        status = gms_fail(ret_error, GMS_E_CONFIG, "%s: %zu bytes, limit %d", name, bytes, GMS_CONFIG_FILE_BYTES);
        if (report && ret_error)
            report(context, ret_error->text);
        return status;
    }
    copy = malloc(bytes + 1);
    if (!copy)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "%s: no memory for %zu bytes", name, bytes);
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    status = read_text(name, copy, bytes, NULL, ret_config, report, context, ret_error);
    free(copy);
    return status;
}

gms_status gms_config_read(const char *path, struct gms_config *ret_config, gms_config_report report, void *context,
                           struct gms_error *ret_error)
{
    struct gms_error error;
    char *text = NULL, *directory;
    size_t bytes = 0;
    gms_status status = gms_config_text_read(path, &text, &bytes, &error);

    if (status != GMS_OK) {
        if (ret_error)
            *ret_error = error;
        if (report)
            report(context, error.text);
        return status;
    }
    directory = strdup(path);
    status = directory ? read_text(path, text, bytes, dirname(directory), ret_config, report, context, ret_error)
                       : gms_fail(ret_error, GMS_E_NO_MEMORY, "%s: no memory", path);
    free(directory);
    free(text);
    return status;
}

/* ------------------------------------------------------------------------------------------------ the rest ----- */

uint64_t gms_config_capacity(const struct gms_config *config, uint32_t rank)
{
    for (uint32_t i = 0; i < config->capacity_of_count && i < GMS_CONFIG_OVERRIDES; i++)
        if (config->capacity_of[i].rank == rank)
            return config->capacity_of[i].capacity_bytes;
    return config->capacity_bytes;
}

uint64_t gms_config_digest(const struct gms_config *config)
{
    return XXH3_64bits(config, sizeof(*config));
}

void gms_config_describe(FILE *stream)
{
    fprintf(stream, "%-29s  %-15s  %-10s  %s\n", "setting", "kind", "default", "meaning");
    for (unsigned i = 0; i < SETTINGS; i++) {
        const struct setting *row = &table[i];
        size_t kind_bytes = strcspn(kind_text[row->kind], ",");
        char least[32], greatest[32];

        fprintf(stream, "%-29s  %-15.*s  %-10s  %s", row->name, (int)kind_bytes, kind_text[row->kind],
                row->required  ? "(required)"
                : row->initial ? row->initial
                               : "(none)",
                row->help);
        if (row->choices) {
            fprintf(stream, " [%s]", row->choices);
        } else if (row->kind == SIZE || row->kind == DURATION || row->kind == INTEGER) {
            limits(row, row->least, least, sizeof(least));
            limits(row, row->greatest, greatest, sizeof(greatest));
            fprintf(stream, " [%s to %s]", least, greatest);
        }
        fputc('\n', stream);
    }
}

gms_status gms_config_check_host(const char *hostname, struct gms_error *ret_error)
{
    char own[256] = "";
    size_t length;

    if (!hostname) {
        if (gethostname(own, sizeof(own) - 1) != 0)
            return gms_fail(ret_error, GMS_E_SYSTEM, "gethostname: %s", strerror(errno));
        hostname = own;
    }
    length = strlen(hostname);
    if (length > GMS_CONFIG_HOST_BYTES)
        return gms_fail(
            ret_error, GMS_E_UNSUPPORTED,
            "host name \"%.256s\" has %zu bytes; Open MPI aborts at %d and more: give this host a name of at "
            "most %d bytes (hostnamectl set-hostname NAME)",
            hostname, length, GMS_CONFIG_HOST_BYTES + 1, GMS_CONFIG_HOST_BYTES);
    return GMS_OK;
}
