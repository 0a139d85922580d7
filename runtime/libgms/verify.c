/* SPDX-License-Identifier: Apache-2.0
 *
 * What the successor checks itself before the ranks compare: only it has the KV memory mapped.
 */
#define XXH_INLINE_ALL /* the streaming state on the stack: seals allocate nothing */
#include <xxhash.h>

#include "libgms/session.h"

#include <inttypes.h>
#include <stdlib.h>

enum { CHUNK_BYTES = 16 * 1024 * 1024 };

/* Device memory comes by way of a buffer. */
static gms_status update_by_chunks(XXH3_state_t *state, const struct gms_vmm *vmm, const char *address, uint64_t bytes,
                                   struct gms_error *ret_error)
{
    const uint64_t chunk_bytes = bytes < CHUNK_BYTES ? bytes : CHUNK_BYTES;
    char *chunk = malloc(chunk_bytes);
    if (chunk == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory to read %" PRIu64 " bytes through", chunk_bytes);
    gms_status status = GMS_OK;
    for (uint64_t done = 0; status == GMS_OK && done < bytes; done += chunk_bytes) {
        const uint64_t length = bytes - done < chunk_bytes ? bytes - done : chunk_bytes;
        status = vmm->read(chunk, address + done, length, ret_error);
        if (status == GMS_OK)
            XXH3_64bits_update(state, chunk, length);
    }
    free(chunk);
    return status;
}

gms_status gms_memory_digest(const struct gms_session *session, const void *address, uint64_t bytes,
                             uint64_t *ret_digest, struct gms_error *ret_error)
{
    if (session->vmm->cpu_addresses) {
        *ret_digest = XXH3_64bits(address, bytes);
        return GMS_OK;
    }
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    const gms_status status = update_by_chunks(&state, session->vmm, address, bytes, ret_error);
    *ret_digest = XXH3_64bits_digest(&state);
    return status;
}

uint64_t gms_content_digest(const struct gms_session *session, const struct gms_record_part *parts, uint32_t count)
{
    uint64_t digest = 0;
    if (count == 1) {
        const struct gms_pool *pool = session->pools[parts[0].pool];
        if (gms_memory_digest(session, gms_pool_slot_address(pool, parts[0].slot), pool->description.block_bytes,
                              &digest, NULL) != GMS_OK)
            return 0;
    } else {
        XXH3_state_t state;
        XXH3_64bits_reset(&state);
        for (uint32_t i = 0; i < count; i++) {
            const struct gms_pool *pool = session->pools[parts[i].pool];
            const void *address = gms_pool_slot_address(pool, parts[i].slot);
            if (session->vmm->cpu_addresses)
                XXH3_64bits_update(&state, address, pool->description.block_bytes);
            else if (update_by_chunks(&state, session->vmm, address, pool->description.block_bytes, NULL) != GMS_OK)
                return 0;
        }
        digest = XXH3_64bits_digest(&state);
    }
    return digest != 0 ? digest : 1; /* 0 says "not taken" */
}

static uint32_t quarantine(struct gms_directory *directory, uint32_t slot)
{
    const gms_slot_word word = gms_directory_word(directory, slot);
    gms_slot_word next;
    return gms_slot_word_state(word) == GMS_SLOT_SEALED &&
           gms_slot_step(word, GMS_SLOT_EVENT_QUARANTINE, gms_slot_word_generation(word), &next) == GMS_OK &&
           gms_directory_replace_word(directory, slot, word, next);
}

static uint32_t count_sealed(const struct gms_session *session)
{
    uint32_t sealed = 0;
    for (uint32_t i = 0; i < GMS_MAX_POOLS; i++)
        for (uint32_t slot = 0; session->directories[i] != NULL && slot < session->directories[i]->slot_count; slot++)
            sealed += gms_slot_word_state(gms_directory_word(session->directories[i], slot)) == GMS_SLOT_SEALED;
    return sealed;
}

/* Marks the slots of every block whose record and contents are right. The others stay unmarked. */
static void mark_good(struct gms_session *session, uint8_t *const marks[GMS_MAX_POOLS])
{
    for (uint32_t pool = 0; pool < GMS_MAX_POOLS; pool++) {
        for (uint32_t slot = 0; marks[pool] != NULL && slot < session->directories[pool]->slot_count; slot++) {
            struct gms_record record;
            if (!gms_directory_read(session->directories, pool, slot, &record) || record.content_digest == 0 ||
                record.content_digest != gms_content_digest(session, record.parts, record.part_count))
                continue;
            for (uint32_t i = 0; i < record.part_count; i++)
                marks[record.parts[i].pool][record.parts[i].slot] = 1;
        }
    }
}

gms_status gms_verify_adoption(struct gms_session *session, struct gms_adoption *ret_found, struct gms_error *ret_error)
{
    ret_found->sealed_here = count_sealed(session);
    ret_found->bad_here = 0;
    if (!session->kv_verify_full || ret_found->sealed_here == 0)
        return GMS_OK;
    uint8_t *marks[GMS_MAX_POOLS] = {0};
    bool out_of_memory = false;
    for (uint32_t i = 0; i < GMS_MAX_POOLS; i++) {
        if (session->directories[i] == NULL)
            continue;
        marks[i] = calloc(session->directories[i]->slot_count, 1);
        out_of_memory = out_of_memory || marks[i] == NULL;
    }
    if (!out_of_memory) {
        mark_good(session, marks);
        for (uint32_t i = 0; i < GMS_MAX_POOLS; i++)
            for (uint32_t slot = 0; marks[i] != NULL && slot < session->directories[i]->slot_count; slot++)
                if (marks[i][slot] == 0)
                    ret_found->bad_here += quarantine(session->directories[i], slot);
    }
    for (uint32_t i = 0; i < GMS_MAX_POOLS; i++)
        free(marks[i]);
    return out_of_memory ? gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory to verify %" PRIu32 " sealed slots",
                                    ret_found->sealed_here)
                         : GMS_OK;
}
