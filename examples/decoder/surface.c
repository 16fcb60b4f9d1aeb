// SPDX-License-Identifier: Apache-2.0
/* Cells on the surface of a gyroid. */
#include "decoder/surface.h"

#include <math.h>
#include <stdlib.h>

int surface_has(int size, const int32_t x[3])
{
    const double cell = 6.283185307179586 / size;
    double s[3], c[3], value, slope = 0;

    for (int a = 0; a < 3; ++a) {
        s[a] = sin((x[a] + 0.5) * cell);
        c[a] = cos((x[a] + 0.5) * cell);
    }
    value = s[0] * c[1] + s[1] * c[2] + s[2] * c[0];
    for (int a = 0; a < 3; ++a) { /* the derivative along a: s_a c_b and s_c c_a have x_a */
        const double d = c[a] * c[(a + 1) % 3] - s[(a + 2) % 3] * s[a];
        slope += d * d;
    }
    return fabs(value) < 0.75 * cell * sqrt(slope);
}

/* Every third bit of `code`, from bit a on. */
static int32_t coordinate(int64_t code, int a)
{
    int32_t x = 0;
    for (int bit = 0; bit < 20; ++bit)
        x |= (int32_t)(code >> (3 * bit + a) & 1) << bit;
    return x;
}

int32_t *surface_rows(int size, int64_t *num_rows)
{
    int64_t side = 1, capacity = 1024, n = 0;
    int32_t *rows = (int32_t *)malloc((size_t)capacity * 4 * sizeof *rows);

    while (side < size)
        side *= 2;
    for (int64_t code = 0; code < side * side * side && rows != NULL; ++code) {
        const int32_t x[3] = {coordinate(code, 2), coordinate(code, 1), coordinate(code, 0)};
        if (x[0] >= size || x[1] >= size || x[2] >= size || !surface_has(size, x)) continue;
        if (n == capacity) {
            int32_t *more = (int32_t *)realloc(rows, (size_t)(capacity *= 2) * 4 * sizeof *rows);
            if (more == NULL) {
                free(rows);
                return NULL;
            }
            rows = more;
        }
        rows[4 * n] = 0;
        for (int a = 0; a < 3; ++a)
            rows[4 * n + a + 1] = x[a];
        ++n;
    }
    *num_rows = n;
    return rows;
}

void child_of(const int32_t *row, int child, int32_t *out)
{
    out[0] = row[0];
    for (int a = 0; a < 3; ++a)
        out[a + 1] = 2 * row[a + 1] + (child >> (2 - a) & 1);
}

void surface_children(int size, const int32_t *row, uint8_t keep[8])
{
    for (int child = 0; child < 8; ++child) {
        int32_t x[4];
        child_of(row, child, x);
        keep[child] = (uint8_t)surface_has(2 * size, x + 1);
    }
}
