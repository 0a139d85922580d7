/* SPDX-License-Identifier: Apache-2.0 */
#include "deployment.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "deployment_file.h"

enum { POLL_MS = 20, LAST_WORDS = 240, LAST_WORDS_SEARCHED = 8192 };

/* ------------------------------------------------------------------------------------------------- waiting ---- */

/* The last error in a process's output, else the end of it, on one line: a launcher has its own say after the ranks'.
 */
static void last_words(const char *path, char *ret_text, size_t bytes)
{
    char tail[LAST_WORDS_SEARCHED];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    off_t size = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    off_t begin = size > (off_t)sizeof tail - 1 ? size - (off_t)sizeof tail + 1 : 0;
    ssize_t length = size > 0 ? pread(fd, tail, sizeof tail - 1, begin) : 0;
    gms_fd_close(&fd);
    tail[length > 0 ? length : 0] = '\0';
    size_t end = strlen(tail);
    const char *from = end >= bytes ? tail + end - bytes + 1 : tail;
    for (const char *error = strstr(tail, " error: "); error != NULL; error = strstr(error + 1, " error: "))
        for (from = error; from > tail && from[-1] != '\n';)
            from--;
    size_t words = strnlen(from, bytes - 1);
    memcpy(ret_text, from, words);
    ret_text[words] = '\0';
    for (char *at = ret_text; *at != '\0'; at++)
        if (*at == '\n')
            *at = ' ';
}

static gms_status process_ended(const struct drill_process *process, struct gms_error *ret_error)
{
    char outcome[32], words[LAST_WORDS];
    last_words(process->output, words, sizeof words);
    return gms_fail(ret_error, GMS_E_DISCONNECTED, "%s ended (%s) by itself; %.100s ends with: %s", process->name,
                    drill_process_outcome(process, outcome, sizeof outcome), process->output, words);
}

gms_status drill_deployment_check(struct drill_deployment *deployment, uint32_t excused, struct gms_error *ret_error)
{
    if (drill_interrupted())
        return gms_fail(ret_error, GMS_E_REFUSED, "interrupted");
    drill_processes_check(&deployment->processes);
    for (size_t i = 0; i < deployment->processes.count; i++) {
        const struct drill_process *process = &deployment->processes.items[i];
        bool is_excused = false;
        for (uint32_t engine = 0; engine < DRILL_MAX_ENGINES; engine++)
            is_excused |= deployment->engines[engine].launcher == process && (excused & (1u << engine)) != 0;
        if (process->ended && !process->asked_to_end && !is_excused)
            return process_ended(process, ret_error);
    }
    return GMS_OK;
}

gms_status drill_deployment_agree(struct drill_deployment *deployment, struct gms_error *ret_error)
{
    uint64_t deadline_ns = gms_clock_ns() + 2 * GMS_NS_PER_S;
    for (;;) {
        gms_status status = drill_status_fetch_all(deployment->run_dir, deployment->ranks, deadline_ns + GMS_NS_PER_S,
                                                   deployment->status, ret_error);
        if (status == GMS_OK)
            status = drill_status_agree(deployment->status, deployment->ranks, ret_error);
        if (status != GMS_E_MISMATCH || gms_clock_ns() >= deadline_ns)
            return status;
        poll(NULL, 0, POLL_MS);
    }
}

/* Engines whose incarnation was chosen and lost may have ended; the one waited for may not. */
static gms_status check_but_engines(struct drill_deployment *deployment, uint32_t engine, struct gms_error *ret_error)
{
    return drill_deployment_check(deployment, engine < DRILL_MAX_ENGINES ? ~(1u << engine) : ~0u, ret_error);
}

static gms_status note_engine(struct drill_deployment *deployment, uint32_t engine, struct gms_error *ret_error)
{
    struct drill_engine *noted = &deployment->engines[engine];
    noted->incarnation = drill_status_engine(&deployment->status[0], engine)->incarnation;
    for (uint32_t rank = 0; rank < deployment->ranks; rank++) {
        const struct drill_status_engine *said = drill_status_engine(&deployment->status[rank], engine);
        if (said->incarnation != noted->incarnation)
            return gms_fail(ret_error, GMS_E_MISMATCH, "engine %u is incarnation %llu on rank 0 and %llu on rank %u",
                            engine, (unsigned long long)noted->incarnation, (unsigned long long)said->incarnation,
                            rank);
        if (said->pid <= 0)
            return gms_fail(ret_error, GMS_E_NOT_FOUND, "rank %u does not know the pid of engine %u", rank, engine);
        noted->pids[rank] = said->pid;
        memcpy(noted->containment[rank], said->containment, sizeof noted->containment[rank]);
        gms_fd_close(&noted->pidfds[rank]);
        /* The launcher's daemon on the other host has nobody above it but the drill. */
        pid_t root = noted->launcher != NULL && !deployment->hosts.up ? noted->launcher->pid : getpid();
        gms_status status = noted->launcher != NULL
                                ? drill_descendant_open(root, said->pid, &noted->pidfds[rank], ret_error)
                                : gms_pidfd_open(said->pid, &noted->pidfds[rank], ret_error);
        if (status != GMS_OK)
            return status;
    }
    return GMS_OK;
}

static bool rank_is_there(const struct drill_status *status, uint32_t engine, const char *role, uint64_t incarnation)
{
    if (role != NULL) {
        const struct drill_status_engine *said = drill_status_engine(status, engine);
        return said != NULL && strcmp(said->role, role) == 0;
    }
    for (uint32_t i = 0; i < status->engine_count; i++)
        if (status->engines[i].incarnation == incarnation)
            return false;
    return status->serving_engine < 0;
}

static gms_status waited_in_vain(const struct drill_deployment *deployment, uint32_t engine, const char *role,
                                 uint32_t timeout_s, uint32_t answered, const struct gms_error *last,
                                 struct gms_error *ret_error)
{
    char said[200] = "";
    for (uint32_t rank = 0; rank < answered; rank++) {
        const struct drill_status *status = &deployment->status[rank];
        const struct drill_status_engine *one = drill_status_engine(status, engine);
        size_t used = strlen(said);
        snprintf(said + used, sizeof said - used, "; rank %u: group %s, engine %s", rank, status->takeover,
                 one != NULL ? one->role : "absent");
    }
    return gms_fail(ret_error, GMS_E_TIMEOUT, "waited %u s for engine %u to be %s%s%s%.160s", timeout_s, engine,
                    role != NULL ? role : "gone", said, answered < deployment->ranks ? "; " : "",
                    answered < deployment->ranks ? last->text : "");
}

gms_status drill_deployment_wait(struct drill_deployment *deployment, uint32_t engine, const char *role,
                                 uint64_t incarnation, uint32_t timeout_s, struct gms_error *ret_error)
{
    uint64_t deadline_ns = gms_clock_ns() + timeout_s * GMS_NS_PER_S;
    for (;;) {
        struct gms_error error = {0};
        uint32_t there = 0, answered = 0;
        for (; answered < deployment->ranks; answered++) {
            struct drill_status *status = &deployment->status[answered];
            if (drill_status_fetch(deployment->run_dir, answered, deadline_ns, status, &error) != GMS_OK)
                break;
            there += rank_is_there(status, engine, role, incarnation);
        }
        if (there == deployment->ranks)
            return role != NULL && engine < DRILL_MAX_ENGINES ? note_engine(deployment, engine, ret_error) : GMS_OK;
        gms_status status = check_but_engines(deployment, role != NULL ? engine : DRILL_MAX_ENGINES, ret_error);
        if (status != GMS_OK)
            return status;
        if (gms_clock_ns() >= deadline_ns)
            return waited_in_vain(deployment, engine, role, timeout_s, answered, &error, ret_error);
        poll(NULL, 0, POLL_MS);
    }
}

/* ------------------------------------------------------------------------------------------------ starting ---- */

static void init(const struct drill_plan *plan, struct drill_deployment *deployment)
{
    memset(deployment, 0, sizeof *deployment);
    deployment->plan = plan;
    deployment->ranks = plan->ranks;
    for (uint32_t engine = 0; engine < DRILL_MAX_ENGINES; engine++)
        for (uint32_t rank = 0; rank < DRILL_MAX_RANKS; rank++)
            deployment->engines[engine].pidfds[rank] = -1;
}

static void output_path(const struct drill_deployment *deployment, const char *name, char *ret_path)
{
    snprintf(ret_path, DRILL_PATH_BYTES, "%.480s/%.24s.out", deployment->dir, name);
}

static gms_status start_keeper(struct drill_deployment *deployment, int host, struct gms_error *ret_error)
{
    const char *argv[DRILL_HOST_WORDS + 8] = {NULL};
    char program[DRILL_PATH_BYTES + 16], number[16], output[DRILL_PATH_BYTES];
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) != 0)
        return gms_fail(ret_error, GMS_E_SYSTEM, "pipe: %s", strerror(errno));
    snprintf(program, sizeof program, "%s/gms-keeper", deployment->plan->bin_dir);
    snprintf(number, sizeof number, "%d", ready[1]);
    output_path(deployment, "keeper", output);
    const char *const words[] = {program, "--run-dir", deployment->run_dir, "--ready-fd", number};
    memcpy(argv + drill_hosts_enter(&deployment->hosts, host, argv), words, sizeof words);
    struct drill_process *process;
    gms_status status =
        drill_process_start(&deployment->processes, "keeper", output, argv, ready[1], SIGKILL, &process, ret_error);
    gms_fd_close(&ready[1]);
    if (status == GMS_OK) {
        struct pollfd wait = {.fd = ready[0], .events = POLLIN};
        char byte;
        int got = poll(&wait, 1, (int)deployment->plan->timeout_s * 1000);
        if (got == 0)
            status = gms_fail(ret_error, GMS_E_TIMEOUT, "waited %u s for gms-keeper to be ready",
                              deployment->plan->timeout_s);
        else if (read(ready[0], &byte, 1) != 1) {
            drill_process_wait(process, gms_clock_ns() + GMS_NS_PER_S);
            status = process_ended(process, ret_error);
        }
    }
    gms_fd_close(&ready[0]);
    return status;
}

/* What Open MPI wants on a machine with fewer cores than ranks, and from root; whoever has set them otherwise wins. Its
 * shared-memory files go to `scratch`: killed ranks leave theirs behind. */
static void allow_mpirun(const char *scratch)
{
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
    setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", 0);
    if (geteuid() == 0) {
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    }
    setenv("OMPI_MCA_btl_vader_backing_directory", scratch, 0); /* Open MPI 4 */
    setenv("OMPI_MCA_btl_sm_backing_directory", scratch, 0);    /* Open MPI 5 */
}

/* A launcher passes on what its ranks print late, and drops it when it ends the job: exactly when it is wanted. */
static const char errors_to_file[] = "exec \"$@\" 2>>\"$0\"";

/* Until every rank answers. */
static gms_status wait_for_ranks(struct drill_deployment *deployment, struct gms_error *ret_error)
{
    gms_status status = GMS_OK;
    uint64_t deadline_ns = gms_clock_ns() + deployment->plan->timeout_s * GMS_NS_PER_S;
    for (uint32_t rank = 0; status == GMS_OK && rank < deployment->ranks;) {
        struct gms_error error = {0};
        if (drill_status_fetch(deployment->run_dir, rank, deadline_ns, &deployment->status[rank], &error) == GMS_OK) {
            rank++;
            continue;
        }
        status = check_but_engines(deployment, DRILL_MAX_ENGINES, ret_error);
        if (status == GMS_OK && gms_clock_ns() >= deadline_ns)
            status = gms_fail(ret_error, GMS_E_TIMEOUT, "waited %u s for coordinator rank %u: %.200s",
                              deployment->plan->timeout_s, rank, error.text);
        poll(NULL, 0, POLL_MS);
    }
    return status;
}

static gms_status start_coordinators(struct drill_deployment *deployment, struct gms_error *ret_error)
{
    char program[DRILL_PATH_BYTES + 16], ranks[16], output[DRILL_PATH_BYTES];
    snprintf(program, sizeof program, "%s/gms-coord", deployment->plan->bin_dir);
    snprintf(ranks, sizeof ranks, "%u", deployment->ranks);
    output_path(deployment, "coord", output);
    const char *argv[] = {"mpirun", "-n",    ranks,      "--bind-to",        "none", "sh", "-c", errors_to_file,
                          output,   program, "--config", deployment->config, NULL};
    struct drill_process *process;
    return drill_process_start(&deployment->processes, "coordinators", output, argv, -1, SIGTERM, &process, ret_error);
}

gms_status drill_deployment_start_up(struct drill_deployment *deployment, struct gms_error *ret_error)
{
    const char *argv[DRILL_HOST_WORDS + 10] = {NULL}, *mpirun[DRILL_MPIRUN_WORDS];
    char program[DRILL_PATH_BYTES + 16], output[DRILL_PATH_BYTES], launcher[3 * DRILL_PATH_BYTES] = "";
    snprintf(program, sizeof program, "%s/gms-up", deployment->plan->bin_dir);
    output_path(deployment, "up", output);
    size_t count = drill_hosts_mpirun(&deployment->hosts, mpirun), used = 0;
    for (size_t i = 0; i < count; i++)
        used += (size_t)snprintf(launcher + used, sizeof launcher - used, "%s%s", i > 0 ? " " : "", mpirun[i]);
    snprintf(launcher + used, sizeof launcher - used, deployment->hosts.up ? "" : " --oversubscribe");
    const char *const words[] = {program, "--config", deployment->config, "--settled", "100ms", "--launcher", launcher};
    memcpy(argv + drill_hosts_enter(&deployment->hosts, 0, argv), words, sizeof words);
    struct drill_process *process;
    return drill_process_start(&deployment->processes, "gms-up", output, argv, -1, SIGTERM, &process, ret_error);
}

gms_status drill_deployment_start(const struct drill_plan *plan, const char *dir, const char *shared_dir,
                                  const char *word, struct drill_deployment *ret_deployment,
                                  struct gms_error *ret_error)
{
    struct drill_deployment *deployment = ret_deployment;
    init(plan, deployment);
    snprintf(deployment->dir, sizeof deployment->dir, "%s", dir);
    snprintf(deployment->run_dir, sizeof deployment->run_dir, "%.500s/r", dir);
    snprintf(deployment->log_dir, sizeof deployment->log_dir, "%.500s/log", dir);
    snprintf(deployment->config, sizeof deployment->config, "%.490s/deployment.cfg", dir);
    if (mkdir(dir, 0700) != 0 || mkdir(deployment->run_dir, 0700) != 0 || mkdir(deployment->log_dir, 0700) != 0)
        return gms_fail(ret_error, GMS_E_SYSTEM, "%s cannot be made: %s", dir, strerror(errno));
    if (plan->run_disk_bytes > 0) {
        char options[64];
        snprintf(options, sizeof options, "size=%llu,mode=0700", (unsigned long long)plan->run_disk_bytes);
        if (mount("gms-drill", deployment->run_dir, "tmpfs", MS_NOSUID | MS_NODEV, options) != 0)
            return gms_fail(ret_error, GMS_E_SYSTEM, "%s: a file system of its own cannot be mounted: %s",
                            deployment->run_dir, strerror(errno));
    }
    allow_mpirun(shared_dir);
    gms_status status = drill_deployment_write_file(deployment, word, ret_error);
    if (status == GMS_OK && plan->two_hosts)
        status = drill_hosts_make(&deployment->processes, dir, deployment->run_dir, plan->ranks, &deployment->hosts,
                                  ret_error);
    if (status == GMS_OK && plan->two_hosts) /* the first one's is gms-up's business */
        status = start_keeper(deployment, 1, ret_error);
    if (status == GMS_OK && plan->under_gms_up) {
        status = drill_deployment_start_up(deployment, ret_error);
    } else {
        if (status == GMS_OK)
            status = start_keeper(deployment, 0, ret_error);
        if (status == GMS_OK)
            status = start_coordinators(deployment, ret_error);
    }
    if (status == GMS_OK)
        status = wait_for_ranks(deployment, ret_error);
    if (status != GMS_OK)
        drill_deployment_stop(deployment);
    return status;
}

gms_status drill_deployment_launch(struct drill_deployment *deployment, uint32_t engine, struct gms_error *ret_error)
{
    static const char *const none[] = {NULL};
    return drill_deployment_launch_with(deployment, engine, none, ret_error);
}

gms_status drill_deployment_launch_with(struct drill_deployment *deployment, uint32_t engine, const char *const *words,
                                        struct gms_error *ret_error)
{
    const char *argv[DRILL_HOST_WORDS + DRILL_MPIRUN_WORDS + DRILL_COMMAND_WORDS + 24];
    size_t count = drill_hosts_enter(&deployment->hosts, 0, argv);
    count += drill_hosts_mpirun(&deployment->hosts, argv + count);
    char program[DRILL_PATH_BYTES + 16], ranks[16], number[16], name[32], output[DRILL_PATH_BYTES];
    char listen[DRILL_PATH_BYTES + 32];
    bool has_log_dir = false, has_listen = false;
    snprintf(program, sizeof program, "%s/gms-exec", deployment->plan->bin_dir);
    snprintf(ranks, sizeof ranks, "%u", deployment->ranks);
    snprintf(number, sizeof number, "%u", engine);
    snprintf(name, sizeof name, "engine %u", engine);
    snprintf(listen, sizeof listen, "unix:%s/e%u", deployment->run_dir, engine);
    char file[32];
    snprintf(file, sizeof file, "engine%u", engine);
    output_path(deployment, file, output);
    const char *const launch[] = {
        "-n",       ranks,  "sh", "-c", errors_to_file, output, program, "--run-dir", deployment->run_dir,
        "--engine", number, "--"};
    for (size_t i = 0; i < sizeof launch / sizeof launch[0]; i++)
        argv[count++] = launch[i];
    for (size_t i = 0; deployment->engine_words[i] != NULL; i++) {
        argv[count++] = deployment->engine_words[i];
        has_log_dir |= strncmp(deployment->engine_words[i], "--log-dir", 9) == 0;
        has_listen |= strncmp(deployment->engine_words[i], "--listen", 8) == 0;
    }
    if (has_log_dir)
        return gms_fail(ret_error, GMS_E_INVALID,
                        "the engine command names a --log-dir of its own; the drill gives each "
                        "deployment one, leave it out");
    argv[count++] = "--log-dir";
    argv[count++] = deployment->log_dir;
    if (!has_listen) {
        argv[count++] = "--listen";
        argv[count++] = listen;
    }
    for (size_t i = 0; words[i] != NULL; i++) {
        if (count + 1 >= sizeof argv / sizeof argv[0])
            return gms_fail(ret_error, GMS_E_INVALID, "the engine command has too many words");
        argv[count++] = words[i];
    }
    argv[count] = NULL;
    gms_status status = drill_process_start(&deployment->processes, name, output, argv, -1, SIGTERM,
                                            &deployment->engines[engine].launcher, ret_error);
    deployment->engines[engine].started = status == GMS_OK;
    if (status == GMS_OK)
        deployment->engines[engine].launcher->passes_on = true;
    return status;
}

/* ---------------------------------------------------------------------------------------------- attaching ----- */

/* The value of --log-dir on the command line of a process. */
static bool log_dir_of(int32_t pid, char *ret_path)
{
    char path[64], text[8192];
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    gms_fd_close(&fd);
    if (length <= 0)
        return false;
    text[length] = '\0';
    const char *value = NULL;
    for (const char *at = text; at < text + length && value == NULL; at += strlen(at) + 1) {
        if (strncmp(at, "--log-dir=", 10) == 0)
            value = at + 10;
        else if (strcmp(at, "--log-dir") == 0)
            value = at + strlen(at) + 1;
    }
    if (value == NULL || value >= text + length || value[0] != '/' || strlen(value) >= DRILL_PATH_BYTES)
        return false;
    memcpy(ret_path, value, strlen(value) + 1);
    return true;
}

gms_status drill_deployment_attach(const struct drill_plan *plan, struct drill_deployment *ret_deployment,
                                   struct gms_error *ret_error)
{
    struct drill_deployment *deployment = ret_deployment;
    init(plan, deployment);
    deployment->attached = true;
    const char *where = plan->against[0] != '\0' ? plan->against : plan->attach;
    memcpy(deployment->run_dir, where, strlen(where) + 1);
    memcpy(deployment->log_dir, plan->log_dir, sizeof deployment->log_dir);
    uint64_t deadline_ns = gms_clock_ns() + plan->timeout_s * GMS_NS_PER_S;
    struct drill_status *first = &deployment->status[0];
    struct gms_error why;
    gms_status status = drill_status_fetch(where, 0, deadline_ns, first, &why);
    if (status != GMS_OK)
        return gms_fail(ret_error, status, "%s. Is that the run directory of a running gms-coord?", why.text);
    deployment->ranks = first->ranks;
    if (plan->ranks != 0 && plan->ranks != first->ranks)
        return gms_fail(ret_error, GMS_E_INVALID, "--ranks %u: the deployment in %s has %u", plan->ranks, where,
                        first->ranks);
    if (plan->rank >= (int32_t)first->ranks)
        return gms_fail(ret_error, GMS_E_INVALID, "--rank %d: the deployment in %s has ranks 0 to %u", plan->rank,
                        where, first->ranks - 1);
    if (first->serving_engine < 0)
        return gms_fail(ret_error, GMS_E_REFUSED, "nobody serves in %s", where);
    uint32_t parked = 0;
    for (uint32_t i = 0; i < first->engine_count && status == GMS_OK; i++) {
        const struct drill_status_engine engine = first->engines[i];
        bool is_parked = strcmp(engine.role, "parked") == 0, is_serving = strcmp(engine.role, "serving") == 0;
        parked += is_parked;
        if (is_parked || is_serving) {
            status = drill_deployment_wait(deployment, engine.engine, engine.role, 0, plan->timeout_s, ret_error);
            deployment->engines[engine.engine].started = true;
        }
    }
    if (status == GMS_OK && plan->against[0] == '\0' && parked < plan->repeat)
        return gms_fail(ret_error, GMS_E_REFUSED, "%u shadow(s) are parked in %s; %u failover(s) need as many", parked,
                        where, plan->repeat);
    if (status == GMS_OK && deployment->log_dir[0] == '\0' &&
        !log_dir_of(deployment->engines[first->serving_engine].pids[0], deployment->log_dir))
        return gms_fail(ret_error, GMS_E_INVALID,
                        "the engines in %s were started without an absolute --log-dir, so overlap "
                        "cannot be judged; start them with one, or give --log-dir",
                        where);
    return status;
}

/* ------------------------------------------------------------------------------------------------- ending ----- */

size_t drill_deployment_stop(struct drill_deployment *deployment)
{
    size_t killed = 0;
    for (uint32_t engine = 0; engine < DRILL_MAX_ENGINES; engine++) {
        struct drill_engine *one = &deployment->engines[engine];
        for (uint32_t rank = 0; rank < DRILL_MAX_RANKS; rank++)
            gms_fd_close(&one->pidfds[rank]);
        if (one->launcher != NULL)
            one->launcher->asked_to_end = true;
    }
    if (!deployment->attached) {
        /* Engines first, all asked at once; then the coordinators in their own way; then whatever is left. */
        for (uint32_t engine = 0; engine < DRILL_MAX_ENGINES; engine++)
            if (deployment->engines[engine].launcher != NULL)
                drill_process_ask(deployment->engines[engine].launcher);
        for (uint32_t engine = 0; engine < DRILL_MAX_ENGINES; engine++)
            if (deployment->engines[engine].launcher != NULL)
                drill_process_end(deployment->engines[engine].launcher, 5000);
        for (size_t i = 0; i < deployment->processes.count; i++) {
            struct drill_process *process = &deployment->processes.items[i];
            if (strcmp(process->name, "coordinators") != 0 || process->ended)
                continue;
            process->asked_to_end = true;
            if (drill_cluster_shutdown(deployment->run_dir, gms_clock_ns() + 5 * GMS_NS_PER_S, NULL) == GMS_OK)
                drill_process_wait(process, gms_clock_ns() + 10 * GMS_NS_PER_S);
        }
        for (size_t i = 0; i < deployment->processes.count; i++) /* gms-up stops the coordinators as planned */
            if (strcmp(deployment->processes.items[i].name, "gms-up") == 0)
                drill_process_end(&deployment->processes.items[i], 15000);
        /* Asked nicely a keeper rather keeps its memory; this memory is scratch. */
        for (size_t i = 0; i < deployment->processes.count; i++)
            if (strcmp(deployment->processes.items[i].name, "keeper") == 0)
                drill_process_end(&deployment->processes.items[i], 0);
        killed = drill_processes_end(&deployment->processes, 3000);
        if (deployment->plan != NULL && deployment->plan->run_disk_bytes > 0)
            umount2(deployment->run_dir, MNT_DETACH);
    }
    for (size_t i = 0; i < DRILL_COMMAND_WORDS && deployment->engine_words[i] != NULL; i++) {
        free((void *)(uintptr_t)deployment->engine_words[i]);
        deployment->engine_words[i] = NULL;
    }
    return killed;
}
