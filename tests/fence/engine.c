/* SPDX-License-Identifier: Apache-2.0
 *
 * The cohort's side of the table: serves, and on order lets somebody write the time into a leased page without end.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "gms/engine.h"
#include "stage.h"

struct writer {
    struct stage *stage;
    _Atomic uint64_t *place; /* in the pool */
    int parent_gone;         /* reads end of file when the leader has ended */
};

struct stage *stage_map(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *at = fd >= 0 ? mmap(NULL, sizeof(struct stage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    return at == MAP_FAILED ? NULL : at;
}

/* ------------------------------------------------------------------------------------------------- writers ---- */

static void write_once(const struct writer *writer)
{
    uint64_t now_ns = gms_clock_ns();
    atomic_store(writer->place, now_ns);
    atomic_store(&writer->stage->last_write_ns, now_ns);
}

static void *write_for_ever(void *context)
{
    for (;;)
        write_once(context);
    return NULL;
}

/* Until the leader has ended, and a little longer. */
static void write_until_orphaned(const struct writer *writer)
{
    struct pollfd gone = {.fd = writer->parent_gone, .events = POLLIN};
    while (poll(&gone, 1, 0) == 0)
        write_once(writer);
    for (uint64_t end_ns = gms_clock_ns() + GMS_NS_PER_MS / 2; gms_clock_ns() < end_ns;)
        write_once(writer);
}

static void *wait_for_ever(void *context)
{
    char path[128];
    struct stat about;
    snprintf(path, sizeof path, "%s/file", (const char *)context);
    (void)stat(path, &about); /* does not come back */
    return NULL;
}

/* The main thread goes, another one writes. */
_Noreturn static void leave_a_thread(struct writer *writer)
{
    pthread_t thread;
    pthread_create(&thread, NULL, write_for_ever, writer);
    syscall(SYS_exit, 0);
    for (;;)
        pause();
}

_Noreturn static void behave(enum behaviour behaviour, struct writer *writer)
{
    pthread_t thread;
    prctl(PR_SET_PDEATHSIG, 0);
    switch (behaviour) {
    case CHILD_EXITS:
        write_until_orphaned(writer);
        _exit(0);
    case CHILD_SETSID:
        setsid();
        break;
    case CHILD_CLOSED:
        close_range(0, ~0u, 0);
        break;
    case MAIN_THREAD_GONE:
        leave_a_thread(writer);
    case UNKILLABLE:
        pthread_create(&thread, NULL, wait_for_ever, writer->stage->mount);
        break;
    case CHILD_DOUBLE:
        if (fork() != 0)
            _exit(0);
        break;
    case CHILD_LIVES:
    case STRANGER:
    case STOPPED:
    case BEHAVIOURS:
        break;
    }
    write_for_ever(writer);
    _exit(0);
}

/* ------------------------------------------------------------------------------------------------ stranger ---- */

static int pass(const char *path, int fd, uint64_t offset)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int socket_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct iovec iov = {.iov_base = &offset, .iov_len = sizeof offset};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } ancillary;
    memset(&ancillary, 0, sizeof ancillary);
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &ancillary, .msg_controllen = sizeof ancillary.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int result = socket_fd >= 0 && connect(socket_fd, (struct sockaddr *)&address, sizeof address) == 0 &&
                         sendmsg(socket_fd, &message, MSG_NOSIGNAL) == (ssize_t)sizeof offset
                     ? 0
                     : errno;
    if (socket_fd >= 0)
        close(socket_fd);
    return result;
}

int stranger_main(const char *socket_path, const char *stage_path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), fd = -1;
    uint64_t offset = 0;
    struct iovec iov = {.iov_base = &offset, .iov_len = sizeof offset};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } ancillary;
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &ancillary, .msg_controllen = sizeof ancillary.bytes};
    struct writer writer = {.stage = stage_map(stage_path)};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", socket_path);
    alarm(60);
    if (writer.stage == NULL || bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listener, 1) != 0)
        return 1;
    int connection = accept(listener, NULL, NULL);
    if (recvmsg(connection, &message, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof offset)
        return 1;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header == NULL || header->cmsg_type != SCM_RIGHTS)
        return 1;
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
    char *page = mmap(NULL, STAGE_BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    if (page == MAP_FAILED)
        return 1;
    close(fd); /* the mapping is enough */
    writer.place = (_Atomic uint64_t *)page;
    write_for_ever(&writer);
    return 0;
}

/* -------------------------------------------------------------------------------------------------- engine ---- */

/* The pool's descriptor lies open between attach and park: a copy of it, as a library might make one. */
static int take_descriptor(uint64_t bytes)
{
    DIR *directory = opendir("/proc/self/fd");
    int found = -1;
    for (struct dirent *entry; found < 0 && directory != NULL && (entry = readdir(directory)) != NULL;) {
        char name[128] = "";
        struct stat about;
        int fd = atoi(entry->d_name);
        if (readlinkat(dirfd(directory), entry->d_name, name, sizeof name - 1) > 0 &&
            strncmp(name, "/memfd:gms:", 11) == 0 && fstat(fd, &about) == 0 && (uint64_t)about.st_size >= bytes)
            found = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    }
    if (directory != NULL)
        closedir(directory);
    return found;
}

static char state_of(pid_t pid)
{
    char path[64], text[512] = "";
    char worst = '?';
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *tasks = opendir(path);
    for (struct dirent *task; tasks != NULL && (task = readdir(tasks)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/stat", pid, task->d_name);
        FILE *stream = task->d_name[0] != '.' ? fopen(path, "re") : NULL;
        if (stream == NULL)
            continue;
        const char *end = fgets(text, sizeof text, stream) != NULL ? strrchr(text, ')') : NULL;
        fclose(stream);
        if (end != NULL && (worst == '?' || end[2] == 'Z' || end[2] == 'T'))
            worst = end[2];
    }
    if (tasks != NULL)
        closedir(tasks);
    return worst;
}

static void wait_for_state(pid_t pid, char state)
{
    for (uint64_t end_ns = gms_clock_ns() + 5 * GMS_NS_PER_S; state_of(pid) != state && gms_clock_ns() < end_ns;)
        poll(NULL, 0, 1);
}

static gms_status act(struct stage *stage, gms_session *session, gms_pool *kv, int pool_fd, struct gms_error *error)
{
    enum behaviour behaviour = (enum behaviour)(atomic_load(&stage->order) - 1);
    uint64_t generation;
    int leader_lives[2];
    gms_status status = gms_slot_acquire(kv, stage->slot, &generation);
    if (status != GMS_OK)
        return gms_fail(error, status, "slot %u cannot be leased", stage->slot);
    struct writer writer = {.stage = stage};
    writer.place = (_Atomic uint64_t *)((char *)gms_pool_address(kv) + (size_t)stage->slot * STAGE_BLOCK_BYTES);
    if (pipe2(leader_lives, O_CLOEXEC) != 0)
        return gms_fail(error, GMS_E_SYSTEM, "pipe: %s", strerror(errno));
    writer.parent_gone = leader_lives[0];

    pid_t child = fork(), hidden = 0; /* one to be hit, and one that writes */
    if (child == 0) {
        close(leader_lives[1]);
        for (;;)
            pause();
    }
    if (behaviour == STRANGER) {
        int code = pass(stage->stranger, pool_fd, (uint64_t)stage->slot * STAGE_BLOCK_BYTES);
        if (code != 0)
            return gms_fail(error, GMS_E_SYSTEM, "passing the descriptor: %s", strerror(code));
    } else if (behaviour == MAIN_THREAD_GONE && stage->victim != CHILD) {
        pthread_t thread;
        pthread_create(&thread, NULL, write_for_ever, &writer); /* this process itself, further below */
    } else {
        hidden = fork();
        if (hidden == 0) {
            close(leader_lives[1]);
            behave(behaviour, &writer);
        }
    }
    close(pool_fd);
    while (atomic_load(&stage->last_write_ns) == 0)
        poll(NULL, 0, 1);
    if (behaviour == CHILD_DOUBLE)
        waitpid(hidden, NULL, 0);
    if (behaviour == STOPPED) {
        kill(hidden, SIGSTOP); /* our own child, not waited for */
        wait_for_state(hidden, 'T');
    }
    if (behaviour == MAIN_THREAD_GONE && hidden != 0)
        wait_for_state(hidden, 'Z');
    atomic_store(&stage->at, AT_ACTING);
    if (behaviour == MAIN_THREAD_GONE && hidden == 0)
        syscall(SYS_exit, 0);
    for (;;) {
        gms_progress(session);
        if (atomic_load(&stage->kill_child)) {
            if (behaviour != STOPPED)
                wait_until_writing(stage);
            atomic_store(&stage->killed_ns, gms_clock_ns());
            kill(child, SIGKILL);
            waitpid(child, NULL, 0);
            _exit(1); /* an engine that lost a worker */
        }
        poll(NULL, 0, 1);
    }
}

static gms_status run(struct stage *stage, struct gms_error *error)
{
    const struct gms_identity identity = {.model = "table",
                                          .dtype = "u64",
                                          .layout = "time",
                                          .hash_algorithm = "none",
                                          .engine_name = "fence-table",
                                          .engine_version = "1",
                                          .block_tokens = 16,
                                          .world_size = (uint32_t)atoi(getenv("GMS_WORLD_SIZE"))};
    const struct gms_pool_description description = {
        .name = "kv", .kind = GMS_POOL_KV, .slot_count = STAGE_SLOTS, .block_bytes = STAGE_BLOCK_BYTES};
    gms_session *session = NULL;
    gms_pool *kv = NULL;
    struct gms_membership membership;
    struct gms_promotion promotion;
    struct gms_adoption adoption;
    int pool_fd = -1;
    gms_status status = gms_open(NULL, &session, error);
    if (status == GMS_OK)
        status = gms_join(session, &identity, &membership, error);
    if (status == GMS_OK)
        status = gms_pool_attach(session, &description, &kv, error);
    if (status == GMS_OK) {
        stage->incarnation = membership.incarnation;
        pool_fd = take_descriptor(gms_pool_bytes(kv));
        status = gms_park(session, error);
    }
    if (status != GMS_OK)
        return status;
    atomic_store(&stage->at, AT_PARKED);
    status = gms_wait_promotion(session, -1, &promotion, error);
    if (status == GMS_OK)
        status = gms_adopt(session, &adoption, error);
    if (status == GMS_OK)
        status = gms_wake(session, error);
    if (status == GMS_OK)
        status = gms_serve(session, membership.rank == 0 ? "table" : NULL, error);
    if (status != GMS_OK)
        return status;
    atomic_store(&stage->at, AT_SERVING);
    while (atomic_load(&stage->order) == 0) {
        struct pollfd news = {.fd = gms_event_fd(session), .events = POLLIN};
        gms_progress(session);
        if (poll(&news, 1, 2) > 0)
            (void)gms_wait_promotion(session, 0, &promotion, error);
    }
    return act(stage, session, kv, pool_fd, error);
}

int engine_main(const char *stage_path)
{
    struct stage *stage = stage_map(stage_path);
    struct gms_error error = {0};
    if (stage == NULL)
        return 1;
    gms_status status = run(stage, &error);
    snprintf(stage->text, sizeof stage->text, "%s: %.200s", gms_status_name(status), error.text);
    atomic_store(&stage->at, AT_FAILED);
    return 1;
}
