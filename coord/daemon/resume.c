/* SPDX-License-Identifier: Apache-2.0
 *
 * Going on from an earlier world: the core from the snapshot, memory and members from the copies, then what the
 * restored core wants done, and at last away with what the group does not know.
 */
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "daemon/daemon_state.h"
#include "daemon/reclaim.h"

static gms_status make_core(struct gms_daemon *daemon, const struct gms_core_options *options,
                            struct gms_error *ret_error)
{
    const struct gms_daemon_options *given = &daemon->options;
    size_t bytes = (gms_core_bytes() + 63) / 64 * 64;
    daemon->core_memory = aligned_alloc(64, bytes);
    if (daemon->core_memory == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the core (%zu bytes)", bytes);
    memset(daemon->core_memory, 0, bytes);
    if (given->verdict == GMS_RECOVERY_FRESH) {
        daemon->core = gms_core_init(daemon->core_memory, options);
        return GMS_OK;
    }
    gms_status status = gms_core_restore(daemon->core_memory, options, given->verdict, given->snapshot,
                                         given->snapshot_bytes, gms_clock_ns(), &daemon->core, &daemon->actions);
    if (status == GMS_OK)
        return GMS_OK;
    return gms_fail(ret_error, status, "the stored state (%zu bytes) cannot be gone on from: %s", given->snapshot_bytes,
                    gms_status_text(status));
}

/* What the core begins with is this world's first state, before anybody is told of it: a salvaged group, say, must not
 * be restored as what it was before. */
static gms_status store_first(struct gms_daemon *daemon, struct gms_error *ret_error)
{
    struct gms_core_view view;
    uint64_t number = 0;
    gms_core_look(daemon->core, &view);
    daemon->stored_round = view.next_round - 1;
    if (daemon->options.verdict != GMS_RECOVERY_FRESH) {
        size_t bytes = gms_core_snapshot(daemon->core, daemon->snapshot, sizeof daemon->snapshot);
        if (bytes == 0)
            return gms_fail(ret_error, GMS_E_STORE, "the state does not fit its snapshot (%zu bytes)",
                            sizeof daemon->snapshot);
        gms_status status =
            gms_store_commit(daemon->options.store, NULL, 0, daemon->snapshot, (uint32_t)bytes, &number, ret_error);
        if (status != GMS_OK)
            return status;
    }
    return gms_keeper_mirror(daemon->options.keeper, daemon->stored_round, ret_error);
}

/* Is this incarnation in an engine slot, or are its slots the group's KV? */
static bool is_known(const struct gms_core_view *view, uint64_t incarnation)
{
    if (incarnation == view->writer_incarnation)
        return true;
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++)
        if (view->engines[engine].role != GMS_ROLE_EMPTY && view->engines[engine].incarnation == incarnation)
            return true;
    return false;
}

/* Every member can be fenced, whether the group knows it or not. */
static gms_status take_up_members(struct gms_daemon *daemon, struct gms_error *ret_error)
{
    gms_members_restore(daemon->members);
    for (struct gms_member *member = gms_members_next(daemon->members, NULL); member != NULL;
         member = gms_members_next(daemon->members, member)) {
        gms_status status = gms_fence_add(daemon->fence, member->engine, member->incarnation, member->pidfd,
                                          &member->container, ret_error);
        if (status != GMS_OK)
            return status;
    }
    return GMS_OK;
}

gms_status gms_daemon_resume_open(struct gms_daemon *daemon, const struct gms_core_options *options,
                                  struct gms_error *ret_error)
{
    gms_status status = make_core(daemon, options, ret_error);
    if (status == GMS_OK)
        status = store_first(daemon, ret_error);
    if (status == GMS_OK)
        status = gms_pools_restore(daemon->pools, ret_error);
    if (status == GMS_OK && daemon->options.verdict == GMS_RECOVERY_SALVAGE)
        gms_pools_distrust(daemon->pools);
    if (status == GMS_OK)
        status = take_up_members(daemon, ret_error);
    return status;
}

/* Members of the group are watched until they come back; who is not a member must end. */
static void sort_members(struct gms_daemon *daemon, const struct gms_core_view *view)
{
    for (struct gms_member *member = gms_members_next(daemon->members, NULL); member != NULL;
         member = gms_members_next(daemon->members, member)) {
        const struct gms_core_engine_view *slot = &view->engines[member->engine];
        if (!is_known(view, member->incarnation)) {
            if (!gms_reclaim_wants(daemon->reclaim, member->incarnation))
                gms_log(GMS_LOG_NOTICE, "engine %u incarnation %llu does not belong to the group any more; it is ended",
                        member->engine, (unsigned long long)member->incarnation);
            gms_fence_start(daemon->fence, member->engine, member->incarnation);
        } else if (slot->incarnation == member->incarnation && slot->role != GMS_ROLE_CONDEMNED) {
            gms_member_set_present(member, false);
        }
    }
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++) {
        const struct gms_core_engine_view *slot = &view->engines[engine];
        if (slot->role == GMS_ROLE_EMPTY || slot->role == GMS_ROLE_CONDEMNED ||
            gms_members_find(daemon->members, slot->incarnation) != NULL)
            continue;
        gms_log(GMS_LOG_WARNING, "engine %u incarnation %llu: nothing is known here of its process; it counts as gone",
                engine, (unsigned long long)slot->incarnation);
        gms_daemon_push_fact(daemon, engine, slot->incarnation, GMS_FACT_GONE);
    }
}

void gms_daemon_resume_begin(struct gms_daemon *daemon)
{
    struct gms_core_view view;
    struct gms_error error;
    daemon->resuming = daemon->running_events = true;
    gms_core_look(daemon->core, &view);
    /* Effects first: what is compared then is whole. Rounds come after it. */
    for (size_t i = 0; i < daemon->actions.count; i++)
        if (daemon->actions.items[i].type == GMS_ACTION_COMMIT || daemon->actions.items[i].type == GMS_ACTION_ABORT ||
            daemon->actions.items[i].type == GMS_ACTION_NOTE)
            gms_daemon_act(daemon, &daemon->actions.items[i]);
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++)
        gms_members_abort(daemon->members, engine);
    if (gms_pools_reconcile(daemon->pools, daemon->core, &error) != GMS_OK)
        gms_daemon_leave(daemon, error.status, error.text);
    sort_members(daemon, &view);
    gms_reclaim_suspects_changed(daemon->reclaim);
    if (view.serving_engine >= 0) {
        const struct gms_member *serving =
            gms_members_find(daemon->members, view.engines[view.serving_engine].incarnation);
        snprintf(daemon->endpoint, sizeof daemon->endpoint, "%s", serving != NULL ? serving->endpoint : "");
        daemon->endpoint_incarnation = view.engines[view.serving_engine].incarnation;
    }
    for (size_t i = 0; i < daemon->actions.count && !daemon->stopped; i++)
        if (daemon->actions.items[i].type != GMS_ACTION_COMMIT && daemon->actions.items[i].type != GMS_ACTION_ABORT &&
            daemon->actions.items[i].type != GMS_ACTION_NOTE)
            gms_daemon_act(daemon, &daemon->actions.items[i]);
    daemon->resuming = daemon->running_events = false;
    gms_daemon_run_events(daemon);
}

void gms_daemon_sweep(struct gms_daemon *daemon)
{
    struct gms_core_view view;
    gms_core_look(daemon->core, &view);
    for (struct gms_member *member = gms_members_next(daemon->members, NULL), *next; member != NULL; member = next) {
        next = gms_members_next(daemon->members, member);
        uint64_t incarnation = member->incarnation;
        if (is_known(&view, incarnation) || gms_reclaim_wants(daemon->reclaim, incarnation) ||
            gms_fence_look(daemon->fence, incarnation, NULL, NULL) != GMS_FENCE_RETIRED)
            continue;
        gms_fence_forget(daemon->fence, incarnation);
        gms_members_forget(daemon->members, incarnation);
    }
}
