/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/devices.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { DIGITS = 32 };

bool gms_uuid_is_known(const struct gms_uuid *uuid)
{
    static const struct gms_uuid unknown;

    return !gms_uuid_equal(uuid, &unknown);
}

bool gms_uuid_equal(const struct gms_uuid *a, const struct gms_uuid *b)
{
    return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

static void digits_of(const struct gms_uuid *uuid, char ret_digits[DIGITS + 1])
{
    for (size_t i = 0; i < sizeof(uuid->bytes); i++) {
        snprintf(ret_digits + 2 * i, 3, "%02x", uuid->bytes[i]);
    }
}

const char *gms_uuid_format(const struct gms_uuid *uuid, bool slice, char ret_text[GMS_UUID_TEXT_BYTES])
{
    char digits[DIGITS + 1];

    digits_of(uuid, digits);
    snprintf(ret_text, GMS_UUID_TEXT_BYTES, "%s-%.8s-%.4s-%.4s-%.4s-%.12s", slice ? "MIG" : "GPU", digits, digits + 8,
             digits + 12, digits + 16, digits + 20);
    return ret_text;
}

static gms_status find_number(const char *text, uint32_t count, uint32_t *ret_index, struct gms_error *ret_error)
{
    uint64_t number = 0;

    for (const char *at = text; *at; at++) {
        if (!isdigit((unsigned char)*at) || number > UINT32_MAX) {
            return gms_fail(ret_error, GMS_E_INVALID, "device \"%s\" is neither a number nor GPU-<uuid> nor MIG-<uuid>",
                            text);
        }
        number = number * 10 + (uint64_t)(*at - '0');
    }
    if (number >= count) {
        return gms_fail(ret_error, GMS_E_NOT_FOUND, "there is no device %s: %u are here, counted from 0", text, count);
    }
    *ret_index = (uint32_t)number;
    return GMS_OK;
}

static gms_status find_name(const char *text, bool slice, const struct gms_device *devices, uint32_t count,
                            uint32_t *ret_index, struct gms_error *ret_error)
{
    char wanted[DIGITS + 1] = "";
    size_t length = 0;
    uint32_t found = UINT32_MAX;

    for (const char *at = text + 4; *at; at++) {
        if (*at == '-') {
            continue;
        }
        if (!isxdigit((unsigned char)*at) || length == DIGITS) {
            return gms_fail(ret_error, GMS_E_INVALID, "device \"%s\" is not %s- and up to %d hexadecimal digits", text,
                            slice ? "MIG" : "GPU", DIGITS);
        }
        wanted[length++] = (char)tolower((unsigned char)*at);
    }
    if (length == 0) {
        return gms_fail(ret_error, GMS_E_INVALID, "device \"%s\" has no digits behind its kind", text);
    }
    for (uint32_t i = 0; i < count; i++) {
        char digits[DIGITS + 1];

        digits_of(&devices[i].uuid, digits);
        if (devices[i].slice != slice || strncmp(digits, wanted, length) != 0) {
            continue;
        }
        if (found != UINT32_MAX) {
            char one[GMS_UUID_TEXT_BYTES];
            char other[GMS_UUID_TEXT_BYTES];

            return gms_fail(ret_error, GMS_E_MISMATCH, "device \"%s\" is %s as well as %s: give more digits", text,
                            gms_uuid_format(&devices[found].uuid, slice, one),
                            gms_uuid_format(&devices[i].uuid, slice, other));
        }
        found = i;
    }
    if (found == UINT32_MAX) {
        return gms_fail(ret_error, GMS_E_NOT_FOUND, "device \"%s\" is none of the %u here", text, count);
    }
    *ret_index = found;
    return GMS_OK;
}

static bool names_a_kind(const char *text, bool *ret_slice)
{
    *ret_slice = strncasecmp(text, "MIG-", 4) == 0;
    return *ret_slice || strncasecmp(text, "GPU-", 4) == 0;
}

gms_status gms_device_find(const char *text, const struct gms_device *devices, uint32_t count, uint32_t *ret_index,
                           struct gms_error *ret_error)
{
    bool slice = false;

    if (names_a_kind(text, &slice)) {
        return find_name(text, slice, devices, count, ret_index, ret_error);
    }
    if (*text == '\0') {
        return gms_fail(ret_error, GMS_E_INVALID, "an empty device: give a number, GPU-<uuid> or MIG-<uuid>");
    }
    return find_number(text, count, ret_index, ret_error);
}

/* The entry at `at`, without blanks around it; *ret_next is behind its comma, NULL: it was the last. */
static bool take_entry(const char *at, char ret_entry[GMS_UUID_TEXT_BYTES + 16], const char **ret_next)
{
    const size_t whole = strcspn(at, ",");
    size_t length = whole;

    *ret_next = at[whole] == ',' ? at + whole + 1 : NULL;
    while (length > 0 && isspace((unsigned char)*at)) {
        at++;
        length--;
    }
    while (length > 0 && isspace((unsigned char)at[length - 1])) {
        length--;
    }
    if (length >= GMS_UUID_TEXT_BYTES + 16) {
        return false;
    }
    memcpy(ret_entry, at, length);
    ret_entry[length] = '\0';
    return true;
}

gms_status gms_device_mask(const char *mask, const struct gms_device *devices, uint32_t count,
                           uint32_t ret_visible[GMS_DEVICES_MAX], uint32_t *ret_visible_count,
                           struct gms_error *ret_error)
{
    uint32_t visible[GMS_DEVICES_MAX];
    uint32_t visible_count = 0;
    bool first_named = false;

    if (mask && *mask == '\0') {
        return gms_fail(ret_error, GMS_E_REFUSED,
                        "CUDA_VISIBLE_DEVICES is set and empty: no device is visible; unset "
                        "it or name devices");
    }
    for (uint32_t i = 0; !mask && i < count && i < GMS_DEVICES_MAX; i++) {
        visible[visible_count++] = i;
    }
    for (const char *at = mask; at;) {
        char entry[GMS_UUID_TEXT_BYTES + 16];
        const uint32_t place = visible_count;
        struct gms_error error = {.status = GMS_OK};
        bool slice = false;
        uint32_t index = 0;

        if (!take_entry(at, entry, &at) || place == GMS_DEVICES_MAX) {
            return gms_fail(ret_error, GMS_E_INVALID,
                            "CUDA_VISIBLE_DEVICES=%.200s: an entry is too long, or more than "
                            "%d",
                            mask, GMS_DEVICES_MAX);
        }
        const bool named = names_a_kind(entry, &slice);
        first_named = place == 0 ? named : first_named;
        gms_status status = gms_device_find(entry, devices, count, &index, &error);
        if (status == GMS_OK && named != first_named) {
            status = gms_fail(&error, GMS_E_INVALID, "numbers and names are mixed");
        }
        for (uint32_t i = 0; status == GMS_OK && i < visible_count; i++) {
            if (visible[i] == index) {
                status = gms_fail(&error, GMS_E_EXISTS, "the same device stands at %u already", i);
            }
        }
        if (status != GMS_OK) {
            return gms_fail(ret_error, status,
                            "CUDA_VISIBLE_DEVICES=%.200s: entry %u: %.200s (the driver would show %u devices)", mask,
                            place, error.text, status == GMS_E_EXISTS ? 0 : place);
        }
        visible[visible_count++] = index;
    }
    memcpy(ret_visible, visible, visible_count * sizeof(visible[0]));
    *ret_visible_count = visible_count;
    return GMS_OK;
}
