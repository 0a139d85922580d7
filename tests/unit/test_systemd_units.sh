#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The systemd units, as systemd reads them, with this build's programs in place of the installed ones; and the lines
# that must not get lost.
#
#   test_systemd_units.sh UNIT_DIR BIN_DIR
set -u
units=$1
bin=$2
if ! command -v systemd-analyze >/dev/null 2>&1; then
    echo "skipped: systemd-analyze is not installed" >&2
    exit 77
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
for unit in "$units"/*.service; do
    sed "s#/usr/bin/gms-#$bin/gms-#" "$unit" >"$dir/${unit##*/}"
done
# Unknown keys, sections and values that do not parse are told on stderr, whatever the exit status.
if ! said=$(systemd-analyze verify --man=no "$dir"/*.service 2>&1) || [ -n "$said" ]; then
    echo "$said" >&2
    failed=1
fi
has() {
    grep -qx -- "$2" "$units/$1" || { echo "$1 lacks: $2" >&2; failed=1; }
}
has gms-up@.service 'KillMode=mixed'
has gms-up@.service 'RestartPreventExitStatus=64 69 70 78'
has gms-up@.service 'Wants=gms-keeper@%i.service'
has gms-keeper@.service 'RefuseManualStop=yes'
if grep -nE '^(Requires|BindsTo|PartOf)=' "$units"/*.service; then
    echo "a keeper's end must not end coordinators, nor theirs a keeper" >&2
    failed=1
fi
# A key that nobody knows is noticed.
sed 's/^KillMode=mixed/KillMood=mixed/' "$dir/gms-up@.service" >"$dir/wrong@.service"
said=$(systemd-analyze verify --man=no "$dir/wrong@.service" 2>&1)
case $said in
*KillMood*) ;;
*) echo "systemd-analyze does not notice a wrong key: $said" >&2; failed=1 ;;
esac
exit "$failed"
