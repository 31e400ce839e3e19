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

name="the share of the drive is that of the two measurements around a run"
run_it 0 "$moeflux" bench "$stories" --prefill 0 --decode 12 --repeat 1 --json --most-experts 128 --io pread &&
    has out '"prefill_drive_share": null' && holds "$(value drive_share) > 0" &&
    holds "($(value drive_share) / ($(value disk_floor_s_per_token) * $(value decode_tok_s)) - 1) ^ 2 < 1e-10" && ok

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
# ---- pictures ----------------------------------------------------------------------------------------------------

page() { # FILE: well-formed, with nothing from elsewhere
    if command -v python3 >/dev/null; then
        python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' "$1" 2>err || { bad "$1 is not well-formed" && return 1; }
    fi
    if grep -Eq 'src=|href=|url\(|@import|<script' "$1"; then bad "$1 refers to something" && return 1; fi
}
cells() { grep -o "class=\"h$1\" d=\"[^\"]*\"" page.html | grep -o 'M[0-9]* [0-9]*h1v1h-1z' | wc -l; } # of a level of the heat map
name="a page"
run_it 0 "$moeflux" report "$stories" -o page.html -n 12 -q && empty err && page page.html && cp page.html out &&
    has out "12 tokens wanted experts 768 times" "Memory by part" ">14.2 MB<" "Hits against cache size" "Time by op and layer" ">experts<" \
        "prefers-color-scheme:dark" "Tokens/s against --ram" ">this run<" && ok
name="a page of recorded routes: each number where it belongs" # every token wants experts 0 to 7 of every layer
{ printf 'moeflux-routes 1 8 8 64\n' && i=0 && while [ $i -lt 96 ]; do printf '\000\001\002\003\004\005\006\007' && i=$((i + 1)); done; } >same.routes
run_it 0 "$moeflux" report "$stories" --output page.html -n 4 --routes same.routes && has err "wrote page.html" && page page.html && cp page.html out &&
    has out "12 tokens (recorded) wanted experts 768 times: 64 of 512 were used, one of them 12 times" \
        "<th>25 % of the experts</th><td>100.0 %</td>" "<th>15 % of the experts</th><td>100.0 %</td>" &&
    has_not out "<th>5 % of the experts</th><td>100.0 %</td>" && holds "$(cells 7) == 64 && $(cells 1) == 0" && ok
name="a page within a budget" && run_it 0 "$moeflux" report "$stories" -o page.html -n 8 --ram 80M --text story.log && page page.html &&
    cp page.html out && has out "Not estimated: the budget leaves no room" "--ram 83.9 MB" && ok
name="a page of a run"
run_it 0 "$moeflux" bench "$stories" --html page.html --prefill 16 --decode 4 --repeat 2 --json && page page.html && cp out result &&
    speed=$(value decode_tok_s) && cp page.html out && has out "<th>prefill</th>" "<th>decode</th><td>$(printf %.2f "$speed") tokens/s" "96 tokens wanted" && ok
wrong "a page of reads" "--html is of prefill and decode" "$moeflux" bench "$stories" --html page.html --io
wrong "a page and a recording" "--record-routes" "$moeflux" report "$stories" --record-routes x
fails "routes of another model, as a page" "1 layers of 4" -- "$moeflux" report "$stories" --routes other.routes -o none.html
fails "a page in no folder" "no_such_folder" -- "$moeflux" report "$stories" -n 4 -o no_such_folder/page.html -q
name="no page of what failed" && [ ! -e none.html ] && ok || bad "there"
if [ -w /dev/full ]; then
    name="a full device"
    run_it 1 "$moeflux" run "$stories" --tokens 2 --record-routes /dev/full && has err "/dev/full" && ok
fi

# ---- less read for a loss: convert --also, tune, --tuned --------------------------------------------------------------

# Held-out text is not needed for what must hold.
i=0
while [ $i -lt 6 ]; do
    printf 'Once upon a time there was a king who had %d daughters, and the youngest of them went into the wood to play with a golden ball by the well.\n<|endoftext|>\n' $i
    i=$((i + 1))
done >text
cp -r "$stories" tuned && chmod -R u+w tuned

name="what is tuned is kept beside the model"
run_it 0 "$moeflux" tune tuned text --most-experts 64 --loss 0.5 --tokens 150 --steps 1 --json --report chart.html &&
    has out '"setting": "' '"standard_error": ' && has err "exact " "MB a token" && grep -q '"lossy": {' tuned/tuned.json && grep -q '<svg' chart.html && ok
name="and used"
run_it 0 "$moeflux" run tuned --tuned --most-experts 64 --prompt "Once" --tokens 30 --temperature 0 --json &&
    has err "tuned: " "nats a token" "lossy: " && has out '"lossy": {' && cp out first && ok
name="with the same text every time"
run_it 0 "$moeflux" run tuned --tuned --most-experts 64 --prompt "Once" --tokens 30 --temperature 0 --json --prefetch off --io-threads 2 &&
    [ "$(grep '"text"' first)" = "$(grep '"text"' out)" ] && ok
name="tuned by a text whose name is no UTF-8" && wild=$(printf 't\377xt') && cp text "$wild"
run_it 0 "$moeflux" tune tuned "$wild" --most-experts 64 --loss 0.5 --tokens 40 --steps 1 -q && grep -q '"text": "t?xt"' tuned/tuned.json && ok
name="tuned, and the chart cannot be written" && rm tuned/tuned.json
run_it 1 "$moeflux" tune tuned text --most-experts 64 --loss 0.5 --tokens 40 --steps 1 -q --report nowhere/chart.html && has err "nowhere/chart.html" &&
    grep -q '"lossy": {' tuned/tuned.json && ok
edit tuned/tuned.json 's/"model": "8 layers/"model": "9 layers/'
name="tuned with another model"
run_it 1 "$moeflux" run tuned --tuned -q --prompt "Once" && has err "tuned.json was measured with another model (9 layers" && ok
if [ "$(id -u)" -ne 0 ]; then
    chmod a-w tuned
    fails "a model that cannot be written to" "tuned/tuned.json cannot be written" -- "$moeflux" tune tuned text --tokens 40
    chmod u+w tuned
fi
wrong "nothing was tuned" "moeflux tune" "$moeflux" run "$stories" --tuned --prompt "Once"
name="nothing to gain"
run_it 1 "$moeflux" tune tuned text --tokens 40 --dry-run && has err "all experts fit" && ok
fails "no small copies" "convert --also 2" -- "$moeflux" eval "$stories" text --decode --lossy small=0.5

finish
