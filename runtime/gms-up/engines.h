/* SPDX-License-Identifier: Apache-2.0
 *
 * Upkeep of engines: one that serves and as many shadows beside it as the deployment file wants. What counts is what
 * the group says (the status of rank 0), so engines that somebody else started are as good as ours; an engine that is
 * gone is replaced at once, under the lowest id that nobody has, while its launcher still cleans up.
 *
 *   none --start--> STARTING --parked or serving--> READY --gone from the group--> ENDING
 *                      |  |                          |  ^                           |  ^
 *                      |  |                          |  +--in the group again-------+  |
 *                      |  +--condemned---------------|---------------------------------+
 *                      |                             +--launcher ended--> none <-------+
 *                      +--launcher ended, or not parked within standby.ready_within--> none, and a pause
 *
 * An engine of ours is the incarnation that the group named first under its number; whoever has the number later is not
 * it. Its replacement is started when one document lacks it. Its launcher is killed only by what the group goes on
 * saying: for 15 s without a pause, the last document included. A document that should not have lacked it costs a
 * shadow too many, never an engine that serves.
 *
 * Nobody is late while the group does not answer: an engine that an earlier gms-up started begins as STARTING here
 * though it may have served for days, and only the group can say so. The time counts from its answer.
 *
 * Pauses grow while starts fail (0, 1, 2, 5, 10, 30 s), and RUN/upkeep holds the reason for whoever asks. Nothing here
 * matters for safety: with two of these, or none, the coordinators decide the same.
 */
#ifndef GMS_UP_ENGINES_H
#define GMS_UP_ENGINES_H

#include "config/config.h"
#include "gms-up/job.h"
#include "gms/engine.h"

enum gms_up_phase { GMS_UP_NONE, GMS_UP_STARTING, GMS_UP_READY, GMS_UP_ENDING, GMS_UP_PHASES };

struct gms_up_engine {
    struct gms_up_job job;
    enum gms_up_phase phase;
    uint64_t incarnation; /* the first that the group named under its number; 0: none yet */
    uint64_t since_ns;    /* in this phase */
    uint64_t awaited_ns;  /* in this phase, and the group has answered ever since: what is late counts from it */
    bool told;            /* its launcher was told to end */
    char output[GMS_UP_PATH_BYTES];
};

struct gms_up_engines {
    const struct gms_up_options *options; /* borrowed */
    const struct gms_config *config;      /* borrowed */
    struct gms_up_engine engines[GMS_MAX_ENGINES];
    char upkeep[GMS_RUN_PATH_BYTES];
    uint32_t failures; /* starts in a row that came to nothing */
    uint64_t next_start_ns;
    bool known;                    /* the group has said how it is since the last change here */
    bool answers;                  /* the group says how it is; without that no engine is late */
    uint64_t heard_ns;             /* when it did so last */
    char roles[GMS_MAX_ENGINES];   /* ' ' none, 'j' joined, 'p' parked, 'r' promoted, 's' serving, 'c' condemned */
    bool was_ready;                /* one serves and all shadows are parked */
    uint64_t lacking_ns, asked_ns; /* since when not; when the group was asked last */
    char reason[256];              /* why the last start came to nothing */
    bool stopping;
    uint64_t stop_deadline_ns;
};

/* Without launch.engines there is nothing to do. Errors: INVALID (path too long). */
gms_status gms_up_engines_open(struct gms_up_engines *engines, const struct gms_up_options *options,
                               const struct gms_config *config, struct gms_error *ret_error);
bool gms_up_engines_wanted(const struct gms_up_engines *engines);
/* Goes on with what an earlier gms-up started. Returns how many. */
uint32_t gms_up_engines_adopt(struct gms_up_engines *engines);
/* The status document of rank 0. NULL, or text that does not say of each engine which it is and how it is: what was
 * known is not known any more. */
void gms_up_engines_hear(struct gms_up_engines *engines, const char *status, uint64_t now_ns);
/* Starts what is missing, ends what takes too long by the group's own words. Errors: CONFIG, SYSTEM (a launcher cannot
 * be run). */
gms_status gms_up_engines_step(struct gms_up_engines *engines, uint64_t now_ns, struct gms_error *ret_error);
/* When to step next; UINT64_MAX: only when something happens. */
uint64_t gms_up_engines_deadline(const struct gms_up_engines *engines, uint64_t now_ns);
/* Is it time to ask the group how it is? */
bool gms_up_engines_should_ask(struct gms_up_engines *engines, uint64_t now_ns);
/* A child of ours ended. */
void gms_up_engines_reaped(struct gms_up_engines *engines, pid_t pid, int wait_status, uint64_t now_ns);
/* Launchers that are no children of ours. */
void gms_up_engines_look_at_adopted(struct gms_up_engines *engines, uint64_t now_ns);
/* Ends all engines that run: first as launch.stop_signal says, after `grace_ns` by SIGKILL to their launchers. */
void gms_up_engines_stop(struct gms_up_engines *engines, uint64_t now_ns, uint64_t grace_ns);
bool gms_up_engines_over(const struct gms_up_engines *engines);
void gms_up_engines_close(struct gms_up_engines *engines);

#endif
