/* SPDX-License-Identifier: Apache-2.0
 * One log sink for programs. Libraries never print: libgms and the core do not use it. */
#ifndef GMS_BASE_LOG_H
#define GMS_BASE_LOG_H

#include "gms/status.h"

enum gms_log_level { GMS_LOG_ERROR, GMS_LOG_WARNING, GMS_LOG_NOTICE, GMS_LOG_INFO, GMS_LOG_DEBUG };

/*
 * `destination`: "stderr", "file:PATH" (0600, appended) or "journald" ("journald:SOCKET" where it listens
 * elsewhere). `ident` ("gms-coord[2]") starts every line;
 * copied. Errors: INVALID (unknown destination; the choices are listed), SYSTEM. After failure the former sink stays in
 * force.
 */
gms_status gms_log_open(const char *ident, const char *destination, enum gms_log_level level,
                        struct gms_error *ret_error);
/* Opens the file anew (log rotation; call it from the loop when SIGHUP arrived). */
gms_status gms_log_reopen(struct gms_error *ret_error);
gms_status gms_log_level_parse(const char *text, enum gms_log_level *ret_level, struct gms_error *ret_error);
/* One line "2026-11-29T12:00:00.123456Z ident level: text". Never blocks on a full pipe, never fails, keeps errno. */
__attribute__((format(printf, 2, 3))) void gms_log(enum gms_log_level level, const char *format, ...);

#endif
