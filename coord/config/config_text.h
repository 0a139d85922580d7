/* SPDX-License-Identifier: Apache-2.0
 *
 * The deployment file as text. libconfig 1.5 lets pass what would silently become another setting: integers wrap at
 * 2^31, neighbouring strings are joined, an included file may be cut short, \x00 ends a string early. This scan of the
 * same text refuses those with file and line, and bounds what libconfig is asked to read.
 */
#ifndef GMS_COORD_CONFIG_TEXT_H
#define GMS_COORD_CONFIG_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "config/config.h"

enum { GMS_CONFIG_PROBLEM_LINES = 64, GMS_CONFIG_PROBLEMS_SHOWN = 100 };

/* Every problem of one reading. */
struct gms_config_problems {
    gms_config_report report; /* may be NULL */
    void *context;
    struct gms_error *ret_error; /* gets the first; may be NULL */
    unsigned count;
    /* Lines whose number the scan has refused already: the table's type error would say it again, with less. */
    unsigned number_line_count;
    struct {
        char file[64]; /* the end of its name */
        unsigned line;
    } number_lines[GMS_CONFIG_PROBLEM_LINES];
};

/* Reports "FILE:LINE: text"; line 0: "FILE: text". */
__attribute__((format(printf, 4, 5))) void gms_config_problem(struct gms_config_problems *problems, const char *file,
                                                              unsigned line, const char *format, ...);

/* Was a number of this line refused by the scan? */
bool gms_config_number_refused(const struct gms_config_problems *problems, const char *file, unsigned line);

/* Reads a whole regular file of at most GMS_CONFIG_FILE_BYTES; the caller frees *ret_text, which is NUL-terminated. */
gms_status gms_config_text_read(const char *path, char **ret_text, size_t *ret_bytes, struct gms_error *ret_error);

/* Scans `text` and the files it includes from `directory` (NULL: includes are refused). Returns false when libconfig
 * must not be asked at all. *ret_lines: number of lines. */
bool gms_config_text_scan(struct gms_config_problems *problems, const char *name, const char *text, size_t bytes,
                          const char *directory, unsigned *ret_lines);

/* `value` for a text: at most 80 bytes, unprintable ones as \xNN. Returns ret_text. */
enum { GMS_CONFIG_QUOTE_BYTES = 4 * 80 + 4 };
const char *gms_config_quote(const char *value, size_t bytes, char ret_text[GMS_CONFIG_QUOTE_BYTES]);

#endif
