/* What a calibration says about an expert: which errors of its weights count.
 *
 * The inputs that were routed to it, each counted by its share squared (the error of its output is), with a few of the
 * layer's others among them that weigh little: an expert that was seen rarely is judged by what its layer saw. Gate and
 * up read these inputs; down reads what the expert's own gate and up make of them. */
#ifndef MF_CONVERT_CALIBRATE_H
#define MF_CONVERT_CALIBRATE_H

#include "convert/encode.h"
#include "convert/plan.h"
#include "convert/sample.h"

typedef struct mf__calibrator mf__calibrator;

/* For plan->opt->sample. pool and plan must outlive it. max_rows: inputs that an expert is judged by; 0: the usual. */
mf_status mf__calibrator_open(const mf__plan *plan, mf__pool *pool, int64_t max_rows, mf__calibrator **out,
                              mf_error *err);
void mf__calibrator_close(mf__calibrator *c); /* NULL is fine */

/* The expert at hand. src: its matrices [MF_PART_COUNT], staged; biases: as many, or NULL. */
mf_status mf__calibrator_expert(mf__calibrator *c, int layer, int expert, const mf__source *src,
                                const mf__source *biases, mf_error *err);
/* Completes an encoding of one of its parts. down: gate and up must be encoded in blob. */
void mf__calibrator_part(mf__calibrator *c, mf__expert_part part, const mf__expert_layout *layout, const uint8_t *blob,
                         mf__encode *e);

/* Inputs that were routed to the expert at hand, and those it is judged by, the layer's others included. */
int64_t mf__calibrator_seen(const mf__calibrator *c);
int64_t mf__calibrator_rows(const mf__calibrator *c);

/* How much of the expert's output, for these inputs, is lost with the matrices in blob instead of its own: a squared
 * error relative to the square of the output. The part `only` comes from blob, the others are its own. */
double mf__calibrator_output_error(mf__calibrator *c, const mf__expert_layout *layout, const uint8_t *blob,
                                   mf__expert_part only);

#endif
