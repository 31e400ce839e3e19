#include "page.h"

#include <string.h>

#include "page_data.h"

static const page_file files[] = {
#define PAGE_FILE(path, type, symbol) {path, type, symbol, sizeof symbol},
    PAGE_FILES(PAGE_FILE)
#undef PAGE_FILE
};

const page_file *page_find(const char *path) {
    if (!strcmp(path, "/")) path = "/index.html";
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (!strcmp(files[i].path, path)) return &files[i];
    return NULL;
}
