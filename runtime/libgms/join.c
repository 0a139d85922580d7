/* SPDX-License-Identifier: Apache-2.0
 *
 * Joining: what must be equal on all ranks goes as one digest a field, so that the ranks can name the field that
 * differs.
 */
#include "libgms/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "core/ballot.h"

extern char **environ;

/* ----------------------------------------------------------------------------------------------- digests ----- */

struct digest {
    XXH3_state_t *state;
};

/* Length first: ("ab", "c") and ("a", "bc") are different identities. */
static void digest_text(struct digest *digest, const char *text)
{
    const uint64_t length = text != NULL ? strlen(text) : UINT64_MAX;
    XXH3_64bits_update(digest->state, &length, sizeof length);
    if (text != NULL)
        XXH3_64bits_update(digest->state, text, strlen(text));
}

static void digest_number(struct digest *digest, uint64_t number)
{
    XXH3_64bits_update(digest->state, &number, sizeof number);
}

static void digest_readability(struct digest *digest, const struct gms_identity *identity)
{
    digest_text(digest, identity->model);
    digest_text(digest, identity->dtype);
    digest_text(digest, identity->layout);
    digest_text(digest, identity->hash_algorithm);
    digest_text(digest, identity->engine_name);
    digest_number(digest, identity->block_tokens);
    digest_number(digest, identity->world_size);
}

/* What the coordinator sets for every engine rank of this start. A name that is not set is not in the list, so unset
 * and empty differ. */
static bool agreed_variable(const char *assignment)
{
    static const char *const exact[] = {"ENGINE_ID=", "FAILOVER_LOCK_PATH="};
    for (size_t i = 0; i < sizeof exact / sizeof exact[0]; i++)
        if (strncmp(assignment, exact[i], strlen(exact[i])) == 0)
            return true;
    return strncmp(assignment, "GMS_", 4) == 0 && strncmp(assignment, "GMS_RANK=", 9) != 0;
}

static int compare_text(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static gms_status environment_digest(struct digest *digest, uint64_t *ret_digest, struct gms_error *ret_error)
{
    size_t count = 0;
    for (char **variable = environ; variable != NULL && *variable != NULL; variable++)
        count += agreed_variable(*variable);
    const char **list = malloc((count + 1) * sizeof *list);
    if (list == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a list of %zu variables", count);
    size_t filled = 0;
    for (char **variable = environ; variable != NULL && *variable != NULL && filled < count; variable++)
        if (agreed_variable(*variable))
            list[filled++] = *variable;
    qsort(list, filled, sizeof *list, compare_text);
    XXH3_64bits_reset(digest->state);
    for (size_t i = 0; i < filled; i++)
        XXH3_64bits_update(digest->state, list[i], strlen(list[i]) + 1);
    *ret_digest = XXH3_64bits_digest(digest->state);
    free(list);
    return GMS_OK;
}

static gms_status fill_fields(struct gms_session *session, const struct gms_identity *identity,
                              struct gms_message *proposal, struct gms_error *ret_error)
{
    struct digest digest = {.state = XXH3_createState()};
    if (digest.state == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a digest");
    uint64_t *fields = proposal->propose.fields;
    XXH3_64bits_reset(digest.state);
    digest_readability(&digest, identity);
    fields[0] = XXH3_64bits_digest(digest.state);
    digest_text(&digest, identity->engine_version);
    digest_number(&digest, identity->hash_seed);
    digest_number(&digest, session->rank);
    session->identity_digest = XXH3_64bits_digest(digest.state);
    proposal->propose.local_digest = session->identity_digest;

    gms_status status = environment_digest(&digest, &fields[1], ret_error);
    fields[2] = GMS_WIRE_VERSION;
    fields[3] = identity->world_size;
    fields[4] = identity->hash_seed;
    XXH3_64bits_reset(digest.state);
    digest_text(&digest, identity->engine_name);
    digest_text(&digest, identity->engine_version);
    fields[5] = XXH3_64bits_digest(digest.state);
    XXH3_freeState(digest.state);
    return status;
}

/* -------------------------------------------------------------------------------------------------- join ----- */

static gms_status check_identity(const struct gms_identity *identity, struct gms_error *ret_error)
{
    const struct {
        const char *name, *value;
    } texts[] = {{"model", identity->model},
                 {"dtype", identity->dtype},
                 {"layout", identity->layout},
                 {"hash_algorithm", identity->hash_algorithm},
                 {"engine_name", identity->engine_name},
                 {"engine_version", identity->engine_version}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (texts[i].value == NULL || texts[i].value[0] == '\0' || strlen(texts[i].value) > 255)
            return gms_fail(ret_error, GMS_E_INVALID, "identity: %s must be a text of 1 to 255 bytes", texts[i].name);
    if (identity->block_tokens == 0 || identity->world_size == 0)
        return gms_fail(ret_error, GMS_E_INVALID,
                        "identity: block_tokens is %" PRIu32 ", world_size is %" PRIu32 "; both must be at least 1",
                        identity->block_tokens, identity->world_size);
    return GMS_OK;
}

gms_status gms_join(gms_session *session, const struct gms_identity *identity, struct gms_membership *ret_membership,
                    struct gms_error *ret_error)
{
    gms_status status = gms_session_ready(session, false, gms_session_deadline(session), ret_error);
    if (status == GMS_OK)
        status = check_identity(identity, ret_error);
    if (status == GMS_OK && session->incarnation != 0)
        status = gms_fail(ret_error, GMS_E_EXISTS, "this session has joined already, as incarnation %" PRIu64,
                          session->incarnation);
    if (status != GMS_OK)
        return status;
    char words[2048];
    snprintf(words, sizeof words,
             "model=%s dtype=%s layout=%s hash_algorithm=%s engine=%s version=%s hash_seed=%" PRIu64
             " block_tokens=%" PRIu32 " world_size=%" PRIu32,
             identity->model, identity->dtype, identity->layout, identity->hash_algorithm, identity->engine_name,
             identity->engine_version, identity->hash_seed, identity->block_tokens, identity->world_size);
    struct gms_message proposal = {.propose = {.kind = GMS_OPERATION_JOIN}};
    proposal.propose.payload = (struct gms_bytes){words, (uint32_t)strlen(words)};
    status = fill_fields(session, identity, &proposal, ret_error);
    if (status != GMS_OK)
        return status;
    struct gms_message reply;
    status = gms_session_propose(session, &proposal, &reply, ret_error);
    if (status != GMS_OK)
        return status;
    gms_message_close_fds(&reply);
    if (reply.reply.incarnation == 0)
        return gms_fail(ret_error, GMS_E_PROTOCOL, "coordinator rank %" PRIu32 " admitted this engine without a number",
                        session->rank);
    session->incarnation = reply.reply.incarnation;
    session->has_secret = reply.reply.secret.length == sizeof session->secret;
    if (session->has_secret)
        memcpy(session->secret, reply.reply.secret.data, sizeof session->secret);
    /* Ranks that differ were refused by the agreement. All equal and all wrong is seen only here, by each alike. */
    if (identity->world_size != session->world_size)
        return gms_fail(ret_error, GMS_E_MISMATCH,
                        "the engine runs on %" PRIu32 " ranks, the deployment has %" PRIu32 ": start it with as many",
                        identity->world_size, session->world_size);
    *ret_membership = (struct gms_membership){.world = session->world,
                                              .incarnation = session->incarnation,
                                              .epoch = reply.reply.epoch,
                                              .rank = session->rank,
                                              .world_size = session->world_size,
                                              .engine_id = session->engine_id,
                                              .kv_verify_full = session->kv_verify_full};
    return GMS_OK;
}
