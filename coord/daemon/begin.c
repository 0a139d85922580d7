/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/begin.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/run_dir.h"
#include "daemon/earlier.h"

enum { REFILL_MS = 3000, REFILL_PAUSE_MS = 20 };

gms_status gms_begin_open_store(struct start *start, bool fresh, struct gms_error *ret_error)
{
    char path[GMS_RUN_PATH_BYTES];
    gms_status status = gms_run_dir_path(start->config->run_dir, "store.", (int32_t)start->rank, path, ret_error);
    if (status != GMS_OK)
        return status;
    const struct gms_store_options store = {.path = path,
                                            .world = start->world,
                                            .keeper = start->keeper.keeper,
                                            .mirror_world = start->keeper.mirror_world,
                                            .mirror_round = start->keeper.mirror_round,
                                            .fresh = fresh,
                                            .ret_doubt = &start->doubt};
    status = gms_store_open(&store, &start->store, ret_error);
    if (status == GMS_OK && gms_store_note(start->store)[0] != '\0')
        gms_log(GMS_LOG_NOTICE, "%s", gms_store_note(start->store));
    return status;
}

/* Does the keeper have the memory and sessions that the snapshot speaks of? */
static bool copies_suffice(const struct start *start, const struct gms_snapshot_view *view)
{
    return gms_copies_count_kind(start->copies, "pool") >= view->pools &&
           gms_copies_count_kind(start->copies, "session") >= view->engines;
}

/* A keeper that knows nothing of a rank that has stored something is new: whoever has copies brings them now. */
static gms_status load_copies(struct start *start, const struct gms_snapshot_view *view, struct gms_error *ret_error)
{
    uint64_t deadline_ns = gms_clock_ns() + REFILL_MS * GMS_NS_PER_MS;
    gms_status status = gms_copies_load(start->copies, ret_error);
    if (start->keeper.mirror_world != 0)
        return status;
    while (status == GMS_OK && !copies_suffice(start, view) && gms_clock_ns() < deadline_ns) {
        poll(NULL, 0, REFILL_PAUSE_MS); /* the keeper has no way to call us; this is the rare case */
        status = gms_copies_load(start->copies, ret_error);
    }
    return status;
}

/* What this rank has, without changing anything. */
static gms_status look_around(struct start *start, struct gms_snapshot_view *ret_view, struct gms_error *ret_error)
{
    gms_status status = GMS_OK;
    if (start->arguments->fresh)
        status = gms_earlier_give_up(&start->keeper, start->config->run_dir, ret_error);
    if (status == GMS_OK)
        status = gms_copies_open(&start->keeper, start->rank, &start->copies, ret_error);
    if (status != GMS_OK)
        return status;
    struct gms_error error;
    status = gms_begin_open_store(start, start->arguments->fresh, &error);
    if (status == GMS_OK)
        status = gms_store_snapshot(start->store, &start->snapshot, &start->snapshot_bytes, &error);
    if (status == GMS_OK && start->snapshot_bytes > 0) {
        status = gms_snapshot_look(start->snapshot, start->snapshot_bytes, ret_view);
        if (status != GMS_OK) {
            gms_fail(&error, status, "its snapshot cannot be read: %s", gms_status_text(status));
            start->doubt = GMS_STORE_DAMAGED;
        }
    }
    if (status != GMS_OK && start->doubt == GMS_STORE_TRUSTED) {
        if (ret_error != NULL)
            *ret_error = error;
        return status;
    }
    if (status != GMS_OK) {
        snprintf(start->doubt_text, sizeof start->doubt_text, "%s", error.text);
        gms_store_close(start->store);
        start->store = NULL;
        free(start->snapshot);
        start->snapshot = NULL;
        start->snapshot_bytes = 0;
        memset(ret_view, 0, sizeof *ret_view);
    }
    return load_copies(start, ret_view, ret_error);
}

/* Does the keeper remember a later state than the store's? */
static bool is_older(const struct start *start, const struct gms_snapshot_view *view)
{
    const struct gms_keeper_client *keeper = &start->keeper;
    return keeper->mirror_round != 0 && (keeper->mirror_world > view->world ||
                                         (keeper->mirror_world == view->world && keeper->mirror_round > view->round));
}

static enum gms_recovery_doubt doubt_of(struct start *start, const struct gms_snapshot_view *view)
{
    static const enum gms_recovery_doubt doubts[] = {[GMS_STORE_TRUSTED] = GMS_DOUBT_NONE,
                                                     [GMS_STORE_MISSING] = GMS_DOUBT_MISSING,
                                                     [GMS_STORE_DAMAGED] = GMS_DOUBT_DAMAGED,
                                                     [GMS_STORE_OTHER_BOOT] = GMS_DOUBT_OTHER_BOOT};
    if (start->doubt != GMS_STORE_TRUSTED)
        return doubts[start->doubt];
    if (gms_copies_count_kind(start->copies, "pool") < view->pools) {
        snprintf(start->doubt_text, sizeof start->doubt_text,
                 "the keeper does not have the memory that the store speaks of");
        return GMS_DOUBT_MEMORY_LOST;
    }
    if (start->arguments->fresh || !is_older(start, view))
        return GMS_DOUBT_NONE;
    snprintf(start->doubt_text, sizeof start->doubt_text,
             "the store has the state after round %llu of world %llu, but the keeper has been told of round %llu of "
             "world %llu: it is an older copy",
             (unsigned long long)view->round, (unsigned long long)view->world,
             (unsigned long long)start->keeper.mirror_round, (unsigned long long)start->keeper.mirror_world);
    return GMS_DOUBT_OLDER;
}

/* Every rank says what it has, and all conclude the same. */
static gms_status decide(struct start *start, const struct gms_snapshot_view *view, struct gms_error *ret_error)
{
    uint32_t ranks = start->config->ranks;
    const bool fresh = start->arguments->fresh; /* the operator's word: whatever there is, is given up */
    const bool has_store = start->store != NULL && !gms_store_is_new(start->store);
    struct gms_recovery_report mine = {.version = GMS_RECOVERY_REPORT_VERSION,
                                       .rank = start->rank,
                                       .has_store = has_store,
                                       .doubt = doubt_of(start, view),
                                       .prepared = view->prepared,
                                       .accept_loss = start->arguments->accept_store_loss,
                                       .store_world = has_store ? gms_store_world(start->store) : 0,
                                       .world = view->world,
                                       .round = view->round,
                                       .state_digest = view->digest,
                                       .mirror_world = start->keeper.mirror_world,
                                       .mirror_round = fresh ? 0 : start->keeper.mirror_round};
    if (!fresh && gms_copies_count(start->copies, "") > 0)
        mine.keeper_holds = GMS_HOLDS_KEPT;
    else if (!fresh && view->engines > 0) /* a session that nobody has kept is not one that has ended */
        mine.keeper_holds = GMS_HOLDS_UNSEEN;
    struct gms_recovery_report *reports = calloc(ranks, sizeof *reports);
    if (reports == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for %u reports", ranks);
    gms_status status = gms_round_gather(start->round, &mine, sizeof mine, reports, ret_error);
    if (status == GMS_OK) /* else MPI may still write there */
        gms_recovery_decide(reports, ranks, &start->decision);
    if (status == GMS_OK)
        free(reports);
    if (status == GMS_OK && mine.doubt != GMS_DOUBT_NONE)
        gms_log(GMS_LOG_WARNING, "%s", start->doubt_text);
    if (status == GMS_OK && start->decision.verdict == GMS_RECOVERY_REFUSE)
        return gms_fail(ret_error, GMS_E_IN_DOUBT, "%s", start->decision.text);
    return status;
}

/* The snapshot to go on from, from the rank that has it. */
static gms_status share_snapshot(struct start *start, struct gms_error *ret_error)
{
    uint32_t root = start->decision.from_rank;
    uint64_t bytes = start->rank == root ? start->snapshot_bytes : 0;
    if (start->decision.verdict == GMS_RECOVERY_FRESH)
        return GMS_OK;
    gms_status status = gms_round_share_from(start->round, root, &bytes, sizeof bytes, ret_error);
    if (status == GMS_OK && (bytes == 0 || bytes > GMS_SNAPSHOT_MAX_BYTES))
        status = gms_fail(ret_error, GMS_E_DIVERGED, "rank %u shares a snapshot of %llu bytes", root,
                          (unsigned long long)bytes);
    if (status != GMS_OK)
        return status;
    if (start->rank != root) {
        free(start->snapshot);
        start->snapshot = malloc(bytes);
        start->snapshot_bytes = (uint32_t)bytes;
    }
    struct gms_error mine = {.status = GMS_OK};
    if (start->snapshot == NULL)
        mine.status =
            gms_fail(&mine, GMS_E_NO_MEMORY, "no memory for a snapshot of %llu bytes", (unsigned long long)bytes);
    status = gms_round_concur(start->round, &mine, ret_error);
    if (status == GMS_OK)
        status = gms_round_share_from(start->round, root, start->snapshot, bytes, ret_error);
    return status;
}

/* In what the earlier world ended, for people and for tests that end it at random. */
static void report_state(const struct start *start)
{
    struct gms_snapshot_view view;
    if (gms_snapshot_look(start->snapshot, start->snapshot_bytes, &view) == GMS_OK)
        gms_log(GMS_LOG_NOTICE,
                "the earlier world ended after its round %llu: %u engines, %u pools, %u operations under way, %u "
                "prepared here",
                (unsigned long long)view.round, view.engines, view.pools, view.prepared,
                gms_copies_count(start->copies, "prepared/"));
}

gms_status gms_begin_look_and_decide(struct start *start, struct gms_error *ret_error)
{
    struct gms_snapshot_view view = {0};
    struct gms_error mine;
    mine.status = look_around(start, &view, &mine);
    gms_status status = gms_round_concur(start->round, &mine, ret_error);
    if (status == GMS_OK)
        status = decide(start, &view, ret_error);
    if (status == GMS_OK)
        status = share_snapshot(start, ret_error);
    if (status == GMS_OK && start->rank == 0)
        gms_log(GMS_LOG_NOTICE, "%s", start->decision.text);
    if (status == GMS_OK && start->rank == 0 && start->decision.verdict != GMS_RECOVERY_FRESH)
        report_state(start);
    return status;
}
