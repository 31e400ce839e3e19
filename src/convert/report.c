/* conversion.json:
 *
 *   {"options": {...},
 *    "tensors": {"model...q_proj.weight": {"from": "BF16", "bits": 8, "group": 64, "relative_rms": 0.003,
 *                "worst_group": {"relative_rms": 0.01, "row": 5, "column": 64}}, ...},
 *    "experts": {"0": {"gate": {"relative_rms": ..., "worst_group": {"expert": 3, ...}}, "up": ..., "down": ...}, ...},
 *    "experts_2bit": {...}}
 *
 * Only what was quantized is in it. Relative RMS: root of the summed squared differences over that of the values. */
#include "convert/report.h"

#include <stdio.h>
#include <string.h>

static json_t *loss_note(const mf__loss *l) {
    return json_pack("[f, f, f, I, I, I]", l->error, l->total, l->worst, (json_int_t)l->expert, (json_int_t)l->row,
                     (json_int_t)l->col);
}

static mf__loss loss_of(const json_t *note) {
    mf__loss l = {0};
    json_int_t expert = 0, row = 0, col = 0;
    json_unpack((json_t *)note, "[F, F, F, I, I, I]", &l.error, &l.total, &l.worst, &expert, &row, &col);
    l.expert = expert, l.row = row, l.col = col;
    return l;
}

json_t *mf__report_note_tensor(const char *name, const mf__tensor *from, const mf__tensor *to, const mf__loss *loss) {
    return json_pack("{s:s, s:s, s:i, s:i, s:i, s:o}", "tensor", name, "from", mf__type_name(from->type), "from_bits",
                     from->type == MF_TYPE_AFFINE ? from->bits : 0, "bits", to->bits, "group", to->group, "loss",
                     loss_note(loss));
}

json_t *mf__report_note_experts(int layer, const mf__loss loss[2][3], bool second) {
    json_t *parts = json_array();
    for (int s = 0; s <= second; s++)
        for (int i = 0; i < MF_PART_COUNT; i++) json_array_append_new(parts, loss_note(&loss[s][i]));
    return json_pack("{s:i, s:o}", "layer", layer, "loss", parts);
}

static json_t *figures(const mf__loss *l, bool expert) {
    json_t *worst =
        json_pack("{s:f, s:I, s:I}", "relative_rms", l->worst, "row", (json_int_t)l->row, "column", (json_int_t)l->col);
    if (worst && expert) json_object_set_new(worst, "expert", json_integer(l->expert));
    return json_pack("{s:f, s:o}", "relative_rms", mf__loss_rms(l), "worst_group", worst);
}

static void add_tensor(json_t *tensors, const json_t *note) {
    const char *name, *from;
    int from_bits, bits, group;
    json_t *loss;
    if (json_unpack((json_t *)note, "{s:s, s:s, s:i, s:i, s:i, s:o}", "tensor", &name, "from", &from, "from_bits",
                    &from_bits, "bits", &bits, "group", &group, "loss", &loss) != 0)
        return;
    mf__loss l = loss_of(loss);
    json_t *obj = figures(&l, false);
    if (!obj) return;
    json_object_set_new(obj, "from", json_string(from));
    if (from_bits) json_object_set_new(obj, "from_bits", json_integer(from_bits));
    json_object_set_new(obj, "bits", json_integer(bits));
    json_object_set_new(obj, "group", json_integer(group));
    json_object_set_new(tensors, name, obj);
}

/* Notes of one layer follow each other; their losses are added in that order. */
static json_t *experts_of(const mf__plan *plan, const json_t *notes, int set) {
    json_t *layers = json_object();
    mf__loss sum[MF_PART_COUNT] = {{0}};
    int layer = -1;
    size_t n = json_array_size(notes);
    for (size_t i = 0; i <= n; i++) {
        const json_t *note = json_array_get(notes, i), *number = json_object_get(note, "layer");
        if (i < n && !number) continue;
        int next = i < n ? (int)json_integer_value(number) : -1;
        if (next != layer && layer >= 0) {
            json_t *parts = json_object();
            char key[16];
            snprintf(key, sizeof key, "%d", layer);
            for (int p = 0; p < MF_PART_COUNT; p++)
                json_object_set_new(parts, mf__expert_part_name((mf__expert_part)p), figures(&sum[p], true));
            json_object_set_new(layers, key, parts);
            memset(sum, 0, sizeof sum);
        }
        layer = next;
        for (int p = 0; next >= 0 && p < MF_PART_COUNT; p++) {
            mf__loss l = loss_of(json_array_get(json_object_get(note, "loss"), (size_t)(set * MF_PART_COUNT + p)));
            mf__loss_add(&sum[p], &l);
        }
    }
    (void)plan;
    return layers;
}

json_t *mf__report_make(const mf__plan *plan, const json_t *notes) {
    json_t *tensors = json_object(), *root = json_object();
    for (size_t i = 0; i < json_array_size(notes); i++)
        if (json_object_get(json_array_get(notes, i), "tensor")) add_tensor(tensors, json_array_get(notes, i));
    if (!root || json_object_set_new(root, "options", mf__plan_options_json(plan->opt)) != 0 ||
        json_object_set_new(root, "tensors", tensors) != 0 ||
        json_object_set_new(root, "experts", experts_of(plan, notes, 0)) != 0 ||
        (plan->opt->also_bits && json_object_set_new(root, "experts_2bit", experts_of(plan, notes, 1)) != 0)) {
        json_decref(root);
        return NULL;
    }
    return root;
}
