#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# test_cuda_lock.sh PROGRAM FAKE_DRIVER_DIRECTORY OTHER_DRIVER_DIRECTORY: gms-cuda-lock with a driver that answers as told,
# with one that is too old, and without any.
set -u
program=$1
fake=$2
other=$3
failed=0

# expect CODE WORDS COMMAND...: the exit code, and the words in what it says.
expect() {
    code=$1
    words=$2
    shift 2
    said=$("$@" 2>&1)
    is=$?
    case $said in
    *"$words"*) ;;
    *) echo "\"$said\" does not say \"$words\": $*" >&2; failed=1 ;;
    esac
    [ $is -eq "$code" ] || { echo "exit $is, not $code: $*" >&2; failed=1; }
}

expect 0 'lock 4711 within 80 ms' env LD_LIBRARY_PATH="$fake" "$program" 4711
expect 0 'lock 4711 within 250 ms' env LD_LIBRARY_PATH="$fake" "$program" --timeout 250 4711
expect 1 'process 4711 is not locked: CUDA_ERROR_OF_A_TEST (3)' env LD_LIBRARY_PATH="$fake" FAKE_LOCK_RESULT=3 "$program" 4711
expect 1 'process 4711 is not locked: ? (600)' env LD_LIBRARY_PATH="$fake" FAKE_LOCK_RESULT=600 "$program" 4711
expect 69 'it takes version 570 or newer' env LD_LIBRARY_PATH="$other" "$program" 4711
for pid in 0 -1 1x x '' 4294967296 99999999999999999999; do
    expect 64 '' env LD_LIBRARY_PATH="$fake" FAKE_LOCK_RESULT=0 "$program" -- "$pid"
done
expect 64 '' "$program"
expect 64 '' "$program" 1 2
expect 64 'from 1 to 10000' "$program" --timeout 0 4711
exit $failed
