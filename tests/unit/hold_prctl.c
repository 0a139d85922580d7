/* SPDX-License-Identifier: Apache-2.0
 *
 * Loaded before the C library (LD_PRELOAD): who is about to arm its parent-death signal connects to the socket in
 * GMS_TEST_HOLD first, and waits there until the other end hangs up. So a test can act between fork and prctl.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static void hold(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char byte;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        while (read(fd, &byte, 1) > 0) {
        }
    close(fd);
}

__attribute__((visibility("default"))) int prctl(int option, ...)
{
    unsigned long words[4];
    va_list list;
    va_start(list, option);
    for (int i = 0; i < 4; i++)
        words[i] = va_arg(list, unsigned long);
    va_end(list);
    const char *path = getenv("GMS_TEST_HOLD");
    if (option == PR_SET_PDEATHSIG && path != NULL)
        hold(path);
    return (int)syscall(SYS_prctl, option, words[0], words[1], words[2], words[3]);
}
