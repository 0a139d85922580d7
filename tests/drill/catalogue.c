/* SPDX-License-Identifier: Apache-2.0 */
#include "catalogue.h"

#include <jansson.h>
#include <string.h>

const char drill_catalogue_checks[] =
    "every stream complete and equal to two undisturbed controls; no request error; adopted = sealed on all ranks; by "
    "the engines' own logs never two at once; all ranks agree; the endpoint's owner is the serving engine";

#define ENGINE(which, what)                                                                                            \
    {                                                                                                                  \
        DRILL_TARGET_ENGINE_##which, DRILL_ACT_##what                                                                  \
    }

static const struct drill_fault faults[] = {
    {
        .name = "sigkill-rank",
        .done = "SIGKILL to one rank of the serving engine",
        .checked = "the other ranks are fenced",
        .strikes = {ENGINE(RANK, KILL)},
        .outcome = DRILL_OUTCOME_TAKEOVER,
        .shadows = 1,
        .in_short = true,
    },
    {
        .name = "sigkill-all",
        .done = "SIGKILL to all ranks of the serving engine at once",
        .checked = "nobody is left to be fenced",
        .strikes = {ENGINE(ALL, KILL)},
        .outcome = DRILL_OUTCOME_TAKEOVER,
        .shadows = 1,
        .in_short = true,
    },
    {
        .name = "sigkill-launcher",
        .done = "SIGKILL to the mpirun of the serving engine",
        .checked = "its ranks end, or are fenced",
        .strikes = {ENGINE(LAUNCHER, KILL)},
        .outcome = DRILL_OUTCOME_TAKEOVER,
        .shadows = 1,
        .in_short = true,
    },
};

enum { FAULTS = sizeof faults / sizeof faults[0] };
_Static_assert(sizeof faults / sizeof faults[0] <= 64, "a bit each");

static const char *const outcome_names[DRILL_OUTCOME_COUNT] = {
    [DRILL_OUTCOME_TAKEOVER] = "takeover",
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
            return gms_fail(ret_error, GMS_E_INVALID,
                            "--catalogue: '%.*s' is no fault; --list shows all names, \"short\" and \"all\" are sets",
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

const char *drill_outcome_name(enum drill_outcome outcome)
{
    return outcome < DRILL_OUTCOME_COUNT ? outcome_names[outcome] : "?";
}

void drill_catalogue_print(FILE *stream)
{
    for (size_t i = 0; i < FAULTS; i++) {
        const struct drill_fault *fault = &faults[i];
        fprintf(stream, "%s%s\n    done      %s\n    checked   %s\n    wanted    %s, %u shadow%s\n", fault->name,
                fault->in_short ? "" : "  (long form only)", fault->done, fault->checked,
                drill_outcome_name(fault->outcome), fault->shadows, fault->shadows == 1 ? "" : "s");
    }
    fprintf(stream, "\nEvery row checks: %s.\n", drill_catalogue_checks);
}

char *drill_catalogue_json(void)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < FAULTS; i++) {
        const struct drill_fault *fault = &faults[i];
        json_array_append_new(rows,
                              json_pack("{s:s, s:s, s:s, s:s, s:i, s:b}", "name", fault->name, "done", fault->done,
                                        "checked", fault->checked, "outcome", drill_outcome_name(fault->outcome),
                                        "shadows", (int)fault->shadows, "short", fault->in_short));
    }
    json_t *root =
        json_pack("{s:i, s:s, s:o}", "version", 1, "every_row_checks", drill_catalogue_checks, "faults", rows);
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    return text;
}
