/* What the tests of weights/ share: scratch directories, hand-made files, and a check of everything a catalogue says.
 */
#ifndef MF_TEST_WEIGHTS_UTIL_H
#define MF_TEST_WEIGHTS_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "weights/native.h"
#include "weights/safetensors.h"

/* A fresh directory below the working directory; remove it with scratch_free. */
char *scratch_make(void);
void scratch_free(char *dir);
char *join(const char *dir, const char *name); /* malloc'd; fails the test when out of memory */
void write_file(const char *dir, const char *name, const void *data, size_t size);
void write_text(const char *dir, const char *name, const char *text);
void *read_whole(const char *dir, const char *name, size_t *size);

/* The bytes of a safetensors file: length, header, n_data bytes counting up. malloc'd. */
uint8_t *safetensors_bytes(const char *header, size_t n_data, size_t *size);
void write_safetensors(const char *dir, const char *name, const char *header, size_t n_data);

/* Fails unless the status is `want` and the text has every one of the strings (up to a NULL). */
void assert_error(mf_status got, const mf_error *err, mf_status want, ...);

/* Every entry inside [data, data + size), sorted by name and found by it; every tensor that forms is decoded whole. */
void check_catalog(const mf__catalog *cat, const uint8_t *data, size_t size);

mf__entry make_entry(const char *name, mf__type type, int64_t rows, int64_t cols, const void *data);

#endif
