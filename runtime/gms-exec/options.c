/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-exec/options.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/units.h"
#include "core/ballot.h"
#include "gms/version.h"

/* libc looks it up by name; hidden symbols it does not see. */
__attribute__((visibility("default"))) const char *argp_program_version = "gms-exec " GMS_VERSION;

enum { KEY_WAIT = 256, KEY_CONTAINMENT, KEY_LAUNCH, KEY_LEVEL, KEY_DESTINATION };

static const char doc[] =
    "Runs one engine rank under the group's care: fetches the agreed environment from the coordinator rank on this "
    "node, contains everything the rank will start, and hands the container to the coordinator before the rank runs.\v"
    "Typical use, one per engine rank, started by the engine's own launcher:\n"
    "\n"
    "  mpirun -np 2 gms-exec --run-dir /run/user/0/gms --engine 0 -- ./engine --port 8000\n"
    "\n"
    "The command sees the agreed variables over gms-exec's own, and GMS_RUN_DIR, GMS_RANK, GMS_WORLD_SIZE, "
    "GMS_LAUNCH_ID and ENGINE_ID. Its launcher's variables stay. TERM, INT, HUP, QUIT, USR1 and USR2 are passed on to "
    "it. When it ends, or gms-exec is killed, everything it started is killed too. When the coordinator is lost the "
    "command runs on and gms-exec attaches again when the coordinator is back.\n"
    "\n"
    "Containment:\n"
    "  auto           cgroup where one can be made, else subreaper; as PID 1 of a namespace: that namespace\n"
    "  cgroup         subreaper, and a control group below gms-exec's own, which the fence kills as a whole\n"
    "  subreaper      descendants are adopted and killed by walking /proc\n"
    "  pid-namespace  a PID namespace per rank: the kernel kills all. Ranks cannot use each other's pids (CMA,\n"
    "                 CUDA IPC); Open MPI is told so, see the README\n"
    "\n"
    "Exit codes: the command's own; 128+N when signal N ended it; 64 usage; 69 no coordinator, or it refused; "
    "71 the cohort cannot be contained; 126 the command cannot be run; 127 it was not found.";

static const struct argp_option option_table[] = {
    {"run-dir", 'd', "DIR", 0, "The deployment's run directory (default: $GMS_RUN_DIR)", 0},
    {"engine", 'e', "N", 0, "Id of the engine this rank belongs to, 0..7 (default: $ENGINE_ID)", 0},
    {"rank", 'r', "R", 0, "Rank in the group (default: $GMS_RANK, $OMPI_COMM_WORLD_RANK, $PMIX_RANK, $SLURM_PROCID)",
     0},
    {"launch", KEY_LAUNCH, "ID", 0,
     "Equal on all ranks of one start and different at the next (default: $GMS_LAUNCH_ID, $PMIX_NAMESPACE, "
     "$SLURM_JOB_ID.$SLURM_STEP_ID)",
     0},
    {"wait", KEY_WAIT, "TIME", 0, "How long to wait for the coordinator, such as 30s (default) or 500ms", 0},
    {"containment", KEY_CONTAINMENT, "KIND", 0,
     "auto, cgroup, subreaper or pid-namespace (default: as the deployment says)", 0},
    {"log-level", KEY_LEVEL, "LEVEL", 0, "error, warning, notice (default), info, debug", 0},
    {"log-destination", KEY_DESTINATION, "WHERE", 0, "stderr (default), file:PATH or journald", 0},
    {0},
};

/* Digits only, 0..limit. */
static bool parse_number(const char *text, uint32_t limit, uint32_t *ret_value)
{
    uint64_t value = 0;

    if (text == NULL || *text == '\0' || strlen(text) > 9) {
        return false;
    }
    for (const char *c = text; *c != '\0'; c++) {
        if (*c < '0' || *c > '9') {
            return false;
        }
        value = value * 10 + (uint64_t)(*c - '0');
    }
    if (value > limit) {
        return false;
    }
    *ret_value = (uint32_t)value;
    return true;
}

static const char *first_variable(const char *const *names)
{
    for (; *names != NULL; names++) {
        const char *value = getenv(*names);

        if (value != NULL && *value != '\0') {
            return value;
        }
    }
    return NULL;
}

static const char *const containment_names[GMS_EXEC_CONTAINMENT_COUNT] = {
    [GMS_EXEC_AUTO] = "auto",
    [GMS_EXEC_PID_NAMESPACE] = "pid-namespace",
    [GMS_EXEC_SUBREAPER] = "subreaper",
    [GMS_EXEC_CGROUP] = "cgroup",
};

struct parse {
    struct gms_exec_options *options;
    const char *rank_text, *engine_text;
};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct parse *parse = state->input;
    struct gms_exec_options *options = parse->options;
    struct gms_error error;

    switch (key) {
    case 'd':
        options->run_dir = text;
        return 0;
    case 'e':
        parse->engine_text = text;
        return 0;
    case 'r':
        parse->rank_text = text;
        return 0;
    case KEY_LAUNCH:
        options->launch = text;
        return 0;
    case KEY_DESTINATION:
        options->log_destination = text;
        return 0;
    case KEY_LEVEL:
        if (gms_log_level_parse(text, &options->log_level, &error) != GMS_OK) {
            argp_error(state, "--log-level: %s", error.text);
        }
        return 0;
    case KEY_WAIT:
        if (gms_parse_duration(text, &options->wait_ns, &error) != GMS_OK) {
            argp_error(state, "--wait: %s", error.text);
        }
        return 0;
    case KEY_CONTAINMENT:
        for (unsigned kind = 0; kind < GMS_EXEC_CONTAINMENT_COUNT; kind++) {
            if (strcmp(text, containment_names[kind]) == 0) {
                options->containment = (enum gms_exec_containment)kind;
                return 0;
            }
        }
        argp_error(state, "--containment %s: one of auto, pid-namespace, subreaper, cgroup", text);
        return 0;
    case ARGP_KEY_ARG: /* the command and everything behind it is not ours to parse */
        options->command = &state->argv[state->next - 1];
        state->next = state->argc;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp parser = {option_table, parse_option, "-- COMMAND [ARGUMENT...]", doc, NULL, NULL, NULL};

static void usage_error(const char *text)
{
    fprintf(stderr, "gms-exec: %s\nTry 'gms-exec --help'.\n", text);
    exit(GMS_EXEC_USAGE);
}

/* Slurm has no single name of a start: job and step together are one. */
static const char *slurm_launch(void)
{
    static char text[128];
    const char *job = getenv("SLURM_JOB_ID");
    const char *step = getenv("SLURM_STEP_ID");

    if (job == NULL || step == NULL || *job == '\0' || *step == '\0') {
        return NULL;
    }
    int length = snprintf(text, sizeof text, "%s.%s", job, step);
    return length > 0 && (size_t)length < sizeof text ? text : NULL;
}

void gms_exec_options_parse(int argc, char **argv, struct gms_exec_options *ret_options)
{
    static const char *const rank_names[] = {"GMS_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID", NULL};
    static const char *const launch_names[] = {"GMS_LAUNCH_ID", "PMIX_NAMESPACE", NULL};
    static const char *const engine_names[] = {"ENGINE_ID", NULL};
    static const char *const run_dir_names[] = {"GMS_RUN_DIR", NULL};
    struct parse parse = {.options = ret_options};
    char text[256];

    memset(ret_options, 0, sizeof *ret_options);
    ret_options->wait_ns = 30 * GMS_NS_PER_S;
    ret_options->containment = GMS_EXEC_AS_DEPLOYED;
    ret_options->log_level = GMS_LOG_NOTICE;
    ret_options->log_destination = "stderr";
    argp_err_exit_status = GMS_EXEC_USAGE;
    argp_parse(&parser, argc, argv, ARGP_IN_ORDER, NULL, &parse);

    if (ret_options->command == NULL) {
        usage_error("no command given: gms-exec [OPTION...] -- COMMAND [ARGUMENT...]");
    }
    if (ret_options->run_dir == NULL) {
        ret_options->run_dir = first_variable(run_dir_names);
    }
    if (ret_options->run_dir == NULL) {
        usage_error("no run directory: give --run-dir DIR or set GMS_RUN_DIR");
    }
    if (ret_options->run_dir[0] != '/') {
        snprintf(text, sizeof text, "run directory '%.128s': must be an absolute path", ret_options->run_dir);
        usage_error(text);
    }
    if (parse.engine_text == NULL) {
        parse.engine_text = first_variable(engine_names);
    }
    if (parse.engine_text == NULL) {
        usage_error("no engine id: give --engine N or set ENGINE_ID");
    }
    if (!parse_number(parse.engine_text, GMS_MAX_ENGINES - 1, &ret_options->engine)) {
        snprintf(text, sizeof text, "engine id '%.32s': a number from 0 to %d", parse.engine_text, GMS_MAX_ENGINES - 1);
        usage_error(text);
    }
    if (parse.rank_text == NULL) {
        parse.rank_text = first_variable(rank_names);
    }
    if (parse.rank_text == NULL) {
        usage_error("no rank: give --rank R, or start under a launcher that sets OMPI_COMM_WORLD_RANK, PMIX_RANK or "
                    "SLURM_PROCID, or set GMS_RANK");
    }
    if (!parse_number(parse.rank_text, GMS_MAX_RANKS - 1, &ret_options->rank)) {
        snprintf(text, sizeof text, "rank '%.32s': a number from 0 to %d", parse.rank_text, GMS_MAX_RANKS - 1);
        usage_error(text);
    }
    if (ret_options->launch == NULL) {
        ret_options->launch = first_variable(launch_names);
    }
    if (ret_options->launch == NULL) {
        ret_options->launch = slurm_launch();
    }
    if (ret_options->launch == NULL || *ret_options->launch == '\0') {
        usage_error("no launch id: give --launch ID (equal on all ranks of this start, different at the next), or "
                    "start under a launcher that sets PMIX_NAMESPACE or SLURM_JOB_ID and SLURM_STEP_ID");
    }
    if (strlen(ret_options->launch) > 255) {
        snprintf(text, sizeof text, "launch id of %zu bytes: at most 255", strlen(ret_options->launch));
        usage_error(text);
    }
}
