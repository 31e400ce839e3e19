/* Cutting a text into documents. */
#include "documents.h"

#include <string.h>

static bool is_separator(const char *line, size_t size) {
    static const char separator[] = "<|endoftext|>";
    if (size && line[size - 1] == '\r') size--;
    return size == sizeof separator - 1 && !memcmp(line, separator, size);
}

bool document_next(const char *text, size_t size, size_t *at, const char **doc, size_t *doc_size) {
    size_t start = *at, end = start, line = start; /* end: behind the last line of the document, without its break */
    if (start >= size) return false;
    while (line < size) {
        const char *nl = memchr(text + line, '\n', size - line);
        size_t stop = nl ? (size_t)(nl - text) : size, next = nl ? stop + 1 : size;
        bool found = is_separator(text + line, stop - line);
        if (!found) end = stop;
        line = next;
        if (found) break;
    }
    *at = line;
    *doc = text + start;
    *doc_size = end - start;
    return true;
}
