#!/bin/sh
# convert --calibrate from the command line: the text is read by a model of the source, which has a tokenizer of its own
# here. The same bytes every time, whatever the threads, and nothing left beside them.
# One more argument: MAKE_CHECKPOINT.
. "$(dirname "$0")/lib.sh"
"$6" source tiny 1 7 || exit 1
seq 3000 | sed '50~50a<|endoftext|>' >text.txt # documents of fifty lines
seq 300 >one.txt
calibrate() { # DIR OPTION...: from source
    to=$1
    shift
    run_it 0 "$moeflux" convert source "$to" -q --experts 3 --calibrate-tokens 700 "$@"
}
no_rest() { # but what is named
    rest=$(ls -A | grep -vxE 'source|models|out|err|.*\.txt|texts.*' | tr '\n' ' ')
    [ "$rest" = "$* " ] || { bad "beside $* there is: $rest" && return 1; }
}

name="a calibration" && calibrate first --calibrate text.txt --threads 1 && empty err && no_rest first &&
    run_it 0 "$moeflux" verify first && grep -q '"calibration": "text.txt (' first/conversion.json && ok
name="the same bytes again, with two threads" && calibrate again --calibrate text.txt --threads 2 && diff -r first again && ok
rm -rf again
name="by a model that is there" && run_it 0 "$moeflux" convert source eight -q --bits 8 &&
    calibrate again --calibrate text.txt --calibrate-with eight && diff -r first again && ok
rm -rf again
name="one short document is little" && run_it 0 "$moeflux" convert source again --experts 3 --calibrate one.txt &&
    has err "one.txt has only " "is better with 16K" "one document only" && ok
rm -rf again
calibration() { sed -n 's/.*"calibration": "\(.*\)".*/\1/p' "$1/conversion.json"; }
name="by another reader: another calibration" && run_it 0 "$moeflux" convert source three -q --bits 3 &&
    calibrate again --calibrate text.txt --calibrate-with three && [ -n "$(calibration again)" ] &&
    [ "$(calibration again)" != "$(calibration first)" ] && ok
rm -rf again three
name="like its source" && run_it 0 "$moeflux" verify first --against source && has err "first is what source gives, its experts as far as" && ok
cp -r source other && dd if=/dev/urandom of=other/model-00002-of-00002.safetensors bs=1024 seek=6000 count=900 conv=notrunc 2>/dev/null
name="unlike another" && run_it 1 "$moeflux" verify first --against other --threads 1 && has err "layer 0, expert " "unlike what the source gives" && ok
rm -rf other
name="it runs" && run_it 0 "$moeflux" run first --prompt "1 2 3" --tokens 5 --temperature 0 && ok
name="other bytes than without" && run_it 0 "$moeflux" convert source without -q --experts 3 &&
    ! cmp -s first/packed_experts/layer_00.bin without/packed_experts/layer_00.bin &&
    cmp first/model_weights.bin without/model_weights.bin && ok
name="scales only" && calibrate scales --calibrate text.txt --scales-only && run_it 0 "$moeflux" verify scales &&
    ! cmp -s first/packed_experts/layer_00.bin scales/packed_experts/layer_00.bin && ok
name="bits to spend" && run_it 0 "$moeflux" convert source spent -q --target-bits 3.5 --calibrate text.txt --calibrate-tokens 700 &&
    run_it 0 "$moeflux" verify spent && ok
rm -rf without scales spent eight

# names that are cut, and that are no UTF-8
long=$(printf '%039d' 0)$(printf '\303\244').txt wild=$(printf 'a\377b.txt')
for text in "$long" "$wild"; do
    cp text.txt "$text" && rm -rf again
    name="a text named $text" && calibrate again --calibrate "$text" && run_it 0 "$moeflux" verify again &&
        cmp first/packed_experts/layer_00.bin again/packed_experts/layer_00.bin &&
        grep -q '"calibration": "' again/conversion.json && ok
done
rm -rf again

finish
