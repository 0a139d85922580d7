/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"

enum {
    BACKLOG = 128,
    LOCK_TIMEOUT_MS = 2000,
    SMALL_BYTES = 4096,    /* most messages; larger ones are encoded on the heap */
    KERNEL_MAX_FDS = 253,  /* SCM_MAX_FD. With room for all of them MSG_CTRUNC means one thing: out of descriptors */
    BUFFER_BYTES = 212992, /* the kernel's default, and what one message of the largest size needs */
};

static gms_status fill_address(const char *path, struct sockaddr_un *ret_address, struct gms_error *ret_error)
{
    const size_t bytes = path ? strlen(path) : 0;

    if (bytes == 0 || bytes >= sizeof(ret_address->sun_path)) {
        return gms_fail(ret_error, GMS_E_INVALID,
                        "socket path \"%.200s\" has %zu bytes, it must have 1 to %zu; use a shorter run directory",
                        path ? path : "", bytes, sizeof(ret_address->sun_path) - 1);
    }
    memset(ret_address, 0, sizeof(*ret_address));
    ret_address->sun_family = AF_UNIX;
    memcpy(ret_address->sun_path, path, bytes + 1);
    return GMS_OK;
}

static gms_status new_socket(int *ret_fd, struct gms_error *ret_error)
{
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0) {
        return gms_fd_fail("socket", ret_error);
    }
    *ret_fd = fd;
    return GMS_OK;
}

/* A machine whose default is smaller must still carry the largest message. */
static void grow_send_buffer(int fd)
{
    int bytes = 0;
    socklen_t length = sizeof(bytes);

    if (getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &length) == 0 && bytes < BUFFER_BYTES) {
        bytes = BUFFER_BYTES;
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    }
}

/* ------------------------------------------------------------------------------------------------ listen ----- */

/* Is the socket at `address` without an owner? OK: yes, proven. `*ret_inode` is what was probed. */
static gms_status prove_stale(const struct sockaddr_un *address, const struct stat *found, struct gms_error *ret_error)
{
    const char *path = address->sun_path;
    int fd = -1;

    if (!S_ISSOCK(found->st_mode)) {
        return gms_fail(ret_error, GMS_E_EXISTS, "%s exists and is not a socket; it is not removed, look at it first",
                        path);
    }
    gms_status status = new_socket(&fd, ret_error);
    if (status != GMS_OK) {
        return status;
    }
    const int error = connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0 ? 0 : errno;
    switch (error) {
    case ECONNREFUSED: /* the only answer that proves it */
        break;
    case 0: {
        struct ucred peer = {.pid = 0};
        socklen_t length = sizeof(peer);

        (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length);
        status = gms_fail(ret_error, GMS_E_EXISTS, "%s has a live owner, process %ld%s; stop it first", path,
                          (long)peer.pid, peer.pid == 0 ? " (outside this PID namespace)" : "");
        break;
    }
    case EPROTOTYPE:
        status = gms_fail(ret_error, GMS_E_EXISTS, "%s has a live owner that speaks something else", path);
        break;
    default:
        status = gms_fail(ret_error, GMS_E_BUSY,
                          "%s may have an owner that is stopped or overloaded (%s): not proven stale, not removed",
                          path, strerror(error));
        break;
    }
    gms_fd_close(&fd);
    return status;
}

/* With the lock held: makes `address` free to bind, or says why not. */
static gms_status clear_path(const struct sockaddr_un *address, struct gms_error *ret_error)
{
    const char *path = address->sun_path;
    struct stat probed;
    struct stat now;

    if (lstat(path, &probed) < 0) {
        return errno == ENOENT ? GMS_OK : gms_fail(ret_error, GMS_E_SYSTEM, "%s: %s", path, strerror(errno));
    }
    gms_status status = prove_stale(address, &probed, ret_error);
    if (status != GMS_OK) {
        return status;
    }
    /* Whoever does not know our lock may have put something else there meanwhile. */
    if (lstat(path, &now) < 0) {
        return errno == ENOENT ? GMS_OK : gms_fail(ret_error, GMS_E_SYSTEM, "%s: %s", path, strerror(errno));
    }
    if (now.st_dev != probed.st_dev || now.st_ino != probed.st_ino) {
        return gms_fail(ret_error, GMS_E_BUSY, "%s was replaced while it was probed; try again", path);
    }
    if (unlink(path) < 0 && errno != ENOENT) {
        return gms_fail(ret_error, GMS_E_SYSTEM, "stale socket %s cannot be removed: %s", path, strerror(errno));
    }
    return GMS_OK;
}

gms_status gms_channel_listen(const char *path, int *ret_fd, struct gms_error *ret_error)
{
    struct sockaddr_un address;
    char lock_path[sizeof(address.sun_path) + sizeof(".lock")];
    int lock_fd = -1;
    int fd = -1;
    gms_status status = fill_address(path, &address, ret_error);

    if (status != GMS_OK) {
        return status;
    }
    snprintf(lock_path, sizeof(lock_path), "%s.lock", path);
    status = gms_file_lock(lock_path, LOCK_TIMEOUT_MS, &lock_fd, ret_error);
    if (status != GMS_OK) {
        return status;
    }
    status = clear_path(&address, ret_error);
    if (status == GMS_OK) {
        status = new_socket(&fd, ret_error);
    }
    if (status == GMS_OK) {
        /* Before bind, where it gives the mode of the name: no moment in which others could connect. */
        (void)fchmod(fd, 0600);
        if (bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
            status = gms_fail(ret_error, errno == EADDRINUSE ? GMS_E_EXISTS : GMS_E_SYSTEM, "bind to %s: %s", path,
                              strerror(errno));
        } else if (listen(fd, BACKLOG) < 0) {
            status = gms_fail(ret_error, GMS_E_SYSTEM, "listen on %s: %s", path, strerror(errno));
            (void)unlink(path);
        }
    }
    if (status == GMS_OK) {
        *ret_fd = fd;
        fd = -1;
    }
    gms_fd_close(&fd);
    gms_fd_close(&lock_fd);
    return status;
}

/* --------------------------------------------------------------------------------------- connect, accept ----- */

gms_status gms_channel_connect(const char *path, int timeout_ms, int *ret_fd, struct gms_error *ret_error)
{
    const uint64_t deadline_ns = gms_clock_ns() + (uint64_t)(timeout_ms < 0 ? 0 : timeout_ms) * GMS_NS_PER_MS;
    struct sockaddr_un address;
    int pause_ms = 1;
    int fd = -1;
    gms_status status = fill_address(path, &address, ret_error);

    if (status == GMS_OK) {
        status = new_socket(&fd, ret_error);
    }
    if (status != GMS_OK) {
        return status;
    }
    for (;;) {
        if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0) {
            grow_send_buffer(fd);
            *ret_fd = fd;
            return GMS_OK;
        }
        const int error = errno;
        if (error == EAGAIN || error == EINTR) {
            /* A full backlog. A Unix socket does not go on connecting by itself, so ask again. */
            const int left_ms = gms_clock_poll_ms(deadline_ns);

            if (left_ms == 0) {
                status = gms_fail(ret_error, GMS_E_TIMEOUT,
                                  "%s: its owner did not accept within %d ms; it may be stopped or overloaded", path,
                                  timeout_ms);
                break;
            }
            (void)poll(NULL, 0, pause_ms < left_ms ? pause_ms : left_ms);
            pause_ms = pause_ms < 16 ? pause_ms * 2 : 16;
            continue;
        }
        if (error == ENOENT || error == ENOTDIR) {
            status = gms_fail(ret_error, GMS_E_NOT_FOUND, "there is no socket at %s", path);
        } else if (error == ECONNREFUSED) {
            status = gms_fail(ret_error, GMS_E_DISCONNECTED, "nobody listens at %s", path);
        } else if (error == EACCES || error == EPERM) {
            status = gms_fail(ret_error, GMS_E_PERMISSION, "%s: %s; it belongs to another user", path, strerror(error));
        } else {
            status = gms_fail(ret_error, GMS_E_SYSTEM, "connect to %s: %s", path, strerror(error));
        }
        break;
    }
    gms_fd_close(&fd);
    return status;
}

gms_status gms_channel_accept(int listener, int *ret_fd, pid_t *ret_pid, uid_t *ret_uid, struct gms_error *ret_error)
{
    struct ucred peer;
    socklen_t length = sizeof(peer);
    int fd;

    do {
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    } while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
    if (fd < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return gms_fail(ret_error, GMS_E_AGAIN, "nobody waits to be accepted");
        }
        return gms_fd_fail("accept", ret_error);
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0) {
        const gms_status status = gms_fail(ret_error, GMS_E_SYSTEM, "credentials of a client: %s", strerror(errno));
        gms_fd_close(&fd);
        return status;
    }
    if (peer.uid != geteuid()) {
        gms_fd_close(&fd);
        return gms_fail(ret_error, GMS_E_PERMISSION,
                        "client of uid %u (process %ld) refused: this deployment belongs to uid %u", (unsigned)peer.uid,
                        (long)peer.pid, (unsigned)geteuid());
    }
    grow_send_buffer(fd);
    *ret_fd = fd;
    if (ret_pid) {
        *ret_pid = peer.pid;
    }
    if (ret_uid) {
        *ret_uid = peer.uid;
    }
    return GMS_OK;
}

/* -------------------------------------------------------------------------------------------------- send ----- */

/* An encoded message, on the stack when it is small. */
struct packet {
    unsigned char small[SMALL_BYTES];
    unsigned char *heap;
    void *data;
    size_t bytes;
};

static gms_status packet_make(const struct gms_message *message, struct packet *ret_packet, struct gms_error *ret_error)
{
    ret_packet->heap = NULL;
    ret_packet->data = ret_packet->small;
    if (gms_message_encode(message, ret_packet->small, sizeof(ret_packet->small), &ret_packet->bytes, NULL) == GMS_OK) {
        return GMS_OK;
    }
    ret_packet->heap = malloc(GMS_WIRE_MAX_BYTES);
    if (!ret_packet->heap) {
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no %d bytes to encode %s", GMS_WIRE_MAX_BYTES,
                        gms_message_name(message->type));
    }
    ret_packet->data = ret_packet->heap;
    const gms_status status =
        gms_message_encode(message, ret_packet->heap, GMS_WIRE_MAX_BYTES, &ret_packet->bytes, ret_error);
    if (status != GMS_OK) {
        free(ret_packet->heap);
        ret_packet->heap = NULL;
    }
    return status;
}

static gms_status packet_send(int fd, const struct gms_message *message, const struct packet *packet,
                              struct gms_error *ret_error)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * GMS_WIRE_MAX_FDS)];
    } control;
    struct iovec vector = {.iov_base = packet->data, .iov_len = packet->bytes};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};
    ssize_t sent;

    if (message->fd_count > 0) {
        const size_t fds_bytes = sizeof(int) * message->fd_count;

        memset(&control, 0, sizeof(control));
        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE(fds_bytes);
        struct cmsghdr *part = CMSG_FIRSTHDR(&header);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN(fds_bytes);
        memcpy(CMSG_DATA(part), message->fds, fds_bytes);
    }
    do {
        sent = sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent >= 0) {
        return GMS_OK; /* a datagram goes whole or not at all */
    }
    const char *name = gms_message_name(message->type);
    switch (errno) {
    case EAGAIN:
    case ENOBUFS:
        return gms_fail(ret_error, GMS_E_AGAIN, "%s not sent: the peer does not read", name);
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
    case ECONNREFUSED:
        return gms_fail(ret_error, GMS_E_DISCONNECTED, "%s not sent: the peer closed the connection", name);
    case ETOOMANYREFS:
        return gms_fail(ret_error, GMS_E_DESCRIPTORS,
                        "%s not sent: too many descriptors of this user are on their way unread (limit: ulimit -n)",
                        name);
    case EBADF:
        return gms_fail(ret_error, GMS_E_SYSTEM, "%s not sent: the socket or a descriptor to send is not open", name);
    default:
        return gms_fail(ret_error, GMS_E_SYSTEM, "%s (%zu bytes, %u descriptors) not sent: %s", name, packet->bytes,
                        message->fd_count, strerror(errno));
    }
}

gms_status gms_channel_send(int fd, const struct gms_message *message, struct gms_error *ret_error)
{
    struct packet packet;
    gms_status status = packet_make(message, &packet, ret_error);

    if (status == GMS_OK) {
        status = packet_send(fd, message, &packet, ret_error);
        free(packet.heap);
    }
    return status;
}

/* Waits for `events` until the deadline. OK: look again; TIMEOUT. EINTR costs nothing: the deadline is absolute. */
static gms_status wait_for(int fd, short events, uint64_t deadline_ns, const char *what, struct gms_error *ret_error)
{
    for (;;) {
        struct pollfd entry = {.fd = fd, .events = events};
        const int left_ms = gms_clock_poll_ms(deadline_ns);
        const int ready = poll(&entry, 1, left_ms);

        if (ready > 0) {
            return GMS_OK;
        }
        if (ready < 0 && errno != EINTR) {
            return gms_fail(ret_error, GMS_E_SYSTEM, "poll: %s", strerror(errno));
        }
        if (gms_clock_poll_ms(deadline_ns) == 0) {
            return gms_fail(ret_error, GMS_E_TIMEOUT, "deadline passed: the peer %s", what);
        }
    }
}

gms_status gms_channel_send_until(int fd, const struct gms_message *message, uint64_t deadline_ns,
                                  struct gms_error *ret_error)
{
    struct packet packet;
    gms_status status = packet_make(message, &packet, ret_error);

    if (status != GMS_OK) {
        return status;
    }
    do {
        status = packet_send(fd, message, &packet, ret_error);
        if (status != GMS_E_AGAIN) {
            break;
        }
        status = wait_for(fd, POLLOUT, deadline_ns, "does not read", ret_error);
    } while (status == GMS_OK);
    free(packet.heap);
    return status;
}

/* ----------------------------------------------------------------------------------------------- receive ----- */

/* Takes every descriptor out of the control data; those beyond `capacity` are closed. Returns how many came. */
static uint32_t take_fds(struct msghdr *header, int *ret_fds, uint32_t capacity)
{
    uint32_t count = 0;

    for (struct cmsghdr *part = CMSG_FIRSTHDR(header); part; part = CMSG_NXTHDR(header, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        const size_t fds = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < fds; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(fd));
            if (count < capacity) {
                ret_fds[count] = fd;
            } else {
                gms_fd_close(&fd);
            }
            count++;
        }
    }
    return count;
}

static void close_all(int *fds, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        gms_fd_close(&fds[i]);
    }
}

void gms_message_close_fds(struct gms_message *message)
{
    close_all(message->fds, message->fd_count < GMS_WIRE_MAX_FDS ? message->fd_count : GMS_WIRE_MAX_FDS);
    message->fd_count = 0;
}

gms_status gms_channel_receive(int fd, void *buffer, struct gms_message *ret_message, struct gms_error *ret_error)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * KERNEL_MAX_FDS)];
    } control;
    struct iovec vector = {.iov_base = buffer, .iov_len = GMS_WIRE_MAX_BYTES};
    struct msghdr header;
    int fds[GMS_WIRE_MAX_FDS];
    int resets = 0;
    ssize_t bytes;

    do {
        header = (struct msghdr){
            .msg_iov = &vector, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
        bytes = recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        /* A peer that closed without reading ours resets the connection; what it sent before is still there behind
         * that one error, and may be the reason for its leaving. */
    } while (bytes < 0 && (errno == EINTR || (errno == ECONNRESET && resets++ == 0)));
    if (bytes < 0) {
        switch (errno) {
        case EAGAIN:
            return gms_fail(ret_error, GMS_E_AGAIN, "nothing to receive");
        case ECONNRESET:
        case ENOTCONN:
        case EPIPE:
            return gms_fail(ret_error, GMS_E_DISCONNECTED, "the peer closed the connection");
        default:
            return gms_fail(ret_error, GMS_E_SYSTEM, "receive: %s", strerror(errno));
        }
    }

    const uint32_t came = take_fds(&header, fds, GMS_WIRE_MAX_FDS);
    const uint32_t kept = came < GMS_WIRE_MAX_FDS ? came : GMS_WIRE_MAX_FDS;
    gms_status status;
    if ((header.msg_flags & MSG_CTRUNC) != 0) {
        errno = EMFILE;
        status = gms_fd_fail("descriptors in a message were lost", ret_error);
    } else if (bytes == 0) {
        status = gms_fail(ret_error, GMS_E_DISCONNECTED, "the peer closed the connection");
    } else if ((header.msg_flags & MSG_TRUNC) != 0) {
        status = gms_fail(ret_error, GMS_E_PROTOCOL, "message longer than the limit of %d bytes", GMS_WIRE_MAX_BYTES);
    } else {
        struct gms_message message;

        status = gms_message_decode(buffer, (size_t)bytes, &message, ret_error);
        if (status == GMS_OK && came > gms_message_fd_limit(message.type)) {
            status = gms_fail(ret_error, GMS_E_PROTOCOL, "%s came with %u descriptors, the limit is %u",
                              gms_message_name(message.type), came, gms_message_fd_limit(message.type));
        }
        if (status == GMS_OK) {
            memcpy(message.fds, fds, sizeof(int) * kept);
            message.fd_count = kept;
            *ret_message = message;
            return GMS_OK;
        }
    }
    close_all(fds, kept);
    return status;
}

gms_status gms_channel_receive_until(int fd, void *buffer, uint64_t deadline_ns, struct gms_message *ret_message,
                                     struct gms_error *ret_error)
{
    for (;;) {
        gms_status status = gms_channel_receive(fd, buffer, ret_message, ret_error);

        if (status != GMS_E_AGAIN) {
            return status;
        }
        status = wait_for(fd, POLLIN, deadline_ns, "does not answer", ret_error);
        if (status != GMS_OK) {
            return status;
        }
    }
}
