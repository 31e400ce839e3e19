/* Bringing source bytes into memory by reading, not by touching mapped pages: what is read leaves nothing in the page
 * cache, and a file that shrinks or fails gives an error instead of a signal. */
#ifndef MF_CONVERT_STAGE_H
#define MF_CONVERT_STAGE_H

#include "convert/convert.h"
#include "model/source.h"
#include "weights/catalog.h"

typedef struct mf__stage mf__stage;

/* Opens every file of the catalogue, which must outlive the stage. Files that are removed later stay readable. feed, if
 * there is one, is asked before a file is read. */
mf_status mf__stage_open(const mf__catalog *cat, const mf__feed *feed, mf__stage **out, mf_error *err);
void mf__stage_close(mf__stage *st); /* NULL is fine */
/* One line that says which files these are: their names, sizes and times. */
void mf__stage_identity(const mf__stage *st, char text[32]);
mf_status mf__stage_unchanged(const mf__stage *st, mf_error *err); /* MF_E_MISMATCH names the file that changed */

/* Adds one to used[file], of mf__catalog_n_files, for each piece (data, scales, biases) of src. */
void mf__stage_count(const mf__stage *st, const mf__source *src, int *used);

/* Whether rows can be staged a few at a time: not where they are columns, or in no simple order; and those of FP8 in
 * blocks only from the first row of a block on. */
bool mf__stage_in_pieces(const mf__source *src);
/* Buffer bytes that rows [begin, end) of src need, and reading them: *out is those rows with their bytes in buf (which
 * is aligned for direct access); *used grows by what was taken. */
size_t mf__stage_room(const mf__source *src, int64_t begin, int64_t end);
mf_status mf__stage_rows(const mf__stage *st, const mf__source *src, int64_t begin, int64_t end, uint8_t *buf,
                         size_t *used, mf__source *out, mf_error *err);

#endif
