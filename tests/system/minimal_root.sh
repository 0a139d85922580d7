#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the README's two commands in a minimal root made with debootstrap, nothing pre-installed.
#
#   sh tests/system/minimal_root.sh bookworm|trixie|noble [DIR]
#
# Needs root, debootstrap and a package mirror. The root is kept in DIR (default: a new directory under /var/tmp), its
# pristine copy in DIR.base, so that a second run starts from nothing again without a download. The checkout is copied in
# as git has it (committed files only): what is not committed is not tested. Processes run in PID, mount, UTS and IPC
# namespaces of their own and end with them.
set -eu
suite=${1:?"usage: minimal_root.sh bookworm|trixie|noble [DIR]"}
root=${2:-/var/tmp/gms-root-$suite}
here=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)

case $suite in
bookworm | trixie) mirror=${MIRROR:-http://deb.debian.org/debian} ;;
noble) mirror=${MIRROR:-http://archive.ubuntu.com/ubuntu} ;;
*)
    echo "minimal_root.sh: unknown suite '$suite': bookworm, trixie or noble" >&2
    exit 64
    ;;
esac
[ "$(id -u)" = 0 ] || {
    echo "minimal_root.sh: debootstrap and chroot need root" >&2
    exit 77
}

if [ ! -e "$root.base/etc/debian_version" ]; then
    echo "== debootstrap $suite into $root.base"
    debootstrap --variant=minbase "$suite" "$root.base" "$mirror" >"$root.log" 2>&1 || {
        tail -n 20 "$root.log"
        exit 1
    }
fi
echo "== a fresh copy in $root"
rm -rf --one-file-system "$root"
cp -a "$root.base" "$root"
[ "$suite" = noble ] && echo "deb $mirror noble main universe" >"$root/etc/apt/sources.list"
cp /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
[ -e /etc/apt/apt.conf.d/proxy ] && cp /etc/apt/apt.conf.d/proxy "$root/etc/apt/apt.conf.d/"
mkdir -p "$root/src"
git -C "$here" archive HEAD | tar -x -C "$root/src"

cat >"$root/inside.sh" <<'INSIDE'
set -eu
mount -t proc proc /proc
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs /tmp
hostname minimal-root
export HOME=/root LC_ALL=C.UTF-8
cd /src
echo "== quickstart"
sh examples/quickstart.sh
echo "== tests"
CI='' sh tests/run.sh
INSIDE
# /dev and /sys are the host's, by bind mount; everything else is the root's own.
# shellcheck disable=SC2016 # the inner shell expands
exec unshare --mount --pid --fork --uts --ipc --kill-child sh -c '
    mount --make-rprivate /
    mkdir -p "$1/dev/shm" "$1/dev/pts"
    mount --rbind /dev "$1/dev"
    mount --rbind /sys "$1/sys"
    exec chroot "$1" /bin/sh /inside.sh' sh "$root"
