/* SPDX-License-Identifier: Apache-2.0 */
#include "unit_support.h"

#include "wire/message.h"

static unsigned char buffer[GMS_WIRE_MAX_BYTES + 64];

/*
 * What message.h declares, told again by its structs and not by the codec's table: where the byte fields lie and how
 * much is padding. A member the table forgets would be lost silently, and this is what finds it.
 */
struct shape {
    enum gms_message_type type;
    size_t bytes, padding;
    size_t byte_fields[4];
    unsigned byte_field_count;
    uint32_t fds;
};

#define SIZE(member)  sizeof(((struct gms_message *)0)->member)
#define PLACE(member) offsetof(struct gms_message, member)

static const struct shape shapes[] = {
    {GMS_MESSAGE_HELLO, SIZE(hello), 0, {PLACE(hello.launch), PLACE(hello.version), PLACE(hello.secret)}, 3, 1},
    {GMS_MESSAGE_WELCOME,
     SIZE(welcome),
     4,
     {PLACE(welcome.device), PLACE(welcome.version), PLACE(welcome.preset), PLACE(welcome.preset_tags)},
     4,
     0},
    {GMS_MESSAGE_REPLY, SIZE(reply), 0, {PLACE(reply.text), PLACE(reply.payload), PLACE(reply.secret)}, 3, 2},
    {GMS_MESSAGE_ENVIRONMENT, SIZE(plain), 0, {0}, 0, 0},
    {GMS_MESSAGE_ENVIRONMENT_REPLY, SIZE(environment_reply), 4, {PLACE(environment_reply.variables)}, 1, 0},
    {GMS_MESSAGE_CONTAINER, SIZE(container), 0, {0}, 0, 4},
    {GMS_MESSAGE_PROPOSE, SIZE(propose), 0, {PLACE(propose.pool), PLACE(propose.payload)}, 2, 0},
    {GMS_MESSAGE_PARKED, SIZE(plain), 0, {0}, 0, 0},
    {GMS_MESSAGE_READY, SIZE(ready), 0, {PLACE(ready.endpoint)}, 1, 0},
    {GMS_MESSAGE_LEAVING, SIZE(plain), 0, {0}, 0, 0},
    {GMS_MESSAGE_STICKY, SIZE(sticky), 4, {PLACE(sticky.text)}, 1, 0},
    {GMS_MESSAGE_PROMOTE, SIZE(promote), 0, {0}, 0, 0},
    {GMS_MESSAGE_SERVING, SIZE(promote), 0, {0}, 0, 0},
    {GMS_MESSAGE_CONDEMNED, SIZE(condemned), 0, {PLACE(condemned.text)}, 1, 0},
    {GMS_MESSAGE_TRANSFER_DISPATCH, SIZE(transfer), 4, {0}, 0, 0},
    {GMS_MESSAGE_TRANSFER_END, SIZE(transfer), 4, {0}, 0, 0},
    {GMS_MESSAGE_TRANSFER_WAIT, SIZE(transfer), 4, {0}, 0, 0},
    {GMS_MESSAGE_TRANSFER_RESULT,
     SIZE(transfer_result),
     0,
     {PLACE(transfer_result.failed_bitmap), PLACE(transfer_result.text)},
     2,
     0},
    {GMS_MESSAGE_TRANSFER_STALLED,
     SIZE(transfer_result),
     0,
     {PLACE(transfer_result.failed_bitmap), PLACE(transfer_result.text)},
     2,
     0},
    {GMS_MESSAGE_STATUS, SIZE(plain), 0, {0}, 0, 0},
    {GMS_MESSAGE_STATUS_REPLY, SIZE(status_reply), 0, {PLACE(status_reply.json)}, 1, 0},
    {GMS_MESSAGE_TAKEOVER, SIZE(takeover), 0, {0}, 0, 0},
    {GMS_MESSAGE_SHUTDOWN, SIZE(plain), 0, {0}, 0, 0},
    {GMS_MESSAGE_RECLAIMED, SIZE(reclaimed), 4, {PLACE(reclaimed.bitmap)}, 1, 0},
    {GMS_MESSAGE_MEMORY, SIZE(memory), 4, {PLACE(memory.tags)}, 1, 0},
    {GMS_MESSAGE_PARK, SIZE(takeover), 0, {0}, 0, 0},
    {GMS_MESSAGE_WAKE, SIZE(takeover), 0, {0}, 0, 0},
    {GMS_MESSAGE_ASKED, SIZE(plain), 0, {0}, 0, 0},
    {GMS_MESSAGE_WATCH, SIZE(plain), 0, {0}, 0, 0},
    {GMS_MESSAGE_SERVES, SIZE(serves), 4, {PLACE(serves.endpoint)}, 1, 0},
    {GMS_MESSAGE_COPY, SIZE(copy), 4, {PLACE(copy.name), PLACE(copy.meta)}, 2, 1},
    {GMS_MESSAGE_KEEPER_REFILL, SIZE(keeper), 0, {PLACE(keeper.name), PLACE(keeper.meta)}, 2, 1},
    {GMS_MESSAGE_KEEPER_WORLD, SIZE(keeper), 0, {PLACE(keeper.name), PLACE(keeper.meta)}, 2, 1},
    {GMS_MESSAGE_KEEPER_PUT, SIZE(keeper), 0, {PLACE(keeper.name), PLACE(keeper.meta)}, 2, 1},
    {GMS_MESSAGE_KEEPER_GET, SIZE(keeper), 0, {PLACE(keeper.name), PLACE(keeper.meta)}, 2, 0},
    {GMS_MESSAGE_KEEPER_LIST, SIZE(keeper), 0, {PLACE(keeper.name), PLACE(keeper.meta)}, 2, 0},
    {GMS_MESSAGE_KEEPER_DROP, SIZE(keeper), 0, {PLACE(keeper.name), PLACE(keeper.meta)}, 2, 0},
    {GMS_MESSAGE_KEEPER_MIRROR, SIZE(keeper), 0, {PLACE(keeper.name), PLACE(keeper.meta)}, 2, 0},
    {GMS_MESSAGE_KEEPER_REPLY,
     SIZE(keeper_reply),
     4,
     {PLACE(keeper_reply.names), PLACE(keeper_reply.meta), PLACE(keeper_reply.text)},
     3,
     1},
};
enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

static struct gms_bytes *byte_field(struct gms_message *message, const struct shape *shape, unsigned index)
{
    return (struct gms_bytes *)((char *)message + shape->byte_fields[index]);
}

static bool in_byte_field(const struct shape *shape, size_t place)
{
    for (unsigned i = 0; i < shape->byte_field_count; i++) {
        if (place >= shape->byte_fields[i] && place < shape->byte_fields[i] + sizeof(struct gms_bytes)) {
            return true;
        }
    }
    return false;
}

/* Every member different from zero and from its neighbours; byte fields of different lengths, one of them empty. */
static void fill(struct gms_message *message, const struct shape *shape)
{
    static const char text[] = "some\0bytes \xe2\x82\xac and more";

    memset(message, 0, sizeof(*message));
    message->type = shape->type;
    message->request_id = 0xa1b2c3d4;
    for (size_t i = 0; i < shape->bytes; i++) {
        ((unsigned char *)message)[PLACE(hello) + i] = (unsigned char)(i * 7 + 1);
    }
    for (unsigned i = 0; i < shape->byte_field_count; i++) {
        *byte_field(message, shape, i) = (struct gms_bytes){.data = text + i, .length = i == 1 ? 0 : 20 - i};
    }
}

static void every_member_travels(void **state)
{
    struct gms_error error;

    (void)state;
    for (size_t s = 0; s < SHAPES; s++) {
        const struct shape *shape = &shapes[s];
        struct gms_message message;
        struct gms_message back;
        static unsigned char other[GMS_WIRE_MAX_BYTES];
        size_t bytes = 0;
        size_t other_bytes = 0;
        size_t silent = 0;

        fill(&message, shape);
        assert_ok(gms_message_encode(&message, buffer, sizeof(buffer), &bytes, &error));
        assert_ok(gms_message_decode(buffer, bytes, &back, &error));
        assert_int_equal(back.type, message.type);
        assert_int_equal(back.request_id, 0xa1b2c3d4);
        assert_int_equal(back.fd_count, 0);
        for (unsigned i = 0; i < shape->byte_field_count; i++) {
            const struct gms_bytes *sent = byte_field(&message, shape, i);
            const struct gms_bytes *got = byte_field(&back, shape, i);

            assert_int_equal(got->length, sent->length);
            assert_memory_equal(got->data, sent->data, sent->length);
            assert_true((const unsigned char *)got->data >= buffer &&
                        (const unsigned char *)got->data + got->length <= buffer + bytes);
        }
        for (size_t i = 0; i < shape->bytes; i++) {
            const size_t place = PLACE(hello) + i;
            unsigned char *byte = (unsigned char *)&message + place;

            if (in_byte_field(shape, place)) {
                continue;
            }
            *byte ^= 0xff;
            assert_ok(gms_message_encode(&message, other, sizeof(other), &other_bytes, &error));
            *byte ^= 0xff;
            assert_int_equal(other_bytes, bytes);
            if (memcmp(other, buffer, bytes) == 0) {
                silent++;
            } else {
                assert_int_equal(((unsigned char *)&back)[place], *byte);
            }
        }
        if (silent != shape->padding) {
            print_error("%s: %zu bytes of its struct do not travel\n", gms_message_name(shape->type), silent);
        }
        assert_int_equal(silent, shape->padding);
    }
}

static void names_and_descriptor_limits(void **state)
{
    (void)state;
    for (size_t s = 0; s < SHAPES; s++) {
        assert_string_not_equal(gms_message_name(shapes[s].type), "UNKNOWN");
        assert_int_equal(gms_message_fd_limit(shapes[s].type), shapes[s].fds);
        for (size_t other = 0; other < s; other++) {
            assert_string_not_equal(gms_message_name(shapes[s].type), gms_message_name(shapes[other].type));
        }
    }
    assert_string_equal(gms_message_name(GMS_MESSAGE_TRANSFER_WAIT), "TRANSFER_WAIT");
    assert_string_equal(gms_message_name((enum gms_message_type)0), "UNKNOWN");
    assert_string_equal(gms_message_name((enum gms_message_type)39), "UNKNOWN");
    assert_string_equal(gms_message_name((enum gms_message_type)4000), "UNKNOWN");
    assert_int_equal(gms_message_fd_limit((enum gms_message_type)4000), 0);
}

/* The bytes themselves, so that a change of the format cannot pass for the same version. */
static void golden_bytes(void **state)
{
    static const unsigned char hello[] = {
        'G',  'M',  'S', 'W', 4,   0,   1,   0,   44,
        0,    0,    0,   9,   0,   0,   0,             /* header: version 4, type 1, body 44, id 9 */
        1,    0,    0,   0,                            /* role */
        0x67, 0x12, 0,   0,                            /* pid 4711 */
        2,    0,    0,   0,                            /* engine */
        3,    0,    0,   0,                            /* rank */
        1,    0,    0,   0,   'L',                     /* launch */
        5,    0,    0,   0,   '0', '.', '1', '.', '0', /* version */
        7,    0,    0,   0,   0,   0,   0,   0,        /* incarnation */
        2,    0,    0,   0,   'S', 'T',                /* secret */
    };
    struct gms_error error;
    struct gms_message message = {.type = GMS_MESSAGE_HELLO,
                                  .request_id = 9,
                                  .hello = {.role = GMS_CLIENT_ENGINE,
                                            .pid = 4711,
                                            .engine_id = 2,
                                            .rank = 3,
                                            .launch = {"L", 1},
                                            .version = {"0.1.0", 5},
                                            .incarnation = 7,
                                            .secret = {"ST", 2}}};
    size_t bytes = 0;

    (void)state;
    assert_ok(gms_message_encode(&message, buffer, sizeof(buffer), &bytes, &error));
    assert_int_equal(bytes, sizeof(hello));
    assert_memory_equal(buffer, hello, sizeof(hello));
}

static void every_prefix_and_every_suffix_is_refused(void **state)
{
    struct gms_error error;

    (void)state;
    for (size_t s = 0; s < SHAPES; s++) {
        struct gms_message message;
        struct gms_message back;
        size_t bytes = 0;

        fill(&message, &shapes[s]);
        assert_ok(gms_message_encode(&message, buffer, sizeof(buffer), &bytes, &error));
        for (size_t cut = 0; cut < bytes; cut++) {
            unsigned char *exact = malloc(cut ? cut : 1);

            memcpy(exact, buffer, cut);
            assert_status(gms_message_decode(exact, cut, &back, &error), GMS_E_PROTOCOL);
            /* With a header that agrees, so that the fields themselves are found too short. */
            if (cut >= GMS_WIRE_HEADER_BYTES) {
                const uint32_t body = (uint32_t)(cut - GMS_WIRE_HEADER_BYTES);
                memcpy(exact + 8, &body, sizeof(body));
                assert_status(gms_message_decode(exact, cut, &back, &error), GMS_E_PROTOCOL);
            }
            free(exact);
        }
        for (size_t more = 1; more < 20; more++) {
            const uint32_t body = (uint32_t)(bytes + more - GMS_WIRE_HEADER_BYTES);

            memset(buffer + bytes, 0, more);
            assert_status(gms_message_decode(buffer, bytes + more, &back, &error), GMS_E_PROTOCOL);
            memcpy(buffer + 8, &body, sizeof(body));
            assert_status(gms_message_decode(buffer, bytes + more, &back, &error), GMS_E_PROTOCOL);
        }
    }
}

static void wrong_lengths(void **state)
{
    static const uint32_t lengths[] = {0,
                                       1,
                                       GMS_WIRE_MAX_BYTES - GMS_WIRE_HEADER_BYTES,
                                       GMS_WIRE_MAX_BYTES - GMS_WIRE_HEADER_BYTES + 1,
                                       GMS_WIRE_MAX_BYTES,
                                       GMS_WIRE_MAX_BYTES + 1,
                                       0x7fffffff,
                                       0x80000000,
                                       0xfffffffb,
                                       0xfffffffc,
                                       0xffffffff};
    struct gms_error error;
    struct gms_message message = {.type = GMS_MESSAGE_READY, .ready = {.incarnation = 5, .endpoint = {"unix:/x", 7}}};
    struct gms_message back;
    size_t bytes = 0;

    (void)state;
    assert_ok(gms_message_encode(&message, buffer, sizeof(buffer), &bytes, &error));
    unsigned char *exact = malloc(bytes);
    for (size_t place = 0; place < 2; place++) {
        const size_t at = place == 0 ? 8 : GMS_WIRE_HEADER_BYTES + 8; /* the header's, the field's */

        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            memcpy(exact, buffer, bytes);
            memcpy(exact + at, &lengths[i], sizeof(lengths[i]));
            assert_status(gms_message_decode(exact, bytes, &back, &error), GMS_E_PROTOCOL);
            assert_text_has("READY");
        }
    }
    free(exact);
}

static void header_errors_are_told_apart(void **state)
{
    struct gms_error error;
    struct gms_message message = {.type = GMS_MESSAGE_STATUS};
    struct gms_message back;
    size_t bytes = 0;

    (void)state;
    assert_ok(gms_message_encode(&message, buffer, sizeof(buffer), &bytes, &error));
    buffer[4] = 7;
    assert_status(gms_message_decode(buffer, bytes, &back, &error), GMS_E_VERSION);
    assert_text_has("version 7");
    assert_text_has("program 4");
    buffer[4] = GMS_WIRE_VERSION;
    buffer[0] = 'X';
    assert_status(gms_message_decode(buffer, bytes, &back, &error), GMS_E_PROTOCOL);
    buffer[0] = 'G';
    for (unsigned type = 0; type <= UINT16_MAX; type++) {
        bool known = false;

        for (size_t s = 0; s < SHAPES; s++) {
            known |= shapes[s].type == (enum gms_message_type)type;
        }
        buffer[6] = (unsigned char)type;
        buffer[7] = (unsigned char)(type >> 8);
        if (!known) {
            assert_int_equal(gms_message_decode(buffer, bytes, &back, &error), GMS_E_PROTOCOL);
        }
    }
    assert_text_has("65535");
}

static void limits_of_encoding(void **state)
{
    static char blob[GMS_WIRE_MAX_BYTES];
    const uint32_t room = GMS_WIRE_MAX_BYTES - GMS_WIRE_HEADER_BYTES - 4;
    struct gms_error error;
    struct gms_message message = {.type = GMS_MESSAGE_STATUS_REPLY, .status_reply = {.json = {blob, room}}};
    struct gms_message back;
    size_t bytes = 0;

    (void)state;
    assert_ok(gms_message_encode(&message, buffer, sizeof(buffer), &bytes, &error));
    assert_int_equal(bytes, GMS_WIRE_MAX_BYTES);
    assert_ok(gms_message_decode(buffer, bytes, &back, &error));
    assert_int_equal(back.status_reply.json.length, room);

    bytes = 4711;
    memset(buffer, 0x5a, sizeof(buffer));
    message.status_reply.json.length = room + 1;
    assert_status(gms_message_encode(&message, buffer, sizeof(buffer), &bytes, &error), GMS_E_INVALID);
    assert_text_has("163841 bytes");
    assert_text_has("163840");
    message.status_reply.json.length = UINT32_MAX;
    assert_status(gms_message_encode(&message, buffer, sizeof(buffer), &bytes, &error), GMS_E_INVALID);
    message.status_reply.json.length = 10;
    assert_status(gms_message_encode(&message, buffer, 29, &bytes, &error), GMS_E_INVALID);
    assert_int_equal(bytes, 4711);
    assert_int_equal(buffer[0], 0x5a);
    assert_ok(gms_message_encode(&message, buffer, 30, &bytes, &error));

    message.type = GMS_MESSAGE_STATUS;
    message.fd_count = 1;
    assert_status(gms_message_encode(&message, buffer, sizeof(buffer), &bytes, &error), GMS_E_INVALID);
    message.type = (enum gms_message_type)39;
    message.fd_count = 0;
    assert_status(gms_message_encode(&message, buffer, sizeof(buffer), &bytes, &error), GMS_E_INVALID);
    /* A sum that wraps in 32 bits must not look small. */
    message = (struct gms_message){.type = GMS_MESSAGE_KEEPER_PUT};
    message.keeper.name = (struct gms_bytes){blob, 0xffffffff};
    message.keeper.meta = (struct gms_bytes){blob, 0xffffff00};
    assert_status(gms_message_encode(&message, buffer, sizeof(buffer), &bytes, &error), GMS_E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_member_travels), cmocka_unit_test(names_and_descriptor_limits),
        cmocka_unit_test(golden_bytes),         cmocka_unit_test(every_prefix_and_every_suffix_is_refused),
        cmocka_unit_test(wrong_lengths),        cmocka_unit_test(header_errors_are_told_apart),
        cmocka_unit_test(limits_of_encoding),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
