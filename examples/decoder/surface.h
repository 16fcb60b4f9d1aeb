// SPDX-License-Identifier: Apache-2.0
/* Sets of a decoder without a trained network: cells on the surface of a gyroid. */
#ifndef DECODER_SURFACE_H
#define DECODER_SURFACE_H

#include <stdint.h>

/* 1 where cell x of a grid of size^3 is nearer to the surface than 3/4 of a cell:
   sin x cos y + sin y cos z + sin z cos x = 0, one period along each side of the grid. */
int surface_has(int size, const int32_t x[3]);

/* All such cells as rows (0, x, y, z), along a Z-order curve; the caller frees them. NULL: no memory. */
int32_t *surface_rows(int size, int64_t *num_rows);

/* Which of a row's eight children in a grid of twice the size are on the surface. The last axis is the
   fastest of a child's number. */
void surface_children(int size, const int32_t *row, uint8_t keep[8]);

/* Child number `child` of a row. */
void child_of(const int32_t *row, int child, int32_t *out);

#endif
