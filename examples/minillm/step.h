/* SPDX-License-Identifier: Apache-2.0
 *
 * Executes a step plan on one rank. Every rank runs this with the same plans; rank 0 uses the logits.
 */
#ifndef MINILLM_STEP_H
#define MINILLM_STEP_H

#include "kv.h"
#include "model.h"
#include "plan.h"

struct step_executor {
    struct model *model; /* borrowed */
    struct kv_store *kv; /* borrowed */
    uint32_t rank;
    struct plan_drill drill; /* armed here; phase NONE: nothing */
    uint32_t drill_seen;
    struct model_row *rows; /* owned */
    uint32_t row_capacity;
};

void step_executor_init(struct step_executor *executor, struct model *model, struct kv_store *kv, uint32_t rank);
void step_executor_free(struct step_executor *executor);

/* ret_logits as model_forward; NULL logits when the plan has no rows. After anything but KV_OK the engine must end:
 * LOST at once, FAILED with kv->text as the reason. An armed drill ends this process in here, see ending.h. */
enum kv_status step_execute(struct step_executor *executor, const struct plan *plan, const float **ret_logits);

#endif
