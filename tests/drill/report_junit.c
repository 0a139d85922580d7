/* SPDX-License-Identifier: Apache-2.0 */
#include "report_junit.h"

#include <stdio.h>
#include <stdlib.h>

#include "markup.h"

static void element(FILE *stream, const char *name, const char *message, const struct drill_result *result)
{
    fprintf(stream, "      <%s message=\"", name);
    drill_markup_text(stream, message);
    fputs("\">", stream);
    for (size_t i = 0; result != NULL && i < result->failure_count && i < DRILL_MAX_FAILURES; i++) {
        drill_markup_text(stream, result->failures[i]);
        fputc('\n', stream);
    }
    fprintf(stream, "</%s>\n", name);
}

static void test_case(FILE *stream, const struct drill_round *round)
{
    fputs("    <testcase classname=\"gms-failover-test\" name=\"", stream);
    drill_markup_text(stream, round->name);
    fprintf(stream, "\" time=\"%.3f\">\n", round->seconds);
    switch (round->word) {
    case DRILL_WORD_FAILED:
        element(stream, "failure", round->reason, round->result);
        break;
    case DRILL_WORD_COULD_NOT_RUN:
        element(stream, "error", round->reason, round->result);
        break;
    case DRILL_WORD_SKIPPED:
        element(stream, "skipped", round->reason, NULL);
        break;
    case DRILL_WORD_PASSED:
    case DRILL_WORD_COUNT:
        break;
    }
    fputs("    </testcase>\n", stream);
}

char *drill_report_junit(struct drill_campaign *campaign)
{
    char *text = NULL;
    size_t bytes = 0, errors = drill_campaign_count(campaign, DRILL_WORD_COULD_NOT_RUN);
    FILE *stream = open_memstream(&text, &bytes);
    if (stream == NULL)
        return NULL;
    fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n", stream);
    fprintf(stream,
            "  <testsuite name=\"gms-failover-test\" tests=\"%zu\" failures=\"%zu\" errors=\"%zu\" skipped=\"%zu\" "
            "time=\"%.3f\" timestamp=\"%.19s\">\n",
            campaign->count + campaign->could_not_run, drill_campaign_count(campaign, DRILL_WORD_FAILED),
            errors + campaign->could_not_run, drill_campaign_count(campaign, DRILL_WORD_SKIPPED),
            (double)campaign->wall_ns / 1e9, campaign->environment.started);
    for (size_t i = 0; i < campaign->count; i++)
        test_case(stream, &campaign->rounds[i]);
    if (campaign->could_not_run) { /* else a run that never began would look like one without tests */
        fputs("    <testcase classname=\"gms-failover-test\" name=\"start\" time=\"0\">\n", stream);
        element(stream, "error", campaign->reason, NULL);
        fputs("    </testcase>\n", stream);
    }
    fputs("  </testsuite>\n</testsuites>\n", stream);
    bool bad = ferror(stream) != 0;
    if (fclose(stream) != 0 || bad) {
        free(text);
        return NULL;
    }
    return text;
}
