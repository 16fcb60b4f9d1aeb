// SPDX-License-Identifier: Apache-2.0
#include "bench/baselines/map_baselines.h"

#include <stdlib.h>
#include <string.h>

void map_stages_cpu(map_stages *s)
{
    const int32_t *size = s->kernel.size;
    const int64_t taps = spops_kernel_shape_num_taps(&s->kernel), n = s->num_rows * taps;

#pragma omp parallel for schedule(static)
    for (int64_t c = 0; c < n; ++c) { // broadcast add
        const int32_t *row = s->rows + c / taps * 4;
        int64_t rest = c % taps;
        s->candidates[4 * c] = row[0];
        for (int a = 2; a >= 0; --a) {
            const int32_t t = (int32_t)(rest % size[a]);
            rest /= size[a];
            s->candidates[4 * c + 1 + a] =
                row[1 + a] + s->kernel.padding[a] - s->kernel.dilation[a] * t;
        }
    }
#pragma omp parallel for schedule(static)
    for (int64_t c = 0; c < n; ++c) { // modular check
        int32_t keep = 1;
        for (int a = 0; a < 3; ++a) {
            const int32_t u = s->candidates[4 * c + 1 + a], q = u / s->kernel.stride[a];
            keep &= q * s->kernel.stride[a] == u;
            s->candidates[4 * c + 1 + a] = q;
        }
        s->keep[c] = keep;
    }
#pragma omp parallel for schedule(static)
    for (int64_t c = 0; c < n; ++c) { // boundary check
        int32_t keep = s->keep[c];
        for (int a = 0; a < 4; ++a)
            keep &= s->candidates[4 * c + a] >= s->box.lower[a] &&
                    s->candidates[4 * c + a] <= s->box.upper[a];
        s->keep[c] = keep;
    }
#pragma omp parallel for schedule(static)
    for (int64_t c = 0; c < n; ++c)
        if (!s->keep[c]) s->candidates[4 * c] = -1;
}

typedef struct keyed_row {
    uint64_t key;
    int32_t row;
} keyed_row;

static int by_key(const void *a, const void *b)
{
    const uint64_t x = ((const keyed_row *)a)->key, y = ((const keyed_row *)b)->key;
    return (x > y) - (x < y);
}

void map_sorted_cpu(map_sorted *m)
{
    const int64_t n = m->num_rows;
    const int32_t half = m->size / 2;
    int32_t lower[4], upper[4];
    uint64_t step[4];
    keyed_row *sorted = malloc((size_t)(n > 0 ? n : 1) * sizeof *sorted);

    if (sorted == NULL || n == 0) {
        free(sorted);
        return;
    }
    memcpy(lower, m->rows, sizeof lower);
    memcpy(upper, m->rows, sizeof upper);
    for (int64_t i = 0; i < n; ++i)
        for (int a = 0; a < 4; ++a) {
            const int32_t v = m->rows[4 * i + a];
            if (v < lower[a]) lower[a] = v;
            if (v > upper[a]) upper[a] = v;
        }
    step[3] = 1; // a margin of half a kernel, so that no tap reaches another row's end
    for (int a = 2; a >= 0; --a)
        step[a] = step[a + 1] * (uint64_t)(upper[a + 1] - lower[a + 1] + 1 + 2 * half);
    for (int64_t i = 0; i < n; ++i) {
        uint64_t key = (uint64_t)(m->rows[4 * i] - lower[0]) * step[0];
        for (int a = 1; a < 4; ++a)
            key += (uint64_t)(m->rows[4 * i + a] - lower[a] + half) * step[a];
        m->spare[i] = key;
        sorted[i] = (keyed_row){key, (int32_t)i};
    }
    qsort(sorted, (size_t)n, sizeof *sorted, by_key);
    for (int64_t i = 0; i < n; ++i) {
        m->keys[i] = sorted[i].key;
        m->order[i] = sorted[i].row;
    }
    free(sorted);

    const int32_t taps = m->size * m->size * m->size;
    for (int32_t k = 0; k < taps; ++k) {
        const int64_t shift = (int64_t)(k / (m->size * m->size) - half) * (int64_t)step[1] +
                              (int64_t)(k / m->size % m->size - half) * (int64_t)step[2] +
                              (k % m->size - half);
        int64_t count = 0;
#pragma omp parallel for schedule(static) reduction(+ : count)
        for (int64_t i = 0; i < n; ++i) {
            const uint64_t wanted = m->spare[i] + (uint64_t)shift;
            int64_t low = 0, high = n;
            while (low < high) {
                const int64_t middle = (low + high) / 2;
                if (m->keys[middle] < wanted)
                    low = middle + 1;
                else
                    high = middle;
            }
            const int found = low < n && m->keys[low] == wanted;
            count += found;
            if (m->table != NULL) m->table[k * n + i] = found ? m->order[low] : -1;
        }
        m->counts[k] = count;
    }
}
