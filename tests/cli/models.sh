#!/bin/sh
# Models by name: where they are, what a word on the command line means, conversions that happen once.
. "$(dirname "$0")/lib.sh"
plain=$golden/qwen3_5_moe

# ---- the folder ------------------------------------------------------------------------------------------------------

name="the folder" && run_it 0 "$moeflux" where && [ "$(cat out)" = "$work/data/moeflux/models" ] && ok || bad "$(cat out)"
name="the folder of a variable"
MOEFLUX_MODELS=$work/elsewhere "$moeflux" where >out 2>err && [ "$(cat out)" = "$work/elsewhere" ] && ok || bad "$(cat out)"
name="the folder of an option"
MOEFLUX_MODELS=$work/elsewhere "$moeflux" where --models here >out 2>err && [ "$(cat out)" = here ] && ok || bad "$(cat out)"
wrong "a folder without a name" '--models is ""' "$moeflux" list --models ""
name="nowhere to look"
env -u HOME -u XDG_DATA_HOME "$moeflux" where >out 2>err
holds $? -eq 1 && has err "XDG_DATA_HOME" && ok
name="an empty folder" && run_it 0 "$moeflux" list && has out stories-moe "comes with moeflux" && ok

# ---- names -----------------------------------------------------------------------------------------------------------

models=$work/data/moeflux/models
mkdir -p "$models"
"$moeflux" convert "$plain" "$models/tiny" --bits keep 2>/dev/null || exit 1
name="a name in the list" && run_it 0 "$moeflux" list && grep -q '^tiny .*MB  kept .*qwen3_5_moe' out && ok || bad "$(cat out)"
name="the list as JSON" && run_it 0 "$moeflux" list --json && has out '"name": "tiny"' '"comes_along": true' && ok
name="where a model is" && run_it 0 "$moeflux" where tiny && [ "$(cat out)" = "$models/tiny" ] && ok || bad "$(cat out)"
cp -RL "$stories" "$models/story"
name="a model by name" && run_it 0 "$moeflux" eval story "$0" --limit 1 && cp out by_name &&
    run_it 0 "$moeflux" eval "$stories" "$0" --limit 1 && cmp -s out by_name && ok || bad "differs"
for command in "verify tiny" "inspect tiny" "inspect --model tiny" "bench tiny --prefill 4 --decode 2 --repeat 1" \
    "tokenize story" "template story --jsonl" "run -m story --raw -p and --tokens 1" "run story and --raw --tokens 1" \
    "run story -n 1"; do
    name="$command"
    # shellcheck disable=SC2086
    run_it 0 "$moeflux" $command && ok
done
name="the one that comes along, by name" && run_it 0 "$moeflux" run stories-moe --tokens 1 && ok
fails "no such name" "does not exist" "did you mean tiny?" -- "$moeflux" run tinny
fails "nothing near" "does not exist" "moeflux list" -- "$moeflux" chat frobnicator
name="a name in another folder" && run_it 0 "$moeflux" inspect tiny --models "$models" && ok
fails "a folder that is not there" "does not exist" -- "$moeflux" run tiny --models nowhere
name="a directory goes before a name" && cp -RP "$stories" tiny && run_it 0 "$moeflux" inspect tiny && has out "64 per layer" && ok
rm -rf tiny && mkdir tiny
fails "a directory that is no model, and the name" tiny model_weights.json -- "$moeflux" run tiny
rmdir tiny
wrong "two prompts" "another one" "$moeflux" run stories-moe one --prompt two
name="a prompt behind the model"
run_it 0 "$moeflux" run stories-moe "Hi" --tokens 4 --temperature 0 && cp out behind &&
    run_it 0 "$moeflux" run stories-moe --prompt "Hi" --tokens 4 --temperature 0 && cmp -s out behind && ok || bad "differs"

# ---- converting once -------------------------------------------------------------------------------------------------

cp -RL "$plain" ckpt && chmod -R u+w ckpt
use="--prefill 2 --decode 1 --repeat 1" # checkpoints of the goldens have no tokenizer
fails "not without a word" "ckpt has not been converted" "--convert" "moeflux convert" -- "$moeflux" run ckpt
holds ! -e "$models/ckpt"
name="with a flag" && run_it 0 "$moeflux" bench ckpt $use --convert && has err "preset balanced" "became" "error: " &&
    holds -f "$models/ckpt/origin.json" && ok
name="only once" && run_it 0 "$moeflux" bench ckpt $use && has_not err converted && ok
name="and by its name" && run_it 0 "$moeflux" bench -m ckpt $use && ok
name="where it came from" && run_it 0 "$moeflux" list && grep -q "^ckpt .*4 bits .*$work/ckpt" out && ok || bad "$(cat out)"
touch -d 2001-01-01 ckpt/config.json
fails "a checkpoint that changed" "has changed since" "moeflux rm ckpt" -- "$moeflux" run ckpt --convert
mkdir other && mv ckpt other/tiny
fails "the name of another model" "where another model is" -- "$moeflux" run other/tiny --convert

# ---- rm --------------------------------------------------------------------------------------------------------------

wrong "rm without a terminal" "--yes is missing" "$moeflux" rm ckpt
name="rm" && run_it 0 "$moeflux" rm ckpt --yes && holds ! -e "$models/ckpt" && ok
fails "rm of a path" "rm takes names" -- "$moeflux" rm "$models/tiny" --yes
fails "rm of what is above" "rm takes names" -- "$moeflux" rm .. --yes
wrong "rm without a name" "1 argument is missing" "$moeflux" rm --yes
name="rm of the one that comes along"
run_it 1 "$moeflux" rm stories-moe --yes && has err "comes with moeflux" && ok
name="rm of a link"
ln -s "$stories" "$models/linked" && run_it 0 "$moeflux" run linked -n 1 && run_it 0 "$moeflux" rm linked -y && holds ! -e "$models/linked" && holds -f "$stories/config.json" && ok
mkdir "$models/half.partial" && : >"$models/half.partial/.moeflux-partial"
name="what was interrupted" && run_it 0 "$moeflux" list && has out "half.partial" interrupted && run_it 0 "$moeflux" rm half.partial -y && ok

# ---- convert ---------------------------------------------------------------------------------------------------------

name="a plan" && run_it 0 "$moeflux" convert "$plain" --dry-run && empty err && has out "preset balanced" "BF16 to 4 bits/64" "together" && ok
name="a plan writes nothing" && run_it 0 "$moeflux" convert "$plain" planned --dry-run --bits keep && holds ! -e planned && has out kept && ok
name="the default" && run_it 0 "$moeflux" convert "$plain" default && has err "preset balanced" "next: moeflux run default" &&
    run_it 0 "$moeflux" convert "$plain" same --preset balanced && cmp -s default/model_weights.bin same/model_weights.bin && ok ||
    bad "not balanced"
name="a source with fewer bits is kept"
run_it 0 "$moeflux" convert "$golden/qwen3_5_moe-mlx4" --dry-run && has out "preset exact" kept && ok

finish
