/* SPDX-License-Identifier: Apache-2.0
 *
 * Many numbers as a few. Pure.
 */
#ifndef GMS_DRILL_STATISTICS_H
#define GMS_DRILL_STATISTICS_H

#include <stddef.h>
#include <stdint.h>

/* A growing list; zero-initialise. */
struct drill_numbers {
    size_t count, capacity;
    int64_t *items; /* owned */
};

/* Without memory for it the number is left out. */
void drill_numbers_add(struct drill_numbers *numbers, int64_t value);
void drill_numbers_free(struct drill_numbers *numbers);

struct drill_spread {
    size_t count;                                 /* 0: the others say nothing */
    int64_t least, median, most_of_ten, greatest; /* most_of_ten: nine of ten are not greater */
};
/* Sorts *numbers. */
struct drill_spread drill_spread_of(struct drill_numbers *numbers);

#endif
