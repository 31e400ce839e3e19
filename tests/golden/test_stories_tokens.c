/* The held-out text, cut into documents and tokenized: ids must be those of the reference tokenizer, all of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "documents.h"
#include "text/tokenizer.h"

static const char *model_dir, *data_dir;

static char *in_dir(const char *dir, const char *name) {
    char *path = mf__path_join(dir, name);
    assert_non_null(path);
    return path;
}

static void assert_ids(const json_t *want, const int32_t *ids, size_t n, size_t doc) {
    if (json_array_size(want) != n) print_error("document %zu\n", doc);
    assert_int_equal(json_array_size(want), n);
    for (size_t i = 0; i < n; i++) {
        if (json_integer_value(json_array_get(want, i)) != ids[i]) print_error("document %zu, token %zu\n", doc, i);
        assert_int_equal(json_integer_value(json_array_get(want, i)), ids[i]);
    }
}

static void test_ids_of_all_documents(void **state) {
    char *text_path = in_dir(data_dir, "val.txt"), *golden_path = in_dir(data_dir, "golden.json");
    mf__map text;
    json_t *golden;
    mf__tokenizer *tok;
    (void)state;
    assert_int_equal(mf__map_open(text_path, &text, NULL), MF_OK);
    assert_int_equal(mf__json_read(golden_path, 1 << 24, &golden, NULL), MF_OK);
    assert_int_equal(mf__tokenizer_open(model_dir, &tok, NULL), MF_OK);
    const json_t *docs = json_object_get(golden, "docs");
    size_t n_docs = 0, at = 0, n_bytes;
    const char *doc;
    for (; document_next((const char *)text.data, text.size, &at, &doc, &n_bytes); n_docs++) {
        int32_t *ids;
        size_t n;
        assert_int_equal(mf__tokenizer_encode(tok, doc, n_bytes, false, &ids, &n, NULL), MF_OK);
        assert_ids(json_object_get(json_array_get(docs, n_docs), "tokens"), ids, n, n_docs);
        free(ids);
    }
    assert_int_equal(n_docs, 100);
    assert_int_equal(n_docs, json_array_size(docs));
    mf__tokenizer_free(tok);
    json_decref(golden);
    mf__map_close(&text);
    free(text_path);
    free(golden_path);
}

typedef struct cut {
    const char *text;
    const char *docs[4]; /* NULL ends */
} cut;

static void test_cutting(void **state) {
    static const cut cuts[] = {
        {"", {NULL}},
        {"a", {"a"}},
        {"a\n", {"a"}},
        {"a\nb\n", {"a\nb"}},
        {"a\n\n", {"a\n"}},
        {"a\n<|endoftext|>\nb", {"a", "b"}},
        {"a\n<|endoftext|>\nb\n<|endoftext|>\n", {"a", "b"}},
        {"a\r\n<|endoftext|>\r\nb", {"a\r", "b"}},
        {"<|endoftext|>\na", {"", "a"}},
        {"a\n<|endoftext|>\n<|endoftext|>\nb", {"a", "", "b"}},
        {"a<|endoftext|>\n <|endoftext|>\n", {"a<|endoftext|>\n <|endoftext|>"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        size_t at = 0, n = 0, size;
        const char *doc;
        while (document_next(cuts[i].text, strlen(cuts[i].text), &at, &doc, &size)) {
            assert_true(n < 4 && cuts[i].docs[n]);
            assert_int_equal(size, strlen(cuts[i].docs[n]));
            assert_memory_equal(doc, cuts[i].docs[n], size);
            n++;
        }
        assert_true(n == 4 || !cuts[i].docs[n]);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cutting),
        cmocka_unit_test(test_ids_of_all_documents),
    };
    if (argc != 3) return 2;
    model_dir = argv[1];
    data_dir = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
