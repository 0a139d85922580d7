/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The text of kernels.ptx, terminated. */
__asm__(".section .rodata\n"
        ".global gpu_kernels\n"
        "gpu_kernels:\n"
        ".incbin \"" GPU_KERNELS "\"\n"
        ".byte 0\n"
        ".previous\n");
extern const char gpu_kernels[];

void gpu_open_bare(struct gpu *gpu)
{
    struct gms_error error;

    memset(gpu, 0, sizeof(*gpu));
    if (gms_vmm_cuda_choose("0", &error) != GMS_OK || gms_vmm_cuda_ready(&gpu->device, &error) != GMS_OK ||
        gms_cu_open(&gpu->memory, &error) != GMS_OK) {
        fprintf(stderr, "skipped: %s\n", error.text);
        exit(77);
    }
}

void gpu_open(struct gpu *gpu)
{
    static const struct {
        const char *symbol;
        size_t offset;
    } list[] = {
#define SYMBOL(member, symbol, parameters) {#symbol, offsetof(struct gpu, member)},
        GPU_LIST(SYMBOL)
#undef SYMBOL
    };

    gpu_open_bare(gpu);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        void *symbol = dlsym(driver, list[i].symbol);

        if (!symbol) {
            fprintf(stderr, "skipped: this driver has no %s\n", list[i].symbol);
            exit(77);
        }
        memcpy((char *)gpu + list[i].offset, &symbol, sizeof(symbol));
    }
#define MUST(call) gpu_must(gpu, (call), #call, __FILE__, __LINE__)
    MUST(gpu->memory->context_retain(&gpu->context, gpu->device.ordinal));
    MUST(gpu->context_current(gpu->context));
    MUST(gpu->module_load(&gpu->module, gpu_kernels));
    MUST(gpu->module_function(&gpu->write_for, gpu->module, "write_for"));
    MUST(gpu->module_function(&gpu->fill, gpu->module, "fill"));
    MUST(gpu->module_function(&gpu->step, gpu->module, "step"));
    MUST(gpu->module_function(&gpu->fault, gpu->module, "fault"));
#undef MUST
}

void gpu_must(const struct gpu *gpu, gms_cu_result result, const char *call, const char *file, int line)
{
    struct gms_error error;

    if (result != GMS_CU_SUCCESS) {
        (void)gms_cu_fail(gpu->memory, result, &error, "%s", call);
        fprintf(stderr, "%s:%d: %s\n", file, line, error.text);
        exit(1);
    }
}

void gpu_must_gms(gms_status status, const struct gms_error *error, const char *call, const char *file, int line)
{
    if (status != GMS_OK) {
        fprintf(stderr, "%s:%d: %s: %s: %s\n", file, line, call, gms_status_name(status), error->text);
        exit(1);
    }
}

void gpu_require(bool condition, const char *what, const char *file, int line)
{
    if (!condition) {
        fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
        exit(1);
    }
}

void gpu_launch(const struct gpu *gpu, gpu_function function, unsigned blocks, unsigned threads, gms_cu_stream stream,
                void **arguments)
{
    gpu_must(gpu, gpu->launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, NULL), "launch", __FILE__,
             __LINE__);
}

union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
};

void gpu_send_fd(int socket, int fd)
{
    char byte = 'f';
    union control control = {.bytes = {0}};
    struct iovec vector = {.iov_base = &byte, .iov_len = 1};
    struct msghdr header = {
        .msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    struct cmsghdr *part = CMSG_FIRSTHDR(&header);

    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(part), &fd, sizeof(int));
    REQUIRE(sendmsg(socket, &header, MSG_NOSIGNAL) == 1);
}

int gpu_take_fd(int socket)
{
    char byte;
    int fd = -1;
    union control control = {.bytes = {0}};
    struct iovec vector = {.iov_base = &byte, .iov_len = 1};
    struct msghdr header = {
        .msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

    REQUIRE(recvmsg(socket, &header, MSG_CMSG_CLOEXEC) == 1);
    REQUIRE(CMSG_FIRSTHDR(&header) != NULL);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof(fd));
    return fd;
}
