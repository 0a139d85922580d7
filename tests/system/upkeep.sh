#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# gms-up keeps engines: a shadow that dies is replaced and the primary is not touched; a dead primary comes back as a
# shadow, whatever its number (V13); an engine that somebody started by hand counts; gms-up itself is killed and the next
# one goes on; starts that keep failing get pauses and a reason; the first engine waits for a shadow, but not for ever;
# a planned stop takes nothing over and leaves nothing behind (V44).
#
#   sh tests/system/upkeep.sh BIN_DIR
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
# shellcheck source=examples/packages.sh
. "$here/examples/packages.sh"
# shellcheck source=tests/system/upkeep_support.sh
. "$here/tests/system/upkeep_support.sh"
upkeep_open upkeep "${1:?usage: upkeep.sh BIN_DIR}"
UPKEEP_SLOTS=0 # as many as the agreed budget has room for: two that start at once must be told the same

echo "== one serves, one is parked; the first waited for the second"
upkeep_config 'count = 1; serve_after_standby = "yes"; serve_wait = "60s";'
start_up
gms-ctl wait standby
until_log "1 parked; ready"
grep -q "it serves when 1 more are" "$up_log" || fail "the first engine did not wait for the second"
first=$(serving)
[ "$(cat "$run"/engine.*.log | grep -o "budget for kv is .*" | sort -u | wc -l)" = 1 ] || fail "engines were told different budgets, or none"
[ "$(pid_of "$first")" -gt 0 ] || fail "engine $first has no process"

echo "== the shadow dies: it is replaced, the primary serves on"
primary=$(pid_of "$first")
shadow=$(in_role parked)
kill -KILL "$(pid_of "${shadow% }")"
until_log "0 of 1 shadows are parked"
gms-ctl wait standby
[ "$(serving)" = "$first" ] || fail "engine $(serving) serves, not $first"
[ "$(pid_of "$first")" = "$primary" ] || fail "the primary is another process"

echo "== the primary dies, again and again: each time there is a shadow again"
for round in 1 2 3; do
    before=$(serving)
    kill -KILL "$(pid_of "$before")"
    until [ "$(serving)" != "$before" ] && [ "$(serving)" -ge 0 ]; do in_time "a successor in round $round"; done
    gms-ctl wait standby >/dev/null
done

echo "== an operator asks: env, log, drain"
gms-ctl env "$(serving)" >"$work/env.out"
[ "$(grep -c "^RANK=[01]$" "$work/env.out")" = 2 ] || fail "env does not tell both ranks"
[ "$(grep "^MASTER_PORT=" "$work/env.out" | sort -u | grep -c "=2[0-9]*")" = 1 ] || fail "env tells no port, or two"
gms-ctl log "$(serving)" | grep -q "serving unix:" || fail "log does not tell what the engine said"
before=$(serving)
gms-ctl drain "$before" >"$work/drain.out"
[ "$(serving)" != "$before" ] || fail "engine $before serves after its drain"
gms-ctl drain "$before" | grep -q "does not serve" || fail "drained twice"
gms-ctl wait standby >/dev/null

echo "== park and wake: handed over as planned, and there is a shadow again"
before=$(serving)
gms-ctl park "$before" >"$work/park.out"
[ "$(serving)" != "$before" ] || fail "engine $before serves after it was parked"
shadow=$(in_role parked | tr -d ' ')
[ -n "$shadow" ] || fail "park did not wait for a shadow"
gms-ctl park "$shadow" >"$work/park.out" || fail "parked twice is not parked"
gms-ctl wake "$shadow" >"$work/wake.out"
[ "$(serving)" = "$shadow" ] || fail "engine $(serving) serves, not $shadow, which was woken"
gms-ctl wake "$shadow" >"$work/wake.out" || fail "woken twice is not awake"
gms-ctl wait standby >/dev/null

echo "== gms-up is killed: engines run on, and the next one goes on with them"
engines=$(in_role serving)$(in_role parked)
kill -KILL "$up"
wait "$up" || true
up=
start_up
until_log "engines that an earlier gms-up started run; going on with them"
shadow=$(in_role parked | tr -d ' ')
killed=$(pid_of "$shadow")
kill -KILL "$killed"
until [ "$(pid_of "$shadow")" != "$killed" ]; do in_time "the end of engine $shadow"; done # else it still counts
gms-ctl wait standby >/dev/null
echo "   $engines before, $(in_role serving)$(in_role parked)now"

echo "== an engine that is started by hand counts: no third one is started"
shadow=$(in_role parked | tr -d ' ')
mpirun -n 2 gms-exec --engine 7 -- minillm --slots "$UPKEEP_SLOTS" --listen "unix:$work/e7" --log-dir "$work" >"$work/hand.out" 2>&1 &
hand=$!
until [ "$(in_role parked | wc -w)" = 2 ]; do in_time "a third engine by hand"; done
starts=$(grep -c "started engine" "$up_log")
kill -KILL "$(pid_of "$shadow")"
until [ "$(in_role parked)" = "7 " ]; do in_time "the end of engine $shadow"; done
until grep -q "engine $shadow ended" "$up_log"; do in_time "the end of its launcher"; done
[ "$(grep -c "started engine" "$up_log")" = "$starts" ] || fail "an engine was started although one is parked"

echo "== a planned stop: nobody is taken over from, nothing is left"
takeovers=$(grep -c "is condemned" "$up_log" || true)
kill -USR1 "$hand"
wait "$hand" || true
gms-ctl wait standby >/dev/null # its place is filled
takeovers=$(grep -c "is promoted under" "$up_log" || true)
stop_up
[ "$(grep -c "is promoted under" "$up_log" || true)" = "$takeovers" ] || fail "somebody was promoted at a planned stop"
nothing_left

echo "== starts that fail: pauses that grow, a reason, and no shadow to wait for does not hold up the first for ever"
rm -rf "$run"
: >"$up_log"
cat >"$work/engine.sh" <<'EOF'
#!/bin/sh
[ "$ENGINE_ID" = 0 ] && exec minillm "$@"
echo "no such model"
exit 3
EOF
chmod +x "$work/engine.sh"
UPKEEP_COMMAND=$work/engine.sh
upkeep_config 'count = 1; serve_after_standby = "yes"; serve_wait = "1s";'
start_up
gms-ctl wait serving >/dev/null
grep -q "standby.serve_wait is over" "$up_log" || fail "nobody waited for a shadow"
until_log "the next start in 2000 ms"
grep -q "engine [1-7] did not become ready: exit status 3; the next start in [0-9]* ms; its last words: .*no such model" \
    "$up_log" || fail "no reason for engines that do not start"
gms-ctl status >"$work/status.out" || true
grep -q "! engine [1-7] did not become ready" "$work/status.out" || fail "the status does not say why there is no shadow"
stop_up
nothing_left

echo "== two shadows: both are parked before the first engine of all serves, and nobody waits for nobody"
rm -rf "$run"
: >"$up_log"
UPKEEP_COMMAND=minillm
upkeep_config 'count = 2; serve_after_standby = "yes"; serve_wait = "60s";'
start_up
gms-ctl wait serving >/dev/null
for more in 2 1; do grep -q "it serves when $more more are" "$up_log" || fail "nobody waited for $more more"; done
! grep -q "standby.serve_wait is over" "$up_log" || fail "the wait ran out"
until [ "$(in_role parked | wc -w)" = 2 ]; do in_time "two shadows"; done
stop_up
nothing_left
echo "upkeep: all of it"
