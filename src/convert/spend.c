/* Gate and up get the same groups where that comes near the target: kernels read the input of both in one form then. */
#include "convert/spend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/direct.h"
#include "base/probe.h"
#include "convert/calibrate.h"
#include "convert/stage.h"
#include "quant/affine.h"

#define N_EXPERTS 8 /* that are measured */
#define N_ROWS 512  /* inputs of a calibration that each is judged by */

static const int BITS[] = {2, 3, 4, 5, 6, 8}, GROUPS[] = {32, 64, 128};
enum { N_BITS = 6, N_GROUPS = 3, N_FORMS = N_BITS * N_GROUPS };

typedef struct spender {
    mf__convert_options opt;
    mf__plan plan;
    mf__stage *stage;
    mf__pool *pool;
    mf__calibrator *calibrator; /* NULL: none */
    uint8_t *in, *blob;
    mf__loss *rows;
    float *scratch;
    double error[MF_PART_COUNT][N_FORMS]; /* squared, relative, mean over the experts; -1: not possible */
    int n_measured;
} spender;

static double width_of(int form) {
    return BITS[form / N_GROUPS] + 32.0 / GROUPS[form % N_GROUPS];
}

/* A layout with all three parts in one form; those that do not split into groups stay as they are. */
static mf_status layout_of(const spender *s, int form, mf__expert_layout *out, mf_error *err) {
    *out = s->plan.layout;
    for (int p = 0; p < MF_PART_COUNT; p++) {
        if (out->part[p].n_cols % GROUPS[form % N_GROUPS]) continue;
        out->part[p].bits = BITS[form / N_GROUPS];
        out->part[p].group = GROUPS[form % N_GROUPS];
    }
    return mf__expert_layout_pack(out, MF_EXPERT_ALIGN, err);
}

static mf_status measure_part(spender *s, const mf__source *src, const mf__expert_layout *layout, int p, int form,
                              mf_error *err) {
    mf__loss loss = {0};
    mf__encode e = {.name = mf__expert_part_name((mf__expert_part)p),
                    .src = src,
                    .dst = mf__expert_view(layout, (mf__expert_part)p, s->blob),
                    .data = s->blob + layout->part[p].data_off,
                    .scales = s->blob + layout->part[p].scales_off,
                    .biases = s->blob + layout->part[p].biases_off,
                    .allow_nonfinite = s->opt.allow_nonfinite,
                    .rows = s->rows,
                    .scratch = s->scratch};
    if (s->calibrator) mf__calibrator_part(s->calibrator, (mf__expert_part)p, layout, s->blob, &e);
    MF__TRY(mf__encode_run(&e, s->pool, &loss, err));
    double error = loss.total > 0 ? loss.error / loss.total : 0;
    if (s->calibrator) error = mf__calibrator_output_error(s->calibrator, layout, s->blob, (mf__expert_part)p);
    s->error[p][form] += error;
    return MF_OK;
}

static mf_status measure_expert(spender *s, int layer, int expert, mf_error *err) {
    mf__source src[2 * MF_PART_COUNT], found;
    size_t used = 0;
    bool bias = s->plan.layout.part[0].has_bias;
    for (int p = 0; p < MF_PART_COUNT; p++) {
        MF__TRY(mf__import_expert(&s->plan.im, layer, expert, (mf__expert_part)p, &found, err));
        MF__TRY(mf__stage_rows(s->stage, &found, 0, found.n_rows, s->in, &used, &src[p], err));
        if (!bias) continue;
        MF__TRY(mf__import_expert_bias(&s->plan.im, layer, expert, (mf__expert_part)p, &found, err));
        MF__TRY(mf__stage_rows(s->stage, &found, 0, found.n_rows, s->in, &used, &src[MF_PART_COUNT + p], err));
    }
    if (s->calibrator)
        MF__TRY(mf__calibrator_expert(s->calibrator, layer, expert, src, bias ? src + MF_PART_COUNT : NULL, err));
    for (int form = 0; form < N_FORMS; form++) {
        mf__expert_layout layout;
        MF__TRY(layout_of(s, form, &layout, err));
        for (int p = 0; p < MF_PART_COUNT; p++) {
            if (layout.part[p].n_cols % GROUPS[form % N_GROUPS])
                s->error[p][form] = -1;
            else
                MF__TRY(measure_part(s, &src[p], &layout, p, form, err));
        }
    }
    s->n_measured++;
    return MF_OK;
}

/* Some of every part of the model. */
static mf_status measure_all(spender *s, mf_error *err) {
    const mf__config *c = &s->plan.bp.config;
    int n_layers = 0, at = 0;
    for (int l = 0; l < c->n_layers; l++) n_layers += mf__plan_layer_has_experts(&s->plan, l);
    int n = N_EXPERTS < n_layers ? N_EXPERTS : n_layers;
    for (int l = 0; l < c->n_layers; l++) {
        if (!mf__plan_layer_has_experts(&s->plan, l)) continue;
        if (at * n / n_layers != (at + 1) * n / n_layers)
            MF__TRY(measure_expert(s, l, (int)((int64_t)s->n_measured * 37 % c->moe.n_experts), err));
        at++;
    }
    return MF_OK;
}

static mf_status open_all(spender *s, const char *src, mf_error *err) {
    mf__cpu cpu;
    int threads = s->opt.n_threads;
    MF__TRY(mf__plan_make(src, &s->opt, &s->plan, err));
    if (!s->plan.has_experts) return mf__fail(err, MF_E_INVALID, "%s has no routed experts to spend bits on", src);
    mf__cpu_probe(&cpu);
    if (!threads) threads = cpu.n_logical > 0 ? cpu.n_logical : 1;
    MF__TRY(mf__pool_create(threads, &s->pool, err));
    MF__TRY(mf__stage_open(s->plan.cat, NULL, &s->stage, err));
    if (s->opt.sample) MF__TRY(mf__calibrator_open(&s->plan, s->pool, N_ROWS, &s->calibrator, err));
    s->in = mf__direct_alloc((size_t)s->plan.max_in);
    s->blob = malloc((size_t)s->plan.layout.stride);
    s->rows = malloc((size_t)s->plan.max_rows * sizeof *s->rows);
    s->scratch = malloc((size_t)mf__encode_scratch(s->plan.max_cols) * (size_t)threads * sizeof *s->scratch);
    if (s->in && s->blob && s->rows && s->scratch) return MF_OK;
    return mf__fail(err, MF_E_NOMEM, "no memory to measure experts");
}

static void close_all(spender *s) {
    mf__direct_free(s->in, (size_t)s->plan.max_in);
    free(s->blob);
    free(s->rows);
    free(s->scratch);
    mf__calibrator_close(s->calibrator);
    mf__stage_close(s->stage);
    mf__pool_free(s->pool);
    mf__plan_close(&s->plan);
}

static void take(const spender *s, const int form[MF_PART_COUNT], mf__spending *out) {
    double weights = 0, bits = 0;
    for (int p = 0; p < MF_PART_COUNT; p++) {
        double n = (double)s->plan.layout.part[p].n_rows * (double)s->plan.layout.part[p].n_cols;
        weights += n;
        bits += n * width_of(form[p]);
        out->bits[p] = BITS[form[p] / N_GROUPS];
        out->group[p] = GROUPS[form[p] % N_GROUPS];
        out->error[p] = sqrt(s->error[p][form[p]] / s->n_measured);
    }
    out->bits_per_weight = bits / weights;
    out->of_output = s->calibrator != NULL;
}

/* All combinations: a few thousand. Returns the error of the best that is near enough, INFINITY: none is; *nearest is
 * then the nearest. */
static double choose(const spender *s, double target, bool same_groups, mf__spending *out, double *nearest) {
    double least = INFINITY;
    for (int i = 0; i < N_FORMS * N_FORMS * N_FORMS; i++) {
        int form[MF_PART_COUNT] = {i % N_FORMS, i / N_FORMS % N_FORMS, i / (N_FORMS * N_FORMS)};
        double error = 0;
        bool possible = !same_groups || form[MF_PART_GATE] % N_GROUPS == form[MF_PART_UP] % N_GROUPS;
        for (int p = 0; p < MF_PART_COUNT; p++) {
            possible = possible && s->error[p][form[p]] >= 0;
            error += s->error[p][form[p]];
        }
        if (!possible) continue;
        mf__spending one;
        take(s, form, &one);
        double off = fabs(one.bits_per_weight - target);
        if (off < fabs(*nearest - target)) *nearest = one.bits_per_weight;
        if (off > MF_SPEND_WITHIN + 1e-9 || !(error < least)) continue;
        least = error;
        *out = one;
    }
    return least;
}

static mf_status choose_any(const spender *s, double target, mf__spending *out, mf_error *err) {
    double nearest = 0;
    if (choose(s, target, true, out, &nearest) < INFINITY || choose(s, target, false, out, &nearest) < INFINITY)
        return MF_OK;
    return mf__fail(
        err, MF_E_INVALID,
        "no widths of gate, up and down come to %.3g bits per weight, scales included; the nearest are %.4g", target,
        nearest);
}

mf_status mf__spend_bits(const char *src, double target, mf__convert_options *opt, mf__spending *out, mf_error *err) {
    spender s = {.opt = *opt};
    s.opt.expert_bits = 8; /* the largest, for the room it needs */
    s.opt.group = 32;
    s.opt.also_bits = 0;
    s.opt.calibration = NULL; /* whether it fits the widths is asked of those that are chosen */
    s.opt.scales_only = true;
    memset(s.opt.part_bits, 0, sizeof s.opt.part_bits);
    memset(s.opt.part_group, 0, sizeof s.opt.part_group);
    mf_status st = open_all(&s, src, err);
    for (int p = 0; st == MF_OK && p < MF_PART_COUNT; p++)
        if (s.plan.layout.part[p].type != MF_TYPE_AFFINE)
            st = mf__fail(err, MF_E_UNSUPPORTED, "experts' %s with rows of %lld does not split into groups of 32",
                          mf__expert_part_name((mf__expert_part)p), (long long)s.plan.layout.part[p].n_cols);
    if (st == MF_OK) st = measure_all(&s, err);
    if (st == MF_OK) st = choose_any(&s, target, out, err);
    close_all(&s);
    if (st != MF_OK) return st;
    memcpy(opt->part_bits, out->bits, sizeof opt->part_bits);
    memcpy(opt->part_group, out->group, sizeof opt->part_group);
    return MF_OK;
}
