/* SPDX-License-Identifier: Apache-2.0
 *
 * gms-keeper and clients that mean no good: descriptors, garbage, silence, other users.
 */
#include "keeper_support.h"

/* ------------------------------------------------------------------------------------------- descriptors ------- */

static void open_many(void)
{
    for (int i = 0; i < 30; i++)
        (void)!dup(STDERR_FILENO); /* without close-on-exec: a careless starter */
}

/* Nothing is inherited, and nothing could be: every descriptor but the standard ones is close-on-exec. */
static void test_inherits_and_leaves_nothing(void **state)
{
    char path[64], line[128];
    unsigned open_files = 0;
    (void)state;
    keeper_start(open_many);
    assert_int_equal(holder_run(1, 0, put_one), GMS_OK);
    for (int fd = 3; fd < 256; fd++) {
        snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", (int)keeper.pid, fd);
        FILE *stream = fopen(path, "re");
        if (!stream)
            continue;
        open_files++;
        unsigned flags = 0;
        while (fgets(line, sizeof(line), stream))
            if (sscanf(line, "flags: %o", &flags) == 1)
                break;
        fclose(stream);
        assert_true(flags & O_CLOEXEC);
    }
    /* directory, signals, listener, lock, the kept one; a client and its pidfd may be on their way out */
    assert_in_range(open_files, 5, 7);
}

static void limit_to_64(void)
{
    struct rlimit limit = {.rlim_cur = 64, .rlim_max = 64};
    child_check(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static void fill_shelf(struct gms_keeper_client *client)
{
    char name[32];
    int fd = memfd_create("x", MFD_CLOEXEC), got = -1, i = 0;
    gms_status status;
    do {
        snprintf(name, sizeof(name), "n/%d", i++);
        status = gms_keeper_put(client, name, fd, NULL, 0, &error);
    } while (status == GMS_OK && i < 1000);
    child_check(status == GMS_E_DESCRIPTORS);
    child_check(i > 10 && i < 64 && strstr(error.text, "limit 64") != NULL);
    /* It goes on to serve, replacing what is there included. */
    child_check(gms_keeper_get(client, "n/0", &got, NULL, NULL, &error) == GMS_OK);
    child_check(gms_keeper_put(client, "n/0", got, NULL, 0, &error) == GMS_OK);
    child_check(gms_keeper_put(client, "more", fd, NULL, 0, &error) == GMS_E_DESCRIPTORS);
    child_check(gms_keeper_drop(client, "n/1", &error) == GMS_OK);
    child_check(gms_keeper_put(client, "more", fd, NULL, 0, &error) == GMS_OK);
}

static void test_out_of_descriptors(void **state)
{
    (void)state;
    keeper_start(limit_to_64);
    assert_int_equal(holder_run(1, 0, fill_shelf), GMS_OK);
    int fds[40]; /* more than it has places for */
    for (int i = 0; i < 40; i++)
        fds[i] = raw_connect();
    assert_int_equal(holder_run(2, 0, NULL), GMS_OK);
    for (int i = 0; i < 40; i++)
        close(fds[i]);
    assert_int_equal(keeper_number("client_limit"), 16);
}

/* -------------------------------------------------------------------------------------------- bad clients ------ */

static int null_or_reply(int fd)
{
    struct gms_message reply;
    gms_status status = raw_receive(fd, &reply);
    if (status == GMS_OK) {
        assert_int_equal(reply.type, GMS_MESSAGE_KEEPER_REPLY);
        int said = reply.keeper_reply.status;
        gms_message_close_fds(&reply);
        return said;
    }
    assert_int_equal(status, GMS_E_DISCONNECTED);
    return -1;
}

/* One datagram from a connection of its own; what came back. */
static int send_bytes(const void *data, size_t bytes)
{
    int fd = raw_connect();
    assert_int_equal(send(fd, data, bytes, MSG_NOSIGNAL), bytes);
    int said = null_or_reply(fd);
    close(fd);
    return said;
}

static void test_garbage(void **state)
{
    static uint8_t frame[GMS_WIRE_MAX_BYTES + 4096];
    static const uint32_t lengths[] = {1, 0x7fffffff, 0x80000000, 0xffffffff, GMS_WIRE_MAX_BYTES};
    struct gms_message message = {.type = GMS_MESSAGE_KEEPER_LIST, .request_id = 5};
    size_t bytes = 0;
    unsigned seed = 20260101;
    (void)state;

    struct holder holder = holder_start(1, 0, put_one);
    assert_int_equal(holder_status(&holder), GMS_OK);
    holder_done(&holder);
    long before = keeper_number("descriptors");
    print_message("seed %u\n", seed);

    assert_ok(gms_message_encode(&message, frame, sizeof(frame), &bytes, &error));
    assert_int_equal(send_bytes(frame, bytes), GMS_E_STALE); /* well-formed, without a token */
    for (size_t cut = 1; cut < bytes; cut++)
        assert_int_equal(send_bytes(frame, cut), GMS_E_PROTOCOL);
    assert_int_equal(send_bytes(frame, bytes + 1), GMS_E_PROTOCOL);
    assert_int_equal(send_bytes(frame, GMS_WIRE_MAX_BYTES + 1), GMS_E_PROTOCOL);
    for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        uint8_t wrong[256];
        memcpy(wrong, frame, bytes);
        memcpy(wrong + 8, &lengths[i], 4);
        assert_int_equal(send_bytes(wrong, bytes), GMS_E_PROTOCOL);
    }
    frame[4]++; /* the version */
    assert_int_equal(send_bytes(frame, bytes), GMS_E_VERSION);
    frame[4]--;
    for (int type = 0; type < 64; type++) { /* what is no request to a keeper */
        struct gms_message other = {.type = (enum gms_message_type)type};
        if ((type >= GMS_MESSAGE_KEEPER_WORLD && type <= GMS_MESSAGE_KEEPER_MIRROR) || type == GMS_MESSAGE_STATUS ||
            type == GMS_MESSAGE_SHUTDOWN || type == GMS_MESSAGE_KEEPER_REFILL ||
            gms_message_encode(&other, frame, sizeof(frame), &bytes, NULL) != GMS_OK)
            continue;
        assert_int_equal(send_bytes(frame, bytes), GMS_E_PROTOCOL);
    }
    for (int i = 0; i < 500; i++) {
        size_t length = 1 + (size_t)rand_r(&seed) % 600;
        for (size_t j = 0; j < length; j++)
            frame[j] = (uint8_t)rand_r(&seed);
        if (i % 2)
            memcpy(frame, "GMSW\2\0", 6);
        int said = send_bytes(frame, length);
        assert_true(said == GMS_E_PROTOCOL || said == GMS_E_VERSION);
    }
    int fd = raw_connect(); /* an empty datagram is the end of the connection */
    assert_int_equal(send(fd, "", 0, MSG_NOSIGNAL), 0);
    assert_int_equal(null_or_reply(fd), -1);
    close(fd);

    assert_int_equal(keeper_number("descriptors"), before);
    assert_int_equal(keeper_number("held"), 1);
    holder_end(&holder);
    assert_int_equal(holder_run(2, 0, get_one), GMS_OK);
}

/* More descriptors than a message may bring: none of them stays. */
static void test_too_many_descriptors(void **state)
{
    enum { MANY = 200 };
    struct gms_message message = {.type = GMS_MESSAGE_KEEPER_GET, .request_id = 5};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * MANY)];
    } control;
    static uint8_t frame[4096];
    size_t bytes = 0;
    (void)state;
    long before = keeper_number("descriptors");
    assert_ok(gms_message_encode(&message, frame, sizeof(frame), &bytes, &error));
    for (int count = 1; count <= MANY; count += count < 8 ? 1 : 64) {
        struct iovec part = {.iov_base = frame, .iov_len = bytes};
        struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
        int fd = raw_connect(), fds[MANY];
        for (int i = 0; i < count; i++)
            fds[i] = fd;
        memset(&control, 0, sizeof(control));
        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)count);
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)count);
        memcpy(CMSG_DATA(rights), fds, sizeof(int) * (size_t)count);
        assert_int_equal(sendmsg(fd, &header, MSG_NOSIGNAL), bytes);
        assert_int_equal(null_or_reply(fd), GMS_E_PROTOCOL);
        close(fd);
    }
    assert_int_equal(keeper_number("descriptors"), before);
}

/* Says nothing until RUN/go is there. */
static void be_silent_then_use(struct gms_keeper_client *client)
{
    char path[GMS_RUN_PATH_BYTES];
    uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    child_check(gms_run_dir_path(keeper.run_dir, "go", -1, path, &error) == GMS_OK);
    put_one(client);
    while (access(path, F_OK) != 0)
        child_check(poll(NULL, 0, 2) == 0 && gms_clock_ns() < deadline_ns);
    get_one(client);
}

static void test_thousand_silent_clients(void **state)
{
    enum { MANY = 1000 };
    static int fds[MANY];
    (void)state;
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_cur < MANY + 64) {
        print_message("skipped: descriptors are limited to %llu here\n", (unsigned long long)limit.rlim_cur);
        skip();
    }
    struct holder holder = holder_start(1, 0, be_silent_then_use);
    assert_int_equal(holder_status(&holder), GMS_OK);
    for (int i = 0; i < MANY; i++)
        fds[i] = raw_connect();
    assert_in_range(keeper_number("clients"), 200, 256);
    assert_int_equal(holder_run(5, 1, NULL), GMS_OK); /* who has something to say is heard */
    /* The oldest were closed, the newest and the one with a token were not. */
    struct pollfd oldest = {.fd = fds[0], .events = POLLIN}, newest = {.fd = fds[MANY - 1], .events = POLLIN};
    assert_int_equal(poll(&oldest, 1, UNIT_PATIENCE_MS), 1);
    assert_int_equal(poll(&newest, 1, 0), 0);
    char go[GMS_RUN_PATH_BYTES];
    run_path("go", go);
    close(open(go, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    holder_done(&holder);
    for (int i = 0; i < MANY; i++)
        close(fds[i]);
    holder_end(&holder);
}

static bool only_one_client(void)
{
    return keeper_number("clients") == 1;
}

/* Asks and asks and never reads an answer; and asks and leaves. */
static void test_clients_that_do_not_read(void **state)
{
    struct gms_message message = {.type = GMS_MESSAGE_STATUS, .request_id = 1};
    (void)state;
    int fd = raw_connect();
    gms_status status = GMS_OK;
    uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    while (status != GMS_E_DISCONNECTED) { /* its own limit, and nobody's trouble */
        assert_true(gms_clock_ns() < deadline_ns);
        status = gms_channel_send(fd, &message, &error);
    }
    close(fd);
    for (int i = 0; i < 1000; i++) {
        fd = raw_connect();
        assert_ok(gms_channel_send(fd, &message, &error));
        close(fd);
    }
    assert_int_equal(holder_run(1, 0, put_one), GMS_OK);
    wait_until(only_one_client);
}

static void test_another_user(void **state)
{
    char path[GMS_RUN_PATH_BYTES];
    if (geteuid() != 0) {
        print_message("skipped: only root can become somebody else\n");
        skip();
    }
    run_path("keeper", path);
    for (int opened = 0; opened <= 1; opened++) {
        pid_t pid = fork();
        if (pid == 0) {
            struct gms_keeper_client client = {.fd = -1};
            child_check(setgid(65534) == 0 && setuid(65534) == 0);
            gms_status status = gms_keeper_connect(keeper.run_dir, 9, 0, 1, &client, &error);
            /* The directory keeps others out; where somebody opened it, the keeper does. */
            child_check(status == (opened ? GMS_E_DISCONNECTED : GMS_E_PERMISSION));
            _exit(0);
        }
        assert_int_equal(unit_wait(pid), 0);
        assert_int_equal(chmod(*state, 0755), 0);
        assert_int_equal(chmod(keeper.run_dir, 0711), 0);
        assert_int_equal(chmod(path, 0666), 0);
    }
    uint64_t newest = 1;
    assert_ok(gms_keeper_newest_world(keeper.run_dir, &newest, &error));
    assert_int_equal(newest, 0);
}

int main(void)
{
#define STARTED(name) cmocka_unit_test_setup_teardown(name, keeper_setup_started, keeper_teardown)
#define FRESH(name)   cmocka_unit_test_setup_teardown(name, keeper_setup, keeper_teardown)
    const struct CMUnitTest tests[] = {
        FRESH(test_inherits_and_leaves_nothing),
        FRESH(test_out_of_descriptors),
        STARTED(test_garbage),
        STARTED(test_too_many_descriptors),
        STARTED(test_thousand_silent_clients),
        STARTED(test_clients_that_do_not_read),
        STARTED(test_another_user),
    };
    gms_fd_raise_limit();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
