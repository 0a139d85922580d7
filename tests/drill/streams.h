/* SPDX-License-Identifier: Apache-2.0
 *
 * Client streams: one connection each, minillm's protocol (examples/minillm/README.md), all on one poll loop. A stream
 * whose engine dies waits for the next endpoint and re-sends its prompt and the tokens that it has; every token keeps
 * the time of its arrival. The endpoint comes from the run directory's `serving` file, watched by inotify.
 *
 *   HELD --start--> WAITING --endpoint known, connected--> GREETING --hello--> RUNNING --done--> DONE
 *                     ^                                        |                  |  \--error line, bad index...-->
 * FAILED
 *                     +----------- connection ends ------------+------------------+
 */
#ifndef GMS_DRILL_STREAMS_H
#define GMS_DRILL_STREAMS_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "cluster.h"
#include "plan.h"

enum drill_stream_state {
    DRILL_STREAM_HELD,
    DRILL_STREAM_WAITING,
    DRILL_STREAM_GREETING,
    DRILL_STREAM_RUNNING,
    DRILL_STREAM_DONE,
    DRILL_STREAM_FAILED,
    DRILL_STREAM_STATE_COUNT
};

struct drill_token {
    uint32_t token;
    uint64_t at_ns;
    uint64_t incarnation; /* of the engine that made it */
};

/* One connection's proof of who is at the other end. */
struct drill_greeting {
    uint32_t engine;
    uint64_t incarnation, epoch;
    int32_t claimed_pid;      /* as the hello line says, in the engine's own PID namespace */
    pid_t peer_pid;           /* SO_PEERCRED of the socket, in ours */
    bool namespaced_pid_fits; /* /proc/<peer>/status NSpid ends with claimed_pid, looked up while it was connected */
};

struct drill_stream {
    char id[16];
    const char *prompt; /* borrowed */
    uint64_t seed;
    double temperature;
    uint32_t max_tokens;
    uint32_t control; /* index of the undisturbed stream that it must equal */
    bool probe;       /* a new request that is timed through a failover */

    enum drill_stream_state state;
    int fd;
    char *in; /* received, not yet a whole line */
    size_t in_bytes;
    char *out; /* request not yet sent */
    size_t out_bytes, out_sent;
    uint64_t retry_ns; /* connecting failed: not before this */

    struct drill_token *tokens;
    uint32_t token_count;
    uint32_t resumes;            /* times it re-sent what it had */
    uint32_t resent_tokens;      /* tokens re-sent the last time */
    uint64_t broken_incarnation; /* of the engine whose connection ended last; 0: none */
    uint64_t started_ns, done_ns;
    struct drill_greeting greeting;
    uint64_t prompt_tokens, cached_tokens, salvaged_tokens, computed_tokens; /* of its last request, when done */
    char error[160];
};

struct drill_serving {
    int32_t engine;
    uint64_t incarnation, epoch;
    char endpoint[DRILL_ENDPOINT_BYTES];
};

struct drill_streams {
    char run_dir[DRILL_PATH_BYTES];
    int inotify; /* owned */
    struct drill_serving serving;
    uint64_t killed_incarnation; /* its connections may end; others may not */
    uint64_t lost_incarnation;   /* but for those of a successor that is to die as well; 0: none */
    size_t count, capacity;
    struct drill_stream *items;
};

/* Errors: SYSTEM, NO_MEMORY. Owned by the caller, freed by drill_streams_close (half-built ones allowed). */
gms_status drill_streams_open(const char *run_dir, size_t capacity, struct drill_streams *ret_streams,
                              struct gms_error *ret_error);
void drill_streams_close(struct drill_streams *streams);

/* Adds a held stream. `id` copied; `prompt` borrowed for the set's life. NULL: the set is full or there is no memory.
 */
struct drill_stream *drill_streams_add(struct drill_streams *streams, const char *id, const char *prompt, uint64_t seed,
                                       double temperature, uint32_t max_tokens);
void drill_stream_start(struct drill_stream *stream);

/*
 * One turn of the loop: waits until `deadline_ns` at most for anything to happen, connects what waits, reads what came,
 * and looks at `extra` (borrowed, may be NULL: descriptors the caller wants to hear of too, revents filled in).
 */
void drill_streams_pump(struct drill_streams *streams, uint64_t deadline_ns, struct pollfd *extra, size_t extra_count);

/* Reads the serving file now. False: there is none, or it cannot be read. */
bool drill_streams_look(struct drill_streams *streams);

size_t drill_streams_in_state(const struct drill_streams *streams, enum drill_stream_state state);
uint64_t drill_streams_token_total(const struct drill_streams *streams);
/* Nothing is left to happen: every started stream is DONE or FAILED. */
bool drill_streams_finished(const struct drill_streams *streams);
/* First token that `incarnation` gave to any stream; 0: none yet. */
uint64_t drill_streams_first_token(const struct drill_streams *streams, uint64_t incarnation);

/* Connects to "unix:PATH" without blocking and reads who owns the socket. Errors: INVALID (not a Unix endpoint),
 * AGAIN (backlog full), DISCONNECTED, SYSTEM. */
gms_status drill_endpoint_connect(const char *endpoint, int *ret_fd, pid_t *ret_peer, struct gms_error *ret_error);
/* Does /proc/<pid>/status say that the process is `inner` in the innermost namespace that it is in? */
bool drill_pid_is(pid_t pid, int32_t inner);

/* Sends one line to the engine at `endpoint` and returns its answer's line (without the hello), bounded by
 * `deadline_ns`. For `arm` and `stats`. `ret_answer` of `bytes`. Errors: TIMEOUT, DISCONNECTED, INVALID. */
gms_status drill_endpoint_ask(const char *endpoint, const char *line, uint64_t deadline_ns, char *ret_answer,
                              size_t bytes, struct gms_error *ret_error);

#endif
