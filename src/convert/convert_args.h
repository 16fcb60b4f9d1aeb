// SPDX-License-Identifier: Apache-2.0
#ifndef SPOPS_CONVERT_CONVERT_ARGS_H
#define SPOPS_CONVERT_CONVERT_ARGS_H

#include "spops/types.h"

// Of equal shapes, both floats or both integers. Rows without gaps in both come as one row.
typedef struct spops_convert_args {
    spops_matrix x, out;
} spops_convert_args;

#endif
