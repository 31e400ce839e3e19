/* A build without MPI: there are no other ranks. */
#include <stdlib.h>

#include "cluster.h"

bool cluster_enter(const char *command, int *code) {
    const char *size = getenv("OMPI_COMM_WORLD_SIZE") ? getenv("OMPI_COMM_WORLD_SIZE") : getenv("PMI_SIZE");
    (void)command;
    if (!size || strtol(size, NULL, 10) < 2) return true;
    app_say("started as one of %s ranks, and this moeflux was built without MPI: install its development files, and "
            "build again",
            size);
    *code = APP_USAGE;
    return false;
}

int cluster_leave(int code) {
    return code;
}

bool cluster_worker(void) {
    return false;
}

int cluster_work(char *dir, const app_model_options *opt) {
    (void)opt;
    free(dir);
    return APP_FAILED;
}

mf_status cluster_prepare(const app_model_options *opt, mf_model_options *mo, mf_error *err) {
    (void)mo;
    const char *name = cluster_option(opt);
    if (!name) return MF_OK;
    return mf__fail(err, MF_E_INVALID, "--%s is for several ranks, and this moeflux was built without MPI", name);
}

mf_status cluster_join(const char *dir, mf_model *model, const mf_error *why, mf_error *err) {
    (void)dir, (void)model, (void)why, (void)err;
    return MF_OK;
}

void cluster_on_break(void (*fn)(void)) {
    (void)fn;
}

int cluster_size(void) {
    return 1;
}

bool cluster_stats_get(int rank, cluster_rank_stats *out) {
    (void)rank, (void)out;
    return false;
}

char *cluster_metrics(void) {
    return NULL;
}

void cluster_say_stats(void) {
}
