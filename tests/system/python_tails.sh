#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Unfinished blocks through examples/pytorch/gms.py: an engine in Python begins a block on two ranks and is taken over from
# by command; the next one finds it, copies it and looks at every byte.
#
#   sh tests/system/python_tails.sh BIN_DIR [LIBGMS]
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$(CDPATH='' cd -- "$here/../.." && pwd)
# shellcheck source=examples/packages.sh
. "$root/examples/packages.sh"
# shellcheck source=tests/system/upkeep_support.sh
. "$here/upkeep_support.sh"
command -v python3 >/dev/null || {
    echo "python_tails: skipped, there is no python3" >&2
    exit 77
}
UPKEEP_SECONDS=60
upkeep_open tails "${1:?usage: python_tails.sh BIN_DIR [LIBGMS]}"
LIBGMS=${2:-$bin/libgms.so}
GMS_PY=$root/examples/pytorch
PYTHONDONTWRITEBYTECODE=1
export LIBGMS GMS_PY PYTHONDONTWRITEBYTECODE
printf '#!/bin/sh\nexec python3 %s "$@"\n' "$here/python_tails.py" >"$work/engine"
chmod +x "$work/engine"
UPKEEP_COMMAND=$work/engine
upkeep_config "count = 1;"

result() { # engine rank
    while [ ! -e "$work/result.$1.$2" ]; do
        in_time "a result of engine $1 rank $2"
    done
    cat "$work/result.$1.$2"
}

expect() { # engine text
    for rank in 0 1; do
        got=$(result "$1" "$rank")
        [ "$got" = "$2" ] || fail "engine $1 rank $rank: $got, expected $2"
    done
}

start_up
gms-ctl wait standby >/dev/null
first=$(serving) # whichever parked first
shadow=$(in_role parked | tr -d ' ')
expect "$first" "begun 7"
gms-ctl takeover "$first" >/dev/null
expect "$shadow" "salvaged 7 6 5"
stop_up
echo "python_tails: 7, 6 and 5 positions of a block taken up on both ranks"
