/* SPDX-License-Identifier: Apache-2.0 */
#include "prompts.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void drill_prompts_free(struct drill_prompts *prompts)
{
    for (size_t i = 0; i < prompts->count; i++)
        free(prompts->items[i]);
    prompts->count = 0;
}

static gms_status add_prompt(const char *path, unsigned number, const char *line, size_t length,
                             struct drill_prompts *prompts, struct gms_error *ret_error)
{
    json_t *text = json_stringn(line, length); /* NULL for anything that is not UTF-8 */
    json_decref(text);
    if (text == NULL || strlen(line) != length)
        return gms_fail(ret_error, GMS_E_INVALID, "%s:%u: not UTF-8 text", path, number);
    if (prompts->count == DRILL_MAX_PROMPTS)
        return gms_fail(ret_error, GMS_E_NO_CAPACITY, "%s:%u: more than %d prompts", path, number, DRILL_MAX_PROMPTS);
    if ((prompts->items[prompts->count] = strdup(line)) == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "%s:%u: no memory", path, number);
    prompts->count++;
    return GMS_OK;
}

const char *const drill_probe_prompts[DRILL_MAX_FAILOVERS] = {
    "A visitor who arrives in the middle asks: is this place open?",
    "By the way, a new customer has just come in and would like a table.",
    "Could somebody who has not waited yet be served now, please?",
    "During the repair a bicycle stops at the barrier and rings.",
    "Even the last train takes one more passenger. Who is it?",
    "Fresh from the street, a courier with one small parcel says:",
    "Good evening, I have no ticket yet. Where does one begin?",
};

gms_status drill_prompts_read(const char *path, struct drill_prompts *ret_prompts, struct gms_error *ret_error)
{
    ret_prompts->count = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return gms_fail(ret_error, GMS_E_NOT_FOUND, "prompt file %s: %s", path, strerror(errno));
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    gms_status status = GMS_OK;
    for (unsigned number = 1; status == GMS_OK && (length = getline(&line, &capacity, file)) > 0; number++) {
        while (length > 0 && (line[length - 1] == '\n' || line[length - 1] == '\r'))
            line[--length] = '\0';
        if (length > 0 && line[0] != '#')
            status = add_prompt(path, number, line, (size_t)length, ret_prompts, ret_error);
    }
    free(line);
    fclose(file);
    if (status == GMS_OK && ret_prompts->count == 0)
        status = gms_fail(ret_error, GMS_E_INVALID, "prompt file %s: there is no prompt in it", path);
    if (status != GMS_OK)
        drill_prompts_free(ret_prompts);
    return status;
}
