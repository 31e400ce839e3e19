/* The verdict: what this machine does, and what that means for a model.
 *
 *   a token's time     the larger of   bytes it reads / memory     bytes of missing experts / drive
 *   missing experts    from the share that fits, as recorded routes have it (docs/SPEED.md)
 *   a prompt's time    products, at a rate per thread that depends on the instruction set, and the experts of a chunk
 *                      read once */
#include "verdict.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/probe.h"
#include "convert/survey.h"

#define CHUNK 512
#define SESSION 4096                 /* tokens that memory is reckoned for */
#define LEAST_RAM ((int64_t)2 << 30) /* a budget that measuring, before the model is opened, stays far below */
#define MOST_TOLD 500.0              /* tokens/s: faster ones wait for other things than bytes */
#define MEMORY_SHARE 0.78            /* of the floor of memory that decoding reaches: 66 to 86 % (docs/SPEED.md) */
#define DRIVE_SHARE 0.75             /* and of the drive's, waiting included */

/* ---- the estimate ------------------------------------------------------------------------------------------------------ */

/* Hits by the share of experts that fit: between the two models whose routes were recorded. */
static double hits_of(double share) {
    static const double at[] = {0, 0.05, 0.10, 0.25, 0.50, 0.75, 1}, hits[] = {0, 0.19, 0.36, 0.66, 0.90, 0.985, 1};
    for (size_t i = 1; i < MF__COUNT(at); i++)
        if (share <= at[i]) return hits[i - 1] + (hits[i] - hits[i - 1]) * (share - at[i - 1]) / (at[i] - at[i - 1]);
    return 1;
}

/* Of the last layer's experts nothing but the last token's is wanted. */
double verdict_weights(int64_t trunk_bytes, int n_expert_layers, int top_k, int64_t expert_weights) {
    int n_wanted = n_expert_layers > 0 ? n_expert_layers - 1 : 0;
    return (double)trunk_bytes + (double)n_wanted * top_k * (double)expert_weights;
}

void verdict_make(const model_sizes *m, const machine *at, int64_t ram, verdict *out) {
    *out = (verdict){.ram = ram > 0 ? ram : at->usable};
    double fixed = (double)(m->needs - m->fewest), room = (double)out->ram - fixed;
    out->least = m->needs;
    out->best = m->needs - m->fewest + m->experts;
    out->runs = out->ram >= m->needs;
    out->held = m->experts <= 0 ? 1 : room <= 0 ? 0 : room < (double)m->experts ? room / (double)m->experts : 1;
    out->fits = out->held >= 1;
    out->hits = hits_of(out->held);
    double memory = (double)m->token_bytes / (at->memory_bytes_s * MEMORY_SHARE);
    double missing = (1 - out->hits) * (double)m->token_experts, drive_speed = at->drive_bytes_s * DRIVE_SHARE;
    double drive = missing > 0 && drive_speed > 0 ? missing / drive_speed : 0;
    out->bound = drive > memory ? "the drive" : "memory";
    out->decode = out->fits || drive_speed > 0 ? 1 / (drive > memory ? drive : memory) : 0;
    /* a chunk wants nearly every expert once */
    double products = CHUNK * m->prompt_weights / (at->products_s * at->threads);
    double from_drive = drive_speed > 0 ? (1 - out->held) * (double)m->experts / drive_speed : 0;
    double from_memory = (double)m->experts / (at->memory_bytes_s * MEMORY_SHARE);
    double reading = from_drive > from_memory ? from_drive : from_memory;
    if (out->fits || drive_speed > 0)
        out->prefill = CHUNK / (products > reading ? products + reading / 4 : reading + products / 4);
    double on_gpu = (double)at->vram * 15 / 16 - fixed;
    out->on_gpu = m->experts <= 0 || on_gpu <= 0 ? 0 : on_gpu < (double)m->experts ? on_gpu / (double)m->experts : 1;
}

static int64_t megabytes(int64_t n) {
    return (n + (1 << 20) - 1) >> 20;
}

static void print_speed(const char *what, double speed, const char *how, const char *bound) {
    if (speed > MOST_TOLD)
        printf("  %-22s more than %.0f tokens/s\n", what, MOST_TOLD);
    else if (speed > 0)
        printf("  %-22s %s %.*g tokens/s%s%s\n", what, how, bound ? 3 : 2, speed, bound ? ", bounded by " : "",
               bound ? bound : "");
    else
        printf("  %-22s depends on the drive, which could not be measured\n", what);
}

static void print_gpu(const machine *at, const verdict *v) {
    char a[APP_BYTES_TEXT];
    if (v->on_gpu >= 1)
        printf("  %-22s holds all of it (--backend cuda): faster than the figures above, which are the processor's\n",
               "GPU");
    else if (v->on_gpu > 0)
        printf("  %-22s holds the trunk and %.0f %% of the experts (--backend cuda); the figures above are the "
               "processor's\n",
               "GPU", 100 * v->on_gpu);
    else if (at->vram > 0)
        printf("  %-22s %s are too little for the trunk\n", "GPU", app_bytes((double)at->vram, a));
}

void verdict_print(const machine *at, const verdict *v) {
    char a[APP_BYTES_TEXT];
    printf("\nverdict\n");
    if (!v->runs) {
        printf("  it does not run here with %s: it needs --ram %lldM at least\n", app_bytes((double)v->ram, a),
               (long long)megabytes(v->least));
        return;
    }
    if (v->fits)
        printf("  it fits: all experts stay in memory\n");
    else
        printf("  it streams: %.0f %% of the experts fit, about %.0f %% of those wanted will be in memory\n",
               100 * v->held, 100 * v->hits);
    printf("  %-22s at least %lldM; from %lldM on more does not help\n", "--ram", (long long)megabytes(v->least),
           (long long)megabytes(v->best));
    print_speed("answer", v->decode, "about", v->bound);
    print_speed("prompt", v->prefill, "roughly", NULL);
    print_gpu(at, v);
}

json_t *verdict_json(const model_sizes *m, const verdict *v) {
    return json_pack("{s:I, s:I, s:I, s:b, s:b, s:f, s:f, s:f, s:f, s:s, s:f, s:I, s:I}", "ram", (json_int_t)v->ram,
                     "least_ram", (json_int_t)v->least, "best_ram", (json_int_t)v->best, "runs", v->runs, "fits",
                     v->fits, "held", v->held, "hits", v->hits, "decode_tok_s", v->decode, "prefill_tok_s", v->prefill,
                     "bound", v->bound, "on_gpu", v->on_gpu, "bytes_per_token", (json_int_t)m->token_bytes,
                     "expert_bytes", (json_int_t)m->experts);
}

mf_status verdict_sizes(const char *dir, const mf__survey *s, model_sizes *out, mf_error *err) {
    mf_memory_needs needs;
    int64_t n = s->bp.config.n_ctx < SESSION ? s->bp.config.n_ctx : SESSION;
    MF__TRY(mf_model_memory(dir, NULL, n, 0, &needs, err));
    const mf__config *c = &s->bp.config;
    int64_t body = s->trunk_bytes - s->part_bytes[MF_SURVEY_EMBED] - s->part_bytes[MF_SURVEY_HEAD];
    *out = (model_sizes){needs.total,
                         needs.experts,
                         s->expert_bytes,
                         s->layout.bytes,
                         s->cold_bytes,
                         s->resident_bytes,
                         verdict_weights(body, s->n_moe_layers, c->moe.top_k,
                                         c->n_hidden * (2LL * c->moe.n_inner + mf__config_expert_wide(c)))};
    return MF_OK;
}

/* ---- before a long wait -------------------------------------------------------------------------------------------------- */

static void warn(const char *dir, const mf__survey *s, int64_t ram) {
    machine at;
    verdict v;
    model_sizes m;
    char *file = mf__path_join(dir, "packed_experts/layer_00.bin");
    if (verdict_sizes(dir, s, &m, NULL) == MF_OK && m.needs - m.fewest + m.experts > ram && file &&
        machine_measure(NULL, mf__path_exists(file) ? file : NULL, m.expert, &at, NULL) == MF_OK) {
        verdict_make(&m, &at, ram, &v);
        if (v.decode > 0)
            app_note("%.0f %% of the experts fit in memory: about %.3g tokens/s, bounded by %s (moeflux inspect %s "
                     "says more)",
                     100 * v.held, v.decode, v.bound, dir);
    }
    free(file);
}

void verdict_warn(const char *dir, const app_model_options *opt) {
    mf__survey s;
    mf__memory memory;
    if (app_quiet || mf__memory_probe("", &memory, NULL) != MF_OK) return;
    int64_t ram = opt->ram && opt->ram < memory.usable ? opt->ram : memory.usable;
    if (ram < LEAST_RAM || app_dir_bytes(dir) < ram / 2) return; /* no room to measure in, or no wait ahead */
    if (mf__survey_make(dir, &s, NULL) != MF_OK) return;
    if (s.known && s.is_native && s.has_layout) warn(dir, &s, ram);
    mf__survey_free(&s);
}
