/* SPDX-License-Identifier: Apache-2.0 */
#include "config/parking.h"

#include <stdio.h>
#include <string.h>

#include "wire/tags.h"

static const struct {
    const char *name;
    struct gms_tag tags[1];
    uint32_t count;
} built_in[] = {
    {"shadow_failover", {{"", 0}}, 0}, {"resident", {{"*", GMS_PARK_KEEP}}, 1}, {"lean", {{"*", GMS_PARK_SAVE}}, 1}};
enum { BUILT_IN = sizeof built_in / sizeof built_in[0] };

bool gms_parking_is_built_in(const char *name)
{
    for (size_t i = 0; i < BUILT_IN; i++)
        if (strcmp(built_in[i].name, name) == 0)
            return true;
    return false;
}

static bool is_tag_name(const char *name, size_t bytes)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    return bytes > 0 && bytes < GMS_NAME_BYTES && (strspn(name, letters) == bytes || (bytes == 1 && *name == '*'));
}

bool gms_parking_check(const char *entry, struct gms_tag *ret_tag, struct gms_error *ret_error)
{
    const size_t bytes = strcspn(entry, "=");
    struct gms_tag tag = {.policy = 0};
    if (entry[bytes] != '=' || !is_tag_name(entry, bytes)) {
        gms_fail(ret_error, GMS_E_CONFIG, "is not TAG=POLICY with a tag of letters, digits, '.', '_', '-', or \"*\"");
        return false;
    }
    memcpy(tag.name, entry, bytes);
    if (!gms_park_policy_parse(entry + bytes + 1, &tag.policy)) {
        gms_fail(ret_error, GMS_E_CONFIG, "has a policy that is none of: keep|swap|release|save");
        return false;
    }
    const bool weights = strcmp(tag.name, "weights") == 0, kv = strcmp(tag.name, "kv") == 0;
    if ((weights && tag.policy != GMS_PARK_KEEP) || (kv && tag.policy != GMS_PARK_SWAP)) {
        gms_fail(ret_error, GMS_E_CONFIG, "is about the group's memory: weights are kept, kv is swapped");
        return false;
    }
    if (!kv && tag.policy == GMS_PARK_SWAP) {
        gms_fail(ret_error, GMS_E_CONFIG, "cannot be swapped: only kv has memory of the group to be swapped with");
        return false;
    }
    if (tag.name[0] == '*' && tag.policy == GMS_PARK_RELEASE) {
        gms_fail(ret_error, GMS_E_CONFIG,
                 "would lose contents that only the engine knows about: name the tags that may be released");
        return false;
    }
    *ret_tag = tag;
    return true;
}

gms_status gms_parking_find(const struct gms_config *config, const char *name,
                            struct gms_tag ret_tags[GMS_CONFIG_PARKING_TAGS], uint32_t *ret_count,
                            struct gms_error *ret_error)
{
    const size_t length = strlen(name);
    bool found = false;
    uint32_t count = 0;
    for (size_t i = 0; i < BUILT_IN; i++) {
        if (strcmp(built_in[i].name, name) != 0)
            continue;
        memcpy(ret_tags, built_in[i].tags, built_in[i].count * sizeof *ret_tags);
        *ret_count = built_in[i].count;
        return GMS_OK;
    }
    for (uint32_t at = 0; at < config->presets_bytes; at += (uint32_t)strlen(config->presets + at) + 1) {
        const char *entry = config->presets + at;
        if (strncmp(entry, name, length) != 0 || entry[length] != ' ')
            continue;
        found = true;
        if (entry[length + 1] == '\0') /* only the preset's name */
            continue;
        if (count == GMS_CONFIG_PARKING_TAGS)
            return gms_fail(ret_error, GMS_E_CONFIG, "preset %s has more than %d tags", name, GMS_CONFIG_PARKING_TAGS);
        if (!gms_parking_check(entry + length + 1, &ret_tags[count++], ret_error))
            return GMS_E_CONFIG;
    }
    *ret_count = count;
    if (!found)
        return gms_fail(ret_error, GMS_E_NOT_FOUND,
                        "no preset \"%s\": there are shadow_failover, resident, lean and those of parking.presets",
                        name);
    return GMS_OK;
}
