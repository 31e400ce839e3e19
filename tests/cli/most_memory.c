/* most_memory FILE GROUP COMMAND...: runs COMMAND, in the memory group GROUP unless that is "-", and writes the largest
 * resident set it had, in KiB, to FILE. The exit code is COMMAND's; 128 + N when signal N ended it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static int write_number(const char *path, long number) {
    FILE *f = fopen(path, "w");
    if (!f) return -1;
    int bad = fprintf(f, "%ld\n", number) < 0;
    return fclose(f) || bad ? -1 : 0;
}

static void run(const char *group, char **command) {
    char path[4096];
    snprintf(path, sizeof path, "%s/cgroup.procs", group);
    if (strcmp(group, "-") && write_number(path, (long)getpid())) {
        perror(path);
        _exit(126);
    }
    execvp(command[0], command);
    perror(command[0]);
    _exit(127);
}

int main(int argc, char **argv) {
    int status;
    struct rusage used;
    if (argc < 4) return 2;
    pid_t child = fork();
    if (child < 0) return 125;
    if (child == 0) run(argv[2], argv + 3);
    if (wait4(child, &status, 0, &used) != child || write_number(argv[1], used.ru_maxrss)) return 125;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
