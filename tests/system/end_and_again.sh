#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The README's way to end a deployment, one command after the other, and the same run directory again: nothing is
# left over, and the next group begins anew. Then the other order, engines after coordinators, which is refused with what to do;
# gms-ctl wait ends with gms-up. Last a keeper that gms-up has just started when it is told to stop.
#
#   sh tests/system/end_and_again.sh BIN_DIR
#
# It signals what it has started.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
# shellcheck source=examples/packages.sh
. "$here/examples/packages.sh"
# shellcheck source=tests/system/upkeep_support.sh
. "$here/tests/system/upkeep_support.sh"
UPKEEP_SECONDS=60
upkeep_open end "${1:?usage: end_and_again.sh BIN_DIR}"
sed "s#^run_dir.*#run_dir = \"$run\";#" "$here/examples/quickstart.cfg" >"$work/my.cfg"
e0='' e1=''

engine() { # number
    mpirun -n 2 gms-exec --engine "$1" -- minillm --listen "unix:$work/e$1" --log-dir "$work" >>"$work/e$1.out" 2>&1 &
}

finish() {
    code=$?
    set +e
    for launcher in $e0 $e1; do kill -TERM "$launcher" 2>/dev/null; done
    (exit "$code")
    upkeep_finish
}
trap finish EXIT

run_group() {
    start_up
    gms-ctl wait up >/dev/null
    engine 0
    e0=$!
    gms-ctl wait serving >/dev/null
    engine 1
    e1=$!
    gms-ctl wait standby
}

end_engines() {
    kill -USR1 "$e0" "$e1"
    wait "$e0" || true # 137 is right: what has not ended a second after the goodbye is killed
    wait "$e1" || true
    e0='' e1=''
}

end_coordinators_and_keeper() {
    gms-ctl down >/dev/null
    gms-keeper --run-dir "$run" --stop --force >/dev/null
    wait "$up" || fail "gms-up ended with $?"
    up=
    gms-keeper --run-dir "$run" --status >"$work/asked.out" 2>&1 && fail "a keeper is left over"
    return 0
}

echo "== ended as the README says, twice, in one run directory: the second group begins anew"
run_group
end_engines
end_coordinators_and_keeper
run_group
grep -qF "nothing lives any more, only its numbers go on" "$up_log" || fail "the next group did not go on from the numbers"

echo "== the other order: nobody saw the engines end, and the next start is refused with what to do"
gms-ctl down >/dev/null
gms-keeper --run-dir "$run" --stop --force >/dev/null
wait "$up" || fail "gms-up ended with $?"
up=
end_engines
start_up
code=0
gms-ctl wait up 2>"$work/wait.out" || code=$?
[ "$code" = 69 ] || fail "gms-ctl wait ended with $code"
grep -qF "gms-up has ended" "$work/wait.out" || fail "gms-ctl wait does not say that gms-up has ended"
code=0
wait "$up" || code=$?
up=
[ "$code" = 70 ] || fail "gms-up ended with $code"
grep -qF "engines that no coordinator saw end" "$up_log" || fail "the refusal does not say why"

echo "== with the run directory removed, told to stop while its keeper starts: no keeper is left"
gms-keeper --run-dir "$run" --stop >/dev/null
rm -r "$run"
: >"$up_log"
start_up
until_log "started one, process"
kill -TERM "$up"
wait "$up" || fail "gms-up ended with $?"
up=
gms-keeper --run-dir "$run" --status >"$work/asked.out" 2>&1 && fail "a keeper is left over"
echo "end_and_again: every step did what the README says"
