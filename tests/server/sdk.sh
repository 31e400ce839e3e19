#!/bin/sh
# sdk.sh PROGRAM MODEL WORKDIR: the official clients, unmodified, against `PROGRAM serve MODEL`.
# Exit code 77, and a word that cannot be overlooked, where node or npm's packages cannot be had.
set -eu
program=$1 model=$2 work=$3
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$work"
rm -f "$work/NOT_RUN"

not_run() {
    echo "NOT RUN: the tests with the clients of OpenAI, Anthropic and Vercel: $1" | tee "$work/NOT_RUN"
    exit 77
}

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

. "$here/lib.sh"
start_server "$program" "$model" "$work/serve.log" --api-key key-for-tests
code=0
MOEFLUX_URL=$url node --test --test-reporter=spec "$work"/openai.test.mjs "$work"/anthropic.test.mjs "$work"/vercel.test.mjs || code=$?
stop_server || code=1
exit "$code"
