/* The whole server in this process, with the story model, through real sockets: the same bits in any company, shared
 * prompts read once, full queues, clients that leave, an end in good order. */
#include <dirent.h>
#include <sys/stat.h>

#include "client.h"
#include "test_whole.h"

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
#ifdef MF_SANITIZED
    enum { N = 20, TOKENS = 5 };
#else
    enum { N = 64, TOKENS = 10 };
#endif
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
    ask_all(list, N);
    for (int i = 0; i < N; i++) {
        char *text = content_of(list[i].answer, NULL);
        if (strcmp(text, alone[i])) fail_msg("request %d alone: %s\nin company: %s", i, alone[i], text);
        free(text);
        free(alone[i]);
        free(list[i].answer);
    }
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

/* Four answers to one prompt: it is read once, and counted once, also as what was known of it. */
static void test_counted_once(void **state) {
    fixture f;
    int status;
    (void)state;
    start(&f, NULL);
    free(ask(f.port, "/v1/completions",
             "{\"prompt\":\"Once upon a time there was a dog who lived by the sea with a cat and a king who had "
             "seen many ships\",\"n\":4,\"max_tokens\":1}",
             &status));
    assert_int_equal(status, 200);
    assert_true(metric(f.port, "moeflux_prompt_tokens_total") > 16);
    assert_int_equal((int)metric(f.port, "moeflux_cached_tokens_total"), 0);
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

static int dial_from(int port, const char *address) {
    struct sockaddr_in from = {.sin_family = AF_INET}, at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, address, &from.sin_addr);
    inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof from), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

static void wait_waiting(int port, int want) {
    for (int i = 0; i < 2000 && (int)metric(port, "moeflux_queue_waiting") != want; i++) usleep(10000);
}

static void one_place(server_options *o) {
    o->max_running = 1;
}

/* Who comes with one request does not wait for all of somebody's many. */
static void test_fair_queue(void **state) {
    enum { N = 4 };
    fixture f;
    int many[N];
    (void)state;
    start(&f, one_place);
    for (int i = 0; i < N; i++) {
        many[i] = dial(f.port);
        put_request(many[i], "/v1/completions", LONG);
        if (!i) wait_running(f.port, 1);
    }
    wait_waiting(f.port, N - 1);
    int other = dial_from(f.port, "127.0.0.2");
    put_request(other, "/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":1}");
    wait_waiting(f.port, N);
    close(many[0]);
    char *text = get_all(other);
    assert_non_null(strstr(text, "text_completion"));
    free(text);
    static char last[1 << 20]; /* of the many, the last: it has not had its turn yet */
    ssize_t n = recv(many[N - 1], last, sizeof last - 1, MSG_DONTWAIT);
    last[n > 0 ? n : 0] = 0;
    assert_null(strstr(last, "[DONE]"));
    for (int i = 1; i < N; i++) close(many[i]);
    close(other);
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
                          : "{\"messages\":[{\"role\":\"user\",\"content\":\"Go\"}],\"max_tokens\":500,\"n\":2}");
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

/* Many answers of one form, chosen side by side: each is of it, and each seed gives the text that it gives alone. They
 * come with one request, so that they share passes whatever else the machine does. */
static void test_shared_form(void **state) {
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Go\"}],\"n\":%d,\"seed\":%d,\"temperature\":1,\"max_tokens\":"
        "40,"
        "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":{\"type\":\"object\","
        "\"properties\":{\"a\":{\"type\":\"integer\",\"maximum\":9999},\"b\":{\"enum\":[\"x\",\"yy\"]},\"c\":{\"type\":"
        "\"boolean\"}},\"required\":[\"a\",\"b\",\"c\"],\"additionalProperties\":false}}}}";
    enum { N = 16 };
    fixture f;
    char text[1024];
    int status;
    (void)state;
    start(&f, NULL);
    snprintf(text, sizeof text, body, N, 100);
    char *all = ask(f.port, "/v1/chat/completions", text, &status);
    json_t *root = json_loads(all, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(root, "choices")), N);
    assert_true(metric(f.port, "moeflux_passes_total") <= 40 + 3); /* as many as one of them would take */
    for (int i = 0; i < N; i++) {
        const json_t *choice = json_array_get(json_object_get(root, "choices"), (size_t)i);
        const char *said = json_string_value(json_object_get(json_object_get(choice, "message"), "content"));
        json_t *value = json_loads(said, 0, NULL);
        if (json_object_size(value) != 3) fail_msg("not of the form: %s", said);
        json_decref(value);
        if (i % 5) continue;
        snprintf(text, sizeof text, body, 1, 100 + i);
        char *one = ask(f.port, "/v1/chat/completions", text, &status), *alone = content_of(one, NULL);
        assert_string_equal(alone, said);
        free(one);
        free(alone);
    }
    json_decref(root);
    free(all);
    finish(&f);
}

/* ---- requests that nobody should send ---------------------------------------------------------------------------- */

static char *repeated(const char *before, const char *item, int n, const char *after) {
    size_t k = strlen(item), at = strlen(before);
    char *text = malloc(at + (size_t)n * k + strlen(after) + 1);
    memcpy(text, before, at);
    for (int i = 0; i < n; i++, at += k) memcpy(text + at, item, k);
    strcpy(text + at, after);
    return text;
}

static void expect_status(const fixture *f, const char *path, const char *body, int want, const char *part) {
    int status;
    char *text = ask(f->port, path, body, &status);
    if (status != want || !strstr(text, part)) fail_msg("for %.300s\ncame %d: %.300s", body, status, text);
    free(text);
}

/* Numbers, strings and counts at and beyond their ends. */
static void test_odd_values(void **state) {
    static const struct {
        const char *fields;
        int status;
        const char *part;
    } cases[] = {
        {"\"n\":65", 400, "'n'"},
        {"\"n\":0", 400, "'n'"},
        {"\"n\":64", 200, "\"index\":63"},
        {"\"n\":1e1", 400, "integer"},
        {"\"max_tokens\":2147483648", 400, "max_tokens"},
        {"\"max_tokens\":-1", 400, "max_tokens"},
        {"\"max_tokens\":99999999999999999999", 400, "integer"},
        {"\"temperature\":1e-44", 200, "text"},
        {"\"temperature\":-0.0", 200, "text"},
        {"\"temperature\":1e400", 400, "overflow"},
        {"\"temperature\":NaN", 400, "JSON"},
        {"\"temperature\":\"1\"", 400, "temperature"},
        {"\"top_p\":0", 200, "text"},
        {"\"top_p\":1e-30,\"temperature\":1", 200, "text"},
        {"\"min_p\":1,\"typical_p\":0,\"top_k\":2147483647", 200, "text"},
        {"\"repetition_penalty\":0", 400, "repetition_penalty"},
        {"\"seed\":-9223372036854775808", 200, "text"},
        {"\"seed\":9223372036854775808", 400, "integer"},
        {"\"seed\":1.0", 400, "seed"},
        {"\"logit_bias\":{\"-1\":1}", 400, "logit_bias"},
        {"\"logit_bias\":{\"99999999999999999999\":1}", 400, "logit_bias"},
        {"\"logit_bias\":{\"1\":1e300}", 400, "logit_bias"},
        {"\"logit_bias\":[1]", 400, "logit_bias"},
        {"\"logit_bias\":{\" 5\":1}", 400, "logit_bias"},
        {"\"logit_bias\":{\"+5\":1}", 400, "logit_bias"},
        {"\"logit_bias\":{\"5\":1,\"05\":2}", 400, "logit_bias"},
        {"\"logprobs\":21", 400, "logprobs"},
        {"\"stop\":\"\"", 400, "stop"},
        {"\"stop\":[1]", 400, "stop"},
        {"\"stop\":[\"\\u0000\"]", 400, "JSON"},
        {"\"prompt\":\"b\"", 400, "duplicate"},
        {"\"user\":\"\\ud800\"", 400, "JSON"},
        {"\"user\":\"\\udc00\\ud800\"", 400, "JSON"},
        {"\"user\":\"\xed\xa0\x80\"", 400, "decode byte"},
        {"\"user\":\"\xc0\xaf\"", 400, "decode byte"},
        {"\"user\":\"\xf8\x88\x80\x80\x80\"", 400, "decode byte"},
        {"\"user\":\"\xff\"", 400, "decode byte"},
        {"\"stream\":1", 400, "stream"},
        {"\"suffix\":\"x\"", 400, "suffix"},
    };
    fixture f;
    (void)state;
    start(&f, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[512];
        bool own = strstr(cases[i].fields, "max_tokens");
        snprintf(body, sizeof body, "{\"prompt\":\"Once\",%s%s}", own ? "" : "\"max_tokens\":1,", cases[i].fields);
        expect_status(&f, "/v1/completions", body, cases[i].status, cases[i].part);
    }
    finish(&f);
}

/* Large and deep: refused with a sentence, in bounded memory and time. */
static void test_large_bodies(void **state) {
    static const struct {
        const char *path, *before, *item;
        int n;
        const char *after;
        int status;
        const char *part;
    } cases[] = {
        {"/v1/completions", "{\"prompt\":\"a\",\"logit_bias\":{\"0\":0", ",\"1234567\":1", 1100000, "}}", 400,
         "values"},
        {"/v1/completions", "{\"prompt\":[", "[],", 2000000, "[]]}", 400, "values"},
        {"/v1/completions", "{\"prompt\":", "[", 100000, "", 400, "JSON"},
        {"/v1/completions", "{\"prompt\":\"", "word ", 50000, "\"}", 400, "context_length_exceeded"},
        {"/v1/completions", "{\"prompt\":\"a\",\"model\":\"", "mmmm", 100, "\"}", 400, "256"},
        {"/v1/completions", "{\"prompt\":\"a\",\"stop\":[\"a\"", ",\"a\"", 64, "]}", 400, "stop"},
        {"/v1/completions", "{\"prompt\":\"a\",\"stop\":\"", "a", 5000, "\"}", 400, "stop"},
        {"/v1/completions", "{\"prompt\":[\"a\"", ",\"a\"", 64, "]}", 400, "prompt"},
        {"/v1/chat/completions", "{\"messages\":", "[", 2000, "", 400, "JSON"},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"",
         "},{\"role\":\"user\",\"content\":\"a\"", 5000, "}]}", 400, "context"},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":1,\"tools\":[{\"type\":"
         "\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"x\":",
         "[", 1500, "", 400, "JSON"},
        {"/v1/responses", "{\"input\":\"a\",\"metadata\":{\"k\":\"", "vvvvvvvv", 200000, "\"}}", 400, "1048576"},
        {"/tokenize", "{\"content\":\"", "aaaaaaaaaaaaaaaa", 600000, "\"}", 400, "8388608"},
        {"/tokenize", "{\"content\":\"", "\\ud83d\\ude00", 20000, "\"}", 200, "tokens"},
        {"/detokenize", "{\"tokens\":[0", ",1", 100000, "]}", 200, "content"},
        {"/detokenize", "{\"tokens\":[0", ",2000000000", 10, "]}", 400, "tokens"},
    };
    fixture f;
    (void)state;
    start(&f, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *body = repeated(cases[i].before, cases[i].item, cases[i].n, cases[i].after);
        expect_status(&f, cases[i].path, body, cases[i].status, cases[i].part);
        free(body);
    }
    char *deep =
        repeated("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":1,\"response_format\":{\"type\":"
                 "\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":",
                 "{\"not\":", 1000, "{}");
    char *closed = repeated(deep, "}", 1000, "}}}");
    expect_status(&f, "/v1/chat/completions", closed, 200, "content"); /* an even number of them says nothing */
    free(deep);
    free(closed);
    finish(&f);
}

static void few_logprobs(server_options *o) {
    o->max_logprobs = 500;
}

/* Logprobs of answers that are not streamed are held, within a bound; a stream holds none. */
static void test_many_logprobs(void **state) {
    static const char whole[] = "{\"prompt\":\"Once\",\"max_tokens\":40,\"logprobs\":20,\"ignore_eos\":true}";
    static const char stream[] =
        "{\"prompt\":\"Once\",\"max_tokens\":40,\"logprobs\":20,\"ignore_eos\":true,\"stream\":true}";
    fixture f;
    int status;
    (void)state;
    start(&f, few_logprobs);
    expect_status(&f, "/v1/completions", whole, 503, "too many logprobs");
    for (int i = 0; i < 3; i++) {
        char *text = ask(f.port, "/v1/completions", stream, &status);
        assert_int_equal(status, 200);
        assert_non_null(strstr(text, "[DONE]"));
        assert_null(strstr(text, "too many"));
        free(text);
    }
    expect_status(&f, "/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":10,\"logprobs\":5}", 200, "top_logprobs");
    wait_running(f.port, 0);
    finish(&f);
}

static void few_places(server_options *o) {
    o->max_running = 2;
    o->max_waiting = 1;
}

/* Every answer has a place of its own: n of them need n. */
static void test_places_for_answers(void **state) {
    fixture f;
    (void)state;
    start(&f, few_places);
    expect_status(&f, "/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":1,\"n\":4}", 400, "places");
    int fd = dial(f.port);
    put_request(fd, "/v1/completions", LONG);
    wait_running(f.port, 1);
    int refused = dial(f.port);
    put_request(refused, "/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":1,\"n\":3}");
    char *all = get_all(refused);
    assert_non_null(strstr(all, " 429 "));
    assert_non_null(strstr(all, "\r\nRetry-After: "));
    assert_non_null(strstr(all, "rate_limit_error"));
    free(all);
    close(refused);
    expect_status(&f, "/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":1,\"n\":2}", 200, "\"index\":1");
    close(fd);
    wait_running(f.port, 0);
    expect_status(&f, "/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":1,\"n\":3}", 200, "\"index\":2");
    finish(&f);
}

/* ---- a model that reasons ---------------------------------------------------------------------------------------- */

static const char THINKER[] =
    "{%- for m in messages -%}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n<think>\n{% endif -%}";

/* The story model with another template, in a folder of links. */
static void make_thinker(const char *dir) {
    char path[4096], target[4096];
    char *whole = realpath(model_dir, NULL);
    DIR *d = opendir(model_dir);
    assert_true(d && whole);
    mkdir(dir, 0777);
    for (const struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        snprintf(target, sizeof target, "%s/%s", whole, e->d_name);
        unlink(path);
        assert_int_equal(symlink(target, path), 0);
    }
    closedir(d);
    free(whole);
    snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    unlink(path);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(THINKER, f);
    fclose(f);
}

/* The template leaves the reasoning of earlier turns out: what lies before it is still known. */
static void test_dropped_reasoning(void **state) {
    const char *stories = model_dir;
    fixture f;
    int status, n_cached = 0;
    (void)state;
    make_thinker("server_thinker");
    model_dir = "server_thinker";
    start(&f, NULL);
    model_dir = stories;
    free(ask(f.port, "/v1/chat/completions",
             "{\"messages\":[{\"role\":\"system\",\"content\":\"You tell "
             "stories.\"},{\"role\":\"user\",\"content\":\"Tell me "
             "one.\"}],\"max_tokens\":20,\"temperature\":0}",
             &status));
    assert_int_equal(status, 200);
    char *text = ask(
        f.port, "/v1/chat/completions",
        "{\"messages\":[{\"role\":\"system\",\"content\":\"You tell stories.\"},{\"role\":\"user\",\"content\":\"Tell "
        "me one.\"},{\"role\":\"assistant\",\"reasoning_content\":\"Hm, which one?\",\"content\":\"There was a "
        "dog.\"},{\"role\":\"user\",\"content\":\"And another.\"}],\"max_tokens\":5,\"temperature\":0}",
        &status);
    free(content_of(text, &n_cached));
    if (n_cached < 15) fail_msg("%d tokens were known of: %s", n_cached, text);
    free(text);
    finish(&f);
}

/* Ids of a text; how many. */
static size_t tokenize(const fixture *f, const char *text, int *first) {
    char body[128];
    int status;
    snprintf(body, sizeof body, "{\"content\":\"%s\"}", text);
    char *answer = ask(f->port, "/tokenize", body, &status);
    json_t *root = json_loads(answer, 0, NULL);
    size_t n = json_array_size(json_object_get(root, "tokens"));
    *first = (int)json_integer_value(json_array_get(json_object_get(root, "tokens"), 0));
    json_decref(root);
    free(answer);
    return n;
}

/* An answer that the tokenizer would spell with other tokens is known all the same when the conversation goes on. */
static void test_own_spelling(void **state) {
    static const char *const letters[] = {"o", "l", "e", "s", "a", "t"};
    fixture f;
    char eight[16], body[512];
    int id = 0, other, status, n_cached = 0;
    (void)state;
    start(&f, NULL);
    for (size_t i = 0; i < 6; i++) {
        snprintf(eight, sizeof eight, "%s%s%s%s%s%s%s%s", letters[i], letters[i], letters[i], letters[i], letters[i],
                 letters[i], letters[i], letters[i]);
        if (tokenize(&f, letters[i], &id) == 1 && tokenize(&f, eight, &other) < 8) break;
        id = 0;
    }
    assert_true(id > 0);
    snprintf(body, sizeof body,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"Spell\"}],\"max_tokens\":8,\"temperature\":0,"
             "\"logit_bias\":{\"%d\":100}}",
             id);
    char *first = ask(f.port, "/v1/chat/completions", body, &status), *said = content_of(first, NULL);
    assert_string_equal(said, eight);
    json_t *root = json_loads(first, 0, NULL);
    int n_prompt = (int)json_integer_value(json_object_get(json_object_get(root, "usage"), "prompt_tokens"));
    snprintf(body, sizeof body,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"Spell\"},{\"role\":\"assistant\",\"content\":\"%s\"},"
             "{\"role\":\"user\",\"content\":\"More\"}],\"max_tokens\":2}",
             said);
    char *second = ask(f.port, "/v1/chat/completions", body, &status);
    free(content_of(second, &n_cached));
    assert_int_equal(n_cached, n_prompt + 7); /* the eighth was chosen, and not evaluated any more */
    json_decref(root);
    free(first);
    free(second);
    free(said);
    finish(&f);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_shared_prompt),
        cmocka_unit_test(test_counted_once),
        cmocka_unit_test(test_full_queue),
        cmocka_unit_test(test_fair_queue),
        cmocka_unit_test(test_stop_in_the_middle),
        cmocka_unit_test(test_leaving),
        cmocka_unit_test(test_shared_form),
        cmocka_unit_test(test_odd_values),
        cmocka_unit_test(test_large_bodies),
        cmocka_unit_test(test_many_logprobs),
        cmocka_unit_test(test_places_for_answers),
        cmocka_unit_test(test_dropped_reasoning),
        cmocka_unit_test(test_own_spelling),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_slow_disk),
        cmocka_unit_test(test_leaving_while_loading),
        cmocka_unit_test(test_many_slow_reads),
        cmocka_unit_test(test_states_beyond_sessions),
        cmocka_unit_test(test_shared_prompt_on_disk),
        cmocka_unit_test(test_foresight),
        cmocka_unit_test(test_fresh),
        cmocka_unit_test(test_session_order),
        cmocka_unit_test(test_load_without_memory),
        cmocka_unit_test(test_load_beside_others),
        cmocka_unit_test(test_never_fits),
        cmocka_unit_test(test_little_memory),
        cmocka_unit_test(test_short_beside_long),
        cmocka_unit_test(test_long_beside_stream),
        cmocka_unit_test(test_waiting_beside_stream),
    };
    if (argc < 2) return 2;
    model_dir = whole_model = argv[1];
    if (argc > 2) cmocka_set_test_filter(argv[2]); /* by hand: "*slow*" */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
