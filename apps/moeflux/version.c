/* moeflux --version: what this program is, and what it was built with. */
#include <stdio.h>

#include "app.h"
#include "backend/backend.h"
#include "version_commit.h"

#ifdef MF_HAVE_LIBEDIT
#define EDITING "editing of lines"
#else
#define EDITING "no editing of lines (built without libedit)"
#endif
#ifdef MF_HAVE_CURL
#define PULLING "downloads"
#else
#define PULLING "no downloads (built without libcurl)"
#endif
#ifdef MF_HAVE_MPI
#define RANKS "ranks of an MPI job"
#else
#define RANKS "one machine (built without MPI)"
#endif
#ifdef MF_HAVE_URING
#define RINGS "io_uring"
#else
#define RINGS "no io_uring (built without liburing)"
#endif

void app_print_version(void) {
    printf("moeflux %d.%d.%d%s%s%s\n", MF_VERSION_MAJOR, MF_VERSION_MINOR, MF_VERSION_PATCH,
           *MOEFLUX_COMMIT ? " (commit " : "", MOEFLUX_COMMIT, *MOEFLUX_COMMIT ? ")" : "");
    printf("backends:");
    for (int i = 0; i < mf__backend_count(); i++) printf("%s %s", i ? "," : "", mf__backend_at(i)->name);
    printf("\nfeatures: %s, %s, %s, %s\n", RINGS, EDITING, PULLING, RANKS);
}
