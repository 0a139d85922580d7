/* SPDX-License-Identifier: Apache-2.0
 *
 * gms-relay-bench: the relay's processor time a token. Before it an engine that computes nothing: a thread that gives
 * every stream one token a step, as a batching engine does. No coordinator: the relay reads the serving file.
 */
#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "http_streams.h"
#include "relay_program.h"

enum { STREAMS_MOST = 240, LINE_BYTES = 8192 };

struct seat { /* one stream in the engine */
    int fd;   /* -1: free */
    char id[129];
    uint32_t index; /* next token */
    size_t bytes;
    char line[LINE_BYTES];
};

struct bench {
    uint32_t streams, max_tokens, step_us;
    int listener;
    _Atomic bool stop;
    struct seat seats[STREAMS_MOST];
    struct http_streams clients;
    uint64_t finished, failed;
};

static void leave(struct seat *seat)
{
    gms_fd_close(&seat->fd);
    *seat = (struct seat){.fd = -1};
}

static void say(struct seat *seat, const char *text, size_t bytes)
{
    if (send(seat->fd, text, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)bytes)
        leave(seat);
}

static void let_in(struct bench *bench)
{
    static const char hello[] = "{\"hello\":\"minillm\",\"engine\":0,\"incarnation\":1,\"epoch\":1,\"pid\":1}\n";
    for (uint32_t i = 0; i < STREAMS_MOST; i++)
        if (bench->seats[i].fd < 0) {
            int fd = accept4(bench->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
            if (fd < 0)
                return;
            bench->seats[i].fd = fd;
            say(&bench->seats[i], hello, sizeof hello - 1);
        }
}

/* Reads the request's line; only its id matters. */
static void listen_to(struct seat *seat)
{
    ssize_t got = recv(seat->fd, seat->line + seat->bytes, sizeof seat->line - 1 - seat->bytes, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
        leave(seat);
        return;
    }
    seat->bytes += got > 0 ? (size_t)got : 0;
    seat->line[seat->bytes] = '\0';
    const char *id = strstr(seat->line, "\"id\":\"");
    if (memchr(seat->line, '\n', seat->bytes) == NULL || id == NULL)
        return;
    snprintf(seat->id, sizeof seat->id, "%.*s", (int)strcspn(id + 6, "\""), id + 6);
}

static void give_token(struct bench *bench, struct seat *seat)
{
    char text[512];
    int length;
    if (seat->index < bench->max_tokens)
        length = snprintf(text, sizeof text, "{\"id\":\"%s\",\"index\":%u,\"token\":120,\"text\":\"x\"}\n", seat->id,
                          seat->index);
    else
        length = snprintf(text, sizeof text,
                          "{\"id\":\"%s\",\"done\":true,\"reason\":\"length\",\"prompt_tokens\":9,\"cached_tokens\":0,"
                          "\"computed_tokens\":9}\n",
                          seat->id);
    say(seat, text, (size_t)length);
    if (seat->index++ == bench->max_tokens)
        seat->id[0] = '\0';
}

static void *compute_nothing(void *context)
{
    struct bench *bench = context;
    struct pollfd set[STREAMS_MOST + 1];
    uint64_t step_ns = gms_clock_ns();
    while (!atomic_load(&bench->stop)) {
        step_ns += bench->step_us * UINT64_C(1000);
        do {
            for (uint32_t i = 0; i < STREAMS_MOST; i++)
                set[i] = (struct pollfd){.fd = bench->seats[i].fd, .events = POLLIN};
            set[STREAMS_MOST] = (struct pollfd){.fd = bench->listener, .events = POLLIN};
            int ready = poll(set, STREAMS_MOST + 1, gms_clock_poll_ms(step_ns));
            for (uint32_t i = 0; ready > 0 && i < STREAMS_MOST; i++)
                if (set[i].revents != 0 && bench->seats[i].fd >= 0)
                    listen_to(&bench->seats[i]);
            if (ready > 0 && set[STREAMS_MOST].revents != 0)
                let_in(bench);
        } while (gms_clock_ns() < step_ns);
        for (uint32_t i = 0; i < STREAMS_MOST; i++)
            if (bench->seats[i].fd >= 0 && bench->seats[i].id[0] != '\0')
                give_token(bench, &bench->seats[i]);
    }
    return NULL;
}

static void on_finished(void *context, struct http_stream *stream)
{
    struct bench *bench = context;
    bench->finished++;
    if (stream->failed || stream->tokens != bench->max_tokens) {
        if (bench->failed++ == 0)
            fprintf(stderr, "a stream failed: %s\n", stream->error);
    }
}

static bool publish(struct bench *bench, const char *run_dir)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char path[DRILL_PATH_BYTES + 16], text[DRILL_PATH_BYTES];
    snprintf(address.sun_path, sizeof address.sun_path, "%.90s/e0", run_dir);
    bench->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    snprintf(path, sizeof path, "%s/serving", run_dir);
    int length = snprintf(text, sizeof text, "{\"epoch\":1,\"engine\":0,\"incarnation\":1,\"endpoint\":\"unix:%s\"}",
                          address.sun_path);
    return bench->listener >= 0 && bind(bench->listener, (struct sockaddr *)&address, sizeof address) == 0 &&
           listen(bench->listener, 512) == 0 && gms_file_replace(path, text, (size_t)length, NULL) == GMS_OK;
}

static void stream(struct bench *bench, uint32_t seconds)
{
    uint64_t end_ns = gms_clock_ns() + seconds * GMS_NS_PER_S;
    while (gms_clock_ns() < end_ns || http_streams_busy(&bench->clients) > 0) {
        for (uint32_t i = 0; i < bench->streams && gms_clock_ns() < end_ns && bench->failed == 0; i++)
            if (!bench->clients.items[i].busy) {
                const struct http_ask ask = {.prompt = "Once upon", .max_tokens = bench->max_tokens, .seed = 1};
                http_stream_ask(&bench->clients, &bench->clients.items[i], &ask);
            }
        http_streams_pump(&bench->clients, gms_clock_ns() + 50 * GMS_NS_PER_MS);
    }
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

static uint32_t number(const char *text, uint32_t least, uint32_t most)
{
    uint64_t value = 0;
    struct gms_error error;
    if (drill_number_parse("number", text, least, most, &value, &error) != GMS_OK) {
        fprintf(stderr, "gms-relay-bench: %s\n", error.text);
        exit(64);
    }
    return (uint32_t)value;
}

int main(int argc, char **argv)
{
    static struct bench bench = {.streams = 200, .max_tokens = 64, .step_us = 20000, .listener = -1};
    static struct drill_deployment deployment;
    static struct drill_plan plan;
    struct drill_process *relay;
    struct gms_error error;
    uint16_t port;
    pthread_t engine;
    uint32_t seconds = 5;
    if (argc > 1 && (argv[1][0] < '0' || argv[1][0] > '9')) {
        printf("gms-relay-bench [STREAMS [TOKENS [STEP_US [SECONDS]]]]   (200 64 20000 5)\n");
        return 64;
    }
    bench.streams = argc > 1 ? number(argv[1], 1, STREAMS_MOST) : bench.streams;
    bench.max_tokens = argc > 2 ? number(argv[2], 1, 4096) : bench.max_tokens;
    bench.step_us = argc > 3 ? number(argv[3], 1, 1000000) : bench.step_us;
    seconds = argc > 4 ? number(argv[4], 1, 600) : seconds;
    gms_signals_reset();
    for (uint32_t i = 0; i < STREAMS_MOST; i++)
        bench.seats[i].fd = -1;
    drill_plan_defaults(&plan);
    deployment.plan = &plan;
    snprintf(deployment.dir, sizeof deployment.dir, "/tmp/gms-bench-XXXXXX");
    gms_status status = drill_plan_complete(&plan, &error);
    if (status == GMS_OK)
        status = drill_processes_prepare(&error);
    if (status == GMS_OK && mkdtemp(deployment.dir) == NULL)
        status = gms_fail(&error, GMS_E_SYSTEM, "no scratch directory: %s", strerror(errno));
    snprintf(deployment.run_dir, sizeof deployment.run_dir, "%.500s", deployment.dir);
    if (status == GMS_OK && !publish(&bench, deployment.run_dir))
        status = gms_fail(&error, GMS_E_SYSTEM, "the engine cannot listen: %s", strerror(errno));
    if (status == GMS_OK)
        status = relay_program_start(&deployment, &relay, &port, &error);
    if (status == GMS_OK && (!http_streams_open(&bench.clients, port, bench.streams) ||
                             pthread_create(&engine, NULL, compute_nothing, &bench) != 0))
        status = gms_fail(&error, GMS_E_SYSTEM, "no memory or thread");
    if (status != GMS_OK) {
        fprintf(stderr, "gms-relay-bench: %s\n", error.text);
        return 2;
    }
    bench.clients.finished = on_finished;
    bench.clients.context = &bench;
    char *before = http_get(port, "/metrics", gms_clock_ns() + 5 * GMS_NS_PER_S);
    uint64_t begun_ns = gms_clock_ns();
    stream(&bench, seconds);
    double took_s = (double)(gms_clock_ns() - begun_ns) / 1e9;
    char *after = http_get(port, "/metrics", gms_clock_ns() + 5 * GMS_NS_PER_S);
    double tokens = http_metric(after, "gms_relay_tokens_total") - http_metric(before, "gms_relay_tokens_total");
    double cpu_s =
        http_metric(after, "gms_relay_cpu_seconds_total") - http_metric(before, "gms_relay_cpu_seconds_total");
    printf(
        "%u streams of %u tokens, a step every %u us: %.0f tokens a second, %.2f us of the relay a token (%.0f %% of "
        "a core), %" PRIu64 " answers, %" PRIu64 " failed\n",
        bench.streams, bench.max_tokens, bench.step_us, tokens / took_s, cpu_s * 1e6 / tokens, 100 * cpu_s / took_s,
        bench.finished, bench.failed);
    free(before);
    free(after);
    atomic_store(&bench.stop, true);
    pthread_join(engine, NULL);
    http_streams_close(&bench.clients);
    drill_process_end(relay, 3000);
    for (uint32_t i = 0; i < STREAMS_MOST; i++)
        gms_fd_close(&bench.seats[i].fd);
    gms_fd_close(&bench.listener);
    nftw(deployment.dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return bench.failed == 0 && tokens > 0 ? 0 : 1;
}
