// SPDX-License-Identifier: Apache-2.0
// What the fuzzers share: a CPU context whose memory is counted, limited and can be made to fail, a
// reader of the input's numbers, and checks that end the process where a promise is broken.
//
// A harness defines LLVMFuzzerTestOneInput. libFuzzer calls it, or fuzz_main.c does.
#ifndef SPOPS_TESTS_FUZZ_H
#define SPOPS_TESTS_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spops/spops.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define FUZZ_REQUIRE(condition, ...)                                                               \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

// Memory of one input's context. An input asks for up to 2^31 cells; more than LIMIT is "no
// memory".
#define FUZZ_MEMORY_LIMIT ((size_t)8 << 20)
// A plan is run when each of its arrays has at most this many elements.
#define FUZZ_RUN_LIMIT 65536

typedef struct fuzz_memory {
    size_t used;
    size_t most; // ever asked for at once, also in vain
    int64_t num_live;
    int64_t num_allocs;
    int64_t fail_at; // this allocation (from 1) and all later ones fail; 0: none
} fuzz_memory;

spops_context *fuzz_context_create(fuzz_memory *memory, int num_threads);
// Also requires that everything was given back.
void fuzz_context_destroy(spops_context *ctx, fuzz_memory *memory);

// Numbers of an input, little-endian; 0 after its end.
typedef struct fuzz_input {
    const uint8_t *data;
    size_t bytes;
    size_t at;
} fuzz_input;
int32_t fuzz_i32(fuzz_input *input);
// n numbers in memory of their own, so that reading past them is seen. Never NULL.
int32_t *fuzz_i32s(fuzz_input *input, int64_t n);
// The arrays of a BEV plan, to be freed.
spops_bev_ranks_out fuzz_ranks(fuzz_input *input, int64_t num_points, int64_t num_intervals);
void fuzz_free_ranks(spops_bev_ranks_out *ranks);
spops_bev_intervals_out fuzz_intervals(fuzz_input *input, int64_t num_points,
                                       int64_t num_intervals);
void fuzz_free_intervals(spops_bev_intervals_out *intervals);

// Plans that were accepted: run them on ones, forward and backward, in every layout, and require
// that the sums are the numbers of points or terms; save and load; give them back as arrays.
void fuzz_run_bev_plan(spops_context *ctx, spops_bev_plan *plan);
void fuzz_run_segments(spops_context *ctx, spops_segments *segments);

#endif
