/* SPDX-License-Identifier: Apache-2.0
 * One operator's connection to one coordinator rank: HELLO, then questions one at a time, each bounded. */
#ifndef GMS_CTL_CONTROL_H
#define GMS_CTL_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#include "gms/status.h"
#include "wire/message.h"

struct gms_control {
    int fd;
    uint32_t rank;
    uint32_t request_id;
    void *buffer; /* owned, GMS_WIRE_MAX_BYTES; the last answer's byte fields borrow from it */
};

/*
 * Connects to RUN/c<rank>. On success the caller owns *ret_control (gms_control_close). Errors: NOT_FOUND and
 * DISCONNECTED (nobody is there), TIMEOUT, PERMISSION, VERSION, REFUSED, INVALID (path too long), NO_MEMORY.
 */
gms_status gms_control_open(const char *run_dir, uint32_t rank, uint64_t timeout_ns, struct gms_control *ret_control,
                            struct gms_error *ret_error);
void gms_control_close(struct gms_control *control);

/* Sends `request` and waits for its answer of type `expected`; a REPLY with a failure becomes that failure, with the
 * coordinator's words. *ret_answer is valid until the next call. Errors: as above, PROTOCOL (another type). */
gms_status gms_control_ask(struct gms_control *control, struct gms_message *request, enum gms_message_type expected,
                           uint64_t timeout_ns, struct gms_message *ret_answer, struct gms_error *ret_error);

/* Waits until the coordinator closes the connection: it has ended. TIMEOUT: it has not. */
gms_status gms_control_wait_end(struct gms_control *control, uint64_t deadline_ns, struct gms_error *ret_error);

/* Ranks that have a socket c<rank> in the run directory, ascending. `*ret_ranks` is the caller's to free. Errors:
 * NOT_FOUND (directory, or no rank in it), SYSTEM, NO_MEMORY. */
gms_status gms_control_find_ranks(const char *run_dir, uint32_t **ret_ranks, size_t *ret_count,
                                  struct gms_error *ret_error);

#endif
