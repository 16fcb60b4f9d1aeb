// SPDX-License-Identifier: Apache-2.0
// Plans as bytes, once for all kinds that are saved:
//
//     magic (8 bytes) | version u32 | numbers | arrays of i32 | checksum u64 of everything before it
//
// A kind brings an image, a struct of its numbers and of addresses of its arrays in host memory, of at most
// SPOPS_FILE_IMAGE_BYTES, which begins as zeros, and what its spops_plan_file says. All numbers are little-endian.
#ifndef SPOPS_CORE_PLAN_FILE_H
#define SPOPS_CORE_PLAN_FILE_H

#include "core/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SPOPS_FILE_CHECKSUM_BYTES 8
#define SPOPS_FILE_IMAGE_BYTES    4096

// Bytes that are written (`to`), read (`from`) or, with neither, counted: one function lists what a
// file has, so that the three cannot disagree.
typedef struct spops_file {
    unsigned char *to;
    const unsigned char *from;
    size_t bytes, at;
    bool failed; // there was less to read; numbers after that are 0
} spops_file;

// n integers of `width` bytes.
void spops_file_numbers(spops_file *f, void *values, int64_t n, size_t width);

// The same of int32 in several places, n in each.
void spops_file_int32s(spops_file *f, int32_t *const *places, size_t num_places, int64_t n);

// XXH3, 64 bits, without a seed: the same on every processor.
uint64_t spops_file_checksum(const void *data, size_t bytes);

struct spops_plan_file {
    char magic[8];
    uint32_t version;
    // The plans that the image of a saved or loaded one is given; NULL: none are.
    spops_status (*stand)(spops_context *ctx, const char *call, const spops_plan *const *parents,
                          int32_t num_parents, void *image);
    // An image's numbers, in their order.
    void (*numbers)(spops_file *f, void *image);
    // How many int32 its arrays have, by its numbers; they lie at `at`, unless that is NULL.
    int64_t (*place)(void *image, int32_t *at);
    // Of a plan that is saved: its numbers; then its arrays, which have their places. Both wait.
    spops_status (*describe)(spops_context *ctx, const char *call, const spops_plan *plan,
                             void *image);
    spops_status (*fetch)(spops_context *ctx, const spops_plan *plan, void *image);
    // Of one that is loaded: whether numbers that were read can be a plan's; then the plan, once its
    // arrays are checked too. Waits. INVALID_ARGUMENT of either becomes CORRUPT_DATA.
    spops_status (*check)(spops_context *ctx, const char *call, void *image);
    spops_status (*make)(spops_context *ctx, const char *call, const void *image, void *out);
};

// How plans of a kind, which there is, are saved; NULL: they are not.
const spops_plan_file *spops_plan_file_of(spops_plan_kind kind);

// A number of an image is low to high: INVALID_ARGUMENT, by its name.
spops_status spops_file_check(spops_context *ctx, const char *call, const char *name, int64_t value,
                              int64_t low, int64_t high);

#ifdef __cplusplus
}
#endif

#endif
