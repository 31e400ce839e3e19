/* Memory in huge pages: walking through it misses the page tables five hundred times less often. */
#ifndef MF_BASE_PAGES_H
#define MF_BASE_PAGES_H

#include <stddef.h>

#define MF_HUGE_PAGE ((size_t)2 << 20)

/* Asks for huge pages in [mem, mem + size), where whole ones fit. Refused: slower, not wrong. */
void mf__pages_wish(void *mem, size_t size);

/* `size` bytes at a multiple of `align`, in huge pages as far as there are whole ones; given back with free. NULL: out
 * of memory. */
void *mf__pages_alloc(size_t size, size_t align);

#endif
