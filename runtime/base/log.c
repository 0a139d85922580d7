/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <limits.h>
#include <poll.h>

#include "base/fd.h"

enum { LINE_BYTES = 2048, IDENT_BYTES = 64 }; /* a line is below PIPE_BUF, so that pipes keep it whole */

enum sink_kind { SINK_FILE, SINK_SOCKET, SINK_STREAM, SINK_JOURNAL };

static const struct {
    const char *name;
    int priority; /* syslog's */
} levels[] = {
    [GMS_LOG_ERROR] = {"error", 3}, [GMS_LOG_WARNING] = {"warning", 4}, [GMS_LOG_NOTICE] = {"notice", 5},
    [GMS_LOG_INFO] = {"info", 6},   [GMS_LOG_DEBUG] = {"debug", 7},
};

static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    int fd;
    bool owned;
    enum sink_kind kind;
    enum gms_log_level level;
    char ident[IDENT_BYTES];
    char path[PATH_MAX]; /* of a file; empty otherwise */
    unsigned long lost;  /* lines since the last one that got through */
} sink = {.fd = STDERR_FILENO, .kind = SINK_STREAM, .level = GMS_LOG_INFO, .ident = "gms"};

gms_status gms_log_level_parse(const char *text, enum gms_log_level *ret_level, struct gms_error *ret_error)
{
    for (size_t i = 0; text && i < sizeof(levels) / sizeof(levels[0]); i++) {
        if (strcmp(text, levels[i].name) == 0) {
            *ret_level = (enum gms_log_level)i;
            return GMS_OK;
        }
    }
    return gms_fail(ret_error, GMS_E_INVALID,
                    "log level \"%.32s\" is unknown; use error, warning, notice, info or debug", text ? text : "");
}

static gms_status open_file(const char *path, int *ret_fd, struct gms_error *ret_error)
{
    /* O_NONBLOCK: opening a FIFO that nobody reads must not hang; it means nothing for a regular file. */
    const int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600);
    if (fd < 0) {
        return gms_fail(ret_error, errno == EMFILE ? GMS_E_DESCRIPTORS : GMS_E_SYSTEM, "log file %.300s: %s", path,
                        strerror(errno));
    }
    *ret_fd = fd;
    return GMS_OK;
}

static gms_status open_journal(const char *path, int *ret_fd, struct gms_error *ret_error)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    if (strlen(path) >= sizeof(address.sun_path)) {
        return gms_fail(ret_error, GMS_E_INVALID, "journal socket path has %zu bytes, the limit is %zu", strlen(path),
                        sizeof(address.sun_path) - 1);
    }
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        const gms_status status =
            gms_fail(ret_error, GMS_E_SYSTEM,
                     "no journal at %s: %s; is systemd-journald running here? Use stderr or file:PATH otherwise", path,
                     strerror(errno));
        gms_fd_close(&fd);
        return status;
    }
    *ret_fd = fd;
    return GMS_OK;
}

static enum sink_kind kind_of(int fd)
{
    struct stat info;

    if (fstat(fd, &info) == 0) {
        if (S_ISREG(info.st_mode)) {
            return SINK_FILE;
        }
        if (S_ISSOCK(info.st_mode)) {
            return SINK_SOCKET;
        }
    }
    return SINK_STREAM;
}

gms_status gms_log_open(const char *ident, const char *destination, enum gms_log_level level,
                        struct gms_error *ret_error)
{
    static const char journal_path[] = "/run/systemd/journal/socket";
    const char *path = "";
    enum sink_kind kind;
    int fd = STDERR_FILENO;
    gms_status status = GMS_OK;

    if (!ident || !destination || (unsigned)level >= sizeof(levels) / sizeof(levels[0])) {
        return gms_fail(ret_error, GMS_E_INVALID, "a log needs a name, a destination and a level");
    }
    if (strcmp(destination, "stderr") == 0) {
        kind = kind_of(fd);
    } else if (strncmp(destination, "file:", 5) == 0 && destination[5] != '\0') {
        path = destination + 5;
        if (strlen(path) >= sizeof(sink.path)) {
            return gms_fail(ret_error, GMS_E_INVALID, "log file path has %zu bytes, the limit is %zu", strlen(path),
                            sizeof(sink.path) - 1);
        }
        status = open_file(path, &fd, ret_error);
        kind = kind_of(fd);
    } else if (strcmp(destination, "journald") == 0) {
        status = open_journal(journal_path, &fd, ret_error);
        kind = SINK_JOURNAL;
    } else if (strncmp(destination, "journald:", 9) == 0 && destination[9] != '\0') {
        status = open_journal(destination + 9, &fd, ret_error);
        kind = SINK_JOURNAL;
    } else {
        return gms_fail(ret_error, GMS_E_INVALID,
                        "log destination \"%.64s\" is unknown; use stderr, file:PATH or journald", destination);
    }
    if (status != GMS_OK) {
        return status;
    }
    pthread_mutex_lock(&sink_lock);
    int former = sink.owned ? sink.fd : -1;
    sink.fd = fd;
    sink.owned = fd != STDERR_FILENO;
    sink.kind = kind;
    __atomic_store_n(&sink.level, level, __ATOMIC_RELAXED);
    snprintf(sink.ident, sizeof(sink.ident), "%s", ident);
    strcpy(sink.path, path);
    pthread_mutex_unlock(&sink_lock);
    gms_fd_close(&former);
    return GMS_OK;
}

gms_status gms_log_reopen(struct gms_error *ret_error)
{
    char path[PATH_MAX];
    int fd = -1;

    pthread_mutex_lock(&sink_lock);
    strcpy(path, sink.path);
    pthread_mutex_unlock(&sink_lock);
    if (path[0] == '\0') {
        return GMS_OK;
    }
    const gms_status status = open_file(path, &fd, ret_error);
    if (status != GMS_OK) {
        return status;
    }
    pthread_mutex_lock(&sink_lock);
    int former = sink.fd;
    sink.fd = fd;
    sink.kind = kind_of(fd);
    pthread_mutex_unlock(&sink_lock);
    gms_fd_close(&former);
    return GMS_OK;
}

/* One write; true when the line is out. O_NONBLOCK is never set on stderr: others share that open file. */
static bool put(const char *line, size_t bytes)
{
    struct iovec vector = {.iov_base = (char *)(uintptr_t)line, .iov_len = bytes};

    switch (sink.kind) {
    case SINK_FILE:
        return write(sink.fd, line, bytes) == (ssize_t)bytes;
    case SINK_SOCKET:
    case SINK_JOURNAL:
        return send(sink.fd, line, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)bytes;
    case SINK_STREAM:
        break;
    }
    const ssize_t written = pwritev2(sink.fd, &vector, 1, -1, RWF_NOWAIT);
    if (written < 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) {
        struct pollfd entry = {.fd = sink.fd, .events = POLLOUT};

        return poll(&entry, 1, 0) == 1 && (entry.revents & POLLOUT) != 0 &&
               write(sink.fd, line, bytes) == (ssize_t)bytes;
    }
    return written == (ssize_t)bytes;
}

static void put_line(enum gms_log_level level, const char *text)
{
    char line[LINE_BYTES];
    int bytes;

    if (sink.kind == SINK_JOURNAL) {
        bytes = snprintf(line, sizeof(line), "PRIORITY=%d\nSYSLOG_IDENTIFIER=%s\nMESSAGE=%s\n", levels[level].priority,
                         sink.ident, text);
    } else {
        struct timespec now;
        struct tm parts;
        char stamp[32];

        clock_gettime(CLOCK_REALTIME, &now);
        gmtime_r(&now.tv_sec, &parts);
        strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", &parts);
        bytes = snprintf(line, sizeof(line), "%s.%06ldZ %s %s: %s\n", stamp, now.tv_nsec / 1000, sink.ident,
                         levels[level].name, text);
    }
    if (bytes < 0 || bytes >= (int)sizeof(line)) {
        bytes = sizeof(line) - 1; /* cannot happen: text is cut to leave room */
        line[bytes - 1] = '\n';
    }
    if (!put(line, (size_t)bytes)) {
        sink.lost++;
    }
}

void gms_log(enum gms_log_level level, const char *format, ...)
{
    const int kept_errno = errno;
    char text[LINE_BYTES - IDENT_BYTES - 96];
    va_list arguments;

    if ((unsigned)level >= sizeof(levels) / sizeof(levels[0]) ||
        level > __atomic_load_n(&sink.level, __ATOMIC_RELAXED)) {
        return;
    }
    va_start(arguments, format);
    const int length = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (length < 0) {
        text[0] = '\0';
    } else if (length >= (int)sizeof(text)) {
        strcpy(text + sizeof(text) - 4, "...");
    }
    /* One call is one line, whatever a peer's text contains. */
    for (char *at = text; *at; at++) {
        if ((unsigned char)*at < 0x20 || *at == 0x7f) {
            *at = *at == '\n' || *at == '\t' ? ' ' : '?';
        }
    }
    pthread_mutex_lock(&sink_lock);
    if (sink.lost > 0) {
        char note[96];
        const unsigned long lost = sink.lost;

        snprintf(note, sizeof(note), "%lu log lines lost: the destination did not take them", lost);
        sink.lost = 0;
        put_line(GMS_LOG_WARNING, note);
        if (sink.lost > 0) {
            sink.lost = lost;
        }
    }
    put_line(level, text);
    pthread_mutex_unlock(&sink_lock);
    errno = kept_errno;
}
