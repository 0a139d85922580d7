/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-ctl/table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "core/ballot.h"

enum { CELL_BYTES = 64 };

struct style {
    const char *bold, *bad, *off;
};

static const char *const slot_states[] = {"idle", "leased", "sealed", "released", "quarantined", "retired"};
static const char *const steps[] = {"condemn_ns", "fence_ns", "classify_ns", "promote_ns", "adopt_ns", "serve_ns"};
static const char *const counts[] = {"sealed_here", "adoptable_here", "adopted", "quarantined", "damaged"};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Text from a document goes to a terminal: no control characters. Static ring, good for one printf. */
static const char *text_of(const json_t *object, const char *key)
{
    static char ring[8][192];
    static unsigned next;
    char *text = ring[next++ % 8];
    const char *value = json_string_value(json_object_get(object, key));
    size_t used = 0;

    if (value == NULL || *value == '\0') {
        return "-";
    }
    for (; used < sizeof ring[0] - 1 && value[used] != '\0'; used++) {
        text[used] = (unsigned char)value[used] < 0x20 || value[used] == 0x7f ? '?' : value[used];
    }
    text[used] = '\0';
    return text;
}

static bool number_of(const json_t *object, const char *key, int64_t *ret_value)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_integer(value)) {
        return false;
    }
    *ret_value = json_integer_value(value);
    return true;
}

/* The number as text, "-" when missing or negative. Static ring like text_of. */
static const char *digits_of(const json_t *object, const char *key)
{
    static char ring[16][24];
    static unsigned next;
    char *text = ring[next++ % 16];
    int64_t value;

    if (!number_of(object, key, &value) || value < 0) {
        return "-";
    }
    snprintf(text, sizeof ring[0], "%" PRId64, value);
    return text;
}

static const char *size_of(const json_t *object, const char *key)
{
    static char ring[4][CELL_BYTES];
    static unsigned next;
    char *text = ring[next++ % 4];
    int64_t value;

    return number_of(object, key, &value) && value >= 0 ? gms_format_size((uint64_t)value, text, CELL_BYTES) : "-";
}

static const json_t *first_document(const struct gms_rank_status *ranks, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (ranks[i].document != NULL) {
            return ranks[i].document;
        }
    }
    return NULL;
}

/* ------------------------------------------------------------------------------------------------- verdict ---- */

static void write_verdict(FILE *stream, const json_t *document, const struct style *style)
{
    int64_t engine = -1;

    fprintf(stream, "deployment %s   world %s   epoch %s   round %s\n", text_of(document, "deployment"),
            digits_of(document, "world"), digits_of(document, "epoch"), digits_of(document, "round"));
    if (number_of(document, "serving_engine", &engine) && engine >= 0) {
        fprintf(stream, "%sSERVING%s  engine %s, incarnation %s, at %s\n", style->bold, style->off,
                digits_of(document, "serving_engine"), digits_of(document, "serving_incarnation"),
                text_of(document, "endpoint"));
        return;
    }
    fprintf(stream, "%sNOT SERVING%s  takeover: %s", style->bad, style->off, text_of(document, "takeover"));
    if (number_of(document, "successor_engine", &engine) && engine >= 0) {
        fprintf(stream, ", successor: engine %" PRId64, engine);
    } else {
        fprintf(stream, ", no successor");
    }
    fputc('\n', stream);
}

static bool differs(const struct gms_rank_status *ranks, size_t count, const json_t *first, const char *key)
{
    for (size_t i = 0; i < count; i++) {
        const json_t *mine = json_object_get(first, key), *other = json_object_get(ranks[i].document, key);

        if (ranks[i].document != NULL && mine != other && !json_equal(mine, other)) { /* both may lack it */
            return true;
        }
    }
    return false;
}

static void write_difference(FILE *stream, const struct gms_rank_status *ranks, size_t count, const char *key,
                             const char *name, const struct style *style)
{
    fprintf(stream, "%s!%s ranks differ in %s:", style->bad, style->off, name);
    for (size_t i = 0; i < count; i++) {
        if (ranks[i].document != NULL) {
            fprintf(stream, " rank %u: %s", ranks[i].rank, digits_of(ranks[i].document, key));
        }
    }
    fprintf(stream, " (for a moment during a round this is normal; ask again)\n");
}

static size_t engines_in_role(const json_t *document, const char *role)
{
    const json_t *engine;
    size_t index, found = 0;

    json_array_foreach(json_object_get(document, "engines"), index, engine)
    {
        const char *text = json_string_value(json_object_get(engine, "role"));

        found += text != NULL && strcmp(text, role) == 0;
    }
    return found;
}

static int64_t slots_in_state(const json_t *document, const char *state)
{
    const json_t *pool;
    size_t index;
    int64_t found = 0;

    json_array_foreach(json_object_get(document, "pools"), index, pool)
    {
        int64_t value;

        if (number_of(json_object_get(pool, "slots"), state, &value)) {
            found += value;
        }
    }
    return found;
}

/* Who is waited for, and who will be for ever. */
static void write_unproven(FILE *stream, const struct gms_rank_status *rank, const struct style *style)
{
    const json_t *suspect, *reclaim = json_object_get(rank->document, "reclaim");
    size_t index;

    json_array_foreach(json_object_get(reclaim, "suspects"), index, suspect)
    {
        bool pending = strcmp(text_of(suspect, "state"), "pending") == 0;

        if (pending || strcmp(text_of(suspect, "state"), "quarantined") == 0) {
            fprintf(stream, "%s!%s rank %u: engine %s incarnation %s %s: %s\n", style->bad, style->off, rank->rank,
                    digits_of(suspect, "engine"), digits_of(suspect, "incarnation"),
                    pending ? "is not known to be quiet yet" : "stays in quarantine until a --fresh start",
                    text_of(suspect, "reason"));
        }
    }
}

/* Who keeps an engine from being retired on this rank, and so everybody from being promoted. */
static void write_undead(FILE *stream, const struct gms_rank_status *rank, const struct style *style)
{
    const json_t *engine;
    size_t i;

    json_array_foreach(json_object_get(rank->document, "engines"), i, engine)
    {
        if (json_string_length(json_object_get(engine, "waits_for")) > 0) {
            fprintf(stream, "%s!%s rank %u: engine %s is not retired: waits for %s\n", style->bad, style->off,
                    rank->rank, digits_of(engine, "engine"), text_of(engine, "waits_for"));
        }
    }
}

static const json_t *engine_of(const json_t *document, int64_t id)
{
    const json_t *engine;
    size_t index;

    json_array_foreach(json_object_get(document, "engines"), index, engine)
    {
        int64_t its;

        if (number_of(engine, "engine", &its) && its == id) {
            return engine;
        }
    }
    return NULL;
}

/* A rank whose host allows less holds its processes less firmly: the fence is as good as the weakest. */
static void write_containment(FILE *stream, const struct gms_rank_status *ranks, size_t count,
                              const struct style *style)
{
    for (int64_t id = 0; id < GMS_MAX_ENGINES; id++) {
        const json_t *first = NULL;
        bool equal = true;

        for (size_t i = 0; i < count; i++) {
            const json_t *engine = engine_of(ranks[i].document, id);

            first = first != NULL ? first : engine;
            equal =
                equal && (engine == NULL || strcmp(text_of(engine, "containment"), text_of(first, "containment")) == 0);
        }
        if (equal) {
            continue;
        }
        fprintf(stream, "%s!%s ranks of engine %" PRId64 " are contained differently:", style->bad, style->off, id);
        for (size_t i = 0; i < count; i++) {
            const json_t *engine = engine_of(ranks[i].document, id);

            if (engine != NULL) {
                fprintf(stream, " rank %u: %s", ranks[i].rank, text_of(engine, "containment"));
            }
        }
        fputc('\n', stream);
    }
}

/* What an operator should know before any number. */
static void write_warnings(FILE *stream, const struct gms_rank_status *ranks, size_t count, const struct style *style)
{
    static const struct {
        const char *key, *name;
    } equal[] = {{"world", "world"}, {"epoch", "epoch"}, {"serving_incarnation", "who serves (incarnation)"}};
    const json_t *first = first_document(ranks, count);
    int64_t serving, successor;

    for (size_t i = 0; i < count; i++) {
        if (ranks[i].document == NULL) {
            fprintf(stream, "%s! rank %u does not answer%s: %s\n", style->bad, ranks[i].rank, style->off, ranks[i].why);
        }
    }
    if (first == NULL) {
        return;
    }
    for (size_t i = 0; i < COUNT(equal); i++) {
        if (differs(ranks, count, first, equal[i].key)) {
            write_difference(stream, ranks, count, equal[i].key, equal[i].name, style);
        }
    }
    if (!number_of(first, "serving_engine", &serving)) {
        serving = -1;
    }
    if (!number_of(first, "successor_engine", &successor)) {
        successor = -1;
    }
    if (serving < 0 && successor < 0) {
        fprintf(stream, "%s!%s start an engine: the first that is parked on all ranks is promoted\n", style->bad,
                style->off);
    } else if (engines_in_role(first, "parked") == 0) {
        fprintf(stream, "%s!%s no shadow is parked: the next fault ends service until an engine is started\n",
                style->bad, style->off);
    }
    for (size_t i = 0; i < count; i++) {
        write_undead(stream, &ranks[i], style);
    }
    write_containment(stream, ranks, count, style);
    for (size_t i = 0; i < count; i++) {
        if (json_is_false(json_object_get(ranks[i].document, "keeper"))) {
            fprintf(stream, "%s!%s rank %u has no keeper: memory and leases would be lost with its coordinator\n",
                    style->bad, style->off, ranks[i].rank);
        }
    }
    for (size_t i = 0; i < count; i++) {
        int64_t quarantined = slots_in_state(ranks[i].document, "quarantined");

        if (quarantined > 0) {
            fprintf(stream, "! rank %u: %" PRId64 " slots in quarantine are out of use: a dead engine may write them\n",
                    ranks[i].rank, quarantined);
        }
    }
    for (size_t i = 0; i < count; i++) {
        write_unproven(stream, &ranks[i], style);
    }
}

/* ------------------------------------------------------------------------------------------------- numbers ---- */

static void write_engines(FILE *stream, const struct gms_rank_status *ranks, size_t count, const struct style *style)
{
    bool any = false;

    for (size_t i = 0; i < count; i++) {
        any = any || json_array_size(json_object_get(ranks[i].document, "engines")) > 0;
    }
    if (!any) {
        fprintf(stream, "\nno engine has joined\n");
        return;
    }
    fprintf(stream, "\n%s%-6s %4s %11s  %-10s %8s  %-13s %10s  %s%s\n", style->bold, "engine", "rank", "incarnation",
            "role", "pid", "containment", "progress", "launch", style->off);
    for (size_t i = 0; i < count; i++) {
        const json_t *engine;
        size_t index;

        json_array_foreach(json_object_get(ranks[i].document, "engines"), index, engine)
        {
            fprintf(stream, "%-6s %4u %11s  %-10s %8s  %-13s %10s  %s\n", digits_of(engine, "engine"), ranks[i].rank,
                    digits_of(engine, "incarnation"), text_of(engine, "role"), digits_of(engine, "pid"),
                    text_of(engine, "containment"), digits_of(engine, "progress"), text_of(engine, "launch"));
        }
    }
}

static void write_ranks(FILE *stream, const struct gms_rank_status *ranks, size_t count, const struct style *style)
{
    fprintf(stream, "\n%s%-6s %8s %6s %8s  %-11s %23s %12s%s\n", style->bold, "rank", "pid", "epoch", "round",
            "takeover", "memory used/capacity", "descriptors", style->off);
    for (size_t i = 0; i < count; i++) {
        const json_t *document = ranks[i].document;
        char memory[2 * CELL_BYTES + 2];

        if (document == NULL) {
            fprintf(stream, "%-6u %sdoes not answer%s\n", ranks[i].rank, style->bad, style->off);
            continue;
        }
        snprintf(memory, sizeof memory, "%s/%s", size_of(document, "used_bytes"), size_of(document, "capacity_bytes"));
        fprintf(stream, "%-6u %8s %6s %8s  %-11s %23s %12s\n", ranks[i].rank, digits_of(document, "pid"),
                digits_of(document, "epoch"), digits_of(document, "round"), text_of(document, "takeover"), memory,
                digits_of(document, "descriptors"));
    }
}

static void write_pools(FILE *stream, const struct gms_rank_status *ranks, size_t count, const struct style *style)
{
    const json_t *first = first_document(ranks, count);

    if (first == NULL || json_array_size(json_object_get(first, "pools")) == 0) {
        return;
    }
    fprintf(stream, "\n%s%-12s %4s  %-8s %-12s %10s", style->bold, "pool", "rank", "kind", "state", "size");
    for (size_t s = 0; s < COUNT(slot_states); s++) {
        fprintf(stream, " %11s", slot_states[s]);
    }
    fprintf(stream, "%s\n", style->off);
    for (size_t i = 0; i < count; i++) {
        const json_t *pool;
        size_t index;

        json_array_foreach(json_object_get(ranks[i].document, "pools"), index, pool)
        {
            fprintf(stream, "%-12s %4u  %-8s %-12s %10s", text_of(pool, "name"), ranks[i].rank, text_of(pool, "kind"),
                    text_of(pool, "state"), size_of(pool, "bytes"));
            for (size_t s = 0; s < COUNT(slot_states); s++) {
                fprintf(stream, " %11s", digits_of(json_object_get(pool, "slots"), slot_states[s]));
            }
            fputc('\n', stream);
        }
    }
}

/* What kv pools may have, and what parked engines keep, tag by tag. */
static void write_budget(FILE *stream, const struct gms_rank_status *ranks, size_t count, const struct style *style)
{
    const json_t *first = json_object_get(first_document(ranks, count), "budget");
    int64_t agreed = 0;

    if (first == NULL || !number_of(first, "agreed_bytes", &agreed) || agreed == 0) {
        return;
    }
    fprintf(stream, "\n%skv budget%s  %s on each rank (the least, rank %s), parking preset %s\n", style->bold,
            style->off, size_of(first, "agreed_bytes"), digits_of(first, "agreed_rank"), text_of(first, "preset"));
    fprintf(stream, "%s%-6s %10s %10s %10s %18s  %s%s\n", style->bold, "rank", "of", "weights", "percent",
            "for each shadow", "measured by", style->off);
    for (size_t i = 0; i < count; i++) {
        const json_t *budget = json_object_get(ranks[i].document, "budget");

        if (budget != NULL) {
            fprintf(stream, "%-6u %10s %10s %10s %18s  %s\n", ranks[i].rank, size_of(budget, "total_bytes"),
                    size_of(budget, "weights_bytes"), digits_of(budget, "percent"), size_of(budget, "kept_bytes"),
                    text_of(budget, "measured_by"));
        }
    }
}

static void write_milliseconds(FILE *stream, const json_t *tag, const char *key)
{
    int64_t ns = 0;

    if (number_of(tag, key, &ns) && ns > 0) {
        fprintf(stream, " %9.3f", (double)ns / 1e6);
    } else {
        fprintf(stream, " %9s", "-");
    }
}

static void write_parked(FILE *stream, const struct gms_rank_status *ranks, size_t count, const struct style *style)
{
    bool any = false;

    for (size_t i = 0; i < count; i++) {
        const json_t *engine, *tag;
        size_t e, t;

        json_array_foreach(json_object_get(ranks[i].document, "engines"), e, engine)
        {
            const json_t *memory = json_object_get(engine, "memory");

            json_array_foreach(json_object_get(memory, "tags"), t, tag)
            {
                if (!any) {
                    fprintf(stream, "\n%s%-6s %4s  %-16s %-8s %10s %9s %9s   %s%s\n", style->bold, "engine", "rank",
                            "tag", "parked", "bytes", "park ms", "wake ms", "keeps beside pools", style->off);
                }
                any = true;
                fprintf(stream, "%-6s %4u  %-16s %-8s %10s", digits_of(engine, "engine"), ranks[i].rank,
                        text_of(tag, "tag"), text_of(tag, "policy"), size_of(tag, "bytes"));
                write_milliseconds(stream, tag, "park_ns");
                write_milliseconds(stream, tag, "wake_ns");
                if (t == 0) {
                    fprintf(stream, "   %s %s", size_of(memory, "footprint_bytes"), text_of(memory, "measured_by"));
                }
                fputc('\n', stream);
            }
        }
    }
}

static const json_t *last_takeover(const json_t *document)
{
    const json_t *takeovers = json_object_get(document, "takeovers");
    const json_t *takeover, *last = NULL;
    size_t index;
    int64_t greatest = -1, epoch;

    json_array_foreach(takeovers, index, takeover)
    {
        if (number_of(takeover, "epoch", &epoch) && epoch > greatest) {
            greatest = epoch;
            last = takeover;
        }
    }
    return last;
}

/* Milliseconds from detection to each step's end: "-" for a step that was not reached on this rank. */
static void write_takeover_row(FILE *stream, uint32_t rank, const json_t *takeover)
{
    int64_t detected = 0, reached;

    fprintf(stream, "%-6u", rank);
    number_of(takeover, "detect_ns", &detected);
    for (size_t s = 0; s < COUNT(steps); s++) {
        if (detected > 0 && number_of(takeover, steps[s], &reached) && reached >= detected) {
            fprintf(stream, " %10.3f", (double)(reached - detected) / 1e6);
        } else {
            fprintf(stream, " %10s", "-");
        }
    }
    for (size_t c = 0; c < COUNT(counts); c++) {
        fprintf(stream, " %11s", digits_of(takeover, counts[c]));
    }
    fputc('\n', stream);
}

static void write_takeover(FILE *stream, const struct gms_rank_status *ranks, size_t count, const struct style *style)
{
    static const char *const step_titles[] = {"condemn", "fence", "classify", "promote", "adopt", "serve"};
    static const char *const count_titles[] = {"sealed", "adoptable", "adopted", "quarantined", "damaged"};
    const json_t *last = last_takeover(first_document(ranks, count));

    if (last == NULL) {
        return;
    }
    fprintf(stream,
            "\n%slast takeover%s  epoch %s: engine %s (incarnation %s) -> engine %s (incarnation %s), cause: %s\n",
            style->bold, style->off, digits_of(last, "epoch"), digits_of(last, "from_engine"),
            digits_of(last, "from_incarnation"), digits_of(last, "to_engine"), digits_of(last, "to_incarnation"),
            text_of(last, "cause"));
    fprintf(stream, "%-6s", "rank");
    for (size_t s = 0; s < COUNT(step_titles); s++) {
        fprintf(stream, " %10s", step_titles[s]);
    }
    for (size_t c = 0; c < COUNT(count_titles); c++) {
        fprintf(stream, " %11s", count_titles[c]);
    }
    fprintf(stream, "   (ms after detection; slots)\n");
    for (size_t i = 0; i < count; i++) {
        const json_t *takeover = last_takeover(ranks[i].document);

        if (takeover != NULL) {
            write_takeover_row(stream, ranks[i].rank, takeover);
        }
    }
}

static void write_suspects(FILE *stream, const struct gms_rank_status *ranks, size_t count, const struct style *style)
{
    bool any = false;

    for (size_t i = 0; i < count; i++) {
        const json_t *suspect, *reclaim = json_object_get(ranks[i].document, "reclaim");
        size_t index;

        json_array_foreach(json_object_get(reclaim, "suspects"), index, suspect)
        {
            if (!any) {
                fprintf(stream, "\n%s%-6s %6s %11s %-22s %7s %8s %7s  %s%s\n", style->bold, "rank", "engine",
                        "incarnation", "quarantine", "pages", "returned", "trials", "provider", style->off);
            }
            any = true;
            fprintf(stream, "%-6u %6s %11s %-22s %7s %8s %7s  %s\n", ranks[i].rank, digits_of(suspect, "engine"),
                    digits_of(suspect, "incarnation"), text_of(suspect, "state"), digits_of(suspect, "pages"),
                    digits_of(suspect, "returned"), digits_of(suspect, "trials"), text_of(suspect, "provider"));
        }
    }
}

static void write_transfers(FILE *stream, const struct gms_rank_status *ranks, size_t count, const struct style *style)
{
    const json_t *transfer;
    const json_t *first = first_document(ranks, count);
    size_t index;

    if (first == NULL || json_array_size(json_object_get(first, "transfers")) == 0) {
        return;
    }
    fprintf(stream, "\n%s%-8s %11s %8s %6s %12s%s\n", style->bold, "transfer", "incarnation", "finished", "failed",
            "age", style->off);
    json_array_foreach(json_object_get(first, "transfers"), index, transfer)
    {
        char age[CELL_BYTES] = "-";
        int64_t age_ns;

        if (number_of(transfer, "age_ns", &age_ns) && age_ns >= 0) {
            gms_format_duration((uint64_t)age_ns, age, sizeof age);
        }
        fprintf(stream, "%-8s %11s %8s %6s %12s\n", digits_of(transfer, "id"), digits_of(transfer, "incarnation"),
                digits_of(transfer, "finished"), digits_of(transfer, "failed"), age);
    }
}

void gms_table_write(FILE *stream, const struct gms_rank_status *ranks, size_t count, const char *upkeep, bool color)
{
    static const struct style plain = {"", "", ""}, colored = {"\033[1m", "\033[1;31m", "\033[0m"};
    const struct style *style = color ? &colored : &plain;
    const json_t *first = first_document(ranks, count);

    if (first != NULL) {
        write_verdict(stream, first, style);
    } else {
        fprintf(stream,
                "%sNO COORDINATOR ANSWERS%s  a serving engine runs on, but no fault would be handled (gms-ctl serving "
                "tells who served last; the coordinators' log why they ended and what to do)\n",
                style->bad, style->off);
    }
    write_warnings(stream, ranks, count, style);
    if (upkeep[0] != '\0') {
        fprintf(stream, "%s!%s ", style->bad, style->off);
        for (const char *at = upkeep; *at != '\0' && *at != '\n'; at++) {
            fputc((unsigned char)*at < 0x20 || *at == 0x7f ? '?' : *at, stream);
        }
        fputc('\n', stream);
    }
    if (first != NULL) {
        write_engines(stream, ranks, count, style);
        write_ranks(stream, ranks, count, style);
        write_pools(stream, ranks, count, style);
        write_budget(stream, ranks, count, style);
        write_parked(stream, ranks, count, style);
        write_takeover(stream, ranks, count, style);
        write_suspects(stream, ranks, count, style);
        write_transfers(stream, ranks, count, style);
    }
}
