#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Failovers in a row with one shadow, which gms-up puts back each time: the drill kills a rank of whoever serves and
# compares every token; then the time to the next ready shadow is
# told, and as many slots must be usable as before the first.
#
#   sh tests/system/failovers.sh BIN_DIR [HOW_MANY]        20 without a number
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
# shellcheck source=examples/packages.sh
. "$here/examples/packages.sh"
# shellcheck source=tests/system/upkeep_support.sh
. "$here/tests/system/upkeep_support.sh"
count=${2:-20}
UPKEEP_SECONDS=$((60 + 20 * count))
upkeep_open failovers "${1:?usage: failovers.sh BIN_DIR [HOW_MANY]}"
upkeep_config "count = 1;"

# The fewest slots of a rank's KV pool that may be handed out.
usable() {
    gms-ctl --rank "$1" status --json | sed -n 's/.*"slots":{"idle":\([0-9]*\),"leased":\([0-9]*\),"sealed":\([0-9]*\),"released":\([0-9]*\),.*/\1 \2 \3 \4/p' |
        awk '{ print $1 + $2 + $3 + $4 }'
}

start_up
gms-ctl wait standby >/dev/null
until_log "1 parked; ready" # gms-up asks a moment later than the ranks know it, and its words are counted below
first=$(usable 0)
printf '%8s %14s %10s %18s %14s\n' failover engines drill "shadow ready (ms)" "usable slots"
for round in $(seq "$count"); do
    before=$(serving)
    ready=$(grep -c "ms after it was not" "$up_log")
    gms-failover-test --attach "$run" --rank $((round % 2)) --timeout 30 >"$work/drill.out" 2>&1 ||
        fail "failover $round: $(tail -n 12 "$work/drill.out")"
    until [ "$(grep -c "ms after it was not" "$up_log")" -gt "$ready" ]; do in_time "a shadow after failover $round"; done
    gms-ctl wait standby >/dev/null
    after=$(serving)
    [ "$after" != "$before" ] || fail "failover $round: engine $before serves still"
    took=$(sed -n 's/.*; ready \([0-9]*\) ms after it was not.*/\1/p' "$up_log" | tail -n 1)
    # What the dead engine might still have written comes back when it is proven quiet.
    for rank in 0 1; do
        until [ "$(usable "$rank")" = "$first" ]; do in_time "failover $round: $first usable slots on rank $rank, not $(usable "$rank")"; done
    done
    left=$(usable 0)
    printf '%8d %14s %10s %18s %14s\n' "$round" "$before -> $after" \
        "$(sed -n 's/^PASSED in //p' "$work/drill.out" | tr -d ' ')" "$took" "$left"
done
stop_up
nothing_left
echo "failovers: $count in a row, exact tokens each time, a shadow ready again each time; usable slots $first before, $left after"
