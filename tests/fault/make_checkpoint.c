/* make_checkpoint DIR SHAPE LAYERS [SEED] */
#include <stdio.h>
#include <stdlib.h>

#include "checkpoint.h"

int main(int argc, char **argv) {
    mf_error err = {0};
    if (argc < 4) return 2;
    if (checkpoint_make(argv[1], argv[2], atoi(argv[3]), argc > 4 ? strtoull(argv[4], NULL, 10) : 1, &err)) {
        fprintf(stderr, "make_checkpoint: %s\n", err.text);
        return 1;
    }
    return 0;
}
