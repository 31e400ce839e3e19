/* Letters from the other threads to the loop, and the bell that wakes it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server_int.h"

bool mailbox_init(mailbox *m) {
    *m = (mailbox){.bell = {-1, -1}};
    m->tail = &m->first;
    pthread_mutex_init(&m->lock, NULL);
    if (evutil_socketpair(AF_UNIX, SOCK_STREAM, 0, m->bell)) return false;
    return !evutil_make_socket_nonblocking(m->bell[0]) && !evutil_make_socket_nonblocking(m->bell[1]);
}

void mailbox_deinit(mailbox *m) {
    for (letter *l = mailbox_take(m), *next; l; l = next) {
        next = l->next;
        free(l);
    }
    for (int i = 0; i < 2; i++)
        if (m->bell[i] >= 0) evutil_closesocket(m->bell[i]);
    pthread_mutex_destroy(&m->lock);
}

static const char *put_bytes(char **at, const char *bytes, size_t n) {
    char *here = *at;
    if (!bytes) return NULL;
    memcpy(here, bytes, n);
    here[n] = 0;
    *at += n + 1;
    return here;
}

letter *letter_create(job *j, int choice, const sched_event *e) {
    const mf_event *r = e->reply;
    size_t n_top = r ? (size_t)r->n_top * sizeof *r->top : 0;
    size_t n = sizeof(letter) + n_top + 8;
    if (r) n += r->n_text + (r->name ? strlen(r->name) : 0) + (r->id ? strlen(r->id) : 0);
    if (e->error) n += strlen(e->error);
    letter *l = calloc(1, n);
    if (!l) return NULL;
    *l = (letter){.job = j, .choice = choice, .event = *e};
    char *at = (char *)(l + 1);
    if (r) {
        l->reply = *r;
        if (n_top) memcpy(at, r->top, n_top);
        l->reply.top = (const mf_logprob *)(const void *)at;
        at += n_top;
        l->reply.text = put_bytes(&at, r->text, r->n_text);
        l->reply.name = put_bytes(&at, r->name, r->name ? strlen(r->name) : 0);
        l->reply.id = put_bytes(&at, r->id, r->id ? strlen(r->id) : 0);
        l->event.reply = &l->reply;
    }
    l->event.error = put_bytes(&at, e->error, e->error ? strlen(e->error) : 0);
    return l;
}

void mailbox_put(mailbox *m, letter *first, letter **tail) {
    pthread_mutex_lock(&m->lock);
    *tail = NULL;
    *m->tail = first;
    m->tail = tail;
    pthread_mutex_unlock(&m->lock);
}

void mailbox_ring(mailbox *m) {
    pthread_mutex_lock(&m->lock);
    bool ring = m->first && !m->rung;
    m->rung = m->rung || ring;
    pthread_mutex_unlock(&m->lock);
    if (ring && write(m->bell[1], "", 1) < 0) { /* full: it has been rung often enough */
    }
}

letter *mailbox_take(mailbox *m) {
    char drop[64];
    while (m->bell[0] >= 0 && read(m->bell[0], drop, sizeof drop) > 0) {
    }
    pthread_mutex_lock(&m->lock);
    letter *all = m->first;
    m->first = NULL;
    m->tail = &m->first;
    m->rung = false;
    pthread_mutex_unlock(&m->lock);
    return all;
}
