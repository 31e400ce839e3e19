#include "experts.h"

#include <pthread.h>
#include <stdlib.h>

#define FADE_AT (1u << 16) /* all counts are halved when one gets there */

struct experts {
    pthread_mutex_t lock;
    uint32_t *counts; /* [n_layers][n_experts] */
    int32_t n_layers, n_experts;
};

experts *experts_create(void) {
    experts *e = calloc(1, sizeof *e);
    if (e) pthread_mutex_init(&e->lock, NULL);
    return e;
}

void experts_free(experts *e) {
    if (!e) return;
    pthread_mutex_destroy(&e->lock);
    free(e->counts);
    free(e);
}

static void count(void *user, int layer, const int32_t *ids, int n_rows, int top_k) {
    experts *e = user;
    bool fade = false;
    pthread_mutex_lock(&e->lock);
    if (e->counts && layer >= 0 && layer < e->n_layers) {
        uint32_t *row = e->counts + (size_t)layer * (size_t)e->n_experts;
        for (int i = 0; i < n_rows * top_k; i++)
            if (ids[i] >= 0 && ids[i] < e->n_experts && ++row[ids[i]] >= FADE_AT) fade = true;
        for (size_t i = 0; fade && i < (size_t)e->n_layers * (size_t)e->n_experts; i++) e->counts[i] /= 2;
    }
    pthread_mutex_unlock(&e->lock);
}

mf_route_sink experts_sink(experts *e) {
    return (mf_route_sink){e ? count : NULL, e};
}

bool experts_shape(experts *e, const mf_model_info *info) {
    uint32_t *counts = calloc((size_t)info->n_layers * (size_t)info->n_experts + 1, sizeof *counts);
    if (!counts) return false;
    pthread_mutex_lock(&e->lock);
    e->counts = counts;
    e->n_layers = info->n_layers;
    e->n_experts = info->n_experts;
    pthread_mutex_unlock(&e->lock);
    return true;
}

void experts_write(experts *e, buf *out) {
    buf_adds(out, "{\"layers\":[");
    if (e) pthread_mutex_lock(&e->lock);
    for (int32_t l = 0; e && l < e->n_layers; l++) {
        buf_adds(out, l ? ",[" : "[");
        for (int32_t i = 0; i < e->n_experts; i++)
            buf_printf(out, i ? ",%u" : "%u", e->counts[(size_t)l * (size_t)e->n_experts + (size_t)i]);
        buf_adds(out, "]");
    }
    if (e) pthread_mutex_unlock(&e->lock);
    buf_adds(out, "]}");
}
