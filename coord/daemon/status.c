/* SPDX-License-Identifier: Apache-2.0
 *
 * The status document (coord/README.md). Slot counts are taken from the slot words when asked, not from bookkeeping.
 */
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "daemon/calibration.h"
#include "daemon/daemon_state.h"
#include "daemon/document.h"
#include "daemon/reclaim.h"

static const char *role_name(enum gms_role role)
{
    static const char *const names[GMS_ROLE_COUNT] = {
        [GMS_ROLE_EMPTY] = "empty",       [GMS_ROLE_JOINED] = "joined",   [GMS_ROLE_PARKED] = "parked",
        [GMS_ROLE_PROMOTED] = "promoted", [GMS_ROLE_SERVING] = "serving", [GMS_ROLE_CONDEMNED] = "condemned"};
    return role < GMS_ROLE_COUNT ? names[role] : "unknown";
}

static const char *takeover_name(enum gms_takeover_state state)
{
    static const char *const names[GMS_TAKEOVER_STATE_COUNT] = {[GMS_TAKEOVER_VACANT] = "vacant",
                                                                [GMS_TAKEOVER_FENCING] = "fencing",
                                                                [GMS_TAKEOVER_CLASSIFYING] = "classifying",
                                                                [GMS_TAKEOVER_PROMOTING] = "promoting",
                                                                [GMS_TAKEOVER_SERVING] = "serving"};
    return state < GMS_TAKEOVER_STATE_COUNT ? names[state] : "unknown";
}

static const char *pool_state_name(enum gms_pool_state state)
{
    static const char *const names[GMS_POOL_STATE_COUNT] = {
        [GMS_POOL_ABSENT] = "absent", [GMS_POOL_UNPUBLISHED] = "unpublished", [GMS_POOL_READY] = "ready"};
    return state < GMS_POOL_STATE_COUNT ? names[state] : "unknown";
}

static const char *cause_name(enum gms_fact fact)
{
    static const char *const names[GMS_FACT_COUNT] = {[GMS_FACT_GONE] = "gone",
                                                      [GMS_FACT_STICKY] = "sticky",
                                                      [GMS_FACT_STALLED] = "stalled",
                                                      [GMS_FACT_COMMANDED] = "commanded",
                                                      [GMS_FACT_LEFT] = "left"};
    return fact < GMS_FACT_COUNT && names[fact] != NULL ? names[fact] : "unknown";
}

static const char *container_name(uint32_t kind)
{
    return kind == GMS_CONTAINER_PID_NAMESPACE ? "pid-namespace"
           : kind == GMS_CONTAINER_SUBREAPER   ? "subreaper"
           : kind == GMS_CONTAINER_CGROUP      ? "cgroup"
                                               : "none";
}

static uint64_t progress_of(const struct gms_daemon *daemon, uint64_t incarnation)
{
    for (uint32_t index = 0; index < GMS_MAX_POOLS; index++) {
        const struct gms_directory *directory = gms_pools_directory(daemon->pools, incarnation, index);
        if (directory != NULL)
            return gms_directory_progress_count(directory);
    }
    return 0;
}

static json_t *engines(struct gms_daemon *daemon, const struct gms_core_view *view)
{
    json_t *list = json_array();
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++) {
        const struct gms_core_engine_view *slot = &view->engines[engine];
        if (slot->role == GMS_ROLE_EMPTY)
            continue;
        const struct gms_client *client = gms_sessions_engine(daemon->sessions, engine);
        bool here = client != NULL && client->incarnation == slot->incarnation;
        pid_t pid = 0;
        uint32_t container = 0;
        char waits_for[256];
        gms_fence_look(daemon->fence, slot->incarnation, &pid, &container);
        json_t *item = json_object();
        gms_document_number(item, "engine", engine);
        gms_document_number(item, "incarnation", slot->incarnation);
        gms_document_text(item, "role", role_name(slot->role));
        gms_document_text(item, "launch", here ? client->launch : "");
        json_object_set_new(item, "connected", json_boolean(here));
        gms_document_number(item, "pid", (uint64_t)(pid > 0 ? pid : 0));
        gms_document_text(item, "containment", container_name(container));
        gms_document_number(item, "progress", progress_of(daemon, slot->incarnation));
        gms_fence_waits_for(daemon->fence, slot->incarnation, waits_for, sizeof waits_for);
        gms_document_text(item, "waits_for", waits_for);
        json_t *memory = gms_calibration_engine(daemon->calibration, engine, slot->incarnation);
        if (memory != NULL)
            json_object_set_new(item, "memory", memory);
        json_array_append_new(list, item);
    }
    return list;
}

static json_t *slots(const struct gms_directory *directory)
{
    static const char *const names[] = {
        [GMS_SLOT_IDLE] = "idle",         [GMS_SLOT_LEASED] = "leased",           [GMS_SLOT_SEALED] = "sealed",
        [GMS_SLOT_RELEASED] = "released", [GMS_SLOT_QUARANTINED] = "quarantined", [GMS_SLOT_RETIRED] = "retired"};
    enum { STATES = sizeof names / sizeof names[0], ALL = 1 << GMS_SLOT_STATE_BITS };
    uint64_t counts[ALL] = {0};
    for (uint32_t slot = 0; directory != NULL && slot < directory->slot_count; slot++)
        counts[gms_slot_word_state(gms_directory_word(directory, slot))]++;
    json_t *object = json_object();
    for (size_t state = 0; state < STATES; state++)
        gms_document_number(object, names[state], counts[state]);
    return object;
}

static json_t *pools(struct gms_daemon *daemon, const struct gms_core_view *view)
{
    json_t *list = json_array();
    uint64_t owner =
        view->serving_engine >= 0 ? view->engines[view->serving_engine].incarnation : view->writer_incarnation;
    for (uint32_t index = 0; index < GMS_MAX_POOLS; index++) {
        struct gms_pool_view pool;
        struct gms_core_pool_view agreed;
        if (!gms_pools_look(daemon->pools, index, &pool))
            continue;
        bool known = gms_core_look_pool(daemon->core, index, &agreed);
        json_t *item = json_object();
        gms_document_text(item, "name", pool.name);
        gms_document_text(item, "kind", pool.kind == GMS_POOL_KV ? "kv" : "weights");
        gms_document_number(item, "index", index);
        gms_document_text(item, "state", pool_state_name(known ? agreed.state : GMS_POOL_ABSENT));
        gms_document_number(item, "bytes", pool.bytes);
        if (pool.kind == GMS_POOL_KV) {
            gms_document_number(item, "slot_count", pool.slot_count);
            json_object_set_new(item, "slots", slots(gms_pools_directory(daemon->pools, owner, index)));
        }
        json_array_append_new(list, item);
    }
    return list;
}

static json_t *takeovers(const struct gms_timeline *timeline)
{
    json_t *list = json_array();
    uint64_t first = timeline->count > GMS_TIMELINE_KEPT ? timeline->count - GMS_TIMELINE_KEPT : 0;
    for (uint64_t i = first; i < timeline->count; i++) {
        const struct gms_takeover_record *record = &timeline->records[i % GMS_TIMELINE_KEPT];
        json_t *item = json_object();
        gms_document_number(item, "epoch", record->epoch);
        gms_document_number(item, "from_engine", record->from_engine);
        gms_document_number(item, "from_incarnation", record->from_incarnation);
        json_object_set_new(item, "to_engine",
                            json_integer(record->to_incarnation != 0 ? (json_int_t)record->to_engine : -1));
        gms_document_number(item, "to_incarnation", record->to_incarnation);
        gms_document_text(item, "cause", cause_name(record->cause));
        gms_document_number(item, "detect_ns", record->detect_ns);
        gms_document_number(item, "condemn_ns", record->condemn_ns);
        gms_document_number(item, "fence_ns", record->fence_ns);
        gms_document_number(item, "classify_ns", record->classify_ns);
        gms_document_number(item, "promote_ns", record->promote_ns);
        gms_document_number(item, "adopt_ns", record->adopt_ns);
        gms_document_number(item, "serve_ns", record->serve_ns);
        gms_document_number(item, "sealed_here", record->classified.sealed_here);
        gms_document_number(item, "adoptable_here", record->classified.adoptable);
        gms_document_number(item, "adopted", record->adopted.adopted);
        gms_document_number(item, "idle", record->adopted.idle);
        gms_document_number(item, "quarantined", record->adopted.quarantined);
        gms_document_number(item, "damaged", record->classified.damaged);
        gms_document_number(item, "reclaimed", record->reclaimed);
        gms_document_number(item, "reclaim_ns", record->reclaim_ns);
        json_array_append_new(list, item);
    }
    return list;
}

static json_t *transfers(const struct gms_daemon *daemon)
{
    json_t *list = json_array();
    struct gms_core_transfer_view transfer;
    for (uint32_t i = 0; gms_core_look_transfer(daemon->core, i, &transfer); i++) {
        json_t *item = json_object();
        gms_document_number(item, "incarnation", transfer.incarnation);
        gms_document_number(item, "id", transfer.id);
        gms_document_number(item, "finished", transfer.finished);
        gms_document_number(item, "failed", transfer.failed);
        gms_document_number(item, "age_ns", transfer.since_ns != 0 ? gms_clock_ns() - transfer.since_ns : 0);
        json_array_append_new(list, item);
    }
    return list;
}

/* How many gms-exec have copies of all that the keeper holds. */
static uint32_t copy_holders(const struct gms_daemon *daemon)
{
    uint32_t count = 0;
    struct gms_client *client = NULL;
    while ((client = gms_sessions_next(daemon->sessions, client)) != NULL)
        count += client->has_copies;
    return count;
}

static json_t *whole(void *context)
{
    struct gms_daemon *daemon = context;
    const struct gms_config *config = daemon->options.config;
    struct gms_core_view view;
    uint64_t used = 0, limit = 0;
    gms_core_look(daemon->core, &view);
    gms_fd_usage(&used, &limit);
    bool serves = view.serving_engine >= 0;
    json_t *root = json_object();
    gms_document_number(root, "version", 1);
    gms_document_text(root, "deployment", config->deployment);
    gms_document_number(root, "world", view.world);
    gms_document_number(root, "rank", daemon->rank);
    gms_document_number(root, "ranks", daemon->ranks);
    gms_document_number(root, "local_ranks", daemon->options.place.local_ranks);
    gms_document_number(root, "epoch", view.epoch);
    gms_document_number(root, "round", view.next_round);
    gms_document_text(root, "takeover", takeover_name(view.takeover));
    json_object_set_new(root, "serving_engine", json_integer(view.serving_engine));
    gms_document_number(root, "serving_incarnation", serves ? view.engines[view.serving_engine].incarnation : 0);
    json_object_set_new(root, "successor_engine", json_integer(view.successor_engine));
    gms_document_text(root, "endpoint", serves ? daemon->endpoint : "");
    gms_document_number(root, "pid", (uint64_t)getpid());
    gms_document_number(root, "descriptors", used);
    gms_document_number(root, "sessions", gms_sessions_count(daemon->sessions));
    json_object_set_new(root, "keeper", json_boolean(!daemon->keeper_lost));
    gms_document_number(root, "copy_holders", copy_holders(daemon));
    gms_document_number(root, "capacity_bytes", gms_config_capacity(config, daemon->rank));
    gms_document_text(root, "memory", daemon->options.device.backend == GMS_MEMORY_CUDA ? "cuda" : "host");
    char device[GMS_UUID_TEXT_BYTES] = "";
    if (daemon->options.device.backend == GMS_MEMORY_CUDA)
        gms_uuid_format(&daemon->options.device.uuid, false, device);
    gms_document_text(root, "device", device);
    gms_document_number(root, "used_bytes", gms_pools_used_bytes(daemon->pools));
    json_object_set_new(root, "budget", gms_calibration_status(daemon->calibration));
    json_object_set_new(root, "engines", engines(daemon, &view));
    json_object_set_new(root, "pools", pools(daemon, &view));
    json_object_set_new(root, "takeovers", takeovers(&daemon->timeline));
    json_object_set_new(root, "transfers", transfers(daemon));
    json_object_set_new(root, "reclaim", gms_reclaim_status(daemon->reclaim));
    return root;
}

char *gms_daemon_status(struct gms_daemon *daemon)
{
    return gms_document_write(whole, daemon);
}
