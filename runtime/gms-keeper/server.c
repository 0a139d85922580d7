/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-keeper/server.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "core/ballot.h"
#include "wire/channel.h"

/* ------------------------------------------------------------------------------------------------- opening ----- */

/* The pid behind a socket, for texts: 0 when nobody answers. */
static int owner_of(const char *socket_path)
{
    struct ucred peer = {0};
    socklen_t length = sizeof(peer);
    int fd = -1;

    if (gms_channel_connect(socket_path, 100, &fd, NULL) != GMS_OK)
        return 0;
    (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length);
    gms_fd_close(&fd);
    return (int)peer.pid;
}

/*
 * Locks the directory itself: its inode stays while names in it are removed and made again. keeper.lock, held as well
 * where a directory cannot be locked (some network file systems), is also what gms_channel_listen locks for a moment.
 */
static gms_status lock_directory(struct server *server, struct gms_error *ret_error)
{
    server->directory_lock = open(server->run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (server->directory_lock < 0)
        return gms_fd_fail("run directory", ret_error);
    if (flock(server->directory_lock, LOCK_EX | LOCK_NB) == 0)
        return GMS_OK;
    if (errno == EWOULDBLOCK)
        return gms_fail(ret_error, GMS_E_EXISTS,
                        "another gms-keeper serves %s (process %d); one for each run directory", server->run_dir,
                        owner_of(server->socket_path));
    gms_log(GMS_LOG_INFO, "%s cannot be locked (%s); keeper.lock has to do", server->run_dir, strerror(errno));
    return GMS_OK;
}

static gms_status start_listening(struct server *server, struct gms_error *ret_error)
{
    char path[GMS_RUN_PATH_BYTES];
    struct stat status;
    gms_status result = gms_channel_listen(server->socket_path, &server->listener, ret_error);

    if (result != GMS_OK)
        return result;
    if (lstat(server->socket_path, &status) == 0) {
        server->socket_device = status.st_dev;
        server->socket_inode = status.st_ino;
    }
    result = gms_run_dir_path(server->run_dir, "keeper.lock", -1, path, ret_error);
    if (result == GMS_OK)
        result = gms_file_lock(path, 100, &server->name_lock, ret_error);
    return result;
}

static gms_status take_signals(struct server *server, struct gms_error *ret_error)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
        return gms_fail(ret_error, GMS_E_SYSTEM, "sigprocmask: %s", strerror(errno));
    server->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return server->signals < 0 ? gms_fd_fail("signalfd", ret_error) : GMS_OK;
}

static gms_status open_all(struct server *server, const char *run_dir, struct gms_error *ret_error)
{
    struct rlimit limit;
    gms_status status = gms_run_dir_path(run_dir, "keeper", -1, server->socket_path, ret_error);

    if (status == GMS_OK)
        status = gms_run_dir_check(run_dir, 1, 1, ret_error);
    if (status != GMS_OK)
        return status;
    snprintf(server->run_dir, sizeof(server->run_dir), "%s", run_dir);
    gms_fd_raise_limit();
    server->client_limit = SERVER_MAX_CLIENTS;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur / 4 < SERVER_MAX_CLIENTS)
        server->client_limit = limit.rlim_cur / 4 > 1 ? (unsigned)(limit.rlim_cur / 4) : 1;
    while (server->incarnation == 0)
        if (getrandom(&server->incarnation, sizeof(server->incarnation), 0) < 0 && errno != EINTR)
            return gms_fail(ret_error, GMS_E_SYSTEM, "getrandom: %s", strerror(errno));
    status = take_signals(server, ret_error);
    if (status == GMS_OK)
        status = lock_directory(server, ret_error);
    if (status == GMS_OK)
        status = start_listening(server, ret_error);
    return status;
}

gms_status server_open(struct server *server, const char *run_dir, struct gms_error *ret_error)
{
    gms_status status;

    memset(server, 0, sizeof(*server));
    server->directory_lock = server->name_lock = server->listener = server->signals = -1;
    for (unsigned i = 0; i < SERVER_MAX_CLIENTS; i++)
        server->clients[i].fd = -1;
    status = open_all(server, run_dir, ret_error);
    if (status != GMS_OK)
        server_close(server);
    return status;
}

/* Does the socket's name still lead to us? */
static bool is_reachable(const struct server *server)
{
    struct stat status;
    return lstat(server->socket_path, &status) == 0 && status.st_dev == server->socket_device &&
           status.st_ino == server->socket_inode;
}

void server_close(struct server *server)
{
    for (unsigned i = 0; i < SERVER_MAX_CLIENTS; i++)
        gms_fd_close(&server->clients[i].fd);
    if (server->listener >= 0 && is_reachable(server))
        unlink(server->socket_path);
    gms_fd_close(&server->listener);
    gms_fd_close(&server->signals);
    shelf_clear(&server->shelf);
    worlds_clear(&server->worlds);
    gms_fd_close(&server->name_lock);
    gms_fd_close(&server->directory_lock);
}

/* ------------------------------------------------------------------------------------------------- clients ----- */

struct server_client *server_find_client(struct server *server, uint64_t id)
{
    for (unsigned i = 0; i < server->client_limit; i++)
        if (id != 0 && server->clients[i].id == id)
            return &server->clients[i];
    return NULL;
}

void server_close_client(struct server *server, struct server_client *client)
{
    worlds_forget_client(&server->worlds, client->id);
    gms_fd_close(&client->fd);
    *client = (struct server_client){.fd = -1};
    server->client_count--;
}

/* Makes room by closing the client that showed no token and has been silent longest. False: all are at work. */
static bool close_idle_client(struct server *server)
{
    struct server_client *oldest = NULL;
    for (unsigned i = 0; i < server->client_limit; i++) {
        struct server_client *client = &server->clients[i];
        if (client->id != 0 && !client->granted && !client->waits && (!oldest || client->heard < oldest->heard))
            oldest = client;
    }
    if (!oldest)
        return false;
    gms_log(GMS_LOG_INFO, "client %" PRIu64 " (process %d) is closed: silent, and the place is needed", oldest->id,
            (int)oldest->pid);
    server_close_client(server, oldest);
    return true;
}

static void accept_client(struct server *server)
{
    struct gms_error error;
    struct server_client *place = NULL;
    pid_t pid = 0;
    int fd = -1;
    gms_status status = gms_channel_accept(server->listener, &fd, &pid, NULL, &error);

    if (status == GMS_E_AGAIN)
        return;
    if (status != GMS_OK) {
        gms_log(GMS_LOG_WARNING, "%s", error.text);
        /* Out of descriptors: whoever waits would keep the listener ready for ever. */
        if (status == GMS_E_DESCRIPTORS && !close_idle_client(server))
            server->deaf_until_ns = gms_clock_ns() + SERVER_DEAF_MS * GMS_NS_PER_MS;
        return;
    }
    if (server->client_count >= server->client_limit && !close_idle_client(server)) {
        gms_log(GMS_LOG_WARNING, "process %d is refused: all %u places are taken", (int)pid, server->client_limit);
        gms_fd_close(&fd);
        return;
    }
    for (unsigned i = 0; i < server->client_limit && !place; i++)
        if (server->clients[i].id == 0)
            place = &server->clients[i];
    *place = (struct server_client){.id = ++server->next_client, .heard = ++server->next_heard, .fd = fd, .pid = pid};
    server->client_count++;
}

/* One message at a time, so that nobody is heard twice while another waits. */
static void hear_client(struct server *server, struct server_client *client)
{
    struct gms_message message;
    struct gms_error error;
    gms_status status = gms_channel_receive(client->fd, server->buffer, &message, &error);

    if (status == GMS_E_AGAIN)
        return;
    if (status == GMS_OK) {
        client->heard = ++server->next_heard;
        if (!server_request(server, client, &message))
            server_close_client(server, client);
        return;
    }
    if (status != GMS_E_DISCONNECTED) {
        gms_log(GMS_LOG_WARNING, "client %" PRIu64 " (process %d) is closed: %s", client->id, (int)client->pid,
                error.text);
        server_reply_status(server, client, 0, &error);
    }
    server_close_client(server, client);
}

/* ------------------------------------------------------------------------------------------------- signals ----- */

static void handle_term(struct server *server)
{
    uint64_t now_ns = gms_clock_ns(), since_ns = now_ns - server->term_ns;

    if (server->shelf.count == 0) {
        gms_log(GMS_LOG_NOTICE, "told to end; nothing is held");
        server->stop = true;
    } else if (server->term_ns != 0 && since_ns <= SERVER_TERM_AGAIN_MS * GMS_NS_PER_MS) {
        if (since_ns < SERVER_TERM_TOGETHER_MS * GMS_NS_PER_MS)
            return;
        gms_log(GMS_LOG_WARNING, "told to end twice: %zu descriptors are given up", server->shelf.count);
        server->stop = true;
    } else {
        server->term_ns = now_ns;
        gms_log(GMS_LOG_WARNING,
                "told to end, but memory would be lost: %zu descriptors are held. Tell me again within %d s, or use "
                "gms-keeper --run-dir %s --stop --force",
                server->shelf.count, SERVER_TERM_AGAIN_MS / 1000, server->run_dir);
    }
}

/* Log rotation; and the moment to come back when somebody cleaned our names away. */
static void handle_hangup(struct server *server)
{
    struct gms_error error;
    int former = server->listener;

    if (gms_log_reopen(&error) != GMS_OK)
        gms_log(GMS_LOG_ERROR, "%s", error.text);
    if (is_reachable(server))
        return;
    gms_fd_close(&server->name_lock);
    server->listener = -1;
    if (start_listening(server, &error) == GMS_OK) {
        gms_fd_close(&former);
        gms_log(GMS_LOG_NOTICE, "%s was gone; made anew", server->socket_path);
        return;
    }
    gms_log(GMS_LOG_ERROR, "%s", error.text);
    if (server->listener >= 0)
        gms_fd_close(&former);
    else
        server->listener = former;
}

static void handle_signals(struct server *server)
{
    struct signalfd_siginfo info;
    while (read(server->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGHUP)
            handle_hangup(server);
        else
            handle_term(server);
    }
}

/* ---------------------------------------------------------------------------------------------------- loop ----- */

enum { SIGNALS_AT, LISTENER_AT, CLIENTS_AT };

/* Who is listened to. Places without a client have fd -1, which poll passes over. */
static nfds_t fill(const struct server *server, struct pollfd *polled)
{
    nfds_t count = CLIENTS_AT;
    polled[SIGNALS_AT] = (struct pollfd){.fd = server->signals, .events = POLLIN};
    polled[LISTENER_AT] = (struct pollfd){.fd = server->deaf_until_ns ? -1 : server->listener, .events = POLLIN};
    for (unsigned i = 0; i < server->client_limit; i++)
        polled[count++] = (struct pollfd){.fd = server->clients[i].fd, .events = POLLIN};
    for (size_t i = 0; i < server->worlds.count; i++)
        polled[count++] = (struct pollfd){.fd = server->worlds.seats[i].pidfd, .events = POLLIN};
    return count;
}

gms_status server_run(struct server *server, struct gms_error *ret_error)
{
    struct pollfd polled[CLIENTS_AT + SERVER_MAX_CLIENTS + GMS_MAX_RANKS];
    uint64_t ids[SERVER_MAX_CLIENTS];

    while (!server->stop) {
        size_t seats = server->worlds.count;
        nfds_t count = fill(server, polled);
        uint64_t deadline_ns = worlds_deadline(&server->worlds), now_ns;
        int ready;

        if (server->deaf_until_ns != 0 && server->deaf_until_ns < deadline_ns)
            deadline_ns = server->deaf_until_ns;
        ready = poll(polled, count, gms_clock_poll_ms(deadline_ns));
        now_ns = gms_clock_ns();
        if (now_ns >= server->deaf_until_ns)
            server->deaf_until_ns = 0;

        if (ready < 0 && errno != EINTR)
            return gms_fail(ret_error, GMS_E_SYSTEM, "poll: %s", strerror(errno));
        if (ready < 0)
            continue;
        if (polled[SIGNALS_AT].revents)
            handle_signals(server);
        /* The ends of holders first: what follows may ask who holds. */
        for (size_t i = 0; i < seats; i++)
            if (polled[CLIENTS_AT + server->client_limit + i].revents ||
                (server->worlds.seats[i].waiter.client != 0 && server->worlds.seats[i].waiter.deadline_ns <= now_ns))
                server_settle(server, &server->worlds.seats[i], now_ns);
        /* A place may change its owner while this loop runs. */
        for (unsigned i = 0; i < server->client_limit; i++)
            ids[i] = server->clients[i].id;
        for (unsigned i = 0; i < server->client_limit; i++)
            if (polled[CLIENTS_AT + i].revents && polled[CLIENTS_AT + i].fd == server->clients[i].fd && ids[i] != 0 &&
                ids[i] == server->clients[i].id)
                hear_client(server, &server->clients[i]);
        if (polled[LISTENER_AT].revents)
            accept_client(server);
    }
    return GMS_OK;
}
