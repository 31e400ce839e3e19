/* Where the files of experts are: in the model's own directory, or in others that hold copies of some layers. */
#include "base/file.h"
#include "engine/internal.h"

/* DIR/layer_NN.bin or DIR/packed_experts/layer_NN.bin, in the arena; *out is NULL when there is neither. */
static mf_status layer_path(mf_model *m, const char *dir, int layer, char **out, mf_error *err) {
    static const char *const below[] = {"", "packed_experts/"};
    for (size_t i = 0; i < MF__COUNT(below); i++) {
        *out = mf__arena_printf(&m->arena, "%s/%slayer_%02d.bin", dir, below[i], layer);
        if (!*out) return mf__fail(err, MF_E_NOMEM, "no memory for a path");
        if (mf__path_exists(*out)) return MF_OK;
    }
    *out = NULL;
    return MF_OK;
}

/* files[d * n_layers + l]. The model's own directory comes last, for the layers that no named directory has. */
mf_status mf__expert_files_find(mf_model *m, const mf_model_options *opt, const char ***out, mf_error *err) {
    int n_layers = m->bp.config.n_layers, n_dirs = opt->n_experts_dirs;
    const char **files = mf__arena_array(&m->arena, (size_t)(n_dirs + 1) * (size_t)n_layers, sizeof *files);
    if (!files) return mf__fail(err, MF_E_NOMEM, "no memory for %d expert files", n_layers);
    for (int d = 0; d < n_dirs; d++) {
        bool any = false;
        if (!opt->experts_dirs || !opt->experts_dirs[d])
            return mf__fail(err, MF_E_INVALID, "experts directory %d of %d is NULL", d, n_dirs);
        for (int l = 0; l < n_layers; l++) {
            char *path;
            MF__TRY(layer_path(m, opt->experts_dirs[d], l, &path, err));
            files[d * n_layers + l] = path;
            any = any || path;
        }
        if (!any)
            return mf__fail(err, MF_E_NOT_FOUND, "%s has no expert files (layer_00.bin ... or packed_experts/)",
                            opt->experts_dirs[d]);
    }
    for (int l = 0; l < n_layers; l++) {
        bool found = false;
        for (int d = 0; d < n_dirs; d++) found = found || files[d * n_layers + l];
        if (!found) files[n_dirs * n_layers + l] = m->native.expert_files[l];
        if (!found && !m->native.expert_files[l] && m->bp.kinds[m->bp.kind_of[l]].experts)
            return mf__fail(err, MF_E_NOT_FOUND, "%s/packed_experts/layer_%02d.bin is missing", m->native.dir, l);
    }
    *out = files;
    return MF_OK;
}
