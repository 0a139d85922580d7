/* SPDX-License-Identifier: Apache-2.0
 *
 * Loaded before the C library (LD_PRELOAD): a disk that is so busy that it does not answer while a test runs.
 */
#include <time.h>
#include <unistd.h>

static int wait_for_the_disk(void)
{
    const struct timespec a_while = {.tv_sec = 60};
    nanosleep(&a_while, NULL);
    return 0;
}

__attribute__((visibility("default"))) int fsync(int fd)
{
    (void)fd;
    return wait_for_the_disk();
}

__attribute__((visibility("default"))) int fdatasync(int fd)
{
    (void)fd;
    return wait_for_the_disk();
}
