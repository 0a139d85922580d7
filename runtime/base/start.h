/* SPDX-License-Identifier: Apache-2.0
 *
 * How a rank tells whoever started its job what became of the start, before the launcher has noticed: mpirun takes a
 * second or two to end a job of which a rank has ended. It is told in the job's own temporary directory ($TMPDIR), and
 * only where somebody said that he looks there. All of it is a favour: what cannot be told is not told.
 */
#ifndef GMS_BASE_START_H
#define GMS_BASE_START_H

#include <stdbool.h>

/* Who starts a job with this TMPDIR: I look here. */
void gms_start_watched(const char *directory);
/* A rank, before it ends: the start has failed, and may go better next time. */
void gms_start_failed(void);
bool gms_start_has_failed(const char *directory);
/* Rank 0: sessions are listened to. Whoever finds this and then nobody who listens knows that rank 0 has ended. */
void gms_start_succeeded(void);
bool gms_start_has_succeeded(const char *directory);

#endif
