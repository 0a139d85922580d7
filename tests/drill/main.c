/* SPDX-License-Identifier: Apache-2.0
 *
 * gms-failover-test: parses its options into a plan, prints it, runs it, judges and reports.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/fd.h"
#include "options.h"
#include "plan.h"
#include "report.h"
#include "run.h"
#include "verdict.h"

int main(int argc, char **argv)
{
    gms_signals_reset();
    gms_fd_raise_limit();
    struct drill_plan plan;
    struct gms_error error;
    if (drill_options_parse(argc, argv, &plan, &error) != GMS_OK || drill_plan_complete(&plan, &error) != GMS_OK) {
        fprintf(stderr, "gms-failover-test: %s\nTry --help.\n", error.text);
        return DRILL_EXIT_USAGE;
    }
    drill_plan_print(&plan, stdout);
    fflush(stdout);
    if (plan.dry_run)
        return DRILL_EXIT_PASS;
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
    if (result->work_dir[0] != '\0' && (plan.keep || code != DRILL_EXIT_PASS))
        printf("logs and outputs are kept in %s\n", result->work_dir);
    else
        drill_run_clean(result);
    free(result);
    return code;
}
