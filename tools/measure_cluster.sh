#!/bin/sh
# Several ranks on this machine against one process, and shaped wires against the model of docs/CLUSTER.md.
#
# measure_cluster.sh MOEFLUX MODEL [PART...]     MODEL: a directory that does not fit in 6 GB, as `moeflux synth --shape a3b`
#
#   ranks     one process with --ram 6G, then four ranks with --ram 5G each: bytes read per token, tokens/s, wire bytes and
#             messages per token. Takes 20 GB of memory.
#   wire      two ranks in network namespaces of their own: as fast as the system is, then shaped to 10 and 1 Gbit/s (tbf),
#             beside what the model predicts from the first. Needs root, ip, tc and ethtool or TSO that is cut by tbf.
#
# Without a part: both. TOKENS=32 tokens per run, REPEAT=3 runs, THREADS=1 per rank. Exit code 1: a prediction is more than
# 30 % off. Nothing is written but to a folder of its own in ${TMPDIR:-/tmp}.
set -eu
[ $# -ge 2 ] || { sed -n 's/^# \{0,1\}//p' "$0" | head -n 13 && exit 2; }
moeflux=$(realpath "$1") model=$(realpath "$2")
shift 2
parts=${*:-ranks wire}
export LC_ALL=C OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
work=$(mktemp -d "${TMPDIR:-/tmp}/measure_cluster.XXXXXX")
off=0
clean() {
    ip netns del mf-a 2>/dev/null || true
    ip netns del mf-b 2>/dev/null || true
    rm -rf "$work"
}
trap clean EXIT
bench="bench $model --prefill 0 --decode ${TOKENS:-32} --repeat ${REPEAT:-3} --threads ${THREADS:-1} --json"

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
        printf("%-28s %6.2f tokens/s; read per token %7.1f MB here, %7.1f MB on other ranks; %4d messages, %6.2f MB wire\n", name, s,
               own / 1e6, rest / 1e6, m, w / 1e6) }'
}

if echo " $parts " | grep -q " ranks "; then
    # shellcheck disable=SC2086
    "$moeflux" $bench --ram 6G >"$work/one" 2>"$work/log" || { tail -n 3 "$work/log" && exit 1; }
    show "one process, 6 GB" "$work/one"
    # shellcheck disable=SC2086
    mpirun --oversubscribe --bind-to none -n 4 "$moeflux" $bench --ram 5G >"$work/four" 2>"$work/log" ||
        { tail -n 3 "$work/log" && exit 1; }
    show "four ranks, 5 GB each" "$work/four"
    grep '^moeflux: rank' "$work/log" || true
fi
echo " $parts " | grep -q " wire " || exit $off

# Two machines: a namespace each for the network and the host's name, a pair of interfaces between them. mpirun starts the
# second one's daemon by `agent`, as it would by ssh.
ip netns add mf-a
ip netns add mf-b
ip link add mf-a netns mf-a type veth peer name mf-b netns mf-b
for x in a b; do
    ip -n mf-$x link set lo up
    ip -n mf-$x link set mf-$x up
    if command -v ethtool >/dev/null 2>&1; then ip netns exec mf-$x ethtool -K mf-$x tso off gso off gro off >/dev/null 2>&1 || true; fi
    ip -n mf-$x link set mf-$x gso_max_size 2048 gso_max_segs 1 2>/dev/null || true
done
ip -n mf-a addr add 10.77.0.1/24 dev mf-a
ip -n mf-b addr add 10.77.0.2/24 dev mf-b
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
        { tail -n 5 "$work/log" && exit 1; }
}
shape() { # RATE in Gbit/s, both ways. The bucket holds what passes while its timer sleeps (about 30 us), and no more.
    for x in a b; do
        ip netns exec mf-$x tc qdisc replace dev mf-$x root tbf rate "$1gbit" burst "$(($1 * 4000))" latency 50ms
    done
}
between "$work/free"
show "two ranks, no limit" "$work/free"
command -v ping >/dev/null 2>&1 && echo "round trip $(ip netns exec mf-a ping -q -c 200 -i 0.002 10.77.0.2 2>/dev/null | sed -n 's/.*= [0-9.]*\/\([0-9.]*\)\/.*/\1/p') ms"
for rate in 10 1; do
    shape $rate
    between "$work/shaped"
    show "two ranks, $rate Gbit/s" "$work/shaped"
    awk -v f="$(speed "$work/free")" -v s="$(speed "$work/shaped")" -v w="$(in_ranks wire_bytes_per_token "$work/shaped")" -v g=$rate 'BEGIN {
        predicted = 1000 / f + w * 8 / (0.94 * g * 1e9) * 1000; measured = 1000 / s; r = predicted / measured
        printf("  predicted %.2f ms per token, measured %.2f: ratio %.2f%s\n", predicted, measured, r, r > 1.3 || r < 1 / 1.3 ? "  OFF" : "")
        exit r > 1.3 || r < 1 / 1.3 }' || off=1
done
exit $off
