/* SPDX-License-Identifier: Apache-2.0 */
#include "catalogue.h"

#include <jansson.h>
#include <string.h>

const char drill_catalogue_checks[] =
    "every stream complete and equal to two undisturbed controls; no request error; adopted = sealed on all ranks; by "
    "the engines' own logs never two at once; all ranks agree; the endpoint's owner is the serving engine";

#define KILL(who)                                                                                                      \
    {                                                                                                                  \
        DRILL_TARGET_##who, DRILL_ACT_KILL, NULL, NULL                                                                 \
    }
#define ARM(what, at)                                                                                                  \
    {                                                                                                                  \
        DRILL_TARGET_ENGINE_RANK, DRILL_ACT_ARM, what, at                                                              \
    }
#define TAKEOVER(n) .outcome = DRILL_OUTCOME_TAKEOVER, .shadows = n
#define UNNOTICED   .outcome = DRILL_OUTCOME_UNNOTICED, .shadows = 1

static const struct drill_fault faults[] = {
    /* The engine that serves. */
    {.name = "sigkill-rank",
     .done = "SIGKILL to one rank of the serving engine",
     .checked = "the other ranks are fenced",
     .strikes = {KILL(ENGINE_RANK)},
     TAKEOVER(1),
     .in_short = true},
    {.name = "sigkill-all",
     .done = "SIGKILL to all ranks of the serving engine at once",
     .checked = "nobody is left to be fenced",
     .strikes = {KILL(ENGINE_ALL)},
     TAKEOVER(1),
     .in_short = true},
    {.name = "sigkill-launcher",
     .done = "SIGKILL to the mpirun of the serving engine",
     .checked = "its ranks end, or are fenced",
     .strikes = {KILL(ENGINE_LAUNCHER)},
     TAKEOVER(1),
     .in_short = true},
    {.name = "sigkill-in-prefill",
     .done = "a rank kills itself in the middle of a prompt's computation",
     .checked = "the block that was being written is not adopted",
     .strikes = {ARM("sigkill", "prefill")},
     TAKEOVER(1),
     .needs = DRILL_NEED_ARM},
    {.name = "sigkill-in-decode",
     .done = "a rank kills itself in the middle of computing a token",
     .checked = "the token comes once",
     .strikes = {ARM("sigkill", "decode")},
     TAKEOVER(1),
     .needs = DRILL_NEED_ARM},
    {.name = "sigkill-in-seal",
     .done = "a rank kills itself between a block's completion and its seal",
     .checked = "a block that some ranks have sealed is adopted by none",
     .strikes = {ARM("sigkill", "seal")},
     TAKEOVER(1),
     .needs = DRILL_NEED_ARM,
     .in_short = true},
    {.name = "exit",
     .done = "a rank of the serving engine leaves with status 0 and without a goodbye",
     .checked = "a polite end is a death as well",
     .strikes = {ARM("exit", "decode")},
     TAKEOVER(1),
     .needs = DRILL_NEED_ARM,
     .in_short = true},
    {.name = "abort",
     .done = "a rank of the serving engine aborts, as after a failed assertion",
     .checked = "a core that is being written does not hold the takeover up",
     .strikes = {ARM("abort", "decode")},
     TAKEOVER(1),
     .needs = DRILL_NEED_ARM,
     .in_short = true},
    {.name = "child-lives-on",
     .done = "a rank forks a child that holds all its memory and ignores every signal; then the rank gets SIGKILL",
     .checked = "the child has ended before the successor's first token",
     .strikes = {ARM("fork", "decode"), KILL(ENGINE_RANK)},
     TAKEOVER(1),
     .needs = DRILL_NEED_ARM,
     .in_short = true},
    {.name = "memory-limit",
     .done = "a rank is put under a memory limit and takes memory until it is killed for it",
     .checked = "which limit it was (cgroup v2, cgroup v1 or RLIMIT_AS) is reported",
     .strikes = {{DRILL_TARGET_ENGINE_RANK, DRILL_ACT_LIMIT_MEMORY, NULL, NULL}, ARM("hog", "decode")},
     TAKEOVER(1),
     .needs = DRILL_NEED_ARM,
     .in_short = true},
    /* Both engines. */
    {.name = "engine-and-shadow",
     .done = "SIGKILL to a rank of the serving engine and to one of the engine parked first, at once",
     .checked = "the engine parked second takes over",
     .strikes = {KILL(ENGINE_RANK), KILL(SHADOW_RANK)},
     TAKEOVER(2),
     .in_short = true},
    {.name = "successor-promoted",
     .done = "SIGKILL to a rank of the serving engine; a rank of its successor dies when it has been promoted",
     .checked = "the next parked engine takes over, with a higher epoch",
     .strikes = {KILL(ENGINE_RANK)},
     .successor_dies = "promoted",
     TAKEOVER(2),
     .needs = DRILL_NEED_ARM,
     .in_short = true},
    {.name = "successor-adopted",
     .done = "SIGKILL to a rank of the serving engine; a rank of its successor dies when it has adopted",
     .checked = "the next parked engine takes over and adopts all the same",
     .strikes = {KILL(ENGINE_RANK)},
     .successor_dies = "adopted",
     TAKEOVER(2),
     .needs = DRILL_NEED_ARM,
     .in_short = true},
    {.name = "successor-woken",
     .done = "SIGKILL to a rank of the serving engine; a rank of its successor dies when it has been woken",
     .checked = "the next parked engine takes over; nobody was served by the one before",
     .strikes = {KILL(ENGINE_RANK)},
     .successor_dies = "woken",
     TAKEOVER(2),
     .needs = DRILL_NEED_ARM,
     .in_short = true},
    {.name = "successor-serving",
     .done = "SIGKILL to a rank of the serving engine; a rank of its successor dies when it has begun to serve",
     .checked = "clients that had found it go on with the next",
     .strikes = {KILL(ENGINE_RANK)},
     .successor_dies = "serving",
     TAKEOVER(2),
     .needs = DRILL_NEED_ARM,
     .in_short = true},
    /* The control plane. */
    {.name = "coordinator",
     .done = "SIGKILL to one coordinator rank",
     .checked = "a new world of coordinators, engines attached again",
     .strikes = {KILL(COORDINATOR)},
     UNNOTICED,
     .in_short = true},
    {.name = "coordinators",
     .done = "SIGKILL to all coordinator ranks at once",
     .checked = "a new world of coordinators, engines attached again",
     .strikes = {KILL(COORDINATORS)},
     UNNOTICED},
    {.name = "coordinators-mpirun",
     .done = "SIGKILL to the coordinators' mpirun",
     .checked = "a new world of coordinators, engines attached again",
     .strikes = {KILL(COORDINATOR_LAUNCHER)},
     UNNOTICED,
     .in_short = true},
    {.name = "keeper",
     .done = "SIGKILL to gms-keeper",
     .checked = "a new keeper has copies of everything",
     .strikes = {KILL(KEEPER)},
     UNNOTICED,
     .in_short = true},
    {.name = "keeper-and-coordinators",
     .done = "SIGKILL to gms-keeper and all coordinator ranks at once",
     .checked = "the memory comes back from gms-exec's copies",
     .strikes = {KILL(KEEPER), KILL(COORDINATORS)},
     UNNOTICED,
     .in_short = true},
    {.name = "gms-up",
     .done = "SIGKILL to gms-up, which is started again; then to a coordinator rank",
     .checked = "nothing ended with it, and the new one brings the coordinators back",
     .strikes = {KILL(UP), KILL(COORDINATOR)},
     .one_by_one = true,
     UNNOTICED,
     .in_short = true},
    /* Both at once. */
    {.name = "relay",
     .done = "SIGKILL to gms-relay, which is started again",
     .checked =
         "streams through it end visibly broken; asked again of the next relay, they are whole after the takeover",
     .strikes = {KILL(RELAY)},
     UNNOTICED,
     .in_short = true},
    {.name = "engine-and-coordinator",
     .done = "SIGKILL to a rank of the serving engine and to a coordinator rank at once",
     .checked = "the takeover happens once coordinators are back",
     .strikes = {KILL(ENGINE_RANK), KILL(COORDINATOR)},
     TAKEOVER(1),
     .in_short = true},
    {.name = "engine-and-keeper",
     .done = "SIGKILL to a rank of the serving engine and to gms-keeper at once",
     .checked = "the takeover does not need the keeper",
     .strikes = {KILL(ENGINE_RANK), KILL(KEEPER)},
     TAKEOVER(1)},
    /* Engines that do not die. */
    {.name = "sigstop",
     .done = "SIGSTOP to one rank of the serving engine",
     .checked = "no progress is noticed, the engine is fenced",
     .strikes = {{DRILL_TARGET_ENGINE_RANK, DRILL_ACT_STOP, NULL, NULL}},
     TAKEOVER(1),
     .needs = DRILL_NEED_HANG,
     .in_short = true},
    {.name = "frozen-loop",
     .done = "the work loop of one rank stands still; its process, threads and sockets live",
     .checked = "no progress is noticed, whatever else lives; the engine is fenced",
     .strikes = {ARM("freeze", "decode")},
     TAKEOVER(1),
     .needs = DRILL_NEED_ARM | DRILL_NEED_HANG,
     .in_short = true},
    /* The place. */
    {.name = "disk-full",
     .done = "the file system of the run directory is filled up, for a second",
     .checked = "engines serve on; with room again the group goes on where it was",
     .strikes = {{DRILL_TARGET_RUN_DISK, DRILL_ACT_FILL, NULL, NULL}},
     UNNOTICED,
     .needs = DRILL_NEED_DISK,
     .in_short = true},
    {.name = "disk-full-and-engine",
     .done = "the file system of the run directory is filled up, and a rank of the serving engine gets SIGKILL",
     .checked = "nobody is promoted before that can be stored; with room again the takeover happens",
     .strikes = {{DRILL_TARGET_RUN_DISK, DRILL_ACT_FILL, NULL, NULL}, KILL(ENGINE_RANK)},
     TAKEOVER(1),
     .needs = DRILL_NEED_DISK},
    {.name = "link-down",
     .done =
         "half of the ranks are on another host (namespaces of this one), and the link between them is cut until the "
         "coordinators of both have left, and a second longer",
     .checked =
         "nobody is promoted on either side; with the link back the same engine goes on, and a takeover over both "
         "hosts happens",
     .strikes = {{DRILL_TARGET_LINK, DRILL_ACT_CUT, NULL, NULL}},
     .outcome = DRILL_OUTCOME_HELD,
     .shadows = 1,
     .needs = DRILL_NEED_HOSTS,
     .in_short = true},
    {.name = "illegal-address",
     .done = "a kernel of one rank touches an address that is not mapped (CUDA)",
     .checked = "the sticky error ends the engine; all of its KV is adopted, or nothing of it, as "
                "takeover.adopt_after_device_error says",
     .strikes = {ARM("illegal-address", "decode")},
     TAKEOVER(1),
     .needs = DRILL_NEED_ARM | DRILL_NEED_CUDA,
     .in_short = true},
};

enum { FAULTS = sizeof faults / sizeof faults[0] };
_Static_assert(sizeof faults / sizeof faults[0] <= 64, "a bit each");

static const char *const outcome_names[DRILL_OUTCOME_COUNT] = {
    [DRILL_OUTCOME_TAKEOVER] = "takeover",
    [DRILL_OUTCOME_UNNOTICED] = "unnoticed, then a takeover",
    [DRILL_OUTCOME_HELD] = "held up, then a takeover",
};

size_t drill_catalogue_count(void)
{
    return FAULTS;
}

const struct drill_fault *drill_catalogue_at(size_t index)
{
    return index < FAULTS ? &faults[index] : NULL;
}

static size_t find(const char *name, size_t length)
{
    size_t i = 0;
    while (i < FAULTS && (strlen(faults[i].name) != length || strncmp(faults[i].name, name, length) != 0))
        i++;
    return i;
}

const struct drill_fault *drill_catalogue_find(const char *name)
{
    return drill_catalogue_at(find(name, strlen(name)));
}

gms_status drill_catalogue_choose(const char *words, uint64_t *ret_rows, struct gms_error *ret_error)
{
    uint64_t rows = 0;
    for (const char *at = words; *at != '\0';) {
        size_t length = strcspn(at, ",");
        bool all = length == 3 && strncmp(at, "all", 3) == 0, is_short = length == 5 && strncmp(at, "short", 5) == 0;
        size_t index = find(at, length);
        if (!all && !is_short && index == FAULTS)
            return gms_fail(
                ret_error, GMS_E_INVALID,
                "--catalogue or --fault: '%.*s' is no fault; --list shows all names, \"short\" and \"all\" are sets",
                (int)length, at);
        for (size_t i = 0; i < FAULTS; i++)
            if (all || (is_short && faults[i].in_short) || i == index)
                rows |= UINT64_C(1) << i;
        at += length;
        at += *at == ',';
    }
    if (rows == 0)
        return gms_fail(ret_error, GMS_E_INVALID, "--catalogue: no fault is named; --list shows all");
    *ret_rows = rows;
    return GMS_OK;
}

const char *drill_outcome_sabotage(enum drill_outcome outcome)
{
    static const char *const sabotages[DRILL_OUTCOME_COUNT] = {
        [DRILL_OUTCOME_TAKEOVER] = "the successor overwrites every block of one rank before it adopts",
        [DRILL_OUTCOME_UNNOTICED] =
            "nobody repairs: gms-up gets SIGKILL first, a full disk stays full, no relay is started again",
        [DRILL_OUTCOME_HELD] = "the link stays cut",
    };
    return outcome < DRILL_OUTCOME_COUNT ? sabotages[outcome] : "?";
}

const char *drill_outcome_name(enum drill_outcome outcome)
{
    return outcome < DRILL_OUTCOME_COUNT ? outcome_names[outcome] : "?";
}

enum { NEEDS = 5 };

const char *drill_need_name(enum drill_need need)
{
    switch (need) {
    case DRILL_NEED_ARM:
        return "an engine that strikes itself when asked";
    case DRILL_NEED_DISK:
        return "a mount of its own";
    case DRILL_NEED_HANG:
        return "detection of hangs";
    case DRILL_NEED_CUDA:
        return "CUDA";
    case DRILL_NEED_HOSTS:
        return "namespaces for two hosts";
    }
    return "?";
}

void drill_catalogue_print(FILE *stream)
{
    for (size_t i = 0; i < FAULTS; i++) {
        const struct drill_fault *fault = &faults[i];
        char needs[160] = "";
        for (unsigned bit = 0; bit < NEEDS; bit++)
            if ((fault->needs >> bit & 1) != 0) {
                size_t used = strlen(needs);
                snprintf(needs + used, sizeof needs - used, "; needs %s", drill_need_name((enum drill_need)(1 << bit)));
            }
        fprintf(stream, "%s%s\n    done      %s\n    checked   %s\n    wanted    %s; %u shadow%s%s\n", fault->name,
                fault->in_short ? "" : "  (long form only)", fault->done, fault->checked,
                drill_outcome_name(fault->outcome), fault->shadows, fault->shadows == 1 ? "" : "s", needs);
    }
    fprintf(stream, "\nEvery row checks: %s.\n", drill_catalogue_checks);
    for (int outcome = 0; outcome < DRILL_OUTCOME_COUNT; outcome++)
        fprintf(stream, "With --sabotage each, rows of \"%s\": %s.\n", outcome_names[outcome],
                drill_outcome_sabotage((enum drill_outcome)outcome));
}

char *drill_catalogue_json(void)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < FAULTS; i++) {
        const struct drill_fault *fault = &faults[i];
        json_t *needs = json_array();
        for (unsigned bit = 0; bit < NEEDS; bit++)
            if ((fault->needs >> bit & 1) != 0)
                json_array_append_new(needs, json_string(drill_need_name((enum drill_need)(1 << bit))));
        json_array_append_new(rows,
                              json_pack("{s:s, s:s, s:s, s:s, s:i, s:b, s:o}", "name", fault->name, "done", fault->done,
                                        "checked", fault->checked, "outcome", drill_outcome_name(fault->outcome),
                                        "shadows", (int)fault->shadows, "short", fault->in_short, "needs", needs));
    }
    json_t *root =
        json_pack("{s:i, s:s, s:o}", "version", 1, "every_row_checks", drill_catalogue_checks, "faults", rows);
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    return text;
}
