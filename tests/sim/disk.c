/* SPDX-License-Identifier: Apache-2.0
 * Stores of ranks, their loss, and round 0 of the next world. */
#include "checks.h"
#include "memory.h"

#include <stdlib.h>
#include <string.h>

#include "core/core_state.h"

static struct cluster_image *hold(struct cluster_image *image)
{
    if (image)
        image->references++;
    return image;
}

static void drop(struct cluster_image **image)
{
    if (*image && !--(*image)->references)
        free(*image);
    *image = NULL;
}

static void set(struct cluster_disk *disk, struct cluster_image *image)
{
    drop(&disk->previous);
    disk->previous = disk->durable;
    disk->durable = image;
    disk->world = image->when.world;
}

bool cluster_is_later(struct cluster_when a, struct cluster_when b)
{
    return a.world > b.world || (a.world == b.world && a.round > b.round);
}

struct cluster_when cluster_latest(const struct cluster *cluster)
{
    struct cluster_when latest = {0};

    for (uint32_t r = 0; r < cluster->ranks; r++)
        if (cluster->disks[r].durable && cluster_is_later(cluster->disks[r].durable->when, latest))
            latest = cluster->disks[r].durable->when;
    return latest;
}

void cluster_disk_free(struct cluster_disk *disk)
{
    while (disk->queued)
        drop(&disk->queue[--disk->queued].image);
    drop(&disk->durable);
    drop(&disk->previous);
    drop(&disk->aside);
}

/* ------------------------------------------------------------------------------------------------- storing ---- */

/* Ranks that completed the same round write the same bytes. */
static void check_image(struct cluster *cluster, uint32_t rank, const struct cluster_image *image)
{
    uint64_t round = cluster->cores[rank]->round, digest;
    uint32_t at = (uint32_t)(round % CLUSTER_ROUNDS);

    memcpy(&digest, image->data + 16, sizeof digest);
    if (cluster->snapshots[at].round == round && cluster->snapshots[at].digest != digest)
        cluster_fail(cluster, "rank %u: its snapshot before round %llu differs from another rank's", rank,
                     (unsigned long long)round);
    cluster->snapshots[at].round = round;
    cluster->snapshots[at].digest = digest;
}

void cluster_disk_begin(struct cluster *cluster, uint32_t rank)
{
    static uint8_t buffer[GMS_SNAPSHOT_MAX_BYTES];
    struct cluster_disk *disk = &cluster->disks[rank];
    size_t bytes = gms_core_snapshot(cluster->cores[rank], buffer, sizeof buffer);
    struct cluster_image *image = bytes ? malloc(sizeof *image + bytes) : NULL;

    if (!image || disk->queued == CLUSTER_TRANSACTIONS) {
        cluster_fail(cluster, "rank %u: no snapshot, no memory, or too many transactions", rank);
        free(image);
        return;
    }
    image->references = 1;
    image->bytes = bytes;
    image->when = (struct cluster_when){cluster->options.world, cluster->cores[rank]->round - 1};
    memcpy(image->data, buffer, bytes);
    check_image(cluster, rank, image);
    disk->queue[disk->queued].transaction = ++disk->transactions;
    disk->queue[disk->queued++].image = image;
}

/* Takes the oldest out of the queue. */
static struct cluster_image *next_image(struct cluster_disk *disk)
{
    struct cluster_image *image = disk->queue[0].image;

    memmove(&disk->queue[0], &disk->queue[1], --disk->queued * sizeof disk->queue[0]);
    return image;
}

static void make_durable(struct cluster_disk *disk, uint64_t transaction)
{
    while (disk->queued && disk->queue[0].transaction <= transaction) {
        disk->durable_transaction = disk->queue[0].transaction;
        set(disk, next_image(disk));
    }
}

void cluster_disk_answer(struct cluster *cluster, uint32_t rank, struct gms_event *event)
{
    struct cluster_disk *disk = &cluster->disks[rank];
    uint32_t at = cluster->store_count;

    while (at-- > 0)
        if (!cluster->stores[at].inherited && cluster->stores[at].rank == rank &&
            cluster->stores[at].ticket == event->ticket)
            break;
    if (at == UINT32_MAX) {
        cluster_fail(cluster, "rank %u: an answer to no record", rank);
        return;
    }
    uint64_t transaction = cluster->stores[at].transaction;
    if (cluster->stores[at].failed) {
        event->type = GMS_EVENT_STORE_FAILED;
        return;
    }
    if (event->type == GMS_EVENT_STORED || disk->durable_transaction >= transaction) {
        event->type = GMS_EVENT_STORED;
        make_durable(disk, transaction);
        disk->told = disk->mirror = disk->durable->when;
        cluster->stores[at].stored = true;
        return;
    }
    for (uint32_t i = 0; i < cluster->store_count; i++)
        if (!cluster->stores[i].inherited && cluster->stores[i].rank == rank &&
            cluster->stores[i].transaction == transaction)
            cluster->stores[i].failed = true;
    if (disk->queued && disk->queue[0].transaction == transaction) {
        struct cluster_image *image = next_image(disk);
        drop(&image);
    }
}

/* ------------------------------------------------------------------------------------------------- ends ------- */

void cluster_kill(struct cluster *cluster, uint32_t rank, uint32_t actions)
{
    if (cluster->actions_left[rank] > actions)
        cluster->actions_left[rank] = actions;
    if (!actions)
        cluster->dead[rank] = true;
}

void cluster_crash(struct cluster *cluster, const uint32_t *survivors)
{
    for (uint32_t r = 0; r < cluster->ranks; r++) {
        struct cluster_disk *disk = &cluster->disks[r];
        uint32_t keep = survivors && survivors[r] < disk->queued ? survivors[r] : disk->queued;

        if (keep)
            make_durable(disk, disk->queue[keep - 1].transaction);
        while (disk->queued) {
            struct cluster_image *image = next_image(disk);
            drop(&image);
        }
        cluster->dead[r] = true;
    }
    cluster->item_count = 0;
    cluster_memory_crash(cluster);
}

void cluster_lose(struct cluster *cluster, uint32_t rank, enum gms_recovery_doubt how)
{
    struct cluster_disk *disk = &cluster->disks[rank];

    if (disk->doubt) {
        drop(&disk->durable);
        disk->durable = disk->aside;
        disk->world = disk->aside_world;
        disk->aside = NULL;
    }
    disk->doubt = how;
    if (how == GMS_DOUBT_NONE)
        return;
    disk->aside = hold(disk->durable);
    disk->aside_world = disk->world;
    if (how == GMS_DOUBT_MEMORY_LOST)
        return;
    drop(&disk->durable);
    if (how == GMS_DOUBT_OLDER)
        disk->durable = hold(disk->previous);
    else
        disk->world = 0;
}

void cluster_forget_mirror(struct cluster *cluster, uint32_t rank)
{
    cluster->disks[rank].mirror = (struct cluster_when){0};
}

static bool holds(const struct cluster *cluster, uint32_t rank)
{
    for (uint32_t i = 0; i < cluster->effect_count; i++)
        if (cluster->effects[i].on[rank] != CLUSTER_EFFECT_NONE)
            return true;
    return false;
}

void cluster_reports(const struct cluster *cluster, struct gms_recovery_report *reports)
{
    memset(reports, 0, cluster->ranks * sizeof reports[0]);
    for (uint32_t r = 0; r < cluster->ranks; r++) {
        const struct cluster_disk *disk = &cluster->disks[r];
        struct gms_snapshot_view view;

        reports[r].version = GMS_RECOVERY_REPORT_VERSION;
        reports[r].rank = r;
        reports[r].doubt = disk->doubt;
        reports[r].has_store = disk->world != 0;
        reports[r].store_world = disk->world;
        reports[r].mirror_world = disk->mirror.world;
        reports[r].mirror_round = disk->mirror.round;
        reports[r].keeper_holds = holds(cluster, r) ? GMS_HOLDS_KEPT : GMS_HOLDS_NOTHING;
        if (!disk->durable || gms_snapshot_look(disk->durable->data, disk->durable->bytes, &view) != GMS_OK)
            continue;
        reports[r].prepared = view.prepared;
        reports[r].world = view.world;
        reports[r].round = view.round;
        reports[r].state_digest = view.digest;
    }
}

/* ------------------------------------------------------------------------------------------------- beginnings - */

/* What `from` has stored is from now on every rank's. */
static void inherit(struct cluster *cluster, const struct gms_recovery_decision *decision)
{
    uint64_t durable = cluster->disks[decision->from_rank].durable_transaction;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < cluster->store_count; i++) {
        bool stored = cluster->stores[i].inherited || /* a failed record too: later snapshots have what it said */
                      (cluster->stores[i].rank == decision->from_rank && cluster->stores[i].transaction <= durable);

        if (!stored || cluster->stores[i].kind == GMS_STORE_PREPARED || decision->verdict == GMS_RECOVERY_FRESH)
            continue; /* a vote needs a record of its own world */
        cluster->stores[kept] = cluster->stores[i];
        cluster->stores[kept].ticket = 0;
        cluster->stores[kept++].inherited = true;
    }
    cluster->store_count = kept;
}

static void begin(struct cluster *cluster)
{
    cluster->worlds++;
    cluster->options.world++;
    cluster->item_count = 0;
    cluster->round_waits = cluster->bulk_waits = cluster->ranks;
    for (uint32_t r = 0; r < cluster->ranks; r++) {
        cluster->in_round[r] = cluster->in_bulk[r] = cluster->dead[r] = cluster->shut_down[r] = false;
        cluster->actions_left[r] = UINT32_MAX;
        cluster->last_epoch[r] = cluster->ring_due[r] = 0;
    }
    memset(cluster->snapshots, 0, sizeof cluster->snapshots);
    memset(cluster->views, 0, sizeof cluster->views);
    for (uint32_t i = 0; i < cluster->effect_count; i++)
        cluster->effects[i].named = false;
}

/* The rank's core in the new world, and its snapshot in the rank's store. */
static void restore_rank(struct cluster *cluster, uint32_t rank, enum gms_recovery_verdict verdict,
                         const struct cluster_image *image)
{
    struct gms_core_options own = cluster->options;
    struct gms_core *core = NULL;

    own.rank = rank;
    cluster->actions->count = 0;
    if (verdict == GMS_RECOVERY_FRESH) {
        gms_core_init(cluster->cores[rank], &own);
        cluster->disks[rank].mirror = cluster->disks[rank].told = (struct cluster_when){own.world, 0};
        if (!cluster->disks[rank].world || own.life == own.world) /* it is not of this life */
            cluster->disks[rank].world = own.world;
        return;
    }
    gms_status status = gms_core_restore(cluster->cores[rank], &own, verdict, image->data, image->bytes,
                                         cluster->now_ns, &core, cluster->actions);
    if (status != GMS_OK) {
        cluster_fail(cluster, "rank %u: restore answers %d", rank, status);
        return;
    }
    cluster_disk_begin(cluster, rank);
    make_durable(&cluster->disks[rank], UINT64_MAX);
    cluster->disks[rank].mirror = cluster->disks[rank].told = cluster->disks[rank].durable->when;
}

/* Calls can be asked for again only by who lives: by whom is still to join. */
static void new_life(struct cluster *cluster)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < cluster->decided_count; i++) {
        if (cluster->decided[i].outcome.key.incarnation)
            continue;
        cluster->decided[kept] = cluster->decided[i];
        cluster->decided[kept].closed = true;
        cluster->decided[kept++].past = true;
    }
    cluster->decided_count = kept;
}

/* Nobody who had joined lives. */
static void nobody_lives(struct cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->decided_count; i++)
        cluster->decided[i].closed = true;
    for (uint32_t place = 1; place < CLUSTER_INCARNATIONS; place++) {
        if (cluster->incarnations[place].promoted)
            cluster->incarnations[place].condemned = true;
        cluster_put_all(&cluster->incarnations[place].retired, cluster->ranks);
    }
}

/* The operator's word: nothing that was told is certain any more, but nobody who was told it may live on. */
static void salvaged(struct cluster *cluster)
{
    struct gms_core_view view = cluster_look(cluster, 0);

    nobody_lives(cluster);
    new_life(cluster);
    cluster->effect_count = 0;
    for (uint32_t e = 0; e < GMS_MAX_ENGINES && cluster->store_count < cluster->store_capacity; e++) {
        memset(&cluster->stores[cluster->store_count], 0, sizeof cluster->stores[0]);
        cluster->stores[cluster->store_count].kind = GMS_STORE_CONDEMNED;
        cluster->stores[cluster->store_count].incarnation = view.engines[e].incarnation;
        cluster->stores[cluster->store_count++].inherited = true;
    }
}

void cluster_restart_in_vain(struct cluster *cluster, const struct gms_recovery_decision *decision, uint32_t ranks)
{
    struct cluster_image *image = hold(cluster->disks[decision->from_rank].durable);

    if (cluster->fault[0] || decision->verdict == GMS_RECOVERY_REFUSE || !image)
        return;
    inherit(cluster, decision);
    begin(cluster);
    for (uint32_t r = 0; r < cluster->ranks; r++)
        if (ranks >> (r % 32) & 1)
            restore_rank(cluster, r, decision->verdict, image);
    drop(&image);
    for (uint32_t r = 0; r < cluster->ranks; r++)
        cluster->dead[r] = true;
}

void cluster_restart(struct cluster *cluster, const struct gms_recovery_decision *decision)
{
    struct cluster_image *image;

    if (cluster->fault[0] || decision->verdict == GMS_RECOVERY_REFUSE)
        return;
    for (uint32_t r = 0; r < cluster->ranks; r++) { /* a rank in doubt gets what is restored */
        cluster->disks[r].doubt = GMS_DOUBT_NONE;
        drop(&cluster->disks[r].aside);
    }
    if (decision->verdict == GMS_RECOVERY_FRESH || decision->verdict == GMS_RECOVERY_RENEW)
        cluster_memory_lost(cluster);
    else if (decision->verdict == GMS_RECOVERY_SALVAGE)
        cluster_memory_distrust(cluster);
    image = decision->verdict == GMS_RECOVERY_FRESH ? NULL : hold(cluster->disks[decision->from_rank].durable);
    inherit(cluster, decision);
    begin(cluster);
    cluster->options.life = decision->life ? decision->life : cluster->options.world;
    for (uint32_t r = 0; r < cluster->ranks && !cluster->fault[0]; r++)
        restore_rank(cluster, r, decision->verdict, image);
    if (decision->verdict == GMS_RECOVERY_FRESH && !decision->life)
        new_life(cluster);
    if (decision->verdict == GMS_RECOVERY_SALVAGE)
        salvaged(cluster);
    if (decision->verdict == GMS_RECOVERY_RENEW)
        nobody_lives(cluster);
    if (!cluster->fault[0])
        cluster_check_restored(cluster);
    for (uint32_t r = 0; r < cluster->ranks && !cluster->fault[0]; r++) {
        restore_rank(cluster, r, decision->verdict, image); /* for its actions */
        cluster_act(cluster, r);
        cluster_check_digest(cluster, r);
        for (uint32_t i = 0; i < cluster->effect_count && !cluster->dead[r]; i++) /* what no action named is dropped */
            if (!cluster->effects[i].named && cluster->effects[i].on[r] == CLUSTER_EFFECT_PREPARED)
                cluster->effects[i].on[r] = CLUSTER_EFFECT_NONE;
    }
    drop(&image);
}

void cluster_forget_everything(struct cluster *cluster)
{
    for (uint32_t r = 0; r < cluster->ranks; r++) {
        struct cluster_disk *disk = &cluster->disks[r];

        cluster_lose(cluster, r, GMS_DOUBT_NONE);
        drop(&disk->durable);
        drop(&disk->previous);
        disk->world = 0;
        disk->told = disk->mirror = (struct cluster_when){0};
    }
    new_life(cluster);
    memset(cluster->incarnations, 0, CLUSTER_INCARNATIONS * sizeof cluster->incarnations[0]);
    cluster->told_epoch = cluster->told_incarnation = 0;
    cluster->served_count = cluster->store_count = cluster->effect_count = 0;
    cluster->done_count = 0;
}

void cluster_bounce(struct cluster *cluster, const uint32_t *survivors)
{
    struct gms_recovery_report reports[CLUSTER_RANKS];
    struct gms_recovery_decision decision;

    cluster_crash(cluster, survivors);
    cluster_reports(cluster, reports);
    gms_recovery_decide(reports, cluster->ranks, &decision);
    if (decision.verdict == GMS_RECOVERY_REFUSE)
        cluster_fail(cluster, "nothing was lost, but: %s", decision.text);
    cluster_restart(cluster, &decision);
    cluster_settle(cluster);
}
