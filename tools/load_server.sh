#!/bin/sh
# `moeflux serve` under load, at full length; tests/server has shorter runs of the same things.
#
#   load_server.sh MOEFLUX MODEL [streams|attack|kill|same ...]
#
# streams: 64 chats for DURATION (60 s): errors, memory. attack: 2,000 idle and 1,000 dripping connections, garbage, cut and
# smuggled requests: ordinary requests beside their quiet time. kill: KILLS (200) times kill -9 under load with a prompt
# cache on disk: it must start again, find the prefix, and say the same. same: 64 different requests alone and together.
# SERVE_OPTIONS may be set. Needs node.
set -eu
[ $# -ge 2 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
moeflux=$1 model=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill -9 "$server" 2>/dev/null || :; rm -rf "$work"' EXIT
ulimit -n "$(ulimit -H -n)" 2>/dev/null || :
client() { node "$here/server_client.mjs" "$@"; }

start() { # options...
    : >"$work/log" # what the one before said is not of this one
    # shellcheck disable=SC2086
    "$moeflux" serve "$model" --port 0 ${SERVE_OPTIONS-} "$@" 2>"$work/log" &
    server=$!
    url=
    for _ in $(seq 600); do
        url=$(sed -n 's/.* on \(http:[^ ]*\) .*/\1/p' "$work/log")
        if [ -n "$url" ]; then return 0; fi
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    echo "the server did not start:"
    cat "$work/log"
    exit 1
}

stop() {
    code=0
    kill "$server"
    wait "$server" || code=$?
    server=
    echo "exit code $code"
    [ "$code" -eq 0 ]
}

run_streams() {
    start --parallel 64 --sessions 128 --prompt-cache 8M
    client streams "$url" 64 "${DURATION:-60}" "$server"
    stop
}

run_attack() {
    start
    client attack "$url" 2000 1000
    stop
}

run_same() {
    start --parallel 64 --sessions 128 --prompt-cache 1K --piece 32
    client same "$url" 64
    stop
}

run_kill() {
    kills=${KILLS:-200} cache=$work/cache reused=0 same=0 i=0
    start --cache-dir "$cache"
    client prefix "$url" >"$work/first"
    while [ "$i" -lt "$kills" ]; do
        i=$((i + 1))
        client streams "$url" 8 1 >/dev/null 2>&1 &
        load=$!
        sleep "0.$((i * 37 % 90 + 10))"
        kill -9 "$server"
        wait "$server" 2>/dev/null || :
        wait "$load" || :
        start --cache-dir "$cache"
        client prefix "$url" >"$work/again"
        if [ "$(sed -n 's/^cached //p' "$work/again")" -gt 0 ]; then reused=$((reused + 1)); fi
        if [ "$(grep ^text "$work/again")" = "$(grep ^text "$work/first")" ]; then same=$((same + 1)); fi
    done
    echo "kills $kills"
    echo "prefix_reused $reused"
    echo "same_text $same"
    echo "warnings $(grep -c warning "$work/log" || :)"
    du -sk "$cache" | sed 's/^\([0-9]*\).*/cache_kb \1/'
    stop
}

for what in ${@:-streams attack kill same}; do
    echo "== $what"
    "run_$what"
done
