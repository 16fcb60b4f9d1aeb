// SPDX-License-Identifier: Apache-2.0
// Rows of a tuning, as callers give them.
#ifndef SPOPS_TUNING_CHOICES_H
#define SPOPS_TUNING_CHOICES_H

#include "spops/sparseconv.h"

// The rows are there and make sense; `name` is what the caller knows them by.
spops_status spops_sparseconv_check_choices(spops_context *ctx, const char *call, const char *name,
                                            const spops_conv_choice *rows, const char *num_name,
                                            int64_t num_rows);

#endif
