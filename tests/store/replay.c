/* Replays recorded routes through the cache policies and the clairvoyant optimum, and prints the hit rates:
 *
 *   test_store_replay [FILE.routes ...]
 *
 * With files: a table for each. Without: the extracts in tests/data/store, and the results are judged: the default
 * policy must not fall behind the others nor behind what it reached when it was chosen. */
#include <math.h>
#include <stdbool.h>
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
} cache;

static bool may_go(const void *ctx, int i) {
    const cache *c = ctx;
    return c->keys[i] / c->r->n_experts != c->now || !c->wanted[c->keys[i] % c->r->n_experts];
}

static void cache_init(cache *c, const routes *r, int n_slots) {
    *c = (cache){.r = r, .n_slots = n_slots};
    c->keys = malloc((size_t)n_slots * sizeof *c->keys);
    c->where = malloc((size_t)r->n_keys * sizeof *c->where);
    c->wanted = calloc((size_t)r->n_experts, sizeof *c->wanted);
    for (int i = 0; i < n_slots; i++) c->keys[i] = -1;
    for (int i = 0; i < r->n_keys; i++) c->where[i] = -1;
}

static void cache_free(cache *c) {
    free(c->keys);
    free(c->where);
    free(c->wanted);
}

static double replay(const routes *r, const mf__policy *policy, int percent) {
    cache c;
    cache_init(&c, r, r->n_keys * percent / 100);
    mf__ranking ranking = {.policy = policy, .n_layers = r->n_layers, .n_experts = r->n_experts};
    ranking.state = calloc(1, policy->bytes(r->n_layers, r->n_experts));
    const unsigned char *row = r->ids;
    long hits = 0;
    for (long t = 0; t < r->n_tokens * r->n_layers; t++, row += r->top_k) {
        int32_t ids[256], victims[256];
        double worths[256];
        int misses = 0, layer = c.now = (int)(t % r->n_layers);
        memset(c.wanted, 0, (size_t)r->n_experts * sizeof *c.wanted);
        for (int i = 0; i < r->top_k; i++) {
            ids[i] = row[i];
            c.wanted[row[i]] = true;
            misses += c.where[layer * r->n_experts + row[i]] < 0;
        }
        hits += r->top_k - misses;
        policy->use(ranking.state, r->n_experts, layer, ids, NULL, r->top_k, 1);
        int n_free = c.n_slots - c.n_used, n = 0;
        if (misses > n_free)
            n = mf__ranking_worst(&ranking, c.keys, c.n_slots, layer, may_go, &c, misses - n_free, victims, worths);
        for (int i = 0; i < r->top_k; i++) {
            int key = layer * r->n_experts + row[i];
            if (c.where[key] >= 0) continue;
            if (c.n_used == c.n_slots && n == 0) break; /* fewer slots than one turn wants */
            int slot = c.n_used < c.n_slots ? c.n_used++ : victims[--n];
            if (c.keys[slot] >= 0) c.where[c.keys[slot]] = -1;
            c.keys[slot] = key;
            c.where[key] = slot;
        }
    }
    cache_free(&c);
    free(ranking.state);
    return 100.0 * (double)hits / (double)(r->n_tokens * r->n_layers * r->top_k);
}

/* Belady: the expert whose next use is furthest away goes. */
static double optimum(const routes *r, int percent) {
    long n = r->n_tokens * r->n_layers * r->top_k, hits = 0;
    long *next = malloc((size_t)n * sizeof *next), *later = malloc((size_t)r->n_keys * sizeof *later);
    cache c;
    cache_init(&c, r, r->n_keys * percent / 100);
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
    printf("| %-7s |", name);
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
        "\n%s: %ld tokens, %d layers, %d of %d experts. Hit rate in percent by cache size in percent:\n\n| policy  |",
        strrchr(path, '/') ? strrchr(path, '/') + 1 : path, r.n_tokens, r.n_layers, r.top_k, r.n_experts);
    for (int i = 0; i < N_SIZES; i++) printf(" %4d%% |", SIZES[i]);
    printf("\n|---|---|---|---|---|---|---|\n");
    for (; mf__policies[n]; n++) {
        for (int i = 0; i < N_SIZES; i++) {
            rates[n][i] = replay(&r, mf__policies[n], SIZES[i]);
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

int main(int argc, char **argv) {
    static const double GPTOSS[N_SIZES] = {22.5, 38.6, 51, 68.5, 91.3, 98.5};
    static const double STORIES[N_SIZES] = {14.7, 29.5, 41, 59.2, 86, 97.6};
    int bad = 0;
    for (int i = 1; i < argc; i++) bad += judge(argv[i], NULL);
    if (argc == 1) {
        bad += judge(MF_TEST_DATA "/gptoss20b.routes", GPTOSS);
        bad += judge(MF_TEST_DATA "/stories.routes", STORIES);
    }
    return bad > 0;
}
