/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-ctl/options.h"

#include <argp.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/units.h"
#include "core/ballot.h"
#include "gms/version.h"

/* libc looks it up by name; hidden symbols it does not see. */
__attribute__((visibility("default"))) const char *argp_program_version = "gms-ctl " GMS_VERSION;

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
    "answer; wait: none answers, and gms-up, which ran when the wait began, has ended.";

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

bool gms_ctl_parse_number(const char *text, uint32_t limit, uint32_t *ret_value)
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
    struct gms_ctl_options *options = state->input;
    struct gms_error error;
    uint32_t number = 0;

    switch (key) {
    case 'd':
        options->run_dir = text;
        return 0;
    case 'r':
        if (!gms_ctl_parse_number(text, GMS_MAX_RANKS - 1, &number)) {
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

uint64_t gms_ctl_timeout(const struct gms_ctl_options *options, uint64_t seconds)
{
    return options->timeout_ns != 0 ? options->timeout_ns : seconds * GMS_NS_PER_S;
}

void gms_ctl_parse(int argc, char **argv, struct gms_ctl_options *ret_options)
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

    *ret_options = (struct gms_ctl_options){.rank = -1, .log_destination = "stderr", .log_level = GMS_LOG_NOTICE};
    argp_err_exit_status = GMS_CTL_USAGE;
    argp_parse(&parser, argc, argv, 0, NULL, ret_options);
    if (ret_options->run_dir == NULL) {
        ret_options->run_dir = getenv("GMS_RUN_DIR");
    }
}
