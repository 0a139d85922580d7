/* SPDX-License-Identifier: Apache-2.0
 *
 * gms-failover-test: parses its options into a plan, prints it, runs it, judges and reports.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "campaign.h"
#include "catalogue.h"
#include "options.h"
#include "plan.h"
#include "report.h"
#include "run.h"
#include "scratch.h"
#include "verdict.h"

/* The catalogue for people, and as JSON where --json says. */
static int list(const struct drill_plan *plan)
{
    struct gms_error error;
    if (strcmp(plan->json, "-") != 0)
        drill_catalogue_print(stdout);
    if (plan->json[0] == '\0')
        return DRILL_EXIT_PASS;
    char *text = drill_catalogue_json();
    bool good = text != NULL;
    if (good && strcmp(plan->json, "-") == 0)
        good = puts(text) >= 0;
    else if (good && gms_file_replace(plan->json, text, strlen(text), &error) != GMS_OK) {
        fprintf(stderr, "gms-failover-test: --json: %s\n", error.text);
        good = false;
    }
    free(text);
    return good ? DRILL_EXIT_PASS : DRILL_EXIT_COULD_NOT_RUN;
}

static int finish(const struct drill_plan *plan, const char *work_dir, int code)
{
    if (work_dir[0] != '\0' && (plan->keep || code != DRILL_EXIT_PASS))
        printf("logs and outputs are kept in %s\n", work_dir);
    else
        drill_scratch_remove(work_dir);
    return code;
}

static int run_campaign(const struct drill_plan *plan)
{
    struct drill_campaign campaign;
    drill_campaign_run(plan, stdout, &campaign);
    drill_campaign_print(&campaign, stdout);
    int code = finish(plan, campaign.work_dir, drill_campaign_exit_code(&campaign));
    drill_campaign_free(&campaign);
    return code;
}

int main(int argc, char **argv)
{
    gms_signals_reset();
    gms_fd_raise_limit();
    struct drill_plan plan;
    struct gms_error error;
    gms_status status = drill_options_parse(argc, argv, &plan, &error);
    if (status == GMS_OK && plan.list)
        return list(&plan);
    if (status != GMS_OK || drill_plan_complete(&plan, &error) != GMS_OK) {
        fprintf(stderr, "gms-failover-test: %s\nTry --help.\n", error.text);
        return DRILL_EXIT_USAGE;
    }
    drill_plan_print(&plan, stdout);
    fflush(stdout);
    if (plan.dry_run)
        return DRILL_EXIT_PASS;
    if (plan.rows != 0) {
        fputc('\n', stdout);
        return run_campaign(&plan);
    }
    struct drill_result *result = calloc(1, sizeof *result);
    if (result == NULL) {
        fprintf(stderr, "gms-failover-test: no memory\n");
        return DRILL_EXIT_COULD_NOT_RUN;
    }
    fputc('\n', stdout);
    drill_run(&plan, stdout, result);
    if (!result->could_not_run)
        drill_verdict(result);
    drill_report_table(result, stdout);
    int code = drill_verdict_exit_code(result);
    if (plan.json[0] != '\0' && drill_report_write_json(result, plan.json, &error) != GMS_OK) {
        fprintf(stderr, "gms-failover-test: --json: %s\n", error.text);
        code = code == DRILL_EXIT_PASS ? DRILL_EXIT_COULD_NOT_RUN : code;
    }
    code = finish(&plan, result->work_dir, code);
    free(result);
    return code;
}
