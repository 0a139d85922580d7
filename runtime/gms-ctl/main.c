/* SPDX-License-Identifier: Apache-2.0
 * gms-ctl: what an operator asks and tells the coordinators of one node. */
#include <stdio.h>
#include <string.h>

#include "base/fd.h"
#include "core/ballot.h"
#include "gms-ctl/commands.h"

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

static int usage_error(const char *text)
{
    fprintf(stderr, "gms-ctl: %s\nTry 'gms-ctl --help'.\n", text);
    return GMS_CTL_USAGE;
}

int main(int argc, char **argv)
{
    struct gms_ctl_options options;
    struct gms_error error;
    enum gms_goal goal;
    uint32_t engine;

    gms_signals_reset();
    gms_ctl_parse(argc, argv, &options);
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
        if (options.word_count != 2 || !gms_ctl_parse_number(options.words[1], GMS_MAX_ENGINES - 1, &engine)) {
            return usage_error("takeover ENGINE: which engine is to end, a number from 0 to 7");
        }
        return gms_ctl_takeover(&options, engine);
    }
    if (strcmp(options.words[0], "wait") == 0) {
        if (options.word_count != 2 || !parse_goal(options.words[1], &goal)) {
            return usage_error("wait GOAL: what to wait for, one of up, serving, standby");
        }
        return gms_ctl_wait(&options, goal);
    }
    static const struct {
        const char *word;
        int (*run)(const struct gms_ctl_options *options, uint32_t engine);
    } about_engines[] = {{"drain", gms_ctl_drain},
                         {"park", gms_ctl_park},
                         {"wake", gms_ctl_wake},
                         {"env", gms_ctl_env},
                         {"log", gms_ctl_log}};
    for (size_t i = 0; i < sizeof about_engines / sizeof about_engines[0]; i++) {
        if (strcmp(options.words[0], about_engines[i].word) != 0) {
            continue;
        }
        if (options.word_count != 2 || !gms_ctl_parse_number(options.words[1], GMS_MAX_ENGINES - 1, &engine)) {
            return usage_error("drain, park, wake, env and log ENGINE: which engine, a number from 0 to 7");
        }
        return about_engines[i].run(&options, engine);
    }
    if (options.word_count != 1) {
        return usage_error("only takeover, drain, park, wake, env, log and wait take an argument");
    }
    if (strcmp(options.words[0], "status") == 0) {
        return gms_ctl_status(&options);
    }
    if (strcmp(options.words[0], "serving") == 0) {
        return gms_ctl_serving(&options);
    }
    if (strcmp(options.words[0], "down") == 0) {
        return gms_ctl_down(&options);
    }
    return usage_error(
        "unknown command: one of status, serving, wait GOAL, takeover, drain, park, wake, env or log ENGINE, down");
}
