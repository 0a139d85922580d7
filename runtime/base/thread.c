/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <signal.h>

int gms_thread_start(void *(*body)(void *context), void *context, pthread_t *ret_thread)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* a thread inherits it */
    const int error = pthread_create(&thread, NULL, body, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0 && ret_thread == NULL)
        pthread_detach(thread);
    else if (error == 0)
        *ret_thread = thread;
    return error;
}
