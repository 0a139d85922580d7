/* SPDX-License-Identifier: Apache-2.0
 *
 * What a coordinator rank leaves with others: the table, what listeners hear, and the way to a keeper and back.
 */
#include "keeper_support.h"

#include "durable/copies.h"

static int make_file(const char *text)
{
    int fd = memfd_create("copy", MFD_CLOEXEC);
    child_check(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    return fd;
}

static bool holds(int fd, const char *text)
{
    char data[64] = "";
    return pread(fd, data, sizeof data - 1, 0) == (ssize_t)strlen(text) && strcmp(data, text) == 0;
}

static void put(struct gms_copies *copies, const char *name, const char *text, const char *meta)
{
    int fd = make_file(text);
    gms_copies_put(copies, name, fd, meta, (uint32_t)strlen(meta));
    gms_fd_close(&fd);
}

/* -------------------------------------------------------------------------------------------------- table ----- */

struct heard {
    int puts, drops;
    char last[64];
};

static void hear(void *context, const struct gms_copy *copy)
{
    struct heard *heard = context;
    if (copy->fd < 0)
        heard->drops++;
    else
        heard->puts++;
    snprintf(heard->last, sizeof heard->last, "%s", copy->name);
}

static void test_table(void **state)
{
    static const char *const ordered[] = {"directory/3/kv/0", "pool/kv/0", "prepared/1/pool/0", "session/3/0"};
    struct gms_copies *copies = NULL;
    struct heard heard = {0};
    struct gms_copy copy;
    (void)state;
    assert_ok(gms_copies_open(NULL, 0, &copies, &error));
    gms_copies_listen(copies, hear, &heard);
    put(copies, "session/3/0", "s", "");
    put(copies, "pool/kv/0", "first", "meta");
    put(copies, "prepared/1/pool/0", "p", "");
    put(copies, "directory/3/kv/0", "d", "");
    put(copies, "pool/kv/0", "second", "longer meta"); /* in place of the first */
    assert_int_equal(heard.puts, 5);
    assert_string_equal(heard.last, "pool/kv/0");
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(gms_copies_at(copies, i, &copy));
        assert_string_equal(copy.name, ordered[i]);
        assert_true((fcntl(copy.fd, F_GETFD) & FD_CLOEXEC) != 0);
    }
    assert_false(gms_copies_at(copies, 4, &copy));
    assert_true(gms_copies_find(copies, "pool/kv/0", &copy));
    assert_true(holds(copy.fd, "second")); /* its own descriptor: ours is closed */
    assert_int_equal(copy.meta_bytes, strlen("longer meta"));
    assert_memory_equal(copy.meta, "longer meta", copy.meta_bytes);
    assert_false(gms_copies_find(copies, "pool/kv", &copy));
    assert_int_equal(gms_copies_count(copies, ""), 4);
    assert_int_equal(gms_copies_count(copies, "pool/"), 1);
    assert_int_equal(gms_copies_count_kind(copies, "pool"), 2); /* the prepared one too */
    assert_int_equal(gms_copies_count_kind(copies, "session"), 1);
    assert_int_equal(gms_copies_count_kind(copies, "kv"), 0); /* a pool's name is no kind */
    gms_copies_drop(copies, "pool/none/0");
    assert_int_equal(heard.drops, 0);
    gms_copies_drop(copies, "pool/kv/0");
    assert_int_equal(heard.drops, 1);
    assert_false(gms_copies_find(copies, "pool/kv/0", &copy));
    assert_int_equal(gms_copies_count(copies, ""), 3);
    assert_ok(gms_copies_load(copies, &error)); /* without a keeper: nothing */
    gms_copies_close(copies);
    gms_copies_close(NULL);
}

/* A table of any size keeps its order and all of its descriptors. */
static void test_many(void **state)
{
    enum { MANY = 300 };
    struct gms_copies *copies = NULL;
    struct gms_copy copy;
    char name[32], text[32], former[32] = "";
    (void)state;
    assert_ok(gms_copies_open(NULL, 0, &copies, &error));
    for (unsigned i = 0; i < MANY; i++) {
        unsigned at = i * 7 % MANY;
        snprintf(name, sizeof name, "pool/%u/0", at);
        snprintf(text, sizeof text, "text %u", at);
        put(copies, name, text, text);
    }
    assert_int_equal(gms_copies_count(copies, "pool/"), MANY);
    for (unsigned i = 0; i < MANY; i++) {
        unsigned number = 0;
        assert_true(gms_copies_at(copies, i, &copy));
        assert_true(strcmp(former, copy.name) < 0);
        snprintf(former, sizeof former, "%s", copy.name);
        assert_int_equal(sscanf(copy.name, "pool/%u/0", &number), 1);
        snprintf(text, sizeof text, "text %u", number);
        assert_true(holds(copy.fd, text));
        assert_memory_equal(copy.meta, text, copy.meta_bytes);
    }
    gms_copies_close(copies);
}

/* No descriptor is left: said in the log, and nothing of that name is told to anybody. */
static void test_no_descriptor(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        struct gms_copies *copies = NULL;
        struct heard heard = {0};
        struct gms_copy copy;
        child_check(close_range(STDERR_FILENO + 1, ~0U, 0) == 0);
        child_check(gms_copies_open(NULL, 0, &copies, &error) == GMS_OK);
        gms_copies_listen(copies, hear, &heard);
        int fd = make_file("x");
        const struct rlimit limit = {.rlim_cur = (rlim_t)fd + 1, .rlim_max = (rlim_t)fd + 1};
        child_check(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        child_check(gms_copies_put(copies, "pool/kv/0", fd, NULL, 0) == GMS_E_DESCRIPTORS);
        child_check(!gms_copies_find(copies, "pool/kv/0", &copy));
        child_check(heard.puts == 0);
        _exit(0);
    }
    assert_int_equal(unit_wait(pid), 0);
}

/* ------------------------------------------------------------------------------------------------- keeper ----- */

static void leave_some(struct gms_keeper_client *client)
{
    struct gms_copies *copies = NULL;
    child_check(gms_copies_open(client, client->rank, &copies, &error) == GMS_OK);
    if (client->rank == 1) {
        put(copies, "pool/kv/1", "of rank 1", "");
        return;
    }
    put(copies, "pool/kv/0", "kept", "meta");
    put(copies, "session/3/0", "s", "");
    put(copies, "pool/over/0", "o", "");
    gms_copies_drop(copies, "pool/over/0");
}

static void load_them(struct gms_keeper_client *client)
{
    struct gms_copies *copies = NULL;
    struct gms_copy copy;
    child_check(gms_copies_open(client, client->rank, &copies, &error) == GMS_OK);
    child_check(gms_copies_load(copies, &error) == GMS_OK);
    child_check(gms_copies_count(copies, "") == 2); /* neither what was dropped nor another rank's */
    child_check(gms_copies_find(copies, "pool/kv/0", &copy) && holds(copy.fd, "kept"));
    child_check(copy.meta_bytes == 4 && memcmp(copy.meta, "meta", 4) == 0);
    child_check(gms_copies_load(copies, &error) == GMS_OK && gms_copies_count(copies, "") == 2); /* again: the same */
}

/* What the keeper refuses is told to whoever may still refuse; one that is gone refuses nothing. */
static void refuse_one(struct gms_keeper_client *client)
{
    static const char much[GMS_KEEPER_META_BYTES + 1];
    struct gms_copies *copies = NULL;
    int fd = make_file("x");
    child_check(gms_copies_open(client, client->rank, &copies, &error) == GMS_OK);
    child_check(gms_copies_put(copies, "pool/kv/0", fd, much, sizeof much) == GMS_E_INVALID);
    child_check(gms_copies_put(copies, "pool/kv/0", fd, NULL, 0) == GMS_OK);
    gms_keeper_disconnect(client);
    child_check(gms_copies_put(copies, "pool/kv/0", fd, much, sizeof much) == GMS_OK);
}

static void test_refused(void **state)
{
    (void)state;
    assert_int_equal(holder_run(3, 0, refuse_one), GMS_OK);
}

static void test_next_world(void **state)
{
    (void)state;
    assert_int_equal(holder_run(1, 0, leave_some), GMS_OK);
    assert_int_equal(holder_run(1, 1, leave_some), GMS_OK);
    assert_int_equal(holder_run(2, 0, load_them), GMS_OK);
}

/* A keeper that is new already has something of this rank that is over: it is dropped, and the rest is given. */
static void refill_it(struct gms_keeper_client *client)
{
    struct gms_copies *copies = NULL;
    char names[256];
    uint32_t bytes = 0;
    int fd = make_file("over");
    child_check(gms_keeper_put(client, "pool/over/0", fd, NULL, 0, &error) == GMS_OK);
    child_check(gms_keeper_put(client, "pool/kv/1", fd, NULL, 0, &error) == GMS_OK);
    child_check(gms_copies_open(NULL, 0, &copies, &error) == GMS_OK);
    gms_copies_close(copies);
    struct gms_keeper_client away = {.fd = -1}; /* the former keeper: gone */
    child_check(gms_copies_open(&away, 0, &copies, &error) == GMS_OK);
    put(copies, "pool/kv/0", "kept", "meta");
    put(copies, "session/3/0", "s", "");
    away = *client;
    child_check(gms_copies_refill(copies, &error) == GMS_OK);
    child_check(gms_keeper_list(client, "", names, sizeof names, &bytes, &error) == GMS_OK);
    static const char wanted[] = "pool/kv/0\0pool/kv/1\0session/3/0";
    child_check(bytes == sizeof wanted && memcmp(names, wanted, bytes) == 0);
}

static void test_refill(void **state)
{
    (void)state;
    assert_int_equal(holder_run(1, 0, refill_it), GMS_OK);
    assert_int_equal(holder_run(2, 0, get_one), GMS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_no_descriptor),
        cmocka_unit_test_setup_teardown(test_refused, keeper_setup_started, keeper_teardown),
        cmocka_unit_test_setup_teardown(test_next_world, keeper_setup_started, keeper_teardown),
        cmocka_unit_test_setup_teardown(test_refill, keeper_setup_started, keeper_teardown),
    };
    return cmocka_run_group_tests_name("copies", tests, NULL, NULL);
}
