/* What a killed conversion left: recognised and removed.
 *
 * DIR.partial is ours when it has our marker, nobody holds the marker's lock, and every entry is one we made: the
 * trunk, the manifest, expert files, temporary files of atomic replaces, and the names listed in the marker. Anything
 * else in there is somebody's, and then nothing is touched. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/strbuf.h"
#include "weights/native_build.h"

#define MARKER_MAX ((size_t)1 << 20)

static bool starts_with(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

static bool ours_in_experts(const char *name, const char *list) {
    (void)list;
    return starts_with(name, "layer_");
}

/* list: names, one per line, each line (also the first and last) between newlines. */
static bool ours_on_top(const char *name, const char *list) {
    if (strcmp(name, MF__TRUNK_NAME) == 0 || strcmp(name, MF__MANIFEST_NAME) == 0 ||
        strcmp(name, MF__EXPERTS_DIR) == 0 || strcmp(name, MF__SECOND_DIR) == 0 || starts_with(name, ".moeflux-"))
        return true;
    size_t n = strlen(name);
    for (const char *p = strstr(list, name); p; p = strstr(p + 1, name))
        if (p > list && p[-1] == '\n' && p[n] == '\n') return true;
    return false;
}

/* True when every entry of the directory is a regular file (or, on top, a directory of experts) and known to be ours. A
 * stranger's name is copied to `stranger`. */
static bool all_ours(const char *path, bool top, bool (*ours)(const char *, const char *), const char *list,
                     char stranger[MF__NAME_MAX + 1]) {
    DIR *dir = opendir(path);
    if (!dir) return errno == ENOENT;
    bool ok = true;
    for (struct dirent *e; ok && (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        struct stat st;
        bool may_be_dir = top && (strcmp(e->d_name, MF__EXPERTS_DIR) == 0 || strcmp(e->d_name, MF__SECOND_DIR) == 0);
        ok = fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
             (may_be_dir ? S_ISDIR(st.st_mode) : S_ISREG(st.st_mode)) && ours(e->d_name, list);
        if (!ok) {
            snprintf(stranger, MF__NAME_MAX + 1, "%s", e->d_name);
        }
    }
    closedir(dir);
    return ok;
}

/* The marker's lines with a newline before the first; malloc'd, NULL when it cannot be read. */
static char *read_list(const char *marker) {
    char *text;
    size_t size;
    if (mf__file_read(marker, MARKER_MAX, &text, &size, NULL) != MF_OK) return NULL;
    char *list = malloc(size + 2);
    if (list) {
        list[0] = '\n';
        memcpy(list + 1, text, size);
        list[size + 1] = '\0';
    }
    free(text);
    return list;
}

static mf_status remove_unlocked(const char *partial, const char *marker, mf_error *err) {
    char stranger[MF__NAME_MAX + 1] = "";
    char *experts = mf__path_join(partial, MF__EXPERTS_DIR), *second = mf__path_join(partial, MF__SECOND_DIR);
    char *list = read_list(marker);
    mf_status status;
    if (!experts || !second || !list)
        status = mf__fail(err, MF_E_NOMEM, "no memory to look at %s", partial);
    else if (!all_ours(partial, true, ours_on_top, list, stranger) ||
             !all_ours(experts, false, ours_in_experts, list, stranger) ||
             !all_ours(second, false, ours_in_experts, list, stranger))
        status =
            mf__fail(err, MF_E_EXISTS,
                     "%s is left from a conversion that did not finish, but \"%s\" in it is not from there: move it "
                     "away and remove the directory",
                     partial, stranger);
    else
        status = mf__dir_remove(partial, err);
    free(experts);
    free(second);
    free(list);
    return status;
}

void mf__partial_sweep(const char *partial) {
    DIR *dir = opendir(partial);
    if (!dir) return;
    for (struct dirent *e; (e = readdir(dir));) {
        if (starts_with(e->d_name, ".moeflux-") && mf__text_ends_with(e->d_name, ".tmp"))
            unlinkat(dirfd(dir), e->d_name, 0);
    }
    closedir(dir);
}

mf_status mf__partial_remove(const char *partial, mf_error *err) {
    char *marker = mf__path_join(partial, MF__MARKER_NAME);
    if (!marker) return mf__fail(err, MF_E_NOMEM, "no memory to look at %s", partial);
    mf_status status;
    int fd = open(marker, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        status =
            mf__fail(err, MF_E_EXISTS, "%s exists and was not made by moeflux: move it away or remove it", partial);
    else if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        status = mf__fail(err, MF_E_EXISTS, "%s is being written by another moeflux convert", partial);
    else
        status = remove_unlocked(partial, marker, err);
    if (fd >= 0) close(fd);
    free(marker);
    return status;
}

/* ---- the end ---- */

static mf_status sync_tree(const char *partial, mf_error *err) {
    static const char *const sets[] = {MF__EXPERTS_DIR, MF__SECOND_DIR};
    for (size_t i = 0; i < MF__COUNT(sets); i++) {
        char *experts = mf__path_join(partial, sets[i]);
        mf_status st = experts ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for a path");
        if (st == MF_OK && mf__path_is_dir(experts)) st = mf__dir_sync(experts, err);
        free(experts);
        MF__TRY(st);
    }
    return mf__dir_sync(partial, err);
}

mf_status mf__partial_publish(const char *partial, const char *dir, mf_error *err) {
    struct stat st;
    MF__TRY(sync_tree(partial, err));
    if (lstat(dir, &st) == 0) /* rename would silently replace an empty directory */
        return mf__fail(err, MF_E_EXISTS, "%s appeared while it was being written: choose another name", dir);
    if (rename(partial, dir) != 0) return mf__fail_errno(err, errno, "cannot rename %s to %s", partial, dir);
    return MF_OK;
}

static void remove_from(const char *dir, const char *name) {
    char *path = mf__path_join(dir, name);
    if (path) unlink(path);
    free(path);
}

static mf_status sync_parent(const char *dir, mf_error *err) {
    const char *slash = strrchr(dir, '/');
    if (!slash) return mf__dir_sync(".", err);
    char *parent = strndup(dir, slash == dir ? 1 : (size_t)(slash - dir));
    mf_status st = parent ? mf__dir_sync(parent, err) : mf__fail(err, MF_E_NOMEM, "no memory for a path");
    free(parent);
    return st;
}

mf_status mf__published_settle(const char *dir, mf_error *err) {
    remove_from(dir, MF__JOURNAL_NAME);
    remove_from(dir, MF__MARKER_NAME);
    return sync_parent(dir, err);
}
