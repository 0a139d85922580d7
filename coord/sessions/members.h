/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine ranks that were admitted on this rank, by incarnation: what names their process, where they are contained,
 * and the secret by which they are known to the next world of coordinators. Everything of it is left with others
 * (copies.h), so a coordinator that starts anew knows them before they have said a word.
 *
 *            prepare              commit                      forget
 *   (none) ----------> prepared ----------> absent <-> present --------> (none)
 *                        | abort               \ its process ends while absent: `ended` is called
 *                        v
 *                      (none)
 *
 * present: it has a session, whose end says what became of it. Main thread only.
 */
#ifndef GMS_COORD_MEMBERS_H
#define GMS_COORD_MEMBERS_H

#include <stdbool.h>
#include <stdint.h>

#include "durable/copies.h"
#include "sessions/sessions.h"

struct event;
struct event_base;
struct gms_members;

struct gms_member {
    uint32_t engine;
    uint64_t incarnation;     /* 0: prepared */
    uint64_t launch;          /* of its join's key */
    uint64_t identity_digest; /* of its KV */
    char identity[512];       /* the same in words, cut; "": it was admitted in an earlier world */
    uint8_t secret[GMS_SECRET_BYTES];
    int pidfd;                      /* owned */
    struct gms_container container; /* owned */
    char launch_text[GMS_LAUNCH_BYTES];
    char endpoint[256];   /* where it says it can be reached */
    int32_t device_error; /* the sticky error that it reported; 0: none */
    bool present;

    /* members.c's own */
    struct gms_members *members;
    struct gms_member *next;
    struct event *ended;
};

struct gms_members_options {
    struct event_base *base;   /* borrowed */
    struct gms_copies *copies; /* borrowed */
    uint32_t rank;
    /* Its process has ended while it had no session. Called from the loop, once. */
    void (*ended)(void *context, struct gms_member *member);
    void *context;
};

gms_status gms_members_open(const struct gms_members_options *options, struct gms_members **ret_members,
                            struct gms_error *ret_error);
void gms_members_close(struct gms_members *members); /* NULL allowed */

/* Before a join may be agreed to: makes the secret and leaves everything with others, under "prepared/". Errors:
 * DESCRIPTORS, NO_MEMORY, SYSTEM. In place of what was prepared for this engine id. */
gms_status gms_members_prepare(struct gms_members *members, uint64_t launch, uint64_t identity_digest,
                               const struct gms_client *client, struct gms_error *ret_error);
/* The join was agreed: under its incarnation from here on. Again: the same member. NULL: nothing of this launch was
 * prepared here, nor committed. */
struct gms_member *gms_members_commit(struct gms_members *members, uint32_t engine, uint64_t launch,
                                      uint64_t incarnation);
void gms_members_abort(struct gms_members *members, uint32_t engine);

struct gms_member *gms_members_find(struct gms_members *members, uint64_t incarnation);           /* NULL: unknown */
struct gms_member *gms_members_next(struct gms_members *members, const struct gms_member *after); /* NULL: the first */

/* In what the identity in `words` (`bytes` of them, or up to a NUL) differs first from that of the members here, as
 * "dtype=bf16, the group has dtype=f32"; "" where it does not, or nothing is known in words. */
void gms_members_tell_difference(struct gms_members *members, const char *words, size_t bytes, char *ret_text,
                                 size_t text_bytes);

/* It has a session now, or none any more. Without one its process is watched. */
void gms_member_set_present(struct gms_member *member, bool present);
void gms_member_set_endpoint(struct gms_member *member, const char *endpoint);
/* It reported that its device is broken, and will be remembered so by the next world too. */
void gms_member_set_device_error(struct gms_member *member, int32_t code);
void gms_members_forget(struct gms_members *members, uint64_t incarnation);

/* All that the copies hold, absent, and what was prepared. What cannot be read is logged and dropped. */
void gms_members_restore(struct gms_members *members);

#endif
