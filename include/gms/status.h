/* SPDX-License-Identifier: Apache-2.0
 *
 * Status codes and the error text that travels with them.
 *
 * Codes are grouped by the largest thing that is broken, so that a code alone tells how far recovery must reach:
 * a REQUEST failed and may be repeated or corrected; this ENGINE incarnation must end; this RANK must restart;
 * the GROUP needs an operator.
 */
#ifndef GMS_STATUS_H
#define GMS_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What libgms.so exports. */
#define GMS_API __attribute__((visibility("default")))

/* X(name, value, text). Values are part of the ABI and of the wire protocol: append, never renumber. */
#define GMS_STATUS_LIST(X)                                                                                             \
    X(GMS_OK, 0, "success")                                                                                            \
    /* request: nothing changed; correct it or ask again */                                                            \
    X(GMS_E_INVALID, 1, "invalid argument")                                                                            \
    X(GMS_E_AGAIN, 2, "not possible yet, ask again")                                                                   \
    X(GMS_E_TIMEOUT, 3, "deadline passed")                                                                             \
    X(GMS_E_NO_MEMORY, 4, "out of memory")                                                                             \
    X(GMS_E_NO_CAPACITY, 5, "device capacity exceeded")                                                                \
    X(GMS_E_NOT_FOUND, 6, "not found")                                                                                 \
    X(GMS_E_EXISTS, 7, "already exists")                                                                               \
    X(GMS_E_BUSY, 8, "in use")                                                                                         \
    X(GMS_E_MISMATCH, 9, "ranks disagree")                                                                             \
    X(GMS_E_REFUSED, 10, "refused by policy or state")                                                                 \
    X(GMS_E_PROTOCOL, 11, "malformed or unexpected message")                                                           \
    X(GMS_E_VERSION, 12, "incompatible version")                                                                       \
    X(GMS_E_NOT_DONE, 13, "the work behind this completion token is not complete")                                     \
    X(GMS_E_QUARANTINED, 14, "slot is quarantined")                                                                    \
    X(GMS_E_STALE, 15, "stale world, epoch, incarnation or generation")                                                \
    X(GMS_E_CORRUPT, 16, "checksum or format error")                                                                   \
    X(GMS_E_SYSTEM, 17, "system call failed")                                                                          \
    X(GMS_E_DESCRIPTORS, 18, "out of file descriptors")                                                                \
    X(GMS_E_PERMISSION, 19, "permission denied")                                                                       \
    X(GMS_E_CONFIG, 20, "configuration error")                                                                         \
    X(GMS_E_EXPIRED, 21, "operation deadline passed on a rank")                                                        \
    X(GMS_E_UNSUPPORTED, 22, "not supported here")                                                                     \
    /* engine: this incarnation must end */                                                                            \
    X(GMS_E_CONDEMNED, 100, "this incarnation is condemned")                                                           \
    X(GMS_E_LOST_OWNERSHIP, 101, "ownership of a slot was lost")                                                       \
    X(GMS_E_STICKY, 102, "the device reported a sticky error")                                                         \
    /* rank: this coordinator rank, or its connection, must restart */                                                 \
    X(GMS_E_DISCONNECTED, 200, "connection to the coordinator or keeper lost")                                         \
    X(GMS_E_STORE, 201, "the store cannot be written or read")                                                         \
    X(GMS_E_PEER_LOST, 202, "a coordinator rank is gone")                                                              \
    X(GMS_E_ROUND_TIMEOUT, 203, "an agreement round missed its deadline")                                              \
    /* group: an operator must decide */                                                                               \
    X(GMS_E_DIVERGED, 300, "ranks hold different replicated state")                                                    \
    X(GMS_E_IN_DOUBT, 301, "stored state is missing, older or foreign")                                                \
    X(GMS_E_FOREIGN_WORLD, 302, "another coordinator world holds this deployment")

typedef enum gms_status {
#define GMS_STATUS_ENUM(name, value, text) name = (value),
    GMS_STATUS_LIST(GMS_STATUS_ENUM)
#undef GMS_STATUS_ENUM
} gms_status;

enum { GMS_ERROR_TEXT_BYTES = 512 };

/* An error as a person should read it: the thing, the value, the limit, and what to do. Fixed size, no ownership. */
struct gms_error {
    gms_status status;
    int32_t rank; /* the rank that decided the error, -1 when it is not about one rank */
    char text[GMS_ERROR_TEXT_BYTES];
};

/* The enumerator's name ("GMS_E_BUSY") and its one-line meaning; never NULL, static storage, any thread. */
GMS_API const char *gms_status_name(gms_status status);
GMS_API const char *gms_status_text(gms_status status);

/* True for codes that end this engine incarnation (100..199). */
static inline bool gms_status_is_fatal_to_engine(gms_status status)
{
    return status >= 100 && status < 200;
}

/*
 * Fills *ret_error (NULL allowed: then only the status is returned) and returns `status`, so that the function that
 * decides an error can write `return gms_fail(ret_error, GMS_E_BUSY, "...", ...)`. Text longer than the buffer is cut.
 * Sets rank to -1. Keeps errno.
 */
__attribute__((format(printf, 3, 4))) gms_status gms_fail(struct gms_error *ret_error, gms_status status,
                                                          const char *format, ...);

#ifdef __cplusplus
}
#endif
#endif
