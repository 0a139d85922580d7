/* SPDX-License-Identifier: Apache-2.0
 * gms-exec from outside: what it asks the coordinator, what the engine gets, what it exits with. */
#include "exec_fake.h"

#include <sys/un.h>

static const char *engine_program(void)
{
    return program_path("GMS_TEST_ENGINE", "");
}

/* ---------------------------------------------------------------------------------------------- exit codes ---- */

static void exit_codes_pass_through(void **state)
{
    static const struct {
        const char *what, *argument;
        int code;
    } cases[] = {{"exit", "0", 0},    {"exit", "1", 1},   {"exit", "64", 64}, {"exit", "255", 255},
                 {"kill", "15", 143}, {"kill", "9", 137}, {"kill", "10", 138}};
    struct bench *bench = *state;

    bench_listen(bench);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *words[] = {engine_program(), cases[i].what, cases[i].argument, NULL};
        const struct start how = {.containment = i % 2 == 0 ? "subreaper" : "pid-namespace"};

        bench_start(bench, &how, words);
        bench_run_engine(bench);
        assert_int_equal(bench_exit_code(bench), cases[i].code);
        gms_fd_close(&bench->talk);
    }
}

static void commands_that_cannot_run(void **state)
{
    struct bench *bench = *state;
    const char *missing[] = {"/nonexistent/engine", NULL}, *missing_in_path[] = {"gms-no-such-engine", NULL};
    const char *directory[] = {bench->dir, NULL};
    const struct start how = {0};

    bench_listen(bench);
    bench_start(bench, &how, missing);
    bench_run_engine(bench);
    assert_int_equal(bench_exit_code(bench), 127);
    assert_true(bench_stderr_has(bench, "/nonexistent/engine"));
    gms_fd_close(&bench->talk);

    bench_start(bench, &how, missing_in_path);
    bench_run_engine(bench);
    assert_int_equal(bench_exit_code(bench), 127);
    gms_fd_close(&bench->talk);

    bench_start(bench, &how, directory);
    bench_run_engine(bench);
    assert_int_equal(bench_exit_code(bench), 126);
}

/* Runs gms-exec with exactly these words and an environment without a launcher's. */
static int run_bare(const char *const *words, const char *stderr_path)
{
    const char *argv[16];
    int count = 0;
    pid_t pid;

    argv[count++] = program_path("GMS_BIN", "gms-exec");
    for (; *words != NULL; words++) {
        argv[count++] = *words;
    }
    argv[count] = NULL;
    fflush(stdout);
    fflush(stderr);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int log = open(stderr_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

        child_check(dup2(log, 1) == 1 && dup2(log, 2) == 2);
        clearenv();
        execv(argv[0], (char **)(uintptr_t)argv);
        _exit(99);
    }
    int status = unit_wait(pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void usage_errors_name_what_is_missing(void **state)
{
    struct bench *bench = *state;
    static const struct {
        const char *words[10];
        const char *says;
    } cases[] = {
        {{"--run-dir=/r", "--engine=0", "--rank=0", "--launch=x", NULL}, "no command"},
        {{"--engine=0", "--rank=0", "--launch=x", "--", "true", NULL}, "--run-dir"},
        {{"--run-dir=r", "--engine=0", "--rank=0", "--launch=x", "--", "true", NULL}, "absolute"},
        {{"--run-dir=/r", "--rank=0", "--launch=x", "--", "true", NULL}, "--engine"},
        {{"--run-dir=/r", "--engine=8", "--rank=0", "--launch=x", "--", "true", NULL}, "0 to 7"},
        {{"--run-dir=/r", "--engine=-1", "--rank=0", "--launch=x", "--", "true", NULL}, "0 to 7"},
        {{"--run-dir=/r", "--engine=0", "--launch=x", "--", "true", NULL}, "OMPI_COMM_WORLD_RANK"},
        {{"--run-dir=/r", "--engine=0", "--rank=1024", "--launch=x", "--", "true", NULL}, "0 to 1023"},
        {{"--run-dir=/r", "--engine=0", "--rank=0x1", "--launch=x", "--", "true", NULL}, "0 to 1023"},
        {{"--run-dir=/r", "--engine=0", "--rank=0", "--", "true", NULL}, "PMIX_NAMESPACE"},
        {{"--run-dir=/r", "--engine=0", "--rank=0", "--launch=x", "--wait=30", "--", "true", NULL}, "--wait"},
        {{"--containment=jail", NULL}, "subreaper, cgroup"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(run_bare(cases[i].words, bench->stderr_path), 64);
        assert_true(bench_stderr_has(bench, cases[i].says));
    }
    const char *help[] = {"--help", NULL}, *version[] = {"--version", NULL};
    assert_int_equal(run_bare(help, bench->stderr_path), 0);
    assert_true(bench_stderr_has(bench, "Exit codes"));
    assert_int_equal(run_bare(version, bench->stderr_path), 0);
    assert_true(bench_stderr_has(bench, "gms-exec "));
}

/* --------------------------------------------------------------------------------------- the coordinator ------ */

static void without_a_coordinator_it_says_so(void **state)
{
    struct bench *bench = *state;
    const char *words[] = {engine_program(), "exit", "0", NULL};
    const struct start how = {.wait = "1200ms"};
    uint64_t started_ns = gms_clock_ns();

    bench_start(bench, &how, words);
    assert_int_equal(bench_exit_code(bench), 69);
    assert_true(gms_clock_ns() - started_ns >= 1200 * GMS_NS_PER_MS);
    assert_true(bench_stderr_has(bench, "waiting for coordinator rank 0"));
    assert_true(bench_stderr_has(bench, bench->socket_path));
    assert_true(bench_stderr_has(bench, "gms-coord"));
}

static void a_silent_coordinator_is_none(void **state)
{
    struct bench *bench = *state;
    const char *words[] = {engine_program(), "exit", "0", NULL};
    const struct start how = {.wait = "500ms"};

    bench_listen(bench);
    bench_start(bench, &how, words);
    bench_accept(bench);
    assert_int_equal(bench_exit_code(bench), 69);
}

static void a_coordinator_that_comes_late_is_found(void **state)
{
    struct bench *bench = *state;
    const char *words[] = {engine_program(), "exit", "3", NULL};
    const struct start how = {0};
    struct gms_message message;

    bench_start(bench, &how, words);
    bench_listen(bench);
    bench_accept(bench);
    bench_expect(bench, GMS_MESSAGE_HELLO, &message); /* "not yet": the world is still forming */
    gms_message_close_fds(&message);
    bench_reply(bench, message.request_id, GMS_E_AGAIN, "forming");
    bench_run_engine(bench);
    assert_int_equal(bench_exit_code(bench), 3);
}

static void a_refusal_ends_it_with_the_coordinators_words(void **state)
{
    static const gms_status refusals[] = {GMS_E_REFUSED, GMS_E_VERSION, GMS_E_IN_DOUBT, GMS_E_CONDEMNED};
    struct bench *bench = *state;
    const char *words[] = {engine_program(), "exit", "0", NULL};
    const struct start how = {0};
    struct gms_message message;

    bench_listen(bench);
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        bench_start(bench, &how, words);
        bench_accept(bench);
        bench_expect(bench, GMS_MESSAGE_HELLO, &message);
        gms_message_close_fds(&message);
        bench_reply(bench, message.request_id, refusals[i], "engine 0 is not of this house");
        assert_int_equal(bench_exit_code(bench), 69);
        assert_true(bench_stderr_has(bench, "engine 0 is not of this house"));
        gms_fd_close(&bench->talk);
    }
    /* Refused at the last moment: the engine never ran. */
    bench_start(bench, &how, words);
    bench_accept(bench);
    bench_greet(bench, 1);
    bench_give_environment(bench, "", 0);
    bench_reply(bench, bench_take_container(bench), GMS_E_REFUSED, "no room");
    assert_int_equal(bench_exit_code(bench), 69);
    assert_true(bench_stderr_has(bench, "no room"));
    assert_true(wait_ended(bench->engine));
    assert_true(wait_ended(bench->container));
}

static void another_ranks_coordinator_is_refused(void **state)
{
    struct bench *bench = *state;
    const char *words[] = {engine_program(), "exit", "0", NULL};
    const struct start how = {0};
    struct gms_message message, welcome = {.type = GMS_MESSAGE_WELCOME};

    bench_listen(bench);
    bench_start(bench, &how, words);
    bench_accept(bench);
    bench_expect(bench, GMS_MESSAGE_HELLO, &message);
    gms_message_close_fds(&message);
    welcome.request_id = message.request_id;
    welcome.welcome.world_size = 2;
    welcome.welcome.rank = 1;
    bench_send(bench, &welcome);
    assert_int_equal(bench_exit_code(bench), 69);
    assert_true(bench_stderr_has(bench, "rank 1, wanted rank 0"));
}

static void the_engine_waits_for_the_answer_to_container(void **state)
{
    struct bench *bench = *state;
    const char *words[] = {engine_program(), "stay", NULL};
    const char *kinds[] = {"subreaper", "pid-namespace"};
    struct exec_say say;

    bench_listen(bench);
    for (size_t i = 0; i < 2; i++) {
        const struct start how = {.containment = kinds[i]};
        char link[64], target[512] = "";

        bench_start(bench, &how, words);
        bench_accept(bench);
        bench_greet(bench, 1);
        bench_give_environment(bench, "", 0);
        uint32_t request_id = bench_take_container(bench);
        assert_int_equal(bench->kind, i == 0 ? GMS_CONTAINER_SUBREAPER : GMS_CONTAINER_PID_NAMESPACE);
        assert_false(gms_pidfd_ended(bench->engine));
        assert_false(gms_pidfd_ended(bench->container));
        /* Not executed yet: it is still gms-exec's image. */
        snprintf(link, sizeof link, "/proc/%d/exe", gms_pidfd_pid(bench->engine));
        assert_true(readlink(link, target, sizeof target - 1) > 0);
        assert_non_null(strstr(target, "gms-exec"));
        bench_reply(bench, request_id, GMS_OK, "");
        bench_hear_word(bench, EXEC_STARTED, &say);
        assert_true(gms_pidfd_signal(bench->engine, SIGKILL));
        assert_int_equal(bench_exit_code(bench), 137);
        gms_fd_close(&bench->talk);
    }
}

static void a_restarted_coordinator_gets_hello_and_container_again(void **state)
{
    struct bench *bench = *state;
    const char *words[] = {engine_program(), "signals", NULL};
    const struct start how = {0};
    struct exec_say say;

    bench_listen(bench);
    bench_start(bench, &how, words);
    bench_run_engine(bench);
    bench_hear_word(bench, EXEC_STARTED, &say);
    pid_t engine = gms_pidfd_pid(bench->engine), container = gms_pidfd_pid(bench->container);
    for (uint64_t world = 2; world < 5; world++) {
        gms_fd_close(&bench->connection);
        gms_fd_close(&bench->listener); /* the old one is gone for a while, its socket is still there */
        bench_listen(bench);
        bench_accept(bench);
        bench_greet(bench, world);
        uint32_t request_id = bench_take_container(bench);
        assert_int_equal(gms_pidfd_pid(bench->engine), engine);
        assert_int_equal(gms_pidfd_pid(bench->container), container);
        if (world == 3) {
            bench_reply(bench, request_id, GMS_E_BUSY, "not now"); /* and again */
            bench_accept(bench);
            bench_greet(bench, world);
            request_id = bench_take_container(bench);
        }
        bench_reply(bench, request_id, GMS_OK, "");
    }
    /* Lost for good: the engine does not care, and its end is still its own. */
    gms_fd_close(&bench->connection);
    gms_fd_close(&bench->listener);
    assert_false(gms_pidfd_ended(bench->engine));
    assert_true(gms_pidfd_signal(bench->exec_pidfd, SIGTERM));
    bench_hear_word(bench, EXEC_SIGNAL, &say);
    assert_int_equal(say.value, SIGTERM);
    assert_int_equal(bench_exit_code(bench), 7);
}

/* ------------------------------------------------------------------------------------------- environment ------ */

struct variables {
    char *bytes;
    size_t length;
};

static void add_variable(struct variables *variables, const char *text)
{
    size_t length = strlen(text) + 1;

    variables->bytes = realloc(variables->bytes, variables->length + length);
    assert_non_null(variables->bytes);
    memcpy(variables->bytes + variables->length, text, length);
    variables->length += length;
}

/* How often "NAME=VALUE" stands in the NUL-separated block. */
static size_t count_variable(const char *block, size_t length, const char *wanted)
{
    size_t found = 0;

    for (size_t at = 0; at < length; at += strlen(block + at) + 1) {
        found += strcmp(block + at, wanted) == 0;
    }
    return found;
}

static size_t count_name(const char *block, size_t length, const char *name)
{
    size_t found = 0;

    for (size_t at = 0; at < length; at += strlen(block + at) + 1) {
        found += strncmp(block + at, name, strlen(name)) == 0 && block[at + strlen(name)] == '=';
    }
    return found;
}

static void the_environment_arrives_byte_for_byte(void **state)
{
    static char own[][64] = {"OMPI_COMM_WORLD_RANK=5", "SLURM_PROCID=6", "PMIX_RANK=7", "GMS_RANK=99",
                             "KEPT=of ours",           "OVERRIDDEN=old"};
    char *environment[] = {own[0], own[1], own[2], own[3], own[4], own[5], NULL};
    static const char *const agreed[] = {"A_COMMA=a,b,,c",
                                         "A_SPACE= two  words ",
                                         "A_QUOTE=\"'`",
                                         "A_DOLLAR=$HOME ${X} $(id)",
                                         "A_NEWLINE=x\ny\n",
                                         "AN_EQUAL==a=b=",
                                         "A_UTF8=\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80",
                                         "RAW=\x01\xff\xfe\t",
                                         "EMPTY=",
                                         "A_BACKSLASH=\\n\\\\",
                                         "OVERRIDDEN=new",
                                         "GMS_ANYTHING=1",
                                         "OMPI_MCA_btl=tcp,self"};
    struct bench *bench = *state;
    struct variables variables = {0};
    char path[160], *large = malloc(32 * 1024 + 16), wanted[256];
    const char *words[] = {engine_program(), "environment", path, NULL};
    const struct start how = {.environment = environment};

    snprintf(path, sizeof path, "%s/environment", bench->dir);
    assert_non_null(large);
    strcpy(large, "LARGE=");
    for (int i = 0; i < 32 * 1024; i++) {
        large[6 + i] = (char)(1 + i % 255);
    }
    large[6 + 32 * 1024] = '\0';
    for (size_t i = 0; i < sizeof agreed / sizeof agreed[0]; i++) {
        add_variable(&variables, agreed[i]);
    }
    add_variable(&variables, large);
    add_variable(&variables, "OMPI_COMM_WORLD_RANK=0"); /* the coordinators' own: must not come */
    add_variable(&variables, "PMIX_NAMESPACE=theirs");
    add_variable(&variables, "SLURM_JOB_ID=17");

    bench_listen(bench);
    bench_start(bench, &how, words);
    bench_accept(bench);
    bench_greet(bench, 1);
    bench_give_environment(bench, variables.bytes, variables.length);
    bench_reply(bench, bench_take_container(bench), GMS_OK, "");
    assert_int_equal(bench_exit_code(bench), 0);

    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *block = calloc(1, 1 << 20);
    size_t length = fread(block, 1, (1 << 20) - 1, file);
    fclose(file);
    for (size_t i = 0; i < sizeof agreed / sizeof agreed[0]; i++) {
        assert_int_equal(count_variable(block, length, agreed[i]), 1);
    }
    assert_int_equal(count_variable(block, length, large), 1);
    for (size_t i = 0; i < 3; i++) { /* the launcher's own */
        assert_int_equal(count_variable(block, length, own[i]), 1);
    }
    assert_int_equal(count_variable(block, length, "KEPT=of ours"), 1);
    assert_int_equal(count_name(block, length, "OVERRIDDEN"), 1);
    assert_int_equal(count_name(block, length, "OMPI_COMM_WORLD_RANK"), 1);
    assert_int_equal(count_name(block, length, "PMIX_NAMESPACE"), 0);
    assert_int_equal(count_name(block, length, "SLURM_JOB_ID"), 0);
    snprintf(wanted, sizeof wanted, "GMS_RUN_DIR=%s", bench->dir);
    assert_int_equal(count_variable(block, length, wanted), 1);
    assert_int_equal(count_variable(block, length, "GMS_RANK=0"), 1);
    assert_int_equal(count_name(block, length, "GMS_RANK"), 1);
    assert_int_equal(count_variable(block, length, "GMS_WORLD_SIZE=2"), 1);
    assert_int_equal(count_variable(block, length, "GMS_LAUNCH_ID=test launch"), 1);
    assert_int_equal(count_variable(block, length, "ENGINE_ID=0"), 1);
    assert_true(bench_stderr_has(bench, "3 launcher variables"));
    free(block);
    free(large);
    free(variables.bytes);
}

static void a_malformed_environment_starts_nothing(void **state)
{
    static const struct {
        const char *bytes;
        size_t length;
    } cases[] = {{"A=1\0B", 5}, {"A=1\0B\0", 6}, {"=x\0", 3}, {"A=1\0\0", 5}, {"A=1", 3}};
    struct bench *bench = *state;
    const char *words[] = {engine_program(), "exit", "0", NULL};
    const struct start how = {0};

    bench_listen(bench);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bench_start(bench, &how, words);
        bench_accept(bench);
        bench_greet(bench, 1);
        bench_give_environment(bench, cases[i].bytes, cases[i].length);
        assert_int_equal(bench_exit_code(bench), 69);
        assert_true(bench_stderr_has(bench, "agreed environment"));
        gms_fd_close(&bench->talk);
    }
}

/* ------------------------------------------------------------------------------------ signals and state ------- */

static void signals_are_passed_on_once(void **state)
{
    static const int numbers[] = {SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT, SIGTERM};
    static const char *const kinds[] = {"subreaper", "pid-namespace"};
    struct bench *bench = *state;
    const char *words[] = {engine_program(), "signals", NULL};
    struct exec_say say;

    bench_listen(bench);
    for (size_t k = 0; k < 2; k++) {
        const struct start how = {.containment = kinds[k], .hostile = true};

        bench_start(bench, &how, words);
        bench_run_engine(bench);
        bench_hear_word(bench, EXEC_STARTED, &say);
        for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
            assert_true(gms_pidfd_signal(bench->exec_pidfd, numbers[i]));
            bench_hear_word(bench, EXEC_SIGNAL, &say);
            assert_int_equal(say.value, numbers[i]);
        }
        assert_int_equal(bench_exit_code(bench), 7);
        /* Nothing came twice: the engine's end is the next thing to hear. */
        assert_int_equal(recv(bench->talk, &say, sizeof say, 0), 0);
        gms_fd_close(&bench->talk);
    }
}

static void told_to_end_while_waiting(void **state)
{
    struct bench *bench = *state;
    const char *words[] = {engine_program(), "exit", "0", NULL};
    const struct start how = {.wait = "1h", .hostile = true};

    bench_listen(bench);
    bench_start(bench, &how, words);
    bench_accept(bench); /* it is in its loop */
    assert_true(gms_pidfd_signal(bench->exec_pidfd, SIGTERM));
    assert_int_equal(bench_exit_code(bench), 143);
    gms_fd_close(&bench->talk);

    bench_start(bench, &how, words);
    bench_accept(bench);
    bench_greet(bench, 1);
    bench_give_environment(bench, "", 0);
    (void)bench_take_container(bench); /* the engine is forked and waits */
    assert_true(gms_pidfd_signal(bench->exec_pidfd, SIGINT));
    assert_int_equal(bench_exit_code(bench), 130);
    assert_true(wait_ended(bench->engine));
    assert_true(wait_ended(bench->container));
}

static void the_engine_starts_with_a_clean_signal_state(void **state)
{
    static const char *const kinds[] = {"subreaper", "pid-namespace"};
    struct bench *bench = *state;
    const char *words[] = {engine_program(), "list-signals", NULL};
    struct exec_say say;

    bench_listen(bench);
    for (size_t k = 0; k < 2; k++) {
        const struct start how = {.containment = kinds[k], .hostile = true};

        bench_start(bench, &how, words);
        bench_run_engine(bench);
        bench_hear_word(bench, EXEC_TEXT, &say);
        assert_string_equal(say.text, "");
        assert_true(gms_pidfd_signal(bench->exec_pidfd, SIGTERM));
        assert_int_equal(bench_exit_code(bench), 143);
        gms_fd_close(&bench->talk);
    }
}

static void the_engine_gets_its_launchers_descriptors_and_none_of_ours(void **state)
{
    static const char *const kinds[] = {"subreaper", "pid-namespace"};
    struct bench *bench = *state;
    const char *words[] = {engine_program(), "list-fds", NULL};
    char expected[1024] = "";
    size_t used = 0;
    struct exec_say say;

    for (int fd = 0; fd < 1024; fd++) { /* what a child of this process inherits */
        int flags = fcntl(fd, F_GETFD);

        if ((flags >= 0 && !(flags & FD_CLOEXEC)) || fd == EXEC_TALK_FD || fd == 2) {
            used += (size_t)snprintf(expected + used, sizeof expected - used, "%d ", fd);
        }
    }
    bench_listen(bench);
    for (size_t k = 0; k < 2; k++) {
        const struct start how = {.containment = kinds[k]};

        bench_start(bench, &how, words);
        bench_run_engine(bench);
        bench_hear_word(bench, EXEC_TEXT, &say);
        assert_string_equal(say.text, expected);
        assert_int_equal(bench_exit_code(bench), 0);
        gms_fd_close(&bench->talk);
    }
}

static void a_contained_engines_connection_names_it(void **state)
{
    struct bench *bench = *state;
    const char *words[] = {engine_program(), "connect", bench->socket_path, NULL};
    const struct start how = {.containment = "pid-namespace"};
    struct ucred peer;
    socklen_t length = sizeof peer;
    struct exec_say say;

    bench_listen(bench);
    bench_start(bench, &how, words);
    bench_run_engine(bench);
    int exec_connection = bench->connection;
    bench->connection = -1;
    bench_hear_word(bench, EXEC_STARTED, &say);
    bench_accept(bench);
    assert_int_equal(getsockopt(bench->connection, SOL_SOCKET, SO_PEERCRED, &peer, &length), 0);
    assert_int_equal(peer.pid, gms_pidfd_pid(bench->engine)); /* fact 7: translated, usable */
    assert_int_not_equal(peer.pid, say.value);                /* inside it has another number */
    gms_fd_close(&exec_connection);
}

static void as_pid_1_it_ends_on_term_and_reaps(void **state)
{
    struct bench *bench = *state;
    const char *words[] = {engine_program(), "orphan", NULL};
    const struct start how = {.namespace_first = true};
    uint64_t deadline_ns = patience();
    struct exec_say say;
    bool started = false;

    if (geteuid() != 0) {
        print_message("SKIP: making a PID namespace for gms-exec needs root\n");
        skip();
    }
    bench_listen(bench);
    bench_start(bench, &how, words);
    bench_run_engine(bench);
    assert_int_equal(bench->kind, GMS_CONTAINER_PID_NAMESPACE);
    assert_int_equal(gms_pidfd_pid(bench->container), bench->exec_pid); /* the namespace is gms-exec's own */
    do {                                                                /* the two words come in either order */
        assert_true(bench_hear(bench, &say));
        started = started || say.word == EXEC_STARTED;
    } while (!started || bench->process_count != 1);
    while (gms_pidfd_pid(bench->processes[0]) != -1) { /* reaped, not a zombie */
        assert_true(gms_clock_ns() < deadline_ns);
        sched_yield();
    }
    assert_true(gms_pidfd_signal(bench->exec_pidfd, SIGTERM));
    assert_int_equal(bench_exit_code(bench), 143);
    assert_true(gms_pidfd_ended(bench->engine));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(exit_codes_pass_through, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(commands_that_cannot_run, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(usage_errors_name_what_is_missing, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(without_a_coordinator_it_says_so, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(a_silent_coordinator_is_none, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(a_coordinator_that_comes_late_is_found, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(a_refusal_ends_it_with_the_coordinators_words, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(another_ranks_coordinator_is_refused, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(the_engine_waits_for_the_answer_to_container, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(a_restarted_coordinator_gets_hello_and_container_again, bench_setup,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(the_environment_arrives_byte_for_byte, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(a_malformed_environment_starts_nothing, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(signals_are_passed_on_once, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(told_to_end_while_waiting, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(the_engine_starts_with_a_clean_signal_state, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(the_engine_gets_its_launchers_descriptors_and_none_of_ours, bench_setup,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(a_contained_engines_connection_names_it, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(as_pid_1_it_ends_on_term_and_reaps, bench_setup, bench_teardown),
    };

    return cmocka_run_group_tests_name("gms-exec", tests, NULL, NULL);
}
