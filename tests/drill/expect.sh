#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a command and wants one exit code, and a text in its output when one is given.
#
#   expect.sh CODE[: TEXT] COMMAND...
set -u
wanted=$1
shift
code=${wanted%%:*}
text=
case $wanted in *": "*) text=${wanted#*: } ;; esac
TMPDIR=$(mktemp -d /tmp/drill.XXXXXX) || exit 1
export TMPDIR # a drill that fails keeps its scratch space there; it is removed when that was expected
output=$("$@" 2>&1)
got=$?
printf '%s\n' "$output"
[ "$got" -eq "$code" ] || {
    printf 'exit code %s, expected %s\n' "$got" "$code"
    exit 1
}
case $output in
*"$text"*)
    rm -rf "$TMPDIR"
    exit 0
    ;;
esac
printf 'the output does not say: %s\n' "$text"
exit 1
