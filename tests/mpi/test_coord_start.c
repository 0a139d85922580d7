/* SPDX-License-Identifier: Apache-2.0
 *
 * Starts that must be refused, on every rank, with one clear sentence: no launcher, the wrong number of ranks, an MPMD
 * job, ranks on two hosts, no keeper, a damaged file.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "harness.h"

enum { RANKS = 2, EXIT_RESTART = 75, EXIT_CONFIG = 78 };

static struct cluster cluster;
static char coordinator[512];

static void prepare(bool keeper)
{
    cluster_prepare(&cluster, &(struct cluster_options){.ranks = RANKS}, keeper);
    program("gms-coord", coordinator);
}

/* Refused everywhere: the exit code, and the reason once. */
static void ends(char *const words[], int expected, const char *reason)
{
    int code = run_program(words, cluster.log);
    int said = cluster_log_count(&cluster, reason);
    if (code != expected || said != 1) {
        char command[160];
        snprintf(command, sizeof command, "cat %s >&2", cluster.log);
        char *show[] = {"sh", "-c", command, NULL};
        run_program(show, "/dev/stderr");
        fail_msg("exit %d, \"%s\" was said %d times", code, reason, said);
    }
    cluster_discard(&cluster);
}

static void refused(char *const words[], const char *reason)
{
    ends(words, EXIT_CONFIG, reason);
}

static void test_no_launcher(void **state)
{
    (void)state;
    prepare(true);
    char *words[] = {coordinator, "--config", cluster.config, NULL};
    refused(words, "this MPI job has 1 ranks");
}

static void test_too_many_ranks(void **state)
{
    (void)state;
    prepare(true);
    char *words[] = {"mpirun", "--oversubscribe", "-n", "3", coordinator, "--config", cluster.config, NULL};
    refused(words, "this MPI job has 3 ranks");
}

static void test_two_programs(void **state)
{
    (void)state;
    /* mpirun of Open MPI 5.0.7 as Debian 13 has it dies of SIGSEGV on any "a : b". */
    char *plain[] = {"mpirun", "--oversubscribe", "-n", "1", "true", ":", "-n", "1", "true", NULL};
    if (run_program(plain, "/dev/null") != 0) {
        fprintf(stderr, "skipped: this mpirun cannot start two programs as one job\n");
        skip();
    }
    prepare(true);
    char *words[] = {
        "mpirun",    "--oversubscribe", "-n",           "1", coordinator, "--config", cluster.config, ":", "-n", "1",
        coordinator, "--config",        cluster.config, NULL};
    refused(words, "MPMD");
}

static bool both_answer(void *context)
{
    (void)context;
    return cluster_number(&cluster, 0, "world") > 0 && cluster_number(&cluster, 1, "world") > 0;
}

static void test_two_hosts(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        fprintf(stderr, "skipped: another host name needs root\n");
        skip();
    }
    prepare(true);
    static const char rank_1_elsewhere[] =
        "if [ \"${OMPI_COMM_WORLD_RANK:-$PMIX_RANK}\" = 1 ]; then exec unshare --uts sh -c 'hostname elsewhere && exec "
        "\"$0\" \"$@\"' \"$0\" \"$@\"; fi; exec \"$0\" \"$@\"";
    char *words[] = {"mpirun",
                     "--oversubscribe",
                     "--mca",
                     "btl",
                     "tcp,self",
                     "--mca", /* the one interface that is there on every machine */
                     "btl_tcp_if_include",
                     "lo",
                     "-n",
                     "2",
                     "sh",
                     "-c",
                     (char *)(uintptr_t)rank_1_elsewhere,
                     coordinator,
                     "--config",
                     cluster.config,
                     NULL};
    /* Two host names, one network: the doorbell between them is TCP. */
    int pidfd = -1;
    pid_t launcher = start_program(words, cluster.log, &pidfd);
    cluster.launcher = pidfd;
    cluster.launcher_pid = launcher;
    assert_true(eventually(both_answer, NULL, HARNESS_DEADLINE_MS));
    struct gms_message down = {.type = GMS_MESSAGE_SHUTDOWN};
    assert_int_equal(cluster_order(&cluster, 1, &down), GMS_OK); /* agreed over the mesh */
    assert_int_equal(cluster_wait_end(&cluster, HARNESS_DEADLINE_MS), 0);
    cluster_discard(&cluster);
}

static void test_no_keeper(void **state)
{
    (void)state;
    prepare(false);
    char *words[] = {"mpirun", "--oversubscribe", "-n", "2", coordinator, "--config", cluster.config, NULL};
    ends(words, EXIT_RESTART, "gms-keeper"); /* one may come */
}

static void test_damaged_file(void **state)
{
    (void)state;
    prepare(true);
    assert_int_equal(truncate(cluster.config, 200), 0);
    char *words[] = {"mpirun", "--oversubscribe", "-n", "2", coordinator, "--config", cluster.config, NULL};
    refused(words, "nothing was started");
}

/* Rank 0's file counts; a rank whose own one says something else is refused by name, whatever it is that differs. */
static void test_another_file_on_a_rank(void **state)
{
    (void)state;
    prepare(true);
    static const char rank_1_other[] =
        "sed 's/^complete/parking : { preset = \"lean\"; };\\ncomplete/' \"$2\" >\"$2.other.$$\"; "
        "[ \"${OMPI_COMM_WORLD_RANK:-$PMIX_RANK}\" = 1 ] && set -- \"$1\" \"$2.other.$$\"; exec \"$0\" \"$@\"";
    char *words[] = {"mpirun",    "--oversubscribe", "-n",           "2", "sh", "-c", (char *)(uintptr_t)rank_1_other,
                     coordinator, "--config",        cluster.config, NULL};
    refused(words, "than rank 0: parking.preset differs");
}

static void test_check_needs_no_mpi(void **state)
{
    (void)state;
    prepare(false);
    char *words[] = {coordinator, "--config", cluster.config, "--check", NULL};
    assert_int_equal(run_program(words, cluster.log), 0);
    assert_int_equal(truncate(cluster.config, 200), 0);
    assert_int_equal(run_program(words, cluster.log), EXIT_CONFIG);
    assert_true(cluster_log_has(&cluster, "test.cfg:"));
    char *help[] = {coordinator, "--help-config", NULL};
    assert_int_equal(run_program(help, cluster.log), 0);
    char *usage[] = {coordinator, NULL};
    assert_int_equal(run_program(usage, cluster.log), 64);
    cluster_discard(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_launcher),
        cmocka_unit_test(test_too_many_ranks),
        cmocka_unit_test(test_two_programs),
        cmocka_unit_test(test_two_hosts),
        cmocka_unit_test(test_no_keeper),
        cmocka_unit_test(test_damaged_file),
        cmocka_unit_test(test_another_file_on_a_rank),
        cmocka_unit_test(test_check_needs_no_mpi),
    };
    return cmocka_run_group_tests_name("coord_start", tests, NULL, NULL);
}
