# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# Sourced by examples/quickstart.sh and tests/run.sh: finds what the build needs, or gets it, or says what is missing.
#
#   gms_need_packages quickstart|tests
#
# As root on a machine with apt the missing packages are installed. Anybody else is told their names and the build is
# tried anyway when the tools themselves are found (packages may come from elsewhere: modules, Spack, a prefix).

GMS_BUILD_PACKAGES="gcc libc6-dev cmake ninja-build pkg-config libopenmpi-dev openmpi-bin libconfig-dev libevent-dev libjansson-dev libsqlite3-dev libxxhash-dev"
GMS_TEST_PACKAGES="libcmocka-dev spin clang libclang-rt-dev clang-format cppcheck shellcheck codespell python3 python3-venv python3-pip curl strace procps util-linux faketime slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge iproute2"

# Tests that need one of these are skipped without it, and not every distribution has them.
GMS_OPTIONAL_TEST_PACKAGES="chromium"

gms_package_present() {
    case $1 in
    # The versioned runtime has no unversioned name on Debian 12.
    libclang-rt-dev) dpkg-query -W -f='${Status}\n' 'libclang-rt*-dev' 2>/dev/null | grep -q 'ok installed' ;;
    *) dpkg-query -W -f='${Status}\n' "$1" 2>/dev/null | grep -q 'ok installed' ;;
    esac
}

gms_need_packages() {
    wanted=$GMS_BUILD_PACKAGES
    [ "$1" = tests ] && wanted="$wanted $GMS_TEST_PACKAGES"
    if [ "$1" = tests ] && command -v apt-cache >/dev/null 2>&1; then
        for package in $GMS_OPTIONAL_TEST_PACKAGES; do
            apt-cache policy "$package" 2>/dev/null | grep -q 'Candidate: [0-9]' && wanted="$wanted $package"
        done
    fi
    missing=
    if command -v dpkg-query >/dev/null 2>&1; then
        for package in $wanted; do
            gms_package_present "$package" || missing="$missing $package"
        done
    fi
    [ -z "$missing" ] && return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "== installing:$missing"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -q >/dev/null || return 1
        install=
        for package in $missing; do
            if [ "$package" = libclang-rt-dev ]; then
                package=$(apt-cache depends clang | sed -n 's/.*Depends: clang-\([0-9]*\).*/libclang-rt-\1-dev/p' | head -n 1)
            fi
            install="$install $package"
        done
        # shellcheck disable=SC2086 # a list of words
        apt-get install -y -q --no-install-recommends $install >/dev/null || {
            echo "apt-get could not install:$install" >&2
            return 1
        }
        return 0
    fi
    echo "missing packages:$missing" >&2
    echo "install them (as root: apt-get install$missing), or provide them some other way; going on with what is here" >&2
    return 0
}

# Programs that start MPI as root (containers, CI) and on few cores need Open MPI's word for it; a user on a cluster does not.
gms_mpi_allowances() {
    if [ "$(id -u)" = 0 ]; then
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    fi
    export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_rmaps_base_oversubscribe=1
    export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
}
