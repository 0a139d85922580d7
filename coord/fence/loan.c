/* SPDX-License-Identifier: Apache-2.0 */
#include "fence/loan.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

/* A byte that no file reaches: locks may lie beyond the end. */
static struct flock byte_of(short type, uint64_t incarnation)
{
    return (struct flock){
        .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)(incarnation & INT64_MAX), .l_len = 1};
}

bool gms_loan_possible(int fd)
{
    struct stat about;
    return fstat(fd, &about) == 0 && S_ISREG(about.st_mode);
}

gms_status gms_loan_give(int fd, uint64_t incarnation, int *ret_fd, struct gms_error *ret_error)
{
    char path[64];
    if (!gms_loan_possible(fd))
        return gms_fail(ret_error, GMS_E_UNSUPPORTED, "only host memory can be lent");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int loan = open(path, O_RDWR | O_CLOEXEC);
    if (loan < 0)
        return gms_fd_fail("memory cannot be lent: opening it anew through /proc/self/fd", ret_error);
    struct flock lock = byte_of(F_RDLCK, incarnation);
    if (fcntl(loan, F_OFD_SETLK, &lock) != 0) {
        gms_status status =
            gms_fail(ret_error, GMS_E_SYSTEM, "memory cannot be lent: marking it as incarnation %llu's: %s",
                     (unsigned long long)incarnation, strerror(errno));
        gms_fd_close(&loan);
        return status;
    }
    *ret_fd = loan;
    return GMS_OK;
}

bool gms_loan_is_out(int fd, uint64_t incarnation)
{
    struct flock lock = byte_of(F_WRLCK, incarnation);
    return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}
