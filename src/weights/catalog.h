/* A catalogue of named tensors over mapped files, whatever the container: a safetensors checkpoint (one file or an
 * index of shards) or a native model directory. Views are borrowed: they live until the catalogue is closed. */
#ifndef MF_WEIGHTS_CATALOG_H
#define MF_WEIGHTS_CATALOG_H

#include "base/file.h"
#include "quant/type.h"

typedef struct mf__catalog mf__catalog;

/* One stored tensor, as the file has it. */
typedef struct mf__entry {
    const char *name;
    mf__type type; /* never AFFINE: an affine tensor is three entries */
    int n_dims;
    int64_t dims[MF_MAX_DIMS];
    const uint8_t *data; /* mapped bytes; any alignment */
    int64_t size;        /* bytes = product(dims) * element size */
    int file;            /* index for mf__catalog_file */
    int64_t offset;      /* of data in that file */
} mf__entry;

void mf__catalog_close(mf__catalog *cat); /* NULL is fine */
int64_t mf__catalog_count(const mf__catalog *cat);
const mf__entry *mf__catalog_at(const mf__catalog *cat, int64_t i);          /* sorted by name */
const mf__entry *mf__catalog_find(const mf__catalog *cat, const char *name); /* NULL when absent */
const char *mf__catalog_file(const mf__catalog *cat, int file);              /* path */
int mf__catalog_n_files(const mf__catalog *cat);
bool mf__catalog_is_file(const mf__catalog *cat, int file); /* false: bytes in memory */
/* Where in which file the byte at p lies; -1 when it is in none (bytes in memory, which are no file on a disk). For
 * readers that would rather not fault pages in: a mapped file that shrinks kills the process that touches it. */
int mf__catalog_where(const mf__catalog *cat, const void *p, int64_t *offset);

/* From now on a byte of these files that is gone reads as zero (see base/guard.h; nothing where that is not installed),
 * and cut, to be asked after every computation, says which file lost some; NULL: none. */
void mf__catalog_guard(mf__catalog *cat);
const char *mf__catalog_cut(const mf__catalog *cat);

/* Reads files of at least `least` bytes into memory where that can be had (mf__map_hold). */
void mf__catalog_hold(mf__catalog *cat, int64_t least, const mf__reading *told);

/* A catalogue of the same files under other names: derive, put what is wanted, seal. base must outlive it.
 *   put        the bytes of an entry of base; name, dims (same product) and type may be others
 *   put_bytes  bytes of its own; data is taken over (free()d at close, or at once when this fails) */
mf_status mf__catalog_derive(const mf__catalog *base, mf__catalog **out, mf_error *err);
mf_status mf__catalog_put(mf__catalog *cat, const mf__entry *entry, mf_error *err);
mf_status mf__catalog_put_bytes(mf__catalog *cat, const mf__entry *entry, void *data, mf_error *err);
mf_status mf__catalog_seal(mf__catalog *cat, mf_error *err); /* MF_E_FORMAT when two entries have the same name */

/* The logical tensor called name ("….q_proj.weight", "….A_log"): where NAME ends in ".weight", is U32 and has .scales
 * and .biases beside it, an AFFINE view with bits and group inferred from the shapes, given the logical n_cols
 * (0: unknown, then group is taken as 64 or, failing that, whatever makes the shapes agree).
 * F8_E4M3 with NAME_scale_inv, NAME_scale or X.scale beside it becomes F8_BLOCK, bytes with such scales of type U8
 * MXFP4; I32 called X_packed with X_scale beside it, AFFINE of 4 bits without biases. 1-D entries become n_rows 1; 3-D
 * ones n_planes. Anything above 3 dimensions is flattened into planes. MF_E_NOT_FOUND names the tensor; MF_E_MISMATCH
 * tells both shapes. */
mf_status mf__catalog_tensor(const mf__catalog *cat, const char *name, int64_t n_cols, mf__tensor *out, mf_error *err);

#endif
