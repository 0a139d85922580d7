/* SPDX-License-Identifier: Apache-2.0
 *
 * gms-kill-storm: kills what is ours, at random, while engines serve, and looks whether anybody noticed.
 *
 * gms-up keeps a deployment with a serving engine, a parked shadow, and a small third engine that allocates and
 * releases a pool without a pause, so that many kills fall between prepare and outcome. One thread streams the same
 * prompts again and again and compares every token with the undisturbed run. At the end the serving engine is killed
 * too: what it had sealed must be adopted, and its successor must give the same tokens.
 */
#include <argp.h>
#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "logs.h"
#include "storm.h"

static const char *const moment_names[MOMENT_COUNT] = {
    [MOMENT_REST] = "nothing under way",
    [MOMENT_PREPARED] = "between prepare and outcome",
    [MOMENT_DECIDED] = "decided, not yet carried out on a rank",
};

void storm_fail(struct storm *storm, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&storm->lock);
    if (storm->reason_count < REASONS)
        vsnprintf(storm->reasons[storm->reason_count], REASON_BYTES, format, arguments);
    storm->reason_count++;
    pthread_mutex_unlock(&storm->lock);
    va_end(arguments);
}

uint32_t storm_random(struct storm *storm, uint32_t below)
{
    storm->random += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t mixed = storm->random;
    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((mixed ^ (mixed >> 31)) % below);
}

bool storm_go_on(struct storm *storm)
{
    return storm->reason_count == 0 && !atomic_load(&storm->streams_failed);
}

/* --------------------------------------------------------------------------------------------- the end --- */

/* The serving engine dies as well: nothing that it had sealed may be missing. */
static void succeed(struct storm *storm)
{
    struct gms_error error;
    struct drill_logs logs = {0};
    struct drill_blocks sealed = {0};
    struct drill_deployment *deployment = &storm->deployment;
    if (drill_logs_read(deployment->log_dir, &logs, &error) != GMS_OK ||
        drill_logs_sealed(&logs, storm->incarnations[0], deployment->ranks, NULL, &sealed, &error) != GMS_OK) {
        storm_fail(storm, "the engines' logs: %s", error.text);
        return;
    }
    gms_pidfd_signal(deployment->engines[0].pidfds[deployment->ranks - 1], SIGKILL);
    deployment->engines[0].launcher->asked_to_end = true;
    gms_status status = drill_deployment_wait(deployment, 1, "serving", 0, storm->plan.timeout_s, &error);
    if (status == GMS_OK)
        status = drill_deployment_agree(deployment, &error);
    if (status != GMS_OK) {
        storm_fail(storm, "the failover at the end: %s", error.text);
    } else {
        const struct drill_status_takeover *takeover =
            drill_status_takeover(&deployment->status[0], storm->incarnations[1]);
        uint32_t adopted = takeover != NULL ? takeover->adopted : 0;
        printf("  failover at the end: %zu blocks were sealed on all ranks, %u adopted\n", sealed.count, adopted);
        if (sealed.count == 0 || adopted < sealed.count)
            storm_fail(storm, "%zu blocks were sealed on all ranks, %u were adopted", sealed.count, adopted);
        if (!storm_stream_round(storm, false))
            storm_fail(storm, "the successor's streams differ");
    }
    drill_blocks_free(&sealed);
    drill_logs_free(&logs);
}

static int compare_u64(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static void report(struct storm *storm)
{
    uint32_t inside = storm->by_moment[MOMENT_PREPARED] + storm->by_moment[MOMENT_DECIDED];
    printf("\nkilled                                    times\n");
    for (int i = 0; i < TARGET_COUNT; i++)
        printf("  %-38s %6u\n", storm_target_name((enum target)i), storm->by_target[i]);
    printf("moment of the world's end                 times\n");
    for (int i = 0; i < MOMENT_COUNT; i++)
        printf("  %-38s %6u  (%.0f %%)\n", moment_names[i], storm->by_moment[i],
               storm->restarts > 0 ? 100.0 * storm->by_moment[i] / storm->restarts : 0.0);
    printf("  prepared and not carried out everywhere: %u of %u restarts\n", inside, storm->restarts);
    if (storm->took_count > 0) {
        qsort(storm->took_ns, storm->took_count, sizeof *storm->took_ns, compare_u64);
        printf("kill to whole again (agreed, all engines attached): min %.0f, median %.0f, max %.0f ms of %u\n",
               (double)storm->took_ns[0] / 1e6, (double)storm->took_ns[storm->took_count / 2] / 1e6,
               (double)storm->took_ns[storm->took_count - 1] / 1e6, storm->took_count);
        if (storm->slowest.took_ns > 0)
            printf("  the slowest: after %s was killed; longest, %.0f ms, because %s\n",
                   storm_target_name(storm->slowest.target), (double)storm->slowest.longest_ns / 1e6,
                   storm->slowest.missing);
    }
    if (storm->workers != NULL)
        printf("third engine: %llu pools allocated and released on every rank\n",
               (unsigned long long)atomic_load(&storm->workers[0].done));
    printf(
        "streams: %llu rounds, %llu tokens, %llu wrong, %llu connections lost; longest gap %.0f ms (undisturbed %.0f "
        "ms)\n",
        (unsigned long long)atomic_load(&storm->rounds), (unsigned long long)atomic_load(&storm->tokens),
        (unsigned long long)storm->wrong_tokens, (unsigned long long)storm->resumes,
        (double)storm->longest_gap_ns / 1e6, (double)storm->control_gap_ns / 1e6);
    for (size_t i = 0; i < storm->reason_count && i < REASONS; i++)
        printf("FAILED: %s\n", storm->reasons[i]);
    printf("%s, seed %llu\n", storm->reason_count == 0 ? "passed" : "failed", (unsigned long long)storm->seed);
}

/* --------------------------------------------------------------------------------------------- running --- */

static gms_status prepare(struct storm *storm, struct gms_error *ret_error)
{
    gms_status status = drill_prompts_read(storm->plan.prompts, &storm->prompts, ret_error);
    if (status == GMS_OK)
        status = drill_processes_prepare(ret_error);
    if (status != GMS_OK)
        return status;
    snprintf(storm->work_dir, sizeof storm->work_dir, "/tmp/gms-storm-XXXXXX");
    snprintf(storm->shared_dir, sizeof storm->shared_dir, "/dev/shm/gms-storm-XXXXXX");
    if (mkdtemp(storm->work_dir) == NULL)
        return gms_fail(ret_error, GMS_E_SYSTEM, "%s cannot be made: %s", storm->work_dir, strerror(errno));
    if (mkdtemp(storm->shared_dir) == NULL)
        memcpy(storm->shared_dir, storm->work_dir, sizeof storm->shared_dir);
    storm->took_ns = calloc(storm->kills + 1, sizeof *storm->took_ns);
    if (storm->took_ns == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory");
    char dir[DRILL_PATH_BYTES];
    snprintf(dir, sizeof dir, "%.500s/d", storm->work_dir);
    struct drill_deployment *deployment = &storm->deployment;
    status = drill_deployment_start(&storm->plan, dir, storm->shared_dir, "storm", deployment, ret_error);
    for (uint32_t engine = 0; engine < WORKER && status == GMS_OK; engine++) {
        status = drill_deployment_launch(deployment, engine, ret_error);
        if (status == GMS_OK)
            status =
                drill_deployment_wait(deployment, engine, storm_roles[engine], 0, storm->plan.timeout_s, ret_error);
    }
    return status;
}

static void run(struct storm *storm)
{
    struct gms_error error;
    if (prepare(storm, &error) != GMS_OK) {
        storm_fail(storm, "it cannot be started: %s", error.text);
        return;
    }
    if (!storm_stream_round(storm, true))
        return;
    storm_start_workers(storm);
    struct storm_wait wait;
    storm_wait_whole(storm, 0, &wait);
    if (!storm_go_on(storm))
        return;
    storm_remember(storm);
    printf("  a serving engine, a parked one and a third that allocates and releases; %u streams of %u tokens\n",
           storm->plan.streams, storm->plan.max_tokens);
    fflush(stdout);
    if (pthread_create(&storm->streamer, NULL, storm_stream_on, storm) != 0) {
        storm_fail(storm, "no thread for the streams");
        return;
    }
    storm_rage(storm);
    atomic_store(&storm->streams_stop, true);
    pthread_join(storm->streamer, NULL);
    if (!storm_go_on(storm))
        return;
    if (storm->resumes > 0)
        storm_fail(storm, "%llu times a stream lost its connection", (unsigned long long)storm->resumes);
    if (storm->longest_gap_ns > storm->gap_limit_ms * GMS_NS_PER_MS)
        storm_fail(storm, "a stream stood still for %.0f ms", (double)storm->longest_gap_ns / 1e6);
    storm_stop_workers(storm);
    if (storm_go_on(storm))
        succeed(storm);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

static void clean_up(struct storm *storm)
{
    for (uint32_t rank = 0; storm->workers != NULL && rank < storm->deployment.ranks; rank++) {
        gms_pidfd_signal(storm->workers[rank].pidfd, SIGKILL);
        gms_fd_close(&storm->workers[rank].pidfd);
    }
    drill_deployment_stop(&storm->deployment);
    drill_prompts_free(&storm->prompts);
    for (uint32_t i = 0; i < STREAMS_MAX; i++)
        free(storm->reference[i]);
    free(storm->took_ns);
    if (strcmp(storm->shared_dir, storm->work_dir) != 0)
        nftw(storm->shared_dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    if (storm->keep || storm->reason_count > 0)
        printf("logs are kept in %s\n", storm->work_dir);
    else
        nftw(storm->work_dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* --------------------------------------------------------------------------------------------- options --- */

enum {
    KEY_SEED = 0x100,
    KEY_RANKS,
    KEY_STREAMS,
    KEY_TOKENS,
    KEY_PAUSE,
    KEY_DOUBLES,
    KEY_GAP,
    KEY_KEEP,
    KEY_BIN,
    KEY_TIMEOUT
};

static const struct argp_option options[] = {
    {"kills", 'n', "N", 0, "How many (default: 10)", 0},
    {"seed", KEY_SEED, "N", 0, "Of process and moment (default: another each time; it is printed)", 0},
    {"ranks", KEY_RANKS, "N", 0, "Ranks (default: 2)", 0},
    {"streams", KEY_STREAMS, "N", 0, "Client streams at a time (default: 4)", 0},
    {"max-tokens", KEY_TOKENS, "N", 0, "Tokens of each (default: 64)", 0},
    {"pause", KEY_PAUSE, "MS", 0, "At most so long between whole again and the next kill (default: 400)", 0},
    {"doubles", KEY_DOUBLES, "PERCENT", 0, "Kills that are followed by one within the recovery (default: 15)", 0},
    {"gap-limit", KEY_GAP, "MS", 0, "A longer silence of a stream is a failure (default: 2000)", 0},
    {"timeout", KEY_TIMEOUT, "SECONDS", 0, "Limit of each single wait (default: 60)", 0},
    {"bin-dir", KEY_BIN, "DIR", 0, "Where the programs are (default: beside this one)", 0},
    {"verbose", 'v', NULL, 0, "Tell every kill", 0},
    {"keep", KEY_KEEP, NULL, 0, "Keep the scratch space; a failed storm keeps it anyway", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct storm *storm = state->input;
    static const struct {
        int key;
        const char *name;
        uint64_t least, greatest;
        size_t offset;
    } numbers[] = {
        {'n', "kills", 1, MAX_KILLS, offsetof(struct storm, kills)},
        {KEY_RANKS, "ranks", 1, 16, offsetof(struct storm, plan.ranks)},
        {KEY_STREAMS, "streams", 1, STREAMS_MAX, offsetof(struct storm, plan.streams)},
        {KEY_TOKENS, "max-tokens", 1, DRILL_MAX_TOKENS, offsetof(struct storm, plan.max_tokens)},
        {KEY_PAUSE, "pause", 0, 60000, offsetof(struct storm, pause_ms)},
        {KEY_DOUBLES, "doubles", 0, 90, offsetof(struct storm, doubles_percent)},
        {KEY_GAP, "gap-limit", 1, 600000, offsetof(struct storm, gap_limit_ms)},
        {KEY_TIMEOUT, "timeout", 1, 3600, offsetof(struct storm, plan.timeout_s)},
    };
    struct gms_error error;
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (numbers[i].key != key)
            continue;
        if (drill_number_parse(numbers[i].name, argument, numbers[i].least, numbers[i].greatest, &value, &error) !=
            GMS_OK)
            argp_error(state, "%s", error.text);
        *(uint32_t *)((char *)storm + numbers[i].offset) = (uint32_t)value;
        return 0;
    }
    switch (key) {
    case KEY_SEED:
        if (drill_number_parse("seed", argument, 0, UINT64_MAX, &storm->seed, &error) != GMS_OK)
            argp_error(state, "%s", error.text);
        return 0;
    case KEY_BIN:
        snprintf(storm->plan.bin_dir, sizeof storm->plan.bin_dir, "%s", argument);
        return 0;
    case 'v':
        storm->plan.verbose = true;
        return 0;
    case KEY_KEEP:
        storm->keep = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "\"%s\" is one argument too many", argument);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    static struct storm storm = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const struct argp argp = {
        options,
        parse,
        NULL,
        "Kills coordinators, their launcher, the keeper and gms-up at random while engines serve, "
        "and looks whether anybody noticed.",
        NULL,
        NULL,
        NULL};
    struct gms_error error;
    gms_signals_reset();
    gms_fd_raise_limit();
    drill_plan_defaults(&storm.plan);
    storm.kills = 10;
    storm.plan.ranks = 2;
    storm.plan.engines = 2;
    storm.plan.streams = 4;
    storm.plan.max_tokens = 64;
    storm.plan.under_gms_up = true;
    storm.pause_ms = 400;
    storm.doubles_percent = 15;
    storm.gap_limit_ms = 2000;
    if (getrandom(&storm.seed, 4, 0) != 4)
        storm.seed = gms_clock_ns();
    for (size_t i = 0; storm_engine_command[i] != NULL; i++)
        storm.plan.command[i] = storm_engine_command[i];
    argp_err_exit_status = 64;
    argp_parse(&argp, argc, argv, 0, NULL, &storm);
    storm.random = storm.seed;
    if (drill_plan_complete(&storm.plan, &error) != GMS_OK) {
        fprintf(stderr, "gms-kill-storm: %s\n", error.text);
        return 64;
    }
    printf("gms-kill-storm: %u kills, seed %llu\n", storm.kills, (unsigned long long)storm.seed);
    fflush(stdout);
    run(&storm);
    report(&storm);
    clean_up(&storm);
    return storm.reason_count == 0 ? 0 : 1;
}
