#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs a build into a fresh prefix and builds a small user of libgms against it, by pkg-config and by CMake.
#
#   sh tests/system/install_check.sh BUILD_DIR
set -eu
build=${1:?"usage: install_check.sh BUILD_DIR"}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

DESTDIR='' cmake --install "$build" --prefix "$prefix" >"$work/install.log"
for program in gms-coord gms-keeper gms-exec gms-ctl gms-failover-test minillm; do
    "$prefix/bin/$program" --version >/dev/null || {
        echo "install_check: $program --version failed" >&2
        exit 1
    }
    "$prefix/bin/$program" --help >/dev/null
done

cat >"$work/user.c" <<'SOURCE'
#include <gms/engine.h>
#include <gms/nccl.h>
#include <stdio.h>

int main(void)
{
    struct gms_error error;
    struct gms_open_options options = {.run_dir = "/nonexistent", .rank = 0, .engine_id = 0, .launch = "x", .timeout_ms = 1};
    gms_session *session;
    gms_status status = gms_open(&options, &session, &error);
    printf("%s: %s\n", gms_status_name(status), error.text);
    return status == GMS_OK;
}
SOURCE
libdir=$(dirname "$(find "$prefix" -name gms.pc)")
# shellcheck disable=SC2046 # flags are words
cc -o "$work/by-pkgconfig" "$work/user.c" $(PKG_CONFIG_PATH="$libdir" pkg-config --cflags --libs gms)
LD_LIBRARY_PATH=$(dirname "$libdir") "$work/by-pkgconfig"

mkdir "$work/cmake-user"
cp "$work/user.c" "$work/cmake-user/"
cat >"$work/cmake-user/CMakeLists.txt" <<'SOURCE'
cmake_minimum_required(VERSION 3.25)
project(user C)
find_package(gms 0.1 REQUIRED)
add_executable(user user.c)
target_link_libraries(user PRIVATE gms::gms)
SOURCE
cmake -S "$work/cmake-user" -B "$work/cmake-user/build" -DCMAKE_PREFIX_PATH="$prefix" >"$work/cmake.log"
cmake --build "$work/cmake-user/build" >>"$work/cmake.log"
"$work/cmake-user/build/user"
echo "install_check: programs, headers, pkg-config file and CMake package work from $prefix"
