// SPDX-License-Identifier: Apache-2.0
// What the parts of sparse convolution bring, on the layers of a MinkUNet.
#ifndef SPOPS_BENCH_CONV_ABLATION_H
#define SPOPS_BENCH_CONV_ABLATION_H

#include "bench/bench_report.h"

// tuning: a file of `spops tune`, or NULL.
void bench_conv_ablation(bench *b, spops_dtype dtype, const char *tuning);

#endif
