/* A list of zeroed blocks. Small requests are cut from the newest block; a large one gets a block of its own, linked
 * behind the newest, so that it does not waste the rest of it.
 *
 * Under AddressSanitizer everything not handed out is poisoned, with a gap behind each allocation: an overrun inside
 * a block is reported as one between two mallocs would be. */
#include "base/arena.h"

#include <stdalign.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define ARENA_ASAN 1
#endif

#if defined(ARENA_ASAN)
#include <sanitizer/asan_interface.h>
#define POISON(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#define GAP 16
#else
#define POISON(p, n) ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#define GAP 0
#endif

#define ALIGN 16
#define BLOCK_BYTES (64 * 1024)
#define OWN_BLOCK_BYTES (BLOCK_BYTES / 4)

struct mf__arena_block {
    struct mf__arena_block *next; /* older */
    size_t size;
    alignas(ALIGN) unsigned char data[];
};

static struct mf__arena_block *block_new(size_t size) {
    struct mf__arena_block *block = calloc(1, sizeof *block + size);
    if (!block) return NULL;
    block->size = size;
    POISON(block->data, size);
    return block;
}

void *mf__arena_alloc(mf__arena *arena, size_t size) {
    if (size > PTRDIFF_MAX / 2) return NULL; /* so that the sums below cannot wrap */
    size_t taken = ((size ? size : 1) + ALIGN - 1) / ALIGN * ALIGN + GAP;

    if (!arena->head || taken > arena->head->size - arena->used) {
        bool own = taken > OWN_BLOCK_BYTES;
        struct mf__arena_block *block = block_new(own ? taken : BLOCK_BYTES);
        if (!block) return NULL;
        if (own && arena->head) {
            block->next = arena->head->next;
            arena->head->next = block;
            UNPOISON(block->data, size);
            return block->data;
        }
        block->next = arena->head;
        arena->head = block;
        arena->used = 0;
    }
    unsigned char *p = arena->head->data + arena->used;
    arena->used += taken;
    UNPOISON(p, size);
    return p;
}

void *mf__arena_array(mf__arena *arena, size_t count, size_t size) {
    if (size && count > SIZE_MAX / size) return NULL;
    return mf__arena_alloc(arena, count * size);
}

char *mf__arena_strdup(mf__arena *arena, const char *text) {
    size_t size = strlen(text) + 1;
    char *copy = mf__arena_alloc(arena, size);
    if (copy) memcpy(copy, text, size);
    return copy;
}

char *mf__arena_printf(mf__arena *arena, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) return NULL;
    char *text = mf__arena_alloc(arena, (size_t)n + 1);
    if (!text) return NULL;
    va_start(ap, fmt);
    vsnprintf(text, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return text;
}

void mf__arena_free(mf__arena *arena) {
    struct mf__arena_block *block = arena->head;
    while (block) {
        struct mf__arena_block *older = block->next;
        UNPOISON(block->data, block->size);
        free(block);
        block = older;
    }
    *arena = (mf__arena){0};
}
