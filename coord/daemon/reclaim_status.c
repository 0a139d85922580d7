/* SPDX-License-Identifier: Apache-2.0
 *
 * What became of every dead writer: kept here, told in the status document, and written to RUN/reclaim.<engine>.<rank>,
 * from which the next world reads it back. Files are written by the worker: a slow disk holds nothing up.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/run_dir.h"
#include "daemon/document.h"
#include "daemon/reclaim_state.h"

struct gms_reclaim_status *gms_reclaim_find_status(struct gms_reclaim *reclaim, uint64_t incarnation)
{
    for (uint32_t i = 0; i < GMS_RECLAIM_STATUSES && incarnation != 0; i++)
        if (reclaim->statuses[i].incarnation == incarnation)
            return &reclaim->statuses[i];
    return NULL;
}

/* A free one, else the place of the oldest that has come to its end. */
static struct gms_reclaim_status *make_status(struct gms_reclaim *reclaim, uint32_t engine, uint64_t incarnation)
{
    struct gms_reclaim_status *place = NULL;
    for (uint32_t i = 0; i < GMS_RECLAIM_STATUSES; i++) {
        struct gms_reclaim_status *status = &reclaim->statuses[i];
        if (status->incarnation == 0) {
            place = status;
            break;
        }
        if (status->verdict != GMS_RECLAIM_NOT_YET && (place == NULL || status->incarnation < place->incarnation))
            place = status;
    }
    if (place == NULL)
        return NULL; /* more pending ones than the group can have */
    *place = (struct gms_reclaim_status){.incarnation = incarnation, .engine = engine};
    return place;
}

/* ------------------------------------------------------------------------------------------------- JSON ------- */

static json_t *as_json(const struct gms_reclaim_status *status)
{
    json_t *item = json_object();
    gms_document_number(item, "engine", status->engine);
    gms_document_number(item, "incarnation", status->incarnation);
    json_object_set_new(item, "state", json_string(gms_reclaim_answer_name(status->verdict)));
    gms_document_number(item, "pages", status->pages);
    gms_document_number(item, "returned", status->returned);
    json_object_set_new(item, "provider", json_string(status->provider));
    gms_document_number(item, "trials", status->trials);
    gms_document_text(item, "reason", status->reason);
    gms_document_number(item, "condemned_ns", status->condemned_ns);
    gms_document_number(item, "answered_ns", status->answered_ns);
    gms_document_number(item, "granted_ns", status->granted_ns);
    return item;
}

/* Newest first. `engine` UINT32_MAX: all. */
static json_t *list_of(const struct gms_reclaim *reclaim, uint32_t engine)
{
    json_t *list = json_array();
    uint64_t below = UINT64_MAX;
    for (;;) {
        const struct gms_reclaim_status *next = NULL;
        for (uint32_t i = 0; i < GMS_RECLAIM_STATUSES; i++) {
            const struct gms_reclaim_status *status = &reclaim->statuses[i];
            if (status->incarnation != 0 && status->incarnation < below &&
                (engine == UINT32_MAX || status->engine == engine) &&
                (next == NULL || status->incarnation > next->incarnation))
                next = status;
        }
        if (next == NULL)
            return list;
        below = next->incarnation;
        if (engine == UINT32_MAX || json_array_size(list) < GMS_RECLAIM_KEPT || next->verdict == GMS_RECLAIM_NOT_YET)
            json_array_append_new(list, as_json(next));
    }
}

json_t *gms_reclaim_status(struct gms_reclaim *reclaim)
{
    const struct gms_config *config = reclaim->daemon->options.config;
    struct gms_core_reclaim_view view;
    gms_core_look_reclaim(reclaim->daemon->core, &view);
    json_t *object = json_object();
    json_object_set_new(object, "state", json_string(gms_reclaim_state_name(view.state)));
    json_object_set_new(
        object, "policy",
        json_string(config->reclaim_policy == GMS_POLICY_GPU_PROOF ? "gpu-proof" : "process-death-timeout"));
    json_object_set_new(object, "provider", json_string(reclaim->provider->name));
    gms_document_number(object, "owner", view.owner);
    json_object_set_new(object, "suspects", list_of(reclaim, UINT32_MAX));
    return object;
}

/* ------------------------------------------------------------------------------------------------- files ------ */

static gms_status path_of(const struct gms_reclaim *reclaim, uint32_t engine, char ret_path[GMS_RUN_PATH_BYTES],
                          struct gms_error *ret_error)
{
    char name[32];
    snprintf(name, sizeof name, "reclaim.%" PRIu32 ".", engine);
    return gms_run_dir_path(reclaim->daemon->options.config->run_dir, name, (int32_t)reclaim->daemon->rank, ret_path,
                            ret_error);
}

struct write_job {
    struct gms_job base;
    char path[GMS_RUN_PATH_BYTES];
    char *text; /* owned */
};

static void run(struct gms_job *base)
{
    struct write_job *job = (struct write_job *)base;
    struct gms_error error;
    if (gms_file_publish(job->path, job->text, strlen(job->text), &error) != GMS_OK)
        gms_log(GMS_LOG_ERROR, "the status of reclaim was not written: %s", error.text);
}

static void done(struct gms_job *base)
{
    free(((struct write_job *)base)->text);
    free(base);
}

struct file {
    const struct gms_reclaim *reclaim;
    uint32_t engine;
};

static json_t *make_file(void *context)
{
    const struct file *file = context;
    return json_pack("{s:i,s:i,s:i,s:o}", "version", 1, "engine", (int)file->engine, "rank",
                     (int)file->reclaim->daemon->rank, "incarnations", list_of(file->reclaim, file->engine));
}

void gms_reclaim_status_write(struct gms_reclaim *reclaim, uint32_t engine)
{
    struct gms_error error;
    struct file file = {.reclaim = reclaim, .engine = engine};
    struct write_job *job = calloc(1, sizeof *job);
    if (job != NULL)
        job->text = gms_document_write(make_file, &file);
    if (job == NULL || job->text == NULL || path_of(reclaim, engine, job->path, &error) != GMS_OK) {
        gms_log(GMS_LOG_ERROR, "the status of reclaim was not written: no memory, or the path is too long");
        if (job != NULL)
            done(&job->base);
        return;
    }
    job->base.run = run;
    job->base.done = done;
    job->base.always = true;
    gms_worker_submit(reclaim->worker, &job->base);
}

static enum gms_reclaim_answer answer_of(const char *name)
{
    for (unsigned answer = 0; answer < GMS_RECLAIM_ANSWER_COUNT; answer++)
        if (name != NULL && strcmp(name, gms_reclaim_answer_name((enum gms_reclaim_answer)answer)) == 0)
            return (enum gms_reclaim_answer)answer;
    return GMS_RECLAIM_NOT_YET;
}

static uint64_t number_in(const json_t *item, const char *name)
{
    json_int_t value = json_integer_value(json_object_get(item, name));
    return value > 0 ? (uint64_t)value : 0;
}

static void text_in(const json_t *item, const char *name, char *ret_text, size_t bytes)
{
    const char *value = json_string_value(json_object_get(item, name));
    snprintf(ret_text, bytes, "%s", value != NULL ? value : "");
}

/* What it cannot read it does without: the file is for people, the store has what counts. */
static void load_one(struct gms_reclaim *reclaim, uint32_t engine)
{
    char path[GMS_RUN_PATH_BYTES];
    struct gms_error error;
    if (path_of(reclaim, engine, path, &error) != GMS_OK)
        return;
    json_t *document = json_load_file(path, JSON_REJECT_DUPLICATES, NULL),
           *list = json_object_get(document, "incarnations");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        uint64_t incarnation = number_in(item, "incarnation");
        struct gms_reclaim_status *status = incarnation != 0 && gms_reclaim_find_status(reclaim, incarnation) == NULL
                                                ? make_status(reclaim, engine, incarnation)
                                                : NULL;
        if (status == NULL)
            continue;
        status->verdict = answer_of(json_string_value(json_object_get(item, "state")));
        status->pages = (uint32_t)number_in(item, "pages");
        status->returned = (uint32_t)number_in(item, "returned");
        status->trials = number_in(item, "trials");
        status->condemned_ns = number_in(item, "condemned_ns");
        status->answered_ns = number_in(item, "answered_ns");
        status->granted_ns = number_in(item, "granted_ns");
        text_in(item, "reason", status->reason, sizeof status->reason);
        text_in(item, "provider", status->provider, sizeof status->provider);
    }
    json_decref(document);
}

void gms_reclaim_statuses_load(struct gms_reclaim *reclaim)
{
    if (reclaim->daemon->options.verdict == GMS_RECOVERY_FRESH)
        return; /* incarnations are counted anew */
    for (uint32_t engine = 0; engine < GMS_MAX_ENGINES; engine++)
        load_one(reclaim, engine);
}

/* Pending here, but no suspect of the group any more: the end of it was decided, and not told, before a restart. */
static void settle(struct gms_reclaim *reclaim, struct gms_reclaim_status *status)
{
    status->verdict = reclaim->daemon->options.config->reclaim_policy == GMS_POLICY_GPU_PROOF ? GMS_RECLAIM_QUIET
                                                                                              : GMS_RECLAIM_BEST_EFFORT;
    gms_reclaim_status_write(reclaim, status->engine);
}

void gms_reclaim_statuses_renew(struct gms_reclaim *reclaim)
{
    for (uint32_t place = 0; place < GMS_RECLAIM_SUSPECTS; place++) {
        struct gms_core_suspect suspect;
        if (!gms_core_look_suspect(reclaim->daemon->core, place, &suspect) || suspect.incarnation == UINT64_MAX)
            continue;
        struct gms_reclaim_status *status = gms_reclaim_find_status(reclaim, suspect.incarnation);
        const bool lost = suspect.verdict == GMS_RECLAIM_CANNOT_KNOW;
        if (status != NULL && (status->verdict == GMS_RECLAIM_NOT_YET) != lost)
            continue;
        if (status == NULL) {
            status = make_status(reclaim, suspect.engine, suspect.incarnation);
            if (status == NULL)
                continue;
            status->condemned_ns = gms_clock_ns();
            snprintf(status->provider, sizeof status->provider, "%s", reclaim->provider->name);
            snprintf(status->reason, sizeof status->reason, "not asked yet");
        }
        status->verdict = lost ? GMS_RECLAIM_CANNOT_KNOW : GMS_RECLAIM_NOT_YET;
        gms_reclaim_status_write(reclaim, status->engine);
    }
    for (uint32_t i = 0; i < GMS_RECLAIM_STATUSES; i++) {
        struct gms_reclaim_status *status = &reclaim->statuses[i];
        if (status->incarnation != 0 && status->verdict == GMS_RECLAIM_NOT_YET &&
            gms_core_reclaim_place(reclaim->daemon->core, status->incarnation) == GMS_RECLAIM_CROWD)
            settle(reclaim, status);
    }
}
