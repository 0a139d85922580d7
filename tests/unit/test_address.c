/* SPDX-License-Identifier: Apache-2.0
 *
 * network.address: what may stand in the file, and which of this host's addresses it finds.
 */
#include "unit_support.h"

#include "config/address.h"

static void test_words(void **state)
{
    static const char *const good[] = {"auto", "10.1.2.3", "10.1.0.0/16", "0.0.0.0/1", "ib0", "eth0.7", "lo"};
    static const char *const bad[] = {
        "",          "10.1.2.3/16", "10.1.0.0/0", "10.1.0.0/33", "10.1.0.0/", "10.1.0.0/8x",      "10.1.2",
        "1.2.3.4.5", "10.1.0.0/-8", "a b",        "eth0/24",     "::1/128",   "interfacenamelong"};
    struct gms_error error;
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_true(gms_address_check(good[i], &error));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(gms_address_check(bad[i], &error));
        assert_non_null(strstr(error.text, "an interface (ib0)"));
    }
}

static void test_find(void **state)
{
    char address[GMS_ADDRESS_BYTES];
    struct gms_error error;
    (void)state;
    assert_ok(gms_address_find("auto", "here", address, &error));
    assert_true(strlen(address) >= 7);
    assert_ok(gms_address_find("127.0.0.0/8", "here", address, &error));
    assert_int_equal(strncmp(address, "127.", 4), 0);
    assert_ok(gms_address_find("lo", "here", address, &error));
    assert_int_equal(strncmp(address, "127.", 4), 0);
    assert_status(gms_address_find("198.51.100.0/24", "here", address, &error), GMS_E_CONFIG);
    assert_string_equal(address, "");
    assert_non_null(
        strstr(error.text, "network.address = \"198.51.100.0/24\": host here has no such address that is up"));
    assert_non_null(strstr(error.text, "lo 127."));
    assert_status(gms_address_find("nosuch0", "here", address, &error), GMS_E_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_words), cmocka_unit_test(test_find)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
