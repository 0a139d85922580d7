/* SPDX-License-Identifier: Apache-2.0
 *
 * One thread beside the event loop for what may take long and must hold nothing up: returning pages, asking providers,
 * writing files. Jobs run one after another in the order they were given; each comes back to the loop when it is over.
 * The thread has all signals blocked and never calls MPI.
 */
#ifndef GMS_COORD_WORKER_H
#define GMS_COORD_WORKER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "gms/status.h"

struct event_base;
struct gms_worker;

/* First member of a job; the job is the worker's until `done` is called. */
struct gms_job {
    void (*run)(struct gms_job *job);  /* on the thread; looks at `cancelled` between any two things that take long */
    void (*done)(struct gms_job *job); /* on the loop; owns the job from here on */
    bool always;                       /* never cancelled */
    atomic_bool cancelled;
    struct gms_job *next; /* the worker's own */
};

gms_status gms_worker_open(struct event_base *base, struct gms_worker **ret_worker, struct gms_error *ret_error);
/* Cancels everything, waits for the job that runs, calls `done` for all. NULL allowed. */
void gms_worker_close(struct gms_worker *worker);

void gms_worker_submit(struct gms_worker *worker, struct gms_job *job);
/* Does not wait. A job that has not begun is not run. */
void gms_worker_cancel_all(struct gms_worker *worker);

#endif
