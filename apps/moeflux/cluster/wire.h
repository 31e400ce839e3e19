/* What goes over the wire, and what the files of this folder share.
 *
 * Rank 0 sends a request to every rank that has something to do in a layer, and gets one reply from each:
 *
 *   request  wire_request, wanted [n_wanted] i32, ids [n_rows][top_k] i32, rows [n_rows]
 *   reply    wire_reply, pairs [n_pairs]; after a failure the error's text instead
 *
 * Rows and pairs are n_hidden values each in the request's format (pack.c).
 *
 * A hint has wire_request and ids [n_wanted], and is not answered; the end has wire_request alone, and the answer
 * wire_reply alone. All ranks are of one kind of machine (the handshake sees to that), so numbers lie as they do in
 * memory.
 *
 * Before that, all ranks take the same steps, and whatever fails on one of them is told to the others in the next:
 * nobody waits for a rank that has given up. What is needed to say so is not allocated. */
#ifndef MOEFLUX_CLUSTER_WIRE_H
#define MOEFLUX_CLUSTER_WIRE_H

#include <mpi.h>

#include "cluster.h"
#include "placement.h"

#define WIRE_VERSION 3 /* of all that this file describes */
#define WIRE_MAGIC 0x4D464352u
#define WIRE_TAG_REQUEST 1
#define WIRE_TAG_REPLY 2
#define WIRE_TAG_HERE 3  /* a byte before the handshake: this rank has come so far */
#define WIRE_TAG_STATE 4 /* wire_state to rank 0, and back */
#define WIRE_TAG_SHARE 5 /* owners, by way of rank 0 */
#define WIRE_MAX_RANKS PLACEMENT_RANKS
#define WIRE_SHORT 32768                   /* bytes of a message that travels without its receiver's help, mostly */
#define WIRE_MPI_BYTES ((int64_t)16 << 20) /* MPI's own code and buffers; Open MPI 4.1 took 10 MB */

typedef enum wire_kind { WIRE_WORK = 1, WIRE_HINT, WIRE_END } wire_kind;

typedef enum wire_format { WIRE_F32, WIRE_F16 } wire_format;

typedef struct wire_request {
    uint32_t magic, kind;
    uint64_t seq;
    int32_t layer, n_rows, n_decode, n_wanted;
    int32_t format, zero;
    int64_t n_pairs;
} wire_request;

typedef struct wire_stats {
    int64_t wanted, hits, bytes_read, bytes_prefetched, stall_ns, compute_ns, budget, cache_bytes;
    int64_t wants_hints;
} wire_stats;

typedef struct wire_reply {
    uint32_t magic;
    int32_t status;
    uint64_t seq;
    int64_t n_pairs;
    wire_stats stats; /* since the start */
} wire_reply;

/* How something went. */
typedef struct wire_state {
    int32_t status, zero;
    char text[MF_ERROR_TEXT];
} wire_state;

/* What the ranks tell each other before they begin. */
typedef struct wire_hello {
    int32_t ok; /* the model is open */
    int32_t n_layers, n_experts, n_hidden, top_k;
    uint64_t fingerprint;
    int64_t budget; /* bytes for experts */
    int64_t pid;
    char version[64];    /* of moeflux */
    char arithmetic[64]; /* backend and instruction set */
    char host[64];
    char dir[256];
    char error[MF_ERROR_TEXT];
    uint64_t content;                /* the model's files, whatever computes with them */
    uint64_t placement;              /* of its share */
    int32_t shard_ranks, shard_rank; /* the directory is that share; 0: it is whole */
    int32_t mixed;                   /* other arithmetic may be */
    int32_t has_placement;
    int64_t expert_bytes; /* of the whole model */
    int32_t wire;         /* wire_format */
    int32_t zero;
    char later[864]; /* other versions must be able to read this much */
} wire_hello;
_Static_assert(sizeof(wire_hello) == 2048, "the same in all versions");

/* The job as one rank sees it. */
typedef struct cluster_job {
    int rank, size;
    bool takes_part;                /* the command evaluates */
    bool started;                   /* MPI was */
    bool met;                       /* the handshake is over ... */
    bool fits;                      /* ... and all can begin */
    bool lost;                      /* a rank does not answer: only MPI_Abort ends the job */
    double stall_limit, meet_limit; /* seconds for an answer, and for opening the model */
    const char *placement;          /* --placement, or NULL */
    wire_format wire;
    bool mixed;
    wire_hello hello[WIRE_MAX_RANKS];
    bool alone;                /* no other rank is on this machine */
    bool seen[WIRE_MAX_RANKS]; /* its process is one of this machine, as far as rank 0 can see */
} cluster_job;
extern cluster_job cluster;

/* ---- job.c ---- */
mf_status cluster_start(mf_error *err);
/* Tells the others what this rank has (model NULL: nothing, for the reason in `why`) and learns what they have. An
 * error where they do not fit together, the same sentence on all ranks. */
mf_status cluster_meet(mf_model *model, const char *dir, const mf_error *why, mf_error *err);
/* Waits without taking a processor from those that compute, at most so long (seconds; 0: no limit). */
typedef enum cluster_waited { CLUSTER_DONE, CLUSTER_LATE, CLUSTER_FAILED } cluster_waited;
cluster_waited cluster_wait(MPI_Request *request, MPI_Status *status, double limit);
bool cluster_has_ended(int rank);  /* a rank of this machine; of others mpirun hears first */
void cluster_nap(void);            /* about as short as can be */
void cluster_pause(double waited); /* between two looks: the longer it took, the longer */

/* Sends to a rank or receives from it while the experts are shared out. Rank 0 waits for others within the limit and
 * names the one that does not answer; others wait for rank 0, of which mpirun hears when it ends. */
mf_status cluster_exchange(int rank, int tag, bool send, void *data, size_t size, mf_error *err);
/* How something went on all ranks, which all call it: the first failure, the same sentence everywhere. */
mf_status cluster_agree(mf_status st, mf_error *err);
void cluster_mute(bool on); /* standard error, until the ranks have met */

/* ---- share.c: which ranks have which experts ---- */
/* The owners [n_layers][n_experts] of this job, malloc'd, after the handshake: as the ranks' shards have them, as rank
 * 0's --placement makes them, or by a hash. Tells the model which experts are this rank's. All ranks call it; st is how
 * this one has fared so far (err says why), and is told to the others. */
mf_status cluster_share(mf_model *model, mf_status st, uint64_t **owners, mf_error *err);

/* ---- pack.c: values on the wire ---- */
size_t wire_row_bytes(wire_format format, int n);
void wire_pack(wire_format format, const float *from, int n, void *to);
void wire_unpack(wire_format format, const void *from, int n, float *to);

/* ---- head.c: rank 0 ---- */
mf_elsewhere cluster_head(void);
mf_status cluster_head_open(mf_model *model, mf_error *err); /* after the handshake */
bool cluster_head_close(void);                               /* false: a rank was lost, and cannot be told */

#endif
