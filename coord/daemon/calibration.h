/* SPDX-License-Identifier: Apache-2.0
 *
 * What parked engines keep on this rank, and how much of its memory kv pools may have therefore.
 *
 *   MEMORY, then PARKED, from the engine rank     its tags: bytes, and what parking (waking) each took
 *   then, on a thread of its own                  what its processes keep beside pools (footprint.h)
 *   RUN/calibration.RANK                          the last of it, for the next start: the reserve of the deployment
 *                                                 file counts only while nothing was measured
 *
 * A shadow needs more before it parks than after: what its tags give back while parked, and on a device the scratch
 * that its kv pools are until then. So what is left for one is the footprint and that. A measurement is of one identity
 * (model, layout, engine version...) and one parking preset; for others the reserve counts again.
 *
 * Main thread only.
 */
#ifndef GMS_COORD_CALIBRATION_H
#define GMS_COORD_CALIBRATION_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "wire/message.h"

struct gms_calibration;
struct gms_client;
struct gms_daemon;

/* Reads what an earlier start measured. Errors: those of the worker. */
gms_status gms_calibration_open(struct gms_daemon *daemon, struct gms_calibration **ret_calibration,
                                struct gms_error *ret_error);
void gms_calibration_close(struct gms_calibration *calibration); /* NULL allowed */

/* An engine rank joined as `incarnation`: what its device holds without it is noted. */
void gms_calibration_joined(struct gms_calibration *calibration, uint32_t engine, uint64_t incarnation);
/* MEMORY. False: it cannot be read. */
bool gms_calibration_tags(struct gms_calibration *calibration, uint32_t engine, const struct gms_message *message);
/* It is parked: it is measured, and the result logged. */
void gms_calibration_parked(struct gms_calibration *calibration, uint32_t engine, uint64_t incarnation);

/* Bytes that kv pools of engines of this identity may have here (core/budget.h); `capacity`: not more than
 * memory.capacity leaves. Starts the driver where pools are on a device. */
uint64_t gms_calibration_budget(struct gms_calibration *calibration, uint64_t identity_digest, bool capacity);

/* For the status document: of the rank; of an engine, NULL where nothing is known. The caller owns them. */
json_t *gms_calibration_status(const struct gms_calibration *calibration);
json_t *gms_calibration_engine(const struct gms_calibration *calibration, uint32_t engine, uint64_t incarnation);

#endif
