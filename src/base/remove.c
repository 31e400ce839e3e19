/* Removing a directory tree. Everything goes through directory descriptors opened with O_NOFOLLOW, so a link that is
 * swapped in meanwhile cannot lead the removal out of the tree. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

#define MAX_DEPTH 32 /* one descriptor per level; a model directory has two */

static mf_status remove_entries(int dir_fd, const char *path, int depth, mf_error *err);

/* Removes one entry of the directory dir_fd, and all below it. path is the tree's root, for errors. */
static mf_status remove_entry(int dir_fd, const char *name, const char *path, int depth, mf_error *err) {
    struct stat st;
    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return mf__fail_errno(err, errno, "cannot remove %s: cannot look at %s in it", path, name);
    if (!S_ISDIR(st.st_mode)) {
        if (unlinkat(dir_fd, name, 0) == 0) return MF_OK;
        return mf__fail_errno(err, errno, "cannot remove %s: cannot remove %s in it", path, name);
    }
    if (depth >= MAX_DEPTH)
        return mf__fail(err, MF_E_LIMIT, "cannot remove %s: %s is nested deeper than %d levels", path, name, MAX_DEPTH);
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return mf__fail_errno(err, errno, "cannot remove %s: cannot open %s in it", path, name);
    MF__TRY(remove_entries(fd, path, depth, err));
    if (unlinkat(dir_fd, name, AT_REMOVEDIR) == 0) return MF_OK;
    return mf__fail_errno(err, errno, "cannot remove %s: cannot remove the directory %s in it", path, name);
}

/* Empties the directory; takes dir_fd over. */
static mf_status remove_entries(int dir_fd, const char *path, int depth, mf_error *err) {
    DIR *dir = fdopendir(dir_fd);
    if (!dir) {
        mf_status status = mf__fail_errno(err, errno, "cannot remove %s: cannot list it", path);
        close(dir_fd);
        return status;
    }
    mf_status status = MF_OK;
    bool removed = false; /* some file systems skip entries while others vanish: look again until nothing is left */
    while (status == MF_OK) {
        errno = 0;
        struct dirent *e = readdir(dir);
        if (!e && errno) {
            status = mf__fail_errno(err, errno, "cannot remove %s: cannot list it", path);
        } else if (!e) {
            if (!removed) break;
            removed = false;
            rewinddir(dir);
        } else if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            status = remove_entry(dir_fd, e->d_name, path, depth + 1, err);
            removed = true;
        }
    }
    closedir(dir);
    return status;
}

mf_status mf__dir_remove(const char *path, mf_error *err) {
    /* Without the slashes behind it: "link/" would be followed where "link" is not. */
    size_t n = strlen(path);
    while (n > 0 && path[n - 1] == '/')
        n--;
    char *tree = strndup(path, n);
    if (!tree) return mf__fail(err, MF_E_NOMEM, "no memory to remove %s", path);
    const char *slash = strrchr(tree, '/');
    const char *name = slash ? slash + 1 : tree;

    mf_status status;
    int fd = -1;
    struct stat st;
    if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        status = mf__fail(err, MF_E_INVALID, "refusing to remove \"%s\": not the name of a directory", path);
    else if (lstat(tree, &st) != 0)
        status = mf__fail_errno(err, errno, "cannot remove %s", tree);
    else if (!S_ISDIR(st.st_mode))
        status = mf__fail(err, MF_E_INVALID, "refusing to remove %s: it is not a directory", tree);
    else if ((fd = open(tree, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0)
        status = mf__fail_errno(err, errno, "cannot remove %s", tree);
    else
        status = remove_entries(fd, tree, 0, err);

    if (status == MF_OK && rmdir(tree) != 0) status = mf__fail_errno(err, errno, "cannot remove %s", tree);
    free(tree);
    return status;
}
