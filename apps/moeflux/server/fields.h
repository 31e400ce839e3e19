/* Typed members of a request. Each returns false after it has made the job fail with a sentence that names the field;
 * one that is absent or null leaves *out as it is. `where` is a path before the name ("messages[2]"), or "". */
#ifndef MOEFLUX_FIELDS_H
#define MOEFLUX_FIELDS_H

#include "job.h"

bool field_number(job *j, const json_t *obj, const char *name, double min, double max, double *out);
bool field_float(job *j, const json_t *obj, const char *name, double min, double max, float *out);
bool field_int(job *j, const json_t *obj, const char *name, int64_t min, int64_t max, int64_t *out);
bool field_bool(job *j, const json_t *obj, const char *name, bool *out);
bool field_object(job *j, const json_t *obj, const char *name, const json_t **out); /* borrowed */
bool field_text(job *j, const json_t *obj, const char *where, const char *name, const char **out);

/* Refuses names that are not in the list (NULL ends it), as the job's family does. */
bool fields_known(job *j, const json_t *obj, const char *const *names);

/* Refuses those of the list (NULL ends it) that are there, neither null nor []; why: the sentence behind the name. */
bool fields_unset(job *j, const json_t *body, const char *const *names, const char *why);

/* "an integer", "a string", ...; "nothing" for NULL. */
const char *json_kind(const json_t *value);

/* Text of a message: a string, or parts of type text (input_text, output_text), as templates take them. A new
 * reference; NULL where there is no memory. by_tool: images and files are replaced, as the conversation could not go on
 * without what a tool returned. */
bool field_content(job *j, const json_t *content, const char *where, bool by_tool, json_t **out);
json_t *left_out(const char *what);         /* what stands in place of an image or a file that a tool returned */
json_t *content_of_parts(json_t *texts); /* one text: a string; several: [{"type": "text", "text"}, ...] */

/* stop, stop_sequences: a string or a list of them, kept in the job. */
bool field_stops(job *j, const json_t *obj, const char *name);

#endif
