/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection that is only there to end: how gms-up hears that a keeper or the coordinators are gone, before any
 * launcher has noticed. To a coordinator it says HELLO, and the planned stop goes over it.
 */
#ifndef GMS_UP_WATCH_H
#define GMS_UP_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/run_dir.h"
#include "gms/status.h"

enum gms_watch_state { GMS_WATCH_DOWN, GMS_WATCH_GREETING, GMS_WATCH_UP };

struct gms_watch {
    char path[GMS_RUN_PATH_BYTES];
    bool greets; /* a coordinator */
    enum gms_watch_state state;
    uint64_t world; /* of the coordinator that answered last */
    int fd;         /* -1: none */
    void *buffer;   /* owned; greets */
    char *status;   /* owned; the document that came last, NULL: none since the caller took it */
};

/* Errors: INVALID (path too long), NO_MEMORY. */
gms_status gms_watch_open(struct gms_watch *watch, const char *run_dir, const char *name, int32_t rank, bool greets,
                          struct gms_error *ret_error);
void gms_watch_close(struct gms_watch *watch);

/* Connects if it is DOWN; reads what came. Call when fd is readable and when a pause is over. True: it was UP and
 * has ended. Never blocks longer than a connect to a local socket. */
bool gms_watch_step(struct gms_watch *watch);
void gms_watch_drop(struct gms_watch *watch);
/* Asks the coordinators for a planned stop. False: not UP, or it could not be sent. */
bool gms_watch_ask_stop(struct gms_watch *watch);

/* Asks for the status document, which comes as watch->status with a later step. False: not UP, or not sent. */
bool gms_watch_ask_status(struct gms_watch *watch);

#endif
