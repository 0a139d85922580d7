/* SPDX-License-Identifier: Apache-2.0
 * The life of a relayed request: every rule of request.h, then all short histories against what must always hold. */
#include "unit_support.h"

#include "gms-relay/request.h"

#define MS GMS_NS_PER_MS

static const struct relay_limits limits = {.wait_ns = 1000 * MS,
                                           .silence_ns = 2000 * MS,
                                           .total_ns = 60000 * MS,
                                           .crash_window_ns = 5000 * MS,
                                           .break_grace_ns = 100 * MS,
                                           .retry_ns = 5 * MS,
                                           .crash_limit = 2};

static struct relay_request begun(void)
{
    struct relay_request request;
    relay_request_begin(&request, &limits, 8, 1000 * MS);
    request.resumable = true;
    return request;
}

static struct relay_actions step(struct relay_request *request, const struct relay_event *event)
{
    struct relay_actions actions;
    relay_request_step(request, event, &actions);
    return actions;
}

static struct relay_actions serves(struct relay_request *request, uint64_t incarnation, uint64_t now_ms)
{
    return step(request,
                &(struct relay_event){.type = RELAY_SERVES, .now_ns = now_ms * MS, .incarnation = incarnation});
}

/* An event of the present attempt. */
static struct relay_actions says(struct relay_request *request, enum relay_event_type type, uint64_t now_ms)
{
    return step(request, &(struct relay_event){.type = type,
                                               .now_ns = now_ms * MS,
                                               .attempt = request->attempt,
                                               .index = request->token_count,
                                               .count = type == RELAY_TOKENS,
                                               .status = 400,
                                               .text = "words"});
}

static void an_undisturbed_request(void **state)
{
    (void)state;
    struct relay_request request = begun();
    struct relay_actions actions = serves(&request, 1, 1001);
    assert_true(actions.ask && !actions.drop);
    assert_int_equal(request.state, RELAY_ASKED);
    assert_int_equal(request.attempt, 1);
    for (int i = 0; i < 8; i++)
        assert_true(says(&request, RELAY_TOKENS, 1002).forward);
    assert_int_equal(request.token_count, 8);
    actions = says(&request, RELAY_END, 1003);
    assert_true(actions.finish && actions.drop && !actions.fail);
    assert_int_equal(request.state, RELAY_DONE);
    assert_int_equal(request.resumes, 0);
    assert_true(relay_request_deadline(&request) == UINT64_MAX);
}

static void the_next_engine_goes_on(void **state)
{
    (void)state;
    struct relay_request request = begun();
    serves(&request, 1, 1001);
    says(&request, RELAY_TOKENS, 1002);
    request.visible = true;
    struct relay_actions actions = says(&request, RELAY_LOST, 1003);
    assert_true(actions.drop && !actions.ask && !actions.fail);
    assert_int_equal(request.state, RELAY_WAITING);
    actions = serves(&request, 2, 1004); /* the grace is for the same engine only */
    assert_true(actions.ask);
    assert_int_equal(request.attempt, 2);
    assert_int_equal(request.token_count, 1);
    assert_int_equal(request.resumes, 0);
    assert_true(says(&request, RELAY_TOKENS, 1005).forward);
    assert_int_equal(request.resumes, 1);
    assert_true(says(&request, RELAY_END, 1006).finish);
}

static void news_come_before_the_end_of_the_connection(void **state)
{
    (void)state;
    struct relay_request request = begun();
    serves(&request, 1, 1001);
    says(&request, RELAY_TOKENS, 1002);
    const uint32_t old = request.attempt;
    struct relay_actions actions = serves(&request, 2, 1003);
    assert_true(actions.drop && actions.ask);
    assert_int_equal(request.crashes, 1);
    /* What the first one still says is not heard. */
    actions =
        step(&request,
             &(struct relay_event){.type = RELAY_TOKENS, .now_ns = 1004 * MS, .attempt = old, .index = 1, .count = 1});
    assert_false(actions.forward);
    actions = step(&request, &(struct relay_event){.type = RELAY_LOST, .now_ns = 1004 * MS, .attempt = old});
    assert_false(actions.drop);
    assert_int_equal(request.crashes, 1);
    /* And that it serves is old news. */
    assert_false(serves(&request, 1, 1005).ask);
}

static void nobody_serves_means_lost(void **state)
{
    (void)state;
    struct relay_request request = begun();
    serves(&request, 1, 1001);
    struct relay_actions actions = step(&request, &(struct relay_event){.type = RELAY_VACANT, .now_ns = 1002 * MS});
    assert_true(actions.drop);
    assert_int_equal(request.state, RELAY_WAITING);
    assert_true(serves(&request, 2, 1003).ask);
}

static void two_crashes_in_a_row_are_enough(void **state)
{
    (void)state;
    struct relay_request request = begun();
    serves(&request, 1, 1001);
    says(&request, RELAY_LOST, 1002);
    serves(&request, 2, 1003);
    says(&request, RELAY_TOKENS, 1004);
    struct relay_actions actions = says(&request, RELAY_LOST, 1005);
    assert_true(actions.fail && actions.drop);
    assert_int_equal(actions.status, 502);
    assert_int_equal(actions.retry_after_s, 0); /* retrying it would kill the next one */
    assert_non_null(strstr(actions.text, "2 engine crashes in a row"));
    assert_false(serves(&request, 3, 1006).ask);
}

static void two_crashes_far_apart_are_not_in_a_row(void **state)
{
    (void)state;
    struct relay_request request = begun();
    serves(&request, 1, 1001);
    says(&request, RELAY_LOST, 1002);
    serves(&request, 2, 1003);
    for (uint64_t now_ms = 2000; now_ms <= 7000; now_ms += 1000)
        says(&request, RELAY_TOKENS, now_ms);
    assert_false(says(&request, RELAY_LOST, 7003).fail);
    assert_int_equal(request.crashes, 1);
    assert_true(serves(&request, 3, 7004).ask);
}

static void not_being_asked_is_no_crash(void **state)
{
    (void)state;
    struct relay_request request = begun();
    for (uint64_t now_ms = 1001; now_ms < 1900; now_ms += 50) {
        assert_true(serves(&request, 1, now_ms).ask);
        assert_true(says(&request, RELAY_UNASKED, now_ms + 1).drop);
        assert_false(serves(&request, 1, now_ms + 2).ask); /* not at once */
    }
    assert_int_equal(request.crashes, 0);
    /* All of it was one wait. */
    struct relay_actions actions = says(&request, RELAY_TICK, 2001);
    assert_true(actions.fail);
    assert_int_equal(actions.status, 503);
    assert_true(actions.retry_after_s > 0);
}

static void the_same_engine_is_asked_again_after_a_moment(void **state)
{
    (void)state;
    struct relay_request request = begun();
    serves(&request, 1, 1001);
    says(&request, RELAY_LOST, 1002);
    assert_false(serves(&request, 1, 1050).ask);
    assert_true(serves(&request, 1, 1103).ask);
}

static void what_was_seen_cannot_be_taken_back(void **state)
{
    (void)state;
    struct relay_request request = begun();
    request.resumable = false;
    request.why_not_resumable = "it has pictures";
    serves(&request, 1, 1001);
    says(&request, RELAY_TOKENS, 1002);
    request.visible = true;
    struct relay_actions actions = says(&request, RELAY_LOST, 1003);
    assert_true(actions.fail);
    assert_non_null(strstr(actions.text, "it has pictures"));

    request = begun();
    request.resumable = false;
    serves(&request, 1, 1001);
    assert_false(says(&request, RELAY_LOST, 1003).fail); /* nothing was seen: from the beginning */
    assert_true(serves(&request, 2, 1004).ask);
}

static void tokens_come_in_order_and_in_number(void **state)
{
    (void)state;
    struct relay_request request = begun();
    serves(&request, 1, 1001);
    struct relay_actions actions = step(
        &request, &(struct relay_event){
                      .type = RELAY_TOKENS, .now_ns = 1002 * MS, .attempt = request.attempt, .index = 1, .count = 1});
    assert_true(actions.fail && actions.drop && !actions.forward);
    assert_int_equal(actions.status, 502);

    request = begun();
    serves(&request, 1, 1001);
    for (int i = 0; i < 8; i++)
        says(&request, RELAY_TOKENS, 1002);
    actions = says(&request, RELAY_TOKENS, 1003);
    assert_true(actions.fail && !actions.forward);
    assert_int_equal(request.token_count, 8);
}

static void limits_of_time(void **state)
{
    (void)state;
    struct relay_request request = begun();
    assert_true(relay_request_deadline(&request) == 2000 * MS);
    assert_false(says(&request, RELAY_TICK, 1999).fail);
    assert_int_equal(says(&request, RELAY_TICK, 2000).status, 503);

    request = begun();
    serves(&request, 1, 1500);
    assert_true(relay_request_deadline(&request) == 3500 * MS);
    says(&request, RELAY_TOKENS, 3000);
    assert_false(says(&request, RELAY_TICK, 4999).fail);
    relay_request_heard(&request, 4999 * MS);
    assert_false(says(&request, RELAY_TICK, 6998).fail);
    struct relay_actions actions = says(&request, RELAY_TICK, 6999);
    assert_true(actions.fail && actions.drop);
    assert_int_equal(actions.status, 504);

    struct relay_limits short_limits = limits;
    short_limits.total_ns = 100 * MS;
    relay_request_begin(&request, &short_limits, 8, 0);
    serves(&request, 1, 1);
    says(&request, RELAY_TOKENS, 99);
    assert_int_equal(says(&request, RELAY_TICK, 100).status, 504);
}

static void refusals_are_passed_on(void **state)
{
    (void)state;
    struct relay_request request = begun();
    serves(&request, 1, 1001);
    struct relay_actions actions = says(&request, RELAY_REFUSED, 1002);
    assert_true(actions.fail && actions.drop);
    assert_int_equal(actions.status, 400);
    assert_string_equal(actions.text, "words");
    request = begun();
    serves(&request, 1, 1001);
    assert_int_equal(says(&request, RELAY_BROKEN, 1002).status, 502);
}

static void who_has_gone_wants_nothing(void **state)
{
    (void)state;
    struct relay_request request = begun();
    struct relay_actions actions = says(&request, RELAY_CLIENT_GONE, 1001);
    assert_false(actions.drop || actions.fail);
    assert_int_equal(request.state, RELAY_GONE);
    request = begun();
    serves(&request, 1, 1001);
    assert_true(says(&request, RELAY_CLIENT_GONE, 1002).drop);
    assert_false(serves(&request, 2, 1003).ask);
}

static void a_restart_forgets_what_nobody_saw(void **state)
{
    (void)state;
    struct relay_request request = begun();
    serves(&request, 1, 1001);
    says(&request, RELAY_TOKENS, 1002);
    const uint32_t old = request.attempt;
    relay_request_restart(&request, 1003 * MS);
    assert_int_equal(request.token_count, 0);
    assert_int_equal(request.state, RELAY_ASKED);
    assert_true(request.attempt > old);
    says(&request, RELAY_TOKENS, 1004);
    request.visible = true;
    relay_request_restart(&request, 1005 * MS);
    assert_int_equal(request.token_count, 1);
}

/* All histories of six events from a small alphabet: what must hold whatever happens. */
struct walk {
    uint64_t histories;
    uint32_t open; /* conversations with engines */
};

static void walk_on(struct walk *walk, struct relay_request request, uint32_t open, uint32_t depth, uint64_t now_ms)
{
    static const enum relay_event_type alphabet[] = {RELAY_SERVES, RELAY_VACANT,     RELAY_UNASKED, RELAY_LOST,
                                                     RELAY_TOKENS, RELAY_END,        RELAY_REFUSED, RELAY_BROKEN,
                                                     RELAY_TICK,   RELAY_CLIENT_GONE};
    walk->histories++;
    if (depth == 0)
        return;
    for (size_t i = 0; i < sizeof alphabet / sizeof alphabet[0]; i++)
        for (uint64_t incarnation = 1; incarnation <= (alphabet[i] == RELAY_SERVES ? 3 : 1); incarnation++) {
            struct relay_request next = request;
            const struct relay_event event = {.type = alphabet[i],
                                              .now_ns = (now_ms + 120) * MS,
                                              .incarnation = incarnation,
                                              .attempt = request.attempt,
                                              .index = request.token_count,
                                              .count = 1,
                                              .status = 400,
                                              .text = ""};
            const struct relay_actions actions = step(&next, &event);
            uint32_t now_open = open;
            if (actions.drop) {
                assert_int_equal(now_open, 1); /* nothing is dropped that was not there */
                now_open = 0;
            }
            if (actions.ask) {
                assert_int_equal(now_open, 0); /* never two engines at once */
                assert_true(next.incarnation >= request.incarnation);
                now_open = 1;
            }
            if (actions.forward) {
                assert_int_equal(open, 1);
                assert_int_equal(next.token_count, request.token_count + 1);
            } else {
                assert_int_equal(next.token_count, request.token_count); /* nothing seen is lost, nothing is invented */
            }
            assert_int_equal(now_open, next.state == RELAY_ASKED || next.state == RELAY_FLOWING);
            bool ends = relay_request_over(&next);
            assert_int_equal(actions.finish + actions.fail + (next.state == RELAY_GONE),
                             ends ? 1 : 0); /* one outcome */
            if (!ends)
                walk_on(walk, next, now_open, depth - 1, now_ms + 120);
        }
}

static void whatever_happens(void **state)
{
    (void)state;
    struct walk walk = {0};
    walk_on(&walk, begun(), 0, 6, 1000);
    print_message("%llu histories\n", (unsigned long long)walk.histories);
    assert_true(walk.histories > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_undisturbed_request),
        cmocka_unit_test(the_next_engine_goes_on),
        cmocka_unit_test(news_come_before_the_end_of_the_connection),
        cmocka_unit_test(nobody_serves_means_lost),
        cmocka_unit_test(two_crashes_in_a_row_are_enough),
        cmocka_unit_test(two_crashes_far_apart_are_not_in_a_row),
        cmocka_unit_test(not_being_asked_is_no_crash),
        cmocka_unit_test(the_same_engine_is_asked_again_after_a_moment),
        cmocka_unit_test(what_was_seen_cannot_be_taken_back),
        cmocka_unit_test(tokens_come_in_order_and_in_number),
        cmocka_unit_test(limits_of_time),
        cmocka_unit_test(refusals_are_passed_on),
        cmocka_unit_test(who_has_gone_wants_nothing),
        cmocka_unit_test(a_restart_forgets_what_nobody_saw),
        cmocka_unit_test(whatever_happens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
