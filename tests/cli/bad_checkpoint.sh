#!/bin/sh
# Checkpoints that cannot be converted: each is named for what it is, with exit code 1, and nothing is left behind.
. "$(dirname "$0")/lib.sh"
plain=$golden/qwen3_5_moe hub=$golden/qwen3_5_moe-hub

# ---- the files ---------------------------------------------------------------------------------------------------

converts_not "no such directory" nowhere nowhere
mkdir void
converts_not "an empty directory" void void config.json
printf 'hello' >note.txt
converts_not "a file" note.txt note.txt
copy_of "$plain" c && rm c/model.safetensors
converts_not "no weights" c safetensors
copy_of "$plain" c && rm c/config.json
converts_not "no config" c c/config.json

copy_of "$plain" c && cut_to c/model.safetensors 3000000
converts_not "cut off" c model.safetensors
copy_of "$plain" c && cut_to c/model.safetensors 5
converts_not "cut off in the length" c model.safetensors
copy_of "$plain" c && cut_to c/model.safetensors 100
converts_not "cut off in the header" c model.safetensors
copy_of "$plain" c && : >c/model.safetensors
converts_not "no bytes" c model.safetensors
copy_of "$plain" c && printf '\377\377\377\377\377\377\377\177' | dd of=c/model.safetensors conv=notrunc 2>/dev/null
converts_not "header longer than the file" c model.safetensors
copy_of "$plain" c && printf '|' | dd of=c/model.safetensors bs=1 seek=8 conv=notrunc 2>/dev/null
converts_not "a bit flipped in the header" c model.safetensors
copy_of "$plain" c && edit c/model.safetensors 's/"BF16"/"BF17"/'
converts_not "a type nobody knows" c model.safetensors BF17
copy_of "$plain" c && edit c/model.safetensors 's/"data_offsets":\[0,/"data_offsets":[8,/'
converts_not "an offset that does not fit" c model.safetensors

copy_of "$hub" c && rm c/model-00002-of-00002.safetensors
converts_not "a shard is missing" c model-00002-of-00002.safetensors
copy_of "$hub" c && printf '{"weight_map": 3}' >c/model.safetensors.index.json
converts_not "a broken index" c model.safetensors.index.json weight_map
copy_of "$hub" c && edit c/model.safetensors.index.json 's/model-00002-of-00002/..\/..\/etc\/passwd/'
converts_not "an index that points outside" c model.safetensors.index.json

# ---- the tensors -------------------------------------------------------------------------------------------------

copy_of "$plain" c && edit c/model.safetensors 's/"model.norm.weight"/"model.morm.weight"/'
converts_not "a tensor is missing" c model.norm.weight
copy_of "$plain" c && edit c/model.safetensors 's/layers.3.self_attn.k_proj.weight/layers.3.self_attn.x_proj.weight/'
converts_not "a tensor of a layer is missing" c layers.3.self_attn.k_proj.weight
copy_of "$plain" c && edit c/model.safetensors \
    's/\("model.layers.3.self_attn.q_proj.weight":{"dtype":"BF16","shape":\)\[512,128\]/\1[128,512]/'
converts_not "a tensor has the wrong shape" c layers.3.self_attn.q_proj.weight 128 512

# ---- the config --------------------------------------------------------------------------------------------------

copy_of "$plain" c && printf '{"model_type": ' >c/config.json
converts_not "a broken config" c c/config.json
copy_of "$plain" c && printf '[]' >c/config.json
converts_not "a config that is no object" c c/config.json
copy_of "$plain" c && edit c/config.json 's/"qwen3_5_moe_text"/"frobnicator"/'
converts_not "an unknown model_type" c config.json frobnicator qwen3_5_moe
copy_of "$plain" c && edit c/config.json 's/"qwen3_5_moe[a-z_]*"/"x\\u001b[2J\\u009b1mx\\u007f"/'
converts_not "a model_type that speaks to the terminal" c config.json 'x?[2J??1mx?'
copy_of "$plain" c && edit c/config.json '/"num_experts"/d'
converts_not "a key is missing" c config.json num_experts
copy_of "$plain" c && edit c/config.json 's/"hidden_size": 128/"hidden_size": -1/'
converts_not "a negative size" c config.json hidden_size -1
copy_of "$plain" c && edit c/config.json 's/"hidden_size": 128/"hidden_size": "128"/'
converts_not "a size that is a string" c config.json hidden_size
copy_of "$plain" c && edit c/config.json 's/"hidden_size": 128/"hidden_size": 64/'
converts_not "hidden_size disagrees with the tensors" c 64 128
copy_of "$plain" c && edit c/config.json 's/"num_experts": 8/"num_experts": 4/'
converts_not "num_experts disagrees with the tensors" c 4 8
copy_of "$plain" c && edit c/config.json 's/"vocab_size": 512/"vocab_size": 500/'
converts_not "vocab_size disagrees with the tensors" c 500 512

# ---- the target --------------------------------------------------------------------------------------------------

mkdir target
fails "the target exists" target -- "$moeflux" convert "$plain" target
rmdir target || bad "the existing target was changed"
fails "the target is below a file" note.txt -- "$moeflux" convert "$plain" note.txt/target
fails "the target's folder is missing" nowhere -- "$moeflux" convert "$plain" nowhere/target
fails "the target has no name" "empty name" -- "$moeflux" convert "$plain" ""
copy_of "$plain" c
before=$(ls -lR --time-style=full-iso c)
ln -s c link
fails "the target is inside the checkpoint" c/target "inside the checkpoint" -- "$moeflux" convert c c/target
fails "the target is inside, by another way" link/./target "inside the checkpoint" -- "$moeflux" convert c link/./target/
[ "$before" = "$(ls -lR --time-style=full-iso c)" ] || bad "the checkpoint was changed"
rm link
if [ "$(id -u)" -ne 0 ]; then
    mkdir locked && chmod 555 locked
    fails "the target cannot be written" locked -- "$moeflux" convert "$plain" locked/target
fi
fails "files may not grow so large" target -- sh -c "ulimit -f 500; exec '$moeflux' convert '$plain' target"
[ ! -e target ] || bad "left something that looks whole"
rm -rf target.partial # what is finished stays, for the same command to go on from
mkdir disk

# ---- calibration: texts and models that cannot be, and nothing left of them ----
calibrates_not() { # NAME TEXT OPTION...
    name=$1
    shift
    wanted=$1
    shift
    fails "$name" "$wanted" -- "$moeflux" convert "$plain" target --experts 4 -q "$@"
    ! ls -d target* >/dev/null 2>&1 || bad "something was left behind: $(ls -d target*)"
}
printf 'Once upon a time there was a fox.\n' >short.txt
seq 5000 >long.txt
calibrates_not "a text that is not there" "nowhere.txt" --calibrate nowhere.txt
calibrates_not "a text that is a folder" "disk" --calibrate disk
calibrates_not "a text that is too short" "a calibration needs 256 or more" --calibrate short.txt --calibrate-with "$stories"
calibrates_not "the model of another" "the calibration is of a model with 8 layers, 64 experts" --calibrate long.txt \
    --calibrate-with "$stories" --calibrate-tokens 512
calibrates_not "a model that is none" "void" --calibrate long.txt --calibrate-with void
seq 300000 >longer.txt
name="interrupted while it reads" && timeout -s INT 2 "$moeflux" convert "$plain" target --experts 4 --calibrate longer.txt \
    --calibrate-with "$stories" --calibrate-tokens 16M >out 2>err
! ls -d target* .moeflux* >/dev/null 2>&1 && ok || bad "something was left behind"
fails "experts that are kept" "stays as it is" -- "$moeflux" convert "$plain" target --bits keep --calibrate long.txt
if mount -t tmpfs -o size=1m tmpfs disk 2>/dev/null; then
    fails "the disk is full" disk/target "No space left" -- "$moeflux" convert "$plain" disk/target
    ls -d disk/target* 2>/dev/null && name="the disk is full" && bad "left something behind"
    fails "the disk is full of a calibration" "No space left" -- "$moeflux" convert "$plain" disk/target --experts 4 -q \
        --calibrate long.txt
    ls -d disk/* disk/.[!.]* 2>/dev/null && name="the disk is full of a calibration" && bad "left something behind"
    umount disk
else
    printf 'skipped: the disk is full (cannot mount a small one here)\n'
fi

finish
