// SPDX-License-Identifier: Apache-2.0
/* Folded parameters where the device is. */
#include "networks/parameters_upload.h"

#include <stdlib.h>

int folded_parameters_upload(const device *d, const folded_parameters *f, int taps,
                             spops_dtype dtype, void **weights, float **scale, float **shift)
{
    const size_t n = (size_t)taps * (size_t)f->in * (size_t)f->out;
    const size_t bytes = (size_t)f->out * sizeof(float), each = spops_dtype_bytes(dtype);
    void *narrow = malloc(n * each);
    int failed;

    *weights = device_alloc(d, n * each);
    *scale = (float *)device_alloc(d, bytes);
    *shift = (float *)device_alloc(d, bytes);
    failed = narrow == NULL || *weights == NULL || *scale == NULL || *shift == NULL ||
             device_convert(d, SPOPS_DTYPE_F32, f->w, dtype, narrow, n) ||
             device_upload(d, *weights, narrow, n * each) ||
             device_upload(d, *scale, f->scale, bytes) || device_upload(d, *shift, f->shift, bytes);
    free(narrow);
    return failed;
}
