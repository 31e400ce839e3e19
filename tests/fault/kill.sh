#!/bin/bash
# usage: kill.sh MOEFLUX MAKE_CHECKPOINT WORK_DIR [KILLS [LAYERS]]
# Kills a conversion at random moments, by SIGKILL and by SIGINT, and goes on each time with the same command: what comes
# out is byte for byte what an undisturbed conversion gives, and the source is as it was.
set -eu
export LC_ALL=C
moeflux=$1 make=$2 work=$3 kills=${4:-20} layers=${5:-6}
rm -rf "$work"
mkdir -p "$work"
cd "$work"
trap 'cd / && rm -rf "$work"' EXIT

die() {
    echo "NOT OK: $*"
    exit 1
}

"$make" source tiny "$layers"
before=$(cd source && ls -l --time-style=full-iso && sha256sum ./*)
options=(--experts 4 --trunk 8)
started=$(date +%s%N)
"$moeflux" convert source whole "${options[@]}" 2>log || die "$(cat log)"
took=$((($(date +%s%N) - started) / 1000000))
echo "undisturbed: $took ms"

# One round: converts until it is done, killed `n` times on the way at moments drawn from the time a whole run takes.
killed=0 resumed=0 round=0
while [ "$killed" -lt "$kills" ]; do
    round=$((round + 1))
    rm -rf target target.partial
    while true; do
        "$moeflux" convert source target "${options[@]}" 2>log &
        pid=$!
        if [ "$killed" -ge "$kills" ]; then
            wait "$pid" || die "the last run: $(cat log)"
            break
        fi
        sleep "$(printf '0.%03d' $((RANDOM % (took < 900 ? took : 900) + 5)))"
        if [ $((RANDOM % 4)) -eq 0 ]; then signal=INT; else signal=KILL; fi
        kill -$signal "$pid" 2>/dev/null || true
        code=0
        wait "$pid" 2>/dev/null || code=$?
        if grep -q 'going on where' log; then resumed=$((resumed + 1)); fi
        case $code in
        0) break ;;
        137 | 130) killed=$((killed + 1)) ;;
        *) die "exit code $code after SIG$signal: $(cat log)" ;;
        esac
        if [ -e target ]; then break; fi # killed when all was done: it must be whole
        if [ -e target.partial ]; then
            "$moeflux" inspect target.partial >/dev/null 2>&1 && die "an unfinished directory opens"
        fi
    done
    diff -r -x .moeflux-partial -x .moeflux-journal whole target >/dev/null || die "round $round: the result differs: $(diff -rq whole target)"
    [ ! -e target.partial ] || die "target.partial is still there"
done
"$moeflux" verify target --against source 2>log || die "$(cat log)"
[ "$resumed" -gt 0 ] || die "no run went on with what an earlier one had done"
[ "$before" = "$(cd source && ls -l --time-style=full-iso && sha256sum ./*)" ] || die "the source changed"
echo "$killed kills in $round conversions, $resumed of the runs went on: each result byte for byte the same"
