/* SPDX-License-Identifier: Apache-2.0 */
#include "report_charts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "markup.h"

enum {
    WIDTH = 1040,
    LEFT = 150,
    RIGHT = 20,
    ROW = 26,
    BAR = 14,
    SHOWN_RANKS = 16,
    BINS = 32,
    WIDE = 8 /* times the least: then by powers of ten */,
    TICKS = 8
};

static const char *const step_labels[DRILL_STEP_COUNT] = {
    [DRILL_STEP_DETECT] = "fault noticed",
    [DRILL_STEP_CONDEMN] = "engine condemned by all ranks",
    [DRILL_STEP_FENCE] = "its processes proven ended",
    [DRILL_STEP_CLASSIFY] = "its memory sorted",
    [DRILL_STEP_PROMOTE] = "successor chosen",
    [DRILL_STEP_ADOPT] = "blocks checked and taken over",
    [DRILL_STEP_SERVE] = "successor serving",
};

const char *drill_chart_step_label(enum drill_step step)
{
    return step < DRILL_STEP_COUNT ? step_labels[step] : "?";
}

static double ms(int64_t ns)
{
    return (double)ns / 1e6;
}

/* ------------------------------------------------------------------------------------------------ one axis ---- */

struct axis {
    double least, greatest; /* ms */
    bool logarithmic;
};

static double place(const struct axis *axis, double value)
{
    double from = axis->logarithmic ? log10(axis->least) : axis->least;
    double to = axis->logarithmic ? log10(axis->greatest) : axis->greatest;
    double at = axis->logarithmic ? log10(fmax(value, axis->least)) : value;
    double share = to > from ? (at - from) / (to - from) : 0;
    return LEFT + fmin(fmax(share, 0), 1) * (WIDTH - LEFT - RIGHT);
}

/* 1, 2 or 5 times a power of ten, not below `value`. */
static double round_up(double value)
{
    double power = pow(10, floor(log10(value)));
    static const double steps[] = {1, 2, 5, 10};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        if (steps[i] * power >= value * 0.999)
            return steps[i] * power;
    return 10 * power;
}

static void tick(FILE *page, const struct axis *axis, double value, int top, int bottom)
{
    double x = place(axis, value);
    fprintf(page,
            "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"var(--line)\"/><text class=\"soft\" x=\"%.1f\" "
            "y=\"%d\" text-anchor=\"middle\">%g</text>",
            x, x, top, bottom, x, bottom + 16, value);
}

static void ticks(FILE *page, const struct axis *axis, int top, int bottom)
{
    if (axis->logarithmic) {
        static const double steps[] = {1, 2, 5};
        for (double power = pow(10, floor(log10(axis->least))); power <= axis->greatest * 1.001; power *= 10)
            for (size_t i = 0; i < 3; i++)
                if (steps[i] * power >= axis->least * 0.999 && steps[i] * power <= axis->greatest * 1.001)
                    tick(page, axis, steps[i] * power, top, bottom);
    } else {
        double step = round_up((axis->greatest - axis->least) / TICKS);
        for (double at = ceil(axis->least / step) * step; at <= axis->greatest * 1.001; at += step)
            tick(page, axis, at, top, bottom);
    }
    fprintf(page, "<text class=\"soft\" x=\"%d\" y=\"%d\" text-anchor=\"end\">ms</text>", LEFT - 14, bottom + 16);
}

static void open_svg(FILE *page, int height, const char *label)
{
    fprintf(page, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH, height);
    drill_markup_text(page, label);
    fputs("\">", page);
}

static void row_label(FILE *page, int y, const char *text)
{
    fprintf(page, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">", LEFT - 14, y + BAR - 3);
    drill_markup_text(page, text);
    fputs("</text>", page);
}

static void bar(FILE *page, const struct axis *axis, int y, double from, double to, const char *colour,
                const char *title)
{
    double x = place(axis, from), end = place(axis, to);
    fprintf(page, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" rx=\"2\" fill=\"var(--%s)\"><title>", x, y,
            fmax(end - x, 1.5), BAR, colour);
    drill_markup_text(page, title);
    fprintf(page, ": %.2f to %.2f ms</title></rect>", from, to);
}

static void mark(FILE *page, const struct axis *axis, int y, double at, const char *colour, const char *title)
{
    double x = place(axis, at);
    fprintf(page, "<path d=\"M%.1f %d l5 %d l-5 %d l-5 -%d z\" fill=\"var(--%s)\" stroke=\"var(--card)\"><title>", x,
            y - 1, BAR / 2 + 1, BAR / 2 + 1, BAR / 2 + 1, colour);
    drill_markup_text(page, title);
    fprintf(page, ": %.2f ms</title></path>", at);
}

/* --------------------------------------------------------------------------------------------- distribution --- */

void drill_chart_distribution(FILE *page, const struct drill_numbers *gaps)
{
    if (gaps->count == 0)
        return;
    double least = fmax(ms(gaps->items[0]), 0.01), greatest = fmax(ms(gaps->items[gaps->count - 1]), least * 1.01);
    bool wide = greatest > WIDE * least;
    struct axis axis = {.least = least * 0.95, .greatest = greatest * 1.05, .logarithmic = wide};
    size_t bins[BINS] = {0}, most = 1;
    double from = wide ? log10(axis.least) : axis.least;
    double width = ((wide ? log10(axis.greatest) : axis.greatest) - from) / BINS;
    for (size_t i = 0; i < gaps->count; i++) {
        double at = fmax(ms(gaps->items[i]), axis.least);
        int bin = (int)(((wide ? log10(at) : at) - from) / width);
        bin = bin < 0 ? 0 : bin >= BINS ? BINS - 1 : bin;
        if (++bins[bin] > most)
            most = bins[bin];
    }
    int bottom = 170, top = 14;
    open_svg(page, 200, "How many streams paused how long");
    ticks(page, &axis, top, bottom);
    for (int i = 0; i < BINS; i++) {
        if (bins[i] == 0)
            continue;
        double begin = from + i * width, end = from + (i + 1) * width;
        if (wide) {
            begin = pow(10, begin);
            end = pow(10, end);
        }
        double x = place(&axis, begin), height = (double)(bottom - top) * (double)bins[i] / (double)most;
        fprintf(page,
                "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"2\" fill=\"var(--bar)\"><title>%zu "
                "streams: %.2f to %.2f ms</title></rect>",
                x + 1, bottom - height, place(&axis, end) - x - 2, height, bins[i], begin, end);
    }
    fprintf(page, "<text class=\"soft\" x=\"%d\" y=\"%d\" text-anchor=\"end\">%zu streams</text>", LEFT - 14, top + 10,
            most);
    double median = ms(gaps->items[gaps->count / 2]), x = place(&axis, median);
    fprintf(page,
            "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"var(--text)\" stroke-dasharray=\"3 3\"/><text "
            "x=\"%.1f\" y=\"%d\">half within %.1f ms</text></svg>",
            x, x, 2, bottom, x + 6, 12, median);
}

/* ------------------------------------------------------------------------------------------------ breakdown --- */

static void legend(FILE *page, bool with_clients)
{
    fputs("<ul class=\"legend\">", page);
    for (int step = 0; step < DRILL_STEP_COUNT; step++) {
        fprintf(page, "<li><i style=\"background:var(--s%d)\"></i>", step);
        drill_markup_text(page, step_labels[step]);
        fputs("</li>", page);
    }
    fputs("<li><i style=\"background:var(--s7)\"></i>first token at a client</li>", page);
    if (with_clients)
        fputs("<li><i style=\"background:var(--bar)\"></i>a new request complete</li>"
              "<li><i style=\"background:var(--old)\"></i>an old process, until it ended</li>",
              page);
    fputs("</ul>", page);
}

void drill_chart_breakdown(FILE *page, const struct drill_totals *totals)
{
    if (totals->first_token.count == 0)
        return;
    struct axis axis = {.greatest = ms(totals->first_token.median) * 1.02};
    open_svg(page, 70, "Medians of the steps of a failover");
    ticks(page, &axis, 6, 44);
    double before = 0;
    for (int step = 0; step < DRILL_STEP_COUNT; step++) {
        if (totals->steps[step].count == 0)
            continue;
        char colour[8];
        snprintf(colour, sizeof colour, "s%d", step);
        double at = fmax(ms(totals->steps[step].median), before);
        bar(page, &axis, 18, before, at, colour, step_labels[step]);
        before = at;
    }
    bar(page, &axis, 18, before, ms(totals->first_token.median), "s7", "first token at a client");
    row_label(page, 18, "median");
    fputs("</svg>", page);
    legend(page, false);
}

/* ------------------------------------------------------------------------------------------------- timeline --- */

static bool known(int64_t ns)
{
    return ns != INT64_MIN;
}

static void rank_rows(FILE *page, const struct axis *axis, int y, uint32_t index, const struct drill_rank_outcome *rank)
{
    char text[64];
    snprintf(text, sizeof text, "rank %u, old", index);
    row_label(page, y, text);
    if (rank->ended)
        bar(page, axis, y, 0, ms(rank->ended_ns), "old",
            rank->killed ? "the process that was struck, until it was seen to have ended"
                         : "the process that was fenced, until it was seen to have ended");
    if (known(rank->step_ns[DRILL_STEP_FENCE]))
        mark(page, axis, y, ms(rank->step_ns[DRILL_STEP_FENCE]), "s2", "proven ended with all its children");
    snprintf(text, sizeof text, "rank %u, new", index);
    row_label(page, y + ROW, text);
    if (!known(rank->promoted_ns))
        return;
    double from = ms(rank->promoted_ns);
    mark(page, axis, y + ROW, from, "s4", "promoted");
    if (known(rank->adopted_ns)) {
        bar(page, axis, y + ROW, from, ms(rank->adopted_ns), "s5", "checks and adopts blocks");
        from = ms(rank->adopted_ns);
    }
    if (known(rank->woken_ns)) {
        bar(page, axis, y + ROW, from, ms(rank->woken_ns), "s3", "wakes");
        from = ms(rank->woken_ns);
    }
    if (known(rank->serving_ns))
        bar(page, axis, y + ROW, from, ms(rank->serving_ns), "s6", "begins to serve");
}

void drill_chart_timeline(FILE *page, const struct drill_failover *failover, uint32_t ranks)
{
    int64_t last = failover->first_token_ns;
    if (failover->probe_done_ns > last)
        last = failover->probe_done_ns;
    for (int step = 0; step < DRILL_STEP_COUNT; step++)
        if (failover->steps[step].known && failover->steps[step].greatest_ns > last)
            last = failover->steps[step].greatest_ns;
    for (uint32_t rank = 0; rank < ranks && rank < DRILL_MAX_RANKS; rank++)
        if (failover->ranks[rank].ended && failover->ranks[rank].ended_ns > last)
            last = failover->ranks[rank].ended_ns;
    if (last <= 0)
        return;
    uint32_t shown = ranks < SHOWN_RANKS ? ranks : SHOWN_RANKS;
    struct axis axis = {.greatest = ms(last) * 1.03};
    int rows = 2 + 2 * (int)shown, bottom = 10 + rows * ROW;
    open_svg(page, bottom + 26, "What happened when, after the fault");
    ticks(page, &axis, 4, bottom);
    int y = 10;
    row_label(page, y, "clients");
    if (failover->first_token_ns >= 0)
        bar(page, &axis, y, 0, ms(failover->first_token_ns), "s0", "no token until");
    if (failover->first_token_ns >= 0)
        mark(page, &axis, y, ms(failover->first_token_ns), "s7", "first token of a stream that went on");
    if (failover->probe_done_ns >= 0)
        mark(page, &axis, y, ms(failover->probe_done_ns), "bar", "a new request complete");
    y += ROW;
    row_label(page, y, "group");
    double before = 0;
    for (int step = 0; step < DRILL_STEP_COUNT; step++) {
        if (!failover->steps[step].known)
            continue;
        char colour[8];
        snprintf(colour, sizeof colour, "s%d", step);
        double at = fmax(ms(failover->steps[step].greatest_ns), before);
        bar(page, &axis, y, before, at, colour, step_labels[step]);
        before = at;
    }
    y += ROW;
    for (uint32_t rank = 0; rank < shown; rank++, y += 2 * ROW)
        rank_rows(page, &axis, y, rank, &failover->ranks[rank]);
    fputs("</svg>", page);
    legend(page, true);
    if (shown < ranks)
        fprintf(page, "<p class=\"soft\">%u more ranks are in the table.</p>", ranks - shown);
}

/* ---------------------------------------------------------------------------------------------------- sides --- */

void drill_chart_sides(FILE *page, struct drill_side *sides, size_t count)
{
    double greatest = 0;
    struct drill_spread gaps[DRILL_SIDES];
    for (size_t i = 0; i < count; i++) {
        gaps[i] = drill_spread_of(&sides[i].gaps);
        greatest = fmax(greatest, ms(gaps[i].most_of_ten));
    }
    if (greatest <= 0)
        return;
    struct axis axis = {.greatest = greatest * 1.15};
    int bottom = 10 + (int)count * 34;
    open_svg(page, bottom + 26, "Median pause of a stream, side by side");
    ticks(page, &axis, 4, bottom);
    for (size_t i = 0; i < count; i++) {
        int y = 14 + (int)i * 34;
        row_label(page, y, sides[i].name);
        if (gaps[i].count == 0)
            continue;
        bar(page, &axis, y, 0, ms(gaps[i].median), i == 0 ? "good" : "s0", "median pause");
        double end = place(&axis, ms(gaps[i].median));
        fprintf(page, "<text x=\"%.1f\" y=\"%d\">%.1f ms</text>", end + 8, y + BAR - 3, ms(gaps[i].median));
    }
    fputs("</svg>", page);
}
