/* SPDX-License-Identifier: Apache-2.0
 *
 * `gms-up local RANKS COMMAND...`: the launcher for engines that need no MPI. Starts RANKS processes of COMMAND with
 * GMS_RANK and one GMS_LAUNCH_ID, passes TERM, INT, HUP, USR1 and USR2 on, and when one ends badly ends the others, as
 * mpirun does. Each has a parent-death signal, so nothing outlives it.
 */
#ifndef GMS_UP_LOCAL_H
#define GMS_UP_LOCAL_H

/* The exit status: 0 when all ended well, else the first bad one's (128 + signal). 64: usage, 71: the system refused.
 */
int gms_up_local(int argc, char **argv);

#endif
