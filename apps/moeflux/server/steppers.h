/* A few threads that step replies after a pass: sampling from a large vocabulary for many sequences takes long enough
 * to be shared out. Which thread takes which item changes nothing, as items know nothing of each other. */
#ifndef MOEFLUX_STEPPERS_H
#define MOEFLUX_STEPPERS_H

typedef struct steppers steppers;

/* n_threads: helpers besides the caller's own thread. Fewer may start; NULL (no memory) works, and helps nobody. */
steppers *steppers_create(int n_threads);
void steppers_free(steppers *s); /* NULL is fine */

/* fn(user, 0) ... fn(user, n - 1), each once, on any of the threads; returns when all are done. One caller at a time.
 */
void steppers_run(steppers *s, void (*fn)(void *user, int i), void *user, int n);

#endif
