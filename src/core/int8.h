// SPDX-License-Identifier: Apache-2.0
// Numbers as i8: rounded to nearest even, saturated, NaN as 0; without a branch, in the common subset of C
// and CUDA C++.
#ifndef SPOPS_CORE_INT8_H
#define SPOPS_CORE_INT8_H

#include "core/half.h"

#define SPOPS_I8_MAX 127.0f

SPOPS_HD int8_t spops_i8_of_float(float f)
{
    const float magic = 12582912.0f; // 1.5 * 2^23: added, it leaves f rounded in the last bits
    f = f == f ? f : 0.0f;
    f = f < -128.0f ? -128.0f : f;
    f = f > 127.0f ? 127.0f : f;
    return (int8_t)(int32_t)(spops_bits_of_float(f + magic) - spops_bits_of_float(magic));
}

#endif
