/* SPDX-License-Identifier: Apache-2.0
 *
 * gms-failover-test: parses its options into a plan, prints it, runs it, judges and reports.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "against.h"
#include "campaign.h"
#include "catalogue.h"
#include "direct.h"
#include "options.h"
#include "plan.h"
#include "report.h"
#include "report_html.h"
#include "report_json.h"
#include "report_junit.h"
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

/* The files that were asked for. A report that cannot be written is no success. */
static int write_reports(struct drill_campaign *campaign, int code)
{
    const struct drill_plan *plan = campaign->plan;
    const struct {
        const char *option, *path;
        char *(*make)(struct drill_campaign *campaign);
    } reports[] = {
        {"json", plan->json, drill_report_json},
        {"junit", plan->junit, drill_report_junit},
        {"html", plan->html, drill_report_html},
    };
    for (size_t i = 0; i < sizeof reports / sizeof reports[0]; i++) {
        struct gms_error error;
        if (reports[i].path[0] == '\0' ||
            drill_report_write(reports[i].path, reports[i].make(campaign), &error) == GMS_OK)
            continue;
        fprintf(stderr, "gms-failover-test: --%s: %s\n", reports[i].option, error.text);
        code = code == DRILL_EXIT_PASS ? DRILL_EXIT_COULD_NOT_RUN : code;
    }
    return code;
}

/* One drill without the catalogue is a campaign of one round. */
static void run_one(const struct drill_plan *plan, struct drill_campaign *campaign)
{
    struct drill_result *result = calloc(1, sizeof *result);
    struct drill_round *round = drill_campaign_add(campaign);
    if (result == NULL || round == NULL) {
        free(result);
        campaign->could_not_run = true;
        snprintf(campaign->reason, sizeof campaign->reason, "no memory");
        return;
    }
    drill_run(plan, stdout, result);
    if (!result->could_not_run)
        drill_verdict(result);
    drill_report_table(result, stdout);
    round->name = "sigkill";
    round->done = "SIGKILL to ranks of the serving engine, as the plan says";
    round->checked = drill_catalogue_checks;
    round->outcome = drill_outcome_name(DRILL_OUTCOME_TAKEOVER);
    round->seed = plan->seed;
    round->seconds = (double)result->wall_ns / 1e9;
    campaign->wall_ns = result->wall_ns;
    campaign->control_ns = result->control_ns;
    campaign->inexact = result->inexact;
    memcpy(campaign->divergence, result->divergence, sizeof campaign->divergence);
    memcpy(campaign->work_dir, result->work_dir, sizeof campaign->work_dir);
    drill_campaign_take(campaign, round, result);
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
    if (plan.against[0] != '\0') {
        char name[64];
        if (drill_against_show(&plan, stdout, name, sizeof name, &error) != GMS_OK) {
            fprintf(stderr, "gms-failover-test: --against: %s\n", error.text);
            return DRILL_EXIT_COULD_NOT_RUN;
        }
        if (!plan.agreed && !drill_against_agreed(name, stdin, stdout)) {
            fprintf(stderr, "\ngms-failover-test: nobody agreed, so nothing was done; --yes answers in advance\n");
            return DRILL_EXIT_USAGE;
        }
    }
    fputc('\n', stdout);
    struct drill_campaign campaign = {.plan = &plan};
    drill_environment_read(argc, argv, &campaign.environment);
    if (plan.rows == 0 && !plan.compare) {
        run_one(&plan, &campaign);
    } else {
        drill_direct(&plan, stdout, &campaign);
        drill_report_campaign(&campaign, stdout);
    }
    int code = write_reports(&campaign, drill_campaign_exit_code(&campaign));
    if (campaign.work_dir[0] != '\0' && (plan.keep || code != DRILL_EXIT_PASS))
        printf("logs and outputs are kept in %s\n", campaign.work_dir);
    else
        drill_scratch_remove(campaign.work_dir);
    drill_campaign_free(&campaign);
    return code;
}
