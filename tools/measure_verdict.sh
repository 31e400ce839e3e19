#!/bin/sh
# What `moeflux inspect` estimates, beside what `moeflux bench` measures, on five shapes with fewer layers. The estimate is
# for a machine with the memory that the same bench measured between its runs: what `inspect` itself would find a minute
# later is another machine where others work too. Experts are all in memory: random weights route at random, which no
# model does whose experts are worth caching.
#
# measure_verdict.sh MOEFLUX FOLDER       exit code 1: an estimate is more than 30 % off
#
# FOLDER gets the models (10 GB), once; what is there is used. Each shape is measured ROUNDS (3) times; the median of
# the ratios counts.
set -eu
[ $# -eq 2 ] || { sed -n 's/^# \{0,1\}//p' "$0" | head -n 10 && exit 2; }
moeflux=$1 folder=$2
mkdir -p "$folder"

value() { sed -n "s/^ *\"$1\": \([0-9.e+-]*\),*\$/\1/p" "$2" | head -n 1; } # KEY FILE

summary() { # WHAT: of the lines "WHAT ESTIMATED MEASURED" in $folder/pairs
    awk -v what="$1" '$1 == what && $3 > 0 { print $2 / $3, $2, $3 }' "$folder/pairs" | sort -g | awk -v what="$1" '
        { r[NR] = $1; e[NR] = $2; m[NR] = $3 }
        END {
            at = int((NR + 1) / 2); off = !NR || r[at] > 1.3 || r[at] < 1 / 1.3
            printf("  %-8s estimated %7.2f, measured %7.2f tokens/s: ratio %.2f (%.2f to %.2f, %d runs)%s\n", what, e[at], m[at],
                   r[at], r[1], r[NR], NR, off ? "  OFF" : "")
            exit off }' || off=1
}

off=0
for row in "a3b 4" "a17b 1" "glm-flash 4" "gemma4 4" "olmoe 6"; do
    # shellcheck disable=SC2086 # the row is words
    set -- $row
    dir=$folder/$1-$2
    [ -d "$dir" ] || "$moeflux" synth "$dir" --shape "$1" --layers "$2" -q
    : >"$folder/pairs"
    for _ in $(seq "${ROUNDS:-3}"); do
        "$moeflux" bench "$dir" --json --repeat 3 --decode 24 --prefill 512 -q >"$folder/measured"
        memory=$(value memory_ceiling_gb_s "$folder/measured")
        "$moeflux" inspect "$dir" --json --assume "memory=${memory}G,drive=3G" >"$folder/estimated"
        for what in decode prefill; do
            echo "$what $(value ${what}_tok_s "$folder/estimated") $(value ${what}_tok_s "$folder/measured")" >>"$folder/pairs"
        done
    done
    echo "$1, $2 layers, memory $memory GB/s in the last"
    for what in decode prefill; do summary $what; done
done
exit $off
