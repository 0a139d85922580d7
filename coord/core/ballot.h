/* SPDX-License-Identifier: Apache-2.0
 *
 * The ballot: what one rank says in one agreement round, and merge, the associative, commutative operation that
 * combines ballots. Fixed size, no pointers, no bitmaps that grow with the number of ranks in the fact and proposal
 * lanes (a count and the lowest rank say what an operator needs), so one ballot serves 2 to GMS_MAX_RANKS ranks.
 *
 * Every rank makes its ballot for round r after it applied the merged ballot of round r-1, so the replicated state that
 * ballots refer to (incarnations in engine slots, next sequence numbers) is equal on all ranks; `state_digest` proves
 * it.
 *
 * Lane 1, facts, is level-triggered: a rank asserts a fact in every round while it holds.
 * Lane 2, proposals, says for every engine slot what this rank's engine rank asks next.
 * Lane 3, transfers, carries news only: votes that no completed round has carried yet (kept: the lowest ids).
 * Lane 4, reclaim, is level-triggered and speaks of one step of it (core/reclaim.h).
 * Lane 5, exchange, carries what rank 0 gives to one engine's exchange, until it has begun (core/exchange.c).
 */
#ifndef GMS_CORE_BALLOT_H
#define GMS_CORE_BALLOT_H

#include <stdbool.h>
#include <stdint.h>

#include "gms/status.h"

enum {
    GMS_JOIN_FIELD_ENVIRONMENT = 1, /* the one join field that need not be equal between engines */
    GMS_ALLOCATE_FIELD_BUDGET = 4,  /* kv: what this rank can spare for kv pools; differs, the least counts */
    GMS_BUDGET_FIELD_HERE = 0,      /* the same of a budget; both: 0 says nothing */
    GMS_MAX_RANKS = 1024,
    GMS_MAX_ENGINES = 8,
    GMS_PROPOSAL_FIELDS = 6,
    GMS_BALLOT_TRANSFERS = 4,
    GMS_BALLOT_VERSION = 4, /* another when ranks would conclude something else from the same bytes, too */
    GMS_BALLOT_EXCHANGE_BYTES = 128,
    GMS_RECLAIM_SUSPECTS = 32,                    /* bits of a page's set of suspects */
    GMS_RECLAIM_CROWD = GMS_RECLAIM_SUSPECTS - 1, /* the place of those that have none of their own */
    GMS_RECLAIM_SLOTS = 1024,                     /* pages of one step of reclaim, at most */
};

enum gms_fact {
    GMS_FACT_GONE,       /* its process or session ended without a goodbye */
    GMS_FACT_STICKY,     /* reported a sticky device error */
    GMS_FACT_STALLED,    /* stopped making progress */
    GMS_FACT_COMMANDED,  /* an operator asked for a takeover from it */
    GMS_FACT_LEFT,       /* said goodbye */
    GMS_FACT_PARKED,     /* parked on this rank */
    GMS_FACT_RETIRED,    /* fenced on this rank: no thread of its cohort can execute another user instruction */
    GMS_FACT_CLASSIFIED, /* of a successor: what the source left on this rank has been classified into its directory */
    GMS_FACT_READY,      /* promoted, adopted, awake: ready to serve on this rank */
    GMS_FACT_WANTED,     /* of a parked one: an operator wants it to be the next */
    GMS_FACT_COUNT,
};

struct gms_ballot_facts {
    uint64_t incarnation; /* of the engine slot; equal on all ranks, 0: empty slot */
    uint16_t count[GMS_FACT_COUNT];
    uint16_t lowest_rank[GMS_FACT_COUNT]; /* UINT16_MAX: nobody */
};

enum gms_operation {
    GMS_OPERATION_NONE,
    GMS_OPERATION_JOIN,
    GMS_OPERATION_ALLOCATE, /* create the pool, or attach the group's */
    GMS_OPERATION_PUBLISH,
    GMS_OPERATION_ADOPT,
    GMS_OPERATION_TAKEOVER, /* driven by facts; never proposed by an engine; named here for outcomes and logs */
    GMS_OPERATION_RELEASE,
    GMS_OPERATION_RECLAIM,
    GMS_OPERATION_EXCHANGE, /* rank 0's bytes, on all ranks */
    GMS_OPERATION_BUDGET,   /* how many bytes kv pools may have (core/budget.h) */
    GMS_OPERATION_COUNT,
};

/* Names an operation everywhere: its engine slot is implied by where it stands. For join the incarnation is 0 and
 * `launch` tells two starts apart; for all others launch is 0. */
struct gms_operation_key {
    uint64_t incarnation;
    uint64_t launch;
    uint32_t sequence;
    uint32_t kind; /* enum gms_operation */
};

struct gms_digest_pair {
    uint64_t least, greatest;
    uint16_t least_rank, greatest_rank; /* lowest rank that holds the value */
    uint16_t reserved[2];
};

struct gms_ballot_proposal {
    struct gms_operation_key least, greatest; /* equal when all that spoke mean the same operation */
    uint16_t spoken;                          /* ranks that proposed; 0: the identity of merge */
    uint16_t prepared;                        /* ranks whose tentative effect is stored */
    uint16_t refused;                         /* ranks whose local step failed */
    uint16_t expired;                         /* ranks whose deadline for it passed */
    uint16_t lowest_silent;    /* lowest rank that proposed nothing; a rank without a proposal sets its own */
    uint16_t lowest_undecided; /* lowest rank that has not voted (silent ones included); UINT16_MAX: all have */
    uint16_t refused_rank;     /* lowest rank that refused; UINT16_MAX: none */
    int32_t refused_status;    /* its gms_status */
    uint16_t least_rank, greatest_rank; /* lowest ranks that hold those keys */
    uint64_t refused_detail[2];         /* its numbers: bytes asked, free; descriptors used, allowed; ... */
    struct gms_digest_pair fields[GMS_PROPOSAL_FIELDS];
};

struct gms_ballot_transfer {
    uint64_t incarnation;
    uint64_t id; /* 0 with incarnation 0: empty entry */
    uint8_t finished[GMS_MAX_RANKS / 8];
    uint8_t failed[GMS_MAX_RANKS / 8];
};

struct gms_ballot_reclaim {
    uint64_t step; /* which one; 0: nothing is said */
    uint64_t next; /* looking: the greatest of what the ranks would look at next */
    uint16_t done; /* ranks that have done the step's work */
    uint16_t reserved[3];
    uint16_t quiet[GMS_RECLAIM_SUSPECTS];            /* ranks on which this suspect is quiet */
    uint16_t best_effort[GMS_RECLAIM_SUSPECTS];      /* of them: by a policy that proves nothing */
    uint16_t cannot_know[GMS_RECLAIM_SUSPECTS];      /* ranks that cannot know, for good */
    uint16_t cannot_know_rank[GMS_RECLAIM_SUSPECTS]; /* the lowest of them; UINT16_MAX: none */
    uint8_t blocked[GMS_RECLAIM_SLOTS / 8];          /* looking: pages that a rank holds back; OR */
};

struct gms_ballot_exchange {
    uint64_t incarnation; /* of the engine whose call it is; 0: nothing is said */
    uint32_t sequence;    /* of the call */
    uint32_t bytes;
    uint8_t data[GMS_BALLOT_EXCHANGE_BYTES];
};

struct gms_ballot {
    uint32_t version;
    uint32_t flags; /* GMS_BALLOT_* below; OR */
    uint64_t world_least, world_greatest;
    uint64_t round_least, round_greatest;
    uint64_t state_least, state_greatest; /* digest of the replicated state before this round */
    uint16_t ranks;                       /* how many ballots are merged in here */
    uint16_t reserved[3];
    struct gms_ballot_facts facts[GMS_MAX_ENGINES];
    struct gms_ballot_proposal proposals[GMS_MAX_ENGINES];
    struct gms_ballot_transfer transfers[GMS_BALLOT_TRANSFERS];
    struct gms_ballot_reclaim reclaim;
    struct gms_ballot_exchange exchange;
};

/* One message that Open MPI sends at once between ranks of a host: 4 KiB with its header. */
_Static_assert(sizeof(struct gms_ballot) <= 4032, "a ballot is one eager message");

enum {
    GMS_BALLOT_SHUTDOWN = 1u << 0,  /* a rank was told to stop: planned stop of the coordinator job */
    GMS_BALLOT_MALFORMED = 1u << 1, /* merge met something it could not combine */
};

/* The identity of merge. */
void gms_ballot_init(struct gms_ballot *ret_ballot);

/* *into = merge(*into, *from). Associative and commutative, total: what cannot be combined sets GMS_BALLOT_MALFORMED.
 * Any thread; touches nothing else. */
void gms_ballot_merge(struct gms_ballot *into, const struct gms_ballot *from);

const char *gms_fact_name(enum gms_fact fact);
const char *gms_operation_name(enum gms_operation operation);
/*
 * The name of proposal field `field` of `operation`, NULL when unused:
 *   join: identity, environment, protocol version, world size, hash seed, engine version
 *   allocate: pool name, kind, slot count, block bytes   publish: pool name, manifest
 *   adopt: epoch, source                                 release: pool name
 *   exchange: name, value
 * A field that ranks need not have equal (GMS_ALLOCATE_FIELD_BUDGET, GMS_BUDGET_FIELD_HERE) has none.
 */
const char *gms_operation_field_name(enum gms_operation operation, uint32_t field);
/* Is it a number of each rank's own, of which the least counts? All other fields must be equal on all ranks. */
bool gms_operation_field_is_least(enum gms_operation operation, uint32_t field);

#endif
