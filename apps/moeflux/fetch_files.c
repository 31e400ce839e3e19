/* Files side by side: which are fetched when, and the way of each from the first byte to the hash.
 *
 *   waits -> runs -> here -> done         here: size and hash are right, and it is on the disk
 *              |
 *              +-> waits again, for a while, where it was; from the beginning if the hash is wrong, once
 *              +-> failed
 *
 * The small file beside a file says how many bytes have come (never more than have), or "ok". */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "fetch_int.h"

#define NOTE_EVERY ((int64_t)8 << 20)

/* ---- what is known about a file ------------------------------------------------------------------------------------ */

static void note(const transfer *t, const char *text) {
    int fd = open(t->file.note, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    char line[32];
    int n = snprintf(line, sizeof line, "%-20s\n", text); /* always the same length: a shorter one leaves no tail */
    if (fd < 0) return;
    if (pwrite(fd, line, (size_t)n, 0) != n) (void)ftruncate(fd, 0);
    close(fd);
}

static void note_have(transfer *t) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)t->have);
    note(t, text);
    t->noted = t->have;
}

static void read_note(transfer *t) {
    char *text;
    size_t n;
    if (mf__file_read(t->file.note, 64, &text, &n, NULL) != MF_OK) return;
    long long have = strtoll(text, NULL, 10);
    if (!strncmp(text, "ok", 2))
        t->state = TRANSFER_HERE, t->have = t->file.size;
    else if (have > 0 && have <= t->file.size)
        t->have = have;
    free(text);
}

int fetch_add(fetch *f, const fetch_file *file) {
    transfer *grown = realloc(f->files, (size_t)(f->n_files + 1) * sizeof *grown);
    if (!grown || !file->url || !file->path || !file->note) return -1;
    f->files = grown;
    transfer *t = &grown[f->n_files];
    *t = (transfer){.file = *file, .fd = -1, .headers = {.range_start = -1, .range_total = -1, .length = -1}};
    read_note(t);
    if (t->have && !mf__path_exists(t->file.path)) t->state = TRANSFER_WAITS, t->have = 0;
    return f->n_files++;
}

bool fetch_is_here(const fetch *f, int file) {
    return f->files[file].state == TRANSFER_HERE;
}

/* ---- bytes --------------------------------------------------------------------------------------------------------- */

static void sha_begin(transfer *t) {
    char header[48];
    mf__sha_init(&t->sha, t->file.git ? MF_SHA_1 : MF_SHA_256);
    if (!t->file.git) return;
    int n = snprintf(header, sizeof header, "blob %lld", (long long)t->file.size);
    mf__sha_update(&t->sha, header, (size_t)n + 1); /* with its NUL */
}

/* The hash of what an earlier try or run left. */
static mf_status sha_again(transfer *t, mf_error *err) {
    enum { BLOCK = 1 << 20 };
    uint8_t *block = malloc(BLOCK);
    mf_status st = block ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory to read %s", t->file.path);
    sha_begin(t);
    for (int64_t at = 0; st == MF_OK && at < t->have; at += BLOCK) {
        size_t n = t->have - at < BLOCK ? (size_t)(t->have - at) : BLOCK;
        st = mf__pread_all(t->fd, block, n, at, t->file.path, err);
        if (st == MF_OK) mf__sha_update(&t->sha, block, n);
    }
    free(block);
    return st;
}

/* An answer that is not what was asked for. */
static size_t give_up(transfer *t, bool final, mf_status st, const char *what, long long found, long long expected) {
    t->final = final;
    mf__fail(&t->why, st, "%s: %s %lld, expected %lld", t->file.url, what, found, expected);
    return 0;
}

static bool look_at_answer(const fetch *f, transfer *t) {
    const fetch_headers *h = &t->headers;
    t->begun = true;
    if (h->status == 206) {
        if (h->range_start != t->have)
            return give_up(t, false, MF_E_IO, "the server sends bytes from", h->range_start, t->have);
        if (h->range_total != t->file.size)
            return give_up(t, true, MF_E_MISMATCH, "the server's file has size", h->range_total, t->file.size);
        return true;
    }
    if (h->status != 200) {
        fetch_refused(f, t->file.url, h, &t->final, &t->why);
        if (h->status == 416) t->have = 0, t->final = t->tries > 1; /* a range that the server does not have */
        return false;
    }
    if (h->length >= 0 && h->length != t->file.size)
        return give_up(t, true, MF_E_MISMATCH, "the server's file has size", h->length, t->file.size);
    if (t->have) sha_begin(t); /* no ranges here: all of it again */
    t->have = 0;
    return true;
}

static size_t on_bytes(char *data, size_t unit, size_t n, void *user) {
    void **pair = user;
    const fetch *f = pair[0];
    transfer *t = pair[1];
    n *= unit;
    if (!t->begun && !look_at_answer(f, t)) return 0;
    if ((int64_t)n > t->file.size - t->have)
        return give_up(t, true, MF_E_MISMATCH, "the server sends more than the file has: at least",
                       (long long)t->have + (long long)n, (long long)t->file.size);
    if (mf__pwrite_all(t->fd, data, n, t->have, t->file.path, &t->why) != MF_OK) {
        t->final = true;
        return 0;
    }
    mf__sha_update(&t->sha, data, n);
    t->have += (int64_t)n;
    if (t->have - t->noted >= NOTE_EVERY) note_have(t);
    return n;
}

/* ---- one file ------------------------------------------------------------------------------------------------------ */

static mf_status begin(fetch *f, transfer *t, void **pair, mf_error *err) {
    char range[48];
    t->fd = open(t->file.path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (t->fd < 0) return mf__fail_errno(err, errno, "cannot write %s", t->file.path);
    mf_error why;
    if (sha_again(t, &why) != MF_OK) { /* it is shorter than the note says */
        t->have = 0;
        sha_begin(t);
    }
    t->easy = curl_easy_init();
    if (!t->easy) return mf__fail(err, MF_E_NOMEM, "no memory for a download");
    fetch_prepare(f, t->easy, t->file.url, &t->headers);
    pair[0] = f, pair[1] = t;
    curl_easy_setopt(t->easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(t->easy, CURLOPT_WRITEDATA, pair);
    curl_easy_setopt(t->easy, CURLOPT_PRIVATE, t);
    curl_easy_setopt(t->easy, CURLOPT_ERRORBUFFER, t->error);
    if (t->have) {
        snprintf(range, sizeof range, "%lld-", (long long)t->have);
        curl_easy_setopt(t->easy, CURLOPT_RANGE, range);
    }
    t->begun = t->final = false;
    t->why = (mf_error){0};
    t->had = t->have;
    if (curl_multi_add_handle(f->multi, t->easy)) return mf__fail(err, MF_E_NOMEM, "no memory for a download");
    return MF_OK;
}

static void end_request(fetch *f, transfer *t) {
    if (t->easy) {
        curl_multi_remove_handle(f->multi, t->easy);
        curl_easy_cleanup(t->easy);
    }
    t->easy = NULL;
}

static void close_file(transfer *t) {
    if (t->fd >= 0) close(t->fd);
    t->fd = -1;
}

/* All bytes have come: are they the right ones? */
static mf_status check(transfer *t, mf_error *err) {
    char sha[MF_SHA_TEXT];
    mf__sha_text(&t->sha, sha);
    if (strcmp(sha, t->file.sha)) {
        t->final = t->wrong;
        t->wrong = true;
        t->have = 0;
        note_have(t);
        return mf__fail(err, MF_E_IO, "%s: the bytes that came have the hash %s, the publisher says %s", t->file.url,
                        sha, t->file.sha);
    }
    if (fdatasync(t->fd)) return mf__fail_errno(err, errno, "cannot sync %s", t->file.path);
    note(t, "ok");
    return MF_OK;
}

/* How a request ended; the state that follows. */
static transfer_state judge(const fetch *f, transfer *t, CURLcode code, mf_error *err) {
    if (t->have == t->file.size && !t->why.status) {
        if (check(t, &t->why) == MF_OK) return TRANSFER_HERE;
    } else if (!t->begun && t->headers.status && t->headers.status != 200 && t->headers.status != 206 &&
               t->headers.status / 100 != 3) {
        fetch_refused(f, t->file.url, &t->headers, &t->final, &t->why); /* an answer without a body */
    } else if (!t->why.status && code == CURLE_UNSUPPORTED_PROTOCOL) {
        t->final = true;
        mf__fail(&t->why, MF_E_INVALID, "%s leads to an address without TLS, or of another kind; --allow-http lets it",
                 t->file.url);
    } else if (!t->why.status) {
        t->final = code == CURLE_TOO_MANY_REDIRECTS || code == CURLE_URL_MALFORMAT ||
                   code == CURLE_PEER_FAILED_VERIFICATION; /* it will be so the next time */
        mf__fail(&t->why, MF_E_IO, "%s: %s after %lld of %lld bytes", t->file.url,
                 code == CURLE_OK ? "the answer ends"
                 : *t->error      ? t->error
                                  : curl_easy_strerror(code),
                 (long long)t->have, (long long)t->file.size);
    }
    note_have(t);
    t->tries = t->have > t->had ? 1 : t->tries + 1;
    if (!t->final && t->tries <= FETCH_TRIES) {
        t->not_before = app_seconds() + fetch_pause(&t->headers, t->tries);
        return TRANSFER_WAITS;
    }
    *err = t->why;
    return TRANSFER_FAILED;
}

/* ---- the thread ----------------------------------------------------------------------------------------------------- */

/* The next file to begin, or NULL. Under the lock. */
static transfer *next_file(fetch *f) {
    double now = app_seconds();
    int64_t held = 0;
    int running = 0;
    transfer *next = NULL;
    for (int i = 0; i < f->n_files; i++) {
        const transfer *t = &f->files[i];
        running += t->state == TRANSFER_RUNS;
        if (t->state == TRANSFER_RUNS || t->state == TRANSFER_HERE || (t->state == TRANSFER_WAITS && t->have))
            held += t->file.size;
    }
    for (int i = 0; i < f->n_files; i++) {
        transfer *t = &f->files[i];
        if (t->state != TRANSFER_WAITS || now < t->not_before) continue;
        if (t->wanted) return t; /* somebody waits for it: whatever else is held */
        if (!next && running < f->opt.connections && (t->have || held == 0 || held + t->file.size <= f->ahead))
            next = t;
    }
    return next;
}

static void begin_files(fetch *f, void *pairs[][2]) {
    pthread_mutex_lock(&f->lock);
    for (transfer *t; !f->stop && (t = next_file(f));) {
        t->state = TRANSFER_RUNS;
        pthread_mutex_unlock(&f->lock);
        mf_error err;
        mf_status st = begin(f, t, pairs[t - f->files], &err);
        pthread_mutex_lock(&f->lock);
        if (st == MF_OK) continue;
        end_request(f, t);
        close_file(t);
        t->state = TRANSFER_FAILED;
        f->failed = err;
        pthread_cond_broadcast(&f->changed);
    }
    pthread_mutex_unlock(&f->lock);
}

static void end_files(fetch *f) {
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(f->multi, &left));) {
        char *data = NULL;
        if (m->msg != CURLMSG_DONE) continue;
        CURLcode code = m->data.result;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &data);
        transfer *t = (transfer *)(void *)data;
        mf_error err = {0};
        transfer_state state = judge(f, t, code, &err);
        end_request(f, t);
        close_file(t);
        pthread_mutex_lock(&f->lock);
        t->state = state;
        if (state == TRANSFER_FAILED && !f->failed.status) f->failed = err;
        pthread_cond_broadcast(&f->changed);
        pthread_mutex_unlock(&f->lock);
    }
}

static void tick(fetch *f) {
    int64_t have = 0, total = 0;
    if (!f->opt.tick) return;
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < f->n_files; i++) {
        const transfer *t = &f->files[i];
        have += t->state == TRANSFER_DONE ? t->file.size : t->have;
        total += t->file.size;
    }
    pthread_mutex_unlock(&f->lock);
    f->opt.tick(f->opt.user, have, total);
}

static bool stopped(fetch *f) {
    pthread_mutex_lock(&f->lock);
    bool stop = f->stop;
    pthread_mutex_unlock(&f->lock);
    return stop;
}

void *fetch_thread(void *fetch_) {
    fetch *f = fetch_;
    void *(*pairs)[2] = calloc((size_t)f->n_files + 1, sizeof *pairs);
    while (pairs && !stopped(f)) {
        int running;
        begin_files(f, pairs);
        curl_multi_perform(f->multi, &running);
        end_files(f);
        tick(f);
        curl_multi_poll(f->multi, NULL, 0, 100, NULL);
    }
    for (int i = 0; i < f->n_files; i++) {
        transfer *t = &f->files[i];
        if (!t->easy) continue;
        end_request(f, t);
        note_have(t);
        close_file(t);
    }
    free(pairs);
    return NULL;
}

mf_status fetch_start(fetch *f, int64_t ahead, mf_error *err) {
    f->ahead = ahead;
    int failed = pthread_create(&f->thread, NULL, fetch_thread, f);
    if (failed) return mf__fail_errno(err, failed, "no thread for downloads");
    f->started = true;
    return MF_OK;
}

mf_status fetch_want(fetch *f, int file, mf_error *err) {
    transfer *t = &f->files[file];
    mf_status st = MF_OK;
    pthread_mutex_lock(&f->lock);
    t->wanted = true;
    while (t->state != TRANSFER_HERE && t->state != TRANSFER_DONE && st == MF_OK) {
        struct timespec until;
        if (f->failed.status) {
            *err = f->failed;
            st = f->failed.status;
            break;
        }
        if (app_interrupted(NULL)) {
            st = mf__fail(err, MF_E_CANCELLED, "stopped by the user");
            break;
        }
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 100000000;
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        pthread_cond_timedwait(&f->changed, &f->lock, &until);
    }
    pthread_mutex_unlock(&f->lock);
    return st;
}

void fetch_done(fetch *f, int file) {
    pthread_mutex_lock(&f->lock);
    if (f->files[file].state != TRANSFER_RUNS) f->files[file].state = TRANSFER_DONE;
    pthread_mutex_unlock(&f->lock);
}
