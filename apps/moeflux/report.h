/* Pictures of a model and of what it does on this machine: one page of HTML with everything in it.
 *
 *   report_begin     before the model is opened: what its directory says, what the machine does
 *   report_run       tokens one by one: routes, time by op and layer, speed
 *   report_write     the page
 *
 * moeflux report is these three; bench --html adds what it measured. */
#ifndef MOEFLUX_REPORT_H
#define MOEFLUX_REPORT_H

#include "charts.h"
#include "convert/survey.h"
#include "routes.h"
#include "verdict.h"

#define REPORT_MAX_OPS 64
#define REPORT_POINTS 24 /* of a curve */
#define REPORT_SPEEDS 8

typedef struct report_speed {
    char name[48];
    double median, least, most; /* tokens per second */
} report_speed;

typedef struct report {
    const char *dir;
    mf__survey survey;
    model_sizes sizes;
    mf_memory_needs needs; /* with a session of 4096 tokens */
    machine at;
    bool measured; /* the machine was: --ram left room for it */
    /* of the run */
    char name[128], backend[32];
    int64_t ram; /* budget; 0: all that is free */
    routes routes;
    bool recorded; /* the routes came from a file */
    int64_t n_ids; /* expert numbers that have come */
    bool failed;   /* more than there can be */
    const char *ops[REPORT_MAX_OPS];
    int n_ops, n_columns; /* a column per layer, and one for what is outside of layers */
    double *op_us;        /* [n_columns][n_ops], of a token */
    double decode;        /* tokens per second of this run */
    int64_t n_run;        /* tokens that it is from */
    report_speed speeds[REPORT_SPEEDS];
    int n_speeds;
} report;

/* opt gets the sink of routes, unless they come from a file. r is to be freed whatever comes back. */
mf_status report_begin(report *r, const char *dir, app_model_options *opt, const char *routes_file, mf_error *err);
/* ids: the first n_ids tokens; the model continues them to n_tokens. The session's memory is used up. */
mf_status report_run(report *r, mf_model *model, mf_session *session, const int32_t *ids, int64_t n_ids,
                     int64_t n_tokens, mf_error *err);
void report_speed_add(report *r, const char *name, double median, double least, double most);
mf_status report_write(const report *r, const char *path, mf_error *err);
void report_free(report *r);

#endif
