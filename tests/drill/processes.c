/* SPDX-License-Identifier: Apache-2.0 */
#include "processes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"

static volatile sig_atomic_t interrupted;

static void note_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

bool drill_interrupted(void)
{
    return interrupted != 0;
}

gms_status drill_processes_prepare(struct gms_error *ret_error)
{
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
        return gms_fail(ret_error, GMS_E_SYSTEM, "cannot become the reaper of what the drill starts: %s",
                        strerror(errno));
    struct sigaction action = {.sa_handler = note_interrupt}; /* no SA_RESTART: waits are to end */
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        sigaction(signals[i], &action, NULL);
    return GMS_OK;
}

/* ------------------------------------------------------------------------------------------ descendants ------ */

/* The parent of a process, 0 when it is gone. The name in parentheses may contain anything, ')' included. */
static pid_t parent_of(pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    gms_fd_close(&fd);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    const char *close = strrchr(text, ')');
    int parent = 0;
    char state;
    if (close == NULL || sscanf(close + 1, " %c %d", &state, &parent) != 2)
        return 0;
    return parent;
}

size_t drill_descendants(pid_t root, pid_t *ret_pids, size_t capacity)
{
    struct {
        pid_t pid, parent;
    } *all = calloc(DRILL_MAX_DESCENDANTS, sizeof *all);
    size_t all_count = 0, found = 0;
    DIR *proc = all != NULL ? opendir("/proc") : NULL;
    if (proc == NULL) {
        free(all);
        return 0;
    }
    struct dirent *entry;
    while ((entry = readdir(proc)) != NULL && all_count < DRILL_MAX_DESCENDANTS) {
        int pid = atoi(entry->d_name);
        pid_t parent = pid > 0 ? parent_of(pid) : 0;
        if (parent > 0) {
            all[all_count].pid = pid;
            all[all_count++].parent = parent;
        }
    }
    closedir(proc);
    /* Breadth first: the processes found so far are the queue. */
    for (size_t next = 0; next <= found && next <= capacity; next++) {
        pid_t parent = next == 0 ? root : ret_pids[next - 1];
        for (size_t i = 0; i < all_count; i++)
            if (all[i].parent == parent && all[i].pid != root && found < capacity)
                ret_pids[found++] = all[i].pid;
    }
    free(all);
    return found;
}

static size_t read_file(const char *path, char *ret_text, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, ret_text, bytes - 1) : 0;
    gms_fd_close(&fd);
    ret_text[length > 0 ? length : 0] = '\0';
    return length > 0 ? (size_t)length : 0;
}

/* A thread whose files cannot be read has ended. */
static bool thread_acts(pid_t pid, const char *thread)
{
    enum { PF_EXITING = 4, SIGKILL_BIT = 1 << (SIGKILL - 1) };
    char path[96], text[4096];
    unsigned flags = 0;
    unsigned long long pending = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%.20s/stat", (int)pid, thread);
    read_file(path, text, sizeof text);
    const char *end = strrchr(text, ')'); /* of the name; after it: state, five numbers, flags */
    if (end == NULL || sscanf(end, ") %*c %*d %*d %*d %*d %*d %u", &flags) != 1 || (flags & PF_EXITING) != 0)
        return false;
    snprintf(path, sizeof path, "/proc/%d/task/%.20s/status", (int)pid, thread);
    read_file(path, text, sizeof text);
    const char *line = strstr(text, "\nSigPnd:");
    return line == NULL || sscanf(line, "\nSigPnd: %llx", &pending) != 1 || (pending & SIGKILL_BIT) == 0;
}

bool drill_process_acts(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *threads = opendir(path);
    bool acts = false;
    for (const struct dirent *entry; threads != NULL && !acts && (entry = readdir(threads)) != NULL;)
        acts = entry->d_name[0] != '.' && thread_acts(pid, entry->d_name);
    if (threads != NULL)
        closedir(threads);
    return acts;
}

gms_status drill_descendant_open(pid_t root, pid_t pid, int *ret_pidfd, struct gms_error *ret_error)
{
    int pidfd = -1;
    gms_status status = gms_pidfd_open(pid, &pidfd, ret_error);
    if (status != GMS_OK)
        return status;
    /* The pidfd pins the process. If it is still alive after its ancestry was read, the ancestry was its own. */
    pid_t at = pid;
    for (int depth = 0; depth < 64 && at != root && at > 1; depth++)
        at = parent_of(at);
    if (at != root || gms_pidfd_ended(pidfd)) {
        gms_fd_close(&pidfd);
        return gms_fail(ret_error, at == root ? GMS_E_NOT_FOUND : GMS_E_REFUSED,
                        "pid %d %s; the drill signals only what it started", (int)pid,
                        at == root ? "has ended already" : "is not a descendant of the drill's own processes");
    }
    *ret_pidfd = pidfd;
    return GMS_OK;
}

/* Kills `root_pidfd` (-1: nothing), then the processes that descended from `root` before; so none of them sees its
 * children die and goes on. What they started meanwhile comes to us. Returns how many were signalled beside the root.
 */
static size_t kill_tree(pid_t root, int root_pidfd)
{
    pid_t *pids = calloc(DRILL_MAX_DESCENDANTS, sizeof *pids);
    int *pidfds = calloc(DRILL_MAX_DESCENDANTS, sizeof *pidfds);
    size_t opened = 0;
    size_t count = pids != NULL && pidfds != NULL ? drill_descendants(root, pids, DRILL_MAX_DESCENDANTS) : 0;
    for (size_t i = 0; i < count; i++)
        if (drill_descendant_open(root, pids[i], &pidfds[opened], NULL) == GMS_OK)
            opened++;
    if (root_pidfd >= 0)
        gms_pidfd_signal(root_pidfd, SIGKILL);
    for (size_t i = 0; i < opened; i++)
        gms_pidfd_signal(pidfds[i], SIGKILL);
    for (size_t i = 0; i < opened; i++) {
        struct pollfd wait = {.fd = pidfds[i], .events = POLLIN};
        poll(&wait, 1, 1000);
        gms_fd_close(&pidfds[i]);
    }
    free(pids);
    free(pidfds);
    return opened;
}

/* -------------------------------------------------------------------------------------------- our own -------- */

static void run_child(const char *output, const char *const *argv, int pass_fd, int death_signal, int report_fd,
                      pid_t parent)
{
    gms_signals_reset();
    setsid();
    prctl(PR_SET_PDEATHSIG, death_signal);
    int in = open("/dev/null", O_RDONLY);
    int out = open(output, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (getppid() == parent && in >= 0 && out >= 0 && dup2(in, 0) >= 0 && dup2(out, 1) >= 0 && dup2(out, 2) >= 0) {
        close(in);
        close(out);
        close_range(3, ~0U, CLOSE_RANGE_CLOEXEC); /* ours are already; those that we were born with are not */
        if (pass_fd >= 0)
            fcntl(pass_fd, F_SETFD, 0);
        execvp(argv[0], (char *const *)argv);
    }
    int error = errno;
    ssize_t ignored = write(report_fd, &error, sizeof error);
    (void)ignored;
    _exit(127);
}

gms_status drill_process_start(struct drill_processes *processes, const char *name, const char *output,
                               const char *const *argv, int pass_fd, int death_signal,
                               struct drill_process **ret_process, struct gms_error *ret_error)
{
    struct drill_process *former = NULL; /* one of the same name that has ended makes room */
    for (size_t i = 0; i < processes->count; i++)
        if (processes->items[i].ended && strcmp(processes->items[i].name, name) == 0)
            former = &processes->items[i];
    if (former == NULL && processes->count == DRILL_MAX_PROCESSES)
        return gms_fail(ret_error, GMS_E_NO_CAPACITY, "%s: the drill runs at most %d processes", name,
                        DRILL_MAX_PROCESSES);
    int report[2];
    if (pipe2(report, O_CLOEXEC) != 0)
        return gms_fail(ret_error, GMS_E_SYSTEM, "%s: pipe: %s", name, strerror(errno));
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid < 0) {
        int error = errno;
        gms_fd_close(&report[0]);
        gms_fd_close(&report[1]);
        return gms_fail(ret_error, GMS_E_SYSTEM, "%s: fork: %s", name, strerror(error));
    }
    if (pid == 0)
        run_child(output, argv, pass_fd, death_signal, report[1], parent);
    gms_fd_close(&report[1]);
    int error = 0;
    ssize_t got;
    do
        got = read(report[0], &error, sizeof error);
    while (got < 0 && errno == EINTR);
    gms_fd_close(&report[0]);
    int pidfd = -1;
    gms_status status = GMS_OK;
    if (got > 0)
        status = gms_fail(ret_error, GMS_E_NOT_FOUND, "%s: %s cannot be executed: %s", name, argv[0], strerror(error));
    else
        status = gms_pidfd_open(pid, &pidfd, ret_error); /* our child, not yet waited for: the number is its own */
    if (status != GMS_OK) {
        waitpid(pid, NULL, 0);
        return status;
    }
    struct drill_process *process = former != NULL ? former : &processes->items[processes->count++];
    memset(process, 0, sizeof *process);
    snprintf(process->name, sizeof process->name, "%s", name);
    snprintf(process->output, sizeof process->output, "%s", output);
    process->pid = pid;
    process->pidfd = pidfd;
    *ret_process = process;
    return GMS_OK;
}

static void notice_end(struct drill_process *process)
{
    if (process->ended || process->pidfd < 0 || !gms_pidfd_ended(process->pidfd))
        return;
    if (waitpid(process->pid, &process->wait_status, WNOHANG) == process->pid) {
        process->ended = true;
        gms_fd_close(&process->pidfd);
    }
}

/* Descendants whose parent died come to us; waiting for them is our duty, but never before our own children's turn. */
static void reap_orphans(const struct drill_processes *processes)
{
    siginfo_t info;
    for (;;) {
        memset(&info, 0, sizeof info);
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
            return;
        for (size_t i = 0; i < processes->count; i++)
            if (!processes->items[i].ended && processes->items[i].pid == info.si_pid)
                return;
        waitpid(info.si_pid, NULL, WNOHANG);
    }
}

const struct drill_process *drill_processes_check(struct drill_processes *processes)
{
    const struct drill_process *first = NULL;
    reap_orphans(processes);
    for (size_t i = 0; i < processes->count; i++) {
        struct drill_process *process = &processes->items[i];
        notice_end(process);
        if (process->ended && !process->asked_to_end && first == NULL)
            first = process;
    }
    return first;
}

bool drill_process_wait(struct drill_process *process, uint64_t deadline_ns)
{
    for (;;) {
        notice_end(process);
        if (process->ended)
            return true;
        int wait_ms = gms_clock_poll_ms(deadline_ns);
        struct pollfd wait = {.fd = process->pidfd, .events = POLLIN};
        if (poll(&wait, 1, wait_ms) == 0 && wait_ms == 0)
            return false;
    }
}

void drill_process_ask(struct drill_process *process)
{
    notice_end(process);
    process->asked_to_end = true;
    if (!process->ended && !process->signalled)
        gms_pidfd_signal(process->pidfd, process->passes_on ? SIGUSR1 : SIGTERM);
    process->signalled = true;
}

void drill_process_end(struct drill_process *process, int grace_ms)
{
    notice_end(process);
    process->asked_to_end = true;
    if (process->ended)
        return;
    if (grace_ms > 0) {
        drill_process_ask(process);
        if (drill_process_wait(process, gms_clock_ns() + (uint64_t)grace_ms * GMS_NS_PER_MS))
            return;
    }
    kill_tree(process->pid, process->pidfd);
    drill_process_wait(process, gms_clock_ns() + 5 * GMS_NS_PER_S);
}

size_t drill_processes_end(struct drill_processes *processes, int grace_ms)
{
    size_t killed = 0;
    for (size_t i = processes->count; i-- > 0;)
        drill_process_end(&processes->items[i], grace_ms);
    for (int round = 0; round < 16; round++) { /* each round may set free what the one before had started */
        size_t now = kill_tree(getpid(), -1);
        reap_orphans(processes);
        killed += now;
        if (now == 0)
            break;
    }
    return killed;
}

const char *drill_process_outcome(const struct drill_process *process, char *ret_text, size_t bytes)
{
    if (!process->ended)
        snprintf(ret_text, bytes, "running");
    else if (WIFSIGNALED(process->wait_status))
        snprintf(ret_text, bytes, "signal %d", WTERMSIG(process->wait_status));
    else
        snprintf(ret_text, bytes, "exit %d", WEXITSTATUS(process->wait_status));
    return ret_text;
}
