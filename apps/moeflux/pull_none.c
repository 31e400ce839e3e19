/* moeflux pull, in a program that was built without libcurl. */
#include "app.h"

int cmd_pull(int argc, char **argv) {
    (void)argc, (void)argv;
    app_say("this moeflux was built without libcurl and cannot download; get the model's files by other means and run: "
            "moeflux convert CHECKPOINT DIR");
    return APP_FAILED;
}
