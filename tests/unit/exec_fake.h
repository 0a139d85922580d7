/* SPDX-License-Identifier: Apache-2.0
 * A coordinator rank as gms-exec sees it, played by the test on a real channel, and gms-exec started under it. */
#ifndef GMS_TESTS_EXEC_FAKE_H
#define GMS_TESTS_EXEC_FAKE_H

#include "unit_support.h"

#include <sched.h>
#include <sys/socket.h>

#include "exec_engine.h"
#include "wire/channel.h"
#include "wire/message.h"

enum { EXEC_TALK_FD = 40, EXEC_MAX_PROCESSES = 16 };

struct bench {
    char *dir;
    char socket_path[128], stderr_path[128];
    int listener, connection; /* -1: none */
    pid_t exec_pid;
    int exec_pidfd;
    int talk;          /* to the engine program */
    uint32_t deployed; /* containment that the deployment wants */
    uint32_t kind;
    int container, engine; /* pidfds, from CONTAINER */
    int cgroup;            /* from there too; -1: none */
    int processes[EXEC_MAX_PROCESSES];
    char names[EXEC_MAX_PROCESSES][32];
    size_t process_count;
    char buffer[GMS_WIRE_MAX_BYTES];
};

static inline uint64_t patience(void)
{
    return gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
}

/* The program under test (file not empty: GMS_BIN's) or the engine program. */
static inline const char *program_path(const char *variable, const char *file)
{
    static char path[2][512];
    char *text = path[*file != '\0'];
    const char *directory = getenv(variable);

    if (directory == NULL) {
        fail_msg("%s is not set: run this through ctest", variable);
    }
    snprintf(text, sizeof path[0], "%s%s%s", directory, *file != '\0' ? "/" : "", file);
    return text;
}

static inline void bench_listen(struct bench *bench)
{
    struct gms_error error;

    assert_ok(gms_channel_listen(bench->socket_path, &bench->listener, &error));
}

static inline int bench_setup(void **state)
{
    struct bench *bench = calloc(1, sizeof *bench);
    void *dir;

    if (bench == NULL || unit_make_dir(&dir) != 0) {
        return -1;
    }
    bench->dir = dir;
    bench->listener = bench->connection = bench->exec_pidfd = bench->talk = bench->container = bench->engine =
        bench->cgroup = -1;
    snprintf(bench->socket_path, sizeof bench->socket_path, "%s/c0", bench->dir);
    snprintf(bench->stderr_path, sizeof bench->stderr_path, "%s/stderr", bench->dir);
    *state = bench;
    return 0;
}

/* Leaves nothing behind, also after a failed test: the container dies with what is in it. */
static inline int bench_teardown(void **state)
{
    struct bench *bench = *state;
    void *dir = bench->dir;

    for (size_t i = 0; i < bench->process_count; i++) {
        gms_pidfd_signal(bench->processes[i], SIGKILL);
        gms_fd_close(&bench->processes[i]);
    }
    if (bench->exec_pidfd >= 0) {
        gms_pidfd_signal(bench->exec_pidfd, SIGKILL);
        waitpid(bench->exec_pid, NULL, 0);
    }
    gms_fd_close(&bench->exec_pidfd);
    gms_fd_close(&bench->container);
    gms_fd_close(&bench->engine);
    gms_fd_close(&bench->cgroup);
    gms_fd_close(&bench->talk);
    gms_fd_close(&bench->connection);
    gms_fd_close(&bench->listener);
    unit_remove_dir(&dir);
    free(bench);
    return 0;
}

/* ------------------------------------------------------------------------------------------------ gms-exec ---- */

struct start {
    const char *containment; /* NULL: auto */
    const char *wait;        /* NULL: 10s */
    const char *run_dir;     /* NULL: the bench's */
    char **environment;      /* "NAME=VALUE" to set before; NULL */
    bool hostile;            /* V24: TERM blocked, CHLD ignored */
    bool namespace_first;    /* gms-exec is PID 1 of a new PID namespace */
    bool child_before;       /* the process that becomes gms-exec has a child already, which tells its pidfd */
};

/* Starts gms-exec --engine 0 --rank 0 --launch L -- words... */
static inline void bench_start(struct bench *bench, const struct start *how, const char *const *words)
{
    const char *argv[40];
    int count = 0, pair[2];
    char talk[16];
    const char *program = program_path("GMS_BIN", "gms-exec");

    argv[count++] = program;
    argv[count++] = "--run-dir";
    argv[count++] = how->run_dir != NULL ? how->run_dir : bench->dir;
    argv[count++] = "--engine=0";
    argv[count++] = "--rank=0";
    argv[count++] = "--launch=test launch";
    argv[count++] = "--log-level=info";
    argv[count++] = "--wait";
    argv[count++] = how->wait != NULL ? how->wait : "10s";
    if (how->containment != NULL) {
        argv[count++] = "--containment";
        argv[count++] = how->containment;
    }
    argv[count++] = "--";
    for (; *words != NULL; words++) {
        argv[count++] = *words;
    }
    argv[count] = NULL;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    snprintf(talk, sizeof talk, "%d", EXEC_TALK_FD);

    fflush(stdout);
    fflush(stderr);
    if (how->namespace_first) {
        assert_int_equal(unshare(CLONE_NEWPID), 0); /* only the next child: it is put back below */
    }
    bench->exec_pid = fork();
    assert_true(bench->exec_pid >= 0);
    if (bench->exec_pid == 0) {
        int log = open(bench->stderr_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

        child_check(dup2(log, 2) == 2);
        close(log);
        child_check(dup2(pair[1], EXEC_TALK_FD) == EXEC_TALK_FD);
        setenv("EXEC_TEST_FD", talk, 1);
        if (how->child_before && fork() == 0) {
            execl(program_path("GMS_TEST_ENGINE", ""), "engine", "bystander", (char *)NULL);
            _exit(99);
        }
        for (char **variable = how->environment; variable != NULL && *variable != NULL; variable++) {
            putenv(*variable);
        }
        if (how->hostile) {
            sigset_t mask;

            sigemptyset(&mask);
            sigaddset(&mask, SIGTERM);
            sigprocmask(SIG_BLOCK, &mask, NULL);
            signal(SIGCHLD, SIG_IGN);
        }
        execv(argv[0], (char **)(uintptr_t)argv);
        child_check(!"exec of gms-exec");
    }
    gms_fd_close(&pair[1]);
    bench->talk = pair[0];
    if (how->namespace_first) {
        int own = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);

        assert_int_equal(setns(own, CLONE_NEWPID), 0);
        gms_fd_close(&own);
    }
    assert_int_equal(gms_pidfd_open(bench->exec_pid, &bench->exec_pidfd, NULL), GMS_OK);
}

static inline void bench_print_stderr(const struct bench *bench)
{
    char text[4096];
    int fd = open(bench->stderr_path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);

    if (got > 0) {
        text[got] = '\0';
        print_error("gms-exec said:\n%s", text);
    }
    gms_fd_close(&fd);
}

/* Its exit code, or -1000 - signal. */
static inline int bench_exit_code(struct bench *bench)
{
    int status = unit_wait(bench->exec_pid);

    gms_fd_close(&bench->exec_pidfd);
    if (status == -1) {
        bench_print_stderr(bench);
        fail_msg("gms-exec did not end");
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1000 - WTERMSIG(status);
}

static inline bool bench_stderr_has(const struct bench *bench, const char *part)
{
    char text[8192];
    int fd = open(bench->stderr_path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof text - 1);

    gms_fd_close(&fd);
    text[got > 0 ? got : 0] = '\0';
    if (strstr(text, part) == NULL) {
        print_error("stderr lacks \"%s\":\n%s", part, text);
        return false;
    }
    return true;
}

/* --------------------------------------------------------------------------------------- the coordinator ------ */

static inline void bench_accept(struct bench *bench)
{
    struct gms_error error;
    uint64_t deadline_ns = patience();
    gms_status status;
    pid_t pid;
    uid_t uid;

    gms_fd_close(&bench->connection);
    do {
        struct pollfd ready = {.fd = bench->listener, .events = POLLIN};

        (void)poll(&ready, 1, gms_clock_poll_ms(deadline_ns));
        status = gms_channel_accept(bench->listener, &bench->connection, &pid, &uid, &error);
    } while (status == GMS_E_AGAIN && gms_clock_ns() < deadline_ns);
    if (status != GMS_OK) {
        bench_print_stderr(bench);
    }
    assert_int_equal(status, GMS_OK);
}

static inline void bench_expect(struct bench *bench, enum gms_message_type type, struct gms_message *ret_message)
{
    struct gms_error error = {0};
    gms_status status = gms_channel_receive_until(bench->connection, bench->buffer, patience(), ret_message, &error);

    if (status != GMS_OK) {
        print_error("waiting for %s: %s\n", gms_message_name(type), error.text);
        bench_print_stderr(bench);
    }
    assert_int_equal(status, GMS_OK);
    assert_string_equal(gms_message_name(ret_message->type), gms_message_name(type));
}

static inline void bench_send(struct bench *bench, const struct gms_message *message)
{
    struct gms_error error;

    assert_ok(gms_channel_send_until(bench->connection, message, patience(), &error));
}

static inline void bench_reply(struct bench *bench, uint32_t request_id, gms_status status, const char *text)
{
    struct gms_message reply = {.type = GMS_MESSAGE_REPLY, .request_id = request_id};

    reply.reply.status = status;
    reply.reply.rank = -1;
    reply.reply.text = (struct gms_bytes){text, (uint32_t)strlen(text)};
    bench_send(bench, &reply);
}

/* HELLO of role EXEC, with its own pidfd; answered by WELCOME. */
static inline void bench_greet(struct bench *bench, uint64_t world)
{
    struct gms_message message, welcome = {.type = GMS_MESSAGE_WELCOME};

    bench_expect(bench, GMS_MESSAGE_HELLO, &message);
    assert_int_equal(message.hello.role, GMS_CLIENT_EXEC);
    assert_int_equal(message.hello.engine_id, 0);
    assert_int_equal(message.hello.rank, 0);
    assert_int_equal(message.hello.launch.length, strlen("test launch"));
    assert_memory_equal(message.hello.launch.data, "test launch", strlen("test launch"));
    assert_int_equal(message.fd_count, 1);
    assert_false(gms_pidfd_ended(message.fds[0]));
    assert_int_equal(gms_pidfd_pid(message.fds[0]), bench->exec_pid);
    welcome.request_id = message.request_id;
    gms_message_close_fds(&message);
    welcome.welcome.world = world;
    welcome.welcome.world_size = 2;
    welcome.welcome.version = (struct gms_bytes){"test", 4};
    bench_send(bench, &welcome);
}

static inline void bench_give_environment(struct bench *bench, const void *variables, size_t bytes)
{
    struct gms_message message, reply = {.type = GMS_MESSAGE_ENVIRONMENT_REPLY};

    bench_expect(bench, GMS_MESSAGE_ENVIRONMENT, &message);
    reply.request_id = message.request_id;
    reply.environment_reply.variables = (struct gms_bytes){variables, (uint32_t)bytes};
    reply.environment_reply.containment = bench->deployed;
    bench_send(bench, &reply);
}

/* CONTAINER; returns the id to answer. */
static inline uint32_t bench_take_container(struct bench *bench)
{
    struct gms_message message;

    bench_expect(bench, GMS_MESSAGE_CONTAINER, &message);
    assert_int_equal(message.fd_count, message.container.kind == GMS_CONTAINER_CGROUP ? 4 : 3);
    assert_int_equal(message.container.engine_id, 0);
    gms_fd_close(&message.fds[2]); /* gms-exec's own: as in HELLO */
    gms_fd_close(&bench->cgroup);
    if (message.fd_count == 4) {
        bench->cgroup = message.fds[3];
    }
    gms_fd_close(&bench->container);
    gms_fd_close(&bench->engine);
    bench->kind = message.container.kind;
    bench->container = message.fds[0];
    bench->engine = message.fds[1];
    return message.request_id;
}

/* The whole way to a running engine. */
static inline void bench_run_engine(struct bench *bench)
{
    bench_accept(bench);
    bench_greet(bench, 1);
    bench_give_environment(bench, "", 0);
    bench_reply(bench, bench_take_container(bench), GMS_OK, "");
}

/* --------------------------------------------------------------------------------------------- the engine ----- */

/* What the engine program says next; a process's pidfd is kept in the bench. */
static inline bool bench_hear(struct bench *bench, struct exec_say *ret_say)
{
    struct iovec iov = {.iov_base = ret_say, .iov_len = sizeof *ret_say};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } ancillary;
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &ancillary, .msg_controllen = sizeof ancillary.bytes};
    struct pollfd ready = {.fd = bench->talk, .events = POLLIN};

    if (poll(&ready, 1, UNIT_PATIENCE_MS) != 1 ||
        recvmsg(bench->talk, &message, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof *ret_say) {
        bench_print_stderr(bench);
        return false;
    }
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header != NULL; header = CMSG_NXTHDR(&message, header)) {
        assert_true(bench->process_count < EXEC_MAX_PROCESSES);
        memcpy(&bench->processes[bench->process_count], CMSG_DATA(header), sizeof(int));
        snprintf(bench->names[bench->process_count], sizeof bench->names[0], "%.31s", ret_say->text);
        bench->process_count++;
    }
    return true;
}

static inline void bench_hear_word(struct bench *bench, enum exec_word word, struct exec_say *ret_say)
{
    assert_true(bench_hear(bench, ret_say));
    assert_int_equal(ret_say->word, word);
}

static inline bool wait_ended(int pidfd)
{
    struct pollfd ready = {.fd = pidfd, .events = POLLIN};

    return poll(&ready, 1, UNIT_PATIENCE_MS) == 1;
}

/* Fails naming the process that lives on. `at_once`: they must have ended by now. */
static inline void bench_all_ended(const struct bench *bench, bool at_once)
{
    for (size_t i = 0; i < bench->process_count; i++) {
        if (!(at_once ? gms_pidfd_ended(bench->processes[i]) : wait_ended(bench->processes[i]))) {
            bench_print_stderr(bench);
            fail_msg("%s lives on", bench->names[i]);
        }
    }
}

#endif
