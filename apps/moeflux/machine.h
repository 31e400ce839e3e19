/* The machine as far as a model's speed depends on it: measured in a moment, or assumed (inspect --assume). */
#ifndef MOEFLUX_MACHINE_H
#define MOEFLUX_MACHINE_H

#include <jansson.h>

#include "app.h"

typedef struct machine {
    bool assumed;
    int64_t total, usable; /* bytes of memory */
    int threads;
    double memory_bytes_s; /* reading with all threads */
    double drive_bytes_s;  /* reads of random experts past the page cache; 0: not known */
    double products_s;     /* weights, times rows, multiplied per second by a thread: about */
    int64_t vram;          /* bytes free on a GPU that can be used; 0: none */
    char gpu[256];         /* its name, or why there is none */
} machine;

/* What is not 0 is taken instead of what this machine has; the GPU is always the assumed one. */
typedef struct machine_assumed {
    bool any;
    double ram, vram;     /* bytes */
    double memory, drive; /* bytes per second */
    double threads;
    double products; /* of a thread, beside one with AVX-512 */
} machine_assumed;

/* "ram=32G,drive=5G": sizes in powers of 1024, speeds in powers of ten. */
mf_status machine_assume(const char *text, machine_assumed *out, mf_error *err);

/* as: NULL, nothing is assumed. place: a file that lies where experts are read from, or a folder that they would come
 * to, where one of 64 MB is written for the moment; NULL: the drive is not measured. read_bytes: an expert. */
mf_status machine_measure(const machine_assumed *as, const char *place, int64_t read_bytes, machine *out,
                          mf_error *err);
void machine_print(const machine *at, int64_t read_bytes);
json_t *machine_json(const machine *at);

#endif
