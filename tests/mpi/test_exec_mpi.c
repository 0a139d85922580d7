/* SPDX-License-Identifier: Apache-2.0
 * gms-exec under a real launcher with a real coordinator: an engine's own MPI works in every container. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "harness.h"

enum { LAUNCH_MS = 60000 };

static const char *const kinds[] = {"auto", "subreaper", "pid-namespace"};

static const char *variable(const char *name)
{
    const char *value = getenv(name);

    if (value == NULL) {
        fail_msg("%s is not set: run this through ctest", name);
    }
    return value;
}

static const char *gms_exec(void)
{
    static char path[512];

    snprintf(path, sizeof path, "%s/gms-exec", variable("GMS_BIN"));
    return path;
}

/* Runs `words` until its end, output to `log`. Its exit code, -1 when it had to be killed. */
static int launch(const char *const *words, const char *log)
{
    int pidfd, status;
    bool ended;
    pid_t pid;

    fflush(stdout);
    fflush(stderr);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);

        dup2(fd, 1);
        dup2(fd, 2);
        execvp(words[0], (char **)(uintptr_t)words);
        _exit(127);
    }
    assert_int_equal(gms_pidfd_open(pid, &pidfd, NULL), GMS_OK);
    struct pollfd ready = {.fd = pidfd, .events = POLLIN};
    ended = poll(&ready, 1, LAUNCH_MS) == 1;
    if (!ended) {
        gms_pidfd_signal(pidfd, SIGKILL);
    }
    gms_fd_close(&pidfd);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return ended && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void print_file(const char *path)
{
    char line[512];
    FILE *file = fopen(path, "r");

    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        print_error("%s", line);
    }
    if (file != NULL) {
        fclose(file);
    }
}

static bool file_has(const char *path, const char *text)
{
    char line[512];
    FILE *file = fopen(path, "r");
    bool found = false;

    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        found = strstr(line, text) != NULL;
    }
    if (file != NULL) {
        fclose(file);
    }
    return found;
}

static void an_engines_own_mpi_works_in_every_container(void **state)
{
    const struct cluster_options options = {.ranks = 4};
    struct cluster cluster;
    char log[128];

    (void)state;
    cluster_start(&cluster, &options);
    snprintf(log, sizeof log, "%s/engine.log", cluster.directory);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        for (int ranks = 2; ranks <= 4; ranks += 2) {
            char count[4];
            const char *words[] = {"mpirun",
                                   "--oversubscribe",
                                   "-np",
                                   count,
                                   gms_exec(),
                                   "--run-dir",
                                   cluster.run_dir,
                                   "--engine",
                                   "0",
                                   "--containment",
                                   kinds[k],
                                   "--",
                                   variable("GMS_TEST_COLLECTIVES"),
                                   NULL};

            snprintf(count, sizeof count, "%d", ranks);
            int code = launch(words, log);
            if (code != 0 || !file_has(log, "wrong words: 0")) {
                print_error("%s, %d ranks: exit code %d\n", kinds[k], ranks, code);
                print_file(log);
                fail();
            }
            assert_false(file_has(log, "errno")); /* a transport that falls back at each message says so */
        }
    }
    cluster_stop(&cluster);
}

/* The exit code of one rank is the launcher's, and nobody is left waiting. */
static void a_failed_rank_is_seen_by_its_launcher(void **state)
{
    const struct cluster_options options = {.ranks = 2};
    struct cluster cluster;
    char log[128];

    (void)state;
    cluster_start(&cluster, &options);
    snprintf(log, sizeof log, "%s/engine.log", cluster.directory);
    const char *words[] = {"mpirun",
                           "--oversubscribe",
                           "-np",
                           "2",
                           gms_exec(),
                           "--run-dir",
                           cluster.run_dir,
                           "--engine",
                           "0",
                           "--",
                           "sh",
                           "-c",
                           "test $GMS_RANK = 1 && exit 9; exec sleep 1000",
                           NULL};
    assert_int_equal(launch(words, log), 9);
    cluster_stop(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_engines_own_mpi_works_in_every_container),
        cmocka_unit_test(a_failed_rank_is_seen_by_its_launcher),
    };

    return cmocka_run_group_tests_name("gms-exec under mpirun", tests, NULL, NULL);
}
