/* A network cable with a length and a speed, for measuring several machines on one.
 *
 * netdelay NAMESPACE_A NAMESPACE_B DELAY_US GBIT_S [MTU]
 *
 * Makes an interface `wire` in each of two network namespaces (`ip netns add`) and carries every frame from one to the
 * other: it takes the time that a wire of GBIT_S (0: no limit) is busy with it, behind those before it, and then
 * DELAY_US. A frame counts as if it were cut into the usual ones of 1500 bytes, 1448 of them payload, with 90 bytes
 * around each; frames here may be larger (MTU, 65000), so that a program can keep up. Says "ready", runs until SIGTERM,
 * and then says how many frames left how late: a figure that was measured over it is as good as that.
 *
 * Not part of the build: cc -O2 -o netdelay tools/netdelay.c. Linux; needs root and /dev/net/tun. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define N_FRAMES 4096 /* under way in one direction */
#define PAYLOAD 1448
#define AROUND 90

typedef struct frame {
    int64_t due_ns;
    int bytes;
    char *data;
} frame;

typedef struct way {
    int from, to;
    frame frames[N_FRAMES];
    unsigned first, n;
    int64_t free_ns; /* the wire is busy until then */
    long n_sent, n_dropped, bytes;
    int64_t late_ns, latest_ns;
} way;

static way ways[2];
static volatile sig_atomic_t stopped;

static void stop(int sig) {
    (void)sig;
    stopped = 1;
}

static void die(const char *what) {
    fprintf(stderr, "netdelay: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The interface belongs to the namespace in which it is made, and this process stays there until the next. */
static int open_wire(const char *name, int mtu) {
    char path[256];
    snprintf(path, sizeof path, "/run/netns/%s", name);
    int ns = open(path, O_RDONLY | O_CLOEXEC);
    if (ns < 0 || setns(ns, CLONE_NEWNET)) die(path);
    close(ns);
    struct ifreq r = {.ifr_flags = IFF_TAP | IFF_NO_PI};
    strcpy(r.ifr_name, "wire");
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC), s = socket(AF_INET, SOCK_DGRAM, 0);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &r)) die("/dev/net/tun");
    r.ifr_mtu = mtu;
    if (s < 0 || ioctl(s, SIOCSIFMTU, &r)) die("the interface's mtu");
    r.ifr_flags = IFF_UP | IFF_RUNNING;
    if (ioctl(s, SIOCSIFFLAGS, &r)) die("the interface");
    close(s);
    return fd;
}

static int64_t busy_ns(int bytes, double gbit_s) {
    int payload = bytes > 66 ? bytes - 66 : 0, n = payload ? (payload + PAYLOAD - 1) / PAYLOAD : 1;
    return gbit_s > 0 ? (int64_t)((payload + n * AROUND) * 8 / gbit_s) : 0;
}

static void take(way *w, int64_t delay_ns, double gbit_s, int most) {
    while (w->n < N_FRAMES) {
        frame *f = &w->frames[(w->first + w->n) % N_FRAMES];
        ssize_t n = read(w->from, f->data, (size_t)most);
        if (n <= 0) return;
        int64_t now = now_ns();
        w->free_ns = (w->free_ns > now ? w->free_ns : now) + busy_ns((int)n, gbit_s);
        f->due_ns = w->free_ns + delay_ns;
        f->bytes = (int)n;
        w->n++;
    }
}

/* Sends what is due; returns when the next one is, 0: there is none. */
static int64_t give(way *w) {
    for (; w->n; w->n--, w->first = (w->first + 1) % N_FRAMES) {
        frame *f = &w->frames[w->first];
        int64_t late = now_ns() - f->due_ns;
        if (late < 0) return f->due_ns;
        if (write(w->to, f->data, (size_t)f->bytes) != f->bytes) w->n_dropped++;
        w->n_sent++;
        w->bytes += f->bytes;
        w->late_ns += late;
        if (late > w->latest_ns) w->latest_ns = late;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 5) return fprintf(stderr, "usage: netdelay NAMESPACE_A NAMESPACE_B DELAY_US GBIT_S [MTU]\n"), 2;
    int64_t delay_ns = (int64_t)(atof(argv[3]) * 1000);
    double gbit_s = atof(argv[4]);
    int mtu = argc > 5 ? atoi(argv[5]) : 65000, most = mtu + 64;
    int a = open_wire(argv[1], mtu), b = open_wire(argv[2], mtu);
    struct pollfd fds[2] = {{a, POLLIN, 0}, {b, POLLIN, 0}};
    for (int i = 0; i < 2; i++) {
        ways[i].from = i ? b : a;
        ways[i].to = i ? a : b;
        for (int k = 0; k < N_FRAMES; k++)
            if (!(ways[i].frames[k].data = malloc((size_t)most))) die("memory");
    }
    prctl(PR_SET_TIMERSLACK, 1UL);
    struct sched_param first = {.sched_priority = 50};
    if (sched_setscheduler(0, SCHED_FIFO, &first)) fprintf(stderr, "netdelay: without priority, frames may be late\n");
    signal(SIGTERM, stop);
    signal(SIGINT, stop);
    puts("ready");
    fflush(stdout);
    while (!stopped) {
        int64_t next = 0;
        for (int i = 0; i < 2; i++) take(&ways[i], delay_ns, gbit_s, most);
        for (int i = 0; i < 2; i++) {
            int64_t due = give(&ways[i]);
            if (due && (!next || due < next)) next = due;
        }
        int64_t left = next ? next - now_ns() : 1000000000;
        if (left < 3000 && next) continue; /* sleeping takes longer */
        left = next ? left - 2000 : left;
        struct timespec t = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
        ppoll(fds, 2, &t, NULL);
    }
    for (int i = 0; i < 2; i++)
        printf("%s: %ld frames, %ld bytes, %ld dropped; late by %.1f us in the mean, %.1f at most\n",
               i ? "back" : "there", ways[i].n_sent, ways[i].bytes, ways[i].n_dropped,
               ways[i].n_sent ? (double)ways[i].late_ns / (double)ways[i].n_sent * 1e-3 : 0,
               (double)ways[i].latest_ns * 1e-3);
    return 0;
}
