/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_nvml.h"

#include <stdio.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))

struct nvml_process {
    unsigned int pid;
    unsigned long long memory_bytes;
    unsigned int gpu_instance, compute_instance;
};
struct nvml_memory {
    unsigned long long total, free, used;
};
struct nvml_event {
    void *device;
    unsigned long long type, data;
    unsigned int gpu_instance, compute_instance;
};

PUBLIC struct fake_nvml fake_nvml;

/* Devices are named by 1 + number, MIG instances by 100 * (1 + device) + 1 + number. */
static unsigned long number_of(const void *device)
{
    return (unsigned long)device;
}

static int give(const struct fake_list *list, unsigned int *count, struct nvml_process *processes)
{
    fake_nvml.lists++;
    if (fake_nvml.processes_result != 0)
        return fake_nvml.processes_result;
    if (*count < list->count)
        return 7;
    memset(processes, 0, list->count * sizeof *processes);
    for (unsigned int i = 0; i < list->count; i++)
        processes[i] = (struct nvml_process){.pid = list->pids[i], .memory_bytes = fake_nvml.process_bytes};
    *count = list->count;
    return 0;
}

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned int *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device);
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int length);
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, struct nvml_process *processes);
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned int *count, struct nvml_process *processes);
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned int *count, struct nvml_process *processes);
int nvmlDeviceGetMigMode(void *device, unsigned int *current, unsigned int *pending);
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned int *count);
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned int index, void **instance);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
int nvmlDeviceGetMemoryInfo(void *device, struct nvml_memory *memory);
int nvmlDeviceGetPersistenceMode(void *device, int *mode);
int nvmlEventSetCreate(void **set);
int nvmlEventSetFree(void *set);
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set);
int nvmlEventSetWait_v2(void *set, struct nvml_event *event, unsigned int timeout_ms);

PUBLIC int nvmlInit_v2(void)
{
    fake_nvml.inits += fake_nvml.init_result == 0;
    return fake_nvml.init_result;
}

PUBLIC int nvmlShutdown(void)
{
    fake_nvml.shutdowns++;
    return 0;
}

PUBLIC int nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = fake_nvml.devices;
    return 0;
}

PUBLIC int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device)
{
    *device = (void *)(unsigned long)(index + 1);
    return 0;
}

PUBLIC int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int length)
{
    snprintf(uuid, length, "GPU-%lu-%u", number_of(device), fake_nvml.uuid_salt);
    return fake_nvml.uuid_result;
}

PUBLIC int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, struct nvml_process *processes)
{
    const unsigned long number = number_of(device);
    if (number >= 100)
        return give(&fake_nvml.instances[number / 100 - 1][number % 100 - 1], count, processes);
    return give(&fake_nvml.compute[number - 1], count, processes);
}

PUBLIC int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned int *count, struct nvml_process *processes)
{
    const unsigned long number = number_of(device);
    return number >= 100 ? 3 : give(&fake_nvml.graphics[number - 1], count, processes);
}

PUBLIC int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned int *count, struct nvml_process *processes)
{
    const unsigned long number = number_of(device);
    return number >= 100 ? 3 : give(&fake_nvml.mps[number - 1], count, processes);
}

PUBLIC int nvmlDeviceGetMigMode(void *device, unsigned int *current, unsigned int *pending)
{
    *current = *pending = fake_nvml.mig[number_of(device) - 1] > 0;
    return 0;
}

PUBLIC int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned int *count)
{
    (void)device;
    *count = FAKE_INSTANCES;
    return 0;
}

PUBLIC int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned int index, void **instance)
{
    if (index >= fake_nvml.mig[number_of(device) - 1])
        return 6;
    *instance = (void *)(100 * number_of(device) + 1 + index);
    return 0;
}

PUBLIC int nvmlEventSetCreate(void **set)
{
    *set = (void *)1ul;
    return 0;
}

PUBLIC int nvmlEventSetFree(void *set)
{
    (void)set;
    return 0;
}

PUBLIC int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set)
{
    (void)device;
    (void)set;
    return types == 0x8 ? fake_nvml.events_result : 2;
}

PUBLIC int nvmlEventSetWait_v2(void *set, struct nvml_event *event, unsigned int timeout_ms)
{
    (void)set;
    (void)timeout_ms;
    if (fake_nvml.xids == 0)
        return 10;
    *event = (struct nvml_event){.device = (void *)1ul, .type = 0x8, .data = fake_nvml.xid[--fake_nvml.xids]};
    return 0;
}

/* Any whole UUID is the first device. */
PUBLIC int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    if (fake_nvml.devices == 0 || strncmp(uuid, "GPU-", 4) != 0 || strlen(uuid) != 40)
        return 6;
    *device = (void *)1ul;
    return 0;
}

PUBLIC int nvmlDeviceGetMemoryInfo(void *device, struct nvml_memory *memory)
{
    (void)device;
    *memory = (struct nvml_memory){.total = ~0ULL, .used = fake_nvml.used_bytes};
    return 0;
}

PUBLIC int nvmlDeviceGetPersistenceMode(void *device, int *mode)
{
    (void)device;
    *mode = fake_nvml.persistent;
    return 0;
}
