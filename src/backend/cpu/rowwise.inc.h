/* Norms, activations, convolution, attention and the delta rule; compiled once per instruction set.
 *
 * A row's bits depend on nothing beside it: every sum has one order of additions, whichever kernel takes it, and says
 * itself where it fuses (fma_of); the compiler fuses nothing. */
#include <math.h>

#include "backend/cpu/cpu.h"
#include "quant/half.h"

#include "backend/cpu/elementwise.inc.h"

#include "backend/cpu/attend.inc.h"
#include "backend/cpu/conv.inc.h"
#include "backend/cpu/delta.inc.h"
#include "backend/cpu/index.inc.h"
#include "backend/cpu/ssm.inc.h"

void SET(mf__cpu_rowwise)(mf__cpu_kernels *k) {
    k->put = SET(put);
    k->rms_norm = SET(rms_norm);
    k->scale_to_unit = SET(scale_to_unit);
    k->add = SET(add);
    k->glu = SET(glu);
    k->map = SET(map);
    k->mul_sigmoid = SET(mul_sigmoid);
    k->mul_silu = SET(mul_silu);
    k->axpy = SET(axpy);
    k->conv = SET(conv);
    k->attend = SET(attend);
    k->attend_few = SET(attend_few);
    k->merge = SET(merge);
    k->cross = SET(cross);
    k->mix_rows = SET(mix_rows);
    k->delta = SET(delta);
    k->decay = SET(decay);
    k->ssm = SET(ssm);
    k->keys_to_lanes = SET(keys_to_lanes);
    k->index_scores = SET(index_scores);
}
