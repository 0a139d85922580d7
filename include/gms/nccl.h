/* SPDX-License-Identifier: Apache-2.0
 *
 * libgms: a NCCL communicator of the ranks of one engine, one rank per GPU.
 *
 * NCCL is opened at run time; nothing here needs it to build. The unique id travels through the coordinators
 * (gms_exchange), so there is no port to agree on and no other engine's id to meet: an id belongs to one incarnation.
 *
 *   gms_open, gms_join, gms_pool_attach
 *   gms_nccl_open                                    all ranks or none; a shadow has its own communicator
 *   warm up, capture graphs with gms_nccl_all_reduce in them
 *   gms_park, gms_wait_promotion, gms_adopt, gms_wake
 *   gms_nccl_verify                                  does it still reach everybody? Well below a millisecond
 *   gms_serve, { replay graphs, gms_nccl_wait } ...
 *   gms_nccl_close, gms_close
 *
 * Nothing here waits for ever for another rank. The communicator is a non-blocking one; whatever NCCL does in the
 * background is waited for with a deadline, and a wait ends early when this incarnation is condemned or NCCL reports an
 * error. Then the communicator is aborted, so that kernels that wait for a peer that is gone end.
 *
 * Thread rule: calls on one communicator from one thread at a time, the session's; gms_nccl_abort from any.
 * Environment: GMS_NCCL_LIBRARY names the library, equal on all ranks. NCCL's own variables are the deployment's
 * business: nothing here sets or needs a port, and NVLink multicast stays as NCCL_NVLS_ENABLE says.
 */
#ifndef GMS_NCCL_H
#define GMS_NCCL_H

#include "gms/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gms_nccl gms_nccl; /* opaque; made by gms_nccl_open, ended by gms_nccl_close or gms_close */

/* NCCL's own numbers. */
enum gms_nccl_type {
    GMS_NCCL_INT8 = 0,
    GMS_NCCL_UINT8 = 1,
    GMS_NCCL_INT32 = 2,
    GMS_NCCL_UINT32 = 3,
    GMS_NCCL_INT64 = 4,
    GMS_NCCL_UINT64 = 5,
    GMS_NCCL_FLOAT16 = 6,
    GMS_NCCL_FLOAT32 = 7,
    GMS_NCCL_FLOAT64 = 8,
    GMS_NCCL_BFLOAT16 = 9,
    GMS_NCCL_FLOAT8_E4M3 = 10, /* this and the next: NCCL 2.24 */
    GMS_NCCL_FLOAT8_E5M2 = 11,
};

enum gms_nccl_reduction {
    GMS_NCCL_SUM = 0,
    GMS_NCCL_PRODUCT = 1,
    GMS_NCCL_MAX = 2,
    GMS_NCCL_MIN = 3,
    GMS_NCCL_AVERAGE = 4,
};

struct gms_nccl_options {
    const char *library; /* borrowed; a path or a name; NULL: GMS_NCCL_LIBRARY, else the libnccl.so.2 that this process
                            has loaded already (PyTorch's), else the one that the loader finds */
    uint32_t timeout_ms; /* to make it, first verification included; 0: 60,000 */
    uint32_t launch_ms;  /* to submit one collective: it is more than a launch the first time; 0: 30,000 */
};

/*
 * COLLECTIVE, after gms_join and before gms_park. Makes a communicator of all ranks of this incarnation and verifies it
 * once, so that connections are made here and not later. On every rank or on none. `options` may be NULL.
 *
 * On success the caller owns *ret_nccl. Errors: UNSUPPORTED (no NCCL here, one that is older than 2.14, host memory;
 * the library and what it lacks are named), MISMATCH (ranks have different versions of NCCL, or one has none, or could
 * not make it; it is named), EXPIRED (a rank did not come), TIMEOUT (making it took too long: aborted), INVALID (NCCL's
 * words: two ranks on one GPU, for one), SYSTEM (NCCL's words), STICKY, and those of gms_exchange.
 */
GMS_API gms_status gms_nccl_open(gms_session *session, const struct gms_nccl_options *options, gms_nccl **ret_nccl,
                                 struct gms_error *ret_error);

/*
 * Frees the communicator and everything of it; no graph that holds a collective of it may be launched again. Ends what
 * is in flight as gms_nccl_abort does, so close on all ranks, when their work is done. Destroy such graphs before:
 * since 2.26 NCCL frees nothing until the last of them is gone. Close waits a second for that and for the device;
 * after it the rest is freed by a thread of libgms as soon as it can be, and little stays (a stream, 1 KiB) for the end
 * of the process. NULL is allowed.
 */
GMS_API void gms_nccl_close(gms_nccl *nccl);

/* NCCL's version, 22803 for 2.28.3. */
GMS_API int gms_nccl_version(const gms_nccl *nccl);
/* The file that it was loaded from. Borrowed until gms_nccl_close. */
GMS_API const char *gms_nccl_library(const gms_nccl *nccl);

/*
 * Collectives on `stream` (CUstream; NULL: the default stream), which may be capturing: the graph then holds them, and
 * replays them for as long as the communicator lives. Buffers are device memory; in place where `send` is `receive`
 * (all_gather: where it is this rank's part of it). They return when the work is submitted, not when it is done. NCCL
 * submits from a thread of its own, which costs tens of microseconds a call; replaying a graph costs nothing of it. Use
 * each size once before capturing it: NCCL connects when it first needs to.
 *
 * Errors: INVALID and SYSTEM (NCCL's words), TIMEOUT (not submitted within launch_ms), CONDEMNED; after the last three
 * the communicator is aborted. REFUSED: it was aborted before (why).
 */
GMS_API gms_status gms_nccl_all_reduce(gms_nccl *nccl, const void *send, void *receive, uint64_t count,
                                       enum gms_nccl_type type, enum gms_nccl_reduction reduction, void *stream,
                                       struct gms_error *ret_error);
/* `count` elements from every rank, in the order of ranks. */
GMS_API gms_status gms_nccl_all_gather(gms_nccl *nccl, const void *send, void *receive, uint64_t count,
                                       enum gms_nccl_type type, void *stream, struct gms_error *ret_error);
/* `send` is read on rank `root` alone. */
GMS_API gms_status gms_nccl_broadcast(gms_nccl *nccl, const void *send, void *receive, uint64_t count,
                                      enum gms_nccl_type type, uint32_t root, void *stream,
                                      struct gms_error *ret_error);

/*
 * Waits until the device has come past all that was submitted to `stream` until now, at most `timeout_ms`. What a
 * plain synchronise would hang in ends here: CONDEMNED (this incarnation must end: a peer is gone, for one) and SYSTEM
 * (NCCL noticed an error, named), both within a few milliseconds of being known here, with the communicator aborted;
 * STICKY; REFUSED (aborted before, or by another thread meanwhile, which need not have ended for that; or suspended).
 * TIMEOUT changes nothing: wait again, or abort. The first millisecond costs no system call of ours.
 */
GMS_API gms_status gms_nccl_wait(gms_nccl *nccl, void *stream, uint32_t timeout_ms, struct gms_error *ret_error);

/* Has NCCL noticed an error, or was the communicator aborted? Waits for no rank and no thread. Errors: SYSTEM (aborted
 * now), REFUSED (aborted before). */
GMS_API gms_status gms_nccl_check(gms_nccl *nccl, struct gms_error *ret_error);

struct gms_nccl_verification {
    uint64_t duration_ns; /* from the call to the result's check */
    uint64_t number;      /* of this verification; 1 is gms_nccl_open's */
};

/*
 * On all ranks, in the same order: one small all-reduce on a stream of its own, of numbers that no earlier one had,
 * whose sum is checked. OK: every rank took part in it just now. Needs no memory and no mapping, so it may stand
 * between gms_wake and gms_serve. Errors: TIMEOUT (a rank did not come, or hangs), CORRUPT (the sum is wrong: the
 * element and both numbers), and those of gms_nccl_wait; after any of them but REFUSED the communicator is aborted.
 * `ret_verification` may be NULL.
 */
GMS_API gms_status gms_nccl_verify(gms_nccl *nccl, uint32_t timeout_ms, struct gms_nccl_verification *ret_verification,
                                   struct gms_error *ret_error);

/*
 * Ends whatever is in flight on this communicator, on this rank: kernels that wait for a peer end within milliseconds.
 * Every later call but close is REFUSED. Called by itself when the session learns that this incarnation is condemned.
 * Returns at once: a thread of libgms sees NCCL through it, which frees everything once the graphs that hold one of its
 * collectives are destroyed and work of the engine's own in front of a collective is done (where that does not end, the
 * fence ends the process). Any thread, but not once close has begun; twice is once.
 */
GMS_API void gms_nccl_abort(gms_nccl *nccl);

/*
 * Gives most of the communicator's device memory back, and takes it again at the same addresses, on all ranks; nothing
 * may be in flight or captured work launched in between. Resuming ends with a verification, because NCCL may come back
 * with a peer missing. UNSUPPORTED where NCCL is older than 2.29.7. Both wait for all ranks inside NCCL: a rank that is
 * gone is noticed by the coordinators, and the fence ends the others.
 */
GMS_API gms_status gms_nccl_suspend(gms_nccl *nccl, struct gms_error *ret_error);
GMS_API gms_status gms_nccl_resume(gms_nccl *nccl, uint32_t timeout_ms, struct gms_error *ret_error);

#ifdef __cplusplus
}
#endif
#endif
