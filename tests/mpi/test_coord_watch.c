/* SPDX-License-Identifier: Apache-2.0
 *
 * WATCH: who serves is told at once and with every change, through a takeover, and again by the next world.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "harness.h"
#include "wire/channel.h"

enum { AT_SERVING = 1, GATE_END = 1 };

static gms_status serve(struct engine_rank *rank, struct gms_error *error)
{
    gms_session *session = NULL;
    gms_pool *weights = NULL, *kv = NULL;
    struct gms_membership membership;
    struct gms_adoption adoption;
    gms_status status = rank_open(rank, &session, error);
    if (status == GMS_OK)
        status = rank_join(session, rank, &membership, error);
    if (status == GMS_OK)
        status = rank_attach_weights(session, &weights, error);
    if (status == GMS_OK)
        status = rank_attach_kv(session, HARNESS_SLOTS, &kv, error);
    if (status == GMS_OK)
        status = rank_serve(session, rank->rank == 0 ? (rank->engine == 0 ? "unix:/e0" : "unix:/e1") : NULL, &adoption,
                            error);
    if (status != GMS_OK)
        return status;
    rank_at(rank, AT_SERVING);
    rank_gate(rank, GATE_END);
    gms_close(session);
    return GMS_OK;
}

struct news {
    int32_t engine;
    uint64_t incarnation, epoch, at_ns;
    char endpoint[64];
};

static void hear(int fd, struct news *ret_news)
{
    static uint8_t buffer[GMS_WIRE_MAX_BYTES];
    struct gms_message message;
    struct gms_error error;
    gms_status status =
        gms_channel_receive_until(fd, buffer, gms_clock_ns() + HARNESS_DEADLINE_MS * GMS_NS_PER_MS, &message, &error);
    if (status != GMS_OK)
        fail_msg("no news: %s", error.text);
    assert_string_equal(gms_message_name(message.type), "SERVES");
    *ret_news = (struct news){.engine = message.serves.engine,
                              .incarnation = message.serves.incarnation,
                              .epoch = message.serves.epoch,
                              .at_ns = gms_clock_ns()};
    assert_true(message.serves.endpoint.length < sizeof ret_news->endpoint);
    memcpy(ret_news->endpoint, message.serves.endpoint.data, message.serves.endpoint.length);
}

static int watch(const struct cluster *cluster)
{
    const struct gms_message message = {.type = GMS_MESSAGE_WATCH, .request_id = 9};
    int fd = cluster_client(cluster, 0, GMS_CLIENT_CONTROL, 0);
    assert_int_equal(gms_channel_send(fd, &message, NULL), GMS_OK);
    return fd;
}

/* When rank 0 began to serve under the last takeover, by its status. */
static uint64_t served_ns(const struct cluster *cluster)
{
    json_t *status = cluster_status(cluster, 0), *list = json_object_get(status, "takeovers");
    uint64_t at_ns =
        (uint64_t)json_integer_value(json_object_get(json_array_get(list, json_array_size(list) - 1), "serve_ns"));
    json_decref(status);
    return at_ns;
}

static void test_watch(void **state)
{
    struct cluster cluster;
    struct engine first, second;
    struct news news;
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = 2});
    int fd = watch(&cluster);
    hear(fd, &news);
    assert_int_equal(news.engine, -1);
    assert_string_equal(news.endpoint, "");

    engine_start(&first, &cluster, 0, "a", serve, 0);
    do
        hear(fd, &news);
    while (news.engine < 0); /* the epoch alone is news too */
    assert_int_equal(news.engine, 0);
    assert_string_equal(news.endpoint, "unix:/e0");
    assert_true(engine_reached(&first, AT_SERVING, HARNESS_DEADLINE_MS));
    const struct news before = news;

    engine_start(&second, &cluster, 1, "b", serve, 0);
    engine_kill(&first, 1);
    hear(fd, &news); /* of its death, before anybody else serves */
    assert_int_equal(news.engine, -1);
    assert_true(news.epoch > before.epoch);
    do
        hear(fd, &news);
    while (news.engine < 0);
    assert_int_equal(news.engine, 1);
    assert_true(news.incarnation > before.incarnation);
    assert_string_equal(news.endpoint, "unix:/e1");
    assert_true(engine_reached(&second, AT_SERVING, HARNESS_DEADLINE_MS));
    const double heard_ms = (double)(int64_t)(news.at_ns - served_ns(&cluster)) / 1e6;
    print_message("heard %.3f ms after it served\n", heard_ms);
    assert_true(heard_ms < 1000); /* a loaded machine's; idle it is a tenth of a ms */

    /* The other ranks do not know where. */
    struct gms_message question = {.type = GMS_MESSAGE_WATCH};
    assert_int_equal(cluster_order(&cluster, 1, &question), GMS_E_INVALID);

    /* The next world tells the same at once. */
    gms_fd_close(&fd);
    cluster_kill_coordinators(&cluster, -1);
    cluster_relaunch(&cluster, NULL);
    const struct news now = news;
    fd = watch(&cluster);
    hear(fd, &news);
    assert_int_equal(news.engine, 1);
    assert_int_equal(news.incarnation, now.incarnation);
    assert_string_equal(news.endpoint, "unix:/e1");
    gms_fd_close(&fd);

    engine_finish(&first);
    engine_go(&second, GATE_END);
    engine_finish(&second);
    cluster_stop(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_watch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
