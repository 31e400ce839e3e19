/* The table of policies, and the choice of victims that all of them share. */
#include "store/policy.h"

#include <string.h>

const mf__policy *const mf__policies[] = {&mf__policy_horizons, &mf__policy_lfu, &mf__policy_lru, NULL};

const mf__policy *mf__policy_find(const char *name) {
    if (!name || !strcmp(name, "auto")) return mf__policies[0];
    for (int i = 0; mf__policies[i]; i++)
        if (!strcmp(mf__policies[i]->name, name)) return mf__policies[i];
    return NULL;
}

/* One pass with a short sorted list: n is a handful, n_keys may be ten thousand. */
int mf__ranking_worst(const mf__ranking *r, const mf__key *keys, int n_keys, int now,
                      bool (*evictable)(const void *ctx, int index), const void *ctx, int n, int32_t *out,
                      double *worths) {
    int found = 0;
    for (int i = 0; n > 0 && i < n_keys; i++) {
        if (keys[i] < 0 || !evictable(ctx, i)) continue;
        double worth = r->policy->worth(r->state, r->n_layers, r->n_experts, keys[i], now);
        if (found == n && worth >= worths[n - 1]) continue;
        int at = found < n ? found++ : n - 1;
        for (; at > 0 && worths[at - 1] > worth; at--) {
            worths[at] = worths[at - 1];
            out[at] = out[at - 1];
        }
        worths[at] = worth;
        out[at] = i;
    }
    return found;
}
