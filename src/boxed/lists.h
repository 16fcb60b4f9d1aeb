// SPDX-License-Identifier: Apache-2.0
// Lists among the attributes of a boxed call, and arrays that it copies out.
#ifndef SPOPS_BOXED_LISTS_H
#define SPOPS_BOXED_LISTS_H

#include "call/boxed.h"
#include "spops/points.h"

// Attribute i, a list of at most n numbers, where one stands for all; `absent` for those left out.
spops_status spops_list_i32(const spops_boxed_call *b, int i, int n, int32_t absent, int32_t *to);
spops_status spops_list_f64(const spops_boxed_call *b, int i, int n, double absent, double *to);

// Copy n elements of 4 bytes to argument i, which is as long; on the stream. Absent: nothing.
spops_status spops_copy_array(spops_boxed_call *b, int i, const void *from, int64_t n);

// Arguments i, points, and i + 1, offsets.
spops_point_cloud spops_cloud_of(const spops_boxed_call *b, int i);

#endif
