/* SPDX-License-Identifier: Apache-2.0
 *
 * Planned hand-overs of one engine by name.
 *
 *   park ENGINE   out of service, until it is a parked shadow: one that serves is asked to hand over and end (a shadow
 *                 takes over without anything being killed), and is waited for until whoever starts engines has started
 *                 it again, or another in its place (gms-up gives it the lowest number that nobody has); one that warms
 *                 up is waited for
 *   wake ENGINE   into service: this parked shadow, and no other, takes over from the engine that serves, which is
 *                 condemned as by `takeover`
 *
 * Both say what they wait for on stderr, once a second at most and when it changes.
 */
#ifndef GMS_CTL_HANDOVER_H
#define GMS_CTL_HANDOVER_H

#include <stdint.h>

#include "gms/status.h"

/* OK: it is parked on all ranks here, or as many are as before it handed over, and *ret_text (printed by the caller)
 * says so. Errors: NOT_FOUND and DISCONNECTED (no coordinator answers), REFUSED (nobody is in that slot, no shadow is
 * parked, or not until `deadline_ns`: the text says how far it came and what to do). */
gms_status gms_handover_park(const char *run_dir, uint32_t engine, uint64_t deadline_ns, char ret_text[256],
                             struct gms_error *ret_error);
/* OK: it serves on all ranks here. Errors: as above; REFUSED also where it is not parked on all ranks, or another
 * engine serves in the end. */
gms_status gms_handover_wake(const char *run_dir, uint32_t engine, uint64_t deadline_ns, char ret_text[256],
                             struct gms_error *ret_error);

#endif
