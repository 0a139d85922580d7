/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/tags.h"

#include <string.h>

enum { FIXED_BYTES = 29 };

static const char *const policies[] = {
    [GMS_PARK_KEEP] = "keep", [GMS_PARK_SWAP] = "swap", [GMS_PARK_RELEASE] = "release", [GMS_PARK_SAVE] = "save"};
enum { POLICIES = sizeof policies / sizeof policies[0] };

static uint8_t *put(uint8_t *at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        *at++ = (uint8_t)(value >> (8 * i));
    return at;
}

static uint64_t get(const uint8_t *at, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

uint32_t gms_tags_pack(const struct gms_tag_report *tags, uint32_t count, uint8_t buffer[GMS_TAGS_BYTES])
{
    uint8_t *at = buffer;
    for (uint32_t i = 0; i < count && i < GMS_MAX_TAGS; i++) {
        const size_t length = strnlen(tags[i].tag.name, GMS_NAME_BYTES - 1);
        at = put(at, tags[i].tag.policy, 4);
        at = put(at, tags[i].bytes, 8);
        at = put(at, tags[i].park_ns, 8);
        at = put(at, tags[i].wake_ns, 8);
        at = put(at, length, 1);
        memcpy(at, tags[i].tag.name, length);
        at += length;
    }
    return (uint32_t)(at - buffer);
}

bool gms_tags_unpack(const struct gms_bytes *packed, struct gms_tag_report ret_tags[GMS_MAX_TAGS], uint32_t *ret_count)
{
    const uint8_t *at = packed->data;
    uint32_t left = packed->length, count = 0;
    *ret_count = 0;
    while (left > 0) {
        const uint32_t length = left < FIXED_BYTES ? 0 : at[FIXED_BYTES - 1];
        if (length == 0 || length >= GMS_NAME_BYTES || left - FIXED_BYTES < length || count == GMS_MAX_TAGS)
            return false;
        struct gms_tag_report *tag = &ret_tags[count++];
        memset(tag, 0, sizeof *tag);
        tag->tag.policy = (uint32_t)get(at, 4);
        tag->bytes = get(at + 4, 8);
        tag->park_ns = get(at + 12, 8);
        tag->wake_ns = get(at + 20, 8);
        memcpy(tag->tag.name, at + FIXED_BYTES, length);
        if (tag->tag.policy < GMS_PARK_KEEP || tag->tag.policy >= POLICIES ||
            memchr(tag->tag.name, '\0', length) != NULL)
            return false;
        at += FIXED_BYTES + length;
        left -= FIXED_BYTES + length;
    }
    *ret_count = count;
    return true;
}

const char *gms_park_policy_name(uint32_t policy)
{
    return policy >= GMS_PARK_KEEP && policy < POLICIES ? policies[policy] : "unknown";
}

bool gms_park_policy_parse(const char *name, uint32_t *ret_policy)
{
    for (uint32_t policy = GMS_PARK_KEEP; policy < POLICIES; policy++) {
        if (strcmp(policies[policy], name) == 0) {
            *ret_policy = policy;
            return true;
        }
    }
    return false;
}
