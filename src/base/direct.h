/* Large files past the page cache.
 *
 * Conversion and verification touch every byte once: through the page cache they would push out everything else, count
 * against a memory limit, and be several times slower. Where the file system has no direct access (tmpfs), the same
 * functions go through the cache and drop what they leave there. */
#ifndef MF_BASE_DIRECT_H
#define MF_BASE_DIRECT_H

#include "base/status.h"

#define MF_DIRECT_ALIGN 4096

void *mf__direct_alloc(size_t size); /* MF_DIRECT_ALIGN aligned, in huge pages where possible; NULL: out of memory */
void mf__direct_free(void *buf, size_t size); /* NULL is fine */

/* ---- reading at any offset; several threads may read at once ---- */

typedef struct mf__infile {
    int fd, direct_fd; /* direct_fd -1: not available */
    int64_t size;
    int64_t mtime_ns;
    const char *path; /* borrowed */
} mf__infile;

mf_status mf__infile_open(const char *path, mf__infile *out, mf_error *err);
void mf__infile_close(mf__infile *f); /* zeroed and closed ones are fine */
/* The buffer a read of `size` bytes needs, whatever the offset. */
size_t mf__infile_room(int64_t size);
/* Reads [offset, offset + size) into buf, which is aligned and has mf__infile_room(size) bytes; *data points to the
 * first byte wanted. A file that became shorter is MF_E_FORMAT. */
mf_status mf__infile_read(const mf__infile *f, int64_t offset, int64_t size, void *buf, const uint8_t **data,
                          mf_error *err);
/* MF_E_MISMATCH when the file's size or time of change is not what it was at open. */
mf_status mf__infile_unchanged(const mf__infile *f, mf_error *err);

/* ---- writing from front to back ---- */

typedef struct mf__outfile {
    int fd;
    bool direct, dirty; /* dirty: bytes were appended since the last sync */
    char *path;
    int64_t size;     /* bytes appended so far */
    int64_t held_off; /* multiple of MF_DIRECT_ALIGN: where held goes */
    uint8_t *held;    /* [size - held_off] bytes not written yet, or of a block that will be written again */
} mf__outfile;

/* start 0: the file must not exist. Otherwise it must have at least that many bytes; what follows is cut off. */
mf_status mf__outfile_open(const char *path, int64_t start, mf__outfile *out, mf_error *err);
mf_status mf__outfile_append(mf__outfile *f, const void *data, int64_t size, mf_error *err);
mf_status mf__outfile_sync(mf__outfile *f, mf_error *err);  /* all that was appended is on the disk */
mf_status mf__outfile_close(mf__outfile *f, mf_error *err); /* sync and close; closed ones are fine */
void mf__outfile_drop(mf__outfile *f);                      /* closes without caring; closed ones are fine */

#endif
