/* SPDX-License-Identifier: Apache-2.0
 *
 * What this rank leaves with others, so that it outlives the rank: named descriptors with a few bytes of meta. The
 * keeper has them all, and so has every gms-exec on this rank; the table here is what a keeper that is new is filled
 * from, and what a new world of coordinators begins with.
 *
 *   pool/<name>/<rank>                     memory                meta: geometry, creator, published
 *   manifest/<name>/<rank>                 manifest, published   meta: none
 *   quarantine/<pool>/<rank>               whom its slots are suspected of   meta: none
 *   directory/<incarnation>/<pool>/<rank>  directory             meta: none, its header says all
 *   session/<incarnation>/<rank>           pidfd, engine rank    meta: secret, launch, container, endpoint
 *   guardian/..., cohort/...               pidfds, container     meta: none
 *   lock/failover/0                        FAILOVER_LOCK_PATH, locked   meta: none
 *   prepared/<engine>/<what>/<rank>        of an operation without outcome   meta: its key, and what it will become
 *
 * Main thread only. Nobody's refusal is an error here: it is logged, and seen to with the next keeper.
 */
#ifndef GMS_COORD_COPIES_H
#define GMS_COORD_COPIES_H

#include <stdbool.h>
#include <stdint.h>

#include "gms-keeper/client.h"

struct gms_copies;

struct gms_copy {
    const char *name;
    int fd;
    const void *meta;
    uint32_t meta_bytes;
};

/* `keeper` borrowed; NULL: nobody keeps copies (tests). `rank`: whose names gms_copies_load takes. */
gms_status gms_copies_open(struct gms_keeper_client *keeper, uint32_t rank, struct gms_copies **ret_copies,
                           struct gms_error *ret_error);
void gms_copies_close(struct gms_copies *copies); /* NULL allowed; what others hold stays with them */

/* Who else wants to know: called for every change from here on, `copy.fd` -1: dropped. */
typedef void (*gms_copies_listener)(void *context, const struct gms_copy *copy);
void gms_copies_listen(struct gms_copies *copies, gms_copies_listener listener, void *context);

/* Takes a copy of `fd` (borrowed) and of the meta, in place of what had the name. */
/* OK also where no keeper is: the next one is given it. Else why the keeper refused (DESCRIPTORS, ...), which is
 * logged: then nobody has it but this process and gms-exec, so what was not promised yet should not be. Without a
 * descriptor or memory for it here it is not in the table either. */
gms_status gms_copies_put(struct gms_copies *copies, const char *name, int fd, const void *meta, uint32_t meta_bytes);
/* Nothing of that name is no error. */
void gms_copies_drop(struct gms_copies *copies, const char *name);

/* False: there is none. Borrowed until the next change. */
bool gms_copies_find(const struct gms_copies *copies, const char *name, struct gms_copy *ret_copy);
/* In the order of names; `index` from 0 until false. Borrowed until the next change. */
bool gms_copies_at(const struct gms_copies *copies, uint32_t index, struct gms_copy *ret_copy);
uint32_t gms_copies_count(const struct gms_copies *copies, const char *prefix);
/* Of one kind ("pool", "session", ...), those of prepared operations included. */
uint32_t gms_copies_count_kind(const struct gms_copies *copies, const char *kind);

/* Takes over what the keeper has of this rank. Errors: those of the keeper's client, NO_MEMORY. */
gms_status gms_copies_load(struct gms_copies *copies, struct gms_error *ret_error);
/* Gives everything to a keeper that is new, and drops there what is not known here. */
gms_status gms_copies_refill(struct gms_copies *copies, struct gms_error *ret_error);

#endif
