#!/bin/sh
# usage: marker_texts.sh BUILD_DIR TEMPLATE.jinja...
# For chat templates that are not in the tests (a checkout of llama.cpp has some seventy in models/templates): in every
# place of a request where a string can stand, a string made of all the template's markers becomes no special token.
set -eu
[ $# -ge 2 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
program=$1/tests/unit/reply/test_reply_fences
shift
exec "$program" "$@"
