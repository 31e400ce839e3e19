/* One API request on its way through the server, and what came out of it so far. */
#ifndef MOEFLUX_JOB_H
#define MOEFLUX_JOB_H

#include "buf.h"
#include "scheduler.h"
#include "server.h"

typedef enum api_family { FAMILY_OPENAI, FAMILY_ANTHROPIC } api_family;

/* Why a request is refused or failed, in the terms of both families. */
typedef struct problem {
    int status; /* HTTP; 0: there is none */
    char param[96], code[48];
    char text[MF_ERROR_TEXT];
    const char *id; /* of the request; NULL: it has none */
} problem;

/* The body of an error as the family has it; malloc'd. */
char *problem_body(api_family family, const problem *p);

/* A tool call as it came out. */
typedef struct out_call {
    char id[48];
    char *name;
    buf arguments;
} out_call;

/* What one reply has said. */
typedef struct out_choice {
    buf text, reasoning;
    out_call *calls;
    int n_calls;
    json_t *logprobs; /* the text's tokens, as the API writes them; NULL: not asked for */
    size_t n_sent;    /* of logprobs: in the stream */
    bool ended;
    int64_t n_prompt, n_reused;
    mf_reply_result result;
    /* for the API's use while it streams */
    int block;      /* number of the open block or item, -1: none */
    int block_kind; /* mf_event_kind of it */
    int n_blocks;
    size_t offset; /* completions: of the next token in the text */
} out_choice;

#define JOB_MAX_CHOICES 64

typedef struct job job;

typedef struct api {
    const char *path;
    api_family family;
    void (*prepare)(job *j, json_t *body);                      /* preparing thread: job_fail, job_whole or job_start */
    void (*begin)(job *j);                                      /* loop, in streams: before anything else */
    void (*event)(job *j, out_choice *c, const sched_event *e); /* loop, in streams: REPLY, PROMPT_TOKEN, ENDED */
    void (*end)(job *j);                                        /* loop: all replies have ended */
    void (*problem)(job *j); /* loop, in streams: writes j->problem; NULL: as the family does */
} api;

#define NO_THREADS "thread_unsupported_request" /* a problem's code: Anthropic's conversations that servers keep */

struct job {
    job *next;
    server *server;
    const api *api;
    char id[40];     /* random; the APIs put their prefixes before it */
    http_conn *conn; /* loop only; NULL: the client has left */
    atomic_bool cancelled;
    struct letter *prepared; /* to the loop, when it is; made in advance */
    char *body;
    size_t n_body, counted; /* counted: what http_release_body gets back when the body has been read */
    uint64_t client;
    /* filled by prepare */
    problem problem;
    json_t *whole; /* the answer, where no model was needed */
    bool stream, include_usage, echo, wants_logprobs;
    int n_top;
    int n_breakpoints;  /* Anthropic: blocks with cache_control */
    bool cache_1h;      /* ... the last of them asks for an hour */
    int64_t cache_mark; /* ... tokens up to it */
    char *model;        /* as the client called it */
    char **stops;       /* owned here, for the answer's stop_sequence */
    int n_stops;
    json_t *about; /* responses: parts of the request that its answer repeats */
    seq *seqs[JOB_MAX_CHOICES];
    char *echo_text[JOB_MAX_CHOICES]; /* completions with echo */
    int n_choices, n_per_prompt;
    /* loop */
    out_choice out[JOB_MAX_CHOICES];
    int n_ended;
    bool begun; /* the stream's head is out */
    int64_t created;
    double t_created, t_first, t_last;
    int64_t n_events; /* responses: sequence_number */
    int n_logprobs;   /* that it holds, of the server's */
    buf line;         /* of the stream, being written */
};

/* ---- for prepare ------------------------------------------------------------------------------------------------- */

/* The first problem counts. param and code may be NULL. Returns false. */
bool job_fail(job *j, int status, const char *param, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
bool job_fail_from(job *j, const char *param, const mf_error *err); /* the library's error, with the status that fits */
void job_whole(job *j, json_t *answer);                             /* takes it over */

const server_options *job_options(const job *j);
const mf_sampler_options *job_sampling(const job *j); /* what the model recommends */

/* Makes one more reply; opt's fn and user are set here. NULL: failed, and said so. */
seq *job_add_reply(job *j, mf_reply_options *opt);

/* ---- for the loop ------------------------------------------------------------------------------------------------ */

bool job_send(job *j, const void *bytes, size_t n);    /* into the stream; false: the client has left */
void job_sse(job *j, const char *event, json_t *data); /* takes data over; event may be NULL */
void job_respond(job *j, json_t *answer);              /* 200, takes it over */

json_t *token_logprob(const job *j, const mf_event *e); /* {"token", "logprob", "bytes", "top_logprobs"} */
void job_logprobs_sent(job *j, out_choice *c);          /* all that there are: a stream keeps none of them */

#endif
