/* SPDX-License-Identifier: Apache-2.0
 * gms-cuda-lock: asks the CUDA driver to let a process submit no more work, through its checkpoint interface (driver
 * 570 and newer). For hooks.before_kill: an engine that hangs is held before it is killed. A fence, no proof: what is
 * in flight goes on. */
#include <argp.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gms/version.h"

enum { EXIT_NOT_LOCKED = 1, EXIT_USAGE = 64, EXIT_NO_DRIVER = 69, TIMEOUT_MS = 80 };

__attribute__((visibility("default"))) const char *argp_program_version = "gms-cuda-lock " GMS_VERSION;

static const char doc[] =
    "Asks the CUDA driver to let process PID submit no more work; it needs no context and starts none.\v"
    "Exit status: 0 locked; 1 the driver refused (its error is told); 64 usage; 69 no driver, or one older than 570.\n"
    "In a deployment file: hooks : { before_kill = ( \"gms-cuda-lock\" ); };";

static const struct argp_option options[] = {
    {"timeout", 't', "MS", 0, "How long the driver may wait for calls of that process to return (default: 80)", 0},
    {0}};

/* CUcheckpointLockArgs. */
struct lock_arguments {
    unsigned int timeout_ms, reserved;
    uint64_t more_reserved[7];
};

struct plan {
    int pid;
    unsigned int timeout_ms;
};

/* 0: not a whole number from 1 to `most`. */
static unsigned long whole_number(const char *text, unsigned long most)
{
    char *end = NULL;
    const unsigned long value = strtoul(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && value <= most ? value : 0;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct plan *plan = state->input;
    switch (key) {
    case 't':
        plan->timeout_ms = (unsigned int)whole_number(argument, 10000);
        if (plan->timeout_ms == 0)
            argp_error(state, "--timeout %s is not a number of milliseconds from 1 to 10000", argument);
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num > 0)
            argp_usage(state);
        plan->pid = (int)whole_number(argument, INT32_MAX);
        if (plan->pid == 0)
            argp_error(state, "%s is no process id", argument);
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_usage(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    static const struct argp parser = {options, parse, "PID", doc, NULL, NULL, NULL};
    struct plan plan = {.timeout_ms = TIMEOUT_MS};
    int (*lock)(int pid, struct lock_arguments *arguments) = NULL;

    argp_err_exit_status = EXIT_USAGE;
    argp_parse(&parser, argc, argv, 0, NULL, &plan);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *symbol = driver != NULL ? dlsym(driver, "cuCheckpointProcessLock") : NULL;
    if (symbol == NULL) {
        fprintf(stderr, "gms-cuda-lock: process %d is not locked: %s\n", plan.pid,
                driver != NULL ? "this CUDA driver has no cuCheckpointProcessLock; it takes version 570 or newer"
                               : dlerror());
        return EXIT_NO_DRIVER;
    }
    memcpy(&lock, &symbol, sizeof lock); /* POSIX: what dlsym gives for a function may be called */
    struct lock_arguments arguments = {.timeout_ms = plan.timeout_ms};
    const int result = lock(plan.pid, &arguments);
    if (result == 0)
        return 0;
    int (*name_of)(int, const char **) = NULL;
    const char *name = "?";
    symbol = dlsym(driver, "cuGetErrorName");
    memcpy(&name_of, &symbol, sizeof name_of);
    if (name_of != NULL && name_of(result, &name) != 0)
        name = "?";
    fprintf(stderr, "gms-cuda-lock: process %d is not locked: %s (%d)\n", plan.pid, name, result);
    return EXIT_NOT_LOCKED;
}
