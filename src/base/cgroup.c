/* /proc/self/cgroup says in which group we are: lines of "number:controllers:path", with no controllers for version 2.
 * /proc/self/mountinfo says where the trees are: "id parent dev ROOT MOUNTPOINT options ... - TYPE source
 * SUPEROPTIONS". ROOT is the group that is mounted; in a container it is usually our own group, so that path minus
 * ROOT, below MOUNTPOINT, is the directory. When path does not begin with ROOT, the mount point is the best that can be
 * seen. */
#include "base/cgroup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

#define MAX_PROC_BYTES ((size_t)4 << 20) /* mountinfo on a machine with thousands of containers */
#define MAX_FILE_BYTES ((size_t)64 << 10)

static char *read_text(const char *root, const char *path) {
    char full[4200];
    if (snprintf(full, sizeof full, "%s%s", root, path) >= (int)sizeof full) return NULL;
    char *text;
    size_t size;
    return mf__file_read(full, MAX_PROC_BYTES, &text, &size, NULL) == MF_OK ? text : NULL;
}

/* Is word one of the comma-separated words of list? */
static bool has_word(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *p = list; p; p = strchr(p, ',')) {
        if (*p == ',') p++;
        if (strncmp(p, word, n) == 0 && (p[n] == ',' || p[n] == '\0')) return true;
    }
    return false;
}

/* Our path in the tree of the controller; the version in *version. Version 1 wins: on a machine with both, a
 * controller belongs to one of them, and then it is listed by name. text is cut into lines. */
static const char *own_path(char *text, const char *controller, int *version) {
    const char *v2 = NULL;
    char *rest = text, *line;
    while ((line = strsep(&rest, "\n"))) {
        strsep(&line, ":");
        const char *controllers = strsep(&line, ":");
        if (!line || line[0] != '/') continue;
        if (!*controllers) {
            v2 = line;
        } else if (has_word(controllers, controller)) {
            *version = 1;
            return line;
        }
    }
    *version = 2;
    return v2;
}

/* mountinfo writes space, tab, newline and backslash as \ooo. */
static void unescape(char *s) {
    char *to = s;
    for (; *s; s++) {
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' && s[3] >= '0' && s[3] <= '7') {
            *to++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
            s += 3;
        } else {
            *to++ = *s;
        }
    }
    *to = '\0';
}

/* Where the tree is mounted, and which group is its top. text is cut into words. */
static bool find_mount(char *text, const char *controller, int version, const char **top, const char **mount) {
    char *rest = text, *line;
    while ((line = strsep(&rest, "\n"))) {
        char *separator = strstr(line, " - ");
        if (!separator) continue;
        *separator = '\0';
        char *tail = separator + 3;
        const char *type = strsep(&tail, " ");
        strsep(&tail, " "); /* source */
        if (!tail) continue;
        if (version == 2 ? strcmp(type, "cgroup2") != 0 : strcmp(type, "cgroup") != 0 || !has_word(tail, controller))
            continue;
        char *words[5] = {0};
        for (int i = 0; i < 5; i++)
            words[i] = strsep(&line, " ");
        if (!words[4]) continue;
        unescape(words[3]);
        unescape(words[4]);
        *top = words[3];
        *mount = words[4];
        return true;
    }
    return false;
}

/* path without the leading top; "" when path is not below top. */
static const char *below(const char *path, const char *top) {
    size_t n = strcmp(top, "/") == 0 ? 0 : strlen(top);
    if (strncmp(path, top, n) != 0 || (path[n] != '/' && path[n] != '\0')) return "";
    return strcmp(path + n, "/") == 0 ? "" : path + n;
}

bool mf__cgroup_find(const char *root, const char *controller, mf__cgroup *out) {
    *out = (mf__cgroup){0};
    char *groups = read_text(root, "/proc/self/cgroup");
    char *mounts = read_text(root, "/proc/self/mountinfo");
    const char *path, *top, *mount;
    bool found = groups && mounts && (path = own_path(groups, controller, &out->version)) &&
                 find_mount(mounts, controller, out->version, &top, &mount);
    if (found) {
        int n_mount = snprintf(out->dir, sizeof out->dir, "%s%s", root, mount);
        int n = snprintf(out->dir, sizeof out->dir, "%s%s%s", root, mount, below(path, top));
        out->n_mount = (size_t)n_mount;
        found = n > 0 && n < (int)sizeof out->dir && !strstr(path, "/../");
    }
    free(groups);
    free(mounts);
    return found;
}

bool mf__cgroup_up(mf__cgroup *group) {
    char *slash = strrchr(group->dir + group->n_mount, '/');
    if (!slash) return false;
    *slash = '\0';
    return true;
}

bool mf__cgroup_read(const mf__cgroup *group, const char *file, char *text, size_t size) {
    char *path = mf__path_join(group->dir, file);
    char *bytes = NULL;
    size_t n = 0;
    bool ok = path && mf__file_read(path, MAX_FILE_BYTES, &bytes, &n, NULL) == MF_OK;
    if (ok) {
        if (n > size - 1) n = size - 1;
        memcpy(text, bytes, n);
        text[n] = '\0';
    }
    free(bytes);
    free(path);
    return ok;
}

bool mf__cgroup_read_int(const mf__cgroup *group, const char *file, int64_t *out) {
    char text[64];
    if (!mf__cgroup_read(group, file, text, sizeof text)) return false;
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || (*end != '\0' && *end != '\n') || errno == ERANGE) return false;
    *out = value;
    return true;
}
