/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-exec/container.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "gms-exec/descendants.h"

static gms_status make_group(struct gms_container *container, struct gms_error *ret_error)
{
    return gms_cgroup_make("gms", &container->cgroup, container->cgroup_path, ret_error);
}

gms_status gms_container_choose(struct gms_container *container, enum gms_exec_containment wanted,
                                enum gms_guard *ret_guard, struct gms_error *ret_error)
{
    gms_status status;

    switch (wanted) {
    case GMS_EXEC_PID_NAMESPACE:
        *ret_guard = GMS_GUARD_NAMESPACE;
        return GMS_OK;
    case GMS_EXEC_AUTO:
    case GMS_EXEC_AS_DEPLOYED:
        if (getpid() == 1) { /* as a container's first process: the namespace is there, and it is ours */
            *ret_guard = GMS_GUARD_OUTER;
            return GMS_OK;
        }
        break;
    case GMS_EXEC_CGROUP:
    case GMS_EXEC_SUBREAPER:
        break;
    }
    status = gms_descendants_check(ret_error);
    if (status != GMS_OK) {
        return status;
    }
    *ret_guard = GMS_GUARD_WALK;
    if (wanted == GMS_EXEC_CGROUP) {
        return make_group(container, ret_error);
    }
    if (wanted != GMS_EXEC_SUBREAPER) {
        struct gms_error why_not;

        container->cgroup_optional = make_group(container, &why_not) == GMS_OK; /* it is as well without, almost */
    }
    return GMS_OK;
}

gms_status gms_container_start(struct gms_container *container, enum gms_guard guard, bool own_group, char **command,
                               const int *close_fds, size_t close_count, struct gms_error *ret_error)
{
    struct gms_guardian_order order = {.guard = guard,
                                       .own_group = own_group,
                                       .command = command,
                                       .cgroup = container->cgroup,
                                       .cgroup_path = container->cgroup_path,
                                       .cgroup_optional = container->cgroup_optional,
                                       .user_namespace = guard == GMS_GUARD_NAMESPACE && geteuid() != 0,
                                       .uid = geteuid(),
                                       .gid = getegid()};
    uint64_t flags = guard == GMS_GUARD_NAMESPACE ? CLONE_NEWPID : 0;
    int pair[2] = {-1, -1}, go[2] = {-1, -1};
    gms_status status;

    container->guard = guard;
    status = gms_pidfd_open(getpid(), &container->own, ret_error);
    if (status != GMS_OK) {
        return status;
    }
    if (guard == GMS_GUARD_WALK && prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) { /* if the guardian is killed, we clean up */
        status = gms_fail(ret_error, GMS_E_SYSTEM, "cannot become a subreaper: %s", strerror(errno));
        goto fail;
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0 || pipe2(go, O_CLOEXEC) != 0) {
        status = gms_fail(ret_error, GMS_E_SYSTEM, "cannot make the guardian's channel: %s", strerror(errno));
        goto fail;
    }
    order.control = pair[1];
    order.go = go[0];
    order.parent = container->own;
    if (order.user_namespace) {
        flags |= CLONE_NEWUSER;
    }
    container->guardian_pid = gms_clone(flags, 0, -1, &container->guardian);
    if (container->guardian_pid == 0) {
        for (size_t i = 0; i < close_count; i++) {
            if (close_fds[i] >= 0) {
                close(close_fds[i]);
            }
        }
        close(pair[0]);
        close(go[1]);
        gms_guardian_run(&order);
    }
    if (container->guardian_pid < 0) {
        container->guardian = -1;
        status = gms_fail(ret_error, guard == GMS_GUARD_NAMESPACE ? GMS_E_UNSUPPORTED : GMS_E_SYSTEM,
                          "cannot start the cohort's guardian%s: %s",
                          guard != GMS_GUARD_NAMESPACE ? ""
                          : order.user_namespace
                              ? " in new user and PID namespaces (not permitted here? use --containment subreaper)"
                              : " in a new PID namespace (use --containment subreaper)",
                          strerror(errno));
        goto fail;
    }
    gms_fd_close(&pair[1]);
    gms_fd_close(&go[0]);
    container->control = pair[0];
    container->go = go[1];
    if (guard == GMS_GUARD_NAMESPACE) {
        int32_t outer_pid = container->guardian_pid;

        (void)!send(container->control, &outer_pid, sizeof outer_pid, MSG_NOSIGNAL);
    }
    return GMS_OK;
fail:
    gms_fd_close(&pair[0]);
    gms_fd_close(&pair[1]);
    gms_fd_close(&go[0]);
    gms_fd_close(&go[1]);
    gms_fd_close(&container->own);
    return status;
}

bool gms_container_report(struct gms_container *container, struct gms_report *ret_report)
{
    struct iovec iov = {.iov_base = ret_report, .iov_len = sizeof *ret_report};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } ancillary;
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &ancillary, .msg_controllen = sizeof ancillary.bytes};

    if (recvmsg(container->control, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != (ssize_t)sizeof *ret_report) {
        return false;
    }
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header != NULL; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
            gms_fd_close(&container->engine);
            memcpy(&container->engine, CMSG_DATA(header), sizeof container->engine);
        }
    }
    ret_report->step[sizeof ret_report->step - 1] = '\0';
    return true;
}

void gms_container_go(struct gms_container *container)
{
    (void)!write(container->go, "", 1);
    gms_fd_close(&container->go);
}

enum gms_container_kind gms_container_kind(const struct gms_container *container)
{
    if (container->guard != GMS_GUARD_WALK) {
        return GMS_CONTAINER_PID_NAMESPACE;
    }
    return container->cgroup >= 0 ? GMS_CONTAINER_CGROUP : GMS_CONTAINER_SUBREAPER;
}

int gms_container_pidfd(const struct gms_container *container)
{
    return container->guard == GMS_GUARD_OUTER ? container->own : container->guardian;
}

void gms_container_remove_group(struct gms_container *container)
{
    if (container->cgroup >= 0) {
        (void)gms_cgroup_remove(container->cgroup_path);
    }
}

void gms_container_close(struct gms_container *container)
{
    gms_fd_close(&container->cgroup);
    gms_fd_close(&container->go);
    gms_fd_close(&container->control);
    gms_fd_close(&container->engine);
    gms_fd_close(&container->guardian);
    gms_fd_close(&container->own);
}
