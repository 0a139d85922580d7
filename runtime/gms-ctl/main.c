/* SPDX-License-Identifier: Apache-2.0
 * gms-ctl: what an operator asks and tells the coordinators of one node. */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/run_dir.h"
#include "base/units.h"
#include "core/ballot.h"
#include "gms-ctl/answers.h"
#include "gms-ctl/control.h"
#include "gms-ctl/handover.h"
#include "gms-ctl/table.h"
#include "gms/version.h"

enum { EXIT_REFUSED = 1, EXIT_USAGE = 64, EXIT_UNREACHABLE = 69 };

/* libc looks it up by name; hidden symbols it does not see. */
__attribute__((visibility("default"))) const char *argp_program_version = "gms-ctl " GMS_VERSION;

enum { UPKEEP_BYTES = 512 };
enum { KEY_JSON = 256, KEY_WATCH, KEY_TIMEOUT, KEY_LEVEL, KEY_DESTINATION };

static const char doc[] =
    "Asks and tells the coordinators of one node.\v"
    "Commands:\n"
    "  status            who serves, what is wrong, engines, ranks, pools, the last\n"
    "                    takeover\n"
    "  serving           endpoint of the engine that serves, or served last;\n"
    "                    needs no coordinator\n"
    "  wait up           until every coordinator rank answers\n"
    "  wait serving      and an engine serves on all ranks\n"
    "  wait standby      and a shadow is parked on all ranks\n"
    "  takeover ENGINE   condemn ENGINE; a parked shadow takes over\n"
    "  drain ENGINE      the same, only if a shadow is parked, and waits until it\n"
    "                    serves; nothing to do if ENGINE does not serve\n"
    "  park ENGINE       out of service, until it is a parked shadow: one that serves\n"
    "                    is asked to hand over and end, and is waited for until it, or\n"
    "                    one in its place, is started again and parked; one that warms\n"
    "                    up is waited for\n"
    "  wake ENGINE       into service: this parked shadow takes over from the engine\n"
    "                    that serves, which is condemned\n"
    "  env ENGINE        the agreed variables of ENGINE on each rank here, unusual\n"
    "                    bytes as \\xNN\n"
    "  log ENGINE        what ENGINE said last, if gms-up started it\n"
    "  down              planned stop of the coordinators; engines keep serving,\n"
    "                    and the next start goes on with them\n"
    "\n"
    "Examples:\n"
    "  gms-ctl -d /run/user/0/gms wait standby --timeout 2min\n"
    "  gms-ctl -d /run/user/0/gms status --watch\n"
    "  gms-ctl -d /run/user/0/gms --rank 0 status --json | jq .epoch\n"
    "\n"
    "Exit codes: 0 done; 1 refused, or not done within --timeout; 64 usage; 69 a coordinator that was asked does not "
    "answer.";

static const struct argp_option option_table[] = {
    {"run-dir", 'd', "DIR", 0, "The deployment's run directory (default: $GMS_RUN_DIR)", 0},
    {"rank", 'r', "R", 0, "Ask this rank only (default: status: all on this node; else the lowest that answers)", 0},
    {"json", KEY_JSON, NULL, 0,
     "status: the document of --rank as received, or an array with one entry per rank; serving: the whole record", 0},
    {"watch", KEY_WATCH, "TIME", OPTION_ARG_OPTIONAL, "status: again and again, every TIME (default 1s)", 0},
    {"timeout", KEY_TIMEOUT, "TIME", 0,
     "For one answer (default 5s); down, drain: until they are gone (default 30s); wait, wake: until the goal "
     "(default 60s); park: until it is parked (default 10min)",
     0},
    {"log-level", KEY_LEVEL, "LEVEL", 0, "error, warning, notice (default), info, debug", 0},
    {"log-destination", KEY_DESTINATION, "WHERE", 0, "stderr (default), file:PATH or journald", 0},
    {0},
};

struct options {
    const char *run_dir, *log_destination;
    const char *words[2];
    int word_count;
    int64_t rank; /* -1: not given */
    bool json;
    uint64_t watch_ns, timeout_ns; /* 0: not given */
    enum gms_log_level log_level;
};

static bool parse_number(const char *text, uint32_t limit, uint32_t *ret_value)
{
    uint64_t value = 0;

    if (*text == '\0' || strlen(text) > 9 || strspn(text, "0123456789") != strlen(text)) {
        return false;
    }
    value = strtoull(text, NULL, 10);
    if (value > limit) {
        return false;
    }
    *ret_value = (uint32_t)value;
    return true;
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct options *options = state->input;
    struct gms_error error;
    uint32_t number = 0;

    switch (key) {
    case 'd':
        options->run_dir = text;
        return 0;
    case 'r':
        if (!parse_number(text, GMS_MAX_RANKS - 1, &number)) {
            argp_error(state, "--rank %s: a number from 0 to %d", text, GMS_MAX_RANKS - 1);
        }
        options->rank = number;
        return 0;
    case KEY_JSON:
        options->json = true;
        return 0;
    case KEY_WATCH:
        options->watch_ns = GMS_NS_PER_S;
        if (text != NULL && gms_parse_duration(text, &options->watch_ns, &error) != GMS_OK) {
            argp_error(state, "--watch: %s", error.text);
        }
        if (options->watch_ns < 50 * GMS_NS_PER_MS) {
            argp_error(state, "--watch: at least 50ms");
        }
        return 0;
    case KEY_TIMEOUT:
        if (gms_parse_duration(text, &options->timeout_ns, &error) != GMS_OK) {
            argp_error(state, "--timeout: %s", error.text);
        }
        if (options->timeout_ns == 0 || options->timeout_ns > 24 * 3600 * GMS_NS_PER_S) {
            argp_error(state, "--timeout: more than 0, at most 24h");
        }
        return 0;
    case KEY_LEVEL:
        if (gms_log_level_parse(text, &options->log_level, &error) != GMS_OK) {
            argp_error(state, "--log-level: %s", error.text);
        }
        return 0;
    case KEY_DESTINATION:
        options->log_destination = text;
        return 0;
    case ARGP_KEY_ARG:
        if (options->word_count == 2) {
            argp_error(state, "'%s' is one word too many", text);
        }
        options->words[options->word_count++] = text;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* What broke tells whom to ask: nobody there, or somebody who said no. */
static int exit_code_of(gms_status status)
{
    return status == GMS_E_NOT_FOUND || status == GMS_E_TIMEOUT || status == GMS_E_DISCONNECTED ? EXIT_UNREACHABLE
                                                                                                : EXIT_REFUSED;
}

static int complain(gms_status status, const struct gms_error *error)
{
    gms_log(GMS_LOG_ERROR, "%s", error->text);
    return exit_code_of(status);
}

static uint64_t timeout_or(const struct options *options, uint64_t seconds)
{
    return options->timeout_ns != 0 ? options->timeout_ns : seconds * GMS_NS_PER_S;
}

/* The ranks a command is about: --rank, or all that have a socket here. *ret_ranks is the caller's to free. */
static gms_status pick_ranks(const struct options *options, uint32_t **ret_ranks, size_t *ret_count,
                             struct gms_error *ret_error)
{
    if (options->rank < 0) {
        return gms_control_find_ranks(options->run_dir, ret_ranks, ret_count, ret_error);
    }
    *ret_ranks = malloc(sizeof **ret_ranks);
    if (*ret_ranks == NULL) {
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "out of memory");
    }
    **ret_ranks = (uint32_t)options->rank;
    *ret_count = 1;
    return GMS_OK;
}

/* -------------------------------------------------------------------------------------------------- status ---- */

static void write_json(const struct options *options, const struct gms_answers *answers)
{
    if (options->rank >= 0) {
        if (answers->items[0].raw != NULL) {
            printf("%s\n", answers->items[0].raw);
        }
        return;
    }
    printf("[");
    for (size_t i = 0; i < answers->count; i++) {
        const struct gms_answer *answer = &answers->items[i];

        printf("%s", i == 0 ? "" : ",\n ");
        if (answer->document != NULL) {
            fputs(answer->raw, stdout);
        } else {
            json_t *gone = json_pack("{s:I,s:s}", "rank", (json_int_t)answer->rank, "unreachable", answer->error.text);
            char *text = gone == NULL ? NULL : json_dumps(gone, JSON_COMPACT);

            printf("%s", text != NULL ? text : "null");
            free(text);
            json_decref(gone);
        }
    }
    printf("]\n");
}

/* What gms-up wrote about engines that do not start; "" for nothing. */
static void read_upkeep(const struct options *options, char ret_text[UPKEEP_BYTES])
{
    char path[GMS_RUN_PATH_BYTES];
    int fd = -1;
    ssize_t length = 0;

    if (gms_run_dir_path(options->run_dir, "upkeep", -1, path, NULL) == GMS_OK) {
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    }
    if (fd >= 0) {
        length = read(fd, ret_text, UPKEEP_BYTES - 1);
        gms_fd_close(&fd);
    }
    ret_text[length > 0 ? length : 0] = '\0';
}

static void write_table(const struct options *options, const struct gms_answers *answers, bool color)
{
    struct gms_rank_status *rows = calloc(answers->count, sizeof *rows);
    char upkeep[UPKEEP_BYTES];

    if (rows == NULL) {
        gms_log(GMS_LOG_ERROR, "no memory for %zu ranks", answers->count);
        return;
    }
    for (size_t i = 0; i < answers->count; i++) {
        const struct gms_answer *answer = &answers->items[i];

        rows[i] =
            (struct gms_rank_status){.rank = answer->rank, .document = answer->document, .why = answer->error.text};
    }
    read_upkeep(options, upkeep);
    gms_table_write(stdout, rows, answers->count, upkeep, color);
    free(rows);
}

static int show_status(const struct options *options, bool color)
{
    struct gms_error error;
    struct gms_answers answers;
    int exit_code = 0;
    gms_status status = gms_answers_collect(options->run_dir, options->rank, timeout_or(options, 5), &answers, &error);

    if (status != GMS_OK) {
        return complain(status, &error);
    }
    for (size_t i = 0; i < answers.count; i++) {
        const struct gms_answer *answer = &answers.items[i];

        if (answer->document == NULL) {
            exit_code = exit_code_of(answer->status) > exit_code ? exit_code_of(answer->status) : exit_code;
            if (options->json) {
                gms_log(GMS_LOG_ERROR, "rank %u: %s", answer->rank, answer->error.text);
            }
        }
    }
    if (options->json) {
        write_json(options, &answers);
    } else {
        write_table(options, &answers, color);
    }
    gms_answers_free(&answers);
    return exit_code;
}

static int status_command(const struct options *options)
{
    bool terminal = isatty(STDOUT_FILENO);
    int exit_code;

    for (;;) {
        uint64_t next_ns = gms_clock_ns() + options->watch_ns;

        if (options->watch_ns != 0 && terminal && !options->json) {
            printf("\033[H\033[2J");
        }
        exit_code = show_status(options, terminal);
        if (options->watch_ns != 0 && !terminal && !options->json) {
            printf("\n");
        }
        if (fflush(stdout) != 0) {
            gms_log(GMS_LOG_ERROR, "cannot write the status: %s", strerror(errno));
            return EXIT_REFUSED;
        }
        if (options->watch_ns == 0) {
            return exit_code;
        }
        poll(NULL, 0, gms_clock_poll_ms(next_ns));
    }
}

/* ---------------------------------------------------------------------------------------------------- wait ---- */

static bool parse_goal(const char *text, enum gms_goal *ret_goal)
{
    static const char *const names[] = {
        [GMS_GOAL_UP] = "up", [GMS_GOAL_SERVING] = "serving", [GMS_GOAL_STANDBY] = "standby"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(text, names[i]) == 0) {
            *ret_goal = (enum gms_goal)i;
            return true;
        }
    }
    return false;
}

/* Asks ten times a second; says what it waits for after a second, when that changes, and else ever more rarely. */
static int wait_command(const struct options *options, enum gms_goal goal)
{
    uint64_t started_ns = gms_clock_ns(), deadline_ns = started_ns + timeout_or(options, 60);
    uint64_t pause_ns = GMS_NS_PER_S, say_ns = started_ns + pause_ns;
    char missing[GMS_MISSING_BYTES], said[GMS_MISSING_BYTES] = "", waited[64];

    for (;;) {
        uint64_t now_ns = gms_clock_ns(), left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : GMS_NS_PER_MS;
        struct gms_answers answers = {0};
        struct gms_error error;
        int reached = 0;
        gms_status status = gms_answers_collect(
            options->run_dir, -1, left_ns < 5 * GMS_NS_PER_S ? left_ns : 5 * GMS_NS_PER_S, &answers, &error);

        if (status == GMS_OK) {
            reached = gms_answers_reach(&answers, goal, missing);
            gms_answers_free(&answers);
        } else if (status == GMS_E_NOT_FOUND) { /* not yet */
            snprintf(missing, sizeof missing, "%s", error.text);
        } else {
            return complain(status, &error);
        }
        now_ns = gms_clock_ns();
        gms_format_duration(now_ns - started_ns, waited, sizeof waited);
        if (reached) {
            printf("%s\n", missing);
            return 0;
        }
        if (now_ns >= deadline_ns) {
            gms_log(GMS_LOG_ERROR, "not reached within %s: %s", waited, missing);
            return EXIT_REFUSED;
        }
        if (now_ns >= say_ns || (said[0] != '\0' && strcmp(said, missing) != 0)) {
            fprintf(stderr, "gms-ctl: waiting (%s): %s\n", waited, missing);
            memcpy(said, missing, sizeof said);
            say_ns = now_ns + pause_ns;
            pause_ns = pause_ns < 8 * GMS_NS_PER_S ? 2 * pause_ns : 10 * GMS_NS_PER_S;
        }
        now_ns += 100 * GMS_NS_PER_MS;
        poll(NULL, 0, gms_clock_poll_ms(now_ns < deadline_ns ? now_ns : deadline_ns));
    }
}

/* ------------------------------------------------------------------------------------------------- serving ---- */

static int serving_command(const struct options *options)
{
    char path[GMS_RUN_PATH_BYTES];
    struct gms_error error;
    json_error_t where;
    json_t *record;
    const char *endpoint;
    int exit_code = 0;
    gms_status status = gms_run_dir_path(options->run_dir, "serving", -1, path, &error);

    if (status != GMS_OK) {
        return complain(status, &error);
    }
    record = json_load_file(path, 0, &where);
    if (record == NULL) {
        if (access(path, F_OK) != 0 && errno == ENOENT) {
            gms_log(GMS_LOG_ERROR, "nobody has served yet: there is no %s", path);
        } else {
            gms_log(GMS_LOG_ERROR, "%s cannot be read: %s", path, where.text);
        }
        return EXIT_REFUSED;
    }
    endpoint = json_string_value(json_object_get(record, "endpoint"));
    if (options->json) {
        json_dumpf(record, stdout, JSON_COMPACT);
        printf("\n");
    } else if (endpoint != NULL && *endpoint != '\0') {
        printf("%s\n", endpoint);
    } else {
        gms_log(GMS_LOG_ERROR, "nobody serves now (%s names no endpoint)", path);
        exit_code = EXIT_REFUSED;
    }
    json_decref(record);
    return exit_code;
}

/* ---------------------------------------------------------------------------------------- takeover and down --- */

/* Connects to the first of `ranks` that answers. */
static gms_status open_any(const struct options *options, const uint32_t *ranks, size_t count,
                           struct gms_control *ret_control, struct gms_error *ret_error)
{
    gms_status status = GMS_E_NOT_FOUND;

    for (size_t i = 0; i < count; i++) {
        status = gms_control_open(options->run_dir, ranks[i], timeout_or(options, 5), ret_control, ret_error);
        if (status == GMS_OK) {
            return GMS_OK;
        }
    }
    return status;
}

/* One rank's list, a line each. */
static void write_variables(uint32_t rank, const struct gms_bytes *variables)
{
    const char *bytes = variables->data;

    printf("# rank %u\n", rank);
    for (size_t i = 0; i < variables->length; i++) {
        unsigned char byte = (unsigned char)bytes[i];

        if (byte == '\0') {
            putchar('\n');
        } else if (byte < 0x20 || byte == 0x7f || byte == '\\') {
            printf("\\x%02x", byte);
        } else {
            putchar(byte);
        }
    }
}

static int env_command(const struct options *options, uint32_t engine)
{
    struct gms_error error;
    uint32_t *ranks;
    size_t count;
    int exit_code = 0;
    gms_status status = pick_ranks(options, &ranks, &count, &error);

    if (status != GMS_OK) {
        return complain(status, &error);
    }
    for (size_t i = 0; i < count; i++) {
        struct gms_message request = {.type = GMS_MESSAGE_ENVIRONMENT, .plain.incarnation = engine}, reply;
        struct gms_control control;

        status = gms_control_open(options->run_dir, ranks[i], timeout_or(options, 5), &control, &error);
        if (status == GMS_OK) {
            status = gms_control_ask(&control, &request, GMS_MESSAGE_ENVIRONMENT_REPLY, timeout_or(options, 5), &reply,
                                     &error);
            if (status == GMS_OK) {
                write_variables(ranks[i], &reply.environment_reply.variables);
            }
            gms_control_close(&control);
        }
        if (status != GMS_OK) {
            exit_code = complain(status, &error);
        }
    }
    free(ranks);
    return exit_code;
}

static int log_command(const struct options *options, uint32_t engine)
{
    enum { TAIL_BYTES = 64 * 1024 };
    static char tail[TAIL_BYTES];
    char path[GMS_RUN_PATH_BYTES], name[32];
    struct gms_error error;
    ssize_t length;
    off_t end;
    int fd;
    gms_status status;

    snprintf(name, sizeof name, "engine.%u.log", engine);
    status = gms_run_dir_path(options->run_dir, name, -1, path, &error);
    if (status != GMS_OK) {
        return complain(status, &error);
    }
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        gms_log(GMS_LOG_ERROR, "%s: %s; engines that gms-up did not start have their output elsewhere", path,
                strerror(errno));
        return EXIT_REFUSED;
    }
    end = lseek(fd, 0, SEEK_END);
    length = pread(fd, tail, sizeof tail, end > TAIL_BYTES ? end - TAIL_BYTES : 0);
    gms_fd_close(&fd);
    if (length > 0) {
        fwrite(tail, 1, (size_t)length, stdout);
    }
    return 0;
}

static int takeover_command(const struct options *options, uint32_t engine)
{
    struct gms_message request = {.type = GMS_MESSAGE_TAKEOVER}, reply;
    struct gms_control control;
    struct gms_error error;
    uint32_t *ranks;
    size_t count;
    gms_status status = pick_ranks(options, &ranks, &count, &error);

    if (status != GMS_OK) {
        return complain(status, &error);
    }
    status = open_any(options, ranks, count, &control, &error);
    free(ranks);
    if (status != GMS_OK) {
        return complain(status, &error);
    }
    request.takeover.engine_id = engine;
    status = gms_control_ask(&control, &request, GMS_MESSAGE_REPLY, timeout_or(options, 5), &reply, &error);
    gms_control_close(&control);
    if (status == GMS_E_NOT_FOUND) { /* the coordinator's answer: it was reached */
        gms_log(GMS_LOG_ERROR, "%s", error.text);
        return EXIT_REFUSED;
    }
    if (status != GMS_OK) {
        return complain(status, &error);
    }
    printf("engine %u is told to end; see: gms-ctl status\n", engine);
    return 0;
}

/* Who serves on all ranks here, and is a shadow parked? */
static gms_status look_at_group(const struct options *options, int64_t *ret_serving, bool *ret_shadow,
                                struct gms_error *ret_error)
{
    struct gms_answers answers;
    char missing[GMS_MISSING_BYTES];
    gms_status status = gms_answers_collect(options->run_dir, -1, 5 * GMS_NS_PER_S, &answers, ret_error);

    if (status != GMS_OK) {
        return status;
    }
    *ret_serving = -1;
    *ret_shadow = gms_answers_reach(&answers, GMS_GOAL_STANDBY, missing) != 0;
    if (gms_answers_reach(&answers, GMS_GOAL_SERVING, missing) != 0) {
        *ret_serving = (int64_t)json_integer_value(json_object_get(answers.items[0].document, "serving_engine"));
    } else {
        gms_fail(ret_error, GMS_E_NOT_FOUND, "%s", missing);
    }
    gms_answers_free(&answers);
    return GMS_OK;
}

static int drain_command(const struct options *options, uint32_t engine)
{
    uint64_t deadline_ns = gms_clock_ns() + timeout_or(options, 30), say_ns = gms_clock_ns() + GMS_NS_PER_S;
    struct gms_error error = {.status = GMS_OK};
    int64_t serving = -1;
    bool shadow = false;
    int exit_code;
    gms_status status = look_at_group(options, &serving, &shadow, &error);

    if (status != GMS_OK) {
        return complain(status, &error);
    }
    if (serving != (int64_t)engine) {
        printf("engine %u does not serve\n", engine);
        return 0;
    }
    if (!shadow) {
        gms_log(GMS_LOG_ERROR,
                "no shadow is parked: nobody would serve after engine %u; gms-ctl takeover ends it anyway", engine);
        return EXIT_REFUSED;
    }
    exit_code = takeover_command(options, engine);
    while (exit_code == 0) {
        status = look_at_group(options, &serving, &shadow, &error);
        if (status == GMS_OK && serving >= 0 && serving != (int64_t)engine) {
            printf("engine %" PRId64 " serves\n", serving);
            return 0;
        }
        if (gms_clock_ns() >= deadline_ns) {
            gms_log(GMS_LOG_ERROR, "no other engine serves yet: %s", error.text);
            return EXIT_REFUSED;
        }
        if (gms_clock_ns() >= say_ns) {
            fprintf(stderr, "gms-ctl: waiting for the successor of engine %u\n", engine);
            say_ns += GMS_NS_PER_S;
        }
        poll(NULL, 0, 50);
    }
    return exit_code;
}

static int hand_over(const struct options *options, uint32_t engine, uint64_t seconds,
                     gms_status (*run)(const char *, uint32_t, uint64_t, char *, struct gms_error *))
{
    char text[256];
    struct gms_error error;
    gms_status status = run(options->run_dir, engine, gms_clock_ns() + timeout_or(options, seconds), text, &error);

    if (status != GMS_OK) {
        return complain(status, &error);
    }
    printf("%s\n", text);
    return 0;
}

static int park_command(const struct options *options, uint32_t engine)
{
    return hand_over(options, engine, 600, gms_handover_park);
}

static int wake_command(const struct options *options, uint32_t engine)
{
    return hand_over(options, engine, 60, gms_handover_wake);
}

/* Holds a connection to every rank here, tells one, and waits until all connections have ended. */
static int down_command(const struct options *options)
{
    struct gms_message request = {.type = GMS_MESSAGE_SHUTDOWN}, reply;
    uint64_t started_ns = gms_clock_ns();
    uint64_t deadline_ns = started_ns + timeout_or(options, 30);
    struct gms_control *controls;
    struct gms_error error;
    uint32_t *ranks;
    size_t count, open = 0, gone = 0;
    gms_status status = gms_control_find_ranks(options->run_dir, &ranks, &count, &error);

    if (status != GMS_OK) {
        return complain(status, &error);
    }
    controls = calloc(count, sizeof *controls);
    if (controls == NULL) {
        free(ranks);
        gms_log(GMS_LOG_ERROR, "no memory for %zu ranks", count);
        return EXIT_REFUSED;
    }
    for (size_t i = 0; i < count; i++) {
        status = gms_control_open(options->run_dir, ranks[i], 5 * GMS_NS_PER_S, &controls[open], &error);
        if (status == GMS_OK) {
            open++;
        } else {
            gms_log(GMS_LOG_WARNING, "rank %u: %s", ranks[i], error.text);
        }
    }
    if (open == 0) {
        status = GMS_E_DISCONNECTED;
        gms_fail(&error, status, "no coordinator answers in %.200s: nothing to stop", options->run_dir);
    } else {
        size_t told = 0;

        for (size_t i = 0; i < open; i++) { /* any rank will do; --rank picks one */
            told = options->rank >= 0 && controls[i].rank == (uint32_t)options->rank ? i : told;
        }
        status = gms_control_ask(&controls[told], &request, GMS_MESSAGE_REPLY, 5 * GMS_NS_PER_S, &reply, &error);
        if (status == GMS_E_DISCONNECTED) {
            status = GMS_OK; /* it ended before its answer could leave */
        }
    }
    while (status == GMS_OK && gone < open) {
        uint64_t look_ns = gms_clock_ns() + GMS_NS_PER_S;

        status = gms_control_wait_end(&controls[gone], look_ns < deadline_ns ? look_ns : deadline_ns, &error);
        if (status == GMS_OK) {
            gone++;
        } else if (status == GMS_E_TIMEOUT && gms_clock_ns() < deadline_ns) {
            char waited[64];

            fprintf(stderr, "gms-ctl: %zu of %zu coordinators are gone, waiting for rank %u (%s)\n", gone, open,
                    controls[gone].rank, gms_format_duration(gms_clock_ns() - started_ns, waited, sizeof waited));
            status = GMS_OK;
        } else if (status == GMS_E_TIMEOUT) {
            gms_fail(&error, GMS_E_REFUSED, "rank %u still runs after --timeout; %zu of %zu are gone",
                     controls[gone].rank, gone, open);
            status = GMS_E_REFUSED;
        }
    }
    for (size_t i = 0; i < open; i++) {
        gms_control_close(&controls[i]);
    }
    free(controls);
    free(ranks);
    if (status != GMS_OK) {
        return complain(status, &error);
    }
    printf("%zu coordinators have stopped; engines that run go on, and no fault of theirs is handled until the next "
           "start, which goes on with them\n",
           open);
    return 0;
}

/* ---------------------------------------------------------------------------------------------------- main ---- */

static int usage_error(const char *text)
{
    fprintf(stderr, "gms-ctl: %s\nTry 'gms-ctl --help'.\n", text);
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    static const struct argp parser = {
        option_table,
        parse_option,
        "status | serving | wait GOAL | takeover ENGINE | drain ENGINE | park ENGINE | wake ENGINE | env ENGINE |\n"
        "log ENGINE | down",
        doc,
        NULL,
        NULL,
        NULL};
    struct options options = {.rank = -1, .log_destination = "stderr", .log_level = GMS_LOG_NOTICE};
    struct gms_error error;
    enum gms_goal goal;
    uint32_t engine;

    gms_signals_reset();
    argp_err_exit_status = EXIT_USAGE;
    argp_parse(&parser, argc, argv, 0, NULL, &options);
    if (options.run_dir == NULL) {
        options.run_dir = getenv("GMS_RUN_DIR");
    }
    if (options.word_count == 0) {
        return usage_error(
            "no command: one of status, serving, wait GOAL, takeover, drain, park, wake, env or log ENGINE, down");
    }
    if (options.run_dir == NULL || *options.run_dir == '\0') {
        return usage_error("no run directory: give --run-dir DIR or set GMS_RUN_DIR");
    }
    if (gms_log_open("gms-ctl", options.log_destination, options.log_level, &error) != GMS_OK) {
        return usage_error(error.text);
    }
    if (strcmp(options.words[0], "takeover") == 0) {
        if (options.word_count != 2 || !parse_number(options.words[1], GMS_MAX_ENGINES - 1, &engine)) {
            return usage_error("takeover ENGINE: which engine is to end, a number from 0 to 7");
        }
        return takeover_command(&options, engine);
    }
    if (strcmp(options.words[0], "wait") == 0) {
        if (options.word_count != 2 || !parse_goal(options.words[1], &goal)) {
            return usage_error("wait GOAL: what to wait for, one of up, serving, standby");
        }
        return wait_command(&options, goal);
    }
    static const struct {
        const char *word;
        int (*run)(const struct options *options, uint32_t engine);
    } about_engines[] = {{"drain", drain_command},
                         {"park", park_command},
                         {"wake", wake_command},
                         {"env", env_command},
                         {"log", log_command}};
    for (size_t i = 0; i < sizeof about_engines / sizeof about_engines[0]; i++) {
        if (strcmp(options.words[0], about_engines[i].word) != 0) {
            continue;
        }
        if (options.word_count != 2 || !parse_number(options.words[1], GMS_MAX_ENGINES - 1, &engine)) {
            return usage_error("drain, park, wake, env and log ENGINE: which engine, a number from 0 to 7");
        }
        return about_engines[i].run(&options, engine);
    }
    if (options.word_count != 1) {
        return usage_error("only takeover, drain, park, wake, env, log and wait take an argument");
    }
    if (strcmp(options.words[0], "status") == 0) {
        return status_command(&options);
    }
    if (strcmp(options.words[0], "serving") == 0) {
        return serving_command(&options);
    }
    if (strcmp(options.words[0], "down") == 0) {
        return down_command(&options);
    }
    return usage_error(
        "unknown command: one of status, serving, wait GOAL, takeover, drain, park, wake, env or log ENGINE, down");
}
