/* SPDX-License-Identifier: Apache-2.0
 *
 * A coordinator of one rank for tests of libgms: a thread on the real socket, with real pools and directories, that
 * decides alone and does as the test says. It takes the coordinator's part in a takeover too.
 */
#ifndef GMS_TESTS_FAKE_COORDINATOR_H
#define GMS_TESTS_FAKE_COORDINATOR_H

#include <pthread.h>
#include <stdbool.h>

#include "core/ballot.h"
#include "directory/directory.h"
#include "vmm/cuda.h"
#include "wire/channel.h"

enum { FAKE_CLIENTS = 4, FAKE_MANIFEST_BYTES = 4096 };

struct fake_pool {
    char name[GMS_NAME_BYTES];
    uint32_t kind, slot_count;
    uint64_t block_bytes, creator;
    bool published;
    struct gms_vmm_handle memory;
    uint8_t manifest[FAKE_MANIFEST_BYTES];
    uint32_t manifest_bytes;
};

struct fake_client {
    int fd; /* -1: free */
    uint32_t engine_id;
    uint64_t incarnation, local_digest;
    uint32_t next_sequence;
    uint8_t secret[GMS_SECRET_BYTES];
    bool parked, left, ready;
    uint32_t memory_reports, tag_count; /* MEMORY: how often, and what it said last */
    struct gms_tag_report tags[GMS_MAX_TAGS];
    bool awake;
    struct gms_directory directories[GMS_MAX_POOLS]; /* base NULL: none */
    uint64_t waits_for;                              /* transfer */
    uint32_t wait_request;
};

struct fake_seen {
    uint32_t kind, sequence;
    uint64_t launch, local_digest, since, fields[GMS_WIRE_FIELDS];
};

struct fake_coordinator {
    /* Set before fake_start. */
    char run_dir[128];
    uint32_t world_size, operation_timeout_ms;
    bool verify_full;
    bool on_device;         /* pools are device memory, of the driver that is found (fake_cuda.h) */
    struct gms_uuid device; /* which; unknown: the only one */
    const char *preset;     /* how engines park; NULL: says nothing */
    struct gms_tag_report preset_tags[4];
    uint32_t preset_count;
    uint64_t budget; /* what a budget is answered with */

    pthread_mutex_t lock; /* over everything below */
    pthread_t thread;
    int listener, wake[2];
    struct fake_pool pools[GMS_MAX_POOLS];
    struct fake_client clients[FAKE_CLIENTS];
    uint64_t incarnations, epoch, world;
    struct fake_seen seen; /* the last proposal */
    uint32_t proposals, sticky_code, transfer_messages;
    uint32_t attached_again, again_ended_mask, again_failed_mask;
    bool order_broken; /* a sequence number that was not the next */
    char endpoint[256];

    /* What it does out of the ordinary. */
    gms_status refuse; /* the next `refuse_times` proposals get this */
    uint32_t refuse_times;
    bool silent;       /* proposals are not answered */
    bool chatter;      /* says much by itself before each answer */
    bool condemn_next; /* CONDEMNED instead of the next answer */
    bool hang_up_next; /* closes instead of the next answer, once */
    bool deaf_to_ready;
    bool away;      /* closes every new connection: a coordinator that is not back yet */
    bool forgotten; /* knows no earlier incarnation */
};

void fake_start(struct fake_coordinator *fake);
void fake_stop(struct fake_coordinator *fake);

/* The living client of an incarnation, NULL: none. Use under the lock or while its engine makes no call. */
struct fake_client *fake_find(struct fake_coordinator *fake, uint64_t incarnation);
/* What follows when `source` (0: nobody) is dead: classifies into `successor` and promotes it under the next epoch. */
void fake_promote(struct fake_coordinator *fake, uint64_t source, uint64_t successor, bool source_clean,
                  struct gms_classification *ret_counts);
/* Ends the connection of an incarnation, as a coordinator's end does. */
void fake_hang_up(struct fake_coordinator *fake, uint64_t incarnation);
void fake_send(struct fake_coordinator *fake, uint64_t incarnation, const struct gms_message *message);
/* Ends a transfer: answers who waits for it, or tells the client unasked. */
void fake_end_transfer(struct fake_coordinator *fake, uint64_t incarnation, uint64_t id, uint32_t finished,
                       uint32_t failed, int32_t first_failed);
/* Drops all that have gone, with their directories. */
void fake_forget_clients(struct fake_coordinator *fake);
/* Waits until the client of the incarnation has gone. */
void fake_await_gone(struct fake_coordinator *fake, uint64_t incarnation);

#endif
