#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# expect_code.sh CODE COMMAND...: succeeds when the command ends with that code.
wanted=$1
shift
"$@"
code=$?
[ "$code" -eq "$wanted" ] || { echo "exit $code, expected $wanted: $*" >&2; exit 1; }
