/* SPDX-License-Identifier: Apache-2.0
 *
 * A group of cores in one thread: the drivers' part is played here, without MPI, sockets or disks.
 *
 * What a core sets going (a doorbell, a store, a prepare, a fence, ...) becomes an item: an event that some rank will
 * get later. Whoever uses the cluster decides which item is delivered next: unit tests in order (cluster_settle), the
 * simulator at random. A round, or a bulk, becomes items only when every rank has entered it.
 *
 * Ranks die (cluster_kill) at any point between two actions, then the world ends (cluster_crash): of each rank's store
 * what was acknowledged stays, and any number of transactions that were on their way; all else is lost.
 * cluster_reports, gms_recovery_decide and cluster_restart are round 0 of the next world.
 *
 * After every step the cluster checks what must always hold (README.md lists it); a violation is kept in `fault`, and
 * nothing moves any more.
 */
#ifndef TESTS_SIM_CLUSTER_H
#define TESTS_SIM_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/recovery.h"

enum {
    CLUSTER_RANKS = GMS_MAX_RANKS,
    CLUSTER_MANY = 64,    /* with more ranks doorbells for one rank and round are one item */
    CLUSTER_ITEMS = 8192, /* in flight, and 64 more for each rank beyond CLUSTER_MANY */
    CLUSTER_TRACE = 8192,
    CLUSTER_INCARNATIONS = 2048, /* of 16 salvages */
    CLUSTER_ROUNDS = 4,          /* merged ballots kept: ranks are at most one round apart */
    CLUSTER_DECIDED = 4096,
    CLUSTER_TRANSACTIONS = 128, /* on their way to one store */
    CLUSTER_DONE = 1024,
};

enum cluster_item_kind {
    CLUSTER_RING,
    CLUSTER_ROUND,
    CLUSTER_STORE,
    CLUSTER_PREPARE,
    CLUSTER_BULK,
    CLUSTER_RETIRED,
    CLUSTER_CLASSIFIED,
    CLUSTER_RECLAIM,
    CLUSTER_OTHER, /* injected by the user */
    CLUSTER_ITEM_KINDS
};

struct cluster_item {
    enum cluster_item_kind kind;
    uint32_t rank;
    struct gms_event event;
};

struct cluster_trace {
    uint32_t rank;
    uint64_t step;
    struct gms_action action;
};

/* A set of ranks. */
struct cluster_set {
    uint64_t words[CLUSTER_RANKS / 64];
};

static inline bool cluster_has(const struct cluster_set *set, uint32_t rank)
{
    return set->words[rank / 64] >> (rank % 64) & 1;
}

static inline void cluster_put(struct cluster_set *set, uint32_t rank)
{
    set->words[rank / 64] |= UINT64_C(1) << (rank % 64);
}

static inline bool cluster_has_all(const struct cluster_set *set, uint32_t ranks)
{
    for (uint32_t i = 0; i < ranks / 64; i++)
        if (set->words[i] != UINT64_MAX)
            return false;
    return ranks % 64 == 0 || set->words[ranks / 64] == UINT64_MAX >> (64 - ranks % 64);
}

static inline void cluster_put_all(struct cluster_set *set, uint32_t ranks)
{
    for (uint32_t rank = 0; rank < ranks; rank++)
        cluster_put(set, rank);
}

/* When a snapshot was taken. World 0: none. */
struct cluster_when {
    uint64_t world, round;
};

/* A snapshot in a store. */
struct cluster_image {
    uint32_t references;
    size_t bytes;
    struct cluster_when when;
    uint8_t data[];
};

struct cluster_disk {
    struct cluster_image *durable, *previous; /* NULL: none */
    uint64_t durable_transaction, transactions;
    struct {
        uint64_t transaction;
        struct cluster_image *image;
    } queue[CLUSTER_TRANSACTIONS]; /* oldest first */
    uint32_t queued;
    uint64_t world;                /* that made the store, or wrote to it last; 0: there is none */
    struct cluster_when told;      /* the last that was acknowledged to the rank: what it may have told of */
    struct cluster_when mirror;    /* the same, as the keeper remembers it */
    enum gms_recovery_doubt doubt; /* what was done to it */
    struct cluster_image *aside;   /* what it held before that */
    uint64_t aside_world;
};

enum cluster_effect { CLUSTER_EFFECT_NONE, CLUSTER_EFFECT_PREPARED, CLUSTER_EFFECT_COMMITTED };

struct cluster;
struct cluster_memory;
typedef void (*cluster_hook)(struct cluster *cluster, uint32_t rank, const struct gms_action *action);

struct cluster {
    uint32_t ranks;
    struct gms_core_options options;
    struct gms_core **cores; /* like all without a length here: one for each rank */
    struct gms_actions *actions;
    uint64_t now_ns, steps;

    struct cluster_item *items; /* the oldest one in `room` */
    uint32_t item_count;
    struct cluster_item *room;
    uint32_t room_count, item_limit;
    uint64_t *ring_due;           /* the highest round that the rank has a doorbell in flight for; only when many */
    uint32_t *held;               /* bit per kind: cluster_settle leaves these items where they are */
    uint64_t rung, bulks, stored; /* doorbells sent, bulk sub-rounds, records, so far */

    bool *in_round, *in_bulk;         /* entered, and not told the end yet */
    uint32_t round_waits, bulk_waits; /* ranks that the next one still waits for */
    bool may_restart;                 /* a restart is expected, not a fault */
    bool store_may_fail;              /* one because of the store is */
    struct gms_ballot *entered, merged[CLUSTER_ROUNDS];
    uint64_t rounds;
    struct gms_action *bulk;

    /* How the drivers answer: defaults are success. */
    gms_status *prepare_status;
    uint64_t (*prepare_detail)[2];
    gms_status bulk_status;
    bool *store_fails;
    uint32_t adopted, idle, quarantined; /* what the bulk finds */

    cluster_hook hook; /* called for every action, after the cluster's own part; NULL allowed */
    void *context;
    bool keep_trace, print_trace;
    struct cluster_trace *trace;
    uint32_t trace_count;

    /* What is known to be true, for the checks. */
    struct {
        bool promoted, condemned;
        struct cluster_set retired, classified; /* where the fact was delivered */
        uint64_t source, epoch;
    } * incarnations; /* CLUSTER_INCARNATIONS */
    struct {
        uint64_t epoch, incarnation;
    } served[CLUSTER_INCARNATIONS];
    uint32_t served_count;
    struct {
        uint32_t engine;
        struct gms_outcome outcome;
        struct cluster_set told;
        bool closed;    /* whoever had to be told of it is dead */
        bool past;      /* of an earlier life of the group: may only be decided again as a failure */
        uint32_t given; /* an exchange: in which world rank 0 gave what was told; 0: nobody was told yet */
    } * decided;
    uint32_t decided_count;
    struct gms_core_view views[CLUSTER_ROUNDS]; /* of the first rank that came so far; world 0: nobody has */
    struct {
        uint32_t rank;
        enum gms_store_kind kind;
        struct gms_operation_key key;
        uint64_t incarnation, ticket, transaction;
        bool stored; /* acknowledged */
        bool failed;
        bool inherited; /* by all ranks, from a snapshot */
    } * stores;
    uint32_t store_count, store_capacity;
    bool *shut_down;

    struct cluster_memory *memory; /* memory.h; owned; NULL: pages are not played */

    /* Stores, ends and new beginnings. */
    struct cluster_disk *disks;
    uint32_t *actions_left; /* until the rank's end; UINT32_MAX: it lives on */
    bool *dead;
    uint32_t worlds; /* begun so far */
    bool restored;   /* this world went on from a snapshot */
    uint64_t told_epoch, told_incarnation, *last_epoch;
    struct {
        uint64_t round, digest;
    } snapshots[CLUSTER_ROUNDS];
    struct {
        uint32_t engine;
        struct gms_operation_key key;
        uint8_t *on; /* enum cluster_effect; its place in `effect_room` */
        bool named;  /* by an action of the restore */
    } * effects;
    uint32_t effect_count;
    uint8_t *effect_room;
    struct {
        uint64_t incarnation, id;
        uint32_t finished, failed;
        int32_t first_failed;
    } done[CLUSTER_DONE]; /* ends of transfers that were told, a ring */
    uint64_t done_count;
    char fault[512]; /* "": none */
};

/* world_size in `options` is the number of ranks, at most CLUSTER_RANKS; rank is ignored. NULL: no memory. */
struct cluster *cluster_new(const struct gms_core_options *options);
void cluster_free(struct cluster *cluster);

/* Gives a rank an event now. */
void cluster_step(struct cluster *cluster, uint32_t rank, const struct gms_event *event);
/* Delivers item `index` and takes it out. */
void cluster_deliver(struct cluster *cluster, uint32_t index);
/* Adds an event to be delivered later. */
void cluster_add(struct cluster *cluster, enum cluster_item_kind kind, uint32_t rank, const struct gms_event *event);
/* Delivers, oldest first, until nothing but held items is left. */
void cluster_settle(struct cluster *cluster);
/* Advances time and ticks every rank whose deadline passed; then settles. */
void cluster_advance(struct cluster *cluster, uint64_t ns);
/* `rank` ends after `actions` more of its actions; nothing reaches it afterwards. */
void cluster_kill(struct cluster *cluster, uint32_t rank, uint32_t actions);
/* All ranks end. Of the transactions on their way to rank r's store `survivors[r]` (or all, if fewer; NULL: all) are in
 * it. */
void cluster_crash(struct cluster *cluster, const uint32_t *survivors);
/* The store of `rank` is not what it was: gone (MISSING, OTHER_BOOT, DAMAGED), as before its last transaction (OLDER),
 * or the memory it names is (MEMORY_LOST). NONE: put back what it was. */
void cluster_lose(struct cluster *cluster, uint32_t rank, enum gms_recovery_doubt how);
/* One for each rank. */
void cluster_reports(const struct cluster *cluster, struct gms_recovery_report *reports);
/* A new world that ends before anybody acts: ranks with a bit in `ranks` had come to store what they restored. */
void cluster_restart_in_vain(struct cluster *cluster, const struct gms_recovery_decision *decision, uint32_t ranks);
/* A new world. REFUSE begins none. */
void cluster_restart(struct cluster *cluster, const struct gms_recovery_decision *decision);
/* Crash, round 0 without any loss, restart, settle. */
void cluster_bounce(struct cluster *cluster, const uint32_t *survivors);
/* Everything that operations did is gone with the keepers. */
void cluster_forget_effects(struct cluster *cluster);
/* The keeper of `rank` is another one, and remembers nothing of its store. */
void cluster_forget_mirror(struct cluster *cluster, uint32_t rank);
/* All stores and keepers are gone, and everybody who had joined. */
void cluster_forget_everything(struct cluster *cluster);
bool cluster_is_later(struct cluster_when a, struct cluster_when b);
/* The latest state that a store still has. */
struct cluster_when cluster_latest(const struct cluster *cluster);
/* At rest: no tentative effect is left, and what is committed is so on all ranks. */
void cluster_check_effects(struct cluster *cluster);

__attribute__((format(printf, 2, 3))) void cluster_fail(struct cluster *cluster, const char *format, ...);

/* The usual events. `since`: the world in which this was asked first, 0: now. */
void cluster_ask(struct cluster *cluster, uint32_t rank, uint32_t engine, uint64_t session, uint64_t since,
                 const struct gms_proposal *proposal);
void cluster_propose(struct cluster *cluster, uint32_t rank, uint32_t engine, uint64_t session,
                     const struct gms_proposal *proposal);
void cluster_fact(struct cluster *cluster, uint32_t rank, uint32_t engine, uint64_t incarnation, enum gms_fact fact);
void cluster_session_gone(struct cluster *cluster, uint32_t rank, uint32_t engine, uint64_t session);
struct gms_proposal cluster_join(uint64_t launch);
struct gms_proposal cluster_call(enum gms_operation kind, uint64_t incarnation, uint32_t sequence);
struct gms_proposal cluster_allocate(uint64_t incarnation, uint32_t sequence, const char *pool, uint32_t pool_kind,
                                     uint64_t slot_count, uint64_t block_bytes);
struct gms_proposal cluster_on_pool(enum gms_operation kind, uint64_t incarnation, uint32_t sequence, const char *pool);
/* What `rank` gives to an exchange when it asks for it in that world (the cluster's `worlds`); of the ranks, of every
 * call, and of every world something else. */
uint32_t cluster_gives(const struct gms_operation_key *key, uint32_t rank, uint32_t world,
                       uint8_t ret_data[GMS_BALLOT_EXCHANGE_BYTES]);
struct gms_proposal cluster_adopt(uint64_t incarnation, uint32_t sequence, uint64_t epoch, uint64_t source);

struct gms_core_view cluster_look(const struct cluster *cluster, uint32_t rank);
/* The last action of this type that `rank` was given (UINT32_MAX: any rank), NULL: none. */
const struct gms_action *cluster_last(const struct cluster *cluster, uint32_t rank, enum gms_action_type type);
uint32_t cluster_count(const struct cluster *cluster, uint32_t rank, enum gms_action_type type);
void cluster_forget_trace(struct cluster *cluster);
const char *cluster_action_name(enum gms_action_type type);

#endif
