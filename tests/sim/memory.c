/* SPDX-License-Identifier: Apache-2.0 */
#include "memory.h"

#include <stdlib.h>
#include <string.h>

#include "checks.h"

struct cluster_memory *cluster_memory_new(void)
{
    return calloc(1, sizeof(struct cluster_memory));
}

static bool writes(const struct cluster_memory *memory, uint32_t rank, uint32_t page, uint32_t place)
{
    return memory->writers[rank][page][place / 64] >> (place % 64) & 1;
}

/* Somebody else than `place` who may still write the page on the rank; 0: nobody. */
static uint32_t other_writer(const struct cluster_memory *memory, uint32_t rank, uint32_t page, uint32_t place)
{
    for (uint32_t i = 1; i < CLUSTER_INCARNATIONS; i++)
        if (i != place && writes(memory, rank, page, i))
            return i;
    return 0;
}

/* Does the engine want the page? Each rank asks a little differently: it may die between two of them. */
static bool wants(uint64_t incarnation, uint32_t rank, uint32_t page)
{
    uint64_t mixed = (incarnation * 31 + page) * UINT64_C(0x9e3779b97f4a7c15);

    return (mixed >> 60) < (uint64_t)(6 + rank % 2);
}

static void lease(struct cluster *cluster, uint32_t rank, uint64_t incarnation, uint32_t page)
{
    struct cluster_memory *memory = cluster->memory;
    uint32_t place = cluster_place(cluster, incarnation);

    if (memory->cohorts[place][rank].dead || memory->words[place][rank][page] != MEMORY_FREE)
        return;
    uint32_t other = other_writer(memory, rank, page, place);
    if (other && !memory->proof_is_trusted)
        cluster_fail(cluster, "rank %u: page %u goes to incarnation %llu while incarnation %u may still write it", rank,
                     page, (unsigned long long)incarnation, other);
    memory->words[place][rank][page] = MEMORY_LEASED;
    memory->writers[rank][page][place / 64] |= UINT64_C(1) << (place % 64);
}

static void serve(struct cluster *cluster, uint32_t rank, uint64_t incarnation)
{
    for (uint32_t page = 0; page < MEMORY_PAGES; page++)
        if (wants(incarnation, rank, page))
            lease(cluster, rank, incarnation, page);
}

static void classify(struct cluster *cluster, uint32_t rank, const struct gms_action *action)
{
    struct cluster_memory *memory = cluster->memory;
    uint32_t from = cluster_place(cluster, action->classify.source),
             into = cluster_place(cluster, action->classify.incarnation);

    for (uint32_t page = 0; page < MEMORY_PAGES; page++) {
        uint8_t word = memory->words[from][rank][page];

        memory->stamps[rank][page] = memory->stamps[rank][page] * (word == MEMORY_QUARANTINED);
        if (word == MEMORY_LEASED)
            memory->suspects[rank][page] |= 1u << action->classify.suspect;
        else if (word == MEMORY_FREE)
            memory->suspects[rank][page] = 0;
        memory->words[into][rank][page] = word == MEMORY_FREE ? MEMORY_FREE : MEMORY_QUARANTINED;
    }
}

/* Nobody's KV is classified: what is known to be suspected stays out. */
static void begin_anew(struct cluster *cluster, uint32_t rank, uint64_t incarnation)
{
    struct cluster_memory *memory = cluster->memory;
    uint32_t into = cluster_place(cluster, incarnation);

    for (uint32_t page = 0; page < MEMORY_PAGES; page++)
        if (memory->words[into][rank][page] == MEMORY_FREE && memory->suspects[rank][page])
            memory->words[into][rank][page] = MEMORY_QUARANTINED;
}

void cluster_memory_adopted(struct cluster *cluster, uint64_t incarnation)
{
    struct cluster_memory *memory = cluster->memory;
    uint32_t place = cluster_place(cluster, incarnation);

    for (uint32_t page = 0; memory && page < MEMORY_PAGES; page++) {
        bool usable = true;

        for (uint32_t r = 0; r < cluster->ranks; r++)
            usable = usable && memory->words[place][r][page] == MEMORY_FREE;
        for (uint32_t r = 0; r < cluster->ranks && !usable; r++)
            memory->words[place][r][page] = MEMORY_QUARANTINED;
    }
}

/* ------------------------------------------------------------------------------------------------- reclaim ---- */

static bool held_back(const struct cluster_memory *memory, uint32_t rank, uint32_t owner, uint32_t page,
                      const struct gms_action *action)
{
    if (page >= MEMORY_PAGES || memory->words[owner][rank][page] != MEMORY_QUARANTINED)
        return true;
    if (memory->stamps[rank][page] != action->reclaim.owner &&
        !(action->reclaim.inherits && memory->stamps[rank][page]))
        return true;
    return (memory->suspects[rank][page] & ~action->reclaim.chosen) != 0;
}

static void look(struct cluster *cluster, uint32_t rank, const struct gms_action *action, struct gms_event *event)
{
    uint32_t owner = cluster_place(cluster, action->reclaim.owner), first = gms_reclaim_slot(action->reclaim.position);

    memset(event->reclaim.blocked, 0xff, sizeof event->reclaim.blocked);
    event->reclaim.next = GMS_RECLAIM_END;
    if (gms_reclaim_pool(action->reclaim.position))
        return;
    for (uint32_t i = 0; i < action->reclaim.slots; i++)
        if (!held_back(cluster->memory, rank, owner, first + i, action))
            event->reclaim.blocked[i / 8] &= (uint8_t) ~(1u << (i % 8));
    for (uint32_t page = first + action->reclaim.slots; page < MEMORY_PAGES; page++)
        if (!held_back(cluster->memory, rank, owner, page, action)) {
            event->reclaim.next = page;
            return;
        }
}

static void free_pages(struct cluster *cluster, uint32_t rank, const struct gms_action *action)
{
    struct cluster_memory *memory = cluster->memory;
    uint32_t owner = cluster_place(cluster, action->reclaim.owner), first = gms_reclaim_slot(action->reclaim.position);

    for (uint32_t i = 0; i < GMS_RECLAIM_SLOTS; i++) {
        uint32_t page = first + i;

        if (!(action->reclaim.bitmap[i / 8] >> (i % 8) & 1))
            continue;
        if (page >= MEMORY_PAGES) {
            cluster_fail(cluster, "rank %u frees page %u, which does not exist", rank, page);
            return;
        }
        if (memory->words[owner][rank][page] != MEMORY_QUARANTINED)
            continue; /* done before the crash */
        for (uint32_t r = 0; r < cluster->ranks && !memory->proof_is_trusted; r++) {
            uint32_t writer = other_writer(memory, r, page, owner);

            if (writer)
                cluster_fail(cluster,
                             "rank %u frees page %u for incarnation %llu while incarnation %u may still write "
                             "it on rank %u",
                             rank, page, (unsigned long long)action->reclaim.owner, writer, r);
        }
        memory->words[owner][rank][page] = MEMORY_FREE;
        memory->suspects[rank][page] = 0;
        memory->returned++;
    }
}

/* The engine's rank 0 chooses pages for all of its ranks as soon as it is told. */
static void grant(struct cluster *cluster, uint32_t rank, const struct gms_action *action)
{
    struct cluster_memory *memory = cluster->memory;
    uint32_t owner = cluster_place(cluster, action->reclaim.owner), first = gms_reclaim_slot(action->reclaim.position);

    for (uint32_t i = 0; i < GMS_RECLAIM_SLOTS; i++) {
        if (!(action->reclaim.bitmap[i / 8] >> (i % 8) & 1))
            continue;
        for (uint32_t r = 0; r < cluster->ranks; r++)
            if (memory->words[owner][r][first + i] == MEMORY_QUARANTINED)
                cluster_fail(cluster, "rank %u tells of page %u, which is still in quarantine on rank %u", rank,
                             first + i, r);
        memory->granted++;
        for (uint32_t r = 0; r < cluster->ranks && rank == 0; r++)
            if (wants(action->reclaim.owner + 1, r, first + i))
                lease(cluster, r, action->reclaim.owner, first + i);
    }
}

static void stamp(struct cluster *cluster, uint32_t rank, const struct gms_action *action)
{
    struct cluster_memory *memory = cluster->memory;
    uint32_t owner = cluster_place(cluster, action->reclaim.owner);

    for (uint32_t page = 0; page < MEMORY_PAGES; page++)
        if (memory->words[owner][rank][page] == MEMORY_QUARANTINED &&
            !(action->reclaim.inherits && memory->stamps[rank][page]))
            memory->stamps[rank][page] = action->reclaim.owner;
}

static void answer(struct cluster *cluster, uint32_t rank, uint32_t at)
{
    struct cluster_memory *memory = cluster->memory;
    uint64_t suspect = memory->asks[rank][at].suspect;
    uint32_t place = cluster_place(cluster, suspect);
    struct gms_event event = {.type = GMS_EVENT_RECLAIM_ANSWER};

    if (memory->asks[rank][at].answered ||
        (!memory->cohorts[place][rank].quiet && !memory->cohorts[place][rank].unknowable))
        return;
    memory->asks[rank][at].answered = true;
    event.reclaim.step = memory->asks[rank][at].step;
    event.reclaim.suspect = suspect;
    event.reclaim.answer = memory->cohorts[place][rank].unknowable ? GMS_RECLAIM_CANNOT_KNOW
                           : memory->proof_is_trusted              ? GMS_RECLAIM_BEST_EFFORT
                                                                   : GMS_RECLAIM_QUIET;
    cluster_add(cluster, CLUSTER_RECLAIM, rank, &event);
}

static void ask(struct cluster *cluster, uint32_t rank, const struct gms_action *action)
{
    struct cluster_memory *memory = cluster->memory;
    uint32_t at = 0;

    while (at < MEMORY_ASKS && memory->asks[rank][at].suspect && memory->asks[rank][at].step == action->reclaim.step)
        at++;
    if (at == MEMORY_ASKS) {
        cluster_fail(cluster, "too many suspects");
        return;
    }
    memory->asks[rank][at].step = action->reclaim.step;
    memory->asks[rank][at].suspect = action->reclaim.suspect;
    memory->asks[rank][at].answered = false;
    answer(cluster, rank, at);
}

static void work(struct cluster *cluster, uint32_t rank, const struct gms_action *action)
{
    struct cluster_memory *memory = cluster->memory;
    struct gms_event event = {.type = GMS_EVENT_RECLAIM_DONE};

    event.reclaim.step = action->reclaim.step;
    switch (action->reclaim.work) {
    case GMS_RECLAIM_STAMP:
        stamp(cluster, rank, action);
        break;
    case GMS_RECLAIM_LOOK:
        look(cluster, rank, action, &event);
        break;
    case GMS_RECLAIM_FREE:
        free_pages(cluster, rank, action);
        break;
    case GMS_RECLAIM_CLEAR:
        for (uint32_t page = 0; page < MEMORY_PAGES; page++)
            memory->suspects[rank][page] &= ~action->reclaim.chosen;
        break;
    case GMS_RECLAIM_ASK:
        ask(cluster, rank, action);
        return;
    case GMS_RECLAIM_GRANT:
        grant(cluster, rank, action);
        return;
    case GMS_RECLAIM_ENDED:
        memory->ended[action->reclaim.answer]++;
        return;
    case GMS_RECLAIM_STOP:
    case GMS_RECLAIM_WORK_COUNT:
        return;
    }
    cluster_add(cluster, CLUSTER_RECLAIM, rank, &event);
}

void cluster_memory_act(struct cluster *cluster, uint32_t rank, const struct gms_action *action)
{
    if (!cluster->memory)
        return;
    if (action->type == GMS_ACTION_RECLAIM)
        work(cluster, rank, action);
    else if (action->type == GMS_ACTION_CLASSIFY)
        classify(cluster, rank, action);
    else if (action->type == GMS_ACTION_PROMOTE && !action->promote.source)
        begin_anew(cluster, rank, action->promote.incarnation);
    else if (action->type == GMS_ACTION_SERVING)
        serve(cluster, rank, action->promote.incarnation);
}

/* ------------------------------------------------------------------------------------------------- cohorts ---- */

void cluster_memory_retired(struct cluster *cluster, uint32_t rank, uint64_t incarnation)
{
    if (cluster->memory)
        cluster->memory->cohorts[cluster_place(cluster, incarnation)][rank].dead = true;
}

static void answer_all(struct cluster *cluster, uint32_t rank, uint64_t incarnation)
{
    for (uint32_t i = 0; i < MEMORY_ASKS; i++)
        if (cluster->memory->asks[rank][i].suspect == incarnation)
            answer(cluster, rank, i);
}

void cluster_memory_quiet(struct cluster *cluster, uint32_t rank, uint64_t incarnation)
{
    struct cluster_memory *memory = cluster->memory;
    uint32_t place = cluster_place(cluster, incarnation);

    if (!memory->cohorts[place][rank].dead || memory->cohorts[place][rank].quiet)
        return;
    memory->cohorts[place][rank].quiet = true;
    for (uint32_t page = 0; page < MEMORY_PAGES; page++)
        memory->writers[rank][page][place / 64] &= ~(UINT64_C(1) << (place % 64));
    answer_all(cluster, rank, incarnation);
}

void cluster_memory_unknowable(struct cluster *cluster, uint32_t rank, uint64_t incarnation)
{
    struct cluster_memory *memory = cluster->memory;
    uint32_t place = cluster_place(cluster, incarnation);

    if (memory->cohorts[place][rank].quiet)
        return;
    memory->cohorts[place][rank].unknowable = true;
    answer_all(cluster, rank, incarnation);
}

void cluster_memory_crash(struct cluster *cluster)
{
    if (cluster->memory)
        memset(cluster->memory->asks, 0, sizeof cluster->memory->asks);
}

void cluster_memory_lost(struct cluster *cluster)
{
    struct cluster_memory *memory = cluster->memory;

    if (!memory)
        return;
    memset(memory->words, 0, sizeof memory->words);
    memset(memory->suspects, 0, sizeof memory->suspects);
    memset(memory->stamps, 0, sizeof memory->stamps);
    memset(memory->writers, 0, sizeof memory->writers);
    memset(memory->cohorts, 0, sizeof memory->cohorts);
}

void cluster_memory_distrust(struct cluster *cluster)
{
    struct cluster_memory *memory = cluster->memory;

    for (uint32_t r = 0; memory && r < cluster->ranks; r++)
        for (uint32_t page = 0; page < MEMORY_PAGES; page++)
            for (uint32_t place = 1; place < CLUSTER_INCARNATIONS; place++)
                if (memory->words[place][r][page] == MEMORY_LEASED)
                    memory->suspects[r][page] |= 1u << GMS_RECLAIM_CROWD;
}

uint32_t cluster_memory_count(struct cluster *cluster, uint32_t rank, uint64_t incarnation, enum memory_word word)
{
    uint32_t place = cluster_place(cluster, incarnation), count = 0;

    for (uint32_t page = 0; page < MEMORY_PAGES; page++)
        count += cluster->memory->words[place][rank][page] == word;
    return count;
}
