#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prolog= of slurm.conf, or by hand: can a deployment start on this node? Names what is wrong and ends with 1, which makes
# Slurm requeue the job and drain the node.
set -u
code=0
wrong() {
    echo "gms prolog: $(hostname): $*" >&2
    code=1
}

name=$(hostname)
[ "${#name}" -le 56 ] || wrong "the host name has ${#name} bytes; Open MPI aborts at 57 and more: give it a shorter one"
[ -w /dev/shm ] || wrong "/dev/shm cannot be written"
free=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }')
[ "${free:-0}" -ge 65536 ] || wrong "/dev/shm has ${free:-0} KiB free; Open MPI and host memory pools want at least 65536"
# shellcheck disable=SC3045 # dash and bash have both
locked=$(ulimit -l)
[ "$locked" = unlimited ] || [ "$locked" -ge "${GMS_MEMLOCK_KIB:-65536}" ] ||
    wrong "ulimit -l is $locked KiB; engines want unlimited (LimitMEMLOCK=infinity in slurmd.service)"
# shellcheck disable=SC3045
open=$(ulimit -n)
[ "$open" = unlimited ] || [ "$open" -ge 1024 ] || wrong "ulimit -n is $open; at least 1024"
for run in "${GMS_RUN_BASE:-/tmp}"/gms-*.*; do
    [ -S "$run/keeper" ] || continue
    job=${run##*/gms-}
    squeue -h -j "${job%%.*}" -o %T 2>/dev/null | grep -q . || wrong "$run is of a job that is over: sh slurm/epilog.sh"
done
exit "$code"
