#!/bin/sh
# usage: check.sh MOEFLUX CHECKPOINT TARGET: converts the checkpoint as it is and compares with its recorded results.
set -eu
moeflux=$1 checkpoint=$2 target=$3
golden=$checkpoint/golden.safetensors
if [ ! -e "$golden" ]; then golden=${checkpoint%-*}/golden.safetensors; fi # another spelling of the same weights
rm -rf "$target"
mkdir -p "$(dirname "$target")"
"$moeflux" convert "$checkpoint" "$target" --bits keep
"$moeflux" check "$target" "$golden" --layers --backend ref
"$moeflux" check "$target" "$golden" --layers # the fastest backend that can run it
