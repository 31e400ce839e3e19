/* moeflux template against every line of render.jsonl: template_lines MOEFLUX DIR, DIR with the lines and the templates
 * they name. Each template is run once, on all its requests. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

static int n_lines, n_bad;

static json_t *read_lines(const char *path) {
    json_t *all = json_array();
    char *line = NULL;
    size_t capacity = 0;
    FILE *f = fopen(path, "r");
    for (ssize_t n; f && (n = getline(&line, &capacity, f)) > 0;)
        json_array_append_new(all, json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL));
    if (f) fclose(f);
    free(line);
    return all;
}

static const char *template_of(const json_t *request) {
    return json_string_value(json_object_get(request, "template"));
}

static void check(const json_t *request, const json_t *result) {
    const json_t *expected = json_object_get(request, "expected"), *text = json_object_get(result, "text");
    bool good = json_is_true(json_object_get(request, "error"))
                    ? json_is_string(json_object_get(result, "error")) && !text
                    : text && json_equal((json_t *)text, (json_t *)expected);
    n_lines++;
    n_bad += !good;
    if (!good) printf("request %d (%s) differs\n", n_lines, template_of(request));
}

/* All requests of one template. */
static void run(const char *moeflux, const char *dir, const json_t *requests, const char *name) {
    char command[4096];
    size_t i;
    const json_t *r;
    FILE *f = fopen("requests.jsonl", "w");
    json_array_foreach((json_t *)requests, i, r) {
        if (f && !strcmp(template_of(r), name)) {
            json_dumpf(r, f, JSON_COMPACT);
            fputc('\n', f);
        }
    }
    if (f) fclose(f);
    snprintf(command, sizeof command, "'%s' template '%s/%s' --jsonl <requests.jsonl >results.jsonl", moeflux, dir,
             name);
    int code = system(command);
    if (code) {
        printf("%s: exit code %d\n", name, code);
        n_bad++;
    }
    json_t *results = read_lines("results.jsonl");
    size_t at = 0;
    json_array_foreach((json_t *)requests, i, r) {
        if (!strcmp(template_of(r), name)) check(r, json_array_get(results, at++));
    }
    json_decref(results);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    char *path = mf__path_join(argv[2], "render.jsonl");
    json_t *requests = read_lines(path), *done = json_object();
    size_t i;
    const json_t *r;
    json_array_foreach(requests, i, r) {
        if (!json_object_get(done, template_of(r))) run(argv[1], argv[2], requests, template_of(r));
        json_object_set_new(done, template_of(r), json_true());
    }
    printf("%d requests, %d bad\n", n_lines, n_bad);
    json_decref(done);
    json_decref(requests);
    free(path);
    return n_bad || n_lines != 180;
}
