#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: torch.sh BUILD PART...
# examples/pytorch/engine.py on GPUs. Parts:
#   check     the decoder by itself: kernels, transformers' numbers, exactness, poisoned pages
#   torch     one rank: SIGKILLs in a row, faults of the device, then coordinators and keeper killed under load
#   torchmore one rank: memory that is given back and saved while parked; KV as large as the agreed budget
#   torch2    two ranks on one GPU: the same faults of the engine
#   steady    tokens a second with and without us, in one process
#   torchtp   one rank on each GPU, NCCL between them: SIGKILLs of one rank and of all, faults of the device; what a SIGKILL
#             does to the neighbours; the round of an agreement beside a bare MPI_Allreduce
# TORCH_REPEAT (3): failovers in a row. TORCH_RANKS: GPUs that torchtp uses (all). RESULTS: a folder for the drills' reports,
# with KEEP_LOGS also for what the engines' ranks logged.
# Every part is bounded; torchtp takes less than 500 s.
set -u
[ $# -ge 2 ] || { echo "usage: torch.sh BUILD PART..." >&2; exit 64; }
build=$(cd "$1" && pwd) || exit 64
shift
here=$(cd "$(dirname -- "$0")" && pwd)
source=${SOURCE:-$(cd "$here/../.." && pwd)}
repeat=${TORCH_REPEAT:-3}
python3 -c 'import torch; exit(not torch.cuda.is_available())' 2>/dev/null ||
    { echo "torch.sh: skipped, python3 has no torch that finds a GPU"; exit 77; }

program() {
    find "$build" -name "$1" -type f -perm -u+x ! -path '*/fence/*' | head -n 1
}
GMS_BIN=$(dirname -- "$(program gms-coord)")
LIBGMS=${LIBGMS:-$(find "$build" -name 'libgms.so.0' | head -n 1)}
export GMS_BIN LIBGMS PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 NCCL_GRAPH_REGISTER=0 NCCL_NVLS_ENABLE=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
results=${RESULTS:-$(mktemp -d)}
mkdir -p "$results"
failed=

say() {
    echo
    echo "== $1"
}

# drill NAME SECONDS CONFIG OPTION...: the drill's table, and what the engines' ranks said of themselves. $engine: their options.
engine="--slots 1024"
drill() {
    name=$1 limit=$2 config=$3
    shift 3
    say "$name: gms-failover-test $*"
    work=$(mktemp -d)
    # shellcheck disable=SC2086 # a list of options
    timeout "$limit" "$(program gms-failover-test)" --config "$here/$config" --prompts "$source/tests/drill/prompts.txt" \
        --work-dir "$work/drill" --keep --exact --json "$results/$name.json" "$@" -- \
        python3 "$source/examples/pytorch/engine.py" $engine >"$results/$name.txt" 2>&1
    code=$?
    [ -z "${KEEP_LOGS:-}" ] ||
        (cd "$work" && find . -name 'engine*.log' -size -1024k -print0 | tar czf "$results/$name-logs.tgz" --null -T -)
    grep -v '^$' "$results/$name.txt" | sed -n '/^  *failover 1/,$p; /^  fault  /,$p; /FAIL\|COULD NOT/p' | awk '!seen[$0]++' | tail -n 60
    find "$work" -type f ! -name '*.cfg' -exec grep -haE '^(engine [0-9]+ rank|rank [0-9]+( promoted|:)|driver calls)' {} + 2>/dev/null |
        sort | uniq -c | tail -n "${SAID:-48}"
    find "$work" -type f -exec grep -haE '^error: |Traceback|Error: ' {} + 2>/dev/null | sort | uniq -c | head -n 12
    echo "-- exit $code"
    [ $code = 0 ] || failed="$failed $name"
    rm -rf "$work"
}

for part in "$@"; do
    case $part in
    check)
        say "check: the decoder by itself"
        timeout 200 python3 "$here/torch_check.py" --trials "${POISONED:-200}" || failed="$failed check"
        ;;
    torch)
        drill torch-sigkill 120 torch.cfg --repeat "$repeat"
        drill torch-illegal-address 120 torch.cfg --catalogue illegal-address --repeat "$repeat"
        drill torch-control-plane 150 torch.cfg --catalogue coordinators,keeper,keeper-and-coordinators
        ;;
    torchmore)
        engine="--slots 1024 --hold-back 8"
        drill torch-hold-back 120 torch.cfg --repeat 1
        engine="--slots 0"
        drill torch-budget 120 torch.cfg --repeat 1
        engine="--slots 1024"
        ;;
    torch2)
        drill torch2-sigkill 150 torch.cfg --ranks 2 --rank 1 --repeat "$repeat"
        drill torch2-illegal-address 150 torch.cfg --ranks 2 --catalogue illegal-address --repeat "$repeat"
        ;;
    steady)
        say "steady: tokens a second with and without us"
        work=$(mktemp -d)
        timeout 120 python3 "$here/torch_steady.py" --bin "$GMS_BIN" --work "$work" || failed="$failed steady"
        rm -rf "$work"
        ;;
    torchtp)
        ranks=${TORCH_RANKS:-$(nvidia-smi -L | grep -c '^GPU')}
        [ "$ranks" -ge 2 ] || { echo "torchtp: skipped, there is one GPU"; continue; }
        nvidia-smi topo -m 2>/dev/null | head -n $((ranks + 1))
        drill torchtp-sigkill-one 100 torchtp.cfg --ranks "$ranks" --rank $((ranks - 1)) --repeat 3
        drill torchtp-sigkill-all 100 torchtp.cfg --ranks "$ranks" --rank all --repeat 3
        drill torchtp-illegal-address 120 torchtp.cfg --ranks "$ranks" --catalogue illegal-address --repeat 3
        say "neighbours: SIGKILL of processes on half of the GPUs, seen from all"
        timeout 90 python3 "$here/bystanders.py" || failed="$failed neighbours"
        say "round: an agreement beside a bare MPI_Allreduce, $ranks ranks"
        timeout 40 mpirun -n "$ranks" "$(program bench_round)" || failed="$failed round"
        ;;
    *) echo "torch.sh: $part is not a part" >&2; exit 64 ;;
    esac
done
echo
[ -z "$failed" ] || { echo "FAILED:$failed"; exit 1; }
echo "all passed"
