/* SPDX-License-Identifier: Apache-2.0
 *
 * sim: the group under random schedules. Everything that is under way (doorbells, stores, prepares, facts, rounds) is
 * delivered in random order to 2..16 cores (--ranks: up to 1,024), while up to three engines go through their life,
 * die, leave, are commanded away and are started again. The cluster checks safety after every step; when the faults
 * stop, the group must come to rest with every call decided, nobody half promoted, and all ranks in one state.
 *
 * A schedule is its seed: a failure prints it, and `sim --seed S --trace` shows it step by step. --exchanges is another
 * kind of schedule (exchanges.c).
 */
#include <argp.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "schedule.h"

struct arguments {
    uint64_t seed, schedules, every, failures, ranks, sizes, at;
    bool trace, exchanges;
    const char *scenario;
};

static uint64_t number(const char *text, struct argp_state *state)
{
    char *end = NULL;
    uint64_t value = strtoull(text, &end, 0);

    if (end == text || *end)
        argp_error(state, "'%s' is not a number", text);
    return value;
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct arguments *arguments = state->input;

    switch (key) {
    case 's':
        arguments->seed = number(text, state);
        return 0;
    case 'n':
        arguments->schedules = number(text, state);
        return 0;
    case 'e':
        arguments->every = number(text, state);
        return 0;
    case 'f':
        arguments->failures = number(text, state);
        return 0;
    case 't':
        arguments->trace = true;
        return 0;
    case 'r':
        arguments->ranks = number(text, state);
        if (arguments->ranks < 2 || arguments->ranks > GMS_MAX_RANKS)
            argp_error(state, "--ranks: 2 to %d", GMS_MAX_RANKS);
        return 0;
    case 'z':
        arguments->sizes = text ? number(text, state) : GMS_MAX_RANKS;
        if (arguments->sizes < 8 || arguments->sizes > GMS_MAX_RANKS)
            argp_error(state, "--sizes: 8 to %d", GMS_MAX_RANKS);
        return 0;
    case 'x':
        arguments->exchanges = true;
        return 0;
    case 'a':
        arguments->at = number(text, state);
        return 0;
    case 'c':
        arguments->scenario = text;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static uint64_t clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static unsigned count_bits(uint64_t bits)
{
    unsigned count = 0;

    for (; bits; bits &= bits - 1)
        count++;
    return count;
}

/* false: a row was never used, and is named. */
static bool report_rows(const char *table, uint64_t used, uint64_t all, bool by_state)
{
    printf("  %s: %u of %u rows", table, count_bits(used & all), count_bits(all));
    for (unsigned bit = 0; bit < 64; bit++) {
        if (!((all & ~used) >> bit & 1))
            continue;
        if (by_state)
            printf(", not state %u event %u", bit / 8, bit % 8);
        else
            printf(", not row %u", bit);
    }
    printf("\n");
    return (used & all) == all;
}

static bool report(const struct totals *totals, uint64_t ns)
{
    static const char *const verdicts[] = {"fresh", "restore", "renew", "salvage", "refuse"};
    static const char *const states[] = {"vacant", "fencing", "classifying", "promoting", "serving"};
    bool complete = totals->servings && totals->classifications && totals->transfers && totals->condemned &&
                    totals->crashes >= totals->schedules && totals->undone;

    printf("  %llu steps (%.0f per schedule), %llu rounds, %.0f schedules/s\n", (unsigned long long)totals->steps,
           (double)totals->steps / (double)(totals->schedules ? totals->schedules : 1),
           (unsigned long long)totals->rounds, (double)totals->schedules * 1e9 / (double)(ns ? ns : 1));
    printf("  %llu promotions, %llu servings, %llu classifications, %llu condemned, %llu transfers\n",
           (unsigned long long)totals->promotions, (unsigned long long)totals->servings,
           (unsigned long long)totals->classifications, (unsigned long long)totals->condemned,
           (unsigned long long)totals->transfers);
    for (unsigned kind = 1; kind < GMS_OPERATION_COUNT; kind++) {
        if (kind == GMS_OPERATION_TAKEOVER || kind == GMS_OPERATION_RECLAIM)
            continue;
        printf("  %s: %llu committed, %llu aborted\n", gms_operation_name((enum gms_operation)kind),
               (unsigned long long)totals->commits[kind], (unsigned long long)totals->aborts[kind]);
        complete = complete && totals->commits[kind] && totals->aborts[kind];
    }
    printf("  %llu crashes of all coordinators, %llu with an operation under way, %llu operations undone\n"
           "  takeover state at the crash:",
           (unsigned long long)totals->crashes, (unsigned long long)totals->crashed_preparing,
           (unsigned long long)totals->undone);
    for (unsigned state = 0; state < GMS_TAKEOVER_STATE_COUNT; state++) {
        printf("%s %s %llu", state ? "," : "", states[state], (unsigned long long)totals->crashed_in[state]);
        complete = complete && totals->crashed_in[state];
    }
    printf("\n  verdicts:");
    for (unsigned verdict = 0; verdict <= GMS_RECOVERY_REFUSE; verdict++) {
        printf("%s %s %llu", verdict ? "," : "", verdicts[verdict], (unsigned long long)totals->verdicts[verdict]);
        complete = complete && totals->verdicts[verdict];
    }
    printf("\n  %llu lost stores that were no loss, %llu launches of an earlier life refused\n",
           (unsigned long long)totals->lost_in_vain, (unsigned long long)totals->past);
    printf("  %llu answers with what rank 0 gave; %llu restarts when an exchange was told to some ranks only\n",
           (unsigned long long)totals->exchanged, (unsigned long long)totals->split);
    complete = complete && totals->lost_in_vain && totals->past && totals->split;
    complete = report_rows("roles", totals->rows.roles, gms_core_role_rows(), true) && complete;
    complete = report_rows("takeover", totals->rows.takeover, gms_core_takeover_rows(), false) && complete;
    complete = report_rows("votes", totals->rows.votes, gms_core_vote_rows(), true) && complete;
    return report_rows("reclaim", totals->rows.reclaim, gms_core_reclaim_rows(), true) && complete;
}

int main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"seed", 's', "S", 0, "Seed of the first schedule (default 1); the next ones count up", 0},
        {"schedules", 'n', "N", 0, "How many schedules (default 2000)", 0},
        {"every", 'e', "N", 0, "Print where it stands every N schedules (default 0: only at the end)", 0},
        {"failures", 'f', "N", 0, "Stop after so many failed schedules (default 5)", 0},
        {"trace", 't', NULL, 0, "Print every action", 0},
        {"ranks", 'r', "N", 0, "All schedules with N ranks, 2 to 1024 (default: 2 to 16, mostly few)", 0},
        {"sizes", 'z', "N", OPTION_ARG_OPTIONAL,
         "Print what agreements of 8, 16, ... N ranks cost instead (default 1024)", 0},
        {"exchanges", 'x', NULL, 0,
         "Lives of exchanges instead, N seeds of --schedules, with the coordinators' death at every turn of each", 0},
        {"at", 'a', "TURN", 0, "With --exchanges: only this turn", 0},
        {"scenario", 'c', "NAME", 0, "Print the trace of a named scenario instead ('list' prints the names)", 0},
        {0},
    };
    static const struct argp argp = {options,
                                     parse,
                                     NULL,
                                     "Runs the coordinators' core under random schedules, with deaths of coordinators "
                                     "and engines and lost stores, and checks its invariants after every step.\v"
                                     "Exit status 1: a schedule failed (its seed is printed), or what should happen in "
                                     "1,000 and more schedules never did.",
                                     NULL,
                                     NULL,
                                     NULL};
    struct arguments arguments = {.seed = 1, .schedules = 2000, .failures = 5, .at = UINT64_MAX};
    struct totals totals = {0};
    uint64_t failures = 0, begin_ns;

    argp_parse(&argp, argc, argv, 0, NULL, &arguments);
    if (arguments.scenario)
        return !sim_scenario(arguments.scenario);
    if (arguments.sizes)
        return !sim_sizes((uint32_t)arguments.sizes);
    mallopt(M_MMAP_THRESHOLD,
            1 << 30); /* a schedule's memory is the next one's: page faults cost more than its steps */
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    if (arguments.exchanges)
        return !sim_exchanges(arguments.seed, arguments.schedules, arguments.at, arguments.trace);
    begin_ns = clock_ns();
    for (uint64_t i = 0; i < arguments.schedules && failures < arguments.failures; i++) {
        failures += !sim_run_schedule(arguments.seed + i, (uint32_t)arguments.ranks, arguments.trace, &totals);
        if (!arguments.every || (i + 1) % arguments.every)
            continue;
        printf("%llu schedules, %llu failed, %.0f s\n", (unsigned long long)(i + 1), (unsigned long long)failures,
               (double)(clock_ns() - begin_ns) / 1e9);
        fflush(stdout);
    }
    printf("%llu schedules from seed %llu: %llu failed\n", (unsigned long long)totals.schedules,
           (unsigned long long)arguments.seed, (unsigned long long)failures);
    if (!report(&totals, clock_ns() - begin_ns) && arguments.schedules >= 1000 && !failures) {
        printf("FAIL: something that should happen in so many schedules never did: the run proves nothing\n");
        return 1;
    }
    return failures != 0;
}
