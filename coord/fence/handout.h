/* SPDX-License-Identifier: Apache-2.0
 *
 * What threads that look at processes together share: which look is the next. Every process of a listing is looked at
 * by whichever thread is free, which may give away pieces of that look; then the processes are listed again, and who is
 * new is looked at, until nobody is:
 *
 *            +----- somebody new ----+
 *            v                       |
 *   LOOK, many threads --- none is left, none is under way ---> LIST, one thread --- nobody new ---> END
 *                                                                ^
 *                                                                +--- start
 *
 * So who forked and ended before it was looked at has its child looked at. A thread that is stuck in a look keeps the
 * others from nothing but the end. Any function from any thread, but for make and free.
 */
#ifndef GMS_COORD_HANDOUT_H
#define GMS_COORD_HANDOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct gms_handout;

enum gms_job_kind {
    GMS_JOB_LIST, /* the processes; gms_handout_listed says what came of it */
    GMS_JOB_LOOK,
    GMS_JOB_END, /* for every thread alike */
};

struct gms_job {
    enum gms_job_kind kind;
    pid_t pid;
    void *piece; /* as it was added; NULL: the process as a whole */
};

/* `threads`: how many take jobs at most, numbered from 0. `turn`: with whom of a listing they begin, any number: those
 * who look at one process at the same time are in each other's way, in the kernel. Nobody is looked at whose number is
 * in `except`, which is ascending and copied. NULL: no memory. */
struct gms_handout *gms_handout_make(size_t threads, size_t turn, const pid_t *except, size_t except_count);
/* No thread may use it any more. NULL allowed. */
void gms_handout_free(struct gms_handout *handout);

/* The job that `thread` took before is done; gives it the next, for which it may have to wait until others are done. */
struct gms_job gms_handout_take(struct gms_handout *handout, size_t thread);
/* How many threads have nothing else to do, and wait for pieces. */
size_t gms_handout_wanted(struct gms_handout *handout);
/* Pieces of the look at `pid`, from within a look: `count` jobs with a `piece` that is not NULL. False: no memory, and
 * nothing is added. */
bool gms_handout_add(struct gms_handout *handout, pid_t pid, void *piece, size_t count);
/* After GMS_JOB_LIST. `list` is ascending and from malloc, and moves in. NULL: there could be no list, which is the
 * end. */
void gms_handout_listed(struct gms_handout *handout, pid_t *list, size_t count);

/* From within a look at `pid`: there is no such process any more. Should its number be listed again, it is another's,
 * who is looked at. (Whose number goes to another after it was looked at, while it lived, is not looked at again:
 * numbers come round only after all others.) */
void gms_handout_gone(struct gms_handout *handout, pid_t pid);

/* The end for all, as soon as what is under way is done. */
void gms_handout_stop(struct gms_handout *handout);
/* Whose look has been under way for longest; 0: nobody's. */
pid_t gms_handout_at(struct gms_handout *handout);
/* Has it come to its end by itself, with everybody looked at? */
bool gms_handout_is_whole(struct gms_handout *handout);

#endif
