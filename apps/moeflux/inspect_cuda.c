/* moeflux inspect --cuda: what the cuda backend finds on this machine, and how much of a model goes where. */
#include <stdio.h>

#include "app.h"
#include "backend/backend.h"
#include "base/probe.h"
#include "inspect_cuda.h"

#define TOKENS 4096 /* of the session that is reckoned with */

static const mf__backend_kind *usable(char why[256]) {
    const mf__backend_kind *kind = mf__backend_find("cuda");
    if (kind && kind->available(why, 256)) return kind;
    if (!kind) snprintf(why, 256, "this program was built without the CUDA toolkit; build it where nvcc is");
    return NULL;
}

void inspect_cuda(void) {
    char why[256];
    if (usable(why))
        printf("cuda device        %s\n", why);
    else
        printf("cuda device        none that can be used: %s\n", why);
}

int64_t inspect_cuda_memory(char text[256]) {
    const mf__backend_kind *kind = usable(text);
    mf__backend *be;
    mf_error err;
    if (!kind) return 0;
    if (kind->create(&(mf__backend_config){0}, &be, &err) != MF_OK) {
        snprintf(text, 256, "%.255s", err.text);
        return 0;
    }
    int64_t there = be->memory_bytes;
    be->free(be);
    return there;
}

static void print_share(const char *what, int64_t n, int64_t all, int64_t bytes, const char *note) {
    char text[APP_BYTES_TEXT];
    printf("  %-22s %12s  %lld of %lld experts%s%s\n", what, app_bytes((double)bytes, text), (long long)n,
           (long long)all, *note ? "; " : "", note);
}

static int64_t at_most(int64_t n, int64_t most) {
    return n < 0 ? 0 : n < most ? n : most;
}

mf_status inspect_cuda_split(const char *dir, const mf__survey *s, int64_t vram, mf_error *err) {
    char why[256], text[APP_BYTES_TEXT];
    const mf__backend_kind *kind = usable(why);
    mf__backend *be;
    mf__memory mem = {0};
    mf_memory_needs needs;
    if (!kind || !s->has_layout) return MF_OK;
    MF__TRY(mf_model_memory(dir, NULL, TOKENS, 0, &needs, err));
    MF__TRY(kind->create(&(mf__backend_config){0}, &be, err));
    int64_t there = be->memory_bytes, allowed = vram ? vram : there / 16 * 15;
    be->free(be);
    if (allowed > there)
        return mf__fail(err, MF_E_INVALID, "--vram is %lld MB, and the device has %lld MB free",
                        (long long)(allowed >> 20), (long long)(there >> 20));
    int64_t fixed = needs.trunk + needs.workspace + needs.state + needs.kv, one = s->layout.bytes;
    int64_t all = (int64_t)s->n_moe_layers * s->bp.config.moe.n_experts,
            on_device = at_most((allowed - fixed) / one, all);
    printf("\nwith --backend cuda and %s of the device's memory\n", app_bytes((double)allowed, text));
    printf("  %-22s %12s  weights of the trunk, and a session of %d tokens\n", "device, always",
           app_bytes((double)fixed, text), TOKENS);
    if (fixed + one > allowed) {
        printf("  it takes at least --vram %lldM\n", (long long)((fixed + one + (1 << 20) - 1) >> 20));
        return MF_OK;
    }
    print_share("device, experts", on_device, all, on_device * one,
                on_device == all ? "all of them: nothing is copied while tokens are made" : "those used most stay");
    if (on_device == all || mf__memory_probe("", &mem, NULL) != MF_OK) return MF_OK;
    int64_t in_ram = at_most((mem.usable - needs.program) / one, all);
    print_share("memory, experts", in_ram, all, in_ram * one, "copied to the device when they are wanted");
    if (in_ram < all)
        print_share("drive, experts", all - in_ram, all, (all - in_ram) * one, "read when they are wanted");
    return MF_OK;
}
