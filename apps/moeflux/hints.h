/* What people type who come from other programs, and what it is called here. */
#ifndef MOEFLUX_HINTS_H
#define MOEFLUX_HINTS_H

/* A sentence's end for a name that is none of ours: "here it is moeflux convert"; NULL: nothing is known about it. */
const char *hint_command(const char *name);
/* For an option, without its dashes: "here it is --tokens". */
const char *hint_option(const char *name);

#endif
