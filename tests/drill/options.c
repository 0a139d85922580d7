/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <argp.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "catalogue.h"
#include "gms/version.h"

enum option_key {
    KEY_CONFIG = 'c',
    KEY_RANKS = 'n',
    KEY_STREAMS = 's',
    KEY_VERBOSE = 'v',
    KEY_ENGINES = 256,
    KEY_PROMPTS,
    KEY_MAX_TOKENS,
    KEY_TEMPERATURE,
    KEY_SEED,
    KEY_EXACT,
    KEY_FAULT,
    KEY_RANK,
    KEY_WHEN,
    KEY_AFTER,
    KEY_REPEAT,
    KEY_KV_VERIFY,
    KEY_ATTACH,
    KEY_LOG_DIR,
    KEY_WORK_DIR,
    KEY_BIN_DIR,
    KEY_KEEP,
    KEY_JSON,
    KEY_JUNIT,
    KEY_HTML,
    KEY_TIMEOUT,
    KEY_DRY_RUN,
    KEY_SABOTAGE,
    KEY_CATALOGUE,
    KEY_LIST,
    KEY_COMPARE,
    KEY_AGAINST,
    KEY_YES,
    KEY_SOAK,
    KEY_RATE,
    KEY_SABOTAGE_PAGES,
    KEY_SABOTAGE_RANK,
};

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "Deployment", 1},
    {"config", KEY_CONFIG, "FILE", 0,
     "Deployment file to run; its run directory is replaced by a scratch one (default: "
     "a built-in deployment)",
     0},
    {"ranks", KEY_RANKS, "N", 0, "Ranks (default: the file's, else 2)", 0},
    {"engines", KEY_ENGINES, "N", 0, "Engines, primary included (default: 1 + repeat)", 0},
    {"kv-verify", KEY_KV_VERIFY, "full|none", 0, "Replaces the file's kv.verify", 0},
    {"attach", KEY_ATTACH, "RUN_DIR", 0,
     "Use the deployment that runs there; its engines must speak minillm's protocol; "
     "the engine then kills itself",
     0},
    {"log-dir", KEY_LOG_DIR, "DIR", 0,
     "With --attach: where the engines write their own logs (default: from an engine's command line)", 0},
    {NULL, 0, NULL, 0, "Requests", 2},
    {"streams", KEY_STREAMS, "N", 0, "Client streams (default: 8)", 0},
    {"prompts", KEY_PROMPTS, "FILE", 0, "One prompt a line (default: the 16 that come along)", 0},
    {"max-tokens", KEY_MAX_TOKENS, "N", 0, "Tokens of each stream (default: 96)", 0},
    {"temperature", KEY_TEMPERATURE, "X", 0, "0 is greedy (default: 0.9)", 0},
    {"seed", KEY_SEED, "N", 0, "Of the first stream; the others count up (default: 1)", 0},
    {"exact", KEY_EXACT, NULL, 0,
     "Fail where two undisturbed runs of the same requests differ (default: equal tokens are not claimed then)", 0},
    {NULL, 0, NULL, 0, "Fault", 3},
    {"fault", KEY_FAULT, "sigkill|NAME", 0,
     "What happens to the primary: SIGKILL as the options of this group say (the default), or --catalogue NAME", 0},
    {"rank", KEY_RANK, "N|all", 0, "To which of its ranks (default: 0)", 0},
    {"when", KEY_WHEN, "any|prefill|decode|seal", 0, "In the middle of what (default: any, from outside)", 0},
    {"after", KEY_AFTER, "TOKENS", 0, "Tokens of all streams together before each fault (default: spread evenly)", 0},
    {"repeat", KEY_REPEAT, "N", 0, "Failovers in a row (default: 1)", 0},
    {NULL, 0, NULL, 0, "Catalogue", 4},
    {"catalogue", KEY_CATALOGUE, "NAME,...|short|all", 0,
     "Carry out these faults, each under load, in deployments that they share; --repeat is for all of them", 0},
    {"list", KEY_LIST, NULL, 0, "Show the catalogue and stop; with --json FILE also there (- for here only)", 0},
    {"compare", KEY_COMPARE, NULL, 0,
     "Kill a rank --repeat times with gms-failover, with a standby that looks at a file lock every 100 ms, and with a "
     "cold "
     "restart, and put them side by side; alone, or after --catalogue",
     0},
    {"soak", KEY_SOAK, "DURATION", 0, "Draw from these faults for so long, as in 8h; the seed tells which and when", 0},
    {"against", KEY_AGAINST, "RUN_DIR", 0,
     "Carry them out on the deployment that runs there (default: sigkill-rank), after showing it and asking; the "
     "faults are "
     "real, and a takeover uses up a parked engine",
     0},
    {"yes", KEY_YES, NULL, 0, "With --against: do not ask", 0},
    {"rate", KEY_RATE, "N", 0, "At most so many new requests a second (default: as soon as one has ended)", 0},
    {NULL, 0, NULL, 0, "Output", 5},
    {"json", KEY_JSON, "FILE", 0, "Write the results there too, format in tests/drill/README.md", 0},
    {"junit", KEY_JUNIT, "FILE", 0, "And as JUnit XML", 0},
    {"html", KEY_HTML, "FILE", 0, "And as a page that anybody can read, whole in one file", 0},
    {"work-dir", KEY_WORK_DIR, "DIR", 0, "Scratch space, must not exist or be empty (default: a new one under TMPDIR)",
     0},
    {"keep", KEY_KEEP, NULL, 0, "Keep the scratch space; a failed drill keeps it anyway", 0},
    {"verbose", KEY_VERBOSE, NULL, 0, "Say more while running", 0},
    {"dry-run", KEY_DRY_RUN, NULL, 0, "Print the plan and stop", 0},
    {"timeout", KEY_TIMEOUT, "SECONDS", 0, "Limit of each single wait (default: 60)", 0},
    {"bin-dir", KEY_BIN_DIR, "DIR", 0, "Where the programs are (default: beside this one)", 0},
    {NULL, 0, NULL, 0, "Negative controls: damage done on purpose between death and adoption", 6},
    {"sabotage", KEY_SABOTAGE, "poison-page|flip-record|none-adopted|each", 0,
     "Kind of damage; with --catalogue: each row's own (see --list), and every row must fail", 0},
    {"sabotage-pages", KEY_SABOTAGE_PAGES, "N", 0,
     "Pages to poison, each of another stream while there are (default: 1)", 0},
    {"sabotage-rank", KEY_SABOTAGE_RANK, "N", 0, "Whose memory (default: the last rank's)", 0},
    {0}};

static const char description[] =
    "Kills ranks of a serving tensor-parallel engine and shows whether a parked shadow takes over with the same tokens."
    "\v"
    "A drill starts a deployment, streams the prompts once undisturbed (the control run) and once with the fault, and "
    "compares the two token by token. ENGINE-COMMAND, after --, replaces the deployment file's engine.command.\n\n"
    "It fails when any stream differs from the control run, a request failed, fewer blocks were adopted than were "
    "sealed "
    "on all ranks, nothing was adopted, two engines overlapped by their own logs, ranks disagree, the owner of the "
    "endpoint is not proven to be the serving engine, or a wait ran out. No launcher's exit status overrides that.\n\n"
    "Examples:\n"
    "  gms-failover-test --repeat 3 --rank 1\n"
    "  gms-failover-test --ranks 4 --rank all --when seal --json drill.json\n"
    "  gms-failover-test --config my.cfg --dry-run\n\n"
    "Exit codes: 0 passed, 1 failed, 2 could not run, 64 usage.";

struct parse {
    struct drill_plan *plan;
    struct gms_error *error;
    gms_status status;
};

static gms_status set_path(const char *option, const char *text, char *path, struct gms_error *ret_error)
{
    if (text[0] == '\0' || strlen(text) >= DRILL_PATH_BYTES)
        return gms_fail(ret_error, GMS_E_INVALID, "--%s: a path of %zu bytes; 1 to %d are possible", option,
                        strlen(text), DRILL_PATH_BYTES - 1);
    memcpy(path, text, strlen(text) + 1);
    return GMS_OK;
}

static gms_status set_number(const char *option, const char *text, uint32_t least, uint32_t greatest,
                             uint32_t *ret_value, struct gms_error *ret_error)
{
    uint64_t value;
    gms_status status = drill_number_parse(option, text, least, greatest, &value, ret_error);
    if (status == GMS_OK)
        *ret_value = (uint32_t)value;
    return status;
}

static gms_status set_temperature(const char *text, double *ret_value, struct gms_error *ret_error)
{
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value) || value < 0 || value > 100)
        return gms_fail(ret_error, GMS_E_INVALID, "--temperature %s: give a number from 0 to 100", text);
    *ret_value = value;
    return GMS_OK;
}

static gms_status set_rate(const char *text, double *ret_value, struct gms_error *ret_error)
{
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value) || value <= 0 || value > 1e6)
        return gms_fail(ret_error, GMS_E_INVALID, "--rate %s: give a number above 0, up to 1000000", text);
    *ret_value = value;
    return GMS_OK;
}

static gms_status set(struct drill_plan *plan, enum option_key key, const char *text, struct gms_error *error)
{
    uint32_t number;
    gms_status status;
    switch (key) {
    case KEY_CONFIG:
        return set_path("config", text, plan->config, error);
    case KEY_ATTACH:
        return set_path("attach", text, plan->attach, error);
    case KEY_LOG_DIR:
        return set_path("log-dir", text, plan->log_dir, error);
    case KEY_WORK_DIR:
        return set_path("work-dir", text, plan->work_dir, error);
    case KEY_BIN_DIR:
        return set_path("bin-dir", text, plan->bin_dir, error);
    case KEY_PROMPTS:
        return set_path("prompts", text, plan->prompts, error);
    case KEY_JSON:
        return set_path("json", text, plan->json, error);
    case KEY_JUNIT:
        return set_path("junit", text, plan->junit, error);
    case KEY_HTML:
        return set_path("html", text, plan->html, error);
    case KEY_RANKS:
        return set_number("ranks", text, 1, DRILL_MAX_RANKS, &plan->ranks, error);
    case KEY_ENGINES:
        return set_number("engines", text, 2, DRILL_MAX_ENGINES, &plan->engines, error);
    case KEY_STREAMS:
        return set_number("streams", text, 1, DRILL_MAX_STREAMS, &plan->streams, error);
    case KEY_MAX_TOKENS:
        return set_number("max-tokens", text, 1, DRILL_MAX_TOKENS, &plan->max_tokens, error);
    case KEY_REPEAT:
        return set_number("repeat", text, 1, DRILL_MAX_REPEAT, &plan->repeat, error);
    case KEY_AFTER:
        return set_number("after", text, 1, DRILL_MAX_STREAMS * DRILL_MAX_TOKENS, &plan->after_tokens, error);
    case KEY_TIMEOUT:
        return set_number("timeout", text, 1, 3600, &plan->timeout_s, error);
    case KEY_SABOTAGE_PAGES:
        return set_number("sabotage-pages", text, 1, DRILL_MAX_STREAMS, &plan->sabotage_pages, error);
    case KEY_SABOTAGE_RANK:
        status = set_number("sabotage-rank", text, 0, DRILL_MAX_RANKS - 1, &number, error);
        if (status == GMS_OK)
            plan->sabotage_rank = (int32_t)number;
        return status;
    case KEY_SEED: /* JSON readers keep integers up to 2^53 exactly; streams count up from here */
        return drill_number_parse("seed", text, 0, UINT64_C(1) << 52, &plan->seed, error);
    case KEY_CATALOGUE:
        return drill_catalogue_choose(text, &plan->rows, error);
    case KEY_AGAINST:
        return set_path("against", text, plan->against, error);
    case KEY_YES:
        plan->agreed = true;
        return GMS_OK;
    case KEY_SOAK:
        status = gms_parse_duration(text, &plan->soak_ns, error);
        return status == GMS_OK && plan->soak_ns == 0
                   ? gms_fail(error, GMS_E_INVALID, "--soak %s: give a time, as in 30min", text)
                   : status;
    case KEY_COMPARE:
        plan->compare = true;
        return GMS_OK;
    case KEY_LIST:
        plan->list = true;
        return GMS_OK;
    case KEY_RATE:
        return set_rate(text, &plan->rate, error);
    case KEY_TEMPERATURE:
        return set_temperature(text, &plan->temperature, error);
    case KEY_FAULT:
        return strcmp(text, "sigkill") == 0 ? GMS_OK : drill_catalogue_choose(text, &plan->rows, error);
    case KEY_RANK:
        return drill_rank_parse(text, &plan->rank, error);
    case KEY_WHEN:
        return drill_when_parse(text, &plan->when, error);
    case KEY_KV_VERIFY:
        return drill_verify_parse(text, &plan->verify, error);
    case KEY_SABOTAGE:
        return drill_sabotage_parse(text, &plan->sabotage, error);
    case KEY_EXACT:
        plan->exact = true;
        return GMS_OK;
    case KEY_KEEP:
        plan->keep = true;
        return GMS_OK;
    case KEY_VERBOSE:
        plan->verbose = true;
        return GMS_OK;
    case KEY_DRY_RUN:
        plan->dry_run = true;
        return GMS_OK;
    }
    return GMS_E_UNSUPPORTED;
}

static error_t parse_one(int key, char *text, struct argp_state *state)
{
    struct parse *parse = state->input;
    if (key == ARGP_KEY_ARGS) {
        for (int i = state->next; i < state->argc; i++) {
            if (i - state->next >= DRILL_COMMAND_WORDS) {
                parse->status = gms_fail(parse->error, GMS_E_INVALID, "the engine command has more than %d words",
                                         DRILL_COMMAND_WORDS);
                return EINVAL;
            }
            parse->plan->command[i - state->next] = state->argv[i];
        }
        return 0;
    }
    if (key < 0 || (key & 0x1000000) != 0)
        return ARGP_ERR_UNKNOWN;
    gms_status status = set(parse->plan, (enum option_key)key, text, parse->error);
    if (status == GMS_E_UNSUPPORTED)
        return ARGP_ERR_UNKNOWN;
    if (status == GMS_OK)
        return 0;
    parse->status = status;
    return EINVAL;
}

gms_status drill_options_parse(int argc, char **argv, struct drill_plan *ret_plan, struct gms_error *ret_error)
{
    argp_program_version = "gms-failover-test " GMS_VERSION;
    argp_err_exit_status = DRILL_EXIT_USAGE;
    static const struct argp argp = {options, parse_one, "[-- ENGINE-COMMAND...]", description, NULL, NULL, NULL};
    struct parse parse = {.plan = ret_plan, .error = ret_error, .status = GMS_OK};
    drill_plan_defaults(ret_plan);
    error_t error = argp_parse(&argp, argc, argv, 0, NULL, &parse);
    if (parse.status != GMS_OK)
        return parse.status;
    if (error != 0)
        return gms_fail(ret_error, GMS_E_INVALID, "the command line cannot be parsed: %s", strerror(error));
    return GMS_OK;
}
