/* SPDX-License-Identifier: Apache-2.0
 *
 * Kills in mid-kernel, over {persistent kernel, copy engine, graphs, several streams} x {SIGKILL, illegal address,
 * SIGKILL with a forked child alive}. For each trial: when every thread of the dead was past the start of its exit
 * (retired), when its pidfd was readable, when NVML stopped listing it, and when each page changed last, watched for
 * longer than the work would have lived. What must hold: a page that was sealed or idle never changes after retired;
 * nothing changes after NVML stopped listing the pid.
 *
 *   gpu_trials [--trials N] [--slots N] [--life MS] [--seconds N] [--seed N]
 */
#include "trials.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "vmm/cuda.h"

enum { PF_EXITING_FLAG = 4, STARTED_MS = 30000, QUIET_MS = 20000, AFTER_QUIET_MS = 300, CHILDREN = 8 };

static const char *const work_names[] = {"persistent kernel", "copy engine", "graphs queued", "four streams"};
static const char *const end_names[] = {"SIGKILL", "illegal address", "forked child alive"};

static struct shared *shared;
static uint32_t life_ms = 600;

/* ---------------------------------------------------------------------------------------------------- NVML ------- */

/* nvml.h's, version 2 and 3 of the list have this layout. */
struct nvml_process {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};
static struct {
    int (*init)(void);
    int (*device)(unsigned index, void **ret_device);
    int (*processes)(void *device, unsigned *count, struct nvml_process *ret_processes);
    void *handle;
    pthread_mutex_t lock;
    pthread_cond_t read;
    uint64_t begun_ns, ended_ns; /* of the reading that gave the list */
    unsigned count;
    struct nvml_process list[256];
    uint64_t slowest_ns, readings, failures;
} nvml = {.lock = PTHREAD_MUTEX_INITIALIZER, .read = PTHREAD_COND_INITIALIZER};

static bool nvml_open(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    static const struct {
        const char *symbol;
        size_t offset;
    } list[] = {{"nvmlInit_v2", offsetof(__typeof__(nvml), init)},
                {"nvmlDeviceGetHandleByIndex_v2", offsetof(__typeof__(nvml), device)},
                {"nvmlDeviceGetComputeRunningProcesses_v3", offsetof(__typeof__(nvml), processes)}};

    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        void *symbol = library ? dlsym(library, list[i].symbol) : NULL;

        if (!symbol) {
            fprintf(stderr, "skipped: NVML has no %s here\n", list[i].symbol);
            return false;
        }
        memcpy((char *)&nvml + list[i].offset, &symbol, sizeof(symbol));
    }
    return nvml.init() == 0 && nvml.device(0, &nvml.handle) == 0;
}

static void *read_nvml(void *nothing)
{
    static struct nvml_process list[256];

    while (!shared->stop) {
        const uint64_t begun_ns = gms_clock_ns();
        unsigned count = sizeof(list) / sizeof(list[0]);
        const int result = nvml.processes(nvml.handle, &count, list);
        const uint64_t took_ns = gms_clock_ns() - begun_ns;

        pthread_mutex_lock(&nvml.lock);
        nvml.readings++;
        if (result == 0) {
            memcpy(nvml.list, list, count * sizeof(list[0]));
            nvml.count = count;
            nvml.begun_ns = begun_ns;
            nvml.ended_ns = begun_ns + took_ns;
            nvml.slowest_ns = took_ns > nvml.slowest_ns ? took_ns : nvml.slowest_ns;
        } else {
            nvml.failures++;
        }
        pthread_cond_broadcast(&nvml.read);
        pthread_mutex_unlock(&nvml.lock);
        usleep(500);
    }
    return nothing;
}

/* Waits for a reading, begun after `since_ns`, that lists the pid or does not, whichever is `wanted`. 0: not in time;
 * else when it was known. */
static uint64_t await_listed(pid_t pid, bool wanted, uint64_t since_ns, uint64_t patience_ms)
{
    const uint64_t asked_ns = gms_clock_ns();
    uint64_t seen_ns = 0;

    pthread_mutex_lock(&nvml.lock);
    while (seen_ns == 0 && gms_clock_ns() - asked_ns < patience_ms * GMS_NS_PER_MS) {
        bool listed = false;

        pthread_cond_wait(&nvml.read, &nvml.lock);
        for (unsigned i = 0; i < nvml.count; i++) {
            listed = listed || nvml.list[i].pid == (unsigned)pid;
        }
        if (listed == wanted && nvml.begun_ns >= since_ns) {
            seen_ns = nvml.ended_ns;
        }
    }
    pthread_mutex_unlock(&nvml.lock);
    return seen_ns;
}

/* ----------------------------------------------------------------------------------------------- processes ------- */

/* Is every thread past the start of its exit? True also where the process is gone. */
static bool is_retired(pid_t pid)
{
    char path[64];
    bool retired = true;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    if (!tasks) {
        return true;
    }
    for (struct dirent *task = readdir(tasks); task && retired; task = readdir(tasks)) {
        char text[512];
        unsigned flags = PF_EXITING_FLAG;

        if (task->d_name[0] == '.') {
            continue;
        }
        snprintf(path, sizeof(path), "/proc/%d/task/%.20s/stat", (int)pid, task->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        const ssize_t length = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;
        gms_fd_close(&fd);
        if (length <= 0) {
            continue; /* gone meanwhile */
        }
        text[length] = '\0';
        const char *behind = strrchr(text, ')');
        if (behind && sscanf(behind + 1, " %*c %*d %*d %*d %*d %*d %u", &flags) == 1) {
            retired = (flags & PF_EXITING_FLAG) != 0;
        }
    }
    closedir(tasks);
    return retired;
}

static pid_t start(const char *role, unsigned slot)
{
    char number[16];
    snprintf(number, sizeof(number), "%u", slot);
    const pid_t pid = vfork();

    if (pid == 0) {
        execl("/proc/self/exe", "gpu_trials", role, number, (char *)NULL);
        _exit(97);
    }
    return pid;
}

/* Children of the dead come to us (subreaper): ended by pidfd, reaped. */
static void end_children(const pid_t *children, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct gms_error error;
        int pidfd = -1;

        if (gms_pidfd_open(children[i], &pidfd, &error) == GMS_OK) {
            gms_pidfd_signal(pidfd, SIGKILL);
            gms_fd_close(&pidfd);
            (void)waitpid(children[i], NULL, 0);
        }
    }
}

static unsigned children_of(pid_t pid, pid_t *ret_children, unsigned room)
{
    char path[96];
    char text[256];
    unsigned count = 0;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid, (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t length = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;
    gms_fd_close(&fd);
    text[length > 0 ? length : 0] = '\0';
    for (char *save = NULL, *word = strtok_r(text, " ", &save); word && count < room;
         word = strtok_r(NULL, " ", &save)) {
        ret_children[count++] = (pid_t)strtol(word, NULL, 10);
    }
    return count;
}

/* ------------------------------------------------------------------------------------------------- results ------- */

enum { RESULTS_MAX = 4096 };

struct result {
    enum workload workload;
    enum ending ending;
    double retired_ms, pidfd_ms, quiet_ms, last_write_ms, last_end_ms; /* after the kill; last_end: of a child */
    bool wrote_after;                      /* something changed after the kill for certain */
    unsigned sealed_changed, late_changed; /* must be 0 */
    const char *broken;                    /* why the trial does not count; NULL: it does */
};

static struct {
    pthread_mutex_t lock;
    unsigned wanted, begun, done;
    uint64_t deadline_ns, seed;
    struct result results[RESULTS_MAX];
} work = {.lock = PTHREAD_MUTEX_INITIALIZER};

static double ms_after(uint64_t ns, uint64_t since_ns)
{
    return ((double)ns - (double)since_ns) / 1e6;
}

static void judge(const struct slot *slot, uint64_t kill_ns, uint64_t retired_ns, uint64_t quiet_ns,
                  struct result *result)
{
    uint64_t last_ns = 0;

    for (int page = 0; page < PAGES; page++) {
        const struct change *change = &slot->pages[page];
        const enum page_state state = (enum page_state)(page / PAGES_OF_A_STATE);

        if ((state == PAGE_SEALED || state == PAGE_IDLE) && change->count > 0 && change->after_ns > retired_ns) {
            result->sealed_changed++;
        }
        if (change->count > 0 && change->after_ns > quiet_ns) {
            result->late_changed++;
        }
        if (change->count > 0 && change->before_ns > last_ns) {
            last_ns = change->before_ns;
        }
        result->wrote_after = result->wrote_after || (change->count > 0 && change->after_ns > kill_ns);
    }
    result->last_write_ms = ms_after(last_ns, kill_ns);
}

static bool await_stage(const struct slot *slot, enum stage stage, uint64_t patience_ms)
{
    const uint64_t deadline_ns = gms_clock_ns() + patience_ms * GMS_NS_PER_MS;

    while (slot->stage != stage && gms_clock_ns() < deadline_ns) {
        usleep(200);
    }
    return slot->stage == stage;
}

/* The observer has seen the work write. */
static bool await_writes(const struct slot *slot, uint64_t patience_ms)
{
    const uint64_t deadline_ns = gms_clock_ns() + patience_ms * GMS_NS_PER_MS;
    const struct change *leased = &slot->pages[PAGE_LEASED * PAGES_OF_A_STATE];
    const uint64_t count = leased->count;

    while (leased->count < count + 3 && gms_clock_ns() < deadline_ns) {
        usleep(200);
    }
    return leased->count >= count + 3;
}

struct cohort {
    pid_t pid;
    int pidfd;
    pid_t children[CHILDREN];
    unsigned child_count;
};

/* Up to the kill; *ret_kill_ns. */
static const char *bring_to_its_end(struct slot *slot, struct cohort *cohort, unsigned delay_ms, uint64_t *ret_kill_ns)
{
    if (!await_stage(slot, STAGE_RUNNING, STARTED_MS)) {
        return "the writer did not start";
    }
    if (slot->ending == END_CHILD) {
        cohort->child_count = children_of(cohort->pid, cohort->children, CHILDREN);
        if (cohort->child_count == 0) {
            return "it has no child";
        }
    }
    if (await_listed(cohort->pid, true, gms_clock_ns(), 2000) == 0) {
        return "NVML never listed it"; /* no positive control, no evidence */
    }
    if (!await_writes(slot, 2000)) {
        return "its work was not seen writing";
    }
    usleep(delay_ms * 1000);
    if (gms_clock_ns() + 50 * GMS_NS_PER_MS > slot->end_ns) {
        return "its work was nearly over before the kill";
    }
    *ret_kill_ns = gms_clock_ns();
    if (slot->ending == END_FAULT) {
        slot->fault_now = 1;
        if (!await_stage(slot, STAGE_FAULTED, QUIET_MS)) {
            return "its fault was not seen";
        }
        *ret_kill_ns = slot->faulted_ns;
    } else if (!gms_pidfd_signal(cohort->pidfd, SIGKILL)) {
        return "it was gone before the kill";
    }
    return NULL;
}

/* Retired, ended, quiet; a forked child lives for `child_ms`. */
static const char *watch_its_end(struct slot *slot, struct cohort *cohort, uint64_t kill_ns, unsigned child_ms,
                                 struct result *result)
{
    const uint64_t limit_ns = kill_ns + QUIET_MS * GMS_NS_PER_MS;
    uint64_t ended_ns = 0;
    uint64_t quiet_ns = 0;

    while (!is_retired(cohort->pid) && gms_clock_ns() < limit_ns) {
    }
    const uint64_t retired_ns = gms_clock_ns();
    while ((quiet_ns == 0 || ended_ns == 0) && gms_clock_ns() < limit_ns) {
        struct pollfd ended = {.fd = cohort->pidfd, .events = POLLIN};

        if (ended_ns == 0 && poll(&ended, 1, quiet_ns == 0 ? 0 : 1) == 1) {
            ended_ns = gms_clock_ns();
        }
        if (quiet_ns == 0) {
            quiet_ns = await_listed(cohort->pid, false, kill_ns, 2);
        }
        if (cohort->child_count > 0 && gms_clock_ns() > kill_ns + child_ms * GMS_NS_PER_MS) {
            end_children(cohort->children, cohort->child_count);
            cohort->child_count = 0;
            result->last_end_ms = ms_after(gms_clock_ns(), kill_ns);
        }
    }
    /* Longer than what was queued would have run, beside so many others. */
    const uint64_t life_end_ns = slot->end_ns + slot->life_ms * GMS_NS_PER_MS;
    const uint64_t until_ns = (quiet_ns > life_end_ns ? quiet_ns : life_end_ns) + AFTER_QUIET_MS * GMS_NS_PER_MS;
    while (quiet_ns != 0 && gms_clock_ns() < until_ns) {
        usleep(5000);
    }
    if (quiet_ns == 0 || ended_ns == 0) {
        return "it was never quiet";
    }
    result->retired_ms = ms_after(retired_ns, kill_ns);
    result->pidfd_ms = ms_after(ended_ns, kill_ns);
    result->quiet_ms = ms_after(quiet_ns, kill_ns);
    judge(slot, kill_ns, retired_ns, quiet_ns, result);
    return NULL;
}

static void one_trial(unsigned number, unsigned index, struct result *result)
{
    struct slot *slot = &shared->slots[number];
    struct gms_error error;
    struct cohort cohort = {.pidfd = -1};
    uint64_t kill_ns = 0;
    unsigned seed = (unsigned)(work.seed * 1000003 + index);

    result->workload = (enum workload)(index % WORKLOADS);
    result->ending = (enum ending)(index / WORKLOADS % ENDINGS);
    slot->workload = result->workload;
    slot->ending = result->ending;
    slot->life_ms = life_ms;
    slot->stage = STAGE_STARTING;
    slot->fault_now = 0;
    slot->end_ns = 0;
    for (int page = 0; page < PAGES; page++) {
        slot->pages[page].count = slot->pages[page].after_ns = slot->pages[page].before_ns = 0;
    }
    slot->watched = 1;
    cohort.pid = start("--writer", number);
    if (cohort.pid < 0 || gms_pidfd_open(cohort.pid, &cohort.pidfd, &error) != GMS_OK) {
        result->broken = "the writer cannot be started";
    } else {
        const unsigned delay_ms = (unsigned)(rand_r(&seed) % 60);
        const unsigned child_ms = 100 + (unsigned)(rand_r(&seed) % (2 * life_ms));

        result->broken = bring_to_its_end(slot, &cohort, delay_ms, &kill_ns);
        if (!result->broken) {
            result->broken = watch_its_end(slot, &cohort, kill_ns, child_ms, result);
        }
        if (result->broken && result->ending == END_CHILD && cohort.child_count == 0) {
            cohort.child_count = children_of(cohort.pid, cohort.children, CHILDREN);
        }
        gms_pidfd_signal(cohort.pidfd, SIGKILL);
        (void)waitpid(cohort.pid, NULL, 0);
        end_children(cohort.children, cohort.child_count);
    }
    gms_fd_close(&cohort.pidfd);
    slot->watched = 0;
}

static void *run_slot(void *argument)
{
    const unsigned number = (unsigned)(uintptr_t)argument;

    for (;;) {
        pthread_mutex_lock(&work.lock);
        const bool more = work.begun < work.wanted && gms_clock_ns() < work.deadline_ns;
        const unsigned index = work.begun;
        work.begun += more;
        pthread_mutex_unlock(&work.lock);
        if (!more) {
            return NULL;
        }
        struct result result = {0};
        one_trial(number, index, &result);
        pthread_mutex_lock(&work.lock);
        work.results[work.done++] = result;
        pthread_mutex_unlock(&work.lock);
    }
}

/* -------------------------------------------------------------------------------------------------- report ------- */

static int by_size(const void *left, const void *right)
{
    const double a = *(const double *)left;
    const double b = *(const double *)right;
    return (a > b) - (a < b);
}

struct figures {
    double median, greatest;
};

enum figure { RETIRED, LAST_WRITE, QUIET, LAG, PIDFD };

static double figure_of(const struct result *result, enum figure figure)
{
    switch (figure) {
    case RETIRED:
        return result->retired_ms;
    case LAST_WRITE:
        return result->last_write_ms;
    case QUIET:
        return result->quiet_ms;
    case LAG:
        return result->quiet_ms -
               (result->last_write_ms > result->last_end_ms ? result->last_write_ms : result->last_end_ms);
    case PIDFD:
        return result->pidfd_ms;
    }
    return 0;
}

static struct figures figures_of(enum workload workload, enum ending ending, enum figure figure)
{
    static double values[RESULTS_MAX];
    unsigned count = 0;

    for (unsigned i = 0; i < work.done; i++) {
        const struct result *result = &work.results[i];
        if (!result->broken && result->workload == workload && result->ending == ending) {
            values[count++] = figure_of(result, figure);
        }
    }
    qsort(values, count, sizeof(values[0]), by_size);
    return count > 0 ? (struct figures){values[count / 2], values[count - 1]} : (struct figures){0, 0};
}

static int report(void)
{
    unsigned good = 0;
    unsigned violations = 0;

    printf(
        "| work in flight | end | trials | wrote after it | retired ms | last write ms | NVML quiet ms | quiet after "
        "last write and child ms | pidfd ms | sealed or idle changed | changed after quiet |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (unsigned end = 0; end < ENDINGS; end++) {
        for (unsigned kind = 0; kind < WORKLOADS; kind++) {
            unsigned trials = 0;
            unsigned wrote = 0;
            unsigned sealed = 0;
            unsigned late = 0;

            for (unsigned i = 0; i < work.done; i++) {
                const struct result *result = &work.results[i];
                if (!result->broken && result->workload == kind && result->ending == end) {
                    trials++;
                    wrote += result->wrote_after;
                    sealed += result->sealed_changed > 0;
                    late += result->late_changed > 0;
                }
            }
#define FIGURES(figure) figures_of((enum workload)kind, (enum ending)end, figure)
            const struct figures retired = FIGURES(RETIRED);
            const struct figures last = FIGURES(LAST_WRITE);
            const struct figures quiet = FIGURES(QUIET);
            const struct figures lag = FIGURES(LAG);
            const struct figures ended = FIGURES(PIDFD);
            printf("| %s | %s | %u | %u | %.2f / %.2f | %.1f / %.1f | %.0f / %.0f | %.0f / %.0f | %.0f / %.0f | %u | "
                   "%u |\n",
                   work_names[kind], end_names[end], trials, wrote, retired.median, retired.greatest, last.median,
                   last.greatest, quiet.median, quiet.greatest, lag.median, lag.greatest, ended.median, ended.greatest,
                   sealed, late);
            good += trials;
            violations += sealed + late;
        }
    }
    for (unsigned i = 0, shown = 0; i < work.done && shown < 8; i++) {
        if (work.results[i].broken) {
            printf("not counted: %s, %s: %s\n", work_names[work.results[i].workload], end_names[work.results[i].ending],
                   work.results[i].broken);
            shown++;
        }
    }
    printf("%u trials counted of %u, %u violations; pages read %llu times, slowest %.1f ms; NVML asked %llu times, "
           "slowest "
           "%.1f ms, %llu failures\n",
           good, work.done, violations, (unsigned long long)shared->samples, (double)shared->slowest_sample_ns / 1e6,
           (unsigned long long)nvml.readings, (double)nvml.slowest_ns / 1e6, (unsigned long long)nvml.failures);
    return violations == 0 && good > 0 ? 0 : 1;
}

/* ---------------------------------------------------------------------------------------------------- main ------- */

static struct shared *map_shared(int fd)
{
    void *address = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return address != MAP_FAILED ? address : NULL;
}

/* A process without a context, for itself: it makes the memory and hands the descriptors down. */
static bool make_memory(unsigned slots)
{
    const struct gms_vmm *vmm = gms_vmm_cuda();
    struct gms_error error;

    for (unsigned i = 0; i < slots; i++) {
        struct gms_vmm_handle handle = {.fd = -1};

        if (vmm->create("trial", SLOT_BYTES, &handle, &error) != GMS_OK ||
            dup2(handle.fd, FIRST_FD + (int)i) < 0) { /* inherited from here on */
            fprintf(stderr, "%s\n", error.text);
            return false;
        }
        vmm->release(&handle);
    }
    return true;
}

int main(int argc, char *argv[])
{
    struct gms_error error;
    pid_t left[CHILDREN];
    unsigned slots = 8;
    unsigned seconds = 600;
    pthread_t threads[TRIAL_SLOTS];
    pthread_t nvml_thread;

    if (argc == 3 && (shared = map_shared(SHARED_FD)) != NULL) {
        const unsigned number = (unsigned)strtoul(argv[2], NULL, 10);

        if (strcmp(argv[1], "--writer") == 0 && number < TRIAL_SLOTS) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            return trial_writer(shared, number);
        }
        if (strcmp(argv[1], "--observer") == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            return trial_observer(shared, number);
        }
    }
    work.wanted = 96;
    work.seed = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        const unsigned value = (unsigned)strtoul(argv[i + 1], NULL, 10);

        if (strcmp(argv[i], "--trials") == 0) {
            work.wanted = value < RESULTS_MAX ? value : RESULTS_MAX;
        } else if (strcmp(argv[i], "--slots") == 0) {
            slots = value < TRIAL_SLOTS ? value : TRIAL_SLOTS;
        } else if (strcmp(argv[i], "--life") == 0) {
            life_ms = value;
        } else if (strcmp(argv[i], "--seconds") == 0) {
            seconds = value;
        } else if (strcmp(argv[i], "--seed") == 0) {
            work.seed = value;
        } else {
            fprintf(stderr, "usage: gpu_trials [--trials N] [--slots N] [--life MS] [--seconds N] [--seed N]\n");
            return 64;
        }
    }
    if (gms_vmm_cuda_choose("0", &error) != GMS_OK || gms_vmm_cuda_ready(NULL, &error) != GMS_OK) {
        fprintf(stderr, "skipped: %s\n", error.text);
        return 77;
    }
    if (!nvml_open()) {
        return 77;
    }
    int fd = memfd_create("trials", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(struct shared)) != 0 || dup2(fd, SHARED_FD) < 0 ||
        (shared = map_shared(fd)) == NULL || !make_memory(slots)) {
        return 1;
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    printf("seed %llu, %u at once, work of %u ms\n", (unsigned long long)work.seed, slots, life_ms);
    work.deadline_ns = gms_clock_ns() + seconds * GMS_NS_PER_S;
    const pid_t observer = start("--observer", slots);
    while (!shared->observer_ready && waitpid(observer, NULL, WNOHANG) == 0) {
        usleep(1000);
    }
    if (!shared->observer_ready) {
        return 1;
    }
    pthread_create(&nvml_thread, NULL, read_nvml, NULL);
    for (unsigned i = 0; i < slots; i++) {
        pthread_create(&threads[i], NULL, run_slot, (void *)(uintptr_t)i);
    }
    for (unsigned i = 0; i < slots; i++) {
        pthread_join(threads[i], NULL);
    }
    shared->stop = 1;
    pthread_join(nvml_thread, NULL);
    (void)waitpid(observer, NULL, 0);
    end_children(left, children_of(getpid(), left, CHILDREN)); /* of writers that ended before they were looked at */
    return report();
}
