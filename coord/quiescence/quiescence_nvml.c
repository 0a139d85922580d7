/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA. The driver's own list of who computes on a device: a process is on it until its last context is torn down, also
 * when it is long dead and a child that kept the driver's files open holds the teardown up. A dead cohort is quiet when
 * all of these hold; it is evidence with a count of trials (tests/gpu), not a theorem:
 *
 *   * while it lived it was seen on the list (`witness`), by this NVML session, under the pid that this namespace knows
 *   * now no process of it is on the list of any device, and no dead process that nobody knows is either
 *   * in between no NVML call failed, the driver was not reloaded, devices and MIG instances are the same, and no
 * device raised an Xid that is about more than one application
 *   * MPS is in use neither then nor now: under it no death says anything (V33)
 *   * it has ended: its container, or, without one, nobody else but the living has the driver open
 *
 * libnvidia-ml is opened at run time, by the worker, when it is first needed; what of it is needed is declared here.
 * With MIG processes are listed by instance.
 */
#include "quiescence/quiescence.h"

#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

/* ------------------------------------------------------------------------------------------------- NVML ------- */

enum {
    NVML_OK = 0,
    NVML_NOT_SUPPORTED = 3,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_TIMEOUT = 10,
    NVML_EVENT_XID = 0x8,
};

typedef struct nvml_device *nvml_device;
typedef struct nvml_event_set *nvml_event_set;

struct nvml_process {
    unsigned int pid;
    unsigned long long memory_bytes;
    unsigned int gpu_instance, compute_instance;
};

struct nvml_event {
    nvml_device device;
    unsigned long long type, data;
    unsigned int gpu_instance, compute_instance;
};

/* X(return type, member, symbol, parameters) */
#define NVML_FUNCTIONS(X)                                                                                              \
    X(init, "nvmlInit_v2", (void))                                                                                     \
    X(shutdown, "nvmlShutdown", (void))                                                                                \
    X(device_count, "nvmlDeviceGetCount_v2", (unsigned int *))                                                         \
    X(device, "nvmlDeviceGetHandleByIndex_v2", (unsigned int, nvml_device *))                                          \
    X(uuid, "nvmlDeviceGetUUID", (nvml_device, char *, unsigned int))                                                  \
    X(compute, "nvmlDeviceGetComputeRunningProcesses_v3", (nvml_device, unsigned int *, struct nvml_process *))        \
    X(graphics, "nvmlDeviceGetGraphicsRunningProcesses_v3", (nvml_device, unsigned int *, struct nvml_process *))      \
    X(mps, "nvmlDeviceGetMPSComputeRunningProcesses_v3", (nvml_device, unsigned int *, struct nvml_process *))         \
    X(mig_mode, "nvmlDeviceGetMigMode", (nvml_device, unsigned int *, unsigned int *))                                 \
    X(mig_count, "nvmlDeviceGetMaxMigDeviceCount", (nvml_device, unsigned int *))                                      \
    X(mig_device, "nvmlDeviceGetMigDeviceHandleByIndex", (nvml_device, unsigned int, nvml_device *))                   \
    X(event_set, "nvmlEventSetCreate", (nvml_event_set *))                                                             \
    X(event_free, "nvmlEventSetFree", (nvml_event_set))                                                                \
    X(event_register, "nvmlDeviceRegisterEvents", (nvml_device, unsigned long long, nvml_event_set))                   \
    X(event_wait, "nvmlEventSetWait_v2", (nvml_event_set, struct nvml_event *, unsigned int))

struct nvml {
#define X(member, symbol, parameters) int(*member) parameters;
    NVML_FUNCTIONS(X)
#undef X
};

enum { DEVICES = 64, LISTED = 1024, NOTES = 32, COHORT_PIDS = 64, ENDPOINTS = 256, UUID_BYTES = 96, WHY_BYTES = 128 };

/* One dead or living cohort. */
struct note {
    uint64_t incarnation; /* 0: free */
    uint64_t era;         /* of the session, when it was seen */
    bool seen, mps;
    uint64_t started;        /* the engine rank, in the kernel's ticks */
    bool places[ENDPOINTS];  /* on whose lists */
    pid_t pids[COHORT_PIDS]; /* of it, on a list while it lived */
    size_t pid_count;
};

struct provider {
    char library[256], module[256], files[128]; /* options */
    void *handle;
    struct nvml nvml;
    bool tried, started, open;
    uint64_t era;        /* grows with whatever makes earlier sightings worthless */
    char why[WHY_BYTES]; /* the last of that, or why there is no session */
    nvml_event_set events;
    unsigned int device_count;
    nvml_device devices[DEVICES];
    nvml_device places[ENDPOINTS]; /* what has a list: devices, or their MIG instances */
    char uuids[ENDPOINTS][UUID_BYTES];
    size_t place_count;
    ino_t module_inode;
    struct note notes[NOTES];
};

static bool load(struct provider *p)
{
    p->handle = dlopen(p->library, RTLD_NOW | RTLD_LOCAL);
    if (p->handle == NULL) {
        snprintf(p->why, sizeof p->why, "NVML cannot be opened (%.90s)", dlerror());
        return false;
    }
    /* POSIX: what dlsym returns for a function may be called through a pointer of its type. */
#define X(member, symbol, parameters)                                                                                  \
    *(void **)&p->nvml.member = dlsym(p->handle, symbol);                                                              \
    if (p->nvml.member == NULL) {                                                                                      \
        snprintf(p->why, sizeof p->why, "NVML is too old: it has no " symbol);                                         \
        return false;                                                                                                  \
    }
    NVML_FUNCTIONS(X)
#undef X
    return true;
}

/* From here on nothing that was seen before counts. False, for brevity. */
__attribute__((format(printf, 2, 3))) static bool new_era(struct provider *p, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(p->why, sizeof p->why, format, arguments);
    va_end(arguments);
    p->era++;
    return false;
}

static ino_t inode_at(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 ? about.st_ino : 0;
}

/* What has a list of processes now; compared with what had one at the last look. */
static bool find_places(struct provider *p, bool first)
{
    nvml_device places[ENDPOINTS] = {NULL};
    static char uuids[ENDPOINTS][UUID_BYTES];
    size_t count = 0;
    memset(uuids, 0, sizeof uuids);
    for (unsigned int d = 0; d < p->device_count; d++) {
        unsigned int current = 0, pending = 0, instances = 0;
        int result = p->nvml.mig_mode(p->devices[d], &current, &pending);
        if (result != NVML_OK && result != NVML_NOT_SUPPORTED)
            return new_era(p, "NVML error %d for the MIG mode of device %u", result, d);
        if (result == NVML_OK && current != 0 && (result = p->nvml.mig_count(p->devices[d], &instances)) != NVML_OK)
            return new_era(p, "NVML error %d for the MIG instances of device %u", result, d);
        const bool mig = result == NVML_OK && current != 0;
        for (unsigned int i = 0; i < (mig ? instances : 1); i++) {
            nvml_device place = p->devices[d];
            if (mig && (result = p->nvml.mig_device(p->devices[d], i, &place)) == NVML_NOT_FOUND)
                continue; /* places may be empty */
            if (mig && result != NVML_OK)
                return new_era(p, "NVML error %d for MIG instance %u of device %u", result, i, d);
            if (count == ENDPOINTS)
                return new_era(p, "more than %d devices and MIG instances", ENDPOINTS);
            if ((result = p->nvml.uuid(place, uuids[count], UUID_BYTES)) != NVML_OK)
                return new_era(p, "NVML error %d for the UUID of device %u", result, d);
            places[count++] = place;
        }
    }
    const bool same = count == p->place_count && memcmp(uuids, p->uuids, sizeof uuids) == 0;
    memcpy(p->places, places, count * sizeof places[0]);
    memcpy(p->uuids, uuids, sizeof uuids);
    p->place_count = count;
    if (!same && !first)
        return new_era(p, "devices or MIG instances changed");
    return true;
}

static bool begin(struct provider *p)
{
    int result;
    if (p->tried)
        return p->open;
    p->tried = true;
    if (!load(p))
        return false;
    p->module_inode = inode_at(p->module);
    if ((result = p->nvml.init()) != NVML_OK) {
        snprintf(p->why, sizeof p->why, "NVML does not start (error %d)", result);
        return false;
    }
    p->started = true;
    if ((result = p->nvml.device_count(&p->device_count)) != NVML_OK || p->device_count > DEVICES)
        return p->open = new_era(p, "NVML error %d for the number of devices (%u)", result, p->device_count);
    if ((result = p->nvml.event_set(&p->events)) != NVML_OK)
        return p->open = new_era(p, "Xids cannot be watched for (NVML error %d)", result);
    for (unsigned int d = 0; d < p->device_count; d++) {
        if ((result = p->nvml.device(d, &p->devices[d])) != NVML_OK)
            return p->open = new_era(p, "NVML error %d for device %u", result, d);
        if ((result = p->nvml.event_register(p->devices[d], NVML_EVENT_XID, p->events)) != NVML_OK)
            return p->open = new_era(p, "Xids of device %u cannot be watched for (NVML error %d)", d, result);
    }
    return p->open = find_places(p, true);
}

/* Faults of one application, which the driver contains and cleans up after: they say nothing about its lists. */
static bool is_of_an_application(unsigned long long xid)
{
    static const unsigned long long contained[] = {13 /* engine exception */,   31 /* MMU fault */,
                                                   43 /* stopped processing */, 45 /* preemptive cleanup */,
                                                   69 /* class error */,        94 /* contained error */};
    for (size_t i = 0; i < sizeof contained / sizeof contained[0]; i++)
        if (contained[i] == xid)
            return true;
    return false;
}

/* Is the session that saw the living still good? What is not starts a new era; false: it cannot be asked now at all. */
static bool examine(struct provider *p)
{
    if (!begin(p))
        return false;
    const ino_t module = inode_at(p->module);
    if (module != p->module_inode) {
        p->module_inode = module;
        new_era(p, "the driver was reloaded");
    }
    for (unsigned turn = 0; turn < 1024; turn++) {
        struct nvml_event event = {0};
        int result = p->nvml.event_wait(p->events, &event, 0);
        if (result == NVML_TIMEOUT)
            break;
        if (result != NVML_OK)
            return new_era(p, "NVML error %d when asked for Xids", result);
        if ((event.type & NVML_EVENT_XID) != 0 && !is_of_an_application(event.data))
            new_era(p, "Xid %llu", event.data);
    }
    return find_places(p, false);
}

struct listed {
    pid_t pids[LISTED];
    size_t places[LISTED];
    size_t count;
    bool mps;
};

static bool add_list(struct provider *p, size_t place, int (*list)(nvml_device, unsigned int *, struct nvml_process *),
                     const char *what, struct listed *listed)
{
    static struct nvml_process processes[LISTED];
    unsigned int count = LISTED;
    int result = list(p->places[place], &count, processes);
    if (result == NVML_NOT_SUPPORTED && list != p->nvml.compute)
        return true;
    if (result != NVML_OK || count > LISTED)
        return new_era(p, "NVML error %d for the %s processes of %s", result, what, p->uuids[place]);
    listed->mps = listed->mps || (list == p->nvml.mps && count > 0);
    for (unsigned int i = 0; i < count; i++) {
        if (listed->count == LISTED)
            return new_era(p, "more than %d processes", LISTED);
        listed->places[listed->count] = place;
        listed->pids[listed->count++] = (pid_t)processes[i].pid;
    }
    return true;
}

static bool list_all(struct provider *p, struct listed *ret_listed)
{
    ret_listed->count = 0;
    ret_listed->mps = false;
    for (size_t place = 0; place < p->place_count; place++)
        if (!add_list(p, place, p->nvml.compute, "compute", ret_listed) ||
            !add_list(p, place, p->nvml.graphics, "graphics", ret_listed) ||
            !add_list(p, place, p->nvml.mps, "MPS", ret_listed))
            return false;
    return true;
}

/* ------------------------------------------------------------------------------------------------- cohorts ---- */

static struct note *note_of(struct provider *p, uint64_t incarnation, bool make)
{
    struct note *empty = NULL;
    for (size_t i = 0; i < NOTES; i++) {
        if (p->notes[i].incarnation == incarnation)
            return &p->notes[i];
        if (p->notes[i].incarnation == 0 && empty == NULL)
            empty = &p->notes[i];
    }
    if (!make || empty == NULL)
        return NULL;
    *empty = (struct note){.incarnation = incarnation};
    return empty;
}

static bool has_pid(const struct note *note, pid_t pid)
{
    for (size_t i = 0; i < note->pid_count; i++)
        if (note->pids[i] == pid)
            return true;
    return false;
}

static void witness(void *context, const struct gms_cohort *cohort)
{
    struct provider *p = context;
    struct note *note = note_of(p, cohort->incarnation, true);
    static struct listed listed;
    char reason[GMS_QUIESCENCE_REASON_BYTES];
    const pid_t pid = cohort->pidfd >= 0 ? gms_pidfd_pid(cohort->pidfd) : 0;
    if (note == NULL || pid <= 0 || !examine(p) || !list_all(p, &listed))
        return;
    if (note->era != p->era) /* seen anew */
        *note = (struct note){.incarnation = cohort->incarnation, .era = p->era, .mps = note->mps};
    note->started = gms_process_started(pid);
    note->mps = note->mps || listed.mps || gms_mps_in_use(cohort->pidfd, reason);
    for (size_t i = 0; i < listed.count; i++) {
        if (!gms_process_descends(listed.pids[i], &pid, 1))
            continue;
        note->seen = note->seen || listed.pids[i] == pid;
        note->places[listed.places[i]] = true;
        if (!has_pid(note, listed.pids[i]) && note->pid_count < COHORT_PIDS)
            note->pids[note->pid_count++] = listed.pids[i];
    }
}

/* Coordinators, whose NVML has the driver open, and those who started this one: launchers look for devices. */
static bool is_of_the_job(pid_t pid)
{
    char path[64];
    struct stat own, other;
    const pid_t here = getpid();
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    return gms_process_descends(here, &pid, 1) || (stat("/proc/self/exe", &own) == 0 && stat(path, &other) == 0 &&
                                                   own.st_ino == other.st_ino && own.st_dev == other.st_dev);
}

/* Has it a context of its own, on other devices alone? A holder by a fork has none, and NVML lists the dead in its
 * place. Engine ranks of other ranks are such. */
static bool works_elsewhere(const struct note *note, const struct listed *listed, pid_t pid)
{
    bool found = false;
    for (size_t i = 0; i < listed->count; i++) {
        if (listed->pids[i] == pid && note->places[listed->places[i]])
            return false;
        found = found || listed->pids[i] == pid;
    }
    return found;
}

static bool has_driver_open(const struct provider *p, pid_t pid)
{
    char path[64];
    const size_t length = strlen(p->files);
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *descriptors = opendir(path);
    for (struct dirent *fd; descriptors != NULL && !found && (fd = readdir(descriptors)) != NULL;) {
        char target[sizeof p->files];
        ssize_t got = readlinkat(dirfd(descriptors), fd->d_name, target, sizeof target);
        found = got >= (ssize_t)length && memcmp(target, p->files, length) == 0;
    }
    if (descriptors != NULL)
        closedir(descriptors);
    return found;
}

/* Where no container says who was of it: a process that has the driver open, is of nobody known, and is younger than
 * the engine rank, so that it may have the open files by a fork. */
static pid_t driver_holder(const struct provider *p, const struct note *note, const struct gms_cohort *cohort,
                           const struct listed *listed)
{
    pid_t holder = 0;
    const uint64_t since = note->started > cohort->since ? note->started : cohort->since;
    DIR *processes = opendir("/proc");
    for (struct dirent *entry; processes != NULL && holder == 0 && (entry = readdir(processes)) != NULL;) {
        const pid_t pid = isdigit((unsigned char)entry->d_name[0]) ? (pid_t)atoi(entry->d_name) : 0;
        if (pid > 0 && pid != getpid() && gms_process_started(pid) >= since && has_driver_open(p, pid) &&
            !gms_cohort_knows(cohort, pid) && !is_of_the_job(pid) && !works_elsewhere(note, listed, pid))
            holder = pid;
    }
    if (processes != NULL)
        closedir(processes);
    return holder;
}

/* The command of a process; untouched where it is gone. */
static void name_of(pid_t pid, char name[32])
{
    char path[64], text[32];
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    FILE *stream = fopen(path, "re");
    if (stream != NULL && fgets(text, sizeof text, stream) != NULL)
        snprintf(name, 32, "%.*s", (int)strcspn(text, "\n"), text);
    if (stream != NULL)
        fclose(stream);
}

static bool is_dead(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d", (int)pid);
    return pid <= 0 || access(path, F_OK) != 0;
}

/* Who of the cohort is on a list, or may be: a dead one that nobody knows. 0: nobody. */
static pid_t still_listed(const struct note *note, const struct gms_cohort *cohort, const struct listed *listed)
{
    for (size_t i = 0; i < listed->count; i++) {
        if (has_pid(note, listed->pids[i]))
            return listed->pids[i] > 0 ? listed->pids[i] : -1;
        if (is_dead(listed->pids[i]) && !gms_cohort_knows(cohort, listed->pids[i]))
            return listed->pids[i] > 0 ? listed->pids[i] : -1;
    }
    return 0;
}

static enum gms_reclaim_answer ask(void *context, const struct gms_cohort *cohort,
                                   char ret_reason[GMS_QUIESCENCE_REASON_BYTES])
{
    struct provider *p = context;
    const struct note *note = note_of(p, cohort->incarnation, false);
    static struct listed listed;
    const bool good = examine(p) && list_all(p, &listed);
    if (!p->open || note == NULL || !note->seen) {
        snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES, "NVML was not seen to list it while it lived%s%s",
                 p->why[0] != '\0' ? ": " : "", p->why);
        return GMS_RECLAIM_CANNOT_KNOW;
    }
    if (!good || note->era != p->era) {
        snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES, "since it was seen on NVML's list: %s", p->why);
        return GMS_RECLAIM_CANNOT_KNOW;
    }
    if (note->mps || listed.mps) {
        snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES, "CUDA MPS %s",
                 note->mps ? "was in use while it lived" : "is in use");
        return GMS_RECLAIM_CANNOT_KNOW;
    }
    if (gms_mps_in_use(-1, ret_reason))
        return GMS_RECLAIM_CANNOT_KNOW;
    if (!gms_pidfd_ended(cohort->pidfd) ||
        (cohort->container.kind != 0 && !gms_pidfd_ended(cohort->container.guardian_fd))) {
        snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES, "its process or its container has not ended");
        return GMS_RECLAIM_NOT_YET;
    }
    const pid_t pid = still_listed(note, cohort, &listed);
    if (pid != 0) {
        snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES, "NVML still lists process %d", (int)pid);
        return GMS_RECLAIM_NOT_YET;
    }
    const pid_t holder = cohort->container.kind == 0 ? driver_holder(p, note, cohort, &listed) : 0;
    if (holder != 0) {
        char name[32] = "?";
        name_of(holder, name);
        snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES,
                 "process %d (%s) has the driver open and belongs to no living engine", (int)holder, name);
        return GMS_RECLAIM_NOT_YET;
    }
    snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES,
             "NVML listed %zu of its processes while it lived, and lists none on %zu devices now", note->pid_count,
             p->place_count);
    return GMS_RECLAIM_QUIET;
}

static void forget(void *context, uint64_t incarnation)
{
    struct note *note = note_of(context, incarnation, false);
    if (note != NULL)
        *note = (struct note){0};
}

static gms_status open_provider(const struct gms_quiescence_options *options, void **ret_context,
                                struct gms_error *ret_error)
{
    struct provider *p = calloc(1, sizeof *p);
    if (p == NULL)
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the provider nvml");
    snprintf(p->library, sizeof p->library, "%s", options->nvml != NULL ? options->nvml : "libnvidia-ml.so.1");
    snprintf(p->files, sizeof p->files, "%s", options->devices != NULL ? options->devices : "/dev/nvidia");
    snprintf(p->module, sizeof p->module, "%s", options->module != NULL ? options->module : "/sys/module/nvidia");
    *ret_context = p;
    return GMS_OK;
}

static void close_provider(void *context)
{
    struct provider *p = context;
    if (p->events != NULL)
        p->nvml.event_free(p->events);
    if (p->started)
        p->nvml.shutdown();
    if (p->handle != NULL)
        dlclose(p->handle);
    free(p);
}

const struct gms_quiescence_provider gms_quiescence_nvml = {.name = "nvml",
                                                            .memory = "cuda",
                                                            .open = open_provider,
                                                            .close = close_provider,
                                                            .witness = witness,
                                                            .ask = ask,
                                                            .forget = forget};
