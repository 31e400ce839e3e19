/* The Unicode 16 tables behind tokenizer patterns, and sets of code points built from them.
 *
 * The library's own tables would do for none of this: PCRE2's and utf8proc's versions differ from machine to machine
 * while token ids must not. */
#ifndef MF_TEXT_UNICODE_H
#define MF_TEXT_UNICODE_H

#include "base/status.h"
#include "text/utf8.h"

#define MF__UNICODE_END 0x110000u

typedef struct mf__range {
    uint32_t first, last; /* inclusive */
} mf__range;

typedef struct mf__unicode_property {
    const char *name;
    const mf__range *ranges;
    int n_ranges;
} mf__unicode_property;

/* unicode_data.c, generated. */
extern const char mf__unicode_category_names[][3];
extern const int mf__unicode_n_categories;
extern const uint32_t mf__unicode_category_runs[]; /* first code point << 8 | category, ascending */
extern const int mf__unicode_n_category_runs;
extern const mf__unicode_property mf__unicode_properties[];
extern const int mf__unicode_n_properties;
extern const mf__range mf__unicode_folds[]; /* first: code point, last: its simple case folding */
extern const int mf__unicode_n_folds;
extern const mf__range *const mf__unicode_nfc_touched;
extern const int mf__unicode_n_nfc_touched;

/* A set of code points: ascending, disjoint, not adjacent ranges. Zero-initialise; free with mf__uset_free. */
typedef struct mf__uset {
    mf__range *ranges;
    int n, capacity;
} mf__uset;

void mf__uset_free(mf__uset *set);
mf_status mf__uset_add(mf__uset *set, uint32_t first, uint32_t last, mf_error *err); /* any order, overlaps are fine */
mf_status mf__uset_union(mf__uset *set, const mf__uset *other, mf_error *err);
mf_status mf__uset_intersect(mf__uset *set, const mf__uset *other, mf_error *err);
mf_status mf__uset_invert(mf__uset *set, mf_error *err);
mf_status mf__uset_close_case(mf__uset *set, mf_error *err); /* adds whatever folds to the folding of a member */
bool mf__uset_has(const mf__uset *set, uint32_t c);

/* Adds the characters of \p{name}: a general category ("L", "Lu", "Letter"), a script or a binary property.
 * Case, spaces, '-' and '_' in names do not matter. *found is false for a name that is not known. */
mf_status mf__uset_add_property(mf__uset *set, const char *name, size_t n, bool *found, mf_error *err);

bool mf__ranges_have(const mf__range *ranges, int n, uint32_t c); /* binary search */

#endif
