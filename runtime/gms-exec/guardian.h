/* SPDX-License-Identifier: Apache-2.0
 *
 * The guardian: the process between gms-exec and the engine rank. Its end means that nothing of the cohort is left.
 *
 *   gms-exec --- guardian --- engine rank --- ...
 *
 * NAMESPACE  it is PID 1 of a namespace of its own; its end makes the kernel kill and reap all others in there
 * WALK       it is a subreaper; when the rank or gms-exec ends it kills descendants until wait(2) knows of none
 * OUTER      gms-exec itself is PID 1 of a namespace and does the ending; the guardian only reports
 */
#ifndef GMS_EXEC_GUARDIAN_H
#define GMS_EXEC_GUARDIAN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum gms_guard { GMS_GUARD_NAMESPACE, GMS_GUARD_WALK, GMS_GUARD_OUTER };

/* guardian (or the rank about to exec) -> gms-exec, over a private seqpacket pair */
enum gms_report_kind {
    GMS_REPORT_READY,       /* the rank is forked and waits; the rank's pidfd travels along; value 1: in no group */
    GMS_REPORT_FAILED,      /* `step` failed with errno `value`; the guardian ends */
    GMS_REPORT_EXEC_FAILED, /* the command could not be run: errno `value` */
    GMS_REPORT_ENDED,       /* the rank ended with wait status `value`; the rest is being killed */
};
struct gms_report {
    uint32_t kind;
    int32_t value;
    char step[56];
};

struct gms_guardian_order {
    enum gms_guard guard;
    bool user_namespace; /* maps have to be written first */
    bool own_group;      /* the rank gets its own process group (no terminal is involved) */
    uid_t uid;           /* effective ids before the user namespace was made */
    gid_t gid;
    int control; /* our end of the pair */
    int go;      /* read end: one byte lets the rank run, end of file ends it */
    int parent;  /* gms-exec's pidfd */
    int cgroup;  /* the control group for the rank; -1: none */
    const char *cgroup_path;
    bool cgroup_optional; /* READY says with value 1 that it could not be used */
    char **command;       /* borrowed */
};

/* Runs in the guardian until nothing is left; never returns. All other descriptors of gms-exec are closed already. */
_Noreturn void gms_guardian_run(const struct gms_guardian_order *order);

/* clone3 as fork: child gets 0. `flags` CLONE_NEW*; *ret_pidfd close-on-exec; `wanted_pid` 0 or the child's pid in the
 * innermost namespace; `cgroup` -1 or the directory of the control group that it is born in. -1 and errno. The child of
 * a raw clone calls nothing that needs glibc's fork handlers. */
pid_t gms_clone(uint64_t flags, pid_t wanted_pid, int cgroup, int *ret_pidfd);

#endif
