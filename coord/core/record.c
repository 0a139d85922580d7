/* SPDX-License-Identifier: Apache-2.0
 *
 * Durable before visible: every record has a ticket; what may follow only when it is stored is done in gms_core_stored.
 *
 * Payload, little-endian (README.md has the table): one header for all kinds, then the kind's own.
 */
#include "core/core_state.h"

#include <string.h>

struct writer {
    uint8_t *at;
    uint8_t *end;
};

static void put(struct writer *writer, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes && writer->at < writer->end; i++)
        *writer->at++ = (uint8_t)(value >> (8 * i));
}

static void put_key(struct writer *writer, const struct gms_operation_key *key)
{
    put(writer, key->incarnation, 8);
    put(writer, key->launch, 8);
    put(writer, key->sequence, 4);
    put(writer, key->kind, 4);
}

static void put_proposal(struct writer *writer, const struct gms_proposal *proposal)
{
    for (unsigned i = 0; i < GMS_PROPOSAL_FIELDS; i++)
        put(writer, proposal->fields[i], 8);
    for (unsigned i = 0; i < GMS_NAME_BYTES; i++)
        put(writer, (uint8_t)proposal->pool[i], 1);
    put(writer, proposal->pool_kind, 4);
}

static uint32_t encode(const struct gms_core *core, const struct gms_core_store *store,
                       uint8_t payload[GMS_STORE_PAYLOAD_BYTES])
{
    struct writer writer = {payload, payload + GMS_STORE_PAYLOAD_BYTES};

    put(&writer, core->options.world, 8);
    put(&writer, core->round, 8);
    put(&writer, store->epoch, 8);
    put(&writer, store->incarnation, 8);
    put(&writer, store->source, 8);
    put(&writer, store->engine, 4);
    switch (store->kind) {
    case GMS_STORE_PREPARED:
        put_key(&writer, &store->proposal.key);
        put_proposal(&writer, &store->proposal);
        break;
    case GMS_STORE_OUTCOME:
        put_key(&writer, &store->outcome.key);
        put(&writer, (uint32_t)store->outcome.status, 4);
        put(&writer, (uint32_t)store->outcome.rank, 4);
        put(&writer, store->outcome.incarnation, 8);
        put(&writer, store->outcome.epoch, 8);
        put(&writer, store->outcome.adopted, 4);
        put(&writer, store->outcome.idle, 4);
        put(&writer, store->outcome.quarantined, 4);
        put(&writer, store->outcome.pool_index, 4);
        put(&writer, store->outcome.pool_creator, 8);
        put(&writer, (uint32_t)store->outcome.pool_state, 4);
        put(&writer, store->outcome.created, 1);
        put(&writer, store->outcome.freed, 1);
        put(&writer, store->decided, 1);
        put(&writer, store->outcome.budget, 8);
        break;
    case GMS_STORE_CONDEMNED:
    case GMS_STORE_EPOCH:
    case GMS_STORE_SERVING:
    case GMS_STORE_TRANSFER:
        break;
    case GMS_STORE_RECLAIM:
        put(&writer, store->step, 8);
        break;
    }
    return (uint32_t)(writer.at - payload);
}

static const char *kind_name(enum gms_store_kind kind)
{
    switch (kind) {
    case GMS_STORE_PREPARED:
        return "prepared";
    case GMS_STORE_OUTCOME:
        return "outcome";
    case GMS_STORE_CONDEMNED:
        return "condemned";
    case GMS_STORE_EPOCH:
        return "epoch";
    case GMS_STORE_SERVING:
        return "serving";
    case GMS_STORE_TRANSFER:
        return "transfer";
    case GMS_STORE_RECLAIM:
        return "reclaim";
    }
    return "unknown";
}

struct gms_core_store *gms_core_store_begin(struct gms_core *core, enum gms_store_kind kind, uint32_t engine)
{
    struct gms_core_store *store = NULL;

    for (unsigned i = 0; i < GMS_CORE_STORES && !store; i++)
        if (!core->stores[i].ticket)
            store = &core->stores[i];
    if (!store) {
        struct gms_text text = gms_core_restart(core, GMS_E_STORE);
        gms_text_count(&text, "the store is ", GMS_CORE_STORES);
        gms_text_add(&text, " records behind: it does not keep up or does not answer; look at its disk");
        store = &core->spill_store;
    }
    memset(store, 0, sizeof *store);
    store->ticket = ++core->tickets;
    store->kind = kind;
    store->engine = engine;
    store->incarnation = core->engines[engine].incarnation;
    store->epoch = core->epoch;
    return store;
}

void gms_core_store_send(struct gms_core *core, struct gms_core_store *store)
{
    struct gms_action *action = gms_core_emit(core, GMS_ACTION_STORE);

    action->store.ticket = store->ticket;
    action->store.kind = store->kind;
    action->store.bytes = encode(core, store, action->store.payload);
}

void gms_core_stored(struct gms_core *core, uint64_t ticket, bool ok)
{
    struct gms_core_store *store = NULL;

    for (unsigned i = 0; i < GMS_CORE_STORES && ticket && !store; i++)
        if (core->stores[i].ticket == ticket)
            store = &core->stores[i];
    if (!store)
        return; /* answered twice */

    if (!ok && store->kind != GMS_STORE_PREPARED) {
        /* The group has decided; a rank that cannot keep the decision must not act on it, nor hide it. */
        struct gms_text text = gms_core_restart(core, GMS_E_STORE);
        gms_text_add(&text, "the store could not write a record of kind ");
        gms_text_add(&text, kind_name(store->kind));
        gms_text_add(&text, " for ");
        gms_text_engine(&text, store->engine, store->incarnation);
        gms_text_add(&text, ": see the store's error, make room or repair it, and start again");
        store->ticket = 0;
        return;
    }
    switch (store->kind) {
    case GMS_STORE_PREPARED:
        gms_core_prepare_stored(core, store, ok);
        break;
    case GMS_STORE_OUTCOME:
        gms_core_outcome_stored(core, store);
        break;
    case GMS_STORE_CONDEMNED:
        gms_core_condemned_stored(core, store);
        break;
    case GMS_STORE_EPOCH:
        gms_core_epoch_stored(core, store);
        break;
    case GMS_STORE_SERVING:
        gms_core_serving_stored(core, store);
        break;
    case GMS_STORE_TRANSFER:
        gms_core_transfer_stored(core, store);
        break;
    case GMS_STORE_RECLAIM:
        gms_core_reclaim_stored(core, store);
        break;
    }
    store->ticket = 0;
}
