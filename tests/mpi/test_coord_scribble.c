/* SPDX-License-Identifier: Apache-2.0
 *
 * A primary that scribbles on its own directory, on one rank only, before it dies: every state and every nonsense in
 * the slot words, noise in records and header. It may cost blocks, never the group: the ranks agree on one adoption,
 * and the successor serves; and so does the successor's successor.
 */
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "directory/directory.h"
#include "directory/layout.h"
#include "harness.h"

enum { RANKS = 2, AT_SERVING = 1, AT_SCRIBBLED, GATE_SCRIBBLE = 1, GATE_END };
enum { VALUE_ADOPTED, VALUE_IDLE, VALUE_QUARANTINED };

static struct cluster cluster;
static unsigned seed;

/* The library keeps it to itself, but the kernel knows. */
static int directory_of_this_process(void)
{
    char path[64], target[PATH_MAX];
    for (int fd = 3; fd < 1024; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t bytes = readlink(path, target, sizeof target - 1);
        target[bytes > 0 ? bytes : 0] = '\0';
        if (strstr(target, "gms-directory") != NULL)
            return fd;
    }
    return -1;
}

static bool write_at(int fd, uint64_t place, const void *data, size_t bytes)
{
    return pwrite(fd, data, bytes, (off_t)place) == (ssize_t)bytes;
}

static gms_status scribble(const struct engine_rank *rank, struct gms_error *error)
{
    unsigned noise = (unsigned)rank->argument;
    int fd = directory_of_this_process();
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0)
        return gms_fail(error, GMS_E_NOT_FOUND, "this process has no directory");
    bool written = true;
    for (uint32_t slot = HARNESS_SLOTS / 4; slot < HARNESS_SLOTS; slot++) { /* the first ones stay good */
        uint64_t word = gms_slot_word_make((enum gms_slot_state)(slot % 6), 1 + slot);
        if (slot % 3 == 0)
            word = ((uint64_t)(unsigned)rand_r(&noise) << 32) ^ (unsigned)rand_r(&noise); /* no state at all, perhaps */
        written = written && write_at(fd, GMS_DIRECTORY_HEADER_BYTES + 8 * (uint64_t)slot, &word, sizeof word);
    }
    for (int i = 0; i < 64; i++) {
        uint8_t byte = (uint8_t)rand_r(&noise);
        uint64_t records = gms_directory_records_offset(HARNESS_SLOTS);
        uint64_t spare = HARNESS_SLOTS / 4 * GMS_RECORD_BYTES;
        uint64_t place = i % 2 == 0
                             ? (uint64_t)rand_r(&noise) % GMS_DIRECTORY_HEADER_BYTES
                             : records + spare + (uint64_t)rand_r(&noise) % ((uint64_t)info.st_size - records - spare);
        written = written && write_at(fd, place, &byte, 1);
    }
    return written ? GMS_OK : gms_fail(error, GMS_E_SYSTEM, "the directory was not written");
}

static gms_status serve(struct engine_rank *rank, struct gms_error *error)
{
    gms_session *session = NULL;
    gms_pool *kv = NULL;
    struct gms_membership membership;
    struct gms_adoption adoption;
    gms_status status = rank_open(rank, &session, error);
    if (status == GMS_OK)
        status = rank_join(session, rank, &membership, error);
    if (status == GMS_OK)
        status = rank_attach_kv(session, HARNESS_SLOTS, &kv, error);
    if (status == GMS_OK)
        status = rank_serve(session, "here", &adoption, error);
    for (uint32_t slot = 0; status == GMS_OK && adoption.adopted == 0 && slot < HARNESS_SLOTS / 2; slot++)
        status = rank_seal(session, kv, slot, error);
    if (status != GMS_OK)
        return status;
    rank->values[VALUE_ADOPTED] = adoption.adopted;
    rank->values[VALUE_IDLE] = adoption.idle;
    rank->values[VALUE_QUARANTINED] = adoption.quarantined;
    rank_at(rank, AT_SERVING);
    rank_gate(rank, GATE_SCRIBBLE);
    if (rank->rank == 1)
        status = scribble(rank, error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_SCRIBBLED);
    rank_gate(rank, GATE_END);
    return GMS_OK;
}

static void test_scribble(void **state)
{
    enum { ENGINES = 4 };
    static struct engine engines[ENGINES];
    char launch[16];
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS});
    for (uint32_t i = 0; i < ENGINES; i++) {
        snprintf(launch, sizeof launch, "scribble-%u", i);
        engine_start(&engines[i], &cluster, i, launch, serve, seed + i);
        if (i > 0) {
            engine_kill(&engines[i - 1], i % RANKS);
        }
        assert_true(engine_reached(&engines[i], AT_SERVING, HARNESS_DEADLINE_MS));
        const uint64_t *values[RANKS] = {engines[i].ranks[0].values, engines[i].ranks[1].values};
        for (size_t v = VALUE_ADOPTED; v <= VALUE_QUARANTINED; v++)
            assert_int_equal(values[0][v], values[1][v]);
        assert_int_equal(values[0][VALUE_ADOPTED] + values[0][VALUE_IDLE] + values[0][VALUE_QUARANTINED],
                         HARNESS_SLOTS);
        if (i == 1)
            assert_true(values[0][VALUE_ADOPTED] >= HARNESS_SLOTS / 4); /* what was not touched */
        engine_go(&engines[i], GATE_SCRIBBLE);
        assert_true(engine_reached(&engines[i], AT_SCRIBBLED, HARNESS_DEADLINE_MS));
    }
    for (uint32_t i = 0; i < ENGINES; i++)
        engine_finish(&engines[i]);
    cluster_stop(&cluster);
}

int main(void)
{
    const char *given = getenv("GMS_TEST_SEED");
    seed = given != NULL ? (unsigned)strtoul(given, NULL, 10) : (unsigned)gms_clock_ns();
    fprintf(stderr, "GMS_TEST_SEED=%u\n", seed);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scribble)};
    return cmocka_run_group_tests_name("coord_scribble", tests, NULL, NULL);
}
