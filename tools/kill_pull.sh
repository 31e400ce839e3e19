#!/bin/sh
# `moeflux pull` of a synthetic checkpoint from a hub on this machine, killed again and again: what comes is what a straight
# conversion gives, and the disk never needs more than the result and two shards.
#
# kill_pull.sh MOEFLUX WORK [GIGABYTES [KILLS]]       WORK gets about four times as much, and is to be removed afterwards
set -eu
[ $# -ge 2 ] || { sed -n 's/^# \{0,1\}//p' "$0" | head -n 5 && exit 2; }
moeflux=$1 work=$2 size=${3:-8} kills=${4:-30}
top=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$work/root/org"
cd "$work"
[ -d root/org/big ] || python3 "$top/tools/make_checkpoint.py" root/org/big "$size" 16
: >faults
python3 "$top/tests/hub/hub.py" root faults log port 2>hub.err &
hub=$!
trap 'kill $hub' EXIT
until [ -s port ]; do sleep 0.1; done

used() { du -s -B1 models 2>/dev/null | cut -f1; } # bytes that are allocated, not sizes of sparse files
most=0
watch() { # PID SECONDS: until it ends, or for so long
    end=$(($(date +%s%N) / 1000000 + $2))
    while kill -0 "$1" 2>/dev/null && [ $(($(date +%s%N) / 1000000)) -lt $end ]; do
        now=$(used || echo 0)
        [ "${now:-0}" -le $most ] || most=$now
        sleep 0.05
    done
}

pull() { exec "$moeflux" pull org/big -q --models models --endpoint "http://127.0.0.1:$(cat port)" --allow-http "$@"; }
(pull --dry-run >out) # the hub has hashed its files by then
rm -rf models
n=0 code=1
while [ $code -ne 0 ]; do
    pull >out 2>err </dev/null &
    pid=$!
    [ $n -ge "$kills" ] && watch $pid 3600000 || watch $pid $((500 + n * 577 % 3000))
    if [ $n -lt "$kills" ] && kill -9 $pid 2>/dev/null; then n=$((n + 1)); fi
    wait $pid && code=0 || code=$?
    case $code in 0 | 137) ;; *) echo "exit code $code: $(cat err)" && exit 1 ;; esac
done
"$moeflux" convert root/org/big straight --preset balanced -q
diff -r -x origin.json straight models/big
[ ! -e models/big.download ] && [ ! -e models/big.partial ]
result=$(du -s -B1 models/big | cut -f1) shard=$(stat -c %s root/org/big/*.safetensors | sort -n | tail -n 1)
echo "killed $n times; the same as a straight conversion"
echo "disk: at most $most bytes, of which the result $result: the rest is $(((most - result) * 100 / shard)) % of a shard of $shard"
[ $most -le $((result + 2 * shard)) ]
