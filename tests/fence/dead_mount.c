/* SPDX-License-Identifier: Apache-2.0
 *
 * A FUSE file system that answers INIT and swallows whatever comes next: who asked waits in state D, and SIGKILL does
 * not help. Aborting the connection lets them go.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "stage.h"

static int device = -1;
static char mounted[128];
static pthread_t swallower;
static atomic_bool asked;

/* A request must have been taken: until then whoever waits for it can be killed. Ends with the connection. */
static void *swallow(void *context)
{
    char request[65536];
    ssize_t got;
    while ((got = read(device, request, sizeof request)) >= 0 || errno == EINTR || errno == ENOENT)
        asked = asked || got > 0;
    return context;
}

static bool give_up(char ret_why[128], const char *what)
{
    snprintf(ret_why, 128, "%s: %s", what, strerror(errno));
    (void)umount2(mounted, MNT_DETACH);
    mounted[0] = '\0';
    gms_fd_close(&device);
    return false;
}

bool dead_mount_open(const char *directory, char ret_why[128])
{
    union {
        char bytes[8192];
        struct fuse_in_header header;
    } request;
    struct {
        struct fuse_out_header header;
        struct fuse_init_out init;
    } reply;
    char options[96];
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (device < 0) {
        snprintf(ret_why, 128, "/dev/fuse: %s", strerror(errno));
        return false;
    }
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
    if (mount("dead", directory, "fuse", MS_NOSUID | MS_NODEV, options) != 0) {
        snprintf(ret_why, 128, "mounting FUSE: %s", strerror(errno));
        gms_fd_close(&device);
        return false;
    }
    snprintf(mounted, sizeof mounted, "%s", directory);
    if (read(device, request.bytes, sizeof request.bytes) < (ssize_t)sizeof request.header ||
        request.header.opcode != FUSE_INIT)
        return give_up(ret_why, "FUSE did not begin with INIT");
    memset(&reply, 0, sizeof reply);
    reply.header.len = sizeof reply;
    reply.header.unique = request.header.unique;
    reply.init.major = FUSE_KERNEL_VERSION;
    reply.init.minor = 31;
    reply.init.max_write = 4096;
    if (write(device, &reply, sizeof reply) != (ssize_t)sizeof reply)
        return give_up(ret_why, "answering INIT");
    asked = false;
    pthread_create(&swallower, NULL, swallow, NULL);
    return true;
}

bool dead_mount_asked(void)
{
    return asked;
}

void dead_mount_close(void)
{
    if (mounted[0] == '\0')
        return;
    (void)umount2(mounted, MNT_FORCE); /* aborts the connection */
    (void)umount2(mounted, MNT_DETACH);
    mounted[0] = '\0';
    pthread_join(swallower, NULL);
    gms_fd_close(&device);
}
