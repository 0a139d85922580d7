/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/device.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "host/nvml.h"
#include "vmm/cuda.h"

/* --------------------------------------------------------------------------------------- all devices of the host - */

/* "GPU UUID: 	 GPU-8-4-4-4-12" in the driver's own words. */
static bool read_uuid(const char *path, struct gms_uuid *ret_uuid)
{
    char text[4096];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    gms_fd_close(&fd);
    if (length <= 0)
        return false;
    text[length] = '\0';
    const char *at = strstr(text, "GPU-");
    size_t digits = 0;
    for (at = at != NULL ? at + 4 : ""; *at != '\0' && digits < 32; at++) {
        unsigned value;
        char digit[2] = {*at, '\0'};
        if (*at == '-')
            continue;
        if (sscanf(digit, "%1x", &value) != 1)
            break;
        uint8_t *byte = &ret_uuid->bytes[digits / 2];
        *byte = (uint8_t)(digits++ % 2 == 0 ? value << 4 : *byte | value);
    }
    return digits == 32;
}

/* In the order of their bus addresses; 0: the driver's folder is not here, and nothing is known. */
static uint32_t list_devices(const char *proc, struct gms_device ret_devices[GMS_DEVICES_MAX])
{
    char path[PATH_MAX];
    struct dirent **entries = NULL;
    uint32_t count = 0;
    snprintf(path, sizeof path, "%s/driver/nvidia/gpus", proc);
    const int found = scandir(path, &entries, NULL, alphasort);
    for (int i = 0; i < found; i++) {
        char file[PATH_MAX];
        if (entries[i]->d_name[0] != '.' && count < GMS_DEVICES_MAX &&
            snprintf(file, sizeof file, "%.2000s/%s/information", path, entries[i]->d_name) < (int)sizeof file) {
            ret_devices[count] = (struct gms_device){.slice = false};
            count += read_uuid(file, &ret_devices[count].uuid);
        }
        free(entries[i]);
    }
    free(entries);
    return count;
}

/* The driver says nothing about a mask that it cuts short. Slices are not in the list, so a mask of them is left to it.
 */
static gms_status check_mask(const char *proc, struct gms_error *ret_error)
{
    const char *mask = getenv("CUDA_VISIBLE_DEVICES");
    struct gms_device devices[GMS_DEVICES_MAX];
    uint32_t visible[GMS_DEVICES_MAX], visible_count = 0;
    const uint32_t count = list_devices(proc, devices);
    if (mask == NULL || (*mask != '\0' && (count == 0 || strstr(mask, "MIG-") != NULL)))
        return GMS_OK;
    return gms_device_mask(mask, devices, count, visible, &visible_count, ret_error);
}

/* ------------------------------------------------------------------------------------------------- this rank's ---- */

/* A driver that unloads between two users makes the next start slow, and forgets settings. */
static void warn_of_settings(const struct gms_uuid *uuid)
{
    char name[GMS_UUID_TEXT_BYTES];
    bool persistent = true;
    if (gms_nvml_persistence(NULL, uuid, &persistent, NULL) == GMS_OK && !persistent)
        gms_log(GMS_LOG_WARNING,
                "%s is not in persistence mode: when nobody uses it the driver is unloaded, and the next start of an "
                "engine or a coordinator takes seconds longer; nvidia-smi -pm 1, or run nvidia-persistenced",
                gms_uuid_format(uuid, false, name));
    if (getenv("CUDA_MPS_PIPE_DIRECTORY") != NULL || access("/tmp/nvidia-mps/control", F_OK) == 0)
        gms_log(GMS_LOG_WARNING,
                "MPS seems to be in use: the death of one of its clients can harm the others, and is no "
                "sign that its work has stopped");
}

gms_status gms_device_take(const struct gms_config *config, uint32_t rank, const struct gms_uuid *kept,
                           const char *proc, struct gms_device_of_rank *ret_device, struct gms_error *ret_error)
{
    char wanted[GMS_UUID_TEXT_BYTES];
    struct gms_vmm_cuda_device device;
    *ret_device = (struct gms_device_of_rank){.backend = config->backend};
    if (config->backend != GMS_MEMORY_CUDA)
        return GMS_OK;
    if (gms_uuid_is_known(kept)) {
        ret_device->uuid = *kept;
        return gms_vmm_cuda_choose(gms_uuid_format(kept, false, wanted), ret_error);
    }
    gms_status status = check_mask(proc, ret_error);
    if (status == GMS_OK) {
        snprintf(wanted, sizeof wanted, "%s%u", config->device_shared ? "" : "#", config->device_shared ? 0 : rank);
        status = gms_vmm_cuda_choose(wanted, ret_error);
    }
    if (status == GMS_OK)
        status = gms_vmm_cuda_ready(&device, ret_error);
    if (status != GMS_OK)
        return status;
    ret_device->uuid = device.uuid;
    gms_log(GMS_LOG_NOTICE, "pools of rank %u are memory of %s, %s", rank, device.name,
            gms_uuid_format(&device.uuid, false, wanted));
    warn_of_settings(&device.uuid);
    return GMS_OK;
}

gms_status gms_device_check_distinct(const struct gms_uuid *uuids, uint32_t ranks, struct gms_error *ret_error)
{
    char text[GMS_UUID_TEXT_BYTES];
    for (uint32_t i = 0; i < ranks; i++)
        for (uint32_t j = 0; j < i; j++)
            if (gms_uuid_equal(&uuids[i], &uuids[j]))
                return gms_fail(ret_error, GMS_E_MISMATCH,
                                "ranks %u and %u have the same GPU, %s: let the launcher give each rank its own "
                                "(CUDA_VISIBLE_DEVICES), or say memory.device = \"shared\" for a drill",
                                j, i, gms_uuid_format(&uuids[i], false, text));
    return GMS_OK;
}

gms_status gms_device_agree(const struct gms_config *config, struct gms_round *round,
                            const struct gms_device_of_rank *device, struct gms_error *ret_error)
{
    if (config->backend != GMS_MEMORY_CUDA)
        return GMS_OK;
    struct gms_uuid *uuids = calloc(config->ranks, sizeof *uuids);
    if (uuids == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for %u UUIDs", config->ranks);
    gms_status status = gms_round_gather(round, &device->uuid, sizeof device->uuid, uuids, ret_error);
    if (status != GMS_OK)
        return status; /* MPI may still write there */
    if (!config->device_shared)
        status = gms_device_check_distinct(uuids, config->ranks, ret_error);
    free(uuids);
    return status;
}

static void *warm_up(void *nothing)
{
    (void)nothing;
    (void)gms_vmm_cuda_ready(NULL, NULL);
    return NULL;
}

void gms_device_warm_up(const struct gms_device_of_rank *device)
{
    pthread_t thread;
    if (device->backend == GMS_MEMORY_CUDA && pthread_create(&thread, NULL, warm_up, NULL) == 0)
        pthread_detach(thread);
}
