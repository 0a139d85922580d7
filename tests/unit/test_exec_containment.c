/* SPDX-License-Identifier: Apache-2.0
 * The cohort container: whatever dies, and however its descendants hid, nothing of the cohort lives on; and nobody
 * else is touched. */
#include "exec_fake.h"

#include <sys/prctl.h>

#include "base/cgroup.h"

static const char *kinds[] = {"subreaper", "pid-namespace", "cgroup"};
enum { EVERYWHERE = 2 };
static size_t kind_count = EVERYWHERE; /* one more where a control group can be made */

static const char *engine_program(void)
{
    return program_path("GMS_TEST_ENGINE", "");
}

/* An engine whose descendants hide in every way, all known by pidfd. */
static void grow_tree(struct bench *bench, const struct start *how)
{
    const char *words[] = {engine_program(), "tree", NULL};
    struct exec_say say;
    bool ready = false;

    for (size_t i = 0; i < bench->process_count; i++) {
        gms_fd_close(&bench->processes[i]);
    }
    bench->process_count = 0;
    gms_fd_close(&bench->talk);
    bench_start(bench, how, words);
    bench_run_engine(bench);
    while (!ready || bench->process_count < 8) {
        assert_true(bench_hear(bench, &say));
        ready = ready || say.word == EXEC_TREE_READY;
    }
    for (size_t i = 0; i < bench->process_count; i++) {
        assert_false(gms_pidfd_ended(bench->processes[i]));
    }
}

static void killing_gms_exec_ends_all(void **state)
{
    struct bench *bench = *state;

    bench_listen(bench);
    for (size_t k = 0; k < kind_count; k++) {
        const struct start how = {.containment = kinds[k]};

        grow_tree(bench, &how);
        assert_true(gms_pidfd_signal(bench->exec_pidfd, SIGKILL));
        assert_int_equal(bench_exit_code(bench), -1000 - SIGKILL);
        assert_true(wait_ended(bench->container));
        assert_true(gms_pidfd_ended(bench->engine));
        bench_all_ended(bench, true); /* the container's end is the proof, at that moment */
    }
}

static void killing_gms_exec_before_the_engine_runs(void **state)
{
    struct bench *bench = *state;
    const char *words[] = {engine_program(), "stay", NULL};

    bench_listen(bench);
    for (size_t k = 0; k < kind_count; k++) {
        const struct start how = {.containment = kinds[k]};

        bench_start(bench, &how, words);
        bench_accept(bench);
        bench_greet(bench, 1);
        bench_give_environment(bench, "", 0);
        (void)bench_take_container(bench);
        assert_true(gms_pidfd_signal(bench->exec_pidfd, SIGKILL));
        assert_int_equal(bench_exit_code(bench), -1000 - SIGKILL);
        assert_true(wait_ended(bench->engine));
        assert_true(wait_ended(bench->container));
        gms_fd_close(&bench->talk);
    }
}

static void killing_the_engine_ends_all(void **state)
{
    struct bench *bench = *state;

    bench_listen(bench);
    for (size_t k = 0; k < kind_count; k++) {
        const struct start how = {.containment = kinds[k]};

        grow_tree(bench, &how);
        assert_true(gms_pidfd_signal(bench->engine, SIGKILL));
        assert_true(wait_ended(bench->container));
        bench_all_ended(bench, true);
        assert_int_equal(bench_exit_code(bench), 137);
    }
}

/* What the coordinator's fence does, by kind, as message.h says; the end of the container must prove the end of all. */
static void the_fence_of_each_kind_is_a_proof(void **state)
{
    struct bench *bench = *state;

    bench_listen(bench);
    for (size_t k = 0; k < kind_count; k++) {
        const struct start how = {.containment = kinds[k]};

        for (int trial = 0; trial < 10; trial++) {
            uint64_t killed_ns;
            char took[32];

            grow_tree(bench, &how);
            killed_ns = gms_clock_ns();
            if (bench->kind == GMS_CONTAINER_CGROUP) {
                assert_true(gms_cgroup_kill(bench->cgroup));
            } else {
                assert_true(gms_pidfd_signal(
                    bench->kind == GMS_CONTAINER_PID_NAMESPACE ? bench->container : bench->engine, SIGKILL));
            }
            assert_true(wait_ended(bench->container));
            snprintf(took, sizeof took, "%.2f ms", (double)(gms_clock_ns() - killed_ns) / 1e6);
            bench_all_ended(bench, true);
            assert_int_equal(bench_exit_code(bench), 137);
            print_message("%s: 8 processes ended within %s\n", kinds[k], took);
        }
    }
}

/* Somebody kills the guardian: no proof then, but nothing lives on either. */
static void killing_the_guardian_ends_all(void **state)
{
    struct bench *bench = *state;

    bench_listen(bench);
    for (size_t k = 0; k < kind_count; k++) {
        const struct start how = {.containment = kinds[k]};

        grow_tree(bench, &how);
        assert_true(gms_pidfd_signal(bench->container, SIGKILL));
        bench_all_ended(bench, false);
        assert_int_equal(bench_exit_code(bench), 137);
        bench_all_ended(bench, true);
    }
}

/* What no subreaper survives: whoever would clean up is killed as well. The control group knows them all. */
static void a_control_group_holds_orphans_of_both(void **state)
{
    struct bench *bench = *state;
    const struct start how = {.containment = "cgroup"};

    if (kind_count == EVERYWHERE) {
        print_message("SKIP: no control group can be made here\n");
        skip();
    }
    bench_listen(bench);
    grow_tree(bench, &how);
    assert_true(gms_cgroup_populated(bench->cgroup));
    assert_true(gms_pidfd_signal(bench->exec_pidfd, SIGSTOP)); /* so that it does not clean up */
    assert_true(gms_pidfd_signal(bench->container, SIGKILL));
    assert_true(gms_pidfd_signal(bench->exec_pidfd, SIGKILL));
    assert_int_equal(bench_exit_code(bench), -1000 - SIGKILL);
    assert_true(wait_ended(bench->engine)); /* by its parent-death signal */
    assert_true(gms_cgroup_populated(bench->cgroup));
    assert_true(gms_cgroup_kill(bench->cgroup));
    bench_all_ended(bench, false);
    while (gms_cgroup_populated(bench->cgroup)) { /* until the last is taken down; bench_all_ended has waited */
    }
    assert_true(gms_cgroup_remove_fd(bench->cgroup));
}

/* Nothing of a control group is left when gms-exec has ended by itself, or was killed while its guardian lives. */
static void control_groups_are_removed(void **state)
{
    struct bench *bench = *state;
    const struct start how = {.containment = "cgroup"};

    if (kind_count == EVERYWHERE) {
        print_message("SKIP: no control group can be made here\n");
        skip();
    }
    bench_listen(bench);
    for (int i = 0; i < 2; i++) {
        grow_tree(bench, &how);
        assert_true(gms_pidfd_signal(i == 0 ? bench->engine : bench->exec_pidfd, SIGKILL));
        assert_int_equal(bench_exit_code(bench), i == 0 ? 137 : -1000 - SIGKILL);
        assert_true(wait_ended(bench->container));
        assert_false(gms_cgroup_remove_fd(bench->cgroup)); /* it is not there any more */
        assert_false(gms_cgroup_populated(bench->cgroup));
    }
}

/* One that everybody left behind goes when the next one is made; one with somebody in it does not. */
static void empty_groups_of_the_dead_are_swept(void **state)
{
    char path[GMS_CGROUP_PATH_BYTES], dead_path[GMS_CGROUP_PATH_BYTES];
    struct gms_error error;
    int mine = -1, again = -1;

    (void)state;
    if (kind_count == EVERYWHERE) {
        skip();
    }
    pid_t pid = fork();
    if (pid == 0) {
        _exit(gms_cgroup_make("gms-swept", &mine, path, &error) == GMS_OK ? 0 : 1);
    }
    int ended = -1;
    assert_int_equal(waitpid(pid, &ended, 0), pid);
    assert_int_equal(ended, 0);
    assert_ok(gms_cgroup_make("gms-swept", &mine, path, &error));
    snprintf(dead_path, sizeof dead_path, "%.*s%d", (int)(strrchr(path, '-') + 1 - path), path, (int)pid);
    assert_int_not_equal(access(dead_path, F_OK), 0);
    assert_int_equal(access(path, F_OK), 0);

    /* A number that was somebody else's: an empty group is made anew, one that somebody lives in is not shared. */
    assert_ok(gms_cgroup_make("gms-swept", &again, path, &error));
    int gate[2];
    char byte;
    assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
    char number[16];
    int members = openat(again, "cgroup.procs", O_WRONLY | O_CLOEXEC);
    pid = fork();
    if (pid == 0) {
        close(gate[1]);
        _exit(read(gate[0], &byte, 1) == 0 ? 0 : 1);
    }
    assert_true(pid > 0);
    snprintf(number, sizeof number, "%d", (int)pid);
    assert_int_equal(write(members, number, strlen(number)), strlen(number));
    gms_fd_close(&mine);
    assert_status(gms_cgroup_make("gms-swept", &mine, path, &error), GMS_E_UNSUPPORTED);
    assert_non_null(strstr(error.text, "somebody lives in it"));
    close(gate[0]);
    close(gate[1]);
    assert_int_equal(waitpid(pid, &ended, 0), pid);
    assert_true(gms_cgroup_remove(path));
    gms_fd_close(&members);
    gms_fd_close(&again);
}

/* Without --containment the deployment's word counts. */
static void the_deployment_chooses(void **state)
{
    struct bench *bench = *state;
    static const struct {
        uint32_t wish, kind;
    } cases[] = {{1, GMS_CONTAINER_PID_NAMESPACE}, {2, GMS_CONTAINER_SUBREAPER}, {3, GMS_CONTAINER_CGROUP}};
    const struct start how = {.containment = NULL};

    bench_listen(bench);
    for (size_t i = 0; i < kind_count; i++) {
        bench->deployed = cases[i].wish;
        grow_tree(bench, &how);
        assert_int_equal(bench->kind, cases[i].kind);
        assert_true(gms_pidfd_signal(bench->exec_pidfd, SIGTERM));
        assert_int_equal(bench_exit_code(bench), 143);
    }
    bench->deployed = 0;
    grow_tree(bench, &how);
    assert_int_equal(bench->kind, kind_count > EVERYWHERE ? GMS_CONTAINER_CGROUP : GMS_CONTAINER_SUBREAPER);
    assert_true(gms_pidfd_signal(bench->exec_pidfd, SIGTERM));
    assert_int_equal(bench_exit_code(bench), 143);
}

static void a_planned_end_takes_the_rest_along(void **state)
{
    struct bench *bench = *state;
    const char *words[] = {engine_program(), "daemon-exit", NULL};
    struct exec_say say;

    bench_listen(bench);
    for (size_t k = 0; k < kind_count; k++) {
        const struct start how = {.containment = kinds[k]};

        bench->process_count = 0;
        bench_start(bench, &how, words);
        bench_run_engine(bench);
        while (bench->process_count < 2) {
            assert_true(bench_hear(bench, &say));
        }
        assert_int_equal(send(bench->talk, "", 1, MSG_NOSIGNAL), 1);
        assert_int_equal(bench_exit_code(bench), 5);
        bench_all_ended(bench, true);
        gms_fd_close(&bench->talk);
        gms_fd_close(&bench->processes[0]);
        gms_fd_close(&bench->processes[1]);
        bench->process_count = 0;
    }
}

static void term_ends_all(void **state)
{
    struct bench *bench = *state;

    bench_listen(bench);
    for (size_t k = 0; k < kind_count; k++) {
        const struct start how = {.containment = kinds[k], .hostile = true};

        grow_tree(bench, &how); /* all but the engine and one child ignore TERM */
        assert_true(gms_pidfd_signal(bench->exec_pidfd, SIGTERM));
        assert_int_equal(bench_exit_code(bench), 143);
        bench_all_ended(bench, true);
    }
}

static void as_pid_1_killing_it_ends_all(void **state)
{
    struct bench *bench = *state;
    const struct start how = {.namespace_first = true};

    if (geteuid() != 0) {
        print_message("SKIP: making a PID namespace for gms-exec needs root\n");
        skip();
    }
    bench_listen(bench);
    grow_tree(bench, &how);
    assert_true(gms_pidfd_signal(bench->container, SIGKILL)); /* its own pidfd */
    assert_int_equal(bench_exit_code(bench), -1000 - SIGKILL);
    bench_all_ended(bench, true);

    grow_tree(bench, &how);
    assert_true(gms_pidfd_signal(bench->engine, SIGKILL));
    assert_int_equal(bench_exit_code(bench), 137);
    bench_all_ended(bench, true);
}

/* V22: a process that became gms-exec may have children already. They are nobody's cohort. */
static void children_from_before_are_spared(void **state)
{
    struct bench *bench = *state;
    const char *words[] = {engine_program(), "stay", NULL};
    const struct start how = {.containment = "subreaper", .child_before = true};
    struct exec_say say;

    bench_listen(bench);
    bench_start(bench, &how, words);
    bench_run_engine(bench);
    while (bench->process_count < 1) {
        assert_true(bench_hear(bench, &say)); /* the child from before tells itself */
    }
    do {
        if (say.word == EXEC_STARTED) {
            break;
        }
    } while (bench_hear(bench, &say));
    assert_true(gms_pidfd_signal(bench->container, SIGKILL)); /* gms-exec itself cleans up */
    assert_int_equal(bench_exit_code(bench), 137);
    assert_true(wait_ended(bench->engine));
    assert_false(gms_pidfd_ended(bench->processes[0]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(killing_gms_exec_ends_all, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(killing_gms_exec_before_the_engine_runs, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(killing_the_engine_ends_all, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(the_fence_of_each_kind_is_a_proof, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(killing_the_guardian_ends_all, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(a_control_group_holds_orphans_of_both, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(control_groups_are_removed, bench_setup, bench_teardown),
        cmocka_unit_test(empty_groups_of_the_dead_are_swept),
        cmocka_unit_test_setup_teardown(the_deployment_chooses, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(a_planned_end_takes_the_rest_along, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(term_ends_all, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(as_pid_1_killing_it_ends_all, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(children_from_before_are_spared, bench_setup, bench_teardown),
    };

    char path[GMS_CGROUP_PATH_BYTES];
    struct gms_error error;
    int cgroup = -1;

    if (gms_cgroup_make("gms-test", &cgroup, path, &error) == GMS_OK) {
        kind_count++;
        gms_cgroup_remove(path);
    } else {
        print_message("control groups are not tried: %s\n", error.text);
    }
    gms_fd_close(&cgroup);
    /* What a failed test leaves behind comes to us and is seen, not to init. */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    return cmocka_run_group_tests_name("gms-exec containment", tests, NULL, NULL);
}
