/* The one list of backends. A new one adds its line here and its folder to CMakeLists.txt; see "adding a backend" in
 * docs/WALK.md. */
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"

/* The best first: where nobody names a backend, the first that is available and can run the model is taken. */
#ifdef MF_CUDA
#define CUDA(X) X(cuda)
#else
#define CUDA(X)
#endif
#ifdef MF_FAR
#define FAR(X) X(far)
#else
#define FAR(X)
#endif
#define BACKENDS(X) CUDA(X) X(cpu) X(ref) FAR(X)

#define DECLARE(name) extern const mf__backend_kind mf__backend_kind_##name;
BACKENDS(DECLARE)
#undef DECLARE

#define ENTRY(name) &mf__backend_kind_##name,
static const mf__backend_kind *const KINDS[] = {BACKENDS(ENTRY)};
#undef ENTRY

int mf__backend_count(void) {
    return (int)(sizeof KINDS / sizeof KINDS[0]);
}

const mf__backend_kind *mf__backend_at(int i) {
    return KINDS[i];
}

const mf__backend_kind *mf__backend_find(const char *name) {
    for (int i = 0; i < mf__backend_count(); i++)
        if (!strcmp(KINDS[i]->name, name)) return KINDS[i];
    return NULL;
}

void mf__backend_names(char text[MF_BACKEND_NAMES]) {
    size_t n = (size_t)snprintf(text, MF_BACKEND_NAMES, "auto");
    for (int i = 0; i < mf__backend_count() && n < MF_BACKEND_NAMES; i++)
        n += (size_t)snprintf(text + n, MF_BACKEND_NAMES - n, "%s%s", i + 1 < mf__backend_count() ? ", " : " and ",
                              KINDS[i]->name);
}
