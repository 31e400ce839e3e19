/* Preloaded into one rank of a job: what it sends is wrong, as $WRONG says, from the 20th message on; and of the
 * program's own allocations after the handshake the $REFUSE-th fails, counted from 1. Uses MPI's profiling names. */
#include <link.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/wire.h"

static struct {
    uintptr_t from, to; /* the program's own code */
    int refuse;         /* which allocation fails; 0: none */
    atomic_int n;
} own;

#ifndef SANITIZED /* which have an allocator of their own */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *malloc(size_t size);
void *calloc(size_t n, size_t size);

static bool refuses(const void *caller) {
    return own.refuse && (uintptr_t)caller - own.from < own.to - own.from &&
           atomic_fetch_add(&own.n, 1) + 1 == own.refuse;
}

void *malloc(size_t size) {
    return refuses(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size) {
    return refuses(__builtin_return_address(0)) ? NULL : __libc_calloc(n, size);
}
#endif

static int first_object(struct dl_phdr_info *info, size_t size, void *user) {
    (void)size, (void)user;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD || !(info->dlpi_phdr[i].p_flags & PF_X)) continue;
        own.from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        own.to = own.from + info->dlpi_phdr[i].p_memsz;
    }
    return 1;
}

int MPI_Iallgather(const void *out, int n_out, MPI_Datatype out_type, void *in, int n_in, MPI_Datatype in_type,
                   MPI_Comm comm, MPI_Request *request) {
    dl_iterate_phdr(first_object, NULL);
    own.refuse = getenv("REFUSE") ? atoi(getenv("REFUSE")) : 0;
    return PMPI_Iallgather(out, n_out, out_type, in, n_in, in_type, comm, request);
}

/* Changes a request; returns how long it is now. */
static int change_request(wire_request *q, const char *how, int n) {
    if (!strcmp(how, "kind")) q->kind = 77;
    if (!strcmp(how, "many-rows")) q->n_rows = 60000;
    if (!strcmp(how, "no-rows")) q->n_rows = 0;
    if (!strcmp(how, "minus-rows")) q->n_rows = -5;
    if (!strcmp(how, "more-pairs")) q->n_pairs++;
    if (!strcmp(how, "many-pairs")) q->n_pairs = INT64_MAX / 8;
    if (!strcmp(how, "layer")) q->layer = 1 << 20;
    if (!strcmp(how, "format")) q->format ^= 1;
    if (!strcmp(how, "expert")) ((int32_t *)(void *)(q + 1))[0] = 1 << 24;
    if (!strcmp(how, "wanted")) q->n_wanted = 1 << 24;
    if (!strcmp(how, "decode")) q->n_decode = -1;
    if (!strcmp(how, "work-as-end")) q->kind = WIRE_END;
    return !strcmp(how, "cut-request") ? n - 4 : !strcmp(how, "tiny-request") ? 3 : n;
}

static int change_reply(wire_reply *r, const char *how, int n) {
    if (!strcmp(how, "magic")) r->magic = 1;
    if (!strcmp(how, "seq")) r->seq--;
    if (!strcmp(how, "fewer-pairs")) r->n_pairs--;
    if (!strcmp(how, "no-text")) r->status = MF_E_IO;
    if (!strcmp(how, "no-text")) return (int)sizeof *r;
    return !strcmp(how, "cut-reply") ? n - 4 : !strcmp(how, "tiny-reply") ? 3 : !strcmp(how, "empty-reply") ? 0 : n;
}

int MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    static char changed[1 << 22];
    static int n_sent;
    const char *how = getenv("WRONG");
    if (!how || (tag != WIRE_TAG_REQUEST && tag != WIRE_TAG_REPLY) || n > (int)sizeof changed - 4096 || ++n_sent < 20)
        return PMPI_Isend(data, n, type, to, tag, comm, request);
    memset(changed, 0, sizeof changed);
    memcpy(changed, data, (size_t)n);
    if (!strcmp(how, "long-reply") && tag == WIRE_TAG_REPLY)
        n += 2000;
    else
        n = tag == WIRE_TAG_REQUEST ? change_request((wire_request *)(void *)changed, how, n)
                                    : change_reply((wire_reply *)(void *)changed, how, n);
    return PMPI_Isend(changed, n, type, to, tag, comm, request);
}
