/* SPDX-License-Identifier: Apache-2.0 */
#include "hosts.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"

enum { TOOL_S = 5, LOOK_MS = 5 };

#define NETWORK "10.77.0.0/24"

/* ------------------------------------------------------------------------------------------------- tools ------ */

static bool is_there(const char *tool)
{
    const char *path = getenv("PATH");
    char file[DRILL_PATH_BYTES];
    while (path != NULL && *path != '\0') {
        size_t length = strcspn(path, ":");
        snprintf(file, sizeof file, "%.*s/%s", (int)length, path, tool);
        if (length > 0 && access(file, X_OK) == 0)
            return true;
        path += length;
        path += *path == ':';
    }
    return false;
}

bool drill_hosts_missing(char *ret_text, size_t bytes)
{
    static const char *const tools[] = {"ip", "unshare", "nsenter", "mount", "hostname"};
    ret_text[0] = '\0';
    for (size_t i = 0; i < sizeof tools / sizeof tools[0]; i++)
        if (!is_there(tools[i])) {
            snprintf(ret_text, bytes, "two hosts cannot be made: there is no program '%s'", tools[i]);
            return true;
        }
    if (system("unshare --net --uts --mount true 2>/dev/null") != 0)
        snprintf(ret_text, bytes, "two hosts cannot be made: no namespaces may be made here");
    return ret_text[0] != '\0';
}

/* Runs a tool to its end. */
static gms_status run(struct drill_processes *processes, const char *output, const char *const *argv,
                      struct gms_error *ret_error)
{
    struct drill_process *process;
    char outcome[32];
    gms_status status = drill_process_start(processes, "network tool", output, argv, -1, SIGKILL, &process, ret_error);
    if (status != GMS_OK)
        return status;
    process->asked_to_end = true;
    if (!drill_process_wait(process, gms_clock_ns() + TOOL_S * GMS_NS_PER_S)) {
        drill_process_end(process, 0);
        return gms_fail(ret_error, GMS_E_TIMEOUT, "%s does not end within %d s", argv[0], TOOL_S);
    }
    if (process->wait_status == 0)
        return GMS_OK;
    return gms_fail(ret_error, GMS_E_SYSTEM, "%s failed (%s); %.200s tells why", argv[0],
                    drill_process_outcome(process, outcome, sizeof outcome), output);
}

size_t drill_hosts_enter(const struct drill_hosts *hosts, int host, const char **ret_words)
{
    const char *const words[] = {"nsenter", "-t", hosts->pids[host], "--net", "--uts", "--mount", "--"};
    if (!hosts->up)
        return 0;
    memcpy(ret_words, words, sizeof words);
    return sizeof words / sizeof words[0];
}

size_t drill_hosts_mpirun(const struct drill_hosts *hosts, const char **ret_words)
{
    const char *const words[] = {"mpirun",
                                 "--mca",
                                 "plm_rsh_agent",
                                 hosts->rsh,
                                 "--hostfile",
                                 hosts->list,
                                 "--map-by",
                                 "slot",
                                 "--mca",
                                 "btl",
                                 "tcp,self,vader",
                                 "--mca",
                                 "btl_tcp_if_include",
                                 NETWORK,
                                 "--mca",
                                 "oob_tcp_if_include",
                                 NETWORK,
                                 "--bind-to",
                                 "none"};
    static const char *const here[] = {"mpirun", "--bind-to", "none"};
    const size_t count = hosts->up ? sizeof words / sizeof words[0] : sizeof here / sizeof here[0];
    memcpy(ret_words, hosts->up ? words : here, count * sizeof words[0]);
    return count;
}

/* ------------------------------------------------------------------------------------------------- hosts ------ */

/* The holder of a host: the other directory is mounted over the run directory, where there is another. */
static const char holder_script[] = "hostname \"$1\" && ip link set lo up &&"
                                    " { [ \"$2\" = \"$3\" ] || mount --bind \"$2\" \"$3\"; } &&"
                                    " : >\"$4\" && exec sleep infinity";

static gms_status hold(struct drill_processes *processes, const char *dir, const char *run_dir, int host,
                       struct drill_hosts *hosts, struct gms_error *ret_error)
{
    char name[16], own[DRILL_PATH_BYTES], ready[DRILL_PATH_BYTES];
    snprintf(name, sizeof name, "h%d", host + 1);
    snprintf(own, sizeof own, host == 0 ? "%.500s" : "%.500s2", run_dir);
    snprintf(ready, sizeof ready, "%.490s/ready.%d", dir, host + 1);
    const char *argv[] = {"unshare", "--net", "--uts", "--mount", "sh",  "-c", holder_script,
                          "sh",      name,    own,     run_dir,   ready, NULL};
    struct drill_process *process;
    gms_status status = drill_process_start(processes, name, hosts->output, argv, -1, SIGKILL, &process, ret_error);
    uint64_t deadline_ns = gms_clock_ns() + TOOL_S * GMS_NS_PER_S;
    while (status == GMS_OK && access(ready, F_OK) != 0) {
        drill_processes_check(processes);
        if (process->ended || gms_clock_ns() >= deadline_ns)
            return gms_fail(ret_error, GMS_E_PERMISSION, "host %s cannot be made; %.300s tells why", name,
                            hosts->output);
        poll(NULL, 0, LOOK_MS);
    }
    if (status != GMS_OK)
        return status;
    hosts->holders[host] = process->pid;
    snprintf(hosts->pids[host], sizeof hosts->pids[host], "%d", (int)process->pid);
    return GMS_OK;
}

/* An interface in each, joined, with an address. */
static gms_status join(struct drill_processes *processes, const struct drill_hosts *hosts, struct gms_error *ret_error)
{
    const char *const pair[] = {"ip",   "link", "add",  "gmsve1", "netns", hosts->pids[0], "type",
                                "veth", "peer", "name", "gmsve2", "netns", hosts->pids[1], NULL};
    gms_status status = run(processes, hosts->output, pair, ret_error);
    for (int host = 0; host < DRILL_HOSTS && status == GMS_OK; host++) {
        const char *words[DRILL_HOST_WORDS + 8] = {NULL};
        char address[32], device[16];
        snprintf(address, sizeof address, "10.77.0.%d/24", host + 1);
        snprintf(device, sizeof device, "gmsve%d", host + 1);
        const char *const give[] = {"ip", "addr", "add", address, "dev", device};
        memcpy(words + drill_hosts_enter(hosts, host, words), give, sizeof give);
        status = run(processes, hosts->output, words, ret_error);
        const char *const open[] = {"ip", "link", "set", device, "up", NULL};
        memcpy(words + drill_hosts_enter(hosts, host, words), open, sizeof open);
        if (status == GMS_OK)
            status = run(processes, hosts->output, words, ret_error);
    }
    return status;
}

/* How mpirun gets from one to the other, and what it finds there. */
static gms_status write_files(const struct drill_hosts *hosts, uint32_t ranks, struct gms_error *ret_error)
{
    char text[512];
    int length = snprintf(text, sizeof text, "10.77.0.1 slots=%u\n10.77.0.2 slots=%u\n", (ranks + 1) / 2, ranks / 2);
    gms_status status = gms_file_replace(hosts->list, text, (size_t)length, ret_error);
    length = snprintf(text, sizeof text,
                      "#!/bin/sh\n"
                      "case $1 in 10.77.0.1) pid=%s ;; 10.77.0.2) pid=%s ;; *) exit 1 ;; esac\n"
                      "shift\n"
                      "exec nsenter -t \"$pid\" --net --uts --mount -- sh -c \"$*\"\n",
                      hosts->pids[0], hosts->pids[1]);
    if (status == GMS_OK)
        status = gms_file_replace(hosts->rsh, text, (size_t)length, ret_error);
    if (status == GMS_OK && chmod(hosts->rsh, 0700) != 0)
        status = gms_fail(ret_error, GMS_E_SYSTEM, "%s: %s", hosts->rsh, strerror(errno));
    return status;
}

/* The sockets of the second host's ranks are found in the first one's directory too. */
static gms_status link_sockets(const char *run_dir, uint32_t ranks, struct gms_error *ret_error)
{
    char own[DRILL_PATH_BYTES];
    snprintf(own, sizeof own, "%.500s2", run_dir);
    if (mkdir(own, 0700) != 0)
        return gms_fail(ret_error, GMS_E_SYSTEM, "%s cannot be made: %s", own, strerror(errno));
    for (uint32_t rank = (ranks + 1) / 2; rank < ranks; rank++) {
        char from[DRILL_PATH_BYTES + 16], to[DRILL_PATH_BYTES + 16];
        snprintf(from, sizeof from, "%s/c%u", run_dir, rank);
        snprintf(to, sizeof to, "%s/c%u", own, rank);
        if (symlink(to, from) != 0)
            return gms_fail(ret_error, GMS_E_SYSTEM, "%s: %s", from, strerror(errno));
    }
    return GMS_OK;
}

gms_status drill_hosts_make(struct drill_processes *processes, const char *dir, const char *run_dir, uint32_t ranks,
                            struct drill_hosts *ret_hosts, struct gms_error *ret_error)
{
    struct drill_hosts *hosts = ret_hosts;
    memset(hosts, 0, sizeof *hosts);
    snprintf(hosts->rsh, sizeof hosts->rsh, "%.490s/rsh", dir);
    snprintf(hosts->list, sizeof hosts->list, "%.490s/hosts", dir);
    snprintf(hosts->output, sizeof hosts->output, "%.490s/hosts.out", dir);
    gms_status status = link_sockets(run_dir, ranks, ret_error);
    for (int host = 0; host < DRILL_HOSTS && status == GMS_OK; host++)
        status = hold(processes, dir, run_dir, host, hosts, ret_error);
    hosts->up = status == GMS_OK;
    if (status == GMS_OK)
        status = join(processes, hosts, ret_error);
    if (status == GMS_OK)
        status = write_files(hosts, ranks, ret_error);
    return status;
}

gms_status drill_hosts_link(const struct drill_hosts *hosts, bool up, struct drill_processes *processes,
                            struct gms_error *ret_error)
{
    const char *words[DRILL_HOST_WORDS + 8] = {NULL};
    const char *const set[] = {"ip", "link", "set", "gmsve2", up ? "up" : "down"};
    memcpy(words + drill_hosts_enter(hosts, 1, words), set, sizeof set);
    return run(processes, hosts->output, words, ret_error);
}
