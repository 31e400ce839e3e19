#!/bin/sh
# Measures the expert store on a model larger than memory: docs/SPEED_LOG.md has the results. On a quiet machine:
#
#   measure_store.sh reads MOEFLUX MODEL [ROUNDS]
#       bench --io beside fio on the same files, in turns: same block, same number of reads under way, past the page cache
#   measure_store.sh group MOEFLUX MODEL LIMIT [LLAMA_BENCH GGUF SECONDS]
#       decoding in a memory group (version 1) of LIMIT bytes: speed, waiting, and the group's own account of its memory;
#       then llama-bench on a file of the same shape in a group like it, for at most SECONDS
set -eu
what=$1 moeflux=$2 model=$3

number() { sed -n "s/^ *\"$1\": *\([0-9.e+-]*\),*\$/\1/p" "$2" | head -n 1; }

work=$(mktemp -d)
groups=/sys/fs/cgroup/memory
group=$groups/moeflux_measure_$$
clean() {
    rm -rf "$work"
    [ -z "${pages:-}" ] || echo "$pages" >/proc/sys/vm/nr_hugepages
    [ ! -d "$group" ] || rmdir "$group"
}
trap clean EXIT

# ---- reads beside fio ----------------------------------------------------------------------------------------------

# fio_reads BLOCK DEPTH MEMORY: GB/s and processor seconds per GB.
fio_reads() {
    files=$(ls "$model"/packed_experts/layer_*.bin | tr '\n' ':' | sed 's/:$//')
    fio --name=reads --rw=randread --direct=1 --ioengine=io_uring --bs="$1" --iodepth="$2" --numjobs=1 --norandommap \
        --file_service_type=random --mem="$3" --time_based --ramp_time=500ms --runtime=2 --filename="$files" --output-format=json >"$work/fio" 2>/dev/null
    awk -F'[:,]' '/"read" :/ { r = 1 } r && /"bw_bytes"/ { bw = $2; r = 0 }
        /"usr_cpu"/ && !u { u = $2 + 0.0001 } /"sys_cpu"/ && !s { s = $2 + 0.0001 }
        END { printf "%.2f %.4f\n", bw / 1e9, (u + s) / 100 / (bw / 1e9) }' "$work/fio"
}

# fio's own buffers are small pages unless there are huge ones set aside, and reads into huge pages are faster: both.
reads() {
    rounds=${1:-5} huge=malloc
    pages=$(cat /proc/sys/vm/nr_hugepages)
    if echo $((pages + 32)) 2>/dev/null >/proc/sys/vm/nr_hugepages; then huge=shmhuge; else pages=; fi
    "$moeflux" bench "$model" --io --io uring --direct on --repeat 1 --json >"$work/ours"
    block=$(number block_bytes "$work/ours") depth=$(number queue_depth "$work/ours")
    echo "blocks of $block bytes, $depth under way, fio with $huge too; GB/s"
    echo "| fio | fio, huge pages | bench --io | of the better fio | CPU s/GB | fio CPU s/GB | token by token |"
    echo "|---|---|---|---|---|---|---|"
    i=0
    while [ "$i" -lt "$rounds" ]; do
        i=$((i + 1))
        fio_reads "$block" "$depth" malloc >"$work/plain"
        "$moeflux" bench "$model" --io --io uring --direct on --repeat 1 --json >"$work/ours"
        fio_reads "$block" "$depth" "$huge" >"$work/huge"
        read -r plain _ <"$work/plain"
        read -r best best_cpu <"$work/huge"
        awk -v p="$plain" -v h="$best" -v o="$(number gb_s "$work/ours")" -v c="$(number cpu_s_per_gb "$work/ours")" \
            -v f="$best_cpu" -v t="$(number turn_gb_s "$work/ours")" 'BEGIN {
                b = p > h ? p : h
                printf "| %.2f | %.2f | %.2f | %.0f %% | %.3f | %.3f | %.2f |\n", p, h, o, 100 * o / b, c, f, t }'
    done
}

# ---- in a memory group ---------------------------------------------------------------------------------------------

new_group() {
    [ ! -d "$group" ] || rmdir "$group"
    mkdir "$group"
    echo "$limit" >"$group/memory.limit_in_bytes"
}

in_group() { sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$@"; }

account() {
    printf 'group: limit %s, peak %s, at the limit %s times, killed %s\n' "$limit" \
        "$(cat "$group/memory.max_usage_in_bytes")" "$(cat "$group/memory.failcnt")" \
        "$(awk '$1 == "oom_kill" { print $2 }' "$group/memory.oom_control")"
}

in_a_group() {
    limit=$1 llama=${2:-} gguf=${3:-} seconds=${4:-60}
    new_group
    in_group "$moeflux" bench "$model" --prefill 0 --decode 32 --repeat 3 --json >"$work/ours"
    cat "$work/ours"
    account
    in_group "$moeflux" bench "$model" --prefill 128 --decode 32 --repeat 1
    account
    [ -n "$llama" ] || return 0
    new_group
    status=0
    in_group timeout "$seconds" "$llama" -m "$gguf" -p 0 -n 2 -r 1 -mmp 1 || status=$?
    echo "llama-bench: exit code $status (124: stopped after $seconds s)"
    account
}

shift 3
case $what in
reads) reads "$@" ;;
group) in_a_group "$@" ;;
*)
    sed -n '2,10p' "$0"
    exit 2
    ;;
esac
