/* Which instruction set: the best one that this build has and this machine can run. */
#include "backend/cpu/cpu.h"
#include "base/probe.h"

const char *mf__cpu_level_name(mf__cpu_level level) {
    switch (level) {
    case MF_CPU_BEST: return "best";
    case MF_CPU_SCALAR: return "scalar";
    case MF_CPU_AVX2: return "avx2";
    case MF_CPU_AVX512: return "avx512";
    case MF_CPU_NEON: return "neon";
    case MF_CPU_DOTPROD: return "dotprod";
    case MF_CPU_I8MM: return "i8mm";
    case MF_CPU_LEVELS: break;
    }
    return "unknown";
}

bool mf__cpu_level_available(mf__cpu_level level) {
    mf__cpu cpu;
    mf__cpu_probe(&cpu);
    (void)cpu;
    switch (level) {
#if defined(__x86_64__)
    case MF_CPU_AVX2: return cpu.avx2 && cpu.fma && cpu.f16c;
    case MF_CPU_AVX512: return cpu.avx512 && cpu.avx512_vnni && cpu.avx512_vbmi && cpu.fma;
#elif defined(__aarch64__)
    case MF_CPU_NEON: return cpu.neon;
    case MF_CPU_DOTPROD: return cpu.neon && cpu.dotprod;
    case MF_CPU_I8MM: return cpu.neon && cpu.dotprod && cpu.i8mm;
#endif
    case MF_CPU_BEST:
    case MF_CPU_SCALAR: return true;
    default: return false;
    }
}

mf__cpu_level mf__cpu_level_best(void) {
    mf__cpu_level best = MF_CPU_SCALAR;
    for (mf__cpu_level l = MF_CPU_SCALAR; l < MF_CPU_LEVELS; l++)
        if (mf__cpu_level_available(l)) best = l;
    return best;
}

/* A later FILL of a family replaces an earlier one. */
#define FILL(family, FAMILY, set) (mf__cpu_##family##_##set(out), out->sets[MF_CPU_##FAMILY] = #set)
#define FILL_ALL(set) (FILL(int8, INT8, set), FILL(f32, F32, set), FILL(rowwise, ROWWISE, set), FILL(kv, KV, set))

void mf__cpu_kernels_fill(mf__cpu_level level, mf__cpu_kernels *out) {
    *out = (mf__cpu_kernels){0};
    switch (level == MF_CPU_BEST ? mf__cpu_level_best() : level) {
#if defined(__x86_64__)
    case MF_CPU_AVX2: FILL_ALL(avx2); break;
    case MF_CPU_AVX512: FILL_ALL(avx512); break;
#elif defined(__aarch64__)
    case MF_CPU_NEON: FILL_ALL(neon); break;
    case MF_CPU_DOTPROD: FILL_ALL(neon), FILL(int8, INT8, dotprod); break;
    case MF_CPU_I8MM: FILL_ALL(neon), FILL(int8, INT8, i8mm); break;
#endif
    default: FILL_ALL(scalar); break;
    }
}

void mf__cpu_level_families(mf__cpu_level level, const char *sets[MF_CPU_FAMILIES]) {
    mf__cpu_kernels k;
    mf__cpu_kernels_fill(level, &k);
    for (int i = 0; i < MF_CPU_FAMILIES; i++) sets[i] = k.sets[i];
}
