#!/bin/sh
# Models from a hub (tests/hub/hub.py plays it): what comes is what is there, whatever happens on the way, and a
# checkpoint that is converted while it comes gives what a straight conversion gives. PYTHON is the sixth argument.
. "$(dirname "$0")/lib.sh"
hub_py=$(cd "$(dirname "$0")/../hub" && pwd)/hub.py python=$6 make_gguf=$7
export HOME="$work/home"
unset HF_TOKEN HF_HOME HF_ENDPOINT http_proxy https_proxy HTTPS_PROXY all_proxy ALL_PROXY
mkdir -p root/org home
cp -RL "$stories" root/org/stories
cp -RL "$golden/qwen3_5_moe-hub" root/org/tiny
chmod -R u+w root
rm -rf root/org/stories/README.md
: >faults
"$python" "$hub_py" root faults log port 2>server.err &
server=$!
trap 'kill $server' EXIT
i=0 && while [ ! -s port ] && [ $i -lt 100 ]; do sleep 0.1 && i=$((i + 1)); done
[ -s port ] || { echo "the hub does not start: $(cat server.err)"; exit 1; }
endpoint=http://127.0.0.1:$(cat port)
models=$work/data/moeflux/models

pull() { "$moeflux" pull "$@" --endpoint "$endpoint" --allow-http; }
same() { # A B: the same files, but for the note where a model came from
    diff -r -x origin.json "$1" "$2" >out 2>&1
}
gone() { # nothing of a download is left
    [ ! -e "$models/$1.download" ] && [ ! -e "$models/$1.partial" ]
}
forget() { rm -rf "$models/${1:-tiny}" "$models/${1:-tiny}".*; }

"$moeflux" convert root/org/tiny straight --preset balanced -q || exit 1

# ---- whole ----------------------------------------------------------------------------------------------------------

name="a model directory" && run_it 0 pull org/stories && same root/org/stories "$models/stories" && gone stories &&
    run_it 0 "$moeflux" list && has out "org/stories@0123" && run_it 0 "$moeflux" run stories -n 2 && ok || bad "differs"
name="a checkpoint" && run_it 0 pull org/tiny && has err "preset balanced" "next: moeflux run tiny" && same straight "$models/tiny" &&
    gone tiny && run_it 0 "$moeflux" verify tiny && ok || bad "differs"
fails "a name that is taken" "is there already" "moeflux rm tiny" -- pull org/tiny
name="another name and preset" && run_it 0 pull org/tiny --name other --preset exact -q && empty err &&
    "$moeflux" convert root/org/tiny exact --bits keep -q && same exact "$models/other" && ok || bad "differs"
forget
name="a plan alone" && : >log && run_it 0 pull org/tiny --dry-run && has out "4 bits/64" together && holds ! -e "$models/tiny" &&
    ! grep -q 'safetensors None' log && gone tiny && ok || bad "$(cat log)"
inspect() { TMPDIR=$work/tmp "$moeflux" inspect "$@" --endpoint "$endpoint" --allow-http; }
looked() { # no weights came, and nothing is left
    ! grep -E '(safetensors|gguf|bin) None' log && [ -z "$(ls -A tmp)" ] && [ ! -e "$models/${1:-tiny}" ]
}
mkdir -p tmp
name="a verdict before a download" && : >log && run_it 0 inspect org/tiny && looked &&
    has out qwen3_5_moe "a checkpoint" "--preset balanced is recommended" "moeflux pull org/tiny" "this machine" verdict "it fits" && ok || bad "$(cat log)"
name="a verdict before a download, JSON" && run_it 0 inspect org/tiny --json && looked &&
    has out '"model": "org/tiny@0123456789' '"preset": "balanced"' '"fits": true' && ok || bad "$(cat log)"
rm -rf "$models/stories"
name="a verdict on a model directory there" && : >log && run_it 0 inspect org/stories && looked stories &&
    has out qwen3_5_moe "a model" "it fits" "--ram 72M" && has_not out conversion && ok || bad "$(cat log)"
fails "no such model to look at" "404" -- inspect org/nothing -q
fails "no hub at all, said at once" "onnect" -- timeout 20 "$moeflux" inspect org/tiny -q --endpoint http://127.0.0.1:9 --allow-http
echo 'hash-once config.json' >faults && name="a look at bytes that were wrong once" && run_it 0 inspect org/tiny && has out "it fits" && ok
echo 'loop' >faults && fails "a look that is sent in circles, said at once" "redirects" -- timeout 20 "$moeflux" inspect org/tiny -q --endpoint "$endpoint" --allow-http
echo 'busy 3' >faults && name="a look at a busy server" && run_it 0 inspect org/tiny && has out "it fits" && ok
: >faults
if [ -x "$make_gguf" ]; then
    mkdir -p root/org/gguf && "$make_gguf" "$golden/qwen3_5_moe" root/org/gguf/tiny-q8.gguf >/dev/null 2>err &&
        "$moeflux" convert root/org/gguf/tiny-q8.gguf from_gguf -q 2>/dev/null
    name="a GGUF file" && run_it 0 pull org/gguf && same from_gguf "$models/tiny-q8" && gone tiny-q8 && ok || bad "differs"
    forget tiny-q8
    name="a verdict on a GGUF file there" && : >log && run_it 0 inspect org/gguf && looked tiny-q8 &&
        has out qwen3_5_moe "--preset balanced is recommended, because the source has 16 bits or more" "it fits" && ok || bad "$(cat log)"
    name="a verdict on a GGUF file here" && run_it 0 "$moeflux" inspect root/org/gguf/tiny-q8.gguf &&
        has out "a checkpoint" qwen3_5_moe "gate BF16" "--preset balanced" "DIR --dry-run shows the plan" "it fits" && ok
    cp root/org/gguf/tiny-q8.gguf root/org/gguf/tiny-q4.gguf
    wrong "a look at which of two" "--file must say which" inspect org/gguf
    wrong "which of two" "--file must say which" pull org/gguf
    name="this one" && forget tiny-q4 && run_it 0 pull org/gguf --file tiny-q4.gguf && same from_gguf "$models/tiny-q4" && ok || bad "differs"
    mkdir -p root/org/split && "$make_gguf" "$golden/qwen3_5_moe" root/org/split/part.gguf 3 >/dev/null 2>err &&
        "$moeflux" convert root/org/split/part-00001-of-00003.gguf from_split -q 2>/dev/null
    name="a GGUF model in parts" && echo 'break 400000' >faults && run_it 0 pull org/split && same from_split "$models/part" && gone part && ok ||
        bad "differs"
    : >faults
    wrong "a file that is not there" "no such GGUF file" pull org/gguf --file x.gguf
fi

# ---- faults -----------------------------------------------------------------------------------------------------------

comes() { # NAME: with ./faults as they are, the same model comes
    name=$1
    forget
    run_it 0 pull org/tiny && same straight "$models/tiny" && gone tiny && ok || bad "differs"
}
echo 'break 300000' >faults && comes "connections that break"
echo 'norange' >faults && comes "a server without ranges"
echo 'busy 5' >faults && comes "a busy server"
echo 'pages' >faults && comes "a list in pages"
echo "redirect http://localhost:$(cat port)" >faults && comes "a redirect"
echo 'hash-once model-00001-of-00002.safetensors' >faults && comes "bytes that were wrong once"

refused() { # NAME TEXT...: fails, nothing is published, and without the fault the same command goes on
    forget
    fails "$@" -- pull org/tiny -q
    name="$1: nothing is published" && holds ! -e "$models/tiny" && ok
    : >faults
    name="$1: it goes on" && run_it 0 pull org/tiny && same straight "$models/tiny" && gone tiny && ok || bad "differs"
}
echo 'hash model-00002-of-00002.safetensors' >faults && refused "wrong bytes" "model-00002" "have the hash"
echo 'size model-00001-of-00002.safetensors' >faults && forget && fails "a wrong size" "model-00001" "size" -- pull org/tiny -q
echo 'path ../../evil' >faults && forget && fails "a path that leads out" "bad one" -- pull org/tiny -q
echo 'path /etc/evil' >faults && fails "an absolute path" "bad one" -- pull org/tiny -q
: >faults
fails "no such model" "404" -- pull org/nothing
wrong "no name of a model" "expected ORG/NAME" pull tiny
wrong "a name that leads out" "expected ORG/NAME" pull ../tiny
wrong "no TLS" "has no TLS" "$moeflux" pull org/tiny --endpoint "$endpoint"
wrong "a preset" "--preset is" pull org/tiny --preset large
mkdir -p root/org/empty && echo '{}' >root/org/empty/README.md
fails "nothing to run" "no weights" -- pull org/empty

# ---- tokens ------------------------------------------------------------------------------------------------------------

secret=hf_0123456789secret
printf '%s\n' "$secret" >token
printf 'token %s\nredirect http://localhost:%s\n' "$secret" "$(cat port)" >faults
forget && fails "a token is needed" "needs a token" -- pull org/tiny -q
: >log
name="a token from a file" && run_it 0 pull org/tiny --token-file token && has_not err "$secret" && same straight "$models/tiny" && ok || bad "differs"
name="it stays with the host" && grep -q '^127.0.0.1.* token$' log && ! grep -q '^localhost.* token$' log && ok || bad "$(cat log)"
name="a token from the environment" && forget && HF_TOKEN=$secret run_it 0 pull org/tiny -q && empty err && ok
name="no trace of it" && if grep -rq "$secret" "$work/data" "$work/home"; then bad "written somewhere"; else ok; fi
printf 'wrong\n' >token
forget && fails "a wrong token" "does not give access" -- pull org/tiny --token-file token -q
: >faults

# ---- kills --------------------------------------------------------------------------------------------------------------

name="killed again and again"
forget && echo 'slow 4000000' >faults
kills=0 code=1
while [ $kills -lt 30 ] && [ $code -ne 0 ]; do
    "$moeflux" pull org/tiny -q --endpoint "$endpoint" --allow-http >out 2>err </dev/null &
    pid=$!
    sleep "0.$((kills % 5 + 1))"
    if kill -9 $pid 2>/dev/null; then kills=$((kills + 1)); fi
    wait $pid 2>/dev/null
    code=$?
    case $code in 0 | 137) ;; *) bad "exit code $code" && break ;; esac
done
: >faults
[ "$code" -eq 0 ] || run_it 0 pull org/tiny
same straight "$models/tiny" && gone tiny && [ $kills -gt 3 ] && ok || bad "differs after $kills kills"
name="stopped by a signal"
forget && echo 'slow 500000' >faults
"$moeflux" pull org/tiny --endpoint "$endpoint" --allow-http >out 2>err </dev/null &
pid=$!
sleep 2
kill -INT $pid
wait $pid
holds $? -eq 130 && has err "the same command goes on" && ok
: >faults
name="and on" && run_it 0 pull org/tiny && same straight "$models/tiny" && ok || bad "differs"

finish
