/* The files of the chat page (web/), as they are in the program. */
#ifndef MOEFLUX_PAGE_H
#define MOEFLUX_PAGE_H

#include <stddef.h>

typedef struct page_file {
    const char *path, *type;
    const unsigned char *data;
    size_t size;
} page_file;

/* Nothing is loaded from elsewhere, nothing runs that is not a file of ours, nobody frames the page. */
#define PAGE_FIELDS                                                                                                    \
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "         \
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"                              \
    "Referrer-Policy: no-referrer\r\nCross-Origin-Opener-Policy: same-origin\r\nX-Frame-Options: DENY\r\n"             \
    "Cache-Control: no-cache\r\n"

const page_file *page_find(const char *path); /* NULL: no such file */

#endif
