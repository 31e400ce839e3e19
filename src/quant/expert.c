/* The blob of one routed expert: gate, up and down, each as data, scales, biases. */
#include "quant/expert.h"

#include "quant/affine.h"

/* Far above any real expert, far below what could overflow in the products below. */
#define MAX_DIM ((int64_t)1 << 28)
#define MAX_STRIDE ((int64_t)1 << 46)
#define MAX_BLOCK (1 << 16)
#define BIAS_ALIGN 64

const char *mf__expert_part_name(mf__expert_part part) {
    static const char *const names[MF_PART_COUNT] = {"gate", "up", "down"};
    return (unsigned)part < MF_PART_COUNT ? names[part] : "?";
}

/* Bytes of the three pieces of a part; 0 for those it does not have. */
typedef struct sizes {
    int64_t data, scales, biases;
} sizes;

static sizes part_sizes(const mf__expert_layout *layout, int i) {
    mf__tensor view = mf__expert_view(layout, (mf__expert_part)i, NULL);
    return (sizes){.data = view.n_rows * mf__tensor_row_bytes(&view),
                   .scales = mf__tensor_scale_rows(&view) * mf__tensor_scale_bytes(&view),
                   .biases = view.n_rows * mf__tensor_bias_bytes(&view)};
}

static int64_t bias_bytes(const mf__expert_layout *layout, int i) {
    return layout->part[i].n_rows * (int64_t)sizeof(float);
}

static mf_status check_part(const mf__expert_layout *layout, int i, mf_status status, mf_error *err) {
    const char *name = mf__expert_part_name((mf__expert_part)i);
    mf__type type = layout->part[i].type, scale_type = layout->part[i].scale_type;
    int64_t rows = layout->part[i].n_rows, cols = layout->part[i].n_cols;
    int bits = layout->part[i].bits, group = layout->part[i].group;
    if (rows < 1 || rows > MAX_DIM || cols < 1 || cols > MAX_DIM)
        return mf__fail(err, status, "expert part %s: shape [%lld, %lld] is not within 1 ... %lld", name,
                        (long long)rows, (long long)cols, (long long)MAX_DIM);
    if (type == MF_TYPE_MXFP4) {
        if (cols % MF_MXFP4_GROUP == 0 && group == MF_MXFP4_GROUP && scale_type == MF_TYPE_U8) return MF_OK;
        return mf__fail(err, status,
                        "expert part %s: MXFP4 of %lld columns in groups of %d with scales of type %s, expected groups "
                        "of %d with U8",
                        name, (long long)cols, group, mf__type_name(scale_type), MF_MXFP4_GROUP);
    }
    if (type == MF_TYPE_F8_BLOCK) {
        int block_rows = layout->part[i].block_rows;
        if (group > 0 && group <= MAX_BLOCK && block_rows > 0 && block_rows <= MAX_BLOCK &&
            mf__type_is_float(scale_type))
            return MF_OK;
        return mf__fail(err, status,
                        "expert part %s: F8 blocks of %d x %d with scales of type %s, expected 1 to %d rows and "
                        "columns, and BF16, F16 or F32",
                        name, block_rows, group, mf__type_name(scale_type), MAX_BLOCK);
    }
    if (type != MF_TYPE_AFFINE) {
        if (mf__type_is_float(type)) return MF_OK;
        return mf__fail(err, status, "expert part %s: type %s, expected AFFINE, MXFP4, F8_BLOCK, BF16, F16 or F32",
                        name, mf__type_name(type));
    }
    if (!mf__affine_bits_ok(bits))
        return mf__fail(err, status, "expert part %s: %d bits, expected 2, 3, 4, 5, 6 or 8", name, bits);
    if (!mf__affine_group_ok(group))
        return mf__fail(err, status, "expert part %s: groups of %d, expected 32, 64 or 128", name, group);
    if (cols % group != 0)
        return mf__fail(err, status, "expert part %s: %lld columns are not a multiple of the group size %d", name,
                        (long long)cols, group);
    if (!mf__type_is_float(scale_type))
        return mf__fail(err, status, "expert part %s: scales of type %s, expected BF16, F16 or F32", name,
                        mf__type_name(scale_type));
    return MF_OK;
}

mf_status mf__expert_layout_pack(mf__expert_layout *layout, int64_t align, mf_error *err) {
    if (align < 1) return mf__fail(err, MF_E_INVALID, "expert alignment %lld, expected 1 or more", (long long)align);
    int64_t at = 0;
    for (int i = 0; i < MF_PART_COUNT; i++) {
        MF__TRY(check_part(layout, i, MF_E_INVALID, err));
        sizes size = part_sizes(layout, i);
        layout->part[i].data_off = at;
        layout->part[i].scales_off = at + size.data;
        layout->part[i].biases_off = at + size.data + size.scales;
        at += size.data + size.scales + size.biases;
    }
    for (int i = 0; i < MF_PART_COUNT; i++) {
        if (!layout->part[i].has_bias) continue;
        at = (at + BIAS_ALIGN - 1) / BIAS_ALIGN * BIAS_ALIGN;
        layout->part[i].bias_off = at;
        at += bias_bytes(layout, i);
    }
    layout->bytes = at;
    layout->stride = (at + align - 1) / align * align;
    return MF_OK;
}

static bool inside(int64_t off, int64_t size, int64_t total) {
    return off >= 0 && size <= total && off <= total - size;
}

mf_status mf__expert_layout_check(const mf__expert_layout *layout, mf_error *err) {
    if (layout->bytes < 1 || layout->stride < layout->bytes || layout->stride > MAX_STRIDE)
        return mf__fail(err, MF_E_FORMAT,
                        "experts of %lld bytes every %lld bytes: the stride is too small or too large",
                        (long long)layout->bytes, (long long)layout->stride);
    for (int i = 0; i < MF_PART_COUNT; i++) {
        MF__TRY(check_part(layout, i, MF_E_FORMAT, err));
        sizes size = part_sizes(layout, i);
        const char *name = mf__expert_part_name((mf__expert_part)i);
        if (!inside(layout->part[i].data_off, size.data, layout->bytes))
            return mf__fail(err, MF_E_FORMAT, "expert part %s: %lld bytes at %lld do not fit in an expert of %lld",
                            name, (long long)size.data, (long long)layout->part[i].data_off, (long long)layout->bytes);
        if ((size.scales > 0 && !inside(layout->part[i].scales_off, size.scales, layout->bytes)) ||
            (size.biases > 0 && !inside(layout->part[i].biases_off, size.biases, layout->bytes)))
            return mf__fail(
                err, MF_E_FORMAT,
                "expert part %s: scales at %lld and biases at %lld, %lld bytes each, do not fit in an expert "
                "of %lld",
                name, (long long)layout->part[i].scales_off, (long long)layout->part[i].biases_off,
                (long long)size.scales, (long long)layout->bytes);
        if (layout->part[i].has_bias &&
            (!inside(layout->part[i].bias_off, bias_bytes(layout, i), layout->bytes) ||
             layout->part[i].bias_off % (int64_t)sizeof(float) || layout->stride % (int64_t)sizeof(float)))
            return mf__fail(err, MF_E_FORMAT,
                            "expert part %s: the bias vector, %lld bytes at %lld, does not fit in an expert of %lld "
                            "every %lld bytes, or is not at a multiple of 4",
                            name, (long long)bias_bytes(layout, i), (long long)layout->part[i].bias_off,
                            (long long)layout->bytes, (long long)layout->stride);
    }
    return MF_OK;
}

mf__tensor mf__expert_view(const mf__expert_layout *layout, mf__expert_part part, const void *blob) {
    const uint8_t *base = blob;
    mf__tensor t = {.type = layout->part[part].type,
                    .n_planes = 1,
                    .n_rows = layout->part[part].n_rows,
                    .n_cols = layout->part[part].n_cols,
                    .data = base ? base + layout->part[part].data_off : NULL};
    if (!mf__type_has_scales(t.type)) return t;
    t.bits = layout->part[part].bits;
    t.group = layout->part[part].group;
    t.block_rows = layout->part[part].block_rows;
    t.scale_type = layout->part[part].scale_type;
    t.scales = base ? base + layout->part[part].scales_off : NULL;
    if (t.type == MF_TYPE_AFFINE) t.biases = base ? base + layout->part[part].biases_off : NULL;
    return t;
}

const float *mf__expert_bias(const mf__expert_layout *layout, mf__expert_part part, const void *blob) {
    return layout->part[part].has_bias ? (const float *)((const uint8_t *)blob + layout->part[part].bias_off) : NULL;
}
