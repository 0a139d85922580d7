/* SPDX-License-Identifier: Apache-2.0
 *
 * gms-fence-table: who is hit times what becomes of the process that writes, each with a real keeper, coordinator,
 * gms-exec and libgms. For every case: when the successor was admitted and when the pages in quarantine were granted,
 * relative to the last write by the old cohort.
 *
 *   gms-fence-table [--containment KIND] [--ranks N] [--patience MS] [--slack FACTOR] [VICTIM] [BEHAVIOUR]
 *
 * Names or their beginnings choose cases. Patience: how long an admission or a grant is waited for.
 *
 * It fails when a page was granted or a successor admitted before the last write, when either never came, when the
 * writer was not seen writing after the kill where it must have been, or when the medians are too long.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "bare.h"
#include "base/clock.h"
#include "base/fd.h"
#include "harness.h"
#include "stage.h"

enum { TRIES = 15, HELD_MS = 700, CASES = VICTIMS * BEHAVIOURS };
/* Limits on a machine with nothing else to do; where killing alone takes long (bare.h), they are BARE_FACTOR times
 * that. */
enum { ADMISSION_LIMIT_MS = 5, GRANT_LIMIT_MS = 500, BARE_FACTOR = 8 };

static const char *const victim_names[VICTIMS] = {[LEADER] = "leader", [CHILD] = "child", [LAUNCHER] = "launcher"};
static const struct {
    const char *name;
    bool writes_on; /* until the fence ends it: must be seen writing after the kill */
} behaviours[BEHAVIOURS] = {
    [CHILD_EXITS] = {"child-exits", false},
    [CHILD_LIVES] = {"child-lives", true},
    [CHILD_SETSID] = {"child-setsid", true},
    [CHILD_DOUBLE] = {"child-double-forked", true},
    [CHILD_CLOSED] = {"child-closed-socket", true},
    [STRANGER] = {"stranger", true},
    [MAIN_THREAD_GONE] = {"main-thread-gone", false},
    [STOPPED] = {"stopped", false},
    [UNKILLABLE] = {"unkillable", false},
};
static const char *const kinds[] = {"subreaper", "pid-namespace", "auto"};

struct outcome {
    enum victim victim;
    enum behaviour behaviour;
    const char *containment;
    bool done, skipped;
    double written_ms, admitted_ms, granted_ms; /* last write after the kill; the others after the last write */
    char in_force[24], fault[200];
};

static struct {
    const char *containment, *victim, *behaviour, *self;
    uint32_t ranks;
    int patience_ms;
    double slack; /* the limits' factor for builds that are slow by themselves */
    bool failed;
} plan = {.ranks = 1, .patience_ms = 20000, .slack = 1};
static struct cluster cluster;
static struct outcome outcomes[CASES];
static char why_no_mount[128];
static double bare_ms[CASES * TRIES];
static size_t bare_count;

/* ------------------------------------------------------------------------------------------------ an engine --- */

struct actor { /* one start of an engine: all its ranks */
    uint32_t id;
    struct {
        struct stage *stage;
        char path[160];
        pid_t exec;
        int exec_pidfd;
    } ranks[HARNESS_RANKS];
};
static struct actor actors[2];
static uint32_t starts;

static void start_actor(struct actor *actor, uint32_t id, const char *containment)
{
    char launch[32], engine[8], exec[512];
    snprintf(launch, sizeof launch, "start-%u", ++starts);
    snprintf(engine, sizeof engine, "%u", id);
    program("gms-exec", exec);
    actor->id = id;
    for (uint32_t rank = 0; rank < plan.ranks; rank++) {
        char number[16];
        snprintf(actor->ranks[rank].path, sizeof actor->ranks[rank].path, "%s/stage-%u-%u", cluster.directory, starts,
                 rank);
        int fd = open(actor->ranks[rank].path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        assert_true(fd >= 0 && ftruncate(fd, sizeof(struct stage)) == 0);
        gms_fd_close(&fd);
        actor->ranks[rank].stage = stage_map(actor->ranks[rank].path);
        assert_non_null(actor->ranks[rank].stage);
        snprintf(number, sizeof number, "%u", rank);
        char *words[] = {exec,
                         "--run-dir",
                         cluster.run_dir,
                         "--engine",
                         engine,
                         "--rank",
                         number,
                         "--launch",
                         launch,
                         "--containment",
                         (char *)(uintptr_t)containment,
                         "--",
                         (char *)(uintptr_t)plan.self,
                         "engine",
                         actor->ranks[rank].path,
                         NULL};
        actor->ranks[rank].exec = start_program(words, cluster.log, &actor->ranks[rank].exec_pidfd);
    }
}

static bool all_at(const struct actor *actor, int step)
{
    for (uint32_t rank = 0; rank < plan.ranks; rank++) {
        int at = atomic_load(&actor->ranks[rank].stage->at);
        if (at == AT_FAILED && step != AT_FAILED)
            fail_msg("engine %u rank %u: %s", actor->id, rank, actor->ranks[rank].stage->text);
        if (at < step)
            return false;
    }
    return true;
}

static bool parked(void *actor)
{
    return all_at(actor, AT_PARKED);
}

static bool serving(void *actor)
{
    return all_at(actor, AT_SERVING);
}

static bool acting(void *actor)
{
    return atomic_load(&((struct actor *)actor)->ranks[0].stage->at) >= AT_ACTING;
}

static bool mount_asked(void *context)
{
    (void)context;
    return dead_mount_asked();
}

/* gms-exec's end, and what is left of a failed case. */
static void finish_actor(struct actor *actor)
{
    for (uint32_t rank = 0; rank < plan.ranks; rank++) {
        if (actor->ranks[rank].exec_pidfd < 0)
            continue;
        for (uint64_t end_ns = gms_clock_ns() + 5 * GMS_NS_PER_S;
             !gms_pidfd_ended(actor->ranks[rank].exec_pidfd) && gms_clock_ns() < end_ns;)
            poll(NULL, 0, 2);
        gms_pidfd_signal(actor->ranks[rank].exec_pidfd, SIGKILL);
        waitpid(actor->ranks[rank].exec, NULL, 0);
        gms_fd_close(&actor->ranks[rank].exec_pidfd);
        munmap(actor->ranks[rank].stage, sizeof(struct stage));
        actor->ranks[rank].stage = NULL;
    }
}

/* ----------------------------------------------------------------------------------------- what is looked at --- */

/* The newest takeover of rank 0 from `incarnation`: when its successor was promoted, 0: not yet. */
static uint64_t promoted_ns(uint64_t incarnation, char in_force[24], char waits_for[256])
{
    uint64_t found = 0;
    json_t *status = cluster_status(&cluster, 0), *item;
    size_t i;
    json_array_foreach(json_object_get(status, "takeovers"), i, item)
    {
        if ((uint64_t)json_integer_value(json_object_get(item, "from_incarnation")) == incarnation)
            found = (uint64_t)json_integer_value(json_object_get(item, "promote_ns"));
    }
    json_array_foreach(json_object_get(status, "engines"), i, item)
    {
        if ((uint64_t)json_integer_value(json_object_get(item, "incarnation")) != incarnation)
            continue;
        if (in_force != NULL)
            snprintf(in_force, 24, "%s", json_string_value(json_object_get(item, "containment")));
        if (waits_for != NULL)
            snprintf(waits_for, 256, "%s", json_string_value(json_object_get(item, "waits_for")));
    }
    json_decref(status);
    return found;
}

/* When the last page of `incarnation` was granted; 0: not yet. */
static uint64_t granted_ns(uint64_t incarnation, char ret_reason[160])
{
    uint64_t found = 0;
    json_t *status = cluster_status(&cluster, 0), *item;
    size_t i;
    ret_reason[0] = '\0';
    json_array_foreach(json_object_get(json_object_get(status, "reclaim"), "suspects"), i, item)
    {
        if ((uint64_t)json_integer_value(json_object_get(item, "incarnation")) != incarnation)
            continue;
        const char *state = json_string_value(json_object_get(item, "state"));
        snprintf(ret_reason, 160, "%s: %s", state, json_string_value(json_object_get(item, "reason")));
        if (strcmp(state, "reclaimed") == 0)
            found = (uint64_t)json_integer_value(json_object_get(item, "granted_ns"));
    }
    json_decref(status);
    return found;
}

struct watched {
    uint64_t incarnation, granted_ns;
    char reason[160], waits_for[256];
};

static bool granted(void *context)
{
    struct watched *watched = context;
    watched->granted_ns = granted_ns(watched->incarnation, watched->reason);
    return watched->granted_ns != 0;
}

static bool names_whom(void *context)
{
    struct watched *watched = context;
    return promoted_ns(watched->incarnation, NULL, watched->waits_for) != 0 ||
           strstr(watched->waits_for, "state D") != NULL;
}

__attribute__((format(printf, 2, 3))) static void fault(struct outcome *outcome, const char *format, ...)
{
    va_list arguments;
    if (outcome->fault[0] != '\0')
        return;
    va_start(arguments, format);
    vsnprintf(outcome->fault, sizeof outcome->fault, format, arguments);
    va_end(arguments);
}

/* --------------------------------------------------------------------------------------------------- a case ---- */

struct named {
    uint64_t incarnation;
    int pidfd;
};

/* One status may lack an engine. */
static bool is_named(void *context)
{
    struct named *named = context;
    json_t *status = cluster_status(&cluster, 0), *item;
    size_t i;
    json_array_foreach(json_object_get(status, "engines"), i, item)
    {
        if (named->pidfd < 0 &&
            (uint64_t)json_integer_value(json_object_get(item, "incarnation")) == named->incarnation)
            (void)gms_pidfd_open((pid_t)json_integer_value(json_object_get(item, "pid")), &named->pidfd, NULL);
    }
    json_decref(status);
    return named->pidfd >= 0;
}

static void hit(enum victim victim, const struct actor *actor)
{
    struct stage *stage = actor->ranks[0].stage;
    switch (victim) {
    case LEADER: {
        struct named named = {stage->incarnation, -1};
        assert_true(eventually(is_named, &named, plan.patience_ms));
        if (atomic_load(&stage->order) != STOPPED + 1)
            wait_until_writing(stage);
        atomic_store(&stage->killed_ns, gms_clock_ns());
        gms_pidfd_signal(named.pidfd, SIGKILL);
        gms_fd_close(&named.pidfd);
        break;
    }
    case CHILD:
        atomic_store(&stage->kill_child, true);
        break;
    case LAUNCHER:
        if (atomic_load(&stage->order) != STOPPED + 1)
            wait_until_writing(stage);
        atomic_store(&stage->killed_ns, gms_clock_ns());
        gms_pidfd_signal(actor->ranks[0].exec_pidfd, SIGKILL);
        break;
    case VICTIMS:
        break;
    }
}

/* While a thread of the cohort cannot end: nobody is promoted, the group says for whom it waits and goes on. */
static void expect_held(struct outcome *outcome, struct watched *watched)
{
    uint64_t until_ns = gms_clock_ns() + HELD_MS * GMS_NS_PER_MS;
    if (!eventually(names_whom, watched, plan.patience_ms) || strstr(watched->waits_for, "pid ") == NULL)
        fault(outcome, "nobody was named (\"%s\")", watched->waits_for);
    while (gms_clock_ns() < until_ns) {
        if (promoted_ns(watched->incarnation, NULL, NULL) != 0)
            fault(outcome, "admitted while a thread was in state D");
        poll(NULL, 0, 20);
    }
    if (granted_ns(watched->incarnation, watched->reason) != 0)
        fault(outcome, "granted while a thread was in state D");
}

static void judge(struct outcome *outcome, struct actor *victim, struct actor *successor)
{
    const struct stage *stage = victim->ranks[0].stage;
    struct watched watched = {.incarnation = stage->incarnation};
    if (outcome->behaviour == UNKILLABLE) {
        expect_held(outcome, &watched);
        dead_mount_close();
    }
    if (!eventually(serving, successor, plan.patience_ms)) {
        fault(outcome, "no successor was admitted");
        return;
    }
    uint64_t admitted_ns = promoted_ns(stage->incarnation, NULL, NULL), first = atomic_load(&stage->last_write_ns);
    if (admitted_ns < first)
        fault(outcome, "admitted %.3f ms or more before the last write", (double)(first - admitted_ns) / 1e6);
    const bool returned = eventually(granted, &watched, plan.patience_ms);
    uint64_t last_ns = atomic_load(&stage->last_write_ns), killed_ns = atomic_load(&stage->killed_ns);
    outcome->written_ms = (double)(int64_t)(last_ns - killed_ns) / 1e6;
    outcome->admitted_ms = (double)(int64_t)(admitted_ns - last_ns) / 1e6;
    outcome->granted_ms = (double)(int64_t)(watched.granted_ns - last_ns) / 1e6;
    if (admitted_ns < last_ns)
        fault(outcome, "admitted %.3f ms before the last write", (double)(last_ns - admitted_ns) / 1e6);
    if (!returned)
        fault(outcome, "its pages were not granted (%s)", watched.reason);
    if (watched.granted_ns != 0 && watched.granted_ns < last_ns)
        fault(outcome, "granted %.3f ms before the last write", -outcome->granted_ms);
    if (outcome->behaviour == UNKILLABLE) /* it is the held thread that counts, not the one that wrote */
        outcome->admitted_ms = outcome->granted_ms = -1;
    outcome->done = true;
}

static int start_stranger(struct outcome *outcome, struct stage *stage, const char *stage_path, pid_t *ret_pid)
{
    int pidfd = -1;
    (void)outcome;
    snprintf(stage->stranger, sizeof stage->stranger, "%s/s%u", cluster.directory, starts);
    char *words[] = {(char *)(uintptr_t)plan.self, "stranger", stage->stranger, (char *)(uintptr_t)stage_path, NULL};
    *ret_pid = start_program(words, cluster.log, &pidfd);
    for (uint64_t end_ns = gms_clock_ns() + 5 * GMS_NS_PER_S; access(stage->stranger, F_OK) != 0;) {
        assert_true(gms_clock_ns() < end_ns);
        poll(NULL, 0, 1);
    }
    return pidfd;
}

/* actors[*current] serves; its successor is started, and serves in the end. */
static void play(struct outcome *outcome, int *current)
{
    struct actor *victim = &actors[*current], *successor = &actors[1 - *current];
    struct stage *stage = victim->ranks[0].stage;
    pid_t stranger = 0;
    int stranger_pidfd = -1;
    start_actor(successor, 1 - victim->id, outcome->containment);
    assert_true(eventually(parked, successor, plan.patience_ms));
    promoted_ns(stage->incarnation, outcome->in_force, NULL);
    stage->victim = outcome->victim;
    stage->slot = starts % STAGE_SLOTS;
    if (outcome->behaviour == STRANGER)
        stranger_pidfd = start_stranger(outcome, stage, victim->ranks[0].path, &stranger);
    if (outcome->behaviour == UNKILLABLE) {
        snprintf(stage->mount, sizeof stage->mount, "%s/dead", cluster.directory);
        assert_true(dead_mount_open(stage->mount, why_no_mount));
    }
    atomic_store(&stage->order, (int)outcome->behaviour + 1);
    assert_true(eventually(acting, victim, plan.patience_ms));
    if (outcome->behaviour == UNKILLABLE)
        assert_true(eventually(mount_asked, NULL, plan.patience_ms));
    hit(outcome->victim, victim);
    judge(outcome, victim, successor);
    if (stranger_pidfd >= 0) {
        gms_pidfd_signal(stranger_pidfd, SIGKILL);
        waitpid(stranger, NULL, 0);
        gms_fd_close(&stranger_pidfd);
    }
    finish_actor(victim);
    *current = 1 - *current;
}

static bool must_be_seen_writing(const struct outcome *outcome)
{
    return behaviours[outcome->behaviour].writes_on ||
           (outcome->behaviour == MAIN_THREAD_GONE && outcome->victim == CHILD);
}

/* -------------------------------------------------------------------------------------------------- the table -- */

static bool is_wanted(const char *filter, const char *name)
{
    return filter == NULL || strncmp(name, filter, strlen(filter)) == 0;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare);
    return count == 0 ? 0 : values[count / 2];
}

static void print_table(void)
{
    double admitted[CASES], granted_after[CASES];
    size_t count = 0, wrong = 0, skipped = 0, played = 0;
    double bare = median(bare_ms, bare_count), slack = BARE_FACTOR * bare / ADMISSION_LIMIT_MS;
    slack = plan.slack * (slack > 1 ? slack : 1);
    printf("\n%-9s %-20s %-14s %12s %12s %12s\n", "killed", "the writer", "container", "last write", "admitted",
           "granted");
    printf("%-9s %-20s %-14s %12s %12s %12s\n", "", "", "", "after kill", "after it", "after it, ms");
    for (size_t i = 0; i < CASES; i++) {
        const struct outcome *outcome = &outcomes[i];
        if (outcome->containment == NULL)
            continue;
        printf("%-9s %-20s %-14s ", victim_names[outcome->victim], behaviours[outcome->behaviour].name,
               outcome->in_force);
        if (outcome->skipped)
            printf("skipped: %s", why_no_mount);
        else if (outcome->behaviour == UNKILLABLE && outcome->done)
            printf("%12.3f %12s %12s", outcome->written_ms, "when it ends", "when it ends");
        else if (outcome->done)
            printf("%12.3f %12.3f %12.3f", outcome->written_ms, outcome->admitted_ms, outcome->granted_ms);
        printf("%s%s\n", outcome->fault[0] != '\0' ? "  WRONG: " : "", outcome->fault);
        skipped += outcome->skipped;
        played += !outcome->skipped;
        wrong += outcome->fault[0] != '\0';
        if (outcome->done && outcome->behaviour != UNKILLABLE) {
            admitted[count] = outcome->admitted_ms;
            granted_after[count++] = outcome->granted_ms;
        }
    }
    double admission = median(admitted, count), grant = median(granted_after, count);
    printf(
        "\n%zu cases, %zu wrong, %zu skipped; median admission %.3f ms (limit %.1f), median grant %.3f ms (limit "
        "%.0f)\nto kill an equal cohort and to tell somebody, without any coordinator, takes %.3f ms here (median of "
        "%zu)%s\n",
        played, wrong, skipped, admission, ADMISSION_LIMIT_MS * slack, grant, GRANT_LIMIT_MS * slack, bare, bare_count,
        slack > 1 ? ": the limits are raised accordingly" : "");
    plan.failed = wrong > 0 || played == 0 || admission > ADMISSION_LIMIT_MS * slack || grant > GRANT_LIMIT_MS * slack;
}

static void test_table(void **state)
{
    int current = 0;
    char mount[160];
    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = plan.ranks});
    snprintf(mount, sizeof mount, "%s/dead", cluster.directory);
    assert_int_equal(mkdir(mount, 0700), 0);
    bool mountable = dead_mount_open(mount, why_no_mount);
    dead_mount_close();
    for (int i = 0; i < 2; i++)
        for (uint32_t rank = 0; rank < HARNESS_RANKS; rank++)
            actors[i].ranks[rank].exec_pidfd = -1;
    start_actor(&actors[0], 0, plan.containment != NULL ? plan.containment : kinds[0]);
    assert_true(eventually(serving, &actors[0], plan.patience_ms));

    /* The container of a case is that of the engine that is hit, which was started as successor in the case before. */
    size_t number = 0;
    for (enum victim victim = 0; victim < VICTIMS; victim++)
        for (enum behaviour behaviour = 0; behaviour < BEHAVIOURS; behaviour++) {
            struct outcome *outcome = &outcomes[(size_t)victim * BEHAVIOURS + behaviour];
            if (!is_wanted(plan.victim, victim_names[victim]) || !is_wanted(plan.behaviour, behaviours[behaviour].name))
                continue;
            const char *next = plan.containment != NULL ? plan.containment : kinds[++number % 3];
            for (int try = 0; try < TRIES; try++) {
                *outcome = (struct outcome){.victim = victim, .behaviour = behaviour, .containment = next};
                outcome->skipped = behaviour == UNKILLABLE && !mountable;
                if (outcome->skipped)
                    break;
                bare_ms[bare_count] = bare_admission_ms();
                assert_true(bare_ms[bare_count++] >= 0);
                play(outcome, &current);
                if (outcome->fault[0] != '\0' || !must_be_seen_writing(outcome) || outcome->written_ms > 0)
                    break;
                fault(outcome, "the writer was not seen writing after the kill");
            }
            if (outcome->fault[0] != '\0' && !outcome->done)
                goto end; /* nobody serves who could be hit next */
        }
end:
    print_table();
    if (plan.failed)
        cluster_show_log(&cluster);
    for (int i = 0; i < 2; i++) {
        for (uint32_t rank = 0; rank < plan.ranks; rank++)
            gms_pidfd_signal(actors[i].ranks[rank].exec_pidfd, SIGKILL);
        finish_actor(&actors[i]);
    }
    dead_mount_close();
    if (plan.failed)
        cluster_discard(&cluster);
    else
        cluster_stop(&cluster);
    assert_false(plan.failed);
}

int main(int argc, char **argv)
{
    static char self[512];
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table)};
    if (argc == 3 && strcmp(argv[1], "engine") == 0)
        return engine_main(argv[2]);
    if (argc == 4 && strcmp(argv[1], "stranger") == 0)
        return stranger_main(argv[2], argv[3]);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--containment") == 0 && i + 1 < argc)
            plan.containment = argv[++i];
        else if (strcmp(argv[i], "--ranks") == 0 && i + 1 < argc)
            plan.ranks = (uint32_t)atoi(argv[++i]);
        else if (strcmp(argv[i], "--patience") == 0 && i + 1 < argc)
            plan.patience_ms = atoi(argv[++i]);
        else if (strcmp(argv[i], "--slack") == 0 && i + 1 < argc)
            plan.slack = atof(argv[++i]);
        else if (plan.victim == NULL &&
                 (is_wanted(argv[i], "leader") || is_wanted(argv[i], "child") || is_wanted(argv[i], "launcher")))
            plan.victim = argv[i];
        else
            plan.behaviour = argv[i];
    }
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0 || plan.ranks == 0 || plan.ranks > HARNESS_RANKS)
        return 64;
    plan.self = self;
    return cmocka_run_group_tests_name("fence table", tests, NULL, NULL);
}
