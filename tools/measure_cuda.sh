#!/bin/sh
# measure_cuda.sh MOEFLUX TEST_CUDA [DIR]: everything that is said about the cuda backend in docs/SPEED_LOG.md, in one call on a
# machine with a device: the op table, the story model's text beside the cpu backend's, compute-sanitizer on both, and the
# speed of a random model of the shape a3b, which is written to DIR (default /tmp/a3b; 19.5 GB) unless it is there.
# Prints a table last.
set -eu
[ $# -ge 2 ] || { echo "usage: $0 MOEFLUX TEST_CUDA [DIR]" >&2; exit 2; }
moeflux=$1 test=$2 dir=${3:-/tmp/a3b}
stories=$(cd "$(dirname "$0")/.." && pwd)/models/stories-moe
rows=$(mktemp)
trap 'rm -f "$rows"' EXIT

row() { printf '| %s | %s |\n' "$1" "$2" >>"$rows"; }
verdict() { if "$@" >/dev/null 2>&1; then echo passed; else echo FAILED; fi; }
tell() { "$moeflux" run "$stories" --backend "$@" --temperature 0 --tokens 100 --raw --prompt "Once upon a time there was" 2>/dev/null; }
# The number behind a word at the start of a line of bench's output.
speed() { "$moeflux" bench "$dir" --backend cuda "$@" 2>/dev/null; }
figure() { awk -v word="$1" '$1 == word { print $2, $3; exit }'; }

row "op table" "$(verdict "$test")"
want=$(tell cpu)
row "story, greedy, beside cpu" "$(if [ "$(tell cuda)" = "$want" ]; then echo the same; else echo DIFFERENT; fi)"
row "story, greedy, --exact" "$(if [ "$(tell cuda --exact)" = "$want" ]; then echo the same; else echo different; fi)"
if command -v compute-sanitizer >/dev/null; then
    row "op table, memcheck" "$(verdict compute-sanitizer --error-exitcode 9 --tool memcheck "$test")"
    for tool in memcheck racecheck; do
        row "story, $tool" "$(verdict compute-sanitizer --error-exitcode 9 --tool $tool "$moeflux" run "$stories" \
            --backend cuda --temperature 0 --tokens 4 --raw --prompt "Once upon")"
    done
fi

[ -d "$dir" ] || "$moeflux" synth "$dir" --shape a3b --trunk 4
row "decode, behind 512" "$(speed --prefill 512 --decode 128 --repeat 3 | figure decode)"
row "prefill, 512" "$(speed --prefill 512 --decode 0 --repeat 3 | figure prefill)"
row "prefill, 4096 in one pass" "$(speed --prefill 4096 --chunk 4096 --decode 0 --repeat 2 | figure prefill)"
row "decode, behind 16384" "$(speed --prefill 16384 --chunk 4096 --decode 32 --repeat 1 | figure decode)"
for n in 4 16; do
    row "decode, $n streams" \
        "$(speed --prefill 0 --decode 32 --repeat 2 --sessions $n | awk -v n=$n '$1 == n && $2 == "sessions" { print $3, $4 }')"
done
printf '| | |\n|---|---|\n'
cat "$rows"
