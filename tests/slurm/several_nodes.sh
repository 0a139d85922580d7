#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# slurm/gms-nodes.sbatch in a real Slurm: TP2 with one rank on each of two nodes, which have host names and file systems of
# their own. A rank on the second node dies under streams, and every token is as without; the keeper of the second node is
# killed, and another one is there; scancel takes nothing over and leaves nothing behind on either node (V44).
#
#   sh tests/slurm/several_nodes.sh BIN_DIR
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
# shellcheck source=examples/packages.sh
. "$here/examples/packages.sh"
# shellcheck source=tests/slurm/slurm_support.sh
. "$here/tests/slurm/slurm_support.sh"
slurm_open nodes "${1:?usage: several_nodes.sh BIN_DIR}"

cat >"$work/my.cfg" <<EOF
deployment = "nodes";
run_dir = "/set/by/the/batch/script";
ranks = 2;
network : { address = "lo"; };
memory : { capacity = "64MiB"; };
engine : { command = ( "minillm", "--layers", "2", "--listen", "unix:\${run_dir}/e\${engine}" ); };
launch : {
    engines = ( "srun", "--overlap", "--overcommit", "--mpi=pmix", "--gres=gpu:2", "--export=ALL", "--kill-on-bad-exit=1", "-n",
        "\${world_size}" );
    stop_signal = "TERM";
};
standby : { count = 1; };
complete = true;
EOF
GMS_CONFIG=$work/my.cfg GMS_BIN_DIR=$bin GMS_RUN_BASE=$work/local
# Both nodes are this machine, and have its loopback only in common.
OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=lo
export GMS_CONFIG GMS_BIN_DIR GMS_RUN_BASE OMPI_MCA_btl OMPI_MCA_btl_tcp_if_include

ctl() { # rank word...
    rank=$1
    shift
    if [ "$rank" = 0 ]; then
        gms-ctl --run-dir "$run" --rank 0 "$@"
    else
        on_second gms-ctl --run-dir "$run" --rank 1 "$@"
    fi
}
pid_of() { # rank: of the engine that serves
    ctl "$1" status --json | tr '{' '\n' | sed -n 's/.*"role":"serving".*"pid":\([0-9]*\),.*/\1/p'
}

echo "== the batch script: one engine serves, one is parked, a rank on each node"
job=$(sbatch --parsable --output="$work/job.out" --nodes=2 --gres=gpu:2 --export=ALL "$here/slurm/gms-nodes.sbatch")
run=$GMS_RUN_BASE/gms-$job.0
until gms-ctl --run-dir "$run" --timeout 1s wait standby >/dev/null 2>&1; do
    in_time "job $job: a shadow ($(gms-ctl --run-dir "$run" --timeout 1s status 2>&1 | tail -n 1))"
done
[ -S "$run/c0" ] || fail "rank 0 is not on the first node"
[ ! -e "$run/c1" ] || fail "rank 1 is not on another node"
on_second test -S "$run/c1" || fail "rank 1 is not on the second node"
scratch=$(cat "$run/scratch")

echo "== the drill, with a rank on each node"
before=$(ctl 0 status --json | sed -n 's/.*"serving_engine":\([0-9]*\).*/\1/p')
victim=$(pid_of 1)
gms-token-drill "$run" --streams 4 --max-tokens 60 --timeout 30 -- kill -KILL "$victim" || fail "the tokens are not those of an undisturbed run"
until after=$(ctl 1 status --json | sed -n 's/.*"serving_engine":\([0-9]*\).*/\1/p') && [ -n "$after" ] && [ "$after" != "$before" ]; do
    in_time "a successor on the second node"
done

echo "== the keeper of the second node is killed: there is another one"
keeper_of_second() { on_second gms-keeper --run-dir "$run" --status 2>/dev/null | sed -n 's/.*"pid":\([0-9]*\),"keeper".*/\1/p'; }
former=$(keeper_of_second)
kill -KILL "$former"
until now=$(keeper_of_second) && [ -n "$now" ] && [ "$now" != "$former" ]; do in_time "a keeper on the second node"; done
gms-ctl --run-dir "$run" --timeout 30s wait standby >/dev/null

echo "== scancel: a planned stop, nothing is left on either node"
promotions=$(grep -c "is promoted under" "$work/job.out" || true)
begin=$(date +%s)
scancel "$job"
until_state "$job" CANCELLED
until [ ! -e "$run" ]; do in_time "the end of the batch script"; done
[ "$(grep -c "is promoted under" "$work/job.out" || true)" = "$promotions" ] || fail "somebody was promoted after scancel"
until ! pgrep -f -- "$run" >/dev/null; do in_time "the end of $(pgrep -af -- "$run" | head -n 3)"; done
until ! on_second test -e "$run"; do in_time "the end of $run on the second node: $(on_second ls "$run")"; done
for rest in "$scratch"*; do
    [ ! -e "$rest" ] || fail "$rest is left"
done
until [ "$(sinfo -h -N -t idle -o %N | sort -u | wc -l)" = 2 ]; do in_time "two idle nodes (the epilog must drain none)"; done
echo "   over after $(($(date +%s) - begin)) s"
echo "nodes: all of it"
