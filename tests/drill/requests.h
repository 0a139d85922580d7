/* SPDX-License-Identifier: Apache-2.0
 *
 * What the clients of a drill ask, and what undisturbed engines answer. A drill has a fixed number of requests; under
 * load they come again and again, and every one is compared with its control.
 */
#ifndef GMS_DRILL_REQUESTS_H
#define GMS_DRILL_REQUESTS_H

#include "deployment.h"
#include "prompts.h"
#include "streams.h"

struct drill_requests {
    const struct drill_plan *plan; /* borrowed */
    struct drill_prompts prompts;
    uint32_t count, probes;         /* requests 0..count-1, then the probes */
    char *texts[DRILL_MAX_STREAMS]; /* owned; prompts that are used again, made different */
};

/* Reads plan->prompts. Errors: as drill_prompts_read, NO_MEMORY. Freed by drill_requests_close, half-built too. */
gms_status drill_requests_open(const struct drill_plan *plan, uint32_t count, uint32_t probes,
                               struct drill_requests *ret_requests, struct gms_error *ret_error);
void drill_requests_close(struct drill_requests *requests);

/* Adds request `index` as a held stream; its id is `id`. NULL: the set is full, or no memory. */
struct drill_stream *drill_requests_add(const struct drill_requests *requests, uint32_t index, const char *id,
                                        struct drill_streams *streams);

/* Two undisturbed runs of all requests, the second mostly from what the first left in the prefix cache. */
struct drill_control {
    struct drill_streams first, second;
    bool exact;           /* both gave the same tokens: the engine is deterministic here */
    char divergence[160]; /* where they differ first; "": nowhere */
    uint64_t ns;          /* both together */
};

/* Streams all requests twice from the engine that serves in `deployment`. Errors: TIMEOUT (no token for
 * plan->timeout_s), REFUSED (a request failed), as drill_deployment_check. Freed by drill_control_close in any case. */
gms_status drill_control_stream(const struct drill_requests *requests, struct drill_deployment *deployment,
                                struct drill_control *ret_control, struct gms_error *ret_error);
/* The same in a deployment of its own below `scratch_dir`, with one engine, which has ended again afterwards. */
gms_status drill_control_run(const struct drill_requests *requests, const char *scratch_dir, const char *shared_dir,
                             struct drill_control *ret_control, struct gms_error *ret_error);
void drill_control_init(struct drill_control *control);
void drill_control_close(struct drill_control *control);

#endif
