/* SPDX-License-Identifier: Apache-2.0
 * gms-ctl from outside: what it asks coordinators that the test plays, what it prints, what it exits with. */
#include "unit_support.h"

#include <sys/socket.h>

#include "base/run_dir.h"
#include "wire/channel.h"
#include "wire/message.h"

enum { RANKS = 2 };

struct bench {
    char *dir;
    char out_path[128], err_path[128];
    int listeners[RANKS], connections[RANKS];
    pid_t pid; /* gms-ctl, 0: none */
    int pidfd;
    char buffer[GMS_WIRE_MAX_BYTES];
    char text[64 * 1024];
};

static uint64_t patience(void)
{
    return gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
}

static int setup(void **state)
{
    struct bench *bench = calloc(1, sizeof *bench);
    void *dir;

    if (bench == NULL || unit_make_dir(&dir) != 0) {
        return -1;
    }
    bench->dir = dir;
    bench->pidfd = -1;
    for (int rank = 0; rank < RANKS; rank++) {
        bench->listeners[rank] = bench->connections[rank] = -1;
    }
    snprintf(bench->out_path, sizeof bench->out_path, "%s/out", bench->dir);
    snprintf(bench->err_path, sizeof bench->err_path, "%s/err", bench->dir);
    *state = bench;
    return 0;
}

static int teardown(void **state)
{
    struct bench *bench = *state;
    void *dir = bench->dir;

    if (bench->pid != 0) {
        gms_pidfd_signal(bench->pidfd, SIGKILL);
        waitpid(bench->pid, NULL, 0);
    }
    gms_fd_close(&bench->pidfd);
    for (int rank = 0; rank < RANKS; rank++) {
        gms_fd_close(&bench->connections[rank]);
        gms_fd_close(&bench->listeners[rank]);
    }
    unit_remove_dir(&dir);
    free(bench);
    return 0;
}

/* Starts gms-ctl --run-dir DIR words... */
static void start(struct bench *bench, const char *const *words)
{
    const char *argv[16];
    const char *directory = getenv("GMS_BIN");
    char program[512];
    int count = 0;

    if (directory == NULL) {
        fail_msg("GMS_BIN is not set: run this through ctest");
    }
    snprintf(program, sizeof program, "%s/gms-ctl", directory);
    argv[count++] = program;
    argv[count++] = "--run-dir";
    argv[count++] = bench->dir;
    for (; *words != NULL; words++) {
        argv[count++] = *words;
    }
    argv[count] = NULL;
    fflush(stdout);
    fflush(stderr);
    bench->pid = fork();
    assert_true(bench->pid >= 0);
    if (bench->pid == 0) {
        int out = open(bench->out_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        int err = open(bench->err_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

        child_check(dup2(out, 1) == 1 && dup2(err, 2) == 2);
        execv(argv[0], (char **)(uintptr_t)argv);
        _exit(99);
    }
    assert_int_equal(gms_pidfd_open(bench->pid, &bench->pidfd, NULL), GMS_OK);
}

static int exit_code(struct bench *bench)
{
    int status = unit_wait(bench->pid);

    bench->pid = 0;
    gms_fd_close(&bench->pidfd);
    assert_true(status != -1 && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static const char *file_text(struct bench *bench, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, bench->text, sizeof bench->text - 1);

    gms_fd_close(&fd);
    bench->text[got > 0 ? got : 0] = '\0';
    return bench->text;
}

static void assert_has(struct bench *bench, const char *path, const char *part)
{
    if (strstr(file_text(bench, path), part) == NULL) {
        print_error("lacks \"%s\":\n%s", part, bench->text);
        fail();
    }
}

/* --------------------------------------------------------------------------------------- the coordinators ----- */

static void listen_as(struct bench *bench, int rank)
{
    char path[GMS_RUN_PATH_BYTES];
    struct gms_error error;

    assert_ok(gms_run_dir_path(bench->dir, "c", rank, path, &error));
    assert_ok(gms_channel_listen(path, &bench->listeners[rank], &error));
}

static void expect(struct bench *bench, int rank, enum gms_message_type type, struct gms_message *ret_message)
{
    struct gms_error error;

    assert_ok(gms_channel_receive_until(bench->connections[rank], bench->buffer, patience(), ret_message, &error));
    assert_string_equal(gms_message_name(ret_message->type), gms_message_name(type));
}

static void say(struct bench *bench, int rank, const struct gms_message *message)
{
    struct gms_error error;

    assert_ok(gms_channel_send_until(bench->connections[rank], message, patience(), &error));
}

static void greet(struct bench *bench, int rank)
{
    struct gms_message message, welcome = {.type = GMS_MESSAGE_WELCOME};
    struct pollfd ready = {.fd = bench->listeners[rank], .events = POLLIN};
    struct gms_error error;
    pid_t pid;
    uid_t uid;

    gms_fd_close(&bench->connections[rank]);
    assert_int_equal(poll(&ready, 1, UNIT_PATIENCE_MS), 1);
    assert_ok(gms_channel_accept(bench->listeners[rank], &bench->connections[rank], &pid, &uid, &error));
    expect(bench, rank, GMS_MESSAGE_HELLO, &message);
    assert_int_equal(message.hello.role, GMS_CLIENT_CONTROL);
    assert_int_equal(message.hello.rank, rank);
    welcome.request_id = message.request_id;
    gms_message_close_fds(&message);
    welcome.welcome.world_size = RANKS;
    welcome.welcome.rank = (uint32_t)rank;
    welcome.welcome.version = (struct gms_bytes){"test", 4};
    say(bench, rank, &welcome);
}

static void reply(struct bench *bench, int rank, uint32_t request_id, gms_status status, const char *text)
{
    struct gms_message message = {.type = GMS_MESSAGE_REPLY, .request_id = request_id};

    message.reply.status = status;
    message.reply.rank = -1;
    message.reply.text = (struct gms_bytes){text, (uint32_t)strlen(text)};
    say(bench, rank, &message);
}

static void give_status(struct bench *bench, int rank, const char *json)
{
    struct gms_message message, answer = {.type = GMS_MESSAGE_STATUS_REPLY}, news = {.type = GMS_MESSAGE_SERVING};

    greet(bench, rank);
    expect(bench, rank, GMS_MESSAGE_STATUS, &message);
    news.promote.epoch = 9; /* something of the coordinator's own comes first: not an answer */
    say(bench, rank, &news);
    answer.request_id = message.request_id;
    answer.status_reply.json = (struct gms_bytes){json, (uint32_t)strlen(json)};
    say(bench, rank, &answer);
}

static const char serving_status[] =
    "{\"version\":1,\"deployment\":\"demo\",\"world\":7,\"rank\":0,\"ranks\":2,\"epoch\":2,\"round\":57,"
    "\"takeover\":\"serving\",\"serving_engine\":1,\"serving_incarnation\":12,\"successor_engine\":-1,"
    "\"endpoint\":\"unix:/run/\\u001b[31me1\",\"pid\":100,\"descriptors\":23,\"capacity_bytes\":268435456,"
    "\"used_bytes\":1048576,\"engines\":[{\"engine\":1,\"incarnation\":12,\"role\":\"serving\",\"launch\":\"L\","
    "\"pid\":4711,\"containment\":\"subreaper\",\"progress\":1234},{\"engine\":2,\"incarnation\":13,\"role\":"
    "\"parked\",\"launch\":\"M\",\"pid\":4712,\"containment\":\"subreaper\",\"progress\":0,"
    "\"waits_for\":\"pid 4713 (python3), thread 4714 in state D\"}],"
    "\"pools\":[{\"name\":\"kv\",\"kind\":\"kv\",\"index\":1,\"state\":\"ready\",\"bytes\":4096,"
    "\"slots\":{\"idle\":1,\"leased\":0,\"sealed\":3,\"released\":0,\"quarantined\":2,\"retired\":0}}],"
    "\"takeovers\":[{\"epoch\":2,\"from_engine\":0,\"from_incarnation\":1,\"to_engine\":1,\"to_incarnation\":12,"
    "\"cause\":\"gone\",\"detect_ns\":1000000000,\"condemn_ns\":1000500000,\"fence_ns\":1002250000,\"classify_ns\":0,"
    "\"promote_ns\":1003000000,\"adopt_ns\":1004000000,\"serve_ns\":1012345000,\"sealed_here\":9,"
    "\"adoptable_here\":9,\"adopted\":8,\"idle\":40,\"quarantined\":2,\"damaged\":1}],"
    "\"transfers\":[{\"incarnation\":12,\"id\":5,\"finished\":1,\"failed\":0,\"age_ns\":2500000}],"
    "\"reclaim\":{\"state\":\"proving\",\"suspects\":[{\"engine\":0,\"incarnation\":1,\"state\":\"pending\",\"pages\":"
    "2,"
    "\"returned\":0,\"provider\":\"procmap\",\"trials\":5,\"reason\":\"its process 4711 has not ended\"},{\"engine\":2,"
    "\"incarnation\":9,\"state\":\"reclaimed\",\"pages\":7,\"returned\":7,\"provider\":\"procmap\",\"trials\":1,"
    "\"reason\":\"gone\"}]}}";

static const char vacant_status[] =
    "{\"version\":1,\"deployment\":\"demo\",\"world\":7,\"rank\":1,\"ranks\":2,\"epoch\":3,\"round\":57,"
    "\"takeover\":\"fencing\",\"serving_engine\":-1,\"serving_incarnation\":0,\"successor_engine\":2,"
    "\"endpoint\":\"\",\"pid\":101,\"engines\":[],\"pools\":[],\"takeovers\":[],\"transfers\":[]}";

/* Another rank than that of serving_status, which contains its engines less firmly. */
static const char weaker_status[] =
    "{\"version\":1,\"deployment\":\"demo\",\"world\":7,\"rank\":1,\"ranks\":2,\"epoch\":3,\"round\":57,"
    "\"takeover\":\"fencing\",\"serving_engine\":-1,\"serving_incarnation\":0,\"successor_engine\":2,"
    "\"endpoint\":\"\",\"pid\":101,\"engines\":[{\"engine\":1,\"incarnation\":12,\"role\":\"condemned\","
    "\"containment\":\"subreaper\"},{\"engine\":2,\"incarnation\":13,\"role\":\"parked\",\"containment\":\"none\"}],"
    "\"pools\":[],\"takeovers\":[],\"transfers\":[]}";

/* -------------------------------------------------------------------------------------------------- status ---- */

static void the_table_says_first_who_serves_and_what_is_wrong(void **state)
{
    struct bench *bench = *state;
    const char *words[] = {"status", NULL};

    listen_as(bench, 0);
    listen_as(bench, 1);
    start(bench, words);
    give_status(bench, 0, serving_status);
    give_status(bench, 1, weaker_status);
    assert_int_equal(exit_code(bench), 0);
    assert_has(bench, bench->out_path, "SERVING  engine 1, incarnation 12, at unix:/run/?[31me1");
    assert_has(bench, bench->out_path, "ranks differ in epoch: rank 0: 2 rank 1: 3");
    assert_has(bench, bench->out_path, "rank 0: 2 slots in quarantine");
    assert_has(bench, bench->out_path,
               "engine 0 incarnation 1 is not known to be quiet yet: its process 4711 has not ended");
    assert_has(bench, bench->out_path, "ranks of engine 2 are contained differently: rank 0: subreaper rank 1: none");
    assert_null(strstr(file_text(bench, bench->out_path), "ranks of engine 1 are"));
    assert_has(bench, bench->out_path, "engine 2 is not retired: waits for pid 4713 (python3), thread 4714 in state D");
    assert_null(strstr(file_text(bench, bench->out_path), "incarnation 9 is"));
    assert_has(bench, bench->out_path, "2           9 reclaimed                    7        7       1  procmap");
    assert_has(bench, bench->out_path, "1.0 MiB/256.0 MiB");
    assert_has(bench, bench->out_path, "engine 0 (incarnation 1) -> engine 1 (incarnation 12), cause: gone");
    assert_has(bench, bench->out_path, "12.345");
    assert_null(strstr(file_text(bench, bench->out_path), "no shadow is parked"));
    assert_null(strchr(file_text(bench, bench->out_path), '\033')); /* no terminal, no colors; nobody's escapes */
}

static void it_says_when_nobody_serves(void **state)
{
    struct bench *bench = *state;
    const char *words[] = {"--rank", "1", "status", NULL};

    listen_as(bench, 1);
    start(bench, words);
    give_status(bench, 1, vacant_status);
    assert_int_equal(exit_code(bench), 0);
    assert_has(bench, bench->out_path, "NOT SERVING  takeover: fencing, successor: engine 2");
    assert_has(bench, bench->out_path, "no shadow is parked");
    assert_has(bench, bench->out_path, "no engine has joined");

    start(bench, words);
    give_status(bench, 1, "{\"takeover\":\"vacant\",\"serving_engine\":-1,\"successor_engine\":-1}");
    assert_int_equal(exit_code(bench), 0);
    assert_has(bench, bench->out_path, "NOT SERVING  takeover: vacant, no successor\n! start an engine");
    assert_null(strstr(file_text(bench, bench->out_path), "no shadow"));
}

static void any_document_is_survived(void **state)
{
    static const char *const documents[] = {
        "{}", "{\"engines\":7,\"pools\":{\"a\":1},\"takeovers\":[1,null],\"epoch\":\"x\"}",
        "{\"pools\":[{\"slots\":[]}],\"transfers\":[[]],\"engines\":[[],{}]}"};
    struct bench *bench = *state;
    const char *words[] = {"--rank", "0", "status", NULL};

    listen_as(bench, 0);
    for (size_t i = 0; i < sizeof documents / sizeof documents[0]; i++) {
        start(bench, words);
        give_status(bench, 0, documents[i]);
        assert_int_equal(exit_code(bench), 0);
    }
    start(bench, words);
    give_status(bench, 0, "{\"cut\":");
    assert_int_equal(exit_code(bench), 1);
    start(bench, words);
    give_status(bench, 0, "[]");
    assert_int_equal(exit_code(bench), 1);
}

static void json_is_passed_on_as_it_came(void **state)
{
    struct bench *bench = *state;
    const char *one[] = {"--rank=0", "status", "--json", NULL}, *all[] = {"status", "--json", NULL};
    char expected[4096];

    listen_as(bench, 0);
    listen_as(bench, 1);
    start(bench, one);
    give_status(bench, 0, serving_status);
    assert_int_equal(exit_code(bench), 0);
    snprintf(expected, sizeof expected, "%s\n", serving_status);
    assert_string_equal(file_text(bench, bench->out_path), expected);

    start(bench, all);
    give_status(bench, 0, serving_status);
    give_status(bench, 1, vacant_status);
    assert_int_equal(exit_code(bench), 0);
    snprintf(expected, sizeof expected, "[%s,\n %s]\n", serving_status, vacant_status);
    assert_string_equal(file_text(bench, bench->out_path), expected);
}

static void a_dead_rank_is_named_and_the_others_shown(void **state)
{
    struct bench *bench = *state;
    const char *table[] = {"status", NULL}, *json[] = {"status", "--json", NULL}, *one[] = {"--rank=1", "status", NULL};

    listen_as(bench, 0);
    listen_as(bench, 1);
    gms_fd_close(&bench->listeners[1]); /* its socket stays, as after SIGKILL */
    start(bench, table);
    give_status(bench, 0, serving_status);
    assert_int_equal(exit_code(bench), 69);
    assert_has(bench, bench->out_path, "rank 1 does not answer");
    assert_has(bench, bench->out_path, "SERVING  engine 1");

    start(bench, json);
    give_status(bench, 0, serving_status);
    assert_int_equal(exit_code(bench), 69);
    assert_has(bench, bench->out_path, "{\"rank\":1,\"unreachable\":");

    start(bench, one);
    assert_int_equal(exit_code(bench), 69);
    assert_has(bench, bench->out_path, "NO COORDINATOR ANSWERS");
}

static void nobody_there_and_nobody_answering(void **state)
{
    struct bench *bench = *state;
    const char *status[] = {"status", NULL}, *down[] = {"down", NULL}, *takeover[] = {"takeover", "0", NULL};
    const char *hasty[] = {"--rank=0", "--timeout=300ms", "takeover", "0", NULL};

    start(bench, status);
    assert_int_equal(exit_code(bench), 69);
    assert_has(bench, bench->err_path, "no coordinator has a socket");
    start(bench, down);
    assert_int_equal(exit_code(bench), 69);
    start(bench, takeover);
    assert_int_equal(exit_code(bench), 69);

    listen_as(bench, 0); /* accepts, by backlog, and says nothing */
    start(bench, hasty);
    assert_int_equal(exit_code(bench), 69);
}

static void watching_asks_again_and_again(void **state)
{
    struct bench *bench = *state;
    const char *words[] = {"--rank=0", "status", "--watch=50ms", NULL};

    listen_as(bench, 0);
    start(bench, words);
    for (int i = 0; i < 3; i++) {
        give_status(bench, 0, i == 1 ? vacant_status : serving_status);
    }
    greet(bench, 0); /* the third was written before the fourth question */
    assert_true(gms_pidfd_signal(bench->pidfd, SIGTERM));
    int status = unit_wait(bench->pid);
    bench->pid = 0;
    gms_fd_close(&bench->pidfd);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    assert_has(bench, bench->out_path, "NOT SERVING");
    assert_has(bench, bench->out_path, "at unix:");
}

/* ---------------------------------------------------------------------------------------------------- wait ---- */

static void wait_ends_when_all_ranks_have_it(void **state)
{
    struct bench *bench = *state;
    const char *up[] = {"wait", "up", NULL}, *standby[] = {"wait", "standby", NULL};

    listen_as(bench, 0);
    start(bench, up);
    give_status(bench, 0, vacant_status); /* rank 1 has no socket yet */
    listen_as(bench, 1);
    give_status(bench, 0, vacant_status);
    give_status(bench, 1, vacant_status);
    assert_int_equal(exit_code(bench), 0);
    assert_has(bench, bench->out_path, "2 coordinator ranks answer");

    start(bench, standby);
    give_status(bench, 0, serving_status);
    give_status(bench, 1,
                "{\"world\":7,\"ranks\":2,\"serving_engine\":1,\"serving_incarnation\":12,\"engines\":["
                "{\"engine\":2,\"incarnation\":14,\"role\":\"parked\"}]}"); /* another start of engine 2 */
    give_status(bench, 0, serving_status);
    give_status(bench, 1, serving_status);
    assert_int_equal(exit_code(bench), 0);
    assert_has(bench, bench->out_path, "engine 1 serves at unix:/run/?[31me1, engine 2 stands by");
}

static void wait_says_what_is_missing(void **state)
{
    struct bench *bench = *state;
    const char *nobody[] = {"wait", "up", "--timeout=1ms", NULL};
    const char *serving[] = {"wait", "serving", "--timeout=3s", NULL};

    start(bench, nobody);
    assert_int_equal(exit_code(bench), 1);
    assert_has(bench, bench->err_path, "no coordinator has a socket");

    listen_as(bench, 0);
    listen_as(bench, 1);
    start(bench, serving);
    while (strstr(file_text(bench, bench->err_path), "gms-ctl: waiting") == NULL) {
        give_status(bench, 0, serving_status);
        give_status(bench, 1, vacant_status);
    }
    /* And then they are silent: the wait ends all the same. */
    assert_int_equal(exit_code(bench), 1);
    assert_has(bench, bench->err_path, "no engine serves on rank 1 (takeover: fencing, 0 engines have joined)");
    assert_has(bench, bench->err_path, "not reached within");
}

/* ---------------------------------------------------------------------------------------- takeover and down --- */

static void takeover_names_the_engine_and_repeats_the_answer(void **state)
{
    static const struct {
        gms_status status;
        const char *text;
        int code;
    } cases[] = {
        {GMS_OK, "", 0}, {GMS_E_NOT_FOUND, "engine 3 is not in the group", 1}, {GMS_E_REFUSED, "a takeover runs", 1}};
    struct bench *bench = *state;
    const char *words[] = {"takeover", "3", NULL};
    struct gms_message message;

    listen_as(bench, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        start(bench, words);
        greet(bench, 0);
        expect(bench, 0, GMS_MESSAGE_TAKEOVER, &message);
        assert_int_equal(message.takeover.engine_id, 3);
        reply(bench, 0, message.request_id, cases[i].status, cases[i].text);
        assert_int_equal(exit_code(bench), cases[i].code);
        assert_has(bench, bench->err_path, cases[i].text);
    }
}

static void takeover_asks_the_next_rank_when_one_is_dead(void **state)
{
    struct bench *bench = *state;
    const char *words[] = {"takeover", "1", NULL};
    struct gms_message message;

    listen_as(bench, 0);
    listen_as(bench, 1);
    gms_fd_close(&bench->listeners[0]);
    start(bench, words);
    greet(bench, 1);
    expect(bench, 1, GMS_MESSAGE_TAKEOVER, &message);
    reply(bench, 1, message.request_id, GMS_OK, "");
    assert_int_equal(exit_code(bench), 0);
}

static void down_waits_until_all_are_gone(void **state)
{
    struct bench *bench = *state;
    const char *words[] = {"down", NULL}, *hasty[] = {"down", "--timeout=200ms", NULL};
    struct gms_message message;

    listen_as(bench, 0);
    listen_as(bench, 1);
    start(bench, words);
    greet(bench, 0);
    greet(bench, 1);
    expect(bench, 0, GMS_MESSAGE_SHUTDOWN, &message);
    reply(bench, 0, message.request_id, GMS_OK, "");
    gms_fd_close(&bench->connections[0]);
    /* Rank 1 takes its time: a line of progress comes, and it is still there. */
    uint64_t deadline_ns = patience();
    while (strstr(file_text(bench, bench->err_path), "1 of 2 coordinators are gone, waiting for rank 1") == NULL) {
        assert_true(gms_clock_ns() < deadline_ns);
        poll(NULL, 0, 20);
    }
    assert_false(gms_pidfd_ended(bench->pidfd));
    gms_fd_close(&bench->connections[1]);
    assert_int_equal(exit_code(bench), 0);
    assert_has(bench, bench->out_path, "2 coordinators have stopped");

    start(bench, hasty);
    greet(bench, 0);
    greet(bench, 1);
    expect(bench, 0, GMS_MESSAGE_SHUTDOWN, &message);
    reply(bench, 0, message.request_id, GMS_OK, "");
    assert_int_equal(exit_code(bench), 1);
    assert_has(bench, bench->err_path, "still runs");

    start(bench, words);
    greet(bench, 0);
    greet(bench, 1);
    expect(bench, 0, GMS_MESSAGE_SHUTDOWN, &message);
    reply(bench, 0, message.request_id, GMS_E_BUSY, "a takeover runs");
    assert_int_equal(exit_code(bench), 1);
    assert_has(bench, bench->err_path, "a takeover runs");
}

/* ------------------------------------------------------------------------------------------------- serving ---- */

static void write_serving(struct bench *bench, const char *text)
{
    char path[160];
    struct gms_error error;

    snprintf(path, sizeof path, "%s/serving", bench->dir);
    assert_ok(gms_file_replace(path, text, strlen(text), &error));
}

static void serving_prints_the_endpoint(void **state)
{
    struct bench *bench = *state;
    const char *words[] = {"serving", NULL}, *json[] = {"serving", "--json", NULL};

    start(bench, words);
    assert_int_equal(exit_code(bench), 1);
    assert_has(bench, bench->err_path, "nobody has served yet");

    write_serving(bench, "{\"engine\":1,\"incarnation\":2,\"epoch\":3,\"endpoint\":\"tcp:127.0.0.1:8000\"}\n");
    start(bench, words);
    assert_int_equal(exit_code(bench), 0);
    assert_string_equal(file_text(bench, bench->out_path), "tcp:127.0.0.1:8000\n");
    start(bench, json);
    assert_int_equal(exit_code(bench), 0);
    assert_has(bench, bench->out_path, "\"epoch\":3");

    write_serving(bench, "{\"engine\":-1,\"endpoint\":\"\"}");
    start(bench, words);
    assert_int_equal(exit_code(bench), 1);
    write_serving(bench, "{\"engine\":1,\"endp");
    start(bench, words);
    assert_int_equal(exit_code(bench), 1);
    assert_has(bench, bench->err_path, "cannot be read");
}

static void usage_errors(void **state)
{
    static const char *const cases[][4] = {{NULL},
                                           {"stats", NULL},
                                           {"takeover", NULL},
                                           {"wait", NULL},
                                           {"wait", "forever", NULL},
                                           {"takeover", "8", NULL},
                                           {"takeover", "x", NULL},
                                           {"status", "now", NULL},
                                           {"--rank=-1", "status", NULL},
                                           {"--watch=1ms", "status", NULL},
                                           {"--timeout=5", "status", NULL}};
    struct bench *bench = *state;
    const char *help[] = {"--help", NULL}, *version[] = {"--version", NULL};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        start(bench, cases[i]);
        assert_int_equal(exit_code(bench), 64);
    }
    start(bench, help);
    assert_int_equal(exit_code(bench), 0);
    assert_has(bench, bench->out_path, "Exit codes");
    start(bench, version);
    assert_int_equal(exit_code(bench), 0);
    assert_has(bench, bench->out_path, "gms-ctl ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_table_says_first_who_serves_and_what_is_wrong, setup, teardown),
        cmocka_unit_test_setup_teardown(it_says_when_nobody_serves, setup, teardown),
        cmocka_unit_test_setup_teardown(any_document_is_survived, setup, teardown),
        cmocka_unit_test_setup_teardown(json_is_passed_on_as_it_came, setup, teardown),
        cmocka_unit_test_setup_teardown(a_dead_rank_is_named_and_the_others_shown, setup, teardown),
        cmocka_unit_test_setup_teardown(nobody_there_and_nobody_answering, setup, teardown),
        cmocka_unit_test_setup_teardown(watching_asks_again_and_again, setup, teardown),
        cmocka_unit_test_setup_teardown(wait_ends_when_all_ranks_have_it, setup, teardown),
        cmocka_unit_test_setup_teardown(wait_says_what_is_missing, setup, teardown),
        cmocka_unit_test_setup_teardown(takeover_names_the_engine_and_repeats_the_answer, setup, teardown),
        cmocka_unit_test_setup_teardown(takeover_asks_the_next_rank_when_one_is_dead, setup, teardown),
        cmocka_unit_test_setup_teardown(down_waits_until_all_are_gone, setup, teardown),
        cmocka_unit_test_setup_teardown(serving_prints_the_endpoint, setup, teardown),
        cmocka_unit_test_setup_teardown(usage_errors, setup, teardown),
    };

    return cmocka_run_group_tests_name("gms-ctl", tests, NULL, NULL);
}
