/* SPDX-License-Identifier: Apache-2.0
 *
 * A CUDA driver that has the checkpoint lock and nothing else: it says on stdout what it was asked and answers
 * FAKE_LOCK_RESULT.
 */
#include <stdio.h>
#include <stdlib.h>

int cuCheckpointProcessLock(int pid, const unsigned int *arguments);
int cuGetErrorName(int error, const char **ret_name);

__attribute__((visibility("default"))) int cuCheckpointProcessLock(int pid, const unsigned int *arguments)
{
    const char *result = getenv("FAKE_LOCK_RESULT");

    printf("lock %d within %u ms\n", pid, arguments[0]);
    return result != NULL ? atoi(result) : 0;
}

__attribute__((visibility("default"))) int cuGetErrorName(int error, const char **ret_name)
{
    *ret_name = "CUDA_ERROR_OF_A_TEST";
    return error == 3 ? 0 : 1;
}
