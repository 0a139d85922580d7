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
cmake -S "$here" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=ON >"$build.log" 2>&1 || {
    mkdir -p "$build"
    cmake -S "$here" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=ON || exit 1
}
cmake --build "$build" | tail -n 1
echo "== the drill: TP2, eight streams, one rank killed with SIGKILL"
exec "$build/gms-failover-test" --ranks 2 --streams 8 --repeat 1 --fault sigkill --rank 1 "$@"
