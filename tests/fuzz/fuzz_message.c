/* SPDX-License-Identifier: Apache-2.0
 *
 * The decoder: any bytes give OK, PROTOCOL or VERSION; what decodes encodes to the same bytes; byte fields lie inside
 * the input; nothing is set after a failure.
 */
#include "fuzz.h"

#include <string.h>

#include "wire/message.h"

size_t fuzz_seed(size_t index, uint8_t *ret_data, size_t capacity)
{
    static const char text[] = "NAME=VALUE\0OTHER=two words";
    struct gms_message message;
    size_t bytes = 0;

    /* Zeros are a valid body for fields without bytes, and bytes fields are filled by hand for some types. */
    for (unsigned type = 0; type <= 64; type++) {
        memset(&message, 0, sizeof(message));
        message.type = (enum gms_message_type)type;
        message.request_id = 0x01020304u + type;
        if (gms_message_encode(&message, ret_data, capacity, &bytes, NULL) != GMS_OK) {
            continue;
        }
        if (index-- == 0) {
            return bytes;
        }
    }
    memset(&message, 0, sizeof(message));
    const struct gms_bytes some = {.data = text, .length = sizeof(text)};
    switch (index) {
    case 0:
        message.type = GMS_MESSAGE_HELLO;
        message.hello.launch = some;
        message.hello.version = some;
        break;
    case 1:
        message.type = GMS_MESSAGE_PROPOSE;
        message.propose.fields[5] = UINT64_MAX;
        message.propose.pool = some;
        message.propose.payload = some;
        break;
    case 2:
        message.type = GMS_MESSAGE_REPLY;
        message.reply.status = GMS_E_DIVERGED;
        message.reply.rank = -1;
        message.reply.text = some;
        message.reply.payload = some;
        break;
    case 3:
        message.type = GMS_MESSAGE_TRANSFER_RESULT;
        message.transfer_result.failed_bitmap = some;
        message.transfer_result.text = some;
        break;
    case 4:
        message.type = GMS_MESSAGE_KEEPER_PUT;
        message.keeper.name = some;
        message.keeper.meta = some;
        break;
    case 5:
        message.type = GMS_MESSAGE_KEEPER_REPLY;
        message.keeper_reply.names = some;
        message.keeper_reply.text = some;
        break;
    default:
        return 0;
    }
    return gms_message_encode(&message, ret_data, capacity, &bytes, NULL) == GMS_OK ? bytes : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static uint8_t again[GMS_WIRE_MAX_BYTES];
    struct gms_message message;
    struct gms_message untouched;
    struct gms_error error = {.status = GMS_OK};
    size_t again_bytes = 0;

    memset(&message, 0x5a, sizeof(message));
    memset(&untouched, 0x5a, sizeof(untouched));
    const gms_status status = gms_message_decode(data, bytes, &message, &error);
    if (status != GMS_OK) {
        FUZZ_CHECK(status == GMS_E_PROTOCOL || status == GMS_E_VERSION);
        FUZZ_CHECK(error.status == status && error.text[0] != '\0');
        FUZZ_CHECK(memcmp(&message, &untouched, sizeof(message)) == 0);
        return 0;
    }
    FUZZ_CHECK(message.fd_count == 0);
    /* Encoding reads every byte field, so that a sanitizer sees one that lies outside the input. */
    FUZZ_CHECK(gms_message_encode(&message, again, sizeof(again), &again_bytes, NULL) == GMS_OK);
    FUZZ_CHECK(again_bytes == bytes && memcmp(again, data, bytes) == 0);
    return 0;
}
