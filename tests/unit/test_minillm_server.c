/* SPDX-License-Identifier: Apache-2.0
 *
 * The program itself, two ranks under mpirun with --no-gms: the stream protocol with good, bad and rude clients; equal
 * tokens whatever runs beside; idle ranks that do not run; drills that end a rank where they said; a clean end.
 */
#include "unit_support.h"

#include <dirent.h>
#include <jansson.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { RANKS = 2, ANSWER = 48, LINE_BYTES = 1 << 20 };

static const char prompt_format[] =
    "A rank fails and the memory stays. Stream number %d goes on as if nothing happened.";

/* --------------------------------------------------------------------------------------------- the program ---- */

struct engine {
    char *directory; /* owned */
    pid_t launcher;
};

static void start_engine(struct engine *e, const char *ranks, const char *extra)
{
    char program[4096], listen[4096], notes[4096];
    const char *bin = getenv("GMS_BIN");
    assert_non_null(bin);
    assert_int_equal(unit_make_dir((void **)&e->directory), 0);
    snprintf(program, sizeof program, "%s/minillm", bin);
    snprintf(listen, sizeof listen, "unix:%s/s", e->directory);
    snprintf(notes, sizeof notes, "file:%s/notes", e->directory);
    const pid_t test = getpid();
    e->launcher = fork();
    assert_true(e->launcher >= 0);
    if (e->launcher == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails half way leaves no engine behind */
        if (getppid() != test)
            _exit(127);
        execlp("mpirun", "mpirun", "--oversubscribe", "-n", ranks, program, "--no-gms", "--slots", "96", "--listen",
               listen, "--log-dir", e->directory, "--log-destination", notes, extra, (char *)NULL);
        _exit(127);
    }
}

static void signal_launcher(const struct engine *e, int number)
{
    struct gms_error error;
    int pidfd = -1;
    assert_ok(gms_pidfd_open(e->launcher, &pidfd, &error));
    gms_pidfd_signal(pidfd, number);
    gms_fd_close(&pidfd);
}

static void remove_engine(struct engine *e)
{
    void *directory = e->directory;
    unit_remove_dir(&directory);
}

/* Asks for a clean end and checks that it was one. */
static void end_engine(struct engine *e)
{
    signal_launcher(e, SIGUSR1);
    int status = unit_wait(e->launcher);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* The lines of one rank's event log that begin with `event`; *ret_last (NULL allowed) is the last line of all. */
static uint32_t count_events(const struct engine *e, uint32_t rank, const char *event, char *ret_last)
{
    char path[4096], line[1024], name[64];
    uint32_t count = 0;
    snprintf(path, sizeof path, "%s/engine0.0.%u.log", e->directory, rank);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        assert_int_equal(sscanf(line, "%*u %63s", name), 1);
        assert_true(line[strlen(line) - 1] == '\n');
        count += strcmp(name, event) == 0;
        if (ret_last != NULL)
            strcpy(ret_last, name);
    }
    fclose(file);
    return count;
}

/* ----------------------------------------------------------------------------------------------- a client ----- */

struct client {
    int fd;
    char *buffer;
    size_t used;
};

static bool try_connect(const struct engine *e, struct client *c)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/s", e->directory);
    *c = (struct client){.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address) == 0) {
        c->buffer = malloc(LINE_BYTES);
        return true;
    }
    close(c->fd);
    return false;
}

static json_t *read_line(struct client *c)
{
    const uint64_t deadline = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    for (;;) {
        char *newline = memchr(c->buffer, '\n', c->used);
        if (newline != NULL) {
            json_error_t error;
            json_t *object = json_loadb(c->buffer, (size_t)(newline - c->buffer), 0, &error);
            assert_non_null(object);
            c->used -= (size_t)(newline + 1 - c->buffer);
            memmove(c->buffer, newline + 1, c->used);
            return object;
        }
        struct pollfd entry = {.fd = c->fd, .events = POLLIN};
        assert_true(poll(&entry, 1, gms_clock_poll_ms(deadline)) > 0);
        ssize_t got = recv(c->fd, c->buffer + c->used, LINE_BYTES - c->used, 0);
        assert_true(got > 0);
        c->used += (size_t)got;
    }
}

/* Connects, waiting for the engine, and takes the greeting. */
static void connect_client(const struct engine *e, struct client *c)
{
    const uint64_t deadline = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    while (!try_connect(e, c)) {
        assert_true(gms_clock_poll_ms(deadline) > 0);
        (void)poll(NULL, 0, 10);
    }
    json_t *hello = read_line(c);
    assert_string_equal(json_string_value(json_object_get(hello, "hello")), "minillm");
    assert_int_equal(json_integer_value(json_object_get(hello, "engine")), 0);
    assert_true(json_is_integer(json_object_get(hello, "incarnation")));
    assert_true(json_is_integer(json_object_get(hello, "epoch")));
    assert_true(json_integer_value(json_object_get(hello, "pid")) > 0);
    json_decref(hello);
}

static void close_client(struct client *c)
{
    close(c->fd);
    free(c->buffer);
}

static void send_bytes(struct client *c, const char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t sent = send(c->fd, bytes, count, MSG_NOSIGNAL);
        assert_true(sent > 0);
        bytes += sent;
        count -= (size_t)sent;
    }
}

static void send_line(struct client *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void send_line(struct client *c, const char *format, ...)
{
    char line[4096];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    assert_true(length > 0 && (size_t)length < sizeof line - 1);
    line[length++] = '\n';
    send_bytes(c, line, (size_t)length);
}

static void ask(struct client *c, int stream, int max_tokens)
{
    char prompt[256];
    snprintf(prompt, sizeof prompt, prompt_format, stream);
    send_line(c,
              "{\"op\":\"generate\",\"id\":\"s%d\",\"prompt\":\"%s\",\"max_tokens\":%d,\"temperature\":%s,\"seed\":%d}",
              stream, prompt, max_tokens, stream % 2 == 0 ? "0.9" : "0", stream);
}

struct answers {
    uint32_t tokens[8][ANSWER];
    uint32_t count[8];
};

/* Reads until `streams` answers are complete. */
static void collect(struct client *c, struct answers *ret, int streams)
{
    memset(ret, 0, sizeof *ret);
    while (streams > 0) {
        json_t *object = read_line(c);
        const char *id = json_string_value(json_object_get(object, "id"));
        assert_non_null(id);
        assert_null(json_object_get(object, "error"));
        int stream = atoi(id + 1);
        if (json_is_true(json_object_get(object, "done"))) {
            json_int_t prompt = json_integer_value(json_object_get(object, "prompt_tokens"));
            assert_int_equal(prompt, json_integer_value(json_object_get(object, "cached_tokens")) +
                                         json_integer_value(json_object_get(object, "computed_tokens")));
            assert_string_equal(json_string_value(json_object_get(object, "reason")), "length");
            assert_int_equal(ret->count[stream], ANSWER);
            streams--;
        } else {
            assert_int_equal(json_integer_value(json_object_get(object, "index")), ret->count[stream]);
            ret->tokens[stream][ret->count[stream]++] = (uint32_t)json_integer_value(json_object_get(object, "token"));
        }
        json_decref(object);
    }
}

static json_int_t ask_stat(struct client *c, const char *name)
{
    send_line(c, "{\"op\":\"stats\"}");
    json_t *object = read_line(c);
    json_t *value = json_object_get(json_object_get(object, "stats"), name);
    assert_true(json_is_integer(value));
    json_int_t number = json_integer_value(value);
    json_decref(object);
    return number;
}

static void expect_error(struct client *c, const char *says)
{
    json_t *object = read_line(c);
    const char *text = json_string_value(json_object_get(object, "error"));
    assert_non_null(text);
    if (strstr(text, says) == NULL)
        print_error("\"%s\" lacks \"%s\"\n", text, says);
    assert_non_null(strstr(text, says));
    json_decref(object);
}

/* --------------------------------------------------------------------------------------------------- tests ---- */

static int open_group(void **state)
{
    static struct engine e;
    start_engine(&e, "2", NULL);
    *state = &e;
    return 0;
}

static int close_group(void **state)
{
    struct engine *e = *state;
    char last[64];
    end_engine(e);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(count_events(e, rank, "join", last), 1);
        assert_string_equal(last, "end");
        assert_int_equal(count_events(e, rank, "serving", NULL), 1);
        assert_int_equal(count_events(e, rank, "seal", NULL), count_events(e, 0, "seal", NULL));
        assert_int_equal(count_events(e, rank, "write", NULL), count_events(e, 0, "write", NULL));
        assert_int_equal(count_events(e, rank, "token", NULL) > 0, rank == 0);
    }
    char path[4096];
    snprintf(path, sizeof path, "%s/s", e->directory);
    assert_int_equal(access(path, F_OK), -1); /* its socket went with it */
    remove_engine(e);
    return 0;
}

static void eight_streams_at_once_get_what_each_gets_alone(void **state)
{
    static struct answers together, alone;
    struct client c;
    connect_client(*state, &c);
    for (int i = 0; i < 8; i++)
        ask(&c, i, ANSWER);
    collect(&c, &together, 8);
    for (int i = 0; i < 8; i++) {
        ask(&c, i, ANSWER);
        collect(&c, &alone, 1);
        assert_memory_equal(alone.tokens[i], together.tokens[i], sizeof alone.tokens[i]);
    }
    close_client(&c);
}

static void bad_lines_cost_others_nothing(void **state)
{
    static struct answers before, during;
    struct client good, bad;
    connect_client(*state, &good);
    connect_client(*state, &bad);
    ask(&good, 1, ANSWER);
    collect(&good, &before, 1);
    ask(&good, 1, ANSWER);
    send_line(&bad, "{\"op\":");
    expect_error(&bad, "not a JSON object");
    send_line(&bad, "[[[[[[[[");
    expect_error(&bad, "not a JSON object");
    send_line(&bad, "{\"op\":\"generate\",\"id\":\"x\",\"prompt\":[1,2,999]}");
    expect_error(&bad, "prompt[2]");
    send_line(&bad, "{\"op\":\"generate\",\"id\":\"x\",\"prompt\":\"\"}");
    expect_error(&bad, "empty");
    send_line(&bad, "{\"op\":\"generate\",\"id\":\"x\",\"prompt\":\"a\",\"max_tokens\":2048}");
    expect_error(&bad, "context of 2048");
    send_bytes(&bad, "\n\n\0\xff\n", 5);
    expect_error(&bad, "not a JSON object");
    collect(&good, &during, 1);
    assert_memory_equal(before.tokens[1], during.tokens[1], sizeof before.tokens[1]);
    ask(&bad, 1, ANSWER); /* and the same connection may still do right */
    collect(&bad, &during, 1);
    assert_memory_equal(before.tokens[1], during.tokens[1], sizeof before.tokens[1]);
    close_client(&bad);
    close_client(&good);
}

static void a_line_without_end_is_refused_and_skipped(void **state)
{
    struct client c;
    connect_client(*state, &c);
    enum { CHUNK = 64 * 1024 };
    char *chunk = malloc(CHUNK);
    memset(chunk, 'x', CHUNK);
    for (int i = 0; i < 40; i++)
        send_bytes(&c, chunk, CHUNK);
    expect_error(&c, "longer than 1048576");
    send_bytes(&c, "\n", 1);
    assert_int_equal(ask_stat(&c, "active"), 0);
    free(chunk);
    close_client(&c);
}

static void one_id_at_a_time(void **state)
{
    struct client c;
    connect_client(*state, &c);
    ask(&c, 3, ANSWER);
    ask(&c, 3, ANSWER);
    json_t *object = read_line(&c);
    while (json_object_get(object, "error") == NULL) { /* tokens may come first */
        assert_null(json_object_get(object, "done"));
        json_decref(object);
        object = read_line(&c);
    }
    assert_string_equal(json_string_value(json_object_get(object, "id")), "s3");
    json_decref(object);
    close_client(&c);
}

static void a_client_that_leaves_takes_its_requests_along(void **state)
{
    struct client rude, c;
    connect_client(*state, &rude);
    for (int i = 0; i < 8; i++)
        ask(&rude, i, 1024);
    json_decref(read_line(&rude));
    close_client(&rude);
    connect_client(*state, &c);
    const uint64_t deadline = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    while (ask_stat(&c, "active") + ask_stat(&c, "waiting") > 0)
        assert_true(gms_clock_poll_ms(deadline) > 0);
    assert_int_equal(ask_stat(&c, "idle") + ask_stat(&c, "sealed"), 96);
    assert_int_equal(ask_stat(&c, "quarantined") + ask_stat(&c, "adopted"), 0);
    close_client(&c);
}

/* Processor ticks of the launcher's children; *ret_count of them. */
static unsigned long children_ticks(pid_t launcher, uint32_t *ret_count)
{
    unsigned long sum = 0;
    DIR *proc = opendir("/proc");
    assert_non_null(proc);
    *ret_count = 0;
    for (struct dirent *entry; (entry = readdir(proc)) != NULL;) {
        char path[300], text[1024];
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        FILE *file = entry->d_name[0] >= '1' && entry->d_name[0] <= '9' ? fopen(path, "re") : NULL;
        if (file == NULL)
            continue;
        size_t got = fread(text, 1, sizeof text - 1, file);
        fclose(file);
        text[got] = 0;
        int parent;
        unsigned long user, kernel;
        const char *after_name = strrchr(text, ')');
        if (after_name != NULL &&
            sscanf(after_name, ") %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &parent, &user, &kernel) == 3 &&
            parent == launcher) {
            sum += user + kernel;
            ++*ret_count;
        }
    }
    closedir(proc);
    return sum;
}

static void idle_ranks_do_not_run(void **state)
{
    const struct engine *e = *state;
    struct client c;
    connect_client(e, &c);
    assert_int_equal(ask_stat(&c, "active"), 0);
    uint32_t count;
    (void)poll(NULL, 0, 100); /* the idle plan is on its way */
    unsigned long before = children_ticks(e->launcher, &count);
    assert_int_equal(count, RANKS);
    (void)poll(NULL, 0, 1000);
    unsigned long used = children_ticks(e->launcher, &count) - before;
    assert_int_equal(count, RANKS);
    assert_true(used <= 2); /* hundredths of a second; a spinning rank would use 50 and more */
    close_client(&c);
}

/* Arms a drill, asks for streams, and waits for the engine's end. `rank` as in the protocol. */
static void run_drill(struct engine *e, const char *rank, const char *phase, uint32_t after)
{
    struct client c;
    char byte;
    start_engine(e, "2", NULL);
    connect_client(e, &c);
    send_line(&c, "{\"op\":\"arm\",\"rank\":%s,\"at\":\"%s\",\"after\":%u}", rank, phase, after);
    json_t *armed = read_line(&c);
    assert_true(json_is_true(json_object_get(armed, "armed")));
    json_decref(armed);
    for (int i = 0; i < 8; i++)
        ask(&c, i, ANSWER);
    struct pollfd entry = {.fd = c.fd, .events = POLLIN};
    while (poll(&entry, 1, UNIT_PATIENCE_MS) > 0 && recv(c.fd, &byte, 1, 0) > 0)
        continue;
    int status = unit_wait(e->launcher);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 0);
    close_client(&c);
    for (uint32_t i = 0; i < RANKS; i++) {
        char last[64];
        (void)count_events(e, i, "join", last);
        assert_string_not_equal(last, "end");
    }
}

static void drills_end_a_rank_where_they_say(void **state)
{
    struct engine e;
    (void)state;
    run_drill(&e, "1", "prefill", 1);
    assert_int_equal(count_events(&e, 0, "token", NULL), 0);
    assert_true(count_events(&e, 1, "write", NULL) > 0);
    remove_engine(&e);
    run_drill(&e, "0", "decode", 3);
    assert_true(count_events(&e, 0, "token", NULL) > 0);
    remove_engine(&e);
    run_drill(&e, "1", "seal", 5);
    assert_int_equal(count_events(&e, 1, "seal", NULL), 4);
    assert_true(count_events(&e, 1, "write", NULL) >= 5);
    remove_engine(&e);
    run_drill(&e, "\"all\"", "seal", 5);
    assert_true(count_events(&e, 0, "seal", NULL) <= 4); /* fewer: ended along with a faster rank */
    assert_true(count_events(&e, 1, "seal", NULL) <= 4);
    assert_int_equal(count_events(&e, 0, "seal", NULL) == 4 || count_events(&e, 1, "seal", NULL) == 4, 1);
    remove_engine(&e);
}

static void four_ranks_do_as_two(void **state)
{
    static struct answers together, alone;
    struct engine e;
    struct client c;
    (void)state;
    start_engine(&e, "4", NULL);
    connect_client(&e, &c);
    for (int i = 0; i < 4; i++)
        ask(&c, i, ANSWER);
    collect(&c, &together, 4);
    for (int i = 0; i < 4; i++) {
        ask(&c, i, ANSWER);
        collect(&c, &alone, 1);
        assert_memory_equal(alone.tokens[i], together.tokens[i], sizeof alone.tokens[i]);
    }
    close_client(&c);
    end_engine(&e);
    for (uint32_t rank = 1; rank < 4; rank++)
        assert_int_equal(count_events(&e, rank, "seal", NULL), count_events(&e, 0, "seal", NULL));
    remove_engine(&e);
}

static void clients_over_the_limit_are_told(void **state)
{
    enum { CLIENTS = 256 };
    static struct client clients[CLIENTS];
    struct client late;
    for (int i = 0; i < CLIENTS; i++)
        connect_client(*state, &clients[i]);
    assert_true(try_connect(*state, &late));
    expect_error(&late, "too many clients");
    close_client(&late);
    for (int i = 0; i < CLIENTS; i++)
        close_client(&clients[i]);
    /* And there is room again, once it has noticed that they left. */
    const uint64_t deadline = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    for (bool greeted = false; !greeted;) {
        assert_true(try_connect(*state, &late) && gms_clock_poll_ms(deadline) > 0);
        json_t *object = read_line(&late);
        greeted = json_object_get(object, "hello") != NULL;
        json_decref(object);
        close_client(&late);
    }
}

/* A client that asks for much and reads nothing loses its connection, and nobody else's answer waits for it. */
static void a_client_that_does_not_read_is_dropped(void **state)
{
    static struct answers answers;
    struct client deaf, c;
    connect_client(*state, &deaf);
    char *lines = malloc(LINE_BYTES);
    size_t used = 0;
    while (used < LINE_BYTES - 64) {
        memcpy(lines + used, "{\"op\":\"stats\"}\n", 15);
        used += 15;
    }
    int flags = fcntl(deaf.fd, F_GETFL);
    fcntl(deaf.fd, F_SETFL, flags | O_NONBLOCK);
    const uint64_t deadline = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    for (size_t at = 0;;) {
        ssize_t sent = send(deaf.fd, lines + at, used - at, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            break; /* dropped */
        at = sent > 0 ? (at + (size_t)sent) % used : at;
        struct pollfd entry = {.fd = deaf.fd, .events = POLLOUT};
        (void)poll(&entry, 1, 100);
        assert_true(gms_clock_poll_ms(deadline) > 0);
    }
    free(lines);
    close_client(&deaf);
    connect_client(*state, &c);
    ask(&c, 2, ANSWER);
    collect(&c, &answers, 1);
    close_client(&c);
}

/* The socket of a later engine takes the path over, and the first one does not remove it when it ends. */
static void engines_may_share_a_path(void **state)
{
    struct engine first, second;
    struct client c;
    char listen[4096];
    (void)state;
    start_engine(&first, "1", NULL);
    connect_client(&first, &c);
    close_client(&c);
    snprintf(listen, sizeof listen, "--listen=unix:%s/s", first.directory);
    start_engine(&second, "1", listen);
    char path[4096];
    snprintf(path, sizeof path, "%s/engine0.0.0.log", second.directory);
    const uint64_t deadline = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    while (access(path, F_OK) != 0 || count_events(&second, 0, "serving", NULL) == 0) {
        assert_true(gms_clock_poll_ms(deadline) > 0);
        (void)poll(NULL, 0, 10);
    }
    end_engine(&first);
    connect_client(&first, &c); /* by path: this is the second */
    assert_int_equal(ask_stat(&c, "active"), 0);
    close_client(&c);
    end_engine(&second);
    snprintf(path, sizeof path, "%s/s", first.directory);
    assert_int_equal(access(path, F_OK), -1);
    remove_engine(&first);
    remove_engine(&second);
}

static int run_program(const char *a, const char *b)
{
    char program[4096];
    snprintf(program, sizeof program, "%s/minillm", getenv("GMS_BIN"));
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        execl(program, program, a, b, (char *)NULL);
        _exit(127);
    }
    int status = unit_wait(pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void options_are_checked_before_anything_starts(void **state)
{
    (void)state;
    assert_int_equal(run_program("--help", NULL), 0);
    assert_int_equal(run_program("--version", NULL), 0);
    assert_int_equal(run_program("--layers", "0"), 64);
    assert_int_equal(run_program("--layers", "4x"), 64);
    assert_int_equal(run_program("--poison", "9999"), 64);
    assert_int_equal(run_program("--log-level", "loud"), 64);
    assert_int_equal(run_program("extra", NULL), 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eight_streams_at_once_get_what_each_gets_alone),
        cmocka_unit_test(bad_lines_cost_others_nothing),
        cmocka_unit_test(a_line_without_end_is_refused_and_skipped),
        cmocka_unit_test(one_id_at_a_time),
        cmocka_unit_test(a_client_that_leaves_takes_its_requests_along),
        cmocka_unit_test(idle_ranks_do_not_run),
        cmocka_unit_test(clients_over_the_limit_are_told),
        cmocka_unit_test(a_client_that_does_not_read_is_dropped),
        cmocka_unit_test(drills_end_a_rank_where_they_say),
        cmocka_unit_test(four_ranks_do_as_two),
        cmocka_unit_test(engines_may_share_a_path),
        cmocka_unit_test(options_are_checked_before_anything_starts),
    };
    return cmocka_run_group_tests(tests, open_group, close_group);
}
