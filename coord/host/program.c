/* SPDX-License-Identifier: Apache-2.0 */
#include "host/program.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/launcher.h"

extern char **environ;

static bool is_given(const struct gms_program *what, const char *variable)
{
    size_t name = strcspn(variable, "=") + 1;
    for (size_t i = 0; i < GMS_PROGRAM_VARIABLES && what->variables[i] != NULL; i++)
        if (strncmp(what->variables[i], variable, name) == 0)
            return true;
    return false;
}

/* Pointers into environ and `what`; the array is the caller's. */
static char **list_variables(const struct gms_program *what)
{
    size_t count = 0, filled = 0;
    while (environ[count] != NULL)
        count++;
    char **list = calloc(count + GMS_PROGRAM_VARIABLES + 1, sizeof *list);
    if (list == NULL)
        return NULL;
    for (size_t i = 0; i < count; i++)
        if (!gms_is_launcher_name(environ[i], strcspn(environ[i], "=")) && !is_given(what, environ[i]))
            list[filled++] = environ[i];
    for (size_t i = 0; i < GMS_PROGRAM_VARIABLES && what->variables[i] != NULL; i++)
        list[filled++] = (char *)(uintptr_t)what->variables[i]; /* exec does not write them */
    return list;
}

gms_status gms_program_start(const struct gms_program *what, int *ret_pidfd, struct gms_error *ret_error)
{
    char *words[GMS_PROGRAM_WORDS + 2] = {NULL};
    size_t count = 0;
    for (uint32_t at = 0; at < what->words_bytes && count < GMS_PROGRAM_WORDS;) {
        words[count++] = (char *)(uintptr_t)&what->words[at];
        at += (uint32_t)strlen(&what->words[at]) + 1;
    }
    words[count] = (char *)(uintptr_t)what->last_word;
    char **variables = list_variables(what);
    if (variables == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory to start %s", words[0]);

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
    int code = posix_spawn(&pid, words[0], &files, &attributes, words, variables);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    free(variables);
    if (code != 0)
        return gms_fail(ret_error, GMS_E_SYSTEM, "%s was not started: %s", words[0], strerror(code));
    return gms_pidfd_open(pid, ret_pidfd, ret_error); /* our own child, not reaped: the number is its */
}
