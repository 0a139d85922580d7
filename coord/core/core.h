/* SPDX-License-Identifier: Apache-2.0
 *
 * The core: one rank's share of the group's decisions as a pure state machine.
 *
 *      event (with its time) --> gms_core_step(core, event, &actions) --> typed actions, in order
 *
 * It knows no MPI, socket, file, clock, thread or log. The same code runs under the MPI daemon, the simulator and unit
 * tests. Durable before visible: a GMS_ACTION_STORE must come back as GMS_EVENT_STORED before anything that depends on
 * it leaves (votes, replies, signals); the core itself waits for that event.
 *
 * All memory is inside struct gms_core (caller-owned, no allocation, several hundred KiB at most). Not thread-safe.
 *
 * Replicated state (equal on all ranks after the same round): engine slots with role and incarnation, epoch, pools,
 * decided outcomes, transfers, takeover state. Local state: sessions' pending proposals, local facts, deadlines,
 * stores.
 */
#ifndef GMS_CORE_CORE_H
#define GMS_CORE_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/ballot.h"
#include "core/budget.h"
#include "core/reclaim.h"
#include "gms/engine.h"

enum {
    GMS_CORE_MAX_POOLS = GMS_MAX_POOLS,
    GMS_CORE_MAX_TRANSFERS = 64, /* tracked at once in the group; one more is refused with BUSY */
    GMS_CORE_OUTCOMES = 64,      /* decided operations remembered per engine slot for late askers */
    GMS_CORE_MAX_ACTIONS = 256,  /* per step; the core never needs more (asserted) */
    GMS_STORE_PAYLOAD_BYTES = 256,
};

/* ------------------------------------------------------------------------------------------------- state ------ */

/*
 * An engine slot's role (replicated):
 *
 *   EMPTY --join committed--> JOINED --parked on all ranks--> PARKED --selected--> PROMOTED --ready on all--> SERVING
 *                               |            |                   |           |                    |            |
 *                               +------------+-------------------+- any bad fact or LEFT ---------+------------+
 *                                                                v
 *                                                           CONDEMNED --retired on all ranks--> EMPTY
 */
enum gms_role {
    GMS_ROLE_EMPTY,
    GMS_ROLE_JOINED,
    GMS_ROLE_PARKED,
    GMS_ROLE_PROMOTED,
    GMS_ROLE_SERVING,
    GMS_ROLE_CONDEMNED,
    GMS_ROLE_COUNT
};

/*
 * The group's takeover (replicated):
 *
 *   VACANT ----a parked candidate, nobody to classify---------------> PROMOTING --ready on all--> SERVING
 *     ^  \---- a parked candidate and a retired writer: CLASSIFYING --classified on all--^           |
 *     |             ^ successor lost: VACANT again, next candidate                       |           |
 *     +-- FENCING <-+------------------ writer condemned --------------------------------+-----------+
 */
enum gms_takeover_state {
    GMS_TAKEOVER_VACANT,
    GMS_TAKEOVER_FENCING,
    GMS_TAKEOVER_CLASSIFYING,
    GMS_TAKEOVER_PROMOTING,
    GMS_TAKEOVER_SERVING,
    GMS_TAKEOVER_STATE_COUNT
};

enum gms_pool_state { GMS_POOL_ABSENT, GMS_POOL_UNPUBLISHED, GMS_POOL_READY, GMS_POOL_STATE_COUNT };

struct gms_core_options {
    uint64_t world;
    uint64_t life; /* since which world the group remembers all that it told; not after `world`; a restore ignores it */
    uint32_t rank, world_size;
    uint64_t operation_timeout_ns;
    uint64_t transfer_stall_ns; /* a dispatched transfer without news for this long is named */
    uint64_t fence_report_ns;   /* a cohort not retired for this long is named, and again each time it passes */
    uint64_t reattach_ns;       /* after a restore: an engine rank that lives and has not re-attached for this long is
                                   named, and again each time it passes; 0: never */
    uint32_t reclaim_slots; /* pages of one step of reclaim, 1 to GMS_RECLAIM_SLOTS, equal on all ranks; 0: none is ever
                               reclaimed */
    bool reclaim_inherits;  /* a dead owner's stamps count for its successor (process-death-timeout) */
};

/* ------------------------------------------------------------------------------------------------- events ----- */

enum gms_event_type {
    GMS_EVENT_TICK,         /* time passed; at or after gms_core_deadline */
    GMS_EVENT_RUNG,         /* a doorbell: somebody wants round `round` */
    GMS_EVENT_ROUND_DONE,   /* `merged` is the result of the round that this core entered */
    GMS_EVENT_STORED,       /* the store has `ticket` durably; in the order of the STOREs */
    GMS_EVENT_STORE_FAILED, /* it could not; the core refuses what depended on it */
    GMS_EVENT_PROPOSE,      /* an engine rank's collective call */
    GMS_EVENT_PREPARED,     /* result of GMS_ACTION_PREPARE */
    GMS_EVENT_FACT,         /* a local fact about an engine's incarnation */
    GMS_EVENT_SESSION_GONE, /* the engine rank's session is no more: drop its pending proposal */
    GMS_EVENT_ATTACHED, /* an engine rank of an earlier session is back: PROMOTE, SERVING or CONDEMNED is repeated to it
                           when that is how it stands */
    GMS_EVENT_BULK_DONE, /* result of GMS_ACTION_BULK */
    GMS_EVENT_TRANSFER_DISPATCH,
    GMS_EVENT_TRANSFER_END_PART,
    GMS_EVENT_TRANSFER_WAIT,  /* somebody waits for its end; answered when it has ended */
    GMS_EVENT_RECLAIM_DONE,   /* the work of a GMS_ACTION_RECLAIM is done: STAMP, LOOK, FREE or CLEAR */
    GMS_EVENT_RECLAIM_ANSWER, /* a provider's last word on a suspect (never NOT_YET) */
    GMS_EVENT_SHUTDOWN,       /* planned stop of the coordinator job */
    GMS_EVENT_TYPE_COUNT,
};

struct gms_proposal {
    struct gms_operation_key key;
    uint64_t fields[GMS_PROPOSAL_FIELDS]; /* digests or numbers that must be equal on all ranks; unused: 0 */
    char pool[GMS_NAME_BYTES]; /* allocate, publish, release: the pool's name, for texts and the pool table */
    uint32_t pool_kind;        /* enum gms_pool_kind, allocate only */
};

struct gms_event {
    enum gms_event_type type;
    uint64_t now_ns; /* monotonic, this process's own; never compared with another process's */
    union {
        uint64_t rung_round;
        const struct gms_ballot *merged; /* borrowed for the call */
        uint64_t ticket;                 /* STORED, STORE_FAILED */
        struct {
            uint32_t engine;
            uint64_t session; /* the driver's name for whom to answer; not 0 */
            uint64_t since;   /* join: the world in which its engine rank asked first; 0: in this one */
            struct gms_proposal proposal;
            uint32_t exchange_bytes; /* exchange, on rank 0: what it gives */
            uint8_t exchange[GMS_BALLOT_EXCHANGE_BYTES];
        } propose;
        struct {
            uint32_t engine;
            struct gms_operation_key key;
            gms_status status;
            uint64_t detail[2];
        } prepared;
        struct {
            uint32_t engine;
            uint64_t incarnation;
            enum gms_fact fact;
        } fact;
        struct {
            uint32_t engine;
            uint64_t session;
        } session_gone;
        struct {
            uint32_t engine;
            uint64_t incarnation;
        } attached;
        struct {
            uint32_t engine;
            struct gms_operation_key key;
            gms_status status;
            uint32_t adopted, idle, quarantined;
        } bulk;
        struct {
            uint32_t engine;
            uint64_t incarnation, session, id;
            uint32_t part_count;
            bool again; /* said before, perhaps to an earlier world: OK also when it ended meanwhile (WAIT tells) */
            uint32_t ended_mask, failed_mask; /* with `again`: bit per part that ended, that failed */
        } transfer_dispatch;
        struct {
            uint32_t engine;
            uint64_t incarnation, session, id;
            uint32_t part;
            bool failed;
        } transfer_end;
        struct {
            uint32_t engine;
            uint64_t incarnation, session, id;
        } transfer_wait;
        struct {
            uint64_t step; /* of the action */
            uint64_t
                next; /* LOOK: first page, from the end of the step on, that this rank does not hold back, or END */
            uint8_t blocked[GMS_RECLAIM_SLOTS / 8]; /* LOOK: pages of the step that it holds back */
            uint64_t suspect;                       /* ANSWER */
            enum gms_reclaim_answer answer;
        } reclaim; /* RECLAIM_DONE, RECLAIM_ANSWER */
    };
};

/* ------------------------------------------------------------------------------------------------- actions ---- */

enum gms_action_type {
    GMS_ACTION_RING,        /* ring all peers for `round` */
    GMS_ACTION_ENTER_ROUND, /* contribute `ballot`; comes back as ROUND_DONE */
    GMS_ACTION_STORE,       /* persist; comes back as STORED(ticket) */
    GMS_ACTION_PREPARE,     /* make the tentative effect of an operation; comes back as PREPARED */
    GMS_ACTION_COMMIT,      /* make it final: keep, hand to the keeper, seal */
    GMS_ACTION_ABORT,       /* undo the tentative effect (also sent when nothing was prepared: idempotent) */
    GMS_ACTION_REPLY,       /* tell a session the outcome of its call */
    GMS_ACTION_BULK,        /* all ranks enter the bulk sub-round for this adopt now; comes back as BULK_DONE */
    GMS_ACTION_FENCE,       /* kill the cohort of an incarnation on this rank; RETIRED comes back as FACT */
    GMS_ACTION_CLASSIFY,  /* classify what `source` left into `engine`'s directory; comes back as FACT CLASSIFIED of the
                             successor */
    GMS_ACTION_PROMOTE,   /* tell the engine rank it is chosen, with epoch and source */
    GMS_ACTION_SERVING,   /* the engine serves under `epoch`: answer its serve call, publish the endpoint */
    GMS_ACTION_CONDEMNED, /* tell the engine rank (if it still listens) that it must end */
    GMS_ACTION_FORGET,    /* an incarnation is retired everywhere and no longer a source: drop what belongs to it, an
                             unpublished weights pool that it created included */
    GMS_ACTION_TRANSFER_ANSWER,  /* answers every DISPATCH and END_PART at once: `transfer.status` and `.text` */
    GMS_ACTION_TRANSFER_DONE,    /* it ended (or WAIT named an unknown one): answers WAIT */
    GMS_ACTION_TRANSFER_STALLED, /* no news for too long; the text names the rank and part that is waited for */
    GMS_ACTION_RECLAIM,          /* core/reclaim.h; STAMP, LOOK, FREE and CLEAR come back as RECLAIM_DONE, ASK as
                                    RECLAIM_ANSWER */
    GMS_ACTION_NOTE,             /* something an operator should read; a driver logs it */
    GMS_ACTION_RESTART,          /* this rank cannot go on: exit with the restart code */
    GMS_ACTION_SHUTDOWN,         /* all ranks agreed to stop: finalize and exit 0 */
    GMS_ACTION_TYPE_COUNT,
};

enum gms_store_kind {
    GMS_STORE_PREPARED = 1,
    GMS_STORE_OUTCOME,
    GMS_STORE_CONDEMNED,
    GMS_STORE_EPOCH,
    GMS_STORE_SERVING,
    GMS_STORE_TRANSFER, /* a transfer ended */
    GMS_STORE_RECLAIM,  /* a step of reclaim, or a suspect's verdict */
};

struct gms_outcome {
    struct gms_operation_key key;
    gms_status status;
    int32_t rank;         /* that decided a failure, -1 */
    uint64_t incarnation; /* join: the new one */
    uint64_t epoch;
    uint32_t adopted, idle, quarantined; /* adopt */
    uint32_t pool_index;                 /* allocate, publish, release: the pool's place in the group's table */
    bool created;                        /* allocate: this engine's call created the pool */
    bool freed;                          /* release: nobody has the pool any more, its memory goes */
    uint64_t pool_creator;               /* allocate: incarnation that created it */
    enum gms_pool_state pool_state;      /* allocate: after the operation */
    uint64_t budget;                     /* budget: bytes that kv pools may have on each rank; others: 0 */
    char text[192];                      /* worded once, by the core: names the rank, field, values */
};

struct gms_action {
    enum gms_action_type type;
    union {
        uint64_t round;                  /* RING */
        const struct gms_ballot *ballot; /* ENTER_ROUND: points into the core, valid until the next step */
        struct {
            uint64_t ticket;
            enum gms_store_kind kind;
            uint32_t bytes;
            uint8_t payload[GMS_STORE_PAYLOAD_BYTES];
        } store;
        struct {
            uint32_t engine;
            struct gms_proposal proposal;
            uint32_t pool_index;
            bool create;
        } prepare; /* create: allocate makes the pool anew (what an unpublished one of a dead creator held is void) */
        struct {
            uint32_t engine;
            struct gms_proposal proposal;
            struct gms_outcome outcome;
        } commit; /* COMMIT and ABORT */
        struct {
            uint64_t session;
            struct gms_outcome outcome;
        } reply;
        struct {
            uint32_t engine;
            struct gms_operation_key key;
            uint64_t incarnation;
        } bulk;
        struct {
            uint32_t engine;
            uint64_t incarnation;
            bool clean;
        } fence; /* clean: it said goodbye, here or on another rank, and nothing worse is known: what is left may have
                    a moment to end by itself, then it is killed too */
        struct {
            uint32_t engine;
            uint64_t incarnation, source;
            bool source_clean;
            uint32_t suspect;
        } classify; /* engine, incarnation: the successor; source_clean: on this rank (adoption takes what is usable on
                       all ranks); suspect: the source's place among the suspects */
        struct {
            uint32_t engine;
            uint64_t incarnation, epoch, source;
        } promote; /* also SERVING, CONDEMNED, FORGET */
        struct {
            uint32_t engine;
            uint64_t session, incarnation, id;
            uint32_t finished, failed;
            int32_t first_failed;
            const uint8_t *failed_bitmap;
            gms_status status;
            char text[192];
        } transfer; /* ANSWER, DONE and STALLED; session 0: nobody waits; the bitmap points into the core, may be NULL
                     */
        struct {
            enum gms_reclaim_work work;
            uint32_t slots; /* of one step, at most */
            uint64_t step, owner;
            uint64_t position;     /* LOOK, FREE, GRANT: where the step begins */
            uint32_t chosen;       /* LOOK, CLEAR: suspects that are quiet on all ranks, a bit each */
            bool inherits;         /* STAMP, LOOK: any owner's stamp counts */
            const uint8_t *bitmap; /* FREE, GRANT: the pages; points into the core, valid until the next step */
            uint64_t suspect;      /* ASK, ENDED */
            uint32_t engine;       /* ASK, ENDED: its engine slot */
            enum gms_reclaim_answer answer; /* ENDED */
        } reclaim;
        struct {
            gms_status status;
            char text[256];
        } note; /* NOTE and RESTART */
    };
};

struct gms_actions {
    size_t count;
    struct gms_action items[GMS_CORE_MAX_ACTIONS];
};

/* ------------------------------------------------------------------------------------------------- calls ------ */

struct gms_core; /* sizeof through gms_core_bytes; layout in core_state.h, for the core's own files and tests */

size_t gms_core_bytes(void);
/* `memory`: gms_core_bytes() bytes, 16-aligned, owned by the caller for the core's whole life. Returns it as a core. */
struct gms_core *gms_core_init(void *memory, const struct gms_core_options *options);

/* Applies one event. `ret_actions` is overwritten. Never fails: what cannot be done becomes a reply, a note or a
 * restart. */
void gms_core_step(struct gms_core *core, const struct gms_event *event, struct gms_actions *ret_actions);

/* When GMS_EVENT_TICK is next needed; UINT64_MAX: never. */
uint64_t gms_core_deadline(const struct gms_core *core);

/* What status and tests may see. */
struct gms_core_engine_view {
    enum gms_role role;
    uint64_t incarnation;
    uint64_t launch;
    uint32_t next_sequence;
    uint64_t parked_round; /* when it was parked on all ranks; the lowest is chosen first; 0: never */
};
struct gms_core_view {
    uint64_t world, epoch, next_round, state_digest;
    enum gms_takeover_state takeover;
    int32_t serving_engine;      /* -1: nobody */
    int32_t successor_engine;    /* -1: none selected */
    uint64_t writer_incarnation; /* whose slots are the group's KV now; 0: nobody yet */
    struct gms_core_engine_view engines[GMS_MAX_ENGINES];
};
void gms_core_look(const struct gms_core *core, struct gms_core_view *ret_view);

struct gms_core_pool_view {
    char name[GMS_NAME_BYTES];
    uint32_t kind; /* enum gms_pool_kind */
    enum gms_pool_state state;
    uint64_t creator;       /* incarnation */
    uint32_t attached_mask; /* bit e: engine slot e has it attached */
};
/* Pool `index` of the group's table; false when there is none. */
bool gms_core_look_pool(const struct gms_core *core, uint32_t index, struct gms_core_pool_view *ret_view);

/* What rank 0 gave to the exchange that this incarnation's call `sequence` was, equal on all ranks: from its success on
 * until every rank has asked for the incarnation's next one. False: there is none. `*ret_data` is borrowed until the
 * next step. */
bool gms_core_look_exchange(const struct gms_core *core, uint64_t incarnation, uint32_t sequence,
                            const uint8_t **ret_data, uint32_t *ret_bytes);

/* How many bytes kv pools may have on each rank, as all ranks agreed; false: nobody has asked yet. */
bool gms_core_look_budget(const struct gms_core *core, struct gms_budget *ret_budget);

struct gms_core_transfer_view {
    uint64_t incarnation, id;
    uint32_t finished, failed; /* ranks, as of the last round */
    uint64_t since_ns;         /* dispatched here at; 0: not dispatched on this rank */
};
struct gms_core_reclaim_view {
    enum gms_reclaim_state state;
    uint64_t owner, step, position;
    uint32_t chosen;
    const uint8_t *bitmap; /* FREEING: the step's pages; borrowed until the next step */
};
void gms_core_look_reclaim(const struct gms_core *core, struct gms_core_reclaim_view *ret_view);
/* The suspect at `place`, 0 to GMS_RECLAIM_SUSPECTS - 1; false: nobody is there. */
bool gms_core_look_suspect(const struct gms_core *core, uint32_t place, struct gms_core_suspect *ret_suspect);

/* The transfers that are open, `index` from 0 until false. */
bool gms_core_look_transfer(const struct gms_core *core, uint32_t index, struct gms_core_transfer_view *ret_view);

#endif
