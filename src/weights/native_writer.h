/* The writer's inside: shared by native_write.c (what goes into the files), native_journal.c (what survives a kill) and
 * native_finish.c (begin, finish, give up). Private to weights/. */
#ifndef MF_WEIGHTS_NATIVE_WRITER_H
#define MF_WEIGHTS_NATIVE_WRITER_H

#include "base/direct.h"
#include "base/hash.h"
#include "base/strbuf.h"
#include "weights/native_build.h"

/* A set of experts: the main one, and the second one if there is. */
typedef struct mf__expert_set {
    const char *dir;          /* its name inside the directory */
    bool used;                /* set 0: from the first layer on */
    mf__expert_layout layout; /* set 0: of the layer being written */
    json_t *json;             /* the layout as the manifest has it */
    json_t *hashes;           /* layer -> 16 digits per expert */
    mf__strbuf layer_hashes;  /* of the layer being written */
    mf__outfile file;         /* of the layer being written; path NULL between layers */
} mf__expert_set;

/* Experts that the journal has, of a layer that is complete or not. */
typedef struct mf__layer_done {
    int n;
    char *hashes[2]; /* 16 digits per expert */
} mf__layer_done;

struct mf__native_writer {
    char *dir;     /* the target */
    char *partial; /* where we write */
    int marker_fd; /* locked */
    mf__outfile trunk;
    json_t *tensors; /* name -> description, in the order written */
    json_t *files;   /* name -> size and checksum of the other files; null until finish */
    /* the tensor being written */
    json_t *open_tensor;
    char open_name[MF__NAME_MAX + 1];
    int64_t open_left; /* bytes to come */
    mf__hash open_hash;
    /* the layer being written */
    mf__expert_set sets[2];
    bool in_layer;
    int n_experts, next_expert, layer;
    bool made;   /* partial is ours to remove */
    bool failed; /* a write failed: finish must not publish */
    /* journal */
    int journal_fd; /* -1: this work cannot be resumed */
    char *journal_path;
    json_t *notes;
    mf__layer_done *layers; /* [MF__LAYERS_MAX] */
    json_t *part_tensors;   /* name -> description, since the last part */
    int part_first;         /* next_expert at the last part */
    mf__strbuf pending;     /* lines of finished parts that are not in the journal yet */
    int64_t pending_bytes;  /* of data they stand for */
    int64_t n_committed;    /* parts in the journal */
    int n_pending;
    double committed_at; /* seconds */
};

mf_status mf__writer_no_memory(mf_error *err);

/* native_journal.c. open: *fresh says whether DIR.partial is new; when it is not, the finished parts are loaded, or
 * *fresh becomes true because there is no journal to go on with. */
mf_status mf__journal_open(mf__native_writer *w, const mf__native_work *work, bool *fresh, mf_error *err);
mf_status mf__journal_commit(mf__native_writer *w, mf_error *err);
int64_t mf__journal_trunk_size(const mf__native_writer *w); /* the end of the last tensor */

#endif
