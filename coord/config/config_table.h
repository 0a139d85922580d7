/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to the reader of the deployment file: a row of the table of settings, and one reading of a file. config.c has
 * the table and the whole file, config_values.c takes one setting, list or group as its row says.
 */
#ifndef GMS_COORD_CONFIG_TABLE_H
#define GMS_COORD_CONFIG_TABLE_H

#include <libconfig.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"
#include "config/config_text.h"

enum kind {
    NAME,
    DIRECTORY,
    ADDRESS,
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
    IDENTIFIER,
    PRESETS,
    TAGS,
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

/* One group of parking.presets, likewise. */
struct preset {
    char name[GMS_NAME_BYTES];
    uint32_t tags_bytes;
    char tags[GMS_CONFIG_PRESETS_BYTES];
};

extern const struct setting gms_config_table[];
extern const unsigned gms_config_settings;

struct reading {
    struct gms_config_problems problems;
    struct gms_config *config;
    const char *name;
    unsigned lines;
};

/* The file that a setting stands in, which may be an included one. */
static inline const char *file_of(const struct reading *reading, const config_setting_t *node)
{
    const char *file = config_setting_source_file(node);
    return file ? file : reading->name;
}

#define PROBLEM(reading, node, ...)                                                                                    \
    gms_config_problem(&(reading)->problems, file_of(reading, node), config_setting_source_line(node), __VA_ARGS__)

/* What a kind is called in texts. */
const char *gms_config_kind_text(enum kind kind);
/* `value` in the words of the row's kind, for its limits. */
void gms_config_limit_text(const struct setting *row, uint64_t value, char *ret_text, size_t bytes);
/* A value written as a string, or a default. False: *ret_error says why not. */
bool gms_config_take_text(const struct setting *row, void *base, const char *text, struct gms_error *ret_error);
/* Takes all settings of a group; `prefix`: its path with a dot. Marks the rows that were there in *ret_seen. */
void gms_config_walk(struct reading *reading, const config_setting_t *group, const char *prefix, void *base,
                     uint64_t *ret_seen);

#endif
