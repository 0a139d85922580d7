/* SPDX-License-Identifier: Apache-2.0 */
#include "unit_support.h"

#include <sys/socket.h>

#include "base/run_dir.h"
#include "fake_coordinator.h"
#include "wire/tags.h"

/* Not cmocka's assert: that would unwind another thread's test. */
#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "fake coordinator: %s:%d: failed: %s\n", __FILE__, __LINE__, #condition);                  \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

static void answer(struct fake_client *client, struct gms_message *reply, uint32_t request_id)
{
    reply->type = GMS_MESSAGE_REPLY;
    reply->request_id = request_id;
    (void)gms_channel_send(client->fd, reply, NULL);
}

static void answer_status(struct fake_client *client, const struct gms_message *request, gms_status status)
{
    static const char text[] = "because the test says so";
    struct gms_message reply = {.reply = {.status = status, .rank = status == GMS_OK ? -1 : 0}};
    if (request->type == GMS_MESSAGE_PROPOSE) {
        reply.reply.kind = request->propose.kind;
        reply.reply.sequence = request->propose.sequence;
    }
    if (status != GMS_OK)
        reply.reply.text = (struct gms_bytes){text, sizeof text - 1};
    answer(client, &reply, request->request_id);
}

struct fake_client *fake_find(struct fake_coordinator *fake, uint64_t incarnation)
{
    for (int i = 0; i < FAKE_CLIENTS; i++)
        if (fake->clients[i].incarnation == incarnation)
            return &fake->clients[i];
    return NULL;
}

/* ---------------------------------------------------------------------------------------------- proposals --- */

static int find_pool(struct fake_coordinator *fake, const struct gms_bytes *name)
{
    for (int i = 0; i < GMS_MAX_POOLS; i++)
        if (fake->pools[i].name[0] != '\0' && strlen(fake->pools[i].name) == name->length &&
            memcmp(fake->pools[i].name, name->data, name->length) == 0)
            return i;
    return -1;
}

static void join(struct fake_coordinator *fake, struct fake_client *client, const struct gms_message *request)
{
    client->incarnation = ++fake->incarnations;
    client->local_digest = request->propose.local_digest;
    client->next_sequence = 1;
    memset(client->secret, 0x50 + (int)client->incarnation, sizeof client->secret);
    struct gms_message reply = {.reply = {.rank = -1,
                                          .kind = GMS_OPERATION_JOIN,
                                          .incarnation = client->incarnation,
                                          .epoch = fake->epoch,
                                          .secret = {client->secret, sizeof client->secret}}};
    answer(client, &reply, request->request_id);
}

static const struct gms_vmm *memory_of(const struct fake_coordinator *fake)
{
    return fake->on_device ? gms_vmm_cuda() : gms_vmm_host();
}

static void make_pool(struct fake_coordinator *fake, int index, const struct fake_client *client,
                      const struct gms_message *request)
{
    struct fake_pool *pool = &fake->pools[index];
    const uint64_t page = memory_of(fake)->granularity_bytes;
    memcpy(pool->name, request->propose.pool.data, request->propose.pool.length);
    pool->kind = request->propose.pool_kind;
    pool->slot_count = request->propose.slot_count;
    pool->block_bytes = request->propose.block_bytes;
    pool->creator = client->incarnation;
    MUST(memory_of(fake)->create(pool->name, (request->propose.bytes + page - 1) / page * page, &pool->memory, NULL) ==
         GMS_OK);
}

static void allocate(struct fake_coordinator *fake, struct fake_client *client, const struct gms_message *request)
{
    struct gms_message reply = {.reply = {.rank = -1, .kind = GMS_OPERATION_ALLOCATE}};
    int index = find_pool(fake, &request->propose.pool);
    if (index < 0) {
        /* From the back, so that an index is never by chance what a test expects. */
        for (index = GMS_MAX_POOLS - 1; fake->pools[index].name[0] != '\0';)
            index--;
        make_pool(fake, index, client, request);
        reply.reply.created = 1;
    }
    struct fake_pool *pool = &fake->pools[index];
    if (pool->kind == GMS_POOL_WEIGHTS && !pool->published && pool->creator != client->incarnation) {
        answer_status(client, request, GMS_E_BUSY);
        return;
    }
    reply.reply.sequence = request->propose.sequence;
    reply.reply.incarnation = client->incarnation;
    reply.reply.epoch = fake->epoch;
    reply.reply.pool_index = (uint32_t)index;
    reply.reply.published = pool->published;
    reply.reply.bytes = request->propose.bytes;
    reply.reply.payload = (struct gms_bytes){pool->manifest, pool->manifest_bytes};
    reply.fds[reply.fd_count++] = pool->memory.fd;
    if (pool->kind == GMS_POOL_KV) {
        const struct gms_directory_geometry geometry = {.pool = (uint32_t)index,
                                                        .slot_count = pool->slot_count,
                                                        .block_bytes = pool->block_bytes,
                                                        .identity_digest = client->local_digest,
                                                        .world = 1,
                                                        .incarnation = client->incarnation,
                                                        .epoch = fake->epoch};
        MUST(gms_directory_create(&geometry, &client->directories[index], NULL) == GMS_OK);
        reply.fds[reply.fd_count++] = client->directories[index].fd;
    }
    answer(client, &reply, request->request_id);
}

static void publish(struct fake_coordinator *fake, struct fake_client *client, const struct gms_message *request)
{
    struct fake_pool *pool = &fake->pools[find_pool(fake, &request->propose.pool)];
    gms_status status = memory_of(fake)->freeze(&pool->memory, NULL);
    if (status == GMS_OK) {
        MUST(request->propose.payload.length <= FAKE_MANIFEST_BYTES);
        memcpy(pool->manifest, request->propose.payload.data, request->propose.payload.length);
        pool->manifest_bytes = request->propose.payload.length;
        pool->published = true;
    }
    answer_status(client, request, status);
}

static void adopt(struct fake_coordinator *fake, struct fake_client *client, const struct gms_message *request)
{
    struct gms_message reply = {
        .reply = {.rank = -1, .kind = GMS_OPERATION_ADOPT, .sequence = request->propose.sequence}};
    for (int i = 0; i < GMS_MAX_POOLS; i++) {
        struct gms_directory *directory = &client->directories[i];
        if (directory->base == NULL)
            continue;
        const size_t bytes = (directory->slot_count + 7) / 8;
        uint8_t *bitmaps = malloc(2 * bytes);
        uint32_t *digests = malloc(directory->slot_count * sizeof *digests);
        struct gms_classification counts;
        MUST(bitmaps != NULL && digests != NULL);
        gms_directory_bulk_vectors(directory, bitmaps, bitmaps + bytes, digests);
        gms_directory_bulk_apply(directory, bitmaps, bitmaps + bytes, &counts);
        free(bitmaps);
        free(digests);
        reply.reply.adopted += counts.adoptable;
        reply.reply.idle += counts.free;
        reply.reply.quarantined += counts.quarantined;
    }
    reply.reply.epoch = fake->epoch;
    answer(client, &reply, request->request_id);
}

static void release_pool(struct fake_coordinator *fake, struct fake_client *client, const struct gms_message *request)
{
    const int index = find_pool(fake, &request->propose.pool);
    MUST(index >= 0);
    gms_directory_close(&client->directories[index]);
    answer_status(client, request, GMS_OK);
}

static void exchange(struct fake_client *client, const struct gms_message *request)
{
    struct gms_message reply = {.reply = {.rank = -1,
                                          .kind = GMS_OPERATION_EXCHANGE,
                                          .sequence = request->propose.sequence,
                                          .incarnation = client->incarnation,
                                          .payload = request->propose.payload}};
    answer(client, &reply, request->request_id);
}

static void talk(const struct fake_coordinator *fake, const struct fake_client *client)
{
    struct gms_message message = {.type = GMS_MESSAGE_TRANSFER_STALLED,
                                  .transfer_result = {.incarnation = client->incarnation, .id = 9}};
    (void)gms_channel_send(client->fd, &message, NULL);
    message =
        (struct gms_message){.type = GMS_MESSAGE_CONDEMNED, .condemned = {.incarnation = client->incarnation + 1000}};
    (void)gms_channel_send(client->fd, &message, NULL);
    message = (struct gms_message){
        .type = GMS_MESSAGE_PROMOTE,
        .promote = {.incarnation = client->incarnation + 1000, .epoch = fake->epoch + 1000, .source = 77}};
    (void)gms_channel_send(client->fd, &message, NULL);
    message = (struct gms_message){.type = GMS_MESSAGE_SERVING,
                                   .promote = {.incarnation = client->incarnation + 1000, .epoch = 5000}};
    (void)gms_channel_send(client->fd, &message, NULL);
    message = (struct gms_message){
        .type = GMS_MESSAGE_REPLY, .request_id = 0xfffffff0, .reply = {.status = GMS_E_DIVERGED, .rank = 3}};
    (void)gms_channel_send(client->fd, &message, NULL);
}

static void drop_client(struct fake_client *client)
{
    /* At once, also while the other thread polls it: poll holds the socket open beyond its close. */
    if (client->fd >= 0)
        (void)shutdown(client->fd, SHUT_RDWR);
    gms_fd_close(&client->fd);
}

static void proposed(struct fake_coordinator *fake, struct fake_client *client, const struct gms_message *request)
{
    fake->seen = (struct fake_seen){.kind = request->propose.kind,
                                    .sequence = request->propose.sequence,
                                    .launch = request->propose.launch,
                                    .since = request->propose.since,
                                    .local_digest = request->propose.local_digest};
    memcpy(fake->seen.fields, request->propose.fields, sizeof fake->seen.fields);
    fake->proposals++;
    const bool is_join = request->propose.kind == GMS_OPERATION_JOIN;
    if (request->propose.incarnation != client->incarnation ||
        request->propose.sequence != (is_join ? 0 : client->next_sequence))
        fake->order_broken = true;
    if (fake->silent)
        return;
    if (fake->chatter)
        talk(fake, client);
    if (fake->hang_up_next) {
        fake->hang_up_next = false;
        drop_client(client);
        return;
    }
    if (fake->condemn_next) {
        static const char text[] = "by the test";
        const struct gms_message message = {
            .type = GMS_MESSAGE_CONDEMNED,
            .condemned = {.incarnation = client->incarnation, .epoch = 2, .text = {text, sizeof text - 1}}};
        (void)gms_channel_send(client->fd, &message, NULL);
        return;
    }
    if (!is_join)
        client->next_sequence++;
    if (fake->refuse_times > 0) {
        fake->refuse_times--;
        answer_status(client, request, fake->refuse);
        return;
    }
    switch (request->propose.kind) {
    case GMS_OPERATION_JOIN:
        join(fake, client, request);
        break;
    case GMS_OPERATION_ALLOCATE:
        allocate(fake, client, request);
        break;
    case GMS_OPERATION_PUBLISH:
        publish(fake, client, request);
        break;
    case GMS_OPERATION_ADOPT:
        adopt(fake, client, request);
        break;
    case GMS_OPERATION_RELEASE:
        release_pool(fake, client, request);
        break;
    case GMS_OPERATION_BUDGET: {
        struct gms_message reply = {.reply = {.rank = -1,
                                              .kind = GMS_OPERATION_BUDGET,
                                              .sequence = request->propose.sequence,
                                              .bytes = fake->budget}};
        answer(client, &reply, request->request_id);
        break;
    }
    case GMS_OPERATION_EXCHANGE:
        exchange(client, request);
        break;
    default:
        MUST(false);
    }
}

/* ------------------------------------------------------------------------------------------------ messages --- */

/* An engine that had a session comes back over a new connection: what is known of it moves there. */
static struct fake_client *attach_again(struct fake_coordinator *fake, struct fake_client *client,
                                        const struct gms_message *request)
{
    for (int i = 0; i < FAKE_CLIENTS; i++) {
        struct fake_client *known = &fake->clients[i];
        if (known->incarnation != request->hello.incarnation || known->fd >= 0)
            continue;
        MUST(request->hello.secret.length == sizeof known->secret &&
             memcmp(request->hello.secret.data, known->secret, sizeof known->secret) == 0);
        known->fd = client->fd;
        client->fd = -1;
        fake->attached_again++;
        return known;
    }
    MUST(false);
    return NULL;
}

static void greet(struct fake_coordinator *fake, struct fake_client *client, const struct gms_message *request)
{
    if (fake->forgotten && request->hello.incarnation != 0) {
        static const char text[] = "not a member any more";
        const struct gms_message refusal = {
            .type = GMS_MESSAGE_REPLY,
            .request_id = request->request_id,
            .reply = {.status = GMS_E_CONDEMNED, .rank = 0, .text = {text, sizeof text - 1}}};
        (void)gms_channel_send(client->fd, &refusal, NULL);
        drop_client(client);
        return;
    }
    if (request->hello.incarnation != 0)
        client = attach_again(fake, client, request);
    MUST(request->type == GMS_MESSAGE_HELLO && request->fd_count == 1);
    MUST(gms_pidfd_pid(request->fds[0]) == getpid());
    MUST(request->hello.role == GMS_CLIENT_ENGINE && request->hello.pid == (uint32_t)getpid());
    client->engine_id = request->hello.engine_id;
    struct gms_message welcome = {.type = GMS_MESSAGE_WELCOME, .request_id = request->request_id};
    welcome.welcome.world = fake->world;
    welcome.welcome.world_size = fake->world_size;
    welcome.welcome.rank = 0;
    welcome.welcome.kv_verify_full = fake->verify_full;
    welcome.welcome.operation_timeout_ms = fake->operation_timeout_ms;
    welcome.welcome.on_device = fake->on_device;
    if (fake->on_device)
        welcome.welcome.device = (struct gms_bytes){fake->device.bytes, sizeof fake->device.bytes};
    uint8_t packed[GMS_TAGS_BYTES];
    if (fake->preset != NULL)
        welcome.welcome.preset = (struct gms_bytes){fake->preset, (uint32_t)strlen(fake->preset)};
    welcome.welcome.preset_tags =
        (struct gms_bytes){packed, gms_tags_pack(fake->preset_tags, fake->preset_count, packed)};
    (void)gms_channel_send(client->fd, &welcome, NULL);
}

static void handle(struct fake_coordinator *fake, struct fake_client *client, const struct gms_message *message)
{
    if (message->type == GMS_MESSAGE_HELLO) {
        greet(fake, client, message);
    } else if (message->type == GMS_MESSAGE_PROPOSE) {
        proposed(fake, client, message);
    } else if (message->type == GMS_MESSAGE_PARKED) {
        client->parked = true;
        answer_status(client, message, GMS_OK);
    } else if (message->type == GMS_MESSAGE_MEMORY) {
        MUST(message->memory.incarnation == client->incarnation);
        MUST(gms_tags_unpack(&message->memory.tags, client->tags, &client->tag_count));
        client->awake = message->memory.awake != 0;
        client->memory_reports++;
    } else if (message->type == GMS_MESSAGE_LEAVING) {
        client->left = true;
    } else if (message->type == GMS_MESSAGE_STICKY) {
        fake->sticky_code = (uint32_t)message->sticky.code;
        answer_status(client, message, GMS_OK);
    } else if (message->type == GMS_MESSAGE_READY) {
        MUST(message->ready.endpoint.length < sizeof fake->endpoint);
        memcpy(fake->endpoint, message->ready.endpoint.data, message->ready.endpoint.length);
        fake->endpoint[message->ready.endpoint.length] = '\0';
        client->ready = true;
        const struct gms_message serving = {.type = GMS_MESSAGE_SERVING,
                                            .promote = {.incarnation = client->incarnation, .epoch = fake->epoch}};
        if (!fake->deaf_to_ready)
            (void)gms_channel_send(client->fd, &serving, NULL);
    } else if (message->type == GMS_MESSAGE_TRANSFER_WAIT) {
        client->waits_for = message->transfer.id;
        client->wait_request = message->request_id;
    } else if (message->type == GMS_MESSAGE_TRANSFER_DISPATCH || message->type == GMS_MESSAGE_TRANSFER_END) {
        fake->transfer_messages++;
        if (message->transfer.again != 0) {
            fake->again_ended_mask = message->transfer.ended_mask;
            fake->again_failed_mask = message->transfer.failed_mask;
        }
        answer_status(client, message, message->transfer.id == 666 ? GMS_E_BUSY : GMS_OK);
    } else {
        MUST(false);
    }
}

static void receive(struct fake_coordinator *fake, struct fake_client *client)
{
    static _Thread_local uint8_t buffer[GMS_WIRE_MAX_BYTES];
    while (client->fd >= 0) {
        struct gms_message message;
        const gms_status status = gms_channel_receive(client->fd, buffer, &message, NULL);
        if (status == GMS_E_AGAIN)
            return;
        if (status == GMS_E_DISCONNECTED) {
            drop_client(client);
            return;
        }
        MUST(status == GMS_OK);
        handle(fake, client, &message);
        gms_message_close_fds(&message);
    }
}

static void *run(void *context)
{
    struct fake_coordinator *fake = context;
    for (;;) {
        struct pollfd entries[FAKE_CLIENTS + 2];
        pthread_mutex_lock(&fake->lock);
        for (int i = 0; i < FAKE_CLIENTS; i++)
            entries[i] = (struct pollfd){.fd = fake->clients[i].fd, .events = POLLIN};
        entries[FAKE_CLIENTS] = (struct pollfd){.fd = fake->listener, .events = POLLIN};
        entries[FAKE_CLIENTS + 1] = (struct pollfd){.fd = fake->wake[0], .events = POLLIN};
        pthread_mutex_unlock(&fake->lock);
        (void)poll(entries, FAKE_CLIENTS + 2, -1);
        pthread_mutex_lock(&fake->lock);
        if (entries[FAKE_CLIENTS + 1].revents != 0) {
            pthread_mutex_unlock(&fake->lock);
            return NULL;
        }
        for (int i = 0; i < FAKE_CLIENTS; i++)
            if (entries[i].revents != 0 && fake->clients[i].fd == entries[i].fd)
                receive(fake, &fake->clients[i]);
        int fd = -1;
        pid_t pid;
        uid_t uid;
        if (entries[FAKE_CLIENTS].revents != 0 && gms_channel_accept(fake->listener, &fd, &pid, &uid, NULL) == GMS_OK) {
            struct fake_client *client = NULL;
            for (int i = 0; i < FAKE_CLIENTS && client == NULL; i++)
                if (fake->clients[i].fd < 0 && fake->clients[i].incarnation == 0)
                    client = &fake->clients[i];
            MUST(client != NULL);
            if (fake->away)
                gms_fd_close(&fd);
            client->fd = fd;
        }
        pthread_mutex_unlock(&fake->lock);
    }
}

/* ---------------------------------------------------------------------------------------------- life --------- */

void fake_start(struct fake_coordinator *fake)
{
    struct gms_vmm_cuda_device device;
    if (fake->on_device && !gms_uuid_is_known(&fake->device)) {
        MUST(gms_vmm_cuda_ready(&device, NULL) == GMS_OK);
        fake->device = device.uuid;
    }
    char path[GMS_RUN_PATH_BYTES];
    const pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    fake->lock = lock;
    fake->world = 1;
    MUST(gms_run_dir_path(fake->run_dir, "c", 0, path, NULL) == GMS_OK);
    MUST(gms_channel_listen(path, &fake->listener, NULL) == GMS_OK);
    MUST(pipe2(fake->wake, O_CLOEXEC) == 0);
    for (int i = 0; i < FAKE_CLIENTS; i++) {
        fake->clients[i].fd = -1;
        for (int pool = 0; pool < GMS_MAX_POOLS; pool++)
            fake->clients[i].directories[pool].fd = -1;
    }
    for (int pool = 0; pool < GMS_MAX_POOLS; pool++)
        fake->pools[pool].memory.fd = -1;
    MUST(pthread_create(&fake->thread, NULL, run, fake) == 0);
}

void fake_stop(struct fake_coordinator *fake)
{
    MUST(write(fake->wake[1], "", 1) == 1);
    pthread_join(fake->thread, NULL);
    gms_fd_close(&fake->wake[0]);
    gms_fd_close(&fake->wake[1]);
    gms_fd_close(&fake->listener);
    for (int i = 0; i < FAKE_CLIENTS; i++) {
        drop_client(&fake->clients[i]);
        for (int pool = 0; pool < GMS_MAX_POOLS; pool++)
            gms_directory_close(&fake->clients[i].directories[pool]);
    }
    for (int pool = 0; pool < GMS_MAX_POOLS; pool++)
        memory_of(fake)->release(&fake->pools[pool].memory);
}

void fake_hang_up(struct fake_coordinator *fake, uint64_t incarnation)
{
    pthread_mutex_lock(&fake->lock);
    drop_client(fake_find(fake, incarnation));
    pthread_mutex_unlock(&fake->lock);
}

void fake_send(struct fake_coordinator *fake, uint64_t incarnation, const struct gms_message *message)
{
    pthread_mutex_lock(&fake->lock);
    MUST(gms_channel_send(fake_find(fake, incarnation)->fd, message, NULL) == GMS_OK);
    pthread_mutex_unlock(&fake->lock);
}

void fake_promote(struct fake_coordinator *fake, uint64_t source, uint64_t successor, bool source_clean,
                  struct gms_classification *ret_counts)
{
    struct gms_directory *from[GMS_MAX_POOLS] = {0}, *into[GMS_MAX_POOLS] = {0};
    struct gms_directory_index *index[GMS_MAX_POOLS] = {0};
    struct gms_classification counts[GMS_MAX_POOLS] = {0};
    pthread_mutex_lock(&fake->lock);
    struct fake_client *client = fake_find(fake, successor), *dead = source != 0 ? fake_find(fake, source) : NULL;
    for (int i = 0; i < GMS_MAX_POOLS; i++) {
        from[i] = dead != NULL && dead->directories[i].base != NULL ? &dead->directories[i] : NULL;
        into[i] = client->directories[i].base != NULL ? &client->directories[i] : NULL;
    }
    MUST(gms_directory_classify(index, from, into, source_clean, counts, NULL) == GMS_OK);
    memset(ret_counts, 0, sizeof *ret_counts);
    for (int i = 0; i < GMS_MAX_POOLS; i++) {
        ret_counts->adoptable += counts[i].adoptable;
        ret_counts->free += counts[i].free;
        ret_counts->quarantined += counts[i].quarantined;
        ret_counts->damaged += counts[i].damaged;
    }
    fake->epoch++;
    const struct gms_message promote = {.type = GMS_MESSAGE_PROMOTE,
                                        .promote = {.incarnation = successor, .epoch = fake->epoch, .source = source}};
    MUST(gms_channel_send(client->fd, &promote, NULL) == GMS_OK);
    pthread_mutex_unlock(&fake->lock);
}

void fake_end_transfer(struct fake_coordinator *fake, uint64_t incarnation, uint64_t id, uint32_t finished,
                       uint32_t failed, int32_t first_failed)
{
    uint8_t bitmap[GMS_MAX_RANKS / 8] = {0};
    pthread_mutex_lock(&fake->lock);
    struct fake_client *client = fake_find(fake, incarnation);
    struct gms_message result = {.type = GMS_MESSAGE_TRANSFER_RESULT,
                                 .request_id = client->waits_for == id ? client->wait_request : 0};
    if (first_failed >= 0)
        bitmap[first_failed / 8] = (uint8_t)(1 << (first_failed % 8));
    result.transfer_result.incarnation = incarnation;
    result.transfer_result.id = id;
    result.transfer_result.finished = finished;
    result.transfer_result.failed = failed;
    result.transfer_result.first_failed = first_failed;
    result.transfer_result.failed_bitmap = (struct gms_bytes){bitmap, sizeof bitmap};
    MUST(gms_channel_send(client->fd, &result, NULL) == GMS_OK);
    client->waits_for = 0;
    pthread_mutex_unlock(&fake->lock);
}

void fake_forget_clients(struct fake_coordinator *fake)
{
    pthread_mutex_lock(&fake->lock);
    for (int i = 0; i < FAKE_CLIENTS; i++) {
        struct fake_client *client = &fake->clients[i];
        if (client->fd >= 0)
            continue;
        for (int pool = 0; pool < GMS_MAX_POOLS; pool++)
            gms_directory_close(&client->directories[pool]);
        client->incarnation = 0;
        client->parked = client->left = client->ready = false;
    }
    pthread_mutex_unlock(&fake->lock);
}

void fake_await_gone(struct fake_coordinator *fake, uint64_t incarnation)
{
    const uint64_t deadline_ns = gms_clock_ns() + UNIT_PATIENCE_MS * GMS_NS_PER_MS;
    for (;;) {
        pthread_mutex_lock(&fake->lock);
        const struct fake_client *client = fake_find(fake, incarnation);
        const bool gone = client == NULL || client->fd < 0;
        pthread_mutex_unlock(&fake->lock);
        if (gone)
            return;
        MUST(gms_clock_ns() < deadline_ns);
        (void)poll(NULL, 0, 1);
    }
}
