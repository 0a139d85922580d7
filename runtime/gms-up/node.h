/* SPDX-License-Identifier: Apache-2.0
 *
 * `gms-up keeper --run-dir DIR`: keeps a keeper on one host, where launch.keepers or a batch script starts it. It is to
 * the keeper what gms-up is to coordinators: nothing is lost with it, the keeper lives in a session of its own.
 *
 *   TERM, INT   ends; its keeper too if it holds nothing
 *   USR1        a planned stop: the keeper ends whatever it holds, and what launchers have left here goes
 *   its parent (the launcher, or a daemon of it) ends: as TERM
 */
#ifndef GMS_UP_NODE_H
#define GMS_UP_NODE_H

/* The exit status: 0; 64 usage, 71 the system refused, 78 the run directory cannot be used. */
int gms_up_node(int argc, char **argv);

#endif
