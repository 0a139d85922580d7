/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/launcher.h"
#include "base/log.h"
#include "daemon_state.h"

enum { HOOK_SECONDS = 10, HOOK_WORDS = 64 };

extern char **environ;

static void free_event(struct event **event)
{
    if (*event != NULL)
        event_free(*event);
    *event = NULL;
}

enum { DEATH_MS = 100 };

/* It has ended, or is given up: reaped if it can be, never waited for without a bound. */
static void let_go(struct gms_daemon *daemon)
{
    siginfo_t result = {0};
    if (daemon->hook_fd < 0)
        return;
    if (waitid(P_PIDFD, (id_t)daemon->hook_fd, &result, WEXITED | WNOHANG) == 0 && result.si_pid != 0 &&
        (result.si_code != CLD_EXITED || result.si_status != 0))
        gms_log(GMS_LOG_WARNING, "hooks.on_serving failed (%s %d)", result.si_code == CLD_EXITED ? "exit" : "signal",
                result.si_status);
    free_event(&daemon->hook_ended);
    free_event(&daemon->hook_deadline);
    gms_fd_close(&daemon->hook_fd);
}

static void kill_hook(struct gms_daemon *daemon, const char *why)
{
    struct pollfd ended = {.fd = daemon->hook_fd, .events = POLLIN};
    gms_log(GMS_LOG_WARNING, "hooks.on_serving is killed: %s", why);
    gms_pidfd_signal(daemon->hook_fd, SIGKILL);
    poll(&ended, 1, DEATH_MS);
    let_go(daemon);
}

static void on_hook_ended(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    let_go(context);
}

static void on_hook_deadline(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    kill_hook(context, "it ran for more than 10 s");
}

/* This process's variables without the launcher's, and two more. Pointers into environ; the array is the caller's. */
static char **hook_environment(char *epoch, char *endpoint)
{
    static const char *const ours[] = {"GMS_EPOCH=", "GMS_ENDPOINT="};
    size_t count = 0;
    while (environ[count] != NULL)
        count++;
    char **list = calloc(count + 3, sizeof *list);
    if (list == NULL)
        return NULL;
    size_t filled = 0;
    for (size_t i = 0; i < count; i++) {
        bool kept = !gms_is_launcher_name(environ[i], strcspn(environ[i], "="));
        for (size_t j = 0; j < sizeof ours / sizeof ours[0]; j++)
            kept = kept && strncmp(environ[i], ours[j], strlen(ours[j])) != 0;
        if (kept)
            list[filled++] = environ[i];
    }
    list[filled++] = epoch;
    list[filled] = endpoint;
    return list;
}

void gms_daemon_run_hook(struct gms_daemon *daemon, uint64_t epoch)
{
    const struct gms_config *config = daemon->options.config;
    if (config->on_serving_bytes == 0)
        return;
    if (daemon->hook_fd >= 0)
        kill_hook(daemon, "a later epoch begins");
    char *words[HOOK_WORDS + 1] = {NULL};
    size_t count = 0;
    for (uint32_t at = 0; at < config->on_serving_bytes && count < HOOK_WORDS;) {
        words[count++] = (char *)(uintptr_t)&config->on_serving[at]; /* exec does not write them */
        at += (uint32_t)strlen(&config->on_serving[at]) + 1;
    }
    char epoch_text[48], endpoint_text[320];
    snprintf(epoch_text, sizeof epoch_text, "GMS_EPOCH=%llu", (unsigned long long)epoch);
    snprintf(endpoint_text, sizeof endpoint_text, "GMS_ENDPOINT=%s", daemon->endpoint);
    char **environment = hook_environment(epoch_text, endpoint_text);

    /* posix_spawn: no code of ours, and none of MPI's at-fork handlers, runs in the child. */
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    sigaddset(&defaults, SIGXFSZ);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    pid_t pid = -1;
    int code = environment != NULL ? posix_spawn(&pid, words[0], &files, &attributes, words, environment) : ENOMEM;
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    free(environment);
    struct gms_error error;
    if (code != 0) {
        gms_log(GMS_LOG_WARNING, "hooks.on_serving \"%s\" was not started: %s", words[0], strerror(code));
        return;
    }
    if (gms_pidfd_open(pid, &daemon->hook_fd, &error) != GMS_OK) { /* our own child, not reaped: the number is its */
        gms_log(GMS_LOG_WARNING, "hooks.on_serving is not watched: %s", error.text);
        return;
    }
    const struct timeval limit = {.tv_sec = HOOK_SECONDS};
    daemon->hook_ended = event_new(daemon->base, daemon->hook_fd, EV_READ, on_hook_ended, daemon);
    daemon->hook_deadline = evtimer_new(daemon->base, on_hook_deadline, daemon);
    if (daemon->hook_ended == NULL || daemon->hook_deadline == NULL || event_add(daemon->hook_ended, NULL) != 0 ||
        event_add(daemon->hook_deadline, &limit) != 0)
        gms_log(GMS_LOG_WARNING, "hooks.on_serving is not watched: the event loop refused it");
}

void gms_daemon_end_hook(struct gms_daemon *daemon)
{
    let_go(daemon); /* one that runs may go on without us: the group stopped as planned */
}
