#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds with warnings as errors and runs the tests.
#
#   sh tests/run.sh [quick|full]     quick: one compiler, all test suites (default outside CI)
#                                    full: and style checks, clang, sanitizers, install check (default when CI=true)
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$here"
# shellcheck source=examples/packages.sh
. examples/packages.sh
mode=${1:-$([ "${CI:-}" = true ] && echo full || echo quick)}
build=${BUILD_DIR:-$here/build}
jobs=$(nproc)

gms_need_packages tests
gms_mpi_allowances

step() {
    printf '== %s\n' "$*"
}

build_preset() { # preset
    cmake --preset "$1" -B "$build/$1" >"$build/$1.configure.log" 2>&1 || {
        cat "$build/$1.configure.log"
        return 1
    }
    cmake --build "$build/$1" -j "$jobs" >"$build/$1.build.log" 2>&1 || {
        tail -n 60 "$build/$1.build.log"
        return 1
    }
}

mkdir -p "$build"
if [ "$mode" = full ]; then
    step "style: layout of C, shell and words"
    sh tests/style.sh
fi

step "gcc, warnings are errors"
build_preset ci
if [ "$mode" = full ]; then
    step "clang, warnings are errors"
    build_preset clang
    step "address and undefined behaviour sanitizers: unit, sim and fuzz suites"
    build_preset asan
    ASAN_OPTIONS=detect_leaks=0 ctest --test-dir "$build/asan" -L 'unit|sim|fuzz' --output-on-failure -j "$jobs"
    step "install into a fresh prefix and build against it"
    sh tests/system/install_check.sh "$build/ci"
fi

step "all suites"
ctest --test-dir "$build/ci" --output-on-failure -j "$jobs"
