/* SPDX-License-Identifier: Apache-2.0 */
#include "config/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t gms_environment_name_bytes(const char *entry)
{
    return strcspn(entry, "=");
}

const char *gms_environment_find(const char *variables, size_t bytes, const char *name, size_t length)
{
    for (size_t at = 0; at < bytes; at += strlen(variables + at) + 1)
        if (strncmp(variables + at, name, length) == 0 && variables[at + length] == '=')
            return variables + at;
    return NULL;
}

/* --------------------------------------------------------------------------------------------- expansion ------- */

enum word {
    RANK,
    LOCAL_RANK,
    WORLD_SIZE,
    LOCAL_WORLD_SIZE,
    ENGINE,
    PORT,
    HOST,
    ADDRESS,
    MASTER_ADDR,
    RUN_DIR,
    DEPLOYMENT,
    WORDS
};

static const struct {
    const char *name;
    bool of_rank;
} words[WORDS] = {
    [RANK] = {"rank", true},
    [LOCAL_RANK] = {"local_rank", true},
    [WORLD_SIZE] = {"world_size", false},
    [LOCAL_WORLD_SIZE] = {"local_world_size", true},
    [ENGINE] = {"engine", false},
    [PORT] = {"port", false},
    [HOST] = {"host", true},
    [ADDRESS] = {"address", true},
    [MASTER_ADDR] = {"master_addr", false},
    [RUN_DIR] = {"run_dir", false},
    [DEPLOYMENT] = {"deployment", false},
};

enum piece { PIECE_BYTE, PIECE_WORD, PIECE_BAD, PIECE_END };

/* The next piece of a value at `*inout_at`, which moves behind it. */
static enum piece next_piece(const char **inout_at, enum word *ret_word)
{
    const char *at = *inout_at;
    if (at[0] == '\0')
        return PIECE_END;
    if (at[0] == '$' && at[1] == '$' && at[2] == '{') {
        *inout_at = at + 2; /* "$${": the brace comes as the next byte; see expand */
        return PIECE_BYTE;
    }
    if (at[0] != '$' || at[1] != '{') {
        *inout_at = at + 1;
        return PIECE_BYTE;
    }
    size_t bytes = strcspn(at + 2, "}");
    for (int word = 0; word < WORDS && at[2 + bytes] == '}'; word++) {
        if (strlen(words[word].name) == bytes && memcmp(words[word].name, at + 2, bytes) == 0) {
            *inout_at = at + 3 + bytes;
            *ret_word = (enum word)word;
            return PIECE_WORD;
        }
    }
    return PIECE_BAD;
}

bool gms_environment_check_value(const char *value, struct gms_error *ret_error)
{
    enum word word = RANK;
    for (const char *at = value;;) {
        enum piece piece = next_piece(&at, &word);
        if (piece == PIECE_END)
            return true;
        if (piece == PIECE_BAD) {
            gms_fail(
                ret_error, GMS_E_CONFIG,
                "\"%.40s\" is none of ${rank}, ${local_rank}, ${world_size}, ${local_world_size}, ${engine}, "
                "${port}, ${host}, ${address}, ${master_addr}, ${run_dir}, ${deployment}; write $${ for a plain ${",
                at);
            return false;
        }
    }
}

bool gms_environment_is_of_rank(const char *value)
{
    enum word word = RANK;
    for (const char *at = value;;) {
        enum piece piece = next_piece(&at, &word);
        if (piece == PIECE_END || piece == PIECE_BAD)
            return false;
        if (piece == PIECE_WORD && words[word].of_rank)
            return true;
    }
}

bool gms_environment_is_of_process(const char *value)
{
    enum word word = RANK;
    for (const char *at = value;;) {
        enum piece piece = next_piece(&at, &word);
        if (piece == PIECE_END || piece == PIECE_BAD)
            return false;
        if (piece == PIECE_WORD && word != ENGINE && word != WORLD_SIZE && word != RUN_DIR && word != DEPLOYMENT)
            return true;
    }
}

/* A list under construction. */
struct list {
    char *bytes;
    size_t used, capacity;
    size_t wanted; /* more than capacity: something did not fit */
};

static void put(struct list *list, const char *bytes, size_t count)
{
    list->wanted += count;
    if (list->wanted > list->capacity)
        return;
    memcpy(list->bytes + list->used, bytes, count);
    list->used += count;
}

static void put_text(struct list *list, const char *text)
{
    put(list, text, strlen(text));
}

static void put_word(struct list *list, enum word word, const struct gms_config *config,
                     const struct gms_environment_place *place)
{
    const uint32_t numbers[WORDS] = {[RANK] = place->rank,        [LOCAL_RANK] = place->local_rank,
                                     [WORLD_SIZE] = place->ranks, [LOCAL_WORLD_SIZE] = place->local_ranks,
                                     [ENGINE] = place->engine,    [PORT] = place->port};
    const char *const texts[WORDS] = {[HOST] = place->host,
                                      [ADDRESS] = place->address,
                                      [MASTER_ADDR] = place->master_address,
                                      [RUN_DIR] = config->run_dir,
                                      [DEPLOYMENT] = config->deployment};
    char number[16];
    snprintf(number, sizeof number, "%u", numbers[word]);
    put_text(list, texts[word] != NULL ? texts[word] : number);
}

static void drop(struct list *list, const char *name, size_t length)
{
    if (list->wanted > list->capacity)
        return; /* cut short: nothing in it can be relied on */
    char *entry = (char *)(uintptr_t)gms_environment_find(list->bytes, list->used, name, length);
    if (entry == NULL)
        return;
    size_t bytes = strlen(entry) + 1;
    memmove(entry, entry + bytes, (size_t)(list->bytes + list->used - (entry + bytes)));
    list->used -= bytes;
    list->wanted -= bytes;
}

static void put_expanded(struct list *list, const char *value, const struct gms_config *config,
                         const struct gms_environment_place *place)
{
    enum word word = RANK;
    for (const char *at = value;;) {
        const char *from = at;
        enum piece piece = next_piece(&at, &word);
        if (piece == PIECE_END || piece == PIECE_BAD) /* a bad one was refused with the file */
            return;
        if (piece == PIECE_WORD) {
            put_word(list, word, config, place);
        } else if (at - from == 2) {
            put(list, "${", 2);
            at++;
        } else {
            put(list, from, 1);
        }
    }
}

gms_status gms_environment_expand(const char *value, const struct gms_config *config,
                                  const struct gms_environment_place *place, char *ret_text, size_t capacity,
                                  struct gms_error *ret_error)
{
    struct list list = {.bytes = ret_text, .capacity = capacity};
    if (!gms_environment_check_value(value, ret_error))
        return GMS_E_CONFIG;
    put_expanded(&list, value, config, place);
    put(&list, "", 1);
    if (list.wanted > capacity)
        return gms_fail(ret_error, GMS_E_CONFIG, "\"%.64s\" has %zu bytes when expanded, the limit is %zu", value,
                        list.wanted - 1, capacity - 1);
    return GMS_OK;
}

/* `entry` is NAME=VALUE. */
static void set_plain(struct list *list, const char *entry)
{
    drop(list, entry, gms_environment_name_bytes(entry));
    put(list, entry, strlen(entry) + 1);
}

/* The same, with its ${...} expanded. */
static void set(struct list *list, const char *entry, const struct gms_config *config,
                const struct gms_environment_place *place)
{
    drop(list, entry, gms_environment_name_bytes(entry));
    put(list, entry, gms_environment_name_bytes(entry) + 1);
    put_expanded(list, entry + gms_environment_name_bytes(entry) + 1, config, place);
    put(list, "", 1);
}

static void set_number(struct list *list, const char *name, uint32_t number)
{
    char entry[64];
    snprintf(entry, sizeof entry, "%s=%u", name, number);
    set_plain(list, entry);
}

/* ----------------------------------------------------------------------------------------------- renames ------- */

bool gms_environment_check_rename(const char *entry, struct gms_error *ret_error)
{
    static const char name[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";
    const char *equal = strchr(entry, '=');
    if (equal != NULL) {
        const char *to = equal + 1;
        size_t from_bytes = strspn(entry, name), to_bytes = strspn(to, name);
        bool from_star = entry[from_bytes] == '*', to_star = to[to_bytes] == '*';
        if (from_star == to_star && entry + from_bytes + from_star == equal && to[to_bytes + to_star] == '\0' &&
            from_bytes + from_star > 0 && to_bytes > 0 && (from_bytes != to_bytes || memcmp(entry, to, to_bytes) != 0))
            return true;
    }
    gms_fail(ret_error, GMS_E_CONFIG, "is not FROM=TO with two different names, both or neither with * at their end");
    return false;
}

/* Does `entry`'s name match FROM of the rename? Its new name goes to ret_name. */
static bool renamed(const char *rename, const char *entry, size_t entry_name, char *ret_name, size_t capacity)
{
    const char *to = strchr(rename, '=') + 1;
    size_t from_bytes = (size_t)(to - 1 - rename), to_bytes = strlen(to);
    if (rename[from_bytes - 1] != '*') {
        if (from_bytes != entry_name || memcmp(rename, entry, entry_name) != 0)
            return false;
        return (size_t)snprintf(ret_name, capacity, "%s", to) < capacity;
    }
    from_bytes--;
    if (entry_name < from_bytes || memcmp(rename, entry, from_bytes) != 0)
        return false;
    return (size_t)snprintf(ret_name, capacity, "%.*s%.*s", (int)(to_bytes - 1), to, (int)(entry_name - from_bytes),
                            entry + from_bytes) < capacity;
}

/* The copies of `originals`, which is no part of the list. */
static void put_renamed(struct list *list, const struct gms_config *config, const char *originals, size_t before)
{
    for (uint32_t at = 0; at < config->rename_bytes; at += (uint32_t)strlen(config->rename + at) + 1) {
        for (size_t i = 0; i < before; i += strlen(originals + i) + 1) {
            const char *entry = originals + i;
            char name[256];
            if (!renamed(config->rename + at, entry, gms_environment_name_bytes(entry), name, sizeof name))
                continue;
            drop(list, name, strlen(name));
            put_text(list, name);
            put_text(list, entry + gms_environment_name_bytes(entry));
            put(list, "", 1);
        }
    }
}

static void copy_renamed(struct list *list, const struct gms_config *config)
{
    const size_t before = list->used; /* copies of copies are none */
    char *originals = malloc(before + 1);
    if (originals == NULL) {
        list->wanted = SIZE_MAX;
        return;
    }
    memcpy(originals, list->bytes, before);
    put_renamed(list, config, originals, before);
    free(originals);
}

gms_status gms_environment_renamed(const struct gms_config *config, const void *variables, size_t bytes,
                                   char *ret_copies, size_t capacity, size_t *ret_bytes, struct gms_error *ret_error)
{
    struct list list = {.bytes = ret_copies, .capacity = capacity};
    put_renamed(&list, config, variables, bytes);
    if (list.wanted > capacity)
        return gms_fail(ret_error, GMS_E_CONFIG, "the copies of environment.rename have %zu bytes, the limit is %zu",
                        list.wanted, capacity);
    *ret_bytes = list.used;
    return GMS_OK;
}

/* -------------------------------------------------------------------------------------------- the whole -------- */

/* Entries of a scoped list are "N NAME=VALUE". */
static const char *scoped_entry(const char *packed, uint32_t *ret_scope)
{
    char *end = NULL;
    *ret_scope = (uint32_t)strtoul(packed, &end, 10);
    return end + 1;
}

/* Whether a name, as it stands in the file, differs by rank. */
static bool name_is_of_rank(const struct gms_config *config, const char *name, size_t length)
{
    static const char *const always[] = {"RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
    uint32_t scope;
    for (size_t i = 0; i < sizeof always / sizeof always[0]; i++)
        if (strlen(always[i]) == length && memcmp(always[i], name, length) == 0)
            return true;
    for (uint32_t at = 0; at < config->rank_environment_bytes;
         at += (uint32_t)strlen(config->rank_environment + at) + 1) {
        const char *entry = scoped_entry(config->rank_environment + at, &scope);
        if (gms_environment_name_bytes(entry) == length && memcmp(entry, name, length) == 0)
            return true;
    }
    for (uint32_t at = 0; at < config->environment_bytes; at += (uint32_t)strlen(config->environment + at) + 1) {
        const char *entry = config->environment + at;
        if (gms_environment_name_bytes(entry) == length && memcmp(entry, name, length) == 0 &&
            gms_environment_is_of_rank(entry + length + 1))
            return true;
    }
    for (uint32_t at = 0; at < config->engine_environment_bytes;
         at += (uint32_t)strlen(config->engine_environment + at) + 1) {
        const char *entry = scoped_entry(config->engine_environment + at, &scope);
        if (gms_environment_name_bytes(entry) == length && memcmp(entry, name, length) == 0 &&
            gms_environment_is_of_rank(entry + length + 1))
            return true;
    }
    return false;
}

/* The same for a name that a rename made. */
static bool is_of_rank(const struct gms_config *config, const struct list *list, const char *name, size_t length)
{
    if (name_is_of_rank(config, name, length))
        return true;
    for (uint32_t at = 0; at < config->rename_bytes; at += (uint32_t)strlen(config->rename + at) + 1) {
        for (size_t i = 0; i < list->used; i += strlen(list->bytes + i) + 1) {
            const char *entry = list->bytes + i;
            char made[256];
            if (renamed(config->rename + at, entry, gms_environment_name_bytes(entry), made, sizeof made) &&
                strlen(made) == length && memcmp(made, name, length) == 0 &&
                name_is_of_rank(config, entry, gms_environment_name_bytes(entry)))
                return true;
        }
    }
    return false;
}

static void put_names(struct list *list, const struct gms_config *config, const char *variable, bool of_rank)
{
    struct list names = {.bytes = malloc(list->used + 64), .capacity = list->used + 64};
    if (names.bytes == NULL) {
        list->wanted = SIZE_MAX;
        return;
    }
    put_text(&names, variable);
    put_text(&names, "=");
    const size_t empty = names.used;
    for (size_t i = 0; i < list->used; i += strlen(list->bytes + i) + 1) {
        const char *entry = list->bytes + i;
        if (is_of_rank(config, list, entry, gms_environment_name_bytes(entry)) != of_rank)
            continue;
        if (names.used > empty)
            put_text(&names, " ");
        put(&names, entry, gms_environment_name_bytes(entry));
    }
    put(&names, "", 1);
    drop(list, variable, strlen(variable));
    put(list, names.bytes, names.used);
    free(names.bytes);
}

static void set_scoped(struct list *list, const char *packed, uint32_t bytes, uint32_t wanted,
                       const struct gms_config *config, const struct gms_environment_place *place)
{
    for (uint32_t at = 0; at < bytes; at += (uint32_t)strlen(packed + at) + 1) {
        uint32_t scope;
        const char *entry = scoped_entry(packed + at, &scope);
        if (scope == wanted)
            set(list, entry, config, place);
    }
}

gms_status gms_environment_render(const struct gms_config *config, const void *inherited, size_t inherited_bytes,
                                  const struct gms_environment_place *place, char *variables, size_t capacity,
                                  size_t *ret_bytes, struct gms_error *ret_error)
{
    struct list list = {.bytes = variables, .capacity = capacity};
    char address[300];
    put(&list, inherited, inherited_bytes);
    set_number(&list, "RANK", place->rank);
    set_number(&list, "WORLD_SIZE", place->ranks);
    set_number(&list, "LOCAL_RANK", place->local_rank);
    set_number(&list, "LOCAL_WORLD_SIZE", place->local_ranks);
    snprintf(address, sizeof address, "MASTER_ADDR=%s", place->master_address);
    set_plain(&list, address);
    set_number(&list, "MASTER_PORT", place->port);
    for (uint32_t at = 0; at < config->environment_bytes; at += (uint32_t)strlen(config->environment + at) + 1)
        set(&list, config->environment + at, config, place);
    set_scoped(&list, config->engine_environment, config->engine_environment_bytes, place->engine, config, place);
    set_scoped(&list, config->rank_environment, config->rank_environment_bytes, place->rank, config, place);
    if (list.wanted <= capacity)
        copy_renamed(&list, config);
    if (list.wanted <= capacity)
        put_names(&list, config, "GMS_RANK_NAMES", true);
    if (list.wanted <= capacity)
        put_names(&list, config, "GMS_AGREED_NAMES", false);
    if (list.wanted > capacity)
        return gms_fail(
            ret_error, GMS_E_CONFIG,
            "the environment of engine %u rank %u is longer than %zu bytes in all: shorten environment.set, "
            ".engines, .ranks, or what GMS_ variables rank 0 was started with",
            place->engine, place->rank, capacity);
    *ret_bytes = list.used;
    return GMS_OK;
}

/* --------------------------------------------------------------------------------------------- inherited ------- */

/* What a process is told about its own place, or tells somebody itself: never handed on. */
static const char *const own_names[] = {"GMS_RUN_DIR",   "GMS_RANK",       "GMS_WORLD_SIZE",
                                        "GMS_LAUNCH_ID", "GMS_RANK_NAMES", "GMS_AGREED_NAMES"};
/* Names that programs of this version read or set, beside those. */
static const char *const known_names[] = {"GMS_EPOCH", "GMS_ENDPOINT"};
/* Names that libgms reads in engine ranks: handed on. */
static const char *const engine_names[] = {"GMS_NCCL_LIBRARY", "GMS_REGISTERS_AGAIN"};

static bool is_listed(const char *const *list, size_t count, const char *name, size_t bytes)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(list[i]) == bytes && memcmp(list[i], name, bytes) == 0)
            return true;
    return false;
}

static bool is_inherited(const char *entry)
{
    size_t bytes = gms_environment_name_bytes(entry);
    if (entry[bytes] != '=')
        return false;
    if (bytes == strlen("FAILOVER_LOCK_PATH") && memcmp(entry, "FAILOVER_LOCK_PATH", bytes) == 0)
        return true;
    return bytes > 4 && memcmp(entry, "GMS_", 4) == 0 &&
           !is_listed(own_names, sizeof own_names / sizeof own_names[0], entry, bytes) &&
           !is_listed(known_names, sizeof known_names / sizeof known_names[0], entry, bytes);
}

bool gms_environment_is_unknown(const char *name, size_t bytes)
{
    return bytes > 4 && memcmp(name, "GMS_", 4) == 0 &&
           !is_listed(own_names, sizeof own_names / sizeof own_names[0], name, bytes) &&
           !is_listed(known_names, sizeof known_names / sizeof known_names[0], name, bytes) &&
           !is_listed(engine_names, sizeof engine_names / sizeof engine_names[0], name, bytes);
}

static int compare_entries(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* A copy that a launcher has forwarded under another name: does `entry`'s name match TO of the rename? The entry under
 * its own name goes to ret_entry, which the caller frees. False: no, or no memory. */
static bool renamed_back(const char *rename, const char *entry, char **ret_entry)
{
    const char *to = strchr(rename, '=') + 1;
    size_t from_bytes = (size_t)(to - 1 - rename), to_bytes = strlen(to), name = gms_environment_name_bytes(entry);
    bool star = rename[from_bytes - 1] == '*';
    size_t kept = star ? to_bytes - 1 : to_bytes;
    if (entry[name] != '=' || memcmp(entry, to, kept < name ? kept : name) != 0 || (star ? name <= kept : name != kept))
        return false;
    return asprintf(ret_entry, "%.*s%s", (int)(from_bytes - star), rename, entry + kept) > 0;
}

/* Adds what the launcher forwarded only under the deployment's other names. */
static void put_renamed_back(struct list *list, char *const environment[], const struct gms_config *config)
{
    for (uint32_t at = 0; at < config->rename_bytes; at += (uint32_t)strlen(config->rename + at) + 1)
        for (char *const *entry = environment; *entry != NULL; entry++) {
            char *original = NULL;
            if (!renamed_back(config->rename + at, *entry, &original))
                continue;
            if (is_inherited(original) && list->wanted <= list->capacity &&
                gms_environment_find(list->bytes, list->used, original, gms_environment_name_bytes(original)) == NULL)
                put(list, original, strlen(original) + 1);
            free(original);
        }
}

gms_status gms_environment_inherit(char *const environment[], const struct gms_config *config, char *variables,
                                   size_t capacity, size_t *ret_bytes, struct gms_error *ret_error)
{
    struct list list = {.bytes = variables, .capacity = capacity};
    size_t count = 0, filled = 0;
    for (char *const *entry = environment; *entry != NULL; entry++)
        count += is_inherited(*entry);
    const char **entries = calloc(count + 1, sizeof *entries);
    if (entries == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for a list of %zu variables", count);
    for (char *const *entry = environment; *entry != NULL && filled < count; entry++)
        if (is_inherited(*entry))
            entries[filled++] = *entry;
    qsort(entries, filled, sizeof *entries, compare_entries);
    for (size_t i = 0; i < filled; i++)
        if (gms_environment_find(list.bytes, list.used, entries[i], gms_environment_name_bytes(entries[i])) ==
            NULL) /* getenv takes the first too */
            put(&list, entries[i], strlen(entries[i]) + 1);
    free(entries);
    put_renamed_back(&list, environment, config);
    if (list.wanted > capacity)
        return gms_fail(ret_error, GMS_E_CONFIG,
                        "GMS_ variables and FAILOVER_LOCK_PATH of this process have %zu bytes, the limit is %zu",
                        list.wanted, capacity);
    *ret_bytes = list.used;
    return GMS_OK;
}
