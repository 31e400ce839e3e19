#!/bin/sh
# The table "which model on which machine" of README.md, as `moeflux inspect` reckons it for machines that are assumed.
#
# which_model.sh MOEFLUX [README]         prints it; with README, exit code 1 unless README has it so
set -eu
[ $# -ge 1 ] || { sed -n 's/^# \{0,1\}//p' "$0" | head -n 3 && exit 2; }
moeflux=$1

# Bandwidths as such machines usually have them: two channels of DDR5, a drive by what it reads at random, in megabytes.
laptop=ram=16G,memory=60G,drive=3G,threads=8,cpu=avx2
desktop=ram=32G,memory=70G,drive=5G,threads=8,cpu=avx2
large=ram=64G,memory=80G,drive=7G,threads=16,cpu=avx512
server=ram=256G,memory=200G,drive=7G,threads=32,cpu=avx512

value() { printf '%s\n' "$verdict" | sed -n "s/^ *\"$1\": \([a-z0-9.e+-]*\),*\$/\1/p" | head -n 1; } # KEY

cell() { # SHAPE MACHINE
    verdict=$("$moeflux" inspect --shape "$1" --assume "$2" --json)
    if [ "$(value runs)" = false ]; then
        printf ' – |'
    else
        printf ' %s%s |' "$(value decode_tok_s | awk "{ printf (\$1 < 10 ? \"%.1f\" : \"%.0f\"), \$1 }")" \
            "$([ "$(value fits)" = true ] || printf ' ·')"
    fi
}

gpu() { # SHAPE: the share of the experts that a card of 24 GB takes
    verdict=$("$moeflux" inspect --shape "$1" --assume "$large,vram=24G" --json)
    value on_gpu | awk '{ printf(($1 >= 1 ? " all |" : $1 > 0 ? " %.0f %% |" : " – |"), 100 * $1) }'
}

table() {
    echo "| | size | 16 GB laptop | 32 GB desktop | 64 GB desktop | 256 GB server | experts on a GPU of 24 GB |"
    echo "|---|---|---|---|---|---|---|"
    while read -r shape name; do
        size=$("$moeflux" inspect --shape "$shape" --assume "$large" | sed -n "s/^$shape: \([0-9.]* [kMGT]B\),.*/\1/p")
        printf '| %s | %s |' "$name" "$size"
        for machine in $laptop $desktop $large $server; do cell "$shape" "$machine"; done
        gpu "$shape"
        echo
    done <<END
olmoe OLMoE-1B-7B
ernie ERNIE-4.5-21B-A3B
gemma4 Gemma-4-26B-A4B
glm-flash GLM-4.7-Flash
a3b Qwen3.6-35B-A3B
mixtral Mixtral-8x7B
mistral4 Mistral-Small-4
deepseek4 DeepSeek-V4-Flash
mimo MiMo-V2-Flash
hy3 Hy3
a17b Qwen3.5-397B-A17B
minimax3 MiniMax-M3
deepseek DeepSeek-V3
glm5 GLM-5
END
}

table=$(table)
if [ $# -lt 2 ]; then
    printf '%s\n' "$table"
else
    printf '%s\n' "$table" | while read -r line; do
        grep -qxF -- "$line" "$2" || { echo "$2 does not have: $line" && exit 1; }
    done
fi
