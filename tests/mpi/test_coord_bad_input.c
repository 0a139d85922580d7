/* SPDX-License-Identifier: Apache-2.0
 *
 * Bad input on the engine socket, while another client's calls go on: every frame cut short, too long, random; a client
 * that says nothing; another version; another user; more connections than fit.
 */
#include <errno.h>
#include <poll.h>
#include <pwd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/run_dir.h"
#include "harness.h"
#include "wire/channel.h"

enum { AT_WORKING = 1, RANKS = 2, SILENT_CLIENTS = 300, RANDOM_FRAMES = 400 };
enum { VALUE_CALLS, VALUE_SLOWEST_MS };

static struct cluster cluster;
static struct engine engine;

/* Makes transfers, one after the other, until told to stop: each is three calls and agreement of all ranks. */
static gms_status work(struct engine_rank *rank, struct gms_error *error)
{
    gms_session *session = NULL;
    struct gms_membership membership;
    struct gms_transfer_result result;
    gms_status status = rank_open(rank, &session, error);
    if (status == GMS_OK)
        status = rank_join(session, rank, &membership, error);
    for (uint64_t id = 1; status == GMS_OK && atomic_load(&rank->go) == 0; id++) {
        uint64_t begin_ns = gms_clock_ns();
        status = gms_transfer_dispatch(session, id, 1, error);
        if (status == GMS_OK)
            status = gms_transfer_end_part(session, id, 0, 0, error);
        if (status == GMS_OK)
            status = gms_transfer_wait(session, id, HARNESS_DEADLINE_MS, &result, error);
        uint64_t took_ms = (gms_clock_ns() - begin_ns) / GMS_NS_PER_MS;
        if (took_ms > rank->values[VALUE_SLOWEST_MS])
            rank->values[VALUE_SLOWEST_MS] = took_ms;
        rank->values[VALUE_CALLS] = id;
        rank_at(rank, AT_WORKING);
        poll(NULL, 0, 1); /* a machine of two cores */
        if (rank->rank != 0 && atomic_load(&rank[-(int)rank->rank].go) != 0)
            break;
    }
    /* The ranks stop at different ids; what is left open is the test's end anyway. */
    return status;
}

static int setup(void **state)
{
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS});
    engine_start(&engine, &cluster, 0, "a", work, 0);
    assert_true(engine_reached(&engine, AT_WORKING, HARNESS_DEADLINE_MS));
    return 0;
}

static bool engine_went_on(void *context)
{
    return engine.ranks[0].values[VALUE_CALLS] > *(uint64_t *)context;
}

/* The engine's calls still complete, and none took long. */
static void check_service(void)
{
    uint64_t calls = engine.ranks[0].values[VALUE_CALLS] + 2;
    assert_true(eventually(engine_went_on, &calls, HARNESS_DEADLINE_MS));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_true(engine_rank_alive(&engine, rank));
        assert_true(engine.ranks[rank].values[VALUE_SLOWEST_MS] < 1500);
        json_t *status = cluster_status(&cluster, rank);
        assert_non_null(status);
        json_decref(status);
    }
}

static int teardown(void **state)
{
    (void)state;
    engine_finish(&engine);
    cluster_stop(&cluster);
    return 0;
}

/* ---------------------------------------------------------------------------------------------------- clients -- */

static int raw_client(uint32_t rank)
{
    char path[GMS_RUN_PATH_BYTES];
    int fd = -1;
    assert_int_equal(gms_run_dir_path(cluster.run_dir, "c", (int32_t)rank, path, NULL), GMS_OK);
    assert_int_equal(gms_channel_connect(path, 2000, &fd, NULL), GMS_OK);
    return fd;
}

static uint8_t buffer[GMS_WIRE_MAX_BYTES];

/* The REPLY that comes before the end of the connection; OK: only the end came. */
static gms_status refusal(int fd, char text[GMS_ERROR_TEXT_BYTES])
{
    gms_status refused = GMS_OK;
    text[0] = '\0';
    for (;;) {
        struct gms_message message;
        gms_status status =
            gms_channel_receive_until(fd, buffer, gms_clock_ns() + HARNESS_DEADLINE_MS * GMS_NS_PER_MS, &message, NULL);
        if (status == GMS_E_DISCONNECTED)
            return refused;
        if (status != GMS_OK)
            return GMS_E_TIMEOUT;
        if (message.type == GMS_MESSAGE_REPLY && message.reply.status != GMS_OK) {
            refused = (gms_status)message.reply.status;
            snprintf(text, GMS_ERROR_TEXT_BYTES, "%.*s", (int)message.reply.text.length,
                     (const char *)message.reply.text.data);
        }
        gms_message_close_fds(&message);
    }
}

static size_t hello_frame(uint8_t *frame, size_t capacity)
{
    struct gms_message hello = {.type = GMS_MESSAGE_HELLO, .request_id = 1};
    size_t bytes = 0;
    hello.hello.role = GMS_CLIENT_CONTROL;
    hello.hello.launch = (struct gms_bytes){"x", 1};
    hello.hello.version = (struct gms_bytes){"x", 1};
    assert_int_equal(gms_message_encode(&hello, frame, capacity, &bytes, NULL), GMS_OK);
    return bytes;
}

/* Sends a frame to a fresh connection; its refusal. */
static gms_status try_frame(const void *frame, size_t bytes, char text[GMS_ERROR_TEXT_BYTES])
{
    int fd = raw_client(0);
    /* A client may be hung up on while it still sends. */
    if (send(fd, frame, bytes, MSG_NOSIGNAL) < 0)
        assert_true(errno == EPIPE || errno == ECONNRESET || errno == EMSGSIZE);
    gms_status status = refusal(fd, text);
    gms_fd_close(&fd);
    return status;
}

static void test_truncated(void **state)
{
    uint8_t frame[512];
    char text[GMS_ERROR_TEXT_BYTES];
    size_t bytes = hello_frame(frame, sizeof frame);
    (void)state;
    for (size_t cut = 1; cut < bytes; cut++)
        assert_int_equal(try_frame(frame, cut, text), GMS_E_PROTOCOL);
    check_service();
}

static void test_oversized(void **state)
{
    static uint8_t frame[GMS_WIRE_MAX_BYTES + 4096];
    char text[GMS_ERROR_TEXT_BYTES];
    (void)state;
    hello_frame(frame, sizeof frame);
    assert_int_equal(try_frame(frame, sizeof frame, text), GMS_E_PROTOCOL);
    for (uint32_t claim = 0; claim < 4; claim++) { /* a body length that is not there */
        static const uint32_t claims[] = {GMS_WIRE_MAX_BYTES, UINT32_MAX, UINT32_C(1) << 31, 0};
        size_t bytes = hello_frame(frame, sizeof frame);
        memcpy(frame + 8, &claims[claim], 4);
        assert_int_equal(try_frame(frame, bytes, text), GMS_E_PROTOCOL);
    }
    check_service();
}

static void test_random(void **state)
{
    unsigned seed = (unsigned)gms_clock_ns();
    char text[GMS_ERROR_TEXT_BYTES];
    static uint8_t frame[2048];
    (void)state;
    const char *given = getenv("GMS_TEST_SEED");
    if (given != NULL)
        seed = (unsigned)strtoul(given, NULL, 10);
    fprintf(stderr, "GMS_TEST_SEED=%u\n", seed);
    for (int i = 0; i < RANDOM_FRAMES; i++) {
        size_t bytes = 1 + (size_t)rand_r(&seed) % sizeof frame;
        for (size_t j = 0; j < bytes; j++)
            frame[j] = (uint8_t)rand_r(&seed);
        if (i % 2 == 1 && bytes >= 16) { /* a good header before noise */
            hello_frame(frame, 512);
            uint32_t body = (uint32_t)bytes - 16;
            uint16_t type = (uint16_t)(1 + rand_r(&seed) % 50);
            memcpy(frame + 6, &type, sizeof type);
            memcpy(frame + 8, &body, sizeof body);
        }
        gms_status status = try_frame(frame, bytes, text);
        if (status != GMS_E_PROTOCOL && status != GMS_E_VERSION && status != GMS_E_INVALID)
            fail_msg("frame %d: %s %s", i, gms_status_name(status), text);
    }
    check_service();
}

/* Greeted clients may be anything too. */
static void test_random_after_hello(void **state)
{
    unsigned seed = (unsigned)gms_clock_ns();
    uint8_t frame[600];
    (void)state;
    fprintf(stderr, "seed %u\n", seed);
    for (int i = 0; i < RANDOM_FRAMES / 4; i++) {
        int fd = cluster_client(&cluster, 0, i % 2 == 0 ? GMS_CLIENT_CONTROL : GMS_CLIENT_EXEC, 7);
        assert_true(fd >= 0);
        hello_frame(frame, sizeof frame);
        size_t bytes = 16 + (size_t)rand_r(&seed) % (sizeof frame - 16);
        for (size_t j = 16; j < bytes; j++)
            frame[j] = (uint8_t)rand_r(&seed);
        uint16_t type = (uint16_t)(1 + rand_r(&seed) % 50);
        if (type == GMS_MESSAGE_SHUTDOWN || type == GMS_MESSAGE_TAKEOVER)
            type = GMS_MESSAGE_PROPOSE;
        uint32_t body = (uint32_t)bytes - 16;
        memcpy(frame + 6, &type, sizeof type);
        memcpy(frame + 8, &body, sizeof body);
        assert_true(send(fd, frame, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
        gms_fd_close(&fd);
    }
    check_service();
}

static void test_silent(void **state)
{
    char text[GMS_ERROR_TEXT_BYTES];
    (void)state;
    uint64_t begin_ns = gms_clock_ns();
    int fd = raw_client(1);
    assert_int_equal(refusal(fd, text), GMS_E_TIMEOUT);
    gms_fd_close(&fd);
    assert_true(gms_clock_ns() - begin_ns >= 4900 * GMS_NS_PER_MS);
    assert_non_null(strstr(text, "HELLO"));
    check_service();
}

static void test_wrong_version(void **state)
{
    uint8_t frame[512];
    char text[GMS_ERROR_TEXT_BYTES];
    (void)state;
    size_t bytes = hello_frame(frame, sizeof frame);
    uint16_t version = GMS_WIRE_VERSION + 1;
    memcpy(frame + 4, &version, sizeof version);
    assert_int_equal(try_frame(frame, bytes, text), GMS_E_VERSION);
    char numbers[2][16];
    snprintf(numbers[0], sizeof numbers[0], "%d", GMS_WIRE_VERSION);
    snprintf(numbers[1], sizeof numbers[1], "%d", version);
    assert_non_null(strstr(text, numbers[0]));
    assert_non_null(strstr(text, numbers[1]));
    check_service();
}

static bool stranger_named(void *context)
{
    (void)context;
    return cluster_log_has(&cluster, " 65534");
}

/* Our own check of the peer's user, with the file permissions out of the way. */
static void test_wrong_user(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        fprintf(stderr, "skipped: changing the user needs root\n");
        skip();
    }
    char path[GMS_RUN_PATH_BYTES], text[GMS_ERROR_TEXT_BYTES];
    assert_int_equal(gms_run_dir_path(cluster.run_dir, "c", 0, path, NULL), GMS_OK);
    assert_int_equal(chmod(cluster.directory, 0755), 0);
    assert_int_equal(chmod(cluster.run_dir, 0755), 0);
    assert_int_equal(chmod(path, 0666), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int fd = -1;
        uint8_t frame[512];
        if (setgid(65534) != 0 || setuid(65534) != 0 || gms_channel_connect(path, 2000, &fd, NULL) != GMS_OK)
            _exit(2);
        send(fd, frame, hello_frame(frame, sizeof frame), MSG_NOSIGNAL);
        gms_status status = refusal(fd, text);
        _exit(status == GMS_OK || status == GMS_E_PERMISSION ? 0 : 3); /* hung up on, at once */
    }
    int code = 0;
    assert_int_equal(waitpid(pid, &code, 0), pid);
    assert_true(WIFEXITED(code));
    assert_int_equal(WEXITSTATUS(code), 0);
    chmod(cluster.run_dir, 0700);
    assert_true(eventually(stranger_named, NULL, HARNESS_DEADLINE_MS)); /* mpirun forwards the log a little later */
    check_service();
}

static void test_too_many(void **state)
{
    static int fds[SILENT_CLIENTS];
    (void)state;
    for (int i = 0; i < SILENT_CLIENTS; i++)
        fds[i] = raw_client(0);
    int fd = cluster_client(&cluster, 0, GMS_CLIENT_CONTROL, 0); /* displaces a silent one */
    assert_true(fd >= 0);
    gms_fd_close(&fd);
    check_service();
    for (int i = 0; i < SILENT_CLIENTS; i++)
        gms_fd_close(&fds[i]);
    check_service();
}

/* One that asks and never reads is dropped at its own limit; nobody waits for it. */
static void test_never_reads(void **state)
{
    (void)state;
    int fd = cluster_client(&cluster, 0, GMS_CLIENT_CONTROL, 0);
    assert_true(fd >= 0);
    struct gms_message status = {.type = GMS_MESSAGE_STATUS, .request_id = 9};
    uint64_t deadline_ns = gms_clock_ns() + 10 * GMS_NS_PER_S;
    gms_status sent = GMS_OK;
    while ((sent == GMS_OK || sent == GMS_E_AGAIN) && gms_clock_ns() < deadline_ns) {
        sent = gms_channel_send(fd, &status, NULL);
        if (sent == GMS_E_AGAIN)
            poll(NULL, 0, 1);
    }
    assert_int_equal(sent, GMS_E_DISCONNECTED);
    gms_fd_close(&fd);
    check_service();
}

/* Goes away before the answer, many times. */
static void test_goes_away(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        int fd = cluster_client(&cluster, 0, GMS_CLIENT_CONTROL, 0);
        assert_true(fd >= 0);
        struct gms_message status = {.type = GMS_MESSAGE_STATUS, .request_id = 9};
        assert_int_equal(gms_channel_send(fd, &status, NULL), GMS_OK);
        gms_fd_close(&fd);
    }
    check_service();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truncated),   cmocka_unit_test(test_oversized),
        cmocka_unit_test(test_random),      cmocka_unit_test(test_random_after_hello),
        cmocka_unit_test(test_silent),      cmocka_unit_test(test_wrong_version),
        cmocka_unit_test(test_wrong_user),  cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_never_reads), cmocka_unit_test(test_goes_away),
    };
    return cmocka_run_group_tests_name("coord_bad_input", tests, setup, teardown);
}
