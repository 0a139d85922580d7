#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# One deployment on two hosts made of namespaces (network, host name, mounts), kept by one gms-up: keepers, coordinators
# and engines by mpirun over TCP, a run directory of its own on each host, a remote shell that forwards no GMS_ variable. A
# rank on the second host dies under streams: the shadow takes over on both, every token as in an undisturbed run. gms-up is
# killed and the next one goes on; a keeper is killed on the second host, and another one is there. The link is cut: both
# sides leave within a bound and nobody is promoted on either. It is healed: the group is whole again.
#
#   sh tests/net/two_hosts.sh BIN_DIR [RANKS]        4 without a number; half of them on each host
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
# shellcheck source=examples/packages.sh
. "$here/examples/packages.sh"
# shellcheck source=tests/system/upkeep_support.sh
. "$here/tests/system/upkeep_support.sh"
ranks=${2:-4}
half=$((ranks / 2))
for tool in ip nsenter unshare mount; do
    command -v "$tool" >/dev/null || {
        echo "two_hosts: skipped, there is no $tool" >&2
        exit 77
    }
done
unshare --net --uts --mount true 2>/dev/null || {
    echo "two_hosts: skipped, no namespaces can be made here" >&2
    exit 77
}
UPKEEP_SECONDS=${UPKEEP_SECONDS:-140}
upkeep_open twohosts "${1:?usage: two_hosts.sh BIN_DIR [RANKS]}"
mkdir "$work/run"
hosts=
for variable in $(env | sed -n 's/^\(GMS_[A-Z_]*\)=.*/\1/p'); do # what happens to be set here is not what this is about
    [ "$variable" = GMS_RUN_DIR ] || unset "$variable"
done

on() { # host command...
    host=$1
    shift
    eval "pid=\$host_$host"
    # shellcheck disable=SC2154 # eval
    nsenter -t "$pid" --net --uts --mount -- "$@"
}

in_background() { # host log command...: $last is the command itself, not a shell around it
    eval "pid=\$host_$1"
    log=$2
    shift 2
    (exec nsenter -t "$pid" --net --uts --mount -- "$@" >>"$log" 2>&1) &
    last=$!
}

finish() {
    code=$?
    if [ -n "$up" ]; then
        kill -TERM "$up" 2>/dev/null || true
        wait "$up" || true
        up=
    fi
    if [ "$code" != 0 ] && [ "$code" != 77 ]; then
        tail -n 80 "$up_log" >&2
    fi
    for number in 1 2; do on "$number" gms-keeper --run-dir "$run/r" --stop --force >/dev/null 2>&1 || true; done
    for one in $hosts; do
        kill -KILL "$one" 2>/dev/null || true
    done
    (exit "$code")
    upkeep_finish
}
trap finish EXIT

# ---- two hosts ---------------------------------------------------------------------------------------------------------
# A holder each, whose namespaces they are; its tmpfs is the host's run directory.
for number in 1 2; do
    # shellcheck disable=SC2016 # the holder expands it
    unshare --net --uts --mount sh -c 'hostname "h$1" && mount -t tmpfs -o mode=0755 tmpfs "$2" && mkfifo "$2/hold" &&
        echo ready >"$2.$1" && exec cat "$2/hold"' sh "$number" "$work/run" &
    eval "host_$number=$!"
    hosts="$hosts $!"
    until [ -s "$work/run.$number" ]; do in_time "host $number"; done
done
for number in 1 2; do # each has an interface that comes first, and leads nowhere
    on "$number" ip link add gmsno1 type veth peer name gmsno2
    on "$number" ip addr add 192.0.2.9/24 dev gmsno1
    for end in gmsno1 gmsno2; do on "$number" ip link set "$end" up; done
done
# shellcheck disable=SC2154 # eval
ip link add gmsve1 netns "$host_1" type veth peer name gmsve2 netns "$host_2"
for number in 1 2; do
    on "$number" ip addr add "10.77.0.$number/24" dev "gmsve$number"
    on "$number" ip link set "gmsve$number" up
    on "$number" ip link set lo up
done
printf '10.77.0.1 slots=%s\n10.77.0.2 slots=%s\n' "$half" "$half" >"$work/hosts"
cat >"$work/rsh" <<EOF
#!/bin/sh
case \$1 in 10.77.0.1) pid=$host_1 ;; 10.77.0.2) pid=$host_2 ;; *) exit 1 ;; esac
shift
for name in \$(env | sed -n 's/^\(GMS_[A-Z_]*\)=.*/\1/p'); do unset "\$name"; done # as ssh, which forwards nothing
exec nsenter -t "\$pid" --net --uts --mount -- sh -c "\$*"
EOF
chmod +x "$work/rsh"

mpi="\"mpirun\", \"--mca\", \"plm_rsh_agent\", \"$work/rsh\", \"--hostfile\", \"$work/hosts\", \"--map-by\", \"slot\",
    \"--mca\", \"btl\", \"tcp,self,vader\", \"--mca\", \"btl_tcp_if_include\", \"10.77.0.0/24\",
    \"--mca\", \"oob_tcp_if_include\", \"10.77.0.0/24\""
cat >"$work/my.cfg" <<EOF
deployment = "two-hosts";
run_dir = "$run/r";
ranks = $ranks;
network : { address = "10.77.0.0/24"; };
environment : { rename = ( "GMS_*=TLLM_GMS_*" ); };
memory : { capacity = "64MiB"; };
timeouts : { heartbeat = "500ms"; round = "2s"; };
engine : { command = ( "minillm", "--heads", "16", "--kv-heads", "16", "--listen", "unix:$work/e\${engine}", "--log-dir", "$work" ); };
launch : {
    keepers = ( $mpi, "--map-by", "ppr:1:node" );
    coordinators = ( $mpi, "-x", "TLLM_GMS_NET_WORD" );
    engines = ( $mpi, "-n", "\${world_size}" );
    stop_signal = "USR1";
};
standby : { count = 1; };
complete = true;
EOF
gms-coord --config "$work/my.cfg" --check

ctl() { # host...
    host=$1
    shift
    on "$host" gms-ctl --run-dir "$run/r" "$@"
}

whole() { # both hosts say that one serves and one is parked
    for number in 1 2; do ctl "$number" --timeout 90s wait standby; done
}

world() { ctl 1 --rank 0 status --json | sed -n 's/.*"world":\([0-9]*\),.*/\1/p'; }
keeper_of() { # host: its pid and how much it holds
    on "$1" gms-keeper --run-dir "$run/r" --status 2>/dev/null |
        sed -n 's/.*"pid":\([0-9]*\),.*"held":\([0-9]*\),"descriptors".*/\1 \2/p'
}

echo "== an address that a host does not have, a variable that was not forwarded: refused by name"
sed 's#10.77.0.0/24"; };#10.77.0.1"; };#' "$work/my.cfg" >"$work/bad.cfg"
refused() { # config text word...
    config=$1 text=$2
    shift 2
    code=0
    on 1 mpirun --mca plm_rsh_agent "$work/rsh" --hostfile "$work/hosts" --map-by slot --mca btl tcp,self,vader \
        --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 "$@" -n "$ranks" \
        gms-coord --config "$config" >"$work/refused.out" 2>&1 || code=$?
    [ "$code" = 78 ] || fail "gms-coord ended with $code, not 78"
    grep -q "$text" "$work/refused.out" || fail "its log lacks: $text"
    rm "$work/refused.out"
}
refused "$work/bad.cfg" 'network.address = "10.77.0.1": host h2 has no such address that is up; it has .*10.77.0.2'
GMS_NET_WORD="a b,c"
export GMS_NET_WORD
refused "$work/my.cfg" "GMS_NET_WORD is \"a b,c\" on rank 0, unset on rank $half"

echo "== $ranks ranks on two hosts"
start_up() {
    in_background 1 "$up_log" gms-up --config "$work/my.cfg"
    up=$last
}
start_up
whole
ctl 2 status | sed -n 2,8p
wanted=$((ranks - half))
[ "$(ctl 2 env 0 | grep -c "^GMS_NET_WORD=a b,c$")" = "$wanted" ] || fail "engine ranks of host 2 lack a variable"
[ "$(ctl 2 env 0 | grep -c "^MASTER_ADDR=10.77.0.1$")" = "$wanted" ] || fail "MASTER_ADDR is not of network.address"

echo "== a rank on the second host dies under streams: the shadow takes over on both, every token as without"
before=$(ctl 1 --rank 0 status --json | sed -n 's/.*"serving_engine":\([-0-9]*\).*/\1/p')
cat >"$work/strike" <<EOF
set -eu
victim=\$(nsenter -t $host_2 --net --uts --mount -- gms-ctl --run-dir "$run/r" --rank $half status --json |
    tr '{' '\n' | sed -n 's/.*"role":"serving".*"pid":\([0-9]*\),.*/\1/p')
kill -KILL "\$victim"
EOF
on 1 gms-token-drill "$run/r" --streams 4 --max-tokens 96 --timeout 30 -- sh "$work/strike" ||
    fail "the tokens are not those of an undisturbed run"
for number in 1 2; do
    until [ "$(ctl "$number" status --json | sed -n 's/.*"serving_engine":\([0-9]\).*/\1/p' | sort -u)" != "$before" ]; do
        in_time "a successor on host $number"
    done
done
whole

echo "== gms-up is killed: the next one goes on with keepers, coordinators and engines"
former=$(world)
kill -KILL "$up"
wait "$up" || true
start_up
for text in "the coordinators that an earlier gms-up started run" "keeper on each host was started by an earlier gms-up" \
    " engines that an earlier gms-up started run"; do
    until_log "$text"
done
[ "$(world)" = "$former" ] || fail "the coordinators were started again"

echo "== a keeper is killed on the second host: there is another one, which holds as much"
former=$(keeper_of 2)
kill -KILL "${former% *}"
until now=$(keeper_of 2) && [ "${now% *}" != "${former% *}" ] && [ "${now#* }" = "${former#* }" ]; do
    in_time "a keeper on host 2 that holds ${former#* } descriptors ($now)"
done

echo "== the link is cut: both sides leave, nobody is promoted"
promotions=$(grep -c "is promoted under" "$up_log" || true)
on 2 ip link set gmsve2 down
begin=$(date +%s)
for number in 1 2; do
    until ! ctl "$number" --timeout 200ms wait up >/dev/null 2>&1; do in_time "the end of the coordinators on host $number"; done
done
echo "   both sides had left after $(($(date +%s) - begin)) s: $(grep -h -o "coordinator rank [0-9]* was silent.*" "$up_log" | head -n 1)"
[ "$(grep -c "is promoted under" "$up_log" || true)" = "$promotions" ] || fail "somebody was promoted while the link was cut"
[ $(($(date +%s) - begin)) -le 15 ] || fail "it took them too long"

echo "== it is healed: the group is whole again"
on 2 ip link set gmsve2 up
whole

echo "== a planned stop: nothing is left"
kill -TERM "$up"
wait "$up" || fail "gms-up ended with $? at a planned stop"
up=
ours="(gms-coord|gms-exec|gms-keeper|gms-up|minillm|mpirun|orted) .*$work/"
until ! pgrep -f -- "$ours" >/dev/null; do in_time "the end of $(pgrep -af -- "$ours" | head -n 2)"; done
scratch=$(on 2 cat "$run/r/scratch")
for rest in "$scratch"*; do [ ! -e "$rest" ] || fail "$rest is left"; done
echo "two_hosts: all of it"
