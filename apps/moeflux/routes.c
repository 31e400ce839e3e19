/* Reading routes, and writing them while a model evaluates. */
#include "routes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

#define MAX_FILE ((size_t)8 << 30)
#define MAX_EXPERTS 65536

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static int id_bytes(int n_experts) {
    return n_experts > 256 ? 2 : 1;
}

static mf_status parse(const char *path, const unsigned char *data, size_t size, routes *r, mf_error *err) {
    const unsigned char *line_end = memchr(data, '\n', size < 128 ? size : 128);
    if (!line_end ||
        sscanf((const char *)data, "moeflux-routes 1 %d %d %d\n", &r->n_layers, &r->top_k, &r->n_experts) != 3 ||
        r->n_layers < 1 || r->n_layers > 4096 || r->top_k < 1 || r->n_experts < r->top_k || r->n_experts > MAX_EXPERTS)
        return mf__fail(err, MF_E_FORMAT,
                        "%s is no file of routes: it does not begin with \"moeflux-routes 1 LAYERS TOP_K EXPERTS\"",
                        path);
    const unsigned char *from = line_end + 1;
    size_t width = (size_t)id_bytes(r->n_experts), row = (size_t)r->n_layers * (size_t)r->top_k;
    size_t n = (size - (size_t)(from - data)) / width;
    if (n % row || (size - (size_t)(from - data)) % width || !n)
        return mf__fail(err, MF_E_FORMAT, "%s holds %zu expert numbers, not a whole number of tokens of %zu", path, n,
                        row);
    r->n_tokens = (int64_t)(n / row);
    r->ids = malloc(n * sizeof *r->ids);
    if (!r->ids) return mf__fail(err, MF_E_NOMEM, "no memory for %zu expert numbers", n);
    for (size_t i = 0; i < n; i++) {
        r->ids[i] = width == 1 ? from[i] : from[2 * i] | from[2 * i + 1] << 8;
        if (r->ids[i] >= r->n_experts)
            return mf__fail(err, MF_E_FORMAT, "%s: expert %d of %d in token %zu", path, r->ids[i], r->n_experts,
                            i / row);
        for (size_t j = i / (size_t)r->top_k * (size_t)r->top_k; j < i; j++)
            if (r->ids[j] == r->ids[i])
                return mf__fail(err, MF_E_FORMAT, "%s: expert %d twice in one layer of token %zu", path, r->ids[i],
                                i / row);
    }
    return MF_OK;
}

mf_status routes_read(const char *path, routes *out, mf_error *err) {
    char *data;
    size_t size;
    *out = (routes){0};
    MF__TRY(mf__file_read(path, MAX_FILE, &data, &size, err));
    mf_status st = parse(path, (const unsigned char *)data, size, out, err);
    free(data);
    if (st != MF_OK) routes_free(out);
    return st;
}

void routes_free(routes *r) {
    free(r->ids);
    *r = (routes){0};
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

/* The one that is going on. A pass tells its layers in rising order, all rows of a layer at once; a recording wants all
 * layers of a row at once, so the rows of a pass are held until its last layer has come. */
static struct routing {
    const char *record_path, *log_path;
    FILE *record, *log;
    const mf_model_info *info;
    int layer;          /* told last; -1: none */
    int n_told;         /* layers of this pass so far */
    int64_t n_passes;   /* begun */
    unsigned char *ids; /* [rows][n_expert_layers][top_k] of this pass */
    size_t cap;
    int32_t *counts; /* [n_experts] */
    bool has_head, failed;
} now;

static mf_status open_file(const char *path, FILE **out, mf_error *err) {
    if (!path) return MF_OK;
    *out = fopen(path, "wb");
    return *out ? MF_OK : mf__fail_errno(err, errno, "%s", path);
}

static void record(const int32_t *ids, int n_rows, int top_k) {
    int width = id_bytes(now.info->n_experts);
    size_t slot = (size_t)(top_k * width), row = slot * (size_t)now.info->n_expert_layers, need = row * (size_t)n_rows;
    if (need > now.cap) {
        unsigned char *more = realloc(now.ids, need);
        if (!more) {
            now.failed = true;
            return;
        }
        now.ids = more;
        now.cap = need;
    }
    for (int r = 0; r < n_rows; r++)
        for (int k = 0; k < top_k; k++) {
            int32_t id = ids[r * top_k + k];
            unsigned char *to = now.ids + (size_t)r * row + (size_t)(now.n_told - 1) * slot + (size_t)(k * width);
            to[0] = (unsigned char)id;
            if (width == 2) to[1] = (unsigned char)(id >> 8);
        }
    if (now.n_told < now.info->n_expert_layers) return;
    if (!now.has_head)
        fprintf(now.record, "moeflux-routes 1 %d %d %d\n", now.info->n_expert_layers, top_k, now.info->n_experts);
    now.has_head = true;
    fwrite(now.ids, 1, need, now.record);
}

static void write_log(int layer, const int32_t *ids, int n_rows, int top_k) {
    const char *comma = "";
    if (!now.counts) now.counts = calloc((size_t)now.info->n_experts, sizeof *now.counts);
    if (!now.counts) {
        now.failed = true;
        return;
    }
    memset(now.counts, 0, (size_t)now.info->n_experts * sizeof *now.counts);
    for (int i = 0; i < n_rows * top_k; i++) now.counts[ids[i]]++;
    fprintf(now.log, "{\"chunk\":%lld,\"layer\":%d,\"tokens\":%d,\"experts\":{", (long long)now.n_passes - 1, layer,
            n_rows);
    for (int e = 0; e < now.info->n_experts; e++) {
        if (!now.counts[e]) continue;
        fprintf(now.log, "%s\"%d\":%d", comma, e, now.counts[e]);
        comma = ",";
    }
    fputs("}}\n", now.log);
}

static void on_route(void *user, int layer, const int32_t *ids, int n_rows, int top_k) {
    (void)user;
    if (!now.info || now.failed) return;
    if (layer <= now.layer || !now.n_passes) {
        now.n_told = 0;
        now.n_passes++;
    }
    now.layer = layer;
    now.n_told++;
    if (now.record) record(ids, n_rows, top_k);
    if (now.log) write_log(layer, ids, n_rows, top_k);
}

mf_status routing_start(const app_model_options *opt, mf_route_sink *sink, mf_error *err) {
    now.record_path = opt->record_routes;
    now.log_path = opt->log_routing;
    MF__TRY(open_file(now.record_path, &now.record, err));
    MF__TRY(open_file(now.log_path, &now.log, err));
    if (now.record || now.log) sink->fn = on_route;
    return MF_OK;
}

void routing_model(const mf_model_info *info) {
    now.info = info;
    now.layer = -1;
}

static bool close_file(FILE *f, const char *path) {
    if (!f) return true;
    errno = 0;
    bool ok = !ferror(f) && !now.failed;
    ok = fclose(f) == 0 && ok;
    if (!ok) app_say("writing %s failed%s%s", path, errno ? ": " : "", errno ? strerror(errno) : "");
    return ok;
}

int routing_finish(int code) {
    bool ok = close_file(now.record, now.record_path);
    ok = close_file(now.log, now.log_path) && ok;
    free(now.ids);
    free(now.counts);
    return ok || code != APP_OK ? code : APP_FAILED;
}
