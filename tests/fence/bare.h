/* SPDX-License-Identifier: Apache-2.0
 *
 * What an admission takes at least on this machine now: a cohort of two, one asleep and one that writes without end, is
 * killed with no coordinator, no MPI and no libgms about. A process that hears of the first's death writes a record,
 * kills both, waits until all their threads are past the start of their exit, and tells another one after two questions
 * and answers.
 */
#ifndef GMS_TESTS_FENCE_BARE_H
#define GMS_TESTS_FENCE_BARE_H

/* From the writer's last store to the other's hearing of it. Negative: it could not be done. */
double bare_admission_ms(void);

#endif
