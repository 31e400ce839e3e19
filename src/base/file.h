/* Files: mapping, whole reads, and writes that are complete or absent. */
#ifndef MF_BASE_FILE_H
#define MF_BASE_FILE_H

#include "base/status.h"

/* A read-only mapping of a whole file. */
typedef struct mf__map {
    const uint8_t *data; /* NULL for an empty file */
    size_t size;
} mf__map;

mf_status mf__map_open(const char *path, mf__map *out, mf_error *err); /* refuses directories and devices */
void mf__map_close(mf__map *map);                                      /* zeroed maps are fine */
/* Bytes [from, to) were read and need not stay in the process's memory; the page cache keeps them. */
void mf__map_let_go(const mf__map *map, size_t from, size_t to);
/* Told on the calling thread while much is read: bytes so far, of all. fn NULL: nobody asks. */
typedef struct mf__reading {
    void (*fn)(void *user, int64_t done, int64_t total);
    void *user;
} mf__reading;
/* Reads the mapped file, on several threads, into memory of the process's own, in huge pages where possible, at the
 * same address: nothing is evicted any more, and what happens to the file does not matter. False: it stays mapped (not
 * on this system, no memory, the file cannot be read or is another one now). told may be NULL. */
bool mf__map_hold(mf__map *map, const char *path, const mf__reading *told);

/* Opens for reading (close() it); refuses what is not a regular file. size may be NULL. */
mf_status mf__file_open(const char *path, int *fd, int64_t *size, mf_error *err);

bool mf__path_exists(const char *path);
bool mf__path_is_dir(const char *path);
mf_status mf__file_size(const char *path, int64_t *out, mf_error *err);
char *mf__path_join(const char *dir, const char *name); /* malloc'd; NULL when out of memory */

/* The whole file as a malloc'd buffer with a NUL behind it; refuses more than max_size bytes. */
mf_status mf__file_read(const char *path, size_t max_size, char **out, size_t *out_size, mf_error *err);

/* Loops over short transfers and EINTR. A read that meets the end of the file is MF_E_FORMAT ("... is N bytes short").
 */
mf_status mf__pread_all(int fd, void *buf, size_t size, int64_t offset, const char *path, mf_error *err);
mf_status mf__pwrite_all(int fd, const void *buf, size_t size, int64_t offset, const char *path, mf_error *err);

/* Writes path so that a crash or a full disk leaves the old file or the new one, never a piece: a temporary file beside
 * it, fsync, rename, fsync of the directory. */
mf_status mf__file_replace(const char *path, const void *data, size_t size, mf_error *err);
/* The same for what is made in pieces: produce calls write with one after the other. */
typedef mf_status mf__write_fn(void *sink, const void *data, size_t size, mf_error *err);
typedef mf_status mf__produce_fn(void *user, mf__write_fn *write, void *sink, mf_error *err);
mf_status mf__file_replace_by(const char *path, mf__produce_fn *produce, void *user, mf_error *err);
mf_status mf__dir_sync(const char *dir, mf_error *err);
mf_status mf__dir_make(const char *path, mf_error *err);                  /* one level; an existing directory is fine */
mf_status mf__file_copy(const char *from, const char *to, mf_error *err); /* as mf__file_replace */

/* Removes a directory tree that moeflux made. Refuses "/", "." and paths that end in "..", and links to directories;
 * links inside the tree are removed, never followed. */
mf_status mf__dir_remove(const char *path, mf_error *err);

#endif
