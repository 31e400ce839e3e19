#!/bin/sh
# A memory group smaller than the experts: the budget the store finds by itself keeps the process alive in it.
# usage: cgroup.sh TEST_STORE_READS. Needs a writable version 1 memory group and room for 400 MB of files; says so and
# skips (exit code 77) elsewhere.
set -eu
reads=$1
root=/sys/fs/cgroup/memory
limit=$((160 * 1024 * 1024))

skip() {
    echo "SKIPPED: $*"
    exit 77
}

[ -w "$root/cgroup.procs" ] || skip "no memory group (version 1) that can be written"
free_kb=$(df -Pk . | awk 'NR == 2 { print $4 }')
[ "$free_kb" -gt 600000 ] || skip "no room for 400 MB of files"
group=$root/moeflux_test_$$
mkdir "$group" 2>/dev/null || skip "no new memory group can be made"
files=$(mktemp -d ./cgroup_files.XXXXXX)
clean() {
    rm -rf "$files"
    rmdir "$group" 2>/dev/null || true
}
trap clean EXIT
echo "$limit" >"$group/memory.limit_in_bytes" || skip "the group takes no limit"

# 256 experts of 1.7 MB; 0: as much as the group allows.
"$reads" "$files" 4 64 1769472 0.1 32 8 8 >/dev/null # makes the files, outside the group
sh -c "echo \$\$ >$group/cgroup.procs && exec \"$reads\" \"$files\" 4 64 1769472 1 0 8 8"
peak=$(cat "$group/memory.max_usage_in_bytes")
killed=$(awk '$1 == "oom_kill" { print $2 }' "$group/memory.oom_control")
echo "limit $limit, peak $peak, killed ${killed:-0}"
[ "$peak" -le "$limit" ] || exit 1
[ "${killed:-0}" -eq 0 ] || exit 1
