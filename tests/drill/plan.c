/* SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

#include <errno.h>
#include <libconfig.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "catalogue.h"

#ifndef DRILL_SOURCE_PROMPTS
#define DRILL_SOURCE_PROMPTS ""
#endif
#ifndef DRILL_INSTALLED_PROMPTS /* from the folder of the programs */
#define DRILL_INSTALLED_PROMPTS "../share/gms/drill/prompts.txt"
#endif

static const char *const when_names[DRILL_WHEN_COUNT] = {
    [DRILL_WHEN_ANY] = "any",
    [DRILL_WHEN_PREFILL] = "prefill",
    [DRILL_WHEN_DECODE] = "decode",
    [DRILL_WHEN_SEAL] = "seal",
};
static const char *const verify_names[DRILL_VERIFY_COUNT] = {
    [DRILL_VERIFY_AS_CONFIGURED] = "as-configured",
    [DRILL_VERIFY_FULL] = "full",
    [DRILL_VERIFY_NONE] = "none",
};
static const char *const sabotage_names[DRILL_SABOTAGE_COUNT] = {
    [DRILL_SABOTAGE_NONE] = "none",
    [DRILL_SABOTAGE_POISON_PAGE] = "poison-page",
    [DRILL_SABOTAGE_FLIP_RECORD] = "flip-record",
    [DRILL_SABOTAGE_NONE_ADOPTED] = "none-adopted",
    [DRILL_SABOTAGE_EACH] = "each",
};

const char *drill_when_name(enum drill_when when)
{
    return when < DRILL_WHEN_COUNT ? when_names[when] : "?";
}

const char *drill_verify_name(enum drill_verify verify)
{
    return verify < DRILL_VERIFY_COUNT ? verify_names[verify] : "?";
}

const char *drill_sabotage_name(enum drill_sabotage sabotage)
{
    return sabotage < DRILL_SABOTAGE_COUNT ? sabotage_names[sabotage] : "?";
}

static gms_status choose(const char *option, const char *text, const char *const *names, unsigned count,
                         unsigned *ret_index, struct gms_error *ret_error)
{
    char choices[128] = "";
    for (unsigned i = 0; i < count; i++) {
        if (strcmp(text, names[i]) == 0) {
            *ret_index = i;
            return GMS_OK;
        }
        size_t used = strlen(choices);
        snprintf(choices + used, sizeof choices - used, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    return gms_fail(ret_error, GMS_E_INVALID, "--%s %s: unknown; choose one of %s", option, text, choices);
}

gms_status drill_when_parse(const char *text, enum drill_when *ret_when, struct gms_error *ret_error)
{
    unsigned index = 0;
    gms_status status = choose("when", text, when_names, DRILL_WHEN_COUNT, &index, ret_error);
    if (status == GMS_OK)
        *ret_when = (enum drill_when)index;
    return status;
}

gms_status drill_verify_parse(const char *text, enum drill_verify *ret_verify, struct gms_error *ret_error)
{
    unsigned index = 0;
    gms_status status = choose("kv-verify", text, verify_names, DRILL_VERIFY_COUNT, &index, ret_error);
    if (status == GMS_OK)
        *ret_verify = (enum drill_verify)index;
    return status;
}

gms_status drill_sabotage_parse(const char *text, enum drill_sabotage *ret_sabotage, struct gms_error *ret_error)
{
    unsigned index = 0;
    gms_status status = choose("sabotage", text, sabotage_names, DRILL_SABOTAGE_COUNT, &index, ret_error);
    if (status == GMS_OK)
        *ret_sabotage = (enum drill_sabotage)index;
    return status;
}

gms_status drill_number_parse(const char *option, const char *text, uint64_t least, uint64_t greatest,
                              uint64_t *ret_value, struct gms_error *ret_error)
{
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value < least || value > greatest)
        return gms_fail(ret_error, GMS_E_INVALID, "--%s %s: give a whole number from %llu to %llu", option, text,
                        (unsigned long long)least, (unsigned long long)greatest);
    *ret_value = value;
    return GMS_OK;
}

gms_status drill_rank_parse(const char *text, int32_t *ret_rank, struct gms_error *ret_error)
{
    if (strcmp(text, "all") == 0) {
        *ret_rank = DRILL_RANK_ALL;
        return GMS_OK;
    }
    uint64_t value = 0;
    gms_status status = drill_number_parse("rank", text, 0, DRILL_MAX_RANKS - 1, &value, NULL);
    if (status != GMS_OK)
        return gms_fail(ret_error, GMS_E_INVALID, "--rank %s: give a rank from 0 to %d, or all", text,
                        DRILL_MAX_RANKS - 1);
    *ret_rank = (int32_t)value;
    return GMS_OK;
}

void drill_plan_defaults(struct drill_plan *ret_plan)
{
    memset(ret_plan, 0, sizeof *ret_plan);
    ret_plan->streams = 8;
    ret_plan->max_tokens = 96;
    ret_plan->temperature = 0.9;
    ret_plan->seed = 1;
    ret_plan->repeat = 1;
    ret_plan->rank = 0;
    ret_plan->sabotage_pages = 1;
    ret_plan->sabotage_rank = -1;
    ret_plan->timeout_s = 60;
}

/* The deployment file is checked by gms-coord; here it only says how many ranks there are. */
static gms_status ranks_of_config(const char *path, uint32_t *ret_ranks, struct gms_error *ret_error)
{
    config_t config;
    config_init(&config);
    gms_status status = GMS_OK;
    int ranks = 0;
    if (config_read_file(&config, path) != CONFIG_TRUE)
        status = gms_fail(ret_error, GMS_E_INVALID, "--config %s:%d: %s", path, config_error_line(&config),
                          config_error_text(&config) != NULL ? config_error_text(&config) : "cannot be read");
    else if (config_lookup_int(&config, "ranks", &ranks) != CONFIG_TRUE)
        status = gms_fail(ret_error, GMS_E_INVALID, "--config %s: it has no whole number 'ranks'", path);
    else if (ranks < 1 || ranks > DRILL_MAX_RANKS)
        status =
            gms_fail(ret_error, GMS_E_INVALID, "--config %s: ranks = %d; a drill runs 1 to %d ranks on one machine",
                     path, ranks, DRILL_MAX_RANKS);
    else
        *ret_ranks = (uint32_t)ranks;
    config_destroy(&config);
    return status;
}

static gms_status find_bin_dir(struct drill_plan *plan, struct gms_error *ret_error)
{
    if (plan->bin_dir[0] == '\0') {
        char path[DRILL_PATH_BYTES];
        ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
        if (length <= 0)
            return gms_fail(ret_error, GMS_E_SYSTEM, "/proc/self/exe cannot be read (%s); give --bin-dir",
                            strerror(errno));
        path[length] = '\0';
        char *slash = strrchr(path, '/');
        *slash = '\0';
        memcpy(plan->bin_dir, path, strlen(path) + 1);
    }
    static const char *const programs[] = {"gms-keeper", "gms-coord", "gms-exec"};
    for (size_t i = 0; plan->attach[0] == '\0' && plan->against[0] == '\0' && i < sizeof programs / sizeof programs[0];
         i++) {
        char path[DRILL_PATH_BYTES + 32];
        snprintf(path, sizeof path, "%s/%s", plan->bin_dir, programs[i]);
        if (access(path, X_OK) != 0)
            return gms_fail(ret_error, GMS_E_NOT_FOUND, "%s: %s; build it, or give its folder with --bin-dir", path,
                            strerror(errno));
    }
    return GMS_OK;
}

static gms_status find_prompts(struct drill_plan *plan, struct gms_error *ret_error)
{
    if (plan->prompts[0] == '\0') {
        char installed[2 * DRILL_PATH_BYTES];
        snprintf(installed, sizeof installed, "%s/%s", plan->bin_dir, DRILL_INSTALLED_PROMPTS);
        const char *const places[] = {installed, DRILL_SOURCE_PROMPTS};
        for (size_t i = 0; i < 2 && plan->prompts[0] == '\0'; i++)
            if (strlen(places[i]) < sizeof plan->prompts && access(places[i], R_OK) == 0)
                memcpy(plan->prompts, places[i], strlen(places[i]) + 1);
        if (plan->prompts[0] == '\0')
            return gms_fail(ret_error, GMS_E_NOT_FOUND, "no prompt file at %.200s or %s; give one with --prompts",
                            installed, DRILL_SOURCE_PROMPTS);
    }
    if (access(plan->prompts, R_OK) != 0)
        return gms_fail(ret_error, GMS_E_NOT_FOUND, "--prompts %s: %s", plan->prompts, strerror(errno));
    return GMS_OK;
}

static gms_status complete_catalogue(struct drill_plan *plan, struct gms_error *ret_error)
{
    if (plan->attach[0] != '\0' || plan->engines != 0 || plan->when != DRILL_WHEN_ANY || plan->after_tokens != 0 ||
        (plan->sabotage != DRILL_SABOTAGE_NONE && plan->sabotage != DRILL_SABOTAGE_EACH))
        return gms_fail(ret_error, GMS_E_INVALID,
                        "--catalogue: its rows say where, when and with how many engines; leave out --attach, "
                        "--engines, --when, --after and every --sabotage but each");
    if (plan->against[0] != '\0' && (plan->compare || plan->soak_ns > 0 || plan->command[0] != NULL ||
                                     plan->sabotage != DRILL_SABOTAGE_NONE || plan->against[0] != '/'))
        return gms_fail(
            ret_error, GMS_E_INVALID,
            "--against %s: give an absolute path, and leave out --compare, --soak, --sabotage and an engine "
            "command",
            plan->against);
    if (plan->compare && plan->command[0] != NULL && strcmp(plan->command[0], "minillm") != 0)
        return gms_fail(ret_error, GMS_E_INVALID,
                        "--compare with the engine command %s: only minillm can also be the plain standby",
                        plan->command[0]);
    gms_status status = find_bin_dir(plan, ret_error);
    return status == GMS_OK ? find_prompts(plan, ret_error) : status;
}

gms_status drill_plan_complete(struct drill_plan *plan, struct gms_error *ret_error)
{
    gms_status status;
    bool attach = plan->attach[0] != '\0' || plan->against[0] != '\0';
    uint32_t configured = attach ? 0 : 2;
    if (plan->config[0] != '\0' && (status = ranks_of_config(plan->config, &configured, ret_error)) != GMS_OK)
        return status;
    if (plan->ranks == 0)
        plan->ranks = configured;
    if (attach && plan->against[0] == '\0') {
        if (plan->config[0] != '\0')
            return gms_fail(ret_error, GMS_E_INVALID,
                            "--attach and --config: a running deployment has its file already; "
                            "give one of the two");
        if (plan->attach[0] != '/')
            return gms_fail(ret_error, GMS_E_INVALID, "--attach %s: give the run directory as an absolute path",
                            plan->attach);
        if (plan->when == DRILL_WHEN_SEAL)
            return gms_fail(ret_error, GMS_E_INVALID,
                            "--attach with --when seal: the control run has filled the same engine's prefix cache with "
                            "these streams, so nothing is left to be sealed; use decode or prefill");
        if (plan->sabotage != DRILL_SABOTAGE_NONE || plan->verify != DRILL_VERIFY_AS_CONFIGURED ||
            plan->command[0] != NULL)
            return gms_fail(ret_error, GMS_E_INVALID,
                            "--attach: --sabotage, --kv-verify and an engine command need a "
                            "deployment that the drill starts itself");
    }
    if (plan->ranks > 0 && plan->rank >= 0 && (uint32_t)plan->rank >= plan->ranks)
        return gms_fail(ret_error, GMS_E_INVALID, "--rank %d: the deployment has ranks 0 to %u", plan->rank,
                        plan->ranks - 1);
    if (plan->rows == 0 && plan->against[0] != '\0')
        drill_catalogue_choose("sigkill-rank", &plan->rows, NULL);
    if (plan->rows == 0 && plan->soak_ns > 0)
        drill_catalogue_choose("short", &plan->rows, NULL);
    if (plan->rows != 0 || plan->compare)
        return complete_catalogue(plan, ret_error);
    if (plan->sabotage == DRILL_SABOTAGE_EACH)
        return gms_fail(ret_error, GMS_E_INVALID, "--sabotage each: the rows of a catalogue have it; give --catalogue");
    if (plan->repeat > DRILL_MAX_FAILOVERS)
        return gms_fail(ret_error, GMS_E_INVALID, "--repeat %u: one deployment has room for %d; use --catalogue",
                        plan->repeat, DRILL_MAX_FAILOVERS);
    if (plan->engines == 0)
        plan->engines = plan->repeat + 1;
    if (plan->engines > DRILL_MAX_ENGINES)
        return gms_fail(ret_error, GMS_E_INVALID, "--engines %u: a group has room for %d", plan->engines,
                        DRILL_MAX_ENGINES);
    if (plan->engines < plan->repeat + 1)
        return gms_fail(ret_error, GMS_E_INVALID, "--engines %u: %u failovers need %u engines, one of them to be left",
                        plan->engines, plan->repeat, plan->repeat + 1);
    if (plan->sabotage != DRILL_SABOTAGE_NONE && (plan->repeat != 1 || plan->engines != 2))
        return gms_fail(ret_error, GMS_E_INVALID,
                        "--sabotage %s: it is for one failover between two engines; use "
                        "--repeat 1 and leave --engines out",
                        drill_sabotage_name(plan->sabotage));
    if (plan->sabotage_rank < 0)
        plan->sabotage_rank = (int32_t)plan->ranks - 1;
    if (!attach && (uint32_t)plan->sabotage_rank >= plan->ranks)
        return gms_fail(ret_error, GMS_E_INVALID, "--sabotage-rank %d: the deployment has ranks 0 to %u",
                        plan->sabotage_rank, plan->ranks - 1);
    if (plan->when == DRILL_WHEN_PREFILL && plan->streams < plan->repeat + 1)
        return gms_fail(ret_error, GMS_E_INVALID,
                        "--streams %u with --when prefill: each failover needs one stream that "
                        "is being prefilled beside at least one that runs: %u",
                        plan->streams, plan->repeat + 1);
    uint64_t all = (uint64_t)plan->streams * plan->max_tokens;
    if ((uint64_t)plan->after_tokens * plan->repeat >= all)
        return gms_fail(ret_error, GMS_E_INVALID,
                        "--after %u: %u failovers after that many tokens each do not fit into "
                        "%u streams of %u tokens",
                        plan->after_tokens, plan->repeat, plan->streams, plan->max_tokens);
    if ((status = find_bin_dir(plan, ret_error)) != GMS_OK)
        return status;
    return find_prompts(plan, ret_error);
}

bool drill_plan_armed(const struct drill_plan *plan)
{
    return plan->when != DRILL_WHEN_ANY || plan->attach[0] != '\0';
}

uint32_t drill_plan_fault_tokens(const struct drill_plan *plan, uint32_t failover)
{
    if (plan->after_tokens > 0)
        return plan->after_tokens * (failover + 1);
    /* Streams that are held back for later prefills give no tokens before their fault. */
    uint32_t running = plan->streams - (plan->when == DRILL_WHEN_PREFILL ? plan->repeat : 0);
    return (uint32_t)((uint64_t)running * plan->max_tokens * (failover + 1) / (plan->repeat + 2));
}

static void print_rows(const struct drill_plan *plan, FILE *stream)
{
    const char *label = "faults";
    for (size_t i = 0; i < drill_catalogue_count(); i++) {
        if ((plan->rows >> i & 1) == 0)
            continue;
        const struct drill_fault *fault = drill_catalogue_at(i);
        fprintf(stream, "  %-13s%s: %s\n", label, fault->name, fault->done);
        label = "";
    }
    if (plan->soak_ns > 0)
        fprintf(stream, "  %-13sdrawn from these for %.0f s\n", "", (double)plan->soak_ns / 1e9);
    else if (plan->repeat > 1)
        fprintf(stream, "  %-13sall of them %u times\n", "", plan->repeat);
}

void drill_plan_print(const struct drill_plan *plan, FILE *stream)
{
    fprintf(stream, "plan\n");
    if (plan->against[0] != '\0') {
        fprintf(stream, "  deployment   the one that runs in %s, whose processes will be struck\n", plan->against);
    } else if (plan->attach[0] != '\0') {
        fprintf(stream, "  deployment   the one that runs in %s, engines' logs %s\n", plan->attach,
                plan->log_dir[0] != '\0' ? plan->log_dir : "where their command line says");
    } else {
        fprintf(stream, "  deployment   %s, %u ranks, kv.verify %s, programs in %s\n",
                plan->config[0] != '\0' ? plan->config : "built-in scratch deployment", plan->ranks,
                drill_verify_name(plan->verify), plan->bin_dir);
        if (plan->rows != 0 || plan->compare)
            fprintf(stream, "  engines      one serves, as many are parked as a fault takes; command %s\n",
                    plan->command[0] != NULL ? plan->command[0] : "of the deployment file, else minillm");
        else
            fprintf(stream, "  engines      %u: one primary, %u shadows started %s; command %s\n", plan->engines,
                    plan->engines - 1,
                    plan->sabotage == DRILL_SABOTAGE_NONE ? "before the first fault" : "after the fault",
                    plan->command[0] != NULL ? plan->command[0] : "of the deployment file, else minillm");
    }
    fprintf(stream, "  streams      %u of %u tokens, temperature %g, seed %llu, prompts %s\n", plan->streams,
            plan->max_tokens, plan->temperature, (unsigned long long)plan->seed, plan->prompts);
    fprintf(stream, "  controls     the same requests, twice, undisturbed, %s\n",
            plan->attach[0] != '\0' || plan->against[0] != '\0' ? "before the first fault"
                                                                : "in a deployment of their own");
    if (plan->rows != 0)
        print_rows(plan, stream);
    if (plan->compare)
        fprintf(
            stream,
            "  comparison   SIGKILL to a rank, %u times each: with gms-failover, with it and whole blocks only, with a "
            "standby on a file lock, with a cold restart\n",
            plan->repeat);
    char rank[32];
    if (plan->rank == DRILL_RANK_ALL)
        snprintf(rank, sizeof rank, "all ranks");
    else
        snprintf(rank, sizeof rank, "rank %d", plan->rank);
    for (uint32_t i = 0; plan->rows == 0 && !plan->compare && i < plan->repeat; i++) {
        fprintf(stream, "  failover %-3u SIGKILL to %s of the serving engine after %u tokens, ", i + 1, rank,
                drill_plan_fault_tokens(plan, i));
        if (!drill_plan_armed(plan))
            fprintf(stream, "at any moment, by pidfd\n");
        else
            fprintf(stream, "in the middle of its next %s, by its own hand\n",
                    drill_when_name(plan->when == DRILL_WHEN_ANY ? DRILL_WHEN_DECODE : plan->when));
    }
    if (plan->sabotage == DRILL_SABOTAGE_EACH)
        fprintf(stream, "  sabotage     each row's own: every one of them must fail\n");
    else if (plan->sabotage != DRILL_SABOTAGE_NONE)
        fprintf(stream, "  sabotage     %s on rank %d, %u page%s, once the primary is dead\n",
                drill_sabotage_name(plan->sabotage), plan->sabotage_rank, plan->sabotage_pages,
                plan->sabotage_pages == 1 ? "" : "s");
    fprintf(stream, "  results      table here%s%s; each wait ends after %u s\n",
            plan->json[0] != '\0' ? ", JSON in " : "", plan->json, plan->timeout_s);
}
