/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine ranks admitted on a rank: prepared, committed, watched while absent, forgotten, and known again from what
 * was left with others.
 */
#include "unit_support.h"

#include <event2/event.h>

#include "sessions/members.h"

enum { RANK = 1, ENGINE = 2, INCARNATION = 7, LAUNCH = 99 };

static struct gms_error error;
static struct event_base *base;
static struct gms_copies *copies;
static struct gms_members *members;
static uint64_t ended; /* incarnation of the last that ended */
static int ends;

/* An engine rank: a child that lives until it is ended. */
struct rank {
    pid_t pid;
    struct gms_client client;
};

static void on_ended(void *context, struct gms_member *member)
{
    (void)context;
    ended = member->incarnation;
    ends++;
}

static void open_members(void)
{
    const struct gms_members_options options = {.base = base, .copies = copies, .rank = RANK, .ended = on_ended};
    assert_ok(gms_members_open(&options, &members, &error));
}

static int setup(void **state)
{
    (void)state;
    ended = 0;
    ends = 0;
    base = event_base_new();
    assert_non_null(base);
    assert_ok(gms_copies_open(NULL, RANK, &copies, &error));
    open_members();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    gms_members_close(members);
    gms_copies_close(copies);
    event_base_free(base);
    return 0;
}

static void start(struct rank *rank, const char *launch, uint32_t container_kind)
{
    memset(rank, 0, sizeof *rank);
    rank->pid = fork();
    if (rank->pid == 0)
        for (;;)
            pause();
    struct gms_client *client = &rank->client;
    client->engine_id = ENGINE;
    snprintf(client->launch, sizeof client->launch, "%s", launch);
    assert_ok(gms_pidfd_open(rank->pid, &client->pidfd, &error));
    client->container = GMS_NO_CONTAINER;
    client->container.kind = container_kind;
    if (container_kind != 0) {
        assert_ok(gms_pidfd_open(rank->pid, &client->container.guardian_fd, &error));
        assert_ok(gms_pidfd_open(rank->pid, &client->container.engine_fd, &error));
    }
}

static void end(struct rank *rank)
{
    gms_pidfd_signal(rank->client.pidfd, SIGKILL);
    gms_container_close(&rank->client.container);
    gms_fd_close(&rank->client.pidfd);
    waitpid(rank->pid, NULL, 0);
}

static bool is_kept(const char *name)
{
    struct gms_copy copy;
    return gms_copies_find(copies, name, &copy);
}

static struct gms_member *admit(struct rank *rank)
{
    assert_ok(gms_members_prepare(members, LAUNCH, 4711, &rank->client, &error));
    struct gms_member *member = gms_members_commit(members, ENGINE, LAUNCH, INCARNATION);
    assert_non_null(member);
    return member;
}

/* Lets the loop run until it has nothing to do. */
static void run_loop(void)
{
    uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    while (ends == 0 && gms_clock_ns() < deadline_ns)
        event_base_loop(base, EVLOOP_ONCE);
}

/* ------------------------------------------------------------------------------------ prepare, commit, abort --- */

static void test_admitted(void **state)
{
    struct rank rank;
    (void)state;
    start(&rank, "launch a", GMS_CONTAINER_SUBREAPER);
    assert_ok(gms_members_prepare(members, LAUNCH, 4711, &rank.client, &error));
    assert_null(gms_members_find(members, INCARNATION));
    assert_null(gms_members_find(members, 0)); /* what is prepared has no name yet */
    assert_true(is_kept("prepared/2/session/1"));
    assert_true(is_kept("prepared/2/guardian/1"));
    assert_null(gms_members_commit(members, ENGINE, LAUNCH + 1, INCARNATION)); /* another launch's */
    assert_null(gms_members_commit(members, ENGINE + 1, LAUNCH, INCARNATION));
    struct gms_member *member = gms_members_commit(members, ENGINE, LAUNCH, INCARNATION);
    assert_non_null(member);
    assert_ptr_equal(gms_members_commit(members, ENGINE, LAUNCH, INCARNATION), member); /* again */
    assert_ptr_equal(gms_members_find(members, INCARNATION), member);
    assert_int_equal(member->engine, ENGINE);
    assert_int_equal(member->identity_digest, 4711);
    assert_string_equal(member->launch_text, "launch a");
    assert_true(gms_pidfd_same(member->pidfd, rank.client.pidfd));
    assert_int_not_equal(member->pidfd, rank.client.pidfd); /* its own */
    assert_int_equal(gms_copies_count(copies, "prepared/"), 0);
    assert_true(is_kept("session/7/1") && is_kept("guardian/7/1") && is_kept("cohort/7/1"));
    gms_members_forget(members, INCARNATION + 1);
    assert_ptr_equal(gms_members_next(members, NULL), member);
    assert_null(gms_members_next(members, member));
    gms_members_forget(members, INCARNATION);
    assert_null(gms_members_find(members, INCARNATION));
    assert_int_equal(gms_copies_count(copies, ""), 0);
    end(&rank);
}

static void test_aborted(void **state)
{
    struct rank first, second;
    (void)state;
    start(&first, "a", 0);
    start(&second, "b", 0);
    gms_members_abort(members, ENGINE); /* nothing there: nothing happens */
    assert_ok(gms_members_prepare(members, LAUNCH, 1, &first.client, &error));
    assert_ok(gms_members_prepare(members, LAUNCH + 1, 1, &second.client, &error)); /* in its place */
    assert_int_equal(gms_copies_count(copies, "prepared/"), 1);
    assert_null(gms_members_commit(members, ENGINE, LAUNCH, INCARNATION));
    gms_members_abort(members, ENGINE);
    assert_int_equal(gms_copies_count(copies, ""), 0);
    assert_null(gms_members_commit(members, ENGINE, LAUNCH + 1, INCARNATION));
    end(&first);
    end(&second);
}

/* Nobody else's secret, and no other than its own. */
static void test_secrets_differ(void **state)
{
    struct rank rank;
    uint8_t first[GMS_SECRET_BYTES];
    static const uint8_t zero[GMS_SECRET_BYTES];
    (void)state;
    start(&rank, "a", 0);
    struct gms_member *member = admit(&rank);
    memcpy(first, member->secret, sizeof first);
    assert_memory_not_equal(first, zero, sizeof first);
    assert_ok(gms_members_prepare(members, LAUNCH + 1, 1, &rank.client, &error));
    member = gms_members_commit(members, ENGINE, LAUNCH + 1, INCARNATION + 1);
    assert_memory_not_equal(first, member->secret, sizeof first);
    end(&rank);
}

/* ----------------------------------------------------------------------------------------------- presence ----- */

static void test_ends_while_absent(void **state)
{
    struct rank rank;
    (void)state;
    start(&rank, "a", 0);
    struct gms_member *member = admit(&rank);
    gms_member_set_present(member, false);
    event_base_loop(base, EVLOOP_NONBLOCK);
    assert_int_equal(ends, 0);
    gms_member_set_present(member, true); /* its session will tell */
    end(&rank);
    event_base_loop(base, EVLOOP_NONBLOCK);
    assert_int_equal(ends, 0);
    gms_member_set_present(member, false); /* it was there, and is dead by now */
    run_loop();
    assert_int_equal(ends, 1);
    assert_int_equal(ended, INCARNATION);
    event_base_loop(base, EVLOOP_NONBLOCK);
    assert_int_equal(ends, 1); /* once */
}

/* ------------------------------------------------------------------------------------------------ restore ----- */

static void test_known_again(void **state)
{
    struct rank rank, next;
    uint8_t secret[GMS_SECRET_BYTES];
    (void)state;
    start(&rank, "launch a", GMS_CONTAINER_SUBREAPER);
    start(&next, "launch b", 0);
    struct gms_member *member = admit(&rank);
    gms_member_set_endpoint(member, "unix:/somewhere");
    memcpy(secret, member->secret, sizeof secret);
    assert_ok(gms_members_prepare(members, LAUNCH + 1, 5, &next.client, &error));

    gms_members_close(members); /* the process ends, the copies stay */
    open_members();
    gms_members_restore(members);
    member = gms_members_find(members, INCARNATION);
    assert_non_null(member);
    assert_false(member->present);
    assert_int_equal(member->engine, ENGINE);
    assert_int_equal(member->launch, LAUNCH);
    assert_int_equal(member->identity_digest, 4711);
    assert_memory_equal(member->secret, secret, sizeof secret);
    assert_string_equal(member->launch_text, "launch a");
    assert_string_equal(member->endpoint, "unix:/somewhere");
    assert_int_equal(member->container.kind, GMS_CONTAINER_SUBREAPER);
    assert_true(gms_pidfd_same(member->container.guardian_fd, rank.client.container.guardian_fd));
    assert_true(gms_pidfd_same(member->pidfd, rank.client.pidfd));
    member = gms_members_commit(members, ENGINE, LAUNCH + 1, INCARNATION + 1); /* what was prepared is too */
    assert_non_null(member);
    assert_string_equal(member->launch_text, "launch b");
    end(&rank);
    end(&next);
}

/* Kept bytes that are cut or changed, or kept under a name that they do not have: not known, and nobody else's. */
static void test_what_cannot_be_read(void **state)
{
    struct rank rank;
    struct gms_copy copy;
    uint8_t meta[1024];
    unsigned known = 0;
    (void)state;
    start(&rank, "launch a", 0);
    admit(&rank);
    assert_true(gms_copies_find(copies, "session/7/1", &copy));
    uint32_t bytes = copy.meta_bytes;
    assert_in_range(bytes, 40, sizeof meta);
    memcpy(meta, copy.meta, bytes);
    for (uint32_t cut = 0; cut < bytes; cut++) {
        gms_copies_put(copies, "session/7/1", rank.client.pidfd, meta, cut);
        gms_members_close(members);
        open_members();
        gms_members_restore(members);
        assert_null(gms_members_next(members, NULL));
    }
    for (uint32_t at = 0; at < bytes; at++) {
        meta[at] ^= 0x81;
        gms_copies_put(copies, "session/7/1", rank.client.pidfd, meta, bytes);
        gms_members_close(members);
        open_members();
        gms_members_restore(members);
        const struct gms_member *member = gms_members_next(members, NULL);
        known += member != NULL;
        assert_true(member == NULL || (member->incarnation == INCARNATION && member->engine < GMS_MAX_ENGINES));
        meta[at] ^= 0x81;
    }
    assert_true(known > 0); /* a launch's letter more or less */
    gms_copies_put(copies, "session/8/1", rank.client.pidfd, meta, bytes);
    gms_copies_drop(copies, "session/7/1");
    gms_members_close(members);
    open_members();
    gms_members_restore(members);
    assert_null(gms_members_next(members, NULL));
    end(&rank);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_admitted),          TEST(test_aborted),     TEST(test_secrets_differ),
        TEST(test_ends_while_absent), TEST(test_known_again), TEST(test_what_cannot_be_read),
    };
    return cmocka_run_group_tests_name("members", tests, NULL, NULL);
}
