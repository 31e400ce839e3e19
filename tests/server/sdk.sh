#!/bin/sh
# sdk.sh PROGRAM MODEL WORKDIR clients|page: the official clients, unmodified, or the page in a browser, against
# `PROGRAM serve MODEL`. Exit code 77, and a word that cannot be overlooked, where what it takes cannot be had.
set -eu
program=$1 model=$2 work=$3 what=$4
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$work"
rm -f "$work/NOT_RUN.$what"

not_run() {
    echo "NOT RUN: the tests of the server with $what: $1" | tee "$work/NOT_RUN.$what"
    exit 77
}

browser=
if [ "$what" = page ]; then
    for name in chromium chromium-browser google-chrome; do
        if command -v "$name" >/dev/null; then browser=$(command -v "$name") && break; fi
    done
    [ -n "$browser" ] || not_run "chromium is missing"
fi

command -v node >/dev/null && command -v npm >/dev/null || not_run "node or npm is missing"
if ! cmp -s "$here/sdk/package.json" "$work/package.json" || [ ! -d "$work/node_modules/openai" ]; then
    rm -rf "$work/node_modules" "$work/package.json"
    cp "$here/sdk/package.json" "$work/package.new"
    mkdir -p "$work/new" && cp "$work/package.new" "$work/new/package.json"
    (cd "$work/new" && npm install --no-package-lock --no-audit --no-fund --ignore-scripts >"$work/npm.log" 2>&1) ||
        not_run "npm cannot be reached (see $work/npm.log)"
    mv "$work/new/node_modules" "$work/node_modules" && mv "$work/package.new" "$work/package.json"
fi
cp "$here"/sdk/*.mjs "$work/"

cd "$work"
. "$here/lib.sh"
if [ "$what" = page ]; then
    start_server "$program" "$model" "$work/page.log"
    set -- page.test.mjs
else
    start_server "$program" "$model" "$work/serve.log" --api-key key-for-tests
    set -- openai.test.mjs anthropic.test.mjs agents.test.mjs vercel.test.mjs
fi
code=0
for file in "$@"; do # one after another: some fill the server's queue, which others would meet
    MOEFLUX_URL=$url CHROMIUM=$browser node --test --test-reporter=spec "$file" || code=$?
done
stop_server || code=1
[ "$what" = clients ] || exit "$code"

# The same weights with a template that lets the model reason first.
rm -rf thinker && mkdir thinker
for file in "$model"/*; do ln -s "$(realpath "$file")" thinker/; done
rm -f thinker/chat_template.jinja
cat >thinker/chat_template.jinja <<'END'
{%- for m in messages -%}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% if enable_thinking is not defined or enable_thinking %}<think>
{% endif -%}{%- endif -%}
END
start_server "$program" thinker "$work/thinker.log" --api-key key-for-tests
MOEFLUX_URL=$url node --test --test-reporter=spec thinking.test.mjs || code=$?
stop_server || code=1
exit "$code"
