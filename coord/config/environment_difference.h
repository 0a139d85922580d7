/* SPDX-License-Identifier: Apache-2.0
 *
 * In what two ranks' variables differ, told to people. Pure.
 */
#ifndef GMS_COORD_ENVIRONMENT_DIFFERENCE_H
#define GMS_COORD_ENVIRONMENT_DIFFERENCE_H

#include <stddef.h>
#include <stdint.h>

/* Two lists and whose they are. */
struct gms_environment_list {
    const char *variables; /* borrowed */
    size_t bytes;
    uint32_t rank;
};
/*
 * Names in which the lists differ, with both values, as many as fit `capacity` bytes (at least one): `A is "x" on rank
 * 0, "y" on rank 1`. Values are quoted, long ones shortened to where they differ. Returns how many names differ.
 */
unsigned gms_environment_difference(const struct gms_environment_list *first, const struct gms_environment_list *second,
                                    char *ret_text, size_t capacity);

#endif
