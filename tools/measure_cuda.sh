#!/bin/sh
# measure_cuda.sh BUILD [DIR [PART...]]: everything that is said about the cuda backend in docs/SPEED_LOG.md, on a machine
# with a device. BUILD is a build directory with tests (-DMF_TESTS=ON -DMF_CUDA=ON -DMF_PULL=OFF) or an archive made by
# measure_cuda.sh pack BUILD FILE.tar.xz: its programs and the libraries they need, 5 MB (10 with libcurl's). Models are written to DIR
# (default /tmp/measure_cuda; about 50 GB at a time) unless they are there. Parts, all of them where none is named, a call
# of ten minutes for each line:
#
#   correct    ops goldens story states sanitizer greedy
#   speed      decode prefill deepseek
#   tiers      a3b with --vram 4G: all experts in RAM, then on the drive; the 397B shape, 8 layers, from the drive
#
#   ops        the op table, the shapes of test_cuda, decoding with fused experts
#   goldens    models of all families against recorded results, with --exact, layer by layer
#   story      the story model: loss, speed
#   states     random sequences of state, random company, experts in host memory
#   sanitizer  compute-sanitizer: memcheck and racecheck on the story model and on fused experts, memcheck on experts in
#              host memory
#   greedy     the story model's choices beside ref's
#   decode     a random model of the shape a3b, all experts resident: one stream, several, behind long prompts
#   prefill    the same model's prompts
#   deepseek   four layers of the shape deepseek: decode beside the memory's floor
#
# Every step has a limit of its own, none runs on past MEASURE_SECONDS (570) from the start, and one that fails leaves the
# others alone. Where there is no device it says so and ends with 3. The table is printed last, whatever happens; with
# OUT set it goes to $OUT/table.md as well, and what the steps printed to $OUT/steps.log. MEASURE_BACKEND (cuda) is the
# backend: with cpu the script tries itself; with MEASURE_TINY set all models that it makes are tiny.
set -u
usage() {
    sed -n '2,30s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
[ $# -ge 1 ] || usage
top=$(cd "$(dirname "$0")/.." && pwd)
programs="apps/moeflux/moeflux tests/cuda/test_cuda tests/state/test_state_random tests/state/test_state_parts
tests/state/test_state_reach tests/state/test_state_fused tests/golden/test_stories_greedy"

# ---- packing -----------------------------------------------------------------------------------------------------

# Programs without their symbols, and libraries but for the C library's own. Beside it the size of the tree that the
# archive travels with.
pack() {
    for p in $programs; do
        [ -x "$1/$p" ] || { echo "measure_cuda.sh: $1 has no $p: build it first" >&2; exit 1; }
    done
    "$1/apps/moeflux/moeflux" inspect --cuda | grep -q 'built without' &&
        { echo "measure_cuda.sh: $1 was built without the cuda backend (-DMF_CUDA=ON)" >&2; exit 1; }
    made=$(mktemp -d) || exit 1
    for p in $programs; do
        mkdir -p "$made/programs/$(dirname "$p")" "$made/programs/lib"
        strip -o "$made/programs/$p" "$1/$p" || exit 1
        for lib in $(ldd "$1/$p" | awk '$3 ~ /^\// { print $3 }'); do
            case $lib in
            */libc.so* | */libm.so* | */libpthread.so* | */libdl.so* | */librt.so* | */ld-linux*) ;;
            *) cp -n "$lib" "$made/programs/lib/" ;;
            esac
        done
    done
    XZ_OPT='--lzma2=preset=6,dict=128MiB' tar -cJf "$2" -C "$made" programs || exit 1
    rm -rf "$made"
    ls -l "$2"
    (cd "$top" && git ls-files -z | xargs -0 stat -c %s) 2>/dev/null | awk -v archive="$(stat -c %s "$2")" '
        { sum += $1 }
        END { printf "the tree has %.1f MiB, with this %.1f\n", sum / 1048576, (sum + archive) / 1048576 }'
}

if [ "$1" = pack ]; then
    [ $# -eq 3 ] || usage
    pack "$2" "$3"
    exit
fi

# ---- steps -------------------------------------------------------------------------------------------------------

build=$1 dir=${2:-/tmp/measure_cuda} backend=${MEASURE_BACKEND:-cuda}
shift
[ $# -gt 0 ] && shift
parts=${*:-correct speed tiers}
ends=$(($(date +%s) + ${MEASURE_SECONDS:-570}))
mkdir -p "$dir" || exit 1
dir=$(cd "$dir" && pwd)
out=${OUT:-$dir}
rows=$dir/rows log=$out/steps.log last=$dir/last.log
mkdir -p "$out" || exit 1
: >"$rows"
: >"$log"

show_table() {
    trap - EXIT
    { printf '| | |\n|---|---|\n'; cat "$rows"; } | tee "$out/table.md"
}
trap show_table EXIT
trap 'exit 130' INT TERM HUP

row() {
    printf '| %s | %s |\n' "$1" "$2" | tee -a "$rows" >&2
}

# try SECONDS COMMAND...: its output is in $last. Not begun where too little time is left.
try() {
    most=$1
    shift
    left=$((ends - $(date +%s) - 5))
    began=$(date +%s)
    if [ "$left" -lt 5 ]; then
        echo "no time was left" >"$last"
        return 125
    fi
    [ "$left" -lt "$most" ] && most=$left
    timeout -k 5 "$most" "$@" >"$last" 2>&1
    status=$?
    {
        printf '\n==== %s (status %d, %d s)\n' "$*" "$status" "$(($(date +%s) - began))"
        tail -c 200000 "$last"
    } >>"$log"
    [ "$status" -eq 124 ] && echo "stopped after $most s" >>"$last"
    [ "$status" -gt 124 ] && echo "ended by signal $((status - 128))" >>"$last"
    return "$status"
}

why() { tail -n 1 "$last" | cut -c 1-160; }

# Of a step that did not succeed: one that was not begun says nothing about the device.
outcome() {
    if grep -qx 'no time was left' "$last"; then echo "NOT RUN: $(why)"; else echo "FAILED: $(why)"; fi
}

# verdict LABEL SECONDS COMMAND...: a row that says whether it passed.
verdict() {
    label=$1
    shift
    if try "$@"; then row "$label" passed; else row "$label" "$(outcome)"; fi
}

# synth SECONDS NAME OPTIONS: the model, made unless it is there
synth() {
    seconds=$1 name=$2
    shift 2
    [ -z "${MEASURE_TINY:-}" ] || set -- --shape tiny
    [ -d "$dir/$name" ] || try "$seconds" "$moeflux" synth "$dir/$name" "$@" || {
        row "model $name" "$(outcome)"
        rm -rf "${dir:?}/$name"
        return 1
    }
}

# bench LABEL WORD SECONDS NAME OPTIONS: the numbers behind a word at the start of a line of bench's output. No NAME: the
# story model
bench() {
    label=$1 word=$2 seconds=$3 name=$4
    shift 4
    model=$dir/$name
    [ -n "$name" ] || model=$stories
    if try "$seconds" "$moeflux" bench "$model" --backend "$backend" "$@"; then
        row "$label" "$(awk -v word="$word" '$1 == word { $1 = ""; print substr($0, 2); exit }' "$last")"
    else
        row "$label" "$(outcome)"
    fi
}

# What bench said about experts, of the last one.
row_experts() {
    said=$(grep "^$1: a token read" "$last") && row "... experts" "${said#*: }"
}

# Tokens/s that the bus (50.9 GB/s) allows for what is not in the device's memory, and their share; beside the drive's in
# the row above, the tightest floor is the lower one.
row_bus() {
    said=$(awk -v word="$1" '
        $1 == word { speed = $2 }
        $1 == word ":" && $2 == "a" && $4 == "read" {
            sub(/;/, "", $6)
            bytes = $5 * ($6 == "GB" ? 1e9 : $6 == "MB" ? 1e6 : $6 == "kB" ? 1e3 : 1)
            if (bytes > 0) printf "%.1f tokens/s, reached %.0f %%\n", 50.9e9 / bytes, speed * bytes / 50.9e7
            exit
        }' "$last")
    row "... the bus allows" "${said:-all: nothing was read}"
}

# ---- correctness -------------------------------------------------------------------------------------------------

# The story model's experts are too narrow for the kernels that decode larger ones: test_state_fused makes one for them.
measure_ops() {
    verdict "op table" 200 "$build/tests/cuda/test_cuda"
    verdict "decoding, fused, beside ref" 60 env -C "$dir" "$build/tests/state/test_state_fused" "$backend"
}

# One golden: 0 it holds, 1 not, 2 the backend has not all of its ops, 3 nothing was recorded, 4 no time was left.
golden() {
    want=$1/golden.safetensors
    [ -e "$want" ] || want=${1%-*}/golden.safetensors
    [ -e "$want" ] || return 3
    rm -rf "$dir/converted"
    try 30 "$moeflux" convert "$1" "$dir/converted" --bits keep ||
        { grep -qx 'no time was left' "$last" && return 4; return 1; }
    try 30 "$moeflux" check "$dir/converted" "$want" --layers --backend "$backend" --exact && return 0
    grep -q "backend .* cannot do" "$last" && return 2
    grep -qx 'no time was left' "$last" && return 4
    return 1
}

measure_goldens() {
    held=0 lack='' failed='' bare='' late=''
    for archive in "$top"/tests/data/golden/*.tar.xz; do tar -xJf "$archive" -C "$dir"; done
    for model in "$dir"/golden/*/ "$dir"/mla/*/ "$dir"/families/*/ "$dir"/families2/*/; do
        model=${model%/}
        [ -d "$model" ] || continue
        golden "$model"
        case $? in
        0) held=$((held + 1)) ;;
        1) failed="$failed ${model##*/}" ;;
        2) lack="$lack ${model##*/}" ;;
        4) late="$late ${model##*/}" ;;
        *) bare="$bare ${model##*/}" ;;
        esac
    done
    row "goldens, --exact, layer by layer" "$held hold${failed:+; FAILED:$failed}${lack:+; ops missing for:$lack}${bare:+; nothing recorded for:$bare}${late:+; NOT RUN:$late}"
}

measure_story() {
    [ -d "$dir/stories" ] || tar -xJf "$top/tests/data/stories/stories.tar.xz" -C "$dir"
    text=$(find "$dir/stories" -name 'val*.txt' | head -n 1)
    if try 120 "$moeflux" eval "$stories" "$text" --backend "$backend"; then
        row "story model, loss (3.3713 within 0.005)" "$(awk '
            $1 == "mean_nll" { off = $2 - 3.3713; print (off < 0.005 && off > -0.005 ? "passed: " : "FAILED: ") $0; said = 1 }
            END { if (!said) print "FAILED: no loss was printed" }' "$last")"
    else
        row "story model, loss" "$(outcome)"
    fi
    bench "story, decode" decode 60 '' --prefill 0 --decode 128 --repeat 3
}

# Beside ref, which takes most of the time.
measure_greedy() {
    if try 250 "$build/tests/golden/test_stories_greedy" "$stories" "$backend"; then
        row "story, greedy beside ref" "passed: $(grep -h ' another choice' "$last" | tr '\n' ';')"
    else
        row "story, greedy beside ref" "FAILED: $(grep -h 'another choice\|ERROR' "$last" | tr '\n' ';') $(why)"
    fi
}

unpack_qwen() { [ -d "$dir/golden" ] || tar -xJf "$top/tests/data/golden/qwen3_5_moe.tar.xz" -C "$dir"; }

measure_states() {
    verdict "1,000 random operations on states" 200 \
        "$build/tests/state/test_state_random" "$stories" 1 1000 backend="$backend"
    verdict "random company" 150 "$build/tests/state/test_state_parts" "$stories" 16 60 backend="$backend" kv=f16
    unpack_qwen
    [ "$backend" = cpu ] ||
        verdict "experts in host memory: the same bits" 60 \
            "$build/tests/state/test_state_reach" "$dir/golden/qwen3_5_moe-mlx4" "$backend"
}

measure_sanitizer() {
    sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
    [ -x "$sanitizer" ] || { row "compute-sanitizer" "FAILED: not there"; return; }
    for tool in memcheck racecheck; do
        verdict "story, $tool" 120 "$sanitizer" --error-exitcode 9 --tool $tool "$moeflux" run "$stories" \
            --backend "$backend" --temperature 0 --tokens 4 --raw --prompt "Once upon a time there was a little girl who"
    done
    for tool in memcheck racecheck; do
        verdict "decoding, fused, $tool" 120 env -C "$dir" "$sanitizer" --error-exitcode 9 --tool $tool \
            "$build/tests/state/test_state_fused" "$backend"
    done
    unpack_qwen
    verdict "experts in host memory, memcheck" 120 "$sanitizer" --error-exitcode 9 --tool memcheck \
        "$build/tests/state/test_state_reach" "$dir/golden/qwen3_5_moe-mlx4" "$backend"
}

# ---- speed -------------------------------------------------------------------------------------------------------

shape() { synth 120 a3b --shape a3b --trunk 4; }

measure_decode() {
    shape || return
    bench "decode, one stream, behind 512 (640)" decode 90 a3b --prefill 512 --decode 128 --repeat 3
    for n in 4 16; do
        if try 60 "$moeflux" bench "$dir/a3b" --backend "$backend" --prefill 0 --decode 32 --repeat 2 --sessions $n; then
            row "decode, $n streams" "$(awk -v n=$n '$1 == n && $2 == "sessions" { print $3, $4 }' "$last")"
        else
            row "decode, $n streams" "$(outcome)"
        fi
    done
    bench "decode, behind 16384 (550)" decode 90 a3b --prefill 16384 --chunk 4096 --decode 32 --repeat 1
}

measure_prefill() {
    shape || return
    bench "prefill, 512" prefill 60 a3b --prefill 512 --decode 0 --repeat 3
    bench "prefill, 4096 in one pass (18000)" prefill 60 a3b --prefill 4096 --chunk 4096 --decode 0 --repeat 3
    if try 60 "$moeflux" bench "$dir/a3b" --backend "$backend" --prefill 4096 --chunk 4096 --decode 0 --repeat 1 --profile; then
        cp "$last" "$out/profile.txt"
    fi
}

# Share of what 4.36 TB/s allow for the bytes of a token.
measure_deepseek() {
    synth 200 deepseek4 --shape deepseek --layers 4 --trunk 4 || return
    if try 90 "$moeflux" bench "$dir/deepseek4" --backend "$backend" --prefill 128 --decode 64 --repeat 2 --json; then
        row "deepseek, 4 layers, decode (50 % of the floor)" "$(awk '
            { gsub(/,/, "") }
            $1 == "\"bytes_per_token\":" { bytes += $2 }
            $1 == "\"state_bytes_per_token\":" { bytes += $2 }
            $1 == "\"decode_tok_s\":" { speed = $2 }
            END { printf "%.0f tokens/s, %.0f MB a token: %.0f %% of 4.36 TB/s\n", speed, bytes / 1e6, speed * bytes / 4.36e10 }
            ' "$last")"
    else
        row "deepseek, 4 layers, decode" "$(outcome)"
    fi
    rm -rf "$dir/deepseek4"
}

# ---- more experts than VRAM --------------------------------------------------------------------------------------

measure_tiers() {
    vram=--vram=4G
    [ "$backend" = cpu ] && vram=--direct=off # has none
    shape || return
    bench "decode, --vram 4G --ram 24G (85)" decode 120 a3b "$vram" --ram 24G --prefill 512 --decode 64 --repeat 2
    row_experts decode
    row_bus decode
    bench "prefill of 4096, --vram 4G --ram 24G (3000)" prefill 120 a3b "$vram" --ram 24G --prefill 4096 --chunk 4096 \
        --decode 0 --repeat 2
    row_experts prefill
    bench "decode, --vram 4G --ram 8G (60 % of the tightest floor)" decode 120 a3b "$vram" --ram 8G --prefill 64 \
        --decode 16 --repeat 1
    row_experts decode
    row_bus decode
    synth 120 a17b8 --shape a17b --layers 8 || return
    bench "397B shape, 8 layers, --vram 4G --ram 8G (share of the drive's floor below)" decode 150 a17b8 "$vram" --ram 8G \
        --prefill 64 --decode 8 --repeat 1
    row_experts decode
    row_bus decode
    rm -rf "$dir/a17b8"
}

# ---- all of it ---------------------------------------------------------------------------------------------------

if [ -f "$build" ]; then
    tar -xJf "$build" -C "$dir" || exit 1
    build=$dir/programs
    LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
fi
build=$(cd "$build" && pwd) || exit 1
moeflux=$build/apps/moeflux/moeflux stories=$top/models/stories-moe
[ -x "$moeflux" ] || { echo "measure_cuda.sh: $build has no apps/moeflux/moeflux" >&2; exit 2; }

# The machine, in words; without a device nothing else would say more.
if try 60 "$moeflux" inspect --cuda; then
    row "device" "$(awk '$1 == "cuda" { $1 = $2 = ""; print substr($0, 3); exit }' "$last")"
else
    row "device" "$(outcome)"
fi
row "host" "$(nproc) processors, $(df -h -T "$dir" | awk 'NR == 2 { print $5 " free on " $2 " for " }')$dir"
if [ "$backend" = cuda ] && grep -q 'none that can be used' "$last"; then
    echo "measure_cuda.sh: there is no device to measure: $(why)" >&2
    exit 3
fi

for part in $parts; do
    case $part in
    correct) measure_ops; measure_goldens; measure_story; measure_states; measure_sanitizer; measure_greedy ;;
    speed) measure_decode; measure_prefill; measure_deepseek ;;
    ops | goldens | story | states | sanitizer | greedy | decode | prefill | deepseek | tiers) "measure_$part" ;;
    *) row "$part" "there is no such part" ;;
    esac
done
