/* What the reader and the writer of native directories share. Private to weights/, but for convert/shard.c, which
 * copies a directory piece by piece, and convert/verify_against.c, which compares descriptions. */
#ifndef MF_WEIGHTS_NATIVE_BUILD_H
#define MF_WEIGHTS_NATIVE_BUILD_H

#include "weights/catalog_build.h"
#include "weights/native.h"

#define MF__MANIFEST_NAME "model_weights.json"
#define MF__TRUNK_NAME "model_weights.bin"
#define MF__CONFIG_NAME "config.json"
#define MF__EXPERTS_DIR "packed_experts"
#define MF__SECOND_DIR "packed_experts_2bit"
#define MF__EXPERT_FILE "layer_%02d.bin"
#define MF__PARTIAL ".partial"
/* A file the writer keeps in DIR.partial: locked while it works, listing the extra files it made. It goes last, so a
 * finished directory may still have one; it means nothing there. */
#define MF__MARKER_NAME ".moeflux-partial"
/* Beside it, when the work can be resumed: the finished parts. */
#define MF__JOURNAL_NAME ".moeflux-journal"

#define MF__TRUNK_ALIGN 64
#define MF__LAYERS_MAX 10000
#define MF__EXPERTS_MAX 65536

/* Reads a manifest into out, whose catalogue is there and has the trunk as file 0. Does not clean up after a failure.
 */
mf_status mf__manifest_load(const char *name, const char *json, size_t json_size, mf__native *out, mf_error *err);

/* The manifest's "experts" object and back. from_json checks everything that mf__expert_layout_check does. */
mf_status mf__experts_from_json(const char *where, const json_t *obj, mf__expert_layout *layout, int *n_experts,
                                mf_error *err);
json_t *mf__experts_to_json(const mf__expert_layout *layout, int n_experts); /* NULL when out of memory */

/* Removes a DIR.partial that a killed conversion left; MF_E_EXISTS, and nothing touched, when it is anything else. */
mf_status mf__partial_remove(const char *partial, mf_error *err);
/* Temporary files of atomic replaces that a kill cut short. For whoever goes on in the directory and holds its lock. */
void mf__partial_sweep(const char *partial);

/* A finished DIR.partial becomes DIR: everything in it is on the disk before it has that name (the files are synced by
 * whoever wrote them). settle: what it was made with goes, and the name is on the disk. */
mf_status mf__partial_publish(const char *partial, const char *dir, mf_error *err);
mf_status mf__published_settle(const char *dir, mf_error *err);

/* path without the slashes at its end ("/" stays); malloc'd, NULL when out of memory. */
char *mf__path_trim(const char *path);

#endif
