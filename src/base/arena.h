/* A bump allocator: many small allocations with one lifetime, freed together. Not thread-safe. */
#ifndef MF_BASE_ARENA_H
#define MF_BASE_ARENA_H

#include <stddef.h>

typedef struct mf__arena {
    struct mf__arena_block *head; /* newest block */
    size_t used;                  /* bytes used in head */
} mf__arena;

/* Zero-initialise an arena with `mf__arena a = {0}`. */
void *mf__arena_alloc(mf__arena *arena, size_t size); /* 16-byte aligned, zero-filled; NULL when out of memory */
void *mf__arena_array(mf__arena *arena, size_t count, size_t size); /* NULL also when count * size overflows */
char *mf__arena_strdup(mf__arena *arena, const char *text);
char *mf__arena_printf(mf__arena *arena, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void mf__arena_free(mf__arena *arena); /* frees all blocks; the arena is empty and usable again */

#endif
