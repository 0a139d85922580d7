/* SPDX-License-Identifier: Apache-2.0
 *
 * What gms-keeper does for coordinators: descriptors outlive whoever left them, and each rank has one holder.
 */
#include "keeper_support.h"

#include <sys/ptrace.h>

/* ---------------------------------------------------------------------------------------------- holdings ------- */

static int make_memory(const char *text)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    child_check(fd >= 0);
    child_check(pwrite(fd, text, strlen(text), 0) == (ssize_t)strlen(text));
    return fd;
}

static bool memory_holds(int fd, const char *text)
{
    char data[256] = "";
    return pread(fd, data, sizeof(data) - 1, 0) >= 0 && strcmp(data, text) == 0;
}

static void put_two(struct gms_keeper_client *client)
{
    int a = make_memory("first"), b = make_memory("second");
    child_check(gms_keeper_put(client, "pool/kv/0", a, "meta\0a", 6, &error) == GMS_OK);
    child_check(gms_keeper_put(client, "pool/weights/0", b, NULL, 0, &error) == GMS_OK);
    child_check(gms_keeper_mirror(client, 41, &error) == GMS_OK);
    child_check(gms_keeper_mirror(client, 42, &error) == GMS_OK);
    child_check(gms_keeper_mirror(client, 40, &error) == GMS_OK); /* a late one takes nothing back */
    close(a);
    close(b);
}

static void find_two(struct gms_keeper_client *client)
{
    char meta[16];
    uint32_t bytes = sizeof(meta);
    int fd = -1;
    child_check(client->mirror_world == 1 && client->mirror_round == 42);
    child_check(gms_keeper_get(client, "pool/kv/0", &fd, meta, &bytes, &error) == GMS_OK);
    child_check(bytes == 6 && memcmp(meta, "meta\0a", 6) == 0);
    child_check((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0 && (fcntl(client->fd, F_GETFD) & FD_CLOEXEC) != 0);
    child_check(memory_holds(fd, "first"));
    bytes = sizeof(meta);
    child_check(gms_keeper_get(client, "pool/weights/0", &fd, meta, &bytes, &error) == GMS_OK);
    child_check(bytes == 0 && memory_holds(fd, "second"));
    child_check(gms_keeper_mirror(client, 3, &error) == GMS_OK); /* of the new world */
}

static void see_new_mirror(struct gms_keeper_client *client)
{
    child_check(client->mirror_world == 2 && client->mirror_round == 3);
}

static void test_memory_outlives_its_maker(void **state)
{
    (void)state;
    struct holder maker = holder_start(1, 0, put_two);
    assert_int_equal(holder_status(&maker), GMS_OK);
    holder_done(&maker);
    assert_int_equal(holder_end(&maker), SIGKILL);
    assert_int_equal(holder_run(2, 0, find_two), GMS_OK);
    assert_int_equal(holder_run(3, 0, see_new_mirror), GMS_OK);
    assert_int_equal(keeper_number("held"), 2);
}

static void use_everything(struct gms_keeper_client *client)
{
    static uint8_t big[GMS_KEEPER_META_BYTES + 1], back[GMS_KEEPER_META_BYTES];
    char names[256], long_name[GMS_KEEPER_NAME_BYTES + 1];
    uint32_t bytes = 0;
    int fd = make_memory("x"), got = -1;

    memset(big, 0x7e, sizeof(big));
    child_check(gms_keeper_put(client, "pool/b/0", fd, big, GMS_KEEPER_META_BYTES, &error) == GMS_OK);
    child_check(gms_keeper_put(client, "pool/a/0", fd, big, GMS_KEEPER_META_BYTES + 1, &error) == GMS_E_INVALID);
    child_check(gms_keeper_put(client, "pool/a/0", fd, "1", 1, &error) == GMS_OK);
    child_check(gms_keeper_put(client, "pool/", fd, "1", 1, &error) == GMS_OK);
    child_check(gms_keeper_put(client, "pool", fd, "1", 1, &error) == GMS_OK);
    child_check(gms_keeper_put(client, "pooling", fd, "1", 1, &error) == GMS_OK);
    child_check(gms_keeper_put(client, "session/7/0", client->fd, "1", 1, &error) == GMS_OK); /* any descriptor */

    child_check(gms_keeper_list(client, "pool/", names, sizeof(names), &bytes, &error) == GMS_OK);
    child_check(bytes == sizeof("pool/\0pool/a/0\0pool/b/0") && memcmp(names, "pool/\0pool/a/0\0pool/b/0", bytes) == 0);
    child_check(gms_keeper_list(client, "", names, sizeof(names), &bytes, &error) == GMS_OK);
    child_check(bytes == sizeof("pool\0pool/\0pool/a/0\0pool/b/0\0pooling\0session/7/0"));
    child_check(gms_keeper_list(client, "pool/c", names, sizeof(names), &bytes, &error) == GMS_OK && bytes == 0);
    child_check(gms_keeper_list(client, "pool/", names, 10, &bytes, &error) == GMS_E_NO_CAPACITY);

    /* A name that is put again has the new memory and the new meta. */
    int other = make_memory("other");
    child_check(gms_keeper_put(client, "pool/a/0", other, "22", 2, &error) == GMS_OK);
    bytes = 1;
    child_check(gms_keeper_get(client, "pool/a/0", &got, back, &bytes, &error) == GMS_E_NO_CAPACITY);
    bytes = sizeof(back);
    child_check(gms_keeper_get(client, "pool/a/0", &got, back, &bytes, &error) == GMS_OK);
    child_check(bytes == 2 && back[0] == '2' && memory_holds(got, "other"));
    child_check(gms_keeper_get(client, "pool/b/0", &got, NULL, NULL, &error) == GMS_OK);
    bytes = sizeof(back);
    child_check(gms_keeper_get(client, "pool/b/0", &got, back, &bytes, &error) == GMS_OK);
    child_check(bytes == GMS_KEEPER_META_BYTES && memcmp(back, big, bytes) == 0);

    child_check(gms_keeper_drop(client, "pool/a/0", &error) == GMS_OK);
    child_check(gms_keeper_drop(client, "pool/a/0", &error) == GMS_E_NOT_FOUND);
    child_check(gms_keeper_get(client, "pool/a/0", &got, NULL, NULL, &error) == GMS_E_NOT_FOUND);
    child_check(strstr(error.text, "pool/a/0") != NULL);

    memset(long_name, 'n', sizeof(long_name));
    long_name[GMS_KEEPER_NAME_BYTES] = '\0';
    child_check(gms_keeper_put(client, long_name, fd, NULL, 0, &error) == GMS_E_INVALID);
    long_name[GMS_KEEPER_NAME_BYTES - 1] = '\0';
    child_check(gms_keeper_put(client, long_name, fd, NULL, 0, &error) == GMS_OK);
    child_check(gms_keeper_put(client, "", fd, NULL, 0, &error) == GMS_E_INVALID);
    child_check(gms_keeper_put(client, "a b", fd, NULL, 0, &error) == GMS_E_INVALID);
    child_check(gms_keeper_put(client, "a\nb", fd, NULL, 0, &error) == GMS_E_INVALID);
    child_check(gms_keeper_put(client, "closed", 9999, NULL, 0, &error) == GMS_E_SYSTEM);
    gms_keeper_disconnect(client);
    child_check(gms_keeper_put(client, "late", fd, NULL, 0, &error) == GMS_E_DISCONNECTED);
}

static void test_put_get_list_drop(void **state)
{
    (void)state;
    assert_int_equal(holder_run(1, 0, use_everything), GMS_OK);
    assert_int_equal(keeper_number("held"), 6);
}

/* More names than one message holds. */
static void list_many(struct gms_keeper_client *client)
{
    enum { MANY = 2500 };
    uint32_t bytes = 0, count = 0, room = 1 << 20;
    char name[GMS_KEEPER_NAME_BYTES], *names = malloc(room), *last = "";
    int fd = make_memory("x");
    child_check(names != NULL);
    for (int i = 0; i < MANY; i++) {
        snprintf(name, sizeof(name), "many/%0100d", (i * 1117) % MANY); /* in no order */
        child_check(gms_keeper_put(client, name, fd, NULL, 0, &error) == GMS_OK);
    }
    child_check(gms_keeper_list(client, "many/", names, room, &bytes, &error) == GMS_OK);
    for (char *at = names; at < names + bytes; at += strlen(at) + 1, count++) {
        child_check(strcmp(last, at) < 0);
        last = at;
    }
    child_check(count == MANY && bytes == MANY * 106);
    free(names);
}

static void test_list_in_pages(void **state)
{
    (void)state;
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_max < 4000) {
        print_message("skipped: descriptors are limited to %llu here\n", (unsigned long long)limit.rlim_max);
        skip();
    }
    assert_int_equal(holder_run(1, 0, list_many), GMS_OK);
}

/* ------------------------------------------------------------------------------------------------ worlds ------- */

static void test_one_holder_per_rank(void **state)
{
    uint64_t newest = 99;
    (void)state;
    assert_ok(gms_keeper_newest_world(keeper.run_dir, &newest, &error));
    assert_int_equal(newest, 0);

    struct holder five = holder_start(5, 0, NULL);
    assert_int_equal(holder_status(&five), GMS_OK);
    assert_int_equal(holder_run(5, 0, NULL), GMS_E_FOREIGN_WORLD); /* equal, another process */
    assert_int_equal(holder_run(4, 0, NULL), GMS_E_FOREIGN_WORLD); /* older */
    assert_int_equal(kill(five.pid, 0), 0);
    assert_int_equal(waitpid(five.pid, NULL, WNOHANG), 0); /* and it was left alone */
    struct holder other_rank = holder_start(3, 1, NULL);   /* ranks know nothing of each other */
    assert_int_equal(holder_status(&other_rank), GMS_OK);

    struct holder six = holder_start(6, 0, NULL);
    assert_int_equal(holder_status(&six), GMS_OK);
    int status = unit_wait(five.pid); /* ended by the keeper, not by us */
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    close(five.report);
    assert_int_equal(waitpid(other_rank.pid, NULL, WNOHANG), 0);
    assert_ok(gms_keeper_newest_world(keeper.run_dir, &newest, &error));
    assert_int_equal(newest, 6);

    /* A holder that died frees its token, but time does not run backwards. */
    holder_end(&six);
    assert_int_equal(holder_run(5, 0, NULL), GMS_E_FOREIGN_WORLD);
    assert_int_equal(holder_run(6, 0, NULL), GMS_OK);
    assert_int_equal(holder_run(7, 0, NULL), GMS_OK);
    holder_end(&other_rank);
}

static void test_many_worlds_at_once(void **state)
{
    struct holder holders[12];
    unsigned granted_last = 0;
    (void)state;
    for (unsigned i = 0; i < 12; i++)
        holders[i] = holder_start(10 + i, 2, NULL);
    /* Whatever the order: the greatest holds the rank in the end, all others were refused, overtaken or ended. */
    assert_int_equal(holder_status(&holders[11]), GMS_OK);
    for (unsigned i = 0; i < 12; i++)
        granted_last += holder_end(&holders[i]) == SIGKILL;
    assert_int_equal(granted_last, 12);
    assert_int_equal(holder_run(20, 2, NULL), GMS_E_FOREIGN_WORLD);
}

static void connect_again(struct gms_keeper_client *client)
{
    struct gms_keeper_client again = {.fd = -1}, newer = {.fd = -1}, forged = *client;
    int fd = make_memory("x"), got = -1;
    char names[16];
    uint32_t bytes;

    child_check(gms_keeper_connect(keeper.run_dir, client->world, client->rank, 4, &again, &error) == GMS_OK);
    child_check(again.token == client->token && again.keeper == client->keeper && again.keeper != 0);
    child_check(gms_keeper_put(client, "a", fd, NULL, 0, &error) == GMS_OK);
    child_check(gms_keeper_put(&again, "b", fd, NULL, 0, &error) == GMS_OK);

    forged.token++;
    child_check(gms_keeper_put(&forged, "c", fd, NULL, 0, &error) == GMS_E_STALE);
    forged = *client;
    forged.world++;
    child_check(gms_keeper_put(&forged, "c", fd, NULL, 0, &error) == GMS_E_STALE);
    forged = *client;
    forged.rank++;
    child_check(gms_keeper_put(&forged, "c", fd, NULL, 0, &error) == GMS_E_STALE);
    forged.token = 0;
    child_check(gms_keeper_put(&forged, "c", fd, NULL, 0, &error) == GMS_E_STALE);

    /* It moves on to a newer world: what it says under the old one is stale, reads included. */
    child_check(gms_keeper_connect(keeper.run_dir, client->world + 1, client->rank, 4, &newer, &error) == GMS_OK);
    child_check(newer.token != client->token);
    child_check(gms_keeper_put(client, "c", fd, NULL, 0, &error) == GMS_E_STALE);
    child_check(gms_keeper_get(client, "a", &got, NULL, NULL, &error) == GMS_E_STALE);
    child_check(gms_keeper_list(client, "", names, sizeof(names), &bytes, &error) == GMS_E_STALE);
    child_check(gms_keeper_drop(client, "a", &error) == GMS_E_STALE);
    child_check(gms_keeper_mirror(client, 1, &error) == GMS_E_STALE);
    child_check(gms_keeper_get(&newer, "a", &got, NULL, NULL, &error) == GMS_OK);
    child_check(gms_keeper_connect(keeper.run_dir, client->world, client->rank, 4, &again, &error) ==
                GMS_E_FOREIGN_WORLD);
}

static void test_stale_tokens(void **state)
{
    (void)state;
    assert_int_equal(holder_run(1, 0, connect_again), GMS_OK);
    assert_int_equal(keeper_number("held"), 2);
}

static void test_bad_ranks(void **state)
{
    struct gms_keeper_client client = {.fd = -1};
    (void)state;
    assert_status(gms_keeper_connect(keeper.run_dir, 0, 0, 1, &client, &error), GMS_E_INVALID);
    assert_status(gms_keeper_connect(keeper.run_dir, 1, 1, 1, &client, &error), GMS_E_INVALID);
    assert_status(gms_keeper_connect(keeper.run_dir, 1, 0, 0, &client, &error), GMS_E_INVALID);
    assert_status(gms_keeper_connect(keeper.run_dir, 1, 0, 1025, &client, &error), GMS_E_INVALID);
    assert_int_equal(client.fd, -1);
}

/* What shall be ended one day must be the one that asks: nothing else is taken for a pidfd of it. */
static void test_only_ones_own_pidfd(void **state)
{
    struct holder bystander = holder_start(1, 3, NULL);
    struct gms_message message = {.type = GMS_MESSAGE_KEEPER_WORLD};
    char path[64];
    int wrong[6], fd = raw_connect();
    (void)state;

    assert_int_equal(holder_status(&bystander), GMS_OK);
    wrong[0] = memfd_create("x", MFD_CLOEXEC);
    assert_ok(gms_pidfd_open(bystander.pid, &wrong[1], &error));
    snprintf(path, sizeof(path), "/proc/%d", (int)getpid());
    wrong[2] = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    wrong[3] = dup(fd);
    wrong[4] = dup(keeper.pidfd);
    assert_ok(gms_pidfd_open(1, &wrong[5], &error));
    message.keeper.rank = 0;
    message.keeper.world_size = 4;
    for (unsigned i = 0; i < 6; i++) {
        message.keeper.world = i + 1;
        message.fds[0] = wrong[i];
        message.fd_count = 1;
        assert_int_equal(raw_ask(fd, &message), GMS_E_INVALID);
        close(wrong[i]);
    }
    message.fd_count = 0;
    assert_int_equal(raw_ask(fd, &message), GMS_E_INVALID);
    close(fd);
    assert_int_equal(waitpid(bystander.pid, NULL, WNOHANG), 0);
    assert_int_equal(waitpid(keeper.pid, NULL, WNOHANG), 0);
    holder_end(&bystander);
}

/* A process that has got SIGKILL and does not end: it is traced, and stops on its way out. */
static struct holder start_reluctant(uint64_t world, uint32_t rank, holder_work work)
{
    struct holder holder = holder_start(world, rank, work);
    assert_int_equal(holder_status(&holder), GMS_OK);
    holder_done(&holder);
    if (ptrace(PTRACE_SEIZE, holder.pid, 0, PTRACE_O_TRACEEXIT) != 0)
        holder.pid = -holder.pid;
    return holder;
}

/* A child of the holder has its connection and its token, and goes on to use them; RUN/stale says that they were
 * refused. */
static void leave_a_speaker(struct gms_keeper_client *client)
{
    char path[GMS_RUN_PATH_BYTES];
    uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    if (fork() != 0)
        return;
    gms_status status;
    do
        status = gms_keeper_mirror(client, 1, &error);
    while (status == GMS_OK && gms_clock_ns() < deadline_ns);
    child_check(status == GMS_E_STALE);
    child_check(gms_run_dir_path(keeper.run_dir, "stale", -1, path, &error) == GMS_OK);
    child_check(open(path, O_CREAT | O_CLOEXEC | O_WRONLY, 0600) >= 0);
    _exit(0);
}

/* Until it has stopped on its way out: the keeper has sent its signal. */
static void wait_until_told_to_end(const struct holder *reluctant)
{
    uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    while (waitpid(reluctant->pid, NULL, WNOHANG) == 0)
        assert_true(poll(NULL, 0, 2) == 0 && gms_clock_ns() < deadline_ns);
}

static void test_older_holder_that_does_not_end(void **state)
{
    uint64_t newest = 0, before_ns;
    char stale[GMS_RUN_PATH_BYTES];
    (void)state;

    run_path("stale", stale);
    struct holder reluctant = start_reluctant(1, 0, leave_a_speaker);
    if (reluctant.pid < 0) {
        reluctant.pid = -reluctant.pid;
        holder_end(&reluctant);
        print_message("skipped: tracing a child is not permitted here\n");
        skip();
    }
    before_ns = gms_clock_ns();
    struct holder newer = holder_start(2, 0, NULL);
    wait_until_told_to_end(&reluctant);
    /* It waits; nobody else does. Whoever speaks for the older one is refused from now on. */
    for (int i = 0; i < 20; i++)
        assert_ok(gms_keeper_newest_world(keeper.run_dir, &newest, &error));
    gms_status equal = holder_run(2, 0, NULL);
    struct holder elsewhere = holder_start(2, 1, NULL);
    assert_int_equal(holder_status(&elsewhere), GMS_OK);
    struct pollfd pending = {.fd = newer.report, .events = POLLIN};
    int answered = poll(&pending, 1, 0);
    if (gms_clock_ns() - before_ns < 1400 * GMS_NS_PER_MS) { /* the bound has not passed meanwhile */
        assert_int_equal(answered, 0);
        assert_int_equal(equal, GMS_E_FOREIGN_WORLD); /* nor can an equal one overtake it */
        assert_int_equal(holder_status(&newer), GMS_E_TIMEOUT);
    } else {
        print_message("machine too slow: nothing said about the others' waiting\n");
    }
    while (access(stale, F_OK) != 0)
        assert_true(poll(NULL, 0, 1) == 0 && gms_clock_ns() - before_ns < UNIT_PATIENCE_MS * GMS_NS_PER_MS);
    holder_end(&newer);

    /* The one that would not end has lost its token all the same, and ends by and by. */
    assert_int_equal(newest, 1);
    assert_int_equal(holder_run(1, 0, NULL), GMS_E_FOREIGN_WORLD);
    assert_true(ptrace(PTRACE_DETACH, reluctant.pid, 0, 0) == 0 || errno == ESRCH);
    assert_int_equal(holder_end(&reluctant), SIGKILL);
    assert_int_equal(holder_run(2, 0, NULL), GMS_OK);
    holder_end(&elsewhere);
}

/* Asks for world 2 and hangs up before it is answered, but lives on. */
static void ask_and_hang_up(void)
{
    struct gms_message message = {.type = GMS_MESSAGE_KEEPER_WORLD, .request_id = 1};
    char path[GMS_RUN_PATH_BYTES];
    int fd = -1;
    child_check(gms_run_dir_path(keeper.run_dir, "keeper", -1, path, &error) == GMS_OK);
    child_check(gms_channel_connect(path, UNIT_PATIENCE_MS, &fd, &error) == GMS_OK);
    message.keeper.world = 2;
    message.keeper.world_size = 1;
    child_check(gms_pidfd_open(getpid(), &message.fds[0], &error) == GMS_OK);
    message.fd_count = 1;
    child_check(gms_channel_send(fd, &message, &error) == GMS_OK);
    close(fd);
}

/* A waiter that goes away takes its claim along. */
static void test_waiter_that_leaves(void **state)
{
    (void)state;
    struct holder reluctant = start_reluctant(1, 0, NULL);
    if (reluctant.pid < 0) {
        reluctant.pid = -reluctant.pid;
        holder_end(&reluctant);
        print_message("skipped: tracing a child is not permitted here\n");
        skip();
    }
    pid_t asker = fork();
    if (asker == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        ask_and_hang_up();
        for (;;)
            pause();
    }
    wait_until_told_to_end(&reluctant);
    uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    while (keeper_number("clients") != 2) /* the reluctant one and this question: the asker's end has been seen */
        assert_true(poll(NULL, 0, 2) == 0 && gms_clock_ns() < deadline_ns);
    assert_int_equal(ptrace(PTRACE_DETACH, reluctant.pid, 0, 0), 0);
    holder_end(&reluctant);
    assert_int_equal(holder_run(2, 0, NULL), GMS_OK);
    assert_int_equal(waitpid(asker, NULL, WNOHANG), 0);
    kill(asker, SIGKILL);
    unit_wait(asker);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, keeper_setup_started, keeper_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_memory_outlives_its_maker),
        TEST(test_put_get_list_drop),
        TEST(test_list_in_pages),
        TEST(test_one_holder_per_rank),
        TEST(test_many_worlds_at_once),
        TEST(test_stale_tokens),
        TEST(test_bad_ranks),
        TEST(test_only_ones_own_pidfd),
        TEST(test_older_holder_that_does_not_end),
        TEST(test_waiter_that_leaves),
    };
    gms_fd_raise_limit();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
