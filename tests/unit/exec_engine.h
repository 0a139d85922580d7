/* SPDX-License-Identifier: Apache-2.0
 * What the engine program of gms-exec's tests says to the test, one datagram each, over the descriptor in
 * EXEC_TEST_FD; a pidfd may travel along. */
#ifndef GMS_TESTS_EXEC_ENGINE_H
#define GMS_TESTS_EXEC_ENGINE_H

#include <stdint.h>

enum exec_word { EXEC_STARTED, EXEC_PROCESS, EXEC_TREE_READY, EXEC_SIGNAL, EXEC_TEXT };

struct exec_say {
    uint32_t word;
    int32_t value;
    char text[1024];
};

#endif
