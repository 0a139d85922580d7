/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL's abort in a thread of its own, which may outlive whoever began it.
 *
 * ncclCommAbort raises the flag that ends NCCL's kernels first, and returns when it has freed everything. For that it
 * waits, with no limit, for
 *   - the last CUDA graph that holds a collective of the communicator to be destroyed (NCCL 2.26 and later; NVIDIA,
 *     "CUDA Graph Best Practice for PyTorch", "Process Hang");
 *   - work of the engine's own that stands in front of a collective on its stream.
 * Both are the engine's to end, from the very thread that asks for the abort as often as not.
 *
 * Thread rule: each function from any thread, on one ending from one at a time.
 */
#ifndef GMS_NCCL_ENDING_H
#define GMS_NCCL_ENDING_H

#include <stdbool.h>
#include <stdint.h>

#include "gms/status.h"
#include "nccl/nccl_api.h"

struct gms_ending;

/* Makes a thread that sleeps until it is asked to abort: before there is anything to abort, so that a lack of threads
 * is noticed where that may be. The caller owns *ret_ending. Errors: NO_MEMORY, SYSTEM. */
gms_status gms_ending_make(const struct gms_nccl_api *api, struct gms_ending **ret_ending, struct gms_error *ret_error);
/* Has the thread abort `handle`, once; nobody may use it from here on. Never waits. */
void gms_ending_begin(struct gms_ending *ending, gms_nccl_handle handle);
/* Lets go of `ending`. True: nothing was begun, or NCCL has freed everything, for which this waits until `deadline_ns`.
 * False: the thread goes on and frees what is left by itself. True for NULL. */
bool gms_ending_finish(struct gms_ending *ending, uint64_t deadline_ns);

#endif
