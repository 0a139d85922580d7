/* SPDX-License-Identifier: Apache-2.0
 *
 * Who serves, pushed to clients that said WATCH (gms-relay): at once when it changes, so that nobody has to poll the
 * serving file. That nobody serves is news too: an engine's death is known here before its successor is.
 */
#include <stdio.h>
#include <string.h>

#include "daemon/daemon_state.h"

/* The present state in *ret_message, which borrows the endpoint from the daemon. */
static void describe(struct gms_daemon *daemon, struct gms_message *ret_message)
{
    struct gms_core_view view;
    gms_core_look(daemon->core, &view);
    *ret_message = (struct gms_message){.type = GMS_MESSAGE_SERVES};
    ret_message->serves.world = view.world;
    ret_message->serves.epoch = view.epoch;
    ret_message->serves.engine = -1;
    ret_message->serves.endpoint = (struct gms_bytes){"", 0};
    if (view.serving_engine < 0 || daemon->endpoint[0] == '\0' ||
        view.engines[view.serving_engine].incarnation != daemon->endpoint_incarnation)
        return;
    ret_message->serves.engine = view.serving_engine;
    ret_message->serves.incarnation = view.engines[view.serving_engine].incarnation;
    ret_message->serves.endpoint = (struct gms_bytes){daemon->endpoint, (uint32_t)strlen(daemon->endpoint)};
}

void gms_daemon_watch_tell(struct gms_daemon *daemon, struct gms_client *client, uint32_t request_id)
{
    struct gms_message message;
    describe(daemon, &message);
    message.request_id = request_id;
    gms_sessions_send(client, &message);
}

void gms_daemon_watch_news(struct gms_daemon *daemon)
{
    struct gms_message message;
    if (daemon->rank != 0 || daemon->sessions == NULL || daemon->stopped)
        return;
    describe(daemon, &message);
    if (message.serves.engine == daemon->watched.engine && message.serves.incarnation == daemon->watched.incarnation &&
        message.serves.epoch == daemon->watched.epoch &&
        strcmp(message.serves.endpoint.data, daemon->watched.endpoint) == 0)
        return;
    daemon->watched.engine = message.serves.engine;
    daemon->watched.incarnation = message.serves.incarnation;
    daemon->watched.epoch = message.serves.epoch;
    snprintf(daemon->watched.endpoint, sizeof daemon->watched.endpoint, "%s",
             (const char *)message.serves.endpoint.data);
    for (struct gms_client *client = gms_sessions_next(daemon->sessions, NULL); client != NULL;
         client = gms_sessions_next(daemon->sessions, client))
        if (client->watches)
            gms_sessions_send(client, &message);
}
