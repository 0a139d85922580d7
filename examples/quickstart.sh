#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds everything and shows the main job: an engine of two ranks dies under eight client streams, a parked shadow takes
# over with the dead engine's KV blocks, and every stream goes on with exactly the tokens it would have had.
#
#   sh examples/quickstart.sh [options of gms-failover-test]      BUILD_DIR=... to build elsewhere
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
# shellcheck source=examples/packages.sh
. "$here/examples/packages.sh"
build=${BUILD_DIR:-$here/build/quickstart}

gms_need_packages quickstart
gms_mpi_allowances
echo "== building in $build"
mkdir -p "$build"
cmake -S "$here" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF >"$build/configure.log" 2>&1 || {
    cat "$build/configure.log" >&2
    exit 1
}
cmake --build "$build" >"$build/build.log" 2>&1 || {
    tail -n 40 "$build/build.log" >&2
    echo "the build failed; all of it is in $build/build.log" >&2
    exit 1
}
echo "== the drill: TP2, eight streams, one rank killed with SIGKILL"
exec "$build/gms-failover-test" --ranks 2 --streams 8 --repeat 1 --fault sigkill --rank 1 "$@"
