// SPDX-License-Identifier: Apache-2.0
/* A block in FP64, as plainly as can be, with the lists of a plan of patches. */
#ifndef FLASH3D_REFERENCE_H
#define FLASH3D_REFERENCE_H

#include "flash3d/transformer.h"

/* x [rows, channels] becomes what the block makes of it; coords [rows, 3]. 0 for success. */
int reference_block(const device *d, const block *b, const spops_patches *patches, int64_t rows,
                    const float *coords, double *x);

/* out [rows, w->cols] = x [rows, w->rows] * w */
void reference_product(const double *x, int64_t rows, const parameter *w, double *out);

/* Each row normalised over its columns. */
void reference_norm(const double *x, int64_t rows, const parameter *gamma, const parameter *beta,
                    double *out);

/* Rows of f32 or bf16 as doubles. */
double *reference_download(const device *d, spops_matrix m);

#endif
