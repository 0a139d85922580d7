/* SPDX-License-Identifier: Apache-2.0 */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int event_fd = -1;
static int note_fd = STDERR_FILENO;
static enum note_level note_most = NOTE_INFO;
static uint32_t note_engine, note_rank;

uint64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool event_log_open(const char *directory, uint32_t engine, uint64_t incarnation, uint32_t rank)
{
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/engine%" PRIu32 ".%" PRIu64 ".%" PRIu32 ".log", directory, engine,
                          incarnation, rank);
    if (length < 0 || (size_t)length >= sizeof path) {
        errno = ENAMETOOLONG;
        return false;
    }
    event_log_close();
    event_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    return event_fd >= 0;
}

void event_log_close(void)
{
    if (event_fd >= 0)
        close(event_fd);
    event_fd = -1;
}

static size_t fit(int length, size_t used, size_t bytes)
{
    size_t total = used + (length > 0 ? (size_t)length : 0);
    return total < bytes - 1 ? total : bytes - 2;
}

/* A full disk must not stop the engine, so the outcome is not looked at. */
static void put_line(int fd, char *line, size_t length)
{
    line[length++] = '\n';
    ssize_t written = write(fd, line, length);
    (void)written;
}

void event_log(const char *format, ...)
{
    if (event_fd < 0)
        return;
    char line[512];
    size_t used = fit(snprintf(line, sizeof line, "%" PRIu64 " ", monotonic_ns()), 0, sizeof line);
    va_list arguments;
    va_start(arguments, format);
    used = fit(vsnprintf(line + used, sizeof line - used, format, arguments), used, sizeof line);
    va_end(arguments);
    put_line(event_fd, line, used);
}

void event_log_escape(const char *text, char *ret, uint32_t ret_bytes)
{
    uint32_t used = 0;
    for (const unsigned char *p = (const unsigned char *)text; *p != 0 && used + 4 < ret_bytes; p++) {
        if (*p <= ' ' || *p == 0x7f || *p == '%' || *p == '=')
            used += (uint32_t)snprintf(ret + used, ret_bytes - used, "%%%02X", *p);
        else
            ret[used++] = (char)*p;
    }
    ret[used] = 0;
}

void note_configure(enum note_level most, int fd, uint32_t engine, uint32_t rank)
{
    note_most = most;
    note_fd = fd;
    note_engine = engine;
    note_rank = rank;
}

void note(enum note_level level, const char *format, ...)
{
    static const char *const names[] = {
        [NOTE_ERROR] = "error", [NOTE_WARNING] = "warning", [NOTE_INFO] = "info", [NOTE_DEBUG] = "debug"};
    if (level > note_most)
        return;
    char line[1024];
    size_t used = fit(snprintf(line, sizeof line, "minillm: engine %" PRIu32 " rank %" PRIu32 ": %s: ", note_engine,
                               note_rank, names[level]),
                      0, sizeof line);
    va_list arguments;
    va_start(arguments, format);
    used = fit(vsnprintf(line + used, sizeof line - used, format, arguments), used, sizeof line);
    va_end(arguments);
    put_line(note_fd, line, used);
}
