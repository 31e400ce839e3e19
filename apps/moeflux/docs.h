/* Manual pages and completions, made from the tables that --help prints. */
#ifndef MOEFLUX_DOCS_H
#define MOEFLUX_DOCS_H

#include "options.h"

/* help --man DIR: moeflux.1 and moeflux-COMMAND.1. help --completions DIR: moeflux.bash, _moeflux, moeflux.fish. Each
 * returns an exit code. The commands are asked for their help, and opt_parse hands the table over. */
int docs_man(const app_command *commands, int n, const char *dir);
int docs_completions(const app_command *commands, int n, const char *dir);

/* From opt_parse, instead of printing the help: true when it is taken. */
bool docs_take(const opt_spec *spec);

#endif
