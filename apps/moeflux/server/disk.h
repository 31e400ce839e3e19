/* The prompt cache's disk, away from the scheduler's thread: a slow drive delays nobody but the requests whose
 * beginning is being read from it. Threads read the beginnings of prompts into their sessions, as many as there are at
 * a time, another writes states.
 *
 * A session that is handed over here belongs to these threads until it comes back (a load) or for good (a state). Of
 * prompts that are mostly the same one is read at a time: the next then finds in memory what the first one found. */
#ifndef MOEFLUX_DISK_H
#define MOEFLUX_DISK_H

#include "scheduler.h"

typedef struct disk disk;

/* n_loads: at a time, at most; each that is read has a thread of its own, so that nobody waits for what others read.
 * wake: a load is over. NULL: no memory or no threads. */
disk *disk_create(int n_loads, void (*wake)(void *user), void *user);
void disk_free(disk *d); /* writes what waits to be written; NULL is fine */

void disk_load(disk *d, seq *q); /* mf_prompt_begin of its prompt, into its session */
seq *disk_loaded(disk *d);       /* one whose load is over: q->loaded, q->n_reused; NULL: none */
void disk_stop_loading(disk *d); /* what has not begun comes back at once; returns when all are back. NULL is fine */

/* mf_prompt_keep of a fork, which is freed then. Where too many wait, the one that waits longest is given up: those
 * behind it hold more. */
void disk_keep(disk *d, mf_session *fork);
bool disk_give_up(disk *d); /* ... because its memory is wanted; false: there is none, or d is NULL */

#endif
