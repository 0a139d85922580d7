/* SPDX-License-Identifier: Apache-2.0
 *
 * Exchange: rank 0 of an engine gives a few bytes, and every rank of it gets them. The call itself is an operation like
 * others; what it carries goes in a lane of its own, one call's in a round. The slot keeps one call's bytes:
 *
 *   a call, in a completed round        the lane has its bytes          the lane has another engine's, or none
 *   ----------------------------------------------------------------------------------------------------------------
 *   some ranks have not asked           not looked at: kept is the      -
 *                                       call before, which they may
 *                                       still have to be told
 *   every rank asks                     kept from here on: the          due: rank 0 rings, and says what is due
 *                                       operation begins                before all else
 *   begun, and then decided             not said any more; whoever asks late, also of a later world, is told what is
 *                                       kept, until every rank asks for the next exchange
 *
 * Who asks for a call has been told the end of the one before, so bytes are replaced only when nobody can ask for them
 * any more, whoever was quicker, and whatever a restart of the coordinators made some ranks ask again. A call that is
 * due begins in the round that carries it: each of them waits for at most one round for each other engine, and for no
 * engine whose ranks have not all asked.
 */
#include "core/core_state.h"

#include <string.h>

bool gms_core_exchange_offer(const struct gms_core *core, struct gms_ballot_exchange *ret_exchange)
{
    const struct gms_core_pending *said = NULL;

    for (uint32_t e = 0; e < GMS_MAX_ENGINES && core->options.rank == 0; e++) {
        const struct gms_core_pending *pending = &core->engines[e].pending;

        if (pending->proposal.key.kind != GMS_OPERATION_EXCHANGE || !gms_core_contributes(core, e) ||
            core->engines[e].operation.preparing)
            continue;
        if (!said || (pending->exchange_due && !said->exchange_due))
            said = pending;
    }
    if (!said)
        return false;
    ret_exchange->incarnation = said->proposal.key.incarnation;
    ret_exchange->sequence = said->proposal.key.sequence;
    ret_exchange->bytes = said->exchange_bytes;
    memcpy(ret_exchange->data, said->exchange, sizeof ret_exchange->data);
    return said->exchange_due;
}

bool gms_core_exchange_take(struct gms_core *core, uint32_t engine, const struct gms_operation_key *key,
                            const struct gms_ballot_exchange *said)
{
    struct gms_core_engine *slot = &core->engines[engine];

    if (said->incarnation != key->incarnation || said->sequence != key->sequence ||
        said->bytes > sizeof slot->exchange.data) {
        slot->pending.exchange_due = true;
        return false;
    }
    slot->exchange.sequence = said->sequence;
    slot->exchange.bytes = said->bytes;
    memcpy(slot->exchange.data, said->data, sizeof slot->exchange.data);
    gms_core_mix(core, ((uint64_t)said->sequence << 32) | said->bytes);
    for (unsigned i = 0; i < sizeof said->data; i++)
        gms_core_mix(core, said->data[i]);
    return true;
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
