/* SPDX-License-Identifier: Apache-2.0
 *
 * The manifest that an attaching engine gets from another one: any bytes give OK or CORRUPT; what is accepted lies
 * inside the pool, in order, without overlaps, and packs to the same bytes again.
 *
 * Input: one byte that says whether the checksum is put right, then the packed manifest.
 */
#include "fuzz.h"

#include <string.h>
#include <xxhash.h>

#include "libgms/session.h"

enum { POOL_BYTES = 1 << 20, INPUT_BYTES_MAX = 8192 };

size_t fuzz_seed(size_t index, uint8_t *ret_data, size_t capacity)
{
    struct gms_manifest manifest = {0};
    void *packed = NULL;
    uint32_t bytes = 0;
    if (index > 3)
        return 0;
    for (size_t i = 0; i < index * 2; i++) {
        const char name[] = {'w', (char)('0' + i), '\0'};
        FUZZ_CHECK(gms_manifest_insert(&manifest, name, (7 - i) * 1000, 1000 - i, POOL_BYTES, NULL) == GMS_OK);
    }
    FUZZ_CHECK(gms_manifest_pack(&manifest, &packed, &bytes, NULL) == GMS_OK);
    FUZZ_CHECK(bytes + 1 <= capacity);
    ret_data[0] = 1;
    memcpy(ret_data + 1, packed, bytes);
    free(packed);
    gms_manifest_clear(&manifest);
    return bytes + 1;
}

static void check(const struct gms_manifest *manifest, const uint8_t *data, uint32_t bytes)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < manifest->count; i++) {
        const struct gms_manifest_entry *entry = &manifest->entries[i];
        FUZZ_CHECK(entry->name[0] != '\0' && strnlen(entry->name, GMS_NAME_BYTES) < GMS_NAME_BYTES);
        FUZZ_CHECK(entry->bytes > 0 && entry->offset_bytes >= end && entry->offset_bytes <= POOL_BYTES);
        FUZZ_CHECK(entry->bytes <= POOL_BYTES - entry->offset_bytes);
        end = entry->offset_bytes + entry->bytes;
        FUZZ_CHECK(gms_manifest_lookup(manifest, entry->name) == entry);
    }
    void *packed = NULL;
    uint32_t packed_bytes = 0;
    FUZZ_CHECK(gms_manifest_pack(manifest, &packed, &packed_bytes, NULL) == GMS_OK);
    FUZZ_CHECK(packed_bytes == bytes && memcmp(packed, data, bytes) == 0);
    free(packed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint8_t copy[INPUT_BYTES_MAX];
    struct gms_manifest manifest;
    if (bytes < 1 || bytes > sizeof copy)
        return 0;
    const uint32_t length = (uint32_t)bytes - 1;
    memcpy(copy, data + 1, length);
    if ((data[0] & 1) != 0 && length >= 8) {
        const uint64_t checksum = XXH3_64bits(copy, length - 8);
        memcpy(copy + length - 8, &checksum, 8);
    }
    const gms_status status = gms_manifest_unpack(copy, length, POOL_BYTES, &manifest, NULL);
    FUZZ_CHECK(status == GMS_OK || status == GMS_E_CORRUPT);
    if (status == GMS_OK)
        check(&manifest, copy, length);
    else
        FUZZ_CHECK(manifest.count == 0 && manifest.entries == NULL);
    gms_manifest_clear(&manifest);
    return 0;
}
