/* Writing whole files that appear complete or not at all.
 *
 * A file is written under a temporary name beside its target, synced, renamed over it, and the directory is synced.
 * Whatever fails, the temporary file is removed and the old file is as it was. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"

#define COPY_BYTES ((size_t)1 << 20)
#define NAME_ATTEMPTS 100

typedef struct draft {
    const char *path; /* the target, borrowed */
    char *dir;
    char *tmp;
    int fd;
    int64_t size; /* written so far */
} draft;

static void draft_drop(draft *d) {
    if (d->fd >= 0) {
        close(d->fd);
        unlink(d->tmp);
    }
    free(d->dir);
    free(d->tmp);
}

static char *parent_dir(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash) return strdup(".");
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

/* Process, clock and attempt make the name; O_EXCL makes it unique, and never follows a link left there. */
static mf_status draft_open(draft *d, const char *path, mf_error *err) {
    *d = (draft){.path = path, .dir = parent_dir(path), .fd = -1};
    if (!d->dir) return mf__fail(err, MF_E_NOMEM, "no memory to write %s", path);
    for (int attempt = 0;; attempt++) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        char name[96];
        snprintf(name, sizeof name, ".moeflux-%ld-%lx-%d.tmp", (long)getpid(), (unsigned long)now.tv_nsec, attempt);
        free(d->tmp);
        d->tmp = mf__path_join(d->dir, name);
        if (!d->tmp) {
            draft_drop(d);
            return mf__fail(err, MF_E_NOMEM, "no memory to write %s", path);
        }
        d->fd = open(d->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (d->fd >= 0) return MF_OK;
        if (errno != EEXIST || attempt >= NAME_ATTEMPTS) {
            mf_status status = mf__fail_errno(err, errno, "cannot write %s: cannot create a file in %s", path, d->dir);
            draft_drop(d);
            return status;
        }
    }
}

/* Puts the draft in its place. The caller drops the draft when this fails. */
static mf_status draft_publish(draft *d, mf_error *err) {
    struct stat old;
    if (stat(d->path, &old) == 0 && S_ISREG(old.st_mode) && fchmod(d->fd, old.st_mode & 0777) != 0)
        return mf__fail_errno(err, errno, "cannot give %s the mode of the file it replaces", d->path);
    if (fsync(d->fd) != 0) return mf__fail_errno(err, errno, "cannot sync %s", d->path);
    if (rename(d->tmp, d->path) != 0) return mf__fail_errno(err, errno, "cannot rename a new file to %s", d->path);
    int fd = d->fd;
    d->fd = -1; /* nothing left to unlink */
    if (close(fd) != 0) return mf__fail_errno(err, errno, "cannot close %s", d->path);
    return mf__dir_sync(d->dir, err);
}

static mf_status draft_write(void *sink, const void *data, size_t size, mf_error *err) {
    draft *d = sink;
    MF__TRY(mf__pwrite_all(d->fd, data, size, d->size, d->path, err));
    d->size += (int64_t)size;
    return MF_OK;
}

mf_status mf__file_replace_by(const char *path, mf__produce_fn *produce, void *user, mf_error *err) {
    draft d;
    MF__TRY(draft_open(&d, path, err));
    mf_status status = produce(user, draft_write, &d, err);
    if (status == MF_OK) status = draft_publish(&d, err);
    draft_drop(&d);
    return status;
}

typedef struct whole {
    const void *data;
    size_t size;
} whole;

static mf_status produce_whole(void *user, mf__write_fn *write, void *sink, mf_error *err) {
    const whole *w = user;
    return write(sink, w->data, w->size, err);
}

mf_status mf__file_replace(const char *path, const void *data, size_t size, mf_error *err) {
    return mf__file_replace_by(path, produce_whole, &(whole){data, size}, err);
}

static mf_status copy_bytes(int from_fd, const char *from, int to_fd, const char *to, int64_t size, mf_error *err) {
    char *buf = malloc(COPY_BYTES);
    if (!buf) return mf__fail(err, MF_E_NOMEM, "no memory to copy %s", from);
    mf_status status = MF_OK;
    for (int64_t off = 0; off < size && status == MF_OK;) {
        size_t n = size - off < (int64_t)COPY_BYTES ? (size_t)(size - off) : COPY_BYTES;
        status = mf__pread_all(from_fd, buf, n, off, from, err);
        if (status == MF_OK) status = mf__pwrite_all(to_fd, buf, n, off, to, err);
        off += (int64_t)n;
    }
    free(buf);
    return status;
}

mf_status mf__file_copy(const char *from, const char *to, mf_error *err) {
    int from_fd;
    int64_t size;
    MF__TRY(mf__file_open(from, &from_fd, &size, err));
    draft d;
    mf_status status = draft_open(&d, to, err);
    if (status == MF_OK) {
        status = copy_bytes(from_fd, from, d.fd, to, size, err);
        if (status == MF_OK) status = draft_publish(&d, err);
        draft_drop(&d);
    }
    close(from_fd);
    return status;
}

mf_status mf__dir_sync(const char *dir, mf_error *err) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return mf__fail_errno(err, errno, "cannot open the directory %s", dir);
    /* EINVAL, ENOTSUP: a file system that cannot sync directories; there is no more to be had there. */
    mf_status status = MF_OK;
    if (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        status = mf__fail_errno(err, errno, "cannot sync the directory %s", dir);
    close(fd);
    return status;
}

mf_status mf__dir_make(const char *path, mf_error *err) {
    if (mkdir(path, 0777) == 0) return MF_OK;
    int errnum = errno;
    if (errnum == EEXIST && mf__path_is_dir(path)) return MF_OK;
    return mf__fail_errno(err, errnum, "cannot make the directory %s", path);
}
