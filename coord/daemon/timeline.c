/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/timeline.h"

#include <stddef.h>

void gms_timeline_sign(struct gms_timeline *timeline, uint64_t incarnation, enum gms_fact fact, uint64_t now_ns)
{
    if (timeline->sign_incarnation == incarnation)
        return;
    timeline->sign_incarnation = incarnation;
    timeline->sign = fact;
    timeline->sign_ns = now_ns;
}

void gms_timeline_begin(struct gms_timeline *timeline, uint32_t engine, uint64_t incarnation, uint64_t now_ns)
{
    gms_timeline_sign(timeline, incarnation, GMS_FACT_GONE, now_ns);
    struct gms_takeover_record *record = &timeline->records[timeline->count++ % GMS_TIMELINE_KEPT];
    *record = (struct gms_takeover_record){.from_engine = engine,
                                           .from_incarnation = incarnation,
                                           .cause = timeline->sign,
                                           .detect_ns = timeline->sign_ns,
                                           .condemn_ns = now_ns};
}

struct gms_takeover_record *gms_timeline_open(struct gms_timeline *timeline)
{
    if (timeline->count == 0)
        return NULL;
    struct gms_takeover_record *record = &timeline->records[(timeline->count - 1) % GMS_TIMELINE_KEPT];
    return record->serve_ns == 0 ? record : NULL;
}

void gms_timeline_reclaimed(struct gms_timeline *timeline, uint64_t to, uint32_t slots, uint64_t now_ns)
{
    for (uint32_t i = 0; i < GMS_TIMELINE_KEPT; i++) {
        struct gms_takeover_record *record = &timeline->records[i];
        if (record->to_incarnation != to || to == 0)
            continue;
        record->reclaimed += slots;
        record->reclaim_ns = now_ns;
    }
}
