/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/run_dir.h"
#include "wire/channel.h"

bool eventually(bool (*ready)(void *context), void *context, int timeout_ms)
{
    uint64_t deadline_ns = gms_clock_ns() + (uint64_t)timeout_ms * GMS_NS_PER_MS;
    while (!ready(context)) {
        if (gms_clock_ns() > deadline_ns)
            return false;
        poll(NULL, 0, 5);
    }
    return true;
}

/* --------------------------------------------------------------------------------------------------- programs -- */

const char *program(const char *name, char path[512])
{
    const char *directory = getenv("GMS_BIN");
    if (directory == NULL)
        fail_msg("GMS_BIN is not set: run this through ctest");
    const char *other = strcmp(name, "gms-coord") == 0 ? getenv("GMS_TEST_COORD") : NULL; /* one that is broken */
    snprintf(path, 512, "%s/%s", other != NULL ? other : directory, name);
    return path;
}

pid_t start_program(char *const words[], const char *log, int *ret_pidfd)
{
    pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        fail_msg("fork: %s", strerror(errno));
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(127);
        int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600), in = open("/dev/null", O_RDONLY);
        dup2(in, 0);
        dup2(out, 1);
        dup2(out, 2);
        execvp(words[0], words);
        _exit(127);
    }
    struct gms_error error;
    if (gms_pidfd_open(pid, ret_pidfd, &error) != GMS_OK)
        fail_msg("%s", error.text);
    return pid;
}

static bool process_ended(void *context)
{
    return gms_pidfd_ended(*(int *)context);
}

static int reap(pid_t pid, int *pidfd)
{
    int status = 0;
    gms_fd_close(pidfd);
    if (waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---------------------------------------------------------------------------------------------------- cluster -- */

static bool keeper_listens(void *context)
{
    const struct cluster *cluster = context;
    char path[GMS_RUN_PATH_BYTES];
    int fd = -1;
    if (gms_run_dir_path(cluster->run_dir, "keeper", -1, path, NULL) != GMS_OK ||
        gms_channel_connect(path, 100, &fd, NULL) != GMS_OK)
        return false;
    gms_fd_close(&fd);
    return true;
}

void cluster_show_log(const struct cluster *cluster)
{
    char line[1024];
    FILE *stream = fopen(cluster->log, "re");
    while (stream != NULL && fgets(line, sizeof line, stream) != NULL)
        fprintf(stderr, "  | %s", line);
    if (stream != NULL)
        fclose(stream);
}

int run_program(char *const words[], const char *log)
{
    int pidfd = -1;
    pid_t pid = start_program(words, log, &pidfd);
    if (!eventually(process_ended, &pidfd, HARNESS_DEADLINE_MS))
        gms_pidfd_signal(pidfd, SIGKILL);
    return reap(pid, &pidfd);
}

void cluster_prepare(struct cluster *cluster, const struct cluster_options *options, bool keeper)
{
    memset(cluster, 0, sizeof *cluster);
    cluster->ranks = options->ranks;
    cluster->keeper = cluster->launcher = -1;
    snprintf(cluster->directory, sizeof cluster->directory, "/tmp/gms-mpi-XXXXXX");
    assert_non_null(mkdtemp(cluster->directory));
    snprintf(cluster->run_dir, sizeof cluster->run_dir, "%s/run", cluster->directory);
    snprintf(cluster->config, sizeof cluster->config, "%s/test.cfg", cluster->directory);
    snprintf(cluster->log, sizeof cluster->log, "%s/log", cluster->directory);

    FILE *file = fopen(cluster->config, "we");
    assert_non_null(file);
    fprintf(file,
            "deployment = \"test\";\nrun_dir = \"%s\";\nranks = %u;\nmemory : %s;\n"
            "kv : { verify = \"%s\"; };\n"
            "timeouts : { operation = \"%s\"; round = \"15s\"; heartbeat = \"%s\"; fence_report = \"500ms\"; "
            "leave = \"%s\"; "
            "transfer_stall = \"300ms\"; };\n"
            "environment : %s;\n"
            "engine : { command = ( \"true\" ); containment = \"auto\"; };\n",
            cluster->run_dir, options->ranks,
            options->memory != NULL             ? options->memory
            : getenv("GMS_TEST_MEMORY") != NULL ? "{ backend = \"cuda\"; capacity = \"64MiB\"; device = \"shared\"; }"
                                                : "{ backend = \"host\"; capacity = \"64MiB\"; }",
            options->verify != NULL ? options->verify : "full",
            options->operation_timeout != NULL ? options->operation_timeout : "5s",
            options->heartbeat != NULL ? options->heartbeat : "1s", options->leave != NULL ? options->leave : "1s",
            options->environment != NULL ? options->environment : "{ set = ( \"MPI_TEST=1\" ); }");
    if (options->reclaim != NULL)
        fprintf(file, "reclaim : %s;\n", options->reclaim);
    if (options->hooks != NULL)
        fprintf(file, "hooks : %s;\n", options->hooks);
    if (options->more != NULL)
        fprintf(file, "%s\n", options->more);
    fprintf(file, "complete = true;\n");
    assert_int_equal(fclose(file), 0);

    if (!keeper)
        return;
    cluster_start_keeper(cluster);
}

void cluster_start_keeper(struct cluster *cluster)
{
    char path[512];
    char *words[] = {(char *)(uintptr_t)program("gms-keeper", path), "--run-dir", cluster->run_dir, NULL};
    cluster->keeper_pid = start_program(words, cluster->log, &cluster->keeper);
    if (!eventually(keeper_listens, cluster, HARNESS_DEADLINE_MS)) {
        cluster_show_log(cluster);
        fail_msg("the keeper did not start");
    }
}

void cluster_kill_keeper(struct cluster *cluster)
{
    gms_pidfd_signal(cluster->keeper, SIGKILL);
    reap(cluster->keeper_pid, &cluster->keeper);
}

void cluster_kill_coordinators(struct cluster *cluster, int32_t rank)
{
    int victims[HARNESS_RANKS];
    for (uint32_t i = 0; i < cluster->ranks; i++)
        victims[i] = rank < 0 || (uint32_t)rank == i ? cluster_coordinator(cluster, i) : -1;
    for (uint32_t i = 0; i < cluster->ranks; i++) {
        if (victims[i] >= 0)
            gms_pidfd_signal(victims[i], SIGKILL);
        gms_fd_close(&victims[i]);
    }
    if (cluster_wait_end(cluster, HARNESS_DEADLINE_MS) < 0)
        fail_msg("mpirun did not end");
}

/* Each rank's exit code, written by a parent of its own: mpirun tells only one, and drops output when it aborts a job.
 */
static const char reporting[] =
    "trap '' TERM; log=$1; shift; \"$0\" \"$@\"; code=$?; echo \"coordinator exit $code\" >>\"$log\"; exit $code";

void cluster_launch(struct cluster *cluster, const char *word)
{
    char path[512], ranks[16];
    snprintf(ranks, sizeof ranks, "%u", cluster->ranks);
    program("gms-coord", path);
    /* Straight to the file: mpirun forwards output late, and drops it when it aborts a job. */
    char destination[128], *last = (char *)(uintptr_t)word;
    snprintf(destination, sizeof destination, "file:%s", cluster->log);
    char *words[] = {
        "mpirun", "--oversubscribe",   "-n",        ranks, path, "--config", cluster->config, "--log-level",
        "info",   "--log-destination", destination, last,  NULL};
    char *scripted[] = {"mpirun",
                        "--oversubscribe",
                        "-n",
                        ranks,
                        "sh",
                        "-c",
                        (char *)(uintptr_t)cluster->script,
                        path,
                        cluster->log,
                        "--config",
                        cluster->config,
                        "--log-level",
                        "info",
                        "--log-destination",
                        destination,
                        last,
                        NULL};
    cluster->launcher_pid = start_program(cluster->script != NULL ? scripted : words, cluster->log, &cluster->launcher);
}

void cluster_start(struct cluster *cluster, const struct cluster_options *options)
{
    cluster_prepare(cluster, options, true);
    cluster->script = options->report_exits ? reporting : options->script;
    cluster_relaunch(cluster, NULL);
}

static bool new_world_answers(void *context)
{
    const struct cluster *cluster = context;
    if (gms_pidfd_ended(cluster->launcher))
        return true; /* the caller looks */
    for (uint32_t rank = 0; rank < cluster->ranks; rank++) {
        int64_t world = cluster_number(cluster, rank, "world");
        if (world < 0 || world == cluster->world)
            return false;
    }
    return true;
}

void cluster_await(struct cluster *cluster)
{
    bool answered = eventually(new_world_answers, cluster, HARNESS_DEADLINE_MS);
    if (!answered || gms_pidfd_ended(cluster->launcher)) {
        cluster_show_log(cluster);
        fail_msg("the coordinators did not start");
    }
    cluster->world = cluster_number(cluster, 0, "world");
}

void cluster_relaunch(struct cluster *cluster, const char *word)
{
    cluster_launch(cluster, word);
    cluster_await(cluster);
}

int cluster_wait_end(struct cluster *cluster, int timeout_ms)
{
    if (!eventually(process_ended, &cluster->launcher, timeout_ms))
        return -1;
    int code = reap(cluster->launcher_pid, &cluster->launcher);
    return code;
}

void cluster_discard(struct cluster *cluster)
{
    if (cluster->launcher >= 0) {
        gms_pidfd_signal(cluster->launcher, SIGKILL);
        reap(cluster->launcher_pid, &cluster->launcher);
    }
    if (cluster->keeper >= 0) {
        gms_pidfd_signal(cluster->keeper, SIGTERM);
        if (!eventually(process_ended, &cluster->keeper, 50)) /* it holds memory still, which nobody wants any more */
            gms_pidfd_signal(cluster->keeper, SIGKILL);
        reap(cluster->keeper_pid, &cluster->keeper);
    }
    if (getenv("GMS_TEST_SHOW_LOG") != NULL)
        cluster_show_log(cluster);
    char *words[] = {"rm", "-rf", cluster->directory, NULL};
    int pidfd = -1;
    pid_t pid = start_program(words, "/dev/null", &pidfd);
    reap(pid, &pidfd);
}

void cluster_stop(struct cluster *cluster)
{
    struct gms_message down = {.type = GMS_MESSAGE_SHUTDOWN};
    gms_status status = cluster_order(cluster, 0, &down);
    if (status != GMS_OK)
        cluster_show_log(cluster);
    assert_int_equal(status, GMS_OK);
    int code = cluster_wait_end(cluster, HARNESS_DEADLINE_MS);
    if (code != 0)
        cluster_show_log(cluster);
    assert_int_equal(code, 0);
    cluster_discard(cluster);
}

int cluster_client(const struct cluster *cluster, uint32_t rank, enum gms_client_role role, uint32_t engine)
{
    char path[GMS_RUN_PATH_BYTES];
    int fd = -1;
    if (gms_run_dir_path(cluster->run_dir, "c", (int32_t)rank, path, NULL) != GMS_OK ||
        gms_channel_connect(path, 1000, &fd, NULL) != GMS_OK)
        return -1;
    static uint8_t buffer[GMS_WIRE_MAX_BYTES];
    struct gms_message hello = {.type = GMS_MESSAGE_HELLO, .request_id = 1}, welcome;
    hello.hello.role = (uint32_t)role;
    hello.hello.pid = (uint32_t)getpid();
    hello.hello.engine_id = engine;
    hello.hello.rank = rank;
    hello.hello.launch = (struct gms_bytes){"test", 4};
    hello.hello.version = (struct gms_bytes){"test", 4};
    int own = -1;
    if (role == GMS_CLIENT_ENGINE && gms_pidfd_open(getpid(), &own, NULL) == GMS_OK) {
        hello.fds[0] = own;
        hello.fd_count = 1;
    }
    uint64_t deadline_ns = gms_clock_ns() + 5 * GMS_NS_PER_S;
    bool greeted = gms_channel_send_until(fd, &hello, deadline_ns, NULL) == GMS_OK &&
                   gms_channel_receive_until(fd, buffer, deadline_ns, &welcome, NULL) == GMS_OK &&
                   welcome.type == GMS_MESSAGE_WELCOME;
    gms_fd_close(&own);
    if (!greeted)
        gms_fd_close(&fd);
    return fd;
}

static bool ask(const struct cluster *cluster, uint32_t rank, struct gms_message *message, void *buffer,
                struct gms_message *ret_reply)
{
    int fd = cluster_client(cluster, rank, GMS_CLIENT_CONTROL, 0);
    if (fd < 0)
        return false;
    uint64_t deadline_ns = gms_clock_ns() + 5 * GMS_NS_PER_S;
    message->request_id = 7;
    bool answered = gms_channel_send_until(fd, message, deadline_ns, NULL) == GMS_OK &&
                    gms_channel_receive_until(fd, buffer, deadline_ns, ret_reply, NULL) == GMS_OK &&
                    ret_reply->request_id == 7;
    gms_fd_close(&fd);
    return answered;
}

gms_status cluster_order(const struct cluster *cluster, uint32_t rank, struct gms_message *message)
{
    static uint8_t buffer[GMS_WIRE_MAX_BYTES];
    struct gms_message reply;
    if (!ask(cluster, rank, message, buffer, &reply) || reply.type != GMS_MESSAGE_REPLY)
        return GMS_E_DISCONNECTED;
    return (gms_status)reply.reply.status;
}

json_t *cluster_status(const struct cluster *cluster, uint32_t rank)
{
    static uint8_t buffer[GMS_WIRE_MAX_BYTES];
    struct gms_message message = {.type = GMS_MESSAGE_STATUS}, reply;
    if (!ask(cluster, rank, &message, buffer, &reply) || reply.type != GMS_MESSAGE_STATUS_REPLY)
        return NULL;
    return json_loadb(reply.status_reply.json.data, reply.status_reply.json.length, 0, NULL);
}

int64_t cluster_number(const struct cluster *cluster, uint32_t rank, const char *name)
{
    json_t *status = cluster_status(cluster, rank), *member = json_object_get(status, name);
    int64_t value = json_is_integer(member) ? json_integer_value(member) : -1;
    json_decref(status);
    return value;
}

int cluster_log_count(const struct cluster *cluster, const char *text)
{
    char line[2048];
    int found = 0;
    FILE *stream = fopen(cluster->log, "re");
    while (stream != NULL && fgets(line, sizeof line, stream) != NULL)
        found += strstr(line, text) != NULL;
    if (stream != NULL)
        fclose(stream);
    return found;
}

bool cluster_log_has(const struct cluster *cluster, const char *text)
{
    return cluster_log_count(cluster, text) > 0;
}

int cluster_coordinator(const struct cluster *cluster, uint32_t rank)
{
    int pidfd = -1;
    int64_t pid = cluster_number(cluster, rank, "pid");
    /* The number is asked for again once the pidfd is open: then the pidfd is that process. */
    if (pid <= 1 || gms_pidfd_open((pid_t)pid, &pidfd, NULL) != GMS_OK)
        return -1;
    if (cluster_number(cluster, rank, "pid") != pid)
        gms_fd_close(&pidfd);
    return pidfd;
}
