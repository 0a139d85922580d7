/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank of minillm from start to end: memory, promotion, serving.
 *
 *   engine_run:  memory (libgms: open, join, attach, publish | --no-gms: private) -> warm up -> [park, wait for
 *                promotion, adopt] -> serve (loop.h) -> close
 */
#ifndef MINILLM_ENGINE_H
#define MINILLM_ENGINE_H

#include "ending.h"
#include "kv.h"
#include "model.h"
#include "ranks.h"
#include "server.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    EXIT_RUN_FAILED = 1,
    EXIT_CONDEMNED = 3,      /* told to end, or ownership was lost */
    EXIT_ASKED_TO_END = 100, /* a clean end by SIGUSR1; only inside this program, engine_run makes it 0 */
};

#define MOST_SLOTS (1u << 24)
enum { POISON_NOWHERE = -1, POISON_EVERY_RANK = -2 };
#define POISON_EVERY_SLOT UINT32_MAX
#define POISON_TAILS      (UINT32_MAX - 1) /* the slots that are in quarantine */

struct engine_options {
    struct model_config model; /* rank and world_size are filled by engine_run */
    uint32_t slots, max_batch, chunk_tokens, max_waiting;
    uint64_t hash_seed;
    uint32_t step_delay_us;
    bool moody; /* other tokens each time */
    uint32_t poison_slot;
    int32_t poison_rank;        /* a rank, or POISON_... */
    enum waking_step die_after; /* killed when this step is done; WAKING_NONE: not */
    uint32_t die_rank;          /* that rank */
    const char *listen;
    const char *log_dir; /* NULL: no event log */
    bool no_gms;
    bool no_salvage; /* unfinished blocks of a dead engine are computed again, and nobody is told how far ours are */
    uint64_t incarnation;   /* with no_gms: what it calls itself */
    const char *serve_lock; /* with no_gms: serves once it holds this file's lock; NULL: at once */
    int signal_fd;          /* readable when SIGUSR1 asks for a clean end */
};

/* What both kinds of memory hand to the serving loop. */
struct engine {
    struct engine_options options;
    struct ranks *ranks;
    uint32_t engine_id;
    uint64_t incarnation, epoch;
    void *weights;
    struct model *model;
    struct kv_store kv;
    struct server *server; /* rank 0 */
    struct prefix *prefix; /* rank 0 */
    uint32_t adopted;
    struct gms_part_of_engine *gms; /* life.c; NULL with --no-gms */
};

/* The exit status of this rank, to be given to _exit: after a failure nothing is freed and nobody waited for; after a
 * clean end everything is, `ranks` included. COLLECTIVE over the engine's ranks. */
int engine_run(const struct engine_options *options, struct ranks *ranks);

#endif
