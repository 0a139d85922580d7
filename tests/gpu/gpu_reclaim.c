/* SPDX-License-Identifier: Apache-2.0
 *
 * Quarantine that ends, on a real GPU: keeper, coordinator, gms-exec and libgms, engines that are killed with kernels
 * in flight, and the provider nvml. For each kill: when the successor was admitted, when the dead one's pages changed
 * last, when the provider said quiet, and when the pages came back. What must hold: no page changes after quiet, no
 * sealed page after admission; every page comes back; the median of the grant is at most 500 ms after the last write,
 * or after the end of the last process that kept the driver's files open.
 *
 * --orders: then so many are not killed from outside but taken over from by order; hooks.before_kill runs gms-cuda-lock
 * first.
 *
 *   gpu_reclaim [--kills N] [--life MS] [--orders N]
 *
 * Kinds take turns: {no child, a forked child in the cohort} x containers, and, without a container, a child that was
 * left behind, and one that has only the driver open: of that the fence cannot know, but the provider must.
 */
#include "reclaim_stage.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "harness.h"
#include "vmm/cuda.h"

enum {
    KILLS_MAX = 36,
    ORDERS_MAX = 4,
    PATIENCE_MS = 20000,
    AFTER_GRANT_MS = 200,
    DELAY_MS = 100,
    CHILD_MS = 1500,
    GRANT_LIMIT_MS = 500
};

static const char *const child_names[CHILD_KINDS] = {"none", "of the cohort", "orphan", "escaped"};
static const char *const containers[] = {"pid-namespace", "subreaper", "auto"};

struct engine_of_test {
    uint32_t id;
    struct reclaim_stage *stage;
    pid_t pid; /* gms-exec's, or the engine rank's own where there is no container */
    int pidfd;
};

struct outcome {
    enum reclaim_child child;
    char container[24], provider[24], state[32], reason[200];
    unsigned questions, pages, returned;
    double admitted_ms, last_write_ms, ended_ms, quiet_ms, granted_ms; /* after the kill */
    double child_end_ms;                                               /* the escaped child's; 0: there is none */
    unsigned sealed_changed, late_changed;
    bool wrote_after;
};

static struct {
    const char *self;
    unsigned kills, orders;
    uint32_t life_ms;
} plan = {.kills = 16, .life_ms = 600};
static struct cluster cluster;
static struct engine_of_test engines[2];
static struct outcome outcomes[KILLS_MAX];
static unsigned starts;

/* ------------------------------------------------------------------------------------------------ engines -------- */

static void start(struct engine_of_test *engine, uint32_t id, enum reclaim_child child)
{
    const unsigned number = starts++;
    char path[128], launch[32], text[8], exec[512];
    const char *container = containers[number % 3];

    snprintf(path, sizeof(path), "%s/stage-%u", cluster.directory, number);
    snprintf(launch, sizeof(launch), "start-%u", number);
    snprintf(text, sizeof(text), "%u", id);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && ftruncate(fd, sizeof(struct reclaim_stage)) == 0);
    gms_fd_close(&fd);
    engine->stage = reclaim_stage_map(path);
    assert_non_null(engine->stage);
    engine->id = id;
    engine->stage->engine = id;
    engine->stage->child = child;
    engine->stage->child_ms = CHILD_MS;
    engine->stage->life_ms = plan.life_ms;
    engine->stage->first_slot = number * RECLAIM_WINDOW;
    engine->stage->watched_slot = RECLAIM_SLOTS;
    snprintf(engine->stage->run_dir, sizeof(engine->stage->run_dir), "%s", cluster.run_dir);
    snprintf(engine->stage->launch, sizeof(engine->stage->launch), "%s", launch);
    char *contained[] = {(char *)(uintptr_t)program("gms-exec", exec),
                         "--run-dir",
                         cluster.run_dir,
                         "--engine",
                         text,
                         "--rank",
                         "0",
                         "--launch",
                         launch,
                         "--containment",
                         (char *)(uintptr_t)container,
                         "--",
                         (char *)(uintptr_t)plan.self,
                         "--engine",
                         path,
                         NULL};
    char *bare[] = {(char *)(uintptr_t)plan.self, "--engine", path, NULL};
    engine->pid = start_program(child > CHILD_OF_COHORT ? bare : contained, cluster.log, &engine->pidfd);
}

static bool has_come(const struct engine_of_test *engine, int step)
{
    const int at = engine->stage->at;

    if (at == RECLAIM_FAILED || gms_pidfd_ended(engine->pidfd)) {
        cluster_show_log(&cluster);
        fail_msg("engine %u: %s", engine->id, engine->stage->text);
    }
    return at >= step;
}

static bool is_parked(void *engine)
{
    return has_come(engine, RECLAIM_PARKED);
}

static bool is_serving(void *engine)
{
    return has_come(engine, RECLAIM_SERVING);
}

static bool is_working(void *engine)
{
    return has_come(engine, RECLAIM_WORKING);
}

static bool has_ended(void *engine)
{
    return gms_pidfd_ended(((struct engine_of_test *)engine)->pidfd);
}

static void finish(struct engine_of_test *engine)
{
    if (engine->stage == NULL) {
        return;
    }
    if (!eventually(has_ended, engine, 5000)) {
        gms_pidfd_signal(engine->pidfd, SIGKILL);
    }
    waitpid(engine->pid, NULL, 0);
    gms_fd_close(&engine->pidfd);
    munmap(engine->stage, sizeof(*engine->stage));
    engine->stage = NULL;
}

/* ------------------------------------------------------------------------------------------------ the status ----- */

struct seen {
    uint64_t incarnation, promoted_ns, answered_ns, granted_ns;
    pid_t pid;
    struct outcome *outcome;
};

static uint64_t number_of(const json_t *object, const char *name)
{
    return (uint64_t)json_integer_value(json_object_get(object, name));
}

static void take_text(char *to, size_t bytes, const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));

    snprintf(to, bytes, "%s", text != NULL ? text : "");
}

static void look(struct seen *seen)
{
    json_t *status = cluster_status(&cluster, 0), *item;
    json_t *reclaim = json_object_get(status, "reclaim");
    size_t i;

    take_text(seen->outcome->provider, sizeof(seen->outcome->provider), reclaim, "provider");
    json_array_foreach(json_object_get(status, "engines"), i, item)
    {
        if (number_of(item, "incarnation") == seen->incarnation) {
            seen->pid = (pid_t)number_of(item, "pid");
            take_text(seen->outcome->container, sizeof(seen->outcome->container), item, "containment");
        }
    }
    json_array_foreach(json_object_get(status, "takeovers"), i, item)
    {
        if (number_of(item, "from_incarnation") == seen->incarnation) {
            seen->promoted_ns = number_of(item, "promote_ns");
        }
    }
    json_array_foreach(json_object_get(reclaim, "suspects"), i, item)
    {
        if (number_of(item, "incarnation") == seen->incarnation) {
            take_text(seen->outcome->state, sizeof(seen->outcome->state), item, "state");
            take_text(seen->outcome->reason, sizeof(seen->outcome->reason), item, "reason");
            seen->outcome->questions = (unsigned)number_of(item, "trials");
            seen->outcome->pages = (unsigned)number_of(item, "pages");
            seen->outcome->returned = (unsigned)number_of(item, "returned");
            seen->answered_ns = number_of(item, "answered_ns");
            seen->granted_ns = number_of(item, "granted_ns");
        }
    }
    json_decref(status);
}

static bool is_terminal(void *context)
{
    struct seen *seen = context;

    look(seen);
    return seen->outcome->state[0] != '\0' && strcmp(seen->outcome->state, "pending") != 0;
}

/* ------------------------------------------------------------------------------------------------ a kill --------- */

static double ms_after(uint64_t ns, uint64_t since_ns)
{
    return ns == 0 ? 0 : ((double)ns - (double)since_ns) / 1e6;
}

static void judge(const struct reclaim_stage *watcher, const struct seen *seen, uint64_t kill_ns)
{
    struct outcome *outcome = seen->outcome;
    uint64_t last_ns = 0;

    for (int page = 0; page < RECLAIM_WINDOW; page++) {
        const struct reclaim_change *change = &watcher->pages[page];

        if (change->count == 0) {
            continue;
        }
        outcome->sealed_changed += page < RECLAIM_GROUP && change->after_ns > seen->promoted_ns;
        outcome->late_changed += seen->answered_ns != 0 && change->after_ns > seen->answered_ns;
        outcome->wrote_after = outcome->wrote_after || change->after_ns > kill_ns;
        last_ns = change->before_ns > last_ns ? change->before_ns : last_ns;
    }
    outcome->last_write_ms = ms_after(last_ns, kill_ns);
}

struct changes {
    const struct reclaim_stage *stage;
    uint64_t wanted;
};

static bool has_changed(void *context)
{
    const struct changes *changes = context;

    return changes->stage->pages[RECLAIM_GROUP].count >= changes->wanted;
}

/* The end of the escaped child; 0: it lives. It is nobody's child here, so its pidfd tells. */
static bool child_ended(void *context)
{
    return gms_pidfd_ended(*(int *)context);
}

/* engines[*current] serves and is killed at its work; its successor serves in the end. */
static void play(struct outcome *outcome, int *current, bool by_order)
{
    struct engine_of_test *victim = &engines[*current], *successor = &engines[1 - *current];
    struct seen seen = {.incarnation = victim->stage->incarnation, .outcome = outcome};
    int pidfd = -1, child_pidfd = -1;

    outcome->child = (enum reclaim_child)victim->stage->child;
    /* Six with containers, then two without. */
    const unsigned turn = starts % 8;
    start(successor, 1 - victim->id,
          turn < 3   ? CHILD_NONE
          : turn < 6 ? CHILD_OF_COHORT
          : turn < 7 ? CHILD_ORPHAN
                     : CHILD_ESCAPED);
    assert_true(eventually(is_parked, successor, PATIENCE_MS));
    successor->stage->watched_slot = victim->stage->first_slot;
    victim->stage->work_now = 1;
    assert_true(eventually(is_working, victim, PATIENCE_MS));
    look(&seen);
    assert_int_equal(gms_pidfd_open(seen.pid, &pidfd, NULL), GMS_OK);
    if (outcome->child > CHILD_OF_COHORT) {
        assert_int_equal(gms_pidfd_open(victim->stage->child_pid, &child_pidfd, NULL), GMS_OK);
    }
    struct changes changes = {successor->stage, 3};
    if (!eventually(has_changed, &changes, 2000)) {
        fail_msg("the work of engine %u was not seen writing", victim->id);
    }
    usleep(DELAY_MS * 1000);
    const uint64_t kill_ns = gms_clock_ns();
    if (by_order) {
        struct gms_message order = {.type = GMS_MESSAGE_TAKEOVER};

        order.takeover.engine_id = victim->id;

        assert_int_equal(cluster_order(&cluster, 0, &order), GMS_OK);
    } else {
        gms_pidfd_signal(pidfd, SIGKILL);
    }
    struct pollfd ended = {.fd = pidfd, .events = POLLIN};
    if (poll(&ended, 1, PATIENCE_MS) != 1) {
        cluster_show_log(&cluster);
        fail_msg("engine %u (%s) has not ended", victim->id, child_names[outcome->child]);
    }
    outcome->ended_ms = ms_after(gms_clock_ns(), kill_ns);
    if (child_pidfd >= 0 && eventually(child_ended, &child_pidfd, PATIENCE_MS)) {
        outcome->child_end_ms = ms_after(gms_clock_ns(), kill_ns);
    }
    assert_true(eventually(is_serving, successor, PATIENCE_MS));
    (void)eventually(is_terminal, &seen, PATIENCE_MS);
    /* Longer than what was queued would have run beside others, and some. */
    const uint64_t until_ns = victim->stage->end_ns + plan.life_ms * GMS_NS_PER_MS;
    while (gms_clock_ns() < until_ns || gms_clock_ns() < seen.granted_ns + AFTER_GRANT_MS * GMS_NS_PER_MS) {
        usleep(5000);
    }
    judge(successor->stage, &seen, kill_ns);
    successor->stage->watched_slot = RECLAIM_SLOTS;
    outcome->admitted_ms = ms_after(seen.promoted_ns, kill_ns);
    outcome->quiet_ms = ms_after(seen.answered_ns, kill_ns);
    outcome->granted_ms = ms_after(seen.granted_ns, kill_ns);
    printf("%s: %s, %s (%s)\n", child_names[outcome->child], outcome->provider, outcome->state, outcome->reason);
    gms_fd_close(&pidfd);
    gms_fd_close(&child_pidfd);
    finish(victim);
    *current = 1 - *current;
}

/* ------------------------------------------------------------------------------------------------ the table ------ */

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static unsigned report(void)
{
    double waits[KILLS_MAX] = {0};
    unsigned wrong = 0, wrote = 0;

    printf(
        "\n| child | container | admitted ms | last write ms | pidfd ms | child's end ms | quiet ms | granted ms | "
        "questions | pages back | changed after: admission (sealed), quiet |\n|---|---|---|---|---|---|---|---|---|---|"
        "---|\n");
    for (unsigned i = 0; i < plan.kills; i++) {
        const struct outcome *o = &outcomes[i];
        const double busy_ms = o->last_write_ms > o->child_end_ms ? o->last_write_ms : o->child_end_ms;
        const bool whole = strcmp(o->state, "reclaimed") == 0 && strcmp(o->provider, "nvml") == 0 && o->pages > 0 &&
                           o->returned == o->pages && o->sealed_changed == 0 && o->late_changed == 0 &&
                           o->quiet_ms >= o->child_end_ms - 5; /* seen by polling every 5 ms */

        printf("| %s | %s | %.2f | %.1f | %.1f | %.1f | %.1f | %.1f | %u | %u of %u | %u, %u |%s\n",
               child_names[o->child], o->container, o->admitted_ms, o->last_write_ms, o->ended_ms, o->child_end_ms,
               o->quiet_ms, o->granted_ms, o->questions, o->returned, o->pages, o->sealed_changed, o->late_changed,
               whole ? "" : " WRONG");
        waits[i] = o->granted_ms - busy_ms;
        wrote += o->wrote_after;
        wrong += !whole;
    }
    qsort(waits, plan.kills, sizeof(waits[0]), by_size);
    printf("\n%u kills, %u wrong; pages changed after the kill in %u; granted after the last write or the child's end: "
           "median %.0f ms (limit %d), greatest %.0f ms\n",
           plan.kills, wrong, wrote, waits[plan.kills / 2], GRANT_LIMIT_MS, waits[plan.kills - 1]);
    return wrong + (wrote == 0) + (waits[plan.kills / 2] > GRANT_LIMIT_MS);
}

static void test_pages_come_back(void **state)
{
    int current = 0;

    (void)state;
    cluster_start(&cluster, &(struct cluster_options){.ranks = 1,
                                                      .verify = "none",
                                                      .memory = "{ backend = \"cuda\"; capacity = \"64MiB\"; }"});
    start(&engines[0], 0, CHILD_NONE);
    assert_true(eventually(is_serving, &engines[0], PATIENCE_MS));
    for (unsigned i = 0; i < plan.kills; i++) {
        play(&outcomes[i], &current, false);
    }
    unsigned wrong = report();
    for (unsigned i = 0; i < plan.orders; i++) {
        struct outcome ordered = {0};

        play(&ordered, &current, true);
        printf("by order: %s, %s; admitted after %.1f ms, ended after %.1f ms, %u of %u pages back after %.1f ms\n",
               child_names[ordered.child], ordered.container, ordered.admitted_ms, ordered.ended_ms, ordered.returned,
               ordered.pages, ordered.granted_ms);
        wrong += ordered.pages == 0 || ordered.returned != ordered.pages || ordered.late_changed > 0;
    }
    if (cluster_log_has(&cluster, "hooks.before_kill")) { /* it says when it fails, or takes too long */
        printf("gms-cuda-lock did not hold them all\n");
        wrong++;
    }
    if (wrong > 0) {
        cluster_show_log(&cluster);
    }
    gms_pidfd_signal(engines[current].pidfd, SIGKILL);
    finish(&engines[current]);
    if (wrong > 0) {
        cluster_discard(&cluster);
    } else {
        cluster_stop(&cluster);
    }
    assert_int_equal(wrong, 0);
}

int main(int argc, char **argv)
{
    static char self[512];
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pages_come_back)};
    struct gms_error error;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 3 && strcmp(argv[1], "--engine") == 0) {
        return reclaim_engine(argv[2]);
    }
    for (int i = 1; i + 1 < argc; i += 2) {
        const unsigned value = (unsigned)strtoul(argv[i + 1], NULL, 10);

        if (strcmp(argv[i], "--kills") == 0 && value > 0) {
            plan.kills = value < KILLS_MAX ? value : KILLS_MAX;
        } else if (strcmp(argv[i], "--life") == 0) {
            plan.life_ms = value;
        } else if (strcmp(argv[i], "--orders") == 0) {
            plan.orders = value < ORDERS_MAX ? value : ORDERS_MAX;
        } else {
            fprintf(stderr, "usage: gpu_reclaim [--kills N] [--life MS] [--orders N]\n");
            return 64;
        }
    }
    /* In a child: the driver does not outlive a fork, and engines are forked from here. */
    const pid_t child = fork();
    if (child == 0) {
        const bool there = gms_vmm_cuda_choose("0", &error) == GMS_OK && gms_vmm_cuda_ready(NULL, &error) == GMS_OK;
        if (!there) {
            fprintf(stderr, "skipped: %s\n", error.text);
        }
        _exit(there ? 0 : 77);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        return 77;
    }
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) {
        return 64;
    }
    plan.self = self;
    return cmocka_run_group_tests_name("gpu reclaim", tests, NULL, NULL);
}
