/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a fuzz target without a fuzzer: its seeds, every prefix of them, mutations and random bytes.
 *
 *   fuzz_x [RUNS [SEED]]     RUNS mutated and random inputs (default 20000)
 *   fuzz_x FILE...           exactly these inputs, to repeat a finding
 */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "fuzz.h"

enum { INPUT_BYTES = 192 * 1024, MANY_SEED_BYTES = 4096 };

static uint64_t random_state;
static uint8_t input[INPUT_BYTES];

/* splitmix64 */
static uint64_t next_random(void)
{
    uint64_t z = (random_state += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static size_t below(size_t limit)
{
    return limit == 0 ? 0 : (size_t)(next_random() % limit);
}

/* A copy of its own size, so that a sanitizer sees a read of one byte past the end. */
static void feed(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes ? bytes : 1);

    FUZZ_CHECK(copy != NULL);
    memcpy(copy, data, bytes);
    (void)LLVMFuzzerTestOneInput(copy, bytes);
    free(copy);
}

static size_t mutate(size_t bytes)
{
    static const uint32_t lengths[] = {0, 1, 2, 0x7f, 0xff, 0xffff, 0x10000, 0x7fffffff, 0x80000000u, 0xffffffffu};

    for (size_t changes = 1 + below(4); changes > 0; changes--) {
        const size_t at = below(bytes);

        switch (below(6)) {
        case 0: /* a bit */
            if (bytes > 0) {
                input[at] ^= (uint8_t)(1u << below(8));
            }
            break;
        case 1: /* a byte */
            if (bytes > 0) {
                input[at] = (uint8_t)next_random();
            }
            break;
        case 2: /* a number that is wrong as a length */
            if (bytes >= 4) {
                const uint32_t value = lengths[below(sizeof(lengths) / sizeof(lengths[0]))];
                memcpy(input + below(bytes - 3), &value, sizeof(value));
            }
            break;
        case 3: /* cut */
            bytes = at;
            break;
        case 4: /* grow */
            for (size_t more = below(64); more > 0 && bytes < INPUT_BYTES; more--) {
                input[bytes++] = (uint8_t)next_random();
            }
            break;
        default: /* one part over another */
            if (bytes > 0) {
                const size_t from = below(bytes);
                const size_t room = bytes - (at > from ? at : from);
                memmove(input + at, input + from, below(room));
            }
            break;
        }
    }
    return bytes;
}

static int feed_file(const char *path)
{
    FILE *file = fopen(path, "rb");

    if (!file) {
        perror(path);
        return 1;
    }
    const size_t bytes = fread(input, 1, sizeof(input), file);
    fclose(file);
    feed(input, bytes);
    printf("%s: %zu bytes, passed\n", path, bytes);
    return 0;
}

int main(int argc, char **argv)
{
    char *end = NULL;
    unsigned long runs = 20000;
    size_t seeds = 0;
    size_t bytes;

    if (argc > 1) {
        runs = strtoul(argv[1], &end, 10);
        if (*argv[1] == '\0' || *end != '\0') {
            int failed = 0;
            for (int i = 1; i < argc; i++) {
                failed |= feed_file(argv[i]);
            }
            return failed;
        }
    }
    random_state = argc > 2 ? strtoull(argv[2], NULL, 0) : UINT64_C(0x676d73) ^ (uint64_t)time(NULL);
    printf("seed 0x%" PRIx64 ", %lu runs\n", random_state, runs);
    fflush(stdout);

    for (; (bytes = fuzz_seed(seeds, input, sizeof(input))) > 0; seeds++) {
        const size_t cuts = bytes < MANY_SEED_BYTES ? bytes : MANY_SEED_BYTES;

        feed(input, bytes);
        for (size_t cut = 0; cut < cuts; cut++) {
            feed(input, cut);
        }
    }
    for (unsigned long run = 0; run < runs; run++) {
        if (seeds > 0 && below(8) != 0) {
            bytes = mutate(fuzz_seed(below(seeds), input, sizeof(input)));
        } else {
            bytes = below(below(4) == 0 ? 4096 : 128);
            for (size_t i = 0; i < bytes; i++) {
                input[i] = (uint8_t)next_random();
            }
        }
        feed(input, bytes);
    }
    printf("%zu seeds with their prefixes and %lu inputs passed\n", seeds, runs);
    return 0;
}
