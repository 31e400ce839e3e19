/* Jansson with errors that name the file and the key. Values are borrowed from the root; free the root once. */
#ifndef MF_BASE_JSON_H
#define MF_BASE_JSON_H

#include <jansson.h>

#include "base/status.h"

/* Parses bytes strictly: UTF-8, no duplicate keys, no trailing data, bounded depth. name is used in errors only. */
mf_status mf__json_parse(const char *name, const char *bytes, size_t size, json_t **out, mf_error *err);
mf_status mf__json_read(const char *path, size_t max_size, json_t **out, mf_error *err);

/* Typed members of an object. `where` (a file or "config.json: text_config") begins the error text.
 * get_*: the key must be there and in [min, max]. opt_*: missing or null gives the default; a wrong type or range is
 * still an error. */
mf_status mf__json_get_int(const json_t *obj, const char *where, const char *key, int64_t min, int64_t max,
                           int64_t *out, mf_error *err);
mf_status mf__json_opt_int(const json_t *obj, const char *where, const char *key, int64_t min, int64_t max, int64_t def,
                           int64_t *out, mf_error *err);
mf_status mf__json_opt_double(const json_t *obj, const char *where, const char *key, double min, double max, double def,
                              double *out, mf_error *err);
mf_status mf__json_opt_bool(const json_t *obj, const char *where, const char *key, bool def, bool *out, mf_error *err);
mf_status mf__json_get_string(const json_t *obj, const char *where, const char *key, const char **out, mf_error *err);

const char *mf__json_type_name(const json_t *value); /* "an integer", "a string", ...; "nothing" for NULL */

#endif
