/* SPDX-License-Identifier: Apache-2.0
 *
 * One NCCL communicator whose every wait ends:
 *
 *   EMPTY --init--> MAKING --NCCL is done--> USABLE <--> SUSPENDED
 *                     |                        |             |
 *                     +--- deadline, error, interrupted, abort: ABORTED (why is kept; nothing but close is left)
 *
 * It is a non-blocking one (NCCL 2.14): what NCCL does in the background is asked for, in turns with a deadline and
 * with the caller's `interrupted`. Nothing here knows sessions or coordinators.
 *
 * Thread rule: one thread at a time; gms_communicator_abort from any.
 */
#ifndef GMS_NCCL_COMMUNICATOR_H
#define GMS_NCCL_COMMUNICATOR_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "nccl/ending.h"
#include "nccl/nccl_api.h"

enum gms_communicator_state {
    GMS_COMMUNICATOR_EMPTY,
    GMS_COMMUNICATOR_MAKING,
    GMS_COMMUNICATOR_USABLE,
    GMS_COMMUNICATOR_SUSPENDED,
    GMS_COMMUNICATOR_ABORTED,
};

struct gms_communicator_options {
    const struct gms_nccl_api *api;
    uint32_t rank, ranks;
    uint64_t launch_ns; /* to submit one collective */
    /* Asked about once a millisecond while something is waited for: OK, or the error to end the wait with. NULL: never.
     */
    gms_status (*interrupted)(void *context, struct gms_error *ret_error);
    void *context;
};

struct gms_communicator {
    struct gms_communicator_options options;
    pthread_mutex_t lock; /* over handle, state, why, ending: calls of NCCL are made under it, waits and abort not */
    struct gms_ending *ending; /* of the handle, when it is time */
    gms_nccl_handle handle;
    enum gms_communicator_state state;
    char why[GMS_ERROR_TEXT_BYTES + 16]; /* it was aborted */
    /* Of verifications: a stream, an event, and numbers in host memory that the device sees. */
    void *stream, *mark, *stream_mark;
    uint64_t *numbers; /* sent, then received */
    uint64_t verifications;
};

/* Makes it; nothing else may be called before, and close must follow, after a failure as well. Errors: TIMEOUT, those
 * of gms_nccl_fail, of `interrupted`, and of the device. */
gms_status gms_communicator_init(struct gms_communicator *ret_communicator,
                                 const struct gms_communicator_options *options, const struct gms_nccl_id *id,
                                 uint64_t deadline_ns, struct gms_error *ret_error);
/* Aborts, gives NCCL a second to free everything, and frees. A zeroed one is allowed. */
void gms_communicator_close(struct gms_communicator *communicator);
/* `why` is kept, from the first call. Returns at once: see ending.h for what goes on. */
void gms_communicator_abort(struct gms_communicator *communicator, const char *why);
/* OK, or REFUSED with why not. SYSTEM: NCCL has noticed an error; aborted now. */
gms_status gms_communicator_check(struct gms_communicator *communicator, struct gms_error *ret_error);

enum gms_collective { GMS_COLLECTIVE_ALL_REDUCE, GMS_COLLECTIVE_ALL_GATHER, GMS_COLLECTIVE_BROADCAST };

struct gms_collective_call {
    enum gms_collective kind;
    const void *send;
    void *receive;
    uint64_t count;
    int type;
    int argument; /* all-reduce: the reduction; broadcast: the root */
    void *stream;
};
/* Submits it. Errors: as gms/nccl.h has them. */
gms_status gms_communicator_submit(struct gms_communicator *communicator, const struct gms_collective_call *call,
                                   struct gms_error *ret_error);
/* Until the device has come past what was submitted to `stream`. TIMEOUT leaves all as it is. */
gms_status gms_communicator_wait(struct gms_communicator *communicator, void *stream, uint64_t deadline_ns,
                                 struct gms_error *ret_error);
/* One all-reduce whose sum is known. REFUSED where it is not usable, which changes nothing; any other failure aborts.
 */
gms_status gms_communicator_verify(struct gms_communicator *communicator, uint64_t deadline_ns,
                                   struct gms_error *ret_error);
gms_status gms_communicator_suspend(struct gms_communicator *communicator, struct gms_error *ret_error);
gms_status gms_communicator_resume(struct gms_communicator *communicator, uint64_t deadline_ns,
                                   struct gms_error *ret_error);

#endif
