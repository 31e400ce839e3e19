/* Tokenizer patterns, first half: reading a regular expression in the syntax that tokenizer.json uses (Oniguruma's).
 *
 * What a pattern distinguishes is sets of characters: literals, classes, \p{...}. Reading one replaces each of them by
 * a reference to a set of code points, so that splitter.c can give every code point a class of one byte and let PCRE2
 * match bytes: no Unicode table but ours is involved, and no wide character class slows the matching. */
#ifndef MF_TEXT_PATTERN_H
#define MF_TEXT_PATTERN_H

#include "base/strbuf.h"
#include "text/unicode.h"

#define MF__PATTERN_MAX_SETS 256
#define MF__PATTERN_MAX_BYTES 65536

/* The distinct sets of all patterns of a tokenizer. */
typedef struct mf__pattern_sets {
    mf__uset sets[MF__PATTERN_MAX_SETS];
    int n;
} mf__pattern_sets;

void mf__pattern_sets_free(mf__pattern_sets *sets);

/* In the text that mf__pattern_read makes, this byte and the next one (the set's index) stand for one character of a
 * set; everything else is PCRE2 syntax in ASCII. */
#define MF__PATTERN_SET '\x01'

/* literal: the pattern is plain text. `where` begins error texts. Syntax that would mean something else to PCRE2, or
 * that has no meaning over classes (\b, back references, ^, $), is MF_E_UNSUPPORTED. */
mf_status mf__pattern_read(const char *where, const char *pattern, size_t size, bool literal, mf__pattern_sets *sets,
                           mf__strbuf *out, mf_error *err);

#endif
