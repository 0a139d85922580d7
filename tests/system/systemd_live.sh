#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The systemd units under a live systemd: a user instance of its own, in PID, mount and control group namespaces, with /run
# empty. Started: keeper and gms-up, one engine serves, one is parked. gms-up is killed: the unit comes back where the group
# was. Stopped: one TERM to gms-up alone, a planned stop, nobody is promoted, the keeper is in a unit that nobody may stop.
#
#   sh tests/system/systemd_live.sh BIN_DIR UNIT_DIR
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
# shellcheck source=examples/packages.sh
. "$here/examples/packages.sh"
# shellcheck source=tests/system/upkeep_support.sh
. "$here/tests/system/upkeep_support.sh"
skip() {
    echo "systemd_live: skipped, $*" >&2
    exit 77
}
manager=/lib/systemd/systemd
if [ -z "${SYSTEMD_LIVE_INSIDE:-}" ]; then
    [ "$(id -u)" = 0 ] || skip "it takes root to give a systemd namespaces of its own"
    [ -x "$manager" ] || skip "there is no systemd"
    command -v systemctl >/dev/null || skip "there is no systemctl"
    unshare --pid --mount --ipc --cgroup --fork --mount-proc true 2>/dev/null || skip "no namespaces can be made here"
    # A group of its own, so that what systemd makes is below it and goes with it.
    for top in /sys/fs/cgroup/systemd /sys/fs/cgroup; do [ -w "$top/cgroup.procs" ] && break; done
    group=$top/gms-systemd-$$
    mkdir "$group" 2>/dev/null || skip "no control group can be made in $top"
    code=0
    # The shell moves itself; all that it starts is in the group, and in a PID namespace that ends with its first process.
    # shellcheck disable=SC2016 # the inner shell expands
    sh -c 'echo $$ >"$1/cgroup.procs" || exit 77; shift
        exec unshare --pid --mount --ipc --cgroup --fork --kill-child --mount-proc "$@"' sh "$group" \
        env SYSTEMD_LIVE_INSIDE=yes timeout 90 sh "$0" "$@" || code=$?
    for tries in 1 2 3 4 5; do
        find "$group" -depth -type d -exec rmdir {} + 2>/dev/null && break
        sleep 0.$tries # the kernel is taking the last processes out
    done
    exit "$code"
fi

upkeep_open systemd "${1:?usage: systemd_live.sh BIN_DIR UNIT_DIR}"
units=${2:?usage: systemd_live.sh BIN_DIR UNIT_DIR}
mount -t tmpfs -o mode=0755 tmpfs /run
mkdir -p /run/systemd/system /run/user/0 "$work/config/systemd/user"
chmod 0700 /run/user/0
HOME=$work XDG_CONFIG_HOME=$work/config XDG_RUNTIME_DIR=/run/user/0
export HOME XDG_CONFIG_HOME XDG_RUNTIME_DIR
upkeep_config 'count = 1;'
{
    echo "GMS_RUN_DIR=$run"
    echo "GMS_CONFIG=$work/my.cfg"
    echo "PATH=$PATH"
    env | grep -E '^(OMPI_|PRTE_|PMIX_MCA_)' || true # root, and small machines
} >"$work/demo.env"
for unit in "$units"/*.service; do
    # This build's programs; no journal here, so the log is a file.
    sed -e "s#/usr/bin/gms-#$bin/gms-#" -e "s#/etc/gms/%i.env#$work/%i.env#" -e "s#journald#file:$up_log#g" "$unit" \
        >"$work/config/systemd/user/${unit##*/}"
done
"$manager" --user --log-target=console --log-level=info --unit=basic.target >"$work/systemd.out" 2>&1 &
until systemctl --user is-active basic.target >/dev/null 2>&1; do
    kill -0 $! 2>/dev/null || skip "systemd ends: $(tail -n 1 "$work/systemd.out")"
    in_time "systemd"
done
property() { systemctl --user show -p "$2" --value "$1"; }

echo "== started: one serves, one is parked"
systemctl --user start gms-up@demo
gms-ctl wait standby
[ "$(property gms-up@demo ActiveState)" = active ] || fail "gms-up's unit is $(property gms-up@demo ActiveState)"
[ "$(property gms-keeper@demo ActiveState)" = active ] || fail "the keeper's unit is $(property gms-keeper@demo ActiveState)"
[ "$(property gms-keeper@demo OOMScoreAdjust)" = -900 ] || fail "the keeper may be chosen when memory is short"
keeper=$(property gms-keeper@demo MainPID)
[ "$(property gms-up@demo LimitMEMLOCK)" = infinity ] || fail "gms-up may lock $(property gms-up@demo LimitMEMLOCK) bytes"

echo "== gms-up is killed: its unit comes back, the keeper stays"
former=$(property gms-up@demo MainPID)
kill -KILL "$former"
until now=$(property gms-up@demo MainPID) && [ "$now" != 0 ] && [ "$now" != "$former" ]; do in_time "another gms-up"; done
until gms-ctl --timeout 30s wait standby >/dev/null 2>&1; do in_time "a shadow again"; done
[ "$(property gms-keeper@demo MainPID)" = "$keeper" ] || fail "the keeper is another one"
grep -q "goes on from the state" "$up_log" || fail "the coordinators did not go on from what was stored"

echo "== nobody ends the keeper by the way; a planned stop takes nothing over"
! systemctl --user stop gms-keeper@demo 2>/dev/null || fail "the keeper's unit was stopped by hand"
[ "$(property gms-keeper@demo MainPID)" = "$keeper" ] || fail "the keeper has ended"
promotions=$(grep -c "is promoted under" "$up_log" || true)
systemctl --user stop gms-up@demo
[ "$(property gms-up@demo Result)" = success ] || fail "the unit's result is $(property gms-up@demo Result)"
grep -q "planned stop agreed by all ranks" "$up_log" || fail "the ranks did not agree on the stop"
[ "$(grep -c "is promoted under" "$up_log" || true)" = "$promotions" ] || fail "somebody was promoted at a planned stop"
until ! pgrep -f "(gms-coord|gms-exec|minillm|mpirun) .*$work" >/dev/null; do in_time "the end of engines and coordinators"; done
echo "systemd_live: all of it"
