// SPDX-License-Identifier: Apache-2.0
/* The encoder once more, in FP64 and from the points on, to check the dense features. */
#ifndef CENTERPOINT_REFERENCE_H
#define CENTERPOINT_REFERENCE_H

#include "centerpoint/encoder.h"

/* Compare the dense features of frame f, which was run last, some thousand points at most. Sets the
   largest difference over the largest element, and how many elements are not 0. 0 for success. */
int reference_compare(const encoder *e, const frame *f, double *difference, int64_t *num_nonzero);

#endif
