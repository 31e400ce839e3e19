/* The expert store: gives the engine the bytes of experts, from wherever they are, within a memory budget.
 *
 * The store knows files, layers, expert numbers and byte counts; it knows nothing of models. One layer's turn is:
 *
 *   begin(layer, ids)            reads start for what is not there
 *   while next(...) gives some   those experts are pinned and readable
 *       ... compute with them ...
 *       done(...)                 unpinned: their memory may be reused
 *   end
 *
 * next waits only for the first expert that is ready and returns all that are; a layer may want more experts than fit
 * in memory, then it takes several rounds. The order in which experts come out is not part of the contract.
 *
 * A store can stand on another: slots in a device's memory over slots in RAM over the drive. Everything is asked of the
 * upper one then: turns, hints (what it cannot take up at once the lower one reads meanwhile), fill, forget. Budgets
 * and counters are each one's own: budget_set, lend and stats_get go to the store they mean. An error below comes out
 * of the turns above that wanted the expert, in its own words.
 *
 * Every function may be called from any thread; a turn object is used by one thread at a time. A turn that holds
 * experts (given, not done) never waits for memory, so turns cannot wait for each other in a circle. */
#ifndef MF_STORE_STORE_H
#define MF_STORE_STORE_H

#include "base/status.h"

typedef struct mf__store mf__store;
typedef struct mf__turn mf__turn;

/* Who foretold an expert. */
typedef enum mf__predictor {
    MF_PREDICT_LAST,
    MF_PREDICT_ROUTER,
    MF_PREDICT_EARLY,
    MF_PREDICT_SECOND,
    MF_PREDICT_COUNT
} mf__predictor;

/* Where slots lie, if not in an arena of the store's own: memory of a device, or pinned memory. Taken in slabs of some
 * slots each as they are first used, 64 MB or 16 slots at most; given back when a budget that shrank no longer has room
 * for them, and at close. The store itself neither reads nor writes it: files are read into it (then the kernel must be
 * able to write it), or config.copy is asked to. A slab that cannot be had makes the store go on with those it has;
 * only the first, at open, is an error. Called from any thread (I/O threads too) with the store's lock held, so one
 * call at a time: they must not call the store, nor wait for anybody who may be waiting for it. */
typedef struct mf__slot_memory {
    mf_status (*alloc)(void *user, int64_t bytes, void **out, mf_error *err); /* NULL: the arena */
    void (*release)(void *user, void *mem);
    void *user;
} mf__slot_memory;

typedef struct mf__store_config {
    int n_layers;
    int n_dirs;               /* directories that hold experts; 1 or more */
    const char *const *files; /* [n_dirs][n_layers] path, or NULL where a directory has no such layer */
    int n_experts;            /* per layer */
    int64_t stride;           /* bytes from one expert to the next */
    int64_t bytes;            /* bytes of one expert that are used */
    int64_t budget;           /* most bytes for cached experts, and for tables in the arena's case; 0: no limit */
    mf__slot_memory memory;   /* where slots lie; zeroed: an arena */
    /* A store on a store: below (NULL: none) is open, has the same layers, experts, bytes and stride, and is closed
     * after this one, which has no files (files, n_dirs, io, direct, speed_dir and fault are left zeroed): what it
     * misses it gets by turns of the store below, whose blobs copy() brings into our memory. copy is called by several
     * of our threads at once, for different places, and returns when the bytes are there; NULL: memcpy, only without
     * memory. */
    mf__store *below;
    mf_status (*copy)(void *user, void *to, const void *from, int64_t bytes, mf_error *err);
    void *copy_user;
    /* NULL: no. Asked when a table of the whole is made: whether who reads our slots can read those of the store below
     * where they are, too, if slower. Then the table has addresses of both, as soon as the one below has everything,
     * and filling takes up as many experts as there is room for. With copy_user. */
    bool (*reach)(void *user);
    /* An open store whose files are on the same drive, closed after this one: both have one queue of reads. Demands of
     * either go before guesses of the other, and what this one's passes say about reading ahead holds for both. */
    mf__store *beside;
    mf_io io;         /* AUTO: see mf__store_open */
    bool no_map;      /* ... but not MMAP */
    mf_switch direct; /* read past the page cache */
    mf_switch prefetch;
    int most_slots;        /* experts held at most, whatever the budget; 0: no such limit */
    int n_io_threads;      /* reads at a time, of a store on another: threads that copy; 0: chosen */
    const char *policy;    /* NULL: the default */
    const char *speed_dir; /* where the speed of drives is remembered; NULL: nowhere */
    /* Tests, below every engine: asked before each read of n bytes, which then reads as many as it says, meets the end
     * of the file (0) or fails (a negative errno). It may take its time. */
    int64_t (*fault)(void *user, int64_t n);
    void *fault_user;
    const char *root; /* tests: stands before /proc and /sys; NULL: "" */
    bool quiet;       /* for a moment's use: do not watch memory pressure */
    bool logical;     /* keep a logical cache, for mf__store_logical */
    mf_log_sink log;
} mf__store_config;

/* Checks that every layer that some directory has is long enough; the strings of config are copied.
 * io AUTO takes MMAP when all expert files fit in 75 % of the budget and cut files are guarded against (base/guard.h),
 * else what the drive is fastest with. A mapped file that is cut fails the turns that were using it. */
mf_status mf__store_open(const mf__store_config *config, mf__store **out, mf_error *err);
void mf__store_close(mf__store *store); /* NULL is fine; all turns must be freed before */

bool mf__store_mapped(const mf__store *store);
/* The smallest budget such a store can be opened with, files in place and nothing mapped. */
mf_status mf__store_least(const mf__store_config *config, int64_t *out, mf_error *err);

/* From now on the idle drive reads experts that nobody has asked for, once each, if all of them fit in the budget, and
 * once more when memory that was lent is back; not with prefetch OFF. Again: nothing new. A store that has no such room
 * lets the one below do it. */
void mf__store_fill(mf__store *store);
/* Filling is for these alone, and for a budget that has room for them: own is [n_layers][n_experts], and stays where it
 * is. Before the fill. */
void mf__store_own(mf__store *store, const bool *own);

/* Lowers or raises (never above what it was opened with) the budget. Memory that is in use follows when it is unpinned.
 */
void mf__store_budget_set(mf__store *store, int64_t bytes);
/* Takes bytes out of the budget for another use (negative: gives them back) and returns when the cache has made room.
 * MF_E_NOMEM when the budget has not that much. Not to be called between begin and end, nor by who holds the whole. */
mf_status mf__store_lend(mf__store *store, int64_t bytes, mf_error *err);

mf_status mf__turn_create(mf__store *store, mf__turn **out, mf_error *err);
void mf__turn_free(mf__turn *turn); /* NULL is fine; ends the turn */
/* cancel (may be NULL) is asked now and then while next waits; true makes next return MF_E_CANCELLED. */
void mf__turn_cancel_set(mf__turn *turn, bool (*cancel)(void *user), void *user);

/* In turns that begin from now on n_rows of the tokens are the next single ones of sequences that go on (decoding), the
 * rest are parts of prompts. -1, the default: a turn of one token decodes, others do not. Where some rows decode, what
 * a layer wanted foretells its next turn, and whether reading ahead pays is judged by the time of passes of about as
 * many tokens. */
void mf__turn_decode_set(mf__turn *turn, int n_rows);

/* To the policy the next turn uses these n experts (distinct; valid until begin returns) of counts[i] tokens each,
 * instead of those it begins with: where somebody else serves some of them, or others take their place. */
void mf__turn_used_set(mf__turn *turn, const int32_t *ids, const int32_t *counts, int n);

/* ids: distinct, in [0, n_experts); must stay valid until end. counts[i]: how many of the n_tokens tokens of this turn
 * want ids[i] (NULL: every one). */
mf_status mf__turn_begin(mf__turn *turn, int layer, const int32_t *ids, const int32_t *counts, int n, int n_tokens,
                         mf_error *err);
/* Up to n (of begin) experts that became ready: their ids and addresses. *n_out == 0: all have been given out.
 * A read error comes out here, for the turns that wanted the expert; what was wrong with experts given out before comes
 * out with the last call, so a turn's results count only after it. */
mf_status mf__turn_next(mf__turn *turn, int32_t *ids, const void **blobs, int *n_out, mf_error *err);
void mf__turn_done(mf__turn *turn, const int32_t *ids, int n);
void mf__turn_end(mf__turn *turn); /* also after a failure in the middle: forgets the rest of the turn */

/* ---- without turns, where everything is in memory ----
 *
 *   table = whole(&version)      NULL: take turns
 *   before(&mark)                mapped files are as they were
 *   ... a pass, all layers ...
 *   after(mark)                  nothing was lost meanwhile: its results count
 *   release
 *
 * Addresses of all experts, [n_layers][n_experts] (NULL in layers that have none), once every one of them has been
 * read: then nothing is evicted until the release, and smaller budgets wait for it. Equal versions (never 0) are equal
 * tables. It costs a lock, and a walk over all experts when some have moved. Mapped files count as read when their
 * pages have been brought in once (mf__store_fill does that): faulting them in one by one takes five times longer.
 * With config.reach it is enough that the store below has every one of them; it is held, too. */
const void *const *mf__store_whole(mf__store *store, uint64_t *version);
void mf__store_whole_release(mf__store *store); /* once for every table; when the pass has finished on its device */
/* Around each pass; without mapped files they cost nothing. */
mf_status mf__store_whole_before(mf__store *store, int64_t *mark, mf_error *err);
mf_status mf__store_whole_after(mf__store *store, int64_t mark, mf_error *err);
/* Such a pass wanted so many experts and had them: for the counters of the store and of the turn object. Where some lie
 * in the store below, nobody knows which ones they were: hits are counted as if all were wanted alike. */
void mf__turn_count_whole(mf__turn *turn, int64_t wanted);

/* These experts may be wanted soon, the likeliest first (of a batch: those that most rows want): read them when nothing
 * else is to be read. Never waits, never fails, may do nothing. Replaces what `who` said about the layer before. */
void mf__store_hint(mf__store *store, mf__predictor who, int layer, const int32_t *ids, int n);
bool mf__store_wants_hints(mf__store *store, mf__predictor who); /* false: do not bother to predict */
void mf__store_forget(mf__store *store);                         /* drops all predictions */

/* For choices that change results, which must not depend on when a read finished: which experts of the layer the
 * logical cache has ([n_experts] 0 or 1), and how likely the next tick wants each of them (0 where the policy does not
 * say). Both depend on the turns so far and on nothing else. True when it is full; false, too, for a store that has
 * none. */
bool mf__store_logical(mf__store *store, int layer, uint8_t *resident, float *chance);
/* How likely the least likely expert is wanted, if the logical cache had the likeliest of all layers: whatever is less
 * likely will not stay. 0 for a store that has none, and where the policy does not say. */
float mf__store_logical_least(mf__store *store);

void mf__store_stats_get(mf__store *store, mf_stats *out);
void mf__turn_stats_get(const mf__turn *turn, mf_stats *out); /* what this turn object asked for */
void mf__store_stats_reset(mf__store *store);
void mf__turn_stats_reset(mf__turn *turn);

/* For tests: MF_E_INTERNAL with the number of the invariant that does not hold (see store/internal.h). */
mf_status mf__store_check(mf__store *store, mf_error *err);

#endif
