/* SPDX-License-Identifier: Apache-2.0
 *
 * gms-coord: options, the common start of all ranks, exit codes.
 *
 * The start is a sequence of steps that every rank takes; after each that can fail on one rank all ranks compare notes,
 * so that they stop together and one of them says why.
 */
#include <argp.h>
#include <mpi.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/launcher.h"
#include "base/log.h"
#include "base/run_dir.h"
#include "base/start.h"
#include "daemon/begin.h"
#include "daemon/earlier.h"
#include "daemon/inherit.h"
#include "gms-keeper/client.h"
#include "gms/version.h"
#include "group/doorbell.h"
#include "memory/pools.h"
#include "wire/message.h"

enum { START_SECONDS = 30, FINALIZE_SECONDS = 5, LAST_WORDS_MS = 200 };
enum option_key {
    KEY_CHECK = 256,
    KEY_HELP_CONFIG,
    KEY_FRESH,
    KEY_ACCEPT_STORE_LOSS,
    KEY_REPLACE,
    KEY_LOG_LEVEL,
    KEY_LOG_DESTINATION
};

static const char documentation[] =
    "The coordinator of one deployment: one MPI rank for each GPU. Start a gms-keeper on every node first, then\n"
    "\n"
    "  mpirun -n RANKS gms-coord --config FILE      (under srun: srun --mpi=pmix -n RANKS gms-coord --config FILE)\n"
    "\n"
    "with RANKS equal to `ranks` in FILE, as an MPI job of its own. It sleeps until an engine, a peer or an operator "
    "wants something. Started again after any end, it goes on where the group was. Stop it with `gms-ctl --run-dir DIR "
    "down` or SIGUSR1; engines keep running and serving without "
    "it."
    "\v"
    "Exit codes: 0 planned stop; 64 usage; 78 configuration, nothing was started; 75 start the whole job again (a rank "
    "or "
    "the launcher is gone, there is no keeper, or a round missed its deadline); 70 an operator must decide.";

static const struct argp_option options[] = {
    {"config", 'c', "FILE", 0, "The deployment file; read by rank 0", 0},
    {"check", KEY_CHECK, NULL, 0, "Only check the file, without MPI: every error with its line", 0},
    {"help-config", KEY_HELP_CONFIG, NULL, 0, "Describe every setting of the file", 0},
    {"fresh", KEY_FRESH, NULL, 0,
     "Give up what an earlier coordinator job stored and held; refused while an engine of it runs that the keeper "
     "knows",
     0},
    {"accept-store-loss", KEY_ACCEPT_STORE_LOSS, NULL, 0,
     "Where a rank's store is missing, damaged or older than it was, go on from the newest that is left: engines are "
     "ended, KV and weights given up",
     0},
    {"replace", KEY_REPLACE, NULL, 0,
     "Take the place of a coordinator job that still answers, instead of leaving it alone; engines go on", 0},
    {"log-level", KEY_LOG_LEVEL, "LEVEL", 0, "error, warning, notice (default), info or debug", 1},
    {"log-destination", KEY_LOG_DESTINATION, "WHERE", 0,
     "stderr (default), file:PATH (%r in PATH is the rank; opened anew on SIGHUP) or journald", 1},
    {0},
};

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct arguments *arguments = state->input;
    struct gms_error error;
    switch (key) {
    case 'c':
        arguments->config_path = argument;
        return 0;
    case KEY_CHECK:
        arguments->check = true;
        return 0;
    case KEY_FRESH:
        arguments->fresh = true;
        return 0;
    case KEY_ACCEPT_STORE_LOSS:
        arguments->accept_store_loss = true;
        return 0;
    case KEY_REPLACE:
        arguments->replace = true;
        return 0;
    case KEY_HELP_CONFIG:
        gms_config_describe(stdout);
        exit(0);
    case KEY_LOG_LEVEL:
        if (gms_log_level_parse(argument, &arguments->log_level, &error) != GMS_OK)
            argp_error(state, "%s", error.text);
        return 0;
    case KEY_LOG_DESTINATION:
        arguments->log_destination = argument;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "\"%s\" is one argument too many", argument);
        return 0;
    case ARGP_KEY_END:
        if (arguments->config_path == NULL)
            argp_error(state, "--config FILE is required");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void report_to_stderr(void *context, const char *text)
{
    (void)context;
    fprintf(stderr, "%s\n", text);
}

static int check_only(const struct arguments *arguments)
{
    static struct gms_config config;
    struct gms_error error;
    if (gms_config_check_host(NULL, &error) != GMS_OK) {
        fprintf(stderr, "gms-coord: %s\n", error.text);
        return GMS_EXIT_CONFIG;
    }
    if (gms_config_read(arguments->config_path, &config, report_to_stderr, NULL, &error) != GMS_OK)
        return GMS_EXIT_CONFIG;
    if (gms_run_dir_check(config.run_dir, config.ranks, 0, &error) != GMS_OK && error.status == GMS_E_INVALID) {
        fprintf(stderr, "%s: %s\n", arguments->config_path, error.text);
        return GMS_EXIT_CONFIG;
    }
    printf("%s: deployment %s, %u ranks: good\n", arguments->config_path, config.deployment, config.ranks);
    return 0;
}

/* What somebody has to correct is CONFIG; what may be different next time is RESTART. */
static int exit_code_of(gms_status status)
{
    if (status >= 300)
        return GMS_EXIT_OPERATOR;
    return status == GMS_E_INVALID || status == GMS_E_CONFIG || status == GMS_E_UNSUPPORTED ||
                   status == GMS_E_PERMISSION || status == GMS_E_VERSION || status == GMS_E_REFUSED ||
                   status == GMS_E_MISMATCH
               ? GMS_EXIT_CONFIG
               : GMS_EXIT_RESTART;
}

/* --------------------------------------------------------------------------------------------- the common start - */

#ifndef GMS_COORD_VERSION /* a test builds one that says something else */
#define GMS_COORD_VERSION GMS_VERSION
#endif

/* Before anything whose size or meaning a version decides. */
static gms_status check_version(struct start *start, struct gms_error *ret_error)
{
    char mine[96] = "", first[sizeof mine];
    snprintf(mine, sizeof mine, "%s (protocol %d, settings of %zu bytes)", GMS_COORD_VERSION, GMS_WIRE_VERSION,
             sizeof(struct gms_config));
    memcpy(first, mine, sizeof first);
    gms_status status = gms_round_share(start->round, first, sizeof first, ret_error);
    first[sizeof first - 1] = '\0';
    if (status != GMS_OK || strcmp(mine, first) == 0)
        return status;
    struct utsname name = {.nodename = ""};
    uname(&name);
    return gms_fail(ret_error, GMS_E_VERSION,
                    "rank %u on host %.64s is gms-coord %s, rank 0 is gms-coord %s: install one version on all hosts",
                    start->rank, name.nodename, mine, first);
}

/* Every error of the file is printed once, by rank 0, as it is found. */
static gms_status read_config(struct start *start, struct gms_error *ret_error)
{
    if (start->rank != 0)
        return GMS_OK;
    gms_status status =
        gms_config_read(start->arguments->config_path, start->config, report_to_stderr, NULL, ret_error);
    start->reported = status != GMS_OK;
    return status;
}

/* The file counts as rank 0 has it. Where another rank has one of that name too it must say the same: a node with an
 * older copy would else look configured in one way and run in another. */
static gms_status compare_files(struct start *start, struct gms_error *ret_error)
{
    const char *path = start->arguments->config_path, *setting;
    struct gms_error error;
    if (start->rank == 0 || access(path, R_OK) != 0)
        return GMS_OK;
    struct gms_config *mine = malloc(sizeof *mine);
    if (mine == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for %zu bytes", sizeof *mine);
    gms_status status = gms_config_read(path, mine, NULL, NULL, &error);
    if (status != GMS_OK)
        status = gms_fail(ret_error, GMS_E_MISMATCH, "rank %u (%s) has another %s than rank 0: %.300s", start->rank,
                          start->place.host, path, error.text);
    else if ((setting = gms_config_difference(start->config, mine)) != NULL)
        status = gms_fail(ret_error, GMS_E_MISMATCH,
                          "rank %u (%s) has another %s than rank 0: %s differs; give all nodes the same file, or only "
                          "rank 0's",
                          start->rank, start->place.host, path, setting);
    free(mine);
    return status;
}

static gms_status check_world(struct start *start, struct gms_error *ret_error)
{
    uint32_t size = gms_round_size(start->round);
    if (size == start->config->ranks)
        return GMS_OK;
    return gms_fail(ret_error, GMS_E_CONFIG, "this MPI job has %u ranks, %s wants %u: start mpirun -n %u gms-coord%s",
                    size, start->arguments->config_path, start->config->ranks, start->config->ranks,
                    size == 1 ? " (a job of one rank is what a start without a launcher, or with another MPI's, gives)"
                              : "");
}

/* What rank 0 has and every other rank must have too. */
struct place {
    char host[sizeof((struct gms_daemon_place *)0)->host];
    char address[GMS_ADDRESS_BYTES];
    int application;
};

static gms_status compare_place(struct start *start, const struct place *mine, const struct place *first,
                                struct gms_error *ret_error)
{
    if (mine->application != first->application)
        return gms_fail(
            ret_error, GMS_E_CONFIG,
            "rank %u is program %d of an MPMD launch, rank 0 is program %d: give the coordinators an mpirun "
            "or srun of their own",
            start->rank, mine->application, first->application);
    return GMS_OK;
}

static gms_status check_place(struct start *start, struct gms_error *ret_error)
{
    struct utsname name;
    uint32_t ranks = gms_round_size(start->round);
    struct gms_daemon_place *place = &start->place;
    struct place mine = {.application = gms_round_application(start->round)};
    struct place *all = calloc(ranks, sizeof *all);
    if (all == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the hosts of %u ranks", ranks);
    if (uname(&name) == 0)
        snprintf(mine.host, sizeof mine.host, "%s", name.nodename);
    struct gms_error nowhere;
    gms_status found = gms_address_find(start->config->address, mine.host, mine.address, &nowhere);
    gms_status status = gms_round_gather(start->round, &mine, sizeof mine, all, ret_error);
    if (status != GMS_OK)
        return status; /* MPI may still write there */
    snprintf(place->address, sizeof place->address, "%s", mine.address);
    all[0].address[sizeof all[0].address - 1] = '\0';
    snprintf(place->host, sizeof place->host, "%s", mine.host);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        all[rank].host[sizeof all[rank].host - 1] = '\0';
        if (strcmp(all[rank].host, mine.host) != 0)
            continue;
        place->local_ranks++;
        place->local_rank += rank < start->rank;
    }
    snprintf(place->master_address, sizeof place->master_address, "%s",
             place->local_ranks == ranks ? "127.0.0.1" : all[0].address);
    status = compare_place(start, &mine, &all[0], ret_error);
    free(all);
    if (status == GMS_OK && found != GMS_OK)
        return gms_fail(ret_error, found, "%s", nowhere.text);
    return status;
}

static gms_status agree_on_environment(struct start *start, struct gms_error *ret_error)
{
    return gms_inherit_together(start->round, start->config, &start->place, &start->inherited, &start->inherited_bytes,
                                ret_error);
}

/* A number that no earlier start had: time since boot, and greater than what the keeper has ever granted. */
static gms_status choose_world(struct start *start, struct gms_error *ret_error)
{
    uint64_t newest = 0, world = 0;
    struct gms_error mine = {.status = GMS_OK};
    gms_status status = gms_run_dir_check(start->config->run_dir, start->config->ranks, start->rank == 0, &mine);
    if (status == GMS_OK)
        status = gms_keeper_newest_world(start->config->run_dir, &newest, &mine);
    mine.status = status; /* an error that was overcome leaves its text there */
    status = gms_round_concur(start->round, &mine, ret_error);
    if (status == GMS_OK)
        status = gms_round_greatest(start->round, newest, &newest, ret_error);
    if (status != GMS_OK)
        return status;
    struct timespec up;
    clock_gettime(CLOCK_BOOTTIME, &up);
    world = (uint64_t)up.tv_sec * GMS_NS_PER_S + (uint64_t)up.tv_nsec;
    if (world <= newest)
        world = newest + 1;
    status = gms_round_share(start->round, &world, sizeof world, ret_error);
    start->world = world;
    char stopped[GMS_RUN_PATH_BYTES];
    if (start->rank == 0 && gms_run_dir_path(start->config->run_dir, "stopped", -1, stopped, NULL) == GMS_OK)
        unlink(stopped); /* it spoke of the job before */
    return status;
}

static gms_status check_earlier(struct start *start, struct gms_error *ret_error)
{
    return start->arguments->replace ? GMS_OK : gms_earlier_coordinator(start->config->run_dir, start->rank, ret_error);
}

/* From here on no earlier coordinator of this rank runs. */
static gms_status take_rank(struct start *start, struct gms_error *ret_error)
{
    return gms_keeper_connect(start->config->run_dir, start->world, start->rank, start->config->ranks, &start->keeper,
                              ret_error);
}

static gms_status check_fresh(struct start *start, struct gms_error *ret_error)
{
    return start->arguments->fresh ? gms_earlier_engines(&start->keeper, ret_error) : GMS_OK;
}

static gms_status take_device(struct start *start, struct gms_error *ret_error)
{
    struct gms_uuid kept = {{0}};
    if (start->decision.verdict == GMS_RECOVERY_FRESH || !gms_pools_kept_device(start->copies, &kept))
        memset(&kept, 0, sizeof kept);
    return gms_device_take(start->config, start->rank, &kept, "/proc", &start->device, ret_error);
}

static gms_status agree_on_devices(struct start *start, struct gms_error *ret_error)
{
    return gms_device_agree(start->config, start->round, &start->device, ret_error);
}

/* From here on this world's store is the one to go on from. */
static gms_status open_rank(struct start *start, struct gms_error *ret_error)
{
    const struct gms_config *config = start->config;
    gms_status status = GMS_OK;
    bool begins = start->decision.verdict == GMS_RECOVERY_FRESH && start->decision.life == 0;
    if (begins && start->store != NULL && !gms_store_is_new(start->store)) { /* it is not of this life */
        gms_store_close(start->store);
        start->store = NULL;
    }
    if (start->store == NULL) /* what it was cannot be used, and the group goes on without it */
        status = gms_begin_open_store(start, true, ret_error);
    if (status != GMS_OK)
        return status;
    const struct gms_daemon_options daemon = {.config = config,
                                              .round = start->round,
                                              .keeper = &start->keeper,
                                              .copies = start->copies,
                                              .store = start->store,
                                              .world = start->world,
                                              .device = start->device,
                                              .verdict = start->decision.verdict,
                                              .life = start->decision.life,
                                              .snapshot = start->snapshot,
                                              .snapshot_bytes = start->snapshot_bytes,
                                              .inherited = start->inherited,
                                              .inherited_bytes = start->inherited_bytes,
                                              .place = start->place};
    return gms_daemon_open(&daemon, &start->daemon, ret_error);
}

/* Ranks on several hosts find each other's doorbells, and know each other by a secret of this start. */
static gms_status exchange_doors(struct start *start, struct gms_error *ret_error)
{
    struct gms_doorbell_place mine;
    if (start->place.local_ranks == start->config->ranks)
        return GMS_OK;
    gms_daemon_door(start->daemon, &mine);
    snprintf(mine.host, sizeof mine.host, "%s", start->place.host);
    if (getrandom(&mine.secret, sizeof mine.secret, 0) != sizeof mine.secret)
        mine.secret = gms_clock_ns();
    start->doors = calloc(start->config->ranks, sizeof *start->doors);
    if (start->doors == NULL) /* the others are in the collective already */
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the addresses of %u ranks", start->config->ranks);
    gms_status status = gms_round_gather(start->round, &mine, sizeof mine, start->doors, ret_error);
    for (uint32_t rank = 0; status == GMS_OK && rank < start->config->ranks; rank++) {
        start->doors[rank].host[sizeof start->doors[rank].host - 1] = '\0';
        start->doors[rank].address[sizeof start->doors[rank].address - 1] = '\0';
    }
    if (status == GMS_OK)
        gms_daemon_set_doors(start->daemon, start->doors);
    return status;
}

static gms_status connect_rank(struct start *start, struct gms_error *ret_error)
{
    return gms_daemon_connect(start->daemon, gms_clock_ns() + START_SECONDS * GMS_NS_PER_S / 2, ret_error);
}

/* Runs one step here and everywhere; the verdict is everybody's. */
static gms_status together(struct start *start, gms_status (*step)(struct start *, struct gms_error *),
                           struct gms_error *ret_error)
{
    struct gms_error mine;
    mine.status = step(start, &mine);
    return gms_round_concur(start->round, &mine, ret_error);
}

static gms_status start_together(struct start *start, struct gms_error *ret_error)
{
    gms_status status = together(start, check_version, ret_error);
    if (status == GMS_OK)
        status = together(start, read_config, ret_error);
    if (status == GMS_OK)
        status = gms_round_share(start->round, start->config, sizeof *start->config, ret_error);
    if (status == GMS_OK)
        status = together(start, check_world, ret_error);
    if (status == GMS_OK)
        status = together(start, check_place, ret_error);
    if (status == GMS_OK)
        status = together(start, compare_files, ret_error);
    if (status == GMS_OK)
        status = agree_on_environment(start, ret_error);
    if (status == GMS_OK)
        status = choose_world(start, ret_error);
    if (status == GMS_OK)
        status = together(start, check_earlier, ret_error);
    if (status == GMS_OK)
        status = together(start, take_rank, ret_error);
    if (status == GMS_OK)
        status = together(start, check_fresh, ret_error); /* apart from what changes something: all ranks or none */
    if (status == GMS_OK)
        status = gms_begin_look_and_decide(start, ret_error);
    if (status == GMS_OK)
        status = together(start, take_device, ret_error);
    if (status == GMS_OK)
        status = together(start, agree_on_devices, ret_error);
    if (status == GMS_OK)
        status = together(start, open_rank, ret_error);
    if (status == GMS_OK)
        status = exchange_doors(start, ret_error);
    if (status == GMS_OK)
        status = together(start, connect_rank, ret_error);
    return status;
}

static void close_rank(struct start *start)
{
    gms_daemon_close(start->daemon);
    gms_store_close(start->store);
    gms_copies_close(start->copies);
    gms_keeper_disconnect(&start->keeper);
    free(start->snapshot);
    free(start->inherited);
    free(start->doors);
}

static volatile sig_atomic_t exit_code_at_last;

static void give_up_on_ending(int number)
{
    (void)number;
    _exit(exit_code_at_last);
}

/* Nothing is left to lose. A launcher that is ending too may never answer; nor may a worker, which asks a driver or the
 * kernel about somebody in trouble. */
static void end_bounded(struct start *start, int code)
{
    struct sigaction action = {.sa_handler = give_up_on_ending};
    exit_code_at_last = code;
    sigaction(SIGALRM, &action, NULL);
    alarm(FINALIZE_SECONDS);
    gms_round_close(start->round);
    MPI_Finalize();
    alarm(FINALIZE_SECONDS);
    close_rank(start);
    alarm(0);
}

static gms_status open_log(const struct arguments *arguments, uint32_t rank, struct gms_error *ret_error)
{
    char ident[32], destination[4096];
    const char *mark = strstr(arguments->log_destination, "%r");
    snprintf(ident, sizeof ident, "gms-coord[%u]", rank);
    if (mark != NULL)
        snprintf(destination, sizeof destination, "%.*s%u%s", (int)(mark - arguments->log_destination),
                 arguments->log_destination, rank, mark + 2);
    else
        snprintf(destination, sizeof destination, "%s", arguments->log_destination);
    return gms_log_open(ident, destination, arguments->log_level, ret_error);
}

int main(int argc, char **argv)
{
    argp_program_version = "gms-coord " GMS_VERSION; /* glibc's; a definition of our own would be hidden from it */
    static struct gms_config config;
    struct arguments arguments = {.log_destination = "stderr", .log_level = GMS_LOG_NOTICE};
    struct gms_error error;
    gms_signals_reset();
    argp_err_exit_status = GMS_EXIT_USAGE;
    const struct argp argp = {options, parse_option, NULL, documentation, NULL, NULL, NULL};
    argp_parse(&argp, argc, argv, 0, NULL, &arguments);
    if (arguments.check)
        return check_only(&arguments);
    if (gms_config_check_host(NULL, &error) != GMS_OK) {
        fprintf(stderr, "gms-coord: %s\n", error.text);
        return GMS_EXIT_CONFIG;
    }
    gms_fd_raise_limit();
    gms_launcher_make_directories();
    setenv("OMPI_MCA_mpi_yield_when_idle", "1",
           0); /* srun and plain slots do not set it; a waiting rank must give way */

    int provided = 0;
    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
        return GMS_EXIT_RESTART;
    struct start start = {.arguments = &arguments, .config = &config, .keeper = {.fd = -1}};
    gms_status status = gms_round_open(START_SECONDS * GMS_NS_PER_S, &start.round, &error);
    if (status != GMS_OK) {
        fprintf(stderr, "gms-coord: %s\n", error.text);
        return exit_code_of(status);
    }
    start.rank = gms_round_rank(start.round);
    struct gms_error mine;
    mine.status = open_log(&arguments, start.rank, &mine);
    status = gms_round_concur(start.round, &mine, &error);
    if (status == GMS_OK)
        status = start_together(&start, &error);
    int code = GMS_EXIT_PLANNED;
    if (status == GMS_OK) {
        gms_log(GMS_LOG_NOTICE, "deployment %s: rank %u of %u, world %llu, run directory %s", config.deployment,
                start.rank, config.ranks, (unsigned long long)start.world, config.run_dir);
        if (start.rank == 0)
            gms_start_succeeded();
        code = gms_daemon_run(start.daemon);
    } else {
        code = exit_code_of(status);
        if (code == GMS_EXIT_RESTART)
            gms_start_failed();
        /* One rank speaks: the one that found it, or rank 0 where all did. */
        if (start.rank == (uint32_t)(error.rank >= 0 ? error.rank : 0))
            gms_log(GMS_LOG_ERROR, "%s (%s)", start.reported ? "nothing was started" : error.text,
                    gms_status_name(status));
        if (status == GMS_E_PEER_LOST || status == GMS_E_ROUND_TIMEOUT)
            _exit(code); /* MPI_Finalize would wait for the lost one */
    }
    end_bounded(&start, code);
    if (status != GMS_OK)
        poll(NULL, 0, LAST_WORDS_MS); /* launchers drop what ranks said last when they abort a job */
    return code;
}
