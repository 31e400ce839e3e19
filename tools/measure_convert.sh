#!/bin/bash
# usage: measure_convert.sh BUILD_DIR WORK_DIR [speed|memory]: the numbers of docs/SPEED_LOG.md about conversion.
#   speed   writes and verifies a random model of the shape a3b (21 GB), beside dd on the same disk
#   memory  converts four layers of that shape (8.4 GB of BF16) inside a memory group of 1.9 GB (as root, cgroup v1)
set -eu
export LC_ALL=C
build=$(realpath "$1") what=${3:-speed}
moeflux=$build/apps/moeflux/moeflux make=$build/tests/fault/make_checkpoint
mkdir -p "$2"
cd "$2"

rate() { # dd's last words
    sed -n 's/.*s, //p'
}

speed() {
    trap 'rm -rf random dd.bin' EXIT
    uptime
    echo "dd write:  $(dd if=/dev/zero of=dd.bin bs=16M count=512 oflag=direct conv=fsync 2>&1 | rate)"
    rm dd.bin
    "$moeflux" synth random --shape a3b 2>&1 | tail -n 1
    echo "dd write:  $(dd if=/dev/zero of=dd.bin bs=16M count=512 oflag=direct conv=fsync 2>&1 | rate)"
    echo "dd read:   $(dd if=dd.bin of=/dev/null bs=16M iflag=direct 2>&1 | rate)"
    "$moeflux" verify random 2>&1 | tail -n 1
    echo "dd read:   $(dd if=dd.bin of=/dev/null bs=16M iflag=direct 2>&1 | rate)"
}

memory() {
    group=/sys/fs/cgroup/memory/moeflux_measure
    trap 'rm -rf source target; rmdir "$group"' EXIT
    mkdir -p "$group"
    echo 1900000000 >"$group/memory.limit_in_bytes"
    [ -d source ] || "$make" source a3b 4
    du -sh source
    (
        echo $BASHPID >"$group/cgroup.procs"
        exec "$moeflux" convert source target --preset balanced
    ) 2>&1 | tail -n 1
    echo "peak of the group: $(($(cat "$group/memory.max_usage_in_bytes") / 1000000)) MB," \
        "of which kernel: $(($(cat "$group/memory.kmem.max_usage_in_bytes" 2>/dev/null || echo 0) / 1000000)) MB," \
        "times at the limit: $(cat "$group/memory.failcnt")"
    "$moeflux" verify target 2>&1 | tail -n 1
}

$what
