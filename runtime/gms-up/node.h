/* SPDX-License-Identifier: Apache-2.0
 *
 * `gms-up keeper --run-dir DIR`: keeps a keeper on one host, where launch.keepers or a batch script starts it. It is to
 * the keeper what gms-up is to coordinators: nothing is lost with it, the keeper lives in a session of its own.
 *
 *   TERM, INT   both end if the keeper holds nothing. While it holds something the first one is passed over, as by the
 *               keeper: schedulers tell everybody, and memory is wanted until the engines have ended. The second one
 * ends this process HUP         ends; so does the end of its parent (the launcher, or a daemon of it) USR1        a
 * planned stop: the keeper ends whatever it holds, and what launchers have left here goes
 */
#ifndef GMS_UP_NODE_H
#define GMS_UP_NODE_H

/* The exit status: 0 after a planned stop, and when the keeper held nothing; 75 ended otherwise; 64 usage, 71 the
 * system refused, 78 the run directory cannot be used. */
int gms_up_node(int argc, char **argv);

#endif
