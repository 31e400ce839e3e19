#!/bin/sh
# measure_cuda.sh BUILD [DIR [PART...]]: everything that is said about the cuda backend in docs/SPEED_LOG.md, in one call on
# a machine with a device. BUILD is a build directory with tests (-DMF_TESTS=ON -DMF_CUDA=ON) or a copy of its programs;
# models are written to DIR (default /tmp/measure_cuda; about 30 GB at a time) unless they are there.
# Parts, all of them where none is named:
#
#   ops        the op table
#   goldens    models of all families against recorded results, with --exact
#   story      the story model: loss, greedy text beside the cpu backend's, random sequences of state, random company
#   sanitizer  compute-sanitizer on the story model
#   decode     a random model of the shape a3b, all experts resident: one stream, behind long prompts, several streams
#   prefill    the same model's prompts
#   deepseek   four layers of the shape deepseek: decode beside the memory's floor
#   tiers      a3b with --vram 4G: all experts in RAM, and on the drive
#
# Prints a table last.
set -eu
[ $# -ge 1 ] || { sed -n '2,18s/^# \{0,1\}//p' "$0" >&2; exit 2; }
build=$1 dir=${2:-/tmp/measure_cuda}
shift
[ $# -gt 0 ] && shift
parts=${*:-ops goldens story sanitizer decode prefill deepseek tiers}
top=$(cd "$(dirname "$0")/.." && pwd)
moeflux=$build/apps/moeflux/moeflux stories=$top/models/stories-moe
mkdir -p "$dir"
rows=$dir/rows
: >"$rows"
trap 'printf "| | |\n|---|---|\n"; cat "$rows"' EXIT

row() { printf '| %s | %s |\n' "$1" "$2" >>"$rows"; }
verdict() { if "$@" >"$dir/last.log" 2>&1; then echo passed; else echo "FAILED: $(tail -n 1 "$dir/last.log")"; fi; }
# synth NAME OPTIONS: the model, made unless it is there
synth() {
    name=$1
    shift
    [ -d "$dir/$name" ] || "$moeflux" synth "$dir/$name" "$@" >&2
}
bench() { name=$1; shift; "$moeflux" bench "$dir/$name" --backend cuda "$@" 2>"$dir/last.log" || tail -n 1 "$dir/last.log"; }
# The numbers behind a word at the start of a line of bench's output, without it.
figure() { awk -v word="$1" '$1 == word { $1 = ""; print substr($0, 2); found = 1; exit } { last = $0 } END { if (!found) print last }'; }

measure_ops() { row "op table" "$(verdict "$build/tests/cuda/test_cuda")"; }

measure_goldens() {
    for archive in qwen3_5_moe mla families; do tar -xJf "$top/tests/data/golden/$archive.tar.xz" -C "$dir"; done
    failed=
    n=0
    for golden in "$dir"/golden/*/ "$dir"/mla/*/ "$dir"/families/*/; do
        want=${golden%/}/golden.safetensors
        [ -e "$want" ] || want=${golden%-*}/golden.safetensors
        [ -e "$want" ] || continue
        rm -rf "$dir/converted"
        n=$((n + 1))
        "$moeflux" convert "${golden%/}" "$dir/converted" --bits keep >/dev/null 2>&1 &&
            "$moeflux" check "$dir/converted" "$want" --layers --backend cuda --exact >"$dir/last.log" 2>&1 ||
            failed="$failed $(basename "$golden")"
    done
    row "goldens, --exact, layer by layer" "${failed:-$n of $n hold}"
}

tell() { "$moeflux" run "$stories" --backend "$@" --temperature 0 --tokens 100 --raw --prompt "Once upon a time there was" 2>/dev/null; }

measure_story() {
    [ -d "$dir/stories" ] || tar -xJf "$top/tests/data/stories/stories.tar.xz" -C "$dir"
    text=$(find "$dir/stories" -name 'val*.txt' | head -n 1)
    row "story model, loss" "$("$moeflux" eval "$stories" "$text" --backend cuda 2>/dev/null | tail -n 1)"
    row "story, greedy, beside cpu" "$(if [ "$(tell cuda)" = "$(tell cpu)" ]; then echo the same; else echo DIFFERENT; fi)"
    row "story, decode" "$("$moeflux" bench "$stories" --backend cuda --prefill 0 --decode 128 --repeat 3 2>/dev/null | figure decode)"
    row "1,000 random operations on states" "$(verdict "$build/tests/state/test_state_random" "$stories" 1 1000 backend=cuda)"
    row "random company" "$(verdict "$build/tests/state/test_state_parts" "$stories" 16 60 backend=cuda kv=f16)"
}

measure_sanitizer() {
    command -v compute-sanitizer >/dev/null || { row "compute-sanitizer" "not there"; return; }
    for tool in memcheck racecheck; do
        row "story, $tool" "$(verdict compute-sanitizer --error-exitcode 9 --tool $tool "$moeflux" run "$stories" \
            --backend cuda --temperature 0 --tokens 4 --raw --prompt "Once upon a time there was a little girl who")"
    done
}

measure_decode() {
    synth a3b --shape a3b --trunk 4
    row "decode, one stream, behind 512" "$(bench a3b --prefill 512 --decode 128 --repeat 3 | figure decode)"
    for n in 4 16; do
        row "decode, $n streams" "$(bench a3b --prefill 0 --decode 32 --repeat 2 --sessions $n |
            awk -v n=$n '$1 == n && $2 == "sessions" { print $3, $4 }')"
    done
    row "decode, behind 16384" "$(bench a3b --prefill 16384 --chunk 4096 --decode 32 --repeat 1 | figure decode)"
}

measure_prefill() {
    synth a3b --shape a3b --trunk 4
    row "prefill, 512" "$(bench a3b --prefill 512 --decode 0 --repeat 3 | figure prefill)"
    row "prefill, 4096 in one pass" "$(bench a3b --prefill 4096 --chunk 4096 --decode 0 --repeat 2 | figure prefill)"
}

measure_deepseek() {
    synth deepseek4 --shape deepseek --layers 4 --trunk 4
    row "deepseek, 4 layers, decode" "$(bench deepseek4 --prefill 128 --decode 64 --repeat 2 | figure decode)"
    rm -rf "$dir/deepseek4"
}

measure_tiers() {
    synth a3b --shape a3b --trunk 4
    row "decode, --vram 4G --ram 24G" "$(bench a3b --vram 4G --ram 24G --prefill 64 --decode 32 --repeat 2 | figure decode)"
    row "prefill of 4096, --vram 4G --ram 24G" \
        "$(bench a3b --vram 4G --ram 24G --prefill 4096 --chunk 4096 --decode 0 --repeat 1 | figure prefill)"
    row "decode, --vram 4G --ram 8G" "$(bench a3b --vram 4G --ram 8G --prefill 64 --decode 16 --repeat 1 | figure decode)"
    synth a17b8 --shape a17b --layers 8
    row "397B shape, 8 layers, --vram 6G --ram 8G" "$(bench a17b8 --vram 6G --ram 8G --prefill 64 --decode 8 --repeat 1 | figure decode)"
    rm -rf "$dir/a17b8"
}

for part in $parts; do measure_"$part"; done
