#!/bin/sh
# moeflux schema: examples, texts that are accepted or not, what is refused and why, JSON lines.
. "$(dirname "$0")/lib.sh"

printf '%s' '{"type":"object","properties":{"n":{"type":"integer","minimum":3}},"required":["n"],"additionalProperties":false}' >s.json
printf '%s\n' '{"n": 5}' >good.json
printf '%s\n' '{"n": 2}' >wrong.json
printf '%s\n' '{"n": 5' >short.json
printf '%s' '{"properties":{"l":{"uniqueItems":true,"type":"array"}}}' >no.json
printf '%s' '{"type":"string","format":"moon-phase"}' >format.json

name="an example" && run_it 0 "$moeflux" schema s.json --seed 4 && has out '"n":' && has err "states" && ok
cp out first
name="the same seed, the same example" && run_it 0 "$moeflux" schema s.json --seed 4 && cmp -s out first && ok
name="several" && run_it 0 "$moeflux" schema s.json --examples 5 && holds "$(grep -c n out)" -ge 5 && ok
name="accepted" && run_it 0 "$moeflux" schema s.json --accepts good.json && has out "good.json: accepted" && ok
name="not accepted" && run_it 1 "$moeflux" schema s.json --accepts good.json --accepts wrong.json &&
    has out "good.json: accepted" "wrong.json: not accepted: byte 7" && ok
name="not complete" && run_it 1 "$moeflux" schema s.json --accepts short.json && has out "not complete" && ok
name="not supported" && run_it 1 "$moeflux" schema no.json && empty out && has err "no.json" '#/properties/l: "uniqueItems"' && ok
name="not enforced" && run_it 0 "$moeflux" schema format.json && has err "moon-phase" "not enforced" && ok
name="strict" && run_it 1 "$moeflux" schema format.json --strict && has err "moon-phase" && ok
name="a pattern" && run_it 0 "$moeflux" schema --regex 'ab{3}' && has out abbb && ok
name="a bad pattern" && run_it 1 "$moeflux" schema --regex 'a{3abc}' && has err "a bad {n,m}" && ok
printf 'root ::= "x" | "(" root ")"\n' >g.txt
printf '((x))\n' >deep.txt
name="a grammar" && run_it 0 "$moeflux" schema --grammar g.txt --accepts deep.txt && has out "accepted" && ok
name="two kinds" && run_it 2 "$moeflux" schema --grammar g.txt --regex && ok
name="no file" && run_it 1 "$moeflux" schema nothing.json && has err "nothing.json" && ok
printf '{"schema":%s,"texts":["{\\"n\\":3}","{\\"n\\":1}"],"examples":1}\n{"schema":%s}\n' "$(cat s.json)" "$(cat no.json)" >l.jsonl
name="lines" && run_it 0 "$moeflux" schema --jsonl l.jsonl && has out '"refused_at":[-1,6]' '"compiled":false' "uniqueItems" && ok
printf '{"texts":[]}\n' >bad.jsonl
name="a line without a schema" && run_it 1 "$moeflux" schema --jsonl bad.jsonl && has err "line 1" && ok
finish
