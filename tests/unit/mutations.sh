#!/bin/sh
# Shows that a test notices when a guard outside the core is gone: slots and leases, quarantine, providers, sessions. Copies
# the tree, builds it once, applies each line of mutations.txt to the copy, builds what its test needs and runs that test.
# (The core's own guards: tests/sim/mutations.sh.)
#
#   mutations.sh [-d DIRECTORY] [PATTERN]     PATTERN: only mutations whose line matches
#
# Exit status 1: a mutation was not caught, or does not apply any more.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=
pattern=.
while [ $# -gt 0 ]; do
    case $1 in
    -d) work=$2; shift 2 ;;
    -*) sed -n '2,9p' "$0"; exit 2 ;;
    *) pattern=$1; shift ;;
    esac
done
if [ -z "$work" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$work/source"
(cd "$root" && tar -cf - CMakeLists.txt CMakePresets.json LICENSE NEWS README.md cmake coord examples include runtime tests) |
    tar -xf - -C "$work/source"
launcher=
command -v ccache >/dev/null && launcher=-DCMAKE_C_COMPILER_LAUNCHER=ccache
cmake -S "$work/source" -B "$work/build" -G Ninja $launcher >"$work/log"
ninja -C "$work/build" -j2 >"$work/log" 2>&1 || { tail -20 "$work/log"; exit 1; }

total=0
caught=0
while IFS='@' read -r file what script target test; do
    case $file in '' | \#*) continue ;; esac
    printf '%s@%s@%s\n' "$file" "$what" "$test" | grep -q -e "$pattern" || continue
    total=$((total + 1))
    cp "$work/source/$file" "$work/whole"
    sed -i "$script" "$work/source/$file"
    if cmp -s "$work/source/$file" "$work/whole"; then
        echo "STALE   $file: $what"
        continue
    fi
    # shellcheck disable=SC2086
    if ! ninja -C "$work/build" -j2 $target >"$work/log" 2>&1; then
        echo "BROKEN  $file: $what (does not compile)"
    elif ctest --test-dir "$work/build" -R "^($test)\$" --output-on-failure >"$work/log" 2>&1; then
        echo "ALIVE   $file: $what"
    elif grep -q 'No tests were found' "$work/log"; then
        echo "STALE   $file: $what (no test $test)"
    else
        caught=$((caught + 1))
        echo "caught  $file: $what ($(sed -n 's/^\[  FAILED  \] \([a-z_A-Z0-9]*\)$/\1/p' "$work/log" | head -1))"
    fi
    cp "$work/whole" "$work/source/$file"
done <"$here/mutations.txt"
echo "$caught of $total mutations caught"
[ "$caught" -eq "$total" ]
