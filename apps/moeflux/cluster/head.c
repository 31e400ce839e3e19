/* Rank 0: sends rows to the ranks that have their experts, and puts the pairs that come back where they belong. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/experts.h"
#include "wire.h"

/* Another rank. */
typedef struct peer {
    char *out, *in;         /* the message under way and its answer, in head.messages ... */
    int out_bytes, in_most; /* ... and their bytes */
    MPI_Request sent, got, hinted;
    char *hint; /* a message too */
    bool busy;  /* a reply is to come */
    int64_t sent_ns;
    int64_t n_pairs, *pair; /* in head.pairs */
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
    char *messages; /* of a pass, whose memory the engine has counted: see cluster_head_open */
    int64_t *pairs;
    size_t messages_size, pairs_size;
    bool broken;
    mf_error why;
    void (*on_break)(void);
    pthread_t mover;
    pthread_mutex_t mpi;  /* whoever calls MPI holds it; taken before the other lock */
    pthread_cond_t moved; /* moving or quit has changed */
    bool has_mover, moving, quit;
    pthread_mutex_t lock; /* of the peers' stats */
} head = {.lock = PTHREAD_MUTEX_INITIALIZER, .mpi = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};

/* What was in the buffer is lost, so that there are never two of them. */
static bool grow(void *buf_ptr, size_t *size, size_t need) {
    void **buf = buf_ptr;
    if (need <= *size) return true;
    free(*buf);
    *buf = malloc(need);
    *size = *buf ? need : 0;
    return *buf != NULL;
}

static size_t aligned(size_t bytes) {
    return (bytes + 63) / 64 * 64;
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

/* The pairs of all ranks that are asked, a rank's together and in order; *requests say what its message will have. */
static mf_status find_pairs(const mf_experts_request *r, const bool *asked, wire_request *requests, mf_error *err) {
    size_t places = (size_t)r->n_rows * (size_t)r->top_k;
    if (!grow(&head.pairs, &head.pairs_size, places * sizeof *head.pairs))
        return mf__fail(err, MF_E_NOMEM, "no memory for %zu pairs", places);
    int64_t *next = head.pairs;
    for (int k = 1; k < cluster.size; k++) {
        peer *p = &head.peers[k];
        wire_request q = {.magic = WIRE_MAGIC,
                          .kind = WIRE_WORK,
                          .seq = head.seq,
                          .layer = r->layer,
                          .format = (int32_t)cluster.wire};
        p->pair = next;
        for (int32_t row = 0; asked[k] && row < r->n_rows; row++) {
            const int64_t *before = next;
            for (int32_t i = 0; i < r->top_k; i++)
                if (head.chosen[r->ids[row * r->top_k + i]] == k) *next++ = row * r->top_k + i;
            q.n_rows += next > before;
        }
        for (int32_t i = 0; i < r->n_wanted; i++) q.n_wanted += head.to[i] == k;
        p->n_pairs = q.n_pairs = next - p->pair;
        q.n_decode = r->n_decode < q.n_rows ? r->n_decode : q.n_rows;
        requests[k] = q;
    }
    return MF_OK;
}

/* A place for every message and its answer. */
static mf_status make_room(const wire_request *requests, const bool *asked, mf_error *err) {
    size_t row_bytes = wire_row_bytes(cluster.wire, head.n_hidden), all = 0;
    for (int k = 1; k < cluster.size; k++) {
        const wire_request *q = &requests[k];
        if (!asked[k]) continue;
        size_t out = sizeof *q + (size_t)q->n_wanted * 4 + (size_t)q->n_rows * ((size_t)head.top_k * 4 + row_bytes);
        size_t in = sizeof(wire_reply) + (size_t)q->n_pairs * row_bytes + MF_ERROR_TEXT;
        if (out > INT32_MAX || in > INT32_MAX)
            return mf__fail(err, MF_E_LIMIT, "%d rows at a time are too many for a message; use a smaller --chunk",
                            q->n_rows);
        head.peers[k].out_bytes = (int)out;
        head.peers[k].in_most = (int)in;
        all += aligned(out) + aligned(in);
    }
    if (!grow(&head.messages, &head.messages_size, all))
        return mf__fail(err, MF_E_NOMEM, "no memory for messages of %zu bytes", all);
    char *at = head.messages;
    for (int k = 1; k < cluster.size; k++) {
        peer *p = &head.peers[k];
        if (!asked[k]) continue;
        p->out = at;
        p->in = at + aligned((size_t)p->out_bytes);
        at = p->in + aligned((size_t)p->in_most);
    }
    return MF_OK;
}

/* The message for a rank: rows that go to its experts, in order. */
static void write_request(const peer *p, int rank, const mf_experts_request *r, const wire_request *q) {
    size_t top_k = (size_t)head.top_k, row_bytes = wire_row_bytes(cluster.wire, head.n_hidden);
    memcpy(p->out, q, sizeof *q);
    int32_t *wanted = (int32_t *)(void *)(p->out + sizeof *q), *ids = wanted + q->n_wanted;
    char *rows = (char *)(ids + (size_t)q->n_rows * top_k);
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

/* Long messages go on their way only while somebody calls MPI, and whoever evaluates computes its own share meanwhile:
 * so a thread looks after them, until they have arrived or finish does it itself. */
static void *move(void *unused) {
    (void)unused;
    pthread_mutex_lock(&head.mpi);
    while (!head.quit) {
        if (!head.moving) {
            pthread_cond_wait(&head.moved, &head.mpi);
            continue;
        }
        int busy = 0, there = 0;
        for (int k = 1; k < cluster.size; k++) {
            peer *p = &head.peers[k];
            if (!p->busy) continue;
            busy += MPI_Request_get_status(p->sent, &there, MPI_STATUS_IGNORE) == MPI_SUCCESS && !there;
            busy += MPI_Request_get_status(p->got, &there, MPI_STATUS_IGNORE) == MPI_SUCCESS && !there;
        }
        if (!busy) head.moving = false;
        pthread_mutex_unlock(&head.mpi);
        cluster_nap();
        pthread_mutex_lock(&head.mpi);
    }
    pthread_mutex_unlock(&head.mpi);
    return NULL;
}

/* What went out at once needs nobody, nor do answers that will. */
static void start_moving(void) {
    int there = 1;
    for (int k = 1; k < cluster.size && !head.moving; k++) {
        const peer *p = &head.peers[k];
        if (!p->busy) continue;
        MPI_Request_get_status(p->sent, &there, MPI_STATUS_IGNORE);
        head.moving = !there || p->in_most > WIRE_SHORT;
    }
    if (head.moving) pthread_cond_signal(&head.moved);
}

static mf_status send_requests(const bool *asked, mf_error *err) {
    mf_status st = MF_OK;
    pthread_mutex_lock(&head.mpi);
    for (int k = 1; k < cluster.size && st == MF_OK; k++)
        if (asked[k]) st = send_request(&head.peers[k], k, err);
    if (st == MF_OK) start_moving();
    pthread_mutex_unlock(&head.mpi);
    return st;
}

static mf_status begin(void *user, const mf_experts_request *r, bool *taken, mf_error *err) {
    (void)user;
    if (head.broken) return mf__fail(err, MF_E_IO, "%s", head.why.text);
    bool asked[WIRE_MAX_RANKS] = {false};
    wire_request requests[WIRE_MAX_RANKS];
    head.seq++;
    head.layer = r->layer;
    choose(r);
    for (int32_t i = 0; i < r->n_wanted; i++) {
        taken[r->wanted[i]] = head.to[i] > 0;
        asked[head.to[i]] = true;
    }
    MF__TRY(find_pairs(r, asked, requests, err));
    MF__TRY(
        make_room(requests, asked, err)); /* for all messages, then they are sent: none is under way where this fails */
    for (int k = 1; k < cluster.size; k++)
        if (asked[k]) write_request(&head.peers[k], k, r, &requests[k]);
    return send_requests(asked, err);
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

static mf_status wait_for(MPI_Request *request, MPI_Status *status, int rank, mf_error *err) {
    char text[64];
    for (double began = app_seconds();;) {
        cluster_waited waited = cluster_wait(request, status, 0.25);
        if (waited == CLUSTER_DONE) return MF_OK;
        if (cluster_has_ended(rank)) return lose(rank, "has ended", err);
        if (waited == CLUSTER_FAILED) return lose(rank, "cannot be reached, or gave an answer that is too long", err);
        if (app_seconds() - began < cluster.stall_limit) continue;
        snprintf(text, sizeof text, "has not answered for %g s", cluster.stall_limit);
        return lose(rank, text, err);
    }
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
    bool other = reply.seq != head.seq && (reply.seq || reply.status == MF_OK); /* 0: it could not read which */
    if (reply.magic != WIRE_MAGIC || other) return lose(rank, "gave an answer that is none", err);
    keep_stats(p, &reply, n, began);
    if (reply.status != MF_OK) {
        char why[MF_ERROR_TEXT + 32];
        int text = n - (int)sizeof reply;
        snprintf(why, sizeof why, "failed: %.*s", text < 500 ? text : 500, p->in + sizeof reply);
        return lose(rank, why, err); /* what was sent may be on its way for ever */
    }
    MPI_Status sent;
    MF__TRY(wait_for(&p->sent, &sent, rank, err));
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
    pthread_mutex_lock(&head.mpi);
    head.moving = false;
    for (int k = 1; k < cluster.size; k++) {
        peer *p = &head.peers[k];
        mf_error other;
        if (!p->busy || head.broken) continue;
        mf_status now = receive(p, k, st == MF_OK ? put : NULL, put_user, st == MF_OK ? err : &other);
        if (st == MF_OK) st = now;
    }
    pthread_mutex_unlock(&head.mpi);
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
    pthread_mutex_lock(&head.mpi);
    for (int k = 1; k < cluster.size; k++)
        if (head.peers[k].wants_hints) send_hint(&head.peers[k], k, layer, ids, n);
    pthread_mutex_unlock(&head.mpi);
}

/* ---- from the handshake to the end ------------------------------------------------------------------------------- */

mf_elsewhere cluster_head(void) {
    return (mf_elsewhere){begin, finish, hint, wants_hints, NULL};
}

/* The most that messages take: every row goes to as many ranks as it has experts, and comes back once for each of them.
 */
static void count_messages(mf_model *model) {
    int64_t row = (int64_t)wire_row_bytes(cluster.wire, head.n_hidden), k = head.top_k, n = cluster.size - 1;
    int64_t ends = (int64_t)(sizeof(wire_request) + sizeof(wire_reply)) + MF_ERROR_TEXT + 128;
    mf__model_messages(model, WIRE_MPI_BYTES + n * (ends + 8 * (int64_t)head.n_experts),
                       (k < n ? k : n) * (row + 4 * k) + k * (row + (int64_t)sizeof *head.pairs));
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
    bool all = head.peers && head.chosen && head.to && head.row;
    for (int k = 0; k < cluster.size && all; k++) {
        peer *p = &head.peers[k];
        p->sent = p->got = p->hinted = MPI_REQUEST_NULL;
        p->stats.budget = h[k].budget;
        memcpy(p->stats.host, h[k].host, sizeof p->stats.host);
        p->hint = malloc(sizeof(wire_request) + (size_t)head.n_experts * 4);
        all = p->hint != NULL;
    }
    mf_status st = all ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for %d ranks", cluster.size);
    count_messages(model);
    MF__TRY(cluster_share(model, st, &head.owners, err)); /* also after a failure: the others hear of it there */
    head.has_mover = !pthread_create(&head.mover, NULL, move, NULL); /* it goes without, slower */
    return MF_OK;
}

/* Tells all others that it is over, and hears that they know: MPI's own end waits for them without a limit. */
static void say_end(void) {
    static wire_request q = {.magic = WIRE_MAGIC, .kind = WIRE_END};
    static wire_reply bye[WIRE_MAX_RANKS];
    MPI_Status status;
    for (int k = 1; k < cluster.size && !head.broken; k++) {
        peer *p = &head.peers[k];
        p->in = (char *)&bye[k];
        p->in_most = sizeof bye[k];
        p->out = (char *)&q;
        p->out_bytes = sizeof q;
        send_request(p, k, NULL);
    }
    for (int k = 1; k < cluster.size && !head.broken; k++) {
        peer *p = &head.peers[k];
        if (p->hinted != MPI_REQUEST_NULL) wait_for(&p->hinted, &status, k, NULL);
        if (!head.broken) wait_for(&p->sent, &status, k, NULL);
        if (!head.broken) wait_for(&p->got, &status, k, NULL);
    }
    if (head.broken && !head.on_break) app_say("%s", head.why.text);
}

static void stop_moving(void) {
    if (!head.has_mover) return;
    pthread_mutex_lock(&head.mpi);
    head.quit = true;
    pthread_cond_signal(&head.moved);
    pthread_mutex_unlock(&head.mpi);
    pthread_join(head.mover, NULL);
    head.has_mover = false;
}

bool cluster_head_close(void) {
    stop_moving();
    if (head.peers && !head.broken && cluster.fits) say_end();
    if (head.broken) return false; /* what is under way uses the buffers */
    for (int k = 0; head.peers && k < cluster.size; k++) free(head.peers[k].hint);
    free(head.messages);
    free(head.pairs);
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
    if (opt->stall_limit > 0) cluster.stall_limit = opt->stall_limit;
    cluster.meet_limit = 10 * cluster.stall_limit; /* models open slowly, and not everywhere alike */
    mo->experts_only = cluster.rank > 0;
    MF__TRY(cluster_start(err)); /* before the model: who takes long to open it can be named */
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
