#include "base/pages.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

void mf__pages_wish(void *mem, size_t size) {
#ifdef MADV_HUGEPAGE
    size_t before = (MF_HUGE_PAGE - (uintptr_t)mem % MF_HUGE_PAGE) % MF_HUGE_PAGE;
    if (size < before + MF_HUGE_PAGE) return;
    madvise((char *)mem + before, (size - before) / MF_HUGE_PAGE * MF_HUGE_PAGE, MADV_HUGEPAGE);
#else
    (void)mem, (void)size;
#endif
}

void *mf__pages_alloc(size_t size, size_t align) {
    void *mem = NULL;
    if (posix_memalign(&mem, size < MF_HUGE_PAGE ? align : MF_HUGE_PAGE, size ? size : 1) != 0) return NULL;
    mf__pages_wish(mem, size);
    return mem;
}
