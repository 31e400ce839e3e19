/* Choosing a token from logits.
 *
 * The order of things: logit bias, penalties, mask; then temperature, top-k, top-p, min-p, typical; then one draw.
 * Temperature 0 takes the best token after bias, penalties and mask.
 *
 * Deterministic: the same options, logits and history give the same tokens on every platform with IEEE doubles. Sums
 * are made in a fixed order and exp and log are computed here, not by the C library.
 *
 * Candidates are kept in a heap by (logit, id), so that top-k and top-p take only as many out in order as they need
 * instead of sorting the vocabulary. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "text/detmath.h"

/* Tokens this far below the best in scaled log-probability weigh less than the rounding of the sum. */
#define NEGLIGIBLE (-60.0)

typedef struct candidate {
    double weight; /* exp((logit - best) / temperature) */
    float logit;
    int32_t id;
} candidate;

struct mf_sampler {
    mf_sampler_options opt;
    int32_t n_vocab;
    uint64_t rng[4];
    candidate *cands;
    mf_logit_bias *bias;
    float *adjusted; /* logits after bias and penalties; NULL when there are none */
    int32_t *counts; /* how often each id was seen; NULL without penalties */
    int32_t *window; /* ring of the last penalty_window accepted ids */
    int64_t n_accepted;
};

/* ---- random numbers: xoshiro256** seeded by splitmix64 ---------------------------------------------------------- */

static uint64_t splitmix(uint64_t *x) {
    uint64_t z = (*x += 0x9E3779B97F4A7C15u);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static uint64_t rotl(uint64_t x, int k) {
    return x << k | x >> (64 - k);
}

static double uniform(mf_sampler *s) { /* [0, 1), 53 bits */
    uint64_t *r = s->rng, result = rotl(r[1] * 5, 7) * 9, t = r[1] << 17;
    r[2] ^= r[0];
    r[3] ^= r[1];
    r[1] ^= r[2];
    r[0] ^= r[3];
    r[2] ^= t;
    r[3] = rotl(r[3], 45);
    return (double)(result >> 11) * (1.0 / 9007199254740992.0);
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

void mf_sampler_options_init(mf_sampler_options *opt) {
    if (opt) *opt = (mf_sampler_options){.temperature = 0.8f, .top_p = 1, .typical_p = 1, .repetition_penalty = 1};
}

static mf_status check(const mf_sampler_options *o, int32_t n_vocab, mf_error *err) {
    const struct {
        const char *name;
        float value, min, max;
    } ranges[] = {{"temperature", o->temperature, 0, 1000},
                  {"top_p", o->top_p, 0, 1},
                  {"min_p", o->min_p, 0, 1},
                  {"typical_p", o->typical_p, 0, 1},
                  {"repetition_penalty", o->repetition_penalty, 0.01f, 100},
                  {"frequency_penalty", o->frequency_penalty, -100, 100},
                  {"presence_penalty", o->presence_penalty, -100, 100}};
    for (size_t i = 0; i < MF__COUNT(ranges); i++)
        if (!(ranges[i].value >= ranges[i].min && ranges[i].value <= ranges[i].max))
            return mf__fail(err, MF_E_INVALID, "%s is %g; expected %g to %g", ranges[i].name, (double)ranges[i].value,
                            (double)ranges[i].min, (double)ranges[i].max);
    if (o->top_k < 0) return mf__fail(err, MF_E_INVALID, "top_k is %d; expected 0 (off) or more", o->top_k);
    if (o->penalty_window < 0 || o->penalty_window > 1 << 24)
        return mf__fail(err, MF_E_INVALID, "penalty_window is %d; expected 0 (all) to %d", o->penalty_window, 1 << 24);
    if (n_vocab <= 0) return mf__fail(err, MF_E_INVALID, "a vocabulary of %d tokens", (int)n_vocab);
    if (o->n_bias < 0 || (o->n_bias && !o->bias))
        return mf__fail(err, MF_E_INVALID, "%d logit biases%s", o->n_bias, o->bias ? "" : ", and bias is NULL");
    for (int i = 0; i < o->n_bias; i++)
        if (o->bias[i].id < 0 || o->bias[i].id >= n_vocab || isnan(o->bias[i].bias))
            return mf__fail(err, MF_E_TOKEN, "logit bias %g for token %d; the vocabulary has %d",
                            (double)o->bias[i].bias, (int)o->bias[i].id, (int)n_vocab);
    return MF_OK;
}

static bool has_penalties(const mf_sampler_options *o) {
    return o->repetition_penalty != 1 || o->frequency_penalty != 0 || o->presence_penalty != 0;
}

mf_status mf_sampler_create(const mf_sampler_options *opt, int32_t n_vocab, mf_sampler **out, mf_error *err) {
    if (out) *out = NULL;
    if (!opt || !out) return mf__fail(err, MF_E_INVALID, "mf_sampler_create: an argument is NULL");
    MF__TRY(check(opt, n_vocab, err));
    mf_sampler *s = calloc(1, sizeof *s);
    if (!s) return mf__fail(err, MF_E_NOMEM, "no memory for a sampler");
    size_t n = (size_t)n_vocab;
    bool penalties = has_penalties(opt), adjust = penalties || opt->n_bias > 0;
    s->opt = *opt;
    s->n_vocab = n_vocab;
    s->cands = malloc(n * sizeof *s->cands);
    s->bias = malloc(((size_t)opt->n_bias + 1) * sizeof *s->bias);
    if (adjust) s->adjusted = malloc(n * sizeof *s->adjusted);
    if (penalties) s->counts = calloc(n, sizeof *s->counts);
    if (penalties && opt->penalty_window) s->window = malloc((size_t)opt->penalty_window * sizeof *s->window);
    if (!s->cands || !s->bias || (adjust && !s->adjusted) || (penalties && !s->counts) ||
        (penalties && opt->penalty_window && !s->window)) {
        mf_sampler_free(s);
        return mf__fail(err, MF_E_NOMEM, "no memory for a sampler over %d tokens", (int)n_vocab);
    }
    if (opt->n_bias) memcpy(s->bias, opt->bias, (size_t)opt->n_bias * sizeof *s->bias);
    s->opt.bias = s->bias;
    mf_sampler_reset(s);
    *out = s;
    return MF_OK;
}

void mf_sampler_free(mf_sampler *s) {
    if (!s) return;
    free(s->cands);
    free(s->bias);
    free(s->adjusted);
    free(s->counts);
    free(s->window);
    free(s);
}

void mf_sampler_reset(mf_sampler *s) {
    if (!s) return;
    uint64_t x = s->opt.seed;
    for (int i = 0; i < 4; i++) s->rng[i] = splitmix(&x);
    if (s->counts) memset(s->counts, 0, (size_t)s->n_vocab * sizeof *s->counts);
    s->n_accepted = 0;
}

void mf_sampler_accept(mf_sampler *s, int32_t id) {
    if (!s || !s->counts || id < 0 || id >= s->n_vocab) return;
    if (s->window) {
        int32_t *slot = &s->window[s->n_accepted % s->opt.penalty_window];
        if (s->n_accepted >= s->opt.penalty_window) s->counts[*slot]--;
        *slot = id;
    }
    s->counts[id]++;
    s->n_accepted++;
}

/* ---- logits ---------------------------------------------------------------------------------------------------- */

static const float *adjust(mf_sampler *s, const float *logits) {
    if (!s->adjusted) return logits;
    memcpy(s->adjusted, logits, (size_t)s->n_vocab * sizeof *logits);
    for (int i = 0; i < s->opt.n_bias; i++) s->adjusted[s->bias[i].id] += s->bias[i].bias;
    if (!s->counts) return s->adjusted;
    for (int32_t id = 0; id < s->n_vocab; id++) {
        if (s->counts[id] == 0) continue;
        float l = s->adjusted[id];
        l = l > 0 ? l / s->opt.repetition_penalty : l * s->opt.repetition_penalty;
        s->adjusted[id] = l - (float)s->counts[id] * s->opt.frequency_penalty - s->opt.presence_penalty;
    }
    return s->adjusted;
}

static bool allowed(const uint32_t *mask, int32_t id) {
    return !mask || (mask[id / 32] >> id % 32 & 1);
}

/* The best allowed token; -1: none. NaN compares false and so is never better. */
static int32_t best_token(const float *logits, int32_t n, const uint32_t *mask) {
    int32_t best = -1;
    float top = -INFINITY;
    for (int32_t id = 0; id < n; id++)
        if (logits[id] > top && allowed(mask, id)) {
            top = logits[id];
            best = id;
        }
    return best;
}

/* ---- candidates: a max-heap ------------------------------------------------------------------------------------- */

static bool better(const candidate *a, const candidate *b) {
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static void sift_down(candidate *c, size_t n, size_t i) {
    candidate moved = c[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && better(&c[child + 1], &c[child])) child++;
        if (!better(&c[child], &moved)) break;
        c[i] = c[child];
    }
    c[i] = moved;
}

/* Moves the best candidates, in order, to the end of c[0..n), until `limit` are out or their weight reaches mass.
 * Returns how many; they are c[n - count .. n), the best last. */
static size_t take_best(candidate *c, size_t n, size_t limit, double mass) {
    size_t left = n;
    double sum = 0;
    for (size_t i = n / 2; i-- > 0;) sift_down(c, n, i);
    while (left > 0 && n - left < limit && (n == left || sum < mass)) {
        candidate top = c[0];
        c[0] = c[--left];
        if (left) sift_down(c, left, 0);
        c[left] = top;
        sum += top.weight;
    }
    return n - left;
}

/* As sift_down, with the worst on top. */
static void sift_worst(candidate *c, size_t n, size_t i) {
    candidate moved = c[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && better(&c[child], &c[child + 1])) child++;
        if (!better(&moved, &c[child])) break;
        c[i] = c[child];
    }
    c[i] = moved;
}

/* Brings the k best of n to the front: nearly all others are only compared with the worst of them. */
static void select_best(candidate *c, size_t n, size_t k) {
    for (size_t i = k / 2; i-- > 0;) sift_worst(c, k, i);
    for (size_t i = k; i < n; i++) {
        if (!better(&c[i], &c[0])) continue;
        c[0] = c[i];
        sift_worst(c, k, 0);
    }
}

static double total_weight(const candidate *c, size_t n) {
    double sum = 0;
    for (size_t i = n; i-- > 0;) /* the smallest first when they are ordered */
        sum += c[i].weight;
    return sum;
}

static int compare_surprise(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->weight != y->weight) return x->weight < y->weight ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Heap sort by (weight, id) ascending: like qsort, which may allocate. */
static void sort_by_weight(candidate *c, size_t n) {
    for (size_t end = n, start = n / 2; end > 1;) {
        size_t i;
        candidate moved;
        if (start > 0) {
            i = --start;
            moved = c[i];
        } else {
            moved = c[--end];
            c[end] = c[0];
            i = 0;
        }
        for (size_t child; (child = 2 * i + 1) < end; i = child) {
            if (child + 1 < end && compare_surprise(&c[child], &c[child + 1]) < 0) child++;
            if (compare_surprise(&c[child], &moved) <= 0) break;
            c[i] = c[child];
        }
        c[i] = moved;
    }
}

static double log_weight(const mf_sampler *s, float logit, float top) {
    return ((double)logit - (double)top) / (double)s->opt.temperature;
}

/* From the logarithms that are there. */
static void weigh(candidate *c, size_t n) {
    double x[512];
    for (size_t at = 0; at < n; at += MF__COUNT(x)) {
        size_t m = n - at < MF__COUNT(x) ? n - at : MF__COUNT(x);
        for (size_t i = 0; i < m; i++) x[i] = c[at + i].weight;
        mf__det_exp_all(x, (int)m);
        for (size_t i = 0; i < m; i++) c[at + i].weight = x[i];
    }
}

/* Typical sampling: keeps the tokens whose surprise is nearest to the expected one, until their mass reaches
 * typical_p. Weights are distances while sorting and are put back afterwards. */
static size_t keep_typical(const mf_sampler *s, candidate *c, size_t n, float top) {
    double total = total_weight(c, n), log_total = mf__det_log(total), entropy = 0, sum = 0;
    for (size_t i = 0; i < n; i++) entropy += c[i].weight / total * (log_total - log_weight(s, c[i].logit, top));
    for (size_t i = 0; i < n; i++) c[i].weight = fabs(log_total - log_weight(s, c[i].logit, top) - entropy);
    sort_by_weight(c, n);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) c[i].weight = log_weight(s, c[i].logit, top);
    weigh(c, n);
    for (size_t i = 0; i < n; i++) {
        if (i == kept && (i == 0 || sum < (double)s->opt.typical_p * total)) {
            sum += c[i].weight;
            kept++;
        }
    }
    return kept;
}

/* Fills c with what may be drawn; returns the number, at least 1. top is the best finite logit. */
static size_t gather(mf_sampler *s, const float *logits, const uint32_t *mask, float top) {
    size_t n = 0;
    candidate *c = s->cands;
    for (int32_t id = 0; id < s->n_vocab; id++) {
        if (!allowed(mask, id) || isnan(logits[id]) || logits[id] == -INFINITY) continue;
        double x = log_weight(s, logits[id], top);
        if (x < NEGLIGIBLE) continue;
        c[n++] = (candidate){x, logits[id], id};
    }
    if (s->opt.top_k && (size_t)s->opt.top_k < n) {
        select_best(c, n, (size_t)s->opt.top_k);
        n = take_best(c, (size_t)s->opt.top_k, (size_t)s->opt.top_k, INFINITY); /* in order */
    }
    weigh(c, n);
    return n;
}

/* Brings candidates to the front that are better than all others and weigh more than `mass` together; returns how many.
 * They are told apart by classes of their logits, so that only these few need to be put in order. */
#define CLASSES 128
static size_t heaviest(const mf_sampler *s, candidate *c, size_t n, float top, double mass) {
    double weights[CLASSES] = {0}, sum = 0;
    float scale = 2 / s->opt.temperature;
    int last = 0;
    for (size_t i = 0; i < n; i++) {
        float class = (top - c[i].logit) * scale;
        weights[class < CLASSES - 1 ? (int)class : CLASSES - 1] += c[i].weight;
    }
    while (last < CLASSES - 1 && (sum += weights[last]) <= mass * 1.000001) last++;
    if (last == CLASSES - 1) return n;
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        float class = (top - c[i].logit) * scale;
        if (!(class < (float)(last + 1))) continue;
        candidate kept = c[i];
        c[i] = c[k];
        c[k++] = kept;
    }
    return k;
}

static int32_t draw(mf_sampler *s, const float *logits, const uint32_t *mask, float top) {
    size_t n = gather(s, logits, mask, top);
    candidate *c = s->cands;
    if (s->opt.top_p < 1) {
        double mass = (double)s->opt.top_p * total_weight(c, n);
        n = heaviest(s, c, n, top, mass);
        size_t k = take_best(c, n, n, mass);
        c += n - k;
        n = k;
    }
    if (s->opt.min_p > 0) {
        size_t k = 0;
        for (size_t i = 0; i < n; i++)
            if (c[i].weight >= (double)s->opt.min_p) c[k++] = c[i];
        n = k;
    }
    if (s->opt.typical_p < 1) n = keep_typical(s, c, n, top);
    double total = 0, sum = 0, u = uniform(s);
    for (size_t i = 0; i < n; i++) total += c[i].weight;
    u *= total;
    for (size_t i = 0; i < n; i++) {
        sum += c[i].weight;
        if (u < sum) return c[i].id;
    }
    return c[n - 1].id; /* u rounded up to the total */
}

int32_t mf_sampler_next_masked(mf_sampler *s, const float *logits, const uint32_t *mask) {
    if (!s || !logits) return -1;
    logits = adjust(s, logits);
    int32_t best = best_token(logits, s->n_vocab, mask);
    if (best < 0 || s->opt.temperature == 0 || logits[best] == INFINITY) return best;
    return draw(s, logits, mask, logits[best]);
}

int32_t mf_sampler_next(mf_sampler *s, const float *logits) {
    return mf_sampler_next_masked(s, logits, NULL);
}

/* ---- log-probabilities ----------------------------------------------------------------------------------------- */

/* best is the largest logit. When it is infinite, its tokens have all the probability. */
static float logprob_of(float logit, float best, double log_sum) {
    if (isnan(logit) || logit == -INFINITY) return -INFINITY;
    if (best == INFINITY) return logit == INFINITY ? 0 : -INFINITY;
    return (float)((double)logit - (double)best - log_sum);
}

float mf_logprobs(const float *logits, int32_t n_vocab, int32_t chosen, mf_logprob *top, int *n_top) {
    int n = 0, limit = n_top && top && *n_top > 0 ? *n_top : 0;
    if (n_top) *n_top = 0;
    if (!logits || n_vocab <= 0) return -INFINITY;
    int32_t best = best_token(logits, n_vocab, NULL);
    if (best < 0) return -INFINITY;
    double sum = 0, max = logits[best] == INFINITY ? 0 : (double)logits[best];
    double x[512];
    int n_x = 0;
    for (int32_t id = 0; id <= n_vocab; id++) {
        if (id < n_vocab && logits[id] > -INFINITY && logits[id] < INFINITY) x[n_x++] = (double)logits[id] - max;
        if (n_x < (int)MF__COUNT(x) && id < n_vocab) continue;
        mf__det_exp_all(x, n_x);
        for (int i = 0; i < n_x; i++) sum += x[i];
        n_x = 0;
    }
    double log_sum = sum > 0 ? mf__det_log(sum) : 0;
    /* Insertion into a short sorted list: n_top is small. */
    for (int32_t id = 0; limit && id < n_vocab; id++) {
        float l = logits[id];
        if (isnan(l) || (n == limit && !(l > logits[top[n - 1].id]))) continue;
        int at = n < limit ? n++ : n - 1;
        for (; at > 0 && l > logits[top[at - 1].id]; at--) top[at] = top[at - 1];
        top[at].id = id;
    }
    for (int i = 0; i < n; i++) top[i].logprob = logprob_of(logits[top[i].id], logits[best], log_sum);
    if (n_top) *n_top = n;
    return chosen >= 0 && chosen < n_vocab ? logprob_of(logits[chosen], logits[best], log_sum) : -INFINITY;
}
