#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# core_is_pure.sh NM LIBRARY: the core calls nothing but itself and a few memory functions of the C library.
foreign=$("$1" -u "$2" | awk '$1 == "U" { print $2 }' | grep -v '^gms_' | sort -u)
case $foreign in
*__asan* | *__ubsan* | *__tsan*)
    echo "built with a sanitizer: its calls are everywhere" >&2
    exit 77
    ;;
esac
foreign=$(printf '%s\n' "$foreign" | grep -v -x -e memcpy -e memset -e memmove -e memcmp -e bcmp -e memchr -e strlen -e __assert_fail \
    -e __stack_chk_fail -e '')
[ -z "$foreign" ] && exit 0
echo "coord/core calls: $foreign" >&2
exit 1
