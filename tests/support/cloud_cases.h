// SPDX-License-Identifier: Apache-2.0
// Files of points, written by the tests themselves: the same points in every format.
#ifndef SPOPS_TESTS_SUPPORT_CLOUD_CASES_H
#define SPOPS_TESTS_SUPPORT_CLOUD_CASES_H

#include <stddef.h>
#include <stdint.h>

typedef enum cloud_case {
    CLOUD_CASE_BIN,
    CLOUD_CASE_PCD_ASCII,
    CLOUD_CASE_PCD_BINARY,
    CLOUD_CASE_PCD_COMPRESSED,
    CLOUD_CASE_PLY_ASCII,
    CLOUD_CASE_PLY_LITTLE,
    CLOUD_CASE_PLY_BIG,
    CLOUD_CASE_LAS_1_2,
    CLOUD_CASE_LAS_1_4,
    NUM_CLOUD_CASES
} cloud_case;

// What a file of it is called.
const char *cloud_case_name(cloud_case what);

// points [n][4]: x y z intensity, multiples of 1/64 below 512; as bytes, with a 0 after them. Free it.
unsigned char *cloud_case_bytes(cloud_case what, const float *points, int64_t n, size_t *bytes);

#endif
