/* SPDX-License-Identifier: Apache-2.0
 *
 * gms_exchange: what rank 0 gives, on every rank.
 */
#include "libgms/session.h"

#include <inttypes.h>
#include <string.h>

#include <xxhash.h>

#include "core/ballot.h"

_Static_assert((int)GMS_EXCHANGE_BYTES == (int)GMS_BALLOT_EXCHANGE_BYTES, "what is promised is what a ballot carries");

gms_status gms_exchange(gms_session *session, const char *name, uint64_t value, const void *data, uint32_t bytes,
                        void *ret_data, uint32_t *ret_bytes, struct gms_error *ret_error)
{
    gms_status status = gms_session_ready(session, true, gms_session_deadline(session), ret_error);
    if (status != GMS_OK)
        return status;
    const size_t length = name != NULL ? strnlen(name, GMS_NAME_BYTES) : 0;
    if (length == 0 || length == GMS_NAME_BYTES)
        return gms_fail(ret_error, GMS_E_INVALID, "an exchange has a name of 1 to %d bytes", GMS_NAME_BYTES - 1);
    if (session->rank == 0 && (bytes > GMS_EXCHANGE_BYTES || (bytes > 0 && data == NULL)))
        return gms_fail(ret_error, GMS_E_INVALID, "exchange %s: %" PRIu32 " bytes%s, the limit is %d", name, bytes,
                        data == NULL ? " at no address" : "", GMS_EXCHANGE_BYTES);
    struct gms_message proposal = {0}, reply;
    proposal.propose.kind = GMS_OPERATION_EXCHANGE;
    proposal.propose.pool = (struct gms_bytes){name, (uint32_t)length};
    proposal.propose.fields[0] = XXH3_64bits(name, length);
    proposal.propose.fields[1] = value;
    if (session->rank == 0)
        proposal.propose.payload = (struct gms_bytes){data, bytes};
    status = gms_session_propose(session, &proposal, &reply, ret_error);
    if (status != GMS_OK)
        return status;
    gms_message_close_fds(&reply);
    if (reply.reply.payload.length > GMS_EXCHANGE_BYTES)
        return gms_fail(ret_error, GMS_E_PROTOCOL,
                        "exchange %s: coordinator rank %" PRIu32 " answered with %" PRIu32 " bytes", name,
                        session->rank, reply.reply.payload.length);
    if (reply.reply.payload.length > 0)
        memcpy(ret_data, reply.reply.payload.data, reply.reply.payload.length);
    *ret_bytes = reply.reply.payload.length;
    return GMS_OK;
}
