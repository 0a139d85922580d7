/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine rank by hand: messages as a test likes, in any order, and answers that may get lost. For bodies of
 * engine_start, in the rank's own process.
 */
#ifndef GMS_TESTS_MPI_RAW_H
#define GMS_TESTS_MPI_RAW_H

#include "core/ballot.h"
#include "harness.h"
#include "wire/channel.h"

struct raw {
    struct engine_rank *rank; /* borrowed */
    int fd;                   /* owned; -1: not connected */
    uint32_t request;
    uint64_t incarnation; /* 0: HELLO does not claim one; else with `secret` */
    uint8_t secret[GMS_SECRET_BYTES];
    struct gms_message reply; /* the last one; its bytes lie in `buffer` */
    uint8_t buffer[GMS_WIRE_MAX_BYTES];
};

/* Not connected yet. NULL: no memory. */
struct raw *raw_new(struct engine_rank *rank);
void raw_free(struct raw *raw);
/* Connects to this rank's coordinator, anew where it was connected. */
gms_status raw_connect(struct raw *raw, struct gms_error *error);
/* Sends under a new request number. */
gms_status raw_send(struct raw *raw, struct gms_message *message);
/* Sends, and waits for the answer to it. A success of another kind (WELCOME) is OK too. */
gms_status raw_ask(struct raw *raw, struct gms_message *message);
/* With these descriptors, which stay the caller's. */
gms_status raw_hello(struct raw *raw, const int *fds, uint32_t fd_count);
gms_status raw_plain(struct raw *raw, enum gms_message_type type, uint64_t incarnation);
gms_status raw_propose(struct raw *raw, enum gms_operation kind, uint64_t incarnation, uint32_t sequence,
                       uint64_t field0, uint64_t field1);

#define RAW_EXPECT(call, wanted)                                                                                       \
    do {                                                                                                               \
        gms_status got_ = (call);                                                                                      \
        if (got_ != (wanted))                                                                                          \
            return gms_fail(error, GMS_E_PROTOCOL, "line %d: %s, not %s (%.*s)", __LINE__, gms_status_name(got_),      \
                            gms_status_name(wanted), (int)raw->reply.reply.text.length,                                \
                            raw->reply.type == GMS_MESSAGE_REPLY ? (const char *)raw->reply.reply.text.data : "");     \
    } while (0)

#endif
