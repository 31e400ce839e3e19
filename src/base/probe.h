/* What machine is this: memory that is really there, and what its processor can do. */
#ifndef MF_BASE_PROBE_H
#define MF_BASE_PROBE_H

#include "base/status.h"

typedef struct mf__memory {
    int64_t total;        /* physical bytes */
    int64_t available;    /* MemAvailable */
    int64_t cgroup_limit; /* smallest limit of this process's memory group and its parents (v1 and v2); 0: none */
    int64_t cgroup_used;  /* usage of the group with that limit, without reclaimable file cache */
    int64_t usable;       /* the smallest of available and what is left of each of the limits */
} mf__memory;

/* root is "" except in tests, which point it at a tree of fake /proc and /sys files. */
mf_status mf__memory_probe(const char *root, mf__memory *out, mf_error *err);

typedef struct mf__cpu {
    char name[64];
    int n_logical;  /* processors this process may run on (affinity and cgroup quota considered) */
    int n_physical; /* cores among them */
    bool avx2, fma, f16c, avx_vnni;
    bool avx512; /* F, BW, DQ, VL */
    bool avx512_vnni, avx512_vbmi, avx512_bf16;
    bool neon, dotprod, i8mm;
} mf__cpu;

void mf__cpu_probe(mf__cpu *out);

/* The numbers of the processors that this process may run on, one for each core: at most max of them. Returns how many
 * were written; 0 where the system does not tell. */
int mf__cpu_cores(int *out, int max);

/* Whole processors that the cpu quotas of this process's groups are worth, rounded up; 0: no quota. root as above. */
int mf__cpu_quota(const char *root);

#endif
