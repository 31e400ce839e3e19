/* moeflux: run Mixture-of-Experts language models larger than memory.
 *
 * The objects:
 *   mf_model    weights, expert store, backend. Read-only once open; share it between sessions and threads.
 *   mf_session  one sequence of tokens: its KV cache and recurrent state. One thread at a time.
 *   mf_text     tokenizer and chat template. Read-only; share it.
 *   mf_sampler  chooses tokens; has a seed and a history. One thread at a time.
 *   mf_form     what an answer must be like (a schema, an expression). Read-only; share it.
 *   mf_reply    from a request to an answer in events: prompt, sampler, form, stop texts, tool calls. It evaluates
 *               nothing itself. One thread at a time.
 *
 * The rules:
 *   - Every fallible function returns mf_status: MF_OK (0) or a negative code. The sentence that says which file,
 *     which tensor, which value was found and which expected is in the mf_error passed (which may be NULL).
 *   - The library never prints, never exits, and reads no environment variables.
 *   - A call validates all its arguments before it changes anything. After an error the session is as it was before.
 *   - The caller owns logits, token and text buffers.
 *
 * In short (examples/tell.c is the whole program):
 *
 *   mf_model_open("models/stories-moe", NULL, &model, &err);
 *   mf_text_open("models/stories-moe", &text, &err);
 *   mf_session_create(model, NULL, &session, &err);
 *   mf_text_encode(text, prompt, strlen(prompt), false, ids, MAX, &n, &err);
 *   mf_eval_prompt(session, ids, n, 0, logits, n_vocab, &err);
 *   for (;;) {
 *       int32_t id = mf_sampler_next(sampler, logits);
 *       mf_text_decode(text, &stream, &id, 1, piece, sizeof piece, &n_piece, &err);
 *       mf_eval_token(session, id, mf_memory_length(session), logits, n_vocab, &err);
 *   }
 */
#ifndef MOEFLUX_H
#define MOEFLUX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MF_VERSION_MAJOR 0
#define MF_VERSION_MINOR 1
#define MF_VERSION_PATCH 0

/* ---- status --------------------------------------------------------------------------------------------------- */

/* name, value, what it means */
#define MF_STATUS_LIST(X)                                                                                              \
    X(OK, 0, "success")                                                                                                \
    X(E_INVALID, -1, "an argument is not valid")                                                                       \
    X(E_NOMEM, -2, "not enough memory")                                                                                \
    X(E_IO, -3, "reading or writing failed")                                                                           \
    X(E_NOT_FOUND, -4, "a file, tensor or entry is missing")                                                           \
    X(E_FORMAT, -5, "a file is damaged or not of the expected format")                                                 \
    X(E_UNSUPPORTED, -6, "a known thing that this build cannot do")                                                    \
    X(E_MISMATCH, -7, "two sources that must agree do not (config against tensors)")                                   \
    X(E_TOKEN, -8, "a token id is outside the vocabulary")                                                             \
    X(E_POSITION, -9, "a position does not continue the sequence")                                                     \
    X(E_CONTEXT_FULL, -10, "the context has no room for the tokens")                                                   \
    X(E_EXISTS, -11, "the target exists already")                                                                      \
    X(E_NO_SPACE, -12, "the disk is full")                                                                             \
    X(E_CANCELLED, -13, "the caller asked to stop")                                                                    \
    X(E_LIMIT, -14, "a built-in limit was exceeded")                                                                   \
    X(E_INTERNAL, -15, "a bug in moeflux")                                                                             \
    X(E_RECURRENT, -16, "a recurrent state cannot be rewound")

typedef enum mf_status {
#define MF_STATUS_ENUM(name, value, text) MF_##name = value,
    MF_STATUS_LIST(MF_STATUS_ENUM)
#undef MF_STATUS_ENUM
} mf_status;

/* "E_FORMAT" and "a file is damaged ..."; an unknown code gives "E_UNKNOWN". */
const char *mf_status_name(mf_status status);
const char *mf_status_text(mf_status status);

#define MF_ERROR_TEXT 640

typedef struct mf_error {
    mf_status status;
    char text[MF_ERROR_TEXT]; /* one sentence or two, no newline at the end */
} mf_error;

/* ---- logging: silent unless a sink is given in the options ------------------------------------------------------ */

typedef enum mf_log_level { MF_LOG_DEBUG, MF_LOG_INFO, MF_LOG_WARN, MF_LOG_ERROR } mf_log_level;

typedef struct mf_log_sink {
    void (*write)(void *user, mf_log_level level, const char *text); /* NULL: silent */
    void *user;
} mf_log_sink;

/* ---- model ---------------------------------------------------------------------------------------------------- */

typedef struct mf_model mf_model;
typedef struct mf_session mf_session;

/* How experts come from their files. AUTO: mapped when they all fit in memory (see mf_guard_install), else what the
 * drive is fastest with. */
typedef enum mf_io { MF_IO_AUTO, MF_IO_MMAP, MF_IO_PREAD, MF_IO_URING } mf_io;

typedef enum mf_switch { MF_SWITCH_AUTO, MF_SWITCH_ON, MF_SWITCH_OFF } mf_switch;

/* Told which experts the tokens of a pass go to, layer by layer, as they are evaluated. ids is [n_rows][top_k] and
 * valid during the call only; no function of this header may be called from it. */
typedef struct mf_route_sink {
    void (*fn)(void *user, int layer, const int32_t *ids, int n_rows, int top_k); /* NULL: nobody asks */
    void *user;
} mf_route_sink;

/* Rows and the experts they go to, in one layer. */
typedef struct mf_experts_request {
    int layer;
    int32_t n_rows, n_hidden, top_k;
    int32_t n_decode;      /* rows that are the next token of a sequence, not a part of a prompt */
    const float *rows;     /* [n_rows][n_hidden]: what experts read */
    const int32_t *ids;    /* [n_rows][top_k] */
    const int32_t *wanted; /* [n_wanted] distinct ones of ids */
    const int32_t *counts; /* [n_wanted] rows that go to wanted[i]; may be NULL */
    int32_t n_wanted;
} mf_experts_request;

/* Takes the output [n_hidden] of an expert for a row: pair is row * top_k + its place among the row's ids. */
typedef mf_status mf_put_pair(void *user, int64_t pair, const float *values, mf_error *err);

/* Experts that are computed elsewhere: on other machines, that is, which have the same files. In every layer of a pass
 * begin is told what is wanted and marks, in taken [n_experts] (all false), what it takes upon itself; the others are
 * computed here meanwhile. finish then hands every pair of the taken ones to put, once each; where put is NULL nobody
 * wants them any more (something failed, or was cancelled), and whatever is under way is to be received and dropped.
 * For every begin that succeeds there is one finish, even after a failure. What the request points to stays valid until
 * then.
 *
 * Called by whoever evaluates, one call at a time; no function of this header may be called with the same model. An
 * error fails the pass: its sessions are as they were. Pairs must be what mf_experts_compute gives for the same files,
 * backend and instruction set: then results do not depend on what is computed where. */
typedef struct mf_elsewhere {
    mf_status (*begin)(void *user, const mf_experts_request *request, bool *taken, mf_error *err); /* NULL: nobody */
    mf_status (*finish)(void *user, mf_put_pair *put, void *put_user, mf_error *err);
    /* These may be wanted soon, the likeliest first; marks those that will be taken. Both may be NULL. */
    void (*hint)(void *user, int layer, const int32_t *ids, int n, bool *taken);
    bool (*wants_hints)(void *user);
    void *user;
} mf_elsewhere;

/* Told how far opening is while it reads weights into the host's memory, which takes seconds where they are large:
 * bytes so far, of all. A backend with memory of its own takes them there without a word. On the calling thread; no
 * function of this header may be called from it. */
typedef struct mf_open_sink {
    void (*fn)(void *user, int64_t done, int64_t total); /* NULL: nobody asks */
    void *user;
} mf_open_sink;

/* How keys and values are kept. AUTO: f16; f32 with `exact` and with the backend ref, whose results are the reference.
 * INT8 keeps 8 bits and a scale for every 64 values. */
typedef enum mf_kv { MF_KV_AUTO, MF_KV_F16, MF_KV_F32, MF_KV_INT8 } mf_kv;

/* Ways to read less, at a loss: off unless asked for, and with all of it zeroed the bits are those of the model. They
 * act on tokens that are decoded, never on prompts, and on experts that are not in memory, once it is full of them.
 * What they cost on a text of one's own is measured by `moeflux tune`. A share here is a part of the row's shares, 0
 * to 1. */
typedef struct mf_lossy {
    double bonus;   /* an expert in memory takes the place of one that is not if its score is at least e^-bonus of that
                     * one's; its share is that of its own score. 0: none does */
    double sure;    /* ... but not of one that has at least this share: there the router is sure; 0: of any */
    double tail;    /* ... nor of one that has at least so many times the share of its layer's last choice, on average
                     * over the tokens decoded so far: how flat shares are differs from layer to layer; 0: of any */
    double skip;    /* experts with a share below this are left out, and the others' shares grow; 0: none */
    double small;   /* those with a share below this are served from the small copies (convert --also); above 1: all */
    double promote; /* none of these with experts that the policy expects the next token to want with at least this
                     * chance: they are read, and stay, if there is room for them; 0: no such limit */
    double small_ram; /* the part of the experts' memory that is for small copies; 0: a quarter */
    int protect;      /* first choices of a row that are none of these */
    int most;         /* experts of one token, over all layers, that are replaced or left out at most; 0: no limit */
} mf_lossy;

typedef struct mf_model_options {
    const char *backend; /* "auto" (NULL): the fastest that can run the model; "cpu", "ref" */
    bool exact;          /* activations stay f32; otherwise products with quantized weights round them to 15 bits */
    mf_kv kv;
    int n_threads;      /* compute threads; 0: one per physical core this process may use */
    bool pin_threads;   /* ties each of them but the caller's to a core of its own (Linux) */
    int64_t ram_bytes;  /* most memory for weights, experts and sessions together; 0: what the machine has left */
    int64_t vram_bytes; /* the same of a device with memory of its own, which then holds weights and sessions and as
                         * many experts as fit; ram_bytes is for those that do not. 0: what the device has left */
    mf_io io;
    mf_switch direct;   /* read experts past the page cache (O_DIRECT) */
    mf_switch prefetch; /* read experts likely to be wanted next while the drive is idle; AUTO: where it saves time. If
                         * memory has room for all experts, the idle drive reads all of them once there is a session;
                         * not with OFF */
    int n_io_threads;   /* reads at a time; 0: chosen */
    const char *policy; /* which experts stay in memory: "horizons" (NULL), "lfu", "lru" */
    int most_experts;   /* held in the host's memory at most, however much there is, to measure with less; 0: as many as
                         * fit. Of mapped experts (io MMAP) the system holds what it likes */
    const char *const *experts_dirs; /* directories with layer_NN.bin, read side by side; NULL: the model's own */
    int n_experts_dirs;
    const char *cache_dir; /* remembers how fast drives are; NULL: measured at every open that needs it */
    /* Experts each token goes to: 1 to the model's own number, 0 for that. Fewer is faster and changes the results: it
     * is logged as a warning, and mf_model_info tells both numbers. */
    int experts_per_token;
    /* Contexts longer than the model was made for: this many times (above 1, at most 64), by YaRN; 0: not. Changes the
     * results also of short contexts; what that costs in quality is not known, and logged as a warning. */
    double yarn;
    mf_lossy lossy;
    mf_log_sink log;
    mf_route_sink routes;
    /* The prompt cache, used by mf_prompt. */
    int64_t prompt_cache_ram; /* bytes of states kept in memory; 0: none */
    const char
        *prompt_cache_dir;     /* where states survive; made if missing; NULL: nowhere. May be shared by processes. */
    int64_t prompt_cache_disk; /* most bytes there per model; 0: 8 GiB */
    mf_elsewhere elsewhere;
    /* For computing experts for others (mf_experts_compute) and nothing else: the resident weights are not loaded, all
     * memory is for experts, and there are no sessions. Not together with elsewhere or a prompt cache. */
    bool experts_only;
    mf_open_sink progress;
} mf_model_options;

void mf_model_options_init(mf_model_options *opt);

#define MF_MAX_EOS 8

typedef struct mf_model_info {
    const char *name;      /* the directory's last component; ? for what is not UTF-8 in it */
    const char *family;    /* "qwen3_5_moe" */
    const char *backend;   /* the one in use */
    int32_t n_vocab;       /* length of a row of logits */
    int32_t n_ctx;         /* most positions of a session */
    int32_t n_ctx_trained; /* positions the model was made for: fewer where the context is stretched */
    int32_t n_layers;
    int32_t n_hidden;
    int32_t n_experts;           /* routed experts per layer */
    int32_t n_experts_per_token; /* in use */
    int32_t n_experts_trained;   /* the model's own number; where it is larger, results are lossy */
    int32_t n_eos;
    int32_t eos[MF_MAX_EOS]; /* token ids that end an answer */
    int64_t trunk_bytes;     /* resident weights */
    int64_t expert_bytes;    /* all routed experts */
    int64_t token_bytes;     /* weights that one decoded token touches: a row of the embedding, its experts, the rest */
    int32_t n_expert_layers; /* layers that have routed experts */
    const char *kv;          /* how keys and values are kept: "f16", "f32", "int8" */
    int64_t kv_bytes_per_token;
    int64_t state_bytes; /* recurrent state of one session */
} mf_model_info;

/* A mapped file that somebody cuts while it is in use raises SIGBUS in whoever touches what is gone. A program may give
 * moeflux that signal, once and for all its models: then the call that was under way fails with MF_E_IO instead. Faults
 * elsewhere go to the handler that was there before. The library never does this by itself; without it, AUTO reads
 * experts into memory where it would otherwise map them, and only the resident weights are mapped. */
mf_status mf_guard_install(mf_error *err);

/* dir is a native model directory (see docs/FORMAT.md); opt may be NULL. */
mf_status mf_model_open(const char *dir, const mf_model_options *opt, mf_model **out, mf_error *err);
void mf_model_close(mf_model *model); /* NULL is fine; all sessions must be freed before */
/* Bytes of memory that a model needs at least to evaluate n_tokens (0: one chunk) in chunks of n_chunk (0: the
 * default), with one session; total is the smallest ram_bytes that will do. More is faster: it holds more experts. */
typedef struct mf_memory_needs {
    int64_t program;   /* code, tables, stacks: about */
    int64_t trunk;     /* weights that stay */
    int64_t workspace; /* for the rows of one pass */
    int64_t state;     /* of the session, without keys and values */
    int64_t kv;        /* keys and values of n_tokens */
    int64_t experts;   /* the fewest that can be held */
    int64_t total;
} mf_memory_needs;

/* Without opening it: reads its description and no weights. */
mf_status mf_model_memory(const char *dir, const mf_model_options *opt, int64_t n_tokens, int32_t n_chunk,
                          mf_memory_needs *out, mf_error *err);

const mf_model_info *mf_model_info_get(const mf_model *model);

/* Names the model and how it computes (backend, arithmetic, precision of keys and values, experts per token): states
 * fit models with the same number, and so do pairs of experts. Reads a little of every file the first time. */
mf_status mf_model_fingerprint(mf_model *model, uint64_t *out, mf_error *err);

/* Computes the experts in request->wanted for rows that go to them. pairs receives n_hidden values for every place of
 * ids that is among them, in order; pairs_len is in floats, and exactly that many. A row's bits do not depend on the
 * rows beside it. Any open model will do; one call at a time computes. */
mf_status mf_experts_compute(mf_model *model, const mf_experts_request *request, float *pairs, size_t pairs_len,
                             mf_error *err);
/* Which experts are computed with this model, where others compute the rest: [n_layers][n_experts] marks, n of them.
 * The idle drive reads those, if memory has room for them. Once for a model, before its first session. */
mf_status mf_experts_own(mf_model *model, const bool *own, size_t n, mf_error *err);
/* These experts may be wanted soon, the likeliest first: the drive may read them while it is idle. */
void mf_experts_hint(mf_model *model, int layer, const int32_t *ids, int n);

/* ---- session -------------------------------------------------------------------------------------------------- */

/* Called with every named intermediate when set: data is [n_rows][n_cols] f32, valid during the call only.
 * Names: embed, h_mid (after attention), h_post (its norm, what router and experts see), route_ids and route_shares
 * (the experts of a row and their weights), shared (the shared expert's output), shared_score (its gate before the
 * sigmoid, where it has one), hidden (a layer's output), final_norm. layer is -1 outside layers. */
typedef struct mf_probe {
    void (*fn)(void *user, const char *name, int layer, const float *data, int n_rows, int n_cols);
    void *user;
} mf_probe;

typedef struct mf_session_options {
    int32_t n_ctx;   /* capacity in tokens; 0: the model's */
    int32_t n_chunk; /* tokens evaluated in one pass, 1..8192; 0: 512 */
    mf_probe probe;
    bool (*cancel)(void *user); /* asked between layers; true stops with MF_E_CANCELLED; may be NULL */
    void *cancel_user;
} mf_session_options;

void mf_session_options_init(mf_session_options *opt);

mf_status mf_session_create(mf_model *model, const mf_session_options *opt, mf_session **out, mf_error *err);
void mf_session_free(mf_session *session);             /* NULL is fine */
mf_model *mf_session_model(const mf_session *session); /* NULL for NULL */

/* What one session has evaluated in a call of mf_eval. */
typedef struct mf_part {
    mf_session *session;   /* every session once in a call */
    const int32_t *tokens; /* [n_tokens]: they follow what the session holds */
    size_t n_tokens;
    float *logits; /* [n_logits][n_vocab]: of the last n_logits tokens, in order; NULL with 0 */
    size_t n_logits;
    bool (*cancel)(void *user); /* asked between layers, as the session's own is; may be NULL */
    void *cancel_user;
    mf_status status; /* out: how this part went */
    mf_error *error;  /* out: why it failed, if it did; may be NULL */
} mf_part;

#define MF_MAX_PARTS 64

/* The one evaluation call; all others are made of it. The parts, up to MF_MAX_PARTS sessions of one model, are
 * evaluated together: an expert or a weight that several want is read once. Parts that are longer than their session's
 * chunk take several passes, between which calls of other threads get theirs.
 *
 * Each part ends by itself: one that is refused, cancelled or fails leaves its session as it was and the others alone;
 * one that succeeds has its tokens in its session and the logits it would have got alone: on the backends cpu and ref
 * bit for bit, on cuda up to rounding. Returns MF_OK when all parts succeeded, else the status of the first that did
 * not, with its reason in err. */
mf_status mf_eval(mf_model *model, mf_part *parts, size_t n_parts, mf_error *err);

/* Evaluates tokens at positions start_pos ... start_pos + n - 1; start_pos must be mf_memory_length(session).
 * logits receives the rows of the last logits_len / n_vocab tokens, in order; logits_len is in floats, a multiple of
 * n_vocab, at most n * n_vocab. logits_len 0 (logits may be NULL) evaluates without the head.
 * n == 0 succeeds and writes nothing. */
mf_status mf_eval_prompt(mf_session *session, const int32_t *tokens, size_t n, int64_t start_pos, float *logits,
                         size_t logits_len, mf_error *err);

/* Makes the session hold exactly these n tokens (n >= 1) and gives the logits of the last. What the session or the
 * prompt cache has of the beginning is used again, and *n_reused (may be NULL) says how much; the rest is evaluated.
 * States are kept in the cache at marks[0..n_marks) (positions in 1..n in rising order: the end of a system prompt, of
 * a turn) and at regular distances; that of n at n - 1, so that the same prompt has only its last token to evaluate. On
 * an error the session is as it was, unless what it held had to make room for the new tokens: then it holds a beginning
 * of these. */
mf_status mf_prompt(mf_session *session, const int32_t *tokens, size_t n, const int64_t *marks, size_t n_marks,
                    float *logits, size_t logits_len, int64_t *n_reused, mf_error *err);

/* The same in steps, for those who evaluate by mf_eval. begin: leaves the session with the longest beginning of these n
 * tokens, at most n - 1 of them, that it or the prompt cache has; *n_reused (may be NULL) says how many. What it held
 * beyond that is gone. keep: puts the session's state into the prompt cache, for others that begin alike; without a
 * cache it does nothing. */
mf_status mf_prompt_begin(mf_session *session, const int32_t *tokens, size_t n, int64_t *n_reused, mf_error *err);
mf_status mf_prompt_keep(mf_session *session, mf_error *err);

/* Both without the disk, for threads that must not wait for it. What mf_prompt_begin then finds on disk is at least as
 * long; mf_prompt_keep of the same state, or of a fork of it, puts it there. */
mf_status mf_prompt_begin_memory(mf_session *session, const int32_t *tokens, size_t n, int64_t *n_reused,
                                 mf_error *err);
mf_status mf_prompt_keep_memory(mf_session *session, mf_error *err);

/* One token; logits_len must be n_vocab. The same path as mf_eval_prompt with n = 1. */
mf_status mf_eval_token(mf_session *session, int32_t token, int64_t pos, float *logits, size_t logits_len,
                        mf_error *err);

/* One token for each of n sessions of the same model (1 to 64, all different), in one pass: an expert that several want
 * is read once. logits receives n rows. The results are those of n calls of mf_eval_token. Where an argument is not
 * valid no session has changed; what fails later fails for each session by itself (mf_eval says for which). */
mf_status mf_eval_batch(mf_session *const *sessions, const int32_t *tokens, int n, float *logits, size_t logits_len,
                        mf_error *err);

void mf_memory_clear(mf_session *session);           /* as freshly created */
int64_t mf_memory_length(const mf_session *session); /* tokens held; 0 when empty */
/* The tokens held, borrowed; -1 for those of a snapshot that does not say (moeflux's versions 1 and 2). */
const int32_t *mf_memory_tokens(const mf_session *session);

/* Removes the positions from p0 on (p1 negative or the length; anything else is a middle, and refused). A recurrent
 * state cannot be cut: there the nearest checkpoint at or before p0 is restored and *n_again says how many tokens up to
 * p0 must be evaluated again; without one the call fails with MF_E_RECURRENT and changes nothing. */
mf_status mf_memory_seq_rm(mf_session *session, int64_t p0, int64_t p1, int64_t *n_again, mf_error *err);

/* ---- state ---------------------------------------------------------------------------------------------------------
 * A state is bound to the model, backend and precision it was made with. Loading checks everything before it changes
 * anything, and needs no particular state to load into. */

mf_status mf_state_size(mf_session *session, size_t *out, mf_error *err); /* bytes that save would write now */
mf_status mf_state_save(mf_session *session, void *buf, size_t size, size_t *written, mf_error *err);
mf_status mf_state_load(mf_session *session, const void *buf, size_t size, mf_error *err);
/* The same in a file, written in pieces: a state that is larger than the memory that is left can be kept. The file is
 * complete or absent. */
mf_status mf_state_save_file(mf_session *session, const char *path, mf_error *err);
mf_status mf_state_load_file(mf_session *session, const char *path, mf_error *err);

/* A second session that goes on from the same state; what both have is shared until one of them writes. Checkpoints
 * stay with the original. */
mf_status mf_session_fork(mf_session *session, mf_session **out, mf_error *err);

/* Checkpoints of this session, by position. save: at the current position, replacing an older one there. Beyond the
 * maximum (4) the oldest goes, but never position 0 and never the newest. restore: the state of that position; later
 * checkpoints are dropped. mf_memory_clear drops all. set_max evicts at the next save. */
mf_status mf_checkpoint_save(mf_session *session, mf_error *err);
mf_status mf_checkpoint_restore(mf_session *session, int64_t pos, mf_error *err);
void mf_checkpoint_forget(mf_session *session, int64_t pos);
void mf_checkpoint_set_max(mf_session *session, int max);
int mf_checkpoint_count(const mf_session *session);

/* ---- text: a model directory's tokenizer and chat template -------------------------------------------------------
 *
 * Stands by itself: needs no mf_model. Read-only once open; share it between threads. What goes into a buffer of the
 * caller's is written as far as it fits, and *n says how much there is: where that is more than max, make room and
 * call again. */

typedef struct mf_text mf_text;

mf_status mf_text_open(const char *dir, mf_text **out, mf_error *err);
void mf_text_close(mf_text *text); /* NULL is fine */

/* special: markers such as <|im_end|> in the text become their tokens; false: they are ordinary text, as they should be
 * in what people write. MF_E_INVALID where the text is not UTF-8. */
mf_status mf_text_encode(const mf_text *text, const char *utf8, size_t size, bool special, int32_t *ids, size_t max,
                         size_t *n, mf_error *err);

/* For text as it comes, begun as {0}: bytes that do not end a character yet. */
typedef struct mf_text_stream {
    uint8_t held[4];
    int n_held;
} mf_text_stream;

/* stream NULL: the whole text. Otherwise what is decided by now: never half a character, which waits in the stream for
 * the next call; a call with n_ids 0 ends the stream and gives what is left. Where the text does not fit the stream
 * has not moved. An id without a token gives nothing. */
mf_status mf_text_decode(const mf_text *text, mf_text_stream *stream, const int32_t *ids, size_t n_ids, char *utf8,
                         size_t max, size_t *n, mf_error *err);

typedef struct mf_text_info {
    bool has_chat;      /* there is a chat format: the model's template, or the usual <|im_start|> one */
    bool has_tools;     /* ... and it knows tools; otherwise replies describe them in the system message */
    bool has_reasoning; /* ... and it can be told to reason or not */
    int32_t n_tokens;   /* highest id + 1; a model's n_vocab may be larger */
} mf_text_info;

void mf_text_info_get(const mf_text *text, mf_text_info *out);

/* The bytes of one token, which may be a part of a character; borrowed, *n 0 for an id without a token. */
const char *mf_text_token(const mf_text *text, int32_t id, size_t *n);

/* The model's own chat template applied to a request in JSON:
 *   {"messages": [{"role": "user", "content": "Hi"}], "tools": [...], "add_generation_prompt": true, "extra": {...}}
 * where all but messages may be absent, and extra has more variables of the template. The result is the prompt's
 * tokens: markers that the template writes are tokens, those in any string of the request are ordinary text
 * (mf_text_decode shows how it looks). MF_E_NOT_FOUND where the model has no chat format, MF_E_FORMAT for what is no
 * request, MF_E_INVALID where the template refuses it. */
mf_status mf_text_chat(const mf_text *text, const char *request, size_t size, int32_t *ids, size_t max, size_t *n,
                       mf_error *err);

/* ---- choosing a token from logits --------------------------------------------------------------------------------
 *
 * First bias and penalties, then temperature, top-k, top-p, min-p, typical, then one draw. The same options, logits and
 * history give the same tokens on every platform. */

typedef struct mf_logit_bias {
    int32_t id;
    float bias; /* -INFINITY forbids the token */
} mf_logit_bias;

typedef struct mf_sampler_options {
    float temperature; /* 0: greedy */
    int top_k;         /* 0: off */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off; relative to the best token's probability */
    float typical_p;   /* 1: off */
    uint64_t seed;
    float repetition_penalty; /* 1: off; positive logits of seen tokens are divided by it, negative ones multiplied */
    float frequency_penalty;  /* 0: off; subtracted once per time seen */
    float presence_penalty;   /* 0: off; subtracted once if seen */
    int penalty_window;       /* how many of the last accepted tokens count as seen; 0: all */
    const mf_logit_bias *bias;
    int n_bias;
} mf_sampler_options;

typedef struct mf_sampler mf_sampler;

void mf_sampler_options_init(mf_sampler_options *opt); /* temperature 0.8, all else off, seed 0 */
mf_status mf_sampler_create(const mf_sampler_options *opt, int32_t n_vocab, mf_sampler **out, mf_error *err);
void mf_sampler_free(mf_sampler *sampler); /* NULL is fine */

/* The next token. Allocates nothing. Ties go to the lower id. A logit that is NaN is never chosen; +inf always is
 * (the lowest such id). -1 when no token can be chosen: all logits are NaN or -inf, or an argument is NULL. */
int32_t mf_sampler_next(mf_sampler *sampler, const float *logits);
/* Tells the sampler that a token is part of the text, for the penalties. Allocates nothing. */
void mf_sampler_accept(mf_sampler *sampler, int32_t id);
void mf_sampler_reset(mf_sampler *sampler); /* as freshly created: seed and history */

/* The same among the tokens that a mask allows: bit id % 32 of word id / 32. NULL allows all. */
int32_t mf_sampler_next_masked(mf_sampler *sampler, const float *logits, const uint32_t *mask);

/* What the model recommends in its generation_config.json; opt is as it was where that says nothing. */
mf_status mf_sampler_options_load(mf_sampler_options *opt, const char *dir, mf_error *err);

typedef struct mf_logprob {
    int32_t id;
    float logprob; /* natural logarithm; -INFINITY for a token that cannot be */
} mf_logprob;

/* Log-probabilities under the plain softmax of a row of logits: that of `chosen` is returned; the *n_top best tokens
 * (best first, ties to the lower id) go into top, and *n_top becomes how many there were. n_top may be NULL. */
float mf_logprobs(const float *logits, int32_t n_vocab, int32_t chosen, mf_logprob *top, int *n_top);

/* ---- forms: what an answer must be like --------------------------------------------------------------------------
 *
 * A form is compiled once and shared between threads; a constraint is one answer on its way through it. Every text that
 * can be begun within a constraint can be finished. */

typedef enum mf_form_kind {
    MF_FORM_JSON,        /* any JSON object or array; source is not looked at */
    MF_FORM_JSON_OBJECT, /* any JSON object; likewise */
    MF_FORM_SCHEMA,      /* JSON that is valid for the JSON Schema in source */
    MF_FORM_REGEX,       /* a text that matches as a whole */
    MF_FORM_GRAMMAR      /* rules "name ::= ...", of which root is the text */
} mf_form_kind;

typedef struct mf_form mf_form;

/* MF_E_FORMAT for a source that is no schema, expression or grammar; MF_E_UNSUPPORTED for keywords that cannot be
 * enforced. */
mf_status mf_form_create(mf_form_kind kind, const char *source, size_t size, mf_form **out, mf_error *err);
void mf_form_free(mf_form *form); /* NULL is fine; constraints and replies made with it keep what they need */

typedef struct mf_constraint mf_constraint;

/* text must outlive it. eos: the tokens that end an answer; they are allowed exactly when the text so far is complete.
 */
mf_status mf_constraint_create(const mf_form *form, const mf_text *text, int32_t n_vocab, const int32_t *eos, int n_eos,
                               mf_constraint **out, mf_error *err);
void mf_constraint_free(mf_constraint *constraint); /* NULL is fine */
void mf_constraint_reset(mf_constraint *constraint);
/* The tokens that may come next, for mf_sampler_next_masked; valid until the next call on the constraint. */
mf_status mf_constraint_mask(mf_constraint *constraint, const uint32_t **mask, mf_error *err);
/* Goes on by one token; MF_E_INVALID, with nothing changed, for one that may not come. */
mf_status mf_constraint_accept(mf_constraint *constraint, int32_t token, mf_error *err);
bool mf_constraint_complete(const mf_constraint *constraint); /* the text so far is valid as a whole */
bool mf_constraint_ended(const mf_constraint *constraint);    /* ... and nothing can follow */
/* The shortest text that completes what was said so far; a buffer as in mf_text_encode. */
mf_status mf_constraint_shortest(mf_constraint *constraint, char *utf8, size_t max, size_t *n, mf_error *err);

/* ---- answers taken apart -----------------------------------------------------------------------------------------
 *
 * What a model says becomes events while it is said: reasoning, text, tool calls. Text goes in as it is decoded, in
 * pieces of any size, and the events are the same however it is cut, but for where text and arguments are cut. Markers,
 * whole or partial, never come out as text; white space next to them is dropped. A tool call that cannot be read comes
 * out as text with its markers, so that nothing is lost. */

typedef enum mf_event_kind {
    MF_EVENT_REASONING, /* text */
    MF_EVENT_TEXT,      /* text: the answer */
    MF_EVENT_CALL,      /* a tool call begins: call, name, id */
    MF_EVENT_ARGUMENTS, /* text: a piece of its arguments; all pieces together are a JSON object */
    MF_EVENT_CALL_END,  /* the call is complete */
    MF_EVENT_TOKEN      /* of replies, where asked for: token, text (its bytes), logprob, top, part */
} mf_event_kind;

typedef struct mf_event {
    mf_event_kind kind;
    const char *text; /* whole characters, but for tokens; not NUL-terminated; valid during the call, like all here */
    size_t n_text;
    int call;         /* of the three about calls: 0, 1, ... in this answer */
    const char *name; /* of a call's beginning: the tool, NUL-terminated */
    const char *id;   /* ...: what the model calls it, or NULL where the model gives no ids */
    int32_t token;
    mf_event_kind part; /* of a token: whether it belongs to REASONING, TEXT or ARGUMENTS (a call with its markers) */
    float logprob;
    const mf_logprob *top; /* the likeliest, best first */
    int n_top;
} mf_event;

/* A status other than MF_OK stops whoever calls it, which then returns that status. */
typedef mf_status mf_event_fn(void *user, const mf_event *event);

typedef struct mf_answer mf_answer;

typedef struct mf_answer_options {
    const char *tools; /* the request's tools, JSON: they give untyped arguments their types; NULL: by their looks */
    size_t n_tools;    /* bytes */
    bool in_reasoning; /* the prompt already began the reasoning */
    mf_event_fn *fn;
    void *user;
} mf_answer_options;

mf_status mf_answer_create(const mf_text *text, const mf_answer_options *opt, mf_answer **out, mf_error *err);
void mf_answer_free(mf_answer *answer); /* NULL is fine */
mf_status mf_answer_push(mf_answer *answer, const char *utf8, size_t n, mf_error *err);
mf_status mf_answer_finish(mf_answer *answer, mf_error *err); /* it is over: gives out what was held back */

/* ---- replies: from a request to an answer, token by token ---------------------------------------------------------
 *
 * A reply knows everything about an answer but how to evaluate: it gives tokens and takes logits, so that a scheduler
 * can bring the tokens of many replies into one pass. One thread at a time; different replies are independent.
 *
 *   mf_reply_create(text, info, &opt, &reply, &err);
 *   mf_reply_prompt_get(reply, &p);
 *   mf_prompt(session, p.ids, p.n_ids, p.marks, p.n_marks, logits, n_vocab, NULL, &err);
 *   while (mf_reply_step(reply, logits, &ids, &n, &err) == MF_OK && n)
 *       mf_eval_prompt(session, ids, n, mf_memory_length(session), logits, n_vocab, &err);
 */

typedef struct mf_reply mf_reply;

typedef enum mf_tool_choice {
    MF_TOOLS_AUTO,     /* calls or not, as the model likes */
    MF_TOOLS_NONE,     /* no call: the tools are in the prompt, but calls cannot be made */
    MF_TOOLS_REQUIRED, /* at least one call, and no text */
    MF_TOOLS_NAMED     /* one call of tool_name */
} mf_tool_choice;

/* Where a state is worth keeping: after a message of the request (0 is the first), after part number `part` of its
 * content, or before its content, where system prompt and tools have ended if it is the first after them. */
#define MF_MARK_AFTER (-1)
#define MF_MARK_BEFORE (-2)
typedef struct mf_reply_mark {
    int32_t message;
    int32_t part; /* MF_MARK_AFTER: the whole message; MF_MARK_BEFORE; or a number */
} mf_reply_mark;

#define MF_REPLY_MAX_STOPS 64
#define MF_REPLY_MAX_MARKS 16
#define MF_REPLY_MAX_LOGPROBS 64

typedef struct mf_reply_options {
    /* What is asked, one of three: a chat request as mf_text_chat takes it ("add_generation_prompt" is not looked at),
     * a text to continue, or tokens to continue. Of the latter two all that comes is text. */
    const char *request;
    size_t request_size;
    const char *text;
    size_t text_size;
    bool text_special; /* markers in text become tokens */
    const int32_t *ids;
    size_t n_ids;

    bool continue_last;    /* chat: the last message is the assistant's and unfinished: the reply goes on with it, and
                            * gives out what it adds. With a form, the message is the beginning of what has the form */
    mf_switch reasoning;   /* chat; AUTO: as the template does when it is not told */
    const char *effort;    /* chat: "low", "medium", "high" or what the template knows; NULL: not told */
    int64_t max_reasoning; /* chat: tokens of reasoning before it is ended; 0: no limit */
    mf_tool_choice tool_choice;
    const char *tool_name;
    bool one_call; /* at most one tool call */

    mf_sampler_options sampling;
    int64_t max_tokens;       /* -1: as many as there is room for. An answer of a form is whole in any case: with few
                               * tokens left only those are chosen that it can still be ended behind, and where they are
                               * too few for even the shortest answer its text is completed without the model */
    int64_t n_ctx;            /* positions there are for prompt and answer together; 0: no limit */
    const char *const *stops; /* texts that end the answer and do not come out; they are looked for in the text alone */
    int n_stops;
    const mf_form *form; /* what the text must be like, behind the reasoning; NULL: anything. Members of objects come in
                          * the order in which the schema declares them: each required one before all behind it */
    bool ignore_eos;     /* the model cannot end by itself */

    bool tokens;    /* MF_EVENT_TOKEN for every token */
    int n_logprobs; /* ... with so many of the likeliest; -1: not even the token's own is computed */

    const mf_reply_mark *marks; /* more places where states are worth keeping */
    int n_marks;
    /* Tokens of an earlier prompt with the model's answer. Where their text is the beginning of this prompt's they are
     * taken as they are, since a model may spell a text with other tokens than the tokenizer does. */
    const int32_t *known;
    size_t n_known;
    /* Another reply to the same request, text or tokens, with the same marks and known: its prompt is taken as it is,
     * instead of being rendered and encoded once more. NULL: none. */
    const mf_reply *like;

    mf_event_fn *fn; /* gets the events, during mf_reply_step and mf_reply_finish; NULL: nobody */
    void *user;
} mf_reply_options;

void mf_reply_options_init(mf_reply_options *opt);

/* info: of the model that evaluates; its n_vocab, eos and n_eos are used. text and what fn needs must outlive the
 * reply; all else is copied. MF_E_CONTEXT_FULL where the prompt leaves no room for a token within n_ctx. */
mf_status mf_reply_create(const mf_text *text, const mf_model_info *info, const mf_reply_options *opt, mf_reply **out,
                          mf_error *err);
void mf_reply_free(mf_reply *reply); /* NULL is fine */

typedef struct mf_reply_prompt {
    const int32_t *ids;
    size_t n_ids;
    const int64_t
        *marks; /* rising, as mf_prompt takes them: ends of the system prompt, of turns, those asked for, end */
    size_t n_marks;
    const int64_t *asked; /* [opt.n_marks]: where each mark of the options came to lie; 0: nowhere */
    bool in_reasoning;    /* the prompt ends where the model has begun to reason */
} mf_reply_prompt;

void mf_reply_prompt_get(const mf_reply *reply, mf_reply_prompt *out); /* borrowed */

/* Takes the logits of the token evaluated last and chooses the next. *ids (borrowed until the next call) are to be
 * evaluated before the next step: usually one, several where text is forced. *n 0: the reply has ended, and
 * mf_reply_result says why. After an error the reply has ended, too. */
mf_status mf_reply_step(mf_reply *reply, const float *logits, const int32_t **ids, size_t *n, mf_error *err);

typedef enum mf_reply_end {
    MF_END_NONE,       /* not yet */
    MF_END_STOP,       /* the model ended */
    MF_END_STOP_TEXT,  /* a text of stops came: result.stop says which */
    MF_END_LENGTH,     /* max_tokens; also of an answer of a form that was brought to its end before them */
    MF_END_TOOL_CALLS, /* the model ended with tool calls, which it waits for */
    MF_END_COMPLETE,   /* the form is filled, nothing can follow */
    MF_END_CONTEXT,    /* n_ctx */
    MF_END_CANCELLED,  /* mf_reply_finish */
    MF_END_FAILED      /* a step failed */
} mf_reply_end;

typedef struct mf_reply_result {
    mf_reply_end end;
    int stop;            /* with MF_END_STOP_TEXT: index in stops; -1 */
    int n_calls;         /* tool calls that came out */
    int64_t n_prompt;    /* tokens */
    int64_t n_made;      /* chosen tokens, the one that ends the answer left out */
    int64_t n_reasoning; /* ... of which reasoning */
} mf_reply_result;

/* Ends a reply from outside: what was said so far comes out. Nothing happens where it has ended already. */
mf_status mf_reply_finish(mf_reply *reply, mf_error *err);
void mf_reply_result_get(const mf_reply *reply, mf_reply_result *out);

/* ---- counters: how the experts came ------------------------------------------------------------------------------ */

#define MF_LATENCY_BUCKETS 20
#define MF_LATENCY_FIRST_US 16 /* bucket 0 is below this, each following one below twice the one before */

enum {
    MF_PREDICTOR_LAST_TOKEN,
    MF_PREDICTOR_NEXT_ROUTER,
    MF_PREDICTOR_EARLY_ROUTER,
    MF_PREDICTOR_SECOND_ROUTER,
    MF_PREDICTORS
};

/* One predictor: the same layer's experts of the token before; the next layer's router on this layer's output; the same
 * one layer's time earlier, on this layer's residual before its experts are added; the router of the layer after next
 * on this layer's output. */
typedef struct mf_predictor_stats {
    int64_t wanted;   /* experts wanted in turns it had spoken about */
    int64_t foretold; /* experts it had named for them */
    int64_t right;    /* ... that were wanted: recall is right / wanted */
    int64_t read;     /* reads made for its sake */
    int64_t useful;   /* ... there when wanted */
    int64_t late;     /* ... still under way when wanted */
    int64_t useless;  /* ... gone without having been wanted */
    int64_t stall_ns; /* compute waited for those that were late; the rest of all waiting is for what nobody foretold */
    bool resting;     /* is not listened to now: did not pay lately, or off */
} mf_predictor_stats;

typedef struct mf_stats {
    int64_t wanted; /* experts asked for, once per layer and chunk */
    int64_t hits;   /* ... that were in memory */
    int64_t bytes_wanted;
    int64_t bytes_read;       /* because they were wanted */
    int64_t bytes_prefetched; /* because they were foretold, or all experts fit */
    int64_t stall_ns;         /* compute waited for experts */
    int64_t busy_ns;          /* at least one read was under way */
    int64_t evictions, read_errors;
    int64_t latency[MF_LATENCY_BUCKETS]; /* reads by duration */
    mf_predictor_stats predictors[MF_PREDICTORS];
    /* how things are now */
    const char *io, *policy; /* "mmap", "pread", "uring"; "horizons", ... */
    bool direct;
    int64_t ceiling;     /* bytes/s the drive was measured at; 0: not measured */
    int64_t read_bytes;  /* of one read at most */
    int32_t read_depth;  /* reads under way at most */
    int64_t budget;      /* bytes for experts now; 0: no limit (mapped) */
    int64_t cache_bytes; /* experts in memory */
    int64_t lent_bytes;  /* taken out of the budget for sessions, cached prompts and the rows of a pass */
    int64_t prompt_cache_bytes, prompt_cache_budget; /* states in memory, of which sessions may share pages; at most */
    /* lossy reading; all 0 without it */
    int64_t lossy_experts;  /* that decoded tokens chose since the cache was full ... */
    int64_t lossy_replaced; /* ... and that others took the place of */
    int64_t lossy_skipped;  /* ... that were left out */
    int64_t lossy_small;    /* ... that small copies served */
    int64_t
        lossy_small_bytes; /* of small copies, read and prefetched; bytes_read and bytes_prefetched have them, too */
} mf_stats;

/* Of all sessions since the model was opened or the counters were reset. */
void mf_model_stats_get(mf_model *model, mf_stats *out);
void mf_model_stats_reset(mf_model *model);
/* Of one session: wanted, hits, bytes_wanted, bytes_read and stall_ns; the rest is 0. A pass over several sessions
 * counts in each of them. */
void mf_session_stats_get(const mf_session *session, mf_stats *out);
void mf_session_stats_reset(mf_session *session);

/* Drops all predictions, as if nothing had been evaluated; results do not change, only reads do. */
void mf_prefetch_forget(mf_model *model);

/* For diagnosis: one layer applied to hidden [n_rows][n_hidden] at the positions that follow the session's tokens,
 * into out (same shape). The session does not change, so repeated calls give the same bits. */
mf_status mf_layer_forward(mf_session *session, int layer, const float *hidden, int n_rows, float *out, mf_error *err);

/* ---- looking inside: for tools that measure or examine a model -------------------------------------------------- */

/* One kind of op in one layer: how often it ran, how long that took, what it has to touch and compute at least (flops 0
 * where that is hardly anything). */
typedef struct mf_profile_row {
    const char *op; /* "matmul", "experts", "attention", ..., "head" for the product with the vocabulary */
    int32_t layer;  /* -1 outside layers */
    int64_t n_runs, ns;
    double bytes, flops;
} mf_profile_row;

/* From start on evaluations of all sessions are measured op by op, from zero; stop ends that. get writes the rows of
 * what ran since the last start, by layer, as many as fit, and *n says how many there are. */
mf_status mf_profile_start(mf_model *model, mf_error *err);
void mf_profile_stop(mf_model *model);
mf_status mf_profile_get(mf_model *model, mf_profile_row *rows, size_t max, size_t *n, mf_error *err);

/* A tensor of the resident weights, as it is stored. */
typedef struct mf_tensor_info {
    const char *name;
    const char *type;    /* "BF16", "F32", "affine", ... */
    int32_t bits, group; /* of types with scales; else 0 */
    int64_t n_rows, n_cols;
    int64_t bytes; /* with its scales and biases */
} mf_tensor_info;

/* Names in their order, NULL beyond the last; scales and biases are named too. The string is the model's. */
const char *mf_tensor_name(const mf_model *model, int64_t index);
/* MF_E_NOT_FOUND for a name that the model does not have. */
mf_status mf_tensor_describe(const mf_model *model, const char *name, mf_tensor_info *out, mf_error *err);
/* Rows [first, first + n) as f32; out_len is n * n_cols. */
mf_status mf_tensor_rows(const mf_model *model, const char *name, int64_t first, int64_t n, float *out, size_t out_len,
                         mf_error *err);
/* The embedding of a token; out_len is n_hidden. */
mf_status mf_embedding(const mf_model *model, int32_t token, float *out, size_t out_len, mf_error *err);

/* Bytes of one routed expert as it is stored (docs/FORMAT.md says how), and those bytes, read from its file. 0 and
 * MF_E_NOT_FOUND where there is none. */
int64_t mf_expert_bytes(const mf_model *model);
mf_status mf_expert_read(const mf_model *model, int layer, int expert, void *out, size_t size, mf_error *err);

#ifdef __cplusplus
}
#endif
#endif
