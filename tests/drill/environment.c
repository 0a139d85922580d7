/* SPDX-License-Identifier: Apache-2.0 */
#include "environment.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "gms/version.h"

/* The value behind `key` in a file of "key<separator>value" lines; quotes and blanks around it are dropped. */
static void value_of(const char *path, const char *key, char separator, char *ret_text, size_t bytes)
{
    char line[512];
    FILE *stream = fopen(path, "re");
    ret_text[0] = '\0';
    while (stream != NULL && ret_text[0] == '\0' && fgets(line, sizeof line, stream) != NULL) {
        char *at = strchr(line, separator);
        if (at == NULL || strncmp(line, key, strlen(key)) != 0)
            continue;
        at += 1 + strspn(at + 1, " \t\"");
        at[strcspn(at, "\"\n")] = '\0';
        snprintf(ret_text, bytes, "%s", at);
    }
    if (stream != NULL)
        fclose(stream);
}

/* First line that a command prints. */
static void first_line_of(const char *command, char *ret_text, size_t bytes)
{
    FILE *stream = popen(command, "re");
    if (stream == NULL || fgets(ret_text, (int)bytes, stream) == NULL)
        ret_text[0] = '\0';
    ret_text[strcspn(ret_text, "\n")] = '\0';
    if (stream != NULL)
        pclose(stream);
}

void drill_environment_read(int argc, char *const *argv, struct drill_environment *ret_environment)
{
    struct drill_environment *e = ret_environment;
    memset(e, 0, sizeof *e);
    snprintf(e->program, sizeof e->program, "gms-failover-test %s", GMS_VERSION);
#ifdef __clang__
    snprintf(e->compiler, sizeof e->compiler, "%.90s", __VERSION__);
#else
    snprintf(e->compiler, sizeof e->compiler, "gcc %.80s", __VERSION__);
#endif
    first_line_of("mpirun --version 2>/dev/null", e->mpi, sizeof e->mpi);
    first_line_of("nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null", e->gpu,
                  sizeof e->gpu);
    struct utsname name;
    if (uname(&name) == 0)
        snprintf(e->system, sizeof e->system, "%.40s %.60s %.40s", name.sysname, name.release, name.machine);
    value_of("/etc/os-release", "PRETTY_NAME", '=', e->distribution, sizeof e->distribution);
    value_of("/proc/cpuinfo", "model name", ':', e->cpu, sizeof e->cpu);
    cpu_set_t cores;
    CPU_ZERO(&cores);
    e->cores = sched_getaffinity(0, sizeof cores, &cores) == 0 ? (uint32_t)CPU_COUNT(&cores) : 0;
    e->memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc) != NULL)
        strftime(e->started, sizeof e->started, "%Y-%m-%dT%H:%M:%SZ", &utc);
    for (int i = 0; i < argc; i++) {
        size_t used = strlen(e->command_line);
        const char *word = argv[i];
        const char *slash = i == 0 ? strrchr(word, '/') : NULL;
        snprintf(e->command_line + used, sizeof e->command_line - used, "%s%s", i > 0 ? " " : "",
                 slash != NULL ? slash + 1 : word);
    }
}
