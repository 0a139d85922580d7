/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-exec/guardian.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "gms-exec/descendants.h"

pid_t gms_clone(uint64_t flags, pid_t wanted_pid, int cgroup, int *ret_pidfd)
{
    struct clone_args arguments = {
        .flags = flags | CLONE_PIDFD,
        .pidfd = (uint64_t)(uintptr_t)ret_pidfd,
        .exit_signal = SIGCHLD,
    };

    if (wanted_pid != 0) {
        arguments.set_tid = (uint64_t)(uintptr_t)&wanted_pid;
        arguments.set_tid_size = 1;
    }
    if (cgroup >= 0) {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = (uint64_t)cgroup;
    }
    return (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
}

static void report(int control, enum gms_report_kind kind, int32_t value, const char *step, int fd)
{
    struct gms_report text = {.kind = kind, .value = value};
    struct iovec iov = {.iov_base = &text, .iov_len = sizeof text};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } ancillary;
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};

    snprintf(text.step, sizeof text.step, "%s", step);
    if (fd >= 0) {
        memset(&ancillary, 0, sizeof ancillary);
        message.msg_control = &ancillary;
        message.msg_controllen = sizeof ancillary.bytes;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    while (sendmsg(control, &message, MSG_NOSIGNAL) < 0 && errno == EINTR) {
    }
}

_Noreturn static void fail(const struct gms_guardian_order *order, const char *step)
{
    report(order->control, GMS_REPORT_FAILED, errno, step, -1);
    _exit(1);
}

/* ---------------------------------------------------------------------------------------------- the rank ------ */

/* execvp says EACCES when it could not even look into a directory of PATH; a shell says 127 unless the file is there.
 */
static int shell_code(const char *command, int reason)
{
    const char *path = getenv("PATH");

    if (reason != EACCES || strchr(command, '/') != NULL || path == NULL) {
        return reason == ENOENT ? 127 : 126;
    }
    for (const char *at = path;; at++) {
        size_t length = strcspn(at, ":");
        char file[PATH_MAX];

        if (snprintf(file, sizeof file, "%.*s/%s", (int)length, at, command) < (int)sizeof file &&
            access(file, F_OK) == 0) {
            return 126;
        }
        at += length;
        if (*at == '\0') {
            return 127;
        }
    }
}

/* Between fork and exec of the engine rank. */
_Noreturn static void become_engine(const struct gms_guardian_order *order, pid_t guardian)
{
    sigset_t none;
    char byte;
    ssize_t got;

    /* The end of the guardian is the end of the rank (the kernel sees to it in a namespace). V23: the signal is tied to
     * the thread that forked us, which is the guardian's only one, and may have been missed before it was armed. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != guardian) {
        _exit(1);
    }
    if (order->own_group) {
        setpgid(0, 0);
    }
    while ((got = read(order->go, &byte, 1)) < 0 && errno == EINTR) {
    }
    if (got != 1) {
        _exit(0); /* nobody let us run */
    }
    /* The command starts with no signal blocked or ignored, whatever state we were started in (V24). */
    for (int number = 1; number < NSIG; number++) {
        signal(number, SIG_DFL);
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execvp(order->command[0], order->command);
    int reason = errno;
    report(order->control, GMS_REPORT_EXEC_FAILED, reason, "exec", -1);
    _exit(shell_code(order->command[0], reason));
}

/* ------------------------------------------------------------------------------------------ the namespace ----- */

static bool write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    int kept = errno;

    gms_fd_close(&fd);
    errno = kept;
    return ok;
}

/* Ids look the same on both sides: sockets' credentials and files' owners keep their meaning. */
static void map_ids(const struct gms_guardian_order *order)
{
    char text[64];

    if (!write_text("/proc/self/setgroups", "deny")) {
        fail(order, "write /proc/self/setgroups");
    }
    snprintf(text, sizeof text, "%u %u 1", order->uid, order->uid);
    if (!write_text("/proc/self/uid_map", text)) {
        fail(order, "write /proc/self/uid_map");
    }
    snprintf(text, sizeof text, "%u %u 1", order->gid, order->gid);
    if (!write_text("/proc/self/gid_map", text)) {
        fail(order, "write /proc/self/gid_map");
    }
}

static void enter_namespace(const struct gms_guardian_order *order)
{
    if (getpid() != 1) {
        errno = ESRCH;
        fail(order, "be PID 1 of a new PID namespace");
    }
    if (order->user_namespace) {
        map_ids(order);
    }
    /* /proc must show the pids that getpid() tells, or a library that opens /proc/<its pid> reads about somebody else.
     * Only the mount that ours will cover is cut off from the outside; where /proc is no mount (a bare chroot), all. */
    if (unshare(CLONE_NEWNS) != 0) {
        fail(order, "make a mount namespace");
    }
    if (mount(NULL, "/proc", NULL, MS_PRIVATE, NULL) != 0 && mount(NULL, "/", NULL, MS_SLAVE | MS_REC, NULL) != 0) {
        fail(order, "detach /proc in the mount namespace");
    }
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) != 0) {
        fail(order, "mount a fresh /proc");
    }
}

/* The rank gets the guardian's pid of outside as its own inside. Namespaces hand out the same small numbers, and ranks
 * of one MPI job with equal pids take each other's shared memory for their own (measured: README). */
static pid_t receive_outer_pid(const struct gms_guardian_order *order)
{
    int32_t pid = 0;

    if (recv(order->control, &pid, sizeof pid, 0) != (ssize_t)sizeof pid) {
        _exit(1); /* gms-exec is gone */
    }
    return pid;
}

/* ----------------------------------------------------------------------------------------------- the loop ----- */

/* Reaps what has ended. True when no child is left at all. */
static bool reap(const struct gms_guardian_order *order, pid_t engine)
{
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);

        if (pid == engine) {
            report(order->control, GMS_REPORT_ENDED, status, "", -1);
        }
        if (pid < 0 && errno == ECHILD) {
            return true;
        }
        if (pid == 0 || (pid < 0 && errno != EINTR)) {
            return false;
        }
    }
}

/* Kills until wait(2) knows of no child. A subreaper's descendants cannot be anywhere else, so that is the proof. */
static void end_descendants(const struct gms_guardian_order *order, int signals, pid_t engine)
{
    uint64_t next_report_ns = gms_clock_ns() + 2 * GMS_NS_PER_S;
    int pause_ms = 1;

    while (!reap(order, engine)) {
        struct pollfd ready = {.fd = signals, .events = POLLIN};
        struct signalfd_siginfo ignored[8];
        pid_t first;
        size_t left = gms_descendants_kill(NULL, &first);

        if (left > 0 && gms_clock_ns() >= next_report_ns) {
            gms_log(GMS_LOG_WARNING,
                    "%zu processes of the cohort do not end after SIGKILL, pid %d is one; still trying", left, first);
            next_report_ns += 10 * GMS_NS_PER_S;
        }
        if (poll(&ready, 1, pause_ms) > 0) {
            (void)!read(signals, ignored, sizeof ignored);
            pause_ms = 1;
        } else if (pause_ms < 64) {
            pause_ms *= 2;
        }
    }
}

/* Signals sent to the guardian. From inside the namespace (`kill 1`) they are meant for the rank; what comes from
 * outside reaches it through gms-exec, once. */
static void pass_on(const struct gms_guardian_order *order, int engine, const struct signalfd_siginfo *info)
{
    if (order->guard == GMS_GUARD_NAMESPACE && info->ssi_signo != SIGCHLD && info->ssi_pid != 0) {
        gms_pidfd_signal(engine, (int)info->ssi_signo);
    }
}

/* Until the rank ends (true) or gms-exec is gone. */
static void watch(const struct gms_guardian_order *order, int signals, int engine, pid_t engine_pid)
{
    for (;;) {
        struct pollfd ready[] = {
            {.fd = signals, .events = POLLIN},
            {.fd = engine, .events = POLLIN},
            {.fd = order->parent, .events = POLLIN},
            {.fd = order->control, .events = POLLIN},
        };
        struct signalfd_siginfo info;

        if (poll(ready, 4, -1) < 0) {
            continue;
        }
        if (ready[0].revents != 0 && read(signals, &info, sizeof info) == (ssize_t)sizeof info) {
            if (info.ssi_signo == SIGCHLD) {
                /* Orphans of the cohort come to us; the rank itself is left for the end. */
                siginfo_t child;

                for (;;) {
                    child.si_pid = 0;
                    if (waitid(P_ALL, 0, &child, WEXITED | WNOHANG | WNOWAIT) != 0 || child.si_pid == 0 ||
                        child.si_pid == engine_pid) {
                        break;
                    }
                    waitpid(child.si_pid, NULL, WNOHANG);
                }
            } else {
                pass_on(order, engine, &info);
            }
        }
        if (ready[1].revents != 0 || ready[2].revents != 0 || ready[3].revents != 0) {
            return;
        }
    }
}

_Noreturn void gms_guardian_run(const struct gms_guardian_order *order)
{
    static const int numbers[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    sigset_t watched;
    int signals, engine = -1;
    pid_t guardian, wanted = 0, pid;

    prctl(PR_SET_NAME, "gms-guardian");
    setpgid(0, 0); /* a signal to gms-exec's group must not take away who cleans up after it */
    sigemptyset(&watched);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        sigaddset(&watched, numbers[i]);
    }
    sigprocmask(SIG_SETMASK, &watched, NULL);
    signals = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0) {
        fail(order, "signalfd");
    }
    switch (order->guard) {
    case GMS_GUARD_NAMESPACE:
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (gms_pidfd_ended(order->parent)) { /* V23; getppid() is 0 in here and tells nothing */
            _exit(1);
        }
        enter_namespace(order);
        wanted = receive_outer_pid(order);
        break;
    case GMS_GUARD_WALK:
        if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
            fail(order, "become a subreaper");
        }
        break;
    case GMS_GUARD_OUTER:
        break;
    }
    guardian = getpid();
    int cgroup = order->cgroup;
    pid = gms_clone(0, wanted, cgroup, &engine);
    if (pid < 0 && cgroup >= 0 && order->cgroup_optional) {
        cgroup = -1;
        pid = gms_clone(0, wanted, cgroup, &engine);
    }
    if (pid < 0) {
        fail(order, wanted != 0          ? "fork the rank with a pid of its own choice"
                    : order->cgroup >= 0 ? "fork the rank into its control group"
                                         : "fork the rank");
    }
    if (pid == 0) {
        become_engine(order, guardian);
    }
    report(order->control, GMS_REPORT_READY, order->cgroup >= 0 && cgroup < 0, "", engine);
    watch(order, signals, engine, pid);
    switch (order->guard) {
    case GMS_GUARD_NAMESPACE:
    case GMS_GUARD_OUTER:
        if (gms_pidfd_ended(engine)) {
            int status = 0;

            if (waitpid(pid, &status, 0) == pid) {
                report(order->control, GMS_REPORT_ENDED, status, "", -1);
            }
        }
        break; /* the kernel does the rest: here, or when gms-exec ends */
    case GMS_GUARD_WALK:
        end_descendants(order, signals, pid);
        if (order->cgroup >= 0) {
            (void)gms_cgroup_remove(order->cgroup_path);
        }
        break;
    }
    _exit(0);
}
