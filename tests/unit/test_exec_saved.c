/* SPDX-License-Identifier: Apache-2.0
 *
 * gms-exec's copies: taken as they are told, forgotten when a list ends without them, and given to a keeper that is
 * new, however long that takes to come.
 */
#include "keeper_support.h"

#include "gms-exec/saved.h"

static struct gms_saved saved;

static int open_saved(void **state)
{
    if (keeper_setup(state) != 0)
        return -1;
    return gms_saved_open(&saved, keeper.run_dir, 0, &error) == GMS_OK ? 0 : -1;
}

static int close_saved(void **state)
{
    gms_saved_close(&saved);
    return keeper_teardown(state);
}

static void tell(enum gms_copy_kind kind, const char *name, const char *content, const char *meta)
{
    struct gms_message message = {.type = GMS_MESSAGE_COPY, .fds = {-1, -1, -1, -1}};
    message.copy.kind = kind;
    message.copy.name = (struct gms_bytes){name, (uint32_t)strlen(name)};
    message.copy.meta = (struct gms_bytes){meta, (uint32_t)strlen(meta)};
    if (content != NULL) {
        message.fd_count = 1;
        message.fds[0] = memfd_create("saved", MFD_CLOEXEC);
        assert_int_equal(write(message.fds[0], content, strlen(content)), strlen(content));
    }
    gms_saved_take(&saved, &message);
    gms_message_close_fds(&message); /* as the link does; what was taken is not there any more */
}

static const struct gms_saved_item *find(const char *name)
{
    for (size_t i = 0; i < saved.count; i++)
        if (strcmp(saved.items[i].name, name) == 0)
            return &saved.items[i];
    return NULL;
}

static bool holds(const struct gms_saved_item *item, const char *content, const char *meta)
{
    char data[64] = "";
    return item != NULL && pread(item->fd, data, sizeof data - 1, 0) == (ssize_t)strlen(content) &&
           strcmp(data, content) == 0 && item->meta_bytes == strlen(meta) &&
           (item->meta_bytes == 0 || memcmp(item->meta, meta, item->meta_bytes) == 0);
}

static void test_told(void **state)
{
    (void)state;
    tell(GMS_COPY_PUT, "pool/kv/0", "first", "m");
    tell(GMS_COPY_PUT, "pool/kv/0", "second", ""); /* in its place */
    tell(GMS_COPY_PUT, "session/3/0", "s", "meta");
    tell(GMS_COPY_PUT, "no descriptor/0", NULL, "");
    tell(GMS_COPY_PUT, "", "no name", "");
    assert_int_equal(saved.count, 2);
    assert_true(holds(find("pool/kv/0"), "second", ""));
    assert_true(holds(find("session/3/0"), "s", "meta"));
    tell(GMS_COPY_DROP, "pool/none/0", NULL, "");
    tell(GMS_COPY_DROP, "pool/kv/0", NULL, "");
    assert_int_equal(saved.count, 1);
    assert_null(find("pool/kv/0"));
}

/* A new coordinator tells all that there is: the rest is over. A list that never ends takes nothing away. */
static void test_list(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) {
        char name[32];
        snprintf(name, sizeof name, "pool/%d/0", i);
        tell(GMS_COPY_PUT, name, name, "");
    }
    tell(GMS_COPY_BEGIN, "", NULL, "");
    tell(GMS_COPY_PUT, "pool/7/0", "again", "");
    tell(GMS_COPY_PUT, "pool/new/0", "new", "");
    assert_int_equal(saved.count, 101);
    tell(GMS_COPY_BEGIN, "", NULL, ""); /* that coordinator ended; the next begins anew */
    tell(GMS_COPY_PUT, "pool/7/0", "third", "");
    tell(GMS_COPY_END, "", NULL, "");
    assert_int_equal(saved.count, 1);
    assert_true(holds(find("pool/7/0"), "third", ""));
    tell(GMS_COPY_END, "", NULL, ""); /* an end without a beginning */
    assert_int_equal(saved.count, 1);
}

/* No keeper: asked for less and less often, and never for long. */
static void test_no_keeper(void **state)
{
    uint64_t former_ns = 0;
    (void)state;
    assert_int_equal(mkdir(keeper.run_dir, 0700), 0);
    tell(GMS_COPY_PUT, "pool/kv/0", "kept", "");
    for (int i = 0; i < 12; i++) {
        uint64_t begin_ns = gms_clock_ns();
        assert_false(gms_saved_step(&saved, saved.retry_ns));
        assert_true(saved.retry_ns > begin_ns);
        assert_true(saved.retry_ns <= gms_clock_ns() + GMS_NS_PER_S / 2);
        assert_true(saved.pause_ns >= former_ns);
        former_ns = saved.pause_ns;
    }
    assert_false(gms_saved_step(&saved, saved.retry_ns - 1)); /* not before its time */
    assert_true(saved.fd < 0);
}

static bool refilled(void)
{
    return gms_saved_step(&saved, saved.retry_ns);
}

/* The keeper comes late, has everything then, and is not asked again until it ends. */
static void test_keeper_comes(void **state)
{
    (void)state;
    tell(GMS_COPY_PUT, "pool/kv/0", "kept", "");
    assert_int_equal(mkdir(keeper.run_dir, 0700), 0);
    assert_false(gms_saved_step(&saved, gms_clock_ns()));
    keeper_start(NULL);
    wait_until(refilled);
    assert_true(saved.fd >= 0);
    assert_int_equal(saved.retry_ns, UINT64_MAX);
    assert_false(gms_saved_step(&saved, UINT64_MAX));
    assert_int_equal(holder_run(1, 0, get_one), GMS_OK);

    keeper_kill(); /* and the next one as well; it is looked for often while it may be on its way */
    for (int i = 0; i < 12; i++) {
        uint64_t now_ns = saved.retry_ns == UINT64_MAX ? gms_clock_ns() : saved.retry_ns;
        assert_false(gms_saved_step(&saved, now_ns));
        assert_true(saved.pause_ns <= 100 * GMS_NS_PER_MS);
    }
    keeper_start(NULL);
    wait_until(refilled);
    assert_int_equal(holder_run(1, 0, get_one), GMS_OK);
}

static void make_whole(struct gms_keeper_client *client)
{
    char names[64];
    uint32_t bytes = 0;
    child_check(gms_keeper_mirror(client, 1, &error) == GMS_OK);
    child_check(gms_keeper_list(client, "", names, sizeof names, &bytes, &error) == GMS_OK && bytes == 0);
}

/* The rank's coordinator has told its keeper that it has everything: what was saved here is old, and not taken. */
static void test_not_needed(void **state)
{
    (void)state;
    keeper_start(NULL);
    struct holder holder = holder_start(1, 0, make_whole);
    assert_int_equal(holder_status(&holder), GMS_OK);
    holder_done(&holder);
    tell(GMS_COPY_PUT, "pool/kv/0", "kept", "");
    assert_false(gms_saved_step(&saved, gms_clock_ns()));
    assert_true(saved.fd >= 0); /* and it stays with that keeper */
    assert_int_equal(keeper_number("held"), 0);
    holder_end(&holder);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_saved, close_saved)
    const struct CMUnitTest tests[] = {
        TEST(test_told), TEST(test_list), TEST(test_no_keeper), TEST(test_keeper_comes), TEST(test_not_needed),
    };
    return cmocka_run_group_tests_name("gms-exec's copies", tests, NULL, NULL);
}
