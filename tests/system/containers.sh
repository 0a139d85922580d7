#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Engines in containers (PID, mount, IPC and host name namespaces of their own, a /dev/shm and a /proc of their own), keeper
# and coordinators outside: all ranks of an engine in one container, then each rank in its own. A rank dies, then a whole
# container: the shadow takes over, tokens are those of an undisturbed run, the dead engine's pages come back. What cannot
# work is refused by name: coordinators inside and the engine outside, a /proc of another namespace, another user.
#
#   sh tests/system/containers.sh BIN_DIR
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
# shellcheck source=examples/packages.sh
. "$here/examples/packages.sh"
# shellcheck source=tests/system/upkeep_support.sh
. "$here/tests/system/upkeep_support.sh"
if ! unshare --pid --mount --ipc --uts --fork --mount-proc true 2>/dev/null; then
    echo "containers: skipped, no PID and mount namespaces can be made here" >&2
    exit 77
fi
UPKEEP_SECONDS=${UPKEEP_SECONDS:-100}
upkeep_open containers "${1:?usage: containers.sh BIN_DIR}"

# What Enroot with a PID namespace, or Apptainer with --pid --ipc --uts, makes of a command; what is bound into it is what
# slurm/README.md asks for: the run directory, and here $work for sockets and logs. Nothing else of /dev/shm is shared.
cat >"$work/container" <<'EOF'
#!/bin/sh
exec unshare --pid --mount --ipc --uts --fork --kill-child --mount-proc sh -c '
    hostname inside && mount -t tmpfs -o mode=1777 tmpfs /dev/shm && exec "$@"' sh "$@"
EOF
chmod +x "$work/container"
UPKEEP_COMMAND='minillm", "--layers", "2'
upkeep_config 'count = 1;'
sed -i "s#engines = ( \"mpirun\"#engines = ( \"$work/container\", \"mpirun\"#" "$work/my.cfg"

inside() { # pid: is it in another PID and another mount namespace?
    for kind in pid mnt; do
        [ "$(readlink "/proc/$1/ns/$kind")" != "$(readlink "/proc/self/ns/$kind")" ] || fail "process $1 shares our $kind namespace"
    done
}
successor() { # of whom
    until now=$(serving) && [ -n "$now" ] && [ "$now" -ge 0 ] && [ "$now" != "$1" ]; do in_time "a successor of engine $1"; done
}
no_suspects() {
    until ! gms-ctl status --json | grep -q '"state":"pending"'; do in_time "the pages of the dead"; done
    ! gms-ctl status --json | grep -q '"state":"quarantined"' || fail "a dead engine is not known to be quiet"
}

echo "== all ranks of an engine in one container: a rank dies under streams"
start_up
gms-ctl wait standby >/dev/null
inside "$(pid_of "$(serving)")"
gms-failover-test --attach "$run" --rank 1 --timeout 30 --streams 4 --max-tokens 64 >"$work/drill.out" 2>&1 || fail "the drill: $(tail -n 12 "$work/drill.out")"
tail -n 1 "$work/drill.out"
gms-ctl wait standby >/dev/null

echo "== the first process of a container dies, and with it the whole container"
before=$(serving)
init=$(pid_of "$before")
# The one whose parent is outside: up from the rank while the namespace stays the same.
while parent=$(sed -n 's/^PPid:\t//p' "/proc/$init/status") && [ "$(readlink "/proc/$parent/ns/pid")" = "$(readlink "/proc/$init/ns/pid")" ]; do
    init=$parent
done
[ "$(sed -n 's/^NSpid:.*\t//p' "/proc/$init/status")" = 1 ] || fail "process $init is not the first of its container"
kill -KILL "$init"
successor "$before"
gms-ctl wait standby >/dev/null
no_suspects

echo "== each rank in a container of its own"
# Ranks that cannot see each other's memory: TCP, as for any MPI job whose ranks are in containers of their own.
OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=lo mpirun -n 2 "$work/container" gms-exec --engine 7 -- \
    minillm --layers 2 --listen "unix:$work/e7" --log-dir "$work" >"$work/hand.out" 2>&1 &
hand=$!
until [ "$(in_role parked | wc -w)" = 2 ]; do in_time "a third engine, by hand"; done
first=$(gms-ctl --rank 0 status --json | tr '{' '\n' | sed -n 's/^"engine":7,.*"pid":\([0-9]*\),.*/\1/p')
second=$(gms-ctl --rank 1 status --json | tr '{' '\n' | sed -n 's/^"engine":7,.*"pid":\([0-9]*\),.*/\1/p')
inside "$first"
[ "$(readlink "/proc/$first/ns/pid")" != "$(readlink "/proc/$second/ns/pid")" ] || fail "the ranks share a container"
while [ "$(serving)" != 7 ]; do
    before=$(serving)
    gms-ctl drain "$before" >/dev/null
    successor "$before"
done
kill -KILL "$second"
successor 7
wait "$hand" || true
gms-ctl wait standby >/dev/null
no_suspects
stop_up
nothing_left

echo "== what cannot work is refused by name"
rm -rf "$run"
gms-keeper --run-dir "$run" >"$work/keeper.out" 2>&1 &
until gms-keeper --run-dir "$run" --status >/dev/null 2>&1; do in_time "a keeper"; done
refused() { # code text command...
    wanted=$1 text=$2
    shift 2
    code=0
    timeout 30 "$@" >"$work/refused.out" 2>&1 || code=$?
    [ "$code" = "$wanted" ] || fail "$*: ended with $code, not $wanted"
    grep -q -- "$text" "$work/refused.out" || fail "$* did not say: $text"
    rm "$work/refused.out"
}
"$work/container" mpirun -n 2 gms-coord --config "$work/my.cfg" >"$work/coord.out" 2>&1 &
coordinators=$!
gms-ctl wait up >/dev/null
refused 69 "cannot end it from its PID namespace" mpirun -n 2 gms-exec --engine 0 -- true
gms-ctl down
wait "$coordinators"
mpirun -n 2 gms-coord --config "$work/my.cfg" >"$work/coord.out" 2>&1 &
coordinators=$!
gms-ctl wait up >/dev/null
# shellcheck disable=SC2016 # the inner shell expands it; as process 1 gms-exec would need no /proc
refused 71 "/proc shows another PID namespace" unshare --pid --fork sh -c '"$@"; exit $?' sh \
    gms-exec --rank 0 --engine 0 --launch a -- true
if unshare --user --map-users=0,1000,1 --map-groups=0,1000,1 --setuid 0 --setgid 0 true 2>/dev/null; then
    refused 69 "it belongs to another user" unshare --user --map-users=0,1000,1 --map-groups=0,1000,1 --setuid 0 --setgid 0 \
        gms-exec --rank 0 --engine 0 --launch b --wait 1s -- true
fi
gms-ctl down
wait "$coordinators"
gms-keeper --run-dir "$run" --stop
echo "containers: all of it"
