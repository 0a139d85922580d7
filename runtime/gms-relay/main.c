/* SPDX-License-Identifier: Apache-2.0
 * gms-relay: one address for clients, whoever serves. */
#include <errno.h>
#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "gms-relay/options.h"
#include "gms-relay/relay.h"

enum { EXIT_USAGE = 64, EXIT_UNAVAILABLE = 69, EXIT_SYSTEM = 71, LOOK_MS = 20 };

struct program {
    struct event_base *base;
    struct relay *relay;
    const struct relay_options *options;
    struct event *signals[3], *draining;
    uint64_t stop_ns; /* 0: not asked to */
};

static void on_draining(evutil_socket_t fd, short what, void *context)
{
    struct program *program = context;
    (void)fd;
    (void)what;
    if (relay_idle(program->relay) || gms_clock_ns() >= program->stop_ns)
        event_base_loopbreak(program->base);
}

static void on_signal(evutil_socket_t number, short what, void *context)
{
    struct program *program = context;
    struct timeval look = {.tv_usec = LOOK_MS * 1000};
    struct gms_error error;
    (void)what;
    if (number == SIGHUP) {
        if (gms_log_reopen(&error) != GMS_OK)
            gms_log(GMS_LOG_WARNING, "the log was not reopened: %s", error.text);
        return;
    }
    if (program->stop_ns != 0) {
        event_base_loopbreak(program->base);
        return;
    }
    gms_log(GMS_LOG_NOTICE, "signal %d: no new requests; those that run may end", (int)number);
    program->stop_ns = gms_clock_ns() + program->options->drain_ns;
    relay_stop(program->relay);
    event_add(program->draining, &look);
}

static int exit_code_of(gms_status status)
{
    return status == GMS_E_INVALID                                ? EXIT_USAGE
           : status == GMS_E_EXISTS || status == GMS_E_PERMISSION ? EXIT_UNAVAILABLE
                                                                  : EXIT_SYSTEM;
}

static gms_status prepare(struct program *program, struct gms_error *ret_error)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    program->base = event_base_new();
    if (program->base == NULL)
        return gms_fail(ret_error, GMS_E_SYSTEM, "no event loop: %s", strerror(errno));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        program->signals[i] = evsignal_new(program->base, numbers[i], on_signal, program);
        if (program->signals[i] == NULL || event_add(program->signals[i], NULL) != 0)
            return gms_fail(ret_error, GMS_E_SYSTEM, "signals cannot be watched");
    }
    program->draining = event_new(program->base, -1, EV_PERSIST, on_draining, program);
    if (program->draining == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory");
    return relay_open(program->base, program->options, &program->relay, ret_error);
}

static void clean_up(struct program *program)
{
    relay_close(program->relay);
    for (size_t i = 0; i < sizeof program->signals / sizeof program->signals[0]; i++)
        if (program->signals[i] != NULL)
            event_free(program->signals[i]);
    if (program->draining != NULL)
        event_free(program->draining);
    if (program->base != NULL)
        event_base_free(program->base);
}

int main(int argc, char **argv)
{
    struct relay_options options;
    struct gms_error error;
    struct program program = {.options = &options};
    int code = 0;
    gms_signals_reset();
    relay_options_read(argc, argv, &options);
    if (gms_log_open("gms-relay", options.log_destination, options.log_level, &error) != GMS_OK) {
        fprintf(stderr, "gms-relay: %s\n", error.text);
        return EXIT_USAGE;
    }
    gms_fd_raise_limit();
    gms_status status = prepare(&program, &error);
    if (status == GMS_OK) {
        printf("listening on http://%s\n", relay_address(program.relay));
        fflush(stdout);
        if (event_base_dispatch(program.base) < 0) {
            gms_log(GMS_LOG_ERROR, "the event loop failed: %s", strerror(errno));
            code = EXIT_SYSTEM;
        }
    } else {
        gms_log(GMS_LOG_ERROR, "%s", error.text);
        code = exit_code_of(status);
    }
    clean_up(&program);
    return code;
}
