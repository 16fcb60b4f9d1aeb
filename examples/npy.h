// SPDX-License-Identifier: Apache-2.0
/* For the examples: points from an .npy file. */
#ifndef NPY_H
#define NPY_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The rows of a little-endian f32 .npy file, [rows, cols]; NULL where it is another. */
static inline float *read_npy(const char *path, int64_t *rows, int64_t *cols)
{
    char header[4096] = {0};
    FILE *f = fopen(path, "rb");
    const char *shape;
    float *values = NULL;
    long long n = 0, m = 0;
    if (f == NULL) return NULL;
    if (fread(header, 1, 10, f) == 10 && memcmp(header, "\x93NUMPY\x01", 7) == 0) {
        const size_t length = (unsigned char)header[8] + 256u * (unsigned char)header[9];
        if (length < sizeof header && fread(header, 1, length, f) == length &&
            strstr(header, "'<f4'") && (shape = strstr(header, "'shape': (")) != NULL &&
            sscanf(shape + 10, "%lld, %lld", &n, &m) == 2 && n > 0 && m >= 3 && m < 1000 &&
            (values = malloc((size_t)(n * m) * sizeof *values)) != NULL &&
            fread(values, sizeof *values, (size_t)(n * m), f) != (size_t)(n * m))
            free(values), values = NULL;
    }
    fclose(f);
    *rows = n, *cols = m;
    return values;
}

#endif
