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
    case MF_CPU_NEON: return cpu.neon && cpu.dotprod;
#endif
    case MF_CPU_BEST:
    case MF_CPU_SCALAR: return true;
    default: return false;
    }
}

void mf__cpu_kernels_fill(mf__cpu_level level, mf__cpu_kernels *out) {
    if (level == MF_CPU_BEST) {
        level = MF_CPU_SCALAR;
        for (mf__cpu_level l = MF_CPU_SCALAR; l <= MF_CPU_NEON; l++)
            if (mf__cpu_level_available(l)) level = l;
    }
    *out = (mf__cpu_kernels){.name = mf__cpu_level_name(level)};
#define FILL(set)                                                                                                      \
    do {                                                                                                               \
        mf__cpu_int8_##set(out);                                                                                       \
        mf__cpu_f32_##set(out);                                                                                        \
        mf__cpu_rowwise_##set(out);                                                                                    \
    } while (0)
    switch (level) {
#if defined(__x86_64__)
    case MF_CPU_AVX2: FILL(avx2); break;
    case MF_CPU_AVX512: FILL(avx512); break;
#elif defined(__aarch64__)
    case MF_CPU_NEON: FILL(neon); break;
#endif
    default: FILL(scalar); break;
    }
#undef FILL
}
