/* Linux control groups: where the limits of this process are written, for versions 1 and 2 and for containers that see
 * only a part of the tree. */
#ifndef MF_BASE_CGROUP_H
#define MF_BASE_CGROUP_H

#include "base/status.h"

typedef struct mf__cgroup {
    int version;    /* 1 or 2 */
    char dir[4096]; /* the group's directory, as far up as mf__cgroup_up went */
    size_t n_mount; /* dir[0 .. n_mount) is the mount point: the topmost group that can be seen */
} mf__cgroup;

/* The group of this process that has the controller ("memory", "cpu"). False when there is none, as on other systems.
 * root is "" except in tests. */
bool mf__cgroup_find(const char *root, const char *controller, mf__cgroup *out);
bool mf__cgroup_up(mf__cgroup *group); /* to the parent; false at the mount point */

/* The group's file as text (at most size - 1 bytes); false when it has no such file. */
bool mf__cgroup_read(const mf__cgroup *group, const char *file, char *text, size_t size);

/* A file with one number; false for "max", for a missing file and for anything that is not a number. */
bool mf__cgroup_read_int(const mf__cgroup *group, const char *file, int64_t *out);

#endif
