# Sourced by the tests of this folder, which are called as: NAME.sh MOEFLUX GOLDEN_DIR STORY_MODEL WORK_DIR SHRINK_GOLDEN
# Each expectation prints a line; the script ends with finish.
set -u
export LC_ALL=C
unset MOEFLUX_MODELS
moeflux=$1 golden=$2 stories=$3 work=$4 shrink=$5
rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1
export XDG_DATA_HOME="$work/data" # no test sees the models of whoever runs it
n_ok=0 n_bad=0
# The model that is meant when none is named, found from here wherever the program was built.
mkdir -p models && ln -sfn "$stories" models/stories-moe

bad() {
    n_bad=$((n_bad + 1))
    printf 'NOT OK: %s: %s\n' "$name" "$1"
    sed 's/^/    out: /' out 2>/dev/null | head -n 5 | cut -c 1-400
    sed 's/^/    err: /' err 2>/dev/null | head -n 5 | cut -c 1-400
}

# run_it WANTED_EXIT_CODE COMMAND...: leaves standard output in ./out and standard error in ./err.
run_it() {
    wanted=$1
    shift
    "$@" >out 2>err </dev/null
    code=$?
    if [ "$code" -ne "$wanted" ]; then
        bad "exit code $code, expected $wanted"
        return 1
    fi
}

has() { # FILE TEXT...: the file holds every text
    file=$1
    shift
    for text in "$@"; do
        if ! grep -qF -e "$text" "$file"; then
            bad "\"$text\" is not in std$file"
            return 1
        fi
    done
}

has_not() { # FILE TEXT
    if grep -qF -e "$2" "$1"; then
        bad "\"$2\" is in $1"
        return 1
    fi
}

holds() { # a condition as [ takes it
    test "$@" || {
        bad "not so: $*"
        return 1
    }
}

empty() {
    if [ -s "$1" ]; then
        bad "std$1 is not empty"
        return 1
    fi
}

ok() { n_ok=$((n_ok + 1)) && printf 'ok: %s\n' "$name"; }

# fails NAME TEXT... -- COMMAND...: exit code 1, one line on standard error that begins with moeflux: and holds every
# TEXT, nothing on standard output.
fails() {
    name=$1
    shift
    texts=$(mktemp texts.XXXXXX)
    while [ "$1" != -- ]; do
        printf '%s\n' "$1" >>"$texts"
        shift
    done
    shift
    run_it 1 "$@" || return 0
    empty out || return 0
    if [ "$(grep -c '^moeflux: ' err)" -ne 1 ] || [ "$(wc -l <err)" -ne 1 ]; then
        bad "standard error is not one line"
        return 0
    fi
    while IFS= read -r text; do has err "$text" || return 0; done <"$texts"
    rm -f "$texts"
    ok
}

# wrong NAME TEXT COMMAND...: the command line is refused, with TEXT on standard error.
wrong() {
    name=$1 text=$2
    shift 2
    run_it 2 "$@" && empty out && has err "$text" && ok
}

# converts_not NAME CHECKPOINT TEXT...: convert fails as above and leaves nothing behind.
converts_not() {
    name=$1 checkpoint=$2
    shift 2
    fails "$name" "$@" -- "$moeflux" convert "$checkpoint" target
    if [ -e target ] || ls -d target?* >/dev/null 2>&1; then
        bad "something was left behind: $(ls -d target*)"
        rm -rf target*
    fi
}

# A copy of a directory whose large files are links, to be replaced one by one.
copy_of() {
    rm -rf "$2"
    cp -RP "$1" "$2"
    chmod -R u+w "$2"
}

# edit FILE SED_EXPRESSION: bytes may be anything; fails loudly when nothing changed.
edit() {
    sed "$2" "$1" >edited
    if cmp -s "$1" edited; then
        name="edit $1" bad "$2 changes nothing"
    fi
    mv edited "$1"
}

cut_to() { # FILE BYTES
    head -c "$2" "$1" >edited
    mv edited "$1"
}

finish() {
    printf '%d ok, %d not ok\n' "$n_ok" "$n_bad"
    cd / && rm -rf "$work"
    [ "$n_bad" -eq 0 ] && [ "$n_ok" -gt 0 ]
    exit
}
