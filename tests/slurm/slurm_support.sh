# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# Sourced by the tests of this room: a Slurm of their own on this machine (munged, slurmctld, two slurmds with fake GPUs),
# without systemd, on loopback, in one directory, ended by pid. Needs root: device nodes, namespaces, and Slurm's own ways.
# The second node has a host name and a $work/local of its own.
#
#   slurm_open NAME BIN_DIR    on_second COMMAND...

slurm_skip() {
    echo "$name: skipped, $*" >&2
    exit 77
}

slurm_need() {
    PATH=$PATH:/usr/sbin:/sbin
    for tool in slurmctld slurmd munged srun sbatch scancel squeue scontrol mpirun; do
        command -v "$tool" >/dev/null || slurm_skip "there is no $tool (packages slurmctld slurmd slurm-client munge)"
    done
    [ "$(id -u)" = 0 ] || slurm_skip "it takes root to run slurmd with fake GPUs"
    mknod "$work/gpu.try" c 1 3 2>/dev/null || slurm_skip "device nodes cannot be made here"
    unshare --mount --uts true 2>/dev/null || slurm_skip "mount and host name namespaces cannot be made here"
}

slurm_start() { # log command...
    log=$work/$1.log
    shift
    "$@" >>"$log" 2>&1 &
    slurm_pids="$! $slurm_pids"
}

slurm_finish() {
    code=$?
    trap - EXIT
    scancel --full --signal=KILL --user=root >/dev/null 2>&1 || true
    scancel --user=root >/dev/null 2>&1 || true
    tries=0
    until [ -z "$(squeue -h 2>/dev/null)" ] || [ "$tries" -ge 100 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    if [ "$code" != 0 ] && [ "$code" != 77 ]; then
        for log in "$work"/*.log "$work"/*.out "$work"/local/*/engine.*.log; do
            [ -e "$log" ] && echo "--- $log" >&2 && tail -n 40 "$log" >&2
        done
    fi
    for pid in $slurm_pids; do
        kill -TERM "$pid" 2>/dev/null || true
    done
    for pid in $slurm_pids; do
        tries=0
        while kill -0 "$pid" 2>/dev/null && [ "$tries" -lt 100 ]; do
            tries=$((tries + 1))
            sleep 0.1
        done
        kill -KILL "$pid" 2>/dev/null || true
    done
    wait
    rm -rf "$work"
    exit "$code"
}

fail() {
    echo "$name: $*" >&2
    exit 1
}

in_time() { # what
    [ "$(date +%s)" -lt "$deadline" ] || fail "$1: not in time"
    sleep 0.1 # a poll, not a wait
}

slurm_open() { # name bin_dir; hooks: epilog.sh and prolog.sh are run by slurmd
    name=$1
    bin=$(CDPATH='' cd -- "$2" && pwd)
    slurm_pids=
    deadline=$(($(date +%s) + ${SLURM_TEST_SECONDS:-150}))
    work=$(mktemp -d "/tmp/gms-$name-XXXXXX")
    trap slurm_finish EXIT
    slurm_need
    PATH=$bin:$PATH
    export PATH
    gms_mpi_allowances
    host=$(hostname)
    port=$((20000 + $$ % 9000))
    mkdir -m 0755 "$work/state" "$work/spool" "$work/spool/n1" "$work/spool/n2" "$work/tmp" "$work/tmp/n1" "$work/tmp/n2" "$work/local"
    for gpu in 0 1 2 3 4 5 6 7; do mknod "$work/gpu$gpu" c 1 3; done
    cat >"$work/slurm.conf" <<EOF
ClusterName=gms
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
GresTypes=gpu
SlurmctldPort=$port
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool/%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.%n.log
TmpFS=$work/tmp/%n
SlurmdParameters=config_overrides
MailProg=/bin/true
KillWait=${SLURM_KILL_WAIT:-8}
MinJobAge=300
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
RequeueExit=99
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=16 RealMemory=2000 Gres=gpu:4
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=16 RealMemory=2000 Gres=gpu:4
PartitionName=low Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO PriorityTier=1 GraceTime=15
PartitionName=high Nodes=n1,n2 MaxTime=INFINITE State=UP OverSubscribe=NO PriorityTier=10 PreemptMode=OFF
EOF
    for hook in prolog epilog; do # slurmd gives them an environment of its own
        {
            echo '#!/bin/sh'
            echo "GMS_RUN_BASE=$work/local GMS_BIN_DIR=$bin SLURM_CONF=$work/slurm.conf GMS_MEMLOCK_KIB=64"
            echo "export GMS_RUN_BASE GMS_BIN_DIR SLURM_CONF GMS_MEMLOCK_KIB"
            echo "exec sh ${here:?}/slurm/$hook.sh >>$work/hooks.log 2>&1"
        } >"$work/$hook"
        chmod 0755 "$work/$hook"
    done
    printf 'Prolog=%s\nEpilog=%s\n' "$work/prolog" "$work/epilog" >>"$work/slurm.conf"
    cat >"$work/gres.conf" <<EOF
NodeName=n1 Name=gpu File=$work/gpu[0-3]
NodeName=n2 Name=gpu File=$work/gpu[4-7]
EOF
    SLURM_CONF=$work/slurm.conf
    export SLURM_CONF
    dd if=/dev/urandom of="$work/munge.key" bs=1024 count=1 2>/dev/null
    chmod 0400 "$work/munge.key"
    slurm_start munged munged --foreground --force --key-file="$work/munge.key" --socket="$work/munge.socket" \
        --pid-file="$work/munged.pid" --log-file="$work/munged.log" --seed-file="$work/munge.seed" --num-threads=2
    until [ -S "$work/munge.socket" ]; do in_time "munge"; done
    slurm_start slurmctld.out slurmctld -D -c
    slurm_start slurmd.n1.out slurmd -D -N n1
    # shellcheck disable=SC2016 # the inner shell expands it
    slurm_start slurmd.n2.out unshare --mount --uts sh -c \
        'hostname n2 && mount -t tmpfs -o mode=0755 tmpfs "$1" && exec slurmd -D -N n2' sh "$work/local"
    second=${slurm_pids%% *}
    until [ "$(sinfo -h -N -t idle -o %N 2>/dev/null | sort -u | wc -l)" = 2 ]; do in_time "two idle nodes"; done
    srun --mpi=list 2>&1 | grep -q pmix || slurm_skip "this Slurm has no PMIx plugin"
}

on_second() { # command: where the second node's processes are
    nsenter -t "$second" --mount --uts -- "$@"
}

job_state() { # job
    squeue -h -t all -j "$1" -o %T 2>/dev/null | head -n 1
}

until_state() { # job state...
    awaited=$1
    shift
    until state=$(job_state "$awaited") && case " $* " in *" $state "*) true ;; *) false ;; esac; do
        in_time "job $awaited in state $*, it is $state"
    done
}
