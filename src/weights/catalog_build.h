/* Filling a catalogue: what the readers of safetensors and of native directories share. Private to weights/.
 *
 * create, add files, add entries, seal. A catalogue that was not sealed may only be closed. Both containers describe a
 * tensor by a JSON object with "dtype" and "shape" and add their own way of saying where the bytes are. */
#ifndef MF_WEIGHTS_CATALOG_BUILD_H
#define MF_WEIGHTS_CATALOG_BUILD_H

#include "base/file.h"
#include "base/json.h"
#include "weights/catalog.h"

/* Longer names are refused: real ones have fewer than 130 bytes, and an error must have room for a name. */
#define MF__NAME_MAX 255
/* More elements than any tensor has; below it, products with bits and group sizes cannot overflow. */
#define MF__ELEMENTS_MAX ((int64_t)1 << 50)

mf_status mf__catalog_create(mf__catalog **out, mf_error *err);
/* Maps a file, which the catalogue then owns; *index is its number. */
mf_status mf__catalog_add_file(mf__catalog *cat, const char *path, int *index, mf_error *err);
/* The same for bytes in memory, which stay the caller's and must outlive the catalogue. */
mf_status mf__catalog_add_bytes(mf__catalog *cat, const char *name, const uint8_t *data, size_t size, int *index,
                                mf_error *err);
const mf__map *mf__catalog_map(const mf__catalog *cat, int file);

/* Copies the entry and its name. data is derived from file and offset, which must be inside that file. */
mf_status mf__catalog_add(mf__catalog *cat, const mf__entry *entry, mf_error *err);

/* MF_OK for a usable name: 1 to MF__NAME_MAX bytes without control characters. where begins the error text. */
mf_status mf__entry_check_name(const char *where, const char *name, mf_error *err);
/* Name, "dtype" and "shape" of a tensor's JSON object into out, with the size they imply. name is borrowed. */
mf_status mf__entry_parse(const char *where, const char *name, const json_t *obj, mf__entry *out, mf_error *err);
/* Computes entry->size from its type and dims; MF_E_FORMAT when a dimension is negative or the product too large. */
mf_status mf__entry_size(const char *where, mf__entry *entry, mf_error *err);

#define MF__SHAPE_TEXT 160
/* "[2, 3]" into text, which it returns. */
const char *mf__entry_shape(const mf__entry *entry, char text[MF__SHAPE_TEXT]);

#endif
