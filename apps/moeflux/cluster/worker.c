/* A rank that computes experts for rank 0. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/experts.h"
#include "wire.h"

typedef struct worker {
    mf_model *model;
    const mf_model_info *info;
    wire_format format; /* rank 0's */
    int32_t n_rows;     /* messages have room for so many ... */
    size_t in_size;
    char *in, *out;
    float *values; /* ... and this for them and their pairs, where they travel in another form */
    char sorry[sizeof(wire_reply) + MF_ERROR_TEXT]; /* a reply that says what went wrong */
    int64_t compute_ns;
    MPI_Request sent; /* the last reply */
} worker;

static wire_stats stats_of(const worker *w) {
    mf_stats s;
    mf_model_stats_get(w->model, &s);
    return (wire_stats){.wanted = s.wanted,
                        .hits = s.hits,
                        .bytes_read = s.bytes_read,
                        .bytes_prefetched = s.bytes_prefetched,
                        .stall_ns = s.stall_ns,
                        .compute_ns = w->compute_ns,
                        .budget = s.budget,
                        .cache_bytes = s.cache_bytes,
                        .wants_hints = mf__store_wants_hints(mf__model_store(w->model), MF_PREDICT_ROUTER)};
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

/* The message is as long as its head says, so what lies behind it can be used where it is. */
static mf_status check_request(const worker *w, const wire_request *q, size_t size, mf_error *err) {
    size_t need = sizeof *q;
    if (size < sizeof *q || q->magic != WIRE_MAGIC)
        return mf__fail(err, MF_E_FORMAT, "a message of %zu bytes from rank 0 is no request", size);
    if (q->n_wanted < 0 || q->n_wanted > w->info->n_experts || q->n_rows < 0 || q->n_rows > 1 << 16 || q->n_pairs < 0 ||
        q->n_pairs > (int64_t)q->n_rows * w->info->n_experts_per_token ||
        q->format != (q->kind == WIRE_WORK ? (int32_t)w->format : 0) || q->kind < WIRE_WORK || q->kind > WIRE_END)
        return mf__fail(err, MF_E_FORMAT, "a request of rank 0, of kind %u, has %d experts, %d rows and %lld pairs",
                        q->kind, q->n_wanted, q->n_rows, (long long)q->n_pairs);
    need += (size_t)q->n_wanted * sizeof(int32_t);
    if (q->kind == WIRE_WORK)
        need += (size_t)q->n_rows *
                ((size_t)w->info->n_experts_per_token * 4 + wire_row_bytes((wire_format)q->format, w->info->n_hidden));
    if (need != size)
        return mf__fail(err, MF_E_FORMAT, "a request of rank 0 has %zu bytes, %zu were expected", size, need);
    return MF_OK;
}

/* Computes what the message in w->in asks for; pairs go to `to` as they travel. */
static mf_status compute(worker *w, const wire_request *q, char *to, mf_error *err) {
    const int32_t *wanted = (const int32_t *)(const void *)(w->in + sizeof *q), *ids = wanted + q->n_wanted;
    const char *from = (const char *)(ids + q->n_rows * w->info->n_experts_per_token);
    size_t cols = (size_t)w->info->n_hidden, bytes = wire_row_bytes((wire_format)q->format, w->info->n_hidden);
    const float *rows = (const float *)(const void *)from;
    float *pairs = (float *)(void *)to;
    if (q->format != WIRE_F32) {
        for (int32_t i = 0; i < q->n_rows; i++, from += bytes)
            wire_unpack((wire_format)q->format, from, w->info->n_hidden, w->values + (size_t)i * cols);
        rows = w->values;
        pairs = w->values + (size_t)q->n_rows * cols;
    }
    mf_experts_request r = {.layer = q->layer,
                            .n_rows = q->n_rows,
                            .n_hidden = w->info->n_hidden,
                            .top_k = w->info->n_experts_per_token,
                            .n_decode = q->n_decode,
                            .rows = rows,
                            .ids = ids,
                            .wanted = wanted,
                            .n_wanted = q->n_wanted};
    MF__TRY(mf_experts_compute(w->model, &r, pairs, (size_t)q->n_pairs * cols, err));
    for (int64_t i = 0; q->format != WIRE_F32 && i < q->n_pairs; i++, to += bytes)
        wire_pack((wire_format)q->format, pairs + (size_t)i * cols, w->info->n_hidden, to);
    return MF_OK;
}

/* The last reply is on its way, so that its buffer may be used. */
static mf_status wait_sent(worker *w, mf_error *err) {
    MPI_Status status;
    if (w->sent == MPI_REQUEST_NULL || cluster_wait(&w->sent, &status, 0) == CLUSTER_DONE) return MF_OK;
    return mf__fail(err, MF_E_IO, "rank 0 cannot be reached");
}

static mf_status answer(worker *w, const wire_request *q, mf_status st, mf_error *err) {
    size_t payload = (size_t)q->n_pairs * wire_row_bytes((wire_format)q->format, w->info->n_hidden);
    char *out = w->out;
    MF__TRY(wait_sent(w, err));
    if (st == MF_OK) {
        int64_t began = mf__clock_ns();
        st = compute(w, q, out + sizeof(wire_reply), err);
        w->compute_ns += mf__clock_ns() - began;
    }
    if (st != MF_OK) {
        out = w->sorry; /* the other may be what there was no memory for */
        payload = MF_ERROR_TEXT;
        memcpy(out + sizeof(wire_reply), err->text, MF_ERROR_TEXT);
    }
    wire_reply reply = {WIRE_MAGIC, st, q->seq, st == MF_OK ? q->n_pairs : 0, stats_of(w)};
    memcpy(out, &reply, sizeof reply);
    if (MPI_Isend(out, (int)(sizeof reply + payload), MPI_BYTE, 0, WIRE_TAG_REPLY, MPI_COMM_WORLD, &w->sent) !=
        MPI_SUCCESS)
        return mf__fail(err, MF_E_IO, "rank 0 cannot be reached");
    return MF_OK;
}

/* Of a request, by row. */
static size_t row_bytes(const worker *w) {
    return (size_t)w->info->n_experts_per_token * 4 + wire_row_bytes(w->format, w->info->n_hidden);
}

/* Messages of n_rows, and whatever computing them takes; what is in w->in is lost. */
static mf_status make_room(worker *w, int32_t n_rows, mf_error *err) {
    size_t rows = (size_t)n_rows, top_k = (size_t)w->info->n_experts_per_token, cols = (size_t)w->info->n_hidden;
    size_t heads = sizeof(wire_request) + (size_t)w->info->n_experts * 4 + sizeof(wire_reply) + MF_ERROR_TEXT;
    size_t pairs = top_k * wire_row_bytes(w->format, w->info->n_hidden);
    size_t values = w->format == WIRE_F32 ? 0 : (1 + top_k) * cols * sizeof *w->values;
    MF__TRY(wait_sent(w, err));
    if (!w->n_rows)
        mf__model_messages(w->model, WIRE_MPI_BYTES + (int64_t)heads, (int64_t)(row_bytes(w) + pairs + values));
    MF__TRY(mf__experts_reserve(w->model, n_rows, err));
    free(w->in);
    free(w->out);
    free(w->values);
    w->n_rows = n_rows;
    w->in_size = sizeof(wire_request) + (size_t)w->info->n_experts * 4 + rows * row_bytes(w);
    w->in = malloc(w->in_size);
    w->out = malloc(sizeof(wire_reply) + MF_ERROR_TEXT + rows * pairs);
    w->values = values ? malloc(rows * values) : NULL;
    if (w->in && w->out && (w->values || !values)) return MF_OK;
    w->in_size = 0;
    return mf__fail(err, MF_E_NOMEM, "no memory for messages of %d rows", n_rows);
}

/* Receives the next request into w->in; size says how long it is. *st is an error where there is no place for it. */
static mf_status next_request(worker *w, size_t *size, mf_status *st, mf_error *err) {
    MPI_Message message;
    MPI_Status status;
    int there = 0, n = 0;
    double began = app_seconds();
    for (;;) {
        if (MPI_Improbe(0, WIRE_TAG_REQUEST, MPI_COMM_WORLD, &there, &message, &status) != MPI_SUCCESS)
            return mf__fail(err, MF_E_IO, "rank 0 cannot be reached");
        if (there) break;
        cluster_pause(app_seconds() - began);
    }
    MPI_Get_count(&status, MPI_BYTE, &n);
    if (n < 0 || (size_t)n > w->in_size) {
        int64_t rows = ((int64_t)n / (int64_t)row_bytes(w) + 16) / 16 * 16; /* not a few more every time */
        *st = rows <= 1 << 16 && n >= 0 ? make_room(w, (int32_t)rows, err)
                                        : mf__fail(err, MF_E_LIMIT, "a message of %d bytes from rank 0 is too long", n);
        if (*st != MF_OK) return MF_OK; /* the message stays with MPI */
    }
    if (MPI_Mrecv(w->in, n, MPI_BYTE, &message, &status) != MPI_SUCCESS)
        return mf__fail(err, MF_E_IO, "rank 0 cannot be reached");
    *size = (size_t)n;
    return MF_OK;
}

/* Last of all, so that rank 0 sees whoever cannot end. */
static mf_status say_bye(worker *w, const wire_request *q, mf_error *err) {
    wire_reply reply = {WIRE_MAGIC, MF_OK, q->seq, 0, stats_of(w)};
    MF__TRY(wait_sent(w, err));
    mf_model_close(w->model);
    w->model = NULL;
    memcpy(w->sorry, &reply, sizeof reply);
    if (MPI_Isend(w->sorry, sizeof reply, MPI_BYTE, 0, WIRE_TAG_REPLY, MPI_COMM_WORLD, &w->sent) == MPI_SUCCESS)
        return MF_OK;
    return mf__fail(err, MF_E_IO, "rank 0 cannot be reached");
}

static mf_status serve_requests(worker *w, mf_error *err) {
    for (;;) {
        wire_request q = {0};
        size_t size = 0;
        mf_status st = MF_OK;
        MF__TRY(next_request(w, &size, &st, err));
        if (size >= sizeof q) memcpy(&q, w->in, sizeof q);
        if (st == MF_OK) st = check_request(w, &q, size, err);
        if (st == MF_OK && q.kind == WIRE_HINT) {
            mf_experts_hint(w->model, q.layer, (const int32_t *)(const void *)(w->in + sizeof q), q.n_wanted);
            continue;
        }
        if (st != MF_OK) q.n_pairs = 0; /* rank 0 says it and ends the job */
        if (q.magic != WIRE_MAGIC) q.seq = 0;
        if (st == MF_OK && q.kind == WIRE_END) return say_bye(w, &q, err);
        MF__TRY(answer(w, &q, st, err));
    }
}

/* ---- the rank ---------------------------------------------------------------------------------------------------- */

int cluster_work(char *dir, const app_model_options *opt) {
    worker w = {.sent = MPI_REQUEST_NULL};
    app_model_options mine = *opt;
    mf_error err = {0}, why = {0};
    MPI_Status status;
    mine.prompt_cache_ram = mine.prompt_cache_disk = 0; /* what only rank 0 does */
    mine.prompt_cache_dir = mine.log_routing = mine.record_routes = NULL;
    mine.routes = (mf_route_sink){0};
    signal(SIGINT, SIG_IGN); /* rank 0 says when it is over; mpirun kills those who do not hear it */
    signal(SIGTERM, SIG_IGN);
    app_open(dir, &mine, &w.model, &why);
    mf_status st = MF_OK;
    if (cluster_meet(w.model, dir, &why, &err) == MF_OK) { /* otherwise rank 0 says why, and has the exit code */
        uint64_t *owners;
        w.info = mf_model_info_get(w.model);
        w.format = (wire_format)cluster.hello[0].wire;
        mf_status room = make_room(&w, mf__model_pass_rows(w.model, opt->n_chunk), &err);
        if (cluster_share(w.model, room, &owners, &err) == MF_OK) { /* the same */
            free(owners);
            cluster_mute(false);
            st = serve_requests(&w, &err);
            cluster.lost = st != MF_OK;
        }
        if (st != MF_OK) app_say("rank %d on %s: %s", cluster.rank, cluster.hello[cluster.rank].host, err.text);
    }
    if (w.sent != MPI_REQUEST_NULL && !cluster.lost) cluster_wait(&w.sent, &status, 10);
    free(w.in);
    free(w.out);
    free(w.values);
    mf_model_close(w.model);
    free(dir);
    return st == MF_OK ? APP_OK : APP_FAILED;
}
