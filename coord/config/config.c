/* SPDX-License-Identifier: Apache-2.0 */
#include "config/config.h"

#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/run_dir.h"
#include "config/config_table.h"
#include "config/parking.h"

/* -------------------------------------------------------------------------------------------------- table ------ */

#define MEMBER(member) .offset = offsetof(struct gms_config, member), .size = sizeof(((struct gms_config *)0)->member)
#define OVERRIDE(member)                                                                                               \
    .offset = offsetof(struct gms_config, capacity_of[0].member) - offsetof(struct gms_config, capacity_of),           \
    .size = sizeof(((struct gms_config *)0)->capacity_of[0].member)
#define PRESET(member) .offset = offsetof(struct preset, member), .size = sizeof(((struct preset *)0)->member)
#define SCOPED(member) .offset = offsetof(struct scope, member), .size = sizeof(((struct scope *)0)->member)
#define PACKED(member) MEMBER(member), .count_offset = offsetof(struct gms_config, member##_bytes)

#define MIN_CAPACITY UINT64_C(4096)
#define MAX_CAPACITY (UINT64_C(1) << 44)
#define MS           GMS_NS_PER_MS
#define HOUR         (3600 * GMS_NS_PER_S)

const struct setting gms_config_table[] = {
    {"deployment", NAME, .required = true, MEMBER(deployment), .help = "name in logs; a-z, 0-9 and -"},
    {"run_dir", DIRECTORY, .required = true, MEMBER(run_dir),
     .help = "directory of the sockets and stores on every node; absolute, made with mode 0700"},
    {"ranks", INTEGER, .required = true, MEMBER(ranks), .least = 1, .greatest = GMS_MAX_RANKS,
     .help = "coordinator ranks, one for each GPU"},
    {"network.address", ADDRESS, MEMBER(address), .initial = "auto",
     .help = "which address of each host the others use: auto (the first that is not the loopback's), a network, an "
             "interface"},
    {"memory.backend", CHOICE, MEMBER(backend), .initial = "host", .choices = "host|cuda",
     .help = "where pools live: host memory, or the memory of each rank's GPU"},
    {"memory.device", CHOICE, MEMBER(device_shared), .initial = "per-rank", .choices = "per-rank|shared",
     .help = "cuda: per-rank: rank N has the visible GPU N, or the only one; no two the same. shared: all have GPU 0"},
    {"memory.capacity", SIZE, .required = true, MEMBER(capacity_bytes), .least = MIN_CAPACITY, .greatest = MAX_CAPACITY,
     .help = "memory for the pools of one rank"},
    {"memory.capacity_of", GROUPS, MEMBER(capacity_of), .count_offset = offsetof(struct gms_config, capacity_of_count),
     .greatest = GMS_CONFIG_OVERRIDES, .help = "ranks that have another capacity"},
    {"memory.capacity_of[].rank", INTEGER, .required = true, OVERRIDE(rank), .least = 0, .greatest = GMS_MAX_RANKS - 1,
     .help = "which rank; below `ranks`"},
    {"memory.capacity_of[].capacity", SIZE, .required = true, OVERRIDE(capacity_bytes), .least = MIN_CAPACITY,
     .greatest = MAX_CAPACITY, .help = "memory for its pools"},
    {"kv.verify", CHOICE, MEMBER(kv_verify_full), .initial = "full", .choices = "none|full",
     .help = "full: sealed KV carries a content digest that a successor checks; none: generations alone; cuda: "
             "none by default"},
    {"budget.percent", INTEGER, MEMBER(budget_percent), .least = 1, .greatest = 100, .initial = "90",
     .help = "how much of what a rank's memory has left beside weights and shadows its kv pools may have"},
    {"budget.reserve", SIZE, MEMBER(budget_reserve_bytes), .least = 0, .greatest = MAX_CAPACITY, .initial = "256MiB",
     .help = "left for each of standby.count shadows, until one has parked and was measured; cuda: 4GiB by default"},
    {"parking.preset", IDENTIFIER, MEMBER(preset), .initial = "shadow_failover",
     .help =
         "what becomes of an engine's memory while it is parked: shadow_failover, resident, lean, or one of presets"},
    {"parking.presets", PRESETS, PACKED(presets), .greatest = 16, .help = "presets of this deployment"},
    {"parking.presets[].name", IDENTIFIER, .required = true, PRESET(name), .help = "name of a preset"},
    {"parking.presets[].tags", TAGS, .required = true, PRESET(tags),
     .count_offset = offsetof(struct preset, tags_bytes),
     .help = "TAG=keep, release or save for tags of engines; \"*\": all others but weights and kv"},
    {"timeouts.operation", DURATION, MEMBER(operation_timeout_ns), .least = 100 * MS, .greatest = HOUR,
     .initial = "10s", .help = "how long a collective call waits for all ranks"},
    {"timeouts.round", DURATION, MEMBER(round_timeout_ns), .least = 100 * MS, .greatest = HOUR, .initial = "5s",
     .help = "deadline of one agreement round; a rank that misses it restarts"},
    {"timeouts.heartbeat", DURATION, MEMBER(heartbeat_ns), .least = 100 * MS, .greatest = HOUR, .initial = "5s",
     .help = "how often idle ranks prove their links"},
    {"timeouts.fence_report", DURATION, MEMBER(fence_report_ns), .least = 10 * MS, .greatest = HOUR, .initial = "2s",
     .help = "how long a condemned process may take to end before it is named in the log"},
    {"timeouts.transfer_stall", DURATION, MEMBER(transfer_stall_ns), .least = 10 * MS, .greatest = HOUR,
     .initial = "5s", .help = "how long a transfer may lack votes before it is named in the log"},
    {"timeouts.reattach", DURATION, MEMBER(reattach_ns), .least = 100 * MS, .greatest = HOUR, .initial = "5s",
     .help = "how long a living engine rank may stay away after a restart of the coordinators before it is named"},
    {"timeouts.leave", DURATION, MEMBER(leave_ns), .greatest = 60 * GMS_NS_PER_S, .initial = "1s",
     .help =
         "how long the processes of an engine that said goodbye on a rank may take to end by themselves; a takeover "
         "waits for it"},
    {"timeouts.told_to_end", DURATION, MEMBER(told_to_end_ns), .least = 1 * MS, .greatest = HOUR, .initial = "1s",
     .help = "an engine that ends because its launcher told it to is taken over from only after this"},
    {"reclaim.policy", CHOICE, MEMBER(reclaim_policy), .initial = "gpu-proof",
     .choices = "gpu-proof|process-death-timeout",
     .help = "what brings pages back that a dead engine may still write: proof, or its death and some time"},
    {"reclaim.provider", CHOICE, MEMBER(reclaim_provider), .initial = "auto", .choices = "auto|procmap|nvml",
     .help = "who proves that a dead engine is quiet; auto: what fits memory.backend"},
    {"reclaim.grace", DURATION, MEMBER(reclaim_grace_ns), .least = 10 * MS, .greatest = HOUR, .initial = "5s",
     .help = "process-death-timeout: between the two looks that must find it dead"},
    {"reclaim.step", INTEGER, MEMBER(reclaim_step), .least = 1, .greatest = GMS_RECLAIM_SLOTS, .initial = "1024",
     .help = "pages that all ranks return at once"},
    {"reclaim.page_pause", DURATION, MEMBER(reclaim_page_pause_ns), .least = 0, .greatest = GMS_NS_PER_S,
     .initial = "0ms", .help = "what returning one page is made to take: for tests, and to spare a busy host"},
    {"environment.set", ENVIRONMENT, PACKED(environment),
     .help = "NAME=VALUE for every engine rank; ${rank}, ${engine}, ${port}... are expanded"},
    {"environment.engines", SCOPES, PACKED(engine_environment), .greatest = GMS_MAX_ENGINES,
     .help = "engines that have other variables, or more"},
    {"environment.engines[].engine", INTEGER, .required = true, SCOPED(number), .least = 0,
     .greatest = GMS_MAX_ENGINES - 1, .help = "which engine"},
    {"environment.engines[].set", ENVIRONMENT, .required = true, SCOPED(set),
     .count_offset = offsetof(struct scope, set_bytes), .help = "NAME=VALUE for its ranks, over environment.set"},
    {"environment.ranks", SCOPES, PACKED(rank_environment), .greatest = GMS_MAX_RANKS,
     .help = "ranks that have other variables, or more"},
    {"environment.ranks[].rank", INTEGER, .required = true, SCOPED(number), .least = 0, .greatest = GMS_MAX_RANKS - 1,
     .help = "which rank; below `ranks`"},
    {"environment.ranks[].set", ENVIRONMENT, .required = true, SCOPED(set),
     .count_offset = offsetof(struct scope, set_bytes), .help = "NAME=VALUE for it in every engine, over all others"},
    {"environment.rename", RENAMES, PACKED(rename),
     .help = "FROM=TO, both names or PREFIX*: set under TO as well, for launchers that forward only some prefixes"},
    {"environment.port_first", INTEGER, MEMBER(port_first), .least = 1024, .greatest = 65535, .initial = "23000",
     .help = "MASTER_PORT is a free one from here on, another at each start of an engine"},
    {"environment.port_count", INTEGER, MEMBER(port_count), .least = 1, .greatest = 64512, .initial = "1000",
     .help = "how many ports"},
    {"engine.command", WORDS, PACKED(command),
     .help = "program and arguments of an engine rank that gms-up or gms-failover-test --config starts"},
    {"engine.containment", CHOICE, MEMBER(containment), .initial = "auto",
     .choices = "auto|pid-namespace|subreaper|cgroup",
     .help = "how gms-exec contains engine ranks that are started without --containment"},
    {"detection.progress_timeout", DURATION, MEMBER(progress_timeout_ns), .least = 100 * MS, .greatest = HOUR,
     .initial = "30s", .help = "how long an engine may have work and make no progress before it is succeeded"},
    {"takeover.adopt_after_device_error", CHOICE, MEMBER(adopt_after_device_error), .initial = "verified",
     .choices = "never|verified|always",
     .help = "sealed KV of a rank that reported a sticky device error; verified: only under kv.verify = full"},
    {"takeover.adopt_after_ecc_error", CHOICE, MEMBER(adopt_after_ecc_error), .initial = "never",
     .choices = "never|verified|always", .help = "the same after an uncorrectable memory error (code 214)"},
    {"hooks.before_kill", PROGRAM, PACKED(before_kill),
     .help = "program and arguments, run with the pid of a living engine rank before it is killed (to lock its GPU)"},
    {"hooks.before_kill_timeout", DURATION, MEMBER(before_kill_ns), .least = 1 * MS, .greatest = 10 * GMS_NS_PER_S,
     .initial = "100ms", .help = "how long that program may hold up the kill"},
    {"launch.keepers", WORDS, PACKED(launch_keepers),
     .help =
         "several hosts: words with which gms-up starts one process a host; gms-up keeper ... follows, which keeps a "
         "keeper there"},
    {"launch.coordinators", WORDS, PACKED(launch_coordinators),
     .help = "words with which gms-up starts the coordinators; -n RANKS gms-coord... follows (mpirun --oversubscribe)"},
    {"launch.engines", WORDS, PACKED(launch_engines),
     .help = "words with which gms-up starts an engine; gms-exec... -- engine.command follows; \"local\": no MPI"},
    {"launch.stop_signal", CHOICE, MEMBER(stop_signal), .initial = "TERM", .choices = "TERM|USR1|INT",
     .help = "what an engine's launcher gets at a planned stop"},
    {"standby.count", INTEGER, MEMBER(standby_count), .least = 0, .greatest = GMS_MAX_ENGINES - 2, .initial = "1",
     .help = "shadows that gms-up keeps beside the engine that serves"},
    {"standby.serve_after_standby", CHOICE, MEMBER(serve_after_standby), .initial = "no", .choices = "no|yes",
     .help = "the first engine of all serves only when so many shadows are parked, or after serve_wait"},
    {"standby.serve_wait", DURATION, MEMBER(serve_wait_ns), .least = 10 * MS, .greatest = HOUR, .initial = "60s",
     .help = "how long it waits for them"},
    {"standby.ready_within", DURATION, MEMBER(ready_within_ns), .least = 100 * MS, .greatest = 24 * HOUR,
     .initial = "600s", .help = "an engine that gms-up started and that has not parked by then is ended"},
    {"hooks.on_serving", PROGRAM, PACKED(on_serving),
     .help = "program and arguments, run on rank 0 when an engine begins to serve (GMS_EPOCH, GMS_ENDPOINT)"},
    {"complete", END, .required = true, .help = "true, as the last setting: the file was not cut short"},
};
enum { SETTINGS = sizeof(gms_config_table) / sizeof(gms_config_table[0]) };
_Static_assert(SETTINGS <= 64, "what a file has is marked in 64 bits");
const unsigned gms_config_settings = SETTINGS;

/* ------------------------------------------------------------------------------------------- whole file -------- */

/* Line of the innermost group that a missing setting should stand in; the last line of the file when there is none. */
static unsigned line_for_missing(const struct reading *reading, const config_t *parsed, const char *name)
{
    char group[64];
    const char *dot = strchr(name, '.');
    if (dot) {
        snprintf(group, sizeof(group), "%.*s", (int)(dot - name), name);
        const config_setting_t *node = config_lookup(parsed, group);
        if (node && !config_setting_source_file(node))
            return config_setting_source_line(node);
    }
    return reading->lines;
}

static void fill_missing(struct reading *reading, const config_t *parsed, uint64_t seen)
{
    for (unsigned i = 0; i < gms_config_settings; i++) {
        const struct setting *row = &gms_config_table[i];
        struct gms_error error;
        if ((seen & (UINT64_C(1) << i)) || strstr(row->name, "[]"))
            continue;
        if (row->required)
            gms_config_problem(&reading->problems, reading->name, line_for_missing(reading, parsed, row->name),
                               "%s: is missing%s", row->name,
                               row->kind == END ? "; the last line must be `complete = true;`, this file may have been "
                                                  "cut short"
                                                : "");
        else if (row->initial && !gms_config_take_text(row, reading->config, row->initial, &error))
            gms_config_problem(&reading->problems, reading->name, 0, "default of %s: %s", row->name, error.text);
    }
}

/* Adds a variable unless the file sets it. False: there is no room. */
static bool add_variable(struct gms_config *config, const char *name, const char *value)
{
    const size_t length = strlen(name), bytes = length + 1 + strlen(value) + 1;
    for (uint32_t at = 0; at < config->environment_bytes; at += (uint32_t)strlen(config->environment + at) + 1)
        if (strncmp(config->environment + at, name, length) == 0 && config->environment[at + length] == '=')
            return true;
    if (bytes > sizeof config->environment - config->environment_bytes)
        return false;
    snprintf(config->environment + config->environment_bytes, bytes, "%s=%s", name, value);
    config->environment_bytes += (uint32_t)bytes;
    return true;
}

/* What one setting alone cannot say. Only after every setting by itself is right. */
static void check_together(struct reading *reading, const config_t *parsed)
{
    struct gms_config *config = reading->config;
    const config_setting_t *overrides = config_lookup(parsed, "memory.capacity_of"), *node;
    static const struct {
        const char *name;
        bool per_rank;
    } paths[] = {{"keeper.lock", false}, {"keeper", false}, {"store.", true}, {"c", true}, {"b", true}};
    struct gms_error error;

    for (uint32_t i = 0; i < config->capacity_of_count; i++) {
        node = config_setting_get_elem(overrides, i);
        if (config->capacity_of[i].rank >= config->ranks)
            PROBLEM(reading, node, "memory.capacity_of: rank %u does not exist; ranks = %u",
                    config->capacity_of[i].rank, config->ranks);
        for (uint32_t j = 0; j < i; j++)
            if (config->capacity_of[i].rank == config->capacity_of[j].rank)
                PROBLEM(reading, node, "memory.capacity_of: rank %u stands here twice", config->capacity_of[i].rank);
    }
    node = config_lookup(parsed, "environment.ranks");
    for (uint32_t at = 0; at < config->rank_environment_bytes;
         at += (uint32_t)strlen(config->rank_environment + at) + 1) {
        unsigned long rank = strtoul(config->rank_environment + at, NULL, 10);
        if (rank >= config->ranks) {
            PROBLEM(reading, node, "environment.ranks: rank %lu does not exist; ranks = %u", rank, config->ranks);
            break;
        }
    }
    if (config->port_first + config->port_count > 65536)
        PROBLEM(reading, config_lookup(parsed, "environment"),
                "environment.port_first %u with port_count %u goes beyond port 65535", config->port_first,
                config->port_count);
    if (gms_parking_find(config, config->preset, config->parking, &config->parking_count, &error) != GMS_OK)
        PROBLEM(reading, config_lookup(parsed, "parking"), "parking.preset: %s", error.text);
    if (config->backend == GMS_MEMORY_CUDA && !config_lookup(parsed, "budget.reserve"))
        config->budget_reserve_bytes = UINT64_C(4) << 30; /* a context, graphs and buffers: 2.7 to 10 GiB elsewhere */
    if (config->backend == GMS_MEMORY_CUDA && !config_lookup(parsed, "kv.verify"))
        config->kv_verify_full = false;
    if (config->backend == GMS_MEMORY_CUDA && !add_variable(config, "NCCL_GRAPH_REGISTER", "0"))
        PROBLEM(reading, config_lookup(parsed, "environment.set"),
                "environment.set: no room for NCCL_GRAPH_REGISTER=0");
    if (config->backend == GMS_MEMORY_HOST && config_lookup(parsed, "memory.device"))
        PROBLEM(reading, config_lookup(parsed, "memory.device"),
                "memory.device: says which GPU, but memory.backend is \"host\"; take one of them out");
    node = config_lookup(parsed, "run_dir");
    for (unsigned i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        char path[GMS_RUN_PATH_BYTES];
        if (gms_run_dir_path(config->run_dir, paths[i].name, paths[i].per_rank ? (int32_t)config->ranks - 1 : -1, path,
                             &error) != GMS_OK) {
            PROBLEM(reading, node, "run_dir: %s", error.text);
            return;
        }
    }
}

static gms_status finish(struct reading *reading, struct gms_config *ret_config)
{
    gms_status status = GMS_OK;
    if (reading->problems.count)
        status = GMS_E_CONFIG;
    else
        memcpy(ret_config, reading->config, sizeof(*ret_config)); /* padding too: it is digested and broadcast */
    free(reading->config);
    return status;
}

static gms_status read_text(const char *name, const char *text, size_t bytes, const char *directory,
                            struct gms_config *ret_config, gms_config_report report, void *context,
                            struct gms_error *ret_error)
{
    struct reading reading = {.name = name,
                              .problems = {.report = report, .context = context, .ret_error = ret_error},
                              .config = calloc(1, sizeof(struct gms_config))};
    config_t parsed;
    uint64_t seen = 0;

    if (!reading.config)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "%s: no memory for %zu bytes", name, sizeof(struct gms_config));
    if (!gms_config_text_scan(&reading.problems, name, text, bytes, directory, &reading.lines))
        return finish(&reading, ret_config);

    config_init(&parsed);
    if (directory)
        config_set_include_dir(&parsed, directory);
    if (!config_read_string(&parsed, text)) {
        const char *file = config_error_file(&parsed);
        gms_config_problem(&reading.problems, file ? file : name, (unsigned)config_error_line(&parsed), "%s",
                           config_error_text(&parsed));
    } else {
        gms_config_walk(&reading, config_root_setting(&parsed), "", reading.config, &seen);
        fill_missing(&reading, &parsed, seen);
        if (reading.problems.count == 0)
            check_together(&reading, &parsed);
    }
    config_destroy(&parsed);
    return finish(&reading, ret_config);
}

gms_status gms_config_parse(const char *name, const char *text, size_t bytes, struct gms_config *ret_config,
                            gms_config_report report, void *context, struct gms_error *ret_error)
{
    gms_status status;
    char *copy;

    if (bytes > GMS_CONFIG_FILE_BYTES) {
        status = gms_fail(ret_error, GMS_E_CONFIG, "%s: %zu bytes, limit %d", name, bytes, GMS_CONFIG_FILE_BYTES);
        if (report && ret_error)
            report(context, ret_error->text);
        return status;
    }
    copy = malloc(bytes + 1);
    if (!copy)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "%s: no memory for %zu bytes", name, bytes);
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    status = read_text(name, copy, bytes, NULL, ret_config, report, context, ret_error);
    free(copy);
    return status;
}

gms_status gms_config_read(const char *path, struct gms_config *ret_config, gms_config_report report, void *context,
                           struct gms_error *ret_error)
{
    struct gms_error error;
    char *text = NULL, *directory;
    size_t bytes = 0;
    gms_status status = gms_config_text_read(path, &text, &bytes, &error);

    if (status != GMS_OK) {
        if (ret_error)
            *ret_error = error;
        if (report)
            report(context, error.text);
        return status;
    }
    directory = strdup(path);
    status = directory ? read_text(path, text, bytes, dirname(directory), ret_config, report, context, ret_error)
                       : gms_fail(ret_error, GMS_E_NO_MEMORY, "%s: no memory", path);
    free(directory);
    free(text);
    return status;
}

/* ------------------------------------------------------------------------------------------------ the rest ----- */

uint64_t gms_config_capacity(const struct gms_config *config, uint32_t rank)
{
    for (uint32_t i = 0; i < config->capacity_of_count && i < GMS_CONFIG_OVERRIDES; i++)
        if (config->capacity_of[i].rank == rank)
            return config->capacity_of[i].capacity_bytes;
    return config->capacity_bytes;
}

uint64_t gms_config_digest(const struct gms_config *config)
{
    return XXH3_64bits(config, sizeof(*config));
}

const char *gms_config_difference(const struct gms_config *one, const struct gms_config *other)
{
    for (unsigned i = 0; i < gms_config_settings; i++) {
        const struct setting *row = &gms_config_table[i];
        const char *mine = (const char *)one + row->offset, *theirs = (const char *)other + row->offset;
        if (strstr(row->name, "[]") || row->kind == END)
            continue; /* what stands in a list is compared with the list */
        if (memcmp(mine, theirs, row->size) != 0 ||
            (row->count_offset != 0 && memcmp((const char *)one + row->count_offset,
                                              (const char *)other + row->count_offset, sizeof(uint32_t)) != 0))
            return row->name;
    }
    return NULL;
}

void gms_config_describe(FILE *stream)
{
    fprintf(stream, "%-29s  %-15s  %-10s  %s\n", "setting", "kind", "default", "meaning");
    for (unsigned i = 0; i < gms_config_settings; i++) {
        const struct setting *row = &gms_config_table[i];
        size_t kind_bytes = strcspn(gms_config_kind_text(row->kind), ",");
        char least[32], greatest[32];

        fprintf(stream, "%-29s  %-15.*s  %-10s  %s", row->name, (int)kind_bytes, gms_config_kind_text(row->kind),
                row->required  ? "(required)"
                : row->initial ? row->initial
                               : "(none)",
                row->help);
        if (row->choices) {
            fprintf(stream, " [%s]", row->choices);
        } else if (row->kind == SIZE || row->kind == DURATION || row->kind == INTEGER) {
            gms_config_limit_text(row, row->least, least, sizeof(least));
            gms_config_limit_text(row, row->greatest, greatest, sizeof(greatest));
            fprintf(stream, " [%s to %s]", least, greatest);
        }
        fputc('\n', stream);
    }
}

gms_status gms_config_check_host(const char *hostname, struct gms_error *ret_error)
{
    char own[256] = "";
    size_t length;

    if (!hostname) {
        if (gethostname(own, sizeof(own) - 1) != 0)
            return gms_fail(ret_error, GMS_E_SYSTEM, "gethostname: %s", strerror(errno));
        hostname = own;
    }
    length = strlen(hostname);
    if (length > GMS_CONFIG_HOST_BYTES)
        return gms_fail(
            ret_error, GMS_E_UNSUPPORTED,
            "host name \"%.256s\" has %zu bytes; Open MPI aborts at %d and more: give this host a name of at "
            "most %d bytes (hostnamectl set-hostname NAME)",
            hostname, length, GMS_CONFIG_HOST_BYTES + 1, GMS_CONFIG_HOST_BYTES);
    return GMS_OK;
}
