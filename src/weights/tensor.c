/* From stored entries to the tensors a backend reads: plain views, and affine ones from three entries.
 *
 *   X.weight  U32 [..., rows, words]     codes, words = cols * bits / 32
 *   X.scales  BF16, F16 or F32 [..., rows, groups]
 *   X.biases  the same                   groups = cols / group
 *
 * Neither bits nor group is stored: with cols known the shapes give both. U8 scales without biases, one for 32 values
 * of 4 bits, are MXFP4. FP8 with a scale for each block, and 4-bit integers packed in I32, are put together here too.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/strbuf.h"
#include "quant/affine.h"
#include "weights/catalog_build.h"

#define WEIGHT ".weight"
#define PACKED "_packed"

/* The last axis is the columns, the one before it the rows; all others count planes. */
static mf__tensor plain_view(const mf__entry *e) {
    mf__tensor t = {.type = e->type, .n_planes = 1, .n_rows = 1, .n_cols = 1, .data = e->data};
    if (e->n_dims >= 1) t.n_cols = e->dims[e->n_dims - 1];
    if (e->n_dims >= 2) t.n_rows = e->dims[e->n_dims - 2];
    for (int i = 0; i + 2 < e->n_dims; i++) t.n_planes *= e->dims[i];
    return t;
}

/* The entry that has `suffix` in place of ".weight". */
static const mf__entry *sibling(const mf__catalog *cat, const mf__entry *weight, const char *suffix) {
    char name[MF__NAME_MAX + 16];
    int stem = (int)(strlen(weight->name) - strlen(WEIGHT));
    snprintf(name, sizeof name, "%.*s%s", stem, weight->name, suffix);
    return mf__catalog_find(cat, name);
}

/* Same axes but the last, which may differ when last_too is false. */
static bool same_shape(const mf__entry *a, const mf__entry *b, bool last_too) {
    if (a->n_dims != b->n_dims || a->n_dims == 0) return false;
    for (int i = 0; i < a->n_dims - !last_too; i++)
        if (a->dims[i] != b->dims[i]) return false;
    return true;
}

/* bits and group from words, groups and (when not 0) the number of columns. False when nothing allowed fits. */
static bool infer(int64_t words, int64_t groups, int64_t n_cols, int *bits, int *group) {
    static const int guesses[] = {64, 32, 128};
    if (words < 1 || groups < 1) return false;
    for (size_t i = 0; i < MF__COUNT(guesses); i++) {
        int64_t cols = n_cols ? n_cols : guesses[i] * groups;
        if (cols % groups != 0 || 32 * words % cols != 0) continue;
        int64_t b = 32 * words / cols, g = cols / groups;
        if (b < 2 || b > 8 || g < 32 || g > 128 || !mf__affine_bits_ok((int)b) || !mf__affine_group_ok((int)g))
            continue;
        *bits = (int)b;
        *group = (int)g;
        return true;
    }
    return false;
}

/* X.weight U32 [..., rows, cols / 8] with X.scales U8 [..., rows, cols / 32] */
static bool is_mxfp4(const mf__entry *weight, const mf__entry *scales) {
    return scales->type == MF_TYPE_U8 && same_shape(weight, scales, false) &&
           weight->dims[weight->n_dims - 1] == scales->dims[scales->n_dims - 1] * (MF_MXFP4_GROUP / 8);
}

/* X I8 or U8 [..., rows, cols / 2], two codes to a byte, low first, with scales U8 [..., rows, cols / 32] */
static bool is_packed_mxfp4(const mf__entry *e, const mf__entry *scales) {
    return (e->type == MF_TYPE_I8 || e->type == MF_TYPE_U8) && scales->type == MF_TYPE_U8 &&
           same_shape(e, scales, false) &&
           e->dims[e->n_dims - 1] == scales->dims[scales->n_dims - 1] * (MF_MXFP4_GROUP / 2);
}

static mf_status mxfp4_view(const mf__catalog *cat, const mf__entry *weight, const mf__entry *scales, int64_t n_cols,
                            mf__tensor *out, mf_error *err) {
    *out = plain_view(weight);
    out->type = MF_TYPE_MXFP4;
    out->n_cols = MF_MXFP4_GROUP * scales->dims[scales->n_dims - 1];
    out->bits = 4;
    out->group = MF_MXFP4_GROUP;
    out->scale_type = MF_TYPE_U8;
    out->scales = scales->data;
    if (!n_cols || n_cols == out->n_cols) return MF_OK;
    return mf__fail(err, MF_E_MISMATCH, "%s: tensor %s is MXFP4 with rows of %" PRId64 ", expected rows of %" PRId64,
                    mf__catalog_file(cat, weight->file), weight->name, out->n_cols, n_cols);
}

static mf_status affine_view(const mf__catalog *cat, const mf__entry *weight, int64_t n_cols, mf__tensor *out,
                             mf_error *err) {
    const char *file = mf__catalog_file(cat, weight->file);
    const mf__entry *scales = sibling(cat, weight, ".scales"), *biases = sibling(cat, weight, ".biases");
    char w[MF__SHAPE_TEXT], s[MF__SHAPE_TEXT], b[MF__SHAPE_TEXT];
    mf__entry_shape(weight, w);
    if (!scales)
        return mf__fail(err, MF_E_NOT_FOUND,
                        "%s: tensor %s holds quantized codes (U32 %s) but there are no .scales beside it", file,
                        weight->name, w);
    if (!biases && is_mxfp4(weight, scales)) return mxfp4_view(cat, weight, scales, n_cols, out, err);
    if (!biases)
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "%s: tensor %s has .scales (%s) but no .biases: affine quantization and mxfp4 are read, not "
                        "mxfp8 or nvfp4",
                        file, weight->name, mf__type_name(scales->type));
    if (!mf__type_is_float(scales->type) || scales->type != biases->type)
        return mf__fail(
            err, MF_E_MISMATCH,
            "%s: tensor %s has scales of type %s and biases of type %s, expected the same of BF16, F16, F32", file,
            weight->name, mf__type_name(scales->type), mf__type_name(biases->type));
    int bits, group;
    if (!same_shape(scales, biases, true) || !same_shape(weight, scales, false) ||
        !infer(weight->dims[weight->n_dims - 1], scales->dims[scales->n_dims - 1], n_cols, &bits, &group))
        return mf__fail(err, MF_E_MISMATCH,
                        "%s: tensor %s: codes %s, scales %s and biases %s are no affine matrix of %" PRId64
                        " columns (0: any) with 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64 or 128",
                        file, weight->name, w, mf__entry_shape(scales, s), mf__entry_shape(biases, b), n_cols);
    *out = plain_view(weight);
    out->type = MF_TYPE_AFFINE;
    out->n_cols = group * scales->dims[scales->n_dims - 1];
    out->bits = bits;
    out->group = group;
    out->scale_type = scales->type;
    out->scales = scales->data;
    out->biases = biases->data;
    return MF_OK;
}

/* The block size along an axis of n values in n_blocks blocks. Powers of two are never in doubt: two of them give the
 * same number of blocks only when that is one, which means the same. 0 when none fits. */
static int block_size(int64_t n, int64_t n_blocks) {
    static const int sizes[] = {128, 64, 32, 16, 256, 1};
    for (size_t i = 0; i < MF__COUNT(sizes); i++)
        if ((n + sizes[i] - 1) / sizes[i] == n_blocks) return sizes[i];
    return 0;
}

/* X F8_E4M3 [..., rows, cols] with scales [..., blocks of rows, blocks of cols], of a plain type or E8M0 (U8); the
 * value is the code times the scale of its block, whatever "inv" says. */
static mf_status f8_block_view(const mf__catalog *cat, const mf__entry *e, const mf__entry *scales, mf__tensor *out,
                               mf_error *err) {
    char w[MF__SHAPE_TEXT], s[MF__SHAPE_TEXT];
    int n = e->n_dims;
    bool ok = n >= 2 && scales->n_dims == n && (mf__type_is_float(scales->type) || scales->type == MF_TYPE_U8);
    for (int i = 0; ok && i < n - 2; i++) ok = e->dims[i] == scales->dims[i];
    *out = plain_view(e);
    out->type = MF_TYPE_F8_BLOCK;
    out->bits = 8;
    out->block_rows = ok ? block_size(e->dims[n - 2], scales->dims[n - 2]) : 0;
    out->group = ok ? block_size(e->dims[n - 1], scales->dims[n - 1]) : 0;
    out->scale_type = scales->type;
    out->scales = scales->data;
    if (out->block_rows && out->group) return MF_OK;
    return mf__fail(err, MF_E_MISMATCH,
                    "%s: tensor %s %s with scales %s of type %s: these are no blocks of 16, 32, 64, 128 or 256",
                    mf__catalog_file(cat, e->file), e->name, mf__entry_shape(e, w), mf__entry_shape(scales, s),
                    mf__type_name(scales->type));
}

/* X_packed I32 [rows, cols / 8], X_scale [rows, groups], X_shape: 4-bit codes around 8, lowest bits first. What
 * compressed-tensors calls "pack-quantized", symmetric. The codes are those of an affine tensor with no biases. */
static mf_status packed_view(const mf__catalog *cat, const mf__entry *e, int64_t n_cols, mf__tensor *out,
                             mf_error *err) {
    char name[MF__NAME_MAX + 16], w[MF__SHAPE_TEXT], s[MF__SHAPE_TEXT] = "missing";
    snprintf(name, sizeof name, "%.*s_scale", (int)(strlen(e->name) - strlen(PACKED)), e->name);
    const mf__entry *scales = mf__catalog_find(cat, name);
    int64_t groups = scales && scales->n_dims == 2 ? scales->dims[1] : 0;
    int64_t cols = e->n_dims == 2 ? e->dims[1] * 8 : 0, group = groups > 0 ? cols / groups : 0;
    bool ok = groups > 0 && scales->dims[0] == e->dims[0] && cols % groups == 0 && group <= 128 &&
              mf__affine_group_ok((int)group) && mf__type_is_float(scales->type) && (!n_cols || n_cols == cols);
    if (!ok)
        return mf__fail(err, MF_E_MISMATCH,
                        "%s: tensor %s %s with scales %s is no 4-bit matrix of %" PRId64
                        " columns (0: any) in groups of 32, 64 or 128",
                        mf__catalog_file(cat, e->file), e->name, mf__entry_shape(e, w),
                        scales ? mf__entry_shape(scales, s) : s, n_cols);
    *out = (mf__tensor){.type = MF_TYPE_AFFINE,
                        .n_planes = 1,
                        .n_rows = e->dims[0],
                        .n_cols = cols,
                        .data = e->data,
                        .bits = 4,
                        .group = (int)group,
                        .scale_type = scales->type,
                        .scales = scales->data};
    return MF_OK;
}

/* X.weight_scale_inv, X.weight_scale or (DeepSeek-V4) X.scale; NULL: none. */
static const mf__entry *scales_of(const mf__catalog *cat, const mf__entry *e) {
    static const char *const ends[] = {"_scale_inv", "_scale"};
    const mf__entry *found = NULL;
    char name[MF__NAME_MAX + 16];
    if (e->type != MF_TYPE_F8_E4M3 && e->type != MF_TYPE_I8 && e->type != MF_TYPE_U8) return NULL;
    for (size_t i = 0; i < MF__COUNT(ends) && !found; i++) {
        snprintf(name, sizeof name, "%s%s", e->name, ends[i]);
        found = mf__catalog_find(cat, name);
    }
    return found || !mf__text_ends_with(e->name, WEIGHT) ? found : sibling(cat, e, ".scale");
}

mf_status mf__catalog_tensor(const mf__catalog *cat, const char *name, int64_t n_cols, mf__tensor *out, mf_error *err) {
    const mf__entry *e = mf__catalog_find(cat, name);
    if (!e) {
        int n = mf__catalog_n_files(cat);
        return mf__fail(err, MF_E_NOT_FOUND, "tensor %s is missing: not among the %" PRId64 " tensors of %s%s", name,
                        mf__catalog_count(cat), n > 0 ? mf__catalog_file(cat, 0) : "no file",
                        n > 1 ? " and the files beside it" : "");
    }
    if (e->type == MF_TYPE_U32 && mf__text_ends_with(name, WEIGHT)) return affine_view(cat, e, n_cols, out, err);
    if (e->type == MF_TYPE_I32 && mf__text_ends_with(name, PACKED)) return packed_view(cat, e, n_cols, out, err);
    mf__tensor t = plain_view(e);
    const mf__entry *scales = scales_of(cat, e);
    if (scales && e->type == MF_TYPE_F8_E4M3) MF__TRY(f8_block_view(cat, e, scales, &t, err));
    if (scales && is_packed_mxfp4(e, scales)) return mxfp4_view(cat, e, scales, n_cols, out, err);
    if (n_cols && t.n_cols != n_cols) {
        char shape[MF__SHAPE_TEXT];
        return mf__fail(err, MF_E_MISMATCH, "%s: tensor %s has the shape %s, expected rows of %" PRId64,
                        mf__catalog_file(cat, e->file), name, mf__entry_shape(e, shape), n_cols);
    }
    *out = t;
    return MF_OK;
}
