/* SPDX-License-Identifier: Apache-2.0 */
#include "ending.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *const names[ENDING_COUNT] = {
    [ENDING_SIGKILL] = "sigkill", [ENDING_EXIT] = "exit", [ENDING_ABORT] = "abort",
    [ENDING_FREEZE] = "freeze",   [ENDING_FORK] = "fork", [ENDING_HOG] = "hog",
};
const char ending_names[] = "\"sigkill\", \"exit\", \"abort\", \"freeze\", \"fork\" or \"hog\"";

enum { HOG_BYTES = 4 << 20 };

static void hog(void)
{
    for (;;) {
        void *more = mmap(NULL, HOG_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (more == MAP_FAILED)
            abort(); /* as programs do that cannot go on without */
        memset(more, 1, HOG_BYTES);
    }
}

/* The child keeps every descriptor and mapping, is in a session of its own and cannot be asked to end. */
static void leave_child(void)
{
    if (fork() != 0)
        return;
    setsid();
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_IGN);
    for (;;)
        pause();
}

void ending_come(enum ending ending)
{
    switch (ending) {
    case ENDING_EXIT:
        _exit(0);
    case ENDING_ABORT:
        abort();
    case ENDING_FORK:
        leave_child();
        return;
    case ENDING_HOG:
        hog();
        break;
    case ENDING_SIGKILL:
        kill(getpid(), SIGKILL);
        break;
    case ENDING_FREEZE:
    case ENDING_COUNT:
        break;
    }
    for (;;)
        pause();
}

bool ending_parse(const char *text, enum ending *ret_ending)
{
    for (int i = 0; i < ENDING_COUNT; i++)
        if (strcmp(text, names[i]) == 0) {
            *ret_ending = (enum ending)i;
            return true;
        }
    return false;
}

bool waking_parse(const char *text, enum waking_step *ret_step)
{
    static const char *const steps[WAKING_COUNT] = {[WAKING_NONE] = "none",
                                                    [WAKING_PROMOTED] = "promoted",
                                                    [WAKING_ADOPTED] = "adopted",
                                                    [WAKING_WOKEN] = "woken",
                                                    [WAKING_SERVING] = "serving"};
    for (int i = 0; i < WAKING_COUNT; i++)
        if (strcmp(text, steps[i]) == 0) {
            *ret_step = (enum waking_step)i;
            return true;
        }
    return false;
}
