/* SPDX-License-Identifier: Apache-2.0 */
#include "statistics.h"

#include <stdlib.h>

void drill_numbers_add(struct drill_numbers *numbers, int64_t value)
{
    if (numbers->count == numbers->capacity) {
        size_t capacity = numbers->capacity * 2 + 64;
        int64_t *grown = realloc(numbers->items, capacity * sizeof *grown);
        if (grown == NULL)
            return;
        numbers->items = grown;
        numbers->capacity = capacity;
    }
    numbers->items[numbers->count++] = value;
}

void drill_numbers_free(struct drill_numbers *numbers)
{
    free(numbers->items);
    numbers->items = NULL;
    numbers->count = numbers->capacity = 0;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

struct drill_spread drill_spread_of(struct drill_numbers *numbers)
{
    struct drill_spread spread = {.count = numbers->count};
    if (numbers->count == 0)
        return spread;
    qsort(numbers->items, numbers->count, sizeof *numbers->items, by_value);
    spread.least = numbers->items[0];
    spread.median = numbers->items[numbers->count / 2];
    spread.most_of_ten = numbers->items[(numbers->count * 9 + 9) / 10 - 1];
    spread.greatest = numbers->items[numbers->count - 1];
    return spread;
}
