/* SPDX-License-Identifier: Apache-2.0 */
#include "sessions/members.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/fd.h"
#include "base/log.h"

enum { META_VERSION = 2, META_BYTES = 1024 };

struct gms_members {
    struct gms_members_options options;
    struct gms_member *list;
    struct gms_member *prepared[GMS_MAX_ENGINES];
};

/* ------------------------------------------------------------------------------------------------ life ------- */

static void free_member(struct gms_member *member)
{
    if (member == NULL)
        return;
    if (member->ended != NULL)
        event_free(member->ended);
    gms_fd_close(&member->pidfd);
    gms_container_close(&member->container);
    free(member);
}

static struct gms_member *make_member(struct gms_members *members)
{
    struct gms_member *member = calloc(1, sizeof *member);
    if (member == NULL)
        return NULL;
    member->members = members;
    member->pidfd = -1;
    member->container = GMS_NO_CONTAINER;
    return member;
}

gms_status gms_members_open(const struct gms_members_options *options, struct gms_members **ret_members,
                            struct gms_error *ret_error)
{
    struct gms_members *members = calloc(1, sizeof *members);
    if (members == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the table of members");
    members->options = *options;
    *ret_members = members;
    return GMS_OK;
}

void gms_members_close(struct gms_members *members)
{
    if (members == NULL)
        return;
    while (members->list != NULL) {
        struct gms_member *next = members->list->next;
        free_member(members->list);
        members->list = next;
    }
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++)
        free_member(members->prepared[engine]);
    free(members);
}

struct gms_member *gms_members_find(struct gms_members *members, uint64_t incarnation)
{
    for (struct gms_member *member = members->list; member != NULL; member = member->next)
        if (member->incarnation == incarnation && incarnation != 0)
            return member;
    return NULL;
}

struct gms_member *gms_members_next(struct gms_members *members, const struct gms_member *after)
{
    return after != NULL ? after->next : members->list;
}

/* ----------------------------------------------------------------------------------------------- copies ------ */

/* u32 version | u32 engine | u64 incarnation | u64 launch | u64 identity | u32 container kind | secret | u32 bytes,
 * launch | u32 bytes, endpoint | u32 device error. Little-endian. */
struct cursor {
    uint8_t *at, *end;
    bool bad;
};

static void put_number(struct cursor *cursor, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes && cursor->at < cursor->end; i++)
        *cursor->at++ = (uint8_t)(value >> (8 * i));
}

static void put_bytes(struct cursor *cursor, const void *data, size_t bytes)
{
    if ((size_t)(cursor->end - cursor->at) < bytes)
        return;
    memcpy(cursor->at, data, bytes);
    cursor->at += bytes;
}

static uint64_t get_number(struct cursor *cursor, unsigned bytes)
{
    uint64_t value = 0;
    if ((size_t)(cursor->end - cursor->at) < bytes) {
        cursor->bad = true;
        return 0;
    }
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)*cursor->at++ << (8 * i);
    return value;
}

static void get_text(struct cursor *cursor, char *ret_text, size_t room)
{
    uint64_t bytes = get_number(cursor, 4);
    if (cursor->bad || bytes >= room || bytes > (size_t)(cursor->end - cursor->at)) {
        cursor->bad = true;
        return;
    }
    memcpy(ret_text, cursor->at, bytes);
    ret_text[bytes] = '\0';
    cursor->at += bytes;
}

static uint32_t encode(const struct gms_member *member, uint8_t ret_meta[META_BYTES])
{
    struct cursor cursor = {.at = ret_meta, .end = ret_meta + META_BYTES};
    put_number(&cursor, META_VERSION, 4);
    put_number(&cursor, member->engine, 4);
    put_number(&cursor, member->incarnation, 8);
    put_number(&cursor, member->launch, 8);
    put_number(&cursor, member->identity_digest, 8);
    put_number(&cursor, member->container.kind, 4);
    put_bytes(&cursor, member->secret, sizeof member->secret);
    put_number(&cursor, strlen(member->launch_text), 4);
    put_bytes(&cursor, member->launch_text, strlen(member->launch_text));
    put_number(&cursor, strlen(member->endpoint), 4);
    put_bytes(&cursor, member->endpoint, strlen(member->endpoint));
    put_number(&cursor, (uint32_t)member->device_error, 4);
    return (uint32_t)(cursor.at - ret_meta);
}

static bool decode(const struct gms_copy *copy, struct gms_member *ret_member)
{
    uint8_t meta[META_BYTES];
    if (copy->meta_bytes > sizeof meta || copy->meta_bytes == 0)
        return false;
    memcpy(meta, copy->meta, copy->meta_bytes);
    struct cursor cursor = {.at = meta, .end = meta + copy->meta_bytes};
    if (get_number(&cursor, 4) != META_VERSION)
        return false;
    ret_member->engine = (uint32_t)get_number(&cursor, 4);
    ret_member->incarnation = get_number(&cursor, 8);
    ret_member->launch = get_number(&cursor, 8);
    ret_member->identity_digest = get_number(&cursor, 8);
    ret_member->container.kind = (uint32_t)get_number(&cursor, 4);
    for (size_t i = 0; i < sizeof ret_member->secret; i++)
        ret_member->secret[i] = (uint8_t)get_number(&cursor, 1);
    get_text(&cursor, ret_member->launch_text, sizeof ret_member->launch_text);
    get_text(&cursor, ret_member->endpoint, sizeof ret_member->endpoint);
    ret_member->device_error = (int32_t)get_number(&cursor, 4);
    return !cursor.bad && ret_member->engine < GMS_MAX_ENGINES;
}

/* The names of one member: by incarnation, or of what is prepared for an engine id. */
static void name_of(const struct gms_members *members, const struct gms_member *member, const char *what,
                    char ret_name[GMS_KEEPER_NAME_BYTES])
{
    if (member->incarnation != 0)
        snprintf(ret_name, GMS_KEEPER_NAME_BYTES, "%s/%" PRIu64 "/%u", what, member->incarnation,
                 members->options.rank);
    else
        snprintf(ret_name, GMS_KEEPER_NAME_BYTES, "prepared/%u/%s/%u", member->engine, what, members->options.rank);
}

enum { SESSION = 4 };
static const char *const member_names[] = {"guardian", "cohort", "exec", "cgroup", [SESSION] = "session"};

/* All that may change is in the words of this one. */
static gms_status leave_session(struct gms_members *members, const struct gms_member *member)
{
    char name[GMS_KEEPER_NAME_BYTES];
    uint8_t meta[META_BYTES];
    const uint32_t bytes = encode(member, meta);
    name_of(members, member, member_names[SESSION], name);
    return gms_copies_put(members->options.copies, name, member->pidfd, meta, bytes);
}

/* The session last: what names it is whole then. */
static gms_status leave_copies(struct gms_members *members, const struct gms_member *member)
{
    gms_status status = GMS_OK;
    const int fds[] = {member->container.guardian_fd, member->container.engine_fd, member->container.exec_fd,
                       member->container.cgroup_fd};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        char name[GMS_KEEPER_NAME_BYTES];
        if (fds[i] < 0)
            continue;
        name_of(members, member, member_names[i], name);
        const gms_status put = gms_copies_put(members->options.copies, name, fds[i], "", 0);
        status = status == GMS_OK ? put : status;
    }
    const gms_status put = leave_session(members, member);
    return status == GMS_OK ? put : status;
}

static void drop_copies(struct gms_members *members, const struct gms_member *member)
{
    for (size_t i = sizeof member_names / sizeof member_names[0]; i-- > 0;) {
        char name[GMS_KEEPER_NAME_BYTES];
        name_of(members, member, member_names[i], name);
        gms_copies_drop(members->options.copies, name);
    }
}

/* -------------------------------------------------------------------------------------------- presence ------- */

static void on_ended(evutil_socket_t fd, short what, void *context)
{
    struct gms_member *member = context;
    (void)fd;
    (void)what;
    if (!member->present)
        member->members->options.ended(member->members->options.context, member);
}

void gms_member_set_present(struct gms_member *member, bool present)
{
    member->present = present;
    if (present && member->ended != NULL) {
        event_free(member->ended);
        member->ended = NULL;
    } else if (!present && member->ended == NULL) {
        member->ended = event_new(member->members->options.base, member->pidfd, EV_READ, on_ended, member);
        if (member->ended == NULL || event_add(member->ended, NULL) != 0)
            gms_log(GMS_LOG_ERROR, "the end of engine %u incarnation %llu cannot be watched for", member->engine,
                    (unsigned long long)member->incarnation);
    }
}

void gms_member_set_endpoint(struct gms_member *member, const char *endpoint)
{
    if (strcmp(member->endpoint, endpoint) == 0)
        return;
    snprintf(member->endpoint, sizeof member->endpoint, "%s", endpoint);
    leave_session(member->members, member);
}

void gms_member_set_device_error(struct gms_member *member, int32_t code)
{
    if (member->device_error != 0)
        return; /* the first one counts: the rest follows from it */
    member->device_error = code != 0 ? code : -1;
    leave_session(member->members, member);
}

/* ----------------------------------------------------------------------------------- prepare, commit, forget -- */

gms_status gms_members_prepare(struct gms_members *members, uint64_t launch, uint64_t identity_digest,
                               const struct gms_client *client, struct gms_error *ret_error)
{
    gms_members_abort(members, client->engine_id);
    struct gms_member *member = make_member(members);
    if (member == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for engine %u's session", client->engine_id);
    member->engine = client->engine_id;
    member->launch = launch;
    member->identity_digest = identity_digest;
    snprintf(member->launch_text, sizeof member->launch_text, "%s", client->launch);
    if (client->call.payload != NULL) /* the words end with a NUL, or with the payload */
        snprintf(member->identity, sizeof member->identity, "%.*s", (int)client->call.payload_bytes,
                 (const char *)client->call.payload);
    gms_status status = gms_container_copy(&client->container, &member->container, ret_error);
    if (status == GMS_OK) {
        member->pidfd = fcntl(client->pidfd, F_DUPFD_CLOEXEC, 3);
        if (member->pidfd < 0)
            status = gms_fail(ret_error, GMS_E_DESCRIPTORS, "no descriptor left for the pidfd of engine %u: %s",
                              client->engine_id, strerror(errno));
    }
    while (status == GMS_OK && getrandom(member->secret, sizeof member->secret, 0) != (ssize_t)sizeof member->secret)
        if (errno != EINTR)
            status = gms_fail(ret_error, GMS_E_SYSTEM, "getrandom: %s", strerror(errno));
    if (status != GMS_OK) {
        free_member(member);
        return status;
    }
    members->prepared[member->engine] = member;
    status = leave_copies(members, member);
    if (status == GMS_OK)
        return GMS_OK;
    gms_fail(ret_error, status, "engine %u's process cannot be left with the keeper", member->engine);
    gms_members_abort(members, client->engine_id);
    return status;
}

static size_t start_of_word(const char *text, size_t at)
{
    while (at > 0 && text[at - 1] != ' ')
        at--;
    return at;
}

void gms_members_tell_difference(struct gms_members *members, const char *words, size_t bytes, char *ret_text,
                                 size_t text_bytes)
{
    ret_text[0] = '\0';
    for (const struct gms_member *member = gms_members_next(members, NULL); member != NULL;
         member = gms_members_next(members, member)) {
        char asked[sizeof member->identity];
        size_t at = 0;
        snprintf(asked, sizeof asked, "%.*s", (int)bytes, words);
        while (asked[at] != '\0' && asked[at] == member->identity[at])
            at++;
        if (member->identity[0] == '\0' || asked[at] == member->identity[at])
            continue;
        const char *one = asked + start_of_word(asked, at), *other = member->identity + start_of_word(asked, at);
        snprintf(ret_text, text_bytes, "%.*s, the group has %.*s", (int)strcspn(one, " "), one,
                 (int)strcspn(other, " "), other);
        return;
    }
}

struct gms_member *gms_members_commit(struct gms_members *members, uint32_t engine, uint64_t launch,
                                      uint64_t incarnation)
{
    struct gms_member *known = gms_members_find(members, incarnation), *member = members->prepared[engine];
    if (known != NULL || member == NULL || member->launch != launch)
        return known;
    members->prepared[engine] = NULL;
    struct gms_member was = *member; /* its former names */
    member->incarnation = incarnation;
    member->next = members->list;
    members->list = member;
    leave_copies(members, member);
    drop_copies(members, &was);
    return member;
}

void gms_members_abort(struct gms_members *members, uint32_t engine)
{
    struct gms_member *member = members->prepared[engine];
    if (member == NULL)
        return;
    members->prepared[engine] = NULL;
    drop_copies(members, member);
    free_member(member);
}

void gms_members_forget(struct gms_members *members, uint64_t incarnation)
{
    for (struct gms_member **link = &members->list; *link != NULL; link = &(*link)->next) {
        struct gms_member *member = *link;
        if (member->incarnation != incarnation)
            continue;
        *link = member->next;
        drop_copies(members, member);
        free_member(member);
        return;
    }
}

/* ---------------------------------------------------------------------------------------------- restore ------ */

static int copy_of(const struct gms_members *members, const struct gms_member *member, const char *what)
{
    char name[GMS_KEEPER_NAME_BYTES];
    struct gms_copy copy;
    name_of(members, member, what, name);
    return gms_copies_find(members->options.copies, name, &copy) ? fcntl(copy.fd, F_DUPFD_CLOEXEC, 3) : -1;
}

static struct gms_member *restore_one(struct gms_members *members, const struct gms_copy *copy)
{
    struct gms_member *member = make_member(members);
    char name[GMS_KEEPER_NAME_BYTES];
    if (member == NULL)
        return NULL;
    bool good = decode(copy, member);
    if (good) {
        name_of(members, member, "session", name); /* does it say what it is kept as? */
        good = strcmp(name, copy->name) == 0;
    }
    if (good) {
        member->pidfd = fcntl(copy->fd, F_DUPFD_CLOEXEC, 3);
        member->container.guardian_fd = copy_of(members, member, "guardian");
        member->container.engine_fd = copy_of(members, member, "cohort");
        member->container.exec_fd = copy_of(members, member, "exec");
        member->container.cgroup_fd = copy_of(members, member, "cgroup");
        good = member->pidfd >= 0 && (member->container.kind == 0 || member->container.guardian_fd >= 0);
    }
    if (good)
        return member;
    free_member(member);
    return NULL;
}

void gms_members_restore(struct gms_members *members)
{
    struct gms_copy copy;
    for (uint32_t i = 0; gms_copies_at(members->options.copies, i, &copy); i++) {
        bool prepared = strncmp(copy.name, "prepared/", 9) == 0 && strstr(copy.name, "/session/") != NULL;
        if (!prepared && strncmp(copy.name, "session/", 8) != 0)
            continue;
        struct gms_member *member = restore_one(members, &copy);
        if (member == NULL) {
            gms_log(GMS_LOG_ERROR, "what is kept as %s cannot be read; that engine rank is not known any more",
                    copy.name);
        } else if (member->incarnation == 0) {
            free_member(members->prepared[member->engine]);
            members->prepared[member->engine] = member;
        } else {
            member->next = members->list;
            members->list = member;
        }
    }
}
