#!/bin/sh
# Several ranks on this machine against one process, and a shaped wire against the model of docs/CLUSTER.md.
#
# measure_cluster.sh MOEFLUX MODEL [PART...]
#
#   ranks     one process with --ram 6G, then four ranks with --ram 5G each: bytes read per token, tokens/s, wire bytes and
#             messages per token; each in a memory group (version 1) of that size, where it can be had. MODEL does not
#             fit in 6 GB, as `moeflux synth --shape a3b`. Takes 20 GB of memory.
#   wire      two ranks in network namespaces of their own with tools/netdelay.c between them: 0.1 ms, then 10 and 1 Gbit/s
#             with it, beside what the model predicts from two ranks without a network. Needs root, ip, cc and
#             /dev/net/tun, and a MODEL that fits in memory twice.
#
# Without a part: both. TOKENS=32 tokens per run, REPEAT=3 runs, THREADS=1 per rank, DELAY=100 microseconds one way,
# SOFTWARE=0.04 milliseconds per layer. Exit code 1: a prediction is more than 30 % off. Nothing is written but to a folder
# of its own in ${TMPDIR:-/tmp}.
set -eu
[ $# -ge 2 ] || { sed -n 's/^# \{0,1\}//p' "$0" | head -n 15 && exit 2; }
here=$(dirname "$(realpath "$0")") moeflux=$(realpath "$1") model=$(realpath "$2")
shift 2
parts=${*:-ranks wire} delay=${DELAY:-100} software=${SOFTWARE:-0.04}
export LC_ALL=C OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
work=$(mktemp -d "${TMPDIR:-/tmp}/measure_cluster.XXXXXX")
groups=/sys/fs/cgroup/memory
off=0 cable=
clean() {
    if [ -n "$cable" ]; then kill "$cable" 2>/dev/null || true; fi
    ip netns del mf-a 2>/dev/null || true
    ip netns del mf-b 2>/dev/null || true
    for g in "$groups/mf_$$"_*; do if [ -d "$g" ]; then rmdir "$g"; fi; done
    rm -rf "$work"
}
trap clean EXIT
bench="bench $model --prefill 0 --decode ${TOKENS:-32} --repeat ${REPEAT:-3} --threads ${THREADS:-1} --json"
failed() {
    tail -n 5 "$work/log"
    exit 1
}

value() { # KEY FILE: the first number of that name
    sed -n "s/^ *\"$1\": \([0-9.e+-]*\),*\$/\1/p" "$2" | head -n 1
}
in_ranks() { sed -n '/"ranks": {/,/}/p' "$2" | sed -n "s/^ *\"$1\": \([0-9.e+-]*\),*\$/\1/p"; } # KEY FILE
speed() { # FILE: median tokens/s of decode
    v=$(value decode_tok_s "$1")
    [ -n "$v" ] || v=$(sed -n '/"decode_tok_s": {/,/}/p' "$1" | sed -n 's/^ *"median": \([0-9.e+-]*\),*$/\1/p' | head -n 1)
    echo "$v"
}
show() { # NAME FILE
    awk -v name="$1" -v s="$(speed "$2")" -v own="$(value bytes_read_per_token "$2")" -v rest="$(in_ranks bytes_read_per_token "$2")" \
        -v m="$(in_ranks messages_per_token "$2")" -v w="$(in_ranks wire_bytes_per_token "$2")" 'BEGIN {
        printf("%-28s %7.2f tokens/s; read per token %7.1f MB here, %7.1f MB on other ranks; %4d messages, %6.3f MB wire\n", name, s,
               own / 1e6, rest / 1e6, m, w / 1e6) }'
}

# ---- ranks
cat >"$work/group" <<'TEXT'
#!/bin/sh
# GROUP BYTES COMMAND...: in a memory group, and with its rank behind its name where there are several
group=$1_${OMPI_COMM_WORLD_RANK:-one}
if mkdir "$group" 2>/dev/null; then
    echo "$2" >"$group/memory.limit_in_bytes"
    echo 0 >"$group/memory.swappiness"
    echo $$ >"$group/cgroup.procs"
fi
shift 2
exec "$@"
TEXT
chmod +x "$work/group"
most() { # what the groups had at most, without the page cache that gives way
    for g in "$groups/mf_$$"_*; do
        if [ -d "$g" ]; then printf ' %s %d MB, %d failures;' "${g##*_}" $(($(cat "$g/memory.max_usage_in_bytes") / 1000000)) "$(cat "$g/memory.failcnt")"; fi
    done
    echo
}
if echo " $parts " | grep -q " ranks "; then
    # shellcheck disable=SC2086
    "$work/group" "$groups/mf_$$" $((6 << 30)) "$moeflux" $bench --ram 6G >"$work/one" 2>"$work/log" || failed
    show "one process, 6 GB" "$work/one"
    # shellcheck disable=SC2086
    mpirun --oversubscribe --bind-to none -n 4 "$work/group" "$groups/mf_$$" $((5 << 30)) "$moeflux" $bench --ram 5G >"$work/four" \
        2>"$work/log" || failed
    show "four ranks, 5 GB each" "$work/four"
    grep '^moeflux: rank' "$work/log" || true
    echo "memory groups, at most:$(most)"
fi
echo " $parts " | grep -q " wire " || exit $off

# ---- wire
# Two machines: a namespace each for the network and the host's name, and a cable. mpirun starts the second one's daemon by
# `agent`, as it would by ssh.
layers=$(sed -n 's/.*"num_hidden_layers": *\([0-9]*\).*/\1/p' "$model/config.json" | head -n 1)
cc -O2 -o "$work/netdelay" "$here/netdelay.c"
ip netns add mf-a
ip netns add mf-b
cat >"$work/agent" <<'TEXT'
#!/bin/sh
# HOST COMMAND...
shift
exec ip netns exec mf-b unshare --uts sh -c 'hostname mf-b; eval "$0"' "$*"
TEXT
chmod +x "$work/agent"
between() { # FILE: a bench of two ranks
    # shellcheck disable=SC2086
    ip netns exec mf-a unshare --uts sh -c 'hostname mf-a; exec "$@"' sh \
        mpirun --bind-to none --oversubscribe --host 10.77.0.1:1,10.77.0.2:1 --mca plm_rsh_agent "$work/agent" --mca btl tcp,self \
        --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 -n 2 "$moeflux" $bench >"$1" 2>"$work/log" ||
        failed
}
connect() { # MICROSECONDS GBIT/S
    if [ -n "$cable" ]; then disconnect; fi
    : >"$work/cable"
    "$work/netdelay" mf-a mf-b "$1" "$2" >>"$work/cable" 2>&1 &
    cable=$!
    while ! grep -q ready "$work/cable"; do sleep 0.05; done
    ip -n mf-a addr add 10.77.0.1/24 dev wire
    ip -n mf-b addr add 10.77.0.2/24 dev wire
    for x in a b; do ip -n mf-$x link set lo up; done
}
disconnect() { # leaves the way there and back in $trip, ms, as it was: that of ping has ping's own waking up in it
    kill "$cable"
    wait "$cable" || true
    trip=$(sed -n 's/.*late by \([0-9.]*\) us.*/\1/p' "$work/cable" | awk -v d="$delay" '{ late += $1 } END { print (2 * d + late) / 1000 }')
    sed -n 's/^\(there\|back\)/  cable, \1/p' "$work/cable"
    cable=
}
# shellcheck disable=SC2086
mpirun --oversubscribe --bind-to none -n 2 "$moeflux" $bench >"$work/here" 2>"$work/log" || failed
show "two ranks, shared memory" "$work/here"
# T: what a token takes less the waits in which messages were on their way.
T=$(awk -v s="$(speed "$work/here")" -v w="$(in_ranks wire_s_per_token "$work/here")" 'BEGIN { print 1000 / s - 1000 * w }')
echo "T $T ms per token, $layers layers"
for rate in ${RATES:-0 10 1}; do
    connect "$delay" $rate
    between "$work/shaped"
    show "two ranks, $delay us, $rate Gbit/s" "$work/shaped"
    disconnect
    awk -v T="$T" -v L="$layers" -v trip="$trip" -v s="$(speed "$work/shaped")" -v w="$(in_ranks wire_bytes_per_token "$work/shaped")" -v g=$rate \
        -v soft="$software" -v wait="$(in_ranks wire_s_per_token "$work/shaped")" 'BEGIN {
        bytes = g ? w * 8 / (0.94 * g * 1e9) * 1000 : 0; wire = L * (trip + soft) + bytes; predicted = T + wire
        measured = 1000 / s; r = predicted / measured
        printf("  round trip %.3f ms; predicted %.2f ms per token, measured %.2f: ratio %.2f%s\n", trip, predicted, measured, r,
               r > 1.3 || r < 1 / 1.3 ? "  OFF" : "")
        printf("  the wire alone: predicted %.2f ms, measured %.2f (%.2f waited); software per layer would be %.3f ms\n", wire,
               measured - T, 1000 * wait, (1000 * wait - bytes) / L - trip)
        exit r > 1.3 || r < 1 / 1.3 }' || off=1
done
exit $off
