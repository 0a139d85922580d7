/* SPDX-License-Identifier: Apache-2.0
 *
 * Which device is meant: by UUID, because a number means another device to every process, mask and library (V42). Pure:
 * tables come in as arguments.
 */
#ifndef GMS_VMM_DEVICES_H
#define GMS_VMM_DEVICES_H

#include <stdbool.h>
#include <stdint.h>

#include "gms/status.h"

enum { GMS_DEVICES_MAX = 64, GMS_UUID_TEXT_BYTES = 48 };

struct gms_uuid {
    uint8_t bytes[16]; /* all zero: unknown */
};

bool gms_uuid_is_known(const struct gms_uuid *uuid);
bool gms_uuid_equal(const struct gms_uuid *a, const struct gms_uuid *b);
/* "GPU-8-4-4-4-12" or, for a slice, "MIG-..."; returns ret_text. */
const char *gms_uuid_format(const struct gms_uuid *uuid, bool slice, char ret_text[GMS_UUID_TEXT_BYTES]);

struct gms_device {
    struct gms_uuid uuid;
    bool slice; /* a MIG instance, named MIG-<uuid> */
};

/*
 * The device that `text` names among `count`: a number, "GPU-" or "MIG-" with a whole UUID or the first hexadecimal
 * digits of one (hyphens optional). Errors: INVALID (none of these forms), NOT_FOUND (the number of devices there are),
 * MISMATCH (more than one begins so: both are named).
 */
gms_status gms_device_find(const char *text, const struct gms_device *devices, uint32_t count, uint32_t *ret_index,
                           struct gms_error *ret_error);

/*
 * Which of all devices of a host a mask (CUDA_VISIBLE_DEVICES) shows, and in which order. `mask` NULL (unset) is all of
 * them, "" none. The driver drops without a word what follows an entry that it cannot use, and shows nothing at all for
 * some others; here each of them is an error that names the entry: INVALID, NOT_FOUND, MISMATCH as above, EXISTS (one
 * device twice), REFUSED (nothing is visible). A mask that mixes numbers and names is INVALID.
 */
gms_status gms_device_mask(const char *mask, const struct gms_device *devices, uint32_t count,
                           uint32_t ret_visible[GMS_DEVICES_MAX], uint32_t *ret_visible_count,
                           struct gms_error *ret_error);

#endif
