/* SPDX-License-Identifier: Apache-2.0 */
#include "directory/directory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "directory/layout.h"

static const int required_seals = F_SEAL_SHRINK | F_SEAL_GROW;

size_t gms_directory_bytes(uint32_t slot_count)
{
    return gms_directory_tails_offset(slot_count) + (size_t)slot_count * GMS_TAIL_BYTES;
}

static uint64_t header_checksum(const struct gms_directory_header *header)
{
    return XXH3_64bits(header, offsetof(struct gms_directory_header, checksum));
}

/* Memory is populated now: a page fault on the path of a token would cost more than everything else on it. */
static gms_status map_file(int fd, size_t bytes, void **ret_base, struct gms_error *ret_error)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (base == MAP_FAILED)
        return gms_fail(ret_error, errno == ENOMEM ? GMS_E_NO_MEMORY : GMS_E_SYSTEM,
                        "mapping a directory of %zu bytes: %s", bytes, strerror(errno));
    *ret_base = base;
    return GMS_OK;
}

static gms_status make_file(size_t bytes, int *ret_fd, struct gms_error *ret_error)
{
    int fd = memfd_create("gms-directory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return gms_fail(ret_error, errno == EMFILE || errno == ENFILE ? GMS_E_DESCRIPTORS : GMS_E_SYSTEM,
                        "making a directory file: memfd_create: %s", strerror(errno));
    int result;
    do
        result = fallocate(fd, 0, 0, (off_t)bytes);
    while (result < 0 && errno == EINTR);
    if (result < 0) {
        gms_status status = errno == ENOSPC || errno == ENOMEM ? GMS_E_NO_MEMORY : GMS_E_SYSTEM;
        gms_fail(ret_error, status, "reserving %zu bytes for a directory: %s", bytes, strerror(errno));
        close(fd);
        return status;
    }
    if (fcntl(fd, F_ADD_SEALS, required_seals | F_SEAL_SEAL) < 0) {
        gms_status status =
            gms_fail(ret_error, GMS_E_SYSTEM, "sealing the size of a directory file: %s", strerror(errno));
        close(fd);
        return status;
    }
    *ret_fd = fd;
    return GMS_OK;
}

gms_status gms_directory_create(const struct gms_directory_geometry *geometry, struct gms_directory *ret_directory,
                                struct gms_error *ret_error)
{
    if (geometry->slot_count == 0 || geometry->pool >= GMS_MAX_POOLS)
        return gms_fail(ret_error, GMS_E_INVALID,
                        "a directory of %" PRIu32 " slots for pool %" PRIu32
                        ": need at least 1 slot and a pool below %d",
                        geometry->slot_count, geometry->pool, GMS_MAX_POOLS);
    const size_t bytes = gms_directory_bytes(geometry->slot_count);
    int fd = -1;
    gms_status status = make_file(bytes, &fd, ret_error);
    if (status != GMS_OK)
        return status;
    void *base = NULL;
    status = map_file(fd, bytes, &base, ret_error);
    if (status != GMS_OK) {
        close(fd);
        return status;
    }
    /* The file is zero-filled, and the zero word is IDLE at generation 0. */
    _Static_assert(GMS_SLOT_IDLE == 0, "a zero-filled file is all idle");
    struct gms_directory_header *header = base;
    header->magic = GMS_DIRECTORY_MAGIC;
    header->version = GMS_DIRECTORY_VERSION;
    header->header_bytes = GMS_DIRECTORY_HEADER_BYTES;
    header->record_bytes = GMS_RECORD_BYTES;
    header->tail_bytes = GMS_TAIL_BYTES;
    header->pool = geometry->pool;
    header->slot_count = geometry->slot_count;
    header->block_bytes = geometry->block_bytes;
    header->identity_digest = geometry->identity_digest;
    header->world = geometry->world;
    header->incarnation = geometry->incarnation;
    header->epoch = geometry->epoch;
    header->checksum = header_checksum(header);
    *ret_directory = (struct gms_directory){
        .base = base, .bytes = bytes, .slot_count = geometry->slot_count, .fd = fd, .geometry = *geometry};
    return GMS_OK;
}

static gms_status compare_field(const char *field, uint64_t found, uint64_t expected, struct gms_error *ret_error)
{
    if (found == expected)
        return GMS_OK;
    return gms_fail(ret_error, GMS_E_MISMATCH, "directory: %s is %" PRIu64 ", expected %" PRIu64, field, found,
                    expected);
}

/* Zero stands for "whatever it says" where zero is no real value. */
static gms_status compare_known_field(const char *field, uint64_t found, uint64_t expected, struct gms_error *ret_error)
{
    return expected == 0 ? GMS_OK : compare_field(field, found, expected, ret_error);
}

static gms_status compare_geometry(const struct gms_directory_geometry *found,
                                   const struct gms_directory_geometry *expected, struct gms_error *ret_error)
{
    gms_status status = compare_field("pool", found->pool, expected->pool, ret_error);
    if (status == GMS_OK)
        status = compare_field("slot count", found->slot_count, expected->slot_count, ret_error);
    if (status == GMS_OK)
        status = compare_field("block bytes", found->block_bytes, expected->block_bytes, ret_error);
    if (status == GMS_OK)
        status = compare_known_field("identity digest", found->identity_digest, expected->identity_digest, ret_error);
    if (status == GMS_OK)
        status = compare_known_field("world", found->world, expected->world, ret_error);
    if (status == GMS_OK)
        status = compare_known_field("incarnation", found->incarnation, expected->incarnation, ret_error);
    if (status == GMS_OK)
        status = compare_known_field("epoch", found->epoch, expected->epoch, ret_error);
    return status;
}

/* `header` is a private copy: its owner may be writing the file while we look. */
static gms_status check_header(const struct gms_directory_header *header, uint64_t file_bytes,
                               struct gms_directory_geometry *ret_geometry, struct gms_error *ret_error)
{
    if (header->magic != GMS_DIRECTORY_MAGIC)
        return gms_fail(ret_error, GMS_E_CORRUPT, "not a directory file: magic is 0x%016" PRIx64, header->magic);
    if (header->version != GMS_DIRECTORY_VERSION)
        return gms_fail(ret_error, GMS_E_VERSION, "directory file has version %" PRIu32 ", this program reads %d",
                        header->version, GMS_DIRECTORY_VERSION);
    if (header->checksum != header_checksum(header))
        return gms_fail(ret_error, GMS_E_CORRUPT, "directory header: checksum does not fit");
    if (header->header_bytes != GMS_DIRECTORY_HEADER_BYTES || header->record_bytes != GMS_RECORD_BYTES ||
        header->tail_bytes != GMS_TAIL_BYTES)
        return gms_fail(ret_error, GMS_E_CORRUPT,
                        "directory header: header of %" PRIu32 ", records of %" PRIu32 " and tails of %" PRIu32
                        " bytes, expected %d, %d and %d",
                        header->header_bytes, header->record_bytes, header->tail_bytes, GMS_DIRECTORY_HEADER_BYTES,
                        GMS_RECORD_BYTES, GMS_TAIL_BYTES);
    if (header->slot_count == 0 || header->pool >= GMS_MAX_POOLS)
        return gms_fail(ret_error, GMS_E_CORRUPT, "directory header: %" PRIu32 " slots of pool %" PRIu32,
                        header->slot_count, header->pool);
    if (gms_directory_bytes(header->slot_count) != file_bytes)
        return gms_fail(ret_error, GMS_E_CORRUPT,
                        "directory file has %" PRIu64 " bytes, its %" PRIu32 " slots need %zu", file_bytes,
                        header->slot_count, gms_directory_bytes(header->slot_count));
    *ret_geometry = (struct gms_directory_geometry){.pool = header->pool,
                                                    .slot_count = header->slot_count,
                                                    .block_bytes = header->block_bytes,
                                                    .identity_digest = header->identity_digest,
                                                    .world = header->world,
                                                    .incarnation = header->incarnation,
                                                    .epoch = header->epoch};
    return GMS_OK;
}

gms_status gms_directory_open(int fd, const struct gms_directory_geometry *expected,
                              struct gms_directory *ret_directory, struct gms_error *ret_error)
{
    struct stat info;
    if (fstat(fd, &info) < 0)
        return gms_fail(ret_error, GMS_E_SYSTEM, "directory file: fstat: %s", strerror(errno));
    /* Without these seals its owner could shrink the file under our mapping and kill us with SIGBUS. */
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & required_seals) != required_seals)
        return gms_fail(ret_error, GMS_E_CORRUPT, "directory file: its size is not sealed (seals 0x%x)",
                        seals < 0 ? 0u : (unsigned)seals);
    if (info.st_size < GMS_DIRECTORY_HEADER_BYTES)
        return gms_fail(ret_error, GMS_E_CORRUPT, "directory file has %jd bytes, its header alone needs %d",
                        (intmax_t)info.st_size, GMS_DIRECTORY_HEADER_BYTES);
    struct gms_directory_header header;
    ssize_t got = pread(fd, &header, sizeof header, 0);
    if (got != (ssize_t)sizeof header)
        return gms_fail(ret_error, GMS_E_SYSTEM, "directory file: reading its header: %s",
                        got < 0 ? strerror(errno) : "short");
    struct gms_directory_geometry geometry;
    gms_status status = check_header(&header, (uint64_t)info.st_size, &geometry, ret_error);
    if (status == GMS_OK && expected != NULL)
        status = compare_geometry(&geometry, expected, ret_error);
    if (status != GMS_OK)
        return status;
    void *base = NULL;
    status = map_file(fd, (size_t)info.st_size, &base, ret_error);
    if (status != GMS_OK)
        return status;
    *ret_directory = (struct gms_directory){
        .base = base, .bytes = (size_t)info.st_size, .slot_count = geometry.slot_count, .fd = fd, .geometry = geometry};
    return GMS_OK;
}

void gms_directory_close(struct gms_directory *directory)
{
    if (directory->base != NULL) {
        munmap(directory->base, directory->bytes);
        if (directory->fd >= 0)
            close(directory->fd);
    }
    *directory = (struct gms_directory){.fd = -1};
}

/* -------------------------------------------------------------------------------------------- slot words ----- */

gms_slot_word gms_directory_word(const struct gms_directory *directory, uint32_t slot)
{
    return atomic_load_explicit(&gms_directory_words(directory)[slot], memory_order_acquire);
}

/* After the change, so that a reader who sees the new count finds the new word. */
static void note_change(struct gms_directory *directory)
{
    atomic_fetch_add_explicit(&gms_directory_header(directory)->changes, 1, memory_order_release);
}

void gms_directory_set_word(struct gms_directory *directory, uint32_t slot, gms_slot_word word)
{
    atomic_store_explicit(&gms_directory_words(directory)[slot], word, memory_order_release);
    note_change(directory);
}

bool gms_directory_replace_word(struct gms_directory *directory, uint32_t slot, gms_slot_word expected,
                                gms_slot_word word)
{
    if (!atomic_compare_exchange_strong_explicit(&gms_directory_words(directory)[slot], &expected, word,
                                                 memory_order_acq_rel, memory_order_acquire))
        return false;
    note_change(directory);
    return true;
}

/* One transition by the table. *ret_word is the word that the transition left. */
static gms_status move(struct gms_directory *directory, uint32_t slot, enum gms_slot_event event, uint64_t generation,
                       gms_slot_word *ret_word)
{
    if (slot >= directory->slot_count)
        return GMS_E_INVALID;
    for (;;) {
        const gms_slot_word word = gms_directory_word(directory, slot);
        gms_slot_word next = word;
        gms_status status = gms_slot_step(word, event, generation, &next);
        /* Acquire on an exhausted generation is refused and still moves the word, to RETIRED. */
        const bool retires = event == GMS_SLOT_EVENT_ACQUIRE && status == GMS_E_REFUSED &&
                             gms_slot_word_state(next) == GMS_SLOT_RETIRED && next != word;
        if (status != GMS_OK && !retires)
            return status;
        if (gms_directory_replace_word(directory, slot, word, next)) {
            *ret_word = next;
            return status;
        }
    }
}

gms_status gms_directory_acquire(struct gms_directory *directory, uint32_t slot, uint64_t *ret_generation)
{
    gms_slot_word word = 0;
    gms_status status = move(directory, slot, GMS_SLOT_EVENT_ACQUIRE, 0, &word);
    if (status == GMS_OK)
        *ret_generation = gms_slot_word_generation(word);
    return status;
}

gms_status gms_directory_release(struct gms_directory *directory, uint32_t slot, uint64_t generation)
{
    gms_slot_word word = 0;
    return move(directory, slot, GMS_SLOT_EVENT_RELEASE, generation, &word);
}

gms_status gms_directory_fence_passed(struct gms_directory *directory, uint32_t slot, uint64_t generation)
{
    gms_slot_word word = 0;
    return move(directory, slot, GMS_SLOT_EVENT_FENCE_PASSED, generation, &word);
}

/* ---------------------------------------------------------------------------------------------- counters ----- */

void gms_directory_progress(struct gms_directory *directory)
{
    atomic_fetch_add_explicit(&gms_directory_header(directory)->progress, 1, memory_order_relaxed);
}

uint64_t gms_directory_progress_count(const struct gms_directory *directory)
{
    return atomic_load_explicit(&gms_directory_header(directory)->progress, memory_order_relaxed);
}

void gms_directory_announce_pause(struct gms_directory *directory, uint32_t duration_ms)
{
    _Atomic uint64_t *busy = &gms_directory_header(directory)->busy;
    uint64_t old = atomic_load_explicit(busy, memory_order_relaxed), next;
    do
        next = ((old >> 32) + 1) << 32 | duration_ms;
    while (!atomic_compare_exchange_weak_explicit(busy, &old, next, memory_order_relaxed, memory_order_relaxed));
}

void gms_directory_set_work(struct gms_directory *directory, uint64_t count)
{
    atomic_store_explicit(&gms_directory_header(directory)->work, count, memory_order_relaxed);
}

static void raise_to(_Atomic uint64_t *count, uint64_t value)
{
    uint64_t old = atomic_load_explicit(count, memory_order_relaxed);
    while (old < value &&
           !atomic_compare_exchange_weak_explicit(count, &old, value, memory_order_relaxed, memory_order_relaxed))
        ;
}

void gms_directory_step_begun(struct gms_directory *directory, uint64_t step)
{
    raise_to(&gms_directory_header(directory)->steps_begun, step);
}

void gms_directory_step_completed(struct gms_directory *directory, uint64_t step)
{
    raise_to(&gms_directory_header(directory)->steps_completed, step);
}

void gms_directory_activity(const struct gms_directory *directory, struct gms_directory_activity *ret_activity)
{
    const struct gms_directory_header *header = gms_directory_header(directory);
    uint64_t busy = atomic_load_explicit(&header->busy, memory_order_relaxed);
    *ret_activity = (struct gms_directory_activity){
        .progress = atomic_load_explicit(&header->progress, memory_order_relaxed),
        .steps_completed = atomic_load_explicit(&header->steps_completed, memory_order_relaxed),
        .steps_begun = atomic_load_explicit(&header->steps_begun, memory_order_relaxed),
        .work = atomic_load_explicit(&header->work, memory_order_relaxed),
        .pause = (uint32_t)(busy >> 32),
        .pause_ms = (uint32_t)busy,
    };
}

uint64_t gms_directory_change_count(const struct gms_directory *directory)
{
    return atomic_load_explicit(&gms_directory_header(directory)->changes, memory_order_acquire);
}
