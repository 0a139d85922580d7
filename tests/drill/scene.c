/* SPDX-License-Identifier: Apache-2.0 */
#include "scene.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>

#include "base/fd.h"

enum { BURY_MS = 5000, RUN_DISK_BYTES = 8 << 20 };

void drill_scene_init(const struct drill_plan *plan, const struct drill_scratch *scratch, struct drill_scene *ret_scene)
{
    memset(ret_scene, 0, sizeof *ret_scene);
    ret_scene->plan = *plan;
    ret_scene->plan.under_gms_up = true;
    ret_scene->plan.repeat = 1;
    ret_scene->scratch = scratch;
}

static gms_status start(struct drill_scene *scene, struct gms_error *ret_error)
{
    char dir[DRILL_PATH_BYTES], word[32];
    snprintf(dir, sizeof dir, "%.480s/d%u", scene->scratch->work_dir, scene->deployments);
    snprintf(word, sizeof word, "d%u", scene->deployments);
    scene->deployments++;
    scene->rounds = 0;
    scene->serving = 0;
    gms_status status =
        drill_deployment_start(&scene->plan, dir, scene->scratch->shared_dir, word, &scene->deployment, ret_error);
    scene->up = status == GMS_OK;
    if (status == GMS_OK)
        status = drill_deployment_launch(&scene->deployment, 0, ret_error);
    if (status == GMS_OK)
        status = drill_deployment_wait(&scene->deployment, 0, "serving", 0, scene->plan.timeout_s, ret_error);
    return status;
}

static uint32_t count_started(const struct drill_scene *scene)
{
    uint32_t count = 0;
    for (uint32_t engine = 0; engine < DRILL_MAX_ENGINES; engine++)
        count += scene->deployment.engines[engine].started;
    return count;
}

/* A mount namespace of our own, in which nothing that we mount is seen from outside and nothing outlives us. */
static gms_status separate_mounts(struct gms_error *ret_error)
{
    static bool separated;
    if (!separated && (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0))
        return gms_fail(ret_error, GMS_E_PERMISSION, "no mount namespace of its own can be had: %s", strerror(errno));
    separated = true;
    return GMS_OK;
}

gms_status drill_scene_attach(struct drill_scene *scene, struct gms_error *ret_error)
{
    struct drill_deployment *deployment = &scene->deployment;
    if (scene->up)
        drill_deployment_stop(deployment); /* closes what was opened to look at it */
    scene->up = false;
    gms_status status = drill_deployment_attach(&scene->plan, deployment, ret_error);
    if (status != GMS_OK)
        return status;
    scene->up = true;
    scene->serving = (uint32_t)deployment->status[0].serving_engine;
    return GMS_OK;
}

/* Somebody else starts engines there; the last one that serves is not struck. */
static gms_status attached_ready(struct drill_scene *scene, const struct drill_fault *fault,
                                 struct gms_error *ret_error)
{
    gms_status status = drill_scene_attach(scene, ret_error);
    uint32_t parked = status == GMS_OK ? count_started(scene) - 1 : 0;
    if (status == GMS_OK && parked < fault->shadows)
        status = gms_fail(ret_error, GMS_E_REFUSED, "%s: the fault would end the service",
                          parked == 0 ? "no shadow is parked" : "too few shadows are parked");
    return status;
}

gms_status drill_scene_ready(struct drill_scene *scene, const struct drill_fault *fault, uint32_t rank,
                             struct gms_error *ret_error)
{
    if (scene->plan.against[0] != '\0')
        return attached_ready(scene, fault, ret_error);
    gms_status status = GMS_OK;
    bool small_disk = (fault->needs & DRILL_NEED_DISK) != 0, hangs = (fault->needs & DRILL_NEED_HANG) != 0;
    bool two_hosts = (fault->needs & DRILL_NEED_HOSTS) != 0;
    /* A parked engine of an earlier round would be promoted before the one that is to die. */
    if (scene->up && (scene->rounds >= DRILL_SCENE_ROUNDS || small_disk != (scene->plan.run_disk_bytes > 0) ||
                      hangs != scene->plan.detect_hangs || two_hosts != scene->plan.two_hosts ||
                      (fault->successor_dies != NULL && count_started(scene) > 1)))
        drill_scene_drop(scene, false);
    if (!scene->up && small_disk)
        status = separate_mounts(ret_error);
    if (status != GMS_OK)
        return status;
    scene->plan.detect_hangs = hangs;
    scene->plan.two_hosts = two_hosts;
    scene->plan.run_disk_bytes = small_disk ? RUN_DISK_BYTES : 0;
    char death[32], noise[32] = "none";
    if (scene->plan.sabotage == DRILL_SABOTAGE_EACH && fault->outcome == DRILL_OUTCOME_TAKEOVER)
        snprintf(noise, sizeof noise, "all@%u", scene->plan.ranks - 1);
    snprintf(death, sizeof death, "%.16s@%u", fault->successor_dies != NULL ? fault->successor_dies : "none", rank);
    /* Words of minillm's, given only where they mean something: other engines need not know them. */
    bool first = fault->successor_dies != NULL, poisoned = strcmp(noise, "none") != 0;
    const char *const poison[] = {"--poison", noise, NULL};
    const char *const dying[] = {"--die-after", death, poisoned ? "--poison" : NULL, noise, NULL};
    const char *const none[] = {NULL}, *const *living = poisoned ? poison : none;
    if (!scene->up)
        status = start(scene, ret_error);
    uint32_t begun = 0; /* bit per engine that is on its way */
    for (uint32_t engine = 0; engine < DRILL_MAX_ENGINES && status == GMS_OK; engine++) {
        if (scene->deployment.engines[engine].started || count_started(scene) > fault->shadows)
            continue;
        status = drill_deployment_launch_with(&scene->deployment, engine, first ? dying : living, ret_error);
        begun |= 1u << engine;
        if (status == GMS_OK && first) { /* it must be parked before the others */
            status = drill_deployment_wait(&scene->deployment, engine, "parked", 0, scene->plan.timeout_s, ret_error);
            begun = 0;
        }
        first = false;
    }
    for (uint32_t engine = 0; engine < DRILL_MAX_ENGINES && status == GMS_OK; engine++)
        if ((begun >> engine & 1) != 0)
            status = drill_deployment_wait(&scene->deployment, engine, "parked", 0, scene->plan.timeout_s, ret_error);
    if (status != GMS_OK)
        drill_scene_drop(scene, true);
    else
        scene->rounds++;
    return status;
}

void drill_scene_buried(struct drill_scene *scene, uint32_t engine)
{
    struct drill_engine *one = &scene->deployment.engines[engine];
    if (one->launcher != NULL)
        drill_process_end(one->launcher, BURY_MS);
    one->started = false;
    one->incarnation = 0;
    for (uint32_t rank = 0; rank < DRILL_MAX_RANKS; rank++)
        gms_fd_close(&one->pidfds[rank]);
}

size_t drill_scene_drop(struct drill_scene *scene, bool keep)
{
    size_t killed = scene->up ? drill_deployment_stop(&scene->deployment) : 0;
    if (scene->up && !keep && scene->plan.against[0] == '\0')
        drill_scratch_remove(scene->deployment.dir);
    scene->up = false;
    drill_blocks_free(&scene->blocks);
    memset(&scene->blocks, 0, sizeof scene->blocks);
    return killed;
}
