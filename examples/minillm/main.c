/* SPDX-License-Identifier: Apache-2.0
 *
 * Options of minillm.
 */
#include "engine.h"
#include "log.h"

#include <gms/engine.h>

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum option_key {
    KEY_LAYERS = 256,
    KEY_WIDTH,
    KEY_HEADS,
    KEY_KV_HEADS,
    KEY_MLP,
    KEY_VOCAB,
    KEY_SEED,
    KEY_HASH_SEED,
    KEY_SLOTS,
    KEY_BLOCK_TOKENS,
    KEY_MAX_BATCH,
    KEY_CHUNK_TOKENS,
    KEY_QUEUE,
    KEY_LISTEN,
    KEY_NO_GMS,
    KEY_NO_SALVAGE,
    KEY_INCARNATION,
    KEY_SERVE_LOCK,
    KEY_LOG_DIR,
    KEY_LOG_LEVEL,
    KEY_LOG_DESTINATION,
    KEY_STEP_DELAY,
    KEY_MOODY,
    KEY_POISON,
    KEY_DIE_AFTER,
};

static const struct argp_option option_table[] = {
    {NULL, 0, NULL, 0, "Model (all ranks and all engines of a deployment alike):", 1},
    {"layers", KEY_LAYERS, "N", 0, "Layers (default 4)", 1},
    {"width", KEY_WIDTH, "N", 0, "Width of the residual stream (default 128)", 1},
    {"heads", KEY_HEADS, "N", 0, "Query heads (default 8)", 1},
    {"kv-heads", KEY_KV_HEADS, "N", 0, "KV heads, a multiple of the number of ranks (default 4)", 1},
    {"mlp", KEY_MLP, "N", 0, "Columns of the MLP (default 256)", 1},
    {"vocab", KEY_VOCAB, "N", 0, "Vocabulary; text prompts need at least 256 (default 256)", 1},
    {"seed", KEY_SEED, "N", 0, "Seed of the weights (default 1)", 1},
    {"hash-seed", KEY_HASH_SEED, "N", 0, "Seed of block hashes (default 0)", 1},
    {NULL, 0, NULL, 0, "Serving:", 2},
    {"slots", KEY_SLOTS, "N", 0, "KV slots (default 512); 0: as many as the agreed budget has room for", 2},
    {"block-tokens", KEY_BLOCK_TOKENS, "N", 0, "Tokens of one slot (default 16)", 2},
    {"max-batch", KEY_MAX_BATCH, "N", 0, "Sequences that run at once (default 16)", 2},
    {"chunk-tokens", KEY_CHUNK_TOKENS, "N", 0, "Tokens of one step, prompts in chunks (default 64)", 2},
    {"queue", KEY_QUEUE, "N", 0, "Requests that may wait (default 1024)", 2},
    {"listen", KEY_LISTEN, "WHERE", 0,
     "unix:PATH or tcp:127.0.0.1:PORT, port 0 for any (default tcp:127.0.0.1:0); rank 0 prints \"serving WHERE\"", 2},
    {NULL, 0, NULL, 0, "Failover:", 3},
    {"no-gms", KEY_NO_GMS, NULL, 0, "Private memory instead of pools: for tests and as the undisturbed control", 3},
    {"no-salvage", KEY_NO_SALVAGE, NULL, 0,
     "Compute blocks that a dead engine had begun from their first token, and note nothing for a successor", 3},
    {"incarnation", KEY_INCARNATION, "N", 0, "With --no-gms: what it calls itself (default 0)", 3},
    {"serve-lock", KEY_SERVE_LOCK, "FILE", 0,
     "With --no-gms: load, then look every 100 ms whether this file's lock is free, and serve with it; what standbys "
     "do "
     "that know nothing of each other",
     3},
    {NULL, 0, NULL, 0, "Logs:", 4},
    {"log-dir", KEY_LOG_DIR, "DIR", 0, "Write the event log engine<ID>.<incarnation>.<rank>.log there", 4},
    {"log-level", KEY_LOG_LEVEL, "LEVEL", 0, "error, warning, info or debug (default info)", 4},
    {"log-destination", KEY_LOG_DESTINATION, "WHERE", 0, "stderr or file:PATH (default stderr)", 4},
    {NULL, 0, NULL, 0, "Drills:", 5},
    {"step-delay-us", KEY_STEP_DELAY, "N", 0, "Pause after each step, microseconds (default 0)", 5},
    {"moody", KEY_MOODY, NULL, 0, "Give every request another seed than it asks for: an engine that is not exact", 5},
    {"poison", KEY_POISON, "none|SLOT[@RANK]|all[@RANK]|tails[@RANK]", 0,
     "When promoted and before adopting, overwrite this slot (or all, or those that are in quarantine) with noise, on "
     "one rank or on all (default none)",
     5},
    {"die-after", KEY_DIE_AFTER, "none|STEP@RANK", 0,
     "When promoted, that rank kills itself once the step is done: promoted, adopted, woken or serving (default none)",
     5},
    {0},
};

struct arguments {
    struct engine_options engine;
    enum note_level level;
    int log_fd;
};

static uint64_t number(struct argp_state *state, const char *name, const char *text, uint64_t least, uint64_t most)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != 0 || errno != 0 || value < least || value > most)
        argp_error(state, "--%s %s: must be a number from %" PRIu64 " to %" PRIu64, name, text, least, most);
    return value;
}

static void parse_poison(struct argp_state *state, struct engine_options *o, const char *text)
{
    o->poison_rank = POISON_NOWHERE;
    if (strcmp(text, "none") == 0)
        return;
    char copy[64];
    const char *at = strchr(text, '@');
    size_t length = at == NULL ? strlen(text) : (size_t)(at - text);
    if (length >= sizeof copy) {
        argp_error(state, "--poison: must be none, SLOT, all or tails, each but none with @RANK if wanted");
        return;
    }
    memcpy(copy, text, length);
    copy[length] = 0;
    o->poison_slot = strcmp(copy, "all") == 0     ? POISON_EVERY_SLOT
                     : strcmp(copy, "tails") == 0 ? POISON_TAILS
                                                  : (uint32_t)number(state, "poison", copy, 0, UINT32_MAX - 2);
    o->poison_rank = at == NULL ? POISON_EVERY_RANK : (int32_t)number(state, "poison", at + 1, 0, INT32_MAX);
}

static void parse_die_after(struct argp_state *state, struct engine_options *o, const char *text)
{
    char step[16];
    const char *at = strchr(text, '@');
    size_t length = at == NULL ? strlen(text) : (size_t)(at - text);
    snprintf(step, sizeof step, "%.*s", (int)length, text);
    if (length >= sizeof step || !waking_parse(step, &o->die_after) || (at == NULL) != (o->die_after == WAKING_NONE))
        argp_error(state, "--die-after %s: must be none, or promoted, adopted, woken or serving, each with @RANK",
                   text);
    o->die_rank = at == NULL ? 0 : (uint32_t)number(state, "die-after", at + 1, 0, INT32_MAX);
}

static void parse_level(struct argp_state *state, enum note_level *level, const char *text)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(text, names[i]) == 0) {
            *level = (enum note_level)i;
            return;
        }
    argp_error(state, "--log-level %s: must be error, warning, info or debug", text);
}

static void parse_destination(struct argp_state *state, int *fd, const char *text)
{
    if (strcmp(text, "stderr") == 0)
        return;
    if (strncmp(text, "file:", 5) != 0)
        argp_error(state, "--log-destination %s: must be stderr or file:PATH", text);
    *fd = open(text + 5, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (*fd < 0)
        argp_failure(state, 1, errno, "--log-destination %s", text);
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct arguments *a = state->input;
    struct engine_options *o = &a->engine;
    const uint64_t most = INT32_MAX;
    switch (key) {
    case KEY_LAYERS:
        o->model.layers = (uint32_t)number(state, "layers", text, 1, most);
        return 0;
    case KEY_WIDTH:
        o->model.width = (uint32_t)number(state, "width", text, 1, most);
        return 0;
    case KEY_HEADS:
        o->model.heads = (uint32_t)number(state, "heads", text, 1, most);
        return 0;
    case KEY_KV_HEADS:
        o->model.kv_heads = (uint32_t)number(state, "kv-heads", text, 1, most);
        return 0;
    case KEY_MLP:
        o->model.mlp = (uint32_t)number(state, "mlp", text, 1, most);
        return 0;
    case KEY_VOCAB:
        o->model.vocabulary = (uint32_t)number(state, "vocab", text, 2, most);
        return 0;
    case KEY_SEED:
        o->model.seed = number(state, "seed", text, 0, UINT64_MAX);
        return 0;
    case KEY_HASH_SEED:
        o->hash_seed = number(state, "hash-seed", text, 0, UINT64_MAX);
        return 0;
    case KEY_SLOTS:
        o->slots = (uint32_t)number(state, "slots", text, 0, MOST_SLOTS);
        return 0;
    case KEY_BLOCK_TOKENS:
        o->model.block_tokens = (uint32_t)number(state, "block-tokens", text, 1, 256);
        return 0;
    case KEY_MAX_BATCH:
        o->max_batch = (uint32_t)number(state, "max-batch", text, 1, 1024);
        return 0;
    case KEY_CHUNK_TOKENS:
        o->chunk_tokens = (uint32_t)number(state, "chunk-tokens", text, 1, 4096);
        return 0;
    case KEY_QUEUE:
        o->max_waiting = (uint32_t)number(state, "queue", text, 1, 1u << 20);
        return 0;
    case KEY_LISTEN:
        o->listen = text;
        return 0;
    case KEY_NO_GMS:
        o->no_gms = true;
        return 0;
    case KEY_INCARNATION:
        o->incarnation = number(state, "incarnation", text, 0, INT64_MAX);
        return 0;
    case KEY_SERVE_LOCK:
        o->serve_lock = text;
        return 0;
    case KEY_LOG_DIR:
        o->log_dir = text;
        return 0;
    case KEY_LOG_LEVEL:
        parse_level(state, &a->level, text);
        return 0;
    case KEY_LOG_DESTINATION:
        parse_destination(state, &a->log_fd, text);
        return 0;
    case KEY_MOODY:
        o->moody = true;
        return 0;
    case KEY_STEP_DELAY:
        o->step_delay_us = (uint32_t)number(state, "step-delay-us", text, 0, 60000000);
        return 0;
    case KEY_POISON:
        parse_poison(state, o, text);
        return 0;
    case KEY_NO_SALVAGE:
        o->no_salvage = true;
        return 0;
    case KEY_DIE_AFTER:
        parse_die_after(state, o, text);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "%s: minillm takes options only", text);
        return 0;
    case ARGP_KEY_END:
        if (!o->no_gms && (o->serve_lock != NULL || o->incarnation != 0))
            argp_error(state, "--serve-lock and --incarnation are for --no-gms: otherwise the group decides");
        if (o->no_gms && o->slots == 0)
            argp_error(state, "--no-gms needs --slots: there is no budget without a group");
        if (o->poison_rank != POISON_NOWHERE && o->poison_slot < POISON_TAILS && o->poison_slot >= o->slots)
            argp_error(state, "--poison %" PRIu32 ": there are %" PRIu32 " slots%s", o->poison_slot, o->slots,
                       o->slots == 0 ? ", as far as is known yet" : "");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_version(FILE *stream, struct argp_state *state)
{
    (void)state;
    fprintf(stream, "minillm (gms-failover %s)\n", gms_version());
}

static const char documentation[] =
    "A small tensor-parallel inference engine whose weights and KV cache outlive it.\v"
    "Start it under mpirun or srun, one process per rank. Without --no-gms each rank is started by gms-exec, joins the "
    "deployment, parks, and serves once it is promoted.\n\n"
    "  mpirun -n 2 minillm --no-gms --listen unix:/tmp/llm\n"
    "  mpirun -n 2 gms-exec --run-dir DIR --engine 1 -- minillm --listen unix:/tmp/llm\n\n"
    "SIGUSR1 to mpirun, or SIGTERM to the ranks, ends it cleanly.\n\n"
    "Exit status: 0 clean end, 1 failed (the reason is logged), 3 told to end or ownership lost, 4 another rank is "
    "gone, 64 wrong options. What has not ended by itself soon after the goodbye (timeouts.leave of the deployment "
    "file) is killed, and a launcher reports 137 then; its event log ends with \"end\" in any case.";

/* Blocks SIGUSR1 and SIGTERM in every thread that MPI will start too, so that it is read and never interrupts. */
static int open_signal_fd(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int main(int argc, char **argv)
{
    struct arguments a = {
        .engine = {.model = {.layers = 4,
                             .width = 128,
                             .heads = 8,
                             .kv_heads = 4,
                             .mlp = 256,
                             .vocabulary = 256,
                             .block_tokens = 16,
                             .seed = 1},
                   .slots = 512,
                   .max_batch = 16,
                   .chunk_tokens = 64,
                   .max_waiting = 1024,
                   .poison_rank = POISON_NOWHERE,
                   .listen = "tcp:127.0.0.1:0"},
        .level = NOTE_INFO,
        .log_fd = STDERR_FILENO,
    };
    const struct argp argp = {.options = option_table, .parser = parse, .doc = documentation};
    argp_program_version_hook = print_version;
    argp_err_exit_status = 64;
    argp_parse(&argp, argc, argv, 0, NULL, &a);

    a.engine.signal_fd = open_signal_fd();
    struct ranks *ranks = ranks_open(&argc, &argv);
    if (ranks == NULL)
        _exit(EXIT_RUN_FAILED);
    const char *id = getenv("ENGINE_ID");
    note_configure(a.level, a.log_fd, id == NULL ? 0 : (uint32_t)strtoul(id, NULL, 10), ranks_rank(ranks));
    a.engine.model.rank = ranks_rank(ranks);
    a.engine.model.world_size = ranks_size(ranks);
    const char *wrong = model_config_check(&a.engine.model);
    if (wrong != NULL) {
        if (ranks_rank(ranks) == 0)
            note(NOTE_ERROR, "%s; see --help", wrong);
        ranks_close(ranks);
        return 64;
    }
    int code = engine_run(&a.engine, ranks);
    fflush(NULL);
    _exit(code); /* after a failure other ranks must not be waited for; after goodbye there is no time to lose */
}
