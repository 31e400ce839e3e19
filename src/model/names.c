#include "model/names.h"

#include <stdio.h>
#include <string.h>

/* "model.X" is spelt model.X (text-only), model.language_model.X (published with vision), language_model.model.X
 * (MLX), X (DeepSeek's own files) or backbone.X (Nemotron); names outside "model." (the head) stay or get
 * "language_model." in front. */
static int with_prefix(const char *name, int spelling, char *out) {
    bool inner = !strncmp(name, "model.", 6);
    switch (spelling) {
    case 0: return snprintf(out, MF_MAX_NAME, "%s", name);
    case 1: return inner ? snprintf(out, MF_MAX_NAME, "model.language_model.%s", name + 6) : -1;
    case 2: return snprintf(out, MF_MAX_NAME, "language_model.%s", name);
    case 4: return inner ? snprintf(out, MF_MAX_NAME, "backbone.%s", name + 6) : -1;
    case 3: return inner ? snprintf(out, MF_MAX_NAME, "%s", name + 6) : -1;
    default: return -1;
    }
}
#define N_SPELLINGS 5

static const mf__entry *find(const mf__catalog *cat, const char *name, char *spelt) {
    for (int s = 0; s < N_SPELLINGS; s++) {
        int len = with_prefix(name, s, spelt);
        if (len <= 0 || len >= MF_MAX_NAME) continue;
        const mf__entry *e = mf__catalog_find(cat, spelt);
        if (e) return e;
    }
    return NULL;
}

const mf__entry *mf__names_find(const mf__catalog *cat, const mf__family *family, const char *canonical, char *spelt) {
    const mf__entry *e = find(cat, canonical, spelt);
    for (const mf__alias *a = family->aliases; !e && a && a->ours; a++) {
        const char *at = strstr(canonical, a->ours);
        char name[MF_MAX_NAME];
        if (!at) continue;
        int len =
            snprintf(name, sizeof name, "%.*s%s%s", (int)(at - canonical), canonical, a->theirs, at + strlen(a->ours));
        if (len < MF_MAX_NAME) e = find(cat, name, spelt);
    }
    if (!e) snprintf(spelt, MF_MAX_NAME, "%s", canonical);
    return e;
}
