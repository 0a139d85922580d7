/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine rank with a GPU: parks, watches the pages of the one that it will succeed, serves, and on order keeps
 * kernels writing into pages that it leased and pages that it released under way.
 */
#include "reclaim_stage.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gms/engine.h"
#include "gpu.h"

enum { KERNEL_MS = 16, STREAMS = 2 };

static struct gpu gpu;
static struct reclaim_stage *stage;
static const char *kv_address;

struct reclaim_stage *reclaim_stage_map(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *at =
        fd >= 0 ? mmap(NULL, sizeof(struct reclaim_stage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;

    if (fd >= 0) {
        close(fd);
    }
    return at == MAP_FAILED ? NULL : at;
}

/* ---------------------------------------------------------------------------------------------- watching --------- */

static void compare(const char *now, char *before, uint64_t before_ns, uint64_t now_ns)
{
    for (int page = 0; page < RECLAIM_WINDOW; page++) {
        const size_t at = (size_t)page * RECLAIM_BLOCK_BYTES;

        if (memcmp(now + at, before + at, RECLAIM_BLOCK_BYTES) == 0) {
            continue;
        }
        memcpy(before + at, now + at, RECLAIM_BLOCK_BYTES);
        if (before_ns != 0) {
            stage->pages[page].after_ns = before_ns;
            stage->pages[page].before_ns = now_ns;
            stage->pages[page].count++;
        }
    }
}

/* A thread of its own: copies are submissions, which no teardown of somebody else holds up for long. */
static void *watch(void *nothing)
{
    static char before[RECLAIM_WINDOW * RECLAIM_BLOCK_BYTES];
    gms_cu_stream stream = NULL;
    char *copy = NULL;
    uint32_t slot = RECLAIM_SLOTS;
    uint64_t sampled_ns = 0; /* when the sample before began; 0: none of these slots */

    CU(gpu.context_current(gpu.context));
    CU(gpu.stream_create(&stream, 1));
    CU(gpu.host_allocate((void **)&copy, sizeof(before), 0));
    for (;;) {
        const uint64_t begun_ns = gms_clock_ns();

        if (slot != stage->watched_slot) {
            slot = stage->watched_slot;
            sampled_ns = 0;
        }
        if (slot >= RECLAIM_SLOTS) {
            usleep(500);
            continue;
        }
        CU(gpu.read_async(copy, (uintptr_t)kv_address + (uint64_t)slot * RECLAIM_BLOCK_BYTES, sizeof(before), stream));
        CU(gpu.stream_sync(stream));
        const uint64_t ended_ns = gms_clock_ns();
        compare(copy, before, sampled_ns, ended_ns);
        sampled_ns = begun_ns;
        stage->slowest_ns = ended_ns - begun_ns > stage->slowest_ns ? ended_ns - begun_ns : stage->slowest_ns;
        stage->samples++;
        usleep(50);
    }
    return nothing;
}

/* ---------------------------------------------------------------------------------------------- working ---------- */

static gms_status seal(gms_session *session, gms_pool *kv, uint32_t slot, gms_cu_stream stream, struct gms_error *error)
{
    struct gms_block block = {.token_count = 16, .part_count = 1};
    gms_cu_pointer target = (uintptr_t)kv_address + (uint64_t)slot * RECLAIM_BLOCK_BYTES;
    uint64_t words = RECLAIM_BLOCK_BYTES / sizeof(uint64_t);
    uint64_t value = stage->incarnation << 32 | slot;
    void *arguments[] = {&target, &words, &value};
    gms_token token = gms_step_begin(session);
    gms_status status = gms_slot_acquire(kv, slot, &block.parts[0].generation);

    if (status != GMS_OK) {
        return gms_fail(error, status, "slot %u cannot be leased", slot);
    }
    gpu_launch(&gpu, gpu.fill, 1, 128, stream, arguments);
    CU(gpu.stream_sync(stream));
    gms_step_complete(session, token);
    memcpy(block.hash, &value, sizeof(value));
    block.hash[GMS_BLOCK_HASH_BYTES - 1] = 1;
    block.parts[0].pool = gms_pool_index(kv);
    block.parts[0].slot = slot;
    status = gms_block_seal(session, &block, token);
    return status == GMS_OK ? GMS_OK : gms_fail(error, status, "slot %u cannot be sealed", slot);
}

/* Host memory of the group: descriptors and mappings of memory files. What the driver has open stays. */
static void give_memory_back(void)
{
    char line[512];
    DIR *descriptors = opendir("/proc/self/fd");
    FILE *maps = fopen("/proc/self/maps", "re");

    for (struct dirent *entry = NULL; descriptors != NULL && (entry = readdir(descriptors)) != NULL;) {
        char target[16] = "";

        if (readlinkat(dirfd(descriptors), entry->d_name, target, sizeof(target)) > 7 &&
            memcmp(target, "/memfd:", 7) == 0) {
            close(atoi(entry->d_name));
        }
    }
    while (maps != NULL && fgets(line, sizeof(line), maps) != NULL) {
        unsigned long from = 0;
        unsigned long to = 0;

        if (strstr(line, "/memfd:") != NULL && sscanf(line, "%lx-%lx", &from, &to) == 2) {
            munmap((void *)from, to - from);
        }
    }
}

static void fork_child(void)
{
    const pid_t child = fork();

    if (child != 0) {
        if (stage->child != CHILD_OF_COHORT) {
            (void)waitpid(child, NULL, 0);
        }
        return;
    }
    prctl(PR_SET_PDEATHSIG, 0);
    if (stage->child != CHILD_OF_COHORT) {
        const pid_t grandchild = fork();

        if (grandchild != 0) {
            stage->child_pid = grandchild;
            _exit(0);
        }
        prctl(PR_SET_PDEATHSIG, 0);
        if (stage->child == CHILD_ESCAPED) {
            give_memory_back();
        }
        stage->child_ready = 1;
        usleep(stage->child_ms * 1000);
        _exit(0);
    }
    for (;;) {
        pause();
    }
}

/* All that will ever run is queued when this returns; the end comes from outside, in the middle of it. */
static gms_status work(gms_session *session, gms_pool *kv, struct gms_error *error)
{
    const uint32_t leased = stage->first_slot + RECLAIM_GROUP;
    const uint32_t released = leased + RECLAIM_GROUP;
    uint64_t generations[2 * RECLAIM_GROUP];
    uint64_t page_words = RECLAIM_BLOCK_BYTES / sizeof(uint64_t);
    uint64_t life_ns = KERNEL_MS * GMS_NS_PER_MS;
    gms_cu_stream streams[STREAMS];
    gms_status status = GMS_OK;

    for (int i = 0; i < STREAMS; i++) {
        CU(gpu.stream_create(&streams[i], 1));
    }
    for (uint32_t i = 0; i < RECLAIM_GROUP && status == GMS_OK; i++) {
        status = seal(session, kv, stage->first_slot + i, streams[0], error);
    }
    for (uint32_t i = 0; i < 2 * RECLAIM_GROUP && status == GMS_OK; i++) {
        status = gms_slot_acquire(kv, leased + i, &generations[i]);
    }
    if (status != GMS_OK) {
        return gms_fail(error, status, "the slots from %u on cannot be had", stage->first_slot);
    }
    if (stage->child != CHILD_NONE) {
        fork_child();
    }
    while (stage->child > CHILD_OF_COHORT && !stage->child_ready) {
        usleep(1000);
    }
    const gms_token token = gms_step_begin(session);
    stage->end_ns = gms_clock_ns() + stage->life_ms * GMS_NS_PER_MS;
    for (uint32_t queued_ms = 0; queued_ms < stage->life_ms; queued_ms += KERNEL_MS) {
        for (int i = 0; i < STREAMS; i++) {
            gms_cu_pointer target =
                (uintptr_t)kv_address + (uint64_t)(i == 0 ? leased : released) * RECLAIM_BLOCK_BYTES;
            void *arguments[] = {&target, &page_words, &life_ns};

            gpu_launch(&gpu, gpu.write_for, RECLAIM_GROUP, 128, streams[i], arguments);
        }
    }
    for (uint32_t i = 0; i < RECLAIM_GROUP && status == GMS_OK; i++) {
        status = gms_slot_release(kv, released + i, generations[RECLAIM_GROUP + i], token);
    }
    if (status != GMS_OK) {
        return gms_fail(error, status, "the slots from %u on cannot be released", released);
    }
    stage->at = RECLAIM_WORKING;
    for (;;) {
        gms_progress(session);
        usleep(1000);
    }
}

/* ---------------------------------------------------------------------------------------------- its life --------- */

static gms_status live(struct gms_error *error)
{
    const struct gms_open_options options = {
        .run_dir = stage->run_dir, .engine_id = (int32_t)stage->engine, .launch = stage->launch};
    const struct gms_identity identity = {.model = "gpu-reclaim",
                                          .dtype = "u64",
                                          .layout = "time",
                                          .hash_algorithm = "none",
                                          .engine_name = "gpu-reclaim",
                                          .engine_version = "1",
                                          .block_tokens = 16,
                                          .world_size = 1};
    const struct gms_pool_description description = {
        .name = "kv", .kind = GMS_POOL_KV, .slot_count = RECLAIM_SLOTS, .block_bytes = RECLAIM_BLOCK_BYTES};
    gms_session *session = NULL;
    gms_pool *kv = NULL;
    struct gms_membership membership;
    struct gms_promotion promotion;
    struct gms_adoption adoption;
    pthread_t watcher;
    gms_status status = gms_open(&options, &session, error);

    if (status == GMS_OK) {
        status = gms_join(session, &identity, &membership, error);
    }
    if (status == GMS_OK) {
        status = gms_pool_attach(session, &description, &kv, error);
    }
    if (status == GMS_OK) {
        status = gms_park(session, error);
    }
    if (status != GMS_OK) {
        return status;
    }
    stage->incarnation = membership.incarnation;
    kv_address = gms_pool_address(kv);
    if (pthread_create(&watcher, NULL, watch, NULL) != 0) {
        return gms_fail(error, GMS_E_SYSTEM, "no thread to watch pages");
    }
    stage->at = RECLAIM_PARKED;
    status = gms_wait_promotion(session, -1, &promotion, error);
    if (status == GMS_OK) {
        status = gms_adopt(session, &adoption, error);
    }
    if (status == GMS_OK) {
        status = gms_wake(session, error);
    }
    if (status == GMS_OK) {
        status = gms_serve(session, "gpu-reclaim", error);
    }
    if (status != GMS_OK) {
        return status;
    }
    stage->at = RECLAIM_SERVING;
    while (!stage->work_now) {
        struct pollfd news = {.fd = gms_event_fd(session), .events = POLLIN};

        gms_progress(session);
        if (poll(&news, 1, 2) > 0) {
            (void)gms_wait_promotion(session, 0, &promotion, error);
        }
    }
    return work(session, kv, error);
}

int reclaim_engine(const char *stage_path)
{
    struct gms_error error = {0};

    stage = reclaim_stage_map(stage_path);
    if (stage == NULL) {
        return 1;
    }
    snprintf(stage->text, sizeof(stage->text), "the GPU cannot be used; its log says why");
    gpu_open(&gpu);
    const gms_status status = live(&error);
    snprintf(stage->text, sizeof(stage->text), "%s: %.200s", gms_status_name(status), error.text);
    stage->at = RECLAIM_FAILED;
    return 1;
}
