#!/bin/sh
# Command lines: help, versions, and what is said about wrong ones (exit code 2).
. "$(dirname "$0")/lib.sh"

helps() { # NAME TEXT COMMAND...
    name=$1 text=$2
    shift 2
    run_it 0 "$@" && empty err && has out "$text" && ok
}

helps "help" "commands:" "$moeflux" help
helps "--help" "commands:" "$moeflux" --help
helps "--version" "moeflux 0." "$moeflux" --version
for command in run chat list rm where convert inspect check eval tune bench tokenize template; do
    helps "$command --help" "examples:" "$moeflux" $command --help
    helps "help $command" "usage: moeflux $command" "$moeflux" help $command
done

for command in run chat check eval bench; do
    for option in --backend --threads --pin --ram --io --direct --prefetch --policy --experts-dir --ctx --yarn --chunk --io-threads --log-routing; do
        helps "$command has $option" "  $option " "$moeflux" $command --help
    done
done
for command in run chat; do helps "$command has --cache-dir" "  --cache-dir " "$moeflux" $command --help; done
for command in check eval bench; do # no prompts that could be kept
    wrong "$command has no --cache-dir" "unknown option --cache-dir" "$moeflux" $command a --cache-dir c
done

helps "--version, what it was built with" "backends: " "$moeflux" --version
name="--version has the commit" && run_it 0 "$moeflux" --version && commit=$(git -C "$(dirname "$0")" rev-parse --short=10 HEAD 2>/dev/null)
if [ -n "$commit" ]; then has out "(commit " && ok; fi

# ---- habits of others -------------------------------------------------------------------------------------------------

for words in "quantize:moeflux convert" "perplexity:moeflux eval" "server:moeflux serve" "ls:moeflux list" "show:moeflux inspect" \
    "generate:moeflux run" "delete:moeflux rm" "download:moeflux pull" "list-models:see: moeflux help"; do
    wrong "${words%%:*}" "${words#*:}" "$moeflux" "${words%%:*}"
done
for words in "max-tokens:--tokens N" "n-predict:-n N" "ctx-size:--ctx N" "num_ctx:--ctx N" "repeat-penalty:--repetition-penalty" \
    "n-gpu-layers:--backend" "top_kk:did you mean --top-k?" "mlock:nothing to do"; do
    wrong "--${words%%:*}" "${words#*:}" "$moeflux" run "--${words%%:*}" 1
done
wrong "-ngl" "unknown option -ngl; no layers are counted" "$moeflux" run -ngl 99
wrong "-f" "standard input" "$moeflux" run -f prompt.txt
name="short options" && run_it 0 "$moeflux" run -m "$stories" -p "Hi" -n 3 -c 100 -t 1 --temperature 0 && has err "generated 3 " && ok
name="short options without a space" && run_it 0 "$moeflux" run -n2 -t1 --temperature 0 && has err "generated 2 " && ok
wrong "a letter without a value" "-n needs a value" "$moeflux" run -n
wrong "a letter with a bad value" '--tokens is "x"' "$moeflux" run -n x
wrong "a flag with more behind it" "unknown option -vx" "$moeflux" run -vx
name="quiet" && run_it 0 "$moeflux" run --quiet -n 3 && empty err && ok
name="quiet, also -q" && run_it 0 "$moeflux" convert "$golden/qwen3_5_moe" quiet -q && empty err && rm -rf quiet && ok
name="quiet errors" && run_it 1 "$moeflux" run nowhere -q && has err "nowhere" && ok
helps "every command is quiet" "--quiet" "$moeflux" list --help

wrong "no command" "usage: moeflux COMMAND" "$moeflux"
wrong "unknown command" 'unknown command "frobnicate"' "$moeflux" frobnicate
wrong "near command" "did you mean convert?" "$moeflux" convrt
wrong "near command, help" "did you mean inspect?" "$moeflux" help inspct
wrong "unknown option" "unknown option --frobnicate" "$moeflux" run --frobnicate
wrong "near option" "did you mean --temperature?" "$moeflux" run --temprature 1
wrong "shortened option" "did you mean --temperature?" "$moeflux" run --temp 1
wrong "single dash" "unknown option -x" "$moeflux" run -x
wrong "missing value" "--tokens needs a value" "$moeflux" run --tokens
wrong "not a number" "--tokens is \"many\"" "$moeflux" run --tokens many
wrong "number with a tail" "--tokens is \"12x\"" "$moeflux" run --tokens=12x
wrong "empty number" "--tokens is \"\"" "$moeflux" run --tokens=
wrong "out of range" "a number from 0 to 1" "$moeflux" run --top-p 1.5
wrong "not finite" "--temperature is \"nan\"" "$moeflux" run --temperature nan
wrong "negative seed" "--seed is \"-1\"" "$moeflux" run --seed -1
wrong "seed too large" "2^64 - 1" "$moeflux" run --seed 99999999999999999999
wrong "zero threads" "--threads is \"0\"" "$moeflux" run --threads 0
wrong "size" "a size like 6G" "$moeflux" run --ram lots
wrong "size with a tail" "--ram is \"6Gx\"" "$moeflux" run --ram 6Gx
wrong "no size" "--ram is \"0\"" "$moeflux" run --ram 0
wrong "choice" "expected auto, mmap, pread or uring" "$moeflux" run --io teleport
wrong "switch" "expected auto, on or off" "$moeflux" eval some --prefetch maybe
wrong "io on bench" "expected auto, mmap, pread or uring" "$moeflux" bench some --io=teleport
wrong "policy" "expected horizons, lfu or lru" "$moeflux" run --policy fifo
wrong "chunk" "a whole number from 1 to 8192" "$moeflux" check a b --chunk 9000
wrong "flag with a value" "--raw takes no value" "$moeflux" run --raw=yes
wrong "too many words" "one argument too many" "$moeflux" run one two three
wrong "a model and one more" "one argument too many" "$moeflux" chat -m one two
wrong "too few words" "2 arguments are missing" "$moeflux" eval
wrong "inspect nothing" "1 argument is missing: MODEL, or --cpu" "$moeflux" inspect
wrong "one too few" "1 argument is missing" "$moeflux" convert somewhere
wrong "bits" "keep, 2, 3, 4, 5, 6 or 8" "$moeflux" convert a b --bits 7
wrong "second set" "--also is \"5\"; expected 2 or 3" "$moeflux" convert a b --also 5
wrong "second set, a width" '--also is "3,down=7": down has the width "7"' "$moeflux" convert a b --also 3,down=7
wrong "second set, a list alone" '--also is "down=4"; expected 2 or 3' "$moeflux" convert a b --also down=4
wrong "a setting" "known are bonus" "$moeflux" eval "$stories" "$0" --decode --lossy bones=1
fails "a setting alone" "does nothing without bonus" -- "$moeflux" eval "$stories" "$0" --decode --lossy skip=0.1,sure=0.5
wrong "two settings" "exclude each other" "$moeflux" eval "$stories" "$0" --decode --lossy skip=0.1 --tuned
wrong "group" "32, 64 or 128" "$moeflux" convert a b --group 48
wrong "bits for what" '"side=3" is not gate=N, up=N or down=N' "$moeflux" convert a b --bits-for gate=3,side=3
wrong "bits for nothing" 'is not gate=N, up=N or down=N' "$moeflux" convert a b --bits-for ""
wrong "bits for, no width" '"up" is not gate=N' "$moeflux" convert a b --bits-for up
wrong "bits for, a width" 'down has the width "7"; expected 2, 3, 4, 5, 6 or 8' "$moeflux" convert a b --bits-for down=7
wrong "bits for, a tail" 'gate has the width "3x"' "$moeflux" convert a b --bits-for gate=3x,up=3
wrong "bits for, twice" "up is there twice" "$moeflux" convert a b --bits-for up=3,up=4
wrong "target bits" '--target-bits is "1"' "$moeflux" convert a b --target-bits 1
wrong "target bits and widths" "--target-bits chooses the experts' widths, and --bits-for gives them" "$moeflux" convert a b \
    --target-bits 3.2 --bits-for up=3
wrong "target bits and experts" "and --experts gives them" "$moeflux" convert a b --target-bits 3.2 --experts 4
wrong "calibration without a text" "--calibrate-with is for --calibrate" "$moeflux" convert a b --calibrate-with c
wrong "scales only of nothing" "--scales-only is for --calibrate" "$moeflux" convert a b --scales-only
wrong "tokens of nothing" "--calibrate-tokens is for --calibrate" "$moeflux" convert a b --calibrate-tokens 1K
wrong "a plan with a text" "--dry-run reads no text" "$moeflux" convert a b --dry-run --calibrate c

finish
