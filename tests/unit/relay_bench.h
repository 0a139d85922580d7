/* SPDX-License-Identifier: Apache-2.0
 *
 * gms-relay from all its sides: the program itself, and the test as its coordinator, its engines and its clients, in
 * one thread. Every wait has a deadline; nothing sleeps.
 */
#ifndef GMS_TESTS_RELAY_BENCH_H
#define GMS_TESTS_RELAY_BENCH_H

#include "unit_support.h"

#include "wire/message.h"

/* One end of a connection, with what came from the other. */
struct peer {
    int fd;                       /* owned */
    char *text;                   /* owned, NUL-terminated */
    size_t bytes, capacity, seen; /* seen: up to here peer_until has matched */
    bool ended;
};

struct relay_bench {
    char *dir;
    char out_path[128], err_path[128];
    int listener, coordinator; /* c0, and the relay's connection to it */
    uint8_t *buffer;
    pid_t pid;
    int pidfd;
    uint16_t port;
};

/* For cmocka's setup and teardown. */
int bench_setup(void **state);
int bench_teardown(void **state);

/* Starts gms-relay with `words` (NULL-terminated) and takes its subscription. */
void bench_start(struct relay_bench *bench, const char *const *words);
/* Takes the subscription of a relay whose coordinator had gone. */
void bench_accept_watch(struct relay_bench *bench);
/* Tells who serves; engine -1: nobody. */
void bench_serves(struct relay_bench *bench, int engine, uint64_t incarnation, uint64_t epoch, const char *endpoint);
/* SIGTERM, and its exit code. */
int bench_stop(struct relay_bench *bench);
/* A number of /metrics, found by the whole name before the blank. */
double bench_metric(struct relay_bench *bench, const char *name);
void bench_await_metric(struct relay_bench *bench, const char *name, double value);

/* The listening socket of an engine: unix:DIR/NAME, or http://127.0.0.1:PORT with NAME NULL. */
int engine_listen(const struct relay_bench *bench, const char *name, char ret_endpoint[160]);
/* A connection of the relay. */
struct peer engine_accept(int listener);
bool engine_is_asked(int listener, int timeout_ms);
/* Greets as `incarnation` and returns the request's line; the id in it is in `ret_id`. */
const char *engine_greet(struct peer *peer, uint64_t incarnation, char ret_id[129]);
/* A token line with the letter. */
void engine_token(struct peer *peer, const char *id, uint32_t index, char letter);
void engine_done(struct peer *peer, const char *id, uint32_t prompt);

/* Engines that listen, each with its number. */
enum bench_kind { BENCH_MINILLM, BENCH_OPENAI };
enum { BENCH_ENGINES = 3 };
struct bench_engines {
    int listener[BENCH_ENGINES];
    char endpoint[BENCH_ENGINES][160];
};

/* A relay with `words`, before engines of a kind; it has been told that engine 0 serves, as incarnation 1 under
 * epoch 1. */
void bench_begin(struct relay_bench *bench, const char *const *words, enum bench_kind kind,
                 struct bench_engines *ret_engines);
/* All of it ends, the relay with exit code 0. */
void bench_end(struct relay_bench *bench, struct bench_engines *engines);
/* An OpenAI engine's connection, its request read up to `path` and then to `part` of its body. */
struct peer engine_asked(int listener, const char *path, const char *part);

struct peer client_connect(const struct relay_bench *bench);
/* POST with this body. */
struct peer client_post(const struct relay_bench *bench, const char *path, const char *body);
struct peer client_get(const struct relay_bench *bench, const char *path);

void peer_send(struct peer *peer, const char *text);
void peer_send_bytes(struct peer *peer, const char *data, size_t bytes);
/* Waits until `part` comes after what was seen before. Fails the test at the deadline, or at the end. */
void peer_until(struct peer *peer, const char *part);
/* Waits for the end of the connection. */
void peer_end(struct peer *peer);
bool peer_has(const struct peer *peer, const char *part);
/* The text of a stream of completions, its pieces put together. */
void peer_text(const struct peer *peer, char *ret_text, size_t capacity);
void peer_close(struct peer *peer);

#endif
