/* Replays recorded routes through the cache policies and the clairvoyant optimum, and prints the hit rates:
 *
 *   test_store_replay [FILE.routes ...]
 *
 * First one sequence and all policies; then batches of several, the default policy, and what reading ahead adds: the
 * experts of the pass before, and those that a router foretells which is right four times of five. Its reads are free
 * here: the share of hits is what there is to win, the number of reads what it costs. Then the bytes that two copies of
 * every expert read, large and small.
 *
 * With files: tables for each. Without: the extracts in tests/data/store, and the results are judged: the default
 * policy must not fall behind the others nor behind what it reached when it was chosen. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/policy.h"

#define N_SIZES 6

static const int SIZES[N_SIZES] = {5, 10, 15, 25, 50, 75}; /* percent of all experts */

typedef struct routes {
    int n_layers, top_k, n_experts, n_keys;
    long n_tokens;
    unsigned char *ids; /* [n_tokens][n_layers][top_k] */
} routes;

static bool routes_read(const char *path, routes *r) {
    FILE *f = fopen(path, "rb");
    memset(r, 0, sizeof *r);
    if (!f || fscanf(f, "moeflux-routes 1 %d %d %d", &r->n_layers, &r->top_k, &r->n_experts) != 3 || fgetc(f) != '\n' ||
        r->n_layers < 1 || r->top_k < 1 || r->n_experts < r->top_k || r->n_experts > 256) {
        fprintf(stderr, "%s: not a file of routes\n", path);
        if (f) fclose(f);
        return false;
    }
    long begin = ftell(f);
    fseek(f, 0, SEEK_END);
    long row = (long)r->n_layers * r->top_k, size = (ftell(f) - begin) / row * row;
    fseek(f, begin, SEEK_SET);
    r->ids = malloc((size_t)size + 1);
    bool ok = r->ids && fread(r->ids, 1, (size_t)size, f) == (size_t)size;
    for (long i = 0; ok && i < size; i++) ok = r->ids[i] < r->n_experts;
    fclose(f);
    r->n_tokens = size / row;
    r->n_keys = r->n_layers * r->n_experts;
    return ok;
}

/* ---- a cache without bytes: as the store, but hits are all that is counted ---- */

typedef struct cache {
    const routes *r;
    int n_slots, n_used;
    mf__key *keys; /* [n_slots] */
    int *where;    /* [n_keys] */
    int now;       /* layer of the turn */
    bool *wanted;  /* [n_experts] of the turn */
    bool *guessed; /* [n_slots] read ahead and not yet wanted */
    int n_guessed;
    mf__ranking ranking;
    long n_wanted, n_hits, n_reads;
} cache;

static bool may_go(const void *ctx, int i) {
    const cache *c = ctx;
    return c->keys[i] / c->r->n_experts != c->now || !c->wanted[c->keys[i] % c->r->n_experts];
}

static bool may_go_for_guess(const void *ctx, int i) {
    return may_go(ctx, i) && !((const cache *)ctx)->guessed[i];
}

static void cache_init(cache *c, const routes *r, int n_slots, const mf__policy *policy) {
    *c = (cache){.r = r, .n_slots = n_slots};
    c->keys = malloc((size_t)n_slots * sizeof *c->keys);
    c->where = malloc((size_t)r->n_keys * sizeof *c->where);
    c->wanted = calloc((size_t)r->n_experts, sizeof *c->wanted);
    c->guessed = calloc((size_t)n_slots, sizeof *c->guessed);
    for (int i = 0; i < n_slots; i++) c->keys[i] = -1;
    for (int i = 0; i < r->n_keys; i++) c->where[i] = -1;
    if (!policy) return;
    c->ranking = (mf__ranking){.policy = policy, .n_layers = r->n_layers, .n_experts = r->n_experts};
    c->ranking.state = calloc(1, policy->bytes(r->n_layers, r->n_experts));
}

static void cache_free(cache *c) {
    free(c->keys);
    free(c->where);
    free(c->wanted);
    free(c->guessed);
    free(c->ranking.state);
}

static void cache_put(cache *c, int slot, int key, bool guess) {
    if (c->keys[slot] >= 0) c->where[c->keys[slot]] = -1;
    c->n_guessed += guess - c->guessed[slot];
    c->guessed[slot] = guess;
    c->keys[slot] = key;
    c->where[key] = slot;
    c->n_reads++;
}

/* Experts of a layer that a pass wants, and how many of its rows each. */
typedef struct wish {
    int32_t ids[256], counts[256];
    int n;
} wish;

/* All rows decode: one tick. used: what the layer wanted, of which this cache has to serve w. */
static void cache_serve(cache *c, int layer, const wish *w, const wish *used) {
    int32_t victims[256];
    double worths[256];
    int misses = 0, n = 0;
    c->now = layer;
    memset(c->wanted, 0, (size_t)c->r->n_experts * sizeof *c->wanted);
    for (int i = 0; i < w->n; i++) {
        int slot = c->where[layer * c->r->n_experts + w->ids[i]];
        c->wanted[w->ids[i]] = true;
        misses += slot < 0;
        if (slot < 0 || !c->guessed[slot]) continue;
        c->guessed[slot] = false;
        c->n_guessed--;
    }
    c->n_wanted += w->n;
    c->n_hits += w->n - misses;
    c->ranking.policy->use(c->ranking.state, c->r->n_experts, layer, used->ids, used->counts, used->n, 1);
    int n_free = c->n_slots - c->n_used;
    if (misses > n_free)
        n = mf__ranking_worst(&c->ranking, c->keys, c->n_slots, layer, may_go, c, misses - n_free, victims, worths);
    for (int i = 0; i < w->n; i++) {
        int key = layer * c->r->n_experts + w->ids[i];
        if (c->where[key] >= 0) continue;
        if (c->n_used == c->n_slots && n == 0) break; /* fewer slots than one turn wants */
        cache_put(c, c->n_used < c->n_slots ? c->n_used++ : victims[--n], key, false);
    }
}

static void cache_turn(cache *c, int layer, const wish *w) {
    cache_serve(c, layer, w, w);
}

/* Reads ahead what a layer may want: as the store, unused guesses take a quarter of the slots at most. */
static void cache_guess(cache *c, int layer, const wish *w) {
    for (int i = 0; i < w->n && (c->n_guessed + 1) * 4 <= c->n_slots; i++) {
        int key = layer * c->r->n_experts + w->ids[i];
        int32_t slot = c->n_used;
        double worth;
        if (c->where[key] >= 0) continue;
        if (c->n_used == c->n_slots) {
            if (!mf__ranking_worst(&c->ranking, c->keys, c->n_slots, c->now, may_go_for_guess, c, 1, &slot, &worth))
                return;
        } else {
            c->n_used++;
        }
        cache_put(c, slot, key, true);
    }
}

/* A batch: each row is another part of the recording. */
static void wish_of(const routes *r, int batch, long pass, int layer, wish *w) {
    int rows[256] = {0};
    w->n = 0;
    for (int b = 0; b < batch; b++) {
        const unsigned char *ids = r->ids + ((r->n_tokens / batch * b + pass) * r->n_layers + layer) * r->top_k;
        for (int i = 0; i < r->top_k; i++) rows[ids[i]]++;
    }
    for (int c = batch; c > 0; c--) /* those that most rows want first */
        for (int e = 0; e < r->n_experts; e++)
            if (rows[e] == c) {
                w->ids[w->n] = e;
                w->counts[w->n++] = c;
            }
}

typedef enum predictor { NOBODY, LAST_PASS, ROUTER } predictor;

/* What the next layer's router says early: four of five that will be wanted, and as many others as it misses. */
static void foresee(const routes *r, wish *w, uint64_t *seed) {
    for (int i = 0; i < w->n; i++) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        if ((*seed >> 33) % 5 == 0) w->ids[i] = (int32_t)((*seed >> 40) % (uint64_t)r->n_experts);
    }
}

typedef struct outcome {
    double hits, reads; /* percent of wanted experts that were there; experts read per pass */
} outcome;

static outcome replay(const routes *r, const mf__policy *policy, int percent, int batch, predictor who) {
    cache c;
    wish *last = calloc((size_t)r->n_layers, sizeof *last), w, next;
    uint64_t seed = 1;
    long n_passes = r->n_tokens / batch;
    cache_init(&c, r, r->n_keys * percent / 100, policy);
    for (long t = 0; t < n_passes * r->n_layers; t++) {
        int layer = (int)(t % r->n_layers), after = (layer + 1) % r->n_layers;
        wish_of(r, batch, t / r->n_layers, layer, &w);
        cache_turn(&c, layer, &w);
        if (who == LAST_PASS) cache_guess(&c, after, &last[after]);
        if (who == ROUTER && t + 1 < n_passes * r->n_layers) {
            wish_of(r, batch, (t + 1) / r->n_layers, after, &next);
            foresee(r, &next, &seed);
            cache_guess(&c, after, &next);
        }
        last[layer] = w;
    }
    outcome o = {100.0 * (double)c.n_hits / (double)c.n_wanted, (double)c.n_reads / (double)n_passes};
    cache_free(&c);
    free(last);
    return o;
}

/* Belady: the expert whose next use is furthest away goes. */
static double optimum(const routes *r, int percent) {
    long n = r->n_tokens * r->n_layers * r->top_k, hits = 0;
    long *next = malloc((size_t)n * sizeof *next), *later = malloc((size_t)r->n_keys * sizeof *later);
    cache c;
    cache_init(&c, r, r->n_keys * percent / 100, NULL);
    for (int k = 0; k < r->n_keys; k++) later[k] = n;
    for (long i = n - 1; i >= 0; i--) {
        int key = (int)(i / r->top_k % r->n_layers) * r->n_experts + r->ids[i];
        next[i] = later[key];
        later[key] = i;
    }
    long *use = calloc((size_t)c.n_slots, sizeof *use); /* next use of what a slot holds */
    for (long i = 0; i < n; i++) {
        int key = (int)(i / r->top_k % r->n_layers) * r->n_experts + r->ids[i], slot = c.where[key];
        if (slot >= 0) {
            hits++;
        } else {
            if (c.n_used < c.n_slots) {
                slot = c.n_used++;
            } else {
                slot = 0;
                for (int s = 1; s < c.n_slots; s++)
                    if (use[s] > use[slot]) slot = s;
                c.where[c.keys[slot]] = -1;
            }
            c.keys[slot] = key;
            c.where[key] = slot;
        }
        use[slot] = next[i];
    }
    cache_free(&c);
    free(use);
    free(next);
    free(later);
    return 100.0 * (double)hits / (double)n;
}

static void print_row(const char *name, const double *rates) {
    printf("| %-8s |", name);
    for (int i = 0; i < N_SIZES; i++) printf(" %5.1f |", rates[i]);
    printf("\n");
    fflush(stdout);
}

/* The table of one file. least: what the default policy must reach, or NULL. Returns the number of complaints. */
static int judge(const char *path, const double *least) {
    routes r;
    double rates[8][N_SIZES], best[N_SIZES] = {0};
    int bad = 0, n = 0;
    if (!routes_read(path, &r)) return 1;
    printf(
        "\n%s: %ld tokens, %d layers, %d of %d experts. Hit rate in percent by cache size in percent:\n\n| policy   |",
        strrchr(path, '/') ? strrchr(path, '/') + 1 : path, r.n_tokens, r.n_layers, r.top_k, r.n_experts);
    for (int i = 0; i < N_SIZES; i++) printf(" %4d%% |", SIZES[i]);
    printf("\n|---|---|---|---|---|---|---|\n");
    for (; mf__policies[n]; n++) {
        for (int i = 0; i < N_SIZES; i++) {
            rates[n][i] = replay(&r, mf__policies[n], SIZES[i], 1, NOBODY).hits;
            if (rates[n][i] > best[i]) best[i] = rates[n][i];
        }
        print_row(mf__policies[n]->name, rates[n]);
    }
    for (int i = 0; i < N_SIZES; i++) rates[n][i] = optimum(&r, SIZES[i]);
    print_row("optimum", rates[n]);
    for (int i = 0; i < N_SIZES; i++) {
        if (rates[0][i] < best[i] - 1)
            bad++, printf("at %d%% the default hits %.1f, another policy %.1f\n", SIZES[i], rates[0][i], best[i]);
        if (least && rates[0][i] < least[i])
            bad++, printf("at %d%% the default hits %.1f, expected %.1f\n", SIZES[i], rates[0][i], least[i]);
        if (best[i] > rates[n][i]) bad++, printf("at %d%% a policy beats the optimum: the replay is wrong\n", SIZES[i]);
    }
    free(r.ids);
    return bad;
}

#define N_BATCH_SIZES 4
static const int BATCH_SIZES[N_BATCH_SIZES] = {10, 25, 50, 75};
static const int BATCHES[2] = {4, 16};

/* least: [batch][size] what the default policy must reach without and with the pass before; or NULL. */
static int judge_batches(const char *path, const double least[2][2][N_BATCH_SIZES]) {
    static const char *const names[] = {"nobody", "the pass before", "a router, 80 % right"};
    routes r;
    int bad = 0;
    if (!routes_read(path, &r)) return 1;
    for (int b = 0; b < 2; b++) {
        outcome o[3][N_BATCH_SIZES];
        printf("\nBatches of %d. Hits in percent, experts read per pass:\n\n| foretold by |", BATCHES[b]);
        for (int i = 0; i < N_BATCH_SIZES; i++) printf(" %d%% |", BATCH_SIZES[i]);
        printf("\n|---|---|---|---|---|\n");
        for (int who = NOBODY; who <= (least ? LAST_PASS : ROUTER); who++) {
            printf("| %s |", names[who]);
            for (int i = 0; i < N_BATCH_SIZES; i++) {
                o[who][i] = replay(&r, mf__policies[0], BATCH_SIZES[i], BATCHES[b], (predictor)who);
                printf(" %.1f, %.0f |", o[who][i].hits, o[who][i].reads);
                if (who < ROUTER && least && o[who][i].hits < least[b][who][i])
                    bad++, printf("(expected %.1f)", least[b][who][i]);
            }
            printf("\n");
        }
        for (int i = 0; i < N_BATCH_SIZES; i++)
            if (o[LAST_PASS][i].hits < o[NOBODY][i].hits - 0.5) bad++, printf("reading ahead loses hits\n");
    }
    free(r.ids);
    return bad;
}

/* ---- two copies ---- */

#define SMALL_BYTES (2.5 / 4.5) /* of 2 bits beside 4, groups of 64 */

typedef struct copies {
    double small_ram, promote; /* as in mf_lossy */
} copies;

typedef struct copies_outcome {
    double bytes, small; /* read per token, in experts of full size; the share of uses that small copies served */
} copies_outcome;

/* As the engine does it with small = 2: what is not in the full cache is served small, unless it is likely to be wanted
 * again; one budget of so many percent for both. */
static copies_outcome replay_copies(const routes *r, int percent, copies how) {
    const mf__policy *p = mf__policies[0];
    double n = r->n_keys * percent / 100.0, n_small = n * how.small_ram / SMALL_BYTES;
    cache full, small;
    wish w;
    cache_init(&full, r, (int)(n * (1 - how.small_ram)), p);
    cache_init(&small, r, n_small < r->n_keys ? (int)n_small : r->n_keys, p);
    for (long t = 0; t < r->n_tokens * r->n_layers; t++) {
        int layer = (int)(t % r->n_layers);
        wish in_full = {.n = 0}, in_small = {.n = 0};
        wish_of(r, 1, t / r->n_layers, layer, &w);
        for (int i = 0; i < w.n; i++) {
            mf__key key = layer * r->n_experts + w.ids[i];
            bool hot = how.promote > 0 && p->chance(full.ranking.state, key) >= how.promote;
            wish *to = full.where[key] >= 0 || full.n_used < full.n_slots || hot ? &in_full : &in_small;
            to->ids[to->n] = w.ids[i];
            to->counts[to->n++] = 1;
        }
        cache_serve(&full, layer, &in_full, &w);
        cache_turn(&small, layer, &in_small);
    }
    copies_outcome o = {((double)full.n_reads + SMALL_BYTES * (double)small.n_reads) / (double)r->n_tokens,
                        (double)small.n_wanted / (double)(full.n_wanted + small.n_wanted)};
    cache_free(&full);
    cache_free(&small);
    return o;
}

#define N_COPIES_SIZES 3
static const int COPIES_SIZES[N_COPIES_SIZES] = {5, 10, 25};

/* least: how many times less the first way must read at each size; or NULL. */
static int judge_copies(const char *path, const double *least) {
    static const copies ways[] = {{0.5, 0.5}, {0.3, 0.3}, {0.3, 0.5}, {0.5, 0.3}, {0.7, 0.5}, {0.5, 0.7}, {0.8, 0.7}};
    routes r;
    int bad = 0;
    if (!routes_read(path, &r)) return 1;
    printf(
        "\nTwo copies, 4 and 2 bits. Times fewer bytes than exact (and uses served small, in percent):\n\n| small-ram, "
        "promote |");
    for (int i = 0; i < N_COPIES_SIZES; i++) printf(" %d%% |", COPIES_SIZES[i]);
    printf("\n|---|---|---|---|\n");
    for (size_t k = 0; k < (least ? 1 : sizeof ways / sizeof *ways); k++) {
        printf("| %.1f, %.1f |", ways[k].small_ram, ways[k].promote);
        for (int i = 0; i < N_COPIES_SIZES; i++) {
            copies_outcome o = replay_copies(&r, COPIES_SIZES[i], ways[k]);
            double times = replay(&r, mf__policies[0], COPIES_SIZES[i], 1, NOBODY).reads / o.bytes;
            printf(" %.2f (%.0f) |", times, 100 * o.small);
            if (least && times < least[i]) bad++, printf("(expected %.2f)", least[i]);
        }
        printf("\n");
    }
    free(r.ids);
    return bad;
}

int main(int argc, char **argv) {
    static const double GPTOSS_COPIES[N_COPIES_SIZES] = {1.65, 1.9, 2.55};
    static const double GPTOSS[N_SIZES] = {22.5, 38.6, 51, 68.5, 91.3, 98.5};
    static const double STORIES[N_SIZES] = {14.7, 29.5, 41, 59.2, 86, 97.6};
    static const double GPTOSS_BATCHES[2][2][N_BATCH_SIZES] = {{{18.7, 48, 81.6, 96.6}, {50, 70, 84.5, 96.6}},
                                                               {{9.5, 31.6, 66.5, 92.3}, {68, 86.8, 93.8, 93.9}}};
    static const double STORIES_BATCHES[2][2][N_BATCH_SIZES] = {{{13.6, 46.6, 80.6, 96.2}, {32.7, 61.2, 82, 96.2}},
                                                                {{0.7, 27.9, 67.4, 93}, {17.9, 70.1, 89.2, 93.6}}};
    int bad = 0;
    for (int i = 1; i < argc; i++)
        bad += judge(argv[i], NULL) + judge_batches(argv[i], NULL) + judge_copies(argv[i], NULL);
    if (argc == 1) {
        bad += judge(MF_TEST_DATA "/gptoss20b.routes", GPTOSS);
        bad += judge_batches(MF_TEST_DATA "/gptoss20b.routes", GPTOSS_BATCHES);
        bad += judge_copies(MF_TEST_DATA "/gptoss20b.routes", GPTOSS_COPIES);
        bad += judge(MF_TEST_DATA "/stories.routes", STORIES);
        bad += judge_batches(MF_TEST_DATA "/stories.routes", STORIES_BATCHES);
    }
    return bad > 0;
}
