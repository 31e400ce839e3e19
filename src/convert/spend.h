/* Widths of the experts' matrices for a number of bits per weight: more where an error costs more. */
#ifndef MF_CONVERT_SPEND_H
#define MF_CONVERT_SPEND_H

#include "convert/convert.h"

#define MF_SPEND_WITHIN 0.05 /* bits per weight that the outcome may be off by */

typedef struct mf__spending {
    int bits[3], group[3];  /* of gate, up, down */
    double bits_per_weight; /* scales and biases included: 4 bits in groups of 64 are 4.5 */
    double error[3];        /* what each costs: a relative root mean square ... */
    bool of_output;         /* ... of the experts' output, with opt->sample; else of the matrix itself */
} mf__spending;

/* Measures a few experts of src in every width and group, and chooses those with the least error in sum; opt->part_bits
 * and part_group are set. All layers have one layout, so kinds of matrices differ, layers do not. MF_E_INVALID where no
 * choice comes near the target. */
mf_status mf__spend_bits(const char *src, double target, mf__convert_options *opt, mf__spending *out, mf_error *err);

#endif
