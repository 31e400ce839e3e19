/* How much memory is really there: the smaller of what the system has left and what our control groups leave us. */
#include "base/probe.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cgroup.h"
#include "base/file.h"

#if defined(__APPLE__)
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif

/* Version 1 writes "no limit" as the largest page-aligned number; no machine has an exbibyte. */
#define NO_LIMIT ((int64_t)1 << 60)

/* The number behind `key` at the beginning of a line; -1 when there is none. */
static int64_t field(const char *text, const char *key) {
    size_t n = strlen(key);
    for (const char *p = text; p; p = strchr(p, '\n')) {
        if (*p == '\n') p++;
        if (strncmp(p, key, n) != 0 || (p[n] != ' ' && p[n] != '\t')) continue;
        char *end;
        long long value = strtoll(p + n, &end, 10);
        return end != p + n && value >= 0 ? value : -1;
    }
    return -1;
}

/* What one group allows, and what of it is used and cannot be had back by dropping file cache. */
static void group_usage(const mf__cgroup *group, int64_t *limit, int64_t *used) {
    bool v2 = group->version == 2;
    char stat[8192];
    if (!mf__cgroup_read(group, "memory.stat", stat, sizeof stat)) stat[0] = '\0';

    *limit = NO_LIMIT;
    int64_t v;
    if (mf__cgroup_read_int(group, v2 ? "memory.max" : "memory.limit_in_bytes", &v) && v >= 0) *limit = v;
    /* Above memory.high the group is throttled rather than killed; for us that is a limit all the same. */
    if (v2 && mf__cgroup_read_int(group, "memory.high", &v) && v >= 0 && v < *limit) *limit = v;
    /* Version 1 also tells the smallest limit of the parents, of which a container may see nothing else. */
    if (!v2 && (v = field(stat, "hierarchical_memory_limit")) >= 0 && v < *limit) *limit = v;

    if (!mf__cgroup_read_int(group, v2 ? "memory.current" : "memory.usage_in_bytes", used) || *used < 0) *used = 0;
    const char *keys[2] = {v2 ? "inactive_file" : "total_inactive_file", v2 ? "active_file" : "total_active_file"};
    for (int i = 0; i < 2; i++) {
        int64_t cache = field(stat, keys[i]);
        if (cache > 0) *used = cache < *used ? *used - cache : 0;
    }
}

/* cgroup_limit and cgroup_used are those of the smallest limit; usable is bounded by every group on the way up, for a
 * wide group that its other members have filled may leave less than a narrow one. */
static void apply_groups(const char *root, mf__memory *m) {
    mf__cgroup group;
    if (!mf__cgroup_find(root, "memory", &group)) return;
    do {
        int64_t limit, used;
        group_usage(&group, &limit, &used);
        if (limit >= NO_LIMIT) continue;
        if (m->cgroup_limit == 0 || limit < m->cgroup_limit) {
            m->cgroup_limit = limit;
            m->cgroup_used = used;
        }
        int64_t left = limit > used ? limit - used : 0;
        if (left < m->usable) m->usable = left;
    } while (mf__cgroup_up(&group));
}

static mf_status probe_system(const char *root, mf__memory *m, mf_error *err) {
    char path[4200];
    if (snprintf(path, sizeof path, "%s/proc/meminfo", root) >= (int)sizeof path)
        return mf__fail(err, MF_E_INVALID, "the path %.100s... is too long", root);
    char *text;
    size_t size;
    MF__TRY(mf__file_read(path, (size_t)1 << 20, &text, &size, err));
    int64_t total = field(text, "MemTotal:"), available = field(text, "MemAvailable:");
    free(text);
    if (total < 0 || available < 0 || total > NO_LIMIT / 1024)
        return mf__fail(err, MF_E_FORMAT,
                        "%s: MemTotal is %" PRId64 " and MemAvailable %" PRId64 " kB, expected both to be there", path,
                        total, available);
    m->total = total * 1024;
    m->available = available < total ? available * 1024 : m->total;
    return MF_OK;
}

#if defined(__APPLE__)
static mf_status probe_mac(mf__memory *m, mf_error *err) {
    size_t size = sizeof m->total;
    if (sysctlbyname("hw.memsize", &m->total, &size, NULL, 0) != 0)
        return mf__fail(err, MF_E_IO, "cannot ask the system for its memory size");
    vm_statistics64_data_t stats;
    mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
    if (host_statistics64(mach_host_self(), HOST_VM_INFO64, (host_info64_t)&stats, &count) != KERN_SUCCESS)
        return mf__fail(err, MF_E_IO, "cannot ask the system for its free memory");
    int64_t pages = (int64_t)stats.free_count + stats.inactive_count + stats.purgeable_count;
    m->available = pages * (int64_t)vm_kernel_page_size;
    if (m->available > m->total) m->available = m->total;
    return MF_OK;
}
#endif

mf_status mf__memory_probe(const char *root, mf__memory *out, mf_error *err) {
    *out = (mf__memory){0};
#if defined(__APPLE__)
    if (!*root) {
        MF__TRY(probe_mac(out, err));
        out->usable = out->available;
        return MF_OK;
    }
#endif
    MF__TRY(probe_system(root, out, err));
    out->usable = out->available;
    apply_groups(root, out);
    return MF_OK;
}
