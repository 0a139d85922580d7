/* SPDX-License-Identifier: Apache-2.0 */
#include "libgms/session.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/run_dir.h"
#include "core/ballot.h"
#include "gms/version.h"

enum { DEFAULT_OPEN_TIMEOUT_MS = 10000, LAUNCH_BYTES_MAX = GMS_LAUNCH_ID_BYTES - 1, CONNECT_PAUSE_MS = 20 };

const char *gms_version(void)
{
    return GMS_VERSION;
}

uint32_t gms_protocol_version(void)
{
    return GMS_WIRE_VERSION;
}

void gms_spin_lock(struct gms_spin *spin)
{
    for (unsigned tries = 0; atomic_flag_test_and_set_explicit(&spin->taken, memory_order_acquire); tries++)
        if (tries % 64 == 63)
            sched_yield();
}

void gms_spin_unlock(struct gms_spin *spin)
{
    atomic_flag_clear_explicit(&spin->taken, memory_order_release);
}

/* ---------------------------------------------------------------------------------------------------- open --- */

struct settings {
    const char *run_dir, *launch;
    uint32_t rank, engine_id;
    uint64_t deadline_ns;
};

static gms_status number_setting(int32_t option, const char *variable, uint32_t limit, uint32_t *ret_value,
                                 struct gms_error *ret_error)
{
    long value = option;
    if (option == -1) {
        const char *text = getenv(variable);
        if (text == NULL || text[0] == '\0')
            return gms_fail(ret_error, GMS_E_INVALID, "%s is not set: give it in gms_open_options or the environment",
                            variable);
        char *end = NULL;
        errno = 0;
        value = strtol(text, &end, 10);
        if (errno != 0 || *end != '\0' || text[0] < '0' || text[0] > '9')
            return gms_fail(ret_error, GMS_E_INVALID, "%s=%.40s: need a number from 0 to %" PRIu32, variable, text,
                            limit - 1);
    }
    if (value < 0 || value >= (long)limit)
        return gms_fail(ret_error, GMS_E_INVALID, "%s %ld: need a number from 0 to %" PRIu32, variable, value,
                        limit - 1);
    *ret_value = (uint32_t)value;
    return GMS_OK;
}

static gms_status text_setting(const char *option, const char *variable, const char **ret_text,
                               struct gms_error *ret_error)
{
    const char *text = option != NULL ? option : getenv(variable);
    if (text == NULL || text[0] == '\0')
        return gms_fail(ret_error, GMS_E_INVALID, "%s is not set: give it in gms_open_options or the environment",
                        variable);
    *ret_text = text;
    return GMS_OK;
}

static gms_status read_settings(const struct gms_open_options *options, struct settings *ret_settings,
                                struct gms_error *ret_error)
{
    static const struct gms_open_options from_environment = {.rank = -1, .engine_id = -1};
    if (options == NULL)
        options = &from_environment;
    gms_status status = text_setting(options->run_dir, "GMS_RUN_DIR", &ret_settings->run_dir, ret_error);
    if (status == GMS_OK)
        status = number_setting(options->rank, "GMS_RANK", GMS_MAX_RANKS, &ret_settings->rank, ret_error);
    if (status == GMS_OK)
        status = number_setting(options->engine_id, "ENGINE_ID", GMS_MAX_ENGINES, &ret_settings->engine_id, ret_error);
    if (status == GMS_OK)
        status = text_setting(options->launch, "GMS_LAUNCH_ID", &ret_settings->launch, ret_error);
    if (status == GMS_OK && strlen(ret_settings->launch) > LAUNCH_BYTES_MAX)
        status = gms_fail(ret_error, GMS_E_INVALID, "GMS_LAUNCH_ID has %zu bytes, the limit is %d",
                          strlen(ret_settings->launch), LAUNCH_BYTES_MAX);
    const uint32_t timeout_ms = options->timeout_ms != 0 ? options->timeout_ms : DEFAULT_OPEN_TIMEOUT_MS;
    ret_settings->deadline_ns = gms_clock_ns() + timeout_ms * GMS_NS_PER_MS;
    return status;
}

/* Until somebody listens: a coordinator that is being started again is no reason to give up. */
static gms_status connect_coordinator(struct gms_session *session, const struct settings *settings,
                                      struct gms_error *ret_error)
{
    for (;;) {
        gms_status status = gms_link_connect(session, gms_clock_poll_ms(settings->deadline_ns), ret_error);
        const int left_ms = gms_clock_poll_ms(settings->deadline_ns);
        if (status != GMS_E_DISCONNECTED || left_ms == 0)
            return status;
        (void)poll(NULL, 0, left_ms < CONNECT_PAUSE_MS ? left_ms : CONNECT_PAUSE_MS);
    }
}

static gms_status be_welcomed(struct gms_session *session, const struct settings *settings, struct gms_error *ret_error)
{
    struct gms_message message;
    bool filed = true;
    gms_status status = GMS_OK;
    while (status == GMS_OK && filed)
        status = gms_session_receive(session, settings->deadline_ns, &message, &filed, ret_error);
    if (status == GMS_E_TIMEOUT)
        return gms_fail(ret_error, GMS_E_TIMEOUT, "coordinator rank %" PRIu32 " did not answer HELLO in time",
                        settings->rank);
    if (status != GMS_OK)
        return status;
    status = gms_link_welcomed(session, &message, ret_error);
    gms_message_close_fds(&message);
    return status;
}

gms_status gms_open(const struct gms_open_options *options, gms_session **ret_session, struct gms_error *ret_error)
{
    struct settings settings = {0};
    gms_status status = read_settings(options, &settings, ret_error);
    if (status != GMS_OK)
        return status;
    struct gms_session *session = calloc(1, sizeof *session);
    if (session != NULL)
        session->buffer = malloc(GMS_WIRE_MAX_BYTES);
    if (session == NULL || session->buffer == NULL) {
        free(session);
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a session (%zu bytes)",
                        sizeof *session + GMS_WIRE_MAX_BYTES);
    }
    session->fd = session->event_fd = session->timer_fd = -1;
    session->link = GMS_LINK_GREETING;
    snprintf(session->launch, sizeof session->launch, "%s", settings.launch);
    session->rank = settings.rank;
    session->engine_id = settings.engine_id;
    session->launch_digest = XXH3_64bits(settings.launch, strlen(settings.launch));
    session->next_sequence = 1;
    atomic_init(&session->gate, GMS_E_REFUSED);
    status = gms_run_dir_path(settings.run_dir, "c", (int32_t)settings.rank, session->path, ret_error);
    if (status == GMS_OK)
        status = gms_link_open(session, ret_error);
    if (status == GMS_OK)
        status = connect_coordinator(session, &settings, ret_error);
    if (status == GMS_OK)
        status = gms_link_hello(session, settings.deadline_ns, ret_error);
    if (status == GMS_OK || status == GMS_E_DISCONNECTED) /* a refusal may be waiting behind a closed connection */
        status = session->fd >= 0 ? be_welcomed(session, &settings, ret_error) : status;
    if (status != GMS_OK) {
        gms_link_close(session);
        free(session->buffer);
        free(session);
        return status;
    }
    *ret_session = session;
    return GMS_OK;
}

int gms_event_fd(const gms_session *session)
{
    return session->event_fd;
}

/* Goodbye makes released slots idle for the successor. With a step in flight that would be a lie, so then the end of
 * the socket has to speak for itself. */
static void say_goodbye(struct gms_session *session)
{
    if (session->link != GMS_LINK_UP || session->incarnation == 0 ||
        atomic_load(&session->steps_completed) != atomic_load(&session->steps_begun))
        return;
    struct gms_message leaving = {.type = GMS_MESSAGE_LEAVING, .plain = {.incarnation = session->incarnation}};
    (void)gms_session_send(session, &leaving, gms_clock_ns() + GMS_NS_PER_S, NULL);
}

void gms_close(gms_session *session)
{
    if (session == NULL)
        return;
    say_goodbye(session);
    gms_nccl_forget(session);
    if (session->vmm != NULL)
        (void)session->vmm->sync(NULL); /* nothing may be in flight where something is unmapped */
    for (uint32_t i = 0; i < GMS_MAX_POOLS; i++)
        gms_pool_free(session->pools[i]);
    gms_torch_forget(session);
    gms_regions_free(session);
    gms_marks_free(session);
    gms_link_close(session);
    gms_blocks_free(session);
    free(session->buffer);
    free(session);
}
