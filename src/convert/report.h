/* What quantization cost: notes made part by part, and the report put together from them. */
#ifndef MF_CONVERT_REPORT_H
#define MF_CONVERT_REPORT_H

#include <jansson.h>

#include "convert/encode.h"
#include "convert/plan.h"

#define MF_REPORT_NAME "conversion.json"

json_t *mf__report_note_tensor(const char *name, const mf__tensor *from, const mf__tensor *to, const mf__loss *loss);
/* loss: of each part, in the first and the second set. */
json_t *mf__report_note_experts(int layer, const mf__loss loss[2][3], bool second);

/* The whole report from all notes; NULL when out of memory. */
json_t *mf__report_make(const mf__plan *plan, const json_t *notes);

#endif
