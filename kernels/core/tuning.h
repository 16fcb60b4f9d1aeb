// SPDX-License-Identifier: Apache-2.0
// What rows of the tuning tables (kernels/X/X_tuning.h) have in common: for which device and rows a
// measurement counts. Plain C without a toolkit, so that choices are tested where there is none.
#ifndef SPOPS_KERNELS_CORE_TUNING_H
#define SPOPS_KERNELS_CORE_TUNING_H

#include "core/dtypes.h"
#include "spops/regime.h"

// What a choice is made for.
typedef struct spops_tuning_case {
    int32_t compute_capability; // 90 for sm_90
    spops_regime regime;
    spops_dtype dtype; // of the rows that are read
    int64_t cols;
} spops_tuning_case;

#define SPOPS_ANY_REGIME (-1)

// The first row that matches is taken; the last of each table matches everything.
typedef struct spops_tuning_key {
    int32_t min_compute_capability;
    int32_t regime;   // spops_regime, or SPOPS_ANY_REGIME
    uint32_t dtypes;  // bits 1 << dtype
    int64_t min_cols; // of a row
} spops_tuning_key;

#define SPOPS_ANY_DTYPE UINT32_MAX
#define SPOPS_ANY_CASE                                                                             \
    {                                                                                              \
        0, SPOPS_ANY_REGIME, SPOPS_ANY_DTYPE, 0                                                    \
    }

static inline bool spops_tuning_matches(const spops_tuning_key *key, const spops_tuning_case *at)
{
    return at->compute_capability >= key->min_compute_capability &&
           (key->regime == SPOPS_ANY_REGIME || key->regime == (int32_t)at->regime) &&
           spops_dtype_in(at->dtype, key->dtypes) && at->cols >= key->min_cols;
}

#endif
