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
#include <sys/resource.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/fd.h"
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

/* ------------------------------------------------------------------------------------------- environment ----- */

/* Room for the words about the identity and the rest of the message. */
enum { VARIABLES_BYTES = GMS_WIRE_MAX_BYTES - 8 * 1024 };

/* Is the name one of those in `list`, separated by spaces? NULL: an empty list. */
static bool in_list(const char *list, const char *name, size_t bytes)
{
    for (const char *at = list; at != NULL && *at != '\0'; at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        if (length == bytes && memcmp(at, name, bytes) == 0)
            return true;
        at += length;
    }
    return false;
}

/* What must be equal on all ranks of this start: GMS_ variables, and those that the coordinators handed out. A name
 * that is not set is not in the list, so unset and empty differ. */
static bool agreed_variable(const char *assignment)
{
    static const char *const exact[] = {"ENGINE_ID", "FAILOVER_LOCK_PATH"};
    const size_t bytes = strcspn(assignment, "=");
    if (assignment[bytes] != '=' || (bytes == strlen("GMS_RANK") && memcmp(assignment, "GMS_RANK", bytes) == 0) ||
        in_list(getenv("GMS_RANK_NAMES"), assignment, bytes))
        return false;
    for (size_t i = 0; i < sizeof exact / sizeof exact[0]; i++)
        if (strlen(exact[i]) == bytes && memcmp(assignment, exact[i], bytes) == 0)
            return true;
    return strncmp(assignment, "GMS_", 4) == 0 || in_list(getenv("GMS_AGREED_NAMES"), assignment, bytes);
}

static int compare_text(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Like variables: what is no variable, and must be equal all the same. */
static void describe_place(const struct gms_session *session, char ret_limit[64], char ret_file[128])
{
    struct rlimit limit = {0};
    char file[80];
    const char *path = getenv("FAILOVER_LOCK_PATH"), *local = getenv("LOCAL_WORLD_SIZE");
    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur == RLIM_INFINITY)
        snprintf(ret_limit, 64, "(ulimit -l)=unlimited");
    else
        snprintf(ret_limit, 64, "(ulimit -l)=%" PRIu64 " KiB", (uint64_t)limit.rlim_cur / 1024);
    ret_file[0] = '\0';
    /* One name may lead to two files (mounts). Numbers of files mean something only within a host. */
    if (path == NULL || local == NULL || (uint32_t)strtoul(local, NULL, 10) != session->world_size)
        return;
    gms_file_describe(path, file, sizeof file);
    snprintf(ret_file, 128, "(file of FAILOVER_LOCK_PATH)=%s", file);
}

/* How this engine parks, as lines of the same kind: where ranks differ the refusal names tag and both policies. */
enum { TAG_LINE_BYTES = GMS_NAME_BYTES + 32 };
static uint32_t describe_tags(struct gms_session *session, char (*ret_lines)[TAG_LINE_BYTES])
{
    gms_tags_want(session);
    snprintf(ret_lines[0], TAG_LINE_BYTES, "(parking preset)=%s", gms_parking_preset(session));
    for (uint32_t i = 0; i < session->tag_count; i++)
        snprintf(ret_lines[i + 1], TAG_LINE_BYTES, "(tag %s)=%s", session->tags[i].tag.name,
                 gms_park_policy_name(session->tags[i].tag.policy));
    return session->tag_count + 1;
}

/* "NAME=VALUE\0" repeated, in order, behind *inout_used bytes. */
static gms_status list_variables(struct gms_session *session, char *buffer, size_t capacity, size_t *inout_used,
                                 struct gms_error *ret_error)
{
    size_t count = 0, filled = 0, wanted = *inout_used;
    char limit[64], file[128], tags[GMS_MAX_TAGS + 1][TAG_LINE_BYTES];
    const uint32_t tag_lines = describe_tags(session, tags);
    describe_place(session, limit, file);
    for (char **variable = environ; variable != NULL && *variable != NULL; variable++)
        count += agreed_variable(*variable);
    const size_t room = count + 2 + tag_lines;
    const char **list = malloc(room * sizeof *list);
    if (list == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a list of %zu variables", count);
    list[filled++] = limit;
    if (file[0] != '\0')
        list[filled++] = file;
    for (char **variable = environ; variable != NULL && *variable != NULL && filled < room - tag_lines; variable++)
        if (agreed_variable(*variable))
            list[filled++] = *variable;
    for (uint32_t i = 0; i < tag_lines; i++)
        list[filled++] = tags[i];
    qsort(list, filled, sizeof *list, compare_text);
    for (size_t i = 0; i < filled; i++) {
        const size_t bytes = strlen(list[i]) + 1;
        if (wanted + bytes <= capacity)
            memcpy(buffer + wanted, list[i], bytes);
        wanted += bytes;
    }
    free(list);
    if (wanted > capacity)
        return gms_fail(ret_error, GMS_E_INVALID,
                        "GMS_ and other agreed variables of this process have %zu bytes, the limit is %zu",
                        wanted - *inout_used, capacity - *inout_used);
    *inout_used = wanted;
    return GMS_OK;
}

static gms_status fill_fields(struct gms_session *session, const struct gms_identity *identity, const char *variables,
                              size_t bytes, struct gms_message *proposal, struct gms_error *ret_error)
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

    fields[1] = XXH3_64bits(variables, bytes);
    fields[2] = GMS_WIRE_VERSION;
    fields[3] = identity->world_size;
    fields[4] = identity->hash_seed;
    XXH3_64bits_reset(digest.state);
    digest_text(&digest, identity->engine_name);
    digest_text(&digest, identity->engine_version);
    gms_tags_want(session);
    digest_number(&digest, gms_tags_digest(session));
    fields[5] = XXH3_64bits_digest(digest.state);
    XXH3_freeState(digest.state);
    return GMS_OK;
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

/* Parking puts other memory behind addresses that NCCL may have registered for captured graphs; what it has then writes
 * elsewhere or hangs (V31). */
static gms_status check_registration(const struct gms_session *session, struct gms_error *ret_error)
{
    const char *registers = getenv("NCCL_GRAPH_REGISTER"), *again = getenv("GMS_REGISTERS_AGAIN");
    if (session->vmm->cpu_addresses || session->world_size == 1 || (registers != NULL && strcmp(registers, "0") == 0) ||
        (again != NULL && strcmp(again, "1") == 0))
        return GMS_OK;
    return gms_fail(
        ret_error, GMS_E_REFUSED,
        "NCCL_GRAPH_REGISTER is %s: NCCL would keep registrations of memory that parking replaces. Set it to 0 "
        "(the coordinators do, through gms-exec), or GMS_REGISTERS_AGAIN=1 if this engine registers again "
        "when gms_mapping_epoch changes",
        registers != NULL ? registers : "not set");
}

gms_status gms_join(gms_session *session, const struct gms_identity *identity, struct gms_membership *ret_membership,
                    struct gms_error *ret_error)
{
    gms_status status = gms_session_ready(session, false, gms_session_deadline(session), ret_error);
    if (status == GMS_OK)
        status = check_identity(identity, ret_error);
    if (status == GMS_OK)
        status = check_registration(session, ret_error);
    if (status == GMS_OK && session->incarnation != 0)
        status = gms_fail(ret_error, GMS_E_EXISTS, "this session has joined already, as incarnation %" PRIu64,
                          session->incarnation);
    if (status != GMS_OK)
        return status;
    /* The identity in words, and what is set here: for texts, should ranks differ. */
    char *words = malloc(VARIABLES_BYTES);
    if (words == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for %d bytes", VARIABLES_BYTES);
    snprintf(words, 2048,
             "model=%s dtype=%s layout=%s hash_algorithm=%s engine=%s version=%s hash_seed=%" PRIu64
             " block_tokens=%" PRIu32 " world_size=%" PRIu32,
             identity->model, identity->dtype, identity->layout, identity->hash_algorithm, identity->engine_name,
             identity->engine_version, identity->hash_seed, identity->block_tokens, identity->world_size);
    struct gms_message proposal = {.propose = {.kind = GMS_OPERATION_JOIN}};
    const size_t behind = strlen(words) + 1;
    size_t used = behind;
    status = list_variables(session, words, VARIABLES_BYTES, &used, ret_error);
    proposal.propose.payload = (struct gms_bytes){words, (uint32_t)used};
    if (status == GMS_OK)
        status = fill_fields(session, identity, words + behind, used - behind, &proposal, ret_error);
    struct gms_message reply;
    if (status == GMS_OK)
        status = gms_session_propose(session, &proposal, &reply, ret_error);
    free(words);
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
