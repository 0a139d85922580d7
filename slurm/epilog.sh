#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Epilog= of slurm.conf (run by slurmd as root on each node of a job that has ended), or by hand after a crash: what a
# deployment of this job left here. A keeper is asked to let go, files are removed, and a process that still runs is named:
# the exit status is 1 then, which makes Slurm drain the node, because such a process may hold GPU memory.
#
#   SLURM_JOB_ID=17 sh slurm/epilog.sh
#
# It signals nobody. GMS_RUN_BASE (/tmp) and GMS_BIN_DIR as for the batch scripts.
set -u
PATH=${GMS_BIN_DIR:+$GMS_BIN_DIR:}/usr/local/bin:/usr/bin:/bin
base=${GMS_RUN_BASE:-/tmp}
code=0
say() { echo "gms epilog: job $SLURM_JOB_ID: $*" >&2; }

: "${SLURM_JOB_ID:?}"
for run in "$base/gms-$SLURM_JOB_ID".*; do
    [ -d "$run" ] || continue
    if gms-keeper --run-dir "$run" --status >/dev/null 2>&1; then
        say "a keeper runs in $run; it is asked to let go"
        gms-keeper --run-dir "$run" --stop --force >/dev/null 2>&1
    fi
    for note in "$run"/up.*; do # pid, start time, scratch directory
        scratch=$(sed -n 's#^[0-9]* [0-9]* \(/dev/shm/gms-up\.[0-9a-f]*\.[a-z0-9]*\.[0-9]*\)$#\1#p' "$note" 2>/dev/null)
        [ -n "$scratch" ] && [ -d "$scratch" ] && rm -rf "$scratch" && say "removed $scratch"
    done
    # What launchers on other nodes have made here.
    prefix=$(sed -n 's#^\(/dev/shm/gms-up\.[0-9a-f]\{16\}\.\)$#\1#p' "$run/scratch" 2>/dev/null)
    for scratch in ${prefix:+"$prefix"*}; do
        [ -d "$scratch" ] && rm -rf "$scratch" && say "removed $scratch"
    done
    for process in /proc/[0-9]*; do
        # It may end meanwhile.
        if { tr '\0' '\n' <"$process/environ" | grep -qxF "GMS_RUN_DIR=$run"; } 2>/dev/null; then
            say "process ${process#/proc/} is left: $({ tr '\0' ' ' <"$process/cmdline" | cut -c 1-120; } 2>/dev/null)"
            code=1
        fi
    done
    [ "$code" = 0 ] && rm -rf "$run" && say "removed $run"
done
exit "$code"
