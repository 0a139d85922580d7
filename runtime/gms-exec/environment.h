/* SPDX-License-Identifier: Apache-2.0
 * The agreed environment, set over this process's own before the engine rank is forked. */
#ifndef GMS_EXEC_ENVIRONMENT_H
#define GMS_EXEC_ENVIRONMENT_H

#include <stdbool.h>
#include <stddef.h>

#include "gms/status.h"

/*
 * Sets every "NAME=VALUE\0" of `variables` (borrowed) with setenv: values are bytes, any but NUL, empty included.
 * Names that say who a process is to its launcher (gms_environment_is_launcher_name) are left as they are here and
 * counted. Errors: PROTOCOL (no '=', empty name, last NUL missing: nothing was set), NO_MEMORY (some may be set).
 */
gms_status gms_environment_apply(const void *variables, size_t bytes, size_t *ret_skipped, struct gms_error *ret_error);

/* Is it a variable by which Open MPI, PMIx or Slurm tells a process its place in *its* job? Those of the coordinators'
 * job must never reach an engine. Settings (OMPI_MCA_btl=..., PMIX_MCA_...) are no such names. */
bool gms_environment_is_launcher_name(const char *name, size_t bytes);

#endif
