/* System calls that fail on demand: the linker's --wrap puts these between the library and libc. */
#ifndef TESTS_BASE_FAULTS_H
#define TESTS_BASE_FAULTS_H

#include <stddef.h>

/* All zero: everything works. */
extern struct faults {
    size_t max_transfer; /* pread and pwrite transfer at most this much */
    int interrupt_every; /* every n-th of them returns EINTR */
    int zero_writes;     /* pwrite transfers nothing */
    int fail_after;      /* calls of the kind that go well before the errors below */
    int pread_errno, pwrite_errno, fsync_errno, rename_errno;
    int n_calls, n_interrupts;
} faults;

#if defined(__linux__)
#define FAULTS 1
#else
#define FAULTS 0 /* no --wrap: tests that need faults skip themselves */
#endif

#endif
