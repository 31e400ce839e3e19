#!/bin/sh
# Memory that is what it says: from some --ram on a model runs, with all that are larger too, and inspect names it.
. "$(dirname "$0")/lib.sh"
export XDG_CACHE_HOME="$work/cache"

border=0
name="a single border"
for ram in $(seq 40 2 96) 112 128 160 200; do
    "$moeflux" run "$stories" --ram "${ram}M" --prompt "Once upon" --tokens 2 --seed 1 --temperature 0 >out 2>err </dev/null
    code=$?
    if [ "$code" -eq 0 ] && [ "$border" -eq 0 ]; then border=$ram; fi
    if [ "$code" -ne 0 ] && [ "$border" -ne 0 ]; then bad "$border MB do, $ram MB do not"; fi
    if [ "$code" -eq 0 ]; then
        [ -e first ] || cp out first
        cmp -s out first || bad "another text with $ram MB"
    elif ! grep -q -e "at least --ram [0-9]*M" err; then
        bad "the refusal of $ram MB does not say how much is needed"
    fi
done
[ "$border" -gt 40 ] && ok

name="inspect names it"
run_it 0 "$moeflux" inspect "$stories" && {
    said=$(sed -n 's/^ *one chunk .*--ram \([0-9]*\)M.*/\1/p' out)
    [ -n "$said" ] && [ "$said" -ge $((border * 9 / 10)) ] && [ "$said" -le $((border * 11 / 10 + 1)) ] && ok ||
        bad "inspect says ${said:-nothing}, $border is true"
}

name="a longer context needs more, and the refusal says how much"
run_it 1 "$moeflux" run "$stories" --ram 60M --prompt "Once upon" --tokens 2 && has err "at least --ram" "--chunk" "--kv" && ok

finish
