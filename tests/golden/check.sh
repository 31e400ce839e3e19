#!/bin/sh
# usage: check.sh MOEFLUX CHECKPOINT TARGET [fast]: converts the checkpoint as it is and compares with its recorded
# results, on the reference backend and on the fastest one that can run it, or (fast) on that alone.
set -eu
moeflux=$1 checkpoint=$2 target=$3
golden=$checkpoint/golden.safetensors
if [ ! -e "$golden" ]; then golden=${checkpoint%-*}/golden.safetensors; fi # another spelling of the same weights
rm -rf "$target"
mkdir -p "$(dirname "$target")"
"$moeflux" convert "$checkpoint" "$target" --bits keep
if [ "${4:-}" != fast ]; then "$moeflux" check "$target" "$golden" --layers --backend ref; fi
"$moeflux" check "$target" "$golden" --layers
