#!/bin/sh
# usage: gguf.sh MOEFLUX MAKE_GGUF CHECKPOINT TARGET [FILES]: makes a GGUF file (or several) of the checkpoint, converts
# it without requantizing, verifies, and compares with the checkpoint's recorded results.
set -eu
moeflux=$1 make=$2 checkpoint=$3 target=$4 files=${5:-1}
golden=$checkpoint/golden.safetensors
if [ ! -e "$golden" ]; then golden=${checkpoint%-*}/golden.safetensors; fi # another spelling of the same weights
rm -rf "$target" "$target".gguf "$target"-0*.gguf
mkdir -p "$(dirname "$target")"
"$make" "$checkpoint" "$target.gguf" "$files"
first=$target.gguf
if [ "$files" -gt 1 ]; then first=$target-00001-of-0000$files.gguf; fi
"$moeflux" convert "$first" "$target" --bits keep
"$moeflux" verify "$target" --against "$first"
"$moeflux" check "$target" "$golden" --layers --threads 1
rm -f "$target".gguf "$target"-0*.gguf
