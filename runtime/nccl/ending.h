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

#include "nccl/nccl_api.h"

struct gms_ending;

/* Has `handle` aborted; nobody may use it from here on. NULL: it is done already, here, because there was no memory or
 * no thread for it. */
struct gms_ending *gms_ending_begin(const struct gms_nccl_api *api, gms_nccl_handle handle);
/* Has NCCL freed everything? Waits until `deadline_ns` for it, and lets go of `ending`: a thread that is not done yet
 * goes on and frees what is left by itself. True for NULL. */
bool gms_ending_finish(struct gms_ending *ending, uint64_t deadline_ns);

#endif
