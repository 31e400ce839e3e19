/* The safetensors reader on arbitrary bytes: an error, or a catalogue whose tensors all lie inside the file. */
#include "weights/safetensors.h"

#include "views.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mf__catalog *cat;
    mf_error err = {0};
    mf_status status = mf__safetensors_parse("fuzz", data, size, &cat, &err);
    if (status != MF_OK) {
        if (cat || err.status != status || !err.text[0]) abort();
        return 0;
    }
    check_views(cat, data, size);
    mf__catalog_close(cat);
    return 0;
}
