#!/bin/sh
# Throughput of `moeflux serve` beside llama-server, through the same endpoint with the same client.
#
#   measure_server.sh MOEFLUX MODEL [LLAMA_SERVER GGUF]
#
# In each of ROUNDS (3) rounds: the floor by bytes (bench --sessions), then streams of 128 + 64 random tokens, 1, 4 and 16
# at once, on each server in turn. At the end medians, and the ratios and shares of the floor of each round by itself.
# Last, the time to the first token of a short request while a long prompt (LONG, 4096 tokens; 0: not) is read. What was
# measured is shown even if the script is stopped; with RESULTS=FILE it is kept there, and another run adds its rounds.
# STREAMS ("1 4 16"), PROMPT (128), MADE (64), FLOORS (0: not measured), IDS (LOW:HIGH of token ids), SERVE_OPTIONS and
# LLAMA_OPTIONS may be set. One server runs at a time. Needs node.
set -eu
[ $# -eq 2 ] || [ $# -eq 4 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }
moeflux=$1 model=$2 llama=${3-} gguf=${4-}
here=$(cd "$(dirname "$0")" && pwd)
rounds=${ROUNDS:-3} streams=${STREAMS:-1 4 16} prompt=${PROMPT:-128} made=${MADE:-64}
work=$(mktemp -d)
server=
results=${RESULTS:-$work/results}
: >>"$results"
trap 'kill_server; summary; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
most=$(printf '%s\n' $streams | sort -n | tail -n 1)
threads=$(lscpu -p=CORE,SOCKET 2>/dev/null | grep -v '^#' | sort -u | wc -l)
ids=${IDS:-300:$("$moeflux" inspect "$model" | awk '$1 == "vocabulary" { n = int($2 * 0.9); print n < 20000 ? n : 20000 }')}

# wait_for URL PATH: until it answers there with 200
wait_for() {
    for _ in $(seq 1200); do
        if node -e 'fetch(process.argv[1]).then((r) => process.exit(r.ok ? 0 : 1), () => process.exit(1))' "$1$2"; then return 0; fi
        kill -0 "$server" 2>/dev/null || break
        sleep 0.5
    done
    echo "the server did not start:" >&2
    cat "$work/log" >&2
    exit 1
}

start_ours() {
    : >"$work/log" # what the one before said is not of this one
    # shellcheck disable=SC2086
    "$moeflux" serve "$model" --port 0 --parallel "$((most > 32 ? most : 32))" ${SERVE_OPTIONS-} 2>"$work/log" &
    server=$!
    for _ in $(seq 1200); do
        url=$(sed -n 's/.* on \(http:[^ ]*\) .*/\1/p' "$work/log")
        if [ -n "$url" ]; then break; fi
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    wait_for "$url" /health
    before= now=none # until what fits is in memory
    while [ "$now" != "$before" ]; do
        sleep 2
        before=$now
        now=$(node -e 'fetch(process.argv[1]).then(async (r) => console.log((await r.text()).match(/^moeflux_expert_prefetched_bytes_total .*/m)[0]))' \
            "$url/metrics")
    done
}

start_theirs() {
    port=$((20000 + $$ % 20000))
    url=http://127.0.0.1:$port
    # shellcheck disable=SC2086
    "$llama" -m "$gguf" --host 127.0.0.1 --port "$port" -np "$most" -c "$((most * (prompt + made + 64)))" -t "$threads" \
        ${LLAMA_OPTIONS-} >"$work/log" 2>&1 &
    server=$!
    wait_for "$url" /health
}

stop() {
    kill "$server"
    wait "$server" || :
    server=
}

kill_server() { [ -z "$server" ] || kill "$server" 2>/dev/null || :; }

# measure NAME: all numbers of streams on the server at $url, after a short run that warms it up
measure() {
    node "$here/server_client.mjs" throughput "$url" 1 "$prompt" 8 "$ids" >/dev/null
    for n in $streams; do
        node "$here/server_client.mjs" throughput "$url" "$n" "$prompt" "$made" "$ids" | sed "s/^/$round $1 $n /" >>"$results"
    done
}

# What the bytes of all streams would take at the speed of one; of one stream what the same pass does outside of a server.
floors() {
    for n in $streams; do
        floor=$("$moeflux" bench "$model" --sessions "$((n > 1 ? n : 2))" --prefill "$prompt" --decode "$((made < 24 ? made : 24))" \
            --repeat 1 --json | node -e 'const o = JSON.parse(require("fs").readFileSync(0));
                console.log(process.argv[1] > 1 ? o.floor_tok_s : o.alone.tok_s?.median ?? o.alone.tok_s)' "$n")
        echo "$round floor $n decode_tok_s $floor" >>"$results"
    done
}

# Lines of $results: round, who, streams, what, value.
summary() {
    sort -k2,2 -k3,3n -k4,4 -k5,5g "$results" | awk '
        function middle(v, n) { return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2 }
        function flush() {
            if (n) printf "%-32s median %10.3f  (%.3f to %.3f, %d runs)\n", name, middle(v, n), v[1], v[n], n
            n = 0
        }
        # The quotients of a and b of the rounds that have both, in rising order, and what is to be said of them.
        function compare(a, b, scale, form, text,    r, i, q, m, x) {
            m = 0
            for (r = 1; r <= rounds; r++)
                if (value[r " " a] && value[r " " b]) {
                    x = scale * value[r " " a] / value[r " " b]
                    for (i = m++; i > 0 && q[i] > x; i--) q[i + 1] = q[i]
                    q[i + 1] = x
                }
            if (m) printf "%-14s " form " %s  (" form " to " form ", %d rounds)\n", "", middle(q, m), text, q[1], q[m], m
        }
        { key = $2 " " $3 " " $4 }
        key != name { flush(); name = key; streams[$3] = 1 }
        { v[++n] = $5; value[$1 " " key] = $5; if ($1 > rounds) rounds = $1 }
        END {
            flush()
            for (s in streams) {
                print s " streams:"
                compare("moeflux " s " decode_tok_s", "floor " s " decode_tok_s", 100, "%.0f", "% of the floor by bytes")
                compare("moeflux " s " decode_tok_s", "llama " s " decode_tok_s", 1, "%.2f", "x llama-server (decode)")
                compare("moeflux " s " all_tok_s", "llama " s " all_tok_s", 1, "%.2f", "x llama-server (prompt and answer)")
            }
        }'
}

round=$(awk '$1 > n { n = $1 } END { print n + 0 }' "$results")
last=$((round + rounds))
while [ "$round" -lt "$last" ]; do
    round=$((round + 1))
    [ "${FLOORS:-1}" -eq 0 ] || floors
    start_ours
    measure moeflux
    stop
    [ -n "$llama" ] || continue
    start_theirs
    measure llama
    stop
done

if [ "${LONG:-4096}" -eq 0 ]; then exit 0; fi
start_ours
context=$(node -e 'fetch(process.argv[1] + "/v1/models").then((r) => r.json()).then((o) => console.log(o.data[0].max_model_len))' "$url")
long=${LONG:-4096}
[ "$context" -gt "$((long + 16))" ] || long=$((context - 16))
echo "first token of a short request while $long tokens are read:"
node "$here/server_client.mjs" first "$url" "$long" "$ids"
stop
