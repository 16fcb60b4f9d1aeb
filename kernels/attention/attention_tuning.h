/* SPDX-License-Identifier: Apache-2.0 */
/* The tiles of attention: a row is what is compiled, and when it is taken. The first row that suits is,
   unless a call asks for one by its number. The numbers are 1 to the number of rows, in any order: a new
   row takes the next. Plain C. */
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_TUNING_H
#define SPOPS_KERNELS_ATTENTION_ATTENTION_TUNING_H

#include <stdbool.h>
#include <stdint.h>

/* Forward on sm_90 (attention_sm90.cuh), f16 and bf16, of one head dim:
   X(number, head dim, 1: taken where patches have 128 queries or less, warpgroups that attend, keys of a
     stage, stages, whether an item has two heads, which then follow each other in a row).
   Small patches: one warpgroup, so that two blocks share a multiprocessor, or two heads. */
#define SPOPS_ATTENTION_SM90_TILES(X)                                                              \
    X(1, 16, 0, 4, 64, 4, false)                                                                   \
    X(2, 32, 0, 4, 64, 4, false)                                                                   \
    X(3, 48, 1, 1, 64, 4, false)                                                                   \
    X(4, 48, 0, 4, 64, 4, false)                                                                   \
    X(30, 64, 1, 2, 64, 4, true)                                                                   \
    X(5, 64, 1, 1, 64, 4, false)                                                                   \
    X(6, 64, 0, 4, 64, 4, false)                                                                   \
    X(7, 96, 0, 2, 128, 2, false)                                                                  \
    X(8, 128, 0, 2, 128, 2, false)                                                                 \
    X(24, 256, 0, 2, 64, 2, false)

/* Forward by the matrix units of sm_80 (attention_sm80.cuh), of head dims up to `columns`; 4 bytes: f32
   as tf32: X(number, bytes of an element, columns). */
#define SPOPS_ATTENTION_SM80_TILES(X)                                                              \
    X(9, 2, 32)                                                                                    \
    X(10, 2, 64)                                                                                   \
    X(11, 2, 128)                                                                                  \
    X(12, 4, 64)                                                                                   \
    X(13, 4, 128)                                                                                  \
    X(25, 2, 256)                                                                                  \
    X(26, 4, 256)

/* Forward of f32 (attention_f32.cuh): X(number, columns). */
#define SPOPS_ATTENTION_F32_TILES(X)                                                               \
    X(14, 64)                                                                                      \
    X(15, 128)                                                                                     \
    X(27, 256)

/* Gradients on sm_90 (attention_backward_sm90.cuh), f16 and bf16, of head dims up to `columns`:
   X(number, columns, whether one pass makes gradients of keys and queries where both are wanted, stages, of
     the keys: streamed rows of a stage, own rows in registers, overlap, touch, of the queries: the same).
   One pass (attention_backward_fused_sm90.cuh, of 16 columns attention_backward_narrow_sm90.cuh) is of heads
   wider than half of `columns`, and is taken where `spops_attention_case.fused` is true. The rest of its
   row is for calls that want gradients of one side.
   H200, bf16, 122,880 rows, patches of 1,024, ms: 64 columns, keys, own rows in shared memory 1.29, in
   registers 1.10; queries, stages of 64 rows 0.91, of 128 rows 0.79. 128 columns, queries, shared memory
   0.88, registers 0.75; keys do not fit. */
#define SPOPS_ATTENTION_BACKWARD_SM90_TILES(X)                                                     \
    X(33, 16, true, 4, 64, true, true, false, 128, true, false, false)                             \
    X(16, 16, false, 4, 64, true, true, false, 128, true, false, false)                            \
    X(17, 32, false, 4, 64, true, true, false, 128, true, false, false)                            \
    X(31, 64, true, 4, 64, true, true, true, 128, true, false, false)                              \
    X(18, 64, false, 4, 64, true, true, true, 128, true, false, false)                             \
    X(32, 128, true, 4, 64, false, false, false, 64, true, false, false)                           \
    X(19, 128, false, 4, 64, false, false, false, 64, true, false, false)

/* Where one pass is taken: patches of so many keys in the mean, and as many tiles of keys, times heads, as
   there are multiprocessors. H100, bf16, ms, beside a pass each: 4 x 1,024 rows, 8 x 64 0.101, 0.102; 480 x
   256 0.873, 0.824; 960 x 128 0.769, 0.710; 1 x 1,024, 4 x 128 0.086, 0.086. */
#define SPOPS_ATTENTION_FUSED_KEYS 512

/* Heads of 16 columns have one pass of their own (attention_backward_narrow_sm90.cuh), whose blocks have a
   patch and a head. It is taken where patches have SPOPS_ATTENTION_NARROW_KEYS keys or more in the mean and
   half as many queries or more, SPOPS_ATTENTION_NARROW_MOST of either at most, and patches times heads are as
   many as there are multiprocessors: plans that are refilled have room for a patch more, and for the keys
   that the last patch borrows. H100, bf16, ms, beside a pass each: 94,444 rows, 4 heads 0.347, 0.595; 9,483
   rows, 32 heads 0.316, 0.480. */
#define SPOPS_ATTENTION_NARROW_COLUMNS 16
#define SPOPS_ATTENTION_NARROW_KEYS    896
#define SPOPS_ATTENTION_NARROW_MOST    1024

/* Gradients by the matrix units of sm_80 (attention_backward_sm80.cuh), of every dtype: X(number,
   columns). */
#define SPOPS_ATTENTION_BACKWARD_SM80_TILES(X)                                                     \
    X(20, 64)                                                                                      \
    X(21, 128)                                                                                     \
    X(28, 256)

/* Gradients of f32 (attention_backward_f32.cuh): X(number, columns). */
#define SPOPS_ATTENTION_BACKWARD_F32_TILES(X)                                                      \
    X(22, 64)                                                                                      \
    X(23, 128)                                                                                     \
    X(29, 256)

typedef enum spops_attention_kernel {
    SPOPS_ATTENTION_SM90,
    SPOPS_ATTENTION_SM80,
    SPOPS_ATTENTION_F32
} spops_attention_kernel;

typedef struct spops_attention_row {
    int32_t number;
    spops_attention_kernel kernel;
    bool backward;
    int32_t bytes;   /* of an element; 0: any */
    int32_t columns; /* of a head, at most; forward on sm_90 these alone */
    bool small;
    bool pair;  /* two heads at a time */
    bool fused; /* gradients of keys and queries in one pass */
} spops_attention_row;

static const spops_attention_row spops_attention_rows[] = {
#define SPOPS_TILE(number, columns, small, groups, keys, stages, pair)                             \
    {number, SPOPS_ATTENTION_SM90, false, 2, columns, small, pair, false},
    SPOPS_ATTENTION_SM90_TILES(SPOPS_TILE)
#undef SPOPS_TILE
#define SPOPS_TILE(number, bytes, columns)                                                         \
    {number, SPOPS_ATTENTION_SM80, false, bytes, columns, false, false, false},
        SPOPS_ATTENTION_SM80_TILES(SPOPS_TILE)
#undef SPOPS_TILE
#define SPOPS_TILE(number, columns)                                                                \
    {number, SPOPS_ATTENTION_F32, false, 4, columns, false, false, false},
            SPOPS_ATTENTION_F32_TILES(SPOPS_TILE)
#undef SPOPS_TILE
#define SPOPS_TILE(number, columns, fused, ...)                                                    \
    {number, SPOPS_ATTENTION_SM90, true, 2, columns, false, false, fused},
                SPOPS_ATTENTION_BACKWARD_SM90_TILES(SPOPS_TILE)
#undef SPOPS_TILE
#define SPOPS_TILE(number, columns)                                                                \
    {number, SPOPS_ATTENTION_SM80, true, 0, columns, false, false, false},
                    SPOPS_ATTENTION_BACKWARD_SM80_TILES(SPOPS_TILE)
#undef SPOPS_TILE
#define SPOPS_TILE(number, columns)                                                                \
    {number, SPOPS_ATTENTION_F32, true, 4, columns, false, false, false},
                        SPOPS_ATTENTION_BACKWARD_F32_TILES(SPOPS_TILE)
#undef SPOPS_TILE
};

#define SPOPS_ATTENTION_NUM_TILES                                                                  \
    ((int32_t)(sizeof spops_attention_rows / sizeof spops_attention_rows[0]))

/* NULL: there is no such tile. */
static inline const spops_attention_row *spops_attention_row_of(int32_t number)
{
    for (int32_t i = 0; i < SPOPS_ATTENTION_NUM_TILES; ++i)
        if (spops_attention_rows[i].number == number) return &spops_attention_rows[i];
    return 0;
}

/* What a tile is chosen by. */
typedef struct spops_attention_case {
    bool backward;
    bool sm90; /* the device has its kernels, and they take such rows */
    bool sm80; /* the device has these; of f32 also: products in tf32 are wanted */
    bool small;
    bool pairs; /* heads of q, k and v are as many, more than one, and follow each other */
    bool fused; /* one pass over keys is faster than one over keys and one over queries */
    int32_t bytes, dim;
} spops_attention_case;

/* Whether a row takes such rows, though another one may be faster. */
static inline bool spops_attention_suits(const spops_attention_case *at,
                                         const spops_attention_row *row)
{
    if (row->backward != at->backward || (row->bytes != 0 && row->bytes != at->bytes)) return false;
    if (row->pair && !at->pairs) return false;
    if (row->fused && at->dim <= row->columns / 2) return false;
    switch (row->kernel) {
    case SPOPS_ATTENTION_SM90:
        return at->sm90 && (row->backward ? at->dim % 8 == 0 && at->dim <= row->columns
                                          : at->dim == row->columns);
    case SPOPS_ATTENTION_SM80: return at->sm80 && at->dim <= row->columns;
    default: return at->dim <= row->columns;
    }
}

/* The tile that is asked for, where it is of this direction, else the table's; 0: it does not suit. */
static inline int32_t spops_attention_tile(const spops_attention_case *at, int32_t asked)
{
    const spops_attention_row *row = spops_attention_row_of(asked);
    if (asked != 0 && !row) return 0;
    if (row && row->backward == at->backward) return spops_attention_suits(at, row) ? asked : 0;
    for (int32_t i = 0; i < SPOPS_ATTENTION_NUM_TILES; ++i) {
        row = &spops_attention_rows[i];
        if (spops_attention_suits(at, row) && (at->small || !row->small) &&
            (at->fused || !row->fused))
            return row->number;
    }
    return 0;
}

#endif
