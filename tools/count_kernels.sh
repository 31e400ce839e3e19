#!/bin/sh
# Counts the instructions of the hot kernels with callgrind: a regression shows without a quiet machine.
#
# usage: tools/count_kernels.sh BUILD [record]
#
# BUILD is a build folder with MF_TESTS=ON and optimization. Each line of tests/data/kernel_counts.txt is compared with
# what is counted now: more than 3 % above fails, more than 3 % below asks for a new record. Counts belong to a compiler:
# with another one than the record's they are printed and not judged. `record` writes the file. AVX-512 is unknown to
# valgrind, so its kernels, made from the same templates, are not counted.
set -eu
build=$1 what=${2:-compare}
here=$(cd "$(dirname "$0")/.." && pwd)
record=$here/tests/data/kernel_counts.txt
count_ops=$build/tests/ops/count_ops
cache=$build/CMakeCache.txt
compiler=$("$(sed -n 's/^CMAKE_C_COMPILER:[^=]*=//p' "$cache")" --version | head -n 1)
flags=$(sed -n 's/^CMAKE_BUILD_TYPE:[^=]*=//p' "$cache")
flags=${flags:-RelWithDebInfo}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# What the backend spends from the submission of the op to its end, on one thread.
count() { # LEVEL CASE
    valgrind --tool=callgrind --callgrind-out-file="$out/cg" --collect-atstart=no --toggle-collect=cpu_submit \
        "$count_ops" "$1" "$2" >/dev/null 2>"$out/log" || { cat "$out/log" >&2; exit 1; }
    sed -n 's/^\(summary\|totals\): //p' "$out/cg" | tail -n 1
}

if [ "$what" = record ]; then
    {
        echo "# Instructions of one op on one thread, by tools/count_kernels.sh: instruction set, case, count."
        echo "# compiler: $compiler, $flags"
        for level in avx2 scalar; do
            for case in $("$count_ops"); do echo "$level $case $(count "$level" "$case")"; done
        done
    } >"$out/record"
    mv "$out/record" "$record"
    exit 0
fi

known=$(sed -n 's/^# compiler: //p' "$record")
judged=yes
if [ "$known" != "$compiler, $flags" ]; then
    echo "recorded with $known; this build has $compiler, $flags: not judged"
    judged=no
fi
bad=0
while read -r level case was; do
    case $level in '#'*) continue ;; esac
    now=$(count "$level" "$case")
    change=$(awk -v a="$was" -v b="$now" 'BEGIN { printf "%.1f", 100 * (b - a) / a }')
    verdict=$(awk -v c="$change" 'BEGIN { print (c > 3 ? "MORE" : c < -3 ? "less: record anew" : "") }')
    printf '%-7s %-18s %10s -> %10s  %+6.1f %% %s\n' "$level" "$case" "$was" "$now" "$change" "$verdict"
    if [ "$verdict" = MORE ] && [ "$judged" = yes ]; then bad=$((bad + 1)); fi
done <"$record"
if [ "$bad" -gt 0 ]; then
    echo "$bad kernels need more instructions than recorded" >&2
    exit 1
fi
