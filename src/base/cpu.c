/* Which instructions may be used: what the processor has *and* the system saves on a task switch. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/file.h"
#include "base/probe.h"

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

#define XCR0_AVX 0x06u    /* xmm and ymm registers are saved */
#define XCR0_AVX512 0xe6u /* and mask and zmm registers */

static unsigned read_xcr0(void) {
    unsigned low, high;
    __asm__ __volatile__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static bool bit(unsigned word, int n) {
    return word >> n & 1;
}

static void read_brand(char name[64]) {
    unsigned words[12], max = __get_cpuid_max(0x80000000u, NULL);
    if (max < 0x80000004u) return;
    for (unsigned i = 0; i < 3; i++)
        __get_cpuid(0x80000002u + i, &words[i * 4], &words[i * 4 + 1], &words[i * 4 + 2], &words[i * 4 + 3]);
    const char *text = (const char *)words;
    size_t n = sizeof words, skip = 0;
    while (skip < n && text[skip] == ' ')
        skip++;
    n = strnlen(text + skip, n - skip);
    while (n > 0 && text[skip + n - 1] == ' ')
        n--;
    memcpy(name, text + skip, n);
    name[n] = '\0';
}

static void probe_features(mf__cpu *cpu) {
    read_brand(cpu->name);
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    bool osxsave = bit(c, 27), avx = bit(c, 28);
    unsigned xcr0 = osxsave ? read_xcr0() : 0;
    if (!avx || (xcr0 & XCR0_AVX) != XCR0_AVX) return;
    cpu->fma = bit(c, 12);
    cpu->f16c = bit(c, 29);

    unsigned a7, b7, c7, d7, a71 = 0;
    if (!__get_cpuid_count(7, 0, &a7, &b7, &c7, &d7)) return;
    if (a7 >= 1) __get_cpuid_count(7, 1, &a71, &b, &c, &d);
    cpu->avx2 = bit(b7, 5);
    cpu->avx_vnni = bit(a71, 4);
    cpu->avx512 = bit(b7, 16) && bit(b7, 17) && bit(b7, 30) && bit(b7, 31) && (xcr0 & XCR0_AVX512) == XCR0_AVX512;
    cpu->avx512_vnni = cpu->avx512 && bit(c7, 11);
    cpu->avx512_vbmi = cpu->avx512 && bit(c7, 1);
    cpu->avx512_bf16 = cpu->avx512 && bit(a71, 5);
}

#elif defined(__aarch64__)

#if defined(__linux__)
#include <sys/auxv.h>
/* From the kernel's ABI; older libc headers lack the newer ones. */
#define HWCAP_BIT_ASIMD (1ul << 1)
#define HWCAP_BIT_ASIMDDP (1ul << 20)
#define HWCAP2_BIT_I8MM (1ul << 13)

static void probe_features(mf__cpu *cpu) {
    unsigned long caps = getauxval(AT_HWCAP), caps2 = getauxval(AT_HWCAP2);
    cpu->neon = caps & HWCAP_BIT_ASIMD;
    cpu->dotprod = caps & HWCAP_BIT_ASIMDDP;
    cpu->i8mm = caps2 & HWCAP2_BIT_I8MM;
}
#elif defined(__APPLE__)
static bool has(const char *name) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value;
}

static void probe_features(mf__cpu *cpu) {
    size_t size = sizeof cpu->name;
    sysctlbyname("machdep.cpu.brand_string", cpu->name, &size, NULL, 0);
    cpu->neon = true;
    cpu->dotprod = has("hw.optional.arm.FEAT_DotProd");
    cpu->i8mm = has("hw.optional.arm.FEAT_I8MM");
}
#else
static void probe_features(mf__cpu *cpu) {
    cpu->neon = true; /* part of the base architecture */
}
#endif

#else
static void probe_features(mf__cpu *cpu) {
    (void)cpu;
}
#endif

/* Whole processors the cpu quota of our groups is worth, rounded up; 0 when there is no quota. */
static int quota_of(const mf__cgroup *group) {
    int64_t quota = -1, period = 100000;
    if (group->version == 2) {
        char text[64], *end;
        if (!mf__cgroup_read(group, "cpu.max", text, sizeof text)) return 0;
        quota = strtoll(text, &end, 10); /* "max 100000": no number, 0 */
        if (*end == ' ') period = strtoll(end, NULL, 10);
    } else if (!mf__cgroup_read_int(group, "cpu.cfs_quota_us", &quota) ||
               !mf__cgroup_read_int(group, "cpu.cfs_period_us", &period)) {
        return 0;
    }
    if (quota <= 0 || period <= 0 || quota / period >= 65536) return 0;
    return (int)((quota + period - 1) / period);
}

int mf__cpu_quota(const char *root) {
    mf__cgroup group;
    int least = 0;
    if (!mf__cgroup_find(root, "cpu", &group)) return 0;
    do {
        int n = quota_of(&group);
        if (n > 0 && (least == 0 || n < least)) least = n;
    } while (mf__cgroup_up(&group));
    return least;
}

#if defined(__linux__)
/* A processor counts as a core when it is the first of those we may use among its hyper-threads. The list is like
 * "0,64" or "0-1". */
static bool first_of_core(int cpu, const cpu_set_t *allowed) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    char *text;
    size_t size;
    if (mf__file_read(path, 4096, &text, &size, NULL) != MF_OK) return true;
    int first = cpu;
    for (char *p = text; *p >= '0' && *p <= '9';) {
        long low = strtol(p, &p, 10), high = low;
        if (*p == '-') high = strtol(p + 1, &p, 10);
        for (long i = low; i <= high && i < cpu; i++)
            if (i >= 0 && CPU_ISSET((size_t)i, allowed) && i < first) first = (int)i;
        if (*p == ',') p++;
    }
    free(text);
    return first == cpu;
}

int mf__cpu_cores(int *out, int max) {
    cpu_set_t allowed;
    int n = 0;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 0;
    for (int i = 0; i < CPU_SETSIZE && n < max; i++)
        if (CPU_ISSET((size_t)i, &allowed) && first_of_core(i, &allowed)) out[n++] = i;
    return n;
}

static void count_processors(mf__cpu *cpu) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) { /* more than 1,024 processors */
        cpu->n_logical = cpu->n_physical = (int)sysconf(_SC_NPROCESSORS_ONLN);
        return;
    }
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET((size_t)i, &allowed)) continue;
        cpu->n_logical++;
        cpu->n_physical += first_of_core(i, &allowed);
    }
}
#else
int mf__cpu_cores(int *out, int max) {
    (void)out, (void)max;
    return 0;
}

static void count_processors(mf__cpu *cpu) {
    cpu->n_logical = cpu->n_physical = (int)sysconf(_SC_NPROCESSORS_ONLN);
#if defined(__APPLE__)
    int cores = 0;
    size_t size = sizeof cores;
    if (sysctlbyname("hw.physicalcpu", &cores, &size, NULL, 0) == 0) cpu->n_physical = cores;
#endif
}
#endif

void mf__cpu_probe(mf__cpu *out) {
    *out = (mf__cpu){0};
    probe_features(out);
    count_processors(out);
    int quota = mf__cpu_quota("");
    if (quota > 0 && quota < out->n_logical) out->n_logical = quota;
    if (out->n_logical < 1) out->n_logical = 1;
    if (out->n_physical > out->n_logical) out->n_physical = out->n_logical;
    if (out->n_physical < 1) out->n_physical = 1;
    if (!*out->name) snprintf(out->name, sizeof out->name, "unknown processor");
}
