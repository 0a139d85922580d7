/* SPDX-License-Identifier: Apache-2.0 */
#include "against.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cluster.h"

enum { ASK_S = 5 };

const char *drill_against_unfit(const struct drill_fault *fault)
{
    if (fault->successor_dies != NULL || (fault->needs & (DRILL_NEED_DISK | DRILL_NEED_HOSTS)) != 0)
        return "it needs a deployment that the drill has made for it";
    for (int i = 0; i < DRILL_STRIKES; i++) {
        if (fault->strikes[i].act == DRILL_ACT_LIMIT_MEMORY || fault->strikes[i].target == DRILL_TARGET_RUN_DISK)
            return "it needs a deployment that the drill has made for it";
        if (fault->strikes[i].target == DRILL_TARGET_UP || fault->strikes[i].target == DRILL_TARGET_RELAY)
            return "nobody would start it again";
        if (fault->strikes[i].target == DRILL_TARGET_ENGINE_LAUNCHER)
            return "which process launched a running engine is not known";
    }
    return NULL;
}

gms_status drill_against_show(const struct drill_plan *plan, FILE *out, char *ret_name, size_t bytes,
                              struct gms_error *ret_error)
{
    struct drill_status *all = calloc(DRILL_MAX_RANKS, sizeof *all);
    if (all == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory");
    uint64_t deadline_ns = gms_clock_ns() + ASK_S * GMS_NS_PER_S;
    gms_status status = drill_status_fetch(plan->against, 0, deadline_ns, &all[0], ret_error);
    if (status == GMS_OK && all[0].ranks > DRILL_MAX_RANKS)
        status =
            gms_fail(ret_error, GMS_E_INVALID, "%u ranks: a drill follows at most %d", all[0].ranks, DRILL_MAX_RANKS);
    if (status == GMS_OK)
        status = drill_status_fetch_all(plan->against, all[0].ranks, deadline_ns, all, ret_error);
    if (status == GMS_OK && all[0].serving_engine < 0)
        status = gms_fail(ret_error, GMS_E_REFUSED, "nobody serves in %s", plan->against);
    if (status == GMS_OK) {
        fprintf(out, "\nthe deployment in %s\n  name         %s, %u ranks, world %llu, epoch %llu\n", plan->against,
                all[0].deployment, all[0].ranks, (unsigned long long)all[0].world, (unsigned long long)all[0].epoch);
        for (uint32_t i = 0; i < all[0].engine_count; i++) {
            const struct drill_status_engine *engine = &all[0].engines[i];
            fprintf(out, "  engine %-5u %s, incarnation %llu, pids", engine->engine, engine->role,
                    (unsigned long long)engine->incarnation);
            for (uint32_t rank = 0; rank < all[0].ranks; rank++) {
                const struct drill_status_engine *there = drill_status_engine(&all[rank], engine->engine);
                fprintf(out, " %d", there != NULL ? there->pid : 0);
            }
            fputc('\n', out);
        }
        fprintf(out, "  coordinators pids");
        for (uint32_t rank = 0; rank < all[0].ranks; rank++)
            fprintf(out, " %d", all[rank].pid);
        fprintf(out,
                "\n\nThe faults above will be made there, in processes that serve clients now. Each takeover uses up a "
                "parked engine.\n");
        snprintf(ret_name, bytes, "%s", all[0].deployment);
    }
    free(all);
    return status;
}

bool drill_against_agreed(const char *name, FILE *in, FILE *out)
{
    char line[128] = "";
    fprintf(out, "Type the deployment's name (%s) to go on: ", name);
    fflush(out);
    if (fgets(line, sizeof line, in) == NULL)
        return false;
    line[strcspn(line, "\n")] = '\0';
    return strcmp(line, name) == 0;
}
