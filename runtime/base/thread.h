/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of ours in programs that are not: no signal is ever delivered to one.
 */
#ifndef GMS_BASE_THREAD_H
#define GMS_BASE_THREAD_H

#include <pthread.h>

/* Starts `body` with `context` (borrowed by it). *ret_thread is to be joined; NULL: the thread is nobody's, and frees
 * by itself what it has. 0, or the error number of pthread_create; then nothing runs. Any thread. */
int gms_thread_start(void *(*body)(void *context), void *context, pthread_t *ret_thread);

#endif
