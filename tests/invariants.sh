#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Shows, for each of the design's invariants 1-9 and for reported faults, that a test fails when a guard of it is gone: makes a
# copy of the tree, removes one guard after another (tests/invariants.txt), builds what the named tests need, and runs them.
#
#   invariants.sh [-d DIRECTORY] [-j JOBS] [PATTERN]     PATTERN: only rows that match (such as '^3@')
#
# DIRECTORY keeps copy and build, so that the next run is short. Exit status 1: a guard whose removal no test noticed,
# or a row that changes nothing any more. Takes about ten minutes on two cores the first time.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
work=
jobs=2
pattern=.
while [ $# -gt 0 ]; do
    case $1 in
    -d) work=$2; shift 2 ;;
    -j) jobs=$2; shift 2 ;;
    -*) sed -n '3,12p' "$0"; exit 2 ;;
    *) pattern=$1; shift ;;
    esac
done
if [ -z "$work" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$work/tree"
(cd "$root" && git ls-files) | while read -r file; do
    if [ -f "$root/$file" ] && ! cmp -s "$root/$file" "$work/tree/$file"; then
        mkdir -p "$work/tree/$(dirname "$file")"
        cp -p "$root/$file" "$work/tree/$file"
    fi
done
cmake -S "$work/tree" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DGMS_FENCE_SABOTAGE=OFF >"$work/log" 2>&1 || { tail -20 "$work/log"; exit 1; }
cmake --build "$work/build" -j "$jobs" >"$work/log" 2>&1 || { tail -20 "$work/log"; exit 1; }

# Runs the named tests one by one until one fails: prints its name. Fails when all pass.
notice() {
    for name in $(echo "$1" | tr '|' ' '); do
        if ! ctest --test-dir "$work/build" -R "^$name\$" --timeout 240 --output-on-failure >"$work/log" 2>&1; then
            grep -q 'No tests were found' "$work/log" && continue
            echo "$name$(sed -n 's/^\[  FAILED  \] \([a-z_]*\)$/: \1/p' "$work/log" | head -1)"
            return 0
        fi
    done
    return 1
}

total=0
noticed=0
while IFS='@' read -r invariant guard file script tests; do
    case $invariant in '' | \#*) continue ;; esac
    printf '%s@%s@%s@%s\n' "$invariant" "$guard" "$file" "$script" | grep -q -e "$pattern" || continue
    total=$((total + 1))
    sed "$script" "$root/$file" >"$work/mutant"
    if cmp -s "$work/mutant" "$root/$file"; then
        echo "STALE     $invariant  $guard: $file has no such guard any more"
        continue
    fi
    cp "$work/mutant" "$work/tree/$file"
    if ! cmake --build "$work/build" -j "$jobs" >"$work/log" 2>&1; then
        echo "BROKEN    $invariant  $guard: does not compile without it"
    elif by=$(notice "$tests"); then
        noticed=$((noticed + 1))
        echo "noticed   $invariant  $guard  ($by)"
    else
        echo "UNNOTICED $invariant  $guard: $tests pass without it"
    fi
    cp "$root/$file" "$work/tree/$file"
done <"$root/tests/invariants.txt"
cmake --build "$work/build" -j "$jobs" >"$work/log" 2>&1 || :
echo "$noticed of $total guards noticed"
[ "$noticed" -eq "$total" ]
