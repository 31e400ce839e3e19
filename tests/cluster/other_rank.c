/* A rank of another version: takes part in the handshake, and is gone. */
#include <stdio.h>
#include <string.h>

#include "cluster/wire.h"

int main(void) {
    static wire_hello mine = {.ok = 1, .version = "0.0.1 (wire 1)", .arithmetic = "cpu", .host = "elsewhere"};
    static wire_hello all[WIRE_MAX_RANKS];
    int level;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    MPI_Request request;
    MPI_Iallgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Finalize();
    return 0;
}
