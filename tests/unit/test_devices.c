/* SPDX-License-Identifier: Apache-2.0
 * Devices by UUID, and every form of mask that was met in the field (V42), against a table of devices that stands here.
 */
#include "unit_support.h"

#include "vmm/devices.h"

static struct gms_error error;

/* Two that begin alike, one that does not, one slice. */
static const struct gms_device table[] = {
    {.uuid = {{0x8f, 0x3a, 0x01, 0xbc, 0x10, 0x01, 0x42, 0x01, 0x99, 0x10, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0x01}}},
    {.uuid = {{0x8f, 0x3a, 0x01, 0xbc, 0x20, 0x02, 0x42, 0x02, 0x99, 0x20, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0x02}}},
    {.uuid = {{0x11, 0x22, 0x33, 0x44, 0x30, 0x03, 0x42, 0x03, 0x99, 0x30, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0x03}}},
    {.uuid = {{0x11, 0x22, 0x33, 0x44, 0x40, 0x04, 0x42, 0x04, 0x99, 0x40, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0x04}},
     .slice = true},
};
enum { COUNT = sizeof table / sizeof table[0] };

static void uuids_are_told_apart_and_written(void **state)
{
    char text[GMS_UUID_TEXT_BYTES];
    const struct gms_uuid unknown = {{0}};

    (void)state;
    assert_string_equal(gms_uuid_format(&table[0].uuid, false, text), "GPU-8f3a01bc-1001-4201-9910-aabbccddee01");
    assert_string_equal(gms_uuid_format(&table[3].uuid, true, text), "MIG-11223344-4004-4204-9940-aabbccddee04");
    assert_true(gms_uuid_equal(&table[0].uuid, &table[0].uuid));
    assert_false(gms_uuid_equal(&table[0].uuid, &table[1].uuid));
    assert_true(gms_uuid_is_known(&table[2].uuid));
    assert_false(gms_uuid_is_known(&unknown));
}

static void a_device_is_found_by_every_form(void **state)
{
    static const struct {
        const char *text;
        uint32_t index;
    } good[] = {{"0", 0},
                {"3", 3},
                {"007", UINT32_MAX},
                {"GPU-8f3a01bc-1001-4201-9910-aabbccddee01", 0},
                {"GPU-8F3A01BC-2002-4202-9920-AABBCCDDEE02", 1},
                {"GPU-8f3a01bc20024202", 1},
                {"GPU-8f3a01bc-2", 1},
                {"GPU-11223344", 2},
                {"GPU-1", 2},
                {"MIG-11223344", 3},
                {"MIG-11223344-4004-4204-9940-aabbccddee04", 3}};

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        uint32_t index = 4711;

        if (good[i].index == UINT32_MAX) {
            assert_status(gms_device_find(good[i].text, table, COUNT, &index, &error), GMS_E_NOT_FOUND);
            assert_int_equal(index, 4711);
            continue;
        }
        assert_ok(gms_device_find(good[i].text, table, COUNT, &index, &error));
        assert_int_equal(index, good[i].index);
    }
}

static void what_names_no_device_says_why(void **state)
{
    uint32_t index = 4711;

    (void)state;
    assert_status(gms_device_find("", table, COUNT, &index, &error), GMS_E_INVALID);
    assert_status(gms_device_find("-1", table, COUNT, &index, &error), GMS_E_INVALID);
    assert_status(gms_device_find("1x", table, COUNT, &index, &error), GMS_E_INVALID);
    assert_status(gms_device_find("99999999999999999999", table, COUNT, &index, &error), GMS_E_INVALID);
    assert_status(gms_device_find("4", table, COUNT, &index, &error), GMS_E_NOT_FOUND);
    assert_text_has("4 are here");
    assert_status(gms_device_find("GPU-", table, COUNT, &index, &error), GMS_E_INVALID);
    assert_status(gms_device_find("GPU-xyz", table, COUNT, &index, &error), GMS_E_INVALID);
    assert_status(gms_device_find("GPU-8f3a01bc-1001-4201-9910-aabbccddee011", table, COUNT, &index, &error),
                  GMS_E_INVALID);
    assert_status(gms_device_find("GPU-ffff", table, COUNT, &index, &error), GMS_E_NOT_FOUND);
    assert_status(gms_device_find("MIG-8f3a01bc", table, COUNT, &index, &error), GMS_E_NOT_FOUND);
    assert_status(gms_device_find("GPU-8f3a01bc", table, COUNT, &index, &error), GMS_E_MISMATCH);
    assert_text_has("GPU-8f3a01bc-1001-4201-9910-aabbccddee01");
    assert_text_has("GPU-8f3a01bc-2002-4202-9920-aabbccddee02");
    assert_int_equal(index, 4711);
}

static void masks_show_devices_in_their_order(void **state)
{
    static const struct {
        const char *mask;
        uint32_t count, visible[COUNT];
    } good[] = {{NULL, 4, {0, 1, 2, 3}},
                {"0", 1, {0}},
                {"1,0", 2, {1, 0}},
                {" 2 ,\t1", 2, {2, 1}},
                {"GPU-11223344,GPU-8f3a01bc-1", 2, {2, 0}},
                {"MIG-11223344", 1, {3}},
                {"GPU-11,MIG-11", 2, {2, 3}}};

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        uint32_t visible[GMS_DEVICES_MAX] = {0};
        uint32_t count = 0;

        assert_ok(gms_device_mask(good[i].mask, table, COUNT, visible, &count, &error));
        assert_int_equal(count, good[i].count);
        assert_memory_equal(visible, good[i].visible, count * sizeof visible[0]);
    }
}

static void masks_that_the_driver_cuts_short_are_errors(void **state)
{
    static const struct {
        const char *mask;
        gms_status status;
        const char *text;
    } bad[] = {{"", GMS_E_REFUSED, "set and empty"},
               {"0,0", GMS_E_EXISTS, "would show 0 devices"},
               {"0,-1,1", GMS_E_INVALID, "entry 1: device \"-1\""},
               {"0,,1", GMS_E_INVALID, "entry 1"},
               {"0,", GMS_E_INVALID, "would show 1 devices"},
               {"0,9", GMS_E_NOT_FOUND, "there is no device 9"},
               {"NoDevFiles", GMS_E_INVALID, "NoDevFiles"},
               {"GPU-8f3a01bc", GMS_E_MISMATCH, "give more digits"},
               {"GPU-11223344,0", GMS_E_INVALID, "mixed"},
               {"2,GPU-8f3a01bc-1", GMS_E_INVALID, "mixed"},
               {"GPU-11,GPU-1122", GMS_E_EXISTS, "stands at 0"},
               {"GPU-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", GMS_E_INVALID, "too long"}};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint32_t visible[GMS_DEVICES_MAX] = {4711};
        uint32_t count = 4711;

        assert_status(gms_device_mask(bad[i].mask, table, COUNT, visible, &count, &error), bad[i].status);
        assert_text_has(bad[i].text);
        assert_int_equal(count, 4711);
        assert_int_equal(visible[0], 4711);
    }
}

/* Every rank "0", each with another mask: different devices. Equal masks in another order: the same two. */
static void equal_numbers_are_not_equal_devices(void **state)
{
    uint32_t first[GMS_DEVICES_MAX];
    uint32_t second[GMS_DEVICES_MAX];
    uint32_t count = 0;

    (void)state;
    assert_ok(gms_device_mask("GPU-11223344", table, COUNT, first, &count, &error));
    assert_ok(gms_device_mask("GPU-8f3a01bc-1", table, COUNT, second, &count, &error));
    assert_int_not_equal(first[0], second[0]);
    assert_ok(gms_device_mask("0,1", table, COUNT, first, &count, &error));
    assert_ok(gms_device_mask("1,0", table, COUNT, second, &count, &error));
    assert_int_equal(first[0], second[1]);
    assert_int_not_equal(first[0], second[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uuids_are_told_apart_and_written),
        cmocka_unit_test(a_device_is_found_by_every_form),
        cmocka_unit_test(what_names_no_device_says_why),
        cmocka_unit_test(masks_show_devices_in_their_order),
        cmocka_unit_test(masks_that_the_driver_cuts_short_are_errors),
        cmocka_unit_test(equal_numbers_are_not_equal_devices),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
