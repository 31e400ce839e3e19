/* Methods of lists, dictionaries, loops and cyclers, and the global functions. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "text/jinja/run.h"

/* ---- lists ----------------------------------------------------------------------------------------------------- */

static mf_status l_append(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    *out = mf__j_none();
    return mf__j_append(c, self, *a->at[0]);
}

static mf_status l_extend(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    const jlist *items;
    *out = mf__j_none();
    MF__TRY(mf__j_iterate(c, *a->at[0], &items));
    for (size_t i = 0, n = items->n; i < n; i++) MF__TRY(mf__j_append(c, self, items->items[i]));
    return MF_OK;
}

static mf_status move_items(jctx *c, jlist *l, size_t to, size_t from, size_t n) {
    MF__TRY(mf__j_pay_bytes(c, n * sizeof(jvalue), J_COPIED));
    memmove(l->items + to, l->items + from, n * sizeof(jvalue));
    return MF_OK;
}

static mf_status l_insert(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    int64_t i, n = (int64_t)self.list->n;
    *out = mf__j_none();
    MF__TRY(mf__j_int_arg(c, a->at[0], "insert", 0, &i));
    if (i < 0) i += n;
    if (i < 0) i = 0;
    if (i > n) i = n;
    MF__TRY(mf__j_append(c, self, *a->at[1]));
    MF__TRY(move_items(c, self.list, (size_t)i + 1, (size_t)i, (size_t)(n - i)));
    self.list->items[i] = *a->at[1];
    return MF_OK;
}

static mf_status l_pop(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    int64_t i, n = (int64_t)self.list->n;
    MF__TRY(mf__j_int_arg(c, a->at[0], "pop", n - 1, &i));
    if (i < 0) i += n;
    if (i < 0 || i >= n) return mf__j_fail(c, MF_E_INVALID, "pop from a list of %lld items", (long long)n);
    *out = self.list->items[i];
    MF__TRY(move_items(c, self.list, (size_t)i, (size_t)i + 1, (size_t)(n - i - 1)));
    self.list->n--;
    return MF_OK;
}

static mf_status l_count(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    int64_t n = 0;
    for (size_t i = 0; i < self.list->n; i++) {
        bool same;
        MF__TRY(mf__j_equal(c, self.list->items[i], *a->at[0], &same));
        n += same;
    }
    *out = mf__j_int(n);
    return MF_OK;
}

static mf_status l_index(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    int64_t start, end, n = (int64_t)self.list->n;
    MF__TRY(mf__j_int_arg(c, a->at[1], "index", 0, &start));
    MF__TRY(mf__j_int_arg(c, a->at[2], "index", n, &end));
    if (start < 0) start = start + n < 0 ? 0 : start + n;
    if (end < 0) end += n;
    for (int64_t i = start; i < end && i < (int64_t)self.list->n; i++) {
        bool same;
        MF__TRY(mf__j_equal(c, self.list->items[i], *a->at[0], &same));
        if (same) return *out = mf__j_int(i), MF_OK;
    }
    return mf__j_fail(c, MF_E_INVALID, "index: the value is not in the list");
}

static mf_status l_remove(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    jvalue at;
    const jbound just_value = {.at = {a->at[0]}};
    MF__TRY(l_index(c, self, &just_value, &at));
    const jbound where = {.at = {&at}};
    MF__TRY(l_pop(c, self, &where, out));
    *out = mf__j_none();
    return MF_OK;
}

static mf_status l_reverse(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    jlist *l = self.list;
    (void)a;
    *out = mf__j_none();
    MF__TRY(mf__j_pay(c, l->n));
    for (size_t i = 0; i < l->n / 2; i++) {
        jvalue v = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = v;
    }
    return MF_OK;
}

static mf_status l_sort(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    jlist *l = self.list;
    void *memory;
    if (a->at[0] && a->at[0]->kind != J_NONE) return mf__j_fail(c, MF_E_UNSUPPORTED, "sort by a key function");
    MF__TRY(mf__j_alloc_array(c, l->n, sizeof(jpair), &memory));
    jpair *pairs = memory;
    for (size_t i = 0; i < l->n; i++) pairs[i].key = l->items[i];
    MF__TRY(mf__j_sort_pairs(c, pairs, l->n, mf__j_truth_arg(a->at[1], false)));
    for (size_t i = 0; i < l->n; i++) l->items[i] = pairs[i].key;
    *out = mf__j_none();
    return MF_OK;
}

static mf_status l_clear(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    (void)c, (void)a;
    self.list->n = 0;
    *out = mf__j_none();
    return MF_OK;
}

static mf_status l_copy(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    (void)a;
    MF__TRY(mf__j_list(c, J_LIST, self.list->n, out));
    for (size_t i = 0; i < self.list->n; i++) MF__TRY(mf__j_append(c, *out, self.list->items[i]));
    return MF_OK;
}

const jentry mf__j_list_methods[] = {
    {"append", "/value", l_append},
    {"extend", "/values", l_extend},
    {"insert", "/at,value", l_insert},
    {"pop", "/at?", l_pop},
    {"count", "/value", l_count},
    {"index", "/value,start?,end?", l_index},
    {"remove", "/value", l_remove},
    {"reverse", "", l_reverse},
    {"sort", "key?,reverse?", l_sort},
    {"clear", "", l_clear},
    {"copy", "", l_copy},
    {0},
};

const jentry mf__j_tuple_methods[] = {
    {"count", "/value", l_count},
    {"index", "/value,start?,end?", l_index},
    {0},
};

/* ---- dictionaries ---------------------------------------------------------------------------------------------- */

static mf_status d_get(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    const jvalue *found;
    MF__TRY(mf__j_find(c, self.dict, *a->at[0], &found));
    *out = found ? *found : a->at[1] ? *a->at[1] : mf__j_none();
    return MF_OK;
}

static mf_status d_setdefault(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    const jvalue *found;
    MF__TRY(mf__j_find(c, self.dict, *a->at[0], &found));
    *out = found ? *found : a->at[1] ? *a->at[1] : mf__j_none();
    return found ? MF_OK : mf__j_put(c, self, *a->at[0], *out);
}

static mf_status d_pop(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    bool found;
    MF__TRY(mf__j_remove(c, self.dict, *a->at[0], out, &found));
    if (found) return MF_OK;
    if (!a->at[1]) return mf__j_fail(c, MF_E_INVALID, "pop: no such key");
    *out = *a->at[1];
    return MF_OK;
}

static mf_status d_popitem(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    jvalue value;
    bool found;
    (void)a;
    if (!self.dict->n) return mf__j_fail(c, MF_E_INVALID, "popitem: the dict is empty");
    jvalue key = self.dict->pairs[self.dict->n - 1].key;
    MF__TRY(mf__j_remove(c, self.dict, key, &value, &found));
    return mf__j_pair(c, key, value, out);
}

static mf_status view(jctx *c, jvalue self, jform what, jvalue *out) {
    MF__TRY(mf__j_list(c, J_LIST, self.dict->n, out));
    for (size_t i = 0; i < self.dict->n; i++) {
        const jpair *p = &self.dict->pairs[i];
        jvalue item = what == JF_KEYS ? p->key : p->value;
        if (what == JF_ITEMS) MF__TRY(mf__j_pair(c, p->key, p->value, &item));
        MF__TRY(mf__j_append(c, *out, item));
    }
    out->form = (uint8_t)what;
    return MF_OK;
}
static mf_status d_items(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    (void)a;
    return view(c, self, JF_ITEMS, out);
}
static mf_status d_keys(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    (void)a;
    return view(c, self, JF_KEYS, out);
}
static mf_status d_values(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    (void)a;
    return view(c, self, JF_VALUES, out);
}

static mf_status put_pairs(jctx *c, jvalue dict, jvalue from) {
    const jlist *items, *pair;
    MF__TRY(mf__j_iterate(c, from, &items));
    for (size_t i = 0; i < items->n; i++) {
        MF__TRY(mf__j_iterate(c, items->items[i], &pair));
        if (pair->n != 2) return mf__j_fail(c, MF_E_INVALID, "a dict needs pairs, not %zu values", pair->n);
        MF__TRY(mf__j_put(c, dict, pair->items[0], pair->items[1]));
    }
    return MF_OK;
}

/* dict(from, name=value, ...): a dict or pairs, then names. */
static mf_status put_all(jctx *c, jvalue dict, const jargs *args) {
    if (args->n > 1) return mf__j_fail(c, MF_E_INVALID, "takes at most one dict, %zu given", args->n);
    if (args->n && args->pos[0].kind != J_DICT && args->pos[0].kind != J_NAMESPACE) {
        MF__TRY(put_pairs(c, dict, args->pos[0]));
    } else if (args->n) {
        const jdict *from = args->pos[0].dict;
        for (size_t i = 0; i < from->n; i++) MF__TRY(mf__j_put(c, dict, from->pairs[i].key, from->pairs[i].value));
    }
    for (size_t i = 0; i < args->n_named; i++)
        MF__TRY(mf__j_put(c, dict, mf__j_string(args->named[i].name, args->named[i].n_name), args->named[i].value));
    return MF_OK;
}

static mf_status d_update(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    *out = mf__j_none();
    return put_all(c, self, a->all);
}

static mf_status d_copy(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    (void)a;
    MF__TRY(mf__j_dict(c, self.dict->n, out));
    return put_all(c, *out, &(jargs){.pos = &self, .n = 1});
}

static mf_status d_clear(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    (void)c, (void)a;
    mf__j_clear(self.dict);
    *out = mf__j_none();
    return MF_OK;
}

const jentry mf__j_dict_methods[] = {
    {"get", "/key,default?", d_get},
    {"setdefault", "/key,default?", d_setdefault},
    {"pop", "/key,default?", d_pop},
    {"popitem", "", d_popitem},
    {"items", "", d_items},
    {"keys", "", d_keys},
    {"values", "", d_values},
    {"update", "*", d_update},
    {"copy", "", d_copy},
    {"clear", "", d_clear},
    {0},
};

/* ---- loops and cyclers ----------------------------------------------------------------------------------------- */

static mf_status o_cycle(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    if (!a->all->n) return mf__j_fail(c, MF_E_INVALID, "cycle needs values");
    *out = a->all->pos[self.loop->at % a->all->n];
    return MF_OK;
}

static mf_status o_changed(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    jloop *l = self.loop;
    bool same = l->changed && l->n_changed == a->all->n;
    for (size_t i = 0; same && i < a->all->n; i++) MF__TRY(mf__j_equal(c, l->changed[i], a->all->pos[i], &same));
    *out = mf__j_bool(!same);
    l->changed = a->all->n ? a->all->pos : self.loop->items->items;
    l->n_changed = a->all->n;
    return MF_OK;
}

const jentry mf__j_loop_methods[] = {
    {"cycle", "*", o_cycle},
    {"changed", "*", o_changed},
    {0},
};

static mf_status y_next(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    jcycler *y = self.cycler;
    (void)c, (void)a;
    *out = y->items[y->at];
    y->at = (y->at + 1) % y->n;
    return MF_OK;
}

static mf_status y_reset(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    (void)c, (void)a;
    self.cycler->at = 0;
    *out = mf__j_none();
    return MF_OK;
}

const jentry mf__j_cycler_methods[] = {
    {"next", "", y_next},
    {"reset", "", y_reset},
    {0},
};

/* ---- globals --------------------------------------------------------------------------------------------------- */

static mf_status make_cycler(jctx *c, jkind kind, const jvalue *items, size_t n, jvalue *out) {
    void *memory, *copy;
    MF__TRY(mf__j_alloc(c, sizeof(jcycler), &memory));
    MF__TRY(mf__j_alloc_array(c, n, sizeof(jvalue), &copy));
    memcpy(copy, items, n * sizeof(jvalue));
    *(jcycler *)memory = (jcycler){copy, n, 0};
    *out = (jvalue){.kind = kind, .cycler = memory};
    return MF_OK;
}

static mf_status g_cycler(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    (void)self;
    if (!a->all->n || a->all->n_named) return mf__j_fail(c, MF_E_INVALID, "cycler needs values");
    return make_cycler(c, J_CYCLER, a->all->pos, a->all->n, out);
}

static mf_status g_joiner(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    jvalue separator = a->at[0] ? *a->at[0] : mf__j_string(", ", 2);
    (void)self;
    return make_cycler(c, J_JOINER, &separator, 1, out);
}

static mf_status g_dict(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    (void)self;
    MF__TRY(mf__j_dict(c, a->all->n_named, out));
    return put_all(c, *out, a->all);
}

static mf_status g_namespace(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    MF__TRY(g_dict(c, self, a, out));
    out->kind = J_NAMESPACE;
    return MF_OK;
}

static mf_status g_range(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    int64_t v[3] = {0, 0, 1};
    (void)self;
    for (size_t i = 0; i < 3; i++) MF__TRY(mf__j_int_arg(c, a->at[i], "range", v[i], &v[i]));
    if (!a->at[1]) v[1] = v[0], v[0] = 0;
    if (v[2] == 0) return mf__j_fail(c, MF_E_INVALID, "range needs a step other than 0");
    MF__TRY(mf__j_list(c, J_LIST, 0, out));
    for (int64_t i = v[0]; v[2] > 0 ? i < v[1] : i > v[1];) {
        if (out->list->n >= 100000) return mf__j_fail(c, MF_E_LIMIT, "a range of more than 100000 numbers");
        MF__TRY(mf__j_append(c, *out, mf__j_int(i)));
        if (__builtin_add_overflow(i, v[2], &i)) break;
    }
    out->form = JF_RANGE;
    return mf__j_set_range(c, *out, v[0], v[1], v[2]);
}

static mf_status g_raise(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    jvalue text = mf__j_string("", 0);
    (void)self, (void)out;
    MF__TRY(mf__j_str(c, *a->at[0], &text));
    return mf__j_fail(c, MF_E_INVALID, "%.*s", text.n > 500 ? 500 : (int)text.n, text.n ? text.s : "");
}

static mf_status g_strftime(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    const jvalue *format = a->at[0];
    const char *fixed = c->opt.strftime_now;
    char pattern[128], text[512];
    (void)self;
    MF__TRY(mf__j_need_string(c, format, "strftime_now"));
    if (fixed) return *out = mf__j_string(fixed, strlen(fixed)), MF_OK;
    if (format->n >= sizeof pattern)
        return mf__j_fail(c, MF_E_LIMIT, "strftime_now: a format of more than %zu bytes", sizeof pattern - 1);
    time_t now = c->opt.now ? (time_t)c->opt.now : time(NULL);
    struct tm tm;
    memcpy(pattern, format->s, format->n);
    pattern[format->n] = 0;
    if (!localtime_r(&now, &tm)) return mf__j_fail(c, MF_E_INVALID, "the time cannot be told");
    return mf__j_copy(c, text, strftime(text, sizeof text, pattern, &tm), out);
}

/* self.name(): the block again. */
static mf_status g_block(jctx *c, jvalue self, const jbound *a, jvalue *out) {
    (void)a;
    if (self.kind != J_STRING) return mf__j_fail(c, MF_E_UNSUPPORTED, "super() without a template to extend");
    return mf__j_call_block(c, self.s, self.n, out);
}

const jentry mf__j_globals[] = {
    {"namespace", "*", g_namespace},
    {"dict", "*", g_dict},
    {"range", "/start,stop?,step?", g_range},
    {"cycler", "*", g_cycler},
    {"joiner", "sep?", g_joiner},
    {"raise_exception", "message", g_raise},
    {"strftime_now", "format", g_strftime},
    {"super", "", g_block},
    {0},
};
