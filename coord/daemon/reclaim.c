/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/reclaim_state.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"

/* ------------------------------------------------------------------------------------------------- memory ----- */

/* The owner's directories and the pools' suspects in mappings of their own: what the main thread drops meanwhile stays
 * whole for the job that uses it. Mapped by the worker, where it may take its time. */
struct gms_reclaim_memory {
    atomic_uint references;
    uint64_t owner;
    bool mapped;
    struct {
        int directory_fd, quarantine_fd; /* owned until mapped; -1: the owner does not have the pool */
        uint32_t slot_count;
        struct gms_directory directory;
        struct gms_quarantine quarantine;
    } pools[GMS_MAX_POOLS];
};

static void release(struct gms_reclaim_memory *memory)
{
    if (memory == NULL || atomic_fetch_sub(&memory->references, 1) > 1)
        return;
    for (uint32_t index = 0; index < GMS_MAX_POOLS; index++) {
        gms_directory_close(&memory->pools[index].directory);
        gms_quarantine_close(&memory->pools[index].quarantine);
        gms_fd_close(&memory->pools[index].directory_fd);
        gms_fd_close(&memory->pools[index].quarantine_fd);
    }
    free(memory);
}

static struct gms_reclaim_memory *take_memory(struct gms_reclaim *reclaim, uint64_t owner)
{
    if (reclaim->memory != NULL && reclaim->memory->owner == owner)
        return reclaim->memory;
    release(reclaim->memory);
    reclaim->memory = NULL;
    struct gms_reclaim_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL)
        return NULL;
    memory->references = 1;
    memory->owner = owner;
    bool whole = true;
    for (uint32_t index = 0; index < GMS_MAX_POOLS; index++) {
        const struct gms_directory *directory = gms_pools_directory(reclaim->daemon->pools, owner, index);
        const struct gms_quarantine *quarantine = gms_pools_quarantine(reclaim->daemon->pools, index);
        bool has = directory != NULL && quarantine != NULL;
        memory->pools[index].directory.fd = memory->pools[index].quarantine.fd = -1;
        memory->pools[index].directory_fd = has ? fcntl(directory->fd, F_DUPFD_CLOEXEC, 3) : -1;
        memory->pools[index].quarantine_fd = has ? fcntl(quarantine->fd, F_DUPFD_CLOEXEC, 3) : -1;
        memory->pools[index].slot_count = has ? quarantine->slot_count : 0;
        whole = whole && (!has || (memory->pools[index].directory_fd >= 0 && memory->pools[index].quarantine_fd >= 0));
    }
    if (!whole) {
        release(memory);
        return NULL;
    }
    reclaim->memory = memory;
    return memory;
}

/* On the worker. */
static gms_status map_memory(struct gms_reclaim_memory *memory, struct gms_error *ret_error)
{
    gms_status status = GMS_OK;
    for (uint32_t index = 0; index < GMS_MAX_POOLS && status == GMS_OK && !memory->mapped; index++) {
        if (memory->pools[index].directory_fd < 0)
            continue;
        status =
            gms_directory_open(memory->pools[index].directory_fd, NULL, &memory->pools[index].directory, ret_error);
        if (status != GMS_OK)
            break;
        memory->pools[index].directory_fd = -1;
        gms_fd_close(&memory->pools[index].directory.fd); /* the mapping is what is wanted */
        status = gms_quarantine_open(memory->pools[index].quarantine_fd, index, memory->pools[index].slot_count,
                                     &memory->pools[index].quarantine, ret_error);
        if (status != GMS_OK)
            break;
        memory->pools[index].quarantine_fd = -1;
        gms_fd_close(&memory->pools[index].quarantine.fd);
    }
    memory->mapped = memory->mapped || status == GMS_OK;
    return status;
}

/* ------------------------------------------------------------------------------------------------- jobs ------- */

struct job {
    struct gms_job base;
    struct gms_reclaim *reclaim;
    struct gms_reclaim_memory *memory;
    enum gms_reclaim_work work;
    uint64_t step, position, page_pause_ns;
    uint32_t slots;
    struct gms_quarantine_pass pass;
    uint8_t bitmap[GMS_RECLAIM_SLOTS / 8];
    uint64_t incarnations[GMS_RECLAIM_SUSPECTS]; /* by place, when the job was given */

    gms_status status;
    struct gms_error error;
    uint8_t blocked[GMS_RECLAIM_SLOTS / 8];
    uint64_t next;
    uint32_t by[GMS_RECLAIM_SUSPECTS]; /* STAMP: in quarantine; FREE: returned */
    uint32_t returned;
};

static void stamp(struct job *job)
{
    for (uint32_t index = 0; index < GMS_MAX_POOLS; index++) {
        uint32_t by[GMS_RECLAIM_SUSPECTS];
        if (job->memory->pools[index].directory.base == NULL || atomic_load(&job->base.cancelled))
            continue;
        gms_quarantine_stamp_all(&job->memory->pools[index].quarantine, &job->memory->pools[index].directory,
                                 &job->pass, by);
        for (uint32_t place = 0; place < GMS_RECLAIM_SUSPECTS; place++)
            job->by[place] += by[place];
    }
}

static bool holds_back(const struct job *job, uint32_t index, uint32_t slot)
{
    return gms_quarantine_holds_back(&job->memory->pools[index].quarantine, &job->memory->pools[index].directory,
                                     &job->pass, slot);
}

static void look(struct job *job)
{
    uint32_t index = gms_reclaim_pool(job->position), slot = gms_reclaim_slot(job->position);
    memset(job->blocked, 0xff, sizeof job->blocked);
    job->next = GMS_RECLAIM_END;
    if (index < GMS_MAX_POOLS && job->memory->pools[index].directory.base != NULL)
        for (uint32_t i = 0; i < job->slots; i++)
            if (slot + i >= slot && !holds_back(job, index, slot + i))
                job->blocked[i / 8] &= (uint8_t) ~(1u << (i % 8));
    uint64_t from = (uint64_t)slot + job->slots;
    for (; index < GMS_MAX_POOLS; index++, from = 0) {
        if (job->memory->pools[index].directory.base == NULL)
            continue;
        for (uint64_t at = from; at < job->memory->pools[index].slot_count && !atomic_load(&job->base.cancelled); at++)
            if (!holds_back(job, index, (uint32_t)at)) {
                job->next = (uint64_t)index << 32 | at;
                return;
            }
    }
}

static void free_pages(struct job *job)
{
    const uint32_t index = gms_reclaim_pool(job->position), first = gms_reclaim_slot(job->position);
    const struct timespec pause = {.tv_sec = (time_t)(job->page_pause_ns / GMS_NS_PER_S),
                                   .tv_nsec = (long)(job->page_pause_ns % GMS_NS_PER_S)};
    for (uint32_t i = 0; i < GMS_RECLAIM_SLOTS && !atomic_load(&job->base.cancelled); i++) {
        uint32_t suspects = 0;
        if (!(job->bitmap[i / 8] >> (i % 8) & 1) || index >= GMS_MAX_POOLS ||
            job->memory->pools[index].directory.base == NULL)
            continue;
        if (job->page_pause_ns > 0)
            nanosleep(&pause, NULL);
        if (atomic_load(&job->base.cancelled))
            return;
        if (!gms_quarantine_return(&job->memory->pools[index].quarantine, &job->memory->pools[index].directory,
                                   first + i, &suspects))
            continue; /* before a restart, or an owner's scribbling */
        job->returned++;
        for (uint32_t place = 0; suspects != 0; place++, suspects >>= 1)
            job->by[place] += suspects & 1;
    }
}

static void clear(struct job *job)
{
    for (uint32_t index = 0; index < GMS_MAX_POOLS && !atomic_load(&job->base.cancelled); index++)
        if (job->memory->pools[index].quarantine.base != NULL)
            gms_quarantine_clear(&job->memory->pools[index].quarantine, job->pass.chosen);
}

static void run(struct gms_job *base)
{
    struct job *job = (struct job *)base;
    job->status = map_memory(job->memory, &job->error);
    if (job->status != GMS_OK)
        return;
    switch (job->work) {
    case GMS_RECLAIM_STAMP:
        stamp(job);
        break;
    case GMS_RECLAIM_LOOK:
        look(job);
        break;
    case GMS_RECLAIM_FREE:
        free_pages(job);
        break;
    case GMS_RECLAIM_CLEAR:
        clear(job);
        break;
    case GMS_RECLAIM_ASK:
    case GMS_RECLAIM_GRANT:
    case GMS_RECLAIM_ENDED:
    case GMS_RECLAIM_STOP:
    case GMS_RECLAIM_WORK_COUNT:
        break;
    }
}

static void count(struct gms_reclaim *reclaim, const struct job *job)
{
    for (uint32_t place = 0; place < GMS_RECLAIM_SUSPECTS; place++) {
        struct gms_reclaim_status *status = gms_reclaim_find_status(reclaim, job->incarnations[place]);
        if (status == NULL)
            continue;
        if (job->work == GMS_RECLAIM_STAMP && job->by[place] > status->pages)
            status->pages = job->by[place];
        else if (job->work == GMS_RECLAIM_FREE)
            status->returned += job->by[place];
    }
}

static void done(struct gms_job *base)
{
    struct job *job = (struct job *)base;
    struct gms_reclaim *reclaim = job->reclaim;
    count(reclaim, job);
    if (job->status != GMS_OK) {
        gms_log(GMS_LOG_ERROR, "reclaim cannot go on: %s", job->error.text);
        gms_daemon_leave(reclaim->daemon, GMS_E_SYSTEM, "a restart takes the memory up again");
    }
    if (!atomic_load(&base->cancelled)) {
        struct gms_event event = {.type = GMS_EVENT_RECLAIM_DONE};
        event.reclaim.step = job->step;
        event.reclaim.next = job->next;
        memcpy(event.reclaim.blocked, job->blocked, sizeof event.reclaim.blocked);
        gms_daemon_push(reclaim->daemon, &event);
    }
    release(job->memory);
    free(job);
    if (!reclaim->daemon->stopped)
        gms_daemon_run_events(reclaim->daemon);
}

/* Out of memory or descriptors: that may pass, and nobody waits for it but pages. */
static void try_again(struct gms_reclaim *reclaim, const struct gms_action *action)
{
    const struct timeval pause = {.tv_usec = 100 * 1000};
    if (reclaim->deferred.reclaim.step != action->reclaim.step)
        gms_log(GMS_LOG_WARNING, "no memory or descriptors to return pages; tried again until there is");
    reclaim->deferred = *action;
    memmove(reclaim->deferred_bitmap, action->reclaim.bitmap, sizeof reclaim->deferred_bitmap);
    reclaim->deferred.reclaim.bitmap = reclaim->deferred_bitmap;
    event_add(reclaim->retry, &pause);
}

static void submit(struct gms_reclaim *reclaim, const struct gms_action *action)
{
    struct gms_reclaim_memory *memory = take_memory(reclaim, action->reclaim.owner);
    struct job *job = memory != NULL ? calloc(1, sizeof *job) : NULL;
    if (job == NULL) {
        try_again(reclaim, action);
        return;
    }
    job->base.run = run;
    job->base.done = done;
    job->reclaim = reclaim;
    job->memory = memory;
    atomic_fetch_add(&memory->references, 1);
    job->work = action->reclaim.work;
    job->step = action->reclaim.step;
    job->position = action->reclaim.position;
    job->slots = action->reclaim.slots;
    job->page_pause_ns = reclaim->daemon->options.config->reclaim_page_pause_ns;
    job->pass = (struct gms_quarantine_pass){
        .owner = action->reclaim.owner, .chosen = action->reclaim.chosen, .inherits = action->reclaim.inherits};
    memcpy(job->bitmap, action->reclaim.bitmap, sizeof job->bitmap);
    for (uint32_t place = 0; place < GMS_RECLAIM_SUSPECTS; place++) {
        struct gms_core_suspect suspect;
        if (gms_core_look_suspect(reclaim->daemon->core, place, &suspect))
            job->incarnations[place] = suspect.incarnation;
    }
    gms_worker_submit(reclaim->worker, &job->base);
}

static void on_retry(evutil_socket_t fd, short what, void *context)
{
    struct gms_reclaim *reclaim = context;
    struct gms_core_reclaim_view view;
    (void)fd;
    (void)what;
    gms_core_look_reclaim(reclaim->daemon->core, &view);
    if (view.step == reclaim->deferred.reclaim.step)
        submit(reclaim, &reclaim->deferred);
}

/* ------------------------------------------------------------------------------------------------- telling ---- */

static void tell(struct gms_client *client, uint32_t pool, uint32_t first, uint32_t slots, const uint8_t *bitmap)
{
    struct gms_message message = {.type = GMS_MESSAGE_RECLAIMED};
    message.reclaimed.incarnation = client->incarnation;
    message.reclaimed.pool = pool;
    message.reclaimed.first = first;
    message.reclaimed.slots = slots;
    message.reclaimed.bitmap = (struct gms_bytes){bitmap, (slots + 7) / 8};
    gms_sessions_send(client, &message);
}

static void grant(struct gms_reclaim *reclaim, const struct gms_action *action)
{
    struct gms_daemon *daemon = reclaim->daemon;
    const uint64_t now_ns = gms_clock_ns();
    uint32_t pages = 0;
    for (uint32_t i = 0; i < GMS_RECLAIM_SLOTS; i++)
        pages += action->reclaim.bitmap[i / 8] >> (i % 8) & 1;
    gms_timeline_reclaimed(&daemon->timeline, action->reclaim.owner, pages, now_ns);
    for (uint32_t place = 0; place < GMS_RECLAIM_SUSPECTS; place++) {
        struct gms_core_suspect suspect;
        if ((action->reclaim.chosen >> place & 1) == 0 || !gms_core_look_suspect(daemon->core, place, &suspect))
            continue;
        struct gms_reclaim_status *status = gms_reclaim_find_status(reclaim, suspect.incarnation);
        if (status != NULL)
            status->granted_ns = now_ns;
    }
    struct gms_core_view view;
    gms_core_look(daemon->core, &view);
    if (view.serving_engine < 0)
        return;
    struct gms_client *client = gms_sessions_engine(daemon->sessions, (uint32_t)view.serving_engine);
    if (client != NULL && client->incarnation == action->reclaim.owner)
        tell(client, gms_reclaim_pool(action->reclaim.position), gms_reclaim_slot(action->reclaim.position),
             action->reclaim.slots, action->reclaim.bitmap);
}

void gms_reclaim_attached(struct gms_reclaim *reclaim, struct gms_client *client)
{
    struct gms_core_reclaim_view under_way;
    gms_core_look_reclaim(reclaim->daemon->core, &under_way);
    for (uint32_t index = 0; index < GMS_MAX_POOLS; index++) {
        const struct gms_directory *directory = gms_pools_directory(reclaim->daemon->pools, client->incarnation, index);
        uint8_t *bitmap = directory != NULL ? calloc((directory->slot_count + 7u) / 8, 1) : NULL;
        for (uint32_t slot = 0; bitmap != NULL && slot < directory->slot_count; slot++) {
            const uint64_t at = ((uint64_t)index << 32 | slot) - under_way.position;
            /* What is being freed may not be free on other ranks yet. */
            const bool withheld = under_way.state == GMS_RECLAIM_FREEING && at < GMS_RECLAIM_SLOTS &&
                                  (under_way.bitmap[at / 8] >> (at % 8) & 1) != 0;
            if (gms_slot_word_state(gms_directory_word(directory, slot)) == GMS_SLOT_IDLE && !withheld)
                bitmap[slot / 8] |= (uint8_t)(1u << (slot % 8));
        }
        enum { AT_ONCE = 512 * 1024 }; /* 64 KiB of bits: a message's size is bounded */
        for (uint32_t first = 0; bitmap != NULL && first < directory->slot_count; first += AT_ONCE)
            tell(client, index, first,
                 directory->slot_count - first < AT_ONCE ? directory->slot_count - first : AT_ONCE, bitmap + first / 8);
        free(bitmap);
    }
}

/* ------------------------------------------------------------------------------------------------- core ------- */

bool gms_reclaim_wants(const struct gms_reclaim *reclaim, uint64_t incarnation)
{
    for (uint32_t place = 0; place < GMS_RECLAIM_SUSPECTS; place++) {
        struct gms_core_suspect suspect;
        if (gms_core_look_suspect(reclaim->daemon->core, place, &suspect) && suspect.incarnation == incarnation)
            return suspect.verdict == GMS_RECLAIM_NOT_YET || suspect.verdict == GMS_RECLAIM_QUIET ||
                   suspect.verdict == GMS_RECLAIM_BEST_EFFORT;
    }
    return false;
}

static void ended(struct gms_reclaim *reclaim, const struct gms_action *action)
{
    struct gms_daemon *daemon = reclaim->daemon;
    const uint64_t incarnation = action->reclaim.suspect;
    struct gms_reclaim_status *status = gms_reclaim_find_status(reclaim, incarnation);
    struct gms_core_view view;
    if (status != NULL) {
        status->verdict = action->reclaim.answer;
        if (status->verdict == GMS_RECLAIM_CANNOT_KNOW && status->answered_ns == 0)
            snprintf(status->reason, sizeof status->reason, "it cannot be known on another rank");
        gms_log(GMS_LOG_NOTICE,
                "engine %u incarnation %llu: %s here; %u of %u pages came back after %llu questions (%s)",
                status->engine, (unsigned long long)incarnation, gms_reclaim_answer_name(status->verdict),
                status->returned, status->pages, (unsigned long long)status->trials, status->reason);
        gms_reclaim_status_write(reclaim, status->engine);
    }
    gms_reclaim_provider_forget(reclaim, incarnation);
    gms_core_look(daemon->core, &view);
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++)
        if (view.engines[engine].role != GMS_ROLE_EMPTY && view.engines[engine].incarnation == incarnation)
            return; /* not retired everywhere yet: the core says FORGET then */
    gms_fence_forget(daemon->fence, incarnation);
    gms_members_forget(daemon->members, incarnation);
}

void gms_reclaim_act(struct gms_reclaim *reclaim, const struct gms_action *action)
{
    switch (action->reclaim.work) {
    case GMS_RECLAIM_STAMP:
    case GMS_RECLAIM_LOOK:
    case GMS_RECLAIM_FREE:
    case GMS_RECLAIM_CLEAR:
        gms_reclaim_ask_nobody(reclaim);
        submit(reclaim, action);
        break;
    case GMS_RECLAIM_ASK:
        gms_reclaim_ask(reclaim, action->reclaim.suspect, action->reclaim.step);
        break;
    case GMS_RECLAIM_GRANT:
        grant(reclaim, action);
        break;
    case GMS_RECLAIM_ENDED:
        ended(reclaim, action);
        break;
    case GMS_RECLAIM_STOP:
        gms_reclaim_ask_nobody(reclaim);
        gms_worker_cancel_all(reclaim->worker);
        release(reclaim->memory);
        reclaim->memory = NULL;
        break;
    case GMS_RECLAIM_WORK_COUNT:
        break;
    }
}

void gms_reclaim_forget(struct gms_reclaim *reclaim, uint64_t incarnation)
{
    gms_reclaim_provider_forget(reclaim, incarnation);
}

void gms_reclaim_suspects_changed(struct gms_reclaim *reclaim)
{
    gms_reclaim_statuses_renew(reclaim);
}

gms_status gms_reclaim_open(struct gms_daemon *daemon, struct gms_reclaim **ret_reclaim, struct gms_error *ret_error)
{
    struct gms_reclaim *reclaim = calloc(1, sizeof *reclaim);
    if (reclaim == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for reclaim");
    reclaim->daemon = daemon;
    gms_status status = gms_worker_open(daemon->base, &reclaim->worker, ret_error);
    if (status == GMS_OK && (reclaim->retry = evtimer_new(daemon->base, on_retry, reclaim)) == NULL)
        status = gms_fail(ret_error, GMS_E_SYSTEM, "the event loop refused a timer");
    if (status == GMS_OK)
        status = gms_reclaim_ask_open(reclaim, ret_error);
    if (status != GMS_OK) {
        gms_reclaim_close(reclaim);
        return status;
    }
    gms_reclaim_statuses_load(reclaim);
    *ret_reclaim = reclaim;
    return GMS_OK;
}

void gms_reclaim_close(struct gms_reclaim *reclaim)
{
    if (reclaim == NULL)
        return;
    gms_worker_close(reclaim->worker);
    gms_reclaim_ask_close(reclaim);
    if (reclaim->retry != NULL)
        event_free(reclaim->retry);
    release(reclaim->memory);
    free(reclaim);
}
