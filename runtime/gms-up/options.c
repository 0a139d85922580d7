/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-up/options.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/units.h"
#include "gms/version.h"

static const char help[] =
    "Keeps a deployment running: starts gms-keeper where none answers, starts the coordinator job, and starts it again "
    "whenever a part of it ends unplanned; engines go on meanwhile and are attached again. Where the deployment file "
    "has launch.engines it keeps engines too: one that serves and standby.count shadows.\n"
    "\n"
    "  gms-up --config FILE                                    mpirun --oversubscribe -n RANKS gms-coord --config "
    "FILE\n"
    "  gms-up --config FILE --launcher \"srun --mpi=pmix --overlap\"\n"
    "  gms-up --config FILE -- --log-destination file:/var/log/gms.%r      words for gms-coord"
    "\v"
    "A job that ends is started again at once, then after 0.2, 0.5, 1 and 2 s, and at once again when one has lived "
    "for "
    "--settled. SIGTERM or SIGINT to gms-up is a planned stop: the coordinators agree on it and nobody is taken over "
    "from; then its engines get launch.stop_signal (unless --keep-engines), and after --grace SIGKILL, and the keeper "
    "lets "
    "go of their memory. A signal a second later hurries. Ended by SIGKILL it leaves everything running, and the next "
    "gms-up "
    "goes on with "
    "it. "
    "The keeper is never ended while it holds memory.\n"
    "\n"
    "On several hosts launch.keepers of the file starts `gms-up keeper --run-dir DIR` on each, which keeps a keeper "
    "there: "
    "SIGTERM ends it, and its keeper if that holds nothing; SIGUSR1 both, whatever is held.\n"
    "\n"
    "Exit status: 0 planned stop, here or by gms-ctl down; 64 usage; 69 another gms-up looks after this run directory; "
    "70 an operator must decide (the coordinators' log says what); 71 the system refused something; 78 the deployment "
    "file, or the launcher cannot be run.";

enum {
    KEY_LAUNCHER = 0x100,
    KEY_KEEPER,
    KEY_COORDINATOR,
    KEY_NO_KEEPER,
    KEY_EXEC,
    KEY_KEEP_ENGINES,
    KEY_SETTLED,
    KEY_GRACE,
    KEY_LEVEL,
    KEY_DESTINATION
};

static const struct argp_option options[] = {
    {"config", 'c', "FILE", 0, "The deployment file", 1},
    {"launcher", KEY_LAUNCHER, "WORDS", 0,
     "What starts the ranks, split at blanks (default: launch.coordinators, else mpirun --oversubscribe); -n RANKS and "
     "gms-coord's command "
     "follow",
     1},
    {"no-keeper", KEY_NO_KEEPER, NULL, 0, "Never start a keeper: it has a unit or a launcher of its own", 1},
    {"keep-engines", KEY_KEEP_ENGINES, NULL, 0, "A planned stop leaves engines running", 1},
    {"settled", KEY_SETTLED, "TIME", 0, "A job that lived this long starts again at once when it ends (default: 30s)",
     2},
    {"grace", KEY_GRACE, "TIME", 0,
     "How long a planned stop may take before the launcher is told to end (default: 10s)", 2},
    {"gms-coord", KEY_COORDINATOR, "PATH", 0, "The coordinator (default: beside gms-up, else in PATH)", 2},
    {"gms-keeper", KEY_KEEPER, "PATH", 0, "The keeper (default: beside gms-up, else in PATH)", 2},
    {"gms-exec", KEY_EXEC, "PATH", 0, "What starts engine ranks (default: beside gms-up, else in PATH)", 2},
    {"log-level", KEY_LEVEL, "LEVEL", 0, "error, warning, notice (default), info or debug", 3},
    {"log-destination", KEY_DESTINATION, "WHERE", 0, "stderr (default), file:PATH or journald", 3},
    {0},
};

/* Beside this program where it is there, else whatever PATH has. */
static void find_program(const char *name, char ret_path[GMS_UP_PATH_BYTES])
{
    char self[GMS_UP_PATH_BYTES];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (ret_path[0] != '\0')
        return;
    if (length > 0) {
        self[length] = '\0';
        char *slash = strrchr(self, '/');
        if (slash != NULL && (size_t)(slash - self) + strlen(name) + 2 <= GMS_UP_PATH_BYTES) {
            snprintf(ret_path, GMS_UP_PATH_BYTES, "%.*s/%s", (int)(slash - self), self, name);
            if (access(ret_path, X_OK) == 0)
                return;
        }
    }
    snprintf(ret_path, GMS_UP_PATH_BYTES, "%s", name);
}

static void split_words(const char *text, const char *words[GMS_UP_WORDS], struct argp_state *state)
{
    char *copy = strdup(text), *save = NULL; /* lives as long as the program */
    size_t count = 0;
    if (copy == NULL)
        argp_failure(state, GMS_UP_SYSTEM, 0, "no memory");
    for (char *word = strtok_r(copy, " \t", &save); word != NULL; word = strtok_r(NULL, " \t", &save)) {
        if (count + 1 == GMS_UP_WORDS)
            argp_error(state, "--launcher: more than %d words", GMS_UP_WORDS - 1);
        words[count++] = word;
    }
    words[count] = NULL;
    if (count == 0)
        argp_error(state, "--launcher: no program is named");
}

static void copy_path(const char *argument, char ret_path[GMS_UP_PATH_BYTES], struct argp_state *state)
{
    if (strlen(argument) >= GMS_UP_PATH_BYTES)
        argp_error(state, "a path of %zu bytes, the limit is %d", strlen(argument), GMS_UP_PATH_BYTES - 1);
    snprintf(ret_path, GMS_UP_PATH_BYTES, "%s", argument);
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct gms_up_options *ret = state->input;
    struct gms_error error;
    size_t extra = 0;
    switch (key) {
    case 'c':
        ret->config = argument;
        return 0;
    case KEY_LAUNCHER:
        split_words(argument, ret->launcher, state);
        return 0;
    case KEY_COORDINATOR:
        copy_path(argument, ret->coordinator, state);
        return 0;
    case KEY_KEEPER:
        copy_path(argument, ret->keeper, state);
        return 0;
    case KEY_EXEC:
        copy_path(argument, ret->exec, state);
        return 0;
    case KEY_KEEP_ENGINES:
        ret->keep_engines = true;
        return 0;
    case KEY_NO_KEEPER:
        ret->keep_keeper = false;
        return 0;
    case KEY_SETTLED:
    case KEY_GRACE:
        if (gms_parse_duration(argument, key == KEY_SETTLED ? &ret->settled_ns : &ret->grace_ns, &error) != GMS_OK)
            argp_error(state, "%s", error.text);
        return 0;
    case KEY_LEVEL:
        if (gms_log_level_parse(argument, &ret->log_level, &error) != GMS_OK)
            argp_error(state, "%s", error.text);
        return 0;
    case KEY_DESTINATION:
        ret->log_destination = argument;
        return 0;
    case ARGP_KEY_ARG: /* after "--" */
        while (ret->extra[extra] != NULL)
            extra++;
        if (extra + 1 == GMS_UP_WORDS)
            argp_error(state, "more than %d words for gms-coord", GMS_UP_WORDS - 1);
        ret->extra[extra] = argument;
        return 0;
    case ARGP_KEY_END:
        if (ret->config == NULL)
            argp_error(state, "--config FILE is required");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void find_programs(struct gms_up_options *ret_options)
{
    find_program("gms-coord", ret_options->coordinator);
    find_program("gms-keeper", ret_options->keeper);
    find_program("gms-exec", ret_options->exec);
    find_program("gms-up", ret_options->self);
}

static void set_defaults(struct gms_up_options *ret_options)
{
    memset(ret_options, 0, sizeof *ret_options);
    ret_options->keep_keeper = true;
    ret_options->settled_ns = 30 * GMS_NS_PER_S;
    ret_options->grace_ns = 10 * GMS_NS_PER_S;
    ret_options->log_level = GMS_LOG_NOTICE;
    ret_options->log_destination = "stderr";
}

void gms_up_options_default(struct gms_up_options *ret_options)
{
    set_defaults(ret_options);
    find_programs(ret_options);
}

void gms_up_options_parse(int argc, char **argv, struct gms_up_options *ret_options)
{
    const struct argp argp = {options, parse, "[-- GMS-COORD-OPTION...]", help, NULL, NULL, NULL};
    set_defaults(ret_options);
    argp_program_version = "gms-up " GMS_VERSION;
    argp_err_exit_status = GMS_UP_USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, ret_options);
    find_programs(ret_options);
}
