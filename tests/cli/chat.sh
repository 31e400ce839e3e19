#!/bin/sh
# Conversations: through a pipe, and on a pseudo-terminal with edits, history, pastes and interrupts.
. "$(dirname "$0")/lib.sh"
on_terminal=$6 editing=$7
export HOME="$work/home" TERM=xterm
unset XDG_STATE_HOME XDG_CACHE_HOME NO_COLOR
mkdir -p "$HOME"

# Exact: tokens said one by one and tokens read again in one pass give the same answer then.
chat() { # OPTIONS...: ./in is the conversation
    "$moeflux" chat "$stories" --exact --temperature 0 --tokens 12 "$@" <in >out 2>err
    code=$?
}

# ---- through a pipe ----------------------------------------------------------------------------------------------

name="one request per line"
printf 'Tell me a story about a dog.\n\nAnd a cat?\n' >in && chat
[ "$code" -eq 0 ] && [ "$(wc -l <out)" -eq 2 ] && [ "$(grep -c '^moeflux: \[prompt' err)" -eq 2 ] &&
    has err "prompt 20 tokens at" "reused)" "context 31 of 2048" "experts " && cp out two && ok || bad "exit code $code"
name="no terminal, no styles"
grep -q "$(printf '\033')" out && bad "escape sequences" || ok
name="the beginning is reused"
reused=$(sed -n 's/.*prompt [0-9]* tokens (\([0-9]*\) reused).*/\1/p' err)
[ "${reused:-0}" -ge 31 ] && ok || bad "reused: $reused"

name="save and load"
printf 'Tell me a story about a dog.\n/save c.json\n' >in && chat && has err "2 messages are in c.json" &&
    printf '/load c.json\nAnd a cat?\n' >in && chat && [ "$code" -eq 0 ] && [ "$(cat out)" = "$(tail -n 1 two)" ] &&
    has err "(31 reused)" && ok || bad "exit code $code"
name="without the state it is evaluated again"
mv c.json.state kept && printf '/load c.json\nAnd a cat?\n' >in && chat && [ "$(cat out)" = "$(tail -n 1 two)" ] &&
    ! grep -q reused err && ok || bad "differs"
name="a damaged state is left alone"
head -c 1000 kept >c.json.state && printf '/load c.json\nAnd a cat?\n' >in && chat && [ "$(cat out)" = "$(tail -n 1 two)" ] &&
    has err "evaluated again" && ok || bad "differs"
name="a state of another conversation does no harm"
cp kept other.json.state && sed 's/about a dog/about a cow/' c.json >other.json &&
    printf '/load other.json\nAnd a cat?\n' >in && chat && cp out with && rm other.json.state &&
    printf '/load other.json\nAnd a cat?\n' >in && chat && cmp -s out with && ok || bad "differs"
name="kept in a file"
rm -f k.json* && printf 'Tell me a story about a dog.\n' >in && chat --conversation k.json && [ -s k.json.state ] &&
    printf 'And a cat?\n' >in && chat --conversation k.json && [ "$(cat out)" = "$(tail -n 1 two)" ] &&
    [ "$(grep -c '"role"' k.json)" -eq 4 ] && ok || bad "differs"

name="undo"
printf 'Tell me a story about a dog.\nWhy is it so?\n/undo\nAnd a cat?\n' >in && chat
[ "$code" -eq 0 ] && has err "taken back: Why is it so?" && [ "$(sed 2d out)" = "$(cat two)" ] && ok || bad "differs"
name="retry"
printf 'Tell me a story about a dog.\nAnd a cat?\n/retry\n' >in && chat
[ "$code" -eq 0 ] && [ "$(sed -n 3p out)" = "$(tail -n 1 two)" ] && ok || bad "differs"
name="retry takes another seed"
printf 'Tell me a story.\n/retry\n' >in && chat --temperature 1.5 --seed 3
[ "$(sed -n 1p out)" != "$(sed -n 2p out)" ] && ok || bad "the same answer"
name="reset"
printf 'Tell me a story about a dog.\n/reset\nTell me a story about a dog.\n' >in && chat
[ "$(sed -n 1p out)" = "$(sed -n 2p out)" ] && has err "a new conversation" && ok || bad "differs"
name="other words for leaving"
for word in exit bye q; do printf '/%s\nTell me a story.\n' $word >in && chat; empty out; done && ok
name="help by another name"
printf '/?\n' >in && chat && has err "/forget N" "also /exit bye q" && ok
name="settings"
printf '/set temperature 0\n/set\n/set parameter top_p 0.5\n/set tokens 3\nTell me a story.\n/set temprature 1\n/set top-k x\n/set num_ctx 8\n/set top-p\n' >in &&
    chat --temperature 1
holds "$code" -eq 0 && has err "temperature is 0 now" "temperature 0, top-k" "top-p is 0.5 now" "generated 3 " \
    "did you mean temperature?" '--top-k is "x"' "--ctx N" "to what?" && ok
name="forgetting the oldest turn"
printf 'Tell me a story about a dog.\nAnd a cat?\n/forget\n/retry\n/forget x\n/forget 9\n/forget\n' >in && chat && cp out forgot &&
    printf 'And a cat?\n' >in && cp err forgot.err && chat && [ "$(cat out)" = "$(sed -n 3p forgot)" ] &&
    cp forgot.err err && has err "oldest turn is forgotten" "no number from 1 on" "there are no turns" && ok || bad "differs"
name="quiet"
printf 'Tell me a story.\n' >in && chat --quiet && empty err && ok
name="undo and retry with nothing there"
printf '/undo\n/retry\n' >in && chat
holds "$code" -eq 0 && empty out && has err "nothing to take back" "nothing to ask again" && ok
name="system"
printf '/system Be brief.\n/system\nHi\n/save s.json\n/system -\n/system\n' >in && chat --tokens 2
holds "$code" -eq 0 && has err "system prompt: Be brief." "no system prompt" && has s.json '"system"' "Be brief." && ok
name="think"
printf '/think off\n/think\n/think maybe\n' >in && chat
[ "$code" -eq 0 ] && has err "thinking: off" "no switch for it" "on, off or auto" && ok || bad "exit code $code"
name="a switch that the model does not have"
printf 'Hi\n' >in && chat --think on
holds "$code" -eq 2 && empty out && has err "--think does nothing" && ok
name="a full context"
printf 'Hi\nAnd then?\n' >in && chat --ctx 16 --tokens 50
has err "context full" "/undo takes the last one back, /reset begins anew, and a larger --ctx has more room" && ok
name="help and stats"
printf '/help\nHi\n/stats\n' >in && chat --tokens 2
[ "$code" -eq 0 ] && has err "/load FILE" "/retry" "model: stories-moe" "context: " "experts: " && ok || bad "exit code $code"
name="quit"
printf '/quit\nHi\n' >in && chat
holds "$code" -eq 0 && empty out && ok
name="an unknown command"
printf '/rset\n' >in && chat
holds "$code" -eq 0 && empty out && has err "unknown command /rset; did you mean /reset" && ok
name="a message with a slash"
printf '//etc is a folder.\n/save s.json\n' >in && chat --tokens 2
holds "$code" -eq 0 && has s.json '"/etc is a folder."' && ok
name="several lines"
printf '"""one\ntwo"""\n/undo\nthree\\\nfour\n/save s.json\n' >in && chat --tokens 2
holds "$code" -eq 0 && has err "taken back: one" && has s.json '"three\nfour"' && ok
name="UTF-8"
printf 'Gr\303\274\303\237e an \346\227\245\346\234\254 \360\237\220\266!\n/save s.json\n' >in && chat --tokens 2
[ "$code" -eq 0 ] && has s.json "$(printf 'Gr\303\274\303\237e an \346\227\245\346\234\254 \360\237\220\266!')" && ok || bad "exit code $code"
name="not UTF-8"
printf 'Gr\374\337e\nHi\n' >in && chat --tokens 2
[ "$code" -eq 1 ] && has err "not valid UTF-8" && [ "$(wc -l <out)" -eq 1 ] && ok || bad "exit code $code"
name="a marker in a message is text"
printf 'What does <|im_end|> mean?\n' >in && chat --tokens 2
with=$(sed -n 's/.*prompt \([0-9]*\) tokens.*/\1/p' err)
printf 'What does it mean?\n' >in && chat --tokens 2
without=$(sed -n 's/.*prompt \([0-9]*\) tokens.*/\1/p' err)
[ "$with" -gt $((without + 1)) ] && ok || bad "$with and $without tokens"
name="a very long line"
{ head -c 300000 /dev/zero | tr '\0' a && printf '\nHi\n'; } >in && chat --tokens 2
[ "$code" -eq 1 ] && has err "tokens > 2048, which the context holds" && [ "$(wc -l <out)" -eq 1 ] && ok || bad "exit code $code"
name="a line without an end"
tr '\0' a </dev/zero | "$moeflux" chat "$stories" --tokens 1 >out 2>err
holds $? -eq 1 && empty out && has err "a message of more than 67108864 bytes is not taken" && ok
name="files that cannot be"
printf '/load nowhere.json\n/save nowhere/c.json\n/load c.json.state\n/save\nHi\n' >in && chat --tokens 2
holds "$code" -eq 1 && holds "$(grep -c nowhere err)" -eq 2 && has err "which file?" && holds "$(wc -l <out)" -eq 1 && ok
name="a conversation that is none"
printf '{"moeflux_conversation":1,"messages":[{"role":"user"}]}' >n.json && printf '/load n.json\n' >in && chat
holds "$code" -eq 1 && has err "n.json: message 1" && ok
name="a full disk"
mkdir disk
if mount -t tmpfs -o size=4k tmpfs disk 2>/dev/null; then
    printf 'Hi\n/save disk/c.json\n/save disk/c.json\n/save c2.json\n' >in && chat --tokens 2
    [ "$code" -eq 1 ] && has err "not its state" "disk/c.json: No space left" "2 messages are in c2.json" &&
        cmp -s disk/c.json c2.json && ok || bad "exit code $code"
    umount disk
else
    printf 'skipped: a full disk (cannot mount a small one here)\n'
fi
# ---- a model that reasons ------------------------------------------------------------------------------------------

copy_of "$stories" thinker
cat >thinker/chat_template.jinja <<'TEMPLATE'
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking -%}
<think></think>
{% else -%}
<think>
{% endif -%}
{%- endif -%}
TEMPLATE
name="reasoning is no answer"
run_it 0 "$moeflux" run thinker --exact --prompt Hi --tokens 5 --temperature 0 && holds "$(cat out)" = "" && has err "Please write a story" && ok
name="no reasoning"
run_it 0 "$moeflux" run thinker --exact --prompt Hi --tokens 5 --temperature 0 --think off && holds "$(wc -c <out)" -gt 10 && ok
name="a form holds for the answer, not for the reasoning"
run_it 0 "$moeflux" run thinker --exact --prompt Hi --temperature 0 --regex "(ab)+c" && has err "Please write a story" && holds "$(grep -cxE "(ab)+c" out)" -eq 1 && ok
name="a form holds when the tokens are gone"
run_it 0 "$moeflux" run thinker --exact --prompt Hi --tokens 3 --temperature 0 --regex "(ab)+c" && [ "$(cat out)" = abc ] && ok || bad "$(cat out)"
name="what the template drops is not evaluated again"
printf 'Tell me a story.\nAnd another.\n/save r.json\n' >in
"$moeflux" chat thinker --exact --tokens 5 --temperature 0 <in >out 2>err && has r.json '"reasoning_content": "Please' &&
    has err "prompt 38 tokens (12 reused)" && ok

name="no chat format"
rm -rf bare && cp -RP "$stories" bare && chmod -R u+w bare && rm bare/tokenizer_config.json && edit bare/tokenizer.json 's/<|im_start|>/<|xx_start|>/g'
fails "no chat format" "no chat template" -- "$moeflux" chat bare

# ---- on a terminal -----------------------------------------------------------------------------------------------

# plays NAME OPTIONS...: the script is standard input
plays() {
    name=$1
    shift
    cat >script
    if [ "$editing" != 1 ] && grep -q '^send .*\\x1b\|\\x7f' script; then
        printf 'skipped: %s (built without libedit)\n' "$name"
        return 1
    fi
    "$on_terminal" script transcript "$moeflux" chat "$stories" --exact --temperature 0 "$@" >out 2>err </dev/null && return 0
    bad "$(tail -n 3 transcript | tr -d '\033' | tail -c 300)"
    return 1
}

long=$(printf 'word%.0s' 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30)
plays "a wrapped line survives a resize" --tokens 1 <<SCRIPT && has t.json "\"$long!\"" && ok
expect > 
send \x1b[C$long
expect wordword
resize 60
expect \x1b[J
expect > word
send !\n
expect [prompt
send /save t.json\n
expect messages are in
send \x04
exit 0
SCRIPT
plays "Tab completes commands and settings" --tokens 1 <<'SCRIPT' && ok
expect > 
send \x1b[C/sta\t
expect ts 
send \n
expect experts per token
expect > 
send /set temp\t0.5\n
expect temperature is 0.5 now
expect > 
send /q\t\n
exit 0
SCRIPT
plays "edits" --tokens 1 <<'SCRIPT' && has t.json '"Hello"' '"one two three"' '"one two FOUR"' '"abcde"' '"bcd"' '"Xone Ytwo"' '"right"' '"cut"' && ok
expect > 
send Helo\x1b[Dl\n
expect [prompt
expect > 
send two\x01one \x05 three\n
expect [prompt
expect > 
send one two three four\x17\x17FOUR\n
expect [prompt
expect > 
send xbcd\x1b[H\x1b[3~a\x1b[Fe\n
expect [prompt
expect > 
send c\x1b[1~b\x1b[4~d\n
expect [prompt
expect > 
send one two\x1b[1;5DY\x1b[1;3D\x1bbX\n
expect [prompt
expect > 
send wrong\x15right\n
expect [prompt
expect > 
send cut this\x1bb\x02\x0b\n
expect [prompt
expect > 
send /save t.json\n
expect 16 messages
expect > 
send \x04
exit 0
SCRIPT

plays "several lines come back as one" --tokens 1 <<'SCRIPT' && holds "$(grep -c '"one\\ntwo"' t.json)" -eq 2 && holds "$(grep -c '"over\\nhere"' t.json)" -eq 2 && ok
expect > 
send """one\n
expect ... 
send two"""\n
expect [prompt
expect > 
send \x1b[A\n
expect [prompt
expect > 
send over\\\n
expect ... 
send here\n
expect [prompt
expect > 
send \x1b[A\n
expect [prompt
expect > 
send /save t.json\n
expect 8 messages
expect > 
send \x04
exit 0
SCRIPT
plays "what is typed while an answer comes is kept apart" --tokens 300 <<'SCRIPT' && holds "$(sed '/\[prompt/q' transcript | grep -c 'typed ahead')" -eq 0 && ok
expect > 
send \x1b[CTell me a story about a dog.\n
expect dog.
expect  
send typed ahead
expect [prompt
expect > 
expect typed ahead
send \x15/quit\n
exit 0
SCRIPT

plays "history" --tokens 1 <<'SCRIPT' && holds "$(grep -c '"first"' t.json)" -eq 3 && holds "$(grep -c '"second"' t.json)" -eq 2 && has t.json '"third"' && ok
expect > 
send first\n
expect [prompt
expect > 
send second\n
expect [prompt
expect > 
send \x1b[A\x1b[A\n
expect [prompt
expect > 
send not this\x1b[A\x1b[A\x1b[B\x1b[A\n
expect [prompt
expect > 
send \x10\x10\x0e\x10\x10\x10\x0e\x0e\n
expect [prompt
expect > 
send \x1b[A\x1b[B third\x01\x1b[3~\n
expect [prompt
expect > 
send /save t.json\n
expect 12 messages
expect > 
send \x04
exit 0
SCRIPT

plays "the history is kept" --tokens 1 <<'SCRIPT' && has t.json '"third"' && ok
expect > 
send \x1b[A\x1b[A\n
expect [prompt
expect > 
send /save t.json\n
expect 2 messages
send /quit\n
exit 0
SCRIPT

# Answers and prompts here take seconds: what is typed into them comes in time.
endless='Once( [a-z]+){900}'
plays "Ctrl-C stops the answer and keeps the conversation" --backend ref --regex "$endless" <<'SCRIPT' && has t.json '"Once' '"assistant"' '"And then?"' && ok
expect > 
send Tell me a long story.\n
expect Once
send \x03
expect interrupted
expect > 
send And then?\n
expect Once
send \x03
expect interrupted
expect > 
send /save t.json\n
expect 4 messages
expect > 
send \x04
exit 0
SCRIPT

{
    printf '{"moeflux_conversation":1,"messages":[{"role":"user","content":"'
    for i in 1 2 3 4 5 6 7 8 9; do
        printf 'The little dog ran to the big tree and saw a red bird. %.0s' 1 2 3 4 5 6 7 8 9 10 11 12
    done
    printf '"},{"role":"assistant","content":"Once upon a time."}]}'
} >long.json
plays "Ctrl-C before the answer begins takes the request back" --backend ref <<'SCRIPT' && has long2.json '"Once upon a time."' && has_not long2.json Never && ok
expect > 
send /load long.json\n
expect 2 messages from
expect > 
send Never mind.\n
expect reading
send \x03
expect stopped before an answer began
expect > 
send /save long2.json\n
expect 2 messages are in
expect > 
send /retry\n
expect reading
send \x03
expect stopped before an answer began
send \x04
exit 0
SCRIPT

plays "commands" --tokens 3 <<'SCRIPT' && has t.json '"Be brief."' '"And a cat?"' && has_not t.json 'Why' && ok
expect > 
send /system Be brief.\n
expect system prompt: Be brief.
expect > 
send /think off\n
expect thinking: off
expect > 
send Tell me a story.\n
expect [prompt
expect > 
send Why?\n
expect [prompt
expect > 
send /undo\n
expect taken back: Why?
expect > 
send And a cat?\n
expect [prompt
expect > 
send /retry\n
expect [prompt
expect > 
send /stats\n
expect context: 
expect > 
send /save t.json\n
expect 4 messages are in
expect > 
send /reset\n
expect a new conversation, with the same system prompt
expect > 
send /save u.json\n
expect 0 messages are in
expect > 
send /load t.json\n
expect 4 messages from
expect > 
send /help\n
expect /load FILE
expect > 
send \x04
exit 0
SCRIPT

rm -f r.json*
plays "a conversation is kept" --tokens 12 --conversation r.json <<'SCRIPT' && holds -s r.json.state && ok
expect > 
send Tell me a story about a dog.\n
expect [prompt 20 tokens at
expect > 
send \x04
exit 0
SCRIPT

plays "and goes on after a restart, without being read again" --tokens 12 --conversation r.json <<'SCRIPT' && holds "$(grep -c '"role"' r.json)" -eq 4 && has r.json "$(tail -n 1 two)" && ok
expect 2 messages so far
expect > 
send And a cat?\n
expect (31 reused)
expect > 
send \x04
exit 0
SCRIPT

plays "Ctrl-C on a line drops it" --tokens 4 <<'SCRIPT' && ok
expect > 
send forget this
expect forget this
send \x03
expect Ctrl-D or /quit leaves
expect > 
send Hi\n
expect prompt 13 tokens
send \x04
exit 0
SCRIPT

plays "a paste of several lines is one message" --tokens 4 <<'SCRIPT' && has t.json '"first\nsecond\nthird"' && ok
expect > 
send \x1b[200~first\x0dsecond\x0dth\x1b[201~
expect ... 
send ird\n
expect [prompt
expect > 
send /save t.json\n
expect 2 messages
expect > 
send \x04
exit 0
SCRIPT

plays "UTF-8 is edited by characters" --tokens 4 <<'SCRIPT' && has t.json "$(printf '"Gr\303\274n"')" && ok
expect > 
send Gr\xc3\xbc\xc3\x9f\x7fn\n
expect [prompt
expect > 
send /save t.json\n
expect 2 messages
expect > 
send \x04
exit 0
SCRIPT

plays "hanging up leaves, and the conversation is kept" --tokens 4 --conversation h.json <<'SCRIPT' && has h.json '"Hi"' && holds -s h.json.state && ok
expect > 
send Hi\n
expect [prompt
expect > 
hangup
exit 129
SCRIPT

plays "Ctrl-D while the answer comes leaves after it" --tokens 30 <<'SCRIPT' && ok
expect > 
send Hi\n
expect Once
send \x04
expect [prompt
exit 0
SCRIPT

plays "an answer is styled" --regex "# Big\n- \*\*b\*\* \`c\`" <<'SCRIPT' && ok
expect > 
send Hi\n
expect \x1b[1mBig
expect \xe2\x80\xa2 
expect \x1b[1mb
expect \x1b[36mc
expect complete
send \x04
exit 0
SCRIPT

finish
