/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/progress.h"

#include <string.h>

#include "base/clock.h"

uint64_t gms_progress_interval_ns(const struct gms_progress_watch *watch)
{
    return watch->timeout_ns / GMS_PROGRESS_LOOKS;
}

void gms_progress_rest(struct gms_progress_watch *watch)
{
    watch->last_look_ns = 0;
    memset(watch->engines, 0, sizeof watch->engines);
}

bool gms_progress_begin(struct gms_progress_watch *watch, uint64_t now_ns)
{
    uint64_t gap_ns = watch->last_look_ns > 0 ? now_ns - watch->last_look_ns : 0;
    watch->last_look_ns = now_ns;
    if (gap_ns <= 2 * gms_progress_interval_ns(watch))
        return true;
    /* Whoever stopped us may have stopped the engines as well: their pauses have not passed either. */
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++) {
        struct gms_progress_state *state = &watch->engines[engine];
        state->still_since_ns = now_ns;
        if (state->pause_until_ns > 0)
            state->pause_until_ns += gap_ns;
    }
    return false;
}

static bool moved(const struct gms_directory_activity *before, const struct gms_directory_activity *now)
{
    return before->progress != now->progress || before->steps_begun != now->steps_begun ||
           before->steps_completed != now->steps_completed;
}

bool gms_progress_look(struct gms_progress_watch *watch, uint32_t engine, const struct gms_progress_look *look,
                       uint64_t now_ns, uint64_t *ret_still_ns)
{
    struct gms_progress_state *state = &watch->engines[engine];
    const struct gms_directory_activity *activity = &look->activity;
    bool announced = activity->pause != state->seen.pause && activity->pause_ms > 0, changed;
    if (state->incarnation != look->incarnation) { /* a stranger: whatever it announced before counts from now */
        *state = (struct gms_progress_state){.incarnation = look->incarnation};
        announced = activity->pause_ms > 0;
        changed = true;
    } else {
        changed = moved(&state->seen, activity);
    }
    if (announced)
        state->pause_until_ns = now_ns + activity->pause_ms * GMS_NS_PER_MS;
    else if (changed)
        state->pause_until_ns = 0;
    bool has_work = look->has_work || activity->work > 0 || activity->steps_begun > activity->steps_completed;
    state->seen = *activity;
    if (changed || !has_work || now_ns < state->pause_until_ns)
        state->still_since_ns = now_ns;
    *ret_still_ns = now_ns - state->still_since_ns;
    return *ret_still_ns >= watch->timeout_ns;
}
