#include "metrics.h"

#include <stdio.h>
#include <unistd.h>

#include "job.h"
#include "server_int.h"

static const double bounds[METRICS_BUCKETS - 1] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                   0.25,  0.5,    1,     2.5,  5,     25};

static void observe(histogram *h, double seconds) {
    int i = 0;
    while (i < METRICS_BUCKETS - 1 && seconds > bounds[i]) i++;
    h->counts[i]++;
    h->sum += seconds;
    h->n++;
}

void metrics_first_token(metrics *m, double seconds) {
    observe(&m->first_token, seconds);
}

void metrics_refused(metrics *m) {
    m->outcomes[OUTCOME_BUSY]++;
}

void metrics_job(metrics *m, const struct job *j, bool left) {
    double now = mf__clock_seconds();
    int status = j->problem.status;
    m->outcomes[left            ? OUTCOME_LEFT
                : !status       ? OUTCOME_OK
                : status == 429 ? OUTCOME_BUSY
                : status < 500  ? OUTCOME_CLIENT_ERROR
                                : OUTCOME_SERVER_ERROR]++;
    int64_t most = 0;
    for (int i = 0; i < j->n_choices; i++) {
        const out_choice *c = &j->out[i];
        if (i % j->n_per_prompt == 0) { /* choices of one prompt share it */
            m->prompt_tokens += c->n_prompt;
            m->cached_tokens += c->n_reused;
        }
        m->made_tokens += c->result.n_made;
        if (c->result.n_made > most) most = c->result.n_made;
    }
    if (!left && !status) {
        observe(&m->whole, now - j->t_created);
        m->lately = m->whole.n > 1 ? 0.9 * m->lately + 0.1 * (now - j->t_created) : now - j->t_created;
    }
    if (most > 1 && j->t_first > 0) observe(&m->per_token, (now - j->t_first) / (double)(most - 1));
}

int metrics_retry_after(const metrics *m, int n_waiting, int parallel) {
    double seconds = m->lately * n_waiting / (parallel > 0 ? parallel : 1);
    return seconds < 1 ? 1 : seconds > 300 ? 300 : (int)(seconds + 0.999);
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static void about(buf *b, const char *name, const char *type, const char *help) {
    buf_printf(b, "# HELP moeflux_%s %s\n# TYPE moeflux_%s %s\n", name, help, name, type);
}

static void one(buf *b, const char *name, const char *type, double value, const char *help) {
    about(b, name, type, help);
    buf_printf(b, "moeflux_%s %.15g\n", name, value);
}

static void write_histogram(buf *b, const char *name, const histogram *h, const char *help) {
    int64_t below = 0;
    about(b, name, "histogram", help);
    for (int i = 0; i < METRICS_BUCKETS - 1; i++) {
        below += h->counts[i];
        buf_printf(b, "moeflux_%s_bucket{le=\"%g\"} %lld\n", name, bounds[i], (long long)below);
    }
    buf_printf(b, "moeflux_%s_bucket{le=\"+Inf\"} %lld\nmoeflux_%s_sum %.9g\nmoeflux_%s_count %lld\n", name,
               (long long)h->n, name, h->sum, name, (long long)h->n);
}

static void write_requests(buf *b, const metrics *m) {
    static const char *const names[OUTCOMES] = {"ok", "client_error", "server_error", "busy", "left"};
    about(b, "requests_total", "counter", "API requests by how they ended.");
    for (int i = 0; i < OUTCOMES; i++)
        buf_printf(b, "moeflux_requests_total{outcome=\"%s\"} %lld\n", names[i], (long long)m->outcomes[i]);
    one(b, "prompt_tokens_total", "counter", (double)m->prompt_tokens, "Tokens of prompts.");
    one(b, "cached_tokens_total", "counter", (double)m->cached_tokens, "Tokens of prompts that were known already.");
    one(b, "generated_tokens_total", "counter", (double)m->made_tokens, "Tokens of answers.");
    write_histogram(b, "time_to_first_token_seconds", &m->first_token, "From the request to the first word.");
    write_histogram(b, "time_per_token_seconds", &m->per_token, "Mean of an answer, behind its first word.");
    write_histogram(b, "request_seconds", &m->whole, "From the request to the end of its answer.");
}

static void write_sched(buf *b, const sched_stats *s) {
    one(b, "queue_waiting", "gauge", s->waiting, "Sequences that wait to be read.");
    one(b, "sequences_running", "gauge", s->running, "Sequences that are read or speak.");
    one(b, "sessions_idle", "gauge", s->idle_sessions, "Sessions kept for later.");
    one(b, "sessions_dropped_total", "counter", (double)s->sessions_dropped, "Sessions given up for want of room.");
    one(b, "sequences_yielded_total", "counter", (double)s->yielded,
        "Answers that gave up their session for want of memory, to go on later.");
    one(b, "passes_total", "counter", (double)s->passes, "Evaluations of a batch.");
    one(b, "pass_seconds_total", "counter", s->pass_seconds, "Time they took.");
    one(b, "step_seconds_total", "counter", s->step_seconds, "Time between them, in which tokens are chosen.");
    one(b, "evaluated_prompt_tokens_total", "counter", (double)s->prompt_tokens,
        "Tokens of prompts that were evaluated.");
    one(b, "decoded_tokens_total", "counter", (double)s->made_tokens, "Tokens of answers, as they are evaluated.");
    about(b, "batch_sequences", "histogram", "Sequences in a pass.");
    int64_t below = 0;
    for (int i = 0; i < SCHED_BATCH_BUCKETS; i++) {
        below += s->batch[i];
        buf_printf(b, "moeflux_batch_sequences_bucket{le=\"%d\"} %lld\n", 1 << i, (long long)below);
    }
    buf_printf(b,
               "moeflux_batch_sequences_bucket{le=\"+Inf\"} %lld\nmoeflux_batch_sequences_count %lld\n"
               "moeflux_batch_sequences_sum %lld\n",
               (long long)below, (long long)below, (long long)s->batch_sum);
    about(b, "prompt_reuse_total", "counter", "Prompts whose beginning was known, by where from.");
    buf_printf(b,
               "moeflux_prompt_reuse_total{kind=\"session\"} %lld\nmoeflux_prompt_reuse_total{kind=\"memory\"} %lld\n"
               "moeflux_prompt_reuse_total{kind=\"disk\"} %lld\nmoeflux_prompt_reuse_total{kind=\"fork\"} %lld\n",
               (long long)s->reused_session, (long long)s->reused_memory, (long long)s->reused_disk,
               (long long)s->reused_fork);
}

/* Pages of this process that are in memory, mapped files included. */
static int64_t resident_bytes(void) {
    long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f) return 0;
    if (fscanf(f, "%*s %lld", &pages) != 1) pages = 0;
    fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

/* Sessions and cached prompts share pages: "sessions" has both, and the rows of a pass; they come out of what experts
 * may have otherwise. */
static void write_memory(buf *b, mf_model *model, const mf_stats *s, int64_t ram_bytes) {
    const struct {
        const char *part;
        int64_t used, budget; /* budget -1: it has none of its own */
    } parts[] = {
        {"trunk", mf_model_info_get(model)->trunk_bytes, -1},
        {"experts", s->cache_bytes, s->budget},
        {"sessions", s->lent_bytes, -1},
        {"prompt_cache", s->prompt_cache_bytes, s->prompt_cache_budget},
        {"process", resident_bytes(), ram_bytes},
    };
    about(b, "memory_bytes", "gauge", "Memory by part; process: all that is resident.");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        buf_printf(b, "moeflux_memory_bytes{part=\"%s\"} %lld\n", parts[i].part, (long long)parts[i].used);
    about(b, "memory_budget_bytes", "gauge", "Most memory for a part; 0: no limit (mapped experts, no --ram).");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].budget >= 0)
            buf_printf(b, "moeflux_memory_budget_bytes{part=\"%s\"} %lld\n", parts[i].part, (long long)parts[i].budget);
}

static void write_experts(buf *b, mf_model *model, int64_t ram_bytes) {
    mf_stats s;
    int64_t read = 0, useful = 0;
    mf_model_stats_get(model, &s);
    for (int i = 0; i < MF_PREDICTORS; i++) {
        read += s.predictors[i].read;
        useful += s.predictors[i].useful + s.predictors[i].late;
    }
    double speed = s.busy_ns ? (double)(s.bytes_read + s.bytes_prefetched) / ((double)s.busy_ns * 1e-9) : 0;
    one(b, "expert_wanted_total", "counter", (double)s.wanted, "Experts asked for, once per layer and pass.");
    one(b, "expert_hits_total", "counter", (double)s.hits, "Of these, in memory already.");
    one(b, "expert_read_bytes_total", "counter", (double)s.bytes_read, "Read because they were wanted.");
    one(b, "expert_prefetched_bytes_total", "counter", (double)s.bytes_prefetched, "Read ahead.");
    one(b, "expert_stall_seconds_total", "counter", (double)s.stall_ns * 1e-9, "Time that passes waited for experts.");
    one(b, "expert_prefetch_reads_total", "counter", (double)read, "Reads for predictions.");
    one(b, "expert_prefetch_useful_total", "counter", (double)useful, "Of these, wanted later.");
    one(b, "expert_read_errors_total", "counter", (double)s.read_errors, "Reads that failed.");
    one(b, "drive_ceiling_share", "gauge", s.ceiling ? speed / (double)s.ceiling : 0,
        "Read speed over the drive's measured speed.");
    write_memory(b, model, &s, ram_bytes);
}

static void write_http(buf *b, const http_stats *h) {
    one(b, "connections_open", "gauge", h->open, "Connections now.");
    one(b, "connections_busy", "gauge", h->busy, "Of these, with a request that is worked on.");
    one(b, "connections_accepted_total", "counter", (double)h->accepted, "Connections taken.");
    about(b, "connections_cut_total", "counter", "Connections cut or refused, by why.");
    buf_printf(
        b,
        "moeflux_connections_cut_total{why=\"no_place\"} %lld\nmoeflux_connections_cut_total{why=\"evicted\"} %lld\n"
        "moeflux_connections_cut_total{why=\"deadline\"} %lld\nmoeflux_connections_cut_total{why=\"slow_reader\"} "
        "%lld\n"
        "moeflux_connections_cut_total{why=\"not_http\"} %lld\n",
        (long long)h->refused, (long long)h->evicted, (long long)h->timed_out, (long long)h->slow_readers,
        (long long)h->bad);
}

void metrics_write(const metrics *m, const http_stats *http, const sched_stats *passes, mf_model *model,
                   int64_t ram_bytes, buf *out) {
    write_requests(out, m);
    write_sched(out, passes);
    write_experts(out, model, ram_bytes);
    write_http(out, http);
}
