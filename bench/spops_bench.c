// SPDX-License-Identifier: Apache-2.0
// The suites as a program of their own; `spops bench` runs the same.
#include "bench/bench.h"

int main(int argc, char **argv)
{
    return bench_main(argc, argv);
}
