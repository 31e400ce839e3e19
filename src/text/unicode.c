/* Sets of code points as sorted ranges, and Unicode properties by name. */
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>

/* ---- sets ------------------------------------------------------------------------------------------------------ */

void mf__uset_free(mf__uset *set) {
    free(set->ranges);
    *set = (mf__uset){0};
}

static int compare_ranges(const void *a, const void *b) {
    const mf__range *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Restores the invariant after ranges were appended. */
static void tidy(mf__uset *set) {
    qsort(set->ranges, (size_t)set->n, sizeof *set->ranges, compare_ranges);
    int n = 0;
    for (int i = 0; i < set->n; i++) {
        mf__range r = set->ranges[i];
        if (n && r.first <= set->ranges[n - 1].last + 1) {
            if (r.last > set->ranges[n - 1].last) set->ranges[n - 1].last = r.last;
        } else {
            set->ranges[n++] = r;
        }
    }
    set->n = n;
}

static mf_status append(mf__uset *set, uint32_t first, uint32_t last, mf_error *err) {
    if (set->n == set->capacity) {
        int capacity = set->capacity ? set->capacity * 2 : 8;
        mf__range *ranges = realloc(set->ranges, (size_t)capacity * sizeof *ranges);
        if (!ranges) return mf__fail(err, MF_E_NOMEM, "no memory for a set of %d character ranges", capacity);
        set->ranges = ranges;
        set->capacity = capacity;
    }
    set->ranges[set->n++] = (mf__range){first, last};
    return MF_OK;
}

mf_status mf__uset_add(mf__uset *set, uint32_t first, uint32_t last, mf_error *err) {
    bool in_order = set->n == 0 || first > set->ranges[set->n - 1].last + 1;
    MF__TRY(append(set, first, last, err));
    if (!in_order) tidy(set);
    return MF_OK;
}

static mf_status add_ranges(mf__uset *set, const mf__range *ranges, int n, mf_error *err) {
    for (int i = 0; i < n; i++) MF__TRY(append(set, ranges[i].first, ranges[i].last, err));
    tidy(set);
    return MF_OK;
}

mf_status mf__uset_union(mf__uset *set, const mf__uset *other, mf_error *err) {
    return other->n ? add_ranges(set, other->ranges, other->n, err) : MF_OK;
}

mf_status mf__uset_invert(mf__uset *set, mf_error *err) {
    mf__uset out = {0};
    uint32_t next = 0;
    for (int i = 0; i <= set->n; i++) {
        uint32_t stop = i < set->n ? set->ranges[i].first : MF__UNICODE_END;
        if (stop > next) {
            mf_status status = append(&out, next, stop - 1, err);
            if (status != MF_OK) return mf__uset_free(&out), status;
        }
        if (i < set->n) next = set->ranges[i].last + 1;
    }
    mf__uset_free(set);
    *set = out;
    return MF_OK;
}

mf_status mf__uset_intersect(mf__uset *set, const mf__uset *other, mf_error *err) {
    mf__uset out = {0};
    for (int i = 0, j = 0; i < set->n && j < other->n;) {
        mf__range a = set->ranges[i], b = other->ranges[j];
        uint32_t first = a.first > b.first ? a.first : b.first, last = a.last < b.last ? a.last : b.last;
        if (first <= last) {
            mf_status status = append(&out, first, last, err);
            if (status != MF_OK) return mf__uset_free(&out), status;
        }
        if (a.last < b.last)
            i++;
        else
            j++;
    }
    mf__uset_free(set);
    *set = out;
    return MF_OK;
}

bool mf__ranges_have(const mf__range *ranges, int n, uint32_t c) {
    int lo = 0, hi = n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (c > ranges[mid].last)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && c >= ranges[lo].first;
}

bool mf__uset_has(const mf__uset *set, uint32_t c) {
    return mf__ranges_have(set->ranges, set->n, c);
}

mf_status mf__uset_close_case(mf__uset *set, mf_error *err) {
    mf__uset folded = {0}, more = {0};
    mf_status status = mf__uset_union(&folded, set, err);
    for (int i = 0; status == MF_OK && i < mf__unicode_n_folds; i++)
        if (mf__uset_has(set, mf__unicode_folds[i].first))
            status = mf__uset_add(&folded, mf__unicode_folds[i].last, mf__unicode_folds[i].last, err);
    for (int i = 0; status == MF_OK && i < mf__unicode_n_folds; i++)
        if (mf__uset_has(&folded, mf__unicode_folds[i].last))
            status = mf__uset_add(&more, mf__unicode_folds[i].first, mf__unicode_folds[i].first, err);
    if (status == MF_OK) status = mf__uset_union(set, &folded, err);
    if (status == MF_OK) status = mf__uset_union(set, &more, err);
    mf__uset_free(&folded);
    mf__uset_free(&more);
    return status;
}

/* ---- properties ------------------------------------------------------------------------------------------------ */

/* Compares names without case, spaces, '-' and '_'. */
static bool same_name(const char *a, size_t n, const char *b) {
    size_t i = 0;
    for (;;) {
        while (i < n && (a[i] == ' ' || a[i] == '-' || a[i] == '_')) i++;
        while (*b == ' ' || *b == '-' || *b == '_') b++;
        if (i == n || !*b) return i == n && !*b;
        char x = a[i], y = *b;
        if (x >= 'A' && x <= 'Z') x += 'a' - 'A';
        if (y >= 'A' && y <= 'Z') y += 'a' - 'A';
        if (x != y) return false;
        i++, b++;
    }
}

static mf_status add_categories(mf__uset *set, const char *prefix, mf_error *err) {
    for (int i = 0; i < mf__unicode_n_category_runs; i++) {
        const char *name = mf__unicode_category_names[mf__unicode_category_runs[i] & 0xFF];
        if (name[0] != prefix[0] || (prefix[1] && name[1] != prefix[1])) continue;
        uint32_t first = mf__unicode_category_runs[i] >> 8;
        uint32_t end = i + 1 < mf__unicode_n_category_runs ? mf__unicode_category_runs[i + 1] >> 8 : MF__UNICODE_END;
        MF__TRY(append(set, first, end - 1, err));
    }
    tidy(set);
    return MF_OK;
}

mf_status mf__uset_add_property(mf__uset *set, const char *name, size_t n, bool *found, mf_error *err) {
    static const char *const majors[][2] = {{"L", "Letter"}, {"M", "Mark"},      {"N", "Number"}, {"P", "Punctuation"},
                                            {"S", "Symbol"}, {"Z", "Separator"}, {"C", "Other"}};
    *found = true;
    if (same_name(name, n, "Any")) return mf__uset_add(set, 0, MF__UNICODE_END - 1, err);
    if (same_name(name, n, "Space")) return mf__uset_add_property(set, "White_Space", 11, found, err);
    if (same_name(name, n, "Alpha")) return mf__uset_add_property(set, "Alphabetic", 10, found, err);
    if (same_name(name, n, "Digit")) return add_categories(set, "Nd", err);
    for (size_t i = 0; i < MF__COUNT(majors); i++)
        if (same_name(name, n, majors[i][0]) || same_name(name, n, majors[i][1]))
            return add_categories(set, majors[i][0], err);
    for (int i = 0; i < mf__unicode_n_categories; i++)
        if (same_name(name, n, mf__unicode_category_names[i]))
            return add_categories(set, mf__unicode_category_names[i], err);
    for (int i = 0; i < mf__unicode_n_properties; i++)
        if (same_name(name, n, mf__unicode_properties[i].name))
            return add_ranges(set, mf__unicode_properties[i].ranges, mf__unicode_properties[i].n_ranges, err);
    *found = false;
    return MF_OK;
}
