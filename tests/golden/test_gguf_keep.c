/* test_gguf_keep MAKE_GGUF CHECKPOINT: models whose GGUF files have quantized matrices, kept as they are, are the
 * models of the same values as F32, bit for bit: nothing is lost on the way, whatever order the rows and blocks come
 * in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "unit/base/scratch.h"
#include "unit/model/maker.h"
#include "weights/native.h"

static const char *make_gguf, *checkpoint;

static char *make(const char *dir, const char *type, bool values) {
    char name[64], command[2048], *path;
    snprintf(name, sizeof name, "%s%s.gguf", type, values ? "_values" : "");
    path = path_in(dir, name);
    snprintf(command, sizeof command, "'%s' '%s' '%s' 1 %s %s", make_gguf, checkpoint, path, type,
             values ? "values" : "");
    assert_int_equal(system(command), 0);
    return path;
}

static void kept_exactly(void **state) {
    static const struct {
        const char *type;
        int bits;
    } rows[] = {{"q4_0", 4}, {"q4_1", 4}, {"q5_0", 5}, {"q5_1", 5}, {"q8_0", 8}};
    for (size_t i = 0; i < MF__COUNT(rows); i++) {
        char *blocks = make(*state, rows[i].type, false), *values = make(*state, rows[i].type, true), native[512];
        float *a = checkpoint_logits(blocks, NULL), *b = checkpoint_logits(values, NULL);
        mf__native n;
        mf_error err = {0};
        snprintf(native, sizeof native, "%s.native", blocks);
        if (mf__native_open(native, &n, &err)) fail_msg("%s", err.text);
        assert_int_equal(n.layout.part[MF_PART_UP].type, MF_TYPE_AFFINE);
        assert_int_equal(n.layout.part[MF_PART_UP].bits, rows[i].bits);
        mf__native_close(&n);
        assert_same_logits(a, b, 512);
        free(a);
        free(b);
        free(blocks);
        free(values);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {SCRATCH_TEST(kept_exactly)};
    if (argc != 3) return 2;
    make_gguf = argv[1];
    checkpoint = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
