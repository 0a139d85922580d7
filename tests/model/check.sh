#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks the models with SPIN: check.sh [short|full|large] [NAME of one run]. short (the default, CI) takes under a
# minute, full some minutes and up to 4 GiB, large looks at part of what is too large for that (hashed, three minutes
# each, 2 GiB). Exit: 0 all as expected, 1 not, 77 spin or a C compiler is absent. Counterexamples are left in
# the directory GMS_MODEL_DIR when that is set; README.md says how to replay one.
set -u
here=$(cd "$(dirname -- "$0")" && pwd)
form=${1:-short}
only=${2:-}
CC=${CC:-cc}
for tool in spin "$CC"; do
    if ! command -v "$tool" >/dev/null 2>&1; then
        echo "model: skipped: $tool is not installed (Debian: apt-get install spin gcc)" >&2
        exit 77
    fi
done
case $form in
short | full | large) ;;
*)
    echo "check.sh: '$form' is no form: short, full or large" >&2
    exit 1
    ;;
esac
if [ -n "${GMS_MODEL_DIR:-}" ]; then
    work=$GMS_MODEL_DIR
    mkdir -p "$work" || exit 1
else
    work=$(mktemp -d) || exit 1
    trap 'rm -rf "$work"' EXIT
fi
failed=0
printf '%-34s %-15s %10s %12s %7s %7s %6s\n' run result states transitions depth MiB s

number() { # number PATTERN FILE: the first number of the line that has it
    sed -n "s/.*$1.*/&/p" "$2" | grep -oE '[0-9.]+(e\+[0-9]+)?' | head -1
}

# build NAME MODEL CFLAGS SPINFLAGS: leaves pan in $work/NAME
build() {
    name=$1 model=$2 cflags=$3
    shift 3
    mkdir -p "$work/$name" && cd "$work/$name" || exit 1
    # shellcheck disable=SC2086 # a list of flags
    if ! spin -a "$@" "$here/$model.pml" >spin.log 2>&1 || ! "$CC" -w -DNOFAIR -DVECTORSZ=512 $cflags -o pan pan.c >cc.log 2>&1; then
        cat spin.log cc.log >&2
        echo "model: $name does not build" >&2
        exit 1
    fi
}

# report NAME EXPECTED(holds|violated|reached): judges pan.log
report() {
    result=unclear
    if grep -q 'errors: 0$' pan.log && ! grep -qE 'max search depth|not completed|bound' pan.log; then
        result=holds
    elif grep -qE '^pan:1: (assertion violated|acceptance cycle|end state in claim)' pan.log; then
        result=violated
    fi
    [ "$2" != reached ] || [ $result != violated ] || result=reached
    verdict=$result
    if [ "$result" != "$2" ]; then
        verdict="$result: WRONG"
        failed=1
    fi
    depth=$(sed -n 's/.*depth reached \([0-9]*\).*/\1/p' pan.log)
    printf '%-34s %-15s %10s %12s %7s %7s %6s\n' "$1" "$verdict" "$(number 'states, stored' pan.log)" \
        "$(number 'transitions (=' pan.log)" "$depth" "$(number 'total actual memory' pan.log)" "$(number 'elapsed time' pan.log)"
}

wanted() {
    [ -z "$only" ] || [ "$only" = "$1" ]
}

# holds NAME MODEL SPINFLAGS: no assertion fails in any reachable state
holds() {
    wanted "$1" || return 0
    run=$1 model=$2
    shift 2
    build "$run" "$model" "-O2 -DSAFETY -DNOCLAIM -DCOLLAPSE -DMEMLIM=8000" -DSYMMETRY "$@"
    ./pan -n -m100000 -w24 >pan.log 2>&1
    report "$run" holds
}

# claims NAME MODEL "CLAIM..." SPINFLAGS: the assertions, and each never-claim
claims() {
    wanted "$1" || return 0
    run=$1 model=$2 list=$3
    shift 3
    build "$run" "$model" "-O1 -DMEMLIM=4000" -DSYMMETRY "$@"
    for claim in $list; do
        ./pan -n -a -m100000 -w22 -N "$claim" >pan.log 2>&1
        report "$run $claim" holds
    done
}

# mutant NUMBER MODEL WHAT SPINFLAGS: with that guard taken out something must fail
mutant() {
    run="$2-mutant-$1"
    wanted "$run" || return 0
    mutation=$1 model=$2 what=$3
    shift 3
    build "$run" "$model" "-O0 -DSAFETY -DNOCLAIM" "-DMUTATE=$mutation" -DN=2 -DCRASHES=2 "$@"
    ./pan -n -m20000 >pan.log 2>&1
    report "$model without: $what" violated
}

# witness NUMBER MODEL WHAT SPINFLAGS: what must be reachable is
witness() {
    run="$2-witness-$1"
    wanted "$run" || return 0
    aim=$1 model=$2 what=$3
    shift 3
    build "$run" "$model" "-O0 -DSAFETY" "-DWITNESS=$aim" -DN=2 "$@"
    ./pan -n -m20000 >pan.log 2>&1
    report "$model: $what" reached
}

# samples NAME MODEL SPINFLAGS: no assertion fails where a bit per state lets it look
samples() {
    wanted "$1" || return 0
    run=$1 model=$2
    shift 2
    build "$run" "$model" "-O2 -DSAFETY -DNOCLAIM -DBITSTATE" -DSYMMETRY "$@"
    ./pan -n -m200000 -w34 -Q3 >pan.log 2>&1
    if grep -qE '^pan:1: assertion violated' pan.log; then
        report "$run" holds
        return
    fi
    printf '%-34s %-15s %10s %12s\n' "$run" "none found" "$(number 'states, stored' pan.log)" "$(number 'transitions (=' pan.log)"
}

A='-DM=1 -DK=2'
T='-DINCARNATIONS=3 -DGATED -DSYMMETRY'
R='-DPAGES=1 -DOWNERS=3'
if [ "$form" = large ]; then
    samples takeover-3x2x2-4 takeover -DN=3 -DCRASHES=2 -DINCARNATIONS=4
    samples agreement-4x2x2-lost agreement -DN=4 -DM=2 -DK=2 -DCRASHES=2 -DLOSSES=1
    samples reclaim-3x2x2 reclaim -DN=3 -DCRASHES=2 -DPAGES=2 -DOWNERS=3
    exit $failed
fi
# shellcheck disable=SC2086 # lists of flags
{
    claims agreement-2x2x2 agreement "same_outcome decided_for_ever ok_stays" -DN=2 -DM=2 -DK=1 -DCRASHES=2 -DLOSSES=1
    claims takeover-2x2x1 takeover "one_writer condemned_for_ever no_return" -DN=2 -DCRASHES=1 -DINCARNATIONS=3 -DGATED
    claims reclaim-2x2 reclaim "one_user free_is_decided" -DN=2 -DCRASHES=2 $R
    mutant 1 agreement "store first" $A
    mutant 2 agreement "greatest round" $A
    mutant 4 agreement "in doubt" $A -DLOSSES=1
    mutant 11 agreement "a life ends" $A -DLOSSES=1
    mutant 5 agreement "expiry by round" $A
    mutant 1 takeover "store first" $T
    mutant 5 takeover "fence first" $T
    mutant 6 takeover "parked on all" $T
    mutant 5 reclaim "stamp first" $R
    witness 1 takeover "a second takeover" -DCRASHES=1 $T
    if [ "$form" = full ]; then
        mutant 3 agreement "rounds go on" $A
        mutant 6 agreement "refusal aborts" $A
        mutant 7 agreement "all have voted" $A
        mutant 2 takeover "greatest round" $T
        mutant 3 takeover "rounds go on" $T
        mutant 7 takeover "retired on all" $T
        mutant 8 takeover "classify last" $T
        mutant 9 takeover "epoch raised" $T
        mutant 10 takeover "fenced again" $T
        mutant 1 reclaim "store first" $R
        mutant 2 reclaim "greatest round" $R
        mutant 3 reclaim "rounds go on" $R
        mutant 6 reclaim "stamp on all" $R
        mutant 7 reclaim "proof on all" $R
        mutant 8 reclaim "own proof" $R
        mutant 9 reclaim "each suspect" $R
        mutant 10 reclaim "silence no proof" $R
        witness 1 agreement "all OK, two crashes" -DCRASHES=2 $A
        witness 2 agreement "in doubt" -DCRASHES=2 -DLOSSES=1 $A
        witness 3 agreement "one told, all dead" -DCRASHES=2 $A
        witness 4 agreement "a store lost, OK" -DCRASHES=2 -DLOSSES=1 $A
        witness 5 agreement "a new life, OK" -DCRASHES=2 -DLOSSES=1 $A
        witness 2 takeover "crash, classifying" -DCRASHES=1 $T
        witness 3 takeover "successor lost" -DCRASHES=1 $T
        witness 1 reclaim "all freed, crashes" -DCRASHES=2 $R
        witness 2 reclaim "death in between" -DCRASHES=1 -DPAGES=2 -DOWNERS=3 -DGATED
        holds agreement-3x2x2 agreement -DN=3 -DM=2 -DK=2 -DCRASHES=2
        holds agreement-3x2x2-lost agreement -DN=3 -DM=2 -DK=1 -DCRASHES=2 -DLOSSES=1
        holds takeover-2x2x2 takeover -DN=2 -DCRASHES=2 -DINCARNATIONS=3
        holds takeover-3x2x2-gated takeover -DN=3 -DCRASHES=2 -DINCARNATIONS=3 -DGATED
        holds reclaim-3x2x2-gated reclaim -DN=3 -DCRASHES=2 -DPAGES=2 -DOWNERS=3 -DGATED
        holds reclaim-3x1x2 reclaim -DN=3 -DCRASHES=2 -DPAGES=1 -DOWNERS=3
        holds reclaim-3x1x2-inherit reclaim -DN=3 -DCRASHES=2 -DPAGES=1 -DOWNERS=3 -DINHERIT
    fi
}
exit $failed
