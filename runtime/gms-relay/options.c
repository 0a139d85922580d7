/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-relay/options.h"

#include <argp.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/units.h"
#include "gms/version.h"

enum { EXIT_USAGE = 64 };

__attribute__((visibility("default"))) const char *argp_program_version = "gms-relay " GMS_VERSION;

static const char doc[] =
    "One address for clients of a deployment: an OpenAI-style HTTP server that follows whichever engine serves, and "
    "continues answers on the next engine when one dies.\v"
    "It listens on loopback unless told otherwise, speaks plain HTTP and knows no users: whoever reaches its address "
    "may use the engines. Put a proxy with TLS and authentication in front of it for anything else.\n"
    "\n"
    "  gms-relay --run-dir $GMS_RUN_DIR &\n"
    "  curl -N http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\\n"
    "       -d '{\"prompt\":\"Once\",\"max_tokens\":64,\"temperature\":0,\"stream\":true}'\n"
    "\n"
    "SIGTERM: no new requests, those that run are finished within --drain; again: at once.\n"
    "\n"
    "Exit codes: 0 ended by a signal; 64 usage; 69 the address cannot be had; 71 the system refused something.";

enum {
    KEY_LISTEN = 256,
    KEY_MODEL,
    KEY_EXACT,
    KEY_WAIT,
    KEY_SILENCE,
    KEY_TOTAL,
    KEY_CRASHES,
    KEY_CRASH_WINDOW,
    KEY_CONNECTIONS,
    KEY_REQUESTS,
    KEY_STREAMS,
    KEY_TOKENS,
    KEY_BODY,
    KEY_UNSENT,
    KEY_HEAD_TIME,
    KEY_BODY_TIME,
    KEY_IDLE,
    KEY_STALL,
    KEY_DRAIN,
    KEY_LEVEL,
    KEY_DESTINATION
};

static const struct argp_option option_table[] = {
    {"run-dir", 'd', "DIR", 0, "The deployment's run directory (default: $GMS_RUN_DIR)", 1},
    {"listen", KEY_LISTEN, "HOST:PORT", 0, "Numeric address (default 127.0.0.1:8000; port 0: any, printed)", 1},
    {"model", KEY_MODEL, "NAME", 0,
     "What /v1/models says; requests for another model get 404 (default: any name is taken, \"default\" is said)", 1},
    {"exact", KEY_EXACT, "WHAT", 0,
     "What engines with an OpenAI server give the same tokens for again, whatever else they compute: none (default), "
     "greedy, seeded. minillm's protocol promises it for all",
     1},
    {"wait", KEY_WAIT, "TIME", 0, "For an engine to serve, then 503 (default 30s)", 2},
    {"silence", KEY_SILENCE, "TIME", 0, "Between two tokens of an engine, then 504 (default 60s)", 2},
    {"total", KEY_TOTAL, "TIME", 0, "For a whole request (default 10min)", 2},
    {"crashes", KEY_CRASHES, "N", 0,
     "A request that was in flight in N crashes in a row is failed and not tried again (default 2)", 2},
    {"crash-window", KEY_CRASH_WINDOW, "TIME", 0, "Crashes that are further apart are not in a row (default 1min)", 2},
    {"max-connections", KEY_CONNECTIONS, "N", 0, "More are answered 503 and closed (default 1024)", 3},
    {"max-requests", KEY_REQUESTS, "N", 0, "Running and waiting; more are answered 503 (default 512)", 3},
    {"max-streams", KEY_STREAMS, "N", 0, "Asked of an engine at once; others wait (default 240)", 3},
    {"max-tokens", KEY_TOKENS, "N", 0, "A request may ask for (default 32768)", 3},
    {"max-body", KEY_BODY, "SIZE", 0, "Of a request (default 1MiB)", 3},
    {"max-unsent", KEY_UNSENT, "SIZE", 0,
     "Of an answer that a client has not taken; beyond it its engine is not read (default 256KiB)", 3},
    {"head-time", KEY_HEAD_TIME, "TIME", 0, "For a whole request head, then 408 (default 10s)", 3},
    {"body-time", KEY_BODY_TIME, "TIME", 0, "For a whole request body, then 408 (default 30s)", 3},
    {"idle", KEY_IDLE, "TIME", 0, "A connection without a request is closed (default 60s)", 3},
    {"stall", KEY_STALL, "TIME", 0, "A client that takes nothing for so long is dropped (default 60s)", 3},
    {"drain", KEY_DRAIN, "TIME", 0, "After SIGTERM (default 30s)", 3},
    {"log-level", KEY_LEVEL, "LEVEL", 0, "error, warning, notice (default), info, debug", 4},
    {"log-destination", KEY_DESTINATION, "WHERE", 0, "stderr (default), file:PATH or journald", 4},
    {0},
};

static uint32_t number(struct argp_state *state, const char *name, const char *text, uint32_t most)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || strlen(text) > 9 || value < 1 || value > most)
        argp_error(state, "--%s %s: a number from 1 to %u", name, text, most);
    return (uint32_t)value;
}

static uint64_t duration(struct argp_state *state, const char *name, const char *text)
{
    struct gms_error error;
    uint64_t ns = 0;
    if (gms_parse_duration(text, &ns, &error) != GMS_OK)
        argp_error(state, "--%s: %s", name, error.text);
    if (ns < GMS_NS_PER_MS || ns > 24 * 3600 * GMS_NS_PER_S)
        argp_error(state, "--%s %s: 1ms to 24h", name, text);
    return ns;
}

static uint64_t size(struct argp_state *state, const char *name, const char *text, uint64_t least, uint64_t most)
{
    struct gms_error error;
    uint64_t bytes = 0;
    if (gms_parse_size(text, &bytes, &error) != GMS_OK)
        argp_error(state, "--%s: %s", name, error.text);
    if (bytes < least || bytes > most)
        argp_error(state, "--%s %s: out of range", name, text);
    return bytes;
}

/* Cuts the text in two. */
static void listen_on(struct argp_state *state, char *text, struct relay_options *options)
{
    char *colon = strrchr(text, ':');
    if (colon == NULL || colon == text || colon[1] == '\0')
        argp_error(state, "--listen %s: HOST:PORT, such as 127.0.0.1:8000 or [::1]:8000", text);
    *colon = '\0';
    options->port = colon + 1;
    if (text[0] == '[' && colon[-1] == ']') {
        colon[-1] = '\0';
        text++;
    }
    options->host = text;
}

static void parse_exact(struct argp_state *state, const char *text, struct relay_options *options)
{
    static const char *const names[] = {
        [RELAY_EXACT_NONE] = "none", [RELAY_EXACT_GREEDY] = "greedy", [RELAY_EXACT_SEEDED] = "seeded"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(text, names[i]) == 0) {
            options->exact = (enum relay_exact)i;
            return;
        }
    argp_error(state, "--exact %s: none, greedy or seeded", text);
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct relay_options *options = state->input;
    struct gms_error error;
    switch (key) {
    case 'd':
        options->run_dir = text;
        return 0;
    case KEY_LISTEN:
        listen_on(state, text, options);
        return 0;
    case KEY_MODEL:
        options->model = text;
        if (strlen(text) == 0 || strlen(text) >= 128)
            argp_error(state, "--model: 1 to 127 bytes");
        return 0;
    case KEY_EXACT:
        parse_exact(state, text, options);
        return 0;
    case KEY_WAIT:
        options->limits.wait_ns = duration(state, "wait", text);
        return 0;
    case KEY_SILENCE:
        options->limits.silence_ns = duration(state, "silence", text);
        return 0;
    case KEY_TOTAL:
        options->limits.total_ns = duration(state, "total", text);
        return 0;
    case KEY_CRASHES:
        options->limits.crash_limit = number(state, "crashes", text, 1000);
        return 0;
    case KEY_CRASH_WINDOW:
        options->limits.crash_window_ns = duration(state, "crash-window", text);
        return 0;
    case KEY_CONNECTIONS:
        options->max_connections = number(state, "max-connections", text, 100000);
        return 0;
    case KEY_REQUESTS:
        options->max_requests = number(state, "max-requests", text, 100000);
        return 0;
    case KEY_STREAMS:
        options->max_streams = number(state, "max-streams", text, 100000);
        return 0;
    case KEY_TOKENS:
        options->max_tokens = number(state, "max-tokens", text, 16 * 1024 * 1024);
        return 0;
    case KEY_BODY:
        options->max_body_bytes = size(state, "max-body", text, 1024, UINT64_C(1) << 30);
        return 0;
    case KEY_UNSENT:
        options->max_unsent_bytes = size(state, "max-unsent", text, 1024, UINT64_C(1) << 30);
        return 0;
    case KEY_HEAD_TIME:
        options->head_ns = duration(state, "head-time", text);
        return 0;
    case KEY_BODY_TIME:
        options->body_ns = duration(state, "body-time", text);
        return 0;
    case KEY_IDLE:
        options->idle_ns = duration(state, "idle", text);
        return 0;
    case KEY_STALL:
        options->stall_ns = duration(state, "stall", text);
        return 0;
    case KEY_DRAIN:
        options->drain_ns = duration(state, "drain", text);
        return 0;
    case KEY_LEVEL:
        if (gms_log_level_parse(text, &options->log_level, &error) != GMS_OK)
            argp_error(state, "--log-level: %s", error.text);
        return 0;
    case KEY_DESTINATION:
        options->log_destination = text;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one word too many", text);
        return EINVAL;
    case ARGP_KEY_END:
        if (options->run_dir == NULL || options->run_dir[0] == '\0')
            argp_error(state, "no run directory: give --run-dir DIR or set GMS_RUN_DIR");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

void relay_options_read(int argc, char **argv, struct relay_options *ret_options)
{
    static const struct argp parser = {option_table, parse_option, NULL, doc, NULL, NULL, NULL};
    *ret_options = (struct relay_options){
        .run_dir = getenv("GMS_RUN_DIR"),
        .host = "127.0.0.1",
        .port = "8000",
        .model = "",
        .log_destination = "stderr",
        .log_level = GMS_LOG_NOTICE,
        .max_connections = 1024,
        .max_requests = 512,
        .max_streams = 240, /* minillm takes 256 clients */
        .max_tokens = 32768,
        .max_body_bytes = 1024 * 1024,
        .max_unsent_bytes = 256 * 1024,
        .head_ns = 10 * GMS_NS_PER_S,
        .body_ns = 30 * GMS_NS_PER_S,
        .idle_ns = 60 * GMS_NS_PER_S,
        .stall_ns = 60 * GMS_NS_PER_S,
        .drain_ns = 30 * GMS_NS_PER_S,
        .limits = {.wait_ns = 30 * GMS_NS_PER_S,
                   .silence_ns = 60 * GMS_NS_PER_S,
                   .total_ns = 600 * GMS_NS_PER_S,
                   .crash_window_ns = 60 * GMS_NS_PER_S,
                   .break_grace_ns = 250 * GMS_NS_PER_MS,
                   .retry_ns = 5 * GMS_NS_PER_MS,
                   .crash_limit = 2},
    };
    argp_err_exit_status = EXIT_USAGE;
    argp_parse(&parser, argc, argv, 0, NULL, ret_options);
}
