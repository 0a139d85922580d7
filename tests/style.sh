#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Style checks that need no build. Each tool that is absent is named and skipped; in CI (CI=true) absence is a failure.
set -eu
cd "$(dirname -- "$0")/.."
failed=0

have() {
    if command -v "$1" >/dev/null 2>&1; then
        return 0
    fi
    echo "style: $1 is not installed; not checked" >&2
    [ "${CI:-}" = true ] && failed=1
    return 1
}

sources=$(git ls-files '*.c' '*.h')
product=$(git ls-files '*.c' '*.h' ':!:tests/unit' ':!:tests/mpi' ':!:tests/sim' ':!:tests/fuzz') # cppcheck does not know cmocka
scripts=$(git ls-files '*.sh' '*.sbatch' .ci/run)

if have clang-format; then
    # shellcheck disable=SC2086 # a list of words
    clang-format --dry-run --Werror $sources || failed=1
fi
if have cppcheck; then
    # shellcheck disable=SC2086
    cppcheck --quiet --error-exitcode=1 --std=c11 --enable=warning,portability --inline-suppr \
        --suppress=missingIncludeSystem --suppress=unknownMacro -Iinclude -Icoord -Iruntime $product || failed=1
fi
if have shellcheck; then
    # shellcheck disable=SC2086
    shellcheck $scripts || failed=1
fi
if have codespell; then
    codespell --skip=./build,./.git,./tests/fuzz/corpus,./tests/drill/prompts.txt --ignore-words-list=ba,te,nd,inout . || failed=1
fi

# The core is pure.
impure=$(grep -rnE '#include *[<"](mpi|event2|sqlite3|sys/(socket|epoll|mman|stat)|unistd|fcntl|time|pthread|stdio|stdlib|syslog)[./]' coord/core || true)
if [ -n "$impure" ]; then
    echo "coord/core must not include:" >&2
    echo "$impure" >&2
    failed=1
fi
# Includes go one way: wire, vmm and base know nobody above them; the engine library's users see only gms/.
upward=$(grep -rnE '#include *"(wire|vmm|directory|libgms|core|gms-[a-z]+)/' runtime/base || true
    grep -rnE '#include *"(vmm|directory|libgms|core|gms-[a-z]+)/' runtime/wire || true
    grep -rnE '#include *"(wire|directory|libgms|core|gms-[a-z]+)/' runtime/vmm || true
    grep -rnE '#include *"(base|wire|vmm|directory|libgms|core|gms-[a-z]+)/' examples/minillm || true)
# The rooms of coord/, and which of each other they may use.
rooms='config|daemon|durable|fence|group|host|memory|quiescence|sessions'
upward="$upward$(while read -r room may; do
    grep -rnE "#include *\"($rooms)/" "coord/$room" | grep -vE "\"($may)/" || true
done <<'ROOMS'
core core
config config
host host
durable durable
group group
sessions sessions|durable
fence fence|host|sessions
quiescence quiescence|fence|host|sessions
memory memory|config|durable|group|host|sessions
ROOMS
)"
if [ -n "$upward" ]; then
    echo "includes that go the wrong way:" >&2
    echo "$upward" >&2
    failed=1
fi
[ "$failed" = 0 ] && echo "style: clean"
exit "$failed"
