/* moeflux inspect: what a checkpoint or a model directory holds, what running it needs, and what stands in the way.
 * Also what the machine has (inspect_cpu.c, inspect_cuda.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/file.h"
#include "convert/outlook.h"
#include "convert/survey.h"
#include "inspect_cpu.h"
#include "inspect_cuda.h"
#include "models.h"
#include "options.h"
#include "verdict.h"

/* ---- hyper-parameters ------------------------------------------------------------------------------------------ */

/* "linear 6, full 2" and how many of all are dense */
static void print_layers(const mf__config *c) {
    int n_of[MF_MIX_COUNT] = {0}, n_dense = 0, n_named = 0;
    for (int32_t l = 0; l < c->n_layers; l++) {
        n_of[c->mixer[l]]++;
        n_dense += c->dense[l];
    }
    printf("layers             %d:", c->n_layers);
    for (int m = 0; m < MF_MIX_COUNT; m++)
        if (n_of[m]) printf("%s %d %s attention", n_named++ ? "," : "", n_of[m], mf__mixer_name((mf__mixer)m));
    if (n_dense) printf("; %d with a dense feed-forward of width %d", n_dense, c->n_dense_inner);
    printf("\n");
}

static void print_heads(const char *what, const mf__attn *a) {
    printf("%-18s %d query heads, %d key/value heads of %d", what, a->n_heads, a->n_kv_heads, a->head_dim);
    if (mf__attn_v_dim(a) != a->head_dim) printf(" and %d", mf__attn_v_dim(a));
    printf("; %d channels rotate\n", a->n_rot);
}

static void print_attention(const mf__config *c) {
    unsigned mixers = 0;
    for (int32_t l = 0; l < c->n_layers; l++) mixers |= 1u << c->mixer[l];
    if (mixers & (1u << MF_MIX_FULL | 1u << MF_MIX_BLOCKS)) print_heads("attention heads", &c->attn);
    if (mixers & 1u << MF_MIX_SLIDING) print_heads("sliding heads", mf__config_attn(c, MF_MIX_SLIDING));
    if (mixers & 1u << MF_MIX_SLIDING) printf("window             %d\n", mf__config_attn(c, MF_MIX_SLIDING)->window);
    if (mixers & (1u << MF_MIX_LATENT | 1u << MF_MIX_INDEXED | 1u << MF_MIX_REUSED))
        printf("latent heads       %d heads of %d + %d rotating and %d; latent %d, query latent %d\n", c->attn.n_heads,
               c->mla.n_nope, c->mla.n_rope, c->mla.v_dim, c->mla.n_latent, c->mla.n_q_rank);
    if (mixers & (1u << MF_MIX_INDEXED | 1u << MF_MIX_BLOCKS))
        printf("index              %d heads of %d pick %d blocks of %d\n", c->index.n_heads, c->index.dim,
               c->index.top_k, c->index.block);
    if (mixers & 1u << MF_MIX_LINEAR)
        printf("linear heads       %d key heads of %d, %d value heads of %d, kernel %d\n", c->delta.n_k_heads,
               c->delta.k_dim, c->delta.n_v_heads, c->delta.v_dim, c->delta.n_kernel);
    printf("rope               theta %g", c->rope.theta);
    if (c->rope.yarn) printf(", YaRN factor %g over %g positions", c->rope.factor, c->rope.original_ctx);
    printf("\n");
}

static void print_config(const mf__survey *s) {
    const mf__config *c = &s->bp.config;
    printf("directory          %s\n", s->is_native ? "a model" : "a checkpoint; convert it to run it");
    printf("family             %s (model_type %s)\n", c->family->name, c->model_type);
    print_layers(c);
    printf("hidden             %d\n", c->n_hidden);
    printf("vocabulary         %d, head %s\n", c->n_vocab, c->tied_head ? "tied to the embedding" : "of its own");
    printf("context            %d\n", c->n_ctx);
    printf("norm epsilon       %g\n", (double)c->eps);
    print_attention(c);
    printf("experts            %d per layer, %d per token, width %d", c->moe.n_experts, c->moe.top_k, c->moe.n_inner);
    if (c->moe.n_shared_inner) printf("; shared expert of width %d", c->moe.n_shared_inner);
    if (c->moe.n_groups > 1) printf("; %d of %d groups", c->moe.top_groups, c->moe.n_groups);
    printf("\nend tokens        ");
    for (int32_t i = 0; i < c->n_eos; i++) printf(" %d", c->eos[i]);
    printf("%s\n", c->n_eos ? "" : " none");
    for (int i = 0; i < MF_FEATURES; i++) {
        char text[128];
        mf__feature_text(&c->has, i, text, sizeof text);
        if (strcmp(text, "-")) printf("%-18s %s\n", mf__feature_name(i), text);
    }
}

/* ---- sizes ----------------------------------------------------------------------------------------------------- */

static void print_bytes(const char *what, int64_t n, const char *note) {
    char text[APP_BYTES_TEXT];
    printf("  %-22s %12s%s%s\n", what, app_bytes((double)n, text), *note ? "  " : "", note);
}

/* "gate 4 bits/64, up 4 bits/64, down MXFP4 + bias" */
static void layout_text(const mf__expert_layout *l, char text[96]) {
    size_t used = 0;
    for (int p = 0; p < MF_PART_COUNT && used < 96; p++) {
        if (l->part[p].type == MF_TYPE_AFFINE)
            used += (size_t)snprintf(text + used, 96 - used, "%s%s %d bits/%d", p ? ", " : "", mf__expert_part_name(p),
                                     l->part[p].bits, l->part[p].group);
        else
            used += (size_t)snprintf(text + used, 96 - used, "%s%s %s", p ? ", " : "", mf__expert_part_name(p),
                                     l->part[p].type == MF_TYPE_F8_BLOCK ? "FP8" : mf__type_name(l->part[p].type));
        if (l->part[p].has_bias && used < 96) used += (size_t)snprintf(text + used, 96 - used, " + bias");
    }
}

static void print_sizes(const mf__survey *s) {
    const mf__config *c = &s->bp.config;
    char text[96], note[128], f32[APP_BYTES_TEXT], int8[APP_BYTES_TEXT];
    printf("\ntrunk (always in memory)\n");
    for (int p = 0; p < MF_SURVEY_PARTS; p++)
        if (s->part_bytes[p]) print_bytes(mf__survey_part_name((mf__survey_part)p), s->part_bytes[p], "");
    print_bytes("together", s->trunk_bytes, "");

    if (s->has_layout) {
        printf("\nexperts (read on demand)\n");
        layout_text(&s->layout, text);
        print_bytes("one expert", s->layout.bytes, text);
        snprintf(note, sizeof note, "%d layers of %d", s->n_moe_layers, c->moe.n_experts);
        print_bytes("together", s->expert_bytes, note);
    }
    if (s->unused_bytes > 0) {
        printf("\nnot used\n");
        print_bytes("other tensors", s->unused_bytes, s->is_native ? "" : "convert leaves them out");
    }

    printf("\nper token\n");
    snprintf(note, sizeof note, "%d experts from disk when nothing is cached", s->n_moe_layers * c->moe.top_k);
    if (s->has_layout) print_bytes("cold", s->cold_bytes, note);
    if (s->has_layout) print_bytes("resident", s->resident_bytes, "read from memory when everything is there");
    int64_t kv_bytes = mf__blueprint_kv_bytes(&s->bp, MF_TYPE_F16);
    app_bytes((double)mf__blueprint_kv_bytes(&s->bp, MF_TYPE_F32), f32);
    app_bytes((double)mf__blueprint_kv_bytes(&s->bp, MF_TYPE_I8), int8);
    snprintf(note, sizeof note, "grows with every token; --kv f32: %s, int8: %s", f32, int8);
    print_bytes("KV cache in f16", kv_bytes, note);

    if (s->state_bytes)
        printf("  and once per session: %s of state, kept twice, so that a failed call changes nothing\n",
               app_bytes((double)s->state_bytes, text));
}

/* The smallest --ram for contexts of several lengths, as it will be asked for. */
static mf_status print_memory(const char *dir, const mf__survey *s, mf_error *err) {
    static const int64_t LENGTHS[] = {0, 4096, 16384, 65536, INT64_MAX};
    int64_t n_ctx = s->bp.config.n_ctx, last = -1;
    mf_memory_needs needs = {0};
    printf("\nmemory needed, at least (more holds more experts, which is faster)\n");
    for (size_t i = 0; i < MF__COUNT(LENGTHS); i++) {
        int64_t n = LENGTHS[i] < n_ctx ? LENGTHS[i] : n_ctx;
        char what[64], ram[32];
        if (n == last) continue;
        last = n;
        MF__TRY(mf_model_memory(dir, NULL, n, 0, &needs, err));
        snprintf(what, sizeof what, n ? "%lld tokens" : "one chunk", (long long)n);
        snprintf(ram, sizeof ram, "--ram %lldM", (long long)((needs.total + (1 << 20) - 1) >> 20));
        print_bytes(what, needs.total, ram);
    }
    if (s->has_layout) print_bytes("with all experts", needs.total + s->expert_bytes, "nothing is read twice");
    return MF_OK;
}

/* ---- will it run here -------------------------------------------------------------------------------------------- */

/* A file of the experts, where their drive can be measured; malloc'd. NULL: none. */
static char *expert_file(const char *dir, const mf__survey *s) {
    for (int32_t l = 0; l < s->bp.config.n_layers; l++) {
        char name[48];
        snprintf(name, sizeof name, "packed_experts/layer_%02d.bin", (int)l);
        char *path = mf__path_join(dir, name);
        if (path && app_path_exists(path)) return path;
        free(path);
    }
    return NULL;
}

/* A checkpoint runs after a conversion: its sizes are those that the recommended one gives. */
static mf_status sizes_of(const char *dir, const mf__survey *s, model_sizes *m, mf_error *err) {
    if (s->is_native) {
        mf_memory_needs needs;
        int64_t n = s->bp.config.n_ctx < 4096 ? s->bp.config.n_ctx : 4096;
        MF__TRY(mf_model_memory(dir, NULL, n, 0, &needs, err));
        *m = (model_sizes){needs.total,     needs.experts, s->expert_bytes,
                           s->layout.bytes, s->cold_bytes, s->resident_bytes};
        return MF_OK;
    }
    mf__convert_options opt;
    mf__outlook look;
    const char *preset;
    char before[APP_BYTES_TEXT], after[APP_BYTES_TEXT];
    mf__convert_options_init(&opt);
    MF__TRY(mf__outlook_recommend(dir, &opt, &preset, err));
    MF__TRY(mf__outlook_make(dir, &opt, &look, err));
    printf("\nconversion\n  --preset %s is recommended: %s become %s (moeflux convert %s --dry-run shows the plan)\n",
           preset, app_bytes((double)look.before, before), app_bytes((double)look.after, after), dir);
    int64_t experts = look.parts[MF_OUTLOOK_EXPERTS].after, trunk = look.after - experts;
    double shrinks = s->expert_bytes ? (double)experts / (double)s->expert_bytes : 1;
    int64_t wanted = (int64_t)((double)s->cold_bytes * shrinks),
            fewest = wanted / (s->n_moe_layers ? s->n_moe_layers : 1) * 2;
    *m = (model_sizes){
        .needs = trunk + fewest + ((int64_t)256 << 20), /* and about that much for code, rows and state */
        .fewest = fewest,
        .experts = experts,
        .expert = (int64_t)((double)s->layout.bytes * shrinks),
        .token_experts = wanted,
        .token_bytes = trunk - (s->bp.config.tied_head ? 0 : look.parts[MF_OUTLOOK_EMBED].after) + wanted};
    return MF_OK;
}

static mf_status print_verdict(const char *dir, const mf__survey *s, mf_error *err) {
    model_sizes m;
    machine at;
    verdict v;
    if (!s->has_layout) return MF_OK;
    MF__TRY(sizes_of(dir, s, &m, err));
    char *file = expert_file(dir, s);
    if (!file && !s->is_native) file = mf__path_join(dir, "model.safetensors");
    mf_status st = machine_measure(file, m.expert, &at, err);
    free(file);
    MF__TRY(st);
    verdict_make(&m, &at, 0, &v);
    verdict_print(&m, &at, &v);
    return MF_OK;
}

/* What stands in the way, as opening or converting would say it. */
static int print_problems(const mf__survey *s) {
    for (int i = 0; i < s->n_problems && i < MF_SURVEY_PROBLEMS; i++) app_say("%s", s->problems[i].text);
    if (s->n_problems > MF_SURVEY_PROBLEMS) app_say("... and %d more like these", s->n_problems - MF_SURVEY_PROBLEMS);
    return s->n_problems ? APP_FAILED : APP_OK;
}

/* ---- graphs ---------------------------------------------------------------------------------------------------- */

static mf_status print_graph(const char *kind, const mf__graph *g, mf_error *err) {
    if (!g) return MF_OK;
    char *text = mf__graph_dump(g), scratch[APP_BYTES_TEXT];
    if (!text) return mf__fail(err, MF_E_NOMEM, "no memory for a listing");
    printf("\n%s%s%s: %d ops, %d buffers in %d colours, scratch %s per 512 rows\n%s", kind, *kind ? " / " : "", g->name,
           g->n_ops, g->n_bufs, g->n_colours, app_bytes((double)mf__graph_scratch_bytes(g, 512), scratch), text);
    free(text);
    return MF_OK;
}

static mf_status print_graphs(const mf__survey *m, mf_error *err) {
    MF__TRY(print_graph("", m->bp.embed, err));
    for (int k = 0; k < m->bp.n_kinds; k++) {
        const mf__graph *graphs[MF_LAYER_GRAPHS];
        mf__layer_graphs(&m->bp.kinds[k], graphs);
        for (int i = 0; i < MF_LAYER_GRAPHS; i++) MF__TRY(print_graph(m->bp.kinds[k].name, graphs[i], err));
    }
    return print_graph("", m->bp.tail, err);
}

typedef struct inspect_options {
    bool graphs, cpu, cuda;
    int64_t vram;
} inspect_options;

static int inspect_model(const char *dir, const inspect_options *opt) {
    mf__survey s;
    mf_error err;
    mf_status st = mf__survey_make(dir, &s, &err);
    if (st != MF_OK) return app_fail(&err);
    if (s.known) {
        print_config(&s);
        print_sizes(&s);
        if (s.is_native && !s.n_problems) st = print_memory(dir, &s, &err);
        if (s.is_native && !s.n_problems && st == MF_OK && opt->cuda) st = inspect_cuda_split(dir, &s, opt->vram, &err);
        if (st == MF_OK && opt->graphs) st = print_graphs(&s, &err);
        if (st == MF_OK && !s.n_problems) st = print_verdict(dir, &s, &err);
    }
    int code = st == MF_OK ? print_problems(&s) : app_fail(&err);
    mf__survey_free(&s);
    return code;
}

int cmd_inspect(int argc, char **argv) {
    inspect_options opt = {0};
    model_find find = {.lookup = true};
    opt_def defs[] = {
        {.name = "graph",
         .kind = OPT_FLAG,
         .value = &opt.graphs,
         .help = "also list the operations of every kind of layer"},
        {.name = "cpu",
         .kind = OPT_FLAG,
         .value = &opt.cpu,
         .help = "what this machine's processor and memory are, and which kernels it gets"},
        {.name = "cuda",
         .kind = OPT_FLAG,
         .value = &opt.cuda,
         .help = "which GPU can be used, or why none can; with DIR, how much of the model goes where"},
        {.name = "vram",
         .kind = OPT_SIZE,
         .value = &opt.vram,
         .arg = "SIZE",
         .help = "with --cuda: as if so much of its memory were to be used (default: what is free)"},
        OPT_FIND_ROWS(find),
    };
    opt_spec spec = {
        .usage = "inspect [MODEL] [options]",
        .about = "Says what MODEL, a name, a model directory or a checkpoint, is made of, how large its parts are, how "
                 "much memory it\n"
                 "wants, and what about it is wrong or not supported. Exit code 1 when anything is. DIR may be left\n"
                 "out with --cpu and --cuda.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .min_words = 0,
        .max_words = 1,
        .examples = "  moeflux inspect models/stories-moe\n  moeflux inspect models/stories-moe --graph\n"
                    "  moeflux inspect --cpu\n  moeflux inspect models/stories-moe --cuda --vram 4G\n",
    };
    const char *words[OPT_MAX_WORDS] = {NULL};
    mf_error err;
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    if (!words[0] && !opt.cpu && !opt.cuda) {
        app_say("inspect what? 1 argument is missing: MODEL, or --cpu, or --cuda. Help: moeflux inspect --help");
        return APP_USAGE;
    }
    if (opt.vram && (!opt.cuda || !words[0])) {
        app_say("--vram says how much of a GPU's memory to reckon with: it goes with --cuda and a model");
        return APP_USAGE;
    }
    if (opt.cpu && inspect_cpu(&err) != MF_OK) return app_fail(&err);
    if (opt.cuda) inspect_cuda();
    if (!words[0]) return APP_OK;
    if (opt.cpu || opt.cuda) printf("\n");
    char *dir;
    if (models_find(&find, words[0], &dir, &err) != MF_OK) return app_fail(&err);
    int code = inspect_model(dir, &opt);
    free(dir);
    return code;
}
