/* Memory from fake /proc and /sys trees; the processor against what the compiler's runtime says. */
#include "scratch.h"

#include "base/probe.h"

#define KB(n) ((int64_t)(n)*1024)
#define MB(n) (KB(n) * 1024)

static mf_error err;

static void meminfo(void **state) {
    scratch_text(state, "proc/meminfo",
                 "MemTotal:       16384000 kB\nMemFree:         1000000 kB\nMemAvailable:    8192000 kB\n"
                 "HugePages_Total:       0\n");
}

static mf__memory probe(void **state) {
    mf__memory m;
    if (mf__memory_probe(*state, &m, &err) != MF_OK) fail_msg("%s", err.text);
    return m;
}

static void no_groups(void **state) {
    meminfo(state);
    mf__memory m = probe(state);
    assert_int_equal(m.total, KB(16384000));
    assert_int_equal(m.available, KB(8192000));
    assert_int_equal(m.cgroup_limit, 0);
    assert_int_equal(m.usable, KB(8192000));
    assert_int_equal(mf__cpu_quota(*state), 0);
}

static void damaged_meminfo(void **state) {
    mf__memory m;
    assert_int_equal(mf__memory_probe(*state, &m, &err), MF_E_NOT_FOUND);
    scratch_text(state, "proc/meminfo", "MemTotal: 100 kB\nMemFree: 7 kB\n");
    assert_int_equal(mf__memory_probe(*state, &m, &err), MF_E_FORMAT);
    scratch_text(state, "proc/meminfo", "MemTotal: abc kB\nMemAvailable: 7 kB\n");
    assert_int_equal(mf__memory_probe(*state, &m, &err), MF_E_FORMAT);
}

static void v2_tree(void **state, const char *group, const char *mount_root) {
    char line[512];
    meminfo(state);
    snprintf(line, sizeof line, "0::%s\n", group);
    scratch_text(state, "proc/self/cgroup", line);
    snprintf(line, sizeof line,
             "22 1 0:20 / /proc rw - proc proc rw\n30 23 0:26 %s /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n",
             mount_root);
    scratch_text(state, "proc/self/mountinfo", line);
}

static void v2_limit(void **state) {
    v2_tree(state, "/user/app", "/");
    scratch_text(state, "sys/fs/cgroup/user/app/memory.max", "2147483648\n");
    scratch_text(state, "sys/fs/cgroup/user/app/memory.current", "1073741824\n");
    scratch_text(state, "sys/fs/cgroup/user/app/memory.stat",
                 "anon 1\nfile 900000000\ninactive_file 104857600\nactive_file 52428800\n");
    mf__memory m = probe(state);
    assert_int_equal(m.cgroup_limit, MB(2048));
    assert_int_equal(m.cgroup_used, MB(1024 - 150));
    assert_int_equal(m.usable, MB(1024 + 150));
}

static void v2_max_is_no_limit(void **state) {
    v2_tree(state, "/user/app", "/");
    scratch_text(state, "sys/fs/cgroup/user/app/memory.max", "max\n");
    scratch_text(state, "sys/fs/cgroup/user/app/memory.high", "max\n");
    scratch_text(state, "sys/fs/cgroup/user/app/memory.current", "1073741824\n");
    mf__memory m = probe(state);
    assert_int_equal(m.cgroup_limit, 0);
    assert_int_equal(m.cgroup_used, 0);
    assert_int_equal(m.usable, m.available);
}

static void v2_nested(void **state) {
    v2_tree(state, "/a/b/c", "/");
    scratch_text(state, "sys/fs/cgroup/a/b/c/memory.max", "max\n");
    scratch_text(state, "sys/fs/cgroup/a/b/memory.max", "1073741824\n"); /* the smallest limit, nearly empty */
    scratch_text(state, "sys/fs/cgroup/a/b/memory.current", "1048576\n");
    scratch_text(state, "sys/fs/cgroup/a/memory.max", "4294967296\n"); /* wider, but filled by others */
    scratch_text(state, "sys/fs/cgroup/a/memory.current", "4194304000\n");
    mf__memory m = probe(state);
    assert_int_equal(m.cgroup_limit, MB(1024));
    assert_int_equal(m.cgroup_used, MB(1));
    assert_int_equal(m.usable, 4294967296 - 4194304000);
}

static void v2_high_and_overdrawn(void **state) {
    v2_tree(state, "/", "/");
    scratch_text(state, "sys/fs/cgroup/memory.max", "2147483648\n");
    scratch_text(state, "sys/fs/cgroup/memory.high", "1073741824\n");
    scratch_text(state, "sys/fs/cgroup/memory.current", "1073741830\n");
    mf__memory m = probe(state);
    assert_int_equal(m.cgroup_limit, MB(1024));
    assert_int_equal(m.usable, 0);
}

static void v2_container_sees_its_own_group_as_top(void **state) {
    v2_tree(state, "/pods/x/inner", "/pods/x");
    scratch_text(state, "sys/fs/cgroup/memory.max", "1073741824\n");
    scratch_text(state, "sys/fs/cgroup/memory.current", "0\n");
    scratch_text(state, "sys/fs/cgroup/inner/memory.max", "536870912\n");
    assert_int_equal(probe(state).cgroup_limit, MB(512));
    v2_tree(state, "/pods/xy", "/pods/x"); /* not below the mounted group: the mount point is all we have */
    assert_int_equal(probe(state).cgroup_limit, MB(1024));
    v2_tree(state, "/../../other", "/");
    assert_int_not_equal(probe(state).cgroup_limit, MB(512));
}

static void v1_tree(void **state) {
    meminfo(state);
    scratch_text(state, "proc/self/cgroup",
                 "9:name=systemd:/\n5:cpu,cpuacct:/box\n4:hugetlb,memory:/docker/0123\n0::/\n");
    scratch_text(state, "proc/self/mountinfo",
                 "33 24 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
                 "34 24 0:29 /docker/0123 /sys/fs/cgroup/me\\040mory ro,nosuid shared:15 - cgroup cgroup rw,memory\n"
                 "35 24 0:30 / /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n");
}

static void v1_limit(void **state) {
    v1_tree(state);
    scratch_text(state, "sys/fs/cgroup/me mory/memory.limit_in_bytes", "1073741824\n");
    scratch_text(state, "sys/fs/cgroup/me mory/memory.usage_in_bytes", "524288000\n");
    scratch_text(state, "sys/fs/cgroup/me mory/memory.stat",
                 "inactive_file 1\nactive_file 2\nhierarchical_memory_limit 1073741824\ntotal_inactive_file 104857600\n"
                 "total_active_file 0\n");
    scratch_text(state, "sys/fs/cgroup/unified/memory.max", "4096\n"); /* the controller is not here */
    mf__memory m = probe(state);
    assert_int_equal(m.cgroup_limit, MB(1024));
    assert_int_equal(m.cgroup_used, MB(400));
    assert_int_equal(m.usable, MB(624));
}

static void v1_unlimited_but_for_a_parent(void **state) {
    v1_tree(state);
    scratch_text(state, "sys/fs/cgroup/me mory/memory.limit_in_bytes", "9223372036854771712\n");
    scratch_text(state, "sys/fs/cgroup/me mory/memory.usage_in_bytes", "1048576\n");
    assert_int_equal(probe(state).cgroup_limit, 0);
    scratch_text(state, "sys/fs/cgroup/me mory/memory.stat", "cache 0\nhierarchical_memory_limit 536870912\n");
    mf__memory m = probe(state);
    assert_int_equal(m.cgroup_limit, MB(512));
    assert_int_equal(m.usable, MB(511));
}

static void nonsense_is_no_limit(void **state) {
    v2_tree(state, "/g", "/");
    static const char *const texts[] = {"", "\n", "lots\n", "-1\n", "99999999999999999999999\n", "12 34\n"};
    for (size_t i = 0; i < MF__COUNT(texts); i++) {
        scratch_text(state, "sys/fs/cgroup/g/memory.max", texts[i]);
        assert_int_equal(probe(state).cgroup_limit, 0);
    }
    scratch_text(state, "proc/self/mountinfo", "- cgroup2\n - \n1 2 3 - cgroup2 x y\n - cgroup2 cgroup2 rw");
    assert_int_equal(probe(state).cgroup_limit, 0);
    scratch_text(state, "proc/self/cgroup", "::::\n\n0\n0:\n0::\nmemory\n:memory\n");
    assert_int_equal(probe(state).cgroup_limit, 0);
}

static void cpu_quotas(void **state) {
    v2_tree(state, "/a/b", "/");
    scratch_text(state, "sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_int_equal(mf__cpu_quota(*state), 0);
    scratch_text(state, "sys/fs/cgroup/a/b/cpu.max", "400000 100000\n");
    assert_int_equal(mf__cpu_quota(*state), 4);
    scratch_text(state, "sys/fs/cgroup/a/cpu.max", "150000 100000\n"); /* the parent allows less: 1.5 is 2 */
    assert_int_equal(mf__cpu_quota(*state), 2);
    scratch_text(state, "sys/fs/cgroup/a/cpu.max", "1000 100000\n");
    assert_int_equal(mf__cpu_quota(*state), 1);
    v1_tree(state);
    scratch_text(state, "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "-1\n");
    scratch_text(state, "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
    assert_int_equal(mf__cpu_quota(*state), 0);
    scratch_text(state, "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "250000\n");
    assert_int_equal(mf__cpu_quota(*state), 3);
}

static void this_machine(void **state) {
    (void)state;
    mf__memory m;
    assert_int_equal(mf__memory_probe("", &m, &err), MF_OK);
    assert_true(m.total > MB(16) && m.available > 0 && m.available <= m.total);
    assert_true(m.usable >= 0 && m.usable <= m.available);
    assert_true(m.cgroup_limit >= 0);

    mf__cpu cpu;
    mf__cpu_probe(&cpu);
    assert_true(cpu.n_logical >= 1 && cpu.n_logical <= sysconf(_SC_NPROCESSORS_CONF));
    assert_true(cpu.n_physical >= 1 && cpu.n_physical <= cpu.n_logical);
    assert_true(strlen(cpu.name) > 0);
#if defined(__x86_64__)
    __builtin_cpu_init();
    assert_int_equal(cpu.avx2, !!__builtin_cpu_supports("avx2"));
    assert_int_equal(cpu.fma, !!__builtin_cpu_supports("fma"));
    assert_int_equal(cpu.avx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"));
    assert_int_equal(cpu.avx512_vnni, !!__builtin_cpu_supports("avx512vnni"));
    assert_int_equal(cpu.avx512_bf16, !!__builtin_cpu_supports("avx512bf16"));
    assert_false(cpu.neon || cpu.dotprod || cpu.i8mm);
#elif defined(__aarch64__)
    assert_true(cpu.neon);
    assert_false(cpu.avx2 || cpu.avx512);
#endif
#if defined(__linux__) && defined(__x86_64__)
    char *text, *flags;
    size_t size;
    assert_int_equal(mf__file_read("/proc/cpuinfo", 64 << 20, &text, &size, &err), MF_OK);
    if ((flags = strstr(text, "\nflags"))) {
        *strchr(flags + 1, '\n') = '\0';
        assert_int_equal(cpu.f16c, strstr(flags, " f16c") != NULL);
        assert_int_equal(cpu.avx_vnni, strstr(flags, " avx_vnni") != NULL);
    }
    free(text);
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(no_groups),
        SCRATCH_TEST(damaged_meminfo),
        SCRATCH_TEST(v2_limit),
        SCRATCH_TEST(v2_max_is_no_limit),
        SCRATCH_TEST(v2_nested),
        SCRATCH_TEST(v2_high_and_overdrawn),
        SCRATCH_TEST(v2_container_sees_its_own_group_as_top),
        SCRATCH_TEST(v1_limit),
        SCRATCH_TEST(v1_unlimited_but_for_a_parent),
        SCRATCH_TEST(nonsense_is_no_limit),
        SCRATCH_TEST(cpu_quotas),
        cmocka_unit_test(this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
