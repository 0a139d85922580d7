/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of this room share: a keeper and real coordinators under mpirun in a run directory of their own, and
 * engine ranks as children that call libgms.
 *
 * A test signals only its own children, and coordinators of its own run directory as named by their own status, all by
 * pidfd. Nothing here sleeps in place of an event: everything waits for something, with a deadline.
 */
#ifndef GMS_TESTS_MPI_HARNESS_H
#define GMS_TESTS_MPI_HARNESS_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "gms/engine.h"
#include "wire/message.h"

enum { HARNESS_RANKS = 8, HARNESS_VALUES = 20, HARNESS_DEADLINE_MS = 20000 };

/* ------------------------------------------------------------------------------------------------- cluster ----- */

struct cluster_options {
    uint32_t ranks;
    const char *operation_timeout; /* NULL: "5s" */
    const char *memory;            /* NULL: host, 64 MiB; cuda where GMS_TEST_MEMORY is set */
    const char *heartbeat;         /* NULL: "1s" */
    const char *verify;            /* NULL: "full" */
    const char *leave;             /* NULL: "1s" */
    const char *reclaim;           /* NULL: defaults; the group's text */
    const char *hooks;             /* NULL: none; the group's text */
    const char *more;              /* NULL: none; further settings */
    const char *environment;       /* NULL: { set = ( "MPI_TEST=1" ); } */
    bool report_exits;             /* the log gets a line "coordinator exit CODE" for each rank */
    const char *script; /* NULL, or what each rank's shell runs: $0 is gms-coord, $1 the log, then its words */
};

struct cluster {
    char directory[64], run_dir[96], config[96], log[96];
    uint32_t ranks;
    int keeper, launcher; /* pidfds */
    pid_t keeper_pid, launcher_pid;
    const char *script;
    int64_t world; /* of the coordinators that were seen last */
};

/* Starts and waits until every rank answers. Fails the test when it does not. */
void cluster_start(struct cluster *cluster, const struct cluster_options *options);
/* Starts the coordinators (again), with one more word on their command line (NULL: none), and does not wait. */
void cluster_launch(struct cluster *cluster, const char *word);
/* Waits until every rank answers in a world that is not the former one. Fails the test when none does. */
void cluster_await(struct cluster *cluster);
/* Launches and awaits. */
void cluster_relaunch(struct cluster *cluster, const char *word);
/* SIGKILL to one coordinator rank; -1: all of them. Then waits for the end of mpirun. */
void cluster_kill_coordinators(struct cluster *cluster, int32_t rank);
void cluster_kill_keeper(struct cluster *cluster);
void cluster_start_keeper(struct cluster *cluster);
/* Planned stop, checked: exit 0. Removes the directory. */
void cluster_stop(struct cluster *cluster);
/* Removes what is left of one whose coordinators have ended already (or are to be ended). */
void cluster_discard(struct cluster *cluster);
/* Waits for the end of mpirun; its exit code, or -1 at the deadline. */
int cluster_wait_end(struct cluster *cluster, int timeout_ms);

/* The status of one rank; the caller drops it. NULL: no answer. */
json_t *cluster_status(const struct cluster *cluster, uint32_t rank);
/* An integer member of the status, -1 where missing. */
int64_t cluster_number(const struct cluster *cluster, uint32_t rank, const char *name);
/* The coordinators' log, to stderr. */
void cluster_show_log(const struct cluster *cluster);
/* Is `text` in the coordinators' log? */
bool cluster_log_has(const struct cluster *cluster, const char *text);
/* A connected, greeted client. */
int cluster_client(const struct cluster *cluster, uint32_t rank, enum gms_client_role role, uint32_t engine);
/* One control request; the status of its answer. */
gms_status cluster_order(const struct cluster *cluster, uint32_t rank, struct gms_message *message);

/* A pidfd of the coordinator process of `rank`, found through its status; owned by the caller. */
int cluster_coordinator(const struct cluster *cluster, uint32_t rank);
/* How many lines of the log hold `text`. */
int cluster_log_count(const struct cluster *cluster, const char *text);
/* Starts a program, its output to `log`; it ends with this process. Both are the caller's to wait for and close. */
pid_t start_program(char *const words[], const char *log, int *ret_pidfd);
/* Starts a program with its output appended to `log`; the caller owns *ret_pidfd and waits for it. */
pid_t start_program(char *const words[], const char *log, int *ret_pidfd);
/* Runs a program until its end (killed at 20 s); its output goes to `log`. Returns its exit code. */
int run_program(char *const words[], const char *log);
/* Only the keeper and the directory with its deployment file: the coordinators are the test's business. */
void cluster_prepare(struct cluster *cluster, const struct cluster_options *options, bool keeper);
/* GMS_BIN/name. */
const char *program(const char *name, char path[512]);

/* Polls `ready` every few ms. False: not within the deadline. */
bool eventually(bool (*ready)(void *context), void *context, int timeout_ms);

/* ------------------------------------------------------------------------------------------------- engines ----- */

/* One engine rank, in memory that parent and child share. */
struct engine_rank {
    const struct cluster *cluster;
    uint32_t engine, rank, ranks;
    char launch[32];
    uint64_t argument;
    _Atomic int go;    /* the parent lets it pass gate number n by storing n or more */
    _Atomic int at;    /* the child has reached step n */
    gms_status status; /* first failure, or OK */
    char text[GMS_ERROR_TEXT_BYTES];
    int32_t error_rank;
    uint64_t values[HARNESS_VALUES];
    pid_t pid;
    int pidfd;
};

typedef gms_status (*engine_body)(struct engine_rank *rank, struct gms_error *error);

struct engine {
    struct engine_rank *ranks; /* shared memory */
    uint32_t count;
    bool ended[HARNESS_RANKS];
};

/* Forks one child per rank that runs `body`. `launch` tells starts apart. */
void engine_start(struct engine *engine, const struct cluster *cluster, uint32_t id, const char *launch,
                  engine_body body, uint64_t argument);
/* Lets all ranks pass gate `gate`. */
void engine_go(struct engine *engine, int gate);
/* Waits until all ranks have reached `step`; false at the deadline or when one has ended before. */
bool engine_reached(struct engine *engine, int step, int timeout_ms);
/* SIGKILL to one rank, by its pidfd. */
void engine_kill(struct engine *engine, uint32_t rank);
bool engine_rank_alive(const struct engine *engine, uint32_t rank);
/* Waits for the end of all ranks (kills them at the deadline and fails the test) and frees. The ranks' outcomes must be
 * read before. */
bool engine_wait_end(struct engine *engine, int timeout_ms);
void engine_finish(struct engine *engine);

/* For bodies. */
void rank_at(struct engine_rank *rank, int step);
/* Blocks until the parent's gate; the child ends when the parent is gone. */
void rank_gate(struct engine_rank *rank, int gate);
gms_status rank_open(struct engine_rank *rank, gms_session **ret_session, struct gms_error *error);
gms_status rank_join(gms_session *session, const struct engine_rank *rank, struct gms_membership *ret_membership,
                     struct gms_error *error);
/* The same with an identity of its own. */
gms_status rank_join_as(gms_session *session, const struct gms_identity *identity,
                        struct gms_membership *ret_membership, struct gms_error *error);
gms_status rank_attach_kv(gms_session *session, uint32_t slots, gms_pool **ret_pool, struct gms_error *error);
/* Attaches "weights" and publishes it where this engine must. */
gms_status rank_attach_weights(gms_session *session, gms_pool **ret_pool, struct gms_error *error);
/* park, promotion, adopt, wake, serve. */
gms_status rank_serve(gms_session *session, const char *endpoint, struct gms_adoption *ret_adoption,
                      struct gms_error *error);
/* A pool's contents, wherever they are; rank_byte: -1 where they cannot be read. */
gms_status rank_fill(gms_pool *pool, size_t offset, int byte, size_t bytes, struct gms_error *error);
int rank_byte(const gms_pool *pool, size_t offset);
/* Leases slot `slot`, fills it, seals it under a hash made of `slot`. */
gms_status rank_seal(gms_session *session, gms_pool *pool, uint32_t slot, struct gms_error *error);

/* ---------------------------------------------------------------------------------------------- whole lives ----- */

struct rank_life {
    gms_session *session;
    gms_pool *weights, *kv;
    struct gms_membership membership;
    struct gms_adoption adoption;
};

/* Up to being parked: session, join, weights, HARNESS_SLOTS of KV. */
gms_status rank_park(struct engine_rank *rank, struct rank_life *life, struct gms_error *error);
gms_status rank_park_without_weights(struct engine_rank *rank, struct rank_life *life, struct gms_error *error);
/* From there to serving, however long the promotion takes; `endpoint` is rank 0's word. */
gms_status rank_take_over(struct engine_rank *rank, struct rank_life *life, const char *endpoint,
                          struct gms_error *error);
/* Both. */
gms_status rank_live(struct engine_rank *rank, struct rank_life *life, const char *endpoint, struct gms_error *error);
/* One operation of the group: the transfer `id` from dispatch to its end. *ret_finished (NULL allowed): ranks. */
gms_status rank_operate(struct rank_life *life, uint64_t id, uint32_t *ret_finished, struct gms_error *error);
/* Does nothing but let messages in until the parent's gate. */
gms_status rank_idle(struct engine_rank *rank, struct rank_life *life, int gate, struct gms_error *error);
/* A whole life: serves, says so as `at`, and says goodbye at the parent's gate. */
gms_status rank_serve_until(struct engine_rank *rank, int at, int gate, struct gms_error *error);

enum { HARNESS_BLOCK_BYTES = 4096, HARNESS_SLOTS = 32 };

#endif
