/* SPDX-License-Identifier: Apache-2.0
 *
 * Every member of a ballot is merged by a minimum, a maximum, a saturating sum, an OR or a union: each of them is
 * associative and commutative for itself, and none looks at another's result, so the whole is.
 */
#include "core/ballot.h"

#include <string.h>

static void lower_u16(uint16_t *into, uint16_t from)
{
    if (from < *into)
        *into = from;
}

static void lower_u64(uint64_t *into, uint64_t from)
{
    if (from < *into)
        *into = from;
}

static void raise_u64(uint64_t *into, uint64_t from)
{
    if (from > *into)
        *into = from;
}

/* Saturates: whatever the order, a sum that does not fit stays at the top. */
static void add_u16(uint16_t *into, uint16_t from)
{
    uint32_t sum = (uint32_t)*into + from;
    *into = sum > UINT16_MAX ? UINT16_MAX : (uint16_t)sum;
}

static int compare_u64(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int compare_keys(const struct gms_operation_key *a, const struct gms_operation_key *b)
{
    int order = compare_u64(a->kind, b->kind);
    if (!order)
        order = compare_u64(a->incarnation, b->incarnation);
    if (!order)
        order = compare_u64(a->sequence, b->sequence);
    if (!order)
        order = compare_u64(a->launch, b->launch);
    return order;
}

void gms_ballot_init(struct gms_ballot *ret_ballot)
{
    memset(ret_ballot, 0, sizeof *ret_ballot); /* padding too: ballots are compared and sent as bytes */
    ret_ballot->version = GMS_BALLOT_VERSION;
    ret_ballot->world_least = UINT64_MAX;
    ret_ballot->round_least = UINT64_MAX;
    ret_ballot->state_least = UINT64_MAX;
    for (unsigned e = 0; e < GMS_MAX_ENGINES; e++) {
        struct gms_ballot_proposal *proposal = &ret_ballot->proposals[e];

        for (unsigned f = 0; f < GMS_FACT_COUNT; f++)
            ret_ballot->facts[e].lowest_rank[f] = UINT16_MAX;
        proposal->least.incarnation = UINT64_MAX;
        proposal->least.launch = UINT64_MAX;
        proposal->least.sequence = UINT32_MAX;
        proposal->least.kind = UINT32_MAX;
        proposal->lowest_silent = UINT16_MAX;
        proposal->lowest_undecided = UINT16_MAX;
        proposal->refused_rank = UINT16_MAX;
        proposal->least_rank = UINT16_MAX;
        proposal->greatest_rank = UINT16_MAX;
        for (unsigned i = 0; i < GMS_PROPOSAL_FIELDS; i++) {
            proposal->fields[i].least = UINT64_MAX;
            proposal->fields[i].least_rank = UINT16_MAX;
            proposal->fields[i].greatest_rank = UINT16_MAX;
        }
    }
    for (unsigned i = 0; i < GMS_RECLAIM_SUSPECTS; i++)
        ret_ballot->reclaim.cannot_know_rank[i] = UINT16_MAX;
}

static bool merge_facts(struct gms_ballot_facts *into, const struct gms_ballot_facts *from)
{
    /* 0 is also what the identity says, so it agrees with everything; the state digest tells the rest. */
    bool agree = !into->incarnation || !from->incarnation || into->incarnation == from->incarnation;

    raise_u64(&into->incarnation, from->incarnation);
    for (unsigned f = 0; f < GMS_FACT_COUNT; f++) {
        add_u16(&into->count[f], from->count[f]);
        lower_u16(&into->lowest_rank[f], from->lowest_rank[f]);
    }
    return agree;
}

/* The lowest refusing rank speaks for all; equal ranks (never from honest ones) are ordered by what they say. */
static bool refusal_is_before(const struct gms_ballot_proposal *a, const struct gms_ballot_proposal *b)
{
    if (a->refused_rank != b->refused_rank)
        return a->refused_rank < b->refused_rank;
    if (a->refused_status != b->refused_status)
        return a->refused_status < b->refused_status;
    if (a->refused_detail[0] != b->refused_detail[0])
        return a->refused_detail[0] < b->refused_detail[0];
    return a->refused_detail[1] < b->refused_detail[1];
}

static void merge_pair(struct gms_digest_pair *into, const struct gms_digest_pair *from)
{
    if (from->least < into->least) {
        into->least = from->least;
        into->least_rank = from->least_rank;
    } else if (from->least == into->least) {
        lower_u16(&into->least_rank, from->least_rank);
    }
    if (from->greatest > into->greatest) {
        into->greatest = from->greatest;
        into->greatest_rank = from->greatest_rank;
    } else if (from->greatest == into->greatest) {
        lower_u16(&into->greatest_rank, from->greatest_rank);
    }
}

static void merge_proposal(struct gms_ballot_proposal *into, const struct gms_ballot_proposal *from)
{
    int order = compare_keys(&from->least, &into->least);
    if (order < 0)
        into->least = from->least;
    if (order < 0 || (order == 0 && from->least_rank < into->least_rank))
        into->least_rank = from->least_rank;
    order = compare_keys(&from->greatest, &into->greatest);
    if (order > 0)
        into->greatest = from->greatest;
    if (order > 0 || (order == 0 && from->greatest_rank < into->greatest_rank))
        into->greatest_rank = from->greatest_rank;
    add_u16(&into->spoken, from->spoken);
    add_u16(&into->prepared, from->prepared);
    add_u16(&into->refused, from->refused);
    add_u16(&into->expired, from->expired);
    lower_u16(&into->lowest_silent, from->lowest_silent);
    lower_u16(&into->lowest_undecided, from->lowest_undecided);
    if (refusal_is_before(from, into)) {
        into->refused_rank = from->refused_rank;
        into->refused_status = from->refused_status;
        memcpy(into->refused_detail, from->refused_detail, sizeof into->refused_detail);
    }
    for (unsigned i = 0; i < GMS_PROPOSAL_FIELDS; i++)
        merge_pair(&into->fields[i], &from->fields[i]);
}

static int compare_transfers(const struct gms_ballot_transfer *a, const struct gms_ballot_transfer *b)
{
    int order = compare_u64(a->incarnation, b->incarnation);
    return order ? order : compare_u64(a->id, b->id);
}

/* Keeps `list` ordered with empty entries last; what falls off its end is told again in the next round. An entry among
 * the lowest of all is among the lowest of every part, so the order of merging cannot lose a vote of a kept one. */
static void insert_transfer(struct gms_ballot_transfer list[GMS_BALLOT_TRANSFERS],
                            const struct gms_ballot_transfer *entry)
{
    unsigned at = 0;

    if (!entry->incarnation)
        return;
    while (at < GMS_BALLOT_TRANSFERS && list[at].incarnation && compare_transfers(&list[at], entry) < 0)
        at++;
    if (at == GMS_BALLOT_TRANSFERS)
        return;
    if (!list[at].incarnation || compare_transfers(&list[at], entry) != 0) {
        memmove(&list[at + 1], &list[at], (GMS_BALLOT_TRANSFERS - 1 - at) * sizeof list[0]);
        list[at] = *entry;
        return;
    }
    for (size_t i = 0; i < sizeof entry->finished; i++) {
        list[at].finished[i] |= entry->finished[i];
        list[at].failed[i] |= entry->failed[i];
    }
}

static void merge_reclaim(struct gms_ballot_reclaim *into, const struct gms_ballot_reclaim *from)
{
    raise_u64(&into->step, from->step);
    raise_u64(&into->next, from->next);
    add_u16(&into->done, from->done);
    for (unsigned i = 0; i < GMS_RECLAIM_SUSPECTS; i++) {
        add_u16(&into->quiet[i], from->quiet[i]);
        add_u16(&into->best_effort[i], from->best_effort[i]);
        add_u16(&into->cannot_know[i], from->cannot_know[i]);
        lower_u16(&into->cannot_know_rank[i], from->cannot_know_rank[i]);
    }
    for (unsigned i = 0; i < sizeof into->blocked; i++)
        into->blocked[i] |= from->blocked[i];
}

/* Of several calls the one that is first in this order speaks; the others are said again in the next round. Only rank 0
 * speaks of a call, so two of the same name never differ; if they do, their contents order them. */
static int compare_exchanges(const struct gms_ballot_exchange *a, const struct gms_ballot_exchange *b)
{
    int order = compare_u64(a->incarnation, b->incarnation);
    if (!order)
        order = compare_u64(a->sequence, b->sequence);
    if (!order)
        order = compare_u64(a->bytes, b->bytes);
    return order ? order : memcmp(a->data, b->data, sizeof a->data);
}

static void merge_exchange(struct gms_ballot_exchange *into, const struct gms_ballot_exchange *from)
{
    if (from->incarnation && (!into->incarnation || compare_exchanges(from, into) < 0))
        *into = *from;
}

void gms_ballot_merge(struct gms_ballot *into, const struct gms_ballot *from)
{
    into->flags |= from->flags;
    if (into->version != from->version) {
        into->flags |= GMS_BALLOT_MALFORMED;
        if (from->version > into->version)
            into->version = from->version;
    }
    lower_u64(&into->world_least, from->world_least);
    raise_u64(&into->world_greatest, from->world_greatest);
    lower_u64(&into->round_least, from->round_least);
    raise_u64(&into->round_greatest, from->round_greatest);
    lower_u64(&into->state_least, from->state_least);
    raise_u64(&into->state_greatest, from->state_greatest);
    add_u16(&into->ranks, from->ranks);
    if (into->ranks > GMS_MAX_RANKS)
        into->flags |= GMS_BALLOT_MALFORMED;
    for (unsigned e = 0; e < GMS_MAX_ENGINES; e++) {
        if (!merge_facts(&into->facts[e], &from->facts[e]))
            into->flags |= GMS_BALLOT_MALFORMED;
        merge_proposal(&into->proposals[e], &from->proposals[e]);
    }
    for (unsigned i = 0; i < GMS_BALLOT_TRANSFERS; i++)
        insert_transfer(into->transfers, &from->transfers[i]);
    merge_reclaim(&into->reclaim, &from->reclaim);
    merge_exchange(&into->exchange, &from->exchange);
}

const char *gms_fact_name(enum gms_fact fact)
{
    static const char *const names[GMS_FACT_COUNT] = {
        [GMS_FACT_GONE] = "gone",
        [GMS_FACT_STICKY] = "sticky device error",
        [GMS_FACT_STALLED] = "stalled",
        [GMS_FACT_COMMANDED] = "commanded",
        [GMS_FACT_LEFT] = "left",
        [GMS_FACT_PARKED] = "parked",
        [GMS_FACT_RETIRED] = "retired",
        [GMS_FACT_CLASSIFIED] = "classified",
        [GMS_FACT_READY] = "ready to serve",
        [GMS_FACT_WANTED] = "wanted next",
    };
    return (unsigned)fact < GMS_FACT_COUNT ? names[fact] : "unknown fact";
}

const char *gms_operation_name(enum gms_operation operation)
{
    static const char *const names[GMS_OPERATION_COUNT] = {
        [GMS_OPERATION_NONE] = "none",       [GMS_OPERATION_JOIN] = "join",       [GMS_OPERATION_ALLOCATE] = "allocate",
        [GMS_OPERATION_PUBLISH] = "publish", [GMS_OPERATION_ADOPT] = "adopt",     [GMS_OPERATION_TAKEOVER] = "takeover",
        [GMS_OPERATION_RELEASE] = "release", [GMS_OPERATION_RECLAIM] = "reclaim", [GMS_OPERATION_EXCHANGE] = "exchange",
        [GMS_OPERATION_BUDGET] = "budget",
    };
    return (unsigned)operation < GMS_OPERATION_COUNT ? names[operation] : "unknown operation";
}

const char *gms_operation_field_name(enum gms_operation operation, uint32_t field)
{
    static const char *const names[GMS_OPERATION_COUNT][GMS_PROPOSAL_FIELDS] = {
        [GMS_OPERATION_JOIN] = {"identity", "environment", "protocol version", "world size", "hash seed",
                                "engine version"},
        [GMS_OPERATION_ALLOCATE] = {"pool name", "kind", "slot count", "block bytes"},
        [GMS_OPERATION_PUBLISH] = {"pool name", "manifest"},
        [GMS_OPERATION_ADOPT] = {"epoch", "source"},
        [GMS_OPERATION_RELEASE] = {"pool name"},
        [GMS_OPERATION_EXCHANGE] = {"name", "value"},
    };
    return (unsigned)operation < GMS_OPERATION_COUNT && field < GMS_PROPOSAL_FIELDS ? names[operation][field] : NULL;
}

bool gms_operation_field_is_least(enum gms_operation operation, uint32_t field)
{
    return (operation == GMS_OPERATION_ALLOCATE && field == GMS_ALLOCATE_FIELD_BUDGET) ||
           (operation == GMS_OPERATION_BUDGET && field == GMS_BUDGET_FIELD_HERE);
}
