/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of an engine's memory by name, and what becomes of each when it parks and wakes.
 *
 *   RUNNING --park--> PARKING --ok--> PARKED --wake--> WAKING --ok--> AWAKE
 *      ^                 |               ^                |
 *      '-----failed------'               '-----failed-----'        (rolled back)
 *   and FAILED, for ever, from PARKING and WAKING where the device is lost or a rollback fails
 */
#include "libgms/session.h"

#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/clock.h"
#include "vmm/cuda.h"

enum { RETRY_MS = 200, TELL_MS = 20 };

static const struct gms_tag shadow_failover[] = {
    {"weights", GMS_PARK_KEEP}, {"kv", GMS_PARK_SWAP}, {"graphs", GMS_PARK_KEEP}};

/* --------------------------------------------------------------------------------------------------- tags ----- */

static gms_status check_tags(const struct gms_tag *tags, uint32_t count, struct gms_error *ret_error)
{
    if (count == 0 || count > GMS_MAX_TAGS)
        return gms_fail(ret_error, GMS_E_INVALID, "%" PRIu32 " tags; 1 to %d are possible", count, GMS_MAX_TAGS);
    for (uint32_t i = 0; i < count; i++) {
        const size_t length = strnlen(tags[i].name, GMS_NAME_BYTES);
        if (length == 0 || length == GMS_NAME_BYTES)
            return gms_fail(ret_error, GMS_E_INVALID, "tag %" PRIu32 ": a name has 1 to %d bytes", i,
                            GMS_NAME_BYTES - 1);
        if (tags[i].policy < GMS_PARK_KEEP || tags[i].policy > GMS_PARK_SAVE)
            return gms_fail(ret_error, GMS_E_INVALID, "tag %s: policy %" PRIu32 " is none of %d to %d", tags[i].name,
                            tags[i].policy, GMS_PARK_KEEP, GMS_PARK_SAVE);
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(tags[i].name, tags[j].name) == 0)
                return gms_fail(ret_error, GMS_E_INVALID, "tag %s stands there twice", tags[i].name);
    }
    return GMS_OK;
}

static void take_tags(struct gms_session *session, const struct gms_tag *tags, uint32_t count)
{
    memset(session->tags, 0, sizeof session->tags);
    for (uint32_t i = 0; i < count; i++)
        session->tags[i].tag = tags[i];
    session->tag_count = count;
}

static bool find_tag(const struct gms_session *session, const char *name, uint32_t *ret_tag)
{
    for (uint32_t i = 0; i < session->tag_count; i++) {
        if (strcmp(session->tags[i].tag.name, name) == 0) {
            *ret_tag = i;
            return true;
        }
    }
    return false;
}

/* ------------------------------------------------------------------------------------------------- preset ----- */

gms_status gms_tags_take_preset(struct gms_session *session, const struct gms_message *welcome,
                                struct gms_error *ret_error)
{
    const struct gms_bytes *name = &welcome->welcome.preset;
    if (name->length >= sizeof session->preset ||
        !gms_tags_unpack(&welcome->welcome.preset_tags, session->preset_tags, &session->preset_count))
        return gms_fail(ret_error, GMS_E_PROTOCOL,
                        "coordinator rank %" PRIu32 " names a parking preset in %" PRIu32 " bytes and %" PRIu32
                        " of tags, which cannot be read",
                        session->rank, name->length, welcome->welcome.preset_tags.length);
    if (name->length > 0)
        memcpy(session->preset, name->data, name->length);
    session->preset[name->length] = '\0';
    return GMS_OK;
}

const char *gms_parking_preset(const gms_session *session)
{
    return session->preset[0] != '\0' ? session->preset : "shadow_failover";
}

/* What the deployment says about this tag; NULL: nothing. "*" is about all but the group's own memory. */
static const struct gms_tag *preset_of(const struct gms_session *session, const char *name)
{
    const bool of_group = strcmp(name, "weights") == 0 || strcmp(name, "kv") == 0;
    const struct gms_tag *found = NULL;
    for (uint32_t i = 0; i < session->preset_count; i++) {
        const struct gms_tag *tag = &session->preset_tags[i].tag;
        if (strcmp(tag->name, name) == 0)
            return tag;
        if (strcmp(tag->name, "*") == 0 && !of_group)
            found = tag;
    }
    return found;
}

/* May the deployment have `preset` where the engine said `own`? It chooses how contents are kept, and whether what may
 * be lost is; that contents may be lost, or what the group's memory replaces, only the engine knows. */
static bool may_be(uint32_t own, uint32_t preset)
{
    if (own == preset)
        return true;
    if (own == GMS_PARK_SWAP || preset == GMS_PARK_SWAP || preset == GMS_PARK_RELEASE)
        return false;
    return true;
}

static gms_status apply_preset(struct gms_session *session, struct gms_error *ret_error)
{
    for (uint32_t i = 0; i < session->tag_count; i++) {
        struct gms_tag *own = &session->tags[i].tag;
        const struct gms_tag *preset = preset_of(session, own->name);
        if (preset == NULL)
            continue;
        if (may_be(own->policy, preset->policy))
            own->policy = preset->policy;
        else if (preset->name[0] != '*')
            return gms_fail(ret_error, GMS_E_REFUSED,
                            "tag %s: this engine says %s, which parking preset %s must not make %s: take the tag out "
                            "of the preset, or choose another",
                            own->name, gms_park_policy_name(own->policy), gms_parking_preset(session),
                            gms_park_policy_name(preset->policy));
    }
    return GMS_OK;
}

gms_status gms_tags_set(gms_session *session, const struct gms_tag *tags, uint32_t count, struct gms_error *ret_error)
{
    if (session->incarnation != 0)
        return gms_fail(ret_error, GMS_E_REFUSED, "tags are set before gms_join, which compares them");
    if (session->regions != NULL)
        return gms_fail(ret_error, GMS_E_REFUSED, "tags are set before the first gms_region_alloc");
    gms_status status = check_tags(tags, count, ret_error);
    if (status != GMS_OK)
        return status;
    take_tags(session, tags, count);
    status = apply_preset(session, ret_error);
    if (status != GMS_OK)
        session->tag_count = 0; /* nothing is set */
    return status;
}

/* The engine has said nothing, so what the deployment names is its word: the usual three, and whatever else it has. */
void gms_tags_want(struct gms_session *session)
{
    if (session->tag_count != 0)
        return;
    take_tags(session, shadow_failover, sizeof shadow_failover / sizeof shadow_failover[0]);
    for (uint32_t i = 0; i < session->preset_count; i++) {
        const struct gms_tag *preset = &session->preset_tags[i].tag;
        uint32_t tag = session->tag_count;
        if (preset->name[0] == '*' || (!find_tag(session, preset->name, &tag) && tag == GMS_MAX_TAGS))
            continue;
        session->tags[tag].tag = *preset;
        session->tag_count += tag == session->tag_count;
    }
    (void)apply_preset(session, NULL);
}

void gms_tags_tell(struct gms_session *session)
{
    struct gms_tag_report reports[GMS_MAX_TAGS];
    uint8_t packed[GMS_TAGS_BYTES];
    uint32_t count = 0;
    while (gms_tag_report(session, count, &reports[count]) == GMS_OK)
        count++;
    struct gms_message memory = {
        .type = GMS_MESSAGE_MEMORY,
        .memory = {.incarnation = session->incarnation, .awake = session->park_state == GMS_STATE_AWAKE}};
    memory.memory.tags = (struct gms_bytes){packed, gms_tags_pack(reports, count, packed)};
    if (session->link == GMS_LINK_UP || session->link == GMS_LINK_GREETING)
        (void)gms_session_send(session, &memory, gms_clock_ns() + TELL_MS * GMS_NS_PER_MS, NULL);
}

uint64_t gms_tags_digest(const struct gms_session *session)
{
    uint64_t digest = session->tag_count;
    for (uint32_t i = 0; i < session->tag_count; i++) {
        const struct gms_tag *tag = &session->tags[i].tag;
        digest = XXH3_64bits_withSeed(tag->name, strlen(tag->name) + 1, digest + tag->policy);
    }
    return digest;
}

static bool pool_has_tag(const struct gms_session *session, const struct gms_pool *pool, uint32_t tag)
{
    uint32_t found = 0;
    const char *const kind = pool->description.kind == GMS_POOL_KV ? "kv" : "weights";
    return (find_tag(session, pool->description.name, &found) || find_tag(session, kind, &found)) && found == tag;
}

void gms_tags_note_park(struct gms_session *session, const struct gms_pool *pool, uint64_t duration_ns)
{
    for (uint32_t i = 0; i < session->tag_count; i++)
        if (pool_has_tag(session, pool, i))
            session->tags[i].park_ns += duration_ns;
}

gms_status gms_tag_report(const gms_session *session, uint32_t index, struct gms_tag_report *ret_report)
{
    if (index >= session->tag_count)
        return GMS_E_NOT_FOUND;
    const struct gms_tag_state *state = &session->tags[index];
    *ret_report = (struct gms_tag_report){.tag = state->tag, .park_ns = state->park_ns, .wake_ns = state->wake_ns};
    for (const struct gms_region *region = session->regions; region != NULL; region = region->next)
        ret_report->bytes += region->tag == index ? region->mapped_bytes : 0;
    for (uint32_t i = 0; i < GMS_MAX_POOLS; i++)
        if (session->pools[i] != NULL && pool_has_tag(session, session->pools[i], index))
            ret_report->bytes += session->pools[i]->mapped_bytes;
    return GMS_OK;
}

enum gms_park_state gms_park_state(const gms_session *session)
{
    return session->park_state;
}

uint64_t gms_mapping_epoch(const gms_session *session)
{
    return session->mapping_epoch;
}

uint64_t gms_driver_calls(void)
{
    return gms_vmm_cuda_calls();
}

/* ------------------------------------------------------------------------------------------------ regions ----- */

/* New memory at the region's address; nobody else ever gets it, so no descriptor stays. */
static gms_status fill_region(struct gms_session *session, struct gms_region *region, struct gms_error *ret_error)
{
    const struct gms_vmm *vmm = session->vmm;
    struct gms_vmm_handle handle = {.fd = -1};
    gms_status status = vmm->create(session->tags[region->tag].tag.name, region->mapped_bytes, &handle, ret_error);
    if (status == GMS_OK)
        status = vmm->map(region->address, &handle, GMS_VMM_READ_WRITE, ret_error);
    vmm->release(&handle);
    region->mapped = status == GMS_OK;
    return status;
}

gms_status gms_region_alloc(gms_session *session, const char *tag, uint64_t bytes, void **ret_address,
                            struct gms_error *ret_error)
{
    const uint64_t granularity = session->vmm->granularity_bytes;
    uint32_t index = 0;
    gms_tags_want(session);
    if (!find_tag(session, tag, &index))
        return gms_fail(ret_error, GMS_E_NOT_FOUND, "this engine has no tag %.*s: gms_tags_set names them",
                        GMS_NAME_BYTES, tag);
    if (session->tags[index].tag.policy == GMS_PARK_SWAP)
        return gms_fail(ret_error, GMS_E_REFUSED, "tag %s is swapped: that is what kv pools are, see gms_pool_attach",
                        tag);
    if (session->park_state != GMS_STATE_RUNNING && session->park_state != GMS_STATE_AWAKE)
        return gms_fail(ret_error, GMS_E_REFUSED, "no memory is given out while this engine is parked");
    if (bytes == 0 || bytes > INT64_MAX - granularity)
        return gms_fail(ret_error, GMS_E_INVALID, "a region of %" PRIu64 " bytes", bytes);
    struct gms_region *region = calloc(1, sizeof *region);
    if (region == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory to note a region");
    region->tag = index;
    region->bytes = bytes;
    region->mapped_bytes = (bytes + granularity - 1) / granularity * granularity;
    gms_status status = session->vmm->reserve(region->mapped_bytes, &region->address, ret_error);
    if (status == GMS_OK) {
        status = fill_region(session, region, ret_error);
        if (status != GMS_OK)
            (void)session->vmm->unreserve(region->address, region->mapped_bytes, NULL);
    }
    if (status != GMS_OK) {
        free(region);
        return status;
    }
    region->next = session->regions;
    session->regions = region;
    *ret_address = region->address;
    return GMS_OK;
}

gms_status gms_region_free(gms_session *session, void *address, struct gms_error *ret_error)
{
    for (struct gms_region **link = &session->regions; *link != NULL; link = &(*link)->next) {
        struct gms_region *region = *link;
        if (region->address != address)
            continue;
        const gms_status status = session->vmm->unreserve(region->address, region->mapped_bytes, ret_error);
        if (status != GMS_OK)
            return status;
        *link = region->next;
        free(region->saved);
        free(region);
        return GMS_OK;
    }
    return gms_fail(ret_error, GMS_E_NOT_FOUND, "%p is not the address of a region", address);
}

void gms_regions_free(struct gms_session *session)
{
    while (session->regions != NULL) {
        struct gms_region *next = session->regions->next;
        (void)session->vmm->unreserve(session->regions->address, session->regions->mapped_bytes, NULL);
        free(session->regions->saved);
        free(session->regions);
        session->regions = next;
    }
}

/* --------------------------------------------------------------------------------------------------- park ----- */

static bool is_given_back(const struct gms_session *session, const struct gms_region *region)
{
    const uint32_t policy = session->tags[region->tag].tag.policy;
    return policy == GMS_PARK_RELEASE || policy == GMS_PARK_SAVE;
}

bool gms_regions_whole(const struct gms_session *session)
{
    for (const struct gms_region *region = session->regions; region != NULL; region = region->next)
        if (!region->mapped)
            return false;
    return true;
}

/* All that may fail without a trace comes first: nothing is given back before every content is safe. */
static gms_status save_contents(struct gms_session *session, struct gms_error *ret_error)
{
    gms_status status = GMS_OK;
    struct gms_region *region = session->regions;
    for (; region != NULL && status == GMS_OK; region = region->next) {
        struct gms_tag_state *state = &session->tags[region->tag];
        if (state->tag.policy != GMS_PARK_SAVE || !region->mapped)
            continue;
        const uint64_t since_ns = gms_clock_ns();
        region->saved = malloc(region->bytes);
        status = region->saved != NULL
                     ? session->vmm->read(region->saved, region->address, region->bytes, ret_error)
                     : gms_fail(ret_error, GMS_E_NO_MEMORY, "no host memory to save %" PRIu64 " bytes of tag %s",
                                region->bytes, state->tag.name);
        state->park_ns += gms_clock_ns() - since_ns;
    }
    for (region = session->regions; region != NULL && status != GMS_OK; region = region->next) {
        free(region->saved);
        region->saved = NULL;
    }
    return status;
}

gms_status gms_regions_park(struct gms_session *session, struct gms_error *ret_error)
{
    gms_status status = save_contents(session, ret_error);
    for (struct gms_region *region = session->regions; region != NULL && status == GMS_OK; region = region->next) {
        if (!is_given_back(session, region) || !region->mapped)
            continue;
        const uint64_t since_ns = gms_clock_ns();
        status = session->vmm->unmap(region->address, region->mapped_bytes, ret_error);
        region->mapped = status != GMS_OK;
        session->mapping_epoch += status == GMS_OK;
        session->tags[region->tag].park_ns += gms_clock_ns() - since_ns;
    }
    return status;
}

/* --------------------------------------------------------------------------------------------------- wake ----- */

/* One region, asked for again while there is no memory. */
static gms_status wake_region(struct gms_session *session, struct gms_region *region, uint64_t deadline_ns,
                              struct gms_error *ret_error)
{
    gms_status status = fill_region(session, region, ret_error);
    while (status == GMS_E_NO_MEMORY && gms_clock_ns() < deadline_ns) {
        if (atomic_load(&session->wake_cancelled))
            return gms_fail(ret_error, GMS_E_AGAIN,
                            "waking was cancelled while it waited for %" PRIu64 " bytes of tag %s",
                            region->mapped_bytes, session->tags[region->tag].tag.name);
        const int left_ms = gms_clock_poll_ms(deadline_ns);
        (void)poll(NULL, 0, left_ms < RETRY_MS ? left_ms : RETRY_MS);
        status = fill_region(session, region, ret_error);
    }
    if (status == GMS_OK && region->saved != NULL)
        status = session->vmm->write(region->address, region->saved, region->bytes, ret_error);
    return status;
}

/* Everything that this wake has brought back is given away again. */
static gms_status undo_wake(struct gms_session *session, gms_status status, struct gms_error *ret_error)
{
    for (struct gms_region *region = session->regions; region != NULL; region = region->next) {
        if (!is_given_back(session, region) || !region->mapped)
            continue;
        const gms_status undone = session->vmm->unmap(region->address, region->mapped_bytes, NULL);
        region->mapped = undone != GMS_OK;
        if (undone != GMS_OK)
            return gms_fail(ret_error, GMS_E_STICKY,
                            "waking failed (%s), and tag %s could not be given back: this engine must end",
                            gms_status_text(status), session->tags[region->tag].tag.name);
    }
    return status;
}

gms_status gms_regions_wake(struct gms_session *session, uint32_t patience_ms, struct gms_error *ret_error)
{
    const uint64_t deadline_ns = gms_clock_ns() + patience_ms * GMS_NS_PER_MS;
    gms_status status = GMS_OK;
    for (uint32_t i = 0; i < session->tag_count; i++)
        session->tags[i].wake_ns = 0;
    for (struct gms_region *region = session->regions; region != NULL && status == GMS_OK; region = region->next) {
        const uint64_t since_ns = gms_clock_ns();
        if (region->mapped)
            continue;
        status = wake_region(session, region, deadline_ns, ret_error);
        session->tags[region->tag].wake_ns += gms_clock_ns() - since_ns;
    }
    if (status != GMS_OK)
        return undo_wake(session, status, ret_error);
    for (struct gms_region *region = session->regions; region != NULL; region = region->next) {
        session->mapping_epoch += is_given_back(session, region);
        free(region->saved);
        region->saved = NULL;
    }
    return GMS_OK;
}

void gms_wake_cancel(gms_session *session)
{
    atomic_store(&session->wake_cancelled, true);
}
