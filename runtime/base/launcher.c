/* SPDX-License-Identifier: Apache-2.0 */
#include "base/launcher.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The longest match decides, so that a setting inside a launcher's prefix stays a setting. */
static const struct {
    const char *prefix;
    bool launcher;
} prefixes[] = {
    {"OMPI_", true},
    {"OMPI_ALLOW_RUN_AS_ROOT", false},
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
    {"PRTE_ALLOW_RUN_AS_ROOT", false},
    {"PRTE_MCA_", false},
    {"SLURM_", true},
    {"SLURMD_", true},
    {"PALS_", true},
    {"HYDRA_", true},
    {"HYDI_", true},
    {"MPI_LOCALNRANKS", true},
    {"MPI_LOCALRANKID", true},
};

bool gms_is_launcher_name(const char *name, size_t bytes)
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

void gms_launcher_make_directories(void)
{
    static const char *const names[] = {"OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_btl_sm_backing_directory"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *path = getenv(names[i]);

        if (path != NULL && path[0] == '/') {
            (void)mkdir(path, 0700); /* there already, mostly */
        }
    }
}
