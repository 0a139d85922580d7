/* SPDX-License-Identifier: Apache-2.0
 *
 * Keepers on several hosts: launch.keepers starts one `gms-up keeper` (node.h) on each, which keeps a keeper there. Its
 * launcher is looked after like the coordinators': adopted by the next gms-up, started again when it ends. Its end
 * takes no keeper along, and no memory.
 */
#ifndef GMS_UP_KEEPERS_H
#define GMS_UP_KEEPERS_H

#include "config/config.h"
#include "gms-up/job.h"

struct gms_up_keepers {
    const struct gms_up_options *options; /* borrowed */
    const struct gms_config *config;      /* borrowed */
    struct gms_up_job job;
    char output[GMS_UP_PATH_BYTES];
    uint32_t failures; /* ends in a row of launchers that did not live long */
    uint64_t next_start_ns;
};

/* Errors: INVALID (path too long). */
gms_status gms_up_keepers_open(struct gms_up_keepers *keepers, const struct gms_up_options *options,
                               const struct gms_config *config, struct gms_error *ret_error);
/* Has the deployment file launch.keepers, and may this gms-up start keepers? Without it the others do nothing. */
bool gms_up_keepers_wanted(const struct gms_up_keepers *keepers);
/* Goes on with the launcher that an earlier gms-up started. False: there is none. */
bool gms_up_keepers_adopt(struct gms_up_keepers *keepers);
/* Starts the launcher where none runs and it is time. Errors: CONFIG (it cannot be run), SYSTEM, NO_MEMORY. */
gms_status gms_up_keepers_step(struct gms_up_keepers *keepers, uint64_t now_ns, struct gms_error *ret_error);
/* The caller goes on though a step failed: says so, and the next try comes after a pause as after an end at once. */
void gms_up_keepers_not_started(struct gms_up_keepers *keepers, const struct gms_error *error, uint64_t now_ns);
/* When to step next; UINT64_MAX: only when something happens. */
uint64_t gms_up_keepers_deadline(const struct gms_up_keepers *keepers);
/* A child of ours ended. */
void gms_up_keepers_reaped(struct gms_up_keepers *keepers, pid_t pid, uint64_t now_ns);
/* A launcher that is no child of ours. */
void gms_up_keepers_look_at_adopted(struct gms_up_keepers *keepers, uint64_t now_ns);
/* Planned stop: keepers that hold nothing end, with `force` all; waits for their launcher until `deadline_ns`, then
 * kills it. */
void gms_up_keepers_stop(struct gms_up_keepers *keepers, bool force, uint64_t deadline_ns);
/* Leaves a launcher that runs. */
void gms_up_keepers_close(struct gms_up_keepers *keepers);

#endif
