/* SPDX-License-Identifier: Apache-2.0 */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "gms-keeper/server.h"
#include "gms/version.h"
#include "wire/channel.h"

enum { EXIT_USAGE = 64, EXIT_UNAVAILABLE = 69, EXIT_SYSTEM = 71 };

static const char help[] =
    "Holds the memory of a deployment on this node, so that it outlives engines and coordinators.\n"
    "\n"
    "One keeper serves one run directory. Start it before the coordinators, where nothing that ends with them ends it "
    "too: not inside their job step, cgroup or unit. It holds copies of descriptors and gives each coordinator rank "
    "its world token; it knows no MPI, needs no GPU and starts no process.\v"
    "Ending it: SIGTERM or SIGINT ends a keeper that holds nothing. While it holds memory, one signal is only logged; "
    "a "
    "second one within 5 s ends it, and so does --stop --force. What nobody else has open is lost then. SIGHUP opens "
    "the log anew, and the socket should its name be gone.\n"
    "\n"
    "Exit status: 0 ended as told; 64 usage; 69 another keeper serves the run directory, or (--stop, --status) none "
    "does or it refused; 71 the system refused something.\n"
    "\n"
    "Example: gms-keeper --run-dir /run/user/1000/gms --log-destination journald &";

enum { KEY_RUN_DIR = 'r', KEY_READY_FD = 0x100, KEY_STOP, KEY_FORCE, KEY_STATUS, KEY_LEVEL, KEY_DESTINATION };

static const struct argp_option options[] = {
    {"run-dir", KEY_RUN_DIR, "DIR", 0, "run directory of the deployment; made (0700) if missing", 1},
    {"ready-fd", KEY_READY_FD, "N", 0, "write \"ready\" and a newline to descriptor N once clients are served", 1},
    {"stop", KEY_STOP, NULL, 0, "end the keeper of DIR if it holds nothing", 2},
    {"force", KEY_FORCE, NULL, 0, "with --stop: whatever it holds", 2},
    {"status", KEY_STATUS, NULL, 0, "print what the keeper of DIR holds, as JSON", 2},
    {"log-level", KEY_LEVEL, "LEVEL", 0, "error, warning, notice (default), info or debug", 3},
    {"log-destination", KEY_DESTINATION, "WHERE", 0, "stderr (default), file:PATH or journald", 3},
    {0},
};

struct settings {
    const char *run_dir, *destination;
    int ready_fd;
    bool stop, force, status;
    enum gms_log_level level;
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct settings *settings = state->input;
    struct gms_error error;
    char *end = NULL;
    long number;

    switch (key) {
    case KEY_RUN_DIR:
        settings->run_dir = argument;
        return 0;
    case KEY_READY_FD:
        errno = 0;
        number = strtol(argument, &end, 10);
        if (errno || end == argument || *end || number < 0 || number > 1 << 20 || fcntl((int)number, F_GETFD) < 0)
            argp_error(state, "--ready-fd %s: not an open descriptor", argument);
        settings->ready_fd = (int)number;
        return 0;
    case KEY_STOP:
        settings->stop = true;
        return 0;
    case KEY_FORCE:
        settings->force = true;
        return 0;
    case KEY_STATUS:
        settings->status = true;
        return 0;
    case KEY_LEVEL:
        if (gms_log_level_parse(argument, &settings->level, &error) != GMS_OK)
            argp_error(state, "--log-level: %s", error.text);
        return 0;
    case KEY_DESTINATION:
        settings->destination = argument;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "%s: takes no arguments", argument);
        return 0;
    case ARGP_KEY_END:
        if (!settings->run_dir)
            argp_error(state, "--run-dir is missing");
        if (settings->force && !settings->stop)
            argp_error(state, "--force goes with --stop");
        if (settings->stop && settings->status)
            argp_error(state, "--stop or --status, not both");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* --stop and --status: one request to the keeper that serves there. */
static int ask_keeper(const struct settings *settings)
{
    struct gms_message request = {.type = settings->stop ? GMS_MESSAGE_SHUTDOWN : GMS_MESSAGE_STATUS, .request_id = 1};
    struct gms_message reply;
    struct gms_error error;
    uint64_t deadline_ns = gms_clock_ns() + 2 * GMS_NS_PER_S;
    char path[GMS_RUN_PATH_BYTES];
    void *buffer = malloc(GMS_WIRE_MAX_BYTES);
    int fd = -1;
    gms_status status = buffer ? GMS_OK : gms_fail(&error, GMS_E_NO_MEMORY, "no memory");

    request.plain.incarnation = settings->force;
    if (status == GMS_OK)
        status = gms_run_dir_path(settings->run_dir, "keeper", -1, path, &error);
    if (status == GMS_OK)
        status = gms_channel_connect(path, 2000, &fd, &error);
    if (status == GMS_OK)
        status = gms_channel_send_until(fd, &request, deadline_ns, &error);
    if (status == GMS_OK)
        status = gms_channel_receive_until(fd, buffer, deadline_ns, &reply, &error);
    gms_fd_close(&fd);
    if (status == GMS_OK) {
        gms_message_close_fds(&reply);
        if (settings->status && reply.type == GMS_MESSAGE_STATUS_REPLY) {
            printf("%.*s\n", (int)reply.status_reply.json.length, (const char *)reply.status_reply.json.data);
        } else if (reply.type == GMS_MESSAGE_KEEPER_REPLY) {
            status = (gms_status)reply.keeper_reply.status;
            if (status != GMS_OK)
                gms_fail(&error, status, "%.*s", (int)reply.keeper_reply.text.length,
                         (const char *)reply.keeper_reply.text.data);
        } else {
            status = gms_fail(&error, GMS_E_PROTOCOL, "answered with %s", gms_message_name(reply.type));
        }
    }
    free(buffer);
    if (status == GMS_E_NOT_FOUND || status == GMS_E_DISCONNECTED)
        gms_fail(&error, status, "no keeper serves here; start one with gms-keeper --run-dir %.200s",
                 settings->run_dir);
    if (status != GMS_OK)
        fprintf(stderr, "gms-keeper: %s: %s\n", settings->run_dir, error.text);
    return status == GMS_OK ? EXIT_SUCCESS : EXIT_UNAVAILABLE;
}

/* A long life begins with empty hands: what a shell or launcher left open would be held as long as the memory. */
static void close_inherited(int ready_fd)
{
    if (ready_fd <= STDERR_FILENO) {
        close_range(STDERR_FILENO + 1, ~0U, 0);
        return;
    }
    if (ready_fd > STDERR_FILENO + 1)
        close_range(STDERR_FILENO + 1, (unsigned)ready_fd - 1, 0);
    close_range((unsigned)ready_fd + 1, ~0U, 0);
}

/* Descriptors 0, 1 and 2 exist, so that nothing of ours becomes one of them. */
static void open_standard(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

static int serve(const struct settings *settings)
{
    static struct server server; /* too large for the stack */
    static const char ready[] = "ready\n";
    struct gms_error error;
    int ready_fd = settings->ready_fd;
    gms_status status;

    close_inherited(ready_fd);
    if (gms_log_open("gms-keeper", settings->destination, settings->level, &error) != GMS_OK) {
        fprintf(stderr, "gms-keeper: %s\n", error.text);
        return EXIT_USAGE;
    }
    status = server_open(&server, settings->run_dir, &error);
    if (status != GMS_OK) {
        gms_log(GMS_LOG_ERROR, "%s", error.text);
        return status == GMS_E_EXISTS || status == GMS_E_BUSY ? EXIT_UNAVAILABLE
               : status == GMS_E_INVALID                      ? EXIT_USAGE
                                                              : EXIT_SYSTEM;
    }
    gms_log(GMS_LOG_NOTICE, "serves %s, process %d, keeper %016llx", settings->run_dir, (int)getpid(),
            (unsigned long long)server.incarnation);
    if (ready_fd >= 0) {
        if (write(ready_fd, ready, sizeof(ready) - 1) != (ssize_t)sizeof(ready) - 1)
            gms_log(GMS_LOG_WARNING, "--ready-fd %d: %s", ready_fd, strerror(errno));
        if (ready_fd > STDERR_FILENO)
            close(ready_fd);
    }
    status = server_run(&server, &error);
    if (status != GMS_OK)
        gms_log(GMS_LOG_ERROR, "%s", error.text);
    server_close(&server);
    return status == GMS_OK ? EXIT_SUCCESS : EXIT_SYSTEM;
}

int main(int argc, char **argv)
{
    static const struct argp argp = {options, parse, NULL, help, NULL, NULL, NULL};
    struct settings settings = {.destination = "stderr", .ready_fd = -1, .level = GMS_LOG_NOTICE};

    gms_signals_reset();
    open_standard();
    argp_program_version = "gms-keeper " GMS_VERSION; /* glibc's; a definition of our own would be hidden from it */
    argp_err_exit_status = EXIT_USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, &settings);
    return settings.stop || settings.status ? ask_keeper(&settings) : serve(&settings);
}
