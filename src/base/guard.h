/* Mapped files that shrink. Touching a page that is gone raises SIGBUS, at whatever moment, and no check before can
 * prevent it. In a program that has asked for it (mf_guard_install), ranges of memory can be guarded: a page that is
 * gone then reads as zeros, and the fault is counted. Whoever has computed with a range asks afterwards, and throws the
 * result away if there was one. */
#ifndef MF_BASE_GUARD_H
#define MF_BASE_GUARD_H

#include "base/status.h"

bool mf__guard_installed(void);
/* A number to ask with; -1 where nothing is installed or too many ranges are guarded. Only for those who will ask. */
int mf__guard_add(const void *begin, size_t size);
void mf__guard_remove(int guard);    /* -1 is fine; before the range is unmapped */
int64_t mf__guard_faults(int guard); /* so far; -1 has none */

#endif
