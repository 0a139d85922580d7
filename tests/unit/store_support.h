/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the store share: records that follow from their numbers, so that any of them can be checked.
 * Header only.
 */
#ifndef GMS_TESTS_STORE_SUPPORT_H
#define GMS_TESTS_STORE_SUPPORT_H

#include "unit_support.h"

#include "durable/store.h"

enum { PATH_ROOM = 256 };

static const char boot_a[] = "11111111-2222-3333-4444-555555555555";
static const char boot_b[] = "aaaaaaaa-2222-3333-4444-555555555555";
static struct gms_error error;
static char store_path[PATH_ROOM];

static inline int setup(void **state)
{
    if (unit_make_dir(state) != 0)
        return -1;
    snprintf(store_path, sizeof(store_path), "%s/store.0", (char *)*state);
    return 0;
}

static inline gms_status open_as(const char *path, const char *boot_id, uint64_t world, bool fresh,
                                 gms_store **ret_store)
{
    struct gms_store_options options = {.path = path, .boot_id = boot_id, .world = world, .keeper = 77, .fresh = fresh};
    memset(&error, 0, sizeof(error));
    return gms_store_open(&options, ret_store, &error);
}

static inline gms_status open_store(gms_store **ret_store)
{
    return open_as(store_path, boot_a, 5, false, ret_store);
}

/* Record `number` has kind 100 + number and a payload that follows from the number, of 0 to 299 bytes. */
static inline uint32_t make_payload(uint64_t number, uint8_t *ret_payload)
{
    uint32_t bytes = (uint32_t)(number * 37 % 300);
    for (uint32_t i = 0; i < bytes; i++)
        ret_payload[i] = (uint8_t)(number * 31 + i);
    return bytes;
}

static inline gms_status append_next(gms_store *store, struct gms_error *ret_error)
{
    uint8_t payload[300];
    uint64_t expected = gms_store_last(store) + 1, number = 0;
    uint32_t bytes = make_payload(expected, payload);
    gms_status status = gms_store_append(store, (uint32_t)(100 + expected), payload, bytes, &number, ret_error);
    if (status == GMS_OK && number != expected)
        return GMS_E_DIVERGED;
    return status;
}

static inline void append_many(gms_store *store, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        assert_ok(append_next(store, &error));
}

struct walk {
    uint64_t next;
    bool right;
};

static inline gms_status check_record(void *context, uint64_t number, uint32_t kind, const void *payload,
                                      uint32_t bytes)
{
    struct walk *walk = context;
    uint8_t expected[300];
    uint32_t expected_bytes = make_payload(number, expected);
    walk->right = walk->right && number == walk->next && kind == 100 + number && bytes == expected_bytes &&
                  (bytes == 0 || memcmp(payload, expected, bytes) == 0);
    walk->next++;
    return GMS_OK;
}

/* Are the records of `store` 1 to gms_store_last, each as it was written? */
static inline bool holds_right_records(gms_store *store)
{
    struct walk walk = {.next = 1, .right = true};
    return gms_store_each(store, check_record, &walk, &error) == GMS_OK && walk.right &&
           walk.next == gms_store_last(store) + 1;
}

static inline void assert_holds(uint64_t last)
{
    gms_store *store = NULL;
    assert_ok(open_store(&store));
    assert_int_equal(gms_store_last(store), last);
    assert_true(holds_right_records(store));
    gms_store_close(store);
}

#endif
