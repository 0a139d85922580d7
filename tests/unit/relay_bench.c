/* SPDX-License-Identifier: Apache-2.0 */
#include "relay_bench.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/run_dir.h"
#include "wire/channel.h"

static uint64_t patience(void)
{
    return gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
}

/* ----------------------------------------------------------------------------------------------- the relay ---- */

int bench_setup(void **state)
{
    struct relay_bench *bench = calloc(1, sizeof *bench);
    void *dir;
    char path[GMS_RUN_PATH_BYTES];
    if (bench == NULL || unit_make_dir(&dir) != 0)
        return -1;
    bench->dir = dir;
    bench->coordinator = bench->pidfd = -1;
    bench->buffer = malloc(GMS_WIRE_MAX_BYTES);
    snprintf(bench->out_path, sizeof bench->out_path, "%s/out", bench->dir);
    snprintf(bench->err_path, sizeof bench->err_path, "%s/err", bench->dir);
    if (gms_run_dir_path(bench->dir, "c", 0, path, NULL) != GMS_OK ||
        gms_channel_listen(path, &bench->listener, NULL) != GMS_OK)
        return -1;
    *state = bench;
    return 0;
}

int bench_teardown(void **state)
{
    struct relay_bench *bench = *state;
    void *dir = bench->dir;
    if (bench->pid != 0) {
        gms_pidfd_signal(bench->pidfd, SIGKILL);
        waitpid(bench->pid, NULL, 0);
    }
    gms_fd_close(&bench->pidfd);
    gms_fd_close(&bench->coordinator);
    gms_fd_close(&bench->listener);
    unit_remove_dir(&dir);
    free(bench->buffer);
    free(bench);
    return 0;
}

static void receive(struct relay_bench *bench, enum gms_message_type type, struct gms_message *ret_message)
{
    struct gms_error error;
    assert_ok(gms_channel_receive_until(bench->coordinator, bench->buffer, patience(), ret_message, &error));
    gms_message_close_fds(ret_message);
    assert_string_equal(gms_message_name(ret_message->type), gms_message_name(type));
}

static void say(struct relay_bench *bench, const struct gms_message *message)
{
    struct gms_error error;
    assert_ok(gms_channel_send(bench->coordinator, message, &error));
}

void bench_accept_watch(struct relay_bench *bench)
{
    struct pollfd wait = {.fd = bench->listener, .events = POLLIN};
    struct gms_message message;
    struct gms_error error;
    gms_fd_close(&bench->coordinator);
    assert_int_equal(poll(&wait, 1, UNIT_PATIENCE_MS), 1);
    assert_ok(gms_channel_accept(bench->listener, &bench->coordinator, NULL, NULL, &error));
    receive(bench, GMS_MESSAGE_HELLO, &message);
    assert_int_equal(message.hello.role, GMS_CLIENT_CONTROL);
    struct gms_message welcome = {.type = GMS_MESSAGE_WELCOME, .request_id = message.request_id};
    welcome.welcome.world = welcome.welcome.world_size = 1;
    welcome.welcome.version = (struct gms_bytes){"t", 1};
    say(bench, &welcome);
    receive(bench, GMS_MESSAGE_WATCH, &message);
}

void bench_serves(struct relay_bench *bench, int engine, uint64_t incarnation, uint64_t epoch, const char *endpoint)
{
    struct gms_message message = {.type = GMS_MESSAGE_SERVES};
    message.serves.world = 1;
    message.serves.engine = engine;
    message.serves.incarnation = incarnation;
    message.serves.epoch = epoch;
    message.serves.endpoint = (struct gms_bytes){endpoint, (uint32_t)strlen(endpoint)};
    say(bench, &message);
}

static uint16_t read_port(struct relay_bench *bench)
{
    uint64_t deadline_ns = patience();
    while (gms_clock_ns() < deadline_ns && !gms_pidfd_ended(bench->pidfd)) {
        char text[256] = "";
        int fd = open(bench->out_path, O_RDONLY | O_CLOEXEC);
        ssize_t got = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
        gms_fd_close(&fd);
        unsigned port;
        if (got > 0 && strchr(text, '\n') != NULL && sscanf(text, "listening on http://127.0.0.1:%u", &port) == 1)
            return (uint16_t)port;
        poll(NULL, 0, 5);
    }
    fail_msg("gms-relay does not listen");
    return 0;
}

void bench_start(struct relay_bench *bench, const char *const *words)
{
    const char *directory = getenv("GMS_BIN"), *argv[32];
    char program[512];
    size_t count = 0;
    if (directory == NULL)
        fail_msg("GMS_BIN is not set: run this through ctest");
    snprintf(program, sizeof program, "%s/gms-relay", directory);
    const char *const first[] = {program, "--run-dir", bench->dir, "--listen", "127.0.0.1:0"};
    for (; count < sizeof first / sizeof first[0]; count++)
        argv[count] = first[count];
    for (; *words != NULL; words++)
        argv[count++] = *words;
    argv[count] = NULL;
    unlink(bench->out_path); /* an earlier one's port */
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
    bench->port = read_port(bench);
    bench_accept_watch(bench);
}

int bench_stop(struct relay_bench *bench)
{
    gms_pidfd_signal(bench->pidfd, SIGTERM);
    int status = unit_wait(bench->pid);
    bench->pid = 0;
    gms_fd_close(&bench->pidfd);
    assert_true(status != -1);
    if (!WIFEXITED(status))
        fail_msg("gms-relay ended with signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

double bench_metric(struct relay_bench *bench, const char *name)
{
    char wanted[128];
    struct peer peer = client_get(bench, "/metrics");
    peer_until(&peer, "resident_bytes_most ");
    peer_until(&peer, "\n");
    snprintf(wanted, sizeof wanted, "\n%s ", name);
    const char *at = strstr(peer.text, wanted);
    if (at == NULL)
        fail_msg("no metric %s", name);
    double value = strtod(at + strlen(wanted), NULL);
    peer_close(&peer);
    return value;
}

void bench_await_metric(struct relay_bench *bench, const char *name, double value)
{
    uint64_t deadline_ns = patience();
    double got;
    while ((got = bench_metric(bench, name)) != value) {
        if (gms_clock_ns() > deadline_ns)
            fail_msg("%s is %g and not %g", name, got, value);
        poll(NULL, 0, 5);
    }
}

/* ------------------------------------------------------------------------------------------------- engines ---- */

int engine_listen(const struct relay_bench *bench, const char *name, char ret_endpoint[160])
{
    int fd;
    if (name == NULL) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t bytes = sizeof address;
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
        assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
        snprintf(ret_endpoint, 160, "http://127.0.0.1:%d", ntohs(address.sin_port));
    } else {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        snprintf(address.sun_path, sizeof address.sun_path, "%.80s/%.20s", bench->dir, name);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
        snprintf(ret_endpoint, 160, "unix:%s", address.sun_path);
    }
    assert_int_equal(listen(fd, 64), 0);
    return fd;
}

bool engine_is_asked(int listener, int timeout_ms)
{
    struct pollfd wait = {.fd = listener, .events = POLLIN};
    return poll(&wait, 1, timeout_ms) == 1;
}

struct peer engine_accept(int listener)
{
    struct peer peer = {.fd = -1};
    if (!engine_is_asked(listener, UNIT_PATIENCE_MS))
        fail_msg("the relay does not come to this engine");
    peer.fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(peer.fd >= 0);
    return peer;
}

const char *engine_greet(struct peer *peer, uint64_t incarnation, char ret_id[129])
{
    char hello[128];
    snprintf(hello, sizeof hello, "{\"hello\":\"minillm\",\"engine\":0,\"incarnation\":%llu,\"epoch\":1,\"pid\":1}\n",
             (unsigned long long)incarnation);
    peer_send(peer, hello);
    size_t from = peer->seen;
    peer_until(peer, "\n");
    const char *line = peer->text + from, *id = strstr(line, "\"id\":\"");
    assert_non_null(id);
    id += 6;
    size_t length = strcspn(id, "\"");
    assert_true(length > 0 && length < 129);
    memcpy(ret_id, id, length);
    ret_id[length] = '\0';
    return line;
}

void engine_token(struct peer *peer, const char *id, uint32_t index, char letter)
{
    char line[256];
    snprintf(line, sizeof line, "{\"id\":\"%s\",\"index\":%u,\"token\":%d,\"text\":\"%c\"}\n", id, index, letter,
             letter);
    peer_send(peer, line);
}

void engine_done(struct peer *peer, const char *id, uint32_t prompt)
{
    char line[256];
    snprintf(line, sizeof line,
             "{\"id\":\"%s\",\"done\":true,\"reason\":\"length\",\"prompt_tokens\":%u,\"cached_tokens\":0,"
             "\"computed_tokens\":%u}\n",
             id, prompt, prompt);
    peer_send(peer, line);
}

void bench_begin(struct relay_bench *bench, const char *const *words, enum bench_kind kind,
                 struct bench_engines *ret_engines)
{
    static const char *const names[BENCH_ENGINES] = {"e0", "e1", "e2"};
    bench_start(bench, words);
    for (int i = 0; i < BENCH_ENGINES; i++)
        ret_engines->listener[i] =
            engine_listen(bench, kind == BENCH_MINILLM ? names[i] : NULL, ret_engines->endpoint[i]);
    bench_serves(bench, 0, 1, 1, ret_engines->endpoint[0]);
    bench_await_metric(bench, "gms_relay_serving_engine", 0);
}

void bench_end(struct relay_bench *bench, struct bench_engines *engines)
{
    for (int i = 0; i < BENCH_ENGINES; i++)
        gms_fd_close(&engines->listener[i]);
    assert_int_equal(bench_stop(bench), 0);
}

struct peer engine_asked(int listener, const char *path, const char *part)
{
    struct peer peer = engine_accept(listener);
    peer_until(&peer, path);
    peer_until(&peer, "\r\n\r\n");
    peer_until(&peer, part);
    return peer;
}

/* ------------------------------------------------------------------------------------------------- clients ---- */

struct peer client_connect(const struct relay_bench *bench)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(bench->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct peer peer = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    assert_int_equal(connect(peer.fd, (struct sockaddr *)&address, sizeof address), 0);
    return peer;
}

struct peer client_post(const struct relay_bench *bench, const char *path, const char *body)
{
    char head[256];
    struct peer peer = client_connect(bench);
    snprintf(head, sizeof head,
             "POST %s HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", path,
             strlen(body));
    peer_send(&peer, head);
    peer_send(&peer, body);
    return peer;
}

struct peer client_get(const struct relay_bench *bench, const char *path)
{
    char head[256];
    struct peer peer = client_connect(bench);
    snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: t\r\n\r\n", path);
    peer_send(&peer, head);
    return peer;
}

void peer_send_bytes(struct peer *peer, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t sent = send(peer->fd, data, bytes, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
            return; /* what the other end did is looked at elsewhere */
        assert_true(sent > 0);
        data += sent;
        bytes -= (size_t)sent;
    }
}

void peer_send(struct peer *peer, const char *text)
{
    peer_send_bytes(peer, text, strlen(text));
}

/* Reads what there is. False: nothing came until the deadline. */
static bool read_more(struct peer *peer, uint64_t deadline_ns)
{
    struct pollfd wait = {.fd = peer->fd, .events = POLLIN};
    if (poll(&wait, 1, gms_clock_poll_ms(deadline_ns)) != 1)
        return false;
    if (peer->bytes + 65536 + 1 > peer->capacity) {
        peer->capacity = 2 * (peer->bytes + 65536 + 1);
        peer->text = realloc(peer->text, peer->capacity);
        assert_non_null(peer->text);
    }
    ssize_t got = recv(peer->fd, peer->text + peer->bytes, 65536, 0);
    if (got <= 0)
        peer->ended = true;
    else
        peer->bytes += (size_t)got;
    peer->text[peer->bytes] = '\0';
    return true;
}

void peer_until(struct peer *peer, const char *part)
{
    uint64_t deadline_ns = patience();
    for (;;) {
        const char *at = peer->text != NULL ? strstr(peer->text + peer->seen, part) : NULL;
        if (at != NULL) {
            peer->seen = (size_t)(at - peer->text) + strlen(part);
            return;
        }
        if (peer->ended || !read_more(peer, deadline_ns))
            fail_msg("%s before '%s' came; there is: %s", peer->ended ? "the end" : "the deadline", part,
                     peer->text != NULL ? peer->text + peer->seen : "");
    }
}

void peer_end(struct peer *peer)
{
    uint64_t deadline_ns = patience();
    while (!peer->ended)
        if (!read_more(peer, deadline_ns))
            fail_msg("the connection does not end; there is: %s", peer->text != NULL ? peer->text + peer->seen : "");
}

bool peer_has(const struct peer *peer, const char *part)
{
    return peer->text != NULL && strstr(peer->text, part) != NULL;
}

void peer_text(const struct peer *peer, char *ret_text, size_t capacity)
{
    static const char begin[] = "\"text\":\"";
    size_t used = 0;
    for (const char *at = peer->text; at != NULL && (at = strstr(at, begin)) != NULL;) {
        at += strlen(begin);
        size_t length = strcspn(at, "\"");
        assert_true(used + length < capacity);
        memcpy(ret_text + used, at, length);
        used += length;
        at += length;
    }
    ret_text[used] = '\0';
}

void peer_close(struct peer *peer)
{
    gms_fd_close(&peer->fd);
    free(peer->text);
    *peer = (struct peer){.fd = -1};
}
