/* The job: who is there, whether they fit together, and how it ends. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <time.h>
#include <unistd.h>

#include "backend/backend.h"
#include "engine/experts.h"
#include "wire.h"

cluster_job cluster = {.size = 1, .stall_limit = 60, .meet_limit = 600};

#define SAY_AFTER 10.0 /* seconds */

/* ---- before MPI is started: mpirun says in the environment what there is ---------------------------------------- */

static int number_of(const char *const *names) {
    for (; *names; names++) {
        const char *text = getenv(*names);
        char *end;
        long n = text ? strtol(text, &end, 10) : -1;
        if (text && end != text && !*end && n >= 0 && n < 1 << 20) return (int)n;
    }
    return -1;
}

static void look_around(void) {
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL};
    static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", NULL};
    int size = number_of(sizes), rank = number_of(ranks);
    if (size < 2 || rank < 0) return;
    cluster.size = size;
    cluster.rank = rank;
}

void cluster_mute(bool on) {
    static int kept = -1;
    int null = on ? open("/dev/null", O_WRONLY | O_CLOEXEC) : -1;
    fflush(NULL);
    if (on && null >= 0) {
        kept = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
        dup2(null, STDOUT_FILENO); /* for good */
        dup2(null, STDERR_FILENO);
    } else if (!on && kept >= 0) {
        dup2(kept, STDERR_FILENO);
        close(kept);
        kept = -1;
    }
    if (null >= 0) close(null);
}

bool cluster_enter(const char *command, int *code) {
    static const char *const evaluate[] = {"run", "chat", "serve", "check", "eval", "bench"};
    look_around();
    *code = APP_OK;
    if (cluster.size == 1) return true;
    if (cluster.size > WIRE_MAX_RANKS) {
        if (!cluster.rank) app_say("the job has %d ranks, at most %d are possible", cluster.size, WIRE_MAX_RANKS);
        *code = APP_USAGE;
        return false;
    }
    for (size_t i = 0; command && i < MF__COUNT(evaluate); i++)
        if (!strcmp(command, evaluate[i])) cluster.takes_part = true;
    if (!cluster.rank) return true;
    cluster_mute(true); /* what is wrong with the command line rank 0 says */
    return cluster.takes_part;
}

int cluster_size(void) {
    return cluster.takes_part ? cluster.size : 1;
}

bool cluster_worker(void) {
    return cluster.takes_part && cluster.rank > 0;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static void sleep_ns(long ns) {
#ifdef __linux__
    prctl(PR_SET_TIMERSLACK, 1000UL); /* ns; 50 us otherwise */
#endif
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

void cluster_nap(void) {
    sleep_ns(10000);
}

/* The next message of a token is not far: look without a pause, then with short ones, on which a busy machine gives the
 * processor back sooner than after sched_yield; then rarely. A short one takes up to 0.1 ms where the system is a
 * guest, so a rank that has a machine to itself looks longer. */
void cluster_pause(double waited) {
    if (waited < (cluster.alone ? 2e-3 : 50e-6)) return;
    sleep_ns(waited < 0.02 ? 10000 : waited < 2 ? 200000 : 2000000);
}

cluster_waited cluster_wait(MPI_Request *request, MPI_Status *status, double limit) {
    double began = app_seconds();
    for (int done = 0;;) {
        if (MPI_Test(request, &done, status) != MPI_SUCCESS) return CLUSTER_FAILED;
        if (done) return CLUSTER_DONE;
        double waited = app_seconds() - began;
        if (limit > 0 && waited > limit) return CLUSTER_LATE;
        cluster_pause(waited);
    }
}

/* What rank 0 says where MPI itself waits for a rank that does not come: its calls have no limit. */
static const char *watched;

static void on_alarm(int sig) {
    (void)sig;
    ssize_t n = write(STDERR_FILENO, watched, strlen(watched));
    _exit(n < 0 ? APP_FAILED + 1 : APP_FAILED); /* mpirun ends the others */
}

static void watch(double seconds, const char *text) {
    if (cluster.rank) return;
    watched = text;
    signal(SIGALRM, on_alarm);
    alarm(seconds > 0 ? (unsigned)seconds + 1 : 0);
}

/* ---- the handshake ----------------------------------------------------------------------------------------------- */

mf_status cluster_start(mf_error *err) {
    int level = 0, rank = -1, size = -1;
    if (cluster.started) return MF_OK;
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0); /* ranks may share processors */
    watch(cluster.meet_limit, "moeflux: MPI waits for a rank that has not started; the job ends\n");
    int bad = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    watch(0, "");
    if (bad) return mf__fail(err, MF_E_IO, "MPI could not be started");
    cluster.started = true;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    cluster.met = cluster.lost = rank != cluster.rank || size != cluster.size; /* there is nobody to tell */
    if (cluster.lost)
        return mf__fail(err, MF_E_MISMATCH, "mpirun said rank %d of %d, MPI says %d of %d", cluster.rank, cluster.size,
                        rank, size);
    if (level < MPI_THREAD_SERIALIZED)
        return mf__fail(err, MF_E_UNSUPPORTED, "this MPI cannot be called by several threads in turn");
    return MF_OK;
}

static void fill_hello(wire_hello *h, mf_model *model, const char *dir, const mf_error *why) {
    mf_error err = {0};
    mf_stats s;
    memset(h, 0, sizeof *h);
    h->pid = getpid();
    gethostname(h->host, sizeof h->host - 1);
    snprintf(h->version, sizeof h->version, "%d.%d.%d (wire %d)", MF_VERSION_MAJOR, MF_VERSION_MINOR, MF_VERSION_PATCH,
             WIRE_VERSION);
    snprintf(h->dir, sizeof h->dir, "%s", dir ? dir : "");
    h->mixed = cluster.mixed;
    h->has_placement = cluster.placement != NULL;
    h->wire = (int32_t)cluster.wire;
    if (model && mf_model_fingerprint(model, &h->fingerprint, &err) == MF_OK &&
        mf__model_content(model, &h->content, &err) == MF_OK) {
        const mf_model_info *info = mf_model_info_get(model);
        const mf__shard *shard = mf__model_shard(model);
        h->ok = 1;
        h->n_layers = info->n_layers;
        h->n_experts = info->n_experts;
        h->n_hidden = info->n_hidden;
        h->top_k = info->n_experts_per_token;
        snprintf(h->arithmetic, sizeof h->arithmetic, "%s %s", info->backend, mf__cpu_level_name(mf__cpu_level_best()));
        mf_model_stats_get(model, &s);
        h->budget = s.budget && s.budget < info->expert_bytes ? s.budget : info->expert_bytes;
        h->expert_bytes = info->expert_bytes;
        if (shard) {
            h->shard_ranks = shard->n_ranks;
            h->shard_rank = shard->rank;
            h->placement = mf__shard_placement(shard);
        }
    }
    const char *text = err.text[0] ? err.text
                       : why       ? why->text
                                   : "its command ended before the model was open; is the command line right?";
    if (!h->ok) snprintf(h->error, sizeof h->error, "%s", text);
}

static mf_status differs(const wire_hello *h, int rank, const char *what, const char *has, const char *first,
                         mf_error *err) {
    return mf__fail(err, MF_E_MISMATCH, "rank %d on %s has %s %s, rank 0 on %s has %s: all ranks must have the same%s",
                    rank, h[rank].host, what, has, h[0].host, first,
                    strcmp(what, "moeflux") ? " (--backend; --mixed accepts results that differ in the last bits)"
                                            : "");
}

/* Whether rank r's share of the model is the one that this job needs there; first is a rank that has one, too. */
static mf_status judge_shard(const wire_hello *h, int r, int first, mf_error *err) {
    if (h[r].shard_ranks != cluster.size)
        return mf__fail(
            err, MF_E_MISMATCH,
            "rank %d on %s has in %s the share of rank %d of %d, and this job has %d ranks: start %d, or make "
            "shares for %d (moeflux shard --ranks %d)",
            r, h[r].host, h[r].dir, h[r].shard_rank, h[r].shard_ranks, cluster.size, h[r].shard_ranks, cluster.size,
            cluster.size);
    if (h[r].shard_rank != r)
        return mf__fail(err, MF_E_MISMATCH,
                        "rank %d on %s has in %s the share of rank %d: give it its own (moeflux shard --rank %d)", r,
                        h[r].host, h[r].dir, h[r].shard_rank, r);
    if (h[r].placement != h[first].placement)
        return mf__fail(
            err, MF_E_MISMATCH,
            "rank %d on %s has a share of another placement than rank %d on %s (%016llx and %016llx): make all "
            "shares with the same --placement, --shares and --copies",
            r, h[r].host, first, h[first].host, (unsigned long long)h[r].placement,
            (unsigned long long)h[first].placement);
    if (h[0].has_placement)
        return mf__fail(
            err, MF_E_INVALID,
            "--placement is for whole directories, and rank %d on %s has a share: which experts are where is "
            "in it",
            r, h[r].host);
    return MF_OK;
}

static mf_status judge_model(const wire_hello *h, int r, mf_error *err) {
    if (h[r].n_layers != h[0].n_layers || h[r].n_experts != h[0].n_experts || h[r].n_hidden != h[0].n_hidden ||
        h[r].top_k != h[0].top_k || h[r].content != h[0].content)
        return mf__fail(err, MF_E_MISMATCH,
                        "rank %d on %s has another model in %s, or other options for it, than rank 0 on %s in %s "
                        "(fingerprints %016llx and %016llx): copy the model's directory, and start all ranks with the "
                        "same --experts-per-token",
                        r, h[r].host, h[r].dir, h[0].host, h[0].dir, (unsigned long long)h[r].content,
                        (unsigned long long)h[0].content);
    if (h[r].fingerprint != h[0].fingerprint && !h[0].mixed)
        return mf__fail(
            err, MF_E_MISMATCH,
            "rank %d on %s has the model of rank 0 on %s, and other options for it: start all ranks with the "
            "same --backend, --exact, --kv, --yarn and --experts-per-token",
            r, h[r].host, h[0].host);
    return MF_OK;
}

/* Judges what all have seen; the same on every rank. */
static mf_status judge(const wire_hello *h, mf_error *err) {
    int first = -1;
    if (!h[0].ok) return mf__fail(err, MF_E_INVALID, "%s", h[0].error);
    for (int r = 1; r < cluster.size; r++)
        if (!h[r].ok) return mf__fail(err, MF_E_INVALID, "rank %d on %s: %.500s", r, h[r].host, h[r].error);
    for (int r = 0; r < cluster.size; r++) {
        if (strcmp(h[r].version, h[0].version)) return differs(h, r, "moeflux", h[r].version, h[0].version, err);
        if (strcmp(h[r].arithmetic, h[0].arithmetic) && !h[0].mixed)
            return differs(h, r, "the backend and instruction set", h[r].arithmetic, h[0].arithmetic, err);
        MF__TRY(judge_model(h, r, err));
        if ((h[r].has_placement && !h[0].has_placement) || (h[r].wire && h[r].wire != h[0].wire))
            return mf__fail(err, MF_E_INVALID,
                            "rank %d on %s has --placement or --wire, which rank 0 decides, and rank 0 on %s has not",
                            r, h[r].host, h[0].host);
        if (h[r].shard_ranks && first < 0) first = r;
        if (h[r].shard_ranks) MF__TRY(judge_shard(h, r, first, err));
    }
    return MF_OK;
}

mf_status cluster_exchange(int rank, int tag, bool send, void *data, size_t size, mf_error *err) {
    MPI_Request request;
    MPI_Status status;
    double limit = cluster.rank ? 0 : cluster.stall_limit;
    int bad = send ? MPI_Isend(data, (int)size, MPI_BYTE, rank, tag, MPI_COMM_WORLD, &request)
                   : MPI_Irecv(data, (int)size, MPI_BYTE, rank, tag, MPI_COMM_WORLD, &request);
    cluster_waited waited = bad ? CLUSTER_FAILED : cluster_wait(&request, &status, limit);
    if (waited == CLUSTER_DONE) return MF_OK;
    cluster.lost = true; /* also since data is in use for good */
    if (waited == CLUSTER_FAILED)
        return mf__fail(err, MF_E_IO, "rank %d on %s cannot be reached; the job ends", rank, cluster.hello[rank].host);
    return mf__fail(err, MF_E_IO,
                    "rank %d on %s has not answered for %g s (while the experts were shared out); the job ends", rank,
                    cluster.hello[rank].host, limit);
}

/* Rank 0: the first failure of all, in *mine. */
static mf_status gather_states(wire_state *mine, mf_error *err) {
    static wire_state theirs;
    for (int r = 1; r < cluster.size; r++) {
        MF__TRY(cluster_exchange(r, WIRE_TAG_STATE, false, &theirs, sizeof theirs, err));
        if (theirs.status == MF_OK || mine->status != MF_OK) continue;
        mine->status = theirs.status;
        theirs.text[sizeof theirs.text - 1] = '\0';
        snprintf(mine->text, sizeof mine->text, "rank %d on %s: %.500s", r, cluster.hello[r].host, theirs.text);
    }
    for (int r = 1; r < cluster.size; r++) MF__TRY(cluster_exchange(r, WIRE_TAG_STATE, true, mine, sizeof *mine, err));
    return MF_OK;
}

mf_status cluster_agree(mf_status st, mf_error *err) {
    static wire_state mine;
    mine = (wire_state){.status = st};
    if (st != MF_OK) snprintf(mine.text, sizeof mine.text, "%s", err->text);
    mf_status out = MF_OK;
    if (!cluster.lost && !cluster.rank) out = gather_states(&mine, err);
    if (!cluster.lost && cluster.rank) {
        out = cluster_exchange(0, WIRE_TAG_STATE, true, &mine, sizeof mine, err);
        if (out == MF_OK) out = cluster_exchange(0, WIRE_TAG_STATE, false, &mine, sizeof mine, err);
    }
    mine.text[sizeof mine.text - 1] = '\0';
    if (out == MF_OK && mine.status != MF_OK) out = mf__fail(err, (mf_status)mine.status, "%s", mine.text);
    if (out != MF_OK) cluster.fits = false;
    return out;
}

/* Which ranks have not come as far as the handshake: rank 0 says so after a while, and gives up in the end. */
static mf_status wait_for_all(MPI_Request *met, MPI_Request *here, mf_error *err) {
    double began = app_seconds();
    MPI_Status status;
    for (bool said = false;;) {
        int absent = 0, there = 0, n = 0;
        char who[64] = "the handshake has"; /* a rank went as far as that, and no further */
        cluster_waited waited = cluster_wait(met, &status,
                                             cluster.rank                     ? 0
                                             : cluster.meet_limit < SAY_AFTER ? cluster.meet_limit
                                                                              : SAY_AFTER);
        if (waited == CLUSTER_DONE) return MF_OK;
        if (waited == CLUSTER_FAILED) return mf__fail(err, MF_E_IO, "the ranks of the job could not be reached");
        for (int r = cluster.size - 1; r > 0; r--)
            if (MPI_Test(&here[r], &there, &status) != MPI_SUCCESS || !there) absent = r, n++;
        if (n)
            snprintf(who, sizeof who, "rank %d%s not opened the model: it has", absent,
                     n > 1 ? " and others have" : " has");
        if (app_seconds() - began >= cluster.meet_limit)
            return mf__fail(err, MF_E_IO, "%s taken %g s (--stall-limit); the job ends", who, cluster.meet_limit);
        if (!said) app_note("%s taken %g s so far", who, SAY_AFTER);
        said = true;
    }
}

/* The bytes that ranks send before the handshake; other versions may not. */
static void take_here(MPI_Request *here) {
    MPI_Status status;
    for (int r = 1; r < cluster.size; r++) {
        if (here[r] == MPI_REQUEST_NULL) continue;
        if (!strcmp(cluster.hello[r].version, cluster.hello[0].version) &&
            cluster_wait(&here[r], &status, 10) == CLUSTER_DONE)
            continue;
        MPI_Cancel(&here[r]);
        MPI_Request_free(&here[r]);
    }
}

static void end_texts(wire_hello *h) {
    h->version[sizeof h->version - 1] = h->arithmetic[sizeof h->arithmetic - 1] = h->host[sizeof h->host - 1] =
        h->dir[sizeof h->dir - 1] = h->error[sizeof h->error - 1] = '\0';
}

/* Machines and containers may have the same name: then the process is none of ours. */
static void look_for_ranks(void) {
    const wire_hello *h = cluster.hello;
    cluster.alone = true;
    for (int r = 0; r < cluster.size; r++)
        if (r != cluster.rank && !strcmp(h[r].host, h[cluster.rank].host)) cluster.alone = false;
    for (int r = 1; r < cluster.size && !cluster.rank; r++)
        cluster.seen[r] = !strcmp(h[r].host, h[0].host) && h[r].pid > 0 && !kill((pid_t)h[r].pid, 0);
}

bool cluster_has_ended(int rank) {
    return cluster.seen[rank] && kill((pid_t)cluster.hello[rank].pid, 0) && errno == ESRCH;
}

mf_status cluster_meet(mf_model *model, const char *dir, const mf_error *why, mf_error *err) {
    static wire_hello mine;
    static MPI_Request here[WIRE_MAX_RANKS];
    static char byte[WIRE_MAX_RANKS];
    MPI_Request met;
    int bad = 0;
    MF__TRY(cluster_start(err));
    cluster.met = true;
    fill_hello(&mine, model, dir, why);
    for (int r = 1; r < cluster.size && !cluster.rank; r++)
        bad |= MPI_Irecv(&byte[r], 1, MPI_BYTE, r, WIRE_TAG_HERE, MPI_COMM_WORLD, &here[r]);
    if (cluster.rank) bad |= MPI_Isend(byte, 1, MPI_BYTE, 0, WIRE_TAG_HERE, MPI_COMM_WORLD, &here[0]);
    bad |= MPI_Iallgather(&mine, sizeof mine, MPI_BYTE, cluster.hello, sizeof mine, MPI_BYTE, MPI_COMM_WORLD, &met);
    mf_status st =
        bad ? mf__fail(err, MF_E_IO, "the ranks of the job could not be reached") : wait_for_all(&met, here, err);
    cluster.lost = st != MF_OK;
    MF__TRY(st);
    if (cluster.rank)
        MPI_Request_free(&here[0]);
    else
        take_here(here);
    for (int r = 0; r < cluster.size; r++) end_texts(&cluster.hello[r]);
    look_for_ranks();
    MF__TRY(judge(cluster.hello, err));
    cluster.fits = true;
    return MF_OK;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* A rank that is stopped after MPI's end: mpirun would wait for it, unless another one fails. */
static int await_ends(int code) {
    double began = app_seconds();
    for (int r = 1; r < cluster.size; r++)
        while (cluster.seen[r] && !cluster_has_ended(r)) {
            double waited = app_seconds() - began;
            if (waited > cluster.stall_limit) {
                app_say("rank %d on %s has not ended for %g s; the job ends", r, cluster.hello[r].host,
                        cluster.stall_limit);
                return code ? code : APP_FAILED;
            }
            cluster_pause(waited);
        }
    return code;
}

int cluster_leave(int code) {
    mf_error err;
    if (!cluster.takes_part) return code;
    if (!cluster.met) cluster_meet(NULL, NULL, NULL, &err); /* nobody waits for us in vain */
    if (cluster.rank && !cluster.fits) code = APP_OK;       /* rank 0 says what is wrong, and has the exit code */
    if (!cluster.rank && !cluster_head_close()) cluster.lost = true;
    fflush(NULL);
    if (!cluster.started) return code;
    if (cluster.lost) MPI_Abort(MPI_COMM_WORLD, code ? code : APP_FAILED); /* it cannot be told otherwise */
    watch(cluster.stall_limit, "moeflux: a rank has not ended; the job is ended\n");
    MPI_Finalize();
    watch(0, "");
    return cluster.rank ? code : await_ends(code);
}
