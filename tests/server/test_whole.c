/* The whole server in this process, with the story model, through real sockets: the same bits in any company, shared
 * prompts read once, full queues, clients that leave, an end in good order. */
#include "client.h"

/* The content of a chat answer, and tokens of its prompt that were cached; malloc'd. */
static char *content_of(const char *answer, int *n_cached) {
    json_t *root = json_loads(answer, 0, NULL);
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
    const char *text = json_string_value(json_object_get(json_object_get(choice, "message"), "content"));
    const json_t *details = json_object_get(json_object_get(root, "usage"), "prompt_tokens_details");
    if (!text) fail_msg("not an answer: %s", answer);
    if (n_cached) *n_cached = (int)json_integer_value(json_object_get(details, "cached_tokens"));
    char *out = strdup(text);
    json_decref(root);
    return out;
}

/* ---- many at once ------------------------------------------------------------------------------------------------ */

typedef struct asker {
    pthread_t thread;
    int port, status, n_cached;
    char body[1024];
    char *answer;
} asker;

static void *run_asker(void *user) {
    asker *a = user;
    a->answer = ask(a->port, "/v1/chat/completions", a->body, &a->status);
    return NULL;
}

static void ask_all(asker *list, int n) {
    for (int i = 0; i < n; i++) assert_int_equal(pthread_create(&list[i].thread, NULL, run_asker, &list[i]), 0);
    for (int i = 0; i < n; i++) pthread_join(list[i].thread, NULL);
}

static const char *const WORDS[] = {"dog", "cat", "king", "ship", "tree", "girl", "bear", "moon"};

/* Prompts of different lengths, from one to many pieces. */
static void write_body(asker *a, int i, const char *system, int max_tokens) {
    size_t n =
        (size_t)snprintf(a->body, sizeof a->body, "{\"temperature\":0,\"max_tokens\":%d,\"messages\":[", max_tokens);
    if (system)
        n += (size_t)snprintf(a->body + n, sizeof a->body - n, "{\"role\":\"system\",\"content\":\"%s\"},", system);
    n += (size_t)snprintf(a->body + n, sizeof a->body - n, "{\"role\":\"user\",\"content\":\"A story about a %s",
                          WORDS[i % 8]);
    for (int k = 0; k < i % 13 * (i % 5); k++)
        n += (size_t)snprintf(a->body + n, sizeof a->body - n, " and a %s", WORDS[(i + k) % 8]);
    snprintf(a->body + n, sizeof a->body - n, ", number %d.\"}]}", i);
}

static void small_pieces(server_options *o) {
    o->piece = 32;
}

/* At temperature 0 each of 64 concurrent requests gets exactly the text it gets alone. */
static void test_same_bits(void **state) {
    enum { N = 64, TOKENS = 10 };
    static asker list[N];
    char *alone[N];
    fixture f;
    (void)state;
    start(&f, small_pieces);
    for (int i = 0; i < N; i++) {
        list[i] = (asker){.port = f.port};
        write_body(&list[i], i, NULL, TOKENS);
        run_asker(&list[i]);
        assert_int_equal(list[i].status, 200);
        alone[i] = content_of(list[i].answer, NULL);
        free(list[i].answer);
    }
    finish(&f);
    start(&f, small_pieces); /* and nothing is known from before */
    for (int i = 0; i < N; i++) list[i].port = f.port;
    double passes = metric(f.port, "moeflux_passes_total");
    ask_all(list, N);
    passes = metric(f.port, "moeflux_passes_total") - passes;
    for (int i = 0; i < N; i++) {
        char *text = content_of(list[i].answer, NULL);
        if (strcmp(text, alone[i])) fail_msg("request %d alone: %s\nin company: %s", i, alone[i], text);
        free(text);
        free(alone[i]);
        free(list[i].answer);
    }
    assert_true(passes < N * TOKENS / 4); /* they did share passes */
    finish(&f);
}

/* Sixteen at once with one long system prompt: it is read once. */
static void test_shared_prompt(void **state) {
    enum { N = 16 };
    static asker list[N];
    static const char system[] =
        "You are an old man by the sea who has seen many ships come and go and who knows every "
        "bird and every wind by its name and who loves to tell long stories to small children "
        "when the evening comes and the lamps are lit and the bread is on the table again";
    fixture f;
    (void)state;
    start(&f, small_pieces);
    for (int i = 0; i < N; i++) {
        list[i] = (asker){.port = f.port};
        write_body(&list[i], i % 8, system, 4);
    }
    double before = metric(f.port, "moeflux_evaluated_prompt_tokens_total");
    ask_all(list, N);
    double read = metric(f.port, "moeflux_evaluated_prompt_tokens_total") - before;
    double all = metric(f.port, "moeflux_prompt_tokens_total");
    int n_cached = 0, n_shared = 0;
    for (int i = 0; i < N; i++) {
        assert_int_equal(list[i].status, 200);
        free(content_of(list[i].answer, &n_cached));
        n_shared += n_cached >= 60;
        free(list[i].answer);
    }
    assert_true(n_shared >= N - 1);
    if (read > all / 2) fail_msg("%g of %g tokens were read", read, all);
    finish(&f);
}

/* ---- the queue, leaving, the end --------------------------------------------------------------------------------- */

static void tiny_queue(server_options *o) {
    o->max_running = 1;
    o->max_waiting = 1;
}

static const char LONG[] = "{\"prompt\":\"Once\",\"max_tokens\":1900,\"ignore_eos\":true,\"stream\":true}";

static void test_full_queue(void **state) {
    fixture f;
    int status;
    (void)state;
    start(&f, tiny_queue);
    int first = dial(f.port), second = dial(f.port);
    put_request(first, "/v1/completions", LONG);
    wait_running(f.port, 1);
    put_request(second, "/v1/completions", LONG);
    char *text = NULL;
    for (int i = 0; i < 500; i++) { /* until the second has its place in the queue */
        free(text);
        text = ask(f.port, "/v1/messages",
                   "{\"model\":\"x\",\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", &status);
        if (status == 429) break;
        usleep(10000);
    }
    assert_int_equal(status, 429);
    assert_non_null(strstr(text, "rate_limit_error"));
    free(text);
    close(first); /* leaves, and the second takes its place */
    char part[4096];
    assert_true(recv(second, part, sizeof part, 0) > 0);
    close(second);
    wait_running(f.port, 0);
    finish(&f);
}

/* Told to stop, with an answer under way: it gets an end that clients understand. */
static void short_grace(server_options *o) {
    o->grace_seconds = 0.2;
}

static void test_stop_in_the_middle(void **state) {
    fixture f;
    (void)state;
    start(&f, short_grace);
    int fd = dial(f.port);
    put_request(fd, "/v1/completions", LONG);
    wait_running(f.port, 1);
    server_stop(f.server);
    char *all = get_all(fd);
    assert_non_null(strstr(all, "\"finish_reason\":\"stop\""));
    assert_non_null(strstr(all, "data: [DONE]"));
    assert_non_null(strstr(all, "0\r\n\r\n"));
    free(all);
    close(fd);
    finish(&f);
}

/* A client that leaves while it waits, while its prompt is read, and while it is spoken to. */
static void test_leaving(void **state) {
    fixture f;
    (void)state;
    start(&f, tiny_queue);
    for (int i = 0; i < 20; i++) {
        int fd = dial(f.port);
        put_request(fd, i % 2 ? "/v1/completions" : "/v1/chat/completions",
                    i % 2 ? LONG
                          : "{\"messages\":[{\"role\":\"user\",\"content\":\"Go\"}],\"max_tokens\":500,\"n\":3}");
        usleep((useconds_t)(i * 3000));
        close(fd);
    }
    wait_running(f.port, 0);
    int status;
    char *text = ask(f.port, "/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":2}", &status);
    assert_int_equal(status, 200);
    free(text);
    finish(&f);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),  cmocka_unit_test(test_shared_prompt),
        cmocka_unit_test(test_full_queue), cmocka_unit_test(test_stop_in_the_middle),
        cmocka_unit_test(test_leaving),
    };
    if (argc < 2) return 2;
    model_dir = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
