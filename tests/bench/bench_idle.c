/* SPDX-License-Identifier: Apache-2.0
 *
 * What coordinators cost while nothing happens: CPU time and context switches of every thread of every rank, from
 * /proc, over a while of silence.
 *
 *   bench_idle RANKS [SECONDS]
 */
#include <ctype.h>
#include <dirent.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "harness.h"

struct cost {
    unsigned long long ticks, switches;
};

/* All threads: utime + stime, and both kinds of context switches. */
static struct cost cost_of(pid_t pid)
{
    struct cost cost = {0, 0};
    char path[96], line[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *stream = fopen(path, "re");
    if (stream != NULL && fgets(line, sizeof line, stream) != NULL) {
        unsigned long long user = 0, system = 0;
        char *rest = strrchr(line, ')');
        if (rest != NULL &&
            sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system) == 2)
            cost.ticks = user + system;
    }
    if (stream != NULL)
        fclose(stream);
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *directory = opendir(path);
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/status", (int)pid, entry->d_name);
        stream = fopen(path, "re");
        unsigned long long count;
        while (stream != NULL && fgets(line, sizeof line, stream) != NULL)
            if (sscanf(line, "voluntary_ctxt_switches: %llu", &count) == 1 ||
                sscanf(line, "nonvoluntary_ctxt_switches: %llu", &count) == 1)
                cost.switches += count;
        if (stream != NULL)
            fclose(stream);
    }
    if (directory != NULL)
        closedir(directory);
    return cost;
}

int main(int argc, char **argv)
{
    uint32_t ranks = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
    int seconds = argc > 2 ? atoi(argv[2]) : 20;
    struct cluster cluster;
    pid_t pids[HARNESS_RANKS];
    struct cost before[HARNESS_RANKS];
    if (ranks < 1 || ranks > HARNESS_RANKS || seconds < 1) {
        fprintf(stderr, "usage: bench_idle RANKS(1..%d) [SECONDS]\n", HARNESS_RANKS);
        return 64;
    }
    cluster_start(&cluster, &(struct cluster_options){.ranks = ranks, .heartbeat = "5s"});
    for (uint32_t rank = 0; rank < ranks; rank++)
        pids[rank] = (pid_t)cluster_number(&cluster, rank, "pid");
    poll(NULL, 0, 1000); /* what asking cost is over */
    for (uint32_t rank = 0; rank < ranks; rank++)
        before[rank] = cost_of(pids[rank]);
    poll(NULL, 0, seconds * 1000);
    double worst = 0;
    unsigned long long most = 0;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        struct cost after = cost_of(pids[rank]);
        double share =
            100.0 * (double)(after.ticks - before[rank].ticks) / (double)sysconf(_SC_CLK_TCK) / (double)seconds;
        unsigned long long switches = after.switches - before[rank].switches;
        worst = share > worst ? share : worst;
        most = switches > most ? switches : most;
    }
    /* A beat wakes a rank once for its own and at most once for each peer's. */
    printf("idle      ranks %2u  %d s: worst rank %.3f %% of a core (goal <= 0.1), at most %llu context switches "
           "(heartbeat every 5 s: %u expected at most)\n",
           ranks, seconds, worst, most, (unsigned)(seconds / 5 + 1) * ranks);
    cluster_stop(&cluster);
    return 0;
}
