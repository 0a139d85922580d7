#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# slurm/gms-one-node.sbatch in a real Slurm with fake GPUs: the TP2 drill, values through srun byte for byte (V43), scancel,
# a job killed as a whole and what the epilog does then, preemption with TERM and grace, and the requeued job. A planned stop takes nothing over and leaves nothing behind (V44).
#
#   sh tests/slurm/one_node.sh BIN_DIR
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
# shellcheck source=examples/packages.sh
. "$here/examples/packages.sh"
# shellcheck source=tests/slurm/slurm_support.sh
. "$here/tests/slurm/slurm_support.sh"
slurm_open slurm "${1:?usage: one_node.sh BIN_DIR}"

cat >"$work/my.cfg" <<EOF
deployment = "slurm";
run_dir = "/set/by/the/batch/script";
ranks = 2;
memory : { capacity = "64MiB"; };
environment : { set = ( "FROM_FILE=a,b \"c\" \$ \${rank}=", "MINILLM_EMPTY=" ); };
engine : { command = ( "minillm", "--listen", "unix:\${run_dir}/e\${engine}", "--log-dir", "\${run_dir}" ); };
launch : {
    engines = ( "srun", "--overlap", "--overcommit", "--mpi=pmix", "--gres=gpu:2", "--export=ALL", "--kill-on-bad-exit=1", "-n",
        "\${world_size}" );
    stop_signal = "TERM";
};
standby : { count = 1; };
complete = true;
EOF
GMS_CONFIG=$work/my.cfg GMS_BIN_DIR=$bin GMS_RUN_BASE=$work/local
# What must come through as it is: --export=NAME=VALUE would end at the first comma (V43).
# shellcheck disable=SC2016 # the value is to hold a $
GMS_VALUE=$(printf 'a,b,,c "d" $HOME \\ =\n\303\274 ')x
GMS_EMPTY=
GMS_LARGE=$(head -c 24576 /dev/urandom | base64 -w 0) # 32 KiB
export GMS_CONFIG GMS_BIN_DIR GMS_RUN_BASE GMS_VALUE GMS_EMPTY GMS_LARGE

submit() { # log option...
    log=$1
    shift
    sbatch --parsable --output="$work/$log.out" --nodelist=n1 --gres=gpu:2 --export=ALL "$@" "$here/slurm/gms-one-node.sbatch"
}

# The run directory of a start of a job.
run_of() { echo "$work/local/gms-$1.$2"; }

until_ready() { # job restart
    run=$(run_of "$1" "$2")
    until gms-ctl --run-dir "$run" --timeout 1s wait standby >/dev/null 2>&1; do
        in_time "job $1: a shadow ($(gms-ctl --run-dir "$run" --timeout 1s status 2>&1 | tail -n 1))"
    done
    scratch=$(sed -n 's/^[0-9]* [0-9]* \(.*\)\.job\.[0-9]*$/\1/p' "$run/up.job")
    [ -n "$scratch" ] || fail "$run/up.job names no scratch directory"
}

promotions() { grep -c "is promoted under" "$work/$1.out" || true; }

nothing_left() { # job restart
    run=$(run_of "$1" "$2")
    [ ! -e "$run" ] || fail "$run is left: $(ls "$run")"
    until ! pgrep -f -- "$run" >/dev/null; do in_time "the end of $(pgrep -af -- "$run" | head -n 3)"; done
    for rest in "$scratch".*; do
        [ ! -e "$rest" ] || fail "$rest is left"
    done
}

echo "== the batch script: one engine serves, one is parked"
job=$(submit first)
until_ready "$job" 0
run=$(run_of "$job" 0)

echo "== values, in each rank's own environment"
pids=$(gms-ctl --run-dir "$run" status --json | tr '{' '\n' | sed -n 's/.*"role":"serving".*"pid":\([0-9]*\),.*/\1/p')
rank=0
for pid in $pids; do
    tr '\0' '\001' <"/proc/$pid/environ" | tr '\n\001' '\002\n' >"$work/environ.$rank"
    printf '%s' "GMS_VALUE=$GMS_VALUE" | tr '\n' '\002' >"$work/wanted"
    grep -qxF -f "$work/wanted" "$work/environ.$rank" || fail "rank $rank: $(grep GMS_VALUE "$work/environ.$rank" || echo no GMS_VALUE)"
    grep -qxF "GMS_EMPTY=" "$work/environ.$rank" || fail "rank $rank has no empty GMS_EMPTY"
    printf '%s\n' "GMS_LARGE=$GMS_LARGE" >"$work/wanted"
    grep -qxF -f "$work/wanted" "$work/environ.$rank" || fail "rank $rank has another GMS_LARGE"
    grep -qxF "FROM_FILE=a,b \"c\" \$ $rank=" "$work/environ.$rank" || fail "rank $rank: $(grep FROM_FILE "$work/environ.$rank")"
    grep -qxF "MINILLM_EMPTY=" "$work/environ.$rank" || fail "rank $rank has no MINILLM_EMPTY"
    grep -qxF "SLURM_PROCID=$rank" "$work/environ.$rank" || fail "rank $rank is not told its place by its own step"
    grep -q "^CUDA_VISIBLE_DEVICES=0,1$" "$work/environ.$rank" || fail "rank $rank: $(grep CUDA_VISIBLE "$work/environ.$rank")"
    rank=$((rank + 1))
done
[ "$rank" = 2 ] || fail "$rank engine ranks serve, not 2"

echo "== the drill"
gms-failover-test --attach "$run" --rank 1 --timeout 30 >"$work/drill.out" 2>&1 || fail "the drill: $(tail -n 12 "$work/drill.out")"
tail -n 1 "$work/drill.out"
until_ready "$job" 0

echo "== scancel: a planned stop"
before=$(promotions first)
begin=$(date +%s)
scancel "$job"
until_state "$job" CANCELLED
until [ ! -e "$run" ]; do in_time "the end of the batch script"; done
[ "$(promotions first)" = "$before" ] || fail "somebody was promoted after scancel"
nothing_left "$job" 0
echo "   over after $(($(date +%s) - begin)) s"

echo "== the batch script is killed: the epilog leaves the node clean"
job=$(submit killed)
until_ready "$job" 0
scancel --signal=KILL --batch "$job"
until_state "$job" FAILED CANCELLED COMPLETED NODE_FAIL
until grep -q "job $job: removed $(run_of "$job" 0)" "$work/hooks.log"; do in_time "the epilog ($(cat "$work/hooks.log"))"; done
nothing_left "$job" 0
until [ "$(sinfo -h -n n1 -t idle -o %N)" = n1 ]; do in_time "an idle node (the epilog must not drain it)"; done

echo "== preempted: TERM and grace, then requeued and there again"
job=$(submit second --partition=low)
until_ready "$job" 0
before=$(promotions second)
high=$(sbatch --parsable --partition=high --nodelist=n1 --gres=gpu:4 --exclusive --output="$work/high.out" --wrap="echo high runs")
until_state "$high" COMPLETED RUNNING
[ "$(promotions second)" = "$before" ] || fail "somebody was promoted at the preemption"
until_state "$high" COMPLETED
grep -q "as the scheduler wanted" "$work/second.out" || fail "the batch script did not stop as planned"
nothing_left "$job" 0
until_state "$job" PENDING RUNNING
# Slurm holds a requeued job back for two minutes, and a credential made in the second of the requeue is revoked with the old.
scontrol update "jobid=$job" starttime=now+3 || true
until_ready "$job" 1
scancel "$job"
until_state "$job" CANCELLED
until [ ! -e "$(run_of "$job" 1)" ]; do in_time "the end of the requeued job"; done
nothing_left "$job" 1
echo "slurm: all of it"
