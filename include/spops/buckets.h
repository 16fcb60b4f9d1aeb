/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buckets: rows of a cloud in groups of at most S that lie near each other, without a sort. A stack
 * of spatial hashes says which bucket a row would like; every row gets a place.
 *
 * The rule. A row's cell is v[a] = floor((p[a] - origin_m[a]) / size_m[a]) in f64, taken to the
 * nearest of 0 to 2^bits - 1. Each sample has K buckets of its own, and h below is one of 0 to
 * K - 1. Let x = v[0] ^ v[1] ^ v[2], and z the Z-order code of v, whose highest bit is axis 0's:
 *
 *     XOR_MOD     h = x mod K             XOR_DIV     h = floor(x K / 2^bits)
 *     ZORDER_MOD  h = z mod K             ZORDER_DIV  h = floor(z K / 2^(3 bits))
 *
 * In round r all rows without a place, in ascending order, ask for the next place of the bucket that
 * the round's hash names; S places are given, and who comes after them waits for the next round.
 * Rows that no round has placed fill what is free, in ascending order, from bucket 0 on. So the
 * result depends on the cloud and the options alone: it is the same on every run and backend.
 */
#ifndef SPOPS_BUCKETS_H
#define SPOPS_BUCKETS_H

#include "spops/points.h"

SPOPS_EXTERN_C_BEGIN

/** The rows of a cloud in buckets. */
typedef struct spops_buckets spops_buckets;

/** Hashes of cells; the formulas are above. */
typedef enum spops_bucket_hash {
    SPOPS_BUCKET_HASH_XOR_MOD = 0,
    SPOPS_BUCKET_HASH_XOR_DIV = 1,
    SPOPS_BUCKET_HASH_ZORDER_MOD = 2,
    SPOPS_BUCKET_HASH_ZORDER_DIV = 3
} spops_bucket_hash;

/** The most rounds of hashes. */
#define SPOPS_MAX_BUCKET_ROUNDS 8
/** The most buckets of a sample. */
#define SPOPS_MAX_BUCKETS 16384
/** The most rows of a bucket. */
#define SPOPS_MAX_BUCKET_ROWS 32768
/** The most bits of a cell along an axis. */
#define SPOPS_MAX_BUCKET_BITS 16

/** Choices of buckets. */
typedef struct spops_buckets_options {
    size_t struct_size;  /* sizeof(spops_buckets_options) */
    int32_t bucket_rows; /* S: 1 to SPOPS_MAX_BUCKET_ROWS */
    int32_t num_buckets; /* K, of every sample, to SPOPS_MAX_BUCKETS; 0: as few as hold its rows */
    int32_t num_rounds;  /* 0 (one) to SPOPS_MAX_BUCKET_ROUNDS */
    int32_t bits;        /* of a cell along an axis: 1 to SPOPS_MAX_BUCKET_BITS; 0: 10 */
    spops_bucket_hash hashes[SPOPS_MAX_BUCKET_ROUNDS]; /* of the rounds */
    /* Of the rounds: added to v before it is clamped to a cell, so that a row that is too
       late asks next door. */
    int32_t steps[SPOPS_MAX_BUCKET_ROUNDS][3];
    double size_m[3]; /* of a cell; 0: 1 */
    /* lower corner of cell 0; what lies below it is clamped to cell 0. The lower corner of the cloud
       is a good one */
    double origin_m[3];
    spops_plan_memory *memory; /* of reserve: where the buckets live; NULL: the library's own */
} spops_buckets_options;

SPOPS_DEFINE_DEFAULT(spops_buckets_options)

/**
 * Put the rows of a cloud into buckets.
 *
 * cloud     points [rows, 3], f32 (m) or i32 (cells of a grid), any row stride.
 * options   bucket_rows is needed.
 * out       The buckets; NULL after a failure.
 *
 * Refused, and named: coordinates that are not finite, offsets that do not ascend from 0 to the
 * number of rows, samples of more rows than K S.
 *
 * Memory    The arrays where ctx runs; read during the call.
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Numerics  The same buckets and places on every backend and run.
 * Errors    INVALID_ARGUMENT, OUT_OF_MEMORY, NOT_SUPPORTED, CUDA.
 * Threads   One thread at a time per ctx. ctx must outlive the buckets.
 * Source    Flash3D, Algorithms 1 and 2 and section 9.1 (hashes, balancing, counters of blocks). That
 *           rows take places in their order, round by round, instead of racing for them, is ours, and
 *           so is dividing the range of a hash evenly: docs/buckets.md.
 */
SPOPS_API spops_status spops_buckets_create(spops_context *ctx, const spops_point_cloud *cloud,
                                            const spops_buckets_options *options,
                                            spops_buckets **out);

/**
 * Buckets into capacities, filled by spops_buckets_update as often as wanted. Until then there are
 * none.
 *
 * max_rows     0 to INT32_MAX - 1.
 * max_samples  1 to INT32_MAX - 1.
 *
 * Memory    All that a set needs is allocated here.
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Options, Errors and Threads as spops_buckets_create.
 */
SPOPS_API spops_status spops_buckets_reserve(spops_context *ctx, int64_t max_rows,
                                             int64_t max_samples,
                                             const spops_buckets_options *options,
                                             spops_buckets **out);

/**
 * Refill buckets made by spops_buckets_reserve.
 *
 * cloud     points.rows is max_rows; with offsets, the last one says how many rows there are. At most
 *           max_samples.
 *
 * A coordinate that is not finite is in cell 0, and its row is counted. Offsets that create
 * refuses, and samples of more rows than K S, leave no buckets, and are told by the info.
 *
 * Memory    Where ctx runs; read when the stream gets there.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Errors    INVALID_ARGUMENT (not such buckets, NULL, shapes), CUDA.
 * Threads   One thread at a time per ctx and per buckets.
 */
SPOPS_API spops_status spops_buckets_update(spops_context *ctx, spops_buckets *buckets,
                                            const spops_point_cloud *cloud);

/** What buckets hold. Of those made by reserve it is read from the device. */
typedef struct spops_buckets_info {
    size_t struct_size; /* set by the caller */
    int64_t num_rows, max_rows;
    int64_t num_samples, max_samples;
    int64_t num_buckets, max_buckets;
    int32_t bucket_rows;
    int32_t num_rounds;
    int64_t num_placed[SPOPS_MAX_BUCKET_ROUNDS]; /* rows that got their places in a round */
    int64_t num_late;                            /* rows that filled what was free */
    int64_t num_not_finite;
    int32_t bad_offsets; /* 1: offsets of the last set that create refuses */
    int32_t overflow;    /* 1: it had a sample of more rows than K S */
} spops_buckets_info;

SPOPS_DEFINE_DEFAULT(spops_buckets_info)

/**
 * Fill info; waits for ctx's stream.
 *
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED (the stream is being captured), CUDA;
 *           CAPACITY_EXCEEDED, with info filled, if overflow is 1.
 * Threads   One thread at a time per ctx; buckets may be shared.
 */
SPOPS_API spops_status spops_buckets_get_info_sync(spops_context *ctx, const spops_buckets *buckets,
                                                   spops_buckets_info *info);

/** Arrays of buckets where their context runs; valid while they live. */
typedef struct spops_buckets_view {
    size_t struct_size; /* set by the caller */
    int64_t max_rows, max_samples, max_buckets;
    const int32_t *num_rows, *num_buckets; /* [1] in use */
    const int32_t *offsets; /* [max_buckets + 1]: bucket b has places offsets[b] .. offsets[b + 1]
                                      - 1; after the last bucket in use all are the number of rows */
    const int32_t *sample_buckets; /* [max_samples + 1]: the first bucket of a sample */
    const int32_t *rows;        /* [max_rows] the row at a place: a permutation, samples in order */
    const int32_t *places;      /* [max_rows] the place of a row */
    const int32_t *row_buckets; /* [max_rows] the bucket of a row */
} spops_buckets_view;

SPOPS_DEFINE_DEFAULT(spops_buckets_view)

/**
 * Fill view.
 *
 * Errors    INVALID_ARGUMENT (NULL, struct_size).
 * Threads   One thread at a time per ctx; buckets may be shared.
 */
SPOPS_API spops_status spops_buckets_get_view(spops_context *ctx, const spops_buckets *buckets,
                                              spops_buckets_view *view);

/** Free buckets; NULL is fine. Waits for their context; nothing else may be using them. */
static inline void spops_buckets_destroy(spops_buckets *buckets)
{
    spops_plan_destroy((spops_plan *)buckets);
}

SPOPS_EXTERN_C_END

#endif
