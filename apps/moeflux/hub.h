/* The protocol of the Hugging Face hub, as far as a download needs it:
 *
 *   ENDPOINT/api/models/ORG/NAME/revision/REV              {"sha": COMMIT, ...}
 *   ENDPOINT/api/models/ORG/NAME/tree/COMMIT?recursive=1   [{"type": "file", "path", "size", "oid", "lfs": {"oid"}},
 * ...] ENDPOINT/ORG/NAME/resolve/COMMIT/PATH                  the bytes, often by way of a redirect
 *
 * Large files have their SHA-256 in lfs.oid; small ones the name that git gives them (a SHA-1) in oid. */
#ifndef MOEFLUX_HUB_H
#define MOEFLUX_HUB_H

#include "fetch.h"

#define HUB_ENDPOINT "https://huggingface.co"

typedef struct hub_file {
    char *path;
    int64_t size;
    char sha[65];
    bool git;
} hub_file;

typedef struct hub_repo {
    char *endpoint;  /* without a slash at its end */
    char *name;      /* ORG/NAME */
    char commit[65]; /* what the revision is now */
    hub_file *files; /* by path */
    int n_files;
} hub_repo;

/* word: ORG/NAME or ORG/NAME@REVISION. The repository is to be closed whatever comes back. */
mf_status hub_open(fetch *f, const char *endpoint, const char *word, hub_repo *out, mf_error *err);
void hub_close(hub_repo *r);
const hub_file *hub_find(const hub_repo *r, const char *path); /* NULL: there is none */
char *hub_url(const hub_repo *r, const hub_file *file);        /* malloc'd */
bool hub_is_name(const char *word);                            /* looks like ORG/NAME, perhaps with a revision */

#endif
