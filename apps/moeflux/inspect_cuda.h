/* What the cuda backend finds here, and how much of a model goes where with it. */
#ifndef MOEFLUX_INSPECT_CUDA_H
#define MOEFLUX_INSPECT_CUDA_H

#include "convert/survey.h"

void inspect_cuda(void); /* prints the device, or why there is none */
/* Bytes free on the device; text: what it is. 0: none can be used, and text says why. */
int64_t inspect_cuda_memory(char text[256]);
/* Prints which part of the model in dir lies in the device's memory, in the host's and on the drive; vram: most of the
 * device's memory to use, 0: what is free. Nothing where no device can be used. */
mf_status inspect_cuda_split(const char *dir, const mf__survey *s, int64_t vram, mf_error *err);

#endif
