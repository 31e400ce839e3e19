/* moeflux inspect: what a checkpoint or a model directory holds, what running it needs, and what stands in the way.
 * Also what the machine has (inspect_cpu.c, inspect_cuda.c), and whether the one runs on the other (inspect_verdict.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "convert/survey.h"
#include "inspect_cpu.h"
#include "inspect_cuda.h"
#include "inspect_verdict.h"
#include "models.h"
#include "options.h"
#include "pull.h"

/* ---- hyper-parameters ------------------------------------------------------------------------------------------ */

/* "linear 6, full 2" and how many of all are dense */
static void print_layers(const mf__config *c) {
    int n_of[MF_MIX_COUNT] = {0}, n_dense = 0, n_named = 0;
    for (int32_t l = 0; l < c->n_layers; l++) {
        n_of[c->mixer[l]]++;
        n_dense += c->dense[l] && !c->alone[l];
    }
    printf("layers             %d:", c->n_layers);
    for (int m = 0; m < MF_MIX_NONE; m++)
        if (n_of[m]) printf("%s %d %s attention", n_named++ ? "," : "", n_of[m], mf__mixer_name((mf__mixer)m));
    if (n_of[MF_MIX_NONE]) printf(", %d without any", n_of[MF_MIX_NONE]);
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
    if (c->has.nope) return;
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
    printf("experts            %d per layer, %d per token, width %d", c->moe.n_experts, c->moe.top_k,
           (int)mf__config_expert_wide(c));
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

/* ---- the whole ------------------------------------------------------------------------------------------------- */

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
    bool graphs, cpu, cuda, json;
    int64_t vram, layers;
    const char *shape;
    inspect_subject subject;
    pull_options hub;
} inspect_options;

/* All that is printed but the verdict. */
static mf_status print_model(const mf__survey *s, const inspect_options *opt, mf_error *err) {
    const char *dir = opt->subject.path;
    print_config(s);
    print_sizes(s);
    if (s->is_native && !s->n_problems) MF__TRY(print_memory(dir, s, err));
    if (s->is_native && !s->n_problems && opt->cuda) MF__TRY(inspect_cuda_split(dir, s, opt->vram, err));
    return opt->graphs ? print_graphs(s, err) : MF_OK;
}

static int inspect_model(const inspect_options *opt) {
    mf__survey s;
    mf_error err;
    mf_status st = mf__survey_make(opt->subject.path, &s, &err);
    if (st != MF_OK) return app_fail(&err);
    if (s.known && !opt->json) st = print_model(&s, opt, &err);
    if (st == MF_OK && opt->json) st = inspect_json(&opt->subject, &s, &err);
    if (st == MF_OK && !opt->json && s.known && !s.n_problems) st = inspect_verdict(&opt->subject, &s, &err);
    int code = st == MF_OK ? print_problems(&s) : app_fail(&err);
    mf__survey_free(&s);
    return code;
}

static bool wants_hub(const pull_options *hub) {
    return hub->file || hub->endpoint || hub->token_file || hub->allow_http;
}

/* What is here goes before what is on a hub. */
static int inspect_word(inspect_options *opt, const model_find *find, const char *word) {
    mf_error err, there;
    char *path;
    mf_status st = models_find(find, word, &path, &err);
    if (st == MF_OK && wants_hub(&opt->hub)) {
        app_say("%s is here; --file, --endpoint, --token-file and --allow-http are for models on a hub", path);
        free(path);
        return APP_USAGE;
    }
    opt->subject.models = find->models;
    if (st == MF_OK) {
        opt->subject.path = opt->subject.name = path;
        int code = inspect_model(opt);
        free(path);
        return code;
    }
    if (!pull_is_name(word)) return app_fail(&err);
    pull_view view;
    app_note("%s is not here; asking the hub about it", word);
    if (pull_look(&opt->hub, word, &view, &there) != MF_OK) return app_fail(&there);
    opt->subject.path = view.source;
    opt->subject.name = view.identity;
    opt->subject.on_hub = word;
    int code = inspect_model(opt);
    pull_view_close(&view);
    return code;
}

static int bad_combination(const inspect_options *opt, const char *word) {
    if (!word && !opt->cpu && !opt->cuda && !opt->shape)
        app_say("inspect what? 1 argument is missing: MODEL, or --cpu, or --cuda. Help: moeflux inspect --help");
    else if (opt->vram && (!opt->cuda || !word))
        app_say("--vram says how much of a GPU's memory to reckon with: it goes with --cuda and a model");
    else if (opt->layers && !opt->shape)
        app_say("--layers goes with --shape");
    else if (opt->shape && word)
        app_say("--shape is instead of a model, and \"%s\" is given too", word);
    else if (opt->shape && (opt->graphs || wants_hub(&opt->hub)))
        app_say("--shape has no files: --graph, and what is for models on a hub, do nothing with it");
    else if (opt->json && (opt->graphs || opt->cpu || opt->cuda))
        app_say("--json is the verdict as one JSON object: it excludes --graph, --cpu and --cuda");
    else if (!word && !opt->shape && (opt->json || opt->subject.ram || opt->subject.assumed.any))
        app_say("--json, --ram and --assume are about a model, and none is given");
    else
        return APP_OK;
    return APP_USAGE;
}

int cmd_inspect(int argc, char **argv) {
    inspect_options opt = {0};
    model_find find = {.lookup = true};
    const char *assume = NULL;
    opt_def defs[] = {
        {.name = "ram",
         .kind = OPT_SIZE,
         .value = &opt.subject.ram,
         .arg = "SIZE",
         .help = "the verdict for that much memory (default: what is free)"},
        {.name = "assume",
         .kind = OPT_STRING,
         .value = &assume,
         .arg = "LIST",
         .help = "the verdict for another machine: some of ram=32G,memory=60G,drive=5G,threads=8,cpu=avx2,vram=24G"},
        {.name = "shape",
         .kind = OPT_STRING,
         .value = &opt.shape,
         .arg = "NAME",
         .help = "instead of MODEL: the verdict for a published shape (those of moeflux synth), 4 bits and 8"},
        {.name = "layers",
         .kind = OPT_INT,
         .value = &opt.layers,
         .arg = "N",
         .help = "with --shape: fewer layers than the published model has",
         .min = 1,
         .max = 256},
        {.name = "json", .kind = OPT_FLAG, .value = &opt.json, .help = "print one JSON object"},
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
         .help = "which GPU can be used, or why none can; with MODEL, how much of the model goes where"},
        {.name = "vram",
         .kind = OPT_SIZE,
         .value = &opt.vram,
         .arg = "SIZE",
         .help = "with --cuda: as if so much of its memory were to be used (default: what is free)"},
        {.name = "hub", .kind = OPT_GROUP, .value = &opt.hub, .group = pull_hub_rows},
        OPT_FIND_ROWS(find),
    };
    opt_spec spec = {
        .usage = "inspect [MODEL] [options]",
        .about =
            "Says what MODEL is made of, how large its parts are, how much memory it wants, what about it is wrong\n"
            "or not supported (exit code 1 when anything is), and whether and about how fast it runs here. MODEL\n"
            "is a name, a model directory, a checkpoint, a GGUF file, or ORG/NAME on the Hugging Face hub, of\n"
            "which only the tables of tensors are downloaded. It may be left out with --cpu, --cuda and --shape.\n"
            "--assume: what is not named is this machine's, but for the GPU; of ram an eighth is left to others;\n"
            "memory and drive are bytes a second; cpu is avx512, avxvnni, avx2, i8mm, dotprod or scalar.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .min_words = 0,
        .max_words = 1,
        .examples = "  moeflux inspect models/stories-moe\n  moeflux inspect models/stories-moe --graph\n"
                    "  moeflux inspect Qwen/Qwen3.6-35B-A3B\n"
                    "  moeflux inspect --shape a17b --assume ram=64G,memory=80G,drive=7G,threads=16\n"
                    "  moeflux inspect --cpu\n  moeflux inspect models/stories-moe --cuda --vram 4G\n",
    };
    const char *words[OPT_MAX_WORDS] = {NULL};
    mf_error err;
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    if (assume && machine_assume(assume, &opt.subject.assumed, &err) != MF_OK) return app_fail(&err);
    if (bad_combination(&opt, words[0])) return APP_USAGE;
    if (opt.cpu && inspect_cpu(&err) != MF_OK) return app_fail(&err);
    if (opt.cuda) inspect_cuda();
    if ((words[0] || opt.shape) && (opt.cpu || opt.cuda)) printf("\n");
    opt.subject.models = find.models;
    inspect_shape_of shape = {.name = opt.shape, .layers = (int)opt.layers};
    if (opt.shape) return inspect_shape(&opt.subject, &shape, opt.json, &err) == MF_OK ? APP_OK : app_fail(&err);
    return words[0] ? inspect_word(&opt, &find, words[0]) : APP_OK;
}
