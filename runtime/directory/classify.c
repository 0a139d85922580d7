/* SPDX-License-Identifier: Apache-2.0
 *
 * Classification works on the snapshot that the final refresh left in the indexes, not on the source's memory, so that
 * one answer comes out even if somebody scribbles on it.
 *
 *   1. claims: every plausible record whose parts are all SEALED at its generations claims its parts
 *   2. verdict: a record is adopted when nobody else claims any of its parts
 *   3. every slot word of the successor is set from the snapshot and the verdict
 */
#include "directory/index.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "directory/layout.h"
#include "directory/tail.h"

enum { CLAIMED_ONCE = 1, CLAIMED_TWICE = 2, CLAIMS = 3, ADOPTED = 4 };

struct classifier {
    struct gms_directory_index *index[GMS_MAX_POOLS]; /* NULL: pool takes no part */
    struct gms_directory_index *made[GMS_MAX_POOLS];  /* owned: those the caller did not have */
    struct gms_directory *const *source;
    struct gms_directory *const *into;
    uint8_t *marks[GMS_MAX_POOLS]; /* owned */
    bool spanning; /* some record has more than one part; else every valid one claims its own slot, and only that */
};

static void classifier_free(struct classifier *c)
{
    for (uint32_t pool = 0; pool < GMS_MAX_POOLS; pool++) {
        gms_directory_index_free(c->made[pool]);
        free(c->marks[pool]);
    }
}

static gms_status prepare_pool(struct classifier *c, uint32_t pool, struct gms_directory_index *given,
                               struct gms_error *ret_error)
{
    const struct gms_directory *source = c->source[pool], *into = c->into[pool];
    if (source == NULL || into == NULL)
        return GMS_OK;
    if (source->slot_count != into->slot_count || (given != NULL && given->slot_count != into->slot_count))
        return gms_fail(ret_error, GMS_E_MISMATCH,
                        "pool %" PRIu32 ": predecessor has %" PRIu32 " slots, index %" PRIu32 ", successor %" PRIu32,
                        pool, source->slot_count, given != NULL ? given->slot_count : source->slot_count,
                        into->slot_count);
    if (given == NULL) {
        gms_status status = gms_directory_index_create(into->slot_count, &c->made[pool], ret_error);
        if (status != GMS_OK)
            return status;
        given = c->made[pool];
    }
    c->index[pool] = given;
    c->marks[pool] = calloc(into->slot_count, 1);
    if (c->marks[pool] == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory to classify %" PRIu32 " slots", into->slot_count);
    return GMS_OK;
}

/* The record of a valid home as the index copied it. A pool that is not compatible was not copied and adopts nothing.
 */
static bool adoptable_home(const struct classifier *c, uint32_t pool, uint32_t slot)
{
    return (c->index[pool]->flags[slot] & GMS_INDEX_VALID) != 0 &&
           gms_directory_compatible(c->source[pool], c->into[pool]);
}

static bool part_is_whole(const struct classifier *c, const struct gms_record_part *part)
{
    return part->pool < GMS_MAX_POOLS && c->index[part->pool] != NULL &&
           gms_directory_compatible(c->source[part->pool], c->into[part->pool]) &&
           part->slot < c->index[part->pool]->slot_count &&
           c->index[part->pool]->seen[part->slot] == gms_slot_word_make(GMS_SLOT_SEALED, part->generation);
}

/* The successor has this file mapped too, so even our own copy is checked before its fields are used. */
static bool read_whole(const struct classifier *c, uint32_t pool, uint32_t slot, struct gms_record *ret_record)
{
    gms_directory_copy_record_out(c->into[pool], slot, ret_record);
    if (!gms_record_plausible(ret_record, c->into[pool]->geometry.identity_digest, pool, slot,
                              gms_slot_word_generation(c->index[pool]->seen[slot])))
        return false;
    for (uint32_t i = 0; i < ret_record->part_count; i++)
        if (!part_is_whole(c, &ret_record->parts[i]))
            return false;
    return true;
}

static void claim(uint8_t *mark)
{
    *mark = (*mark & CLAIMS) == 0 ? CLAIMED_ONCE : CLAIMED_TWICE;
}

static void claim_parts(struct classifier *c, uint32_t pool)
{
    for (uint32_t slot = 0; slot < c->index[pool]->slot_count; slot++) {
        struct gms_record record;
        if (!adoptable_home(c, pool, slot))
            continue;
        if ((c->index[pool]->flags[slot] & GMS_INDEX_SPANS) == 0)
            claim(&c->marks[pool][slot]);
        else if (read_whole(c, pool, slot, &record))
            for (uint32_t i = 0; i < record.part_count; i++)
                claim(&c->marks[record.parts[i].pool][record.parts[i].slot]);
    }
}

static void adopt_spanning(struct classifier *c, uint32_t pool, uint32_t slot)
{
    struct gms_record record;
    if (!read_whole(c, pool, slot, &record))
        return;
    for (uint32_t i = 0; i < record.part_count; i++)
        if ((c->marks[record.parts[i].pool][record.parts[i].slot] & CLAIMS) != CLAIMED_ONCE)
            return;
    for (uint32_t i = 0; i < record.part_count; i++) {
        c->marks[record.parts[i].pool][record.parts[i].slot] |= ADOPTED;
        if (i > 0)
            gms_directory_copy_record_in(c->into[record.parts[i].pool], record.parts[i].slot, &record);
    }
}

static void give_verdicts(struct classifier *c, uint32_t pool)
{
    for (uint32_t slot = 0; slot < c->index[pool]->slot_count; slot++) {
        if (!adoptable_home(c, pool, slot) || (c->marks[pool][slot] & ADOPTED) != 0)
            continue;
        if ((c->index[pool]->flags[slot] & GMS_INDEX_SPANS) != 0)
            adopt_spanning(c, pool, slot);
        else if ((c->marks[pool][slot] & CLAIMS) == CLAIMED_ONCE)
            c->marks[pool][slot] |= ADOPTED;
    }
}

static void count_class(struct gms_classification *counts, enum gms_slot_class class)
{
    switch (class) {
    case GMS_CLASS_FREE:
        counts->free++;
        break;
    case GMS_CLASS_ADOPTABLE:
        counts->adoptable++;
        break;
    case GMS_CLASS_QUARANTINED:
        counts->quarantined++;
        break;
    case GMS_CLASS_RETIRED:
        counts->retired++;
        break;
    }
}

static enum gms_slot_state state_of_class(enum gms_slot_class class)
{
    static const enum gms_slot_state states[] = {[GMS_CLASS_FREE] = GMS_SLOT_IDLE,
                                                 [GMS_CLASS_ADOPTABLE] = GMS_SLOT_SEALED,
                                                 [GMS_CLASS_QUARANTINED] = GMS_SLOT_QUARANTINED,
                                                 [GMS_CLASS_RETIRED] = GMS_SLOT_RETIRED};
    return states[class];
}

/* Only what the source itself had leased: what it found in quarantine is somebody else's. */
static bool copy_tail(const struct classifier *c, uint32_t pool, uint32_t slot, gms_slot_word word)
{
    struct gms_tail_record tail;
    if (gms_slot_word_state(word) != GMS_SLOT_LEASED || !gms_directory_compatible(c->source[pool], c->into[pool]))
        return false;
    const uint32_t places = gms_directory_read_tail(c->source[pool], slot, gms_slot_word_generation(word),
                                                    c->source[pool]->geometry.incarnation, &tail);
    gms_directory_keep_tail(c->into[pool], slot, &tail, places);
    return places != 0;
}

static void store_words(const struct classifier *c, uint32_t pool, bool source_clean, struct gms_classification *counts)
{
    _Atomic gms_slot_word *words = gms_directory_words(c->into[pool]);
    const bool plain =
        c->index[pool] != NULL && !c->spanning && gms_directory_compatible(c->source[pool], c->into[pool]);
    for (uint32_t slot = 0; slot < c->into[pool]->slot_count; slot++) {
        gms_slot_word word = 0;
        bool adopted = false;
        if (c->index[pool] != NULL) {
            word = c->index[pool]->seen[slot];
            adopted =
                plain ? (c->index[pool]->flags[slot] & GMS_INDEX_VALID) != 0 : (c->marks[pool][slot] & ADOPTED) != 0;
        }
        const enum gms_slot_class class = gms_slot_classify(word, adopted, source_clean);
        count_class(counts, class);
        if (gms_slot_word_state(word) == GMS_SLOT_SEALED && class != GMS_CLASS_ADOPTABLE)
            counts->damaged++;
        counts->tails += c->index[pool] != NULL && copy_tail(c, pool, slot, word);
        atomic_store_explicit(&words[slot], gms_slot_word_make(state_of_class(class), gms_slot_word_generation(word)),
                              memory_order_release);
    }
    atomic_fetch_add_explicit(&gms_directory_header(c->into[pool])->changes, 1, memory_order_release);
}

gms_status gms_directory_classify(struct gms_directory_index *const index[GMS_MAX_POOLS],
                                  struct gms_directory *const source[GMS_MAX_POOLS],
                                  struct gms_directory *const into[GMS_MAX_POOLS], bool source_clean,
                                  struct gms_classification ret_counts[GMS_MAX_POOLS], struct gms_error *ret_error)
{
    struct classifier c = {.source = source, .into = into};
    gms_status status = GMS_OK;
    for (uint32_t pool = 0; pool < GMS_MAX_POOLS && status == GMS_OK; pool++)
        status = prepare_pool(&c, pool, index[pool], ret_error);
    if (status != GMS_OK) {
        classifier_free(&c);
        return status;
    }
    for (uint32_t pool = 0; pool < GMS_MAX_POOLS; pool++)
        if (c.index[pool] != NULL)
            gms_directory_index_refresh(c.index[pool], source, pool, into[pool]);
    for (uint32_t pool = 0; pool < GMS_MAX_POOLS; pool++)
        c.spanning = c.spanning || (c.index[pool] != NULL && c.index[pool]->spanning > 0);
    for (uint32_t pool = 0; pool < GMS_MAX_POOLS && c.spanning; pool++)
        if (c.index[pool] != NULL)
            claim_parts(&c, pool);
    for (uint32_t pool = 0; pool < GMS_MAX_POOLS && c.spanning; pool++)
        if (c.index[pool] != NULL)
            give_verdicts(&c, pool);
    memset(ret_counts, 0, sizeof *ret_counts * GMS_MAX_POOLS);
    for (uint32_t pool = 0; pool < GMS_MAX_POOLS; pool++)
        if (into[pool] != NULL)
            store_words(&c, pool, source_clean, &ret_counts[pool]);
    classifier_free(&c);
    return GMS_OK;
}
