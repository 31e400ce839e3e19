#include "history.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ENTRIES 128

typedef struct entry {
    int32_t *ids;
    size_t n_prompt, n;
} entry;

struct history {
    pthread_mutex_t lock;
    entry entries[MAX_ENTRIES]; /* oldest first */
    int n_entries;
    size_t n_tokens, max_tokens;
};

history *history_create(size_t max_tokens) {
    history *h = calloc(1, sizeof *h);
    if (!h) return NULL;
    pthread_mutex_init(&h->lock, NULL);
    h->max_tokens = max_tokens;
    return h;
}

static void forget(history *h, int i) {
    h->n_tokens -= h->entries[i].n;
    free(h->entries[i].ids);
    h->n_entries--;
    memmove(&h->entries[i], &h->entries[i + 1], (size_t)(h->n_entries - i) * sizeof *h->entries);
}

void history_free(history *h) {
    if (!h) return;
    while (h->n_entries) forget(h, h->n_entries - 1);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

static bool begins(const int32_t *ids, size_t n, const int32_t *beginning, size_t n_beginning) {
    return n >= n_beginning && !memcmp(ids, beginning, n_beginning * sizeof *ids);
}

void history_add(history *h, const int32_t *ids, size_t n_prompt, size_t n) {
    if (!h || n <= n_prompt || n > h->max_tokens) return;
    int32_t *copy = malloc(n * sizeof *copy);
    if (!copy) return;
    memcpy(copy, ids, n * sizeof *copy);
    pthread_mutex_lock(&h->lock);
    for (int i = h->n_entries; i-- > 0;) /* earlier turns of the same conversation are in it */
        if (begins(ids, n, h->entries[i].ids, h->entries[i].n)) forget(h, i);
    while (h->n_entries == MAX_ENTRIES || (h->n_entries && h->n_tokens + n > h->max_tokens)) forget(h, 0);
    h->entries[h->n_entries++] = (entry){copy, n_prompt, n};
    h->n_tokens += n;
    pthread_mutex_unlock(&h->lock);
}

int32_t *history_find(history *h, const int32_t *ids, size_t n, size_t *n_found) {
    int32_t *copy = NULL;
    const entry *best = NULL;
    if (!h) return NULL;
    pthread_mutex_lock(&h->lock);
    for (int i = 0; i < h->n_entries; i++) { /* of equals, the latest */
        const entry *e = &h->entries[i];
        if (begins(ids, n, e->ids, e->n_prompt) && !begins(ids, n, e->ids, e->n) &&
            (!best || e->n_prompt >= best->n_prompt))
            best = e;
    }
    if (best && (copy = malloc(best->n * sizeof *copy))) {
        memcpy(copy, best->ids, best->n * sizeof *copy);
        *n_found = best->n;
    }
    pthread_mutex_unlock(&h->lock);
    return copy;
}
