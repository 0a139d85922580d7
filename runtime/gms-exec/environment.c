/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-exec/environment.h"

#include <stdlib.h>
#include <string.h>

/* The longest match decides, so that a setting inside a launcher's prefix stays a setting. */
static const struct {
    const char *prefix;
    bool launcher;
} prefixes[] = {
    {"OMPI_", true},
    {"OMPI_MCA_", false},
    {"OMPI_MCA_orte_", true},
    {"OMPI_MCA_ess", true},
    {"OMPI_MCA_pmix", true},
    {"OMPI_MCA_prte_", true},
    {"OMPI_MCA_shmem_RUNTIME", true},
    {"PMIX_", true},
    {"PMIX_MCA_", false},
    {"PMI_", true},
    {"PRTE_", true},
    {"PRTE_MCA_", false},
    {"SLURM_", true},
    {"SLURMD_", true},
};

bool gms_environment_is_launcher_name(const char *name, size_t bytes)
{
    size_t longest = 0;
    bool launcher = false;

    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        size_t length = strlen(prefixes[i].prefix);

        if (length <= bytes && length > longest && memcmp(name, prefixes[i].prefix, length) == 0) {
            longest = length;
            launcher = prefixes[i].launcher;
        }
    }
    return launcher;
}

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

        if (gms_environment_is_launcher_name(text + at, length)) {
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
