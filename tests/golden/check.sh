#!/bin/sh
# usage: check.sh MOEFLUX CHECKPOINT TARGET [fast]: converts the checkpoint as it is and compares with its recorded
# results, on the reference backend, in far memory (src/backend/far) and on the fastest one that can run it, or (fast) on that alone.
set -eu
moeflux=$1 checkpoint=$2 target=$3
golden=$checkpoint/golden.safetensors
if [ ! -e "$golden" ]; then golden=${checkpoint%-*}/golden.safetensors; fi # another spelling of the same weights
rm -rf "$target"
mkdir -p "$(dirname "$target")"
"$moeflux" convert "$checkpoint" "$target" --bits keep
if [ "${4:-}" != fast ]; then "$moeflux" check "$target" "$golden" --layers --threads 1 --backend ref; fi
case ${4:-}:$checkpoint in
fast:* | *-hub | *-fp8 | */qwen3_5_moe-mlx4 | */deepseek_v3-mlx4) ;; # the same graphs as without the ending
*) "$moeflux" check "$target" "$golden" --layers --threads 1 --backend far ;;
esac
"$moeflux" check "$target" "$golden" --layers --threads 1
