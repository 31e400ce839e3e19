#!/bin/sh
# usage: hostile.sh SOURCE_DIR
# Every function that moeflux.h declares is called by test_hostile_calls.c.
set -eu
export LC_ALL=C
test=$1/tests/golden/test_hostile_calls.c
missing=0 n=0
# comments and macros out; what is left before a parenthesis and begins with mf_ is a function
names=$(sed -e 's,/\*.*\*/,,' -e '/\/\*/,/\*\//d' -e '/^#/d' -e '/^typedef.*(/d' "$1/include/moeflux.h" |
    grep -o 'mf_[a-z0-9_]*(' | tr -d '(' | sort -u)
for name in $names; do
    n=$((n + 1))
    if ! grep -q "$name(" "$test"; then
        echo "$name is not called by tests/golden/test_hostile_calls.c"
        missing=1
    fi
done
echo "$n functions"
[ "$missing" -eq 0 ] && [ "$n" -gt 30 ]
