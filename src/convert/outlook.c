/* The plan of a conversion, added up. */
#include "convert/outlook.h"

#include <stdio.h>
#include <string.h>

#include "convert/plan.h"

static const char *const NAMES[] = {"embedding", "head", "routers", "other matrices", "norms and vectors", "experts"};

static void form_text(const mf__tensor *t, char text[32]) {
    if (t->type == MF_TYPE_AFFINE)
        snprintf(text, 32, "%d bits/%d", t->bits, t->group);
    else
        snprintf(text, 32, "%s", t->type == MF_TYPE_F8_BLOCK ? "FP8" : mf__type_name(t->type));
}

static void merge(char seen[32], const char *text) {
    if (!*seen)
        snprintf(seen, 32, "%s", text);
    else if (strcmp(seen, text))
        strcpy(seen, "mixed");
}

static void add(mf__outlook_part *part, const mf__tensor *from, const mf__tensor *to) {
    char text[32];
    form_text(from, text);
    merge(part->from, text);
    form_text(to, text);
    merge(part->to, text);
}

static int part_of(const mf__plan_tensor *t) {
    if (t->n_dims != 2) return MF_OUTLOOK_SMALL;
    if (!strcmp(t->name, "model.embed_tokens.weight")) return MF_OUTLOOK_EMBED;
    if (!strcmp(t->name, "lm_head.weight")) return MF_OUTLOOK_HEAD;
    return mf__plan_is_router(t->name) ? MF_OUTLOOK_ROUTER : MF_OUTLOOK_TRUNK;
}

static bool is_wide(const mf__tensor *t) {
    return t->type == MF_TYPE_BF16 || t->type == MF_TYPE_F16 || t->type == MF_TYPE_F32;
}

/* The forms of the experts: of the first layer that has some; plan.c checks that all are alike. */
static mf_status add_experts(const mf__plan *p, mf__outlook *out, mf_error *err) {
    int layer = 0;
    while (!mf__plan_layer_has_experts(p, layer)) layer++;
    for (int i = 0; i < MF_PART_COUNT; i++) {
        mf__source src;
        mf__tensor to = {
            .type = p->layout.part[i].type, .bits = p->layout.part[i].bits, .group = p->layout.part[i].group};
        MF__TRY(mf__import_expert(&p->im, layer, 0, (mf__expert_part)i, &src, err));
        add(&out->parts[MF_OUTLOOK_EXPERTS], &src.stored, &to);
        if (i == 0) out->wide = is_wide(&src.stored);
    }
    return MF_OK;
}

mf_status mf__outlook_make(const char *src, const mf__convert_options *opt, mf__outlook *out, mf_error *err) {
    mf__plan plan;
    int64_t widest = 0;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < MF_OUTLOOK_PARTS; i++) out->parts[i].name = NAMES[i];
    mf_status st = mf__plan_make(src, opt, &plan, err);
    for (int64_t i = 0; st == MF_OK && i < plan.n_tensors; i++) {
        const mf__plan_tensor *t = &plan.tensors[i];
        mf__outlook_part *part = &out->parts[part_of(t)];
        int64_t before = mf__source_bytes(&t->src);
        add(part, &t->src.stored, &t->dst);
        part->before += before;
        part->after += mf__tensor_bytes(&t->dst);
        out->before += before;
        out->after += mf__tensor_bytes(&t->dst);
        if (before > widest) widest = before, out->wide = is_wide(&t->src.stored);
    }
    if (st == MF_OK && plan.has_experts) {
        out->parts[MF_OUTLOOK_EXPERTS].before = plan.source_bytes - out->before;
        out->parts[MF_OUTLOOK_EXPERTS].after = plan.target_bytes - out->after;
        out->before = plan.source_bytes;
        out->after = plan.target_bytes;
        st = add_experts(&plan, out, err);
    }
    mf__plan_close(&plan);
    return st;
}

mf_status mf__outlook_recommend(const char *src, mf__convert_options *opt, const char **preset, mf_error *err) {
    mf__convert_options keep;
    mf__outlook look;
    mf__convert_options_init(&keep);
    MF__TRY(mf__outlook_make(src, &keep, &look, err));
    *preset = look.wide ? "balanced" : "exact";
    mf__convert_preset(opt, *preset);
    return MF_OK;
}
