/* SPDX-License-Identifier: Apache-2.0
 * The engine rank of gms-exec's tests. Its first argument says what it does. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "exec_engine.h"

extern char **environ;

static int test_fd(void)
{
    const char *text = getenv("EXEC_TEST_FD");

    return text == NULL ? -1 : atoi(text);
}

static void say(enum exec_word word, int value, const char *text, int fd)
{
    struct exec_say message = {.word = word, .value = value};
    struct iovec iov = {.iov_base = &message, .iov_len = sizeof message};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } ancillary;
    struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1};

    snprintf(message.text, sizeof message.text, "%s", text);
    if (fd >= 0) {
        memset(&ancillary, 0, sizeof ancillary);
        header.msg_control = &ancillary;
        header.msg_controllen = sizeof ancillary.bytes;
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    }
    if (sendmsg(test_fd(), &header, MSG_NOSIGNAL) < 0) {
        _exit(98);
    }
}

static void say_process(const char *name)
{
    int fd = pidfd_open(getpid(), 0);

    say(EXEC_PROCESS, getpid(), name, fd);
    close(fd);
}

static void wait_forever(void)
{
    for (;;) {
        pause();
    }
}

/* A descendant that tells its pidfd and then does not want to end. */
static void stay(const char *name)
{
    for (int number = 1; number < NSIG; number++) {
        signal(number, SIG_IGN);
    }
    say_process(name);
    wait_forever();
}

/* Every way in which a process gets out of sight of its parent. */
static void make_tree(void)
{
    if (fork() == 0) {
        stay("child");
    }
    if (fork() == 0) {
        setsid();
        stay("setsid");
    }
    if (fork() == 0) { /* the classic daemon */
        setsid();
        if (fork() == 0) {
            stay("daemon");
        }
        _exit(0);
    }
    if (fork() == 0) { /* nothing of its launcher's is left in it */
        say_process("closed");
        for (int fd = 0; fd < 256; fd++) {
            close(fd);
        }
        setsid();
        wait_forever();
    }
    if (fork() == 0) { /* a chain */
        if (fork() == 0) {
            if (fork() == 0) {
                setpgid(0, 0);
                stay("great-grandchild");
            }
            stay("grandchild");
        }
        stay("parent");
    }
    say_process("engine");
    say(EXEC_TREE_READY, 0, "", -1);
    wait_forever();
}

static void take_signals(void)
{
    sigset_t all;

    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    say(EXEC_STARTED, getpid(), "", -1);
    for (;;) {
        siginfo_t info;
        int number = sigwaitinfo(&all, &info);

        say(EXEC_SIGNAL, number, "", -1);
        if (number == SIGTERM) {
            _exit(7);
        }
    }
}

static void list_fds(void)
{
    char text[1024] = "";
    size_t used = 0;

    for (int fd = 0; fd < 1024; fd++) {
        if (fcntl(fd, F_GETFD) >= 0) {
            used += (size_t)snprintf(text + used, sizeof text - used, "%d ", fd);
        }
    }
    say(EXEC_TEXT, 0, text, -1);
    exit(0);
}

/* Blocked and ignored signals, which should be none (handlers do not outlive exec; a sanitizer has set its own). */
static void list_signals(void)
{
    char text[1024] = "";
    size_t used = 0;
    sigset_t mask;

    sigprocmask(SIG_BLOCK, NULL, &mask);
    for (int number = 1; number < NSIG; number++) {
        struct sigaction action;

        if (sigismember(&mask, number) == 1) {
            used += (size_t)snprintf(text + used, sizeof text - used, "blocked:%d ", number);
        }
        if (sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN) {
            used += (size_t)snprintf(text + used, sizeof text - used, "ignored:%d ", number);
        }
    }
    say(EXEC_TEXT, 0, text, -1);
    wait_forever();
}

static void write_environment(const char *path)
{
    FILE *file = fopen(path, "w");

    for (char **variable = environ; *variable != NULL; variable++) {
        fwrite(*variable, 1, strlen(*variable) + 1, file);
    }
    exit(fclose(file) == 0 ? 0 : 1);
}

static void connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        exit(97);
    }
    say(EXEC_STARTED, getpid(), "", -1);
    wait_forever();
}

static void leave_orphan(void)
{
    if (fork() == 0) {
        if (fork() == 0) {
            say_process("orphan");
            _exit(0);
        }
        _exit(0);
    }
    wait(NULL);
    say(EXEC_STARTED, getpid(), "", -1);
    wait_forever();
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    const char *argument = argc > 2 ? argv[2] : "";

    if (strcmp(what, "exit") == 0) {
        return atoi(argument);
    } else if (strcmp(what, "kill") == 0) {
        kill(getpid(), atoi(argument));
        wait_forever();
    } else if (strcmp(what, "stay") == 0) {
        say(EXEC_STARTED, getpid(), "", -1);
        wait_forever();
    } else if (strcmp(what, "bystander") == 0) {
        say_process("bystander");
        wait_forever();
    } else if (strcmp(what, "tree") == 0) {
        make_tree();
    } else if (strcmp(what, "signals") == 0) {
        take_signals();
    } else if (strcmp(what, "list-fds") == 0) {
        list_fds();
    } else if (strcmp(what, "list-signals") == 0) {
        list_signals();
    } else if (strcmp(what, "environment") == 0) {
        write_environment(argument);
    } else if (strcmp(what, "connect") == 0) {
        connect_to(argument);
    } else if (strcmp(what, "orphan") == 0) {
        leave_orphan();
    } else if (strcmp(what, "daemon-exit") == 0) { /* a planned end that leaves something behind */
        if (fork() == 0) {
            setsid();
            stay("left behind");
        }
        say_process("engine");
        char byte;
        return recv(test_fd(), &byte, 1, 0) == 1 ? 5 : 96;
    }
    return 95;
}
