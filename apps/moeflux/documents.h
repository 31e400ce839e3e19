/* A text file as a list of documents, separated by lines that read <|endoftext|>. */
#ifndef MOEFLUX_DOCUMENTS_H
#define MOEFLUX_DOCUMENTS_H

#include <stdbool.h>
#include <stddef.h>

/* The document that begins at text[*at]; *at moves behind its separator. The line break before a separator, and the
 * last one of the file, end the last line and belong to no document. False when there is none left. */
bool document_next(const char *text, size_t size, size_t *at, const char **doc, size_t *doc_size);

#endif
