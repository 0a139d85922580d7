/* SPDX-License-Identifier: Apache-2.0
 * The agreed environment, set over this process's own before the engine rank is forked. */
#ifndef GMS_EXEC_ENVIRONMENT_H
#define GMS_EXEC_ENVIRONMENT_H

#include <stddef.h>

#include "gms/status.h"

/*
 * Sets every "NAME=VALUE\0" of `variables` (borrowed) with setenv: values are bytes, any but NUL, empty included.
 * Names that say who a process is to its launcher (base/launcher.h) are left as they are here and
 * counted. Errors: PROTOCOL (no '=', empty name, last NUL missing: nothing was set), NO_MEMORY (some may be set).
 */
gms_status gms_environment_apply(const void *variables, size_t bytes, size_t *ret_skipped, struct gms_error *ret_error);

#endif
