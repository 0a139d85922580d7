/* SPDX-License-Identifier: Apache-2.0
 * Messages over sockets: what is sent, received, refused, and what a deadline means. */
#include "unit_support.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include "wire/channel.h"

static struct gms_error error;
static unsigned char buffer[GMS_WIRE_MAX_BYTES];

static void make_pair(int ends[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
}

static void close_pair(int ends[2])
{
    gms_fd_close(&ends[0]);
    gms_fd_close(&ends[1]);
}

static struct gms_message status_request(uint32_t id)
{
    return (struct gms_message){.type = GMS_MESSAGE_STATUS, .request_id = id};
}

/* Sends raw bytes and descriptors, as a wrong peer could. */
static void send_raw(int fd, const void *data, size_t bytes, const int *fds, size_t fd_count)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * 253)];
    } control;
    struct iovec vector = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};

    if (fd_count > 0) {
        memset(&control, 0, sizeof(control));
        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
        struct cmsghdr *part = CMSG_FIRSTHDR(&header);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
        memcpy(CMSG_DATA(part), fds, sizeof(int) * fd_count);
    }
    assert_int_equal(sendmsg(fd, &header, MSG_NOSIGNAL), (ssize_t)bytes);
}

static void messages_and_descriptors_arrive(void **state)
{
    int ends[2];
    int passed[2];
    struct gms_message got;

    (void)state;
    make_pair(ends);
    assert_int_equal(pipe2(passed, 0), 0);
    struct gms_message message = {.type = GMS_MESSAGE_REPLY,
                                  .request_id = 7,
                                  .reply = {.status = GMS_E_BUSY, .rank = -1, .text = {"why", 3}},
                                  .fds = {passed[0], passed[1]},
                                  .fd_count = 2};
    assert_ok(gms_channel_send(ends[0], &message, &error));
    assert_ok(gms_channel_receive(ends[1], buffer, &got, &error));
    assert_int_equal(got.type, GMS_MESSAGE_REPLY);
    assert_int_equal(got.request_id, 7);
    assert_int_equal(got.reply.status, GMS_E_BUSY);
    assert_int_equal(got.reply.rank, -1);
    assert_int_equal(got.reply.text.length, 3);
    assert_memory_equal(got.reply.text.data, "why", 3);
    assert_int_equal(got.fd_count, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_not_equal(got.fds[i], passed[i]);
        assert_int_equal(fcntl(got.fds[i], F_GETFD), FD_CLOEXEC);
    }
    assert_int_equal(write(got.fds[1], "x", 1), 1); /* the pipe's writing end, in this order */
    const int number = got.fds[0];
    gms_message_close_fds(&got);
    assert_int_equal(got.fd_count, 0);
    assert_int_equal(fcntl(number, F_GETFD), -1);
    gms_message_close_fds(&got);
    assert_int_equal(fcntl(passed[0], F_GETFD), 0); /* the sender's were borrowed */
    close_pair(passed);

    assert_status(gms_channel_receive(ends[1], buffer, &got, &error), GMS_E_AGAIN);
    gms_fd_close(&ends[0]);
    assert_status(gms_channel_receive(ends[1], buffer, &got, &error), GMS_E_DISCONNECTED);
    close_pair(ends);
}

static void the_largest_message_arrives(void **state)
{
    static char json[GMS_WIRE_MAX_BYTES - GMS_WIRE_HEADER_BYTES - 4];
    int ends[2];
    struct gms_message got;

    (void)state;
    make_pair(ends);
    for (size_t i = 0; i < sizeof(json); i++) {
        json[i] = (char)(i * 31);
    }
    struct gms_message message = {.type = GMS_MESSAGE_STATUS_REPLY, .status_reply = {.json = {json, sizeof(json)}}};
    assert_ok(gms_channel_send(ends[0], &message, &error));
    assert_ok(gms_channel_receive(ends[1], buffer, &got, &error));
    assert_int_equal(got.status_reply.json.length, sizeof(json));
    assert_memory_equal(got.status_reply.json.data, json, sizeof(json));
    message.status_reply.json.length++;
    assert_status(gms_channel_send(ends[0], &message, &error), GMS_E_INVALID);
    assert_text_has("163840");
    close_pair(ends);
}

/* Frames that are cut, too long or not ours are refused one by one; the connection and the frames after them live. */
static void malformed_frames_are_refused_one_by_one(void **state)
{
    static unsigned char frame[GMS_WIRE_MAX_BYTES + 1];
    struct gms_message message = {.type = GMS_MESSAGE_READY, .ready = {.incarnation = 3, .endpoint = {"tcp:1", 5}}};
    struct gms_message got;
    size_t bytes = 0;
    int ends[2];

    (void)state;
    make_pair(ends);
    assert_ok(gms_message_encode(&message, frame, sizeof(frame), &bytes, &error));
    for (size_t cut = 1; cut < bytes; cut++) {
        send_raw(ends[0], frame, cut, NULL, 0);
        assert_status(gms_channel_receive(ends[1], buffer, &got, &error), GMS_E_PROTOCOL);
    }
    /* Two frames in one datagram are one malformed datagram. */
    unsigned char twice[256];
    memcpy(twice, frame, bytes);
    memcpy(twice + bytes, frame, bytes);
    send_raw(ends[0], twice, 2 * bytes, NULL, 0);
    assert_status(gms_channel_receive(ends[1], buffer, &got, &error), GMS_E_PROTOCOL);
    send_raw(ends[0], frame, sizeof(frame), NULL, 0);
    assert_status(gms_channel_receive(ends[1], buffer, &got, &error), GMS_E_PROTOCOL);
    assert_text_has("163840");
    assert_ok(gms_channel_send(ends[0], &message, &error));
    assert_ok(gms_channel_receive(ends[1], buffer, &got, &error));
    assert_int_equal(got.ready.incarnation, 3);
    close_pair(ends);
}

static void surplus_descriptors_are_closed(void **state)
{
    static const size_t counts[] = {2, 3, 4, 5, 100, 253}; /* the type's limit is 1 */
    struct gms_message message = {.type = GMS_MESSAGE_HELLO};
    struct gms_message got;
    unsigned char frame[256];
    size_t bytes = 0;
    int ends[2];
    int fds[253];

    (void)state;
    make_pair(ends);
    assert_ok(gms_message_encode(&message, frame, sizeof(frame), &bytes, &error));
    for (size_t i = 0; i < 253; i++) {
        fds[i] = ends[0];
    }
    const unsigned before = unit_open_fds();
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        char number[16];

        send_raw(ends[0], frame, bytes, fds, counts[i]);
        assert_status(gms_channel_receive(ends[1], buffer, &got, &error), GMS_E_PROTOCOL);
        snprintf(number, sizeof(number), "%zu desc", counts[i]);
        assert_text_has(number);
        assert_int_equal(unit_open_fds(), before);
    }
    /* With a malformed body, and with none at all. */
    send_raw(ends[0], frame, bytes - 1, fds, 1);
    assert_status(gms_channel_receive(ends[1], buffer, &got, &error), GMS_E_PROTOCOL);
    assert_int_equal(unit_open_fds(), before);
    send_raw(ends[0], frame, 0, fds, 3);
    assert_status(gms_channel_receive(ends[1], buffer, &got, &error), GMS_E_DISCONNECTED);
    assert_int_equal(unit_open_fds(), before);
    send_raw(ends[0], frame, bytes, fds, 1);
    assert_ok(gms_channel_receive(ends[1], buffer, &got, &error));
    assert_int_equal(got.fd_count, 1);
    assert_int_equal(unit_open_fds(), before + 1);
    gms_message_close_fds(&got);
    /* Sending more than the type carries is the sender's mistake and is found there. */
    message.fd_count = 2;
    assert_status(gms_channel_send(ends[0], &message, &error), GMS_E_INVALID);
    close_pair(ends);
}

/* The receiver has no free descriptor: it is told so, with the numbers, and keeps none of the part that fitted (V36).
 */
static void receiver_out_of_descriptors(void **state)
{
    (void)state;
    const pid_t child = fork();
    if (child == 0) {
        const struct rlimit limit = {.rlim_cur = 32, .rlim_max = 32};
        int ends[2];
        struct gms_message got;

        child_check(close_range(3, ~0U, 0) == 0);
        child_check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
        child_check(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        struct gms_message message = {.type = GMS_MESSAGE_REPLY, .fds = {ends[0], ends[0]}, .fd_count = 2};
        for (int free_slots = 0; free_slots < 2; free_slots++) {
            int fill[32];
            int count = 0;

            child_check(gms_channel_send(ends[0], &message, &error) == GMS_OK);
            while ((fill[count] = dup(0)) >= 0) {
                count++;
            }
            for (int i = 0; i < free_slots; i++) {
                close(fill[--count]);
            }
            const unsigned before = unit_open_fds();
            child_check(gms_channel_receive(ends[1], buffer, &got, &error) == GMS_E_DESCRIPTORS);
            child_check(strstr(error.text, "of 32 allowed"));
            child_check(unit_open_fds() == before);
            while (count > 0) {
                close(fill[--count]);
            }
        }
        /* With room again everything arrives. */
        child_check(gms_channel_send(ends[0], &message, &error) == GMS_OK);
        child_check(gms_channel_receive(ends[1], buffer, &got, &error) == GMS_OK && got.fd_count == 2);
        _exit(0);
    }
    assert_int_equal(unit_wait(child), 0);
}

static void a_peer_that_does_not_read_costs_nothing(void **state)
{
    static char json[64 * 1024];
    struct gms_message message = {.type = GMS_MESSAGE_STATUS_REPLY, .status_reply = {.json = {json, sizeof(json)}}};
    struct gms_message got;
    gms_status status;
    int ends[2];
    int sent = 0;

    (void)state;
    make_pair(ends);
    while ((status = gms_channel_send(ends[0], &message, &error)) == GMS_OK) {
        assert_true(++sent < 1000);
    }
    assert_int_equal(status, GMS_E_AGAIN);
    assert_text_has("does not read");
    const uint64_t start_ns = gms_clock_ns();
    assert_status(gms_channel_send_until(ends[0], &message, start_ns + 30 * GMS_NS_PER_MS, &error), GMS_E_TIMEOUT);
    assert_true(gms_clock_ns() >= start_ns + 30 * GMS_NS_PER_MS);
    /* It reads again: what was accepted is all there, in order, and sending goes on. */
    for (int i = 0; i < sent; i++) {
        assert_ok(gms_channel_receive(ends[1], buffer, &got, &error));
    }
    assert_status(gms_channel_receive(ends[1], buffer, &got, &error), GMS_E_AGAIN);
    assert_ok(gms_channel_send_until(ends[0], &message, 0, &error)); /* a deadline in the past still tries once */
    close_pair(ends);
}

/* A full socket that is read after a while: send_until wakes up. */
static void send_until_waits_for_room(void **state)
{
    static char json[64 * 1024];
    struct gms_message message = {.type = GMS_MESSAGE_STATUS_REPLY, .status_reply = {.json = {json, sizeof(json)}}};
    struct gms_message got;
    int ends[2];

    (void)state;
    make_pair(ends);
    while (gms_channel_send(ends[0], &message, NULL) == GMS_OK) {
    }
    const pid_t child = fork();
    if (child == 0) {
        /* Reads the first as soon as the parent waits; what it then sends is the last. */
        close(ends[0]);
        uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
        do {
            child_check(gms_channel_receive_until(ends[1], buffer, deadline_ns, &got, &error) == GMS_OK);
        } while (got.type != GMS_MESSAGE_SHUTDOWN);
        _exit(0);
    }
    gms_fd_close(&ends[1]);
    const uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    for (int i = 0; i < 50; i++) {
        assert_ok(gms_channel_send_until(ends[0], &message, deadline_ns, &error));
    }
    message.type = GMS_MESSAGE_SHUTDOWN;
    assert_ok(gms_channel_send_until(ends[0], &message, deadline_ns, &error));
    assert_int_equal(unit_wait(child), 0);
    close_pair(ends);
}

/* Request, then gone before the reply, many times: an error each time, never a signal (V26). */
static void a_peer_that_left_is_an_error_not_a_signal(void **state)
{
    struct sigaction fatal = {.sa_handler = SIG_DFL};
    struct sigaction former;
    struct gms_message got;

    (void)state;
    assert_int_equal(sigaction(SIGPIPE, &fatal, &former), 0);
    for (int i = 0; i < 1000; i++) {
        const struct gms_message request = status_request((uint32_t)i);
        const struct gms_message reply = {.type = GMS_MESSAGE_STATUS_REPLY, .request_id = (uint32_t)i};
        int ends[2];

        make_pair(ends);
        assert_ok(gms_channel_send(ends[0], &request, &error));
        if (i % 2) { /* half of them leave with something unread, which resets the connection */
            assert_ok(gms_channel_send(ends[1], &reply, &error));
        }
        gms_fd_close(&ends[0]);
        assert_ok(gms_channel_receive(ends[1], buffer, &got, &error));
        assert_int_equal(got.request_id, i);
        assert_status(gms_channel_send(ends[1], &reply, &error), GMS_E_DISCONNECTED);
        assert_status(gms_channel_send_until(ends[1], &reply, UINT64_MAX, &error), GMS_E_DISCONNECTED);
        assert_status(gms_channel_receive_until(ends[1], buffer, UINT64_MAX, &got, &error), GMS_E_DISCONNECTED);
        close_pair(ends);
    }
    sigaction(SIGPIPE, &former, NULL);
}

/* Its last words are heard even when it left ours unread. */
static void last_words_survive_a_reset(void **state)
{
    const struct gms_message unread = status_request(1);
    const struct gms_message words = {.type = GMS_MESSAGE_CONDEMNED, .condemned = {.incarnation = 4, .text = {"x", 1}}};
    struct gms_message got;
    int ends[2];

    (void)state;
    make_pair(ends);
    assert_ok(gms_channel_send(ends[1], &unread, &error));
    assert_ok(gms_channel_send(ends[0], &words, &error));
    gms_fd_close(&ends[0]);
    assert_ok(gms_channel_receive(ends[1], buffer, &got, &error));
    assert_int_equal(got.type, GMS_MESSAGE_CONDEMNED);
    assert_int_equal(got.condemned.incarnation, 4);
    assert_status(gms_channel_receive(ends[1], buffer, &got, &error), GMS_E_DISCONNECTED);
    close_pair(ends);
}

static void a_deadline_is_kept(void **state)
{
    struct gms_message got;
    int ends[2];

    (void)state;
    make_pair(ends);
    const uint64_t start_ns = gms_clock_ns();
    assert_status(gms_channel_receive_until(ends[0], buffer, start_ns + 40 * GMS_NS_PER_MS, &got, &error),
                  GMS_E_TIMEOUT);
    assert_true(gms_clock_ns() >= start_ns + 40 * GMS_NS_PER_MS);
    assert_status(gms_channel_receive_until(ends[0], buffer, 0, &got, &error), GMS_E_TIMEOUT);
    /* What is there already is received, however late. */
    const struct gms_message message = status_request(8);
    assert_ok(gms_channel_send(ends[1], &message, &error));
    assert_ok(gms_channel_receive_until(ends[0], buffer, 0, &got, &error));
    assert_int_equal(got.request_id, 8);
    close_pair(ends);
}

static void ignore_signal(int signal)
{
    (void)signal;
}

/*
 * Interrupted again and again by STOP, CONT and a handler, for most of the wait: it neither begins anew with each
 * interruption nor ends early (V26). Were the full time waited after the last one, the end would come a second later.
 */
static void interruptions_neither_prolong_nor_shorten(void **state)
{
    enum { WAIT_MS = 1500, INTERRUPTED_MS = 1200, TOO_LATE_MS = 2500 };
    int ends[2];
    int pidfd = -1;

    (void)state;
    make_pair(ends);
    const pid_t child = fork();
    if (child == 0) {
        const struct sigaction action = {.sa_handler = ignore_signal};
        struct gms_message got;

        child_check(sigaction(SIGCONT, &action, NULL) == 0);
        const uint64_t begin_ns = gms_clock_ns();
        const gms_status status =
            gms_channel_receive_until(ends[0], buffer, begin_ns + WAIT_MS * GMS_NS_PER_MS, &got, &error);
        const uint64_t took_ns = gms_clock_ns() - begin_ns;
        child_check(status == GMS_E_TIMEOUT);
        child_check(took_ns >= WAIT_MS * GMS_NS_PER_MS);
        child_check(took_ns < TOO_LATE_MS * GMS_NS_PER_MS);
        _exit(0);
    }
    assert_ok(gms_pidfd_open(child, &pidfd, &error));
    const uint64_t until_ns = gms_clock_ns() + INTERRUPTED_MS * GMS_NS_PER_MS;
    unsigned interruptions = 0;
    bool signalled = true;
    while (!gms_pidfd_ended(pidfd) && gms_clock_ns() < until_ns) {
        struct pollfd entry = {.fd = pidfd, .events = POLLIN};

        signalled &= gms_pidfd_signal(pidfd, SIGSTOP) && gms_pidfd_signal(pidfd, SIGCONT);
        (void)poll(&entry, 1, 5);
        interruptions++;
    }
    assert_int_equal(unit_wait(child), 0);
    assert_true(signalled);
    assert_true(interruptions > 10);
    gms_fd_close(&pidfd);
    close_pair(ends);
}

static void wrong_descriptors_are_errors(void **state)
{
    const struct gms_message message = status_request(1);
    struct gms_message got;
    int ends[2];

    (void)state;
    assert_status(gms_channel_send(-1, &message, &error), GMS_E_SYSTEM);
    assert_status(gms_channel_receive(-1, buffer, &got, &error), GMS_E_SYSTEM);
    assert_status(gms_channel_receive_until(-1, buffer, UINT64_MAX, &got, &error), GMS_E_SYSTEM);
    make_pair(ends);
    struct gms_message hello = {.type = GMS_MESSAGE_HELLO, .fds = {4000}, .fd_count = 1};
    assert_status(gms_channel_send(ends[0], &hello, &error), GMS_E_SYSTEM);
    close_pair(ends);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_and_descriptors_arrive),
        cmocka_unit_test(the_largest_message_arrives),
        cmocka_unit_test(malformed_frames_are_refused_one_by_one),
        cmocka_unit_test(surplus_descriptors_are_closed),
        cmocka_unit_test(receiver_out_of_descriptors),
        cmocka_unit_test(a_peer_that_does_not_read_costs_nothing),
        cmocka_unit_test(send_until_waits_for_room),
        cmocka_unit_test(a_peer_that_left_is_an_error_not_a_signal),
        cmocka_unit_test(last_words_survive_a_reset),
        cmocka_unit_test(a_deadline_is_kept),
        cmocka_unit_test(interruptions_neither_prolong_nor_shorten),
        cmocka_unit_test(wrong_descriptors_are_errors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
