/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>

/* Exported from libgms.so although everything there is hidden by default: the texts are public API. */
#pragma GCC visibility push(default)
#include "gms/status.h"
#pragma GCC visibility pop

static const struct {
    gms_status status;
    const char *name, *text;
} statuses[] = {
#define GMS_STATUS_ROW(name, value, text) {name, #name, text},
    GMS_STATUS_LIST(GMS_STATUS_ROW)
#undef GMS_STATUS_ROW
};

const char *gms_status_name(gms_status status)
{
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        if (statuses[i].status == status) {
            return statuses[i].name;
        }
    }
    return "GMS_E_UNKNOWN";
}

const char *gms_status_text(gms_status status)
{
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        if (statuses[i].status == status) {
            return statuses[i].text;
        }
    }
    return "unknown status";
}

gms_status gms_fail(struct gms_error *ret_error, gms_status status, const char *format, ...)
{
    if (ret_error) {
        const int kept_errno = errno;
        va_list arguments;

        ret_error->status = status;
        ret_error->rank = -1;
        va_start(arguments, format);
        if (vsnprintf(ret_error->text, sizeof(ret_error->text), format, arguments) < 0) {
            ret_error->text[0] = '\0';
        }
        va_end(arguments);
        errno = kept_errno;
    }
    return status;
}
