#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: run.sh BUILD [PART...]
# Runs the GPU tests of a build on a machine with a GPU and prints their tables. Parts, in this order without any:
#   vmm system budget graph wake nccl check torch torchmore torch2 steady torchtp reclaim mps trials
# TRIALS (1000), TRIAL_SLOTS (14), RECLAIM_KILLS (21) and WAKE_GIB ("64 128") set their sizes. Exit 77: there is no GPU.
set -u
[ $# -ge 1 ] || { echo "usage: run.sh BUILD [PART...]" >&2; exit 64; }
build=$(cd "$1" && pwd) || exit 64
shift
[ $# -gt 0 ] || set -- vmm system budget graph wake nccl check torch torchmore torch2 steady torchtp reclaim mps trials
if ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
    echo "skipped: nvidia-smi lists no GPU" >&2
    exit 77
fi
nvidia-smi --query-gpu=name,driver_version,memory.total,compute_mode,persistence_mode --format=csv,noheader

# A program of the build, wherever it lies in it.
program() {
    find "$build" -name "$1" -type f -perm -u+x | head -n 1
}
failed=
part() {
    echo
    echo "== $1"
    shift
    begun=$(date +%s)
    "$@"
    code=$?
    echo "-- exit $code after $(($(date +%s) - begun)) s"
    [ $code = 0 ] || [ $code = 77 ] || failed="$failed $1"
}

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_rmaps_base_oversubscribe=1 NCCL_GRAPH_REGISTER=0
GMS_BIN=$(dirname -- "$(program gms-coord)")
export GMS_BIN

for name in "$@"; do
    case $name in
    vmm) part "vmm: the suite of both kinds of memory" "$(program test_vmm_cuda)" ;;
    system)
        # Coordinators, keeper and engines killed in turn, contents compared.
        export GMS_TEST_MEMORY=cuda
        part "system: takeover" "$(program test_coord_takeover)"
        part "system: recovery" "$(program test_coord_recovery)"
        unset GMS_TEST_MEMORY
        ;;
    budget) part "budget: a standby on a nearly full device" "$(program gpu_budget)" ;;
    graph) part "graph: captured before parking, replayed after waking" "$(program gpu_graph)" ;;
    wake)
        # shellcheck disable=SC2086 # a list of sizes
        part "wake: cost by the size of handles" "$(program gpu_wake)" ${WAKE_GIB:-64 128}
        ;;
    nccl)
        # NCCL of PyTorch's wheel where the loader has none. One rank per GPU, as many as there are (GPU_NCCL_RANKS: at most).
        if [ -z "${GMS_NCCL_LIBRARY:-}" ] && ! ldconfig -p | grep -q 'libnccl\.so\.2'; then
            GMS_NCCL_LIBRARY=$(python3 -c 'import importlib.util as u
print(list(u.find_spec("nvidia.nccl").submodule_search_locations)[0] + "/lib/libnccl.so.2")' 2>/dev/null) &&
                export GMS_NCCL_LIBRARY
        fi
        part "nccl: communicators, on $(nvidia-smi -L | grep -c GPU) GPU" "$(program gpu_nccl)"
        ;;
    check | torch | torchmore | torch2 | steady | torchtp)
        # Examples/pytorch's engine; without PyTorch it says so.
        part "$name: an engine in PyTorch" sh "$(dirname -- "$0")/torch.sh" "$build" "$name"
        ;;
    reclaim) part "reclaim: quarantine that ends, engines killed in mid-kernel" "$(program gpu_reclaim)" \
        --kills "${RECLAIM_KILLS:-21}" ;;
    mps) part "mps: what MPS changes" "$(program gpu_mps)" ;;
    trials) part "trials: kills in mid-kernel" "$(program gpu_trials)" --trials "${TRIALS:-1000}" \
        --slots "${TRIAL_SLOTS:-14}" --seconds "${TRIAL_SECONDS:-600}" ;;
    *) echo "run.sh: $name is not a part" >&2; exit 64 ;;
    esac
done
echo
[ -z "$failed" ] || { echo "FAILED:$failed"; exit 1; }
echo "all passed"
