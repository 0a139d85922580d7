/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/calibration.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/run_dir.h"
#include "base/units.h"
#include "daemon/daemon_state.h"
#include "daemon/document.h"
#include "daemon/worker.h"
#include "memory/footprint.h"
#include "vmm/available.h"
#include "vmm/cuda.h"
#include "wire/tags.h"

/* An engine rank here. */
struct parked {
    uint64_t incarnation; /* 0: free */
    bool awake;
    struct gms_tag_report tags[GMS_MAX_TAGS];
    uint32_t tag_count;
    uint64_t used_before_bytes, pools_before_bytes; /* on the device, when it joined; 0: not known */
    struct gms_footprint footprint;
    uint64_t needs_bytes; /* until it is parked */
};

struct gms_calibration {
    struct gms_daemon *daemon;
    struct gms_worker *worker;
    struct parked parked[GMS_MAX_ENGINES];
    uint64_t identity, needs_bytes; /* the last measurement; needs 0: none */
    enum gms_footprint_source source;
    struct gms_budget_inputs said; /* to the group, the last time; and what came of it */
    uint64_t said_bytes;
};

/* One question to the thread: what an engine's processes have, or only what its device holds. */
struct measurement {
    struct gms_job job; /* first */
    struct gms_calibration *calibration;
    uint32_t engine;
    uint64_t incarnation;
    bool joined; /* it has only joined */
    bool on_device;
    struct gms_uuid device;
    pid_t pid;
    uint64_t used_before_bytes;
    gms_status status;
    struct gms_footprint footprint;
    struct gms_error error;
};

/* -------------------------------------------------------------------------------------------------- file ------ */

/* What a measurement is of: the engine as it says it is, and the way in which it parks here. */
static uint64_t identity_of(const struct gms_daemon *daemon, uint64_t identity_digest)
{
    const struct gms_config *config = daemon->options.config;
    return XXH3_64bits_withSeed(config->parking, sizeof config->parking, identity_digest);
}

static bool file_path(const struct gms_calibration *calibration, char ret_path[GMS_RUN_PATH_BYTES])
{
    const struct gms_daemon *daemon = calibration->daemon;
    return gms_run_dir_path(daemon->options.config->run_dir, "calibration.", (int32_t)daemon->rank, ret_path, NULL) ==
           GMS_OK;
}

static void read_file(struct gms_calibration *calibration)
{
    char path[GMS_RUN_PATH_BYTES];
    json_t *document = file_path(calibration, path) ? json_load_file(path, 0, NULL) : NULL;
    const char *identity = json_string_value(json_object_get(document, "identity"));
    const char *source = json_string_value(json_object_get(document, "source"));
    const json_int_t needs = json_integer_value(json_object_get(document, "needs_bytes"));
    for (int i = 1; identity != NULL && source != NULL && needs > 0 && i < GMS_FOOTPRINT_SOURCES; i++) {
        if (strcmp(source, gms_footprint_source_name((enum gms_footprint_source)i)) != 0)
            continue;
        calibration->source = (enum gms_footprint_source)i;
        calibration->identity = strtoull(identity, NULL, 16);
        calibration->needs_bytes = (uint64_t)needs;
    }
    json_decref(document); /* what cannot be read is measured again */
}

static void write_file(const struct gms_calibration *calibration)
{
    char path[GMS_RUN_PATH_BYTES], text[256];
    struct gms_error error;
    if (!file_path(calibration, path))
        return;
    const int bytes = snprintf(text, sizeof text,
                               "{\"version\":1,\"rank\":%u,\"identity\":\"%016" PRIx64 "\",\"needs_bytes\":%" PRIu64
                               ",\"source\":\"%s\"}\n",
                               calibration->daemon->rank, calibration->identity, calibration->needs_bytes,
                               gms_footprint_source_name(calibration->source));
    if (gms_file_publish(path, text, (size_t)bytes, &error) != GMS_OK)
        gms_log(GMS_LOG_WARNING, "what a shadow needs was not noted for the next start: %s", error.text);
}

gms_status gms_calibration_open(struct gms_daemon *daemon, struct gms_calibration **ret_calibration,
                                struct gms_error *ret_error)
{
    struct gms_calibration *calibration = calloc(1, sizeof *calibration);
    if (calibration == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for what parked engines keep");
    calibration->daemon = daemon;
    const gms_status status = gms_worker_open(daemon->base, &calibration->worker, ret_error);
    if (status != GMS_OK) {
        free(calibration);
        return status;
    }
    read_file(calibration);
    *ret_calibration = calibration;
    return GMS_OK;
}

void gms_calibration_close(struct gms_calibration *calibration)
{
    if (calibration == NULL)
        return;
    gms_worker_close(calibration->worker);
    free(calibration);
}

/* -------------------------------------------------------------------------------------------------- measuring - */

/* The engine's place here, empty when it was another's. */
static struct parked *place_of(struct gms_calibration *calibration, uint32_t engine, uint64_t incarnation)
{
    struct parked *parked = &calibration->parked[engine];
    if (parked->incarnation != incarnation)
        *parked = (struct parked){.incarnation = incarnation};
    return parked;
}

static bool on_device(const struct gms_calibration *calibration)
{
    return calibration->daemon->options.device.backend == GMS_MEMORY_CUDA;
}

/* Device memory that a shadow's kv pools are until it parks. */
static uint64_t scratch_bytes(const struct gms_calibration *calibration)
{
    uint64_t bytes = 0;
    struct gms_pool_view pool;
    for (uint32_t index = 0; on_device(calibration) && index < GMS_MAX_POOLS; index++)
        if (gms_pools_look(calibration->daemon->pools, index, &pool) && pool.kind == GMS_POOL_KV)
            bytes += pool.bytes < GMS_VMM_SCRATCH_BYTES ? pool.bytes : GMS_VMM_SCRATCH_BYTES;
    return bytes;
}

/* What its tags hold beside pools: all of it, or what is given back while it is parked. Pools have their own memory. */
static uint64_t region_bytes(const struct gms_calibration *calibration, const struct parked *parked, bool given_back)
{
    uint64_t bytes = 0, pools = gms_pools_used_bytes(calibration->daemon->pools);
    for (uint32_t i = 0; i < parked->tag_count; i++) {
        const struct gms_tag_report *tag = &parked->tags[i];
        if (!given_back || tag->tag.policy == GMS_PARK_RELEASE || tag->tag.policy == GMS_PARK_SAVE)
            bytes += tag->bytes;
    }
    if (given_back)
        return bytes;
    return bytes > pools ? bytes - pools : 0;
}

static void ask(struct gms_job *job)
{
    struct measurement *it = (struct measurement *)job;
    pid_t pids[GMS_FOOTPRINT_PIDS];
    const size_t count = it->joined ? 0 : gms_footprint_family("/proc", it->pid, pids);
    if (it->on_device)
        it->status = gms_footprint_device(NULL, &it->device, pids, count, it->joined ? 1 : it->used_before_bytes,
                                          &it->footprint, &it->error);
    else
        it->status = gms_footprint_host("/proc", pids, count, &it->footprint, &it->error);
}

static void note_parked(struct gms_calibration *calibration, const struct measurement *it, struct parked *parked)
{
    struct gms_daemon *daemon = calibration->daemon;
    const struct gms_member *member = gms_members_find(daemon->members, it->incarnation);
    char footprint[32], needs[32];
    parked->footprint = it->footprint;
    const uint64_t pools = gms_pools_used_bytes(daemon->pools);
    if (it->footprint.source == GMS_FOOTPRINT_DIFFERENCE && pools > parked->pools_before_bytes) {
        const uint64_t made = pools - parked->pools_before_bytes; /* by us, since it joined */
        parked->footprint.bytes = it->footprint.bytes > made ? it->footprint.bytes - made : 0;
    }
    parked->needs_bytes = parked->footprint.bytes + scratch_bytes(calibration) +
                          region_bytes(calibration, parked, on_device(calibration));
    gms_log(GMS_LOG_NOTICE, "engine %u incarnation %llu keeps %s while parked (%s) and needs %s until then", it->engine,
            (unsigned long long)it->incarnation, gms_format_size(parked->footprint.bytes, footprint, sizeof footprint),
            gms_footprint_source_name(parked->footprint.source),
            gms_format_size(parked->needs_bytes, needs, sizeof needs));
    if (member == NULL || parked->needs_bytes == 0)
        return;
    calibration->identity = identity_of(daemon, member->identity_digest);
    calibration->needs_bytes = parked->needs_bytes;
    calibration->source = parked->footprint.source;
    write_file(calibration);
}

static void answered(struct gms_job *job)
{
    struct measurement *it = (struct measurement *)job;
    struct gms_calibration *calibration = it->calibration;
    struct parked *parked = &calibration->parked[it->engine];
    const bool cancelled = atomic_load(&job->cancelled);
    if (cancelled || parked->incarnation != it->incarnation) {
        /* nobody wants to know any more */
    } else if (it->status != GMS_OK) {
        if (!it->joined)
            gms_log(GMS_LOG_NOTICE, "what engine %u keeps while parked is not known: %s", it->engine, it->error.text);
    } else if (it->joined) {
        /* A pool that was made while NVML was being asked may be in that number or not: then it is not known. */
        if (gms_pools_used_bytes(calibration->daemon->pools) == parked->pools_before_bytes)
            parked->used_before_bytes = it->footprint.device_used_bytes;
    } else {
        note_parked(calibration, it, parked);
    }
    free(it);
}

static void measure(struct gms_calibration *calibration, uint32_t engine, uint64_t incarnation, bool joined)
{
    const struct gms_daemon *daemon = calibration->daemon;
    struct measurement *it = calloc(1, sizeof *it);
    if (it == NULL)
        return; /* then it is not known */
    it->job.run = ask;
    it->job.done = answered;
    it->calibration = calibration;
    it->engine = engine;
    it->incarnation = incarnation;
    it->joined = joined;
    it->on_device = on_device(calibration);
    it->device = daemon->options.device.uuid;
    it->used_before_bytes = calibration->parked[engine].used_before_bytes;
    gms_fence_look(daemon->fence, incarnation, &it->pid, NULL);
    gms_worker_submit(calibration->worker, &it->job);
}

void gms_calibration_joined(struct gms_calibration *calibration, uint32_t engine, uint64_t incarnation)
{
    struct parked *parked = place_of(calibration, engine, incarnation);
    parked->pools_before_bytes = gms_pools_used_bytes(calibration->daemon->pools);
    if (on_device(calibration))
        measure(calibration, engine, incarnation, true);
}

bool gms_calibration_tags(struct gms_calibration *calibration, uint32_t engine, const struct gms_message *message)
{
    struct gms_tag_report tags[GMS_MAX_TAGS];
    uint32_t count = 0;
    if (!gms_tags_unpack(&message->memory.tags, tags, &count))
        return false;
    struct parked *parked = place_of(calibration, engine, message->memory.incarnation);
    memcpy(parked->tags, tags, sizeof tags);
    parked->tag_count = count;
    parked->awake = message->memory.awake != 0;
    return true;
}

void gms_calibration_parked(struct gms_calibration *calibration, uint32_t engine, uint64_t incarnation)
{
    struct gms_core_view view;
    gms_core_look(calibration->daemon->core, &view);
    const struct gms_core_engine_view *slot = &view.engines[engine];
    /* One that serves says it again to a new coordinator, and keeps more than a parked one. */
    if (slot->incarnation != incarnation || (slot->role != GMS_ROLE_JOINED && slot->role != GMS_ROLE_PARKED))
        return;
    (void)place_of(calibration, engine, incarnation);
    measure(calibration, engine, incarnation, false);
}

/* -------------------------------------------------------------------------------------------------- budget ---- */

/* Memory of this rank's device, or its share of the host's; 0: not known. */
static uint64_t total_bytes(const struct gms_calibration *calibration)
{
    const struct gms_daemon_options *options = &calibration->daemon->options;
    const uint32_t local_ranks = options->place.local_ranks > 0 ? options->place.local_ranks : 1;
    struct gms_vmm_cuda_device device;
    if (on_device(calibration)) {
        if (gms_vmm_cuda_ready(&device, NULL) != GMS_OK)
            return 0;
        return device.bytes / (options->config->device_shared ? local_ranks : 1);
    }
    const uint64_t host = gms_vmm_total_bytes("/proc", "/sys/fs/cgroup");
    return host == UINT64_MAX ? 0 : host / local_ranks;
}

static struct gms_budget_inputs inputs_of(const struct gms_calibration *calibration, uint64_t identity, bool capacity)
{
    const struct gms_daemon *daemon = calibration->daemon;
    const struct gms_config *config = daemon->options.config;
    struct gms_budget_inputs inputs = {.total_bytes = total_bytes(calibration),
                                       .percent = config->budget_percent,
                                       .capacity_bytes = UINT64_MAX,
                                       .shadows = config->standby_count,
                                       .reserve_bytes = config->budget_reserve_bytes,
                                       .granularity_bytes = gms_pools_granularity(daemon->pools)};
    struct gms_pool_view pool;
    for (uint32_t index = 0; index < GMS_MAX_POOLS; index++)
        if (gms_pools_look(daemon->pools, index, &pool) && pool.kind == GMS_POOL_WEIGHTS)
            inputs.weights_bytes += pool.bytes;
    if (capacity) {
        const uint64_t all = gms_config_capacity(config, daemon->rank);
        inputs.capacity_bytes = all > inputs.weights_bytes ? all - inputs.weights_bytes : 0;
    }
    if (calibration->identity == identity)
        inputs.measured_bytes = calibration->needs_bytes;
    return inputs;
}

uint64_t gms_calibration_budget(struct gms_calibration *calibration, uint64_t identity_digest, bool capacity)
{
    calibration->said = inputs_of(calibration, identity_of(calibration->daemon, identity_digest), capacity);
    calibration->said_bytes = gms_budget_here(&calibration->said);
    return calibration->said_bytes;
}

/* -------------------------------------------------------------------------------------------------- status ---- */

json_t *gms_calibration_status(const struct gms_calibration *calibration)
{
    const struct gms_config *config = calibration->daemon->options.config;
    struct gms_budget agreed;
    json_t *object = json_object();
    const bool known = gms_core_look_budget(calibration->daemon->core, &agreed);
    gms_document_number(object, "percent", config->budget_percent);
    gms_document_number(object, "shadows", config->standby_count);
    gms_document_number(object, "reserve_bytes", config->budget_reserve_bytes);
    gms_document_number(object, "measured_bytes", calibration->needs_bytes);
    json_object_set_new(object, "measured_by", json_string(gms_footprint_source_name(calibration->source)));
    gms_document_number(object, "total_bytes", calibration->said.total_bytes);
    gms_document_number(object, "weights_bytes", calibration->said.weights_bytes);
    gms_document_number(object, "kept_bytes",
                        calibration->said.measured_bytes != 0 ? calibration->said.measured_bytes
                                                              : calibration->said.reserve_bytes);
    gms_document_number(object, "here_bytes", calibration->said_bytes <= INT64_MAX ? calibration->said_bytes : 0);
    gms_document_number(object, "agreed_bytes", known ? agreed.bytes : 0);
    json_object_set_new(object, "agreed_rank", json_integer(known ? (json_int_t)agreed.rank : -1));
    json_object_set_new(object, "preset", json_string(config->preset));
    return object;
}

json_t *gms_calibration_engine(const struct gms_calibration *calibration, uint32_t engine, uint64_t incarnation)
{
    const struct parked *parked = &calibration->parked[engine];
    if (parked->incarnation != incarnation || incarnation == 0)
        return NULL;
    json_t *object = json_object(), *tags = json_array();
    json_object_set_new(object, "awake", json_boolean(parked->awake));
    gms_document_number(object, "footprint_bytes", parked->footprint.bytes);
    gms_document_number(object, "needs_bytes", parked->needs_bytes);
    json_object_set_new(object, "measured_by", json_string(gms_footprint_source_name(parked->footprint.source)));
    for (uint32_t i = 0; i < parked->tag_count; i++) {
        const struct gms_tag_report *tag = &parked->tags[i];
        json_t *item = json_object();
        gms_document_text(item, "tag", tag->tag.name);
        json_object_set_new(item, "policy", json_string(gms_park_policy_name(tag->tag.policy)));
        gms_document_number(item, "bytes", tag->bytes);
        gms_document_number(item, "park_ns", tag->park_ns);
        gms_document_number(item, "wake_ns", tag->wake_ns);
        json_array_append_new(tags, item);
    }
    json_object_set_new(object, "tags", tags);
    return object;
}
