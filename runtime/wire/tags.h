/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of tags as bytes: what an engine keeps under each and what it cost, and a deployment's parking preset. An entry
 * is
 *
 *   u32 policy | u64 bytes | u64 park ns | u64 wake ns | u8 length of the name | name
 *
 * little-endian, one after another.
 */
#ifndef GMS_WIRE_TAGS_H
#define GMS_WIRE_TAGS_H

#include <stdbool.h>

#include "wire/message.h"

enum { GMS_TAGS_BYTES = GMS_MAX_TAGS * (29 + GMS_NAME_BYTES) };

/* Packs up to GMS_MAX_TAGS entries; returns how many bytes. */
uint32_t gms_tags_pack(const struct gms_tag_report *tags, uint32_t count, uint8_t buffer[GMS_TAGS_BYTES]);
/* Total: any bytes give true or false (cut, too many, an empty or overlong name, an unknown policy: *ret_count is 0).
 */
bool gms_tags_unpack(const struct gms_bytes *packed, struct gms_tag_report ret_tags[GMS_MAX_TAGS], uint32_t *ret_count);

/* "keep", "swap", "release", "save", or "unknown". Static storage. */
const char *gms_park_policy_name(uint32_t policy);
/* The other way round; false: none of these. */
bool gms_park_policy_parse(const char *name, uint32_t *ret_policy);

#endif
