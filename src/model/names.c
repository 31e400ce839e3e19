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

/* "model.layers.N.X" of a family whose layers are pairs: the alias' name in layer N / 2. False: it is not X's alias. */
static bool in_pair(const char *canonical, const mf__alias *a, char name[MF_MAX_NAME]) {
    int layer, used = 0;
    const char *mark = strchr(a->theirs, '@');
    if (sscanf(canonical, "model.layers.%d.%n", &layer, &used) != 1 || !used) return false;
    const char *rest = canonical + used;
    if (strncmp(rest, a->ours, strlen(a->ours))) return false;
    rest += strlen(a->ours);
    int len = mark ? snprintf(name, MF_MAX_NAME, "model.layers.%d.%.*s%d%s%s", layer / 2, (int)(mark - a->theirs),
                              a->theirs, layer % 2, mark + 1, rest)
                   : snprintf(name, MF_MAX_NAME, "model.layers.%d.%s%s", layer / 2, a->theirs, rest);
    return len < MF_MAX_NAME;
}

const mf__entry *mf__names_find(const mf__catalog *cat, const mf__family *family, const char *canonical, char *spelt) {
    const mf__entry *e = find(cat, canonical, spelt);
    for (const mf__alias *a = family->aliases; !e && a && a->ours; a++) {
        const char *at = strstr(canonical, a->ours);
        char name[MF_MAX_NAME];
        if (family->paired && in_pair(canonical, a, name)) e = find(cat, name, spelt);
        if (!at || family->paired) continue;
        int len =
            snprintf(name, sizeof name, "%.*s%s%s", (int)(at - canonical), canonical, a->theirs, at + strlen(a->ours));
        if (len < MF_MAX_NAME) e = find(cat, name, spelt);
    }
    if (!e) snprintf(spelt, MF_MAX_NAME, "%s", canonical);
    return e;
}
