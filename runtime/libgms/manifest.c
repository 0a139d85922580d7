/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of tensors in a weights pool, and its form on the wire, little-endian:
 *   u32 magic "GMSN" | u32 version | u32 count | count * (u32 name bytes | name | u64 offset | u64 bytes) | u64 XXH3-64
 */
#include "libgms/session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { MAGIC = 0x4e534d47, VERSION = 1, HEADER_BYTES = 12, ENTRY_BYTES = 20, CHECKSUM_BYTES = 8 };
/* Room for the rest of a PROPOSE message. */
enum { PACKED_BYTES_MAX = GMS_WIRE_MAX_BYTES - 4096 };

void gms_manifest_clear(struct gms_manifest *manifest)
{
    free(manifest->entries);
    *manifest = (struct gms_manifest){0};
}

/* The place of the first entry at or behind `offset_bytes`. */
static uint32_t place_of(const struct gms_manifest *manifest, uint64_t offset_bytes)
{
    uint32_t low = 0, high = manifest->count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (manifest->entries[middle].offset_bytes < offset_bytes)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static gms_status check_entry(const struct gms_manifest *manifest, const char *name, uint64_t offset_bytes,
                              uint64_t bytes, uint64_t pool_bytes, uint32_t place, struct gms_error *ret_error)
{
    const size_t length = strnlen(name, GMS_NAME_BYTES);
    if (length == 0 || length >= GMS_NAME_BYTES)
        return gms_fail(ret_error, GMS_E_INVALID, "a tensor's name has 1 to %d bytes", GMS_NAME_BYTES - 1);
    if (bytes == 0 || offset_bytes > pool_bytes || bytes > pool_bytes - offset_bytes)
        return gms_fail(ret_error, GMS_E_INVALID,
                        "tensor %s: %" PRIu64 " bytes at %" PRIu64 " are not inside the pool's %" PRIu64 " bytes", name,
                        bytes, offset_bytes, pool_bytes);
    const struct gms_manifest_entry *hit = NULL;
    if (place < manifest->count && manifest->entries[place].offset_bytes < offset_bytes + bytes)
        hit = &manifest->entries[place];
    else if (place > 0 && manifest->entries[place - 1].offset_bytes + manifest->entries[place - 1].bytes > offset_bytes)
        hit = &manifest->entries[place - 1];
    if (hit != NULL)
        return gms_fail(ret_error, GMS_E_INVALID,
                        "tensor %s: %" PRIu64 " bytes at %" PRIu64 " overlap tensor %s: %" PRIu64 " bytes at %" PRIu64,
                        name, bytes, offset_bytes, hit->name, hit->bytes, hit->offset_bytes);
    if (gms_manifest_lookup(manifest, name) != NULL)
        return gms_fail(ret_error, GMS_E_INVALID, "tensor %s is in the manifest already", name);
    return GMS_OK;
}

gms_status gms_manifest_insert(struct gms_manifest *manifest, const char *name, uint64_t offset_bytes, uint64_t bytes,
                               uint64_t pool_bytes, struct gms_error *ret_error)
{
    const uint32_t place = place_of(manifest, offset_bytes);
    gms_status status = check_entry(manifest, name, offset_bytes, bytes, pool_bytes, place, ret_error);
    if (status != GMS_OK)
        return status;
    if (manifest->count == manifest->capacity) {
        const uint32_t capacity = manifest->capacity != 0 ? manifest->capacity * 2 : 64;
        struct gms_manifest_entry *entries = realloc(manifest->entries, capacity * sizeof *entries);
        if (entries == NULL)
            return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a manifest of %" PRIu32 " tensors", capacity);
        manifest->entries = entries;
        manifest->capacity = capacity;
    }
    struct gms_manifest_entry *entry = &manifest->entries[place];
    memmove(entry + 1, entry, (manifest->count - place) * sizeof *entry);
    *entry = (struct gms_manifest_entry){.offset_bytes = offset_bytes, .bytes = bytes};
    memcpy(entry->name, name, strlen(name));
    manifest->count++;
    return GMS_OK;
}

const struct gms_manifest_entry *gms_manifest_lookup(const struct gms_manifest *manifest, const char *name)
{
    for (uint32_t i = 0; i < manifest->count; i++)
        if (strcmp(manifest->entries[i].name, name) == 0)
            return &manifest->entries[i];
    return NULL;
}

gms_status gms_manifest_check_whole(const struct gms_manifest *manifest, uint64_t pool_bytes,
                                    struct gms_error *ret_error)
{
    uint64_t covered = 0;
    for (uint32_t i = 0; i <= manifest->count; i++) {
        const uint64_t next = i < manifest->count ? manifest->entries[i].offset_bytes : pool_bytes;
        if (next != covered)
            return gms_fail(ret_error, GMS_E_REFUSED,
                            "the manifest does not cover the pool: nothing describes the %" PRIu64 " bytes at %" PRIu64
                            " (%s%s)",
                            next - covered, covered, i > 0 ? "behind " : "its beginning",
                            i > 0 ? manifest->entries[i - 1].name : "");
        if (i < manifest->count)
            covered = next + manifest->entries[i].bytes;
    }
    return GMS_OK;
}

uint64_t gms_manifest_names_digest(const struct gms_manifest *manifest)
{
    uint64_t digest = manifest->count;
    for (uint32_t i = 0; i < manifest->count; i++)
        digest = XXH3_64bits_withSeed(manifest->entries[i].name, strlen(manifest->entries[i].name) + 1, digest);
    return digest;
}

/* ------------------------------------------------------------------------------------------------- packing --- */

static uint8_t *put(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        *at++ = (uint8_t)(value >> (8 * i));
    return at;
}

static uint64_t get(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

gms_status gms_manifest_pack(const struct gms_manifest *manifest, void **ret_data, uint32_t *ret_bytes,
                             struct gms_error *ret_error)
{
    size_t bytes = HEADER_BYTES + CHECKSUM_BYTES;
    for (uint32_t i = 0; i < manifest->count; i++)
        bytes += ENTRY_BYTES + strlen(manifest->entries[i].name);
    if (bytes > PACKED_BYTES_MAX)
        return gms_fail(ret_error, GMS_E_INVALID,
                        "the manifest's %" PRIu32 " tensors need %zu bytes, the limit is %d: describe neighbours "
                        "together or shorten names",
                        manifest->count, bytes, PACKED_BYTES_MAX);
    uint8_t *data = malloc(bytes);
    if (data == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a manifest of %zu bytes", bytes);
    uint8_t *at = put(put(put(data, MAGIC, 4), VERSION, 4), manifest->count, 4);
    for (uint32_t i = 0; i < manifest->count; i++) {
        const struct gms_manifest_entry *entry = &manifest->entries[i];
        const size_t length = strlen(entry->name);
        at = put(at, length, 4);
        memcpy(at, entry->name, length);
        at = put(put(at + length, entry->offset_bytes, 8), entry->bytes, 8);
    }
    put(at, XXH3_64bits(data, bytes - CHECKSUM_BYTES), CHECKSUM_BYTES);
    *ret_data = data;
    *ret_bytes = (uint32_t)bytes;
    return GMS_OK;
}

static gms_status unpack_entries(const uint8_t *at, const uint8_t *end, uint32_t count, uint64_t pool_bytes,
                                 struct gms_manifest *manifest, struct gms_error *ret_error)
{
    for (uint32_t i = 0; i < count; i++) {
        char name[GMS_NAME_BYTES] = {0};
        if ((size_t)(end - at) < ENTRY_BYTES)
            return gms_fail(ret_error, GMS_E_CORRUPT, "manifest: cut short at tensor %" PRIu32 " of %" PRIu32, i,
                            count);
        const uint64_t length = get(at, 4);
        if (length >= GMS_NAME_BYTES || length > (size_t)(end - at) - ENTRY_BYTES)
            return gms_fail(ret_error, GMS_E_CORRUPT, "manifest: name of tensor %" PRIu32 " has %" PRIu64 " bytes", i,
                            length);
        memcpy(name, at + 4, length);
        at += 4 + length;
        if (strlen(name) != length || (i > 0 && get(at, 8) < manifest->entries[i - 1].offset_bytes))
            return gms_fail(ret_error, GMS_E_CORRUPT,
                            "manifest: tensor %" PRIu32 " has a NUL in its name or is not in the order of offsets", i);
        gms_status status = gms_manifest_insert(manifest, name, get(at, 8), get(at + 8, 8), pool_bytes, ret_error);
        if (status != GMS_OK)
            return status == GMS_E_INVALID ? GMS_E_CORRUPT : status;
        at += 16;
    }
    if (at != end)
        return gms_fail(ret_error, GMS_E_CORRUPT, "manifest: %td bytes left over", end - at);
    return GMS_OK;
}

gms_status gms_manifest_unpack(const void *data, uint32_t bytes, uint64_t pool_bytes, struct gms_manifest *ret_manifest,
                               struct gms_error *ret_error)
{
    *ret_manifest = (struct gms_manifest){0};
    const uint8_t *at = data;
    if (bytes < HEADER_BYTES + CHECKSUM_BYTES || get(at, 4) != MAGIC || get(at + 4, 4) != VERSION)
        return gms_fail(ret_error, GMS_E_CORRUPT, "not a manifest of version %d (%" PRIu32 " bytes)", VERSION, bytes);
    const uint32_t body = bytes - CHECKSUM_BYTES;
    if (get(at + body, CHECKSUM_BYTES) != XXH3_64bits(data, body))
        return gms_fail(ret_error, GMS_E_CORRUPT, "manifest: checksum does not fit");
    gms_status status =
        unpack_entries(at + HEADER_BYTES, at + body, (uint32_t)get(at + 8, 4), pool_bytes, ret_manifest, ret_error);
    if (status == GMS_OK)
        return GMS_OK;
    gms_manifest_clear(ret_manifest);
    if (ret_error != NULL)
        ret_error->status = status;
    return status;
}
