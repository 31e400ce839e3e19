/* A golden file with one token: p1 of a larger one becomes p0. Named as a third argument, logits or hidden, one value
 * of that tensor is changed by a percent of the largest.   usage: shrink_golden IN OUT [logits|hidden] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weights/safetensors.h"

static void spoil(mf__entry *e) {
    int64_t n = e->size / 4;
    float *x = malloc((size_t)e->size), largest = 0;
    if (!x) exit(1);
    memcpy(x, e->data, (size_t)e->size);
    for (int64_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(x[i]));
    x[n / 2] += largest / 100;
    e->data = (const uint8_t *)x;
}

int main(int argc, char **argv) {
    static const char *const from[] = {"p1.hidden", "p1.logits", "p1.tokens"};
    static const char *const to[] = {"p0.hidden", "p0.logits", "p0.tokens"};
    mf__catalog *golden;
    mf__entry entries[3];
    mf_error err;
    if (argc < 3) return 2;
    if (mf__safetensors_open(argv[1], &golden, &err) != MF_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    for (int i = 0; i < 3; i++) {
        const mf__entry *e = mf__catalog_find(golden, from[i]);
        if (!e) return 1;
        entries[i] = *e;
        entries[i].name = to[i];
        if (argc > 3 && !strcmp(argv[3], to[i] + 3)) spoil(&entries[i]);
    }
    mf_status st = mf__safetensors_write(argv[2], entries, 3, &err);
    for (int i = 0; i < 3; i++)
        if (argc > 3 && !strcmp(argv[3], to[i] + 3)) free((void *)entries[i].data);
    mf__catalog_close(golden);
    return st == MF_OK ? 0 : 1;
}
