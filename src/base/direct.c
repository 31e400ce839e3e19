/* Direct reads and appends.
 *
 * A direct transfer wants offset, length and address to be multiples of a block. Reads fetch the blocks around what is
 * wanted. Appends collect blocks in a buffer; the last, unfinished block is written padded and cut off by sync, and
 * written again when more comes. */
#include "base/direct.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/pages.h"

#define ALIGN ((int64_t)MF_DIRECT_ALIGN)
#define HELD_BYTES ((int64_t)8 << 20)
#define MAX_TRANSFER ((size_t)1 << 30)

#ifndef O_DIRECT
#define O_DIRECT 0
#endif

static int64_t down(int64_t n) {
    return n / ALIGN * ALIGN;
}

static int64_t up(int64_t n) {
    return down(n + ALIGN - 1);
}

void *mf__direct_alloc(size_t size) {
    return mf__pages_alloc((size_t)up((int64_t)size), MF_DIRECT_ALIGN);
}

void mf__direct_free(void *buf, size_t size) {
    (void)size;
    free(buf);
}

/* ---- reading ---- */

static int64_t mtime_ns(const struct stat *st) {
    return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

mf_status mf__infile_open(const char *path, mf__infile *out, mf_error *err) {
    *out = (mf__infile){.fd = -1, .direct_fd = -1, .path = path};
    MF__TRY(mf__file_open(path, &out->fd, &out->size, err));
    struct stat st;
    if (fstat(out->fd, &st) == 0) out->mtime_ns = mtime_ns(&st);
    if (O_DIRECT) out->direct_fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    return MF_OK;
}

void mf__infile_close(mf__infile *f) {
    if (f->path && f->fd >= 0) close(f->fd);
    if (f->path && f->direct_fd >= 0) close(f->direct_fd);
    *f = (mf__infile){.fd = -1, .direct_fd = -1};
}

size_t mf__infile_room(int64_t size) {
    return (size_t)(up(size) + 2 * ALIGN);
}

/* True when at least `need` of the bytes at offset (a multiple of ALIGN) came. */
static bool read_direct(int fd, uint8_t *buf, int64_t offset, int64_t need) {
    int64_t want = up(need), done = 0;
    while (done < need) {
        size_t n = (size_t)(want - done) < MAX_TRANSFER ? (size_t)(want - done) : MAX_TRANSFER;
        ssize_t got = pread(fd, buf + done, n, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        done += got;
        if (done < need && done % ALIGN) return false;
    }
    return true;
}

mf_status mf__infile_read(const mf__infile *f, int64_t offset, int64_t size, void *buf, const uint8_t **data,
                          mf_error *err) {
    int64_t start = down(offset), skip = offset - start;
    *data = (uint8_t *)buf + skip;
    if (f->direct_fd >= 0 && read_direct(f->direct_fd, buf, start, skip + size)) return MF_OK;
    /* No direct access, or an error or the end of the file: the plain way works or says what is wrong. */
    MF__TRY(mf__pread_all(f->fd, (uint8_t *)buf + skip, (size_t)size, offset, f->path, err));
#ifdef POSIX_FADV_DONTNEED
    posix_fadvise(f->fd, (off_t)start, (off_t)up(skip + size), POSIX_FADV_DONTNEED);
#endif
    return MF_OK;
}

mf_status mf__infile_unchanged(const mf__infile *f, mf_error *err) {
    struct stat st;
    if (fstat(f->fd, &st) != 0) return mf__fail_errno(err, errno, "cannot read the size of %s", f->path);
    if (st.st_size != f->size)
        return mf__fail(err, MF_E_MISMATCH, "%s changed while it was read: it had %" PRId64 " bytes, now %" PRId64,
                        f->path, f->size, (int64_t)st.st_size);
    if (mtime_ns(&st) != f->mtime_ns)
        return mf__fail(err, MF_E_MISMATCH, "%s was written to while it was read", f->path);
    return MF_OK;
}

/* ---- writing ---- */

/* The bytes of the last, unfinished block of a file that is continued. */
static mf_status reload_tail(mf__outfile *f, int64_t start, mf_error *err) {
    struct stat st;
    if (fstat(f->fd, &st) != 0) return mf__fail_errno(err, errno, "cannot read the size of %s", f->path);
    if (st.st_size < start)
        return mf__fail(err, MF_E_FORMAT, "%s has %" PRId64 " bytes, expected at least %" PRId64, f->path,
                        (int64_t)st.st_size, start);
    if (ftruncate(f->fd, (off_t)start) != 0) return mf__fail_errno(err, errno, "cannot set the length of %s", f->path);
    f->size = start;
    f->held_off = down(start);
    return mf__pread_all(f->fd, f->held, (size_t)(start - f->held_off), f->held_off, f->path, err);
}

static void set_direct(mf__outfile *f, bool on) {
    int flags = O_DIRECT ? fcntl(f->fd, F_GETFL) : -1;
    f->direct = flags >= 0 && fcntl(f->fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0 && on;
}

mf_status mf__outfile_open(const char *path, int64_t start, mf__outfile *out, mf_error *err) {
    *out = (mf__outfile){.fd = -1, .path = strdup(path), .held = mf__direct_alloc((size_t)HELD_BYTES)};
    if (!out->path || !out->held) {
        mf__outfile_drop(out);
        return mf__fail(err, MF_E_NOMEM, "no memory to write %s", path);
    }
    out->fd = open(path, O_RDWR | O_CLOEXEC | (start ? 0 : O_CREAT | O_EXCL), 0666);
    mf_status status = MF_OK;
    if (out->fd < 0)
        status = mf__fail_errno(err, errno, "cannot %s %s", start ? "open" : "create", path);
    else if (start)
        status = reload_tail(out, start, err);
    if (status == MF_OK)
        set_direct(out, true);
    else
        mf__outfile_drop(out);
    return status;
}

/* data and offset are aligned; so is size unless the file is not direct any more. */
static mf_status write_blocks(mf__outfile *f, const uint8_t *data, int64_t size, int64_t offset, mf_error *err) {
    while (f->direct && size > 0) {
        size_t n = (size_t)size < MAX_TRANSFER ? (size_t)size : MAX_TRANSFER;
        ssize_t put = pwrite(f->fd, data, n, (off_t)offset);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0 && errno != EINVAL)
            return mf__fail_errno(err, errno, "cannot write %" PRId64 " bytes at offset %" PRId64 " of %s", size,
                                  offset, f->path);
        if (put > 0) data += put, offset += put, size -= put;
        if (put <= 0 || put % ALIGN) set_direct(f, false); /* not here: through the cache from now on */
    }
    return mf__pwrite_all(f->fd, data, (size_t)size, offset, f->path, err);
}

static mf_status flush_whole(mf__outfile *f, mf_error *err) {
    int64_t n = down(f->size - f->held_off);
    if (!n) return MF_OK;
    MF__TRY(write_blocks(f, f->held, n, f->held_off, err));
    memmove(f->held, f->held + n, (size_t)(f->size - f->held_off - n));
    f->held_off += n;
    return MF_OK;
}

mf_status mf__outfile_append(mf__outfile *f, const void *data, int64_t size, mf_error *err) {
    const uint8_t *p = data;
    f->dirty |= size > 0;
    while (size > 0) {
        int64_t held = f->size - f->held_off, n;
        if (held == 0 && size >= ALIGN && (uintptr_t)p % (uintptr_t)ALIGN == 0) { /* no need to copy */
            n = down(size);
            MF__TRY(write_blocks(f, p, n, f->held_off, err));
            f->held_off += n;
        } else {
            n = size < HELD_BYTES - held ? size : HELD_BYTES - held;
            memcpy(f->held + held, p, (size_t)n);
        }
        f->size += n;
        p += n, size -= n;
        if (f->size - f->held_off == HELD_BYTES) MF__TRY(flush_whole(f, err));
    }
    return MF_OK;
}

mf_status mf__outfile_sync(mf__outfile *f, mf_error *err) {
    if (!f->dirty) return MF_OK;
    MF__TRY(flush_whole(f, err));
    int64_t tail = f->size - f->held_off;
    if (tail) {
        memset(f->held + tail, 0, (size_t)(ALIGN - tail));
        MF__TRY(write_blocks(f, f->held, f->direct ? ALIGN : tail, f->held_off, err));
        if (ftruncate(f->fd, (off_t)f->size) != 0)
            return mf__fail_errno(err, errno, "cannot set the length of %s", f->path);
    }
    if (fsync(f->fd) != 0) return mf__fail_errno(err, errno, "cannot sync %s", f->path);
#ifdef POSIX_FADV_DONTNEED
    if (!f->direct) posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
#endif
    f->dirty = false;
    return MF_OK;
}

void mf__outfile_drop(mf__outfile *f) {
    if (f->path && f->fd >= 0) close(f->fd);
    mf__direct_free(f->held, (size_t)HELD_BYTES);
    free(f->path);
    *f = (mf__outfile){.fd = -1};
}

mf_status mf__outfile_close(mf__outfile *f, mf_error *err) {
    if (!f->path) return MF_OK;
    f->dirty = true; /* an empty file is synced too */
    mf_status status = mf__outfile_sync(f, err);
    int fd = f->fd;
    f->fd = -1;
    if (close(fd) != 0 && status == MF_OK) status = mf__fail_errno(err, errno, "cannot close %s", f->path);
    mf__outfile_drop(f);
    return status;
}
