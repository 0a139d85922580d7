/* SPDX-License-Identifier: Apache-2.0
 *
 * Host memory: a handle is a memfd, a reservation is PROT_NONE address space, mapping is mmap with MAP_FIXED over it.
 */
#include "vmm/vmm.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/units.h"
#include "vmm/available.h"
#include "vmm/handle.h"

enum { NAME_BYTES = 250, SIZE_SEALS = F_SEAL_SHRINK | F_SEAL_GROW };

static struct gms_vmm host;

static gms_status check_size(const char *what, uint64_t bytes, struct gms_error *ret_error)
{
    if (bytes == 0 || bytes % host.granularity_bytes != 0 || bytes > INT64_MAX) {
        return gms_fail(ret_error, GMS_E_INVALID, "%s of %llu bytes: must be a positive multiple of %llu", what,
                        (unsigned long long)bytes, (unsigned long long)host.granularity_bytes);
    }
    return GMS_OK;
}

static gms_status check_range(const char *what, const void *address, uint64_t bytes, struct gms_error *ret_error)
{
    if (!address || (uintptr_t)address % host.granularity_bytes != 0) {
        return gms_fail(ret_error, GMS_E_INVALID, "%s at %p: not an address of a reservation (granularity %llu)", what,
                        address, (unsigned long long)host.granularity_bytes);
    }
    return check_size(what, bytes, ret_error);
}

static gms_status map_failed(const char *what, const void *address, uint64_t bytes, struct gms_error *ret_error)
{
    return gms_fail(ret_error, errno == ENOMEM ? GMS_E_NO_MEMORY : GMS_E_SYSTEM, "%s of %llu bytes at %p: %s", what,
                    (unsigned long long)bytes, address, strerror(errno));
}

/* ------------------------------------------------------------------------------------------ address space ----- */

static gms_status host_reserve(uint64_t bytes, void **ret_address, struct gms_error *ret_error)
{
    const gms_status status = check_size("reservation", bytes, ret_error);

    if (status != GMS_OK) {
        return status;
    }
    void *address = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
        return map_failed("reservation", NULL, bytes, ret_error);
    }
    *ret_address = address;
    return GMS_OK;
}

static gms_status host_unreserve(void *address, uint64_t bytes, struct gms_error *ret_error)
{
    const gms_status status = check_range("unreserve", address, bytes, ret_error);

    if (status != GMS_OK) {
        return status;
    }
    return munmap(address, bytes) == 0 ? GMS_OK : map_failed("unreserve", address, bytes, ret_error);
}

static gms_status host_map_scratch(void *address, uint64_t bytes, struct gms_error *ret_error)
{
    const gms_status status = check_range("scratch", address, bytes, ret_error);

    if (status != GMS_OK) {
        return status;
    }
    if (mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
        return map_failed("scratch", address, bytes, ret_error);
    }
    return GMS_OK;
}

static gms_status host_unmap(void *address, uint64_t bytes, struct gms_error *ret_error)
{
    const gms_status status = check_range("unmap", address, bytes, ret_error);

    if (status != GMS_OK) {
        return status;
    }
    /* Not munmap: the address stays ours, so that nothing else can land on it. */
    if (mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
        return map_failed("unmap", address, bytes, ret_error);
    }
    return GMS_OK;
}

static int protection_of(enum gms_vmm_access access)
{
    switch (access) {
    case GMS_VMM_NONE:
        return PROT_NONE;
    case GMS_VMM_READ:
        return PROT_READ;
    case GMS_VMM_READ_WRITE:
        return PROT_READ | PROT_WRITE;
    }
    return -1;
}

static gms_status host_set_access(void *address, uint64_t bytes, enum gms_vmm_access access,
                                  struct gms_error *ret_error)
{
    const int protection = protection_of(access);
    const gms_status status = check_range("access", address, bytes, ret_error);

    if (status != GMS_OK) {
        return status;
    }
    if (protection < 0) {
        return gms_fail(ret_error, GMS_E_INVALID, "access %d is unknown", (int)access);
    }
    if (mprotect(address, bytes, protection) == 0) {
        return GMS_OK;
    }
    if (errno == EACCES) {
        return gms_fail(ret_error, GMS_E_REFUSED,
                        "%llu bytes at %p were mapped for reading only; map them anew to write",
                        (unsigned long long)bytes, address);
    }
    return map_failed("access", address, bytes, ret_error);
}

/* ------------------------------------------------------------------------------------------------ handles ----- */

static gms_status no_memory(const char *label, uint64_t bytes, uint64_t available, struct gms_error *ret_error)
{
    char asked[32];
    char left[32];

    return gms_fail(ret_error, GMS_E_NO_MEMORY, "memory \"%s\": %s asked (%llu bytes), %s available here", label,
                    gms_format_size(bytes, asked, sizeof(asked)), (unsigned long long)bytes,
                    available == UINT64_MAX ? "unknown" : gms_format_size(available, left, sizeof(left)));
}

static gms_status host_create(const char *label, uint64_t bytes, struct gms_vmm_handle *ret_handle,
                              struct gms_error *ret_error)
{
    char name[NAME_BYTES];
    struct rlimit file_size;
    gms_status status = check_size("memory", bytes, ret_error);

    if (status != GMS_OK) {
        return status;
    }
    if (!label || snprintf(name, sizeof(name), "gms:%s", label) >= (int)sizeof(name)) {
        return gms_fail(ret_error, GMS_E_INVALID, "memory label has %zu bytes, the limit is %d",
                        label ? strlen(label) : 0, NAME_BYTES - 5);
    }
    /* A file size limit would come as SIGXFSZ, and memory that is not there as the kernel's choice of a victim. */
    if (getrlimit(RLIMIT_FSIZE, &file_size) == 0 && file_size.rlim_cur != RLIM_INFINITY && bytes > file_size.rlim_cur) {
        return gms_fail(ret_error, GMS_E_NO_MEMORY,
                        "memory \"%s\": %llu bytes asked, but the file size limit is %llu; raise it (ulimit -f)", label,
                        (unsigned long long)bytes, (unsigned long long)file_size.rlim_cur);
    }
    const uint64_t available = gms_vmm_available_bytes("/proc", "/sys/fs/cgroup");
    if (bytes > available) {
        return no_memory(label, bytes, available, ret_error);
    }
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return errno == ENOMEM ? no_memory(label, bytes, available, ret_error) : gms_fd_fail(name, ret_error);
    }
    int result;
    do {
        result = fallocate(fd, 0, 0, (off_t)bytes);
    } while (result < 0 && errno == EINTR);
    if (result < 0) {
        status = errno == ENOSPC || errno == ENOMEM || errno == EFBIG
                     ? no_memory(label, bytes, available, ret_error)
                     : gms_fail(ret_error, GMS_E_SYSTEM, "memory \"%s\" of %llu bytes: %s", label,
                                (unsigned long long)bytes, strerror(errno));
    } else if (fcntl(fd, F_ADD_SEALS, SIZE_SEALS) < 0) {
        status = gms_fail(ret_error, GMS_E_SYSTEM, "memory \"%s\" cannot be sealed: %s", label, strerror(errno));
    }
    if (status != GMS_OK) {
        gms_fd_close(&fd);
        return status;
    }
    *ret_handle = (struct gms_vmm_handle){.fd = fd, .bytes = bytes};
    return GMS_OK;
}

static gms_status host_import_fd(int fd, uint64_t bytes, struct gms_vmm_handle *ret_handle, struct gms_error *ret_error)
{
    struct stat info;
    gms_status status = check_size("import", bytes, ret_error);

    if (status != GMS_OK) {
        return status;
    }
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || fstat(fd, &info) < 0) {
        return gms_fail(ret_error, GMS_E_INVALID, "import: descriptor %d is not host memory of this kind: %s", fd,
                        strerror(errno));
    }
    if ((seals & SIZE_SEALS) != SIZE_SEALS) {
        return gms_fail(ret_error, GMS_E_MISMATCH,
                        "import: descriptor %d has seals 0x%x; its size is not fixed (0x%x needed)", fd,
                        (unsigned)seals, (unsigned)SIZE_SEALS);
    }
    if (info.st_size < 0 || (uint64_t)info.st_size != bytes) {
        return gms_fail(ret_error, GMS_E_MISMATCH, "import: memory has %lld bytes, %llu expected",
                        (long long)info.st_size, (unsigned long long)bytes);
    }
    const int flags = fcntl(fd, F_GETFD);
    if (flags < 0 || fcntl(fd, F_SETFD, flags | FD_CLOEXEC) < 0) {
        return gms_fail(ret_error, GMS_E_SYSTEM, "import: descriptor %d: %s", fd, strerror(errno));
    }
    *ret_handle = (struct gms_vmm_handle){.fd = fd, .bytes = bytes};
    return GMS_OK;
}

/*
 * A shared mapping made through a writable descriptor counts as a writer for the kernel even when it is mapped for
 * reading, because mprotect could make it one, and freeze would find it busy. So a reader maps through a read-only open
 * file of the same memory.
 */
static gms_status open_for_reading(int memory_fd, int *ret_fd, struct gms_error *ret_error)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", memory_fd);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return gms_fd_fail("memory cannot be opened for reading", ret_error);
    }
    *ret_fd = fd;
    return GMS_OK;
}

static gms_status host_map(void *address, const struct gms_vmm_handle *handle, enum gms_vmm_access access,
                           struct gms_error *ret_error)
{
    const int protection = protection_of(access);
    int reading_fd = -1;
    gms_status status = check_range("map", address, handle->bytes, ret_error);

    if (status != GMS_OK) {
        return status;
    }
    if (handle->fd < 0 || protection < 0) {
        return gms_fail(ret_error, GMS_E_INVALID, "map: empty handle or unknown access %d", (int)access);
    }
    if (access != GMS_VMM_READ_WRITE) {
        status = open_for_reading(handle->fd, &reading_fd, ret_error);
        if (status != GMS_OK) {
            return status;
        }
    }
    if (mmap(address, handle->bytes, protection, MAP_SHARED | MAP_FIXED, reading_fd >= 0 ? reading_fd : handle->fd,
             0) == MAP_FAILED) {
        status = errno == EPERM ? gms_fail(ret_error, GMS_E_REFUSED,
                                           "map: this memory is frozen, or its descriptor "
                                           "is for reading only; map it for reading")
                                : map_failed("map", address, handle->bytes, ret_error);
    }
    gms_fd_close(&reading_fd);
    return status;
}

static gms_status host_freeze(const struct gms_vmm_handle *handle, struct gms_error *ret_error)
{
    if (handle->fd < 0) {
        return gms_fail(ret_error, GMS_E_INVALID, "freeze of an empty handle");
    }
    if (fcntl(handle->fd, F_ADD_SEALS, F_SEAL_WRITE) == 0) {
        return GMS_OK;
    }
    if (errno == EBUSY) {
        return gms_fail(ret_error, GMS_E_BUSY,
                        "freeze: a writable mapping of this memory (%llu bytes) exists somewhere; unmap it first",
                        (unsigned long long)handle->bytes);
    }
    if (errno == EPERM) {
        return gms_fail(ret_error, GMS_E_REFUSED, "freeze: this memory takes no further seals");
    }
    return gms_fail(ret_error, GMS_E_SYSTEM, "freeze: %s", strerror(errno));
}

static gms_status host_sync(struct gms_error *ret_error)
{
    (void)ret_error; /* stores are complete when the instruction is */
    return GMS_OK;
}

static gms_status host_copy(void *to, const void *from, uint64_t bytes, struct gms_error *ret_error)
{
    (void)ret_error;
    memcpy(to, from, bytes);
    return GMS_OK;
}

static struct gms_vmm host = {
    .name = "host",
    .granularity_bytes = 4096,
    .cpu_addresses = true,
    .zeroed = true,
    .freeze_enforced = true,
    .swaps_in_one_step = true,
    .reserve = host_reserve,
    .unreserve = host_unreserve,
    .create = host_create,
    .export_fd = gms_vmm_handle_export,
    .import_fd = host_import_fd,
    .map = host_map,
    .map_scratch = host_map_scratch,
    .set_access = host_set_access,
    .unmap = host_unmap,
    .freeze = host_freeze,
    .sync = host_sync,
    .read = host_copy,
    .write = host_copy,
    .release = gms_vmm_handle_release,
};

static void learn_page_size(void)
{
    const long page_bytes = sysconf(_SC_PAGESIZE);

    if (page_bytes > 0) {
        host.granularity_bytes = (uint64_t)page_bytes;
    }
}

const struct gms_vmm *gms_vmm_host(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, learn_page_size);
    return &host;
}
