// SPDX-License-Identifier: Apache-2.0
// Values for benchmarks: reproducible random numbers, and elements of any float dtype in host
// memory.
#ifndef SPOPS_BENCH_DATA_H
#define SPOPS_BENCH_DATA_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "support/elements.h"
#include "support/random.h"

#ifdef __cplusplus
extern "C" {
#endif

// The i-th number of stream `seed`.
static inline uint64_t bench_random(uint64_t seed, uint64_t i)
{
    return random_mix((seed << 40) + (i + 1) * RANDOM_STEP);
}

// The i-th number of stream `seed`, uniform in [low, high).
static inline float bench_uniform(uint64_t seed, uint64_t i, float low, float high)
{
    return low + (high - low) * (float)(bench_random(seed, i) >> 40) * 0x1p-24f;
}

// Of F8E4M3 or F8E5M2.
float bench_f8_to_float(uint8_t code, spops_dtype dtype);

// set does not know the 8-bit dtypes.
static inline float bench_get(const void *data, spops_dtype dtype, int64_t i)
{
    if (dtype == SPOPS_DTYPE_F32) return ((const float *)data)[i];
    if (dtype == SPOPS_DTYPE_F8E4M3 || dtype == SPOPS_DTYPE_F8E5M2)
        return bench_f8_to_float(((const uint8_t *)data)[i], dtype);
    if (dtype == SPOPS_DTYPE_F16) return elements_float_of_f16(((const uint16_t *)data)[i]);
    return elements_float_of_bf16(((const uint16_t *)data)[i]);
}

static inline void bench_set(void *data, spops_dtype dtype, int64_t i, float value)
{
    if (dtype == SPOPS_DTYPE_F32)
        ((float *)data)[i] = value;
    else if (dtype == SPOPS_DTYPE_F16)
        ((uint16_t *)data)[i] = elements_f16_of_float(value);
    else
        ((uint16_t *)data)[i] = elements_bf16_of_float(value);
}

// data[i] = number i of stream `seed`, uniform in [low, high), in dtype.
void bench_fill_uniform(void *data, spops_dtype dtype, int64_t count, uint64_t seed, float low,
                        float high);

// 0 .. count - 1 in random order.
void bench_fill_permutation(int32_t *data, int64_t count, uint64_t seed);

// Offsets of num_segments segments with num_terms terms in all; false for an unknown shape.
//   uniform   all equally long (rounded so that the total is exact)
//   single    the same, of as many segments as terms
//   powerlaw  lengths proportional to rank^-a, in random order, with a such that the longest
//             segment holds a quarter of the terms; short of one term a segment is empty or has one
//   huge      one term a segment, but for the middle one, which has all the others
bool bench_fill_offsets(const char *shape, int64_t num_segments, int64_t num_terms, uint64_t seed,
                        int32_t *offsets);

// Values for arrays of any size: number i is values[i % BENCH_PERIOD]. The host keeps one period
// (and a row more, so that a row never wraps), however large the array on the device is.
#define BENCH_PERIOD 4194301 // prime: rows of any width start everywhere in it

typedef struct bench_block {
    spops_dtype dtype;
    float *values; // decoded
    void *encoded; // in dtype
} bench_block;

bool bench_block_create(spops_dtype dtype, uint64_t seed, float low, float high,
                        bench_block *block);
// Whole numbers from -limit to limit.
bool bench_block_create_whole(spops_dtype dtype, uint64_t seed, int limit, bench_block *block);
void bench_block_destroy(bench_block *block);
// Copy numbers 0 .. count - 1 to an array where `backend` runs.
bool bench_block_upload(const bench_block *block, spops_backend_kind backend, void *array,
                        int64_t count);

static inline const float *bench_block_row(const bench_block *block, int64_t row, int64_t cols)
{
    return block->values + row * cols % BENCH_PERIOD;
}

// How far a value of `dtype`, summed in f32 from num_terms products whose magnitudes add up to
// `magnitude`, may lie from the exact sum `reference`: every addition and product rounds once in
// f32, the result once more in dtype. n roundings of u are n u at worst; past 64 of them 8 sqrt(n)
// u is allowed, which roundings that do not conspire stay far below, and a lost term does not.
double bench_sum_bound(spops_dtype dtype, int64_t num_terms, double magnitude, double reference);

#ifdef __cplusplus
}
#endif

#endif
