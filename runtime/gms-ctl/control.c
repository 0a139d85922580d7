/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-ctl/control.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/run_dir.h"
#include "core/ballot.h"
#include "gms/version.h"
#include "wire/channel.h"

static gms_status say_hello(struct gms_control *control, uint64_t timeout_ns, struct gms_error *ret_error)
{
    struct gms_message hello = {.type = GMS_MESSAGE_HELLO, .fd_count = 1}, welcome;
    int own = -1;
    gms_status status = gms_pidfd_open(getpid(), &own, ret_error);

    if (status != GMS_OK) {
        return status;
    }
    hello.hello.role = GMS_CLIENT_CONTROL;
    hello.hello.pid = (uint32_t)getpid();
    hello.hello.rank = control->rank;
    hello.hello.launch = (struct gms_bytes){"", 0};
    hello.hello.version = (struct gms_bytes){GMS_VERSION, sizeof GMS_VERSION - 1};
    hello.fds[0] = own;
    status = gms_control_ask(control, &hello, GMS_MESSAGE_WELCOME, timeout_ns, &welcome, ret_error);
    gms_fd_close(&own);
    if (status == GMS_OK && welcome.welcome.rank != control->rank) {
        return gms_fail(ret_error, GMS_E_REFUSED,
                        "rank %u's socket is answered by rank %u: is the run directory right?", control->rank,
                        welcome.welcome.rank);
    }
    return status;
}

gms_status gms_control_open(const char *run_dir, uint32_t rank, uint64_t timeout_ns, struct gms_control *ret_control,
                            struct gms_error *ret_error)
{
    struct gms_control control = {.fd = -1, .rank = rank};
    char path[GMS_RUN_PATH_BYTES];
    gms_status status = gms_run_dir_path(run_dir, "c", (int32_t)rank, path, ret_error);

    if (status != GMS_OK) {
        return status;
    }
    control.buffer = malloc(GMS_WIRE_MAX_BYTES);
    if (control.buffer == NULL) {
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a receive buffer of %d bytes", GMS_WIRE_MAX_BYTES);
    }
    status = gms_channel_connect(path, (int)(timeout_ns / GMS_NS_PER_MS), &control.fd, ret_error);
    if (status == GMS_OK) {
        status = say_hello(&control, timeout_ns, ret_error);
    }
    if (status != GMS_OK) {
        gms_control_close(&control);
        return status;
    }
    *ret_control = control;
    return GMS_OK;
}

void gms_control_close(struct gms_control *control)
{
    gms_fd_close(&control->fd);
    free(control->buffer);
    control->buffer = NULL;
}

static gms_status refusal(const struct gms_message *message, struct gms_error *ret_error)
{
    gms_status status = (gms_status)message->reply.status;
    const char *text = message->reply.text.data;

    if (message->reply.text.length == 0) {
        return gms_fail(ret_error, status, "%s", gms_status_text(status));
    }
    return gms_fail(ret_error, status, "%.*s", (int)message->reply.text.length, text);
}

gms_status gms_control_ask(struct gms_control *control, struct gms_message *request, enum gms_message_type expected,
                           uint64_t timeout_ns, struct gms_message *ret_answer, struct gms_error *ret_error)
{
    uint64_t deadline_ns = gms_clock_ns() + timeout_ns;
    gms_status status;

    request->request_id = ++control->request_id;
    status = gms_channel_send_until(control->fd, request, deadline_ns, ret_error);
    while (status == GMS_OK) {
        status = gms_channel_receive_until(control->fd, control->buffer, deadline_ns, ret_answer, ret_error);
        if (status != GMS_OK) {
            break;
        }
        gms_message_close_fds(ret_answer);
        if (ret_answer->request_id != control->request_id) {
            continue; /* news, or a late answer to an earlier question */
        }
        if (ret_answer->type == GMS_MESSAGE_REPLY && ret_answer->reply.status != GMS_OK) {
            return refusal(ret_answer, ret_error);
        }
        if (ret_answer->type != expected) {
            return gms_fail(ret_error, GMS_E_PROTOCOL, "asked for %s, got %s", gms_message_name(expected),
                            gms_message_name(ret_answer->type));
        }
        return GMS_OK;
    }
    return status;
}

gms_status gms_control_wait_end(struct gms_control *control, uint64_t deadline_ns, struct gms_error *ret_error)
{
    struct gms_message message;
    gms_status status;

    do {
        status = gms_channel_receive_until(control->fd, control->buffer, deadline_ns, &message, ret_error);
        if (status == GMS_OK) {
            gms_message_close_fds(&message);
        }
    } while (status == GMS_OK || status == GMS_E_PROTOCOL);
    return status == GMS_E_DISCONNECTED ? GMS_OK : status;
}

static int compare_ranks(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;

    return (a > b) - (a < b);
}

/* "c" and digits, without leading zeros. */
static int rank_of_name(const char *name)
{
    int rank = 0;

    if (name[0] != 'c' || name[1] == '\0' || (name[1] == '0' && name[2] != '\0')) {
        return -1;
    }
    for (const char *at = name + 1; *at != '\0'; at++) {
        if (*at < '0' || *at > '9' || rank >= GMS_MAX_RANKS) {
            return -1;
        }
        rank = rank * 10 + (*at - '0');
    }
    return rank < GMS_MAX_RANKS ? rank : -1;
}

gms_status gms_control_find_ranks(const char *run_dir, uint32_t **ret_ranks, size_t *ret_count,
                                  struct gms_error *ret_error)
{
    DIR *directory = opendir(run_dir);
    uint32_t *ranks;
    size_t count = 0;
    struct dirent *entry;
    struct stat about;

    if (directory == NULL) {
        return gms_fail(ret_error, errno == ENOENT ? GMS_E_NOT_FOUND : GMS_E_SYSTEM, "run directory %.200s: %s",
                        run_dir, strerror(errno));
    }
    ranks = calloc(GMS_MAX_RANKS, sizeof *ranks);
    if (ranks == NULL) {
        closedir(directory);
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for %d ranks", GMS_MAX_RANKS);
    }
    while ((entry = readdir(directory)) != NULL && count < GMS_MAX_RANKS) {
        int rank = rank_of_name(entry->d_name);

        if (rank >= 0 && fstatat(dirfd(directory), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISSOCK(about.st_mode)) {
            ranks[count++] = (uint32_t)rank;
        }
    }
    closedir(directory);
    if (count == 0) {
        free(ranks);
        return gms_fail(ret_error, GMS_E_NOT_FOUND,
                        "no coordinator has a socket (c0, c1, ...) in %.200s: is it the right run directory, and is "
                        "gms-coord started?",
                        run_dir);
    }
    qsort(ranks, count, sizeof *ranks, compare_ranks);
    *ret_ranks = ranks;
    *ret_count = count;
    return GMS_OK;
}
