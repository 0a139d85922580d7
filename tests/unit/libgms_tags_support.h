/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine with a tag of each policy, for tests of parking and waking on either kind of memory.
 */
#ifndef GMS_TESTS_LIBGMS_TAGS_SUPPORT_H
#define GMS_TESTS_LIBGMS_TAGS_SUPPORT_H

#include "libgms_support.h"

static const struct gms_tag tags[] = {{"weights", GMS_PARK_KEEP},
                                      {"kv", GMS_PARK_SWAP},
                                      {"graphs", GMS_PARK_KEEP},
                                      {"scratch", GMS_PARK_RELEASE},
                                      {"state", GMS_PARK_SAVE}};
enum { TAGS = sizeof tags / sizeof tags[0], REGION_BYTES = 3000000 };

static inline struct engine tagged_engine(struct libgms_fixture *f)
{
    struct gms_error error;
    struct engine engine = {.session = open_engine(f, 0)};
    assert_ok(gms_tags_set(engine.session, tags, TAGS, &error));
    assert_ok(gms_join(engine.session, &engine_identity, &engine.member, &error));
    assert_ok(gms_pool_attach(engine.session, &kv_description, &engine.kv, &error));
    return engine;
}

/* REGION_BYTES under `tag`, all 0x11. */
static inline unsigned char *region(const struct engine *engine, const char *tag)
{
    struct gms_error error;
    void *address = NULL;
    assert_ok(gms_region_alloc(engine->session, tag, REGION_BYTES, &address, &error));
    memset(address, 0x11, REGION_BYTES);
    return address;
}

static inline void *cancel_when_it_wakes(void *session)
{
    while (gms_park_state(session) != GMS_STATE_WAKING)
        (void)poll(NULL, 0, 1);
    (void)poll(NULL, 0, 20); /* it has begun to wait by then; if not, it is cancelled before */
    gms_wake_cancel(session);
    return NULL;
}

/* A wake for which there is no memory, cancelled by another thread long before its time (five seconds) is over. */
static inline gms_status wake_cancelled(gms_session *session, struct gms_error *error)
{
    pthread_t thread;
    const uint64_t since_ns = gms_clock_ns();
    assert_int_equal(pthread_create(&thread, NULL, cancel_when_it_wakes, session), 0);
    const gms_status status = gms_wake(session, error);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(gms_clock_ns() - since_ns < 4 * GMS_NS_PER_S);
    return status;
}

#endif
