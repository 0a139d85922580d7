/* SPDX-License-Identifier: Apache-2.0 */
#include "endpoint.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 1024 }; /* the kernel has a limit of its own */

__attribute__((format(printf, 3, 4))) static bool failed(char *text, size_t bytes, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, bytes, format, arguments);
    va_end(arguments);
    return false;
}

enum { SUFFIX_BYTES = sizeof ".0123456789abcdef" };

/* Says now what would only come out at promotion: a path that is too long or a directory that cannot be written. */
static bool open_unix(struct endpoint *e, const char *path, char *text, size_t bytes)
{
    const size_t longest = sizeof e->path - SUFFIX_BYTES;
    if (path[0] == 0 || strlen(path) > longest)
        return failed(text, bytes, "socket path \"%.120s\" must be 1 to %zu bytes long", path, longest);
    snprintf(e->path, sizeof e->path, "%s", path);
    snprintf(e->name, sizeof e->name, "unix:%s", path);
    char directory[sizeof e->path];
    snprintf(directory, sizeof directory, "%s", path);
    if (access(dirname(directory), W_OK | X_OK) != 0)
        return failed(text, bytes, "cannot make a socket in the directory of %s: %s", path, strerror(errno));
    e->is_unix = true;
    e->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return e->fd >= 0 || failed(text, bytes, "cannot make a Unix socket: %s", strerror(errno));
}

/* Bound under a name of its own, then renamed over PATH. Pids would not do: containers repeat them. */
static bool listen_unix(struct endpoint *e, char *text, size_t bytes)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    uint64_t random;
    struct stat status;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return failed(text, bytes, "cannot get a random number: %s", strerror(errno));
    snprintf(address.sun_path, sizeof address.sun_path, "%.*s.%016" PRIx64,
             (int)(sizeof address.sun_path - SUFFIX_BYTES), e->path, random);
    if (bind(e->fd, (struct sockaddr *)&address, sizeof address) != 0)
        return failed(text, bytes, "cannot bind %s: %s", address.sun_path, strerror(errno));
    if (listen(e->fd, BACKLOG) != 0 || stat(address.sun_path, &status) != 0 || rename(address.sun_path, e->path) != 0) {
        failed(text, bytes, "cannot listen on %s: %s", e->path, strerror(errno));
        unlink(address.sun_path);
        return false;
    }
    e->device = status.st_dev;
    e->inode = status.st_ino;
    return true;
}

static bool open_tcp(struct endpoint *e, const char *port_text, char *text, size_t bytes)
{
    char *end;
    errno = 0;
    unsigned long port = strtoul(port_text, &end, 10);
    if (port_text[0] < '0' || port_text[0] > '9' || *end != 0 || errno != 0 || port > 65535)
        return failed(text, bytes, "port \"%.20s\" must be a number from 0 to 65535", port_text);
    e->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (e->fd < 0)
        return failed(text, bytes, "cannot make a TCP socket: %s", strerror(errno));
    int yes = 1;
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    setsockopt(e->fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (port != 0) /* shared by the engines of one user; only the serving one listens */
        setsockopt(e->fd, SOL_SOCKET, SO_REUSEPORT, &yes, sizeof yes);
    if (bind(e->fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        getsockname(e->fd, (struct sockaddr *)&address, &size) != 0) {
        failed(text, bytes, "cannot bind 127.0.0.1:%lu: %s", port, strerror(errno));
        close(e->fd);
        return false;
    }
    snprintf(e->name, sizeof e->name, "tcp:127.0.0.1:%u", (unsigned)ntohs(address.sin_port));
    return true;
}

bool endpoint_open(struct endpoint *e, const char *listen_on, char *ret_text, size_t text_bytes)
{
    static const char unix_prefix[] = "unix:", tcp_prefix[] = "tcp:127.0.0.1:";
    *e = (struct endpoint){.fd = -1};
    if (strncmp(listen_on, unix_prefix, sizeof unix_prefix - 1) == 0)
        return open_unix(e, listen_on + sizeof unix_prefix - 1, ret_text, text_bytes);
    if (strncmp(listen_on, tcp_prefix, sizeof tcp_prefix - 1) == 0)
        return open_tcp(e, listen_on + sizeof tcp_prefix - 1, ret_text, text_bytes);
    return failed(ret_text, text_bytes, "\"%.60s\" must be unix:PATH or tcp:127.0.0.1:PORT", listen_on);
}

bool endpoint_listen(struct endpoint *e, char *ret_text, size_t text_bytes)
{
    if (e->is_unix)
        e->listening = listen_unix(e, ret_text, text_bytes);
    else
        e->listening = listen(e->fd, BACKLOG) == 0 ||
                       failed(ret_text, text_bytes, "cannot listen on %s: %s", e->name, strerror(errno));
    return e->listening;
}

void endpoint_close(struct endpoint *e)
{
    if (e->fd < 0)
        return;
    struct stat status;
    if (e->is_unix && e->listening && stat(e->path, &status) == 0 && status.st_dev == e->device &&
        status.st_ino == e->inode)
        unlink(e->path);
    close(e->fd);
    e->fd = -1;
}
