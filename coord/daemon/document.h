/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON that a coordinator tells others: all of it, or none. jansson leaves out what it has no memory for, and a status
 * without an engine reads as if that engine were gone: who keeps engines running would act on it.
 *
 * One thread only: jansson's allocator, which is watched meanwhile, is the process's.
 */
#ifndef GMS_COORD_DOCUMENT_H
#define GMS_COORD_DOCUMENT_H

#include <jansson.h>
#include <stdint.h>

/* Of JSON's numbers: up to INT64_MAX. */
void gms_document_number(json_t *object, const char *name, uint64_t value);
/* Text of a client may be anything, JSON wants UTF-8: what is not becomes "(not UTF-8)". */
void gms_document_text(json_t *object, const char *name, const char *value);

/* What `make` builds, on one line. Owned: free it. NULL: there was no memory for all of it. */
char *gms_document_write(json_t *(*make)(void *context), void *context);

#endif
