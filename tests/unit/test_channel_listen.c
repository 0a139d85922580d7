/* SPDX-License-Identifier: Apache-2.0
 * Whose socket is it: stale files, live owners, twenty starters, other users, long paths. */
#include "unit_support.h"

#include <sys/socket.h>
#include <sys/un.h>

#include "wire/channel.h"

static struct gms_error error;
static char path[sizeof(((struct sockaddr_un *)0)->sun_path)];

static int setup(void **state)
{
    if (unit_make_dir(state) < 0) {
        return -1;
    }
    snprintf(path, sizeof(path), "%s/c0", (char *)*state);
    return 0;
}

/* A process that listens at `path` and stays until it is killed. */
struct owner {
    pid_t pid;
    int pidfd;
};

static struct owner start_owner(void)
{
    struct owner owner = {.pidfd = -1};
    int ready[2];
    char byte = 0;

    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    owner.pid = fork();
    if (owner.pid == 0) {
        int fd = -1;

        child_check(gms_channel_listen(path, &fd, &error) == GMS_OK);
        child_check(write(ready[1], "r", 1) == 1);
        close(ready[0]);
        close(ready[1]);
        for (;;) {
            pause();
        }
    }
    close(ready[1]);
    assert_ok(gms_pidfd_open(owner.pid, &owner.pidfd, &error));
    assert_true(unit_read(ready[0], &byte, 1));
    close(ready[0]);
    return owner;
}

static void kill_owner(struct owner *owner)
{
    assert_true(gms_pidfd_signal(owner->pidfd, SIGKILL));
    assert_int_equal(unit_wait(owner->pid), SIGKILL);
    gms_fd_close(&owner->pidfd);
}

static void assert_served(int listener)
{
    int client = -1;
    int server = -1;
    pid_t pid = 0;
    uid_t uid = 4711;

    assert_ok(gms_channel_connect(path, 1000, &client, &error));
    assert_ok(gms_channel_accept(listener, &server, &pid, &uid, &error));
    assert_int_equal(pid, getpid());
    assert_int_equal(uid, geteuid());
    gms_fd_close(&client);
    gms_fd_close(&server);
}

static void listens_privately(void **state)
{
    struct stat info;
    int fd = -1;
    int client = -1;
    int server = -1;

    (void)state;
    const mode_t mask = umask(0);
    assert_ok(gms_channel_listen(path, &fd, &error));
    umask(mask);
    assert_int_equal(lstat(path, &info), 0);
    assert_true(S_ISSOCK(info.st_mode));
    assert_int_equal(info.st_mode & 07777, 0600);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_status(gms_channel_accept(fd, &server, NULL, NULL, &error), GMS_E_AGAIN);
    assert_ok(gms_channel_connect(path, 1000, &client, &error));
    assert_ok(gms_channel_accept(fd, &server, NULL, NULL, &error));
    assert_int_equal(fcntl(client, F_GETFD), FD_CLOEXEC);
    assert_int_equal(fcntl(server, F_GETFD), FD_CLOEXEC);
    assert_true(fcntl(client, F_GETFL) & O_NONBLOCK);
    assert_true(fcntl(server, F_GETFL) & O_NONBLOCK);
    gms_fd_close(&client);
    gms_fd_close(&server);
    gms_fd_close(&fd);
}

static void a_dead_owner_is_replaced(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        struct owner owner = start_owner(); /* from the second time on over a stale socket */
        kill_owner(&owner);
    }
    int fd = -1;
    assert_ok(gms_channel_listen(path, &fd, &error));
    assert_served(fd);
    gms_fd_close(&fd);
}

static void a_live_owner_is_named_and_left_alone(void **state)
{
    struct owner owner = start_owner();
    struct stat before;
    struct stat after;
    char number[32];
    int fd = -1;

    (void)state;
    assert_int_equal(lstat(path, &before), 0);
    assert_status(gms_channel_listen(path, &fd, &error), GMS_E_EXISTS);
    snprintf(number, sizeof(number), "process %d", (int)owner.pid);
    assert_text_has(number);
    /* Stopped, but with room in its queue: it lives. */
    assert_true(gms_pidfd_signal(owner.pidfd, SIGSTOP));
    assert_status(gms_channel_listen(path, &fd, &error), GMS_E_EXISTS);
    assert_int_equal(lstat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_equal(fd, -1);
    kill_owner(&owner);
}

/* Stopped with a full queue: no proof either way, so it is refused and kept (V20). */
static void a_stopped_owner_with_a_full_queue_is_left_alone(void **state)
{
    struct owner owner = start_owner();
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat before;
    struct stat after;
    int waiting[4096];
    int count = 0;
    int fd = -1;

    (void)state;
    assert_true(gms_pidfd_signal(owner.pidfd, SIGSTOP));
    memcpy(address.sun_path, path, sizeof(path));
    for (;;) {
        waiting[count] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        assert_true(waiting[count] >= 0);
        if (connect(waiting[count++], (struct sockaddr *)&address, sizeof(address)) < 0) {
            break;
        }
        assert_true(count < 4096);
    }
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(lstat(path, &before), 0);
    assert_status(gms_channel_listen(path, &fd, &error), GMS_E_BUSY);
    assert_text_has(path);
    assert_int_equal(lstat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    /* A client gives up in time and says what may be wrong. */
    const uint64_t start_ns = gms_clock_ns();
    assert_status(gms_channel_connect(path, 60, &fd, &error), GMS_E_TIMEOUT);
    assert_true(gms_clock_ns() - start_ns >= 60 * GMS_NS_PER_MS);
    assert_text_has("60 ms");
    while (count > 0) {
        close(waiting[--count]);
    }
    kill_owner(&owner);
    assert_ok(gms_channel_listen(path, &fd, &error));
    gms_fd_close(&fd);
}

static void what_is_not_our_socket_is_never_removed(void **state)
{
    enum { FILE_HERE, DIRECTORY_HERE, LINK_HERE, LINK_TO_SOCKET_HERE, DANGLING_HERE, FIFO_HERE, KINDS };

    for (int kind = 0; kind < KINDS; kind++) {
        char target[160];
        struct stat before;
        struct stat after;
        int fd = -1;

        snprintf(target, sizeof(target), "%s/target%d", (char *)*state, kind);
        if (kind == FILE_HERE) {
            close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
        } else if (kind == DIRECTORY_HERE) {
            assert_int_equal(mkdir(path, 0700), 0);
        } else if (kind == FIFO_HERE) {
            assert_int_equal(mkfifo(path, 0600), 0);
        } else {
            if (kind == LINK_HERE) {
                close(open(target, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
            } else if (kind == LINK_TO_SOCKET_HERE) { /* stale, but behind a name that is not ours */
                int stale = -1;
                assert_ok(gms_channel_listen(target, &stale, &error));
                gms_fd_close(&stale);
            }
            assert_int_equal(symlink(target, path), 0);
        }
        assert_int_equal(lstat(path, &before), 0);
        assert_status(gms_channel_listen(path, &fd, &error), GMS_E_EXISTS);
        assert_text_has("not a socket");
        assert_int_equal(lstat(path, &after), 0);
        assert_int_equal(before.st_ino, after.st_ino);
        assert_int_equal(before.st_mode, after.st_mode);
        assert_int_equal(fd, -1);
        assert_int_equal(remove(path), 0);
        assert_int_equal(access(target, F_OK), kind == LINK_HERE || kind == LINK_TO_SOCKET_HERE ? 0 : -1);
    }
}

static void a_server_of_another_kind_is_left_alone(void **state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat info;
    int fd = -1;

    (void)state;
    memcpy(address.sun_path, path, sizeof(path));
    int stream = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(stream, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(stream, 1), 0);
    assert_status(gms_channel_listen(path, &fd, &error), GMS_E_EXISTS);
    assert_int_equal(lstat(path, &info), 0);
    assert_status(gms_channel_connect(path, 50, &fd, &error), GMS_E_SYSTEM);
    gms_fd_close(&stream);
}

/* Twenty at once, over nothing and over a stale socket: exactly one wins, and it is the one that is reached. */
static void of_twenty_starters_one_wins(void **state)
{
    enum { STARTERS = 20 };

    (void)state;
    for (int round = 0; round < 6; round++) {
        struct report {
            pid_t pid;
            int status;
        } report;
        pid_t pids[STARTERS];
        pid_t winner = 0;
        int gate[2];
        int results[2];
        int hold[2];
        int client = -1;
        int others = 0;

        if (round == 3) { /* from here on over nothing */
            assert_int_equal(unlink(path), 0);
        } else if (round == 0) {
            struct owner owner = start_owner();
            kill_owner(&owner);
        }
        assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
        assert_int_equal(pipe2(results, O_CLOEXEC), 0);
        assert_int_equal(pipe2(hold, O_CLOEXEC), 0);
        for (int i = 0; i < STARTERS; i++) {
            pids[i] = fork();
            if (pids[i] == 0) {
                char byte;
                int fd = -1;

                close(gate[1]);
                close(hold[1]);
                child_check(read(gate[0], &byte, 1) == 0);
                report = (struct report){.pid = getpid(), .status = gms_channel_listen(path, &fd, &error)};
                child_check(write(results[1], &report, sizeof(report)) == sizeof(report));
                child_check(read(hold[0], &byte, 1) == 0); /* the winner stays until all have spoken */
                _exit(0);
            }
        }
        close(gate[0]);
        close(gate[1]);
        close(hold[0]);
        close(results[1]);
        for (int i = 0; i < STARTERS; i++) {
            assert_true(unit_read(results[0], &report, sizeof(report)));
            if (report.status == GMS_OK) {
                assert_int_equal(winner, 0);
                winner = report.pid;
            } else {
                assert_int_equal(report.status, GMS_E_EXISTS);
                others++;
            }
        }
        assert_true(winner > 0);
        assert_int_equal(others, STARTERS - 1);
        struct ucred peer;
        socklen_t length = sizeof(peer);
        assert_ok(gms_channel_connect(path, 1000, &client, &error));
        assert_int_equal(getsockopt(client, SOL_SOCKET, SO_PEERCRED, &peer, &length), 0);
        assert_int_equal(peer.pid, winner);
        gms_fd_close(&client);
        close(hold[1]);
        close(results[0]);
        for (int i = 0; i < STARTERS; i++) {
            assert_int_equal(unit_wait(pids[i]), 0);
        }
    }
}

/* Whoever holds the lock is in the middle of probing and binding: nobody else touches the name meanwhile. */
static void a_starter_waits_for_the_lock_and_gives_up(void **state)
{
    struct owner owner = start_owner();
    struct stat before;
    struct stat after;
    char lock_path[160];
    int lock = -1;
    int fd = -1;

    (void)state;
    kill_owner(&owner);
    snprintf(lock_path, sizeof(lock_path), "%s.lock", path);
    assert_ok(gms_file_lock(lock_path, 0, &lock, &error));
    assert_int_equal(lstat(path, &before), 0);
    assert_status(gms_channel_listen(path, &fd, &error), GMS_E_BUSY);
    assert_text_has(lock_path);
    assert_int_equal(lstat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    gms_fd_close(&lock);
    assert_ok(gms_channel_listen(path, &fd, &error));
    gms_fd_close(&fd);
}

static void two_directories_do_not_meet(void **state)
{
    char first[160];
    char second[160];
    int one = -1;
    int two = -1;

    snprintf(first, sizeof(first), "%s/one", (char *)*state);
    snprintf(second, sizeof(second), "%s/two", (char *)*state);
    assert_int_equal(mkdir(first, 0700), 0);
    assert_int_equal(mkdir(second, 0700), 0);
    strcat(first, "/c0");
    strcat(second, "/c0");
    assert_ok(gms_channel_listen(first, &one, &error));
    assert_ok(gms_channel_listen(second, &two, &error));
    assert_status(gms_channel_listen(second, &one, &error), GMS_E_EXISTS);
    gms_fd_close(&one);
    gms_fd_close(&two);
}

/* A full queue that moves again: the client that asked meanwhile gets in. */
static void connect_waits_for_room_in_the_queue(void **state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int waiting[4096];
    int count = 0;
    int listener = -1;
    int server = -1;
    int full;

    (void)state;
    assert_ok(gms_channel_listen(path, &listener, &error));
    memcpy(address.sun_path, path, sizeof(path));
    do {
        waiting[count] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        full = connect(waiting[count], (struct sockaddr *)&address, sizeof(address));
        assert_true(++count < 4096);
    } while (full == 0);
    const pid_t child = fork();
    if (child == 0) {
        int client = -1;

        child_check(gms_channel_connect(path, UNIT_PATIENCE_MS, &client, &error) == GMS_OK);
        _exit(0);
    }
    pid_t pid = 0;
    int accepted = 0;
    const uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    while (pid != child && gms_clock_ns() < deadline_ns) {
        struct pollfd entry = {.fd = listener, .events = POLLIN};

        (void)poll(&entry, 1, 1000);
        if (gms_channel_accept(listener, &server, &pid, NULL, &error) == GMS_OK) {
            accepted++;
            gms_fd_close(&server);
        }
    }
    assert_int_equal(pid, child);
    assert_int_equal(accepted, count); /* the last of `waiting` got no place, the child did */
    assert_int_equal(unit_wait(child), 0);
    while (count > 0) {
        close(waiting[--count]);
    }
    gms_fd_close(&listener);
}

static void connect_says_what_is_missing(void **state)
{
    int fd = -1;

    (void)state;
    assert_status(gms_channel_connect(path, 50, &fd, &error), GMS_E_NOT_FOUND);
    assert_text_has(path);
    struct owner owner = start_owner();
    kill_owner(&owner);
    assert_status(gms_channel_connect(path, 50, &fd, &error), GMS_E_DISCONNECTED);
    assert_int_equal(fd, -1);
}

/* Socket names are bytes, at most 107, and are never cut (V21). */
static void path_lengths(void **state)
{
    static const size_t lengths[] = {106, 107, 108, 109, 4096};
    static const char *const fillers[] = {"a", "\xc3\xa4"};

    for (size_t f = 0; f < 2; f++) {
        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            static char name[5000];
            char number[32];
            struct stat info;
            int fd = -1;
            size_t at = (size_t)snprintf(name, sizeof(name), "%s/", (char *)*state);

            while (at + strlen(fillers[f]) <= lengths[i]) {
                memcpy(name + at, fillers[f], strlen(fillers[f]));
                at += strlen(fillers[f]);
            }
            memset(name + at, 'z', lengths[i] - at);
            name[lengths[i]] = '\0';
            if (lengths[i] <= 107) {
                assert_ok(gms_channel_listen(name, &fd, &error));
                assert_int_equal(lstat(name, &info), 0);
                gms_fd_close(&fd);
                assert_int_equal(unlink(name), 0);
            } else {
                assert_status(gms_channel_listen(name, &fd, &error), GMS_E_INVALID);
                snprintf(number, sizeof(number), "%zu bytes", lengths[i]);
                assert_text_has(number);
                assert_text_has("107");
                assert_status(gms_channel_connect(name, 10, &fd, &error), GMS_E_INVALID);
                assert_text_has(number);
                name[107] = '\0';
                assert_int_equal(lstat(name, &info), -1); /* nothing under the cut name */
            }
        }
    }
    int fd = -1;
    assert_status(gms_channel_listen("", &fd, &error), GMS_E_INVALID);
    assert_status(gms_channel_connect(NULL, 10, &fd, &error), GMS_E_INVALID);
}

/* Another user who gets at the socket is sent away, and the next client is served. */
static void another_user_is_refused(void **state)
{
    char byte;
    int fd = -1;
    int server = -1;
    int ready[2];

    if (geteuid() != 0) {
        print_message("skipped: acting as another user needs root\n");
        skip();
    }
    assert_ok(gms_channel_listen(path, &fd, &error));
    assert_int_equal(chmod(*state, 0755), 0);
    assert_int_equal(chmod(path, 0666), 0);
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    const pid_t child = fork();
    if (child == 0) {
        int client = -1;
        static unsigned char buffer[GMS_WIRE_MAX_BYTES];
        struct gms_message got;

        child_check(setgid(65534) == 0 && setuid(65534) == 0);
        child_check(gms_channel_connect(path, 1000, &client, &error) == GMS_OK);
        child_check(write(ready[1], "r", 1) == 1);
        child_check(gms_channel_receive_until(client, buffer, gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS, &got,
                                              &error) == GMS_E_DISCONNECTED);
        _exit(0);
    }
    assert_true(unit_read(ready[0], &byte, 1));
    assert_status(gms_channel_accept(fd, &server, NULL, NULL, &error), GMS_E_PERMISSION);
    assert_text_has("65534");
    assert_int_equal(server, -1);
    assert_int_equal(unit_wait(child), 0);
    assert_served(fd);
    close(ready[0]);
    close(ready[1]);
    gms_fd_close(&fd);
}

/* Whom the mode keeps out learns that it is a matter of permission. */
static void connect_without_permission(void **state)
{
    int fd = -1;

    if (geteuid() != 0) {
        print_message("skipped: acting as another user needs root\n");
        skip();
    }
    assert_ok(gms_channel_listen(path, &fd, &error));
    assert_int_equal(chmod(*state, 0755), 0);
    const pid_t child = fork();
    if (child == 0) {
        int client = -1;

        child_check(setgid(65534) == 0 && setuid(65534) == 0);
        child_check(gms_channel_connect(path, 1000, &client, &error) == GMS_E_PERMISSION);
        /* Nor can it take the name over: it may not even look. */
        child_check(gms_channel_listen(path, &client, &error) != GMS_OK);
        _exit(0);
    }
    assert_int_equal(unit_wait(child), 0);
    assert_served(fd);
    gms_fd_close(&fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(listens_privately, setup, unit_remove_dir),
        cmocka_unit_test_setup_teardown(a_dead_owner_is_replaced, setup, unit_remove_dir),
        cmocka_unit_test_setup_teardown(a_live_owner_is_named_and_left_alone, setup, unit_remove_dir),
        cmocka_unit_test_setup_teardown(a_stopped_owner_with_a_full_queue_is_left_alone, setup, unit_remove_dir),
        cmocka_unit_test_setup_teardown(what_is_not_our_socket_is_never_removed, setup, unit_remove_dir),
        cmocka_unit_test_setup_teardown(a_server_of_another_kind_is_left_alone, setup, unit_remove_dir),
        cmocka_unit_test_setup_teardown(of_twenty_starters_one_wins, setup, unit_remove_dir),
        cmocka_unit_test_setup_teardown(a_starter_waits_for_the_lock_and_gives_up, setup, unit_remove_dir),
        cmocka_unit_test_setup_teardown(two_directories_do_not_meet, setup, unit_remove_dir),
        cmocka_unit_test_setup_teardown(connect_waits_for_room_in_the_queue, setup, unit_remove_dir),
        cmocka_unit_test_setup_teardown(connect_says_what_is_missing, setup, unit_remove_dir),
        cmocka_unit_test_setup_teardown(path_lengths, setup, unit_remove_dir),
        cmocka_unit_test_setup_teardown(another_user_is_refused, setup, unit_remove_dir),
        cmocka_unit_test_setup_teardown(connect_without_permission, setup, unit_remove_dir),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
