/* SPDX-License-Identifier: Apache-2.0 */
#include "logs.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------ reading ---- */

/* The value of " key=" in a line, NULL: not there. Ends at a blank. */
static const char *value_of(const char *line, const char *key)
{
    size_t length = strlen(key);
    for (const char *at = strchr(line, ' '); at != NULL; at = strchr(at + 1, ' '))
        if (strncmp(at + 1, key, length) == 0 && at[1 + length] == '=')
            return at + length + 2;
    return NULL;
}

static bool number_of(const char *line, const char *key, uint64_t *ret_value)
{
    const char *text = value_of(line, key);
    if (text == NULL || text[0] < '0' || text[0] > '9')
        return false;
    char *end;
    errno = 0;
    *ret_value = strtoull(text, &end, 10);
    return errno == 0 && (*end == ' ' || *end == '\0');
}

static gms_status add_change(struct drill_log *log, const struct drill_log_change *change, struct gms_error *ret_error)
{
    if (log->change_count == log->change_capacity) {
        size_t capacity = log->change_capacity == 0 ? 256 : 2 * log->change_capacity;
        struct drill_log_change *changes = realloc(log->changes, capacity * sizeof *changes);
        if (changes == NULL)
            return gms_fail(ret_error, GMS_E_NO_MEMORY, "%s: no memory for %zu slot events", log->path, capacity);
        log->changes = changes;
        log->change_capacity = capacity;
    }
    log->changes[log->change_count++] = *change;
    return GMS_OK;
}

static bool read_change(const char *line, enum drill_log_change_kind kind, struct drill_log_change *ret_change)
{
    uint64_t slot;
    memset(ret_change, 0, sizeof *ret_change);
    ret_change->kind = kind;
    if (!number_of(line, "slot", &slot) || slot > UINT32_MAX || !number_of(line, "generation", &ret_change->generation))
        return false;
    ret_change->slot = (uint32_t)slot;
    if (kind != DRILL_LOG_SEAL)
        return true;
    const char *hash = value_of(line, "hash");
    size_t length = hash != NULL ? strspn(hash, "0123456789abcdef") : 0;
    if (length == 0 || length >= sizeof ret_change->hash || (hash[length] != ' ' && hash[length] != '\0'))
        return false;
    memcpy(ret_change->hash, hash, length);
    return true;
}

/* One whole line, its newline removed. False: it is not what the format says. */
static bool read_line(struct drill_log *log, const char *line, struct gms_error *ret_error, gms_status *ret_status)
{
    char event[DRILL_LOG_EVENT_BYTES];
    char *end;
    errno = 0;
    uint64_t at_ns = strtoull(line, &end, 10);
    if (line[0] < '0' || line[0] > '9' || errno != 0 || *end != ' ' || at_ns < log->last_ns ||
        sscanf(end, " %15[a-z-]", event) != 1)
        return false;
    bool activity = false;
    uint64_t number;
    struct drill_log_change change;
    if (strcmp(event, "write") == 0 || strcmp(event, "seal") == 0 || strcmp(event, "release") == 0) {
        enum drill_log_change_kind kind = event[0] == 'w'   ? DRILL_LOG_WRITE
                                          : event[0] == 's' ? DRILL_LOG_SEAL
                                                            : DRILL_LOG_RELEASE;
        if (!read_change(end, kind, &change))
            return false;
        if ((*ret_status = add_change(log, &change, ret_error)) != GMS_OK)
            return true;
        activity = true;
    } else if (strcmp(event, "token") == 0) {
        log->tokens++;
        activity = true;
    } else if (strcmp(event, "adopted") == 0) {
        if (!number_of(end, "count", &number) || number > UINT32_MAX)
            return false;
        log->adopted = (int64_t)number;
        log->adopted_ns = at_ns;
    } else if (strcmp(event, "wake") == 0) {
        struct drill_log_tag tag = {.name = ""};
        const char *name = strstr(end, " tag=");
        if (name == NULL || sscanf(name, " tag=%31[^ ]", tag.name) != 1 || !number_of(end, "bytes", &tag.bytes) ||
            !number_of(end, "ns", &tag.wake_ns))
            return false;
        if (log->tag_count < DRILL_LOG_TAGS)
            log->tags[log->tag_count++] = tag;
    } else if (strcmp(event, "woken") == 0) {
        log->woken_ns = at_ns;
    } else if (strcmp(event, "promoted") == 0) {
        log->promoted_ns = at_ns;
    } else if (strcmp(event, "serving") == 0) {
        log->serving_ns = at_ns;
    }
    if (activity) {
        if (log->first_activity_ns == 0)
            log->first_activity_ns = at_ns;
        log->last_activity_ns = at_ns;
    }
    log->last_ns = at_ns;
    log->lines++;
    memcpy(log->last_event, event, sizeof event);
    return true;
}

static gms_status read_log(struct drill_log *log, struct gms_error *ret_error)
{
    FILE *file = fopen(log->path, "re");
    if (file == NULL)
        return gms_fail(ret_error, GMS_E_SYSTEM, "%s: %s", log->path, strerror(errno));
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    gms_status status = GMS_OK;
    log->adopted = -1;
    while (status == GMS_OK && (length = getline(&line, &capacity, file)) > 0) {
        if (log->torn || strlen(line) != (size_t)length) {
            status = gms_fail(ret_error, GMS_E_CORRUPT, "%s:%llu: a NUL byte in the line", log->path,
                              (unsigned long long)log->lines + 1);
        } else if (line[length - 1] != '\n') {
            log->torn = true;
        } else {
            line[length - 1] = '\0';
            if (!read_line(log, line, ret_error, &status))
                status = gms_fail(ret_error, GMS_E_CORRUPT, "%s:%llu: not a line of an engine log: %.80s", log->path,
                                  (unsigned long long)log->lines + 1, line);
        }
    }
    free(line);
    fclose(file);
    return status;
}

gms_status drill_logs_read(const char *dir, struct drill_logs *ret_logs, struct gms_error *ret_error)
{
    ret_logs->count = 0;
    DIR *handle = opendir(dir);
    if (handle == NULL)
        return gms_fail(ret_error, errno == ENOENT ? GMS_E_NOT_FOUND : GMS_E_SYSTEM, "engine logs %s: %s", dir,
                        strerror(errno));
    gms_status status = GMS_OK;
    struct dirent *entry;
    while (status == GMS_OK && (entry = readdir(handle)) != NULL) {
        unsigned engine, rank;
        unsigned long long incarnation;
        int used = 0;
        if (sscanf(entry->d_name, "engine%3u.%20llu.%4u.log%n", &engine, &incarnation, &rank, &used) != 3 ||
            used == 0 || entry->d_name[used] != '\0')
            continue;
        if (ret_logs->count == DRILL_MAX_LOGS) {
            status = gms_fail(ret_error, GMS_E_NO_CAPACITY, "engine logs %s: more than %d files", dir, DRILL_MAX_LOGS);
            break;
        }
        struct drill_log *log = &ret_logs->items[ret_logs->count++];
        memset(log, 0, sizeof *log);
        log->engine = engine;
        log->incarnation = incarnation;
        log->rank = rank;
        snprintf(log->path, sizeof log->path, "%s/%s", dir, entry->d_name);
        status = read_log(log, ret_error);
    }
    closedir(handle);
    return status;
}

void drill_logs_free(struct drill_logs *logs)
{
    for (size_t i = 0; i < logs->count; i++)
        free(logs->items[i].changes);
    logs->count = 0;
}

const struct drill_log *drill_logs_find(const struct drill_logs *logs, uint64_t incarnation, uint32_t rank)
{
    for (size_t i = 0; i < logs->count; i++)
        if (logs->items[i].incarnation == incarnation && logs->items[i].rank == rank)
            return &logs->items[i];
    return NULL;
}

/* ------------------------------------------------------------------------------------------ what is sealed --- */

static int by_slot(const void *a, const void *b)
{
    const struct drill_block *x = a, *y = b;
    return x->slot < y->slot ? -1 : x->slot > y->slot;
}

static size_t find_slot(const struct drill_blocks *blocks, uint32_t slot)
{
    for (size_t i = 0; i < blocks->count; i++)
        if (blocks->items[i].slot == slot)
            return i;
    return blocks->count;
}

void drill_blocks_free(struct drill_blocks *blocks)
{
    free(blocks->items);
    blocks->items = NULL;
    blocks->count = 0;
}

static gms_status sealed_on_rank(const struct drill_log *log, const struct drill_blocks *before,
                                 struct drill_blocks *ret_blocks, struct gms_error *ret_error)
{
    size_t start = before != NULL ? before->count : 0;
    ret_blocks->count = 0;
    ret_blocks->items = calloc(start + log->change_count + 1, sizeof *ret_blocks->items);
    if (ret_blocks->items == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "%s: no memory for %zu blocks", log->path,
                        start + log->change_count);
    if (start > 0)
        memcpy(ret_blocks->items, before->items, start * sizeof *before->items);
    ret_blocks->count = start;
    for (size_t i = 0; i < log->change_count; i++) {
        const struct drill_log_change *change = &log->changes[i];
        size_t at = find_slot(ret_blocks, change->slot);
        if (at < ret_blocks->count) /* whatever was there is not any more, or is replaced below */
            ret_blocks->items[at] = ret_blocks->items[--ret_blocks->count];
        if (change->kind == DRILL_LOG_SEAL) {
            struct drill_block *block = &ret_blocks->items[ret_blocks->count++];
            block->slot = change->slot;
            memcpy(block->hash, change->hash, sizeof block->hash);
        }
    }
    qsort(ret_blocks->items, ret_blocks->count, sizeof *ret_blocks->items, by_slot);
    return GMS_OK;
}

/* Keeps in *into what `from` has too; both are sorted by slot. */
static void intersect(struct drill_blocks *into, const struct drill_blocks *from)
{
    size_t kept = 0, at = 0;
    for (size_t i = 0; i < into->count; i++) {
        while (at < from->count && from->items[at].slot < into->items[i].slot)
            at++;
        if (at < from->count && from->items[at].slot == into->items[i].slot &&
            strcmp(from->items[at].hash, into->items[i].hash) == 0)
            into->items[kept++] = into->items[i];
    }
    into->count = kept;
}

gms_status drill_logs_sealed(const struct drill_logs *logs, uint64_t incarnation, uint32_t ranks,
                             const struct drill_blocks *before, struct drill_blocks *ret_blocks,
                             struct gms_error *ret_error)
{
    struct drill_blocks all = {0};
    gms_status status = GMS_OK;
    for (uint32_t rank = 0; rank < ranks && status == GMS_OK; rank++) {
        const struct drill_log *log = drill_logs_find(logs, incarnation, rank);
        struct drill_blocks here = {0};
        if (log == NULL)
            status = gms_fail(ret_error, GMS_E_NOT_FOUND, "incarnation %llu: rank %u left no log",
                              (unsigned long long)incarnation, rank);
        else
            status = sealed_on_rank(log, before, rank == 0 ? &all : &here, ret_error);
        if (status == GMS_OK && rank > 0)
            intersect(&all, &here);
        drill_blocks_free(&here);
    }
    if (status != GMS_OK)
        drill_blocks_free(&all);
    else
        *ret_blocks = all;
    return status;
}

/* ------------------------------------------------------------------------------------------------ overlap ---- */

bool drill_logs_activity(const struct drill_logs *logs, uint64_t incarnation, uint64_t *ret_first_ns,
                         uint64_t *ret_last_ns)
{
    bool found = false;
    for (size_t i = 0; i < logs->count; i++) {
        const struct drill_log *log = &logs->items[i];
        if (log->incarnation != incarnation || log->first_activity_ns == 0)
            continue;
        if (!found || log->first_activity_ns < *ret_first_ns)
            *ret_first_ns = log->first_activity_ns;
        if (!found || log->last_activity_ns > *ret_last_ns)
            *ret_last_ns = log->last_activity_ns;
        found = true;
    }
    return found;
}

gms_status drill_logs_check_overlap(const struct drill_logs *logs, struct gms_error *ret_error)
{
    for (size_t i = 0; i < logs->count; i++) {
        for (size_t j = 0; j < logs->count; j++) {
            const struct drill_log *a = &logs->items[i], *b = &logs->items[j];
            /* The spans are those of whole incarnations: one rank of the old engine that acts once more between two
             * acts of the new one is an overlap, whichever files the lines are in. */
            uint64_t a_first = 0, a_last = 0, b_first = 0, b_last = 0;
            if (a->incarnation >= b->incarnation || !drill_logs_activity(logs, a->incarnation, &a_first, &a_last) ||
                !drill_logs_activity(logs, b->incarnation, &b_first, &b_last))
                continue;
            if (a_first > b_last || b_first > a_last)
                continue;
            uint64_t until = a_last < b_last ? a_last : b_last;
            uint64_t from = a_first > b_first ? a_first : b_first;
            return gms_fail(ret_error, GMS_E_MISMATCH,
                            "two engines acted at the same time for %.3f ms: engine %u incarnation %llu and engine %u "
                            "incarnation %llu, by their own logs",
                            (double)(until - from) / 1e6, a->engine, (unsigned long long)a->incarnation, b->engine,
                            (unsigned long long)b->incarnation);
        }
    }
    return GMS_OK;
}
