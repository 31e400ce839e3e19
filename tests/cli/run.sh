#!/bin/sh
# What the commands print when all is well, and how they stop.
. "$(dirname "$0")/lib.sh"

name="a story, without being told anything"
run_it 0 "$moeflux" run --tokens 12 --seed 1 && cp out story && has err "moeflux: prompt 4 tokens" "generated 12" "seed 1" &&
    case $(cat out) in "Once upon a time"*) ok ;; *) bad "does not begin as it should" ;; esac
name="the same seed gives the same text"
run_it 0 "$moeflux" run "$stories" --tokens=12 --seed=1 --threads 1 && cmp -s out story && ok || bad "differs"
name="another seed gives another text"
run_it 0 "$moeflux" run --tokens 12 --seed 2 && { cmp -s out story && bad "does not differ" || ok; }
name="the seed is told"
run_it 0 "$moeflux" run --tokens 12 && seed=$(sed -n 's/.*seed \([0-9]*\)).*/\1/p' err) && cp out story &&
    run_it 0 "$moeflux" run --tokens 12 --seed "$seed" && cmp -s out story && ok || bad "seed $seed gives another text"
name="temperature 0 takes no seed"
run_it 0 "$moeflux" run --raw --prompt "The king had three sons" --temperature 0 --tokens 8 && cp out story &&
    run_it 0 "$moeflux" run --raw --prompt "The king had three sons" --temperature 0 --tokens 8 --seed 9 &&
    cmp -s out story && ok || bad "differs"
name="a request is put in the chat format"
run_it 0 "$moeflux" run --prompt "Tell me a story about a dragon and a cake." --tokens 4 --temperature 0 &&
    has err "prompt 24 tokens" && has out "Once upon a time" && ok
name="a system prompt"
run_it 0 "$moeflux" run --prompt "Hi" --system "Be brief." --tokens 2 --temperature 0 && has err "prompt 2" && ok
name="stop texts"
run_it 0 "$moeflux" run --prompt "Hi" --stop "time, there" --stop "nothing" --tokens 20 --temperature 0 && has err "(stop text)" &&
    [ "$(cat out)" = "Once upon a " ] && ok || bad "$(cat out)"
name="a stop text that does not come"
run_it 0 "$moeflux" run --prompt "Hi" --stop "a timx" --tokens 4 --temperature 0 && [ "$(cat out)" = "Once upon a time" ] && ok ||
    bad "$(cat out)"
name="an answer of a form"
run_it 0 "$moeflux" run --prompt "Hi" --regex "[A-Z][a-z]+, (yes|no)!" --temperature 1 --seed 4 && has err "(complete" &&
    grep -qxE "[A-Z][a-z]+, (yes|no)!" out && ok || bad "$(cat out)"
name="a schema, with the answer cut off"
printf '{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},"required":["name","age"],"additionalProperties":false}' >schema
run_it 0 "$moeflux" run --prompt "A person." --json-schema schema --tokens 6 --seed 4 && has err "(token limit" &&
    grep -qE '^\{ *("name": *".*", *"age": *-?[0-9]+|"age": *-?[0-9]+, *"name": *".*") *\}$' out && ok || bad "$(cat out)"
name="two forms"
run_it 2 "$moeflux" run --prompt "Hi" --regex a --json-object && has err "exclude each other" && ok
name="a bad pattern"
run_it 2 "$moeflux" run --prompt "Hi" --regex "(a" && has err "--regex" && ok
name="log-probabilities"
run_it 0 "$moeflux" run --prompt "Hi" --tokens 2 --temperature 0 --logprobs 3 && [ "$(grep -c '^{"id":' err)" -eq 2 ] &&
    has err '"text":"Once"' '"top":[{"id":920' && ok
name="a bias"
run_it 0 "$moeflux" run --prompt "Hi" --tokens 1 --temperature 0 --logit-bias 920:-inf && ! grep -q Once out && ok || bad "still there"
name="a bad bias"
run_it 2 "$moeflux" run --prompt "Hi" --logit-bias 99999:1 && has err "99999:1" "4095" && ok
name="a prompt that was cached"
run_it 0 "$moeflux" run --prompt "Tell me a story." --tokens 4 --temperature 0 --cache-dir cache && cp out story &&
    run_it 0 "$moeflux" run --prompt "Tell me a story." --tokens 4 --temperature 0 --cache-dir cache && cmp -s out story &&
    has err "reused)" && ok || bad "not reused"
name="no tokens"
run_it 0 "$moeflux" run --tokens 0 && has err "generated 0" && ok
name="the context is filled and no more"
run_it 0 "$moeflux" run --ctx 10 --tokens 50 --seed 5 && has err "generated 7 " "context full" && ok
name="a text that is piped in"
printf 'Once upon a time' | "$moeflux" run --raw --tokens 4 --temperature 0 >piped 2>err &&
    "$moeflux" run --raw --prompt 'Once upon a time' --tokens 4 --temperature 0 >out 2>err </dev/null && cmp piped out && ok ||
    bad "piped"
name="a request that is piped in"
printf 'Hi' | "$moeflux" run --system S --tokens 4 --temperature 0 >piped 2>err &&
    "$moeflux" run --prompt Hi --system S --tokens 4 --temperature 0 >out 2>err </dev/null && cmp piped out && ok ||
    bad "piped"
name="more is piped in than any context takes"
head -c 70000000 /dev/zero | tr '\0' a | "$moeflux" run --tokens 4 >out 2>err
holds $? -eq 1 && empty out && has err "standard input has more than the 67108864 bytes" && ok
name="nothing that is piped in"
: | "$moeflux" run --tokens 4 --temperature 0 >out 2>err && has out "Once upon a time" && ok || bad "piped"
name="a text that does not fit is not printed"
head -c 20000 /dev/zero | tr '\0' a >long
run_it 1 "$moeflux" run --raw --prompt "$(cat long)" --tokens 4 && empty out && has err "is too long" && ok
name="a text that is no text is not printed"
printf 'a\377' | "$moeflux" run --raw --tokens 4 >out 2>err
holds $? -eq 1 && empty out && has err "UTF-8" && ok
name="a prompt from standard input"
printf 'Once upon a time' | "$moeflux" run --raw --prompt - --tokens 4 --temperature 0 >out 2>err &&
    has out "Once upon a time" && has err "prompt 4 tokens" && ok || bad "exit code $?"

# ---- stopping ----------------------------------------------------------------------------------------------------

# stopped SIGNAL EXIT_CODE: the text so far and the closing line are there. The model cannot end by itself, and ref takes
# many seconds for so many tokens.
stopped() {
    name="stopped by $1"
    rm -f out # of the one before: it is looked for below
    "$moeflux" run --backend ref --logit-bias 0:-inf --logit-bias 2:-inf --tokens 1990 --ctx 2000 --seed 1 --raw \
        --prompt "and" >out 2>err &
    pid=$!
    i=0
    while [ ! -s out ] && [ "$i" -lt 1200 ]; do sleep 0.1 && i=$((i + 1)); done
    sleep 0.3
    kill "-$1" "$pid"
    wait "$pid"
    code=$?
    if [ "$code" -ne "$2" ]; then bad "exit code $code, expected $2"; else has err "interrupted" "generated" && ok; fi
}
name="a reader that goes away"
{ "$moeflux" run --tokens 200 --seed 1 2>err && echo 0 >code || echo $? >code; } | head -c 5 >out
if [ "$(cat code)" -ne 0 ]; then bad "exit code $(cat code)"; else
    if grep -qi "pipe\|writing" err; then bad "complains"; else ok; fi
fi
name="a full device"
if [ -e /dev/full ]; then
    "$moeflux" run --tokens 4 >/dev/full 2>err
    code=$?
    if [ "$code" -ne 1 ]; then bad "exit code $code"; else has err "standard output" && ok; fi
fi
stopped INT 130
stopped TERM 143

# ---- the others --------------------------------------------------------------------------------------------------

name="inspect"
run_it 0 "$moeflux" inspect "$stories" --graph && empty err &&
    has out "qwen3_5_moe" "6 linear attention" "64 per layer, 8 per token" "softmax, top k" "4 bits/64" "delta_net" "KV cache" && ok
name="a verdict"
run_it 0 "$moeflux" inspect "$stories" && has out "this machine" "verdict" "it fits: all experts stay in memory" "tokens/s" \
    "prompt " "at least " && ok
name="a verdict on a checkpoint"
run_it 0 "$moeflux" inspect "$golden/qwen3_5_moe" && has out "--preset balanced is recommended" "tokens/s" && ok
# Speeds of machines that are assumed: decoding is bytes over bytes a second, times the shares in verdict.c.
name="inspect, JSON, of a folder whose name is no UTF-8" && wild=$(printf 'st\377ries') && ln -sfn "$stories" "$wild"
run_it 0 "$moeflux" inspect "$wild" --json && has out '"model": "st?ries"' '"decode_tok_s"' && ok
name="bench, JSON, likewise" && run_it 0 "$moeflux" bench "$wild" --prefill 0 --decode 2 --repeat 1 --json && has out '"model": "st?ries"' && ok
rm -f "$wild"
a3b="inspect --shape a3b --json --assume memory=60G,threads=8,cpu=avx2"
figure() { sed -n "s/^ *\"$1\": \([0-9.e+-]*\),*\$/\1/p" out; } # of a key of the object in ./out
near() { awk "BEGIN { r = ($1) / ($2); exit !(r > 0.995 && r < 1.005) }" || { bad "$1 is not about $2" && return 1; } }
name="a verdict where all fits, as calculated"
run_it 0 "$moeflux" $a3b,ram=64G,drive=3G && has out '"fits": true' '"bound": "memory"' '"assumed": true' &&
    near "$(figure bytes_per_token)" 2650332672 && near "$(figure expert_bytes)" "40 * 256 * 1769472" &&
    near "$(figure decode_tok_s)" "60e9 * 0.78 / 2650332672" && ok
# What docs/SPEED.md has of 2 threads with AVX-512 on a quiet machine; the memory's speed is the floor that it tells.
recorded() { # SHAPE MEMORY DECODE PREFILL OPTIONS...: the estimate is within 30 % of both
    name="a verdict beside what was measured: $1" shape=$1 memory=$2 decode=$3 prefill=$4
    shift 4
    run_it 0 "$moeflux" inspect --json --shape "$shape" "$@" --assume "ram=64G,threads=2,cpu=avx512,drive=3G,memory=$memory" &&
        { awk "BEGIN { d = $(figure decode_tok_s) / $decode; p = $(figure prefill_tok_s) / $prefill
            exit !(d < 1.3 && d > 1 / 1.3 && p < 1.3 && p > 1 / 1.3) }" || bad "$(figure decode_tok_s) and $(figure prefill_tok_s)"; } && ok
}
recorded a3b 51.9G 19.0 68.5
recorded a17b 53G 26.5 184 --layers 4
recorded deepseek 39.5G 8.4 95 --layers 4
name="a verdict on a slow drive, as calculated"
run_it 0 "$moeflux" $a3b,ram=16G,drive=300M && has out '"fits": false' '"bound": "the drive"' &&
    near "$(figure held)" "($(figure ram) - ($(figure best_ram) - $(figure expert_bytes))) / $(figure expert_bytes)" &&
    near "$(figure hits)" "0.90 + 0.085 * ($(figure held) - 0.5) / 0.25" &&
    near "$(figure decode_tok_s)" "300e6 * 0.75 / ((1 - $(figure hits)) * 40 * 8 * 1769472)" && ok
name="a verdict on a machine that is too small"
run_it 0 "$moeflux" $a3b,ram=2G,drive=3G && has out '"runs": false' && run_it 0 "$moeflux" inspect --shape a3b --assume memory=60G,drive=3G,ram=2G &&
    has out "a machine as assumed" "it does not run here with 1.88 GB: it needs --ram" && ok
name="a verdict with a GPU" && run_it 0 "$moeflux" inspect --shape a3b --assume memory=60G,drive=3G,ram=32G,vram=24G &&
    has out "25.8 GB" "GPU                    holds all of it" && ok
name="a verdict for a budget" && run_it 0 "$moeflux" inspect "$stories" --ram 78M --assume memory=60G,drive=1G && has out "it streams" && ok
wrong "a machine with wings" '--assume has "wings=2"' "$moeflux" inspect --shape a3b --assume ram=2G,wings=2
wrong "a machine without a number" '--assume has "ram=lots"' "$moeflux" inspect --shape a3b --assume ram=lots
wrong "a machine without anything" '--assume has ""' "$moeflux" inspect --shape a3b --assume ""
fails "a shape that is not known" 'the shape "b3a" is not known' -- "$moeflux" inspect --shape b3a
wrong "layers of what?" "--layers goes with --shape" "$moeflux" inspect "$stories" --layers 2
wrong "a shape and a model" "--shape is instead of a model" "$moeflux" inspect --shape a3b "$stories"
wrong "a hub for a model that is here" "are for models on a hub" "$moeflux" inspect "$stories" --endpoint https://localhost
name="no verdict on what cannot run"
cp -RL "$golden/qwen3_5_moe" broken && chmod -R u+w broken && sed 's/"num_hidden_layers": 8/"num_hidden_layers": 9/' broken/config.json >c &&
    mv c broken/config.json && run_it 1 "$moeflux" inspect broken && has_not out "verdict" && ok
name="inspect the machine"
run_it 0 "$moeflux" inspect --cpu && empty err &&
    has out "instruction sets   scalar" "; used: " "one per core" "a model may use" "rounded activations" "delta rule" && ok
name="inspect both"
run_it 0 "$moeflux" inspect --cpu "$stories" && empty err && has out "instruction sets" "qwen3_5_moe" && ok
name="text to ids and back"
printf 'Once upon a time' | "$moeflux" tokenize "$stories" >ids && [ "$(cat ids)" = "920 604 261 495" ] &&
    [ "$("$moeflux" tokenize "$stories/tokenizer.json" --decode <ids)" = "Once upon a time" ] && ok || bad "$(cat ids)"
name="JSON lines"
printf '%s\n' '{"text":"a<|im_end|>","special":true}' '{"text":"<|im_end|>","special":false}' '{"ids":[920,604]}' |
    "$moeflux" tokenize "$stories" --jsonl >out 2>err && [ "$(sed -n 3p out)" = '{"text":"Once upon"}' ] &&
    [ "$(sed -n 1p out | tr , '\n' | wc -l)" -eq 2 ] && [ "$(sed -n 2p out | tr , '\n' | wc -l)" -gt 2 ] && ok || bad "lines"
name="a template"
printf '{"messages":[{"role":"user","content":"Hi"}],"add_generation_prompt":true}' >request
"$moeflux" template "$stories" --text <request >out 2>err && [ "$(head -n 2 out | tail -n 1)" = "Hi<|im_end|>" ] && ok || bad "text"
name="template errors are results"
printf '%s' '{% if messages %}{{ raise_exception("no way") }}{% endif %}' >t.jinja
printf '%s\n' '{"messages":[]}' '{"messages":[{"role":"user","content":"Hi"}]}' >lines
"$moeflux" template t.jinja --jsonl <lines >out 2>err && [ "$(sed -n 1p out)" = '{"text":""}' ] && has out '{"error":"t.jinja' "no way" && ok ||
    bad "exit code $?"
name="what is no request"
printf '%s\n' '{"messages":3}' '{' '{"messages":[]}' >lines
"$moeflux" template t.jinja --jsonl <lines >out 2>err
holds $? -eq 1 && has out "expected an array" "not JSON" '{"text":""}' && holds "$(wc -l <out)" -eq 3 && ok
name="a bad template"
printf '%s' '{% if %}' >t.jinja
run_it 1 "$moeflux" template t.jinja && has err "t.jinja" && ok
name="a bad JSON line"
printf '{"text":"a"}\n{"txt":"a"}\n' >lines
"$moeflux" tokenize "$stories" --jsonl <lines >out 2>err
[ $? -eq 1 ] && has err "line 2" && ok
name="an answer as JSON"
run_it 0 "$moeflux" run --prompt "Hi" --tokens 4 --temperature 0 --json --quiet && empty err &&
    has out '"text": "Once upon a time"' '"tokens": 4' '"prompt_tokens": ' '"stopped": "token limit"' && ok
name="eval as JSON"
printf 'Once upon a time there was a king.\n' >text
run_it 0 "$moeflux" eval "$stories" text --json -q && empty err && has out '{"mean_nll": ' '"standard_error": ' '"documents": 1}' && ok
name="eval against itself"
run_it 0 "$moeflux" eval "$stories" text --against "$stories" && has out "difference +0.00000 standard_error 0.00000 kl_divergence 0.00000 same_top 1.0000" && ok
name="eval token by token"
run_it 0 "$moeflux" eval "$stories" text --decode --against "$stories" && has out "difference +0.00000" "same_top 1.0000" && ok
wrong "lossy settings act on decoding" "--decode" "$moeflux" eval "$stories" text --lossy skip=0.1
name="eval"
printf 'Once upon a time there was a king.\n<|endoftext|>\nThe end of it.\n' >text
run_it 0 "$moeflux" eval "$stories" text --scores scores.json && has out "mean_nll " "documents 2" && grep -qF '"docs":[{"n":' scores.json && ok

finish
