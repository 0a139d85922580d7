/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests of the real gms-keeper: starting it and ending it, and processes that hold worlds. Holders are children of the
 * test: a newer world ends the process that holds the older one. Header only.
 */
#ifndef GMS_TESTS_KEEPER_SUPPORT_H
#define GMS_TESTS_KEEPER_SUPPORT_H

#include "unit_support.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/run_dir.h"
#include "gms-keeper/client.h"
#include "wire/channel.h"

static struct gms_error error;

struct keeper {
    char run_dir[GMS_RUN_PATH_BYTES], program[512];
    pid_t pid; /* 0: none */
    int pidfd;
};

static struct keeper keeper = {.pidfd = -1};

/* What to do in the child before exec; NULL: nothing. */
typedef void (*keeper_prepare)(void);

static inline void keeper_exec(const char *const *more, int ready_fd, keeper_prepare prepare)
{
    char ready[16];
    const char *words[16] = {keeper.program, "--run-dir", keeper.run_dir, "--log-level", "error"};
    unsigned count = 5;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (prepare)
        prepare();
    if (ready_fd >= 0) {
        int copy = fcntl(ready_fd, F_DUPFD, 60); /* without close-on-exec */
        snprintf(ready, sizeof(ready), "%d", copy);
        words[count++] = "--ready-fd";
        words[count++] = ready;
    }
    for (unsigned i = 0; more && more[i]; i++)
        words[count++] = more[i];
    execv(keeper.program, (char *const *)(uintptr_t)words);
    _exit(98);
}

/* Runs the program to its end; its exit code. */
static inline int keeper_run(const char *const *more)
{
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        dup2(null, STDERR_FILENO);
        dup2(null, STDOUT_FILENO);
        keeper_exec(more, -1, NULL);
    }
    int status = unit_wait(pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Starts the keeper and waits until it serves. */
static inline void keeper_start(keeper_prepare prepare)
{
    char word[7] = "";
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    keeper.pid = fork();
    if (keeper.pid == 0)
        keeper_exec(NULL, ends[1], prepare);
    close(ends[1]);
    assert_ok(gms_pidfd_open(keeper.pid, &keeper.pidfd, &error));
    assert_true(unit_read(ends[0], word, 6));
    assert_string_equal(word, "ready\n");
    close(ends[0]);
}

/* waitpid's status of a keeper that ends by itself. */
static inline int keeper_wait(void)
{
    int status = unit_wait(keeper.pid);
    gms_fd_close(&keeper.pidfd);
    keeper.pid = 0;
    return status;
}

static inline void keeper_kill(void)
{
    if (keeper.pid > 0) {
        gms_pidfd_signal(keeper.pidfd, SIGKILL);
        keeper_wait();
    }
}

static inline int keeper_setup(void **state)
{
    const char *bin = getenv("GMS_BIN");
    if (!bin || unit_make_dir(state) != 0)
        return -1;
    snprintf(keeper.program, sizeof(keeper.program), "%s/gms-keeper", bin);
    snprintf(keeper.run_dir, sizeof(keeper.run_dir), "%s/run", (char *)*state);
    return 0;
}

static inline int keeper_setup_started(void **state)
{
    if (keeper_setup(state) != 0)
        return -1;
    keeper_start(NULL);
    return 0;
}

static inline int keeper_teardown(void **state)
{
    keeper_kill();
    return unit_remove_dir(state);
}

/* ------------------------------------------------------------------------------------------------ holders ------ */

/* A child that takes (world, rank), says how that went, runs `work`, says that it is done, and waits to be ended. */
struct holder {
    pid_t pid;
    int report;
};
typedef void (*holder_work)(struct gms_keeper_client *client);

static inline struct holder holder_start(uint64_t world, uint32_t rank, holder_work work)
{
    struct holder holder = {.report = -1};
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    holder.pid = fork();
    if (holder.pid == 0) {
        struct gms_keeper_client client = {.fd = -1};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int32_t status = gms_keeper_connect(keeper.run_dir, world, rank, 4, &client, &error);
        child_check(write(ends[1], &status, sizeof(status)) == sizeof(status));
        if (status == GMS_OK && work)
            work(&client);
        status = -1;
        child_check(write(ends[1], &status, sizeof(status)) == sizeof(status));
        for (;;)
            pause();
    }
    close(ends[1]);
    holder.report = ends[0];
    return holder;
}

/* How its request for the world went. */
static inline gms_status holder_status(const struct holder *holder)
{
    int32_t status = 0;
    assert_true(unit_read(holder->report, &status, sizeof(status)));
    return (gms_status)status;
}

static inline void holder_done(const struct holder *holder)
{
    int32_t word = 0;
    assert_true(unit_read(holder->report, &word, sizeof(word)));
    assert_int_equal(word, -1);
}

/* Ends it, if nobody has; the signal that it died of. */
static inline int holder_end(struct holder *holder)
{
    kill(holder->pid, SIGKILL);
    int status = unit_wait(holder->pid);
    gms_fd_close(&holder->report);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 1000 + WEXITSTATUS(status);
}

/* Takes the world, works, ends. */
static inline gms_status holder_run(uint64_t world, uint32_t rank, holder_work work)
{
    struct holder holder = holder_start(world, rank, work);
    gms_status status = holder_status(&holder);
    holder_done(&holder);
    holder_end(&holder);
    return status;
}

static inline void put_one(struct gms_keeper_client *client)
{
    int fd = memfd_create("x", MFD_CLOEXEC);
    child_check(write(fd, "kept", 4) == 4);
    child_check(gms_keeper_put(client, "pool/kv/0", fd, NULL, 0, &error) == GMS_OK);
}

static inline void get_one(struct gms_keeper_client *client)
{
    char data[8] = "";
    int fd = -1;
    child_check(gms_keeper_get(client, "pool/kv/0", &fd, NULL, NULL, &error) == GMS_OK);
    child_check(pread(fd, data, sizeof(data), 0) == 4 && memcmp(data, "kept", 4) == 0);
}

static inline void wait_until(bool (*condition)(void))
{
    uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    while (!condition()) {
        assert_true(gms_clock_ns() < deadline_ns);
        poll(NULL, 0, 2);
    }
}

static inline void run_path(const char *name, char ret_path[GMS_RUN_PATH_BYTES])
{
    assert_ok(gms_run_dir_path(keeper.run_dir, name, -1, ret_path, &error));
}

/* ------------------------------------------------------------------------------------------ raw messages ------- */

static uint8_t raw_buffer[GMS_WIRE_MAX_BYTES];

static inline int raw_connect(void)
{
    char path[GMS_RUN_PATH_BYTES];
    int fd = -1;
    assert_ok(gms_run_dir_path(keeper.run_dir, "keeper", -1, path, &error));
    assert_ok(gms_channel_connect(path, UNIT_PATIENCE_MS, &fd, &error));
    return fd;
}

static inline gms_status raw_receive(int fd, struct gms_message *ret_message)
{
    return gms_channel_receive_until(fd, raw_buffer, gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS, ret_message,
                                     &error);
}

/* The status in the reply to `message`. */
static inline int raw_ask(int fd, struct gms_message *message)
{
    struct gms_message reply;
    message->request_id = 17;
    assert_ok(gms_channel_send(fd, message, &error));
    assert_ok(raw_receive(fd, &reply));
    assert_int_equal(reply.type, GMS_MESSAGE_KEEPER_REPLY);
    assert_int_equal(reply.request_id, 17);
    int status = reply.keeper_reply.status;
    gms_message_close_fds(&reply);
    return status;
}

/* A number of the keeper's status document. */
static inline long keeper_number(const char *key)
{
    struct gms_message message = {.type = GMS_MESSAGE_STATUS, .request_id = 1}, reply;
    char pattern[64], json[4096];
    int fd = raw_connect();
    assert_ok(gms_channel_send(fd, &message, &error));
    assert_ok(raw_receive(fd, &reply));
    assert_int_equal(reply.type, GMS_MESSAGE_STATUS_REPLY);
    snprintf(json, sizeof(json), "%.*s", (int)reply.status_reply.json.length,
             (const char *)reply.status_reply.json.data);
    close(fd);
    snprintf(pattern, sizeof(pattern), "\"%s\":", key);
    const char *at = strstr(json, pattern);
    assert_non_null(at);
    return strtol(at + strlen(pattern), NULL, 10);
}

#endif
