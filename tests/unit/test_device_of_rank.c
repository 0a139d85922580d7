/* SPDX-License-Identifier: Apache-2.0
 * The GPU of a coordinator rank: found, known again without the driver, never shared by accident (V42). On the fake
 * driver; each case is a process of its own, because a process has one device. */
#include "unit_support.h"

#include "memory/device.h"
#include "vmm/cuda.h"

static struct gms_error error;
static struct gms_config config;

/* Runs `check` in a child whose driver sees `visible`. */
static void in_child(void (*check)(const char *root), const char *visible, const char *root)
{
    const pid_t child = fork();
    if (child == 0) {
        setenv("FAKE_CUDA_VISIBLE", visible, 1);
        config = (struct gms_config){.backend = GMS_MEMORY_CUDA, .ranks = 2};
        check(root);
        _exit(0);
    }
    assert_int_equal(unit_wait(child), 0);
}

static const struct gms_uuid unknown;

static struct gms_uuid fake_uuid(int device)
{
    struct gms_uuid uuid;
    memset(uuid.bytes, 0xfa, sizeof uuid.bytes);
    uuid.bytes[0] = (uint8_t)(0x10 + device);
    return uuid;
}

static void takes_its_own(const char *root)
{
    struct gms_device_of_rank device;
    const struct gms_uuid second = fake_uuid(5);
    child_check(gms_device_take(&config, 1, &unknown, root, &device, &error) == GMS_OK);
    child_check(device.backend == GMS_MEMORY_CUDA && gms_uuid_equal(&device.uuid, &second));
}

static void takes_the_only_one(const char *root)
{
    struct gms_device_of_rank device;
    const struct gms_uuid only = fake_uuid(6);
    child_check(gms_device_take(&config, 1, &unknown, root, &device, &error) == GMS_OK);
    child_check(gms_uuid_equal(&device.uuid, &only));
}

static void shares_the_first(const char *root)
{
    struct gms_device_of_rank device;
    const struct gms_uuid first = fake_uuid(4);
    config.device_shared = true;
    child_check(gms_device_take(&config, 1, &unknown, root, &device, &error) == GMS_OK);
    child_check(gms_uuid_equal(&device.uuid, &first));
}

static void has_too_few(const char *root)
{
    struct gms_device_of_rank device;
    child_check(gms_device_take(&config, 2, &unknown, root, &device, &error) == GMS_E_NOT_FOUND);
    child_check(strstr(error.text, "2 are here") != NULL);
}

/* What is known from the memory needs no driver, not even one that starts. */
static void knows_it_again(const char *root)
{
    struct gms_device_of_rank device;
    const struct gms_uuid kept = fake_uuid(5);
    setenv("FAKE_CUDA_FAIL", "cuInit:0:802", 1);
    child_check(gms_device_take(&config, 0, &kept, root, &device, &error) == GMS_OK);
    child_check(gms_uuid_equal(&device.uuid, &kept));
    child_check(gms_vmm_cuda_calls() == 0);
    gms_device_warm_up(&device); /* fails, and nobody is told */
    struct gms_vmm_handle handle = {.fd = -1};
    child_check(gms_vmm_cuda()->create("late", gms_vmm_cuda()->granularity_bytes, &handle, &error) != GMS_E_INVALID);
}

static void needs_nothing_for_host_memory(const char *root)
{
    struct gms_device_of_rank device;
    config.backend = GMS_MEMORY_HOST;
    child_check(gms_device_take(&config, 0, &unknown, root, &device, &error) == GMS_OK);
    child_check(device.backend == GMS_MEMORY_HOST && !gms_uuid_is_known(&device.uuid));
    child_check(gms_vmm_cuda_calls() == 0);
}

/* The driver's folder says which devices there are: a mask that the driver would cut short is an error. */
static void is_told_of_a_wrong_mask(const char *root)
{
    struct gms_device_of_rank device;
    setenv("CUDA_VISIBLE_DEVICES", "0,7,1", 1);
    child_check(gms_device_take(&config, 0, &unknown, root, &device, &error) == GMS_E_NOT_FOUND);
    child_check(strstr(error.text, "CUDA_VISIBLE_DEVICES=0,7,1: entry 1") != NULL);
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    child_check(gms_device_take(&config, 0, &unknown, root, &device, &error) == GMS_E_REFUSED);
    setenv("CUDA_VISIBLE_DEVICES", "GPU-8f3a01bc-2", 1);
    child_check(gms_device_take(&config, 0, &unknown, root, &device, &error) == GMS_OK);
}

static void write_information(const char *root, const char *bus, const char *uuid)
{
    char path[512], text[256];
    const char *const parts[] = {"driver", "driver/nvidia", "driver/nvidia/gpus"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", root, parts[i]);
        (void)mkdir(path, 0700);
    }
    snprintf(path, sizeof path, "%s/driver/nvidia/gpus/%s", root, bus);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/driver/nvidia/gpus/%s/information", root, bus);
    snprintf(text, sizeof text, "Model: \t\t NVIDIA H200\nIRQ:   \t\t 98\nGPU UUID: \t %s\nVideo BIOS: ??\n", uuid);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void test_devices_of_ranks(void **state)
{
    const char *root = *state;
    in_child(takes_its_own, "4,5", root);
    in_child(takes_the_only_one, "6", root);
    in_child(shares_the_first, "4,5", root);
    in_child(has_too_few, "4,5", root);
    in_child(knows_it_again, "5", root);
    in_child(needs_nothing_for_host_memory, "5", root);
    write_information(root, "0000:0a:00.0", "GPU-8f3a01bc-1001-4201-9910-aabbccddee01");
    write_information(root, "0000:1b:00.0", "GPU-8f3a01bc-2002-4202-9920-aabbccddee02");
    in_child(is_told_of_a_wrong_mask, "1", root);
}

static void test_distinct(void **state)
{
    struct gms_uuid uuids[] = {fake_uuid(1), fake_uuid(2), fake_uuid(3)};
    (void)state;
    assert_ok(gms_device_check_distinct(uuids, 3, &error));
    uuids[2] = uuids[0];
    assert_status(gms_device_check_distinct(uuids, 3, &error), GMS_E_MISMATCH);
    assert_text_has("ranks 0 and 2 have the same GPU, GPU-11fafafa");
    assert_ok(gms_device_check_distinct(uuids, 2, &error));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_devices_of_ranks, unit_make_dir, unit_remove_dir),
        cmocka_unit_test(test_distinct),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
