/* The allocation guard: evaluating and sampling token after token allocates nothing.
 *
 * Calls of the library to the allocator are wrapped at link time (see CMakeLists.txt) and counted while the guard is
 * up. The one exception is by design: when a sequence outgrows its KV pages, it gets one more.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "base/status.h"
#include "tiny.h"

#define KV_BLOCK 256

static atomic_bool up;
static atomic_int n_aligned, n_other, n_free;

static void count(atomic_int *counter) {
    if (atomic_load(&up)) atomic_fetch_add(counter, 1);
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *mem, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
int __real_posix_memalign(void **out, size_t align, size_t size);
char *__real_strdup(const char *text);
void *__real_mmap(void *addr, size_t size, int prot, int flags, int fd, off_t offset);
void __real_free(void *mem);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *mem, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size);
int __wrap_posix_memalign(void **out, size_t align, size_t size);
char *__wrap_strdup(const char *text);
void *__wrap_mmap(void *addr, size_t size, int prot, int flags, int fd, off_t offset);
void __wrap_free(void *mem);

void *__wrap_malloc(size_t size) {
    count(&n_other);
    return __real_malloc(size);
}
void *__wrap_calloc(size_t n, size_t size) {
    count(&n_other);
    return __real_calloc(n, size);
}
void *__wrap_realloc(void *mem, size_t size) {
    count(&n_other);
    return __real_realloc(mem, size);
}
void *__wrap_aligned_alloc(size_t align, size_t size) {
    count(&n_aligned);
    return __real_aligned_alloc(align, size);
}
int __wrap_posix_memalign(void **out, size_t align, size_t size) {
    count(&n_aligned);
    return __real_posix_memalign(out, align, size);
}
char *__wrap_strdup(const char *text) {
    count(&n_other);
    return __real_strdup(text);
}
void *__wrap_mmap(void *addr, size_t size, int prot, int flags, int fd, off_t offset) {
    count(&n_other);
    return __real_mmap(addr, size, prot, flags, fd, offset);
}
void __wrap_free(void *mem) {
    count(&n_free);
    __real_free(mem);
}

static void guard(bool on) {
    atomic_store(&up, on);
}

static void reset(void) {
    atomic_store(&n_aligned, 0);
    atomic_store(&n_other, 0);
    atomic_store(&n_free, 0);
}

/* Without this a guard that counts nothing would pass. */
static void test_guard_sees_the_library(void **state) {
    mf_model *m = tiny_open(*state, 1);
    reset();
    guard(true);
    mf_session *s = tiny_session(m, 16, 0);
    guard(false);
    assert_true(n_aligned > 0 && n_other > 0);
    guard(true);
    mf_session_free(s);
    guard(false);
    assert_true(n_free > 0);
    mf_model_close(m);
}

static void step(mf_session *s, mf_sampler *sampler, float *logits, int n) {
    for (int i = 0; i < n; i++) {
        int32_t id = mf_sampler_next(sampler, logits);
        mf_status st = mf_eval_token(s, id, mf_memory_length(s), logits, TINY_VOCAB, NULL);
        if (st != MF_OK) abort();
    }
}

static void test_token_loop_allocates_nothing(void **state) {
    mf_model *m = tiny_open(*state, 2);
    mf_session *s = tiny_session(m, 2 * KV_BLOCK, 0);
    mf_sampler_options so;
    mf_sampler *sampler;
    float logits[TINY_VOCAB];
    mf_sampler_options_init(&so);
    so.temperature = 0.8f;
    so.top_k = 50;
    so.top_p = 0.9f;
    so.min_p = 0.01f;
    so.seed = 1;
    assert_int_equal(mf_sampler_create(&so, TINY_VOCAB, &sampler, NULL), MF_OK);
    tiny_eval(s, 5, logits); /* warm: the first KV block exists now */
    step(s, sampler, logits, 2);

    reset();
    guard(true);
    step(s, sampler, logits, 64);
    guard(false);
    assert_int_equal(n_aligned, 0);
    assert_int_equal(n_other, 0);
    assert_int_equal(n_free, 0);

    tiny_eval(s, KV_BLOCK - mf_memory_length(s) - 3, logits); /* up to three tokens before the block is full */
    reset();
    guard(true);
    step(s, sampler, logits, 3);
    guard(false);
    assert_int_equal(n_aligned + n_other + n_free, 0);

    guard(true);
    step(s, sampler, logits, 1); /* the first token of the second page: its record and its memory */
    guard(false);
    assert_int_equal(n_aligned, 1);
    assert_int_equal(n_other, 1);
    assert_int_equal(n_free, 0);

    reset();
    guard(true);
    step(s, sampler, logits, 8);
    guard(false);
    assert_int_equal(n_aligned + n_other + n_free, 0);
    mf_sampler_free(sampler);
    mf_session_free(s);
    mf_model_close(m);
}

int main(int argc, char **argv) {
    mf_guard_install(NULL); /* experts are mapped then; a cache has a thread beside it, which may allocate */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guard_sees_the_library),
        cmocka_unit_test(test_token_loop_allocates_nothing),
    };
    if (argc != 2) return 2;
    tiny_checkpoint = argv[1];
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
