#!/bin/sh
# Every option acts, or says that it does not; numbers out of any range are refused by name; what is wrong with a command
# line is exit code 2.
. "$(dirname "$0")/lib.sh"
on_terminal=$6

# ---- numbers, in every option of every command that takes one ----------------------------------------------------

for command in run chat convert synth verify check eval bench; do
    case $command in
    convert | check | eval) words="a b" ;;
    *) words="a" ;;
    esac
    "$moeflux" $command --help >help
    sed -n 's/^  --\([a-z0-9-]*\) \(N\|K\|T\|P\|X\|S\|G\|SIZE\|ZIPF\|keep|N\) .*/\1/p' help >numbers
    name="$command has numbers" && holds -s numbers && ok
    while read -r option; do
        for value in 99999999999999999999999 -99999999999999999999999 1e999 nan 12x ""; do
            # shellcheck disable=SC2086 # words are two
            "$moeflux" $command $words "--$option=$value" >out 2>err </dev/null
            code=$?
            name="$command --$option '$value'"
            if [ "$code" -ne 2 ]; then bad "exit code $code, expected 2"; continue; fi
            empty out && has err "moeflux: --$option is \"$value\"; expected" || continue
            n_ok=$((n_ok + 1))
        done
    done <numbers
done

# ---- what depends on the model or on other options ------------------------------------------------------------------

wrong "a context that is too long" "--ctx is 2049, this model takes 1 to 2048; --yarn" "$moeflux" run "$stories" --ctx 2049
wrong "a context in thousands" "--ctx is 3072, " "$moeflux" eval "$stories" "$0" --ctx 3K
wrong "too many experts" "--experts-per-token is 99, " "$moeflux" run "$stories" --experts-per-token 99
wrong "a backend" '--backend "abacus" is not known' "$moeflux" run "$stories" --backend abacus
wrong "memory of a device that there is not" "backend cpu has none; \`moeflux inspect --cuda\` says whether there is one" \
    "$moeflux" run "$stories" --backend cpu --vram 1G
wrong "memory of a device, no size" '--vram is "0"; expected a size like 6G' "$moeflux" run "$stories" --vram 0
name="a device's model that is not there" && run_it 1 "$moeflux" inspect --cuda /nowhere && has err "/nowhere does not exist" && ok
name="what device there is" && run_it 0 "$moeflux" inspect --cuda && has out "cuda device" && ok
wrong "a policy" "--policy is" "$moeflux" run "$stories" --policy fifo
wrong "more tokens than the context" "--tokens is 5000" "$moeflux" eval "$stories" "$0" --tokens 5000
wrong "a window" "from 0 to 16777216" "$moeflux" run "$stories" --penalty-window 99999999 --repetition-penalty 2
wrong "yarn that is none" "--yarn is 1;" "$moeflux" run "$stories" --yarn 1
wrong "a cache's size without a cache" "--cache-size" "$moeflux" run "$stories" --cache-size 1G
wrong "a cache without a name" '--cache-dir is ""' "$moeflux" run "$stories" --cache-dir ""
wrong "tokens of reads" "--prefill does nothing" "$moeflux" bench "$stories" --io --prefill 4
wrong "tokens of a trace" "--decode does nothing" "$moeflux" bench "$stories" --trace x --decode 4
wrong "measurements that exclude each other" "exclude each other" "$moeflux" bench "$stories" --io --profile
wrong "nothing to measure" "leaves nothing" "$moeflux" bench "$stories" --prefill 0 --decode 0
wrong "a system prompt without a request" "--system goes before a request" "$moeflux" run "$stories" --system x
wrong "a system prompt for a text" "--system is for a request" "$moeflux" run "$stories" --raw --prompt a --system x
wrong "reasoning of a text" "--think is for a request" "$moeflux" run "$stories" --raw --prompt a --think on
wrong "reasoning that the model does not know" "--think does nothing" "$moeflux" run "$stories" --prompt a --think on
wrong "a stop that is none" "--stop '' would end nothing" "$moeflux" run "$stories" --stop ''
wrong "a stop that is none, in a chat" "--stop '' would end nothing" "$moeflux" chat "$stories" --stop ''
wrong "special tokens of ids" "--no-special does nothing" "$moeflux" tokenize "$stories" --decode --no-special
wrong "special tokens of lines" "--no-special does nothing" "$moeflux" tokenize "$stories" --jsonl --no-special

says() { # NAME TEXT COMMAND...: works, and says so
    name=$1 text=$2
    shift 2
    run_it 0 "$@" && has err "$text" && ok
}

says "more threads than processors" "--threads is 1024, and this process may use" "$moeflux" run "$stories" --tokens 1 --threads 1024
name="as many threads as processors" && run_it 0 "$moeflux" run "$stories" --tokens 1 --threads 1 && has_not err "warning" && ok
says "direct mapped" "--direct on does nothing with --io mmap" "$moeflux" run "$stories" --tokens 1 --io mmap --direct on
says "a policy for mapped experts" "--policy does nothing with --io mmap" "$moeflux" run "$stories" --tokens 1 --io mmap --policy lru
says "fewer mapped experts" "--most-experts does nothing with --io mmap" "$moeflux" run "$stories" --tokens 1 --io mmap --most-experts 9
says "reads of mapped experts" "--io-threads does nothing with --io mmap" "$moeflux" run "$stories" --tokens 1 --io mmap --io-threads 2
name="reads at a time"
run_it 0 "$moeflux" bench "$stories" --repeat 1 --io --io pread --io-threads 3 --json && has out '"queue_depth": 3' && ok
says "a longer context" "stretched from 2048 to 8192 tokens by YaRN" "$moeflux" run "$stories" --yarn 4 --ctx 4K --tokens 2
name="and it is used"
i=0 && while [ $i -lt 2500 ]; do printf ' and'; i=$((i + 1)); done >long
run_it 0 "$moeflux" run "$stories" --raw --prompt "$(cat long)" --yarn 2 --tokens 1 --temperature 0 && has err "prompt 25" && ok
name="and needed"
run_it 1 "$moeflux" run "$stories" --raw --prompt "$(cat long)" --tokens 1 --temperature 0 && has err "2048" && ok

# ---- progress ----------------------------------------------------------------------------------------------------

name="eval --limit shows its own progress"
i=0
while [ $i -lt 400 ]; do
    cat "$stories/README.md"
    printf '\n<|endoftext|>\n'
    i=$((i + 1))
done >documents
printf 'expect of 3 documents\nexit 0\n' >script
"$on_terminal" script transcript "$moeflux" eval "$stories" documents --limit 3 --backend ref --tokens 200 >out 2>err && ok || bad "$(tail -c 300 transcript)"

finish
