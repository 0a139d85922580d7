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
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/run_dir.h"
#include "deployment.h"
#include "gms/engine.h"
#include "logs.h"
#include "plan.h"
#include "prompts.h"
#include "streams.h"
#include "wire/channel.h"

enum {
    MAX_KILLS = 100000,
    STREAMS_MAX = 64,
    WORKER = 2,
    HISTORY = 4096,
    STOP_AHEAD = 200 /* they do hundreds in a second */,
    POLL_MS = 10,
    REASONS = 16,
    REASON_BYTES = 512
};

enum target { TARGET_RANK, TARGET_ALL, TARGET_LAUNCHER, TARGET_KEEPER, TARGET_UP, TARGET_KEEPER_AND_ALL, TARGET_COUNT };
static const struct {
    const char *name;
    uint32_t weight;
    bool ends_world;
} targets[TARGET_COUNT] = {
    [TARGET_RANK] = {"one coordinator rank", 45, true},
    [TARGET_ALL] = {"all coordinator ranks", 15, true},
    [TARGET_LAUNCHER] = {"mpirun", 10, true},
    [TARGET_KEEPER] = {"the keeper", 12, false},
    [TARGET_UP] = {"gms-up", 10, false},
    [TARGET_KEEPER_AND_ALL] = {"keeper and all ranks", 8, true},
};

/* What the newest snapshot says that the old world died in. */
enum moment { MOMENT_REST, MOMENT_PREPARED, MOMENT_DECIDED, MOMENT_COUNT };
static const char *const moment_names[MOMENT_COUNT] = {
    [MOMENT_REST] = "nothing under way",
    [MOMENT_PREPARED] = "between prepare and outcome",
    [MOMENT_DECIDED] = "decided, not yet carried out on a rank",
};

#define ENGINE_MODEL        "minillm layers=2 width=64 heads=8/4 mlp=128 vocab=256 seed=1"
#define ENGINE_BLOCK_TOKENS 16
static const char *const engine_command[] = {"minillm", "--layers", "2",       "--width", "64",
                                             "--mlp",   "128",      "--slots", "512"};

/* One rank of the third engine, in memory that it shares with the storm. */
struct worker {
    _Atomic uint64_t done, stop_at; /* operations; 0: go on */
    uint64_t digest;                /* of all outcomes */
    uint64_t history[HISTORY];      /* the digest after each operation, a ring by its number */
    int pidfd;
    pid_t pid;
    _Atomic int failed, over, may_close; /* over: it has stopped, well or not */
    char text[GMS_ERROR_TEXT_BYTES];
};

struct storm {
    uint32_t kills, doubles_percent, pause_ms, gap_limit_ms, limit_s;
    uint64_t seed, random;
    bool keep;
    struct drill_plan plan;
    char work_dir[DRILL_PATH_BYTES], shared_dir[DRILL_PATH_BYTES];
    struct drill_deployment deployment;
    struct drill_prompts prompts;
    struct worker *workers; /* shared memory */

    /* the stream thread */
    pthread_t streamer;
    _Atomic bool streams_stop, streams_failed;
    _Atomic uint64_t rounds, tokens;
    uint64_t longest_gap_ns, control_gap_ns, wrong_tokens, resumes;
    struct drill_token *reference[STREAMS_MAX];
    uint32_t reference_count[STREAMS_MAX];

    /* what must not change */
    uint64_t epoch, incarnations[WORKER + 1];
    int32_t pids[WORKER + 1][DRILL_MAX_RANKS];

    /* what was found */
    uint32_t by_target[TARGET_COUNT], by_moment[MOMENT_COUNT], restarts;
    uint64_t *took_ns; /* kill to agreed again, of ends of worlds */
    uint32_t took_count;
    off_t log_read;
    size_t reason_count;
    char reasons[REASONS][REASON_BYTES];
    pthread_mutex_t lock; /* over reasons */
};

__attribute__((format(printf, 2, 3))) static void fail(struct storm *storm, const char *format, ...)
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

static uint32_t next_random(struct storm *storm, uint32_t below)
{
    storm->random += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t mixed = storm->random;
    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((mixed ^ (mixed >> 31)) % below);
}

/* ----------------------------------------------------------------------------------------------- streams ----- */

static gms_status open_streams(struct storm *storm, struct drill_streams *ret_streams, struct gms_error *ret_error)
{
    gms_status status = drill_streams_open(storm->deployment.run_dir, storm->plan.streams, ret_streams, ret_error);
    for (uint32_t i = 0; i < storm->plan.streams && status == GMS_OK; i++) {
        char id[16];
        snprintf(id, sizeof id, "s%u", i);
        if (drill_streams_add(ret_streams, id, storm->prompts.items[i % storm->prompts.count], storm->plan.seed + i,
                              storm->plan.temperature, storm->plan.max_tokens) == NULL)
            status = gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for stream %u", i);
    }
    for (size_t i = 0; i < ret_streams->count && status == GMS_OK; i++)
        drill_stream_start(&ret_streams->items[i]);
    return status;
}

static uint64_t longest_gap(const struct drill_streams *streams)
{
    uint64_t longest_ns = 0;
    for (size_t i = 0; i < streams->count; i++)
        for (uint32_t t = 1; t < streams->items[i].token_count; t++) {
            uint64_t gap_ns = streams->items[i].tokens[t].at_ns - streams->items[i].tokens[t - 1].at_ns;
            longest_ns = gap_ns > longest_ns ? gap_ns : longest_ns;
        }
    return longest_ns;
}

/* One round of all prompts. `reference`: becomes what later ones are compared with. */
static bool stream_round(struct storm *storm, bool reference)
{
    struct drill_streams streams = {.inotify = -1};
    struct gms_error error;
    uint64_t before = 0, news_ns = gms_clock_ns();
    bool good = open_streams(storm, &streams, &error) == GMS_OK;
    if (!good)
        fail(storm, "streams: %s", error.text);
    while (good && !drill_streams_finished(&streams)) {
        drill_streams_pump(&streams, gms_clock_ns() + 100 * GMS_NS_PER_MS, NULL, 0);
        uint64_t total = drill_streams_token_total(&streams);
        if (total != before)
            news_ns = gms_clock_ns();
        before = total;
        if (gms_clock_ns() - news_ns > storm->plan.timeout_s * GMS_NS_PER_S) {
            fail(storm, "no token of any stream for %u s", storm->plan.timeout_s);
            good = false;
        }
    }
    for (size_t i = 0; i < streams.count && good; i++) {
        const struct drill_stream *stream = &streams.items[i];
        if (stream->state != DRILL_STREAM_DONE) {
            fail(storm, "stream %s: %.300s", stream->id, stream->error);
            good = false;
            break;
        }
        storm->resumes += stream->resumes;
        atomic_fetch_add(&storm->tokens, stream->token_count);
        if (reference) {
            storm->reference_count[i] = stream->token_count;
            storm->reference[i] = calloc(stream->token_count, sizeof *stream->tokens);
            if (storm->reference[i] != NULL)
                memcpy(storm->reference[i], stream->tokens, stream->token_count * sizeof *stream->tokens);
            continue;
        }
        bool equal = stream->token_count == storm->reference_count[i];
        for (uint32_t t = 0; t < stream->token_count && t < storm->reference_count[i]; t++)
            if (stream->tokens[t].token != storm->reference[i][t].token) {
                storm->wrong_tokens++;
                equal = false;
            }
        if (!equal) {
            fail(storm, "stream %s differs from the undisturbed run", stream->id);
            good = false;
        }
    }
    uint64_t gap_ns = longest_gap(&streams);
    if (reference)
        storm->control_gap_ns = gap_ns;
    else
        storm->longest_gap_ns = gap_ns > storm->longest_gap_ns ? gap_ns : storm->longest_gap_ns;
    drill_streams_close(&streams);
    atomic_fetch_add(&storm->rounds, 1);
    return good;
}

static void *stream_on(void *context)
{
    struct storm *storm = context;
    while (!atomic_load(&storm->streams_stop) && !atomic_load(&storm->streams_failed))
        if (!stream_round(storm, false))
            atomic_store(&storm->streams_failed, true);
    return NULL;
}

/* ----------------------------------------------------------------------------------------- the third engine -- */

static void mix(struct worker *worker, uint64_t value)
{
    worker->digest = (worker->digest ^ value) * UINT64_C(0x100000001b3);
}

/* A call, repeated for as long as there is no coordinator; every rank makes the same calls in the same order. */
static gms_status attach(gms_session *session, uint64_t number, gms_pool **ret_pool, struct gms_error *error)
{
    struct gms_pool_description description = {.kind = GMS_POOL_KV, .slot_count = 8, .block_bytes = 4096};
    snprintf(description.name, sizeof description.name, "storm%llu", (unsigned long long)(number % 3));
    gms_status status = GMS_E_AGAIN;
    while (status == GMS_E_AGAIN || status == GMS_E_TIMEOUT)
        status = gms_pool_attach(session, &description, ret_pool, error);
    return status;
}

static gms_status release(gms_pool *pool, struct gms_error *error)
{
    gms_status status = GMS_E_AGAIN;
    while (status == GMS_E_AGAIN || status == GMS_E_TIMEOUT)
        status = gms_pool_release(pool, error);
    return status;
}

static gms_status work(struct worker *worker, const char *run_dir, uint32_t rank, uint32_t ranks,
                       struct gms_error *error)
{
    const struct gms_open_options options = {
        .run_dir = run_dir, .rank = (int32_t)rank, .engine_id = WORKER, .launch = "storm"};
    /* The group takes only engines whose KV the others could read: minillm's own words, for engine_command. */
    char layout[64];
    snprintf(layout, sizeof layout, "layer,k|v,token,head,dim tp=%u", ranks);
    const struct gms_identity identity = {.model = ENGINE_MODEL,
                                          .dtype = "f32",
                                          .layout = layout,
                                          .hash_algorithm = "xxh3-128-chain",
                                          .engine_name = "minillm",
                                          .engine_version = "1",
                                          .hash_seed = 0,
                                          .block_tokens = ENGINE_BLOCK_TOKENS,
                                          .world_size = ranks};
    struct gms_membership membership;
    gms_session *session = NULL;
    gms_status status = gms_open(&options, &session, error);
    if (status == GMS_OK)
        status = gms_join(session, &identity, &membership, error);
    mix(worker, (uint64_t)status);
    for (uint64_t number = 1; status == GMS_OK; number++) {
        uint64_t stop_at = atomic_load(&worker->stop_at);
        if (stop_at != 0 && number > stop_at)
            break;
        gms_pool *pool = NULL;
        status = attach(session, number, &pool, error);
        mix(worker, (uint64_t)status);
        if (status == GMS_OK) {
            mix(worker, gms_pool_index(pool));
            status = release(pool, error);
        }
        mix(worker, (uint64_t)status);
        worker->history[number % HISTORY] = worker->digest;
        if (status == GMS_OK)
            atomic_store(&worker->done, number);
    }
    /* The first that leaves has the others fenced: nobody does before all are done. */
    memcpy(worker->text, error->text, sizeof worker->text);
    atomic_store(&worker->failed, (int)status);
    atomic_store(&worker->over, 1);
    while (!atomic_load(&worker->may_close))
        poll(NULL, 0, 5); /* the parent's end ends this process */
    gms_close(session);
    return status;
}

static void start_workers(struct storm *storm)
{
    uint32_t ranks = storm->deployment.ranks;
    storm->workers =
        mmap(NULL, ranks * sizeof *storm->workers, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (storm->workers == MAP_FAILED) {
        storm->workers = NULL;
        fail(storm, "no memory for the third engine");
        return;
    }
    for (uint32_t rank = 0; rank < ranks; rank++) {
        struct worker *worker = &storm->workers[rank];
        pid_t parent = getpid();
        worker->pid = fork();
        if (worker->pid == 0) {
            struct gms_error error = {.status = GMS_OK};
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            gms_status status =
                getppid() == parent ? work(worker, storm->deployment.run_dir, rank, ranks, &error) : GMS_E_SYSTEM;
            _exit(status == GMS_OK ? 0 : 1);
        }
        worker->pidfd = -1;
        if (worker->pid < 0 || gms_pidfd_open(worker->pid, &worker->pidfd, NULL) != GMS_OK)
            fail(storm, "the third engine cannot be started");
    }
}

static void check_workers(struct storm *storm)
{
    for (uint32_t rank = 0; rank < storm->deployment.ranks; rank++)
        if (atomic_load(&storm->workers[rank].over) || gms_pidfd_ended(storm->workers[rank].pidfd))
            fail(storm, "rank %u of the third engine ended: %s: %.300s", rank,
                 gms_status_name((gms_status)atomic_load(&storm->workers[rank].failed)), storm->workers[rank].text);
}

/* The first operation with different outcomes that is still in the history. */
static uint64_t first_difference(const struct storm *storm, uint32_t rank)
{
    const struct worker *a = &storm->workers[0], *b = &storm->workers[rank];
    uint64_t last = a->done < b->done ? a->done : b->done, first = last > HISTORY ? last - HISTORY + 1 : 1;
    for (uint64_t number = first; number <= last; number++)
        if (a->history[number % HISTORY] != b->history[number % HISTORY])
            return number;
    return 0;
}

/* All ranks stop after the same operation, and must have had the same outcomes. */
static void stop_workers(struct storm *storm)
{
    uint64_t most = 0, deadline_ns = gms_clock_ns() + storm->plan.timeout_s * GMS_NS_PER_S;
    uint32_t ranks = storm->deployment.ranks;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        uint64_t done = atomic_load(&storm->workers[rank].done);
        most = done > most ? done : most;
    }
    for (uint32_t rank = 0; rank < ranks; rank++)
        atomic_store(&storm->workers[rank].stop_at, most + STOP_AHEAD);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        while (!atomic_load(&storm->workers[rank].over) && gms_clock_ns() < deadline_ns)
            poll(NULL, 0, POLL_MS);
        if (!atomic_load(&storm->workers[rank].over))
            fail(storm, "rank %u of the third engine does not come to operation %llu", rank,
                 (unsigned long long)(most + STOP_AHEAD));
    }
    for (uint32_t rank = 0; rank < ranks; rank++) {
        const struct worker *worker = &storm->workers[rank];
        if (worker->failed != 0)
            fail(storm, "rank %u of the third engine: %s: %.300s", rank, gms_status_name((gms_status)worker->failed),
                 worker->text);
        if (worker->done != most + STOP_AHEAD || worker->digest != storm->workers[0].digest)
            fail(storm,
                 "rank %u of the third engine had other outcomes than rank 0 (%llu and %llu operations, told to stop "
                 "after %llu; the first that differs: %llu)",
                 rank, (unsigned long long)worker->done, (unsigned long long)storm->workers[0].done,
                 (unsigned long long)most + STOP_AHEAD, (unsigned long long)first_difference(storm, rank));
    }
    for (uint32_t rank = 0; rank < ranks; rank++)
        atomic_store(&storm->workers[rank].may_close, 1);
}

/* -------------------------------------------------------------------------------------------------- state ---- */

static const char *const roles[WORKER + 1] = {"serving", "parked", "joined"};

/* Is the group whole: every rank answers, all agree, and all engines are attached as what they were? */
static bool is_whole(struct storm *storm, uint64_t former_world, const char **ret_missing)
{
    struct gms_error error;
    const struct drill_status *all = storm->deployment.status;
    if (drill_status_fetch_all(storm->deployment.run_dir, storm->deployment.ranks, gms_clock_ns() + 200 * GMS_NS_PER_MS,
                               storm->deployment.status, &error) != GMS_OK) {
        *ret_missing = "a rank does not answer";
        return false;
    }
    *ret_missing = "the ranks do not agree";
    if (drill_status_agree(all, storm->deployment.ranks, &error) != GMS_OK)
        return false;
    *ret_missing = "the old world still answers";
    if (all[0].world == former_world)
        return false;
    for (uint32_t rank = 0; rank < storm->deployment.ranks; rank++) {
        *ret_missing = "a rank has no keeper";
        if (!all[rank].keeper)
            return false;
        *ret_missing = "a gms-exec is not attached";
        if (all[rank].copy_holders < WORKER) /* of the two engines that have one */
            return false;
        *ret_missing = "an engine is not attached";
        for (uint32_t engine = 0; engine <= WORKER; engine++) {
            const struct drill_status_engine *one = drill_status_engine(&all[rank], engine);
            if (one == NULL || !one->connected || strcmp(one->role, roles[engine]) != 0)
                return false;
        }
    }
    *ret_missing = "";
    return true;
}

/* Once it is whole, it must be what it was. */
static void check_same(struct storm *storm)
{
    const struct drill_status *all = storm->deployment.status;
    for (uint32_t rank = 0; rank < storm->deployment.ranks; rank++) {
        if (all[rank].epoch != storm->epoch)
            fail(storm, "rank %u: the epoch was %llu and is %llu", rank, (unsigned long long)storm->epoch,
                 (unsigned long long)all[rank].epoch);
        for (uint32_t engine = 0; engine <= WORKER; engine++) {
            const struct drill_status_engine *one = drill_status_engine(&all[rank], engine);
            if (one->incarnation != storm->incarnations[engine] || one->pid != storm->pids[engine][rank])
                fail(storm, "rank %u: engine %u was incarnation %llu (pid %d) and is %llu (pid %d)", rank, engine,
                     (unsigned long long)storm->incarnations[engine], storm->pids[engine][rank],
                     (unsigned long long)one->incarnation, one->pid);
        }
    }
}

static void remember(struct storm *storm)
{
    const struct drill_status *all = storm->deployment.status;
    storm->epoch = all[0].epoch;
    for (uint32_t engine = 0; engine <= WORKER; engine++) {
        storm->incarnations[engine] = drill_status_engine(&all[0], engine)->incarnation;
        for (uint32_t rank = 0; rank < storm->deployment.ranks; rank++)
            storm->pids[engine][rank] = drill_status_engine(&all[rank], engine)->pid;
    }
}

/* What restarted coordinators said about the moment in which the world before them had ended. */
static void read_moments(struct storm *storm)
{
    char path[DRILL_PATH_BYTES + 16], line[1024];
    snprintf(path, sizeof path, "%.480s/up.out", storm->deployment.dir);
    FILE *stream = fopen(path, "re");
    if (stream == NULL)
        return;
    fseeko(stream, storm->log_read, SEEK_SET);
    while (fgets(line, sizeof line, stream) != NULL && strchr(line, '\n') != NULL) {
        unsigned long long round;
        unsigned engines, pools, under_way, prepared;
        const char *at = strstr(line, "the earlier world ended after its round");
        if (at != NULL && sscanf(at,
                                 "the earlier world ended after its round %llu: %u engines, %u pools, %u operations "
                                 "under way, %u prepared here",
                                 &round, &engines, &pools, &under_way, &prepared) == 5) {
            storm->restarts++;
            storm->by_moment[under_way > 0 ? MOMENT_PREPARED : prepared > 0 ? MOMENT_DECIDED : MOMENT_REST]++;
        }
        if (strstr(line, "GMS_E_DIVERGED") != NULL || strstr(line, "is condemned") != NULL)
            fail(storm, "the log says: %.400s", line);
        storm->log_read = ftello(stream);
    }
    fclose(stream);
}

/* -------------------------------------------------------------------------------------------------- kills ---- */

static pid_t launcher_pid(const struct storm *storm)
{
    char path[DRILL_PATH_BYTES + 16], text[64] = "";
    snprintf(path, sizeof path, "%.480s/up.job", storm->deployment.run_dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    gms_fd_close(&fd);
    return length > 0 ? (pid_t)atoi(text) : 0;
}

static pid_t keeper_pid(const struct storm *storm)
{
    char path[GMS_RUN_PATH_BYTES];
    struct ucred peer = {0};
    socklen_t bytes = sizeof peer;
    int fd = -1;
    if (gms_run_dir_path(storm->deployment.run_dir, "keeper", -1, path, NULL) != GMS_OK ||
        gms_channel_connect(path, 100, &fd, NULL) != GMS_OK)
        return 0;
    (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
    gms_fd_close(&fd);
    return peer.pid;
}

static struct drill_process *up_process(struct storm *storm)
{
    for (size_t i = 0; i < storm->deployment.processes.count; i++)
        if (strcmp(storm->deployment.processes.items[i].name, "gms-up") == 0)
            return &storm->deployment.processes.items[i];
    return NULL;
}

/* Pidfds of what is to be killed, each checked to descend from us. Returns how many; 0: not there now. */
static size_t find_victims(struct storm *storm, enum target target, int ret_pidfds[DRILL_MAX_RANKS + 1])
{
    pid_t pids[DRILL_MAX_RANKS + 1];
    size_t count = 0, found = 0;
    uint32_t ranks = storm->deployment.ranks;
    switch (target) {
    case TARGET_RANK:
        pids[count++] = storm->deployment.status[next_random(storm, ranks)].pid;
        break;
    case TARGET_KEEPER_AND_ALL:
        pids[count++] = keeper_pid(storm);
        /* fall through */
    case TARGET_ALL:
        for (uint32_t rank = 0; rank < ranks; rank++)
            pids[count++] = storm->deployment.status[rank].pid;
        break;
    case TARGET_LAUNCHER:
        pids[count++] = launcher_pid(storm);
        break;
    case TARGET_KEEPER:
        pids[count++] = keeper_pid(storm);
        break;
    case TARGET_UP:
        pids[count++] = up_process(storm)->pid;
        break;
    case TARGET_COUNT:
        break;
    }
    for (size_t i = 0; i < count; i++)
        if (pids[i] > 0 && drill_descendant_open(getpid(), pids[i], &ret_pidfds[found], NULL) == GMS_OK)
            found++;
    return found;
}

/* `within` a recovery keeper and coordinators are not ended together: before gms-exec is attached again nobody else has
 * what was made since, and the group refuses to go on without a person's word, as it should. */
static enum target choose(struct storm *storm, bool within)
{
    uint32_t sum = 0, at;
    for (int i = 0; i < TARGET_COUNT; i++)
        sum += targets[i].weight;
    if (within)
        sum -= targets[TARGET_KEEPER_AND_ALL].weight; /* the last row */
    at = next_random(storm, sum);
    for (int i = 0; i < TARGET_COUNT; i++) {
        if (at < targets[i].weight)
            return (enum target)i;
        at -= targets[i].weight;
    }
    return TARGET_RANK;
}

static bool kill_now(struct storm *storm, enum target target)
{
    int victims[DRILL_MAX_RANKS + 1];
    size_t count = find_victims(storm, target, victims);
    if (target == TARGET_UP)
        up_process(storm)->asked_to_end = true;
    for (size_t i = 0; i < count; i++) {
        gms_pidfd_signal(victims[i], SIGKILL);
        gms_fd_close(&victims[i]);
    }
    if (count > 0)
        storm->by_target[target]++;
    return count > 0;
}

static bool go_on(struct storm *storm)
{
    return storm->reason_count == 0 && !atomic_load(&storm->streams_failed);
}

/* Sleeps in the sense of letting time pass that was drawn, not waiting for anything. */
static void let_pass(uint32_t most_ms, struct storm *storm)
{
    uint64_t until_ns = gms_clock_ns() + (uint64_t)next_random(storm, 1000 * most_ms + 1) * 1000;
    struct timespec left = {0};
    for (uint64_t now_ns = gms_clock_ns(); now_ns < until_ns; now_ns = gms_clock_ns()) {
        left.tv_nsec = (long)((until_ns - now_ns) % GMS_NS_PER_S);
        left.tv_sec = (time_t)((until_ns - now_ns) / GMS_NS_PER_S);
        nanosleep(&left, NULL);
    }
}

static void restart_up(struct storm *storm)
{
    struct gms_error error;
    struct drill_process *process = up_process(storm);
    if (!drill_process_wait(process, gms_clock_ns() + 5 * GMS_NS_PER_S))
        fail(storm, "gms-up does not end by SIGKILL");
    else if (drill_deployment_start_up(&storm->deployment, &error) != GMS_OK)
        fail(storm, "gms-up: %s", error.text);
}

static void wait_whole(struct storm *storm, uint64_t former_world)
{
    uint64_t deadline_ns = gms_clock_ns() + storm->plan.timeout_s * GMS_NS_PER_S;
    const char *missing = "";
    while (go_on(storm) && !is_whole(storm, former_world, &missing)) {
        check_workers(storm);
        drill_processes_check(&storm->deployment.processes);
        const struct drill_process *up = up_process(storm);
        char outcome[32];
        if (up->ended && !up->asked_to_end)
            fail(storm, "gms-up ended by itself (%s)", drill_process_outcome(up, outcome, sizeof outcome));
        if (gms_clock_ns() >= deadline_ns)
            fail(storm, "the group is not whole again after %u s: %s", storm->plan.timeout_s, missing);
        poll(NULL, 0, POLL_MS);
    }
}

static void rage(struct storm *storm)
{
    const char *missing = "";
    for (uint32_t killed = 0; killed < storm->kills && go_on(storm);) {
        let_pass(storm->pause_ms, storm);
        /* Pids may have changed: what is killed is what is there now. */
        bool known = is_whole(storm, 0, &missing);
        uint64_t world = storm->deployment.status[0].world;
        bool ends_world = false, single = false;
        for (bool again = true, first = true; again && killed < storm->kills; first = false) {
            enum target target = choose(storm, !first);
            if (!kill_now(storm, target))
                break;
            killed++;
            if (storm->plan.verbose)
                printf("  %.3f: killed %s, world %llu\n", (double)gms_clock_ns() / 1e9, targets[target].name,
                       (unsigned long long)world);
            ends_world = ends_world || targets[target].ends_world;
            single = first;
            if (target == TARGET_UP)
                restart_up(storm);
            again = next_random(storm, 100) < storm->doubles_percent;
            if (again)
                let_pass(1500, storm); /* into the middle of the recovery */
        }
        uint64_t begin_ns = gms_clock_ns();
        wait_whole(storm, ends_world ? world : 0);
        if (!go_on(storm))
            break;
        if (ends_world && single && known) /* else it may have ended what was ending already */
            storm->took_ns[storm->took_count++] = gms_clock_ns() - begin_ns;
        if (storm->plan.verbose)
            printf("  %.3f: whole, world %llu\n", (double)gms_clock_ns() / 1e9,
                   (unsigned long long)storm->deployment.status[0].world);
        check_same(storm);
        check_workers(storm);
        read_moments(storm);
        if (killed % 50 == 0 || killed == storm->kills)
            printf("  %u kills, %llu rounds of streams\n", killed, (unsigned long long)atomic_load(&storm->rounds));
        fflush(stdout);
    }
}

/* ------------------------------------------------------------------------------------------------- the end --- */

/* The serving engine dies as well: nothing that it had sealed may be missing. */
static void succeed(struct storm *storm)
{
    struct gms_error error;
    struct drill_logs logs = {0};
    struct drill_blocks sealed = {0};
    struct drill_deployment *deployment = &storm->deployment;
    if (drill_logs_read(deployment->log_dir, &logs, &error) != GMS_OK ||
        drill_logs_sealed(&logs, storm->incarnations[0], deployment->ranks, NULL, &sealed, &error) != GMS_OK) {
        fail(storm, "the engines' logs: %s", error.text);
        return;
    }
    gms_pidfd_signal(deployment->engines[0].pidfds[deployment->ranks - 1], SIGKILL);
    deployment->engines[0].launcher->asked_to_end = true;
    gms_status status = drill_deployment_wait(deployment, 1, "serving", 0, storm->plan.timeout_s, &error);
    if (status == GMS_OK)
        status = drill_deployment_agree(deployment, &error);
    if (status != GMS_OK) {
        fail(storm, "the failover at the end: %s", error.text);
    } else {
        const struct drill_status_takeover *takeover =
            drill_status_takeover(&deployment->status[0], storm->incarnations[1]);
        uint32_t adopted = takeover != NULL ? takeover->adopted : 0;
        printf("  failover at the end: %zu blocks were sealed on all ranks, %u adopted\n", sealed.count, adopted);
        if (sealed.count == 0 || adopted < sealed.count)
            fail(storm, "%zu blocks were sealed on all ranks, %u were adopted", sealed.count, adopted);
        if (!stream_round(storm, false))
            fail(storm, "the successor's streams differ");
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
        printf("  %-38s %6u\n", targets[i].name, storm->by_target[i]);
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

/* ------------------------------------------------------------------------------------------------- running --- */

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
            status = drill_deployment_wait(deployment, engine, roles[engine], 0, storm->plan.timeout_s, ret_error);
    }
    return status;
}

static void run(struct storm *storm)
{
    struct gms_error error;
    if (prepare(storm, &error) != GMS_OK) {
        fail(storm, "it cannot be started: %s", error.text);
        return;
    }
    if (!stream_round(storm, true))
        return;
    start_workers(storm);
    wait_whole(storm, 0);
    if (!go_on(storm))
        return;
    remember(storm);
    printf("  a serving engine, a parked one and a third that allocates and releases; %u streams of %u tokens\n",
           storm->plan.streams, storm->plan.max_tokens);
    fflush(stdout);
    if (pthread_create(&storm->streamer, NULL, stream_on, storm) != 0) {
        fail(storm, "no thread for the streams");
        return;
    }
    rage(storm);
    atomic_store(&storm->streams_stop, true);
    pthread_join(storm->streamer, NULL);
    if (!go_on(storm))
        return;
    if (storm->resumes > 0)
        fail(storm, "%llu times a stream lost its connection", (unsigned long long)storm->resumes);
    if (storm->longest_gap_ns > storm->gap_limit_ms * GMS_NS_PER_MS)
        fail(storm, "a stream stood still for %.0f ms", (double)storm->longest_gap_ns / 1e6);
    stop_workers(storm);
    if (go_on(storm))
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

/* ------------------------------------------------------------------------------------------------- options --- */

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
    for (size_t i = 0; i < sizeof engine_command / sizeof engine_command[0]; i++)
        storm.plan.command[i] = engine_command[i];
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
