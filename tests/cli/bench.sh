#!/bin/sh
# Measuring: bench in its three kinds, and the routes that commands write. Figures are not judged, only what must hold
# for them whatever the machine.
. "$(dirname "$0")/lib.sh"
export XDG_CACHE_HOME="$work/cache"

value() { sed -n "s/^ *\"$1\": \([0-9.e+-]*\),*\$/\1/p" out | head -n 1; } # of a key of the object in ./out
holds() { # NAME EXPRESSION of awk
    awk "BEGIN { exit !($1) }" || { bad "$1 does not hold" && return 1; }
}

name="prefill and decode"
run_it 0 "$moeflux" bench "$stories" --prefill 20 --decode 6 --repeat 2 && empty err &&
    has out "prefill" "decode" "tokens/s" "memory" "drive" "GB/s" "a token touches 6.31 MB" && ok

name="one JSON object"
run_it 0 "$moeflux" bench "$stories" --prefill 20 --decode 6 --repeat 2 --json && empty err &&
    has out '"mode": "eval"' '"runs": 2' '"prefill_tok_s_min"' '"decode_tok_s_max"' '"memory_ceiling_gb_s"' '"cold": {' \
        '"page_cache_dropped"' '"predictors": {' '"io": "mmap"' &&
    holds "$(value prefill_tok_s) > 0 && $(value decode_tok_s) > 0 && $(value disk_ceiling_gb_s) > 0" &&
    holds "$(value decode_tok_s_min) <= $(value decode_tok_s) && $(value decode_tok_s) <= $(value decode_tok_s_max)" &&
    holds "$(value bytes_per_token) == 6308816 && $(value stall_s) >= 0 && $(value floor_tok_s) > 0" && ok

name="within a budget experts are read"
run_it 0 "$moeflux" bench "$stories" --prefill 0 --decode 12 --repeat 1 --json --ram 62M --io pread &&
    has err "the drive is not measured: --ram leaves less" "memory is not measured: --ram leaves less" &&
    has out '"memory_ceiling_gb_s": null' '"disk_floor_s_per_token": null' &&
    has out '"io": "pread"' '"prefill_tok_s": null' '"prefill_hit_rate": null' &&
    holds "$(value hit_rate) < 1 && $(value hit_rate) > 0 && $(value bytes_read_per_token) > 0" &&
    holds "$(value bytes_read_per_token) < 64 * 27648 * 2 && $(value io_busy_s) > 0 && $(value cache_budget) < 20e6" && ok

name="the store alone"
run_it 0 "$moeflux" bench "$stories" --io --repeat 1 && empty err && has out "random experts of 27648 bytes" "s/GB" && ok
name="the store alone, by one engine"
run_it 0 "$moeflux" bench --io "$stories" --io pread --direct off --repeat 1 --json &&
    has out '"mode": "io"' '"io": "pread"' '"direct": false' '"queue_depth": 16' '"block_bytes": 28672' &&
    holds "$(value gb_s) > 0 && $(value cpu_s_per_gb) > 0 && $(value turn_gb_s) > 0" && ok
wrong "mapped files are not read" "--io mmap" "$moeflux" bench "$stories" --io --io mmap
run_it 0 "$moeflux" bench "$stories" --sessions 3 --prefill 5 --decode 4 --repeat 1 && empty err &&
    has out " 1 session " " 3 sessions" "times as many tokens" && ok
run_it 0 "$moeflux" bench "$stories" --sessions 3 --prefill 0 --decode 4 --repeat 1 --json && has out '"sessions": 3' '"gain"' && ok
wrong "sessions that do nothing" "--decode 0" "$moeflux" bench "$stories" --sessions 2 --decode 0
wrong "nothing to do" "--prefill 0 --decode 0" "$moeflux" bench "$stories" --prefill 0 --decode 0
name="profile"
run_it 0 "$moeflux" bench "$stories" --profile --prefill 20 --decode 4 --repeat 1 && empty err &&
    has out "a parallel region" "prefill of 20 tokens" "decode of 4 tokens" "  matmul " "  experts " "  delta_net " "  head " "outside of ops" && ok
name="profile, JSON"
run_it 0 "$moeflux" bench "$stories" --profile --prefill 0 --decode 4 --repeat 1 --json --backend ref && empty err &&
    has out '"mode": "profile"' '"region_us"' '"experts"' '"gflop_s"' && ok
wrong "profile and store" "--profile" "$moeflux" bench "$stories" --io --profile
wrong "two kinds at once" "--trace" "$moeflux" bench "$stories" --io --trace x

# ---- routes ------------------------------------------------------------------------------------------------------

name="routes are recorded and logged"
run_it 0 "$moeflux" run "$stories" --tokens 9 --seed 1 --chunk 3 --record-routes story.routes --log-routing story.log &&
    [ "$(head -n 1 story.routes)" = "moeflux-routes 1 8 8 64" ] && [ "$(wc -c <story.routes)" -eq $((24 + 12 * 64)) ] &&
    [ "$(grep -c '^{"chunk":[0-9]*,"layer":[0-7],"tokens":[0-9],"experts":{.*}}$' story.log)" -eq $((10 * 8)) ] &&
    [ "$(grep -c '"chunk":0,"layer":.,"tokens":3,' story.log)" -eq 8 ] && ok || bad "$(wc -c story.routes; wc -l story.log)"
name="a log counts every token once per expert of it"
sum=$(sed -n '1s/.*"experts":{\(.*\)}}/\1/p' story.log | tr ',' '\n' | awk -F: '{ n += $2 } END { print n }')
if [ "$sum" = 24 ]; then ok; else bad "3 tokens went to $sum experts, expected 24"; fi
name="routes do not depend on chunks or on what is recorded with them"
run_it 0 "$moeflux" run "$stories" --tokens 9 --seed 1 --record-routes again.routes --backend ref --threads 1 &&
    run_it 0 "$moeflux" run "$stories" --tokens 9 --seed 1 --record-routes third.routes --backend ref --threads 1 --chunk 1 &&
    cmp -s again.routes third.routes && ok || bad "differ"

name="recorded routes are replayed"
run_it 0 "$moeflux" bench "$stories" --trace story.routes && has out "12 recorded tokens" "of 768 experts" && ok
name="twice, the second time from memory"
run_it 0 "$moeflux" bench "$stories" --trace story.routes --json && first=$(value hit_rate) &&
    run_it 0 "$moeflux" bench "$stories" --trace story.routes --json --repeat 2 && has out '"tokens": 12' '"runs": 2' &&
    holds "$(value hit_rate) > $first && $(value hit_rate) < 1 && $(value bytes_read_per_token) > 0" && ok

head -c 100 story.routes >cut.routes
fails "routes that were cut" "cut.routes" "whole number of tokens" -- "$moeflux" bench "$stories" --trace cut.routes
printf 'moeflux-routes 1 8 8 32\n' >small.routes && head -c 64 /dev/zero >>small.routes
fails "an expert twice" "small.routes" "twice" -- "$moeflux" bench "$stories" --trace small.routes
{ printf 'moeflux-routes 1 1 2 4\n' && printf '\001\002'; } >other.routes
fails "routes of another model" "1 layers of 4" "8 layers of 64" -- "$moeflux" bench "$stories" --trace other.routes
printf 'moeflux-routes 1 1 2 4\n\001\007' >wrong.routes
fails "no such expert" "expert 7 of 4" -- "$moeflux" bench "$stories" --trace wrong.routes
fails "no routes at all" "no file of routes" -- "$moeflux" bench "$stories" --trace story.log
fails "a log that cannot be written" "no_such_folder/log" -- "$moeflux" bench "$stories" --log-routing no_such_folder/log
if [ -w /dev/full ]; then
    name="a full device"
    run_it 1 "$moeflux" run "$stories" --tokens 2 --record-routes /dev/full && has err "/dev/full" && ok
fi

finish
