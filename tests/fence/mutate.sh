#!/bin/sh
# mutate.sh SOURCE COPY SED-SCRIPT: a copy that differs, or a failure.
set -eu
mkdir -p "$(dirname "$2")"
sed "$3" "$1" >"$2"
if cmp -s "$1" "$2"; then
    rm -f "$2"
    echo "mutate.sh: '$3' changes nothing in $1 any more" >&2
    exit 1
fi
