/* SPDX-License-Identifier: Apache-2.0
 *
 * The snapshot's reader: any bytes are refused, or are a state that a core can live with, that it writes down again,
 * and that reads back as the same.
 *
 * Input: byte 0, how it is read (which verdict, and whether the digest is made right first, so that mutations come
 * beyond it); then the snapshot.
 */
#include "fuzz.h"

#include <string.h>

#include "core/recovery.h"
#include "core/snapshot.h"

enum { RANKS = 3, DIGEST_RIGHT = 4, BEFORE_DIGEST = GMS_SNAPSHOT_DIGEST_AT + 8 };

static const struct gms_core_options options = {.world = 1,
                                                .world_size = RANKS,
                                                .operation_timeout_ns = 1000000000,
                                                .transfer_stall_ns = 1000000000,
                                                .fence_report_ns = 1000000000,
                                                .reattach_ns = 1000000000};

static void *room(void)
{
    void *memory = malloc(gms_core_bytes());
    FUZZ_CHECK(memory != NULL);
    return memory;
}

static void say(char *into, size_t bytes, const char *text)
{
    memset(into, 0, bytes);
    memcpy(into, text, strlen(text) < bytes ? strlen(text) : bytes - 1);
}

/* Engine 0 serves with two pools, 1 is parked, 2 has just been refused something; transfers are open and ended. */
static void fill(struct gms_core *core)
{
    static const enum gms_role roles[] = {GMS_ROLE_SERVING, GMS_ROLE_PARKED, GMS_ROLE_JOINED};
    core->round = 40;
    core->epoch = 2;
    core->incarnations = 7;
    core->takeover = GMS_TAKEOVER_SERVING;
    core->serving = 0;
    core->successor = -1;
    core->writer_engine = 0;
    core->writer = 5;
    for (uint32_t e = 0; e < 3; e++) {
        struct gms_core_engine *slot = &core->engines[e];
        slot->role = roles[e];
        slot->incarnation = 5 + e;
        slot->launch = 100 + e;
        slot->last.known = slot->last.decided = true;
        slot->last.proposal.key.kind = slot->last.outcome.key.kind = GMS_OPERATION_ALLOCATE;
        slot->last.outcome.status = e == 2 ? GMS_E_NO_CAPACITY : GMS_OK;
        say(slot->last.outcome.text, sizeof slot->last.outcome.text, e == 2 ? "no room on rank 1" : "");
        slot->decided[0].outcome = slot->last.outcome;
        slot->decided_next = 1;
    }
    for (uint32_t i = 0; i < 2; i++) {
        core->pools[i].state = GMS_POOL_READY;
        core->pools[i].attached_mask = 3;
        core->pools[i].creator = 5;
    }
    core->transfers[0].used = true;
    core->transfers[0].incarnation = 5;
    core->transfers[0].id = 9;
    core->ended[0].used = true;
    core->ended[0].incarnation = 5;
    core->ended[0].id = 8;
    core->ended_next = 1;
}

size_t fuzz_seed(size_t index, uint8_t *ret_data, size_t capacity)
{
    static const uint8_t modes[] = {GMS_RECOVERY_RESTORE, DIGEST_RIGHT | GMS_RECOVERY_RESTORE,
                                    DIGEST_RIGHT | GMS_RECOVERY_RENEW, DIGEST_RIGHT | GMS_RECOVERY_SALVAGE};
    if (index >= 2 * sizeof modes || capacity < 1)
        return 0;
    struct gms_core *core = gms_core_init(room(), &options);
    if (index % 2 == 1)
        fill(core);
    ret_data[0] = modes[index / 2];
    size_t bytes = gms_core_snapshot(core, ret_data + 1, capacity - 1);
    free(core);
    FUZZ_CHECK(bytes > 0);
    return 1 + bytes;
}

static void make_right(uint8_t *snapshot, size_t bytes)
{
    uint64_t digest;
    if (bytes < BEFORE_DIGEST)
        return;
    digest = gms_snapshot_digest(snapshot, bytes);
    for (unsigned i = 0; i < 8; i++)
        snapshot[GMS_SNAPSHOT_DIGEST_AT + i] = (uint8_t)(digest >> (8 * i));
}

/* The reader's limit of rounds, epochs and incarnations lies where no group comes to in its life. What is restored goes
 * on from there, after a SALVAGE 2^32 further, so a snapshot close to the limit makes one beyond it. */
static bool has_room(const struct gms_snapshot_view *view)
{
    const uint64_t most = UINT64_MAX / 2 - (UINT64_C(1) << 33);
    return view->round < most && view->epoch < most && view->incarnation < most;
}

/* What a core wrote reads back as what it wrote. */
static void check_written_again(const struct gms_core *core)
{
    static uint8_t first[GMS_SNAPSHOT_MAX_BYTES], second[GMS_SNAPSHOT_MAX_BYTES];
    struct gms_snapshot_view view;
    size_t bytes = gms_core_snapshot(core, first, sizeof first);
    FUZZ_CHECK(bytes > 0);
    FUZZ_CHECK(gms_snapshot_look(first, bytes, &view) == GMS_OK);
    struct gms_core *other = gms_core_init(room(), &options);
    FUZZ_CHECK(gms_snapshot_read(first, bytes, other, &view) == GMS_OK);
    other->options.world = core->options.world; /* the driver's */
    FUZZ_CHECK(gms_core_snapshot(other, second, sizeof second) == bytes);
    FUZZ_CHECK(memcmp(first, second, bytes) == 0);
    free(other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct gms_actions actions;
    struct gms_snapshot_view view;
    if (bytes < 1 || bytes > GMS_SNAPSHOT_MAX_BYTES)
        return 0;
    uint8_t *snapshot = malloc(bytes); /* of its own size: a read past the end is seen */
    FUZZ_CHECK(snapshot != NULL);
    bytes--;
    memcpy(snapshot, data + 1, bytes);
    if (data[0] & DIGEST_RIGHT)
        make_right(snapshot, bytes);
    const enum gms_recovery_verdict verdict = (enum gms_recovery_verdict)(data[0] % 4);
    gms_status looked = gms_snapshot_look(snapshot, bytes, &view);
    struct gms_core_options next = options;
    next.world = 2;
    struct gms_core *core = NULL;
    void *memory = room();
    gms_status status = gms_core_restore(memory, &next, verdict, snapshot, bytes, 1, &core, &actions);
    if (status == GMS_OK) {
        FUZZ_CHECK(looked == GMS_OK);
        FUZZ_CHECK(verdict != GMS_RECOVERY_FRESH);
        if (has_room(&view))
            check_written_again(core);
        const struct gms_event tick = {.type = GMS_EVENT_TICK, .now_ns = UINT64_MAX / 2};
        gms_core_step(core, &tick, &actions);
        if (has_room(&view))
            check_written_again(core);
    }
    free(memory);
    free(snapshot);
    return 0;
}
