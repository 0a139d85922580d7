#!/bin/sh
# Compares the traces of the simulator's named scenarios with tests/sim/golden/NAME.txt.
#   golden.sh SIM            fails and shows the difference
#   golden.sh SIM --update   writes them; read the difference before committing it
set -eu
sim=$1
here=$(cd "$(dirname "$0")" && pwd)
failed=0
for name in $("$sim" --scenario list); do
    if [ "${2-}" = --update ]; then
        "$sim" --scenario "$name" >"$here/golden/$name.txt"
    elif ! "$sim" --scenario "$name" | diff -u "$here/golden/$name.txt" -; then
        echo "golden.sh: scenario $name differs" >&2
        failed=1
    fi
done
exit $failed
