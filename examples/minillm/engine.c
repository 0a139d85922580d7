/* SPDX-License-Identifier: Apache-2.0 */
#include "engine.h"

#include "life.h"
#include "log.h"
#include "loop.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

enum { LOCK_LOOK_MS = 100 };

/* Private memory instead of pools. */
static int begin_private(struct engine *e)
{
    const struct model_config *m = &e->options.model;
    const struct kv_geometry geometry = model_kv_geometry(m);
    const char *id = getenv("ENGINE_ID");
    e->engine_id = id == NULL ? 0 : (uint32_t)strtoul(id, NULL, 10);
    e->incarnation = e->options.incarnation;
    e->weights = malloc(model_shard_bytes(m));
    if (e->weights == NULL || kv_private_open(&e->kv, &geometry, e->options.slots) != 0) {
        note(NOTE_ERROR, "out of memory for weights of %zu bytes and %" PRIu32 " slots of %zu bytes; lower --slots",
             model_shard_bytes(m), e->options.slots, kv_block_bytes(&geometry));
        return EXIT_RUN_FAILED;
    }
    model_generate(m, e->weights);
    return 0;
}

/* Every rank computes one token on scratch KV, so that the first real one finds code and connections warm. */
static void warm_up(struct engine *e)
{
    uint32_t slot = 0;
    struct model_row row = {.blocks = &slot, .wants_logits = 1};
    const float *logits;
    model_forward(e->model, &row, 1, e->kv.base, NULL, NULL, &logits);
}

static int prepare(struct engine *e)
{
    struct model_group group = {.gather = ranks_gather_floats, .context = e->ranks};
    int code = e->options.no_gms ? begin_private(e) : life_begin(e);
    if (code != 0)
        return code;
    if (e->options.log_dir != NULL &&
        !event_log_open(e->options.log_dir, e->engine_id, e->incarnation, ranks_rank(e->ranks))) {
        note(NOTE_ERROR, "cannot open a log in %s: %s", e->options.log_dir, strerror(errno));
        return EXIT_RUN_FAILED;
    }
    event_log("join");
    e->model = model_open(&e->options.model, e->weights, loop_max_rows(&e->options), &group);
    if (e->model == NULL) {
        note(NOTE_ERROR, "out of memory for the model's buffers");
        return EXIT_RUN_FAILED;
    }
    warm_up(e);
    return 0;
}

static int open_server(struct engine *e)
{
    char text[256];
    if (ranks_rank(e->ranks) != 0)
        return 0;
    e->server = server_open(e->options.listen, text, sizeof text);
    if (e->server != NULL)
        return 0;
    note(NOTE_ERROR, "--listen: %s", text);
    return EXIT_RUN_FAILED;
}

/* The plain standby: loaded and warm, rank 0 looks at the lock now and then, the others sleep until it has it. The lock
 * ends with the process. */
static int wait_for_lock(struct engine *e)
{
    if (ranks_rank(e->ranks) != 0) {
        event_log("parked");
        ranks_sleep(e->ranks, -1);
        return 0;
    }
    int fd = open(e->options.serve_lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        note(NOTE_ERROR, "--serve-lock %s: %s", e->options.serve_lock, strerror(errno));
        return EXIT_RUN_FAILED;
    }
    event_log("parked");
    struct pollfd asked = {.fd = e->options.signal_fd, .events = POLLIN};
    while (flock(fd, LOCK_EX | LOCK_NB) != 0)
        if (poll(&asked, 1, LOCK_LOOK_MS) > 0)
            return EXIT_ASKED_TO_END;
    ranks_ring(e->ranks);
    return 0;
}

static int start_serving(struct engine *e)
{
    char text[256];
    if (e->server != NULL && !server_listen(e->server, text, sizeof text)) {
        note(NOTE_ERROR, "%s", text);
        return EXIT_RUN_FAILED;
    }
    if (!e->options.no_gms) {
        int code = life_serve(e, e->server != NULL ? server_endpoint(e->server) : NULL);
        if (code != 0)
            return code;
    }
    event_log("serving epoch=%" PRIu64, e->epoch);
    if (e->server != NULL) {
        printf("serving %s\n", server_endpoint(e->server));
        fflush(stdout);
    }
    return 0;
}

static int run(struct engine *e)
{
    int code = prepare(e);
    if (code == 0)
        code = open_server(e);
    if (code == 0 && !e->options.no_gms)
        code = life_take_over(e);
    if (code == 0 && e->options.no_gms && ranks_rank(e->ranks) == 0) {
        e->prefix = prefix_open(e->options.slots);
        code = e->prefix == NULL ? EXIT_RUN_FAILED : 0;
    }
    if (code == 0 && e->options.no_gms && e->options.serve_lock != NULL)
        code = wait_for_lock(e);
    if (code == 0)
        code = start_serving(e);
    if (code == 0)
        code = loop_serve(e);
    return code == EXIT_ASKED_TO_END ? 0 : code;
}

int engine_run(const struct engine_options *options, struct ranks *ranks)
{
    struct engine e = {.options = *options, .ranks = ranks};
    e.options.model.rank = ranks_rank(ranks);
    e.options.model.world_size = ranks_size(ranks);
    int code = run(&e);
    if (code != 0)
        return code;
    event_log("end");
    server_close(e.server);
    model_close(e.model);
    prefix_close(e.prefix);
    kv_store_close(&e.kv);
    if (e.options.no_gms)
        free(e.weights);
    event_log_close();
    /* Goodbye is the last word: whoever said it is fenced, so MPI must have been finalized on every rank. */
    ranks_close(ranks);
    life_end(&e);
    return 0;
}
