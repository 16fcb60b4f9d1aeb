// SPDX-License-Identifier: Apache-2.0
// The benchmark suites, as the `spops bench` command and the program spops_bench run them.
#ifndef SPOPS_BENCH_H
#define SPOPS_BENCH_H

#include "support/options.h"

#ifdef __cplusplus
extern "C" {
#endif

// argv[0] is the program's name, the rest as --help describes. Prints results on stdout,
// progress on stderr where that is a terminal. Returns the exit status: 0, 1 when a result was
// wrong or a call failed, 2 for arguments that make no sense.
int bench_main(int argc, char **argv);

// What it takes.
const option_set *bench_options_of(const char *program);

#ifdef __cplusplus
}
#endif

#endif
