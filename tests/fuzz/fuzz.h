/* SPDX-License-Identifier: Apache-2.0
 * What a fuzz target gives: LLVMFuzzerTestOneInput (aborts when a property is broken) and its seeds. */
#ifndef GMS_TESTS_FUZZ_H
#define GMS_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
/* Writes valid input number `index` into `ret_data` and returns its length; 0 past the last. */
size_t fuzz_seed(size_t index, uint8_t *ret_data, size_t capacity);

/* Not assert: it must also hold in builds with NDEBUG. */
#define FUZZ_CHECK(condition)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition);                                    \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

#endif
