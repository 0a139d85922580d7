/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/launcher.h"
#include "base/units.h"
#include "config/address.h"
#include "config/config_table.h"
#include "config/environment.h"
#include "config/parking.h"

static const char *const kind_text[] = {
    [NAME] = "string",
    [DIRECTORY] = "string, an absolute path",
    [ADDRESS] = "string",
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
    [IDENTIFIER] = "string",
    [PRESETS] = "list of groups",
    [TAGS] = "list of strings",
    [END] = "boolean",
};

const char *gms_config_kind_text(enum kind kind)
{
    return kind_text[kind];
}

/* ------------------------------------------------------------------------------------------------- values ------ */

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

void gms_config_limit_text(const struct setting *row, uint64_t value, char *ret_text, size_t bytes)
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
    case ADDRESS:
    case CHOICE:
    case ENVIRONMENT:
    case RENAMES:
    case WORDS:
    case PROGRAM:
    case GROUPS:
    case SCOPES:
    case IDENTIFIER:
    case PRESETS:
    case TAGS:
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
        gms_config_limit_text(row, row->least, least, sizeof(least));
        gms_config_limit_text(row, row->greatest, greatest, sizeof(greatest));
        gms_fail(ret_error, GMS_E_CONFIG, "%s is out of range: %s to %s", shown, least, greatest);
        return false;
    }
    store_unsigned(base, row, value);
    return true;
}

/* Is there room for it, and anything at all? */
static bool fits(const struct setting *row, size_t length, struct gms_error *ret_error)
{
    if (length > 0 && length < row->size)
        return true;
    gms_fail(ret_error, GMS_E_CONFIG, "is %zu bytes long; 1 to %zu", length, row->size - 1);
    return false;
}

static bool take_name(const struct setting *row, void *base, const char *text, size_t length,
                      struct gms_error *ret_error)
{
    char quoted[GMS_CONFIG_QUOTE_BYTES];
    if (!fits(row, length, ret_error))
        return false;
    const bool underscore = row->kind == IDENTIFIER;
    if (strspn(text, underscore ? "abcdefghijklmnopqrstuvwxyz0123456789-_" : "abcdefghijklmnopqrstuvwxyz0123456789-") !=
            length ||
        text[0] == '-') {
        gms_fail(ret_error, GMS_E_CONFIG, "\"%s\" may hold a-z, 0-9%s and, not first, -",
                 gms_config_quote(text, length, quoted), underscore ? ", _" : "");
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
    if (!fits(row, length, ret_error))
        return false;
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

static bool take_address(const struct setting *row, void *base, const char *text, size_t length,
                         struct gms_error *ret_error)
{
    if (!fits(row, length, ret_error))
        return false;
    if (!gms_address_check(text, ret_error))
        return false;
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
bool gms_config_take_text(const struct setting *row, void *base, const char *text, struct gms_error *ret_error)
{
    size_t length = strlen(text);
    uint64_t number = 0;
    char quoted[GMS_CONFIG_QUOTE_BYTES];

    switch (row->kind) {
    case NAME:
    case IDENTIFIER:
        return take_name(row, base, text, length, ret_error);
    case DIRECTORY:
        return take_directory(row, base, text, length, ret_error);
    case ADDRESS:
        return take_address(row, base, text, length, ret_error);
    case CHOICE:
        return take_choice(row, base, text, length, ret_error);
    case SIZE:
    case DURATION:
        if (length > 40) { /* no number of 64 bits is that long; keeps the text readable */
            gms_fail(ret_error, GMS_E_CONFIG, "\"%s\" is not a %s", gms_config_quote(text, length, quoted),
                     gms_config_kind_text(row->kind));
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
    case PRESETS:
    case TAGS:
    case END:
        break;
    }
    gms_fail(ret_error, GMS_E_CONFIG, "is a string, must be a %s", gms_config_kind_text(row->kind));
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
        } else if (row->kind == TAGS) {
            struct gms_tag tag;
            if (!gms_parking_check(word, &tag, &error))
                why = error.text;
            else if (find_variable(packed, used, tag.name, strlen(tag.name)))
                why = "stands there twice";
        } else if (row->kind == RENAMES) {
            if (!gms_environment_check_rename(word, &error))
                why = error.text;
        } else if (row->kind == WORDS && !gms_environment_check_value(word, &error)) {
            why = error.text;
        } else if (row->kind == WORDS && gms_environment_is_of_process(word)) {
            why = "may name ${engine}, ${world_size}, ${run_dir} and ${deployment}; only a rank knows more";
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

/* Rows that stand in the list's groups. */
static bool row_in_list(const struct setting *row, const struct setting *list)
{
    size_t length = strlen(list->name);
    return strncmp(row->name, list->name, length) == 0 && row->name[length] == '[';
}

/* Element `index` of a list of groups, into `into`. False: it has mistakes. */
static bool take_element(struct reading *reading, const struct setting *row, const config_setting_t *node, int index,
                         void *into)
{
    const config_setting_t *element = config_setting_get_elem(node, (unsigned)index);
    unsigned problems = reading->problems.count;
    uint64_t seen = 0;
    char prefix[64];

    if (!config_setting_is_group(element)) {
        PROBLEM(reading, element, "%s: entry %d is not a group { ... }", row->name, index + 1);
        return false;
    }
    snprintf(prefix, sizeof(prefix), "%s[].", row->name);
    gms_config_walk(reading, element, prefix, into, &seen);
    for (unsigned r = 0; r < gms_config_settings; r++)
        if (row_in_list(&gms_config_table[r], row) && gms_config_table[r].required && !(seen & (UINT64_C(1) << r)))
            PROBLEM(reading, element, "%s: is missing in entry %d", gms_config_table[r].name, index + 1);
    return reading->problems.count == problems;
}

static void take_groups(struct reading *reading, const struct setting *row, const config_setting_t *node)
{
    struct gms_config *config = reading->config;
    int count = config_setting_length(node);

    if ((uint64_t)count > row->greatest) {
        PROBLEM(reading, node, "%s: %d groups, limit %llu", row->name, count, (unsigned long long)row->greatest);
        return;
    }
    for (int i = 0; i < count; i++)
        take_element(reading, row, node, i, &config->capacity_of[i]);
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
    struct scope *scope = malloc(sizeof(*scope));

    if (!scope) {
        PROBLEM(reading, node, "%s: no memory for %zu bytes", row->name, sizeof(*scope));
        return;
    }
    for (int i = 0; i < config_setting_length(node); i++) {
        memset(scope, 0, sizeof(*scope));
        if (take_element(reading, row, node, i, scope))
            pack_scope(reading, row, config_setting_get_elem(node, (unsigned)i), scope);
    }
    free(scope);
}

static bool has_preset(const struct gms_config *config, const char *name)
{
    const size_t length = strlen(name);
    for (uint32_t at = 0; at < config->presets_bytes; at += (uint32_t)strlen(config->presets + at) + 1)
        if (strncmp(config->presets + at, name, length) == 0 && config->presets[at + length] == ' ')
            return true;
    return false;
}

/* One group's tags behind those of the others, each with the preset's name; the name alone for one without tags. */
static void pack_preset(struct reading *reading, const struct setting *row, const config_setting_t *element,
                        const struct preset *preset)
{
    struct gms_config *config = reading->config;
    if (gms_parking_is_built_in(preset->name) || has_preset(config, preset->name)) {
        PROBLEM(reading, element, "%s: \"%s\" is there already", row->name, preset->name);
        return;
    }
    for (uint32_t at = 0; at == 0 || at < preset->tags_bytes; at += (uint32_t)strlen(preset->tags + at) + 1) {
        const size_t room = sizeof(config->presets) - config->presets_bytes;
        const int bytes = snprintf(config->presets + config->presets_bytes, room, "%s %s", preset->name,
                                   preset->tags_bytes > 0 ? preset->tags + at : "");
        if (bytes < 0 || (size_t)bytes >= room) {
            PROBLEM(reading, element, "%s: longer than %zu bytes in all", row->name, sizeof(config->presets));
            return;
        }
        config->presets_bytes += (uint32_t)bytes + 1;
    }
}

static void take_presets(struct reading *reading, const struct setting *row, const config_setting_t *node)
{
    int count = config_setting_length(node);
    struct preset *preset = malloc(sizeof(*preset));

    if (!preset)
        PROBLEM(reading, node, "%s: no memory for %zu bytes", row->name, sizeof(*preset));
    else if ((uint64_t)count > row->greatest)
        PROBLEM(reading, node, "%s: %d groups, limit %llu", row->name, count, (unsigned long long)row->greatest);
    for (int i = 0; preset && (uint64_t)count <= row->greatest && i < count; i++) {
        memset(preset, 0, sizeof(*preset));
        if (take_element(reading, row, node, i, preset))
            pack_preset(reading, row, config_setting_get_elem(node, (unsigned)i), preset);
    }
    free(preset);
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
    bool is_list = type == CONFIG_TYPE_LIST ||
                   (type == CONFIG_TYPE_ARRAY && row->kind != GROUPS && row->kind != SCOPES && row->kind != PRESETS),
         fits = false;
    char number[24];

    switch (row->kind) {
    case NAME:
    case IDENTIFIER:
    case DIRECTORY:
    case ADDRESS:
    case SIZE:
    case DURATION:
    case CHOICE:
        fits = type == CONFIG_TYPE_STRING;
        if (fits && !gms_config_take_text(row, base, config_setting_get_string(node), &error))
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
    case TAGS:
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
    case PRESETS:
        fits = is_list;
        if (fits)
            take_presets(reading, row, node);
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
        PROBLEM(reading, node, "%s: is a %s, must be a %s", row->name, type_text(node),
                gms_config_kind_text(row->kind));
}

static bool is_group_name(const char *path)
{
    size_t length = strlen(path);
    for (unsigned i = 0; i < gms_config_settings; i++)
        if (strncmp(gms_config_table[i].name, path, length) == 0 && gms_config_table[i].name[length] == '.')
            return true;
    return false;
}

void gms_config_walk(struct reading *reading, const config_setting_t *group, const char *prefix, void *base,
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
        while (row < gms_config_settings && strcmp(gms_config_table[row].name, path) != 0)
            row++;
        if (row < gms_config_settings) {
            *ret_seen |= UINT64_C(1) << row;
            take(reading, &gms_config_table[row], base, node);
        } else if (!is_group_name(path)) {
            PROBLEM(reading, node, "%s: unknown setting; --help-config lists all", path);
        } else if (!config_setting_is_group(node)) {
            PROBLEM(reading, node, "%s: is a %s, must be a group { ... }", path, type_text(node));
        } else {
            snprintf(deeper, sizeof(deeper), "%s.", path);
            gms_config_walk(reading, node, deeper, base, ret_seen);
        }
    }
}
