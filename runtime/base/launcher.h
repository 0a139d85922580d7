/* SPDX-License-Identifier: Apache-2.0
 * Which environment variables belong to a launcher (Open MPI, PMIx, PRRTE, Slurm, PALS, Hydra). Any thread. */
#ifndef GMS_BASE_LAUNCHER_H
#define GMS_BASE_LAUNCHER_H

#include <stdbool.h>
#include <stddef.h>

/* Is `name` (`bytes` long, no '=') one by which a launcher tells a process its place in *its* job? Such a name of one
 * job must never reach a process of another. Settings inside those prefixes (OMPI_MCA_btl, PMIX_MCA_...) are no such
 * names. */
bool gms_is_launcher_name(const char *name, size_t bytes);

/* Makes the directories that a launcher on another host named for Open MPI's shared files (0700) where this host lacks
 * them: gms-up makes them on its own host only. Before MPI_Init. What fails is MPI's to tell. */
void gms_launcher_make_directories(void);

#endif
