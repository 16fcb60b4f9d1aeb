// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_data.h"

#include <math.h>
#include <stdlib.h>

#include "bench/bench_report.h"

void bench_fill_uniform(void *data, spops_dtype dtype, int64_t count, uint64_t seed, float low,
                        float high)
{
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; ++i)
        bench_set(data, dtype, i, bench_uniform(seed, (uint64_t)i, low, high));
}

void bench_fill_permutation(int32_t *data, int64_t count, uint64_t seed)
{
    for (int64_t i = 0; i < count; ++i)
        data[i] = (int32_t)i;
    for (int64_t i = count - 1; i > 0; --i) {
        const int64_t j = (int64_t)(bench_random(seed, (uint64_t)i) % (uint64_t)(i + 1));
        const int32_t kept = data[i];
        data[i] = data[j];
        data[j] = kept;
    }
}

static double power_sum(double exponent, int64_t num_segments)
{
    double sum = 0.0;
    for (int64_t k = num_segments; k >= 1; --k)
        sum += pow((double)k, -exponent);
    return sum;
}

// The exponent whose longest of num_segments segments has a quarter of everything.
static double quarter_exponent(int64_t num_segments)
{
    double low = 0.0, high = 8.0;
    for (int i = 0; i < 40; ++i) {
        const double middle = 0.5 * (low + high);
        if (power_sum(middle, num_segments) > 4.0)
            low = middle;
        else
            high = middle;
    }
    return 0.5 * (low + high);
}

bool bench_fill_offsets(const char *shape, int64_t num_segments, int64_t num_terms, uint64_t seed,
                        int32_t *offsets)
{
    int64_t end = 0;
    double before = 0.0;
    int32_t *order = NULL, *lengths = NULL;

    offsets[0] = 0;
    if (strcmp(shape, "uniform") == 0 || strcmp(shape, "single") == 0) {
        for (int64_t s = 1; s <= num_segments; ++s)
            offsets[s] = (int32_t)(num_terms * s / num_segments);
        return true;
    }
    if (strcmp(shape, "huge") == 0) {
        for (int64_t s = 0; s < num_segments; ++s) {
            end += s == num_segments / 2 ? num_terms - (num_segments - 1) : 1;
            offsets[s + 1] = (int32_t)end;
        }
        return num_terms >= num_segments;
    }
    if (strcmp(shape, "powerlaw") != 0) return false;

    order = malloc((size_t)num_segments * sizeof *order);
    lengths = malloc((size_t)num_segments * sizeof *lengths);
    if (order == NULL || lengths == NULL) {
        free(order);
        free(lengths);
        return false;
    }
    const double exponent = quarter_exponent(num_segments);
    const double scale = (double)num_terms / power_sum(exponent, num_segments);
    bench_fill_permutation(order, num_segments, seed);
    for (int64_t k = 0; k < num_segments; ++k) { // what rounding cuts off goes to the next ranks
        before += scale * pow((double)(k + 1), -exponent);
        const int64_t next =
            k + 1 == num_segments ? num_terms : (int64_t)fmin(before, (double)num_terms);
        lengths[order[k]] = (int32_t)(next - end);
        end = next;
    }
    for (int64_t s = 0; s < num_segments; ++s)
        offsets[s + 1] = offsets[s] + lengths[s];
    free(order);
    free(lengths);
    return true;
}

static bool alloc_block(spops_dtype dtype, bench_block *block)
{
    const size_t count = BENCH_PERIOD + BENCH_MAX_WIDTH;
    block->dtype = dtype;
    block->values = malloc(count * sizeof *block->values);
    block->encoded = malloc(count * spops_dtype_bytes(dtype));
    return block->values != NULL && block->encoded != NULL;
}

static void decode_block(bench_block *block)
{
    for (size_t i = 0; i < BENCH_PERIOD + BENCH_MAX_WIDTH; ++i)
        block->values[i] = bench_get(block->encoded, block->dtype, (int64_t)(i % BENCH_PERIOD));
}

bool bench_block_create(spops_dtype dtype, uint64_t seed, float low, float high, bench_block *block)
{
    if (!alloc_block(dtype, block)) return false;
    bench_fill_uniform(block->encoded, dtype, BENCH_PERIOD, seed, low, high);
    decode_block(block);
    return true;
}

bool bench_block_create_whole(spops_dtype dtype, uint64_t seed, int limit, bench_block *block)
{
    if (!alloc_block(dtype, block)) return false;
    for (int64_t i = 0; i < BENCH_PERIOD; ++i) {
        const uint64_t number = bench_random(seed, (uint64_t)i) % (uint64_t)(2 * limit + 1);
        bench_set(block->encoded, dtype, i, (float)((int)number - limit));
    }
    decode_block(block);
    return true;
}

void bench_block_destroy(bench_block *block)
{
    free(block->values);
    free(block->encoded);
    block->values = NULL;
    block->encoded = NULL;
}

bool bench_block_upload(const bench_block *block, spops_backend_kind backend, void *array,
                        int64_t count)
{
    const size_t element = spops_dtype_bytes(block->dtype);
    for (int64_t i = 0; i < count; i += BENCH_PERIOD) {
        const int64_t n = count - i < BENCH_PERIOD ? count - i : BENCH_PERIOD;
        if (!device_upload(backend, (char *)array + (size_t)i * element, block->encoded,
                           (size_t)n * element))
            return false;
    }
    return true;
}

float bench_f8_to_float(uint8_t code, spops_dtype dtype)
{
    const int m = code & 0x7f, exponent = m >> 3, fraction = m & 7;
    float magnitude;
    if (dtype == SPOPS_DTYPE_F8E5M2)
        return elements_float_of_f16((uint16_t)(code << 8)); // its head
    if (m == 0x7f) return NAN;
    magnitude =
        exponent == 0 ? ldexpf((float)fraction, -9) : ldexpf((float)(fraction + 8), exponent - 10);
    return code & 0x80 ? -magnitude : magnitude;
}

double bench_sum_bound(spops_dtype dtype, int64_t num_terms, double magnitude, double reference)
{
    const double f32 = 0x1p-24;
    const double element = dtype == SPOPS_DTYPE_F16      ? 0x1p-11
                           : dtype == SPOPS_DTYPE_BF16   ? 0x1p-8
                           : dtype == SPOPS_DTYPE_F8E4M3 ? 0x1p-4
                           : dtype == SPOPS_DTYPE_F8E5M2 ? 0x1p-3
                                                         : 0.0;
    const double smallest = dtype == SPOPS_DTYPE_F16      ? 0x1p-25 // half a subnormal step
                            : dtype == SPOPS_DTYPE_F8E4M3 ? 0x1p-10
                            : dtype == SPOPS_DTYPE_F8E5M2 ? 0x1p-17
                                                          : 0x1p-133;
    const double n = (double)num_terms + 1.0;
    const double roundings = fmin(n, 8.0 * sqrt(n)); // tens of millions of terms too
    const double sum = roundings * f32 / (1.0 - roundings * f32) * magnitude;
    return sum + element * (fabs(reference) + sum) + smallest * (1.0 + n);
}
