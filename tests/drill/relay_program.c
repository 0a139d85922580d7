/* SPDX-License-Identifier: Apache-2.0 */
#include "relay_program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"

enum { POLL_MS = 5 };

/* The port of the last "listening on" line after `from`; 0: not yet. */
static uint16_t port_in(const char *path, off_t from)
{
    char text[4096];
    unsigned port = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? pread(fd, text, sizeof text - 1, from) : 0;
    gms_fd_close(&fd);
    text[got > 0 ? got : 0] = '\0';
    const char *line = strstr(text, "listening on http://127.0.0.1:");
    if (line == NULL || strchr(line, '\n') == NULL || sscanf(line, "listening on http://127.0.0.1:%u", &port) != 1)
        return 0;
    return port <= UINT16_MAX ? (uint16_t)port : 0;
}

gms_status relay_program_start(struct drill_deployment *deployment, struct drill_process **ret_process,
                               uint16_t *ret_port, struct gms_error *ret_error)
{
    char program[DRILL_PATH_BYTES + 16], output[DRILL_PATH_BYTES + 16];
    snprintf(program, sizeof program, "%s/gms-relay", deployment->plan->bin_dir);
    snprintf(output, sizeof output, "%.480s/relay.out", deployment->dir);
    const char *argv[] = {program, "--run-dir", deployment->run_dir, "--listen", "127.0.0.1:0", NULL};
    int fd = open(output, O_RDONLY | O_CLOEXEC);
    off_t from = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    gms_fd_close(&fd);
    gms_status status =
        drill_process_start(&deployment->processes, "relay", output, argv, -1, SIGKILL, ret_process, ret_error);
    if (status != GMS_OK)
        return status;
    uint64_t deadline_ns = gms_clock_ns() + deployment->plan->timeout_s * GMS_NS_PER_S;
    while ((*ret_port = port_in(output, from)) == 0) {
        if (gms_clock_ns() >= deadline_ns)
            return gms_fail(ret_error, GMS_E_TIMEOUT, "gms-relay does not listen; see %s", output);
        if (drill_process_wait(*ret_process, gms_clock_ns() + POLL_MS * GMS_NS_PER_MS))
            return gms_fail(ret_error, GMS_E_DISCONNECTED, "gms-relay ended; see %s", output);
    }
    return GMS_OK;
}
