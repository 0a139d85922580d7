/* SPDX-License-Identifier: Apache-2.0
 *
 * Exchange: rank 0 of an engine gives a few bytes, and every rank of it gets them. The call itself is an operation like
 * others; what it carries goes in a lane of its own, one call's in a round:
 *
 *   rank 0: called --in its ballots until a round carried it--> carried          all ranks: the slot has it
 *   operation: begins when every rank has called and the slot has it             its success: the answer holds it
 *
 * A call waits one round for the bytes of each other engine that are there too, whether or not theirs is ever
 * completed.
 */
#include "core/core_state.h"

#include <string.h>

bool gms_core_exchange_arrived(const struct gms_core *core, uint32_t engine, const struct gms_operation_key *key)
{
    const struct gms_core_engine *slot = &core->engines[engine];

    return key->incarnation == slot->incarnation && slot->exchange.sequence == key->sequence;
}

bool gms_core_exchange_offer(const struct gms_core *core, struct gms_ballot_exchange *ret_exchange)
{
    for (uint32_t e = 0; e < GMS_MAX_ENGINES && core->options.rank == 0; e++) {
        const struct gms_core_pending *pending = &core->engines[e].pending;
        const struct gms_operation_key *key = &pending->proposal.key;

        if (key->kind != GMS_OPERATION_EXCHANGE || !gms_core_contributes(core, e) ||
            gms_core_exchange_arrived(core, e, key))
            continue;
        ret_exchange->incarnation = key->incarnation;
        ret_exchange->sequence = key->sequence;
        ret_exchange->bytes = pending->exchange_bytes;
        memcpy(ret_exchange->data, pending->exchange, sizeof ret_exchange->data);
        return true; /* the others' turns come: this one has arrived then */
    }
    return false;
}

void gms_core_exchange_round(struct gms_core *core, const struct gms_ballot *merged)
{
    const struct gms_ballot_exchange *said = &merged->exchange;

    for (uint32_t e = 0; e < GMS_MAX_ENGINES && said->incarnation; e++) {
        struct gms_core_engine *slot = &core->engines[e];

        /* This round's facts may have ended whose call it was. */
        if (slot->incarnation != said->incarnation || slot->role == GMS_ROLE_EMPTY ||
            slot->role == GMS_ROLE_CONDEMNED || said->bytes > sizeof slot->exchange.data)
            continue;
        slot->exchange.sequence = said->sequence;
        slot->exchange.bytes = said->bytes;
        memcpy(slot->exchange.data, said->data, sizeof slot->exchange.data);
        gms_core_mix(core, ((uint64_t)said->sequence << 32) | said->bytes);
        for (unsigned i = 0; i < sizeof said->data; i++)
            gms_core_mix(core, said->data[i]);
    }
}

bool gms_core_look_exchange(const struct gms_core *core, uint64_t incarnation, uint32_t sequence,
                            const uint8_t **ret_data, uint32_t *ret_bytes)
{
    for (uint32_t e = 0; e < GMS_MAX_ENGINES && incarnation && sequence; e++) {
        const struct gms_core_engine *slot = &core->engines[e];

        if (slot->incarnation != incarnation || slot->exchange.sequence != sequence)
            continue;
        *ret_data = slot->exchange.data;
        *ret_bytes = slot->exchange.bytes;
        return true;
    }
    return false;
}
