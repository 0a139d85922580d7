/* SPDX-License-Identifier: Apache-2.0
 *
 * The scene of many rounds: a deployment under gms-up that is made when there is none, completed when an engine is
 * missing, and given up after a round that failed, so that every round begins with a whole one.
 */
#ifndef GMS_DRILL_SCENE_H
#define GMS_DRILL_SCENE_H

#include "catalogue.h"
#include "deployment.h"
#include "logs.h"
#include "scratch.h"

/* A fresh deployment after so many rounds: logs, quarantine and incarnations stay bounded. */
enum { DRILL_SCENE_ROUNDS = 16 };

struct drill_scene {
    struct drill_plan plan;              /* the campaign's, for one failover under gms-up */
    const struct drill_scratch *scratch; /* borrowed */
    uint32_t deployments;                /* started so far */
    bool up;
    uint32_t rounds;  /* in this deployment */
    uint32_t serving; /* engine that serves */
    struct drill_deployment deployment;
    struct drill_blocks blocks; /* that the serving engine began with, by the logs; owned */
};

void drill_scene_init(const struct drill_plan *plan, const struct drill_scratch *scratch,
                      struct drill_scene *ret_scene);
/* Takes the deployment that runs in plan->against as the scene: it is looked at before each round and never completed,
 * dropped without ending anything. Errors: as drill_deployment_attach. */
gms_status drill_scene_attach(struct drill_scene *scene, struct gms_error *ret_error);
/* Makes the scene ready for `fault`: one engine serves, fault->shadows are parked on all ranks, and the first of them
 * dies on `rank` where the fault wants that. Errors: as of the deployment, REFUSED (attached,
 * and too few are parked); the scene is dropped then. */
gms_status drill_scene_ready(struct drill_scene *scene, const struct drill_fault *fault, uint32_t rank,
                             struct gms_error *ret_error);
/* Engine `engine` has ended: its launcher is ended too, its number is free again. */
void drill_scene_buried(struct drill_scene *scene, uint32_t engine);
/* Ends the deployment. Its files stay when `keep`. Returns how many processes had to be killed in the end. */
size_t drill_scene_drop(struct drill_scene *scene, bool keep);

#endif
