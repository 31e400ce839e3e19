/* Command lines: parsing, help and error messages. */
#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "docs.h"
#include "hints.h"

/* ---- near misses ----------------------------------------------------------------------------------------------- */

#define MAX_NAME 32

/* Levenshtein distance of two short names; long ones count as far apart. */
static int distance(const char *a, const char *b) {
    int row[MAX_NAME + 1];
    int n = (int)strlen(a), m = (int)strlen(b);
    if (n > MAX_NAME || m > MAX_NAME) return MAX_NAME;
    for (int j = 0; j <= m; j++) row[j] = j;
    for (int i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[m];
}

const char *opt_nearest(const char *name, const char *const *names, int n) {
    const char *best = NULL;
    int least = 3; /* two typing errors are a near miss, three are another word */
    for (int i = 0; i < n; i++) {
        int d = distance(name, names[i]);
        bool shortened = strlen(name) >= 2 && !strncmp(names[i], name, strlen(name));
        if (shortened) d = 1;
        if (d < least) {
            least = d;
            best = names[i];
        }
    }
    return best;
}

/* ---- help ------------------------------------------------------------------------------------------------------ */

static void print_help(const opt_spec *spec) {
    if (docs_take(spec)) return;
    printf("usage: moeflux %s\n\n%s\n", spec->usage, spec->about);
    if (spec->n_defs) printf("\noptions:\n");
    for (int i = 0; i < spec->n_defs; i++) {
        const opt_def *d = &spec->defs[i];
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s", d->name, d->arg ? " " : "", d->arg ? d->arg : "");
        printf("  %-23s %s", left, d->help);
        if (d->letter) printf(" (also -%c)", d->letter);
        putchar('\n');
    }
    if (spec->examples) printf("\nexamples:\n%s", spec->examples);
}

static opt_result bad_usage(const opt_spec *spec) {
    fprintf(stderr, "usage: moeflux %s\n(moeflux %.*s --help says more)\n", spec->usage, (int)strcspn(spec->usage, " "),
            spec->usage);
    return OPT_BAD;
}

static opt_result unknown_option(const opt_spec *spec, const char *name) {
    const char *names[OPT_MAX_ROWS + 1];
    int n = 0;
    for (int i = 0; i < spec->n_defs; i++) names[n++] = spec->defs[i].name;
    names[n++] = "help";
    const char *near = opt_nearest(name, names, n), *hint = hint_option(name);
    if (hint)
        app_say("unknown option --%s; %s", name, hint);
    else if (near)
        app_say("unknown option --%s; did you mean --%s?", name, near);
    else
        app_say("unknown option --%s", name);
    return bad_usage(spec);
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

static opt_result bad_value(const opt_def *d, const char *text, const char *wanted) {
    app_say("--%s is \"%s\"; expected %s", d->name, text, wanted);
    return OPT_BAD;
}

static opt_result set_number(const opt_def *d, const char *text) {
    char wanted[96], *end;
    errno = 0;
    if (d->kind == OPT_REAL) {
        double v = strtod(text, &end);
        snprintf(wanted, sizeof wanted, "a number from %g to %g", d->min, d->max);
        if (end == text || *end || !isfinite(v) || v < d->min || v > d->max) return bad_value(d, text, wanted);
        *(double *)d->value = v;
        return OPT_DONE;
    }
    long long v = strtoll(text, &end, 10);
    snprintf(wanted, sizeof wanted, "a whole number from %.0f to %.0f%s", d->min, d->max,
             d->kind == OPT_COUNT ? ", as 4096, 64K or 1M" : "");
    if (d->kind == OPT_COUNT && end != text && *end && strchr("KkMm", *end) && llabs(v) <= 1 << 30)
        v *= strchr("Kk", *end++) ? 1024 : 1024 * 1024;
    if (end == text || *end || errno || (double)v < d->min || (double)v > d->max) return bad_value(d, text, wanted);
    *(int64_t *)d->value = v;
    return OPT_DONE;
}

static opt_result set_seed(const opt_def *d, const char *text) {
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (end == text || *end || errno || *text == '-') return bad_value(d, text, "a whole number from 0 to 2^64 - 1");
    *(uint64_t *)d->value = v;
    return OPT_DONE;
}

static opt_result set_bits(const opt_def *d, const char *text) {
    static const char *const names[] = {"keep", "2", "3", "4", "5", "6", "8"};
    for (size_t i = 0; i < MF__COUNT(names); i++)
        if (!strcmp(text, names[i])) {
            *(int64_t *)d->value = i ? atoi(names[i]) : 0;
            return OPT_DONE;
        }
    return bad_value(d, text, "keep, 2, 3, 4, 5, 6 or 8");
}

/* Powers of 1024: 6G is what a memory limit of 6G is. */
static opt_result set_size(const opt_def *d, const char *text) {
    static const char units[] = "KMGT";
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    const char *unit = *end ? strchr(units, *end == 'k' ? 'K' : *end) : NULL;
    if (unit && *end) {
        for (const char *u = units; u <= unit; u++) v *= 1024;
        end++;
        if (*end == 'i') end++;
        if (*end == 'B') end++;
    }
    bool fine = (v >= 1 && v <= 1e18) || (v == 0 && d->or_zero && !signbit(v));
    if (end == text || *end || errno || !fine)
        return bad_value(d, text, d->or_zero ? "a size like 6G, 800M or 1.5T, or 0" : "a size like 6G, 800M or 1.5T");
    *(int64_t *)d->value = (int64_t)v;
    return OPT_DONE;
}

static opt_result set_choice(const opt_def *d, const char *text) {
    char wanted[96] = "";
    for (int i = 0; d->choices[i]; i++) {
        if (!strcmp(text, d->choices[i])) {
            *(int *)d->value = i;
            return OPT_DONE;
        }
        size_t n = strlen(wanted);
        snprintf(wanted + n, sizeof wanted - n, "%s%s", i == 0 ? "" : d->choices[i + 1] ? ", " : " or ", d->choices[i]);
    }
    return bad_value(d, text, wanted);
}

static opt_result add_item(const opt_def *d, const char *text) {
    opt_list *list = d->value;
    if (list->n == APP_MAX_LIST) {
        app_say("--%s is given more than %d times", d->name, APP_MAX_LIST);
        return OPT_BAD;
    }
    list->items[list->n++] = text;
    return OPT_DONE;
}

static opt_result set_value(const opt_def *d, const char *text) {
    if (d->given) *d->given = true;
    switch (d->kind) {
    case OPT_FLAG: *(bool *)d->value = true; return OPT_DONE;
    case OPT_STRING:
    case OPT_WORD: *(const char **)d->value = text; return OPT_DONE;
    case OPT_SEED: return set_seed(d, text);
    case OPT_BITS: return set_bits(d, text);
    case OPT_SIZE: return set_size(d, text);
    case OPT_CHOICE: return set_choice(d, text);
    case OPT_LIST: return add_item(d, text);
    default: return set_number(d, text);
    }
}

/* ---- parsing --------------------------------------------------------------------------------------------------- */

static const opt_def *find(const opt_spec *spec, const char *name, size_t n) {
    for (int i = 0; i < spec->n_defs; i++)
        if (strlen(spec->defs[i].name) == n && !strncmp(spec->defs[i].name, name, n)) return &spec->defs[i];
    return NULL;
}

static bool is_choice(const opt_def *d, const char *text) {
    for (int i = 0; d->choices[i]; i++)
        if (!strcmp(text, d->choices[i])) return true;
    return false;
}

/* One argument that begins with "--", at argv[*i]; may take the next one too. */
static opt_result long_option(const opt_spec *spec, int argc, char **argv, int *i) {
    const char *name = argv[*i] + 2, *equals = strchr(name, '=');
    size_t n = equals ? (size_t)(equals - name) : strlen(name);
    if (n == 4 && !strncmp(name, "help", 4)) {
        print_help(spec);
        return OPT_HELP;
    }
    const opt_def *d = find(spec, name, n);
    if (!d) {
        char shown[MAX_NAME + 1];
        snprintf(shown, sizeof shown, "%.*s", (int)n, name);
        for (char *p = shown; *p; p++)
            if (*p == '_') *p = '-'; /* --top_k */
        return unknown_option(spec, shown);
    }
    if (d->kind == OPT_FLAG) {
        if (equals) {
            app_say("--%s takes no value", d->name);
            return OPT_BAD;
        }
        return set_value(d, NULL);
    }
    if (equals) return set_value(d, equals + 1);
    if (d->alone && (*i + 1 >= argc || !is_choice(d, argv[*i + 1]))) {
        *d->alone = true;
        return OPT_DONE;
    }
    if (*i + 1 >= argc) {
        app_say("--%s needs a value: --%s %s", d->name, d->name, d->arg ? d->arg : "VALUE");
        return OPT_BAD;
    }
    return set_value(d, argv[++*i]);
}

/* -n 5, -n5 or a flag; at argv[*i], may take the next one too. */
static opt_result short_option(const opt_spec *spec, int argc, char **argv, int *i) {
    const char *text = argv[*i];
    const opt_def *d = NULL;
    if (!strcmp(text, "-h")) {
        print_help(spec);
        return OPT_HELP;
    }
    for (int k = 0; k < spec->n_defs && !d; k++)
        if (spec->defs[k].letter && spec->defs[k].letter == text[1]) d = &spec->defs[k];
    const char *hint = !d || text[2] ? hint_option(text + 1) : NULL; /* -ngl of others is no -n */
    if (hint) {
        app_say("unknown option %s; %s", text, hint);
        return bad_usage(spec);
    }
    if (!d || (d->kind == OPT_FLAG && text[2])) {
        app_say("unknown option %s (most options have two dashes; -- ends them)", text);
        return bad_usage(spec);
    }
    if (d->kind == OPT_FLAG) return set_value(d, NULL);
    if (text[2]) return set_value(d, text + 2);
    if (*i + 1 >= argc) {
        app_say("-%c needs a value: -%c %s", d->letter, d->letter, d->arg ? d->arg : "VALUE");
        return OPT_BAD;
    }
    return set_value(d, argv[++*i]);
}

/* The rows, with those of groups in their places. */
static int flatten(const opt_spec *spec, opt_def rows[OPT_MAX_ROWS]) {
    int n = 0;
    for (int i = 0; i < spec->n_defs; i++) {
        opt_def of_group[OPT_MAX_ROWS];
        const opt_def *from = &spec->defs[i];
        int count = 1;
        if (from->kind == OPT_GROUP) {
            count = from->group(from->value, of_group);
            from = of_group;
        }
        for (int k = 0; k < count && n < OPT_MAX_ROWS; k++) {
            int same = 0;
            while (same < n && strcmp(rows[same].name, from[k].name)) same++;
            if (same == n) rows[n++] = from[k];
        }
    }
    if (n < OPT_MAX_ROWS)
        rows[n++] = (opt_def){.name = "quiet",
                              .letter = 'q',
                              .kind = OPT_FLAG,
                              .value = &app_quiet,
                              .help = "only results, warnings and errors: no progress, no closing lines"};
    return n;
}

static opt_result parse(const opt_spec *spec, int argc, char **argv, const char *words[OPT_MAX_WORDS]) {
    int n_words = 0;
    bool options = true;
    for (int i = 1; i < argc; i++) {
        opt_result r = OPT_DONE;
        if (options && !strcmp(argv[i], "--"))
            options = false;
        else if (options && !strncmp(argv[i], "--", 2))
            r = long_option(spec, argc, argv, &i);
        else if (options && argv[i][0] == '-' && argv[i][1])
            r = short_option(spec, argc, argv, &i);
        else if (n_words == spec->max_words) {
            app_say("one argument too many: \"%s\"", argv[i]);
            return bad_usage(spec);
        } else
            words[n_words++] = argv[i];
        if (r != OPT_DONE) return r;
    }
    for (int i = 0; i < spec->n_defs; i++) {
        const char *first = spec->defs[i].kind == OPT_WORD ? *(const char **)spec->defs[i].value : NULL;
        if (!first) continue;
        if (n_words == spec->max_words) {
            app_say("one argument too many: --%s is \"%s\", and there is also \"%s\"", spec->defs[i].name, first,
                    words[n_words - 1]);
            return bad_usage(spec);
        }
        memmove(words + 1, words, (size_t)n_words++ * sizeof *words);
        words[0] = first;
    }
    if (n_words < spec->min_words) {
        app_say("%d argument%s missing", spec->min_words - n_words, spec->min_words - n_words > 1 ? "s are" : " is");
        return bad_usage(spec);
    }
    return OPT_DONE;
}

opt_result opt_set(const opt_def *group, const char *name, const char *value) {
    opt_def rows[OPT_MAX_ROWS];
    opt_spec spec = {.defs = rows, .n_defs = group->group(group->value, rows)};
    const opt_def *d = find(&spec, name, strlen(name));
    if (d && d->kind != OPT_FLAG) return set_value(d, value);
    const char *hint = hint_option(name);
    app_say("%s cannot be set%s%s", name, hint ? "; " : "", hint ? hint : "");
    return OPT_BAD;
}

opt_result opt_parse(const opt_spec *spec, int argc, char **argv, const char *words[OPT_MAX_WORDS]) {
    opt_def rows[OPT_MAX_ROWS];
    opt_spec flat = *spec;
    flat.n_defs = flatten(spec, rows);
    flat.defs = rows;
    return parse(&flat, argc, argv, words);
}
