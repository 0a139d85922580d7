/* SPDX-License-Identifier: Apache-2.0 */
#include "group/round_mpi.h"

#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/clock.h"

enum { SPINS_BEFORE_YIELD = 200, WATCH_EVERY_NS = 1000000, BITS = CHAR_BIT };

struct gms_round {
    MPI_Comm communicator;
    MPI_Datatype ballot_type;
    MPI_Op merge;
    bool has_communicator, has_type, has_merge;
    int rank, size, application;
    uint64_t timeout_ns;
    gms_round_watch watch;
    void *watch_context;
    struct gms_ballot mine; /* a stable home for what is being sent */
};

static void merge_ballots(void *in, void *inout, int *length, MPI_Datatype *type)
{
    const struct gms_ballot *from = in;
    struct gms_ballot *into = inout;
    (void)type;
    for (int i = 0; i < *length; i++)
        gms_ballot_merge(&into[i], &from[i]);
}

static gms_status mpi_failed(int code, const char *what, struct gms_error *ret_error)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return gms_fail(ret_error, GMS_E_PEER_LOST, "MPI refused %s: %s; restart the coordinator job", what, text);
}

/* Drives one nonblocking collective to its end, to the deadline, or to the news that a peer is gone. */
static gms_status wait_for(struct gms_round *round, int started, MPI_Request *request, const char *what,
                           struct gms_error *ret_error)
{
    if (started != MPI_SUCCESS)
        return mpi_failed(started, what, ret_error);
    int done = 0;
    for (int spin = 0; spin < SPINS_BEFORE_YIELD; spin++) {
        int code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS)
            return mpi_failed(code, what, ret_error);
        if (done)
            return GMS_OK;
    }
    uint64_t begin_ns = gms_clock_ns(), watched_ns = begin_ns;
    for (;;) {
        int code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS)
            return mpi_failed(code, what, ret_error);
        if (done)
            return GMS_OK;
        uint64_t now_ns = gms_clock_ns();
        if (now_ns - watched_ns >= WATCH_EVERY_NS) {
            watched_ns = now_ns;
            if (round->watch != NULL && round->watch(round->watch_context))
                return gms_fail(ret_error, GMS_E_PEER_LOST,
                                "a coordinator rank ended during %s; the job restarts as a whole", what);
            if (now_ns - begin_ns >= round->timeout_ns)
                return gms_fail(ret_error, GMS_E_ROUND_TIMEOUT,
                                "%s did not complete within timeouts.round (%llu ms): it has no outcome, the job "
                                "restarts",
                                what, (unsigned long long)(round->timeout_ns / GMS_NS_PER_MS));
        }
        sched_yield();
    }
}

gms_status gms_round_open(uint64_t timeout_ns, struct gms_round **ret_round, struct gms_error *ret_error)
{
    struct gms_round *round = calloc(1, sizeof *round);
    if (round == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the agreement round (%zu bytes)", sizeof *round);
    round->timeout_ns = timeout_ns;

    int code = MPI_Comm_dup(MPI_COMM_WORLD, &round->communicator);
    if (code != MPI_SUCCESS)
        goto failed;
    round->has_communicator = true;
    MPI_Comm_set_errhandler(round->communicator, MPI_ERRORS_RETURN);
    MPI_Comm_rank(round->communicator, &round->rank);
    MPI_Comm_size(round->communicator, &round->size);
    int *application = NULL, found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &application, &found);
    round->application = found && application != NULL ? *application : 0;

    code = MPI_Type_contiguous((int)sizeof(struct gms_ballot), MPI_BYTE, &round->ballot_type);
    if (code != MPI_SUCCESS)
        goto failed;
    round->has_type = true;
    code = MPI_Type_commit(&round->ballot_type);
    if (code != MPI_SUCCESS)
        goto failed;
    code = MPI_Op_create(merge_ballots, 1, &round->merge);
    if (code != MPI_SUCCESS)
        goto failed;
    round->has_merge = true;
    *ret_round = round;
    return GMS_OK;

failed:
    gms_round_close(round);
    return mpi_failed(code, "the communicator of the agreement rounds", ret_error);
}

void gms_round_close(struct gms_round *round)
{
    if (round == NULL)
        return;
    if (round->has_merge)
        MPI_Op_free(&round->merge);
    if (round->has_type)
        MPI_Type_free(&round->ballot_type);
    if (round->has_communicator)
        MPI_Comm_free(&round->communicator);
    free(round);
}

uint32_t gms_round_rank(const struct gms_round *round)
{
    return (uint32_t)round->rank;
}

uint32_t gms_round_size(const struct gms_round *round)
{
    return (uint32_t)round->size;
}

int gms_round_application(const struct gms_round *round)
{
    return round->application;
}

void gms_round_set_deadline(struct gms_round *round, uint64_t timeout_ns, gms_round_watch watch, void *context)
{
    round->timeout_ns = timeout_ns;
    round->watch = watch;
    round->watch_context = context;
}

/* Least and greatest of `value` over all ranks, in one collective: the greatest is the complement of the least
 * complement. */
static gms_status extremes(struct gms_round *round, uint64_t value, uint64_t *ret_least, uint64_t *ret_greatest,
                           const char *what, struct gms_error *ret_error)
{
    uint64_t pair[2] = {value, ~value}, merged[2] = {0, 0};
    MPI_Request request;
    int code = MPI_Iallreduce(pair, merged, 2, MPI_UINT64_T, MPI_MIN, round->communicator, &request);
    gms_status status = wait_for(round, code, &request, what, ret_error);
    if (status != GMS_OK)
        return status;
    *ret_least = merged[0];
    *ret_greatest = ~merged[1];
    return GMS_OK;
}

gms_status gms_round_greatest(struct gms_round *round, uint64_t value, uint64_t *ret_greatest,
                              struct gms_error *ret_error)
{
    uint64_t least = 0;
    return extremes(round, value, &least, ret_greatest, "a comparison of ranks", ret_error);
}

gms_status gms_round_share(struct gms_round *round, void *data, size_t bytes, struct gms_error *ret_error)
{
    return gms_round_share_from(round, 0, data, bytes, ret_error);
}

gms_status gms_round_gather(struct gms_round *round, const void *mine, size_t bytes, void *ret_all,
                            struct gms_error *ret_error)
{
    if (bytes > INT_MAX)
        return gms_fail(ret_error, GMS_E_INVALID, "%zu bytes to gather, the limit is %d", bytes, INT_MAX);
    MPI_Request request;
    int code = MPI_Iallgather(mine, (int)bytes, MPI_BYTE, ret_all, (int)bytes, MPI_BYTE, round->communicator, &request);
    return wait_for(round, code, &request, "the exchange of what each rank has", ret_error);
}

gms_status gms_round_share_from(struct gms_round *round, uint32_t root, void *data, size_t bytes,
                                struct gms_error *ret_error)
{
    if (bytes > INT_MAX)
        return gms_fail(ret_error, GMS_E_INVALID, "%zu bytes to share, the limit is %d", bytes, INT_MAX);
    MPI_Request request;
    int code = MPI_Ibcast(data, (int)bytes, MPI_BYTE, (int)root, round->communicator, &request);
    gms_status status = wait_for(round, code, &request, "the broadcast of what all ranks must have", ret_error);
    if (status != GMS_OK)
        return status;
    uint64_t least = 0, greatest = 0;
    status = extremes(round, XXH3_64bits(data, bytes), &least, &greatest, "the comparison of settings", ret_error);
    if (status != GMS_OK)
        return status;
    if (least != greatest)
        return gms_fail(ret_error, GMS_E_DIVERGED,
                        "the ranks received different bytes (digests %016llx and %016llx): are all started from "
                        "one installation?",
                        (unsigned long long)least, (unsigned long long)greatest);
    return GMS_OK;
}

gms_status gms_round_concur(struct gms_round *round, const struct gms_error *mine, struct gms_error *ret_error)
{
    static const char what[] = "the vote on the start";
    int failed = mine->status == GMS_OK ? INT_MAX : round->rank, lowest = INT_MAX;
    MPI_Request request;
    int code = MPI_Iallreduce(&failed, &lowest, 1, MPI_INT, MPI_MIN, round->communicator, &request);
    gms_status status = wait_for(round, code, &request, what, ret_error);
    if (status != GMS_OK || lowest == INT_MAX)
        return status;

    struct gms_error error;
    memset(&error, 0, sizeof error);
    if (lowest == round->rank) {
        error = *mine;
        error.rank = round->rank;
    }
    code = MPI_Ibcast(&error, (int)sizeof error, MPI_BYTE, lowest, round->communicator, &request);
    status = wait_for(round, code, &request, what, ret_error);
    if (status != GMS_OK)
        return status;
    error.text[sizeof error.text - 1] = '\0';
    if (ret_error != NULL)
        *ret_error = error;
    return error.status;
}

gms_status gms_round_run(struct gms_round *round, const struct gms_ballot *mine, struct gms_ballot *ret_merged,
                         struct gms_error *ret_error)
{
    round->mine = *mine;
    MPI_Request request;
    /* Count 1 of one type: no implementation can split a ballot. */
    int code =
        MPI_Iallreduce(&round->mine, ret_merged, 1, round->ballot_type, round->merge, round->communicator, &request);
    return wait_for(round, code, &request, "an agreement round", ret_error);
}

static bool bit_at(const uint8_t *bitmap, uint32_t index)
{
    return (bitmap[index / BITS] >> (index % BITS)) & 1;
}

static uint32_t bits_in(const uint8_t *bitmap, size_t bytes)
{
    uint32_t count = 0;
    for (size_t i = 0; i < bytes; i++)
        count += (uint32_t)__builtin_popcount(bitmap[i]);
    return count;
}

/* One number for the digests of all slots that every rank calls adoptable, fed in runs: nearly all are. */
static gms_status digest_of_adoptable(uint32_t slot_count, const uint8_t *adoptable, const uint32_t *digests,
                                      uint64_t *ret_digest, struct gms_error *ret_error)
{
    XXH3_state_t *state = XXH3_createState();
    if (state == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a digest");
    XXH3_64bits_reset(state);
    for (uint32_t slot = 0; slot < slot_count;) {
        uint32_t begin = slot;
        while (slot < slot_count) {
            if (slot % BITS == 0 && adoptable[slot / BITS] == UINT8_MAX && slot_count - slot >= BITS)
                slot += BITS;
            else if (bit_at(adoptable, slot))
                slot++;
            else
                break;
        }
        if (slot > begin)
            XXH3_64bits_update(state, &digests[begin], (slot - begin) * sizeof *digests);
        slot++;
    }
    *ret_digest = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return GMS_OK;
}

/* Slot by slot, only after the digest of all of them differed. */
static gms_status clear_unequal(struct gms_round *round, uint32_t slot_count, uint8_t *adoptable,
                                const uint32_t *digests, uint32_t *ret_unequal, struct gms_error *ret_error)
{
    uint32_t *pair = malloc(4 * (size_t)slot_count * sizeof *pair);
    if (pair == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory to compare %u slots", slot_count);
    uint32_t *merged = pair + 2 * (size_t)slot_count;
    for (uint32_t slot = 0; slot < slot_count; slot++) {
        pair[2 * (size_t)slot] = digests[slot];
        pair[2 * (size_t)slot + 1] = ~digests[slot];
    }
    MPI_Request request;
    int code =
        MPI_Iallreduce(pair, merged, (int)(2 * slot_count), MPI_UINT32_T, MPI_MIN, round->communicator, &request);
    gms_status status = wait_for(round, code, &request, "the comparison of slots", ret_error);
    if (status != GMS_OK)
        return status; /* `pair` leaks on purpose: MPI may still write into it, and the process is about to exit */
    for (uint32_t slot = 0; slot < slot_count; slot++) {
        if (bit_at(adoptable, slot) && merged[2 * (size_t)slot] != ~merged[2 * (size_t)slot + 1]) {
            adoptable[slot / BITS] &= (uint8_t) ~(1u << (slot % BITS));
            (*ret_unequal)++;
        }
    }
    free(pair);
    return GMS_OK;
}

gms_status gms_round_bulk(struct gms_round *round, uint32_t slot_count, uint8_t *adoptable, uint8_t *usable,
                          const uint32_t *digests, struct gms_round_bulk_result *ret_result,
                          struct gms_error *ret_error)
{
    static const char what[] = "the bulk sub-round";
    struct gms_round_bulk_result result = {0};
    uint64_t least = 0, greatest = 0;
    gms_status status = extremes(round, slot_count, &least, &greatest, what, ret_error);
    if (status != GMS_OK)
        return status;
    if (least != greatest)
        return gms_fail(ret_error, GMS_E_MISMATCH, "ranks bring %llu to %llu slots to one adoption",
                        (unsigned long long)least, (unsigned long long)greatest);
    if (slot_count > INT_MAX / 2)
        return gms_fail(ret_error, GMS_E_INVALID, "%u slots, the limit is %d", slot_count, INT_MAX / 2);

    size_t bytes = ((size_t)slot_count + BITS - 1) / BITS;
    uint8_t *maps = malloc(4 * bytes + 1);
    if (maps == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the bulk sub-round over %u slots", slot_count);
    uint8_t *mine = maps, *merged = mine + 2 * bytes;
    result.adoptable_here = bits_in(adoptable, bytes);
    memcpy(mine, adoptable, bytes);
    memcpy(mine + bytes, usable, bytes);
    MPI_Request request;
    int code = MPI_Iallreduce(mine, merged, (int)(2 * bytes), MPI_BYTE, MPI_BAND, round->communicator, &request);
    status = wait_for(round, code, &request, what, ret_error);
    if (status != GMS_OK)
        return status; /* as above: not freed while MPI may write it */
    memcpy(adoptable, merged, bytes);
    memcpy(usable, merged + bytes, bytes);

    free(maps);
    uint64_t digest = 0;
    status = digest_of_adoptable(slot_count, adoptable, digests, &digest, ret_error);
    if (status != GMS_OK)
        return status;
    status = extremes(round, digest, &least, &greatest, what, ret_error);
    if (status == GMS_OK && least != greatest)
        status = clear_unequal(round, slot_count, adoptable, digests, &result.unequal, ret_error);
    if (status != GMS_OK)
        return status;
    result.adoptable = bits_in(adoptable, bytes);
    if (ret_result != NULL)
        *ret_result = result;
    return GMS_OK;
}
