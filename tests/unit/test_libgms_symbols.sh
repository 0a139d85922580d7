#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: test_libgms_symbols.sh LIBGMS.SO INCLUDE/GMS
# What the library exports is what the public headers promise: no less, no more.
set -eu
command -v nm >/dev/null || { echo 'no nm' >&2; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nm -D --defined-only "$1" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort >"$work/exported"
# Declarations may span lines: join them, then take the word before the first parenthesis.
cat "$2"/*.h | grep -v '^#' | tr '\n' ' ' | grep -o 'GMS_API [^(;]*(' | sed 's/ *($//; s/.*[ *]//' | sort >"$work/promised"
test -s "$work/promised"
if ! diff "$work/promised" "$work/exported"; then
    echo '< promised by the headers, > exported by the library' >&2
    exit 1
fi
echo "$(wc -l <"$work/promised") functions, all promised"
