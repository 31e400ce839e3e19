#!/bin/sh
# Speed of a model on this machine beside llama.cpp: both sides in turn, then medians and spread.
#
#   measure_speed.sh BUILD MODEL RESULTS [LLAMA_BENCH GGUF]
#
# BUILD has apps/moeflux/moeflux; RESULTS collects one line per value, so that several calls add up: the summary is of all
# of them. ROUNDS (5), PREFILL (512) and DECODE (32) may be set. Every round opens the model anew and warms it up. Both
# sides decode behind a prompt of PREFILL tokens.
set -eu
[ $# -eq 3 ] || [ $# -eq 5 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
program=$1/apps/moeflux/moeflux model=$2 results=$3 llama=${4-} gguf=${5-}
rounds=${ROUNDS:-5} prefill=${PREFILL:-512} decode=${DECODE:-32}
threads=$(lscpu -p=CORE,SOCKET 2>/dev/null | grep -v '^#' | sort -u | wc -l)

ours() {
    "$program" bench "$model" --prefill "$prefill" --decode "$decode" --repeat 1 |
        awk '$1 == "prefill" || $1 == "decode" || $1 == "memory" { if (!seen[$1]++) print "moeflux-" $1, $2 }' >>"$results"
}

theirs() {
    {
        "$llama" -m "$gguf" -t "$threads" -p "$prefill" -n 0 -r 1 --load-mode "$1" -o csv
        "$llama" -m "$gguf" -t "$threads" -p 0 -n "$decode" -d "$prefill" -r 1 --load-mode "$1" -o csv | tail -n 1
    } 2>/dev/null |
        awk -F, -v mode="$1" -v p="$prefill" '
            NR == 1 { for (i = 1; i <= NF; i++) { gsub(/"/, "", $i); at[$i] = i } next }
            { gsub(/"/, ""); print "llama-" mode "-" ($at["n_prompt"] == p ? "prefill" : "decode"), $at["avg_ts"] }' \
            >>"$results"
}

for round in $(seq "$rounds"); do
    ours
    [ -z "$llama" ] || for mode in ${MODES:-none mmap}; do theirs "$mode"; done
done
sort -k1,1 -k2,2g "$results" | awk '
    function flush() {
        if (!n) return
        middle = n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
        printf "%-22s median %8.2f  (%.2f to %.2f, %d runs)\n", name, middle, v[1], v[n], n
    }
    $1 != name { flush(); name = $1; n = 0 }
    { v[++n] = $2 }
    END { flush() }'
