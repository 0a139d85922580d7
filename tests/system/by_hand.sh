#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The README's "Run it yourself" and "Attach your own engine", command by command, and what an operator meets after it: a
# coordinator is killed, the next start goes on, --fresh is refused while an engine runs and works when none does.
#
#   sh tests/system/by_hand.sh BIN_DIR [LIBGMS]
#
# It signals what it has started, and a coordinator of its own run directory as named by its status.
set -eu
bin=$(CDPATH='' cd -- "${1:?usage: by_hand.sh BIN_DIR [LIBGMS]}" && pwd)
LIBGMS=${2:-$bin/libgms.so}
export LIBGMS
here=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
# shellcheck source=examples/packages.sh
. "$here/examples/packages.sh"
gms_mpi_allowances
command -v python3 >/dev/null || {
    echo "by_hand: skipped, there is no python3" >&2
    exit 77
}
PATH=$bin:$PATH
export PATH
work=$(mktemp -d /tmp/gms-hand-XXXXXX)
run=$work/run
jobs=

finish() {
    code=$?
    for job in $jobs; do
        kill -TERM "$job" 2>/dev/null || true # mpirun ends its ranks; killed, it would leave engines behind
    done
    end=$(($(date +%s) + 5))
    for job in $jobs; do
        while kill -0 "$job" 2>/dev/null && [ "$(date +%s)" -lt "$end" ]; do sleep 0.1; done
        kill -KILL "$job" 2>/dev/null || true # a keeper that holds memory does not end by being asked
    done
    wait
    if [ "$code" != 0 ]; then
        for log in "$work"/*.log; do
            echo "--- $log" >&2
            cat "$log" >&2
        done
    fi
    rm -rf "$work"
    exit "$code"
}
trap finish EXIT

fail() {
    echo "by_hand: $*" >&2
    exit 1
}

background() { # log command...
    log=$work/$1.log
    shift
    "$@" >"$log" 2>&1 &
    last=$!
    jobs="$jobs $last"
}

deadline=$(($(date +%s) + 90)) # below CTest's, so that what was started is ended here
in_time() { # what
    [ "$(date +%s)" -lt "$deadline" ] || fail "$1: not within 90 s of the start"
}

expect() { # file text
    grep -qF -- "$2" "$work/$1.log" || fail "$1.log lacks \"$2\""
}

sed "s#^run_dir.*#run_dir = \"$run\";#" "$here/examples/quickstart.cfg" >"$work/my.cfg"
gms-coord --config "$work/my.cfg" --check

echo "== a keeper, coordinators, two engines in Python; the first is told to end"
background keeper gms-keeper --run-dir "$run"
keeper=$last
until gms-keeper --run-dir "$run" --status >"$work/asked.log" 2>&1; do
    kill -0 "$keeper" || fail "the keeper ended"
    in_time "a keeper"
done
background coord mpirun -n 2 gms-coord --config "$work/my.cfg"
gms-ctl --run-dir "$run" wait up
background e0 mpirun -n 2 gms-exec --run-dir "$run" --engine 0 -- python3 "$here/examples/attach.py"
gms-ctl --run-dir "$run" wait serving
background e1 mpirun -n 2 gms-exec --run-dir "$run" --engine 1 -- python3 "$here/examples/attach.py"
e1=$last
gms-ctl --run-dir "$run" wait standby
gms-ctl --run-dir "$run" takeover 0
# Right after the order the old one may still be named.
until gms-ctl --run-dir "$run" wait serving | grep -q "engine 1 serves"; do in_time "engine 1 serves"; done
until [ "$(grep -c 'adopted 4 blocks, 4 found and right' "$work/e1.log")" = 2 ]; do
    kill -0 "$e1" || fail "engine 1 ended"
    in_time "blocks adopted"
done
gms-ctl --run-dir "$run" status

echo "== the keeper is killed: the next one is given everything, sessions of living engines too"
held() {
    gms-keeper --run-dir "$run" --status 2>/dev/null | sed -n 's/.*"keeper":"[0-9a-f]*","held":\([0-9]*\).*/\1/p'
}
# What the dead engine had is given up when its pages have come back; a number from before that would not be met again.
settled() {
    for rank in 0 1; do
        gms-ctl --run-dir "$run" --rank "$rank" status --json >"$work/asked.log" 2>&1 || return 1
        grep -q '"reclaim":{"state":"resting"' "$work/asked.log" || return 1
        ! grep -q '"state":"pending"' "$work/asked.log" || return 1
    done
}
until settled; do in_time "the dead engine's pages"; done
before=$(held)
[ -n "$before" ] || fail "the keeper does not say what it holds"
kill -KILL "$keeper"
wait "$keeper" || true
background keeper2 gms-keeper --run-dir "$run"
keeper=$last
until [ "$(held)" = "$before" ]; do
    kill -0 "$keeper" || fail "the keeper ended"
    in_time "everything at the next keeper"
done

echo "== the coordinators are killed: the engine serves on, and the next start goes on with it"
pid=$(gms-ctl --run-dir "$run" --rank 1 status --json | sed -n 's/.*"endpoint":"[^"]*","pid":\([0-9]*\).*/\1/p')
kill -KILL "$pid"
until ! gms-ctl --run-dir "$run" wait up --timeout 100ms >"$work/asked.log" 2>&1; do in_time "the end of the coordinators"; done
gms-ctl --run-dir "$run" status >"$work/alone.log" && fail "status without coordinators is not 0"
expect alone "NO COORDINATOR ANSWERS"
start() { # code text option...
    code=$1 text=$2
    shift 2
    set +e
    timeout 30 mpirun -n 2 gms-coord --config "$work/my.cfg" "$@" >"$work/start.log" 2>&1
    got=$?
    set -e
    [ "$got" = "$code" ] || fail "gms-coord $* ended with $got, not $code"
    expect start "$text"
}
start 70 "still runs" --fresh
kill -0 "$e1" || fail "engine 1 ended"
background again mpirun -n 2 gms-coord --config "$work/my.cfg"
gms-ctl --run-dir "$run" wait serving | grep -q "engine 1 serves" || fail "the group did not go on with engine 1"
expect again "goes on from the state"
until [ "$(grep -c 'attached to the coordinator again' "$work/e1.log")" -ge 2 ]; do in_time "gms-exec to attach again"; done
start 70 "a coordinator job runs"
gms-ctl --run-dir "$run" down

echo "== given up: only when no engine of it runs"
kill -USR1 "$e1"
wait "$e1" || true
background fresh mpirun -n 2 gms-coord --config "$work/my.cfg" --fresh
gms-ctl --run-dir "$run" wait up
gms-ctl --run-dir "$run" serving 2>"$work/serving.log" && fail "an engine of the group that was given up is named"
expect serving "nobody has served yet"
gms-keeper --run-dir "$run" --status >"$work/held.log"
expect held '"held":0'
gms-ctl --run-dir "$run" down
gms-keeper --run-dir "$run" --stop
wait "$keeper"
echo "by_hand: every step did what the README says"
