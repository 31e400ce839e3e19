/* The whole server with a prompt cache on disk: what is known survives a restart, and a disk that is slow or gone
 * delays nobody else. And what streams say before a long prompt is read. */
#include <stdatomic.h>

#include "base/file.h"
#include "client.h"
#include "test_whole.h"

const char *whole_model;

/* ---- a disk as slow as we like ----------------------------------------------------------------------------------- */

mf_status __real_mf_prompt_begin(mf_session *s, const int32_t *tokens, size_t n, int64_t *n_reused, mf_error *err);
mf_status __real_mf_prompt_keep(mf_session *s, mf_error *err);
mf_status __wrap_mf_prompt_begin(mf_session *s, const int32_t *tokens, size_t n, int64_t *n_reused, mf_error *err);
mf_status __wrap_mf_prompt_keep(mf_session *s, mf_error *err);

static struct gate {
    pthread_mutex_t lock;
    pthread_cond_t change;
    int n_hold;   /* so many of those that come are held */
    int n_held;   /* are there now */
    int n_passed; /* have gone through */
} reading = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER},
  writing = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};

static void pass(struct gate *g) {
    pthread_mutex_lock(&g->lock);
    if (g->n_hold > 0) {
        g->n_hold--;
        g->n_held++;
        pthread_cond_broadcast(&g->change);
        while (g->n_hold >= 0) pthread_cond_wait(&g->change, &g->lock);
        g->n_held--;
    }
    g->n_passed++;
    pthread_mutex_unlock(&g->lock);
}

static void hold(struct gate *g, int n) {
    pthread_mutex_lock(&g->lock);
    g->n_hold = n;
    pthread_mutex_unlock(&g->lock);
}

static void let_go(struct gate *g) {
    pthread_mutex_lock(&g->lock);
    g->n_hold = -1;
    pthread_cond_broadcast(&g->change);
    pthread_mutex_unlock(&g->lock);
}

static void wait_held(struct gate *g, int n) {
    pthread_mutex_lock(&g->lock);
    while (g->n_held < n) pthread_cond_wait(&g->change, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static atomic_int n_full; /* so many loads find no memory */
static atomic_int n_loads;

mf_status __wrap_mf_prompt_begin(mf_session *s, const int32_t *tokens, size_t n, int64_t *n_reused, mf_error *err) {
    pass(&reading);
    n_loads++;
    if (n_full > 0 && n_full--) {
        snprintf(err->text, sizeof err->text, "no memory for the state");
        return err->status = MF_E_NOMEM;
    }
    return __real_mf_prompt_begin(s, tokens, n, n_reused, err);
}

mf_status __wrap_mf_prompt_keep(mf_session *s, mf_error *err) {
    pass(&writing);
    return __real_mf_prompt_keep(s, err);
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static void begin(fixture *f, void (*adjust)(server_options *o)) {
    static char dir[64];
    snprintf(dir, sizeof dir, "server_cache_%ld", (long)getpid());
    model_dir = whole_model;
    cache_dir = dir;
    start(f, adjust);
}

static void clear(void) {
    mf__dir_remove(cache_dir, NULL);
}

static const char BODY[] =
    "{\"temperature\":0,\"max_tokens\":6,\"messages\":[{\"role\":\"system\",\"content\":\"%s who "
    "has seen many ships come and go and who knows every bird and every wind by its "
    "name\"},{\"role\":\"user\",\"content\":\"%s\"}]}";

/* The text and how much of the prompt was known; malloc'd. */
static char *chat(int port, const char *who, const char *what, int *n_cached) {
    char body[1024];
    int status;
    snprintf(body, sizeof body, BODY, who, what);
    char *text = ask(port, "/v1/chat/completions", body, &status);
    if (status != 200) fail_msg("%d: %s", status, text);
    const char *at = strstr(text, "\"cached_tokens\":"), *content = strstr(text, "\"content\":");
    assert_true(at && content);
    *n_cached = atoi(at + strlen("\"cached_tokens\":"));
    char *out = strndup(content, strcspn(content, "}"));
    free(text);
    return out;
}

/* What is known is found after a restart, with the same text; the directory may go at any time. */
void test_restart(void **state) {
    fixture f;
    int first, again;
    (void)state;
    begin(&f, NULL);
    char *one = chat(f.port, "You are an old man", "Tell me.", &first);
    finish(&f); /* what waits to be written is written */
    begin(&f, NULL);
    char *two = chat(f.port, "You are an old man", "Tell me.", &again);
    assert_int_equal(first, 0);
    assert_true(again > 20);
    assert_string_equal(one, two);
    assert_int_equal((int)metric(f.port, "moeflux_prompt_reuse_total{kind=\"disk\"}"), 1);
    free(two);
    clear();
    two = chat(f.port, "You are an old man", "Tell me.", &again); /* from memory */
    assert_true(again > 20);
    free(two);
    free(chat(f.port, "You are an old man", "Another.", &again)); /* that was in the directory alone */
    assert_int_equal(again, 0);
    free(chat(f.port, "You are a young girl", "Tell me.", &again));
    finish(&f);
    begin(&f, NULL);
    free(chat(f.port, "You are a young girl", "Tell me.", &again)); /* written into a directory made anew */
    assert_true(again > 20);
    finish(&f);
    clear();
    free(one);
}

typedef struct asker {
    pthread_t thread;
    int port, n_cached;
    const char *who, *what;
    char *text;
} asker;

static void *run_asker(void *user) {
    asker *a = user;
    a->text = chat(a->port, a->who, a->what, &a->n_cached);
    return NULL;
}

/* One request waits for the disk, a state waits to be written, both for as long as we like: everybody else goes on, and
 * finds what is known in memory. */
void test_slow_disk(void **state) {
    fixture f;
    int n_cached;
    (void)state;
    begin(&f, NULL);
    hold(&writing, 1);
    free(chat(f.port, "You are a sailor", "Tell me.", &n_cached)); /* its state is held */
    wait_held(&writing, 1);
    hold(&reading, 1);
    asker slow = {.port = f.port, .who = "You are an old man", .what = "Tell me."};
    assert_int_equal(pthread_create(&slow.thread, NULL, run_asker, &slow), 0);
    wait_held(&reading, 1);
    for (int i = 0; i < 3; i++) {
        char what[32];
        snprintf(what, sizeof what, "Number %d.", i);
        free(chat(f.port, i % 2 ? "You are a king" : "You are a sailor", what, &n_cached));
        if (i != 1) assert_true(n_cached > 20);
    }
    let_go(&reading);
    pthread_join(slow.thread, NULL);
    free(slow.text);
    let_go(&writing);
    finish(&f);
    clear();
}

static void one_session(server_options *o) {
    o->max_sessions = 1;
}

/* More answers at a time than sessions are kept: states that wait to be written are no sessions, and stay. */
void test_states_beyond_sessions(void **state) {
    static const char stream[] = "{\"stream\":true,\"temperature\":0,\"max_tokens\":1800,\"ignore_eos\":true,%s";
    fixture f;
    char body[1280], rest[1024];
    int n_cached;
    (void)state;
    begin(&f, one_session);
    hold(&writing, 1);
    free(chat(f.port, "You are a sailor", "Tell me.", &n_cached)); /* its state is held, the others' wait */
    wait_held(&writing, 1);
    int fd = dial(f.port);
    snprintf(rest, sizeof rest, BODY, "You are a baker", "Tell me.");
    snprintf(body, sizeof body, stream, strchr(rest, ',') + strlen(",\"max_tokens\":6,"));
    put_request(fd, "/v1/chat/completions", body);
    while (metric(f.port, "moeflux_decoded_tokens_total") < 10) usleep(1000); /* its prompt has been read */
    free(chat(f.port, "You are a king", "Tell me.", &n_cached));              /* beside it, with a session of its own */
    close(fd);
    let_go(&writing);
    wait_running(f.port, 0);
    finish(&f);
    begin(&f, NULL);
    free(chat(f.port, "You are a baker", "Tell me.", &n_cached));
    if (n_cached < 20) fail_msg("%d tokens were known: the state that waited was given up", n_cached);
    finish(&f);
    clear();
}

/* Many wait for the disk: one that finds nothing there waits for none of them. */
void test_many_slow_reads(void **state) {
    enum { N = 12 };
    static const char *const who[N] = {"A sailor", "The baker", "My king", "Our girl",  "Some bear", "One tree",
                                       "No ship",  "Her moon",  "His dog", "Their cat", "Every man", "Old woman"};
    static asker list[N];
    fixture f;
    int n_cached;
    (void)state;
    begin(&f, NULL);
    hold(&reading, N);
    for (int i = 0; i < N; i++) {
        list[i] = (asker){.port = f.port, .who = who[i], .what = "Tell me."};
        assert_int_equal(pthread_create(&list[i].thread, NULL, run_asker, &list[i]), 0);
    }
    wait_running(f.port, N);
    usleep(100000);
    hold(&reading, 0); /* those that come now are not held */
    free(chat(f.port, "You are a poet", "Tell me.", &n_cached));
    let_go(&reading);
    for (int i = 0; i < N; i++) {
        pthread_join(list[i].thread, NULL);
        free(list[i].text);
    }
    finish(&f);
    clear();
}

/* The client leaves while its prompt is being read from the disk. */
void test_leaving_while_loading(void **state) {
    fixture f;
    char body[1024];
    int n_cached;
    (void)state;
    begin(&f, NULL);
    hold(&reading, 1);
    int fd = dial(f.port);
    snprintf(body, sizeof body, BODY, "You are a baker", "Tell me.");
    put_request(fd, "/v1/chat/completions", body);
    wait_held(&reading, 1);
    close(fd);
    free(chat(f.port, "You are a king", "Tell me.", &n_cached));
    let_go(&reading);
    wait_running(f.port, 0);
    finish(&f);
    clear();
}

/* Sixteen at once with one system prompt: it is read once, also where the disk is asked first. */
void test_shared_prompt_on_disk(void **state) {
    enum { N = 16 };
    static asker list[N];
    static char what[N][16];
    fixture f;
    (void)state;
    begin(&f, NULL);
    for (int i = 0; i < N; i++) {
        snprintf(what[i], sizeof what[i], "Number %d.", i);
        list[i] = (asker){.port = f.port, .who = "You are an old man", .what = what[i]};
    }
    for (int i = 0; i < N; i++) assert_int_equal(pthread_create(&list[i].thread, NULL, run_asker, &list[i]), 0);
    for (int i = 0; i < N; i++) pthread_join(list[i].thread, NULL);
    double read = metric(f.port, "moeflux_evaluated_prompt_tokens_total");
    double all = metric(f.port, "moeflux_prompt_tokens_total");
    for (int i = 0; i < N; i++) free(list[i].text);
    if (read > all / 2) fail_msg("%g of %g tokens were read", read, all);
    finish(&f);
    clear();
}

/* ---- foresight --------------------------------------------------------------------------------------------------- */

static void small_pieces(server_options *o) {
    o->piece = 32;
}

static void all_mapped(mf_model_options *o) {
    o->io = MF_IO_MMAP;
}

static void little_memory(mf_model_options *o) {
    mf_memory_needs needs;
    if (mf_model_memory(model_dir, o, 256, 32, &needs, NULL) != MF_OK) fail();
    o->io = MF_IO_PREAD;
    o->ram_bytes = needs.total + needs.kv; /* two sessions of 256 tokens, and hardly an expert more than is needed */
}

/* The comments of a stream: how many, and whether each says more than the one before. */
static int check_progress(const char *text, bool from_disk) {
    int n = 0;
    long long before = -1, done, all;
    double megabytes, seconds;
    for (const char *at = text; (at = strstr(at, ": prompt ")); at++, n++) {
        int got = sscanf(at, ": prompt %lld/%lld tokens, %lf MB to fetch, about %lf s to go", &done, &all, &megabytes,
                         &seconds);
        if (got < 3 || (n && got < 4)) fail_msg("%.80s", at); /* of the time nothing is known at first */
        assert_true(done > before && done < all && all > 100);
        if (from_disk != (megabytes > 0)) fail_msg("%.80s", at);
        if (got == 4) assert_true(seconds < 3600);
        before = done;
    }
    return n;
}

/* Before a long prompt is read and while it is, streams say how much there is to read and to fetch, and how long it
 * will take; short ones say nothing. */
void test_foresight(void **state) {
    static const char *const paths[] = {"/v1/chat/completions", "/v1/messages", "/v1/responses"};
    fixture f;
    char body[4096], words[2048] = "";
    int status;
    (void)state;
    for (int i = 0; i < 150; i++) strcat(words, i % 3 ? "dog " : "and ");
    for (int from_disk = 0; from_disk < 2; from_disk++) {
        model_dir = whole_model;
        cache_dir = NULL;
        adjust_model = from_disk ? little_memory : all_mapped;
        start(&f, small_pieces);
        adjust_model = NULL;
        for (int i = 0; i < 3; i++) {
            snprintf(body, sizeof body, "{\"stream\":true,\"%s\":%s\"%d %s\"%s%s}", i == 2 ? "input" : "messages",
                     i == 2 ? "" : "[{\"role\":\"user\",\"content\":", i, words, i == 2 ? "" : "}]",
                     i == 2 ? ",\"max_output_tokens\":2" : ",\"max_tokens\":2");
            char *text = ask(f.port, paths[i], body, &status);
            if (status != 200 || check_progress(text, from_disk) < 4) fail_msg("%d: %s", status, text);
            free(text);
        }
        char *text = ask(f.port, "/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":2,\"stream\":true}", &status);
        assert_null(strstr(text, ": prompt"));
        free(text);
        finish(&f);
    }
}

/* cache_prompt false: as if nothing had been asked before, and nothing is kept. */
void test_fresh(void **state) {
    static const char known[] =
        "{\"prompt\":\"Once upon a time there was a dog who lived by the sea\",\"max_tokens\":1}";
    static const char fresh[] =
        "{\"prompt\":\"Once upon a time there was a dog who lived by the sea\",\"max_tokens\":1,"
        "\"cache_prompt\":false}";
    fixture f;
    int status;
    (void)state;
    model_dir = whole_model;
    cache_dir = NULL;
    start(&f, NULL);
    for (int i = 0; i < 2; i++) {
        char *text = ask(f.port, "/v1/completions", fresh, &status);
        assert_non_null(strstr(text, "\"cached_tokens\":0"));
        free(text);
    }
    for (int i = 0; i < 2; i++) {
        char *text = ask(f.port, "/v1/completions", known, &status);
        assert_true((strstr(text, "\"cached_tokens\":0") == NULL) == (i == 1));
        free(text);
    }
    finish(&f);
}

/* ---- sessions ---------------------------------------------------------------------------------------------------- */

static void no_cache(mf_model_options *o) {
    o->prompt_cache_ram = 0;
}

static void four_sessions(server_options *o) {
    o->max_sessions = 4;
}

/* A completion of 40 token ids of its own, and `more` behind them; returns how many were known. */
static int complete_ids(const fixture *f, int which, int more) {
    char body[1024];
    int status, n = snprintf(body, sizeof body, "{\"max_tokens\":1,\"prompt\":[");
    for (int i = 0; i < 40 + more; i++)
        n += snprintf(body + n, sizeof body - (size_t)n, "%s%d", i ? "," : "", 100 + 50 * which + i);
    snprintf(body + n, sizeof body - (size_t)n, "]}");
    char *text = ask(f->port, "/v1/completions", body, &status);
    const char *at = strstr(text, "\"cached_tokens\":");
    if (status != 200 || !at) fail_msg("%d: %s", status, text);
    int known = atoi(at + strlen("\"cached_tokens\":"));
    free(text);
    return known;
}

/* Sessions are kept for those who go on; the least recently used is given up first. */
void test_session_order(void **state) {
    fixture f;
    (void)state;
    model_dir = whole_model;
    cache_dir = NULL;
    adjust_model = no_cache;
    start(&f, four_sessions);
    adjust_model = NULL;
    for (int i = 0; i < 4; i++) assert_int_equal(complete_ids(&f, i, 0), 0);
    assert_int_equal(complete_ids(&f, 0, 2), 40); /* used again */
    assert_int_equal(complete_ids(&f, 4, 0), 0);  /* takes the place of number 1 */
    assert_int_equal((int)metric(f.port, "moeflux_sessions_dropped_total"), 1);
    assert_int_equal(complete_ids(&f, 0, 4), 42);
    assert_int_equal(complete_ids(&f, 2, 2), 40);
    assert_int_equal(complete_ids(&f, 3, 2), 40);
    assert_int_equal(complete_ids(&f, 1, 2), 0);
    finish(&f);
}

static char *complete_number(int port, int which) {
    char body[128];
    int status;
    snprintf(body, sizeof body,
             "{\"prompt\":\"Story number %d\",\"max_tokens\":150,\"ignore_eos\":true,\"temperature\":0}", which);
    char *text = ask(port, "/v1/completions", body, &status);
    if (status != 200 || !strstr(text, "\"completion_tokens\":150")) fail_msg("%d: %s", status, text);
    const char *from = strstr(text, "\"text\":"), *usage = strstr(text, "\"prompt_tokens\":");
    assert_true(from && usage);
    char *out = strndup(from, strcspn(from, "}"));
    assert_true(atoi(usage + strlen("\"prompt_tokens\":")) < 10); /* what was evaluated again counts for nobody */
    free(text);
    return out;
}

static void *run_number(void *user) {
    asker *a = user;
    a->text = complete_number(a->port, a->n_cached);
    return NULL;
}

static char *chat_about(const fixture *f, int which) {
    char what[64];
    int n_cached;
    snprintf(what, sizeof what, "A story about number %d, please.", which);
    return chat(f->port, "You are an old man", what, &n_cached);
}

/* A state on disk that finds no memory: sessions that are not in use are given up, one after the other; where there are
 * none, the prompt is read without it. */
void test_load_without_memory(void **state) {
    fixture f;
    (void)state;
    begin(&f, NULL);
    for (int i = 0; i < 4; i++) free(chat_about(&f, i));
    assert_int_equal((int)metric(f.port, "moeflux_sessions_dropped_total"), 0);
    n_full = 2;
    char *first = chat_about(&f, 4);
    assert_int_equal((int)metric(f.port, "moeflux_sessions_dropped_total"), 2);
    n_full = 1000;
    char *second = chat_about(&f, 5);
    assert_int_equal((int)metric(f.port, "moeflux_sessions_dropped_total"), 5);
    assert_true(n_full > 980); /* not again and again */
    n_full = 0;
    finish(&f);
    clear();
    begin(&f, NULL);
    char *again[] = {chat_about(&f, 4), chat_about(&f, 5)};
    assert_string_equal(first, again[0]);
    assert_string_equal(second, again[1]);
    finish(&f);
    clear();
    free(first);
    free(second);
    free(again[0]);
    free(again[1]);
}

static void *run_about(void *user) {
    asker *a = user;
    a->text = chat_about(&(fixture){.port = a->port}, a->n_cached);
    return NULL;
}

/* ... and where others are under way, it waits until one of them has ended. */
void test_load_beside_others(void **state) {
    fixture f;
    asker a = {.n_cached = 1};
    (void)state;
    begin(&f, NULL);
    int fd = dial(f.port);
    put_request(fd, "/v1/completions",
                "{\"prompt\":\"Once\",\"max_tokens\":300,\"ignore_eos\":true,\"stream\":true,\"temperature\":0}");
    wait_running(f.port, 1);
    int before = n_loads;
    n_full = 1000;
    a.port = f.port;
    assert_int_equal(pthread_create(&a.thread, NULL, run_about, &a), 0);
    char *stream = get_all(fd);
    close(fd);
    assert_non_null(strstr(stream, "[DONE]"));
    free(stream);
    pthread_join(a.thread, NULL); /* the stream's session was given up for it, and then it was read without the disk */
    if (n_loads - before > 4) fail_msg("%d loads", n_loads - before);
    n_full = 0;
    free(a.text);
    finish(&f);
    clear();
}

/* What cannot be read even with all the memory there is, is the request's fault: it is refused, and says why. */
void test_never_fits(void **state) {
    fixture f;
    char body[8192] = "{\"max_tokens\":2,\"prompt\":\"";
    int status;
    (void)state;
    model_dir = whole_model;
    cache_dir = NULL;
    adjust_model = little_memory;
    start(&f, small_pieces);
    adjust_model = NULL;
    for (int i = 0; i < 1500; i++) strcat(body, "dog ");
    strcat(body, "\"}");
    char *text = ask(f.port, "/v1/completions", body, &status);
    if (status != 400 || !strstr(text, "not enough memory for") || !strstr(text, "--ram"))
        fail_msg("%d: %s", status, text);
    free(text);
    assert_int_equal(complete_ids(&f, 0, 0), 0); /* others do fit */
    finish(&f);
}

/* Many answers and memory for a few: all come, with the text that each has alone, though some must give way to others
 * in the middle. */
void test_little_memory(void **state) {
    enum { N = 6 };
    static asker list[N];
    char *alone[N];
    fixture f;
    (void)state;
    model_dir = whole_model;
    cache_dir = NULL;
    start(&f, small_pieces);
    for (int i = 0; i < N; i++) alone[i] = complete_number(f.port, i);
    finish(&f);
    adjust_model = little_memory;
    start(&f, small_pieces);
    adjust_model = NULL;
    for (int i = 0; i < N; i++) {
        list[i] = (asker){.port = f.port, .n_cached = i};
        assert_int_equal(pthread_create(&list[i].thread, NULL, run_number, &list[i]), 0);
    }
    for (int i = 0; i < N; i++) pthread_join(list[i].thread, NULL);
    for (int i = 0; i < N; i++) {
        assert_string_equal(alone[i], list[i].text);
        free(alone[i]);
        free(list[i].text);
    }
    assert_true(metric(f.port, "moeflux_sequences_yielded_total") > 0);
    wait_running(f.port, 0);
    finish(&f);
}
