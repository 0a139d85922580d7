#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A deployment is started as a user does, then drilled while it runs: refused without a yes, refused what cannot be done
# there, and with a yes coordinators die, an engine dies, and its streams go on.
#
#   sh tests/drill/against_check.sh BIN_DIR
#
# It signals what it has started; the drill signals processes of its run directory.
set -eu
bin=$(CDPATH='' cd -- "${1:?usage: against_check.sh BIN_DIR}" && pwd)
here=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
# shellcheck source=examples/packages.sh
. "$here/examples/packages.sh"
gms_mpi_allowances
PATH=$bin:$PATH
export PATH
work=$(mktemp -d /tmp/gms-live-XXXXXX)
run=$work/run
jobs=

finish() {
    code=$?
    gms-ctl --run-dir "$run" down >/dev/null 2>&1 || true # gms-up ends with it
    for job in $jobs; do
        kill -KILL "$job" 2>/dev/null || true # mpirun: its ranks end with it
    done
    gms-keeper --run-dir "$run" --stop --force >/dev/null 2>&1 || true
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
    echo "against_check: $*" >&2
    exit 1
}

background() { # log command...
    log=$work/$1.log
    shift
    "$@" >"$log" 2>&1 &
    jobs="$jobs $!"
}

engine() { # number
    background "e$1" mpirun -n 2 gms-exec --run-dir "$run" --engine "$1" -- minillm --layers 2 --width 64 --mlp 128 \
        --slots 512 --step-delay-us 1500 --listen "unix:$work/e$1" --log-dir "$work/log"
}

drill() { # log code option...
    log=$work/$1.log code=$2
    shift 2
    set +e
    gms-failover-test --against "$run" --streams 6 --max-tokens 64 --timeout 30 "$@" >"$log" 2>&1 </dev/null
    got=$?
    set -e
    [ "$got" = "$code" ] || fail "gms-failover-test $* ended with $got, not $code"
}

expect() { # log text
    grep -qF -- "$2" "$work/$1.log" || fail "$1.log lacks \"$2\""
}

mkdir "$work/log"
sed "s#^run_dir.*#run_dir = \"$run\";#" "$here/examples/quickstart.cfg" >"$work/my.cfg"
background up gms-up --config "$work/my.cfg"
gms-ctl --run-dir "$run" wait up
engine 0
gms-ctl --run-dir "$run" wait serving
engine 1
gms-ctl --run-dir "$run" wait standby

drill unasked 64 --catalogue coordinator
expect unasked "nobody agreed"
drill unfit 0 --catalogue coordinator,disk-full --yes
expect unfit "coordinator "
expect unfit "it needs a deployment that the drill has made for it"
expect unfit "1 passed, 0 failed, 1 skipped"
gms-ctl --run-dir "$run" serving | grep -q "e1" || fail "engine 1 does not serve"
# The shadow is used up: the next fault would end the service, and is not made.
drill used 2 --catalogue sigkill-rank --yes
expect used "no shadow is parked"
gms-ctl --run-dir "$run" wait serving | grep -q "engine 1 serves" || fail "engine 1 does not serve any more"
cat "$work/unfit.log"
