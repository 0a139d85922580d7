#!/bin/sh
# Shows that the simulator and the unit tests notice when a guard of the core is gone: applies each line of mutations.txt
# to a copy of coord/core, and runs at most SEEDS schedules, a few lives of exchanges, then the golden traces, then the
# core's unit tests.
#
#   mutations.sh [-n SEEDS] [-d DIRECTORY] [PATTERN]     PATTERN: only mutations whose line matches
#
# Exit status 1: a mutation was not caught, or does not apply any more.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
seeds=600
work=
pattern=.
while [ $# -gt 0 ]; do
    case $1 in
    -n) seeds=$2; shift 2 ;;
    -d) work=$2; shift 2 ;;
    -*) sed -n '2,9p' "$0"; exit 2 ;;
    *) pattern=$1; shift ;;
    esac
done
if [ -z "$work" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$work/plain" "$work/src"
: "${CC:=cc}"
flags="-std=gnu17 -O2 -D_GNU_SOURCE -I$root/coord -I$root/include -I$root/tests/sim -I$root/tests/unit"
tests="operation budget takeover transfer snapshot recovery restore ballot reclaim exchange"

compile() { # source, object
    # shellcheck disable=SC2086
    $CC $flags -c "$1" -o "$2"
}

for source in "$root"/coord/core/*.c "$root"/tests/sim/[!t]*.c; do
    compile "$source" "$work/plain/$(basename "$source" .c).o"
done
for test in $tests; do
    compile "$root/tests/unit/test_core_$test.c" "$work/plain/test_core_$test.o"
done
cluster="$work/plain/cluster.o $work/plain/checks.o $work/plain/disk.o $work/plain/effects.o"
cluster="$cluster $work/plain/memory.o $work/plain/print.o"
program="$work/plain/sim.o $work/plain/engines.o $work/plain/schedule.o $work/plain/crash.o $work/plain/scenario.o"
program="$program $work/plain/sizes.o $work/plain/exchanges.o"

build() { # directory with the mutated object, or plain; its name
    core=
    for source in "$root"/coord/core/*.c; do
        name=$(basename "$source" .c).o
        if [ -e "$1/$name" ]; then core="$core $1/$name"; else core="$core $work/plain/$name"; fi
    done
    # shellcheck disable=SC2086
    $CC $program $cluster $core -o "$1/sim"
}

caught_by() { # directory: prints what noticed, fails when nothing did
    if ! timeout 300 "$1/sim" --schedules "$seeds" --failures 1 >"$1/out" 2>&1; then
        seed=$(sed -n 's/^FAIL seed \([0-9]*\).*/\1/p' "$1/out" | head -1)
        echo "sim, seed ${seed:-(ended)}: $(sed -n 's/^FAIL[^:]*: //p' "$1/out" | head -1 | cut -c1-100)"
        return 0
    fi
    if ! timeout 120 "$1/sim" --exchanges --schedules 2 >"$1/out" 2>&1; then
        echo "exchanges: $(sed -n 's/^FAIL[^:]*: //p' "$1/out" | head -1 | cut -c1-100)"
        return 0
    fi
    if ! "$here/golden.sh" "$1/sim" >/dev/null 2>&1; then
        echo "golden trace"
        return 0
    fi
    for test in $tests; do
        # shellcheck disable=SC2086
        $CC "$work/plain/test_core_$test.o" $cluster $core -lcmocka -o "$1/test"
        if ! timeout 120 "$1/test" >"$1/out" 2>&1; then
            echo "test_core_$test: $(sed -n 's/^\[  FAILED  \] //p' "$1/out" | head -1)"
            return 0
        fi
    done
    return 1
}

mkdir -p "$work/none"
build "$work/none"
if by=$(caught_by "$work/none"); then
    echo "mutations.sh: fails without any mutation ($by)" >&2
    exit 1
fi

total=0
caught=0
while IFS='@' read -r file what script; do
    case $file in '' | \#*) continue ;; esac
    printf '%s@%s@%s\n' "$file" "$what" "$script" | grep -q -e "$pattern" || continue
    total=$((total + 1))
    directory=$work/mutant
    rm -rf "$directory"
    mkdir "$directory"
    sed "$script" "$root/coord/core/$file" >"$work/src/$file"
    if cmp -s "$work/src/$file" "$root/coord/core/$file"; then
        echo "STALE   $file: $what: changes nothing any more"
        continue
    fi
    if ! compile "$work/src/$file" "$directory/$(basename "$file" .c).o" 2>"$directory/errors"; then
        echo "BROKEN  $file: $what: does not compile"
        continue
    fi
    build "$directory"
    if by=$(caught_by "$directory"); then
        caught=$((caught + 1))
        echo "caught  $file: $what ($by)"
    else
        echo "ALIVE   $file: $what"
    fi
done <"$here/mutations.txt"
echo "$caught of $total mutations caught"
[ "$caught" -eq "$total" ]
