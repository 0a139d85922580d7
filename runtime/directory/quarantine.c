/* SPDX-License-Identifier: Apache-2.0 */
#include "directory/quarantine.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "directory/index.h"

enum { PAGE_BYTES = 4096 };

struct header {
    uint64_t magic;
    uint32_t version, header_bytes, pool, slot_count;
    uint64_t checksum; /* XXH3-64 of all bytes before */
};
_Static_assert(offsetof(struct header, checksum) == 24, "header layout is a format");

static const int required_seals = F_SEAL_SHRINK | F_SEAL_GROW;

static size_t stamps_offset(uint32_t slot_count)
{
    return PAGE_BYTES + ((size_t)slot_count * sizeof(uint32_t) + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static size_t file_bytes(uint32_t slot_count)
{
    return stamps_offset(slot_count) + (size_t)slot_count * sizeof(uint64_t);
}

static _Atomic uint32_t *suspects_of(const struct gms_quarantine *quarantine, uint32_t slot)
{
    return (_Atomic uint32_t *)((char *)quarantine->base + PAGE_BYTES) + slot;
}

static _Atomic uint64_t *stamp_of(const struct gms_quarantine *quarantine, uint32_t slot)
{
    return (_Atomic uint64_t *)((char *)quarantine->base + stamps_offset(quarantine->slot_count)) + slot;
}

/* ------------------------------------------------------------------------------------------- the file --------- */

static gms_status map(int fd, size_t bytes, void **ret_base, struct gms_error *ret_error)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "mapping %zu bytes of suspects: %s", bytes, strerror(errno));
    *ret_base = base;
    return GMS_OK;
}

gms_status gms_quarantine_create(uint32_t pool, uint32_t slot_count, struct gms_quarantine *ret_quarantine,
                                 struct gms_error *ret_error)
{
    if (slot_count == 0 || pool >= GMS_MAX_POOLS)
        return gms_fail(ret_error, GMS_E_INVALID, "suspects of %" PRIu32 " slots of pool %" PRIu32, slot_count, pool);
    const size_t bytes = file_bytes(slot_count);
    int fd = memfd_create("gms-quarantine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return gms_fail(ret_error, errno == EMFILE || errno == ENFILE ? GMS_E_DESCRIPTORS : GMS_E_NO_MEMORY,
                        "a file for suspects: %s", strerror(errno));
    void *base = NULL;
    gms_status status = GMS_OK;
    int result;
    do
        result = fallocate(fd, 0, 0, (off_t)bytes); /* nobody gets SIGBUS for want of memory later */
    while (result < 0 && errno == EINTR);
    if (result < 0 || fcntl(fd, F_ADD_SEALS, required_seals | F_SEAL_SEAL) != 0)
        status = gms_fail(ret_error, GMS_E_NO_MEMORY, "a file of %zu bytes for suspects: %s", bytes, strerror(errno));
    if (status == GMS_OK)
        status = map(fd, bytes, &base, ret_error);
    if (status != GMS_OK) {
        close(fd);
        return status;
    }
    struct header header = {.magic = GMS_QUARANTINE_MAGIC,
                            .version = GMS_QUARANTINE_VERSION,
                            .header_bytes = PAGE_BYTES,
                            .pool = pool,
                            .slot_count = slot_count};
    header.checksum = XXH3_64bits(&header, offsetof(struct header, checksum));
    memcpy(base, &header, sizeof header);
    *ret_quarantine =
        (struct gms_quarantine){.base = base, .bytes = bytes, .pool = pool, .slot_count = slot_count, .fd = fd};
    return GMS_OK;
}

gms_status gms_quarantine_open(int fd, uint32_t pool, uint32_t slot_count, struct gms_quarantine *ret_quarantine,
                               struct gms_error *ret_error)
{
    struct stat info;
    struct header header;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & required_seals) != required_seals || fstat(fd, &info) != 0 ||
        pread(fd, &header, sizeof header, 0) != (ssize_t)sizeof header)
        return gms_fail(ret_error, GMS_E_CORRUPT, "file of suspects: not sealed, or too short");
    if (header.magic != GMS_QUARANTINE_MAGIC ||
        header.checksum != XXH3_64bits(&header, offsetof(struct header, checksum)))
        return gms_fail(ret_error, GMS_E_CORRUPT, "file of suspects: magic or checksum of its header do not fit");
    if (header.version != GMS_QUARANTINE_VERSION || header.header_bytes != PAGE_BYTES)
        return gms_fail(ret_error, GMS_E_VERSION, "file of suspects has version %" PRIu32 ", this program reads %d",
                        header.version, GMS_QUARANTINE_VERSION);
    if (header.pool != pool || header.slot_count != slot_count)
        return gms_fail(ret_error, GMS_E_MISMATCH,
                        "file of suspects is of %" PRIu32 " slots of pool %" PRIu32 ", expected %" PRIu32
                        " of pool %" PRIu32,
                        header.slot_count, header.pool, slot_count, pool);
    if (slot_count == 0 || (uint64_t)info.st_size != file_bytes(slot_count))
        return gms_fail(ret_error, GMS_E_CORRUPT, "file of suspects has %jd bytes, its %" PRIu32 " slots need %zu",
                        (intmax_t)info.st_size, slot_count, file_bytes(slot_count));
    void *base = NULL;
    gms_status status = map(fd, file_bytes(slot_count), &base, ret_error);
    if (status != GMS_OK)
        return status;
    *ret_quarantine = (struct gms_quarantine){
        .base = base, .bytes = file_bytes(slot_count), .pool = pool, .slot_count = slot_count, .fd = fd};
    return GMS_OK;
}

void gms_quarantine_close(struct gms_quarantine *quarantine)
{
    if (quarantine->base != NULL) {
        munmap(quarantine->base, quarantine->bytes);
        if (quarantine->fd >= 0)
            close(quarantine->fd);
    }
    *quarantine = (struct gms_quarantine){.fd = -1};
}

/* ------------------------------------------------------------------------------------------- slots ------------ */

uint32_t gms_quarantine_suspects(const struct gms_quarantine *quarantine, uint32_t slot)
{
    return slot < quarantine->slot_count ? atomic_load(suspects_of(quarantine, slot)) : 0;
}

void gms_quarantine_suspect(struct gms_quarantine *quarantine, uint32_t slot, uint32_t suspects)
{
    if (slot < quarantine->slot_count)
        atomic_fetch_or(suspects_of(quarantine, slot), suspects);
}

uint64_t gms_quarantine_stamp(const struct gms_quarantine *quarantine, uint32_t slot)
{
    return slot < quarantine->slot_count ? atomic_load(stamp_of(quarantine, slot)) : 0;
}

static bool is_quarantined(const struct gms_directory *directory, uint32_t slot)
{
    return gms_slot_word_state(gms_directory_word(directory, slot)) == GMS_SLOT_QUARANTINED;
}

static void acquit(struct gms_quarantine *quarantine, uint32_t slot)
{
    if (atomic_load(suspects_of(quarantine, slot)) != 0)
        atomic_store(suspects_of(quarantine, slot), 0);
    if (atomic_load(stamp_of(quarantine, slot)) != 0)
        atomic_store(stamp_of(quarantine, slot), 0);
}

/* ------------------------------------------------------------------------------------------- takeovers -------- */

/* Words that say that the source itself may still write: not those that it found in quarantine, nor idle ones. A sealed
 * one that was not adopted is damaged: somebody wrote what should have been complete. */
static bool is_of_source(gms_slot_word word)
{
    switch (gms_slot_word_state(word)) {
    case GMS_SLOT_IDLE:
    case GMS_SLOT_QUARANTINED:
    case GMS_SLOT_RETIRED:
        return false;
    case GMS_SLOT_LEASED:
    case GMS_SLOT_SEALED:
    case GMS_SLOT_RELEASED:
        break;
    }
    return true; /* also what is no state at all */
}

void gms_quarantine_classified(struct gms_quarantine *quarantine, const struct gms_directory_index *index,
                               const struct gms_directory *source, struct gms_directory *into, uint32_t place)
{
    const uint32_t suspect = UINT32_C(1) << (place & 31);
    if (source == NULL) {
        if (into != NULL)
            gms_quarantine_begin(quarantine, into);
        return;
    }
    const bool seen = into != NULL && index != NULL && index->slot_count == quarantine->slot_count;
    for (uint32_t slot = 0; slot < quarantine->slot_count && slot < source->slot_count; slot++) {
        /* What classify saw, not what stands there now: one answer comes out. */
        const gms_slot_word word = seen ? index->seen[slot] : gms_directory_word(source, slot);
        if (into == NULL) {
            if (is_of_source(word) && gms_slot_word_state(word) != GMS_SLOT_SEALED)
                gms_quarantine_suspect(quarantine, slot, suspect);
        } else if (!is_quarantined(into, slot)) {
            acquit(quarantine, slot);
        } else if (is_of_source(word)) {
            gms_quarantine_suspect(quarantine, slot, suspect);
        }
    }
}

void gms_quarantine_begin(const struct gms_quarantine *quarantine, struct gms_directory *into)
{
    for (uint32_t slot = 0; slot < quarantine->slot_count && slot < into->slot_count; slot++) {
        const gms_slot_word word = gms_directory_word(into, slot);
        if (gms_quarantine_suspects(quarantine, slot) != 0 && gms_slot_word_state(word) == GMS_SLOT_IDLE)
            gms_directory_set_word(into, slot,
                                   gms_slot_word_make(GMS_SLOT_QUARANTINED, gms_slot_word_generation(word)));
    }
}

void gms_quarantine_distrust(struct gms_quarantine *quarantine, const struct gms_directory *directory, bool written)
{
    for (uint32_t slot = 0; slot < quarantine->slot_count && slot < directory->slot_count; slot++) {
        const enum gms_slot_state state = gms_slot_word_state(gms_directory_word(directory, slot));
        if (state == GMS_SLOT_QUARANTINED ||
            (written && state != GMS_SLOT_IDLE && state != GMS_SLOT_SEALED && state != GMS_SLOT_RETIRED))
            gms_quarantine_suspect(quarantine, slot, UINT32_C(1) << GMS_QUARANTINE_UNKNOWN);
    }
}

/* ------------------------------------------------------------------------------------------- reclaim ---------- */

uint32_t gms_quarantine_stamp_all(struct gms_quarantine *quarantine, const struct gms_directory *directory,
                                  const struct gms_quarantine_pass *pass, uint32_t ret_by[32])
{
    uint32_t count = 0;
    if (ret_by != NULL)
        memset(ret_by, 0, 32 * sizeof *ret_by);
    for (uint32_t slot = 0; slot < quarantine->slot_count && slot < directory->slot_count; slot++) {
        if (!is_quarantined(directory, slot))
            continue;
        count++;
        if (!pass->inherits || atomic_load(stamp_of(quarantine, slot)) == 0)
            atomic_store(stamp_of(quarantine, slot), pass->owner);
        uint32_t suspects = gms_quarantine_suspects(quarantine, slot);
        for (uint32_t place = 0; ret_by != NULL && suspects != 0; place++, suspects >>= 1)
            ret_by[place] += suspects & 1;
    }
    return count;
}

bool gms_quarantine_holds_back(const struct gms_quarantine *quarantine, const struct gms_directory *directory,
                               const struct gms_quarantine_pass *pass, uint32_t slot)
{
    if (slot >= quarantine->slot_count || slot >= directory->slot_count || !is_quarantined(directory, slot))
        return true;
    const uint64_t stamp = atomic_load(stamp_of(quarantine, slot));
    if (stamp != pass->owner && !(pass->inherits && stamp != 0))
        return true;
    return (gms_quarantine_suspects(quarantine, slot) & ~pass->chosen) != 0;
}

bool gms_quarantine_return(struct gms_quarantine *quarantine, struct gms_directory *directory, uint32_t slot,
                           uint32_t *ret_suspects)
{
    if (slot >= quarantine->slot_count || slot >= directory->slot_count)
        return false;
    const gms_slot_word word = gms_directory_word(directory, slot);
    gms_slot_word next = word;
    *ret_suspects = gms_quarantine_suspects(quarantine, slot);
    if (gms_slot_step(word, GMS_SLOT_EVENT_RECLAIM, gms_slot_word_generation(word), &next) != GMS_OK ||
        !gms_directory_replace_word(directory, slot, word, next))
        return false;
    acquit(quarantine, slot);
    return true;
}

void gms_quarantine_clear(struct gms_quarantine *quarantine, uint32_t suspects)
{
    for (uint32_t slot = 0; slot < quarantine->slot_count; slot++)
        if ((atomic_load(suspects_of(quarantine, slot)) & suspects) != 0)
            atomic_fetch_and(suspects_of(quarantine, slot), ~suspects);
}
