/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection that is only there to end: how gms-up hears that a keeper or the coordinators are gone, before any
 * launcher has noticed. To a coordinator it says HELLO, and the planned stop goes over it.
 *
 * Its end alone proves nothing: a coordinator whose places are taken makes room for newcomers. So it comes again at
 * once; only when the same world does not answer any more was it the coordinator's end.
 *
 *   DOWN --connects--> GREETING --WELCOME--> UP --connection ended--> AGAIN --nobody listens--> DOWN: it has ended
 *    ^                    |                   ^                         |
 *    +--ended, or nobody--+                   +--WELCOME----------------+  (another world: it has ended, too)
 */
#ifndef GMS_UP_WATCH_H
#define GMS_UP_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/run_dir.h"
#include "gms/status.h"

enum gms_watch_state { GMS_WATCH_DOWN, GMS_WATCH_GREETING, GMS_WATCH_UP, GMS_WATCH_AGAIN };

struct gms_watch {
    char path[GMS_RUN_PATH_BYTES];
    bool greets; /* a coordinator */
    bool nobody; /* the last connect found nobody who listens */
    enum gms_watch_state state;
    uint64_t world;  /* of the coordinator that answered last */
    int fd;          /* -1: none */
    bool stop_asked; /* over this connection */
    void *buffer;    /* owned; greets */
    char *status;    /* owned; the document that came last, NULL: none since the caller took it */
};

/* Errors: INVALID (path too long), NO_MEMORY. */
gms_status gms_watch_open(struct gms_watch *watch, const char *run_dir, const char *name, int32_t rank, bool greets,
                          struct gms_error *ret_error);
void gms_watch_close(struct gms_watch *watch);

/* Connects if there is no connection; reads what came. Call when fd is readable and when a pause is over. True: it was
 * UP and who answered has ended. Never blocks longer than a connect to a local socket. */
bool gms_watch_step(struct gms_watch *watch);
void gms_watch_drop(struct gms_watch *watch);
/* Asks the coordinators for a planned stop. False: not UP, or it could not be sent. */
bool gms_watch_ask_stop(struct gms_watch *watch);

/* Asks for the status document, which comes as watch->status with a later step. False: not UP, or not sent. */
bool gms_watch_ask_status(struct gms_watch *watch);

#endif
