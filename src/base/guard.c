/* The one thing here that belongs to the process and not to an object: signals do. The table is read by the handler, so
 * it is fixed and atomic; a range is published by its end, which is written last and cleared first. */
#include "base/guard.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_RANGES 1024

typedef struct range {
    atomic_uintptr_t begin, end; /* end 0: not in use */
    atomic_llong faults;
    bool taken; /* under lock */
} range;

static range ranges[MAX_RANGES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* installing, adding, removing; never the handler */
static atomic_bool installed;
static struct sigaction before;
static uintptr_t page_bytes;

static range *find(uintptr_t at) {
    for (int i = 0; i < MAX_RANGES; i++)
        if (at < atomic_load(&ranges[i].end) && at >= atomic_load(&ranges[i].begin)) return &ranges[i];
    return NULL;
}

/* Zeros from the page that is gone to the end of the range: what follows in the file is gone too. */
static bool cover(range *r, uintptr_t at) {
    uintptr_t page = at / page_bytes * page_bytes, end = atomic_load(&r->end);
    if (page >= end) return false;
    void *zeros = mmap((void *)page, end - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (zeros == MAP_FAILED) return false;
    atomic_fetch_add(&r->faults, 1);
    return true;
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    int saved = errno;
    range *r = find((uintptr_t)info->si_addr);
    bool covered = r && cover(r, (uintptr_t)info->si_addr);
    errno = saved;
    if (covered) return;
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(number, info, context);
    else if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN)
        sigaction(number, &before, NULL); /* the access is tried again, and now it ends as it would have */
    else
        before.sa_handler(number);
}

mf_status mf_guard_install(mf_error *err) {
    mf_status st = MF_OK;
    pthread_mutex_lock(&lock);
    if (!atomic_load(&installed)) {
        struct sigaction act = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        sigemptyset(&act.sa_mask);
        page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
        if (sigaction(SIGBUS, &act, &before))
            st = mf__fail_errno(err, errno, "handling SIGBUS");
        else
            atomic_store(&installed, true);
    }
    pthread_mutex_unlock(&lock);
    return st;
}

bool mf__guard_installed(void) {
    return atomic_load(&installed);
}

int mf__guard_add(const void *begin, size_t size) {
    int found = -1;
    if (!atomic_load(&installed) || !size) return -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_RANGES && found < 0; i++)
        if (!ranges[i].taken) found = i;
    if (found >= 0) {
        range *r = &ranges[found];
        r->taken = true;
        atomic_store(&r->faults, 0);
        atomic_store(&r->begin, (uintptr_t)begin);
        atomic_store(&r->end, ((uintptr_t)begin + size + page_bytes - 1) / page_bytes * page_bytes);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void mf__guard_remove(int guard) {
    if (guard < 0) return;
    pthread_mutex_lock(&lock);
    atomic_store(&ranges[guard].end, 0);
    ranges[guard].taken = false;
    pthread_mutex_unlock(&lock);
}

int64_t mf__guard_faults(int guard) {
    return guard < 0 ? 0 : atomic_load(&ranges[guard].faults);
}
