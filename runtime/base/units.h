/* SPDX-License-Identifier: Apache-2.0
 * Sizes and durations as people write them: "256MiB", "2GB", "10s", "250ms". A unit is required (V37). */
#ifndef GMS_BASE_UNITS_H
#define GMS_BASE_UNITS_H

#include <stddef.h>
#include <stdint.h>

#include "gms/status.h"

/* B, KB/MB/GB/TB (powers of 1000), KiB/MiB/GiB/TiB. Digits only, no sign, no fraction, no blanks but one before the
 * unit. Errors: INVALID for anything else and for what does not fit 64 bits; the text shows the value and two good
 * examples. */
gms_status gms_parse_size(const char *text, uint64_t *ret_bytes, struct gms_error *ret_error);
/* ns, us, ms, s, min, h. */
gms_status gms_parse_duration(const char *text, uint64_t *ret_ns, struct gms_error *ret_error);
/* "256.0 MiB", "1.25 ms": for people. `ret_text` of `bytes` bytes, always terminated; returns it. */
char *gms_format_size(uint64_t value_bytes, char *ret_text, size_t bytes);
char *gms_format_duration(uint64_t value_ns, char *ret_text, size_t bytes);

#endif
