/* moeflux inspect: whether a model runs here, or on another machine, and about how fast. */
#ifndef MOEFLUX_INSPECT_VERDICT_H
#define MOEFLUX_INSPECT_VERDICT_H

#include "convert/survey.h"
#include "machine.h"

typedef struct inspect_subject {
    const char *path;        /* a model directory, a checkpoint or a GGUF file */
    const char *name;        /* what it is called in results */
    const char *on_hub;      /* ORG/NAME where path holds only tables of tensors; NULL: it is here */
    const char *models;      /* --models */
    int64_t ram;             /* --ram; 0: what is free */
    machine_assumed assumed; /* --assume */
} inspect_subject;

/* The conversion that is recommended, the machine, the verdict. Nothing for a model without experts. */
mf_status inspect_verdict(const inspect_subject *of, const mf__survey *s, mf_error *err);
/* The same as one JSON object, with what is wrong; no verdict where anything is. */
mf_status inspect_json(const inspect_subject *of, const mf__survey *s, mf_error *err);
/* The same for a shape that moeflux synth knows; of->path is not looked at. */
typedef struct inspect_shape_of {
    const char *name;
    int layers; /* 0: all that the published model has */
} inspect_shape_of;
mf_status inspect_shape(const inspect_subject *of, const inspect_shape_of *shape, bool json, mf_error *err);

#endif
