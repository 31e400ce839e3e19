/* moeflux inspect --cpu: what this machine has, and what the cpu backend makes of it. */
#include <stdio.h>

#include "app.h"
#include "backend/backend.h"
#include "base/probe.h"
#include "inspect_cpu.h"

static void print_features(const mf__cpu *cpu) {
    const struct {
        const char *name;
        bool there;
    } features[] = {
        {"avx2", cpu->avx2},
        {"fma", cpu->fma},
        {"f16c", cpu->f16c},
        {"avx_vnni", cpu->avx_vnni},
        {"avx512 (F, BW, DQ, VL)", cpu->avx512},
        {"avx512_vnni", cpu->avx512_vnni},
        {"avx512_vbmi", cpu->avx512_vbmi},
        {"avx512_bf16", cpu->avx512_bf16},
        {"neon", cpu->neon},
        {"dotprod", cpu->dotprod},
        {"i8mm", cpu->i8mm},
    };
    int n = 0;
    printf("features           ");
    for (size_t i = 0; i < MF__COUNT(features); i++)
        if (features[i].there) printf("%s%s", n++ ? ", " : "", features[i].name);
    printf("%s\n", n ? "" : "none that kernels here use");
}

static void print_kernels(void) {
    static const char *const families[MF_CPU_FAMILIES] = {
        [MF_CPU_INT8] = "products of weights in groups (affine, MXFP4) with rounded activations",
        [MF_CPU_F32] = "products with f32 activations: other weights, and all of them with --exact",
        [MF_CPU_ROWWISE] = "norms, activations, convolution, attention, delta rule",
        [MF_CPU_KV] = "rows of the KV cache",
    };
    const char *sets[MF_CPU_FAMILIES];
    mf__cpu_level best = mf__cpu_level_best();
    int n = 0;
    printf("instruction sets   ");
    for (mf__cpu_level l = MF_CPU_SCALAR; l < MF_CPU_LEVELS; l++)
        if (mf__cpu_level_available(l)) printf("%s%s", n++ ? ", " : "", mf__cpu_level_name(l));
    printf("; used: %s\n\nkernels\n", mf__cpu_level_name(best));
    mf__cpu_level_families(best, sets);
    for (int i = 0; i < MF_CPU_FAMILIES; i++) printf("  %-16s %s\n", sets[i], families[i]);
}

mf_status inspect_cpu(mf_error *err) {
    char total[APP_BYTES_TEXT], free_now[APP_BYTES_TEXT], usable[APP_BYTES_TEXT], limit[APP_BYTES_TEXT];
    mf__cpu cpu;
    mf__memory mem;
    mf__cpu_probe(&cpu);
    MF__TRY(mf__memory_probe("", &mem, err));
    printf("processor          %s\n", cpu.name);
    print_features(&cpu);
    printf("threads            %d for computing: one per core of the %d processors that this program may use\n",
           cpu.n_physical, cpu.n_logical);
    printf("memory             %s, %s of it free", app_bytes((double)mem.total, total),
           app_bytes((double)mem.available, free_now));
    if (mem.cgroup_limit) printf("; its control group allows %s", app_bytes((double)mem.cgroup_limit, limit));
    printf("; a model may use %s\n", app_bytes((double)mem.usable, usable));
    print_kernels();
    return MF_OK;
}
