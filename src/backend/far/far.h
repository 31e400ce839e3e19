/* The far backend, for tests: a device that is not there. It computes what ref computes, in memory that nobody else can
 * read: all of it is PROT_NONE but while far itself works on it, so that a host that looks into it dies on the spot. It
 * is as late as it may be: whatever is submitted, uploaded, copied or zeroed is only noted, with copies of all that it
 * points to, and done when somebody waits for it. A host that forgets to wait reads old bytes.
 *
 * Only in builds with tests (MF_FAR). */
#ifndef MF_BACKEND_FAR_FAR_H
#define MF_BACKEND_FAR_FAR_H

#include <pthread.h>

#include "backend/backend.h"

/* ---- memory (memory.c): an arena that opens and shuts as a whole ---- */

typedef struct mf__far_block {
    int64_t at, bytes;
} mf__far_block;

typedef struct mf__far_memory {
    char *base;
    int64_t size, top;     /* reserved; bytes below top have been used */
    mf__far_block *blocks; /* in use, in order */
    int n_blocks, max_blocks;
    int n_open; /* whoever works on it just now */
    int64_t used;
} mf__far_memory;

mf_status mf__far_memory_init(mf__far_memory *mem, int64_t size, mf_error *err);
void mf__far_memory_deinit(mf__far_memory *mem);
mf_status mf__far_memory_alloc(mf__far_memory *mem, int64_t bytes, void **out, mf_error *err);
void mf__far_memory_free(mf__far_memory *mem, void *p);
mf_status mf__far_memory_open(mf__far_memory *mem, mf_error *err); /* readable and writable ... */
void mf__far_memory_shut(mf__far_memory *mem);                     /* ... until shut as often as opened */

/* ---- what is to be done (queue.c) ---- */

typedef enum mf__far_what { MF_FAR_UPLOAD, MF_FAR_COPY, MF_FAR_ZERO, MF_FAR_RUNS } mf__far_what;

typedef struct mf__far_command {
    struct mf__far_command *next;
    mf__far_what what;
    void *to;
    const void *from; /* COPY: far memory; UPLOAD: a copy of the host's bytes */
    int64_t bytes;
    mf__run *runs;
    int n_runs;
    mf__arena arena; /* of this command */
} mf__far_command;

mf_status mf__far_command_create(mf__far_what what, mf__far_command **out, mf_error *err);
void mf__far_command_free(mf__far_command *c);
/* Copies the runs and everything of the host's that they point to. */
mf_status mf__far_command_runs(mf__far_command *c, const mf__run *runs, int n_runs, mf_error *err);

#endif
