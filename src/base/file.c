/* Reading: mappings, whole files, and transfers that are complete or an error. Writing whole files is replace.c. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/direct.h"
#include "base/pages.h"

/* The kernel transfers at most 0x7ffff000 bytes per call; macOS refuses more than INT_MAX. */
#define MAX_TRANSFER ((size_t)1 << 30)

static const char *kind_of(mode_t mode) {
    return S_ISDIR(mode)    ? "a directory"
           : S_ISCHR(mode)  ? "a character device"
           : S_ISBLK(mode)  ? "a block device"
           : S_ISFIFO(mode) ? "a pipe"
           : S_ISSOCK(mode) ? "a socket"
                            : "not a file";
}

static mf_status not_regular(const char *path, mode_t mode, mf_error *err) {
    return mf__fail(err, MF_E_INVALID, "%s is %s, expected a regular file", path, kind_of(mode));
}

mf_status mf__file_open(const char *path, int *fd, int64_t *size, mf_error *err) {
    *fd = -1;
    if (size) *size = 0;
    /* O_NONBLOCK: opening a pipe nobody writes to must not hang; it means nothing for regular files. */
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f < 0) return mf__fail_errno(err, errno, "cannot open %s", path);
    struct stat st;
    mf_status status = MF_OK;
    if (fstat(f, &st) != 0)
        status = mf__fail_errno(err, errno, "cannot read the size of %s", path);
    else if (!S_ISREG(st.st_mode))
        status = not_regular(path, st.st_mode, err);
    if (status != MF_OK) {
        close(f);
        return status;
    }
    *fd = f;
    if (size) *size = st.st_size;
    return MF_OK;
}

static size_t whole_pages(size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (size + page - 1) / page * page;
}

/* Memory of the process's own that begins where a huge page does; MAP_FAILED: none. `size` is of whole pages. */
static uint8_t *huge_room(size_t size) {
    uint8_t *room = mmap(NULL, size + MF_HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) return room;
    size_t before = (MF_HUGE_PAGE - (uintptr_t)room % MF_HUGE_PAGE) % MF_HUGE_PAGE;
    if (before) munmap(room, before);
    munmap(room + before + size, MF_HUGE_PAGE - before);
    return room + before;
}

/* Maps the file where a huge page of it can be a huge page of memory: walking through weights then misses the page
 * tables five hundred times less often. Systems that have no such pages for files map small ones at the same place. */
static void *map_aligned(int fd, size_t size) {
    if (size < MF_HUGE_PAGE) return mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    uint8_t *room = huge_room(whole_pages(size));
    if (room == MAP_FAILED) return room;
    void *data = mmap(room, size, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
    int errnum = errno;
    if (data == MAP_FAILED)
        munmap(room, whole_pages(size));
    else
        mf__pages_wish(data, size);
    errno = errnum;
    return data;
}

mf_status mf__map_open(const char *path, mf__map *out, mf_error *err) {
    *out = (mf__map){0};
    int fd;
    int64_t size;
    MF__TRY(mf__file_open(path, &fd, &size, err));
    mf_status status = MF_OK;
    if ((uint64_t)size > SIZE_MAX) {
        status = mf__fail(err, MF_E_LIMIT, "%s has %" PRId64 " bytes, more than can be mapped", path, size);
    } else if (size > 0) {
        void *data = map_aligned(fd, (size_t)size);
        if (data == MAP_FAILED)
            status = mf__fail_errno(err, errno, "cannot map %s (%" PRId64 " bytes)", path, size);
        else
            *out = (mf__map){.data = data, .size = (size_t)size};
    }
    close(fd);
    return status;
}

void mf__map_let_go(const mf__map *map, size_t from, size_t to) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    from = (from + page - 1) / page * page;
    to = to >= map->size ? (to + page - 1) / page * page : to / page * page;
    if (map->data && from < to) madvise((void *)(map->data + from), to - from, MADV_DONTNEED);
}

#if defined(__linux__) && defined(MREMAP_FIXED)
#define HOLD_STEP ((int64_t)16 << 20)
#define HOLD_THREADS 8 /* that read, at most: one does not keep a fast drive busy */

typedef struct whole_read {
    mf__infile file;
    uint8_t *to;
    const mf__reading *told;
    _Atomic int64_t next, done;
    _Atomic bool failed;
} whole_read;

static void read_steps(whole_read *w, bool tell) {
    const uint8_t *data;
    int64_t at;
    while (!atomic_load(&w->failed) && (at = atomic_fetch_add(&w->next, HOLD_STEP)) < w->file.size) {
        int64_t n = w->file.size - at < HOLD_STEP ? w->file.size - at : HOLD_STEP;
        /* at is aligned: data is to + at, and no more than whole blocks are written */
        if (mf__infile_read(&w->file, at, n, w->to + at, &data, NULL) != MF_OK) atomic_store(&w->failed, true);
        int64_t done = atomic_fetch_add(&w->done, n) + n;
        if (tell && w->told && w->told->fn) w->told->fn(w->told->user, done, w->file.size);
    }
}

static void *read_on(void *w) {
    read_steps(w, false);
    return NULL;
}

/* The caller reads too, and is the one that tells how far it is. */
static bool read_whole(const char *path, uint8_t *to, int64_t size, const mf__reading *told) {
    whole_read w = {.to = to, .told = told};
    pthread_t threads[HOLD_THREADS];
    int n = 0;
    if (mf__infile_open(path, &w.file, NULL) != MF_OK) return false;
    bool ok = w.file.size == size;
    if (ok) {
        while (n < HOLD_THREADS - 1 && (n + 1) * HOLD_STEP < size && !pthread_create(&threads[n], NULL, read_on, &w))
            n++;
        read_steps(&w, true);
        for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    }
    ok = ok && !atomic_load(&w.failed) && mf__infile_unchanged(&w.file, NULL) == MF_OK;
    if (ok && told && told->fn) told->fn(told->user, size, size);
    mf__infile_close(&w.file);
    return ok;
}

bool mf__map_hold(mf__map *map, const char *path, const mf__reading *told) {
    size_t size = whole_pages(map->size);
    if (!map->data) return false;
    uint8_t *room = huge_room(size);
    if (room == MAP_FAILED) return false;
    mf__pages_wish(room, size);
    if (!read_whole(path, room, (int64_t)map->size, told) || mprotect(room, size, PROT_READ) != 0 ||
        mremap(room, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)map->data) == MAP_FAILED) {
        munmap(room, size);
        return false;
    }
    int fd; /* what was read before is in the page cache, and of no use there */
    if (mf__file_open(path, &fd, NULL, NULL) == MF_OK) {
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
    return true;
}
#else
bool mf__map_hold(mf__map *map, const char *path, const mf__reading *told) {
    (void)map, (void)path, (void)told;
    return false;
}
#endif

void mf__map_close(mf__map *map) {
    if (map->data) munmap((void *)map->data, map->size);
    *map = (mf__map){0};
}

bool mf__path_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

bool mf__path_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

mf_status mf__file_size(const char *path, int64_t *out, mf_error *err) {
    struct stat st;
    if (stat(path, &st) != 0) return mf__fail_errno(err, errno, "cannot read the size of %s", path);
    if (!S_ISREG(st.st_mode)) return not_regular(path, st.st_mode, err);
    *out = st.st_size;
    return MF_OK;
}

char *mf__path_join(const char *dir, const char *name) {
    size_t n_dir = strlen(dir), n_name = strlen(name);
    bool slash = n_dir > 0 && dir[n_dir - 1] != '/';
    char *path = malloc(n_dir + slash + n_name + 1);
    if (!path) return NULL;
    memcpy(path, dir, n_dir);
    if (slash) path[n_dir] = '/';
    memcpy(path + n_dir + slash, name, n_name + 1);
    return path;
}

/* Reads to the end rather than to the size: files of /proc claim to be empty, and a file may grow meanwhile. */
static mf_status read_to_end(int fd, const char *path, size_t max_size, size_t expect, char **out, size_t *out_size,
                             mf_error *err) {
    size_t capacity = expect + 1, size = 0;
    char *buf = malloc(capacity);
    for (;;) {
        if (!buf) return mf__fail(err, MF_E_NOMEM, "no memory to read %s (%zu bytes)", path, capacity);
        size_t room = capacity - size < MAX_TRANSFER ? capacity - size : MAX_TRANSFER;
        ssize_t n = read(fd, buf + size, room);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            int errnum = errno;
            free(buf);
            return mf__fail_errno(err, errnum, "cannot read %s", path);
        }
        if (n == 0) break;
        size += (size_t)n;
        if (size > max_size) {
            free(buf);
            return mf__fail(err, MF_E_LIMIT, "%s has more than %zu bytes, the most that is accepted", path, max_size);
        }
        if (size == capacity) { /* the last byte is kept free for the NUL */
            capacity = capacity < 2048 ? 4096 : capacity * 2;
            char *grown = realloc(buf, capacity);
            if (!grown) free(buf);
            buf = grown;
        }
    }
    buf[size] = '\0';
    *out = buf;
    *out_size = size;
    return MF_OK;
}

mf_status mf__file_read(const char *path, size_t max_size, char **out, size_t *out_size, mf_error *err) {
    *out = NULL;
    *out_size = 0;
    int fd;
    int64_t size;
    MF__TRY(mf__file_open(path, &fd, &size, err));
    mf_status status;
    if ((uint64_t)size > max_size || (uint64_t)size >= SIZE_MAX)
        status =
            mf__fail(err, MF_E_LIMIT, "%s has %" PRId64 " bytes, more than the %zu accepted", path, size, max_size);
    else
        status = read_to_end(fd, path, max_size, (size_t)size, out, out_size, err);
    close(fd);
    return status;
}

mf_status mf__pread_all(int fd, void *buf, size_t size, int64_t offset, const char *path, mf_error *err) {
    size_t done = 0;
    while (done < size) {
        size_t want = size - done < MAX_TRANSFER ? size - done : MAX_TRANSFER;
        ssize_t n = pread(fd, (char *)buf + done, want, (off_t)(offset + (int64_t)done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return mf__fail_errno(err, errno, "cannot read %zu bytes at offset %" PRId64 " of %s", size, offset, path);
        if (n == 0)
            return mf__fail(err, MF_E_FORMAT, "%s is %zu bytes short: it ends inside the %zu bytes at offset %" PRId64,
                            path, size - done, size, offset);
        done += (size_t)n;
    }
    return MF_OK;
}

mf_status mf__pwrite_all(int fd, const void *buf, size_t size, int64_t offset, const char *path, mf_error *err) {
    size_t done = 0;
    while (done < size) {
        size_t want = size - done < MAX_TRANSFER ? size - done : MAX_TRANSFER;
        ssize_t n = pwrite(fd, (const char *)buf + done, want, (off_t)(offset + (int64_t)done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) /* a write that writes nothing would loop for ever */
            return mf__fail_errno(err, n < 0 ? errno : EIO, "cannot write %zu bytes at offset %" PRId64 " of %s", size,
                                  offset, path);
        done += (size_t)n;
    }
    return MF_OK;
}
