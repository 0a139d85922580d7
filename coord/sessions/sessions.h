/* SPDX-License-Identifier: Apache-2.0
 *
 * The rank's socket RUN/c<rank>: engine ranks, gms-exec and gms-ctl. This file accepts, greets, frames, bounds and
 * hangs up; what a message means is requests.c's business.
 *
 * Rules: only the deployment's user; HELLO within five seconds; one session per engine id; at most GMS_SESSIONS_MAX
 * connections (a newcomer displaces the oldest that has not said HELLO, else the oldest gms-ctl or gms-exec, never an
 * engine rank); a malformed frame is answered once and ends the connection; nothing here blocks on a client: what it
 * does not read waits in a bounded queue, and at the bound the client is dropped.
 *
 * A session ends at end of file or when the process behind its pidfd ends, whichever comes first; what the client had
 * sent before is handled before. Main thread only.
 */
#ifndef GMS_COORD_SESSIONS_H
#define GMS_COORD_SESSIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/core.h"
#include "vmm/devices.h"
#include "wire/message.h"

struct event;
struct event_base;
struct gms_sessions;

enum {
    GMS_SESSIONS_MAX = 256,  /* connections; fewer where the limit of descriptors is low */
    GMS_SESSIONS_LEAST = 24, /* all engine ranks, their gms-exec, and some */
    GMS_SESSIONS_RESERVED_DESCRIPTORS = 128,
    GMS_SESSIONS_PAUSE_MS = 50, /* before accepting again when that failed */
    GMS_SESSIONS_QUEUE_MESSAGES = 64,
    GMS_SESSIONS_QUEUE_BYTES = 1024 * 1024,
    GMS_SESSIONS_HELLO_SECONDS = 5, /* a stalled machine takes some; the silent make room first when others come */
    GMS_SESSION_WAITS = 16,         /* transfers one session may wait for at once */
    GMS_LAUNCH_BYTES = 128,
};

/* Where a cohort lives: how it is ended and how its end is proven (wire/message.h). Descriptors -1: none. */
struct gms_container {
    uint32_t kind; /* enum gms_container_kind, 0: no container */
    int guardian_fd, engine_fd, exec_fd, cgroup_fd;
};
#define GMS_NO_CONTAINER ((struct gms_container){.guardian_fd = -1, .engine_fd = -1, .exec_fd = -1, .cgroup_fd = -1})
void gms_container_close(struct gms_container *container);
/* Copies with descriptors of their own; on failure (DESCRIPTORS) *ret_copy is empty. */
gms_status gms_container_copy(const struct gms_container *container, struct gms_container *ret_copy,
                              struct gms_error *ret_error);

/* An engine rank's collective call, kept until its answer: geometry and payload are this rank's own business. */
struct gms_call {
    struct gms_proposal proposal;
    uint32_t request_id, slot_count;
    uint64_t block_bytes, bytes, local_digest;
    void *payload; /* owned */
    uint32_t payload_bytes;
};

struct gms_client {
    uint64_t id;               /* names the session in the core; never 0, never used again */
    enum gms_client_role role; /* 0 until greeted */
    uint32_t engine_id;        /* engine and exec */
    pid_t pid;                 /* as this namespace sees it; 0: outside */
    char launch[GMS_LAUNCH_BYTES];
    int pidfd;                      /* owned; the engine's */
    struct gms_container container; /* owned; the engine's */

    /* requests.c's and daemon.c's notes */
    uint64_t incarnation;     /* 0 until joined */
    uint64_t identity_digest; /* of its KV, as it said when it joined */
    bool leaving, condemned;
    bool told_to_end;             /* engine: by a signal to its gms-exec */
    bool attached_again;          /* it has not repeated READY yet */
    bool watches;                 /* control: it is told who serves, with every change */
    bool has_copies;              /* exec: it was sent the whole list, and is told of every change */
    uint32_t environment_request; /* exec: asked for its environment, not answered yet; 0: no */
    struct gms_call call;
    char endpoint[256];
    uint32_t transfer_request; /* the DISPATCH or END that is being answered */
    struct {
        uint64_t id; /* 0: free */
        uint32_t request_id;
    } waits[GMS_SESSION_WAITS];

    /* sessions.c's own */
    struct gms_sessions *sessions;
    struct gms_client *next;
    int fd;
    struct event *readable, *writable, *ended;
    struct gms_outgoing *queue, **queue_tail;
    uint32_t queue_messages;
    size_t queue_bytes;
    bool doomed;
    char doom_text[GMS_ERROR_TEXT_BYTES];
};

struct gms_sessions_options {
    const char *run_dir; /* borrowed for the call */
    uint64_t world;
    uint32_t rank, world_size, operation_timeout_ms;
    bool kv_verify_full, on_device;
    struct gms_uuid device;
    const char *preset;            /* borrowed, like `parking`: how engines park */
    const struct gms_tag *parking; /* the preset's tags */
    uint32_t parking_count;
    /* A greeted client said something. `message` and its descriptors are borrowed: what the handler takes it replaces
     * by -1. */
    void (*received)(void *context, struct gms_client *client, struct gms_message *message);
    /* An engine rank says that it joined before, as `incarnation`, with `secret` (`hello` has the rest). OK: it is whom
     * it says, *ret_contained tells whether its cohort is known by its container. Else the words for it. */
    gms_status (*recognise)(void *context, const struct gms_client *client, const struct gms_message *hello,
                            bool *ret_contained, struct gms_error *ret_error);
    /* It has been greeted; client->incarnation is set. */
    void (*attached)(void *context, struct gms_client *client);
    /* A greeted client is no more (`why` for the log); its fields are valid during the call and may be moved out. */
    void (*gone)(void *context, struct gms_client *client, const char *why);
    void *context;
};

/* Errors: those of gms_channel_listen, NO_MEMORY, SYSTEM. */
gms_status gms_sessions_open(struct event_base *base, const struct gms_sessions_options *options,
                             struct gms_sessions **ret_sessions, struct gms_error *ret_error);
void gms_sessions_close(struct gms_sessions *sessions); /* NULL allowed; `gone` is not called */

struct gms_client *gms_sessions_find(struct gms_sessions *sessions, uint64_t id); /* NULL: gone */
struct gms_client *gms_sessions_engine(struct gms_sessions *sessions, uint32_t engine_id);
uint32_t gms_sessions_count(const struct gms_sessions *sessions);

/* Oldest last; NULL after the last. Do not end sessions meanwhile. */
struct gms_client *gms_sessions_next(struct gms_sessions *sessions, const struct gms_client *after);

/* What gms-exec says about the next cohort of its engine, for the engine rank of the same launch to take. On success
 * the descriptors are moved in. Errors: PROTOCOL (not pidfds), INVALID (ended, or ourselves), BUSY (another launch's
 * cohort is starting). */
gms_status gms_sessions_offer_container(struct gms_sessions *sessions, const struct gms_client *exec,
                                        struct gms_container *container, struct gms_error *ret_error);

/* Sends now or queues; never blocks, never ends the session inside the call. `message` and descriptors borrowed. */
void gms_sessions_send(struct gms_client *client, const struct gms_message *message);
/* A REPLY with a status and words, for requests that are not collective calls. */
void gms_sessions_answer(struct gms_client *client, uint32_t request_id, gms_status status, const char *text);
/* Ends the session from the loop, soon: `gone` will be called with `why`. What is still queued then is dropped. */
void gms_sessions_hang_up(struct gms_client *client, const char *why);

/* Frees the descriptor of a session that can best be spared: one that has not said HELLO, else gms-ctl or gms-exec,
 * never an engine rank. It ends from the loop then. False: there is none. */
bool gms_sessions_spare(struct gms_sessions *sessions);

/* Forgets the pending call and frees its payload. */
void gms_call_clear(struct gms_call *call);

#endif
