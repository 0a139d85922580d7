/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-exec/environment.h"

#include <stdlib.h>
#include <string.h>

#include "base/launcher.h"

gms_status gms_environment_apply(const void *variables, size_t bytes, size_t *ret_skipped, struct gms_error *ret_error)
{
    const char *text = variables;
    size_t skipped = 0;

    if (bytes > 0 && text[bytes - 1] != '\0') {
        return gms_fail(ret_error, GMS_E_PROTOCOL, "agreed environment of %zu bytes: the last variable is cut short",
                        bytes);
    }
    for (size_t at = 0; at < bytes; at += strlen(text + at) + 1) {
        const char *equal = strchr(text + at, '=');

        if (equal == NULL || equal == text + at) {
            return gms_fail(ret_error, GMS_E_PROTOCOL, "agreed environment: '%.64s' at byte %zu is not NAME=VALUE",
                            text + at, at);
        }
    }
    for (size_t at = 0; at < bytes; at += strlen(text + at) + 1) {
        size_t length = (size_t)(strchr(text + at, '=') - (text + at));

        if (gms_is_launcher_name(text + at, length)) {
            skipped++;
            continue;
        }
        char *name = strndup(text + at, length);
        if (name == NULL || setenv(name, text + at + length + 1, 1) != 0) {
            free(name);
            return gms_fail(ret_error, GMS_E_NO_MEMORY, "agreed environment: no memory for %.*s", (int)length,
                            text + at);
        }
        free(name);
    }
    *ret_skipped = skipped;
    return GMS_OK;
}
