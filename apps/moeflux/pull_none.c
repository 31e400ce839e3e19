/* moeflux pull, and what inspect has of it, in a program that was built without libcurl. */
#include "pull.h"

#define WHY "this moeflux was built without libcurl and cannot download"

int pull_hub_rows(void *options, opt_def *rows) {
    (void)options, (void)rows;
    return 0;
}

bool pull_is_name(const char *word) {
    (void)word;
    return false;
}

mf_status pull_look(const pull_options *o, const char *word, pull_view *out, mf_error *err) {
    (void)o, (void)out;
    return mf__fail(err, MF_E_UNSUPPORTED, "%s: " WHY, word);
}

void pull_view_close(pull_view *v) {
    (void)v;
}

int cmd_pull(int argc, char **argv) {
    (void)argc, (void)argv;
    app_say(WHY "; get the model's files by other means and run: moeflux convert CHECKPOINT DIR");
    return APP_FAILED;
}
