/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/handle.h"

#include <fcntl.h>

#include "base/fd.h"

gms_status gms_vmm_handle_export(const struct gms_vmm_handle *handle, int *ret_fd, struct gms_error *ret_error)
{
    if (handle->fd < 0) {
        return gms_fail(ret_error, GMS_E_INVALID, "export of an empty handle");
    }
    const int fd = fcntl(handle->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return gms_fd_fail("export of memory", ret_error);
    }
    *ret_fd = fd;
    return GMS_OK;
}

void gms_vmm_handle_release(struct gms_vmm_handle *handle)
{
    gms_fd_close(&handle->fd);
    handle->bytes = 0;
}
