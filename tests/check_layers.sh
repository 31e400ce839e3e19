#!/bin/sh
# The house's order, checked: check_layers.sh SRC [PROGRAM]
#   1. Folders under SRC include downward only (levels below); same-level includes are mistakes too. A part may
#      include its own files, subfolders included; but the backends (backend/X) know backend/ only, not each other.
#   2. The library never prints, exits, aborts or reads the environment.
#   3. With a second argument, the program's folder: what talks to models (run, chat, answer, the server) includes
#      moeflux.h and files of the program alone.
# check_layers.sh --self-test checks that this script finds each kind of violation.
set -eu

# A folder that is not here has no place in the house yet: give it a level.
level() {
    case $1 in
    base) echo 0 ;;
    quant | text | graph) echo 1 ;;
    weights | store | backend) echo 2 ;;
    model) echo 3 ;;
    engine | convert) echo 4 ;;
    reply) echo 5 ;;
    *) echo unknown ;;
    esac
}

n_bad=0
bad() {
    echo "$*"
    n_bad=$((n_bad + 1))
}

# The file without comments, strings and character constants, line for line. Includes are kept as they are.
code_of() {
    awk '
        /^[ \t]*#[ \t]*include/ && !comment { print; next }
        {
            line = $0; out = ""
            while (length(line)) {
                if (comment) {
                    i = index(line, "*/")
                    if (!i) { line = ""; break }
                    line = substr(line, i + 2); comment = 0
                } else if (substr(line, 1, 2) == "/*") { comment = 1; line = substr(line, 3); out = out " " }
                else if (substr(line, 1, 2) == "//") line = ""
                else if (match(line, /^"(\\.|[^"\\])*"/)) { out = out "\"\""; line = substr(line, RLENGTH + 1) }
                else if (match(line, /^\047(\\.|[^\047\\])*\047/)) { out = out "0"; line = substr(line, RLENGTH + 1) }
                else { out = out substr(line, 1, 1); line = substr(line, 2) }
            }
            print out
        }' "$1"
}

# check_include FILE FOLDER INCLUDED: FOLDER is "base" or "backend/ref"; INCLUDED is the text between the quotes.
check_include() {
    case $3 in
    moeflux.h) return 0 ;; # the public header: everybody's
    *../*)
        bad "$1: includes \"$3\"; write paths from src/"
        return 0
        ;;
    */*) target=${3%/*} ;;
    *) target=$2 ;;
    esac
    if [ "$target" = "$2" ]; then return 0; fi
    if [ "${target%%/*}" = "${2%%/*}" ]; then # another folder of the same part
        if [ "$target" = backend ] || [ "${2%%/*}" != backend ]; then return 0; fi
    fi
    from=$(level "${2%%/*}")
    to=$(level "${target%%/*}")
    if [ "$to" = unknown ]; then
        bad "$1: includes \"$3\", which is in no known folder"
    elif [ "$to" -ge "$from" ]; then
        bad "$1 (level $from) includes \"$3\" (level $to); includes go downward only"
    fi
}

# check_calls FILE: whole words before a parenthesis; snprintf, vsnprintf and mf__... names are other words.
check_calls() {
    calls=$(code_of "$1" | grep -nE '(^|[^A-Za-z0-9_])(printf|fprintf|vprintf|vfprintf|dprintf|puts|fputs|putchar|putc|fputc|perror|exit|_exit|_Exit|quick_exit|abort|getenv|secure_getenv)[[:space:]]*\(' || true)
    if [ -n "$calls" ]; then bad "$1: the library never prints, exits, aborts or reads the environment: $calls"; fi
    streams=$(code_of "$1" | grep -nE '(^|[^A-Za-z0-9_])(stdout|stderr)([^A-Za-z0-9_]|$)' || true)
    if [ -n "$streams" ]; then bad "$1: the library has no business with stdout or stderr: $streams"; fi
}

# What the program's talkers may include: the public header, their neighbours, and the clock, which knows nothing.
check_talker() { # FILE
    for included in $(code_of "$1" | sed -n 's/^[ \t]*#[ \t]*include[ \t]*"\([^"]*\)".*/\1/p'); do
        case $included in
        server/* | cluster/cluster.h | base/clock.h) continue ;;
        */*) ;;
        *) continue ;;
        esac
        bad "$1: includes \"$included\"; it knows moeflux.h and the program's own files alone"
    done
}

check_program() {
    for file in "$1"/run.[ch] "$1"/chat.[ch] "$1"/chat_commands.[ch] "$1"/answer.[ch] "$1"/screen.[ch] \
        $(find "$1/server" -name '*.[ch]' 2>/dev/null); do
        if [ -f "$file" ]; then check_talker "$file"; fi
    done
}

check_tree() {
    src=${1%/}
    if [ -n "${2:-}" ]; then check_program "${2%/}"; fi
    n_files=0
    for file in $(find "$src" -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort); do
        n_files=$((n_files + 1))
        folder=${file#"$src"/}
        case $folder in
        */*) folder=${folder%/*} ;;
        *)
            bad "$file: a source file outside the folders"
            continue
            ;;
        esac
        if [ "$(level "${folder%%/*}")" = unknown ]; then
            bad "$file: the folder $folder has no level"
            continue
        fi
        for included in $(code_of "$file" | sed -n 's/^[ \t]*#[ \t]*include[ \t]*"\([^"]*\)".*/\1/p'); do
            check_include "$file" "$folder" "$included"
        done
        check_calls "$file"
    done
    if [ "$n_files" -eq 0 ]; then bad "no source files under $src"; fi
    if [ "$n_bad" -gt 0 ]; then
        echo "$n_bad violations in $n_files files"
        return 1
    fi
    echo "$n_files files, each in its place"
}

# ---- self-test: one bad file at a time, each must be found; the good tree must pass ------------------------------

n_cases=0
expect() { # expect pass|fail FILE CONTENT
    n_cases=$((n_cases + 1))
    mkdir -p "$tree/$(dirname "$2")"
    printf '%s\n' "$3" >"$tree/$2"
    result=pass
    "$0" "$tree" "$tree/../app" >/dev/null || result=fail
    rm "$tree/$2"
    if [ "$result" != "$1" ]; then
        echo "expected $1, got $result: $2 with: $3"
        exit 1
    fi
}

self_test() {
    top=$(mktemp -d)
    trap 'rm -rf "$top"' EXIT
    tree=$top/src
    mkdir -p "$tree/base"
    echo 'int x;' >"$tree/base/a.c"
    expect pass model/a.c '#include "graph/graph.h"'
    expect pass quant/a.c '#include "quant/b.h"'
    expect pass quant/a.c '#include "b.h"'
    expect pass quant/a.c '#include <stdio.h>'
    expect pass backend/ref/a.c '#include "backend/backend.h"'
    expect pass backend/ref/a.c '#include "backend/ref/ref.h"'
    expect pass base/b.c '#include "moeflux.h"'
    expect pass base/b.c 'int n = snprintf(s, 3, "printf(") + vsnprintf(s, 3, f, ap); /* exit(1) */ // abort()'
    expect pass base/b.c '/* #include "engine/engine.h"
#include "engine/engine.h"
exit(1); */'
    expect pass base/b.c 'void mf__strbuf_printf(int); int on_exit_do(int); char c = 34; int n_abort;'
    expect fail base/b.c '#include "quant/type.h"'
    expect fail base/b.c '  #  include   "engine/engine.h"'
    expect fail quant/a.c '#include "text/tokenizer.h"'
    expect fail weights/a.c '#include "store/store.h"'
    expect fail graph/a.h '#include "backend/backend.h"'
    expect fail engine/a.c '#include "convert/convert.h"'
    expect fail backend/a.c '#include "backend/ref/ref.h"'
    expect fail backend/cpu/a.c '#include "backend/ref/ref.h"'
    expect fail backend/cpu/a.c '#include "store/store.h"'
    expect fail quant/a.c '#include "../engine/engine.h"'
    expect fail base/b.c '#include "elsewhere/x.h"'
    expect fail elsewhere/x.c 'int y;'
    expect fail x.c 'int y;'
    for call in 'printf("x")' 'fprintf(f, "x")' 'exit(1)' 'abort()' 'getenv("HOME")' 'puts ("x")' 'perror(s)'; do
        expect fail base/b.c "void f(void) { if (x) $call; }"
        expect fail base/b.c "/* why */ $call;"
        expect fail base/b.c "char *q = \"\\\"\"; char c = '\"'; $call; // \""
    done
    expect fail base/b.c 'FILE *f = stderr;'
    expect pass ../app/run.c '#include "answer.h"'
    expect pass ../app/run.c '#include "moeflux.h"'
    expect pass ../app/inspect.c '#include "engine/internal.h"'
    expect pass ../app/server/a.c '#include <event2/event.h>'
    expect fail ../app/run.c '#include "text/chat.h"'
    expect fail ../app/chat.c '#include "base/json.h"'
    expect fail ../app/server/a.c '#include "engine/internal.h"'
    expect pass reply/a.c '#include "text/text.h"'
    expect fail text/a.c '#include "reply/reply.h"'
    rm "$tree/base/a.c"
    if "$0" "$tree" >/dev/null; then
        echo "an empty tree passes"
        exit 1
    fi
    echo "$n_cases cases as expected"
}

case ${1:-} in
--self-test) self_test ;;
'' | -*)
    echo "usage: check_layers.sh SRC [PROGRAM] | --self-test" >&2
    exit 2
    ;;
*) check_tree "$1" "${2:-}" ;;
esac
