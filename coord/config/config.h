/* SPDX-License-Identifier: Apache-2.0
 *
 * The deployment file: one libconfig file per deployment, read by rank 0 and broadcast. The table in config.c names
 * every setting with its type, default, limits and one line of help; parsing, `--check`, `--help-config` and the
 * README's table derive from it. Example: examples/quickstart.cfg
 *
 *   deployment  = "demo";            required, [a-z0-9-], names the deployment in logs
 *   run_dir     = "/run/user/0/gms"; required, absolute
 *   ranks       = 2;                 required, 1..1024
 *   network     : { address = "auto" | "10.1.0.0/16" | "ib0"; };   of each host, for the others (address.h)
 *   memory      : { backend = "host" | "cuda"; device = "per-rank" | "shared"; capacity = "256MiB";
 *                   capacity_of = ( { rank = 1; capacity = "255MiB"; } ); };
 *   kv          : { verify = "full" | "none"; };
 *   budget      : { percent = 90; reserve = "256MiB"; };      of each rank's memory, for kv pools (core/budget.h)
 *   parking     : { preset = "shadow_failover" | "resident" | "lean" | one of these:
 *                   presets = ( { name = "mine"; tags = ( "TAG=keep|release|save", ... ); } ); };      parking.h
 *   timeouts    : { operation = "10s"; round = "5s"; heartbeat = "5s"; fence_report = "2s"; transfer_stall = "5s";
 *                  reattach = "5s"; leave = "1s"; told_to_end = "1s"; };
 *   reclaim     : { policy = "gpu-proof" | "process-death-timeout"; provider = "auto"; grace = "5s"; step = 1024;
 *                  page_pause = "0ms"; };
 *   environment : { set = ( "NAME=VALUE", ... );      for every engine rank; ${...} as environment.h says
 *                   engines = ( { engine = 1; set = ( "NAME=VALUE" ); } );   over it, for one engine
 *                   ranks = ( { rank = 3; set = ( "NAME=VALUE" ); } );       over that, for one rank
 *                   rename = ( "GMS_*=TLLM_GMS_*" ); port_first = 23000; port_count = 1000; };
 *   engine      : { command = ( "minillm", "--layers", "4" );
 *                   containment = "auto" | "pid-namespace" | "subreaper" | "cgroup"; };
 *   detection   : { progress_timeout = "30s"; };
 *   takeover    : { adopt_after_device_error = "never" | "verified" | "always"; adopt_after_ecc_error = ...; };
 *   launch      : { keepers = ( "mpirun", "--map-by", "ppr:1:node" );
 *                   coordinators = ( "mpirun" ); engines = ( "mpirun", "-n", "${world_size}" ) | ( "local" );
 *                   stop_signal = "TERM" | "USR1" | "INT"; };   what gms-up starts, and how
 *   standby     : { count = 1; serve_after_standby = "no" | "yes"; serve_wait = "60s"; ready_within = "10min"; };
 *   hooks       : { on_serving = ( "/path/prog", ... );    optional; run on rank 0 with GMS_EPOCH and GMS_ENDPOINT
 *                   before_kill = ( "/path/prog", ... ); };   optional; run on each rank with the engine rank's pid
 *   complete    = true;              required, the last line: a file cut short is refused (V38)
 *
 * Unknown settings, wrong types, missing units, duplicates and values out of range are errors with file:line.
 * `@include "NAME"` at the start of a line reads a file beside the deployment file; its last line is `# complete`.
 * Of `environment`, what gms-exec sets itself (GMS_RUN_DIR, GMS_RANK, GMS_WORLD_SIZE, GMS_LAUNCH_ID, ENGINE_ID) and
 * what a launcher says of a process's place (base/launcher.h) are refused; MCA settings are not.
 */
#ifndef GMS_COORD_CONFIG_H
#define GMS_COORD_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "config/address.h"
#include "core/ballot.h"
#include "gms/engine.h"
#include "gms/status.h"

enum {
    GMS_CONFIG_PATH_BYTES = 256,
    GMS_CONFIG_ENVIRONMENT_BYTES = 64 * 1024,
    GMS_CONFIG_RENAME_BYTES = 8 * 1024,
    GMS_CONFIG_COMMAND_BYTES = 8 * 1024,
    GMS_CONFIG_FILE_BYTES = 256 * 1024, /* of one file */
    GMS_CONFIG_OVERRIDES = 16,
    GMS_CONFIG_PRESETS_BYTES = 8 * 1024,
    GMS_CONFIG_PARKING_TAGS = GMS_MAX_TAGS,
    GMS_CONFIG_HOST_BYTES = 56, /* longest host name under which Open MPI starts (V41) */
};

enum gms_reclaim_policy { GMS_POLICY_GPU_PROOF, GMS_POLICY_PROCESS_DEATH_TIMEOUT };
enum gms_reclaim_provider { GMS_PROVIDER_AUTO, GMS_PROVIDER_PROCMAP, GMS_PROVIDER_NVML };
enum gms_memory_backend { GMS_MEMORY_HOST, GMS_MEMORY_CUDA };
enum gms_stop_signal { GMS_STOP_TERM, GMS_STOP_USR1, GMS_STOP_INT };
enum gms_containment {
    GMS_CONTAINMENT_AUTO,
    GMS_CONTAINMENT_PID_NAMESPACE,
    GMS_CONTAINMENT_SUBREAPER,
    GMS_CONTAINMENT_CGROUP,
};
/* May sealed KV be adopted that a broken device had mapped? VERIFIED: when the successor checks contents. */
enum gms_adopt_policy { GMS_ADOPT_NEVER, GMS_ADOPT_VERIFIED, GMS_ADOPT_ALWAYS };

/* Flat, no pointers: this is what rank 0 broadcasts. */
struct gms_config {
    char deployment[GMS_NAME_BYTES];
    char run_dir[GMS_CONFIG_PATH_BYTES];
    uint32_t ranks;
    char address[GMS_ADDRESS_WANTED_BYTES];
    uint64_t capacity_bytes;
    struct {
        uint32_t rank;
        uint64_t capacity_bytes;
    } capacity_of[GMS_CONFIG_OVERRIDES];
    uint32_t capacity_of_count;
    enum gms_memory_backend backend;
    bool device_shared;
    bool kv_verify_full;
    enum gms_containment containment;
    uint64_t operation_timeout_ns, round_timeout_ns, heartbeat_ns, fence_report_ns, transfer_stall_ns, reattach_ns,
        leave_ns, told_to_end_ns, progress_timeout_ns, before_kill_ns;
    enum gms_reclaim_policy reclaim_policy;
    enum gms_reclaim_provider reclaim_provider;
    uint32_t reclaim_step;
    uint64_t reclaim_grace_ns, reclaim_page_pause_ns;
    enum gms_adopt_policy adopt_after_device_error, adopt_after_ecc_error;
    uint32_t port_first, port_count; /* for MASTER_PORT */
    enum gms_stop_signal stop_signal;
    uint32_t budget_percent;
    uint64_t budget_reserve_bytes; /* for each shadow */
    char preset[GMS_NAME_BYTES];
    struct gms_tag parking[GMS_CONFIG_PARKING_TAGS]; /* of the chosen preset */
    uint32_t parking_count, presets_bytes;
    char presets[GMS_CONFIG_PRESETS_BYTES]; /* "PRESET TAG=POLICY\0" repeated, "PRESET \0" for one without tags */
    uint32_t standby_count;
    bool serve_after_standby;
    uint64_t serve_wait_ns, ready_within_ns;
    uint32_t launch_engines_bytes, launch_coordinators_bytes, launch_keepers_bytes;
    char launch_engines[GMS_CONFIG_COMMAND_BYTES]; /* "word\0" repeated, all three */
    char launch_coordinators[GMS_CONFIG_COMMAND_BYTES];
    char launch_keepers[GMS_CONFIG_COMMAND_BYTES];
    uint32_t environment_bytes, engine_environment_bytes, rank_environment_bytes, rename_bytes, command_bytes,
        on_serving_bytes, before_kill_bytes;
    char environment[GMS_CONFIG_ENVIRONMENT_BYTES];        /* "NAME=VALUE\0" repeated, ${...} not expanded */
    char engine_environment[GMS_CONFIG_ENVIRONMENT_BYTES]; /* "ENGINE NAME=VALUE\0" repeated */
    char rank_environment[GMS_CONFIG_ENVIRONMENT_BYTES];   /* "RANK NAME=VALUE\0" repeated */
    char rename[GMS_CONFIG_RENAME_BYTES];                  /* "FROM=TO\0" repeated */
    char command[GMS_CONFIG_COMMAND_BYTES];                /* "word\0" repeated */
    char on_serving[GMS_CONFIG_COMMAND_BYTES];
    char before_kill[GMS_CONFIG_COMMAND_BYTES];
};

/* Errors that a file has, all of them, worded "FILE:LINE: setting: what, limit, what to do". */
typedef void (*gms_config_report)(void *context, const char *text);

/* Reads and validates `path`. Every error goes to `report` (NULL allowed); returns CONFIG with the first in *ret_error.
 * Nothing is set in *ret_config after failure. */
gms_status gms_config_read(const char *path, struct gms_config *ret_config, gms_config_report report, void *context,
                           struct gms_error *ret_error);
/* The same from memory, for tests and fuzzing; `name` stands for the file in texts, @include is refused. `text` needs
 * no terminating NUL. */
gms_status gms_config_parse(const char *name, const char *text, size_t bytes, struct gms_config *ret_config,
                            gms_config_report report, void *context, struct gms_error *ret_error);
/* Device memory of one rank: its override, else memory.capacity. */
uint64_t gms_config_capacity(const struct gms_config *config, uint32_t rank);
/* Writes the settings table for people (--help-config). */
void gms_config_describe(FILE *stream);
/* XXH3-64 of the whole struct: ranks compare it after the broadcast. */
uint64_t gms_config_digest(const struct gms_config *config);
/* The first setting in which two files differ, by its name in the table; NULL: none. */
const char *gms_config_difference(const struct gms_config *one, const struct gms_config *other);
/* Can MPI start on this host? Open MPI aborts inside mpirun and MPI_Init when the host name has 57 bytes or more, so
 * call this before MPI_Init and in --check. `hostname` NULL: this host's. Errors: UNSUPPORTED (name, length, limit,
 * what to do), SYSTEM. */
gms_status gms_config_check_host(const char *hostname, struct gms_error *ret_error);

#endif
