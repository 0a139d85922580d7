#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Keeps a coordinator job running from a batch script, where gms-up is not wanted:
#
#   slurm/restart-loop.sh --stop "gms-ctl --run-dir $RUN down" -- \
#       srun --mpi=pmix --overlap -n 8 gms-coord --config my.cfg --replace
#
#   --stop COMMAND     how a planned stop is asked for when this script gets TERM, INT or USR1 (default: TERM to the
#                      launcher, which gives the ranks less time to agree)
#   --settled SECONDS  a job that lived this long is started again at once when it ends (default: 30)
#   --grace SECONDS    how long a planned stop may take before the launcher gets TERM, and 5 s later KILL (default: 10)
#   --pauses "S S S"   seconds before the second, third, ... start in a row; the last one repeats (default: 0.2 0.5 1 2)
#
# The command's exit status decides: 0 planned stop, 64 usage, 70 an operator must decide, 78 configuration: the loop
# ends with the same. Anything else, 75 and the end by a signal among it: the command is started again, at once the
# first time, then after the pauses. slurm/README.md explains each line.
set -u

settled=30 grace=10 pauses="0.2 0.5 1 2" stop=
usage() {
    echo "restart-loop.sh: $1; usage: restart-loop.sh [--stop COMMAND] [--settled S] [--grace S] [--pauses \"S ...\"] -- COMMAND ..." >&2
    exit 64
}
while [ $# -gt 0 ]; do
    case $1 in
    --) shift && break ;;
    --stop | --settled | --grace | --pauses) [ $# -gt 1 ] || usage "$1 needs a value" ;;
    *) usage "\"$1\" is not known" ;;
    esac
    case $1 in
    --stop) stop=$2 ;;
    --settled) settled=$2 ;;
    --grace) grace=$2 ;;
    --pauses) pauses=$2 ;;
    esac
    shift 2
done
[ $# -gt 0 ] || usage "no command"
case $settled$grace in *[!0-9]*) usage "--settled and --grace are whole seconds" ;; esac
[ -n "$pauses" ] || usage "--pauses is empty"

say() {
    echo "restart-loop: $*" >&2
}

# Whole seconds since boot: the wall clock may be set while this runs.
now() {
    read -r up _ </proc/uptime
    echo "${up%%.*}"
}

# The pause after $1 earlier ends in a row.
pause_after() {
    left=$1
    pause=0
    for one in $pauses; do
        [ "$left" -gt 0 ] || break
        pause=$one
        left=$((left - 1))
    done
    echo "$pause"
}

child='' timer='' stopping='' interrupted=''

# A planned stop, asked for once; the launcher is hurried when it takes too long. The numbers that are signalled are of
# our own children that have not been waited for, so they are nobody else's.
# shellcheck disable=SC2317,SC2329 # called by the trap
ask_stop() {
    interrupted=1
    [ -z "$stopping" ] || return
    stopping=1
    say "planned stop"
    [ -n "$child" ] || return
    (
        sleeper=''
        trap 'kill "$sleeper" 2>/dev/null; exit' TERM
        if [ -z "$stop" ] || ! sh -c "$stop"; then
            kill -TERM "$child" 2>/dev/null
        fi
        sleep "$grace" &
        sleeper=$!
        wait "$sleeper"
        say "not stopped after $grace s: TERM to the launcher"
        kill -TERM "$child" 2>/dev/null
        sleep 5 &
        sleeper=$!
        wait "$sleeper"
        say "still there: KILL to the launcher"
        kill -KILL "$child" 2>/dev/null
    ) &
    timer=$!
}
trap ask_stop TERM INT USR1

# The exit status of child $1. A signal to this script ends wait early; then it waits again.
await() {
    while :; do
        interrupted=''
        wait "$1"
        code=$?
        [ -n "$interrupted" ] && [ "$code" -gt 128 ] || return
        former=$code
        interrupted=''
        wait "$1"
        code=$?
        [ "$code" != 127 ] || code=$former # it had ended at the same moment
        [ -n "$interrupted" ] && [ "$code" -gt 128 ] || return
    done
}

ends=0 # in a row, without a settled life between
while [ -z "$stopping" ]; do
    began=$(now)
    "$@" &
    child=$!
    await "$child"
    child=''
    [ -z "$timer" ] || kill "$timer" 2>/dev/null
    case $code in
    0) say "stopped as planned" && exit 0 ;;
    64 | 70 | 78) say "exit status $code: starting again is of no use, see the coordinators' log" && exit "$code" ;;
    esac
    [ -z "$stopping" ] || exit 0
    [ $(($(now) - began)) -lt "$settled" ] || ends=0
    pause=$(pause_after "$ends")
    ends=$((ends + 1))
    say "exit status $code; starting again in $pause s"
    if [ "$pause" != 0 ]; then
        sleep "$pause" &
        sleeper=$!
        wait "$sleeper"
        [ -z "$stopping" ] || kill "$sleeper" 2>/dev/null
    fi
done
exit 0
