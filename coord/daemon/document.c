/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/document.h"

#include <stdbool.h>
#include <stdlib.h>

void gms_document_number(json_t *object, const char *name, uint64_t value)
{
    json_object_set_new(object, name, json_integer((json_int_t)value));
}

void gms_document_text(json_t *object, const char *name, const char *value)
{
    json_t *string = json_string(value);
    json_object_set_new(object, name, string != NULL ? string : json_string("(not UTF-8)"));
}

static json_malloc_t allocate;
static bool lacked;

static void *watched(size_t bytes)
{
    void *memory = allocate(bytes);
    lacked = lacked || memory == NULL;
    return memory;
}

char *gms_document_write(json_t *(*make)(void *context), void *context)
{
    json_free_t release;
    json_get_alloc_funcs(&allocate, &release);
    json_set_alloc_funcs(watched, release);
    lacked = false;
    json_t *document = make(context);
    char *text = document != NULL ? json_dumps(document, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    json_set_alloc_funcs(allocate, release);
    json_decref(document);
    if (lacked) {
        free(text);
        text = NULL;
    }
    return text;
}
