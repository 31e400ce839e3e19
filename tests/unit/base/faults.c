#include "faults.h"

#include <errno.h>
#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>

struct faults faults;

#if FAULTS
ssize_t __real_pread(int fd, void *buf, size_t size, off_t offset);
ssize_t __wrap_pread(int fd, void *buf, size_t size, off_t offset);
ssize_t __real_pwrite(int fd, const void *buf, size_t size, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *buf, size_t size, off_t offset);
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);

/* True when this call is to fail with errnum. */
static int fails(int errnum) {
    if (!errnum || faults.n_calls++ < faults.fail_after) return 0;
    errno = errnum;
    return 1;
}

static int interrupted(void) {
    static int n;
    if (!faults.interrupt_every || ++n % faults.interrupt_every) return 0;
    faults.n_interrupts++;
    errno = EINTR;
    return 1;
}

static size_t shortened(size_t size) {
    return faults.max_transfer && size > faults.max_transfer ? faults.max_transfer : size;
}

ssize_t __wrap_pread(int fd, void *buf, size_t size, off_t offset) {
    if (interrupted() || fails(faults.pread_errno)) return -1;
    return __real_pread(fd, buf, shortened(size), offset);
}

ssize_t __wrap_pwrite(int fd, const void *buf, size_t size, off_t offset) {
    if (faults.zero_writes) return 0;
    if (interrupted() || fails(faults.pwrite_errno)) return -1;
    return __real_pwrite(fd, buf, shortened(size), offset);
}

int __wrap_fsync(int fd) {
    return fails(faults.fsync_errno) ? -1 : __real_fsync(fd);
}

int __wrap_rename(const char *from, const char *to) {
    return fails(faults.rename_errno) ? -1 : __real_rename(from, to);
}
#endif
