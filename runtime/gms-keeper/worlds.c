/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-keeper/worlds.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/fd.h"

static gms_status make_token(uint64_t *ret_token, struct gms_error *ret_error)
{
    uint64_t token = 0;
    while (token == 0)
        if (getrandom(&token, sizeof(token), 0) != (ssize_t)sizeof(token) && errno != EINTR)
            return gms_fail(ret_error, GMS_E_SYSTEM, "getrandom: %s", strerror(errno));
    *ret_token = token;
    return GMS_OK;
}

static struct world_seat *find_seat(const struct worlds *worlds, uint32_t rank)
{
    for (size_t i = 0; i < worlds->count; i++)
        if (worlds->seats[i].rank == rank)
            return &worlds->seats[i];
    return NULL;
}

static struct world_seat *add_seat(struct worlds *worlds, uint32_t rank)
{
    if (worlds->count == worlds->capacity) {
        size_t capacity = worlds->capacity ? 2 * worlds->capacity : 16;
        struct world_seat *seats = realloc(worlds->seats, capacity * sizeof(*seats));
        if (!seats)
            return NULL;
        worlds->seats = seats;
        worlds->capacity = capacity;
    }
    struct world_seat *seat = &worlds->seats[worlds->count++];
    *seat = (struct world_seat){.rank = rank, .pidfd = -1, .waiter = {.pidfd = -1}};
    return seat;
}

static void clear_waiter(struct world_waiter *waiter)
{
    gms_fd_close(&waiter->pidfd);
    *waiter = (struct world_waiter){.pidfd = -1};
}

/* Ended processes hold nothing. */
static void free_if_ended(struct world_seat *seat)
{
    if (seat->pidfd >= 0 && gms_pidfd_ended(seat->pidfd)) {
        gms_fd_close(&seat->pidfd);
        seat->token = 0;
        seat->pid = 0;
    }
}

static void seat_holder(struct world_seat *seat, uint64_t world, uint64_t token, int pidfd, pid_t pid)
{
    gms_fd_close(&seat->pidfd);
    seat->world = world;
    seat->token = token;
    seat->pidfd = pidfd;
    seat->pid = pid;
}

/* A newer one takes the place of the one that waits, whatever becomes of the seat. */
static void displace_waiter(struct world_seat *seat, struct world_waiter *ret_displaced)
{
    *ret_displaced = seat->waiter;
    ret_displaced->pidfd = -1;
    clear_waiter(&seat->waiter);
}

static gms_status refuse(const struct world_seat *seat, uint64_t world, uint64_t other, const char *by,
                         struct gms_error *ret_error)
{
    return gms_fail(ret_error, GMS_E_FOREIGN_WORLD,
                    "rank %u of world %" PRIu64 " is refused: %s world %" PRIu64
                    " (process %d). One coordinator job at a time; a new one takes a greater world",
                    seat->rank, world, by, other, (int)seat->pid);
}

gms_status worlds_ask(struct worlds *worlds, uint64_t world, uint32_t rank, int pidfd, pid_t pid,
                      const struct world_waiter *waiter, struct world_seat **ret_seat,
                      struct world_waiter *ret_displaced, struct gms_error *ret_error)
{
    struct world_seat *seat = find_seat(worlds, rank);
    uint64_t token = 0;
    gms_status status;

    *ret_displaced = (struct world_waiter){.pidfd = -1};
    if (!seat)
        seat = add_seat(worlds, rank);
    *ret_seat = seat;
    if (!seat)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for rank %u", rank);
    free_if_ended(seat);

    if (world < seat->world)
        return refuse(seat, world, seat->world, "it has been granted to", ret_error);
    if (seat->waiter.client != 0 && world <= seat->waiter.world)
        return refuse(seat, world, seat->waiter.world, "it is being taken over by", ret_error);
    status = make_token(&token, ret_error);
    if (status != GMS_OK)
        return status;
    if (seat->pidfd < 0) { /* free */
        displace_waiter(seat, ret_displaced);
        seat_holder(seat, world, token, pidfd, pid);
        return GMS_OK;
    }
    if (gms_pidfd_same(seat->pidfd, pidfd)) { /* it connected anew, or moves itself to a newer world */
        displace_waiter(seat, ret_displaced);
        seat_holder(seat, world, seat->token != 0 && world == seat->world ? seat->token : token, pidfd, pid);
        return GMS_OK;
    }
    if (world == seat->world)
        return refuse(seat, world, seat->world, "another live process holds", ret_error);
    if (!gms_pidfd_signal(seat->pidfd, SIGKILL))
        return gms_fail(ret_error, GMS_E_PERMISSION,
                        "rank %u: process %d of the older world %" PRIu64
                        " cannot be ended from here (%s): end it first",
                        rank, (int)seat->pid, seat->world,
                        errno == EINVAL ? "it is outside the keeper's PID namespace" : strerror(errno));
    seat->token = 0; /* from here on whatever it says is stale */
    displace_waiter(seat, ret_displaced);
    seat->waiter = *waiter;
    seat->waiter.world = world;
    seat->waiter.pidfd = pidfd;
    seat->waiter.pid = pid;
    return GMS_E_AGAIN;
}

bool worlds_settle(struct world_seat *seat, uint64_t now_ns, struct world_waiter *ret_waiter, bool *ret_granted)
{
    uint64_t token = 0;

    free_if_ended(seat);
    if (seat->waiter.client == 0)
        return false;
    if (seat->pidfd >= 0) {
        if (now_ns < seat->waiter.deadline_ns)
            return false;
        *ret_granted = false;
    } else {
        *ret_granted = make_token(&token, NULL) == GMS_OK;
    }
    *ret_waiter = seat->waiter;
    ret_waiter->pidfd = -1;
    if (*ret_granted) {
        seat_holder(seat, seat->waiter.world, token, seat->waiter.pidfd, seat->waiter.pid);
        seat->waiter.pidfd = -1;
    }
    clear_waiter(&seat->waiter);
    return true;
}

struct world_seat *worlds_holder(const struct worlds *worlds, uint64_t world, uint32_t rank, uint64_t token)
{
    struct world_seat *seat = find_seat(worlds, rank);
    return seat && token != 0 && seat->token == token && seat->world == world ? seat : NULL;
}

bool worlds_settled(const struct worlds *worlds, uint32_t rank)
{
    struct world_seat *seat = find_seat(worlds, rank);
    return seat && seat->token != 0 && seat->mirror_world == seat->world && !gms_pidfd_ended(seat->pidfd);
}

void worlds_forget_client(struct worlds *worlds, uint64_t client)
{
    for (size_t i = 0; i < worlds->count; i++)
        if (client != 0 && worlds->seats[i].waiter.client == client)
            clear_waiter(&worlds->seats[i].waiter);
}

uint64_t worlds_newest(const struct worlds *worlds)
{
    uint64_t newest = 0;
    for (size_t i = 0; i < worlds->count; i++)
        if (worlds->seats[i].world > newest)
            newest = worlds->seats[i].world;
    return newest;
}

uint64_t worlds_deadline(const struct worlds *worlds)
{
    uint64_t deadline_ns = UINT64_MAX;
    for (size_t i = 0; i < worlds->count; i++)
        if (worlds->seats[i].waiter.client != 0 && worlds->seats[i].waiter.deadline_ns < deadline_ns)
            deadline_ns = worlds->seats[i].waiter.deadline_ns;
    return deadline_ns;
}

void worlds_clear(struct worlds *worlds)
{
    for (size_t i = 0; i < worlds->count; i++) {
        gms_fd_close(&worlds->seats[i].pidfd);
        clear_waiter(&worlds->seats[i].waiter);
    }
    free(worlds->seats);
    *worlds = (struct worlds){0};
}
