/* SPDX-License-Identifier: Apache-2.0
 *
 * Questions to the provider: who is asked about, how often, and what a cohort looks like to it.
 */
#include <event2/event.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "daemon/reclaim_state.h"

enum { PATIENT_TRIALS = 6 };
static const uint64_t first_pause_ns = 2 * GMS_NS_PER_MS, longest_pause_ns = GMS_NS_PER_S;

/* ------------------------------------------------------------------------------------------------- cohort ----- */

static void add_ours(struct gms_cohort *cohort, pid_t pid)
{
    if (pid > 0 && cohort->ours_count < GMS_QUIESCENCE_OURS)
        cohort->ours[cohort->ours_count++] = pid;
}

static void add_living(struct gms_cohort *cohort, pid_t pid)
{
    if (pid > 0 && cohort->living_count < sizeof cohort->living / sizeof cohort->living[0])
        cohort->living[cohort->living_count++] = pid;
}

static void surroundings(struct gms_daemon *daemon, struct gms_cohort *cohort)
{
    struct gms_core_view view;
    struct ucred keeper;
    socklen_t bytes = sizeof keeper;
    gms_core_look(daemon->core, &view);
    if (daemon->options.keeper->fd >= 0 &&
        getsockopt(daemon->options.keeper->fd, SOL_SOCKET, SO_PEERCRED, &keeper, &bytes) == 0)
        add_ours(cohort, keeper.pid);
    else
        keeper.pid = getpid();
    const uint64_t own = gms_process_started(getpid()), its = gms_process_started(keeper.pid);
    cohort->since = its != 0 && its < own ? its : own;
    for (struct gms_client *client = gms_sessions_next(daemon->sessions, NULL); client != NULL;
         client = gms_sessions_next(daemon->sessions, client))
        if (client->role == GMS_CLIENT_EXEC)
            add_ours(cohort, client->pid); /* has copies, and no code of an engine's */
    for (const struct gms_member *member = gms_members_next(daemon->members, NULL); member != NULL;
         member = gms_members_next(daemon->members, member)) {
        const struct gms_core_engine_view *slot = &view.engines[member->engine];
        if (slot->incarnation != member->incarnation || slot->role == GMS_ROLE_EMPTY ||
            slot->role == GMS_ROLE_CONDEMNED)
            continue;
        add_living(cohort, gms_pidfd_pid(member->pidfd));
        if (member->container.guardian_fd >= 0)
            add_living(cohort, gms_pidfd_pid(member->container.guardian_fd));
    }
    /* Handles of device memory all look alike from outside: nothing is to be learnt from who holds one. */
    for (uint32_t index = 0; index < GMS_MAX_POOLS && daemon->options.config->backend == GMS_MEMORY_HOST; index++) {
        struct gms_pool_view pool;
        if (!gms_pools_look(daemon->pools, index, &pool) || pool.kind != GMS_POOL_KV ||
            !gms_inode_of(pool.fd, &cohort->memory[cohort->memory_count]))
            continue;
        cohort->loans[cohort->memory_count++] = fcntl(pool.fd, F_DUPFD_CLOEXEC, 3);
    }
}

static void look_at(struct gms_reclaim *reclaim, uint64_t incarnation, struct gms_cohort *ret_cohort)
{
    const struct gms_member *member = gms_members_find(reclaim->daemon->members, incarnation);
    *ret_cohort = (struct gms_cohort){.incarnation = incarnation, .pidfd = -1, .container = GMS_NO_CONTAINER};
    if (member != NULL) {
        ret_cohort->engine = member->engine;
        ret_cohort->pidfd = fcntl(member->pidfd, F_DUPFD_CLOEXEC, 3);
        (void)gms_container_copy(&member->container, &ret_cohort->container, NULL);
    }
    surroundings(reclaim->daemon, ret_cohort);
}

/* ------------------------------------------------------------------------------------------------- jobs ------- */

enum errand { WITNESS, ASK, FORGET };

struct errand_job {
    struct gms_job base;
    struct gms_reclaim *reclaim;
    enum errand errand;
    struct gms_cohort cohort;
    uint64_t step;
    enum gms_reclaim_answer answer;
    char reason[GMS_QUIESCENCE_REASON_BYTES];
};

static void run(struct gms_job *base)
{
    struct errand_job *job = (struct errand_job *)base;
    const struct gms_quiescence_provider *provider = job->reclaim->provider;
    void *context = job->reclaim->provider_context;
    switch (job->errand) {
    case WITNESS:
        provider->witness(context, &job->cohort);
        break;
    case ASK:
        job->answer = provider->ask(context, &job->cohort, job->reason);
        break;
    case FORGET:
        provider->forget(context, job->cohort.incarnation);
        break;
    }
}

/* False: no memory. */
static bool send_out(struct gms_reclaim *reclaim, enum errand errand, uint64_t incarnation, uint64_t step);

void gms_reclaim_witness(struct gms_reclaim *reclaim, uint64_t incarnation)
{
    if (reclaim->provider->witness != NULL && !send_out(reclaim, WITNESS, incarnation, 0))
        gms_log(GMS_LOG_ERROR, "no memory to have a look at incarnation %llu while it lives",
                (unsigned long long)incarnation);
}

static void set_timer(struct gms_reclaim *reclaim)
{
    uint64_t due_ns = UINT64_MAX, now_ns = gms_clock_ns();
    for (uint32_t i = 0; i < GMS_RECLAIM_SUSPECTS; i++)
        if (reclaim->questions[i].incarnation != 0 && !reclaim->questions[i].under_way &&
            reclaim->questions[i].due_ns < due_ns)
            due_ns = reclaim->questions[i].due_ns;
    if (due_ns == UINT64_MAX) {
        event_del(reclaim->again);
        return;
    }
    uint64_t left_ns = due_ns > now_ns ? due_ns - now_ns : 0;
    struct timeval left = {.tv_sec = (time_t)(left_ns / GMS_NS_PER_S),
                           .tv_usec = (suseconds_t)(left_ns % GMS_NS_PER_S / 1000)};
    event_add(reclaim->again, &left);
}

static struct gms_reclaim_question *question_of(struct gms_reclaim *reclaim, uint64_t incarnation)
{
    for (uint32_t i = 0; i < GMS_RECLAIM_SUSPECTS; i++)
        if (reclaim->questions[i].incarnation == incarnation)
            return &reclaim->questions[i];
    return NULL;
}

static void answered(struct gms_reclaim *reclaim, const struct errand_job *job)
{
    struct gms_reclaim_question *question = question_of(reclaim, job->cohort.incarnation);
    struct gms_reclaim_status *status = gms_reclaim_find_status(reclaim, job->cohort.incarnation);
    bool news = false;
    if (status != NULL) {
        status->trials++;
        news = strcmp(status->reason, job->reason) != 0 || status->trials == PATIENT_TRIALS;
        memcpy(status->reason, job->reason, sizeof status->reason);
    }
    if (question == NULL || question->step != job->step)
        return; /* nobody asks that any more */
    question->under_way = false;
    if (job->answer == GMS_RECLAIM_NOT_YET) {
        question->due_ns = gms_clock_ns() + question->pause_ns;
        question->pause_ns = 2 * question->pause_ns < longest_pause_ns ? 2 * question->pause_ns : longest_pause_ns;
        if (news && status != NULL && status->trials >= PATIENT_TRIALS) { /* it takes its time: say why */
            gms_log(GMS_LOG_INFO, "engine %u incarnation %llu is not known to be quiet: %s", status->engine,
                    (unsigned long long)status->incarnation, status->reason);
            gms_reclaim_status_write(reclaim, status->engine);
        }
        return;
    }
    question->incarnation = 0;
    struct gms_core_reclaim_view pass;
    gms_core_look_reclaim(reclaim->daemon->core, &pass);
    gms_reclaim_witness(reclaim, pass.owner); /* what spoils a proof spoils earlier sightings of the living as well */
    if (status != NULL)
        status->answered_ns = gms_clock_ns();
    struct gms_event event = {.type = GMS_EVENT_RECLAIM_ANSWER};
    event.reclaim.step = job->step;
    event.reclaim.suspect = job->cohort.incarnation;
    event.reclaim.answer = job->answer;
    gms_daemon_push(reclaim->daemon, &event);
}

static void done(struct gms_job *base)
{
    struct errand_job *job = (struct errand_job *)base;
    struct gms_reclaim *reclaim = job->reclaim;
    if (job->errand == ASK && !atomic_load(&base->cancelled)) {
        answered(reclaim, job);
        if (reclaim->again != NULL)
            set_timer(reclaim);
    }
    gms_cohort_close(&job->cohort);
    free(job);
    if (!reclaim->daemon->stopped)
        gms_daemon_run_events(reclaim->daemon);
}

static bool send_out(struct gms_reclaim *reclaim, enum errand errand, uint64_t incarnation, uint64_t step)
{
    struct errand_job *job = calloc(1, sizeof *job);
    if (job == NULL)
        return false;
    job->base.run = run;
    job->base.done = done;
    job->reclaim = reclaim;
    job->errand = errand;
    job->base.always = errand != ASK; /* the living must be seen, also while the dead are left alone */
    job->step = step;
    if (errand == FORGET)
        job->cohort = (struct gms_cohort){.incarnation = incarnation, .pidfd = -1, .container = GMS_NO_CONTAINER};
    else
        look_at(reclaim, incarnation, &job->cohort);
    gms_worker_submit(reclaim->worker, &job->base);
    return true;
}

/* ------------------------------------------------------------------------------------------------- questions -- */

static void on_due(evutil_socket_t fd, short what, void *context)
{
    struct gms_reclaim *reclaim = context;
    const uint64_t now_ns = gms_clock_ns();
    (void)fd;
    (void)what;
    for (uint32_t i = 0; i < GMS_RECLAIM_SUSPECTS; i++) {
        struct gms_reclaim_question *question = &reclaim->questions[i];
        if (question->incarnation == 0 || question->under_way || question->due_ns > now_ns)
            continue;
        question->under_way = send_out(reclaim, ASK, question->incarnation, question->step);
        question->due_ns = now_ns + longest_pause_ns; /* of no use but when there was no memory */
    }
    set_timer(reclaim);
}

void gms_reclaim_ask(struct gms_reclaim *reclaim, uint64_t incarnation, uint64_t step)
{
    struct gms_reclaim_question *question = question_of(reclaim, incarnation);
    if (question == NULL)
        question = question_of(reclaim, 0);
    if (question == NULL)
        return; /* there is one for each suspect of the group */
    *question = (struct gms_reclaim_question){
        .incarnation = incarnation, .step = step, .pause_ns = first_pause_ns, .due_ns = gms_clock_ns()};
    set_timer(reclaim);
}

void gms_reclaim_ask_nobody(struct gms_reclaim *reclaim)
{
    memset(reclaim->questions, 0, sizeof reclaim->questions);
    event_del(reclaim->again);
}

void gms_reclaim_provider_forget(struct gms_reclaim *reclaim, uint64_t incarnation)
{
    if (reclaim->provider->forget != NULL)
        (void)send_out(reclaim, FORGET, incarnation, 0);
}

/* ------------------------------------------------------------------------------------------------- open ------- */

gms_status gms_reclaim_ask_open(struct gms_reclaim *reclaim, struct gms_error *ret_error)
{
    const struct gms_config *config = reclaim->daemon->options.config;
    char reason[GMS_QUIESCENCE_REASON_BYTES];
    const char *name = NULL;
    if (config->reclaim_policy == GMS_POLICY_PROCESS_DEATH_TIMEOUT) {
        if (gms_mps_in_use(-1, reason)) /* V33 */
            return gms_fail(
                ret_error, GMS_E_UNSUPPORTED,
                "reclaim.policy = \"process-death-timeout\" is refused on rank %u: %s; use \"gpu-proof\", or "
                "do without MPS",
                reclaim->daemon->rank, reason);
        name = "process-death";
    } else if (config->reclaim_provider == GMS_PROVIDER_PROCMAP) {
        name = "procmap";
    } else if (config->reclaim_provider == GMS_PROVIDER_NVML) {
        name = "nvml";
    }
    reclaim->provider = gms_quiescence_find(name, config->backend == GMS_MEMORY_HOST ? "host" : "cuda");
    const struct gms_quiescence_options options = {.grace_ns = config->reclaim_grace_ns};
    gms_status status = reclaim->provider->open(&options, &reclaim->provider_context, ret_error);
    if (status != GMS_OK) {
        reclaim->provider = NULL;
        return status;
    }
    reclaim->again = evtimer_new(reclaim->daemon->base, on_due, reclaim);
    return reclaim->again != NULL ? GMS_OK : gms_fail(ret_error, GMS_E_SYSTEM, "the event loop refused a timer");
}

void gms_reclaim_ask_close(struct gms_reclaim *reclaim)
{
    if (reclaim->again != NULL)
        event_free(reclaim->again);
    reclaim->again = NULL;
    if (reclaim->provider != NULL)
        reclaim->provider->close(reclaim->provider_context);
    reclaim->provider = NULL;
}
