/* moeflux shard: the share of a model that one rank of a job needs. */
#include "convert/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/hash.h"
#include "models.h"
#include "options.h"
#include "placement.h"
#include "progress.h"

typedef struct asked {
    int64_t ranks, rank;
    const char *routes, *shares;
    double copies; /* percent */
    bool dry, restart;
} asked;

/* "2,1,1": how much of the model each rank gets. */
static mf_status parse_shares(const asked *a, int64_t *weights, mf_error *err) {
    const char *at = a->shares;
    for (int r = 0; r < a->ranks; r++) {
        char *end;
        double x = at ? strtod(at, &end) : 1;
        if (at && (end == at || !(x > 0 && x <= 1e6) || *end != (r + 1 < a->ranks ? ',' : '\0')))
            return mf__fail(err, MF_E_INVALID, "--shares is \"%s\"; expected %d numbers above 0, as 2,1,1", a->shares,
                            (int)a->ranks);
        weights[r] = (int64_t)(x * 1e6);
        if (at) at = end + 1;
    }
    return MF_OK;
}

static bool show(void *user, int64_t done, int64_t total) {
    progress_show(user, done, total);
    return app_interrupted(NULL);
}

/* How even the work of the recorded text is with this placement. */
static void say_balance(const placement *p, const uint64_t *owners) {
    placement_balance b;
    if (!p->routes || placement_measure(p, owners, &b, NULL) != MF_OK) return;
    app_note("work of the busiest rank in %s: %.1f %% above the mean over the text (worst layer %.1f %%), %.0f %% in a "
             "single token",
             p->routes, 100 * (b.text - 1), 100 * (b.worst - 1), 100 * (b.token - 1));
}

static mf_status make(const char *src, const char *dst, const asked *a, const mf__shard *what, mf_error *err) {
    mf__shard_size size;
    progress bar;
    char part[APP_BYTES_TEXT], all[APP_BYTES_TEXT];
    MF__TRY(mf__shard_measure(src, what, &size, err));
    app_bytes((double)size.bytes, part);
    app_bytes((double)size.all_bytes, all);
    if (a->dry) {
        printf("rank %d of %d: %lld of %lld experts, %s of %s; placement %016llx\n", what->rank, what->n_ranks,
               (long long)size.n_experts, (long long)size.all_experts, part, all,
               (unsigned long long)mf__shard_placement(what));
        return MF_OK;
    }
    mf__shard_options opt = {.restart = a->restart, .progress = show, .progress_user = &bar};
    app_catch_interrupts();
    progress_start(&bar, "copying", NULL);
    mf_status st = mf__shard_make(src, dst, what, &opt, err);
    progress_end(&bar);
    if (st == MF_E_CANCELLED) app_say("stopped; %s was not written: %s", dst, err->text);
    MF__TRY(st);
    app_note("%s is the share of rank %d of %d: %lld of %lld experts, %s of %s%s", dst, what->rank, what->n_ranks,
             (long long)size.n_experts, (long long)size.all_experts, part, all,
             what->trunk ? "" : "; the weights that stay are rank 0's alone");
    app_note("copy it with its holes: tar -S, rsync -S, cp --sparse=always");
    return MF_OK;
}

static mf_status shard(const char *src, const char *dst, const asked *a, mf_error *err) {
    int64_t weights[PLACEMENT_RANKS];
    bool *has = NULL;
    placement p = {.n_ranks = (int)a->ranks, .weights = weights, .routes = a->routes, .extra = a->copies / 100};
    mf__shard what = {.n_ranks = (int)a->ranks, .rank = (int)a->rank, .trunk = a->rank == 0};
    MF__TRY(parse_shares(a, weights, err));
    mf_status st = mf__shard_shape(src, &p.n_layers, &p.n_experts, &has, err);
    p.has = has;
    what.n_layers = p.n_layers;
    what.n_experts = p.n_experts;
    if (st == MF_OK) st = placement_make(&p, &what.owners, err);
    if (st == MF_OK) say_balance(&p, what.owners);
    if (st == MF_OK) st = make(src, dst, a, &what, err);
    free(what.owners);
    free(has);
    return st;
}

static mf_status check(const asked *a, bool dst, mf_error *err) {
    if (a->ranks < 2) return mf__fail(err, MF_E_INVALID, "--ranks says how many ranks the job will have, 2 at least");
    if (a->rank < 0 || a->rank >= a->ranks)
        return mf__fail(err, MF_E_INVALID, "--rank says whose share it is, 0 to %d", (int)a->ranks - 1);
    if (a->copies > 0 && !a->routes)
        return mf__fail(err, MF_E_INVALID, "--copies are of the experts that are wanted most: --placement says which");
    if (!dst && !a->dry) return mf__fail(err, MF_E_INVALID, "where to? moeflux shard MODEL OUT --ranks N --rank K");
    return MF_OK;
}

int cmd_shard(int argc, char **argv) {
    asked a = {.rank = -1};
    model_find find = {.lookup = true};
    opt_def defs[] = {
        {.name = "ranks",
         .kind = OPT_INT,
         .value = &a.ranks,
         .arg = "N",
         .help = "ranks of the job",
         .min = 2,
         .max = 64},
        {.name = "rank",
         .kind = OPT_INT,
         .value = &a.rank,
         .arg = "K",
         .help = "whose share: 0 (which also gets the weights that stay) to N - 1",
         .min = 0,
         .max = 63},
        {.name = "placement",
         .kind = OPT_STRING,
         .value = &a.routes,
         .arg = "FILE",
         .help = "share the work of a text evenly: its routes, recorded by run --record-routes (default: by a hash)"},
        {.name = "shares",
         .kind = OPT_STRING,
         .value = &a.shares,
         .arg = "A,B,...",
         .help = "how much of the model each rank gets, as 2,1,1 (default: the same)"},
        {.name = "copies",
         .kind = OPT_REAL,
         .value = &a.copies,
         .arg = "PERCENT",
         .help = "so many experts more, on all ranks together: those wanted most are on two ranks",
         .min = 0,
         .max = 100},
        {.name = "dry-run", .kind = OPT_FLAG, .value = &a.dry, .help = "say what it would be; write nothing"},
        {.name = "restart", .kind = OPT_FLAG, .value = &a.restart, .help = "start over what an earlier run began"},
        OPT_FIND_ROWS(find),
    };
    opt_spec spec = {
        .usage = "shard MODEL [OUT] --ranks N --rank K [options]",
        .about =
            "Writes the share of MODEL that one rank of a job of N needs (docs/CLUSTER.md): the same directory with\n"
            "only that rank's experts. All shares of a job are made with the same options. Interrupted, the same\n"
            "command goes on.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .min_words = 1,
        .max_words = 2,
        .examples = "  moeflux shard qwen qwen-2 --ranks 4 --rank 2\n"
                    "  moeflux shard qwen --ranks 4 --rank 2 --placement story.routes --copies 10 --dry-run\n",
    };
    const char *words[OPT_MAX_WORDS] = {NULL};
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    char *dir = NULL;
    mf_error err;
    mf_status st = check(&a, words[1] != NULL, &err);
    if (st == MF_OK) st = models_find(&find, words[0], &dir, &err);
    if (st == MF_OK) st = shard(dir, words[1], &a, &err);
    free(dir);
    return st == MF_OK ? APP_OK : app_fail(&err);
}
