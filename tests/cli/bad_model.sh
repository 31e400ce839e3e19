#!/bin/sh
# Model directories that cannot be opened or used.
. "$(dirname "$0")/lib.sh"
"$moeflux" convert "$golden/qwen3_5_moe" good --bits keep 2>/dev/null || exit 1

opens_not() { # NAME TEXT...: run ./m fails, and inspect says why, whatever else it may have to say
    first=$1
    shift
    fails "$first (run)" "$@" -- "$moeflux" run m
    name=$first
    run_it 1 "$moeflux" inspect m && has err "$@" && ok
}

opens_not "no such directory" m
mkdir m
opens_not "an empty directory" m model_weights.json
rm -rf m && printf 'hello' >m
opens_not "a file" m
rm m && ln -s "$golden/qwen3_5_moe" m
fails "a checkpoint" "has not been converted" "moeflux convert" -- "$moeflux" run m
name="a checkpoint (inspect)"
run_it 0 "$moeflux" inspect m && empty err && has out "a checkpoint" qwen3_5_moe "8 per layer" "gate BF16" "KV cache" && ok
rm m

copy_of "$stories" m && head -c 5653504 /dev/zero | tr '\0' '\377' >m/model_weights.bin
printf 'Once upon a time there was a dog.' >text
fails "weights that are no numbers" "document 1" "not a number" "moeflux verify" -- "$moeflux" eval m text
fails "weights that are no numbers (run)" "no token can be chosen" -- "$moeflux" run m --prompt Hi
copy_of good m && cut_to m/packed_experts/layer_03.bin 100000
opens_not "an expert file is too short" layer_03.bin 100000 393216
copy_of good m && rm m/packed_experts/layer_05.bin
opens_not "an expert file is missing" layer_05.bin
copy_of good m && cut_to m/model_weights.bin 100000
opens_not "the trunk is too short" model_weights 100000
copy_of good m && rm m/model_weights.bin
opens_not "the trunk is missing" model_weights.bin
copy_of good m && cut_to m/model_weights.json 1000
opens_not "the manifest is cut off" model_weights.json
copy_of good m && edit m/model_weights.json 's/"count": 8/"count": 7/'
opens_not "the manifest's experts disagree with the config" 7 8
copy_of good m && edit m/model_weights.json 's/"model.norm.weight"/"model.morm.weight"/'
opens_not "a tensor is missing" model.norm.weight
copy_of good m && edit m/config.json 's/"num_hidden_layers": 8/"num_hidden_layers": 7/'
opens_not "the config has other layers" 7 8
copy_of good m && edit m/config.json 's/"hidden_size": 128/"hidden_size": 64/'
opens_not "the config has another width" 64 128
copy_of good m && edit m/config.json 's/"qwen3_5_moe_text"/"frobnicator"/'
opens_not "an unknown model_type" frobnicator
copy_of good m && rm m/config.json && edit m/model_weights.json 's/"config": *{/"confog": {/'
opens_not "no config" config.json
copy_of good m && printf '{"eos_token_id": 100000}' >m/generation_config.json
opens_not "an end token outside the vocabulary" generation_config.json eos_token_id

printf 'GGUF and more' >model.gguf
fails "a GGUF file that is none" model.gguf "GGUF version" -- "$moeflux" run model.gguf

fails "no tokenizer" tokenizer.json -- "$moeflux" run good
wrong "an unknown backend" frobnicate "$moeflux" run good --backend frobnicate
fails "golden file missing" nowhere.safetensors -- "$moeflux" check good nowhere.safetensors
printf 'hello, world' >text
fails "golden file of another kind" text -- "$moeflux" check good text
fails "text missing" nowhere.txt -- "$moeflux" eval good nowhere.txt

wrong "a context beyond the model's" "2048" "$moeflux" run "$stories" --ctx 5000
fails "an empty prompt" empty -- "$moeflux" run "$stories" --prompt ""
fails "a prompt beyond the context" 8 -- "$moeflux" run "$stories" --ctx 8 --prompt "This is a longer request than that."

# check: one token's numbers pass; with one of them changed, the line is marked and the exit code is 1.
name="within tolerance"
"$shrink" "$golden/qwen3_5_moe/golden.safetensors" small.safetensors || exit 1
run_it 0 "$moeflux" check good small.safetensors && empty err && has out "p0 cosine=1.0" "argmax=1/1" "chunks of 16" && ok
for part in logits hidden; do
    name="$part out of tolerance"
    "$shrink" "$golden/qwen3_5_moe/golden.safetensors" spoilt.safetensors $part || exit 1
    run_it 1 "$moeflux" check good spoilt.safetensors && has out "p0 cosine=" "FAILED" && has err "out of tolerance" && ok
done
fails "numbers of another model" small.safetensors 512 4096 -- "$moeflux" check "$stories" small.safetensors

finish
