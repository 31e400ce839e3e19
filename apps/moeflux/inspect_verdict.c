/* The sizes of a model that count, whatever it is now, and the verdict on them. */
#include "inspect_verdict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "bench.h"
#include "convert/outlook.h"
#include "convert/synth.h"
#include "models.h"
#include "text/utf8.h"
#include "verdict.h"

#define BESIDE ((int64_t)256 << 20) /* about that much for code, rows and state of a model that is not there yet */

/* What becomes of a model that is converted first. */
typedef struct conversion {
    const char *preset; /* NULL: none is needed */
    int64_t before, after;
} conversion;

/* Of a model whose directory is not there yet: as many experts as two layers want are the fewest. */
static model_sizes sizes_for(int64_t trunk, int64_t trunk_token, int64_t experts, int64_t expert, int64_t wanted,
                             int n_layers, double weights) {
    int64_t fewest = wanted / (n_layers ? n_layers : 1) * 2;
    return (model_sizes){.needs = trunk + fewest + BESIDE,
                         .fewest = fewest,
                         .experts = experts,
                         .expert = expert,
                         .token_experts = wanted,
                         .token_bytes = trunk_token + wanted,
                         .prompt_weights = weights};
}

/* A checkpoint runs after a conversion: its sizes are those that the recommended one gives. */
static mf_status sizes_of(const inspect_subject *of, const mf__survey *s, model_sizes *m, conversion *c,
                          mf_error *err) {
    mf__convert_options opt;
    mf__outlook look;
    *c = (conversion){0};
    if (s->is_native) return verdict_sizes(of->path, s, m, err);
    mf__convert_options_init(&opt);
    MF__TRY(mf__outlook_recommend(of->path, &opt, &c->preset, err));
    MF__TRY(mf__outlook_make(of->path, &opt, &look, err));
    c->before = look.before;
    c->after = look.after;
    int64_t experts = look.parts[MF_OUTLOOK_EXPERTS].after, trunk = look.after - experts;
    const mf__config *k = &s->bp.config;
    int64_t body = trunk - look.parts[MF_OUTLOOK_EMBED].after - look.parts[MF_OUTLOOK_HEAD].after;
    double shrinks = s->expert_bytes ? (double)experts / (double)s->expert_bytes : 1;
    *m = sizes_for(trunk, trunk - (s->bp.config.tied_head ? 0 : look.parts[MF_OUTLOOK_EMBED].after), experts,
                   (int64_t)((double)s->layout.bytes * shrinks), (int64_t)((double)s->cold_bytes * shrinks),
                   s->n_moe_layers,
                   verdict_weights(body, s->n_moe_layers, k->moe.top_k,
                                   k->n_hidden * (2LL * k->moe.n_inner + mf__config_expert_wide(k))));
    return MF_OK;
}

/* A file of the experts, or the folder where models come to, to measure the drive in; malloc'd. */
static mf_status place_of(const inspect_subject *of, const mf__survey *s, char **out, mf_error *err) {
    for (int32_t l = 0; s && s->is_native && !of->on_hub && l < s->bp.config.n_layers; l++) {
        char name[48];
        snprintf(name, sizeof name, "packed_experts/layer_%02d.bin", (int)l);
        *out = mf__path_join(of->path, name);
        if (*out && mf__path_exists(*out)) return MF_OK;
        free(*out);
    }
    return models_folder(of->models, out, err);
}

static mf_status judge(const inspect_subject *of, const mf__survey *s, const model_sizes *m, machine *at, verdict *v,
                       mf_error *err) {
    char *place = NULL;
    if (!(of->assumed.drive > 0)) MF__TRY(place_of(of, s, &place, err));
    mf_status st = machine_measure(&of->assumed, place, m->expert, at, err);
    free(place);
    if (st == MF_OK) verdict_make(m, at, of->ram, v);
    return st;
}

static void print_conversion(const inspect_subject *of, const conversion *c) {
    char before[APP_BYTES_TEXT], after[APP_BYTES_TEXT];
    if (!c->preset) return;
    printf("\nconversion\n  --preset %s is recommended, because the source %s: %s become %s\n  moeflux %s %s%s\n",
           c->preset, strcmp(c->preset, "exact") ? "has 16 bits or more" : "is quantized already",
           app_bytes((double)c->before, before), app_bytes((double)c->after, after), of->on_hub ? "pull" : "convert",
           of->on_hub ? of->on_hub : of->path, of->on_hub ? " gets and converts it" : " DIR --dry-run shows the plan");
}

mf_status inspect_verdict(const inspect_subject *of, const mf__survey *s, mf_error *err) {
    model_sizes m;
    machine at;
    verdict v;
    conversion c;
    if (!s->has_layout) return MF_OK;
    MF__TRY(sizes_of(of, s, &m, &c, err));
    print_conversion(of, &c);
    MF__TRY(judge(of, s, &m, &at, &v, err));
    machine_print(&at, m.expert);
    verdict_print(&at, &v);
    return MF_OK;
}

mf_status inspect_json(const inspect_subject *of, const mf__survey *s, mf_error *err) {
    char text[MF_ERROR_TEXT];
    json_t *o = json_pack("{s:s, s:s?, s:b}", "model", mf__utf8_clean(of->name, text, sizeof text), "family",
                          s->known ? s->bp.config.family->name : NULL, "native", s->is_native);
    json_t *problems = json_array();
    model_sizes m;
    machine at;
    verdict v;
    conversion c;
    mf_status st = MF_OK;
    for (int i = 0; i < s->n_problems && i < MF_SURVEY_PROBLEMS; i++)
        json_array_append_new(problems, json_string(mf__utf8_clean(s->problems[i].text, text, sizeof text)));
    json_object_set_new(o, "problems", problems);
    if (s->known && s->has_layout && !s->n_problems) {
        st = sizes_of(of, s, &m, &c, err);
        if (st == MF_OK) st = judge(of, s, &m, &at, &v, err);
        if (st == MF_OK) {
            json_object_set_new(o, "conversion",
                                c.preset ? json_pack("{s:s, s:I, s:I}", "preset", c.preset, "before",
                                                     (json_int_t)c.before, "after", (json_int_t)c.after)
                                         : json_null());
            json_object_set_new(o, "machine", machine_json(&at));
            json_object_set_new(o, "verdict", verdict_json(&m, &v));
        }
    }
    if (st == MF_OK) return bench_print_json(o, err);
    json_decref(o);
    return st;
}

mf_status inspect_shape(const inspect_subject *of, const inspect_shape_of *shape, bool json, mf_error *err) {
    mf__synth_options opt;
    mf__synth_sizes z;
    machine at;
    verdict v;
    char a[APP_BYTES_TEXT], b[APP_BYTES_TEXT], c[APP_BYTES_TEXT];
    mf__synth_options_init(&opt);
    opt.shape = shape->name;
    opt.n_layers = shape->layers;
    MF__TRY(mf__synth_measure(&opt, &z, err));
    model_sizes m =
        sizes_for(z.trunk, z.token, z.n_experts * z.expert, z.expert, z.n_wanted * z.expert, z.n_expert_layers,
                  verdict_weights(z.body, z.n_expert_layers,
                                  (int)(z.n_expert_layers ? z.n_wanted / z.n_expert_layers : 0), z.expert_weights));
    MF__TRY(judge(of, NULL, &m, &at, &v, err));
    if (json)
        return bench_print_json(json_pack("{s:s, s:b, s:[], s:o, s:o}", "model", shape->name, "native", 0, "problems",
                                          "machine", machine_json(&at), "verdict", verdict_json(&m, &v)),
                                err);
    printf("%s: %s, of which experts %s; a token reads %s\n", shape->name, app_bytes((double)(z.trunk + m.experts), a),
           app_bytes((double)m.experts, b), app_bytes((double)m.token_bytes, c));
    machine_print(&at, m.expert);
    verdict_print(&at, &v);
    return MF_OK;
}
