/* SPDX-License-Identifier: Apache-2.0 */
#include "config/environment_difference.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "config/environment.h"

enum { SHOWN_BYTES = 48 };

/* `value` quoted; a long one from shortly before byte `from`. NULL: unset. */
static void show(const char *value, size_t from, char *ret_text, size_t capacity)
{
    size_t used = 0;
    if (value == NULL) {
        snprintf(ret_text, capacity, "unset");
        return;
    }
    size_t length = strlen(value), begin = length > SHOWN_BYTES && from > SHOWN_BYTES / 2 ? from - SHOWN_BYTES / 2 : 0;
    if (begin > length)
        begin = length;
    used += (size_t)snprintf(ret_text, capacity, "%s\"", begin > 0 ? "..." : "");
    for (size_t i = begin; i < length && i < begin + SHOWN_BYTES && used + 8 < capacity; i++) {
        unsigned char byte = (unsigned char)value[i];
        used += (size_t)snprintf(ret_text + used, capacity - used,
                                 byte < 0x20 || byte >= 0x7f   ? "\\x%02x"
                                 : byte == '"' || byte == '\\' ? "\\%c"
                                                               : "%c",
                                 byte);
    }
    snprintf(ret_text + used, capacity - used, "\"%s", begin + SHOWN_BYTES < length ? "..." : "");
    if (length > SHOWN_BYTES) {
        used = strlen(ret_text);
        snprintf(ret_text + used, capacity - used, " (%zu bytes, from byte %zu)", length, begin);
    }
}

struct difference {
    const struct gms_environment_list *first, *second;
    char *text;
    size_t used, capacity;
    unsigned count, told;
};

static void add_difference(struct difference *difference, const char *name, size_t length, const char *first,
                           const char *second)
{
    char one[4 * SHOWN_BYTES + 64], other[4 * SHOWN_BYTES + 64], line[2 * sizeof one + 400];
    size_t from = 0;
    while (first != NULL && second != NULL && first[from] != '\0' && first[from] == second[from])
        from++;
    show(first, from, one, sizeof one);
    show(second, from, other, sizeof other);
    int bytes =
        snprintf(line, sizeof line, "%s%.*s is %s on rank %u, %s on rank %u", difference->count > 0 ? "; " : "",
                 length < 256 ? (int)length : 256, name, one, difference->first->rank, other, difference->second->rank);
    difference->count++;
    if (difference->told > 0 && difference->used + (size_t)bytes + 1 > difference->capacity)
        return;
    if (difference->told + 1 < difference->count)
        return; /* no holes */
    snprintf(difference->text + difference->used, difference->capacity - difference->used, "%s", line);
    difference->used += strlen(difference->text + difference->used);
    difference->told++;
}

unsigned gms_environment_difference(const struct gms_environment_list *first, const struct gms_environment_list *second,
                                    char *ret_text, size_t capacity)
{
    /* Room for what is not told. */
    struct difference difference = {
        .first = first, .second = second, .text = ret_text, .capacity = capacity > 32 ? capacity - 24 : capacity};
    ret_text[0] = '\0';
    for (size_t at = 0; at < first->bytes; at += strlen(first->variables + at) + 1) {
        const char *entry = first->variables + at, *other;
        size_t length = gms_environment_name_bytes(entry);
        other = gms_environment_find(second->variables, second->bytes, entry, length);
        if (other == NULL || strcmp(other, entry) != 0)
            add_difference(&difference, entry, length, entry + length + 1, other != NULL ? other + length + 1 : NULL);
    }
    for (size_t at = 0; at < second->bytes; at += strlen(second->variables + at) + 1) {
        const char *entry = second->variables + at;
        size_t length = gms_environment_name_bytes(entry);
        if (gms_environment_find(first->variables, first->bytes, entry, length) == NULL)
            add_difference(&difference, entry, length, NULL, entry + length + 1);
    }
    if (difference.told < difference.count)
        snprintf(ret_text + difference.used, capacity - difference.used, "; %u more differ",
                 difference.count - difference.told);
    return difference.count;
}
