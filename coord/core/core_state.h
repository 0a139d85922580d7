/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout of a core and what its files call of each other. Private to coord/core and its tests.
 *
 * `replicated` state is changed in ROUND_DONE only, by a pure function of the merged ballot and itself, so it is equal
 * on all ranks after the same round; every change is mixed into `digest`. The rest is this rank's own.
 */
#ifndef GMS_CORE_CORE_STATE_H
#define GMS_CORE_CORE_STATE_H

#include "core/recovery.h"
#include "core/text.h"

enum {
    GMS_CORE_STORES = 64,          /* records on their way to the store at once */
    GMS_CORE_ENDED_TRANSFERS = 64, /* ended ones remembered for late waiters */
    GMS_CORE_MAX_PARTS = 32,       /* of one transfer on one rank */
    GMS_CORE_NO_POOL = UINT32_MAX,
};

/*
 * This rank's vote on its pending proposal:
 *
 *   NONE --all spoke--> STORING --stored--> PREPARING --ok--> PREPARED
 *                          |                    |
 *                          +----- failed -------+--> REFUSED     (adopt: BULK in PREPARING's place, on all ranks)
 */
enum gms_vote {
    GMS_VOTE_NONE,
    GMS_VOTE_STORING,
    GMS_VOTE_PREPARING,
    GMS_VOTE_BULK,
    GMS_VOTE_PREPARED,
    GMS_VOTE_REFUSED,
    GMS_VOTE_COUNT,
};

/* What this rank's engine rank asks now. Local. */
struct gms_core_pending {
    bool present;
    bool offered;     /* was in a ballot once */
    bool contributed; /* is in the ballots now; its deadline runs */
    bool expired;     /* its deadline passed, or its join's session is gone */
    bool orphan;      /* nobody here waits for it any more */
    enum gms_vote vote;
    gms_status refused_status;
    uint64_t refused_detail[2];
    uint64_t session;
    uint64_t asked_ns;                   /* by its session, last */
    uint64_t since_ns;                   /* first contributed */
    uint32_t adopted, idle, quarantined; /* adopt: the bulk's result, equal on all ranks */
    struct gms_proposal proposal;
    bool exchange_due;       /* every rank asks for it, and the round that heard so carried another engine's bytes */
    uint32_t exchange_bytes; /* exchange, on rank 0: what it gives */
    uint8_t exchange[GMS_BALLOT_EXCHANGE_BYTES];
};

/* A decided operation. Replicated, but for `ticket`. */
struct gms_core_decided {
    struct gms_outcome outcome; /* key.kind NONE: unused */
    uint64_t ticket;            /* its record's way to the store: nobody may be told yet; 0: stored */
};

/* An operation that every rank asked for and is making its tentative effect for. Replicated. */
struct gms_core_operation {
    bool preparing;
    bool create; /* allocate: makes the pool */
    uint32_t pool;
    struct gms_budget budget; /* of a budget: what the ranks said */
    struct gms_operation_key key;
};

/* The last operation of a slot that every rank made a tentative effect for: what a restore completes or undoes on the
 * ranks that had not come to it. One is enough: the next begins only when every rank was told this one's end, and an
 * engine is retired only by ranks that carried it out. Replicated. */
struct gms_core_last {
    bool known, decided;
    struct gms_proposal proposal;
    struct gms_outcome outcome;
};

/* What rank 0 gave to the slot's last exchange. One is enough: the next one's takes its place when every rank asks for
 * that, so was told this one's end. Replicated. */
struct gms_core_exchange {
    uint32_t sequence; /* of the call, under the slot's incarnation; 0: there was none */
    uint32_t bytes;
    uint8_t data[GMS_BALLOT_EXCHANGE_BYTES];
};

struct gms_core_engine {
    /* replicated */
    enum gms_role role;
    uint64_t incarnation, launch;
    uint32_t next_sequence;
    uint64_t parked_round;                    /* the order in which successors are chosen */
    uint64_t promoted_epoch, promoted_source; /* what it was or will be promoted with */
    bool may_write; /* condemned, and may have been writing the group's KV: no successor before it is retired */
    struct gms_core_operation operation;
    struct gms_core_last last;
    struct gms_core_exchange exchange;
    uint32_t decided_next;
    struct gms_core_decided decided[GMS_CORE_OUTCOMES];

    /* local */
    uint32_t facts; /* bit per enum gms_fact, of `incarnation` */
    bool condemned_stored, fenced, promoted, serving, classifying;
    uint64_t fenced_ns, fence_report_ns; /* since when; when to name it next */
    uint64_t reattach_report_ns;         /* restored and not re-attached: when to name it; UINT64_MAX: never */
    uint64_t reattach_since_ns;          /* when it was restored */
    struct gms_core_pending pending;
    struct gms_proposal last_prepare; /* the last one handed to the driver: a late PREPARED is undone with it */
    uint32_t last_prepare_pool;
};

/* Replicated, but for nothing. */
struct gms_core_pool {
    enum gms_pool_state state; /* ABSENT with `reserved`: being created */
    bool reserved;
    char name[GMS_NAME_BYTES];
    uint32_t kind;
    uint64_t creator;
    uint64_t fields[4];      /* as proposed by the creator: name, kind, slot count, block bytes */
    uint32_t attached_mask;  /* engine slots */
    uint32_t shared_mask;    /* engine slots with an attach in progress */
    uint32_t exclusive_mask; /* at most one bit: create, publish or release in progress */
};

struct gms_core_transfer {
    bool used;
    uint64_t incarnation, id;
    uint8_t finished[GMS_MAX_RANKS / 8], failed[GMS_MAX_RANKS / 8];
};

/* A transfer dispatched on this rank. Local. */
struct gms_core_local_transfer {
    bool used;
    bool ended; /* in the group; answered when that is stored */
    uint32_t engine, part_count, ended_mask, failed_mask;
    uint64_t incarnation, id, session;      /* session: who waits; 0 nobody */
    uint64_t since_ns, due_ns, interval_ns; /* dispatched; when a stall is named next; doubled then */
};

/* A record on its way to the store, and what follows when it is there. Local. */
struct gms_core_store {
    uint64_t ticket; /* 0: free */
    enum gms_store_kind kind;
    uint32_t engine;
    uint64_t incarnation, epoch, source;
    uint64_t session;
    uint32_t forget_engine;
    uint64_t forget_incarnation; /* adopt: the former writer; 0: none */
    uint64_t step;               /* reclaim: what may begin then; 0: a suspect's verdict */
    bool decided;                /* outcome: the group's (COMMIT or ABORT follow); else only this rank's reply */
    struct gms_proposal proposal;
    struct gms_outcome outcome;
};

/* Which rows of the tables were used: bit 8 * state + event, or the row's number. For tests. Local. */
struct gms_core_rows {
    uint64_t roles, takeover, votes, reclaim;
};

enum gms_bulk { GMS_BULK_NONE, GMS_BULK_STORING, GMS_BULK_RUNNING };

struct gms_core {
    struct gms_core_options options;

    /* replicated */
    uint64_t epoch, round /* the next one */, digest, incarnations /* given so far */;
    uint64_t life; /* the world since which all that was told is remembered */
    enum gms_takeover_state takeover;
    int32_t serving, successor; /* engine slots, -1: none */
    uint64_t writer;
    uint32_t writer_engine;
    uint64_t
        identity[GMS_PROPOSAL_FIELDS]; /* the join fields of whoever joined an empty group; all must have the same */
    uint64_t identity_of;              /* that incarnation; 0: nobody has joined yet */
    struct gms_core_engine engines[GMS_MAX_ENGINES];
    struct gms_core_pool pools[GMS_CORE_MAX_POOLS];
    struct gms_budget budget; /* bytes 0: none was agreed */
    struct gms_core_transfer transfers[GMS_CORE_MAX_TRANSFERS];
    struct gms_core_transfer ended[GMS_CORE_ENDED_TRANSFERS];
    uint32_t ended_next;
    struct gms_core_reclaim reclaim; /* with a local part of its own */

    /* local */
    uint64_t now_ns;
    bool writer_clean; /* a retired writer had said goodbye on this rank */
    bool stopped, shutdown, in_round;
    enum gms_bulk bulk; /* not NONE: no round until it is done */
    uint32_t bulk_engine;
    uint64_t rung, ring_sent; /* highest round heard, highest round rung */
    uint64_t tickets;
    struct gms_core_rows rows;
    struct gms_core_store stores[GMS_CORE_STORES], spill_store;
    struct gms_core_local_transfer local_transfers[GMS_CORE_MAX_TRANSFERS];
    struct gms_ballot contribution, draft; /* in the last round entered; what would be said now */
    struct gms_actions *actions;           /* borrowed during a step */
    struct gms_action spill_action;
};

/* ---- core.c */
struct gms_action *gms_core_emit(struct gms_core *core, enum gms_action_type type);
struct gms_text gms_core_note(struct gms_core *core, gms_status status);
/* From here on this core does nothing any more. */
struct gms_text gms_core_restart(struct gms_core *core, gms_status status);
/* The last thing of every step: what may begin now begins. */
void gms_core_settle(struct gms_core *core);
void gms_core_mix(struct gms_core *core, uint64_t value);
void gms_text_engine(struct gms_text *text, uint32_t engine, uint64_t incarnation);

/* ---- record.c: durable before visible */
/* A record to fill and then send; never NULL (without room the core restarts and a spill is returned). */
struct gms_core_store *gms_core_store_begin(struct gms_core *core, enum gms_store_kind kind, uint32_t engine);
void gms_core_store_send(struct gms_core *core, struct gms_core_store *store);
void gms_core_stored(struct gms_core *core, uint64_t ticket, bool ok);

/* ---- outcome.c */
bool gms_core_keys_equal(const struct gms_operation_key *a, const struct gms_operation_key *b);
struct gms_core_decided *gms_core_find_decided(struct gms_core *core, uint32_t engine,
                                               const struct gms_operation_key *key);
/* An outcome to word and then decide. */
struct gms_outcome gms_core_outcome(const struct gms_core *core, const struct gms_operation_key *key, gms_status status,
                                    int32_t rank);
void gms_core_decide(struct gms_core *core, uint32_t engine, const struct gms_outcome *outcome);
/* An answer that only this rank's session gets, after a record of it is stored. */
void gms_core_answer_pending(struct gms_core *core, uint32_t engine, const struct gms_outcome *outcome);
void gms_core_outcome_stored(struct gms_core *core, struct gms_core_store *store);
void gms_core_condemned_pending(struct gms_core *core, uint32_t engine);
void gms_text_operation(struct gms_text *text, uint32_t engine, const struct gms_operation_key *key);
const char *gms_core_status_words(gms_status status);

/* ---- propose.c */
void gms_core_propose(struct gms_core *core, const struct gms_event *event);
/* Joins that wait for the end of a takeover are told to ask again, one operation timeout after they asked. */
void gms_core_answer_waiting_joins(struct gms_core *core);
uint64_t gms_core_waiting_joins_deadline(const struct gms_core *core);

/* ---- operation.c */
void gms_core_prepare_stored(struct gms_core *core, const struct gms_core_store *store, bool ok);
void gms_core_prepared(struct gms_core *core, uint32_t engine, const struct gms_operation_key *key, gms_status status,
                       const uint64_t detail[2]);
void gms_core_bulk_done(struct gms_core *core, uint32_t engine, const struct gms_operation_key *key, gms_status status,
                        uint32_t adopted, uint32_t idle, uint32_t quarantined);
void gms_core_session_gone(struct gms_core *core, uint32_t engine, uint64_t session);
uint64_t gms_core_vote_rows(void);
bool gms_core_contributes(const struct gms_core *core, uint32_t engine);
void gms_core_offer(const struct gms_core *core, uint32_t engine, struct gms_ballot_proposal *ret_proposal);
/* The proposals lane of a completed round. */
void gms_core_operations(struct gms_core *core, const struct gms_ballot *merged);
/* A condemned engine's operation ends everywhere. */
void gms_core_operation_condemned(struct gms_core *core, uint32_t engine, const struct gms_ballot_proposal *merged);

/* ---- exchange.c: the protocol is there */
/* Fills the ballot's lane on rank 0; true when that is news: every rank waits for it. */
bool gms_core_exchange_offer(const struct gms_core *core, struct gms_ballot_exchange *ret_exchange);
/* Every rank asks for this call: its bytes take the place of the call's before, if the round's lane `said` has them.
 * False: it has not, and the call is due. */
bool gms_core_exchange_take(struct gms_core *core, uint32_t engine, const struct gms_operation_key *key,
                            const struct gms_ballot_exchange *said);

/* ---- pool.c */
/* Bytes of all kv pools on each rank, those being made included. */
uint64_t gms_core_pool_kv_bytes(const struct gms_core *core);
/* Words for an outcome that refuses a call. */
struct gms_text gms_core_refusal(struct gms_outcome *outcome, uint32_t engine, gms_status status);
uint32_t gms_core_pool_find(const struct gms_core *core, uint64_t name_digest);
/* What an operation on a pool may do now. OK: go on, *operation says how; NOT_DONE: wait for another's operation on it;
 * else decided so, worded in *outcome. */
gms_status gms_core_pool_start(struct gms_core *core, uint32_t engine, const struct gms_ballot_proposal *merged,
                               struct gms_core_operation *operation, struct gms_outcome *outcome);
void gms_core_pool_reserve(struct gms_core *core, uint32_t engine, const struct gms_proposal *proposal,
                           struct gms_core_operation *operation);
void gms_core_pool_commit(struct gms_core *core, uint32_t engine, struct gms_outcome *outcome);
void gms_core_pool_unlock(struct gms_core *core, uint32_t engine);
void gms_core_pool_retired(struct gms_core *core, uint32_t engine);
bool gms_core_pool_any(const struct gms_core *core);

/* ---- budget.c: the group's part of it. start, allows: *outcome says why not. */
gms_status gms_core_budget_start(const struct gms_core *core, uint32_t engine, const struct gms_ballot_proposal *merged,
                                 struct gms_core_operation *operation, struct gms_outcome *outcome);
void gms_core_budget_commit(struct gms_core *core, const struct gms_core_operation *operation,
                            struct gms_outcome *outcome);
/* May the kv pool be made that `merged` asks for? From here on the number that allows it stands. */
gms_status gms_core_budget_allows(struct gms_core *core, uint32_t engine, const struct gms_ballot_proposal *merged,
                                  struct gms_outcome *outcome);

/* ---- takeover.c */
enum gms_role_event {
    GMS_ROLE_EVENT_JOINED,
    GMS_ROLE_EVENT_PARKED,
    GMS_ROLE_EVENT_CHOSEN,
    GMS_ROLE_EVENT_READY,
    GMS_ROLE_EVENT_CONDEMNED,
    GMS_ROLE_EVENT_RETIRED,
    GMS_ROLE_EVENT_COUNT
};
/* Moves by the table; false and no change when it has no such move. */
bool gms_core_move_role(struct gms_core *core, uint32_t engine, enum gms_role_event event);
bool gms_core_takeover_busy(const struct gms_core *core);
/* The rows that the tables have. */
uint64_t gms_core_role_rows(void);
uint64_t gms_core_takeover_rows(void);
/* Facts that are news for an engine in this role. */
uint32_t gms_core_role_facts(enum gms_role role);
void gms_core_fact(struct gms_core *core, uint32_t engine, uint64_t incarnation, enum gms_fact fact);
/* The facts lane of a completed round. */
void gms_core_facts(struct gms_core *core, const struct gms_ballot *merged);
void gms_core_condemned_stored(struct gms_core *core, const struct gms_core_store *store);
void gms_core_epoch_stored(struct gms_core *core, const struct gms_core_store *store);
void gms_core_serving_stored(struct gms_core *core, const struct gms_core_store *store);
/* An engine rank of an earlier session is back: it is told again how it stands. */
void gms_core_attached(struct gms_core *core, uint32_t engine, uint64_t incarnation);
/* FENCE and CONDEMNED, for the first time or again. */
void gms_core_fence(struct gms_core *core, uint32_t engine, uint64_t epoch, bool clean);
void gms_core_report_detached(struct gms_core *core);
uint64_t gms_core_detached_deadline(const struct gms_core *core);
/* Emits CLASSIFY when this rank may: the last thing of every step. */
void gms_core_classify(struct gms_core *core);
void gms_core_report_fences(struct gms_core *core);
uint64_t gms_core_fence_deadline(const struct gms_core *core);

/* ---- transfer.c */
void gms_core_transfer_dispatch(struct gms_core *core, const struct gms_event *event);
void gms_core_transfer_end_part(struct gms_core *core, const struct gms_event *event);
void gms_core_transfer_wait(struct gms_core *core, const struct gms_event *event);
/* Fills the ballot's lane with news; true when there is any. */
bool gms_core_transfer_news(const struct gms_core *core, struct gms_ballot *ballot);
void gms_core_transfers(struct gms_core *core, const struct gms_ballot *merged);
void gms_core_transfer_stored(struct gms_core *core, const struct gms_core_store *store);
void gms_core_transfers_condemned(struct gms_core *core, uint64_t incarnation);        /* in the round */
void gms_core_transfers_condemned_stored(struct gms_core *core, uint64_t incarnation); /* waiters may know */
void gms_core_transfers_session_gone(struct gms_core *core, uint32_t engine, uint64_t session);
void gms_core_report_transfers(struct gms_core *core);
uint64_t gms_core_transfer_deadline(const struct gms_core *core);

#endif
