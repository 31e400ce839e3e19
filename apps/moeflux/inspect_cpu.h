/* What this machine has, and what the cpu backend makes of it. */
#ifndef MOEFLUX_INSPECT_CPU_H
#define MOEFLUX_INSPECT_CPU_H

#include "base/status.h"

mf_status inspect_cpu(mf_error *err); /* prints it */

#endif
