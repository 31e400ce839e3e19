#!/bin/sh
# The most memory that any command has is what --ram says, with long contexts too. Each runs with the smallest --ram that
# it is told to, its largest resident set is compared with that, and where memory groups (version 1) can be had it runs
# in one with that limit and without swap, in which needing more is a kill.
#
# The resident set has everything in it: the program's text, and files as far as they are mapped. The page cache is the
# system's: it is charged to the group, but gives way, so that a group may be at its limit without anybody needing more.
#
# usage: as the others, then MOST_MEMORY [TOKENS]. By hand with 60000 tokens it takes minutes.
. "$(dirname "$0")/lib.sh"
most_memory=$6 n_tokens=${7:-8000}
export XDG_CACHE_HOME="$work/cache"

mkdir -p model
for file in "$stories"/*; do ln -s "$file" model/; done
rm model/config.json
sed 's/"max_position_embeddings": *[0-9]*/"max_position_embeddings": 65536/' "$stories/config.json" >model/config.json
# Some four characters a token; one line, since chat takes it as one message.
text=$golden/../stories/val.txt
i=0
while [ "$i" -lt "$n_tokens" ]; do
    grep -v endoftext "$text" | tr '\n' ' '
    i=$((i + 32000))
done | head -c $((n_tokens * 7 / 2)) >text
printf '\n' >>text

group=/sys/fs/cgroup/memory/moeflux_peak_$$
if [ -w /sys/fs/cgroup/memory/cgroup.procs ] && mkdir "$group" 2>/dev/null; then
    trap 'rmdir "$group"' EXIT
    echo 0 >"$group/memory.swappiness"
else
    echo "SKIPPED: the memory group (none of version 1 can be made here); resident sets are compared all the same"
    group=-
fi

# needs COMMAND...: $ram becomes the megabytes that the command says it takes at least: for a session first, then for
# all of the text.
needs() {
    name="$2 says how much memory it needs" ram=60
    for step in 1 2; do
        "$@" --ram "${ram}M" >out 2>err <text && bad "it does with ${ram}M"
        ram=$(sed -n 's/.*at least --ram \([0-9]*\)M.*/\1/p' err | head -n 1)
    done
    [ -n "$ram" ] && ok || bad "it does not"
}

# What the group had at most, page cache and all.
charged() {
    if [ "$group" != - ]; then echo "; with the page cache $(($(cat "$group/memory.max_usage_in_bytes") / 1024))"; fi
}

# within NAME MOST COMMAND...: succeeds with --ram $ram and has no more than that, nor more than MOST KiB.
within() {
    name="$1, --ram ${ram}M" most=$2
    [ "$most" -lt $((ram * 1024)) ] || most=$((ram * 1024))
    shift 2
    if [ "$group" != - ]; then
        echo $((ram * 1048576)) >"$group/memory.limit_in_bytes"
        echo 0 >"$group/memory.max_usage_in_bytes"
    fi
    "$most_memory" peak "$group" "$@" --ram "${ram}M" >out 2>err <text
    code=$? kib=$(cat peak)
    if [ "$code" -ne 0 ]; then
        bad "exit code $code; $kib KiB"
    elif [ "$kib" -gt "$most" ]; then
        bad "$kib KiB, expected at most $most"
    else
        ok && echo "    $kib of $most KiB$(charged)"
    fi
}

big=1000000000
set -- model --kv f32 --temperature 0 --tokens 8
needs "$moeflux" run "$@" --raw
within "a prompt" $big "$moeflux" run "$@" --raw
cp out first
# What keeps states and brings them back does so in pieces: it takes little more, and not a second state.
pieces=$((kib + 12288))
within "a prompt that goes to the disk cache" $pieces "$moeflux" run "$@" --raw --cache-dir states
cmp -s out first || bad "another answer"
within "... and comes from there" $pieces "$moeflux" run "$@" --raw --cache-dir states
cmp -s out first || bad "another answer"
grep -q " reused)" err || bad "nothing was reused"

needs "$moeflux" chat "$@"
within "a conversation that is kept" $pieces "$moeflux" chat "$@" --conversation talk.json
holds -s talk.json.state
cp text whole && printf 'And then?\n' >text
within "... and goes on" $pieces "$moeflux" chat "$@" --conversation talk.json
grep -q " reused)" err || bad "nothing was reused"
mv whole text

within "eval" $big "$moeflux" eval model text --kv f32 --tokens "$n_tokens"
set -- model --kv f32 --prefill $((n_tokens / 4)) --decode 4 --repeat 1
needs "$moeflux" bench "$@"
within "bench" $big "$moeflux" bench "$@"
within "bench --profile" $big "$moeflux" bench "$@" --profile

if [ "$group" != - ]; then
    name="nobody was killed" killed=$(awk '$1 == "oom_kill" { print $2 }' "$group/memory.oom_control")
    holds "${killed:-0}" -eq 0 && ok
fi
finish
