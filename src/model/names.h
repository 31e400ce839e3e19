/* Finding a tensor by the name the graphs give it, whoever published the file. */
#ifndef MF_MODEL_NAMES_H
#define MF_MODEL_NAMES_H

#include "model/family.h"
#include "weights/catalog.h"

#define MF_MAX_NAME 256

/* The entry behind `canonical` ("model.layers.3.mlp.gate.weight"), under any prefix and any of the family's aliases.
 * spelt (MF_MAX_NAME bytes) receives the name it has there. NULL when there is none; spelt is then the canonical name.
 */
const mf__entry *mf__names_find(const mf__catalog *cat, const mf__family *family, const char *canonical, char *spelt);

#endif
