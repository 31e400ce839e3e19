/* Patterns by sets of places: each part of a pattern is given the places in the text where it may begin and says where
 * it may end. No backtracking, no automaton: the pattern is read anew whenever a part is applied again. */
#include <stdlib.h>
#include <string.h>

#include "validate.h"

#define MAX_TEXT 4096

typedef struct places {
    bool at[MAX_TEXT + 1];
} places;

typedef struct matcher {
    const char *p; /* where in the pattern */
    unsigned text[MAX_TEXT];
    int n;
} matcher;

static unsigned next_char(const char **p) {
    const unsigned char *s = (const unsigned char *)*p;
    int n = s[0] < 0x80 ? 1 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    unsigned c = n == 1 ? s[0] : s[0] & (0xFFu >> (n + 1));
    for (int i = 1; i < n; i++) c = c << 6 | (s[i] & 0x3F);
    *p += n;
    return c;
}

static bool is_word(unsigned c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* A character behind a backslash, or a class of them: does c belong to it? *single: the one character it is. */
static bool escape_holds(unsigned e, unsigned c, unsigned *single) {
    *single = 0;
    if (e == 'd' || e == 'D') return (c >= '0' && c <= '9') == (e == 'd');
    if (e == 'w' || e == 'W') return is_word(c) == (e == 'w');
    *single = e == 'n' ? '\n' : e == 't' ? '\t' : e == 'r' ? '\r' : e;
    return c == *single;
}

static bool class_holds(const char **p, unsigned c) { /* behind the [ */
    bool inverted = **p == '^', found = false;
    for (*p += inverted; **p != ']';) {
        unsigned first = next_char(p), last;
        if (first == '\\') {
            found |= escape_holds(next_char(p), c, &first);
            if (!first) continue;
        }
        last = first;
        if (**p == '-' && (*p)[1] != ']') {
            ++*p;
            last = next_char(p);
        }
        found |= c >= first && c <= last;
    }
    ++*p;
    return found != inverted;
}

static bool one_holds(const char **p, unsigned c) { /* one character's worth of pattern */
    unsigned e = next_char(p), single;
    if (e == '[') return class_holds(p, c);
    if (e == '\\') return escape_holds(next_char(p), c, &single);
    if (e == '.') return c != '\n' && c != '\r' && c != 0x2028 && c != 0x2029;
    return c == e;
}

static void alternatives(matcher *m, const places *from, places *to);

/* Moves m->p behind one atom. */
static void atom(matcher *m, const places *from, places *to) {
    const char *start = m->p;
    memset(to, 0, sizeof *to);
    if (*start == '(') {
        m->p += strncmp(start, "(?:", 3) == 0 ? 3 : 1;
        alternatives(m, from, to);
        m->p++;
    } else if (*start == '^' || *start == '$') {
        int only = *start == '^' ? 0 : m->n;
        to->at[only] = from->at[only];
        m->p++;
    } else {
        one_holds(&m->p, 'x'); /* moves on, wherever it may begin */
        for (int i = 0; i < m->n; i++) {
            const char *p = start;
            if (from->at[i]) to->at[i + 1] = one_holds(&p, m->text[i]);
        }
    }
}

static void counts(const char **p, int *min, int *max) {
    *min = *max = 1;
    char c = **p;
    if (c == '?' || c == '*' || c == '+') {
        *min = c == '+';
        *max = c == '?' ? 1 : MAX_TEXT;
        ++*p;
    } else if (c == '{') {
        char *end;
        *min = *max = (int)strtol(*p + 1, &end, 10);
        if (*end == ',') *max = end[1] == '}' ? MAX_TEXT : (int)strtol(end + 1, &end, 10);
        *p = strchr(end, '}') + 1;
    }
}

static void sequence(matcher *m, const places *from, places *to) {
    places *now = malloc(3 * sizeof *now), *all = now + 1, *next = now + 2;
    if (!now) abort();
    *now = *from;
    while (*m->p && *m->p != '|' && *m->p != ')') {
        const char *start = m->p, *behind;
        int min, max;
        atom(m, now, next); /* once, to see what comes behind */
        behind = m->p;
        counts(&behind, &min, &max);
        memset(all, 0, sizeof *all);
        if (min == 0) *all = *now;
        bool more = true;
        for (int round = 1; round <= max && more; round++) {
            m->p = start;
            atom(m, now, next);
            more = false;
            for (int i = 0; i <= m->n; i++) { /* something new, or still below the minimum */
                more |= next->at[i] && (round < min || !all->at[i]);
                if (round >= min) all->at[i] |= next->at[i];
            }
            *now = *next;
        }
        *now = *all;
        m->p = behind;
    }
    *to = *now;
    free(now);
}

static void alternatives(matcher *m, const places *from, places *to) {
    places *one = malloc(sizeof *one);
    if (!one) abort();
    sequence(m, from, to);
    while (*m->p == '|') {
        m->p++;
        sequence(m, from, one);
        for (int i = 0; i <= m->n; i++) to->at[i] |= one->at[i];
    }
    free(one);
}

bool validate_pattern(const char *pattern, const char *text) {
    matcher *m = calloc(1, sizeof *m);
    places *all = calloc(2, sizeof *all), *ends = all + 1;
    bool found = false;
    if (!m || !all) abort();
    m->p = pattern;
    while (*text && m->n < MAX_TEXT) m->text[m->n++] = next_char(&text);
    for (int i = 0; i <= m->n; i++) all->at[i] = true;
    alternatives(m, all, ends);
    for (int i = 0; i <= m->n; i++) found |= ends->at[i];
    free(m);
    free(all);
    return found;
}
