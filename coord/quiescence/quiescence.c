/* SPDX-License-Identifier: Apache-2.0 */
#include "quiescence/quiescence.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "fence/loan.h"

static const struct gms_quiescence_provider *const providers[] = {
    &gms_quiescence_procmap,
    &gms_quiescence_nvml,
    &gms_quiescence_process_death,
};

static gms_status open_nobody(const struct gms_quiescence_options *options, void **ret_context,
                              struct gms_error *ret_error)
{
    (void)options;
    (void)ret_error;
    *ret_context = NULL;
    return GMS_OK;
}

static void close_nobody(void *context)
{
    (void)context;
}

static enum gms_reclaim_answer ask_nobody(void *context, const struct gms_cohort *cohort,
                                          char ret_reason[GMS_QUIESCENCE_REASON_BYTES])
{
    (void)context;
    (void)cohort;
    snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES, "there is no provider that could know it for this memory");
    return GMS_RECLAIM_CANNOT_KNOW;
}

static const struct gms_quiescence_provider nobody = {
    .name = "none", .open = open_nobody, .close = close_nobody, .ask = ask_nobody};

const struct gms_quiescence_provider *gms_quiescence_find(const char *name, const char *memory)
{
    for (size_t i = 0; i < sizeof providers / sizeof providers[0]; i++)
        if (name != NULL ? strcmp(providers[i]->name, name) == 0
                         : providers[i]->memory != NULL && strcmp(providers[i]->memory, memory) == 0)
            return providers[i];
    return &nobody;
}

void gms_cohort_close(struct gms_cohort *cohort)
{
    gms_fd_close(&cohort->pidfd);
    gms_container_close(&cohort->container);
    for (size_t i = 0; i < cohort->memory_count; i++)
        gms_fd_close(&cohort->loans[i]);
    cohort->memory_count = 0;
}

/* ------------------------------------------------------------------------------------------------- its end ---- */

bool gms_cohort_ended(const struct gms_cohort *cohort, bool *ret_never, char ret_reason[GMS_QUIESCENCE_REASON_BYTES])
{
    *ret_never = false;
    if (cohort->pidfd < 0) {
        *ret_never = true;
        snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES, "nothing is known here of its processes any more");
        return false;
    }
    if (!gms_pidfd_ended(cohort->pidfd)) {
        snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES, "its process %d has not ended",
                 (int)gms_pidfd_pid(cohort->pidfd));
        return false;
    }
    if (cohort->container.kind == 0) {
        bool lent = cohort->memory_count > 0;
        for (size_t i = 0; i < cohort->memory_count; i++)
            if (gms_loan_is_out(cohort->loans[i], cohort->incarnation)) {
                snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES, "somebody still has the memory that was lent to it");
                return false;
            }
        if (lent)
            return true; /* whatever became of its children, they have none of it */
        *ret_never = true;
        snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES,
                 "it ran in no container, so what became of its children cannot be known; start it by gms-exec");
        return false;
    }
    if (!gms_pidfd_ended(cohort->container.guardian_fd)) {
        snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES, "its container (process %d) has not ended",
                 (int)gms_pidfd_pid(cohort->container.guardian_fd));
        return false;
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------- holders ---- */

/* Fields 4 and 22 of stat, counted from behind the command's closing parenthesis. False: it is gone, or unreadable. */
static bool stat_of(pid_t pid, pid_t *ret_parent, uint64_t *ret_started)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *stream = fopen(path, "re");
    if (stream == NULL)
        return false;
    size_t got = fread(text, 1, sizeof text - 1, stream);
    fclose(stream);
    text[got] = '\0';
    const char *rest = strrchr(text, ')');
    int parent = 0;
    unsigned long long started = 0;
    if (rest == NULL ||
        sscanf(rest + 1, " %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &parent,
               &started) != 2)
        return false;
    *ret_parent = parent;
    *ret_started = started;
    return true;
}

static pid_t parent_of(pid_t pid)
{
    pid_t parent = 0;
    uint64_t started;
    return stat_of(pid, &parent, &started) && parent > 0 ? parent : 0;
}

uint64_t gms_process_started(pid_t pid)
{
    pid_t parent;
    uint64_t started = 0;
    return stat_of(pid, &parent, &started) ? started : 0;
}

static ino_t namespace_of(pid_t pid)
{
    char path[64];
    struct stat about;
    snprintf(path, sizeof path, "/proc/%d/ns/pid", (int)pid);
    return stat(path, &about) == 0 ? about.st_ino : 0;
}

static bool is_among(const pid_t *list, size_t count, pid_t pid)
{
    for (size_t i = 0; i < count; i++)
        if (list[i] == pid)
            return true;
    return false;
}

bool gms_process_descends(pid_t pid, const pid_t *roots, size_t count)
{
    for (unsigned depth = 0; pid > 1 && depth < 64; depth++, pid = parent_of(pid))
        if (is_among(roots, count, pid))
            return true;
    return false;
}

/* Of the living: itself, a descendant, or in its own PID namespace. */
static bool is_living(const struct gms_cohort *cohort, pid_t pid)
{
    const ino_t here = namespace_of(getpid()), there = namespace_of(pid);
    for (size_t i = 0; i < cohort->living_count && there != 0 && there != here; i++)
        if (namespace_of(cohort->living[i]) == there)
            return true;
    return gms_process_descends(pid, cohort->living, cohort->living_count);
}

bool gms_cohort_knows(const struct gms_cohort *cohort, pid_t pid)
{
    return is_among(cohort->ours, cohort->ours_count, pid) || is_living(cohort, pid);
}

/* True too where that is not known. */
static bool has_descriptor(pid_t pid, const struct gms_cohort *cohort)
{
    return gms_maps_has_descriptor(pid, cohort->memory, cohort->memory_count) || gms_maps_unknown(errno);
}

/* A process of our own user that does not let itself be looked at, and is younger than the deployment. An older one has
 * inherited nothing of it; another user's cannot have been given the memory, run directory and sockets are ours alone.
 */
static bool hides(const struct gms_cohort *cohort, pid_t pid)
{
    char path[64], line[128];
    unsigned int uid = 0;
    bool ours = false;
    if (gms_maps_may_be_read(pid) || errno == ESRCH || gms_process_started(pid) < cohort->since)
        return false;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *stream = fopen(path, "re");
    while (stream != NULL && fgets(line, sizeof line, stream) != NULL)
        if (sscanf(line, "Uid: %u", &uid) == 1)
            ours = uid == geteuid();
    if (stream != NULL)
        fclose(stream);
    return ours;
}

pid_t gms_cohort_holder(const struct gms_cohort *cohort, char ret_reason[GMS_QUIESCENCE_REASON_BYTES])
{
    pid_t holder = 0;
    DIR *directory = opendir("/proc");
    if (directory == NULL) {
        snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES, "/proc cannot be read: %s", strerror(errno));
        return getpid();
    }
    for (struct dirent *entry; holder == 0 && (entry = readdir(directory)) != NULL;) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        const pid_t pid = (pid_t)atoi(entry->d_name);
        if (pid <= 0 || pid == getpid() || is_among(cohort->ours, cohort->ours_count, pid))
            continue;
        const bool maps = gms_maps_has(pid, cohort->memory, cohort->memory_count, GMS_MAPS_ANY);
        const bool unknown = !maps && gms_maps_unknown(errno);
        if (!maps && !unknown && !has_descriptor(pid, cohort) && !hides(cohort, pid))
            continue;
        if (is_living(cohort, pid))
            continue;
        holder = pid;
        snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES,
                 "process %d %s the pool's memory and belongs to no living engine", (int)pid,
                 maps ? "maps" : "has, or may have, a descriptor of");
    }
    closedir(directory);
    return holder;
}

/* ------------------------------------------------------------------------------------------------- MPS -------- */

static bool environment_has(const char *path, const char *name)
{
    char *text = NULL;
    size_t capacity = 0;
    bool found = false;
    FILE *stream = fopen(path, "re");
    while (stream != NULL && !found && getdelim(&text, &capacity, '\0', stream) > 0)
        found = strncmp(text, name, strlen(name)) == 0 && text[strlen(name)] == '=';
    free(text);
    if (stream != NULL)
        fclose(stream);
    return found;
}

/* Names of programs are cut after 15 bytes there. */
static pid_t mps_server(void)
{
    pid_t found = 0;
    DIR *directory = opendir("/proc");
    for (struct dirent *entry; directory != NULL && found == 0 && (entry = readdir(directory)) != NULL;) {
        char path[300], name[32] = "";
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        snprintf(path, sizeof path, "/proc/%s/comm", entry->d_name);
        FILE *stream = fopen(path, "re");
        if (stream == NULL)
            continue;
        if (fgets(name, sizeof name, stream) != NULL && strncmp(name, "nvidia-cuda-mps", 15) == 0)
            found = (pid_t)atoi(entry->d_name);
        fclose(stream);
    }
    if (directory != NULL)
        closedir(directory);
    return found;
}

bool gms_mps_in_use(int pidfd, char ret_reason[GMS_QUIESCENCE_REASON_BYTES])
{
    static const char variable[] = "CUDA_MPS_PIPE_DIRECTORY";
    const pid_t pid = pidfd >= 0 ? gms_pidfd_pid(pidfd) : 0, server = mps_server();
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    if (getenv(variable) != NULL)
        snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES, "CUDA MPS is in use: %s is set for gms-coord", variable);
    else if (pid > 0 && environment_has(path, variable))
        snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES, "CUDA MPS is in use: %s is set for process %d", variable,
                 (int)pid);
    else if (server > 0)
        snprintf(ret_reason, GMS_QUIESCENCE_REASON_BYTES, "CUDA MPS is in use: its server runs as process %d",
                 (int)server);
    else
        return false;
    return true;
}
