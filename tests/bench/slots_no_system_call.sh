#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: slots_no_system_call.sh BENCH_SLOTS
# Between the two lines that bench_slots --loop writes, its main thread makes no system call (invariant 6).
set -eu
command -v strace >/dev/null || { echo 'no strace' >&2; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
strace -o "$work/probe" true 2>/dev/null || { echo 'strace may not trace here' >&2; exit 77; }
strace -ff -o "$work/trace" "$1" --loop 1 2>"$work/stderr"
main=$(grep -l 'loop begins' "$work"/trace.*)
sed -n '/write(2, "loop begins/,/write(2, "loop ends/p' "$main" >"$work/loop"
test "$(grep -c 'loop begins\|loop ends' "$work/loop")" -eq 2
if [ "$(wc -l <"$work/loop")" -ne 2 ]; then
    sed -n 1,20p "$work/loop"
    echo 'system calls on the path of a token' >&2
    exit 1
fi
echo 'no system call between acquire and release'
