/* Rank 0: sends rows to the ranks that have their experts, and puts the pairs that come back where they belong. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "wire.h"

/* Another rank. */
typedef struct peer {
    char *out, *in; /* messages */
    size_t out_size, in_size;
    int out_bytes, in_most; /* of the one under way, and of its answer */
    MPI_Request sent, got, hinted;
    char *hint; /* a message too */
    bool busy;  /* a reply is to come */
    int64_t sent_ns;
    int64_t n_pairs, *pair;
    size_t pair_size;
    bool wants_hints;
    cluster_rank_stats stats; /* under the lock */
} peer;

static struct head {
    peer *peers;                   /* [size], the first is not used */
    uint64_t *owners;              /* [n_layers][n_experts] */
    uint8_t *chosen;               /* [n_experts] the rank that computes it in the pass under way */
    uint8_t *to;                   /* [n_experts] the same in the order of what is wanted */
    float *row;                    /* [n_hidden] a pair that came */
    int64_t total[WIRE_MAX_RANKS]; /* work so far */
    int n_layers, n_experts, n_hidden, top_k, layer;
    uint64_t seq;
    bool broken;
    mf_error why;
    void (*on_break)(void);
    pthread_mutex_t lock; /* of the peers' stats */
} head = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool grow(void *buf_ptr, size_t *size, size_t need) {
    void **buf = buf_ptr;
    if (need <= *size) return true;
    void *more = realloc(*buf, need);
    if (!more) return false;
    *buf = more;
    *size = need;
    return true;
}

/* From now on nothing can be evaluated any more. */
static mf_status lose(int rank, const char *what, mf_error *err) {
    if (!head.broken) {
        head.broken = true;
        mf__fail(&head.why, MF_E_IO, "rank %d on %s %s (layer %d); the job ends", rank, cluster.hello[rank].host, what,
                 head.layer);
        if (head.on_break) { /* otherwise the command that fails says it */
            app_say("%s", head.why.text);
            head.on_break();
        }
    }
    return mf__fail(err, MF_E_IO, "%s", head.why.text);
}

/* ---- sending ----------------------------------------------------------------------------------------------------- */

/* Each expert that is wanted goes to the least busy of its owners; in hints, to the first. */
static void choose(const mf_experts_request *r) {
    placement_choose(head.owners + (int64_t)r->layer * head.n_experts, r->wanted, r->counts, r->n_wanted, cluster.size,
                     head.total, head.to);
    for (int32_t i = 0; i < r->n_wanted; i++) head.chosen[r->wanted[i]] = head.to[i];
}

static int first_owner(int layer, int32_t expert) {
    uint64_t who = head.owners[(int64_t)layer * head.n_experts + expert];
    int rank = 0;
    while (who && !(who >> rank & 1)) rank++;
    return rank;
}

/* The message for a rank: rows that go to its experts, in order. */
static mf_status make_request(peer *p, int rank, const mf_experts_request *r, mf_error *err) {
    size_t top_k = (size_t)head.top_k, places = (size_t)r->n_rows * top_k;
    size_t row_bytes = wire_row_bytes(cluster.wire, head.n_hidden);
    wire_request q = {
        .magic = WIRE_MAGIC, .kind = WIRE_WORK, .seq = head.seq, .layer = r->layer, .format = (int32_t)cluster.wire};
    p->n_pairs = 0;
    if (!grow(&p->pair, &p->pair_size, places * sizeof *p->pair))
        return mf__fail(err, MF_E_NOMEM, "no memory for %zu pairs", places);
    for (int32_t row = 0; row < r->n_rows; row++) {
        int64_t before = p->n_pairs;
        for (int32_t k = 0; k < r->top_k; k++)
            if (head.chosen[r->ids[row * r->top_k + k]] == rank) p->pair[p->n_pairs++] = row * r->top_k + k;
        q.n_rows += p->n_pairs > before;
    }
    for (int32_t i = 0; i < r->n_wanted; i++) q.n_wanted += head.to[i] == rank;
    q.n_pairs = p->n_pairs;
    q.n_decode = r->n_decode < q.n_rows ? r->n_decode : q.n_rows;
    size_t size = sizeof q + (size_t)q.n_wanted * 4 + (size_t)q.n_rows * (top_k * 4 + row_bytes);
    size_t back = sizeof(wire_reply) + (size_t)p->n_pairs * row_bytes + MF_ERROR_TEXT;
    if (size > INT32_MAX || back > INT32_MAX)
        return mf__fail(err, MF_E_LIMIT, "%d rows at a time are too many for a message; use a smaller --chunk",
                        r->n_rows);
    if (!grow(&p->out, &p->out_size, size) || !grow(&p->in, &p->in_size, back))
        return mf__fail(err, MF_E_NOMEM, "no memory for messages of %zu and %zu bytes", size, back);
    p->out_bytes = (int)size;
    p->in_most = (int)back;
    memcpy(p->out, &q, sizeof q);
    int32_t *wanted = (int32_t *)(void *)(p->out + sizeof q), *ids = wanted + q.n_wanted;
    char *rows = (char *)(ids + (size_t)q.n_rows * top_k);
    for (int32_t i = 0; i < r->n_wanted; i++)
        if (head.to[i] == rank) *wanted++ = r->wanted[i];
    for (int64_t i = 0, last = -1; i < p->n_pairs; i++) {
        int64_t row = p->pair[i] / r->top_k;
        if (row == last) continue;
        last = row;
        memcpy(ids, r->ids + row * r->top_k, top_k * sizeof *ids);
        wire_pack(cluster.wire, r->rows + row * r->n_hidden, r->n_hidden, rows);
        ids += top_k;
        rows += row_bytes;
    }
    return MF_OK;
}

/* The answer's place first, so that it never waits for us. */
static mf_status send_request(peer *p, int rank, mf_error *err) {
    if (MPI_Irecv(p->in, p->in_most, MPI_BYTE, rank, WIRE_TAG_REPLY, MPI_COMM_WORLD, &p->got) != MPI_SUCCESS ||
        MPI_Isend(p->out, p->out_bytes, MPI_BYTE, rank, WIRE_TAG_REQUEST, MPI_COMM_WORLD, &p->sent) != MPI_SUCCESS)
        return lose(rank, "cannot be reached", err);
    p->busy = true;
    p->sent_ns = mf__clock_ns();
    pthread_mutex_lock(&head.lock);
    p->stats.messages++;
    p->stats.bytes_out += p->out_bytes;
    pthread_mutex_unlock(&head.lock);
    return MF_OK;
}

static mf_status begin(void *user, const mf_experts_request *r, bool *taken, mf_error *err) {
    (void)user;
    if (head.broken) return mf__fail(err, MF_E_IO, "%s", head.why.text);
    bool wanted[WIRE_MAX_RANKS] = {false};
    head.seq++;
    head.layer = r->layer;
    choose(r);
    for (int32_t i = 0; i < r->n_wanted; i++) {
        taken[r->wanted[i]] = head.to[i] > 0;
        wanted[head.to[i]] = true;
    }
    for (int k = 1; k < cluster.size; k++) /* all messages, then all are sent: none is under way where one fails */
        if (wanted[k]) MF__TRY(make_request(&head.peers[k], k, r, err));
    for (int k = 1; k < cluster.size; k++)
        if (wanted[k]) MF__TRY(send_request(&head.peers[k], k, err));
    return MF_OK;
}

/* ---- receiving --------------------------------------------------------------------------------------------------- */

static void keep_stats(peer *p, const wire_reply *reply, int64_t bytes, int64_t began) {
    const wire_stats *s = &reply->stats;
    int64_t now = mf__clock_ns(), waited = now - began;
    int64_t wire = now - p->sent_ns - (s->compute_ns - p->stats.compute_ns); /* of the way there and back */
    p->wants_hints = s->wants_hints != 0;
    pthread_mutex_lock(&head.lock);
    cluster_rank_stats *t = &p->stats;
    t->wanted = s->wanted;
    t->hits = s->hits;
    t->bytes_read = s->bytes_read;
    t->bytes_prefetched = s->bytes_prefetched;
    t->stall_ns = s->stall_ns;
    t->compute_ns = s->compute_ns;
    t->budget = s->budget;
    t->cache_bytes = s->cache_bytes;
    t->messages++;
    t->bytes_in += bytes;
    t->wait_ns += waited;
    t->wire_ns += wire < 0 ? 0 : wire < waited ? wire : waited;
    pthread_mutex_unlock(&head.lock);
}

/* A rank of this machine whose process is not there any more; of others mpirun hears first. */
static bool has_ended(int rank) {
    const wire_hello *h = &cluster.hello[rank];
    return !strcmp(h->host, cluster.hello[0].host) && kill((pid_t)h->pid, 0) && errno == ESRCH;
}

static mf_status wait_for(MPI_Request *request, MPI_Status *status, int rank, mf_error *err) {
    char text[64];
    for (double began = app_seconds(); !cluster_wait(request, status, 0.25);) {
        if (has_ended(rank)) return lose(rank, "has ended", err);
        if (app_seconds() - began < cluster.stall_limit) continue;
        snprintf(text, sizeof text, "has not answered for %g s", cluster.stall_limit);
        return lose(rank, text, err);
    }
    return MF_OK;
}

static mf_status receive(peer *p, int rank, mf_put_pair *put, void *put_user, mf_error *err) {
    MPI_Status status;
    wire_reply reply = {0};
    int n = 0;
    int64_t began = mf__clock_ns();
    MF__TRY(wait_for(&p->got, &status, rank, err));
    p->busy = false;
    MPI_Get_count(&status, MPI_BYTE, &n);
    if (n >= (int)sizeof reply) memcpy(&reply, p->in, sizeof reply);
    if (reply.magic != WIRE_MAGIC || reply.seq != head.seq) return lose(rank, "gave an answer that is none", err);
    MPI_Status sent;
    MF__TRY(wait_for(&p->sent, &sent, rank, err));
    keep_stats(p, &reply, n, began);
    if (reply.status != MF_OK) {
        char why[MF_ERROR_TEXT + 32];
        p->in[n - 1] = '\0';
        snprintf(why, sizeof why, "failed: %.500s", p->in + sizeof reply);
        return lose(rank, why, err);
    }
    size_t row_bytes = wire_row_bytes(cluster.wire, head.n_hidden);
    if (reply.n_pairs != p->n_pairs || (size_t)n != sizeof reply + (size_t)p->n_pairs * row_bytes)
        return lose(rank, "gave an answer of another length", err);
    const char *from = p->in + sizeof reply;
    for (int64_t i = 0; put && i < p->n_pairs; i++, from += row_bytes) {
        wire_unpack(cluster.wire, from, head.n_hidden, head.row);
        MF__TRY(put(put_user, p->pair[i], head.row, err));
    }
    return MF_OK;
}

static mf_status finish(void *user, mf_put_pair *put, void *put_user, mf_error *err) {
    mf_status st = MF_OK;
    (void)user;
    for (int k = 1; k < cluster.size; k++) {
        peer *p = &head.peers[k];
        mf_error other;
        if (!p->busy || head.broken) continue;
        mf_status now = receive(p, k, st == MF_OK ? put : NULL, put_user, st == MF_OK ? err : &other);
        if (st == MF_OK) st = now;
    }
    return st;
}

/* ---- hints ------------------------------------------------------------------------------------------------------- */

static bool wants_hints(void *user) {
    (void)user;
    for (int k = 1; k < cluster.size; k++)
        if (head.peers && head.peers[k].wants_hints) return true;
    return false;
}

static void send_hint(peer *p, int rank, int layer, const int32_t *ids, int n) {
    int done = 1;
    wire_request q = {.magic = WIRE_MAGIC, .kind = WIRE_HINT, .seq = head.seq, .layer = layer};
    if (p->hinted != MPI_REQUEST_NULL && (MPI_Test(&p->hinted, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done))
        return; /* the last one is still on its way: another would be late */
    int32_t *to = (int32_t *)(void *)(p->hint + sizeof q);
    for (int i = 0; i < n; i++)
        if (first_owner(layer, ids[i]) == rank) to[q.n_wanted++] = ids[i];
    if (!q.n_wanted) return;
    memcpy(p->hint, &q, sizeof q);
    int size = (int)sizeof q + q.n_wanted * 4;
    if (MPI_Isend(p->hint, size, MPI_BYTE, rank, WIRE_TAG_REQUEST, MPI_COMM_WORLD, &p->hinted) != MPI_SUCCESS) return;
    pthread_mutex_lock(&head.lock);
    p->stats.messages++;
    p->stats.bytes_out += size;
    pthread_mutex_unlock(&head.lock);
}

static void hint(void *user, int layer, const int32_t *ids, int n, bool *taken) {
    (void)user;
    if (!head.peers || head.broken) return;
    for (int i = 0; i < n; i++) taken[ids[i]] = first_owner(layer, ids[i]) > 0;
    for (int k = 1; k < cluster.size; k++)
        if (head.peers[k].wants_hints) send_hint(&head.peers[k], k, layer, ids, n);
}

/* ---- from the handshake to the end ------------------------------------------------------------------------------- */

mf_elsewhere cluster_head(void) {
    return (mf_elsewhere){begin, finish, hint, wants_hints, NULL};
}

mf_status cluster_head_open(mf_model *model, mf_error *err) {
    const wire_hello *h = cluster.hello;
    head.n_layers = h->n_layers;
    head.n_experts = h->n_experts;
    head.n_hidden = h->n_hidden;
    head.top_k = h->top_k;
    head.peers = calloc((size_t)cluster.size, sizeof *head.peers);
    head.chosen = calloc((size_t)head.n_experts, sizeof *head.chosen);
    head.to = calloc((size_t)head.n_experts, sizeof *head.to);
    head.row = calloc((size_t)head.n_hidden, sizeof *head.row);
    if (!head.peers || !head.chosen || !head.to || !head.row)
        return mf__fail(err, MF_E_NOMEM, "no memory for %d ranks", cluster.size);
    for (int k = 0; k < cluster.size; k++) {
        peer *p = &head.peers[k];
        p->sent = p->got = p->hinted = MPI_REQUEST_NULL;
        p->stats.budget = h[k].budget;
        memcpy(p->stats.host, h[k].host, sizeof p->stats.host);
        p->hint = malloc(sizeof(wire_request) + (size_t)head.n_experts * 4);
        if (!p->hint) return mf__fail(err, MF_E_NOMEM, "no memory for %d ranks", cluster.size);
    }
    return cluster_share(model, &head.owners, err);
}

bool cluster_head_close(void) {
    if (!head.peers) return true;
    for (int k = 1; k < cluster.size && !head.broken && cluster.fits; k++) {
        wire_request q = {.magic = WIRE_MAGIC, .kind = WIRE_END};
        MPI_Request sent;
        MPI_Status status;
        if (head.peers[k].hinted != MPI_REQUEST_NULL) cluster_wait(&head.peers[k].hinted, &status, cluster.stall_limit);
        if (MPI_Isend(&q, sizeof q, MPI_BYTE, k, WIRE_TAG_REQUEST, MPI_COMM_WORLD, &sent) != MPI_SUCCESS ||
            !cluster_wait(&sent, &status, cluster.stall_limit))
            lose(k, "cannot be told that it is over", NULL);
    }
    if (head.broken) return false; /* what is under way uses the buffers */
    for (int k = 0; k < cluster.size; k++) {
        peer *p = &head.peers[k];
        free(p->out);
        free(p->in);
        free(p->hint);
        free(p->pair);
    }
    free(head.peers);
    free(head.owners);
    free(head.chosen);
    free(head.to);
    free(head.row);
    head.peers = NULL;
    head.owners = NULL;
    return true;
}

void cluster_on_break(void (*fn)(void)) {
    head.on_break = fn;
}

bool cluster_stats_get(int rank, cluster_rank_stats *out) {
    if (!head.peers || rank < 1 || rank >= cluster.size) return false;
    pthread_mutex_lock(&head.lock);
    *out = head.peers[rank].stats;
    pthread_mutex_unlock(&head.lock);
    return true;
}

/* ---- opening a model --------------------------------------------------------------------------------------------- */

mf_status cluster_prepare(const app_model_options *opt, mf_model_options *mo, mf_error *err) {
    const char *name = cluster_option(opt);
    if (cluster_size() == 1)
        return name ? mf__fail(err, MF_E_INVALID, "--%s is for several ranks, and this is one: see docs/CLUSTER.md",
                               name)
                    : MF_OK;
    if (opt->prompt_cache_dir && (opt->wire || opt->mixed))
        return mf__fail(
            err, MF_E_INVALID,
            "--cache-dir excludes --wire f16 and --mixed: a later run that is exact would go on from states that "
            "are not");
    cluster.placement = opt->placement;
    cluster.wire = (wire_format)opt->wire;
    cluster.mixed = opt->mixed;
    cluster.stall_limit = opt->stall_limit > 0 ? opt->stall_limit : 60;
    mo->experts_only = cluster.rank > 0;
    if (!cluster.rank && cluster.met)
        return mf__fail(err, MF_E_UNSUPPORTED, "several ranks open one model, and they have one already");
    if (!cluster.rank) mo->elsewhere = cluster_head();
    return MF_OK;
}

mf_status cluster_join(const char *dir, mf_model *model, const mf_error *why, mf_error *err) {
    if (cluster_size() == 1 || cluster.rank) return MF_OK;
    MF__TRY(cluster_meet(model, dir, why, err));
    MF__TRY(cluster_head_open(model, err));
    app_note("%d ranks share the experts", cluster.size);
    if (cluster.wire == WIRE_F16)
        app_say("lossy: --wire f16 rounds what goes between ranks to 16 bits; results are not those of one machine");
    for (int r = 1; r < cluster.size; r++)
        if (strcmp(cluster.hello[r].arithmetic, cluster.hello[0].arithmetic))
            app_note(
                "rank %d on %s computes with %s, rank 0 with %s: results differ from one machine's in the last bits", r,
                cluster.hello[r].host, cluster.hello[r].arithmetic, cluster.hello[0].arithmetic);
    return MF_OK;
}
