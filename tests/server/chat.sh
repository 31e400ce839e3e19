#!/bin/sh
# `moeflux chat --server`: through a pipe and on a pseudo-terminal, with a server of ours and with none.
. "$(dirname "$0")/../cli/lib.sh"
. "$(dirname "$0")/lib.sh"
on_terminal=$6
export HOME="$work/home" TERM=xterm
unset XDG_STATE_HOME XDG_CACHE_HOME NO_COLOR MOEFLUX_API_KEY
mkdir -p "$HOME"

start_server "$moeflux" "$stories" "$work/log" --exact --threads 1 --api-key secret
echo secret >key && echo wrong >bad_key

chat() { # OPTIONS...: ./in is the conversation
    "$moeflux" chat --server "$url" --temperature 0 --tokens 12 "$@" <in >out 2>err
    code=$?
}

name="the same answers as with a model here"
printf 'Tell me a story about a dog.\n\nAnd a cat?\n' >in
"$moeflux" chat "$stories" --exact --temperature 0 --tokens 12 <in >two 2>/dev/null
chat --api-key-file key
[ "$code" -eq 0 ] && cmp -s out two && has err "prompt 20 tokens" "reused)" "token limit" "of 2048]" && ok || bad "exit code $code"
name="the key from the environment, the address with /v1"
MOEFLUX_API_KEY=secret "$moeflux" chat --server "$url/v1/" --temperature 0 --tokens 12 <in >out 2>err && cmp -s out two && ok || bad "differs"
export MOEFLUX_API_KEY=secret
name="save, load, undo, retry, stats"
printf 'Tell me a story about a dog.\n/save c.json\nWhy?\n/undo\n/retry\n/stats\n' >in && chat
holds "$code" -eq 0 && has err "2 messages are in c.json" "taken back: Why?" "model: stories-moe at 127.0.0.1" "context: " &&
    holds "$(sed -n 1p out)" = "$(sed -n 3p out)" && holds ! -e c.json.state && ok
name="a conversation goes on"
printf '/load c.json\nAnd a cat?\n' >in && chat && [ "$(cat out)" = "$(tail -n 1 two)" ] && ok || bad "differs"
name="a schema"
echo '{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"],"additionalProperties":false}' >schema.json
printf 'Yes?\n' >in && chat --tokens 60 --json-schema schema.json
holds "$code" -eq 0 && holds "$(grep -cE '^\{ ?"ok": ?(true|false) ?\}$' out)" -eq 1 && ok
name="a stop text, a bias and a seed"
printf 'Tell me a story.\n' >in && chat --seed 5 --temperature 1 && cp out a && chat --seed 5 --temperature 1 && cmp -s a out &&
    chat --stop upon --logit-bias 5:-inf && has_not out upon && ok || bad "differs"
name="a switch that the model does not have"
printf 'Hi\n' >in && chat --think on
holds "$code" -eq 2 && has err "--think does nothing" && ok
name="a full context"
{ printf 'word %.0s' $(seq 3000) && printf '\nHi\n'; } >in && chat
holds "$code" -eq 1 && has err "refused" "context is full" && holds "$(wc -l <out)" -eq 1 && ok
name="a wrong key"
printf 'Hi\n' >in && chat --api-key-file bad_key
holds "$code" -eq 1 && empty out && has err "Incorrect API key" "MOEFLUX_API_KEY" && ok
unset MOEFLUX_API_KEY

wrong "a directory and a server" "" "$moeflux" chat "$stories" --server "$url"
wrong "options of a model here" "--threads" "$moeflux" chat --server "$url" --threads 2
wrong "a grammar" "--grammar is not for --server" "$moeflux" chat --server "$url" --grammar schema.json
wrong "a key for nobody" "--api-key-file is for --server" "$moeflux" chat --api-key-file key
wrong "no address" "expected http://HOST:PORT" "$moeflux" chat --server "http://:8080"
wrong "a bad port" "expected http://HOST:PORT" "$moeflux" chat --server "http://localhost:99999"
wrong "TLS" "TLS is not spoken here" "$moeflux" chat --server https://localhost
fails "nobody there" "is \`moeflux serve\` running there?" -- "$moeflux" chat --server http://127.0.0.1:1
wrong "no such name" "no-such-name.invalid" "$moeflux" chat --server http://no-such-name.invalid:8080
fails "a file without a key" "is empty" -- sh -c 'echo >none && exec "$0" chat --server "$1" --api-key-file none' "$moeflux" "$url"

# A long answer is needed: the schema asks for one.
echo '{"type":"array","items":{"const":"xyzzy"},"minItems":300,"maxItems":300}' >long.json
cat >script <<'SCRIPT'
expect > 
send Go on and on.\n
expect xyzzy
send \x03
expect [interrupted]
expect > 
send /save t.json\n
expect 2 messages
expect > 
send /quit\n
exit 0
SCRIPT
name="Ctrl-C stops the answer and not the program"
"$on_terminal" script transcript "$moeflux" chat --server "$url" --api-key-file key --json-schema long.json >out 2>err </dev/null &&
    has t.json '"assistant"' && ok || bad "$(tail -n 3 transcript | tr -d '\033' | tail -c 300)"
stop_server || bad "the server failed"
finish
