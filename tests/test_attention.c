// SPDX-License-Identifier: Apache-2.0
// Attention over lists of rows against FP64, forward and backward: patches around the sizes of tiles,
// every head dim, layouts, rotary positions, biases, norms, fewer heads of keys, keys of another matrix,
// lists that share keys; large logits, rows of
// zeros, infinities; a real scan; what is refused.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "kernels/attention/attention_tuning.h"
#include "spops/attention.h"
#include "spops/patches.h"
#include "support/device.h"
#include "tests/ref/ref_attention.h"
#include "tests/support/coord_cases.h"
#include "tests/support/operator.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

enum { MAX_SIZES = 12 };

typedef enum list_kind {
    LISTS_SAME,  // keys are the queries; some rows in no patch
    LISTS_TAIL,  // the last patch borrows keys from the one before
    LISTS_CROSS, // keys are any rows, also twice; patches without queries, without keys, with one
    LISTS_LONG,  // the same, of hundreds of keys
    LISTS_SCAN   // as LISTS_TAIL, with rows in their order
} list_kind;

typedef enum layout {
    SEPARATE,    // matrices of their own, with padding
    PACKED,      // [rows, 3, heads, dim]
    INTERLEAVED, // [rows, heads, 3, dim]
} layout;

typedef enum rotary_kind { ROTARY_NONE, ROTARY_I32, ROTARY_F32 } rotary_kind;

typedef enum row_kind {
    ROWS_RANDOM,
    ROWS_STEEP,    // logits of about +-1e4
    ROWS_ZEROS,    // many rows of zeros, all of some patches
    ROWS_INFINITE, // logits of both infinities, infinite values
    ROWS_EQUAL,    // every row the same, at one place
    ROWS_LATE      // logits of -infinity, and then of about 7 and 10 times log(2)
} row_kind;

typedef enum norm_kind {
    NORM_NONE,
    NORM_EACH, // weights of every head
    NORM_ONE,  // of all heads
    NORM_Q     // of every head, of q alone
} norm_kind;

typedef struct attention_shape {
    const char *name;
    int64_t sizes[MAX_SIZES]; // of patches; ends with -1
    int32_t heads, dim;
    list_kind lists;
    layout layout;
    rotary_kind rotary;
    int32_t axis_dim, range; // of rotary; of the table, with -1 for none
    row_kind rows;
    int32_t kv_heads; // 0: heads
    int64_t key_rows; // 0: those of the queries
    norm_kind norm;
} attention_shape;
#define PLAIN_HEADS 0, 0, NORM_NONE

#define TILE_SIZES                                                                                 \
    {                                                                                              \
        1, 15, 16, 17, 63, 64, 65, 127, 128, 129, -1                                               \
    }
#define TALL_SIZES                                                                                 \
    {                                                                                              \
        129, 1, 0, 200, -1                                                                         \
    }
#define ORDER_SIZES                                                                                \
    {                                                                                              \
        330, 64, 40, -1                                                                            \
    }
#define SOME_SIZES                                                                                 \
    {                                                                                              \
        65, 1, 0, 17, 70, -1                                                                       \
    }

static const attention_shape shapes[] = {
    {"around tiles", TILE_SIZES, 1, 32, LISTS_SAME, SEPARATE, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"dim 16", SOME_SIZES, 3, 16, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM, PLAIN_HEADS},
    {"dim 18", SOME_SIZES, 2, 18, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM, PLAIN_HEADS},
    {"dim 24", SOME_SIZES, 2, 24, LISTS_SAME, SEPARATE, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"dim 48", SOME_SIZES, 2, 48, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM, PLAIN_HEADS},
    {"dim 64", SOME_SIZES, 2, 64, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM, PLAIN_HEADS},
    {"dim 96", SOME_SIZES, 1, 96, LISTS_SAME, SEPARATE, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"dim 128", SOME_SIZES, 1, 128, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"dim 1",
     {3, 33, -1},
     2,
     1,
     LISTS_SAME,
     SEPARATE,
     ROTARY_NONE,
     0,
     -1,
     ROWS_RANDOM,
     PLAIN_HEADS},
    {"dim 7",
     {3, 33, -1},
     2,
     7,
     LISTS_SAME,
     SEPARATE,
     ROTARY_NONE,
     0,
     -1,
     ROWS_RANDOM,
     PLAIN_HEADS},
    {"dim 100",
     {3, 67, -1},
     1,
     100,
     LISTS_SAME,
     SEPARATE,
     ROTARY_NONE,
     0,
     -1,
     ROWS_RANDOM,
     PLAIN_HEADS},
    {"interleaved", SOME_SIZES, 3, 16, LISTS_SAME, INTERLEAVED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"borrowed tail",
     {64, 64, 20, -1},
     2,
     32,
     LISTS_TAIL,
     PACKED,
     ROTARY_NONE,
     0,
     -1,
     ROWS_RANDOM,
     PLAIN_HEADS},
    {"cross",
     {40, 1, 0, 70, 5, -1},
     2,
     24,
     LISTS_CROSS,
     SEPARATE,
     ROTARY_NONE,
     0,
     -1,
     ROWS_RANDOM,
     PLAIN_HEADS},
    {"cross 64",
     {40, 1, 0, 130, 5, -1},
     1,
     64,
     LISTS_CROSS,
     PACKED,
     ROTARY_NONE,
     0,
     -1,
     ROWS_RANDOM,
     PLAIN_HEADS},
    {"steep",
     {65, 130, -1},
     1,
     32,
     LISTS_SAME,
     SEPARATE,
     ROTARY_NONE,
     0,
     -1,
     ROWS_STEEP,
     PLAIN_HEADS},
    {"zeros",
     {65, 30, -1},
     2,
     16,
     LISTS_SAME,
     SEPARATE,
     ROTARY_NONE,
     0,
     -1,
     ROWS_ZEROS,
     PLAIN_HEADS},
    {"infinite",
     {70, 30, 20, -1},
     1,
     16,
     LISTS_SAME,
     SEPARATE,
     ROTARY_NONE,
     0,
     -1,
     ROWS_INFINITE,
     PLAIN_HEADS},
    {"one voxel", {300, -1}, 1, 24, LISTS_SAME, PACKED, ROTARY_I32, 0, -1, ROWS_EQUAL, PLAIN_HEADS},
    {"rotary 18", SOME_SIZES, 2, 18, LISTS_SAME, PACKED, ROTARY_I32, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"rotary 48", SOME_SIZES, 2, 48, LISTS_CROSS, PACKED, ROTARY_F32, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"rotary 20 of 64", SOME_SIZES, 1, 64, LISTS_SAME, PACKED, ROTARY_I32, 20, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"rotary 96",
     {70, -1},
     1,
     96,
     LISTS_TAIL,
     INTERLEAVED,
     ROTARY_F32,
     0,
     -1,
     ROWS_RANDOM,
     PLAIN_HEADS},
    {"bias", SOME_SIZES, 3, 32, LISTS_SAME, PACKED, ROTARY_NONE, 0, 5, ROWS_RANDOM, PLAIN_HEADS},
    {"bias, range 0",
     {20, -1},
     1,
     16,
     LISTS_CROSS,
     PACKED,
     ROTARY_NONE,
     0,
     0,
     ROWS_RANDOM,
     PLAIN_HEADS},
    {"bias, rotary", SOME_SIZES, 2, 24, LISTS_CROSS, PACKED, ROTARY_I32, 0, 30, ROWS_RANDOM,
     PLAIN_HEADS},
    {"no patches", {-1}, 2, 16, LISTS_SAME, PACKED, ROTARY_NONE, 0, 3, ROWS_RANDOM, PLAIN_HEADS},
};
enum { NUM_SHAPES = sizeof shapes / sizeof *shapes };

// Keys of another matrix, fewer heads of them, more columns, norms: one after the other, and together.
#define CROSS_SIZES                                                                                \
    {                                                                                              \
        40, 1, 0, 130, 5, -1                                                                       \
    }
static const attention_shape wide_shapes[] = {
    {"two heads to one", SOME_SIZES, 4, 16, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM, 2,
     0, NORM_NONE},
    {"three heads to one", SOME_SIZES, 6, 64, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     2, 0, NORM_NONE},
    {"all heads to one", SOME_SIZES, 3, 128, LISTS_TAIL, SEPARATE, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     1, 0, NORM_NONE},
    {"heads to one, turned", SOME_SIZES, 4, 18, LISTS_CROSS, PACKED, ROTARY_I32, 0, 7, ROWS_RANDOM,
     2, 0, NORM_NONE},
    {"few keys", CROSS_SIZES, 2, 64, LISTS_CROSS, SEPARATE, ROTARY_NONE, 0, -1, ROWS_RANDOM, 0, 70,
     NORM_NONE},
    {"many keys", CROSS_SIZES, 1, 48, LISTS_CROSS, SEPARATE, ROTARY_I32, 0, -1, ROWS_RANDOM, 0,
     1000, NORM_NONE},
    {"keys apart, bias", CROSS_SIZES, 4, 24, LISTS_CROSS, SEPARATE, ROTARY_I32, 4, 9, ROWS_RANDOM,
     2, 300, NORM_NONE},
    {"3 keys apart",
     {200, 0, 3, -1},
     1,
     7,
     LISTS_CROSS,
     SEPARATE,
     ROTARY_NONE,
     0,
     -1,
     ROWS_RANDOM,
     0,
     3,
     NORM_NONE},
    {"dim 129",
     {3, 67, -1},
     2,
     129,
     LISTS_SAME,
     SEPARATE,
     ROTARY_NONE,
     0,
     -1,
     ROWS_RANDOM,
     PLAIN_HEADS},
    {"dim 192", SOME_SIZES, 2, 192, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"dim 200, bias", SOME_SIZES, 1, 200, LISTS_TAIL, PACKED, ROTARY_NONE, 0, 3, ROWS_RANDOM,
     PLAIN_HEADS},
    {"dim 256", SOME_SIZES, 1, 256, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"dim 252, turned", SOME_SIZES, 2, 252, LISTS_CROSS, SEPARATE, ROTARY_F32, 0, -1, ROWS_RANDOM,
     1, 0, NORM_NONE},
    {"norm", SOME_SIZES, 3, 16, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM, 0, 0,
     NORM_EACH},
    {"norm of zeros",
     {65, 30, -1},
     2,
     32,
     LISTS_SAME,
     SEPARATE,
     ROTARY_NONE,
     0,
     -1,
     ROWS_ZEROS,
     0,
     0,
     NORM_ONE},
    {"norm of q", SOME_SIZES, 2, 40, LISTS_TAIL, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM, 0, 0,
     NORM_Q},
    {"norm, turned", SOME_SIZES, 2, 96, LISTS_SAME, PACKED, ROTARY_I32, 0, -1, ROWS_RANDOM, 0, 0,
     NORM_EACH},
    {"norm, turned, 20 of 64", SOME_SIZES, 2, 64, LISTS_CROSS, INTERLEAVED, ROTARY_I32, 20, 4,
     ROWS_RANDOM, 0, 0, NORM_ONE},
    {"all of it", CROSS_SIZES, 4, 128, LISTS_CROSS, SEPARATE, ROTARY_I32, 42, 5, ROWS_RANDOM, 2,
     150, NORM_EACH},
    {"all of it, 256", CROSS_SIZES, 2, 256, LISTS_CROSS, SEPARATE, ROTARY_F32, 64, -1, ROWS_RANDOM,
     1, 150, NORM_ONE},
    {"norm, dim 1",
     {3, 33, -1},
     2,
     1,
     LISTS_SAME,
     SEPARATE,
     ROTARY_NONE,
     0,
     -1,
     ROWS_RANDOM,
     0,
     0,
     NORM_EACH},
};
enum { NUM_WIDE_SHAPES = sizeof wide_shapes / sizeof *wide_shapes };

// On both sides of 1,024, and more stages than kernels have; once, since they take long.
static const attention_shape large_shapes[] = {
    {"1023 and 1025",
     {1023, 1025, -1},
     1,
     16,
     LISTS_SAME,
     PACKED,
     ROTARY_NONE,
     0,
     -1,
     ROWS_RANDOM,
     PLAIN_HEADS},
    {"390, 5 x 32",
     {390, -1},
     5,
     32,
     LISTS_SAME,
     SEPARATE,
     ROTARY_NONE,
     0,
     -1,
     ROWS_RANDOM,
     PLAIN_HEADS},
    {"650, dim 64",
     {650, -1},
     1,
     64,
     LISTS_SAME,
     SEPARATE,
     ROTARY_NONE,
     0,
     -1,
     ROWS_RANDOM,
     PLAIN_HEADS},
    {"390, dim 128",
     {390, -1},
     1,
     128,
     LISTS_TAIL,
     SEPARATE,
     ROTARY_NONE,
     0,
     -1,
     ROWS_RANDOM,
     PLAIN_HEADS},
    {"390, dim 256",
     {390, -1},
     1,
     256,
     LISTS_TAIL,
     PACKED,
     ROTARY_NONE,
     0,
     -1,
     ROWS_RANDOM,
     PLAIN_HEADS},
    {"390, 4 of 2 x 64",
     {390, -1},
     4,
     64,
     LISTS_SAME,
     PACKED,
     ROTARY_NONE,
     0,
     -1,
     ROWS_RANDOM,
     2,
     0,
     NORM_NONE},
    {"long keys, 2 of 1 x 128",
     {130, 7, -1},
     2,
     128,
     LISTS_LONG,
     SEPARATE,
     ROTARY_F32,
     42,
     -1,
     ROWS_RANDOM,
     1,
     1200,
     NORM_EACH},
    {"long keys, 256",
     {130, 7, -1},
     1,
     256,
     LISTS_LONG,
     SEPARATE,
     ROTARY_NONE,
     0,
     -1,
     ROWS_RANDOM,
     0,
     700,
     NORM_NONE},
    {"long keys, 40",
     {130, 7, -1},
     2,
     40,
     LISTS_LONG,
     SEPARATE,
     ROTARY_I32,
     12,
     9,
     ROWS_RANDOM,
     1,
     700,
     NORM_ONE},
};
enum { NUM_LARGE_SHAPES = sizeof large_shapes / sizeof *large_shapes };

// Few pairs for every kernel, which a sanitizer can run.
#define SMALL_SIZES                                                                                \
    {                                                                                              \
        65, 17, -1                                                                                 \
    }
static const attention_shape small_shapes[] = {
    {"small, 16", SMALL_SIZES, 5, 16, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"small, 32", SMALL_SIZES, 3, 32, LISTS_TAIL, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"small, 48", SMALL_SIZES, 1, 48, LISTS_SAME, PACKED, ROTARY_F32, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"small, 64", SMALL_SIZES, 1, 64, LISTS_TAIL, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"small, 96", SMALL_SIZES, 1, 96, LISTS_CROSS, PACKED, ROTARY_I32, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"small, 128", SMALL_SIZES, 1, 128, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"small, 18", SMALL_SIZES, 1, 18, LISTS_CROSS, PACKED, ROTARY_I32, 0, 3, ROWS_RANDOM,
     PLAIN_HEADS},
    {"small, 40", SMALL_SIZES, 1, 40, LISTS_SAME, INTERLEAVED, ROTARY_NONE, 0, 5, ROWS_RANDOM,
     PLAIN_HEADS},
    {"small, 100", SMALL_SIZES, 1, 100, LISTS_SAME, PACKED, ROTARY_NONE, 0, 4, ROWS_RANDOM,
     PLAIN_HEADS},
    {"small, 256", SMALL_SIZES, 1, 256, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"small, 252", SMALL_SIZES, 2, 252, LISTS_CROSS, SEPARATE, ROTARY_I32, 0, 3, ROWS_RANDOM, 1, 90,
     NORM_EACH},
    {"small, apart", SMALL_SIZES, 4, 64, LISTS_CROSS, SEPARATE, ROTARY_I32, 20, -1, ROWS_RANDOM, 2,
     100, NORM_ONE},
};
enum { NUM_SMALL_SHAPES = sizeof small_shapes / sizeof *small_shapes };

// Of points of a LiDAR scan, in the order of its lines.
static const attention_shape scan_shapes[] = {
    {"scan",
     {256, 256, 256, 256, 100, -1},
     1,
     18,
     LISTS_SCAN,
     PACKED,
     ROTARY_F32,
     0,
     -1,
     ROWS_RANDOM,
     PLAIN_HEADS},
    {"scan, bias",
     {64, 64, 64, 64, 10, -1},
     2,
     24,
     LISTS_SCAN,
     PACKED,
     ROTARY_I32,
     0,
     16,
     ROWS_RANDOM,
     PLAIN_HEADS},
};

// ---- Lists --------------------------------------------------------------------------------------

typedef struct row_lists {
    int64_t num_rows, num_key_rows, num_patches;
    int32_t *q_offsets, *q_rows, *k_offsets,
        *k_rows; // on the host; of keys NULL where they are same
    spops_patches *plan;
} row_lists;

static int32_t *ints(int64_t n)
{
    int32_t *p = (int32_t *)calloc((size_t)n + 1, sizeof *p);
    cr_assert(p != NULL, "no memory");
    return p;
}

static row_lists make_lists(test_device *d, const attention_shape *shape, test_rng *rng)
{
    row_lists l = {.num_rows = 3};
    while (shape->sizes[l.num_patches] >= 0)
        l.num_rows += shape->sizes[l.num_patches++];
    const int64_t n = l.num_patches, num_q = l.num_rows - 3;
    l.num_key_rows = shape->key_rows > 0 ? shape->key_rows : l.num_rows;
    l.q_offsets = ints(n);
    l.q_rows = ints(l.num_rows);
    for (int64_t p = 0; p < n; ++p)
        l.q_offsets[p + 1] = l.q_offsets[p] + (int32_t)shape->sizes[p];
    for (int64_t i = 0; i < l.num_rows; ++i)
        l.q_rows[i] = (int32_t)i;
    if (shape->lists != LISTS_SCAN) test_rng_shuffle_i32(rng, l.q_rows, l.num_rows);
    if (shape->lists == LISTS_TAIL ||
        shape->lists == LISTS_SCAN) { // a full patch of keys that ends with the last query
        const int32_t full = l.q_offsets[1];
        l.k_offsets = ints(n);
        l.k_rows = ints(num_q + full);
        memcpy(l.k_offsets, l.q_offsets, (size_t)(n + 1) * sizeof *l.k_offsets);
        memcpy(l.k_rows, l.q_rows, (size_t)num_q * sizeof *l.k_rows);
        l.k_offsets[n] = l.k_offsets[n - 1] + full;
        memcpy(l.k_rows + l.k_offsets[n - 1], l.q_rows + num_q - full,
               (size_t)full * sizeof *l.k_rows);
    } else if (shape->lists != LISTS_SAME) { // of LISTS_CROSS, patch 1 has queries and no keys
        const bool is_long = shape->lists == LISTS_LONG;
        l.k_offsets = ints(n);
        l.k_rows = ints(n * 590);
        for (int64_t p = 0; p < n; ++p) {
            const int32_t keys = is_long  ? 390 + (int32_t)test_rng_below(rng, 200)
                                 : p == 1 ? 0
                                 : p == 4 ? 1
                                          : 1 + (int32_t)test_rng_below(rng, 89);
            for (int32_t j = 0; j < keys; ++j) // the last two rows are no keys
                l.k_rows[l.k_offsets[p] + j] = (int32_t)test_rng_below(rng, l.num_key_rows - 2);
            l.k_offsets[p + 1] = l.k_offsets[p] + keys;
        }
    }
    const bool same = l.k_offsets == NULL;
    int32_t *q_offsets = test_upload_i32(d, l.q_offsets, n + 1);
    int32_t *q_rows = test_upload_i32(d, l.q_rows, num_q);
    int32_t *k_offsets = same ? NULL : test_upload_i32(d, l.k_offsets, n + 1);
    int32_t *k_rows = same ? NULL : test_upload_i32(d, l.k_rows, l.k_offsets[n]);
    const spops_patch_lists lists = {n, q_offsets, q_rows, k_offsets, k_rows, shape->key_rows};
    test_expect_ok(d->ctx, spops_patches_create(d->ctx, l.num_rows, &lists, &l.plan), shape->name);
    test_free(d, q_offsets), test_free(d, q_rows);
    test_free(d, k_offsets), test_free(d, k_rows);
    return l;
}

static void destroy_lists(row_lists *l)
{
    spops_patches_destroy(l->plan);
    free(l->q_offsets), free(l->q_rows), free(l->k_offsets), free(l->k_rows);
}

// ---- Calls --------------------------------------------------------------------------------------

// Q is the packed matrix, where there is one.
enum { Q, K, V, O, GRAD_O, LSE, COORDS, KEY_COORDS, Q_WEIGHT, K_WEIGHT, TABLE };
#define NORM_EPSILON 0.01f
enum { OUT_O, OUT_LSE };
enum { GRAD_Q, GRAD_K, GRAD_V, GRAD_TABLE, GRAD_Q_WEIGHT, GRAD_K_WEIGHT, NUM_GRADS };

typedef struct attention_case {
    const attention_shape *shape;
    row_lists lists;
    bool backward, tf32, rounds_tf32;
    bool wanted[NUM_GRADS];
    spops_dtype dtype;
    float scale;
    int32_t tile;        // that is asked for; 0: none is
    const float *points; // [rows][4] of a scan, or NULL
} attention_case;

static int64_t cols_of(const attention_case *c)
{
    return (int64_t)c->shape->heads * c->shape->dim;
}

static int32_t kv_heads_of(const attention_shape *s)
{
    return s->kv_heads > 0 ? s->kv_heads : s->heads;
}

// Of q, k or v.
static int64_t part_cols(const attention_shape *s, int part)
{
    return (int64_t)(part == 0 ? s->heads : kv_heads_of(s)) * s->dim;
}

static int64_t part_rows(const attention_case *c, int part)
{
    return part == 0 ? c->lists.num_rows : c->lists.num_key_rows;
}

static int64_t packed_cols(const attention_shape *s)
{
    return part_cols(s, 0) + 2 * part_cols(s, 1);
}

// Where element `col` of part `part` (q, k or v) is in a row of the packed matrix.
static int64_t packed_col(const attention_shape *s, int part, int64_t col)
{
    if (s->layout == PACKED)
        return (part > 0 ? part_cols(s, 0) : 0) + (part > 1 ? part_cols(s, 1) : 0) + col;
    return col / s->dim * 3 * s->dim + part * s->dim + col % s->dim;
}

static spops_matrix part_of(const attention_shape *s, const spops_matrix *const *m, int part)
{
    spops_matrix view;
    if (s->layout == SEPARATE) return *m[part];
    view = *m[0];
    view.cols = part_cols(s, part);
    if (view.data != NULL)
        view.data =
            (char *)view.data + packed_col(s, part, 0) * (int64_t)spops_dtype_bytes(view.dtype);
    return view;
}

// The part as [rows][cols] of its own; to be freed.
static double *unpack(const attention_case *c, const double *const *in, int part)
{
    const int64_t rows = part_rows(c, part), cols = part_cols(c->shape, part);
    double *m = (double *)calloc((size_t)(rows * cols + 1), sizeof *m);
    cr_assert(m != NULL, "no memory");
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t col = 0; col < cols; ++col)
            m[r * cols + col] =
                c->shape->layout == SEPARATE
                    ? in[part][r * cols + col]
                    : in[Q][r * packed_cols(c->shape) + packed_col(c->shape, part, col)];
    return m;
}

// What the options of a call point to.
typedef struct attention_choice {
    spops_attention_options options;
    spops_attention_rotary rotary;
    spops_attention_bias bias;
    spops_attention_norm norm;
} attention_choice;

static void choose(const attention_case *c, const spops_matrix *const *in, attention_choice *to)
{
    const attention_shape *s = c->shape;
    to->options = spops_attention_options_default();
    to->rotary = spops_attention_rotary_default();
    to->bias = spops_attention_bias_default();
    to->norm = spops_attention_norm_default();
    to->options.heads = s->heads;
    to->options.kv_heads = s->kv_heads;
    to->options.scale = c->scale;
    to->options.qkv_head_stride = s->layout == INTERLEAVED ? 3 * s->dim : 0;
    to->options.math = c->tf32 ? SPOPS_MATH_TF32 : SPOPS_MATH_EXACT;
    to->options.tile = c->tile;
    if (s->rotary != ROTARY_NONE) {
        to->rotary.coords = *in[COORDS];
        if (in[KEY_COORDS] != NULL) to->rotary.key_coords = *in[KEY_COORDS];
        to->rotary.axis_dim = s->axis_dim;
        to->options.rotary = &to->rotary;
    }
    if (s->range >= 0) {
        to->bias.coords = *in[COORDS];
        if (in[KEY_COORDS] != NULL) to->bias.key_coords = *in[KEY_COORDS];
        to->bias.table = *in[TABLE];
        to->options.bias = &to->bias;
    }
    if (s->norm != NORM_NONE) {
        to->norm.q_weight = *in[Q_WEIGHT];
        if (in[K_WEIGHT] != NULL) to->norm.k_weight = *in[K_WEIGHT];
        to->norm.epsilon = NORM_EPSILON;
        to->options.norm = &to->norm;
    }
}

static spops_status run(void *user, spops_context *ctx, const spops_matrix *const *in,
                        const spops_matrix *const *out)
{
    const attention_case *c = (const attention_case *)user;
    const attention_shape *s = c->shape;
    const spops_matrix q = part_of(s, in, 0), k = part_of(s, in, 1), v = part_of(s, in, 2);
    attention_choice to;

    choose(c, in, &to);
    if (ctx == NULL) return SPOPS_STATUS_OK;
    if (!c->backward)
        return spops_attention_execute(ctx, c->lists.plan, q, k, v, &to.options, *out[OUT_O],
                                       out[OUT_LSE] == NULL ? NULL : (float *)out[OUT_LSE]->data);
    spops_matrix grads[3];
    for (int i = 0; i < 3; ++i)
        if (c->wanted[i]) grads[i] = part_of(s, out, i);
    return spops_attention_execute_backward(
        ctx, c->lists.plan, *in[GRAD_O], q, k, v, *in[O], (const float *)in[LSE]->data, &to.options,
        c->wanted[GRAD_Q] ? &grads[0] : NULL, c->wanted[GRAD_K] ? &grads[1] : NULL,
        c->wanted[GRAD_V] ? &grads[2] : NULL, c->wanted[GRAD_TABLE] ? out[GRAD_TABLE] : NULL,
        c->wanted[GRAD_Q_WEIGHT] ? out[GRAD_Q_WEIGHT] : NULL,
        c->wanted[GRAD_K_WEIGHT] ? out[GRAD_K_WEIGHT] : NULL);
}

static ref_roundings roundings_of(const attention_case *c)
{
    static const ref_roundings exact = {0.0, 0.0, 0.0};
    static const ref_roundings half = {0x1p-11, 0x1p-25, 0.0}, bfloat = {0x1p-8, 0.0, 0.0};
    static const ref_roundings tf32 = {0.0, 0.0, 0x1p-10};
    if (c->dtype == SPOPS_DTYPE_F16) return half;
    if (c->dtype == SPOPS_DTYPE_BF16) return bfloat;
    return c->rounds_tf32 ? tf32 : exact;
}

static ref_attention reference_of(const attention_case *c, const double *const *in,
                                  double *const parts[3])
{
    const attention_shape *s = c->shape;
    const row_lists *l = &c->lists;
    ref_attention a = {.num_rows = l->num_rows,
                       .num_key_rows = l->num_key_rows,
                       .kv_heads = kv_heads_of(s),
                       .num_patches = l->num_patches,
                       .heads = s->heads,
                       .dim = s->dim,
                       .q_offsets = l->q_offsets,
                       .q_rows = l->q_rows,
                       .k_offsets = l->k_offsets == NULL ? l->q_offsets : l->k_offsets,
                       .k_rows = l->k_offsets == NULL ? l->q_rows : l->k_rows,
                       .scale = c->scale == 0.0f ? 1.0 / sqrt((double)s->dim) : (double)c->scale,
                       .q = parts[0],
                       .k = parts[1],
                       .v = parts[2],
                       .coords = in[COORDS],
                       .key_coords = in[KEY_COORDS] != NULL ? in[KEY_COORDS] : in[COORDS],
                       .weights = {in[Q_WEIGHT], in[K_WEIGHT]},
                       .one_weight = {s->norm == NORM_ONE, s->norm == NORM_ONE},
                       .epsilon = (double)NORM_EPSILON,
                       .base = 10000.0,
                       .roundings = roundings_of(c),
                       .is_f64 = c->dtype == SPOPS_DTYPE_F64};
    if (s->rotary != ROTARY_NONE) a.pairs = (s->axis_dim == 0 ? s->dim / 3 : s->axis_dim) / 2;
    if (s->range >= 0) {
        a.range = s->range;
        a.table = in[TABLE];
    }
    return a;
}

static void reference(void *user, const double *const *in, ref_tensor *const *expected)
{
    const attention_case *c = (const attention_case *)user;
    const attention_shape *shape = c->shape;
    double *parts[3] = {unpack(c, in, 0), unpack(c, in, 1), unpack(c, in, 2)};
    const ref_attention a = reference_of(c, in, parts);

    if (!c->backward) {
        ref_tensor lse = ref_tensor_create(c->lists.num_rows, shape->heads);
        ref_attention_forward(&a, expected[OUT_O],
                              expected[OUT_LSE] == NULL ? &lse : expected[OUT_LSE]);
        ref_tensor_destroy(&lse);
    } else {
        ref_tensor grads[3];
        for (int i = 0; i < 3; ++i)
            grads[i] = ref_tensor_create(part_rows(c, i), part_cols(shape, i));
        ref_attention_backward(&a, in[GRAD_O], in[O], in[LSE], &grads[0], &grads[1], &grads[2],
                               expected[GRAD_TABLE], expected + GRAD_Q_WEIGHT);
        for (int i = 0; i < 3; ++i) {
            const bool packed = shape->layout != SEPARATE;
            const int64_t cols = part_cols(shape, i), size = part_rows(c, i) * cols;
            ref_tensor *to = expected[packed ? 0 : i];
            for (int64_t e = 0; c->wanted[i] && e < size; ++e) {
                const int64_t at =
                    packed ? e / cols * packed_cols(shape) + packed_col(shape, i, e % cols) : e;
                to->value[at] = grads[i].value[e];
                to->scale[at] = grads[i].scale[e];
            }
            ref_tensor_destroy(&grads[i]);
        }
    }
    for (int i = 0; i < 3; ++i)
        free(parts[i]);
}

static void check_lse(const guarded *lse, const ref_tensor *expected, const char *what)
{
    for (int64_t i = 0; i < expected->rows * expected->cols; ++i) {
        const double value = expected->value[i];
        const double got = guarded_get(lse, i / expected->cols, i % expected->cols);
        const bool agrees =
            isnan(value) ? !isfinite(got) : got == value || fabs(got - value) <= expected->scale[i];
        cr_assert(agrees, "%s: lse[%lld] is %.9g, expected %.9g +- %.3g", what, (long long)i, got,
                  value, expected->scale[i]);
    }
}

static void verify(void *user, const guarded *const *out, const ref_tensor *const *expected,
                   const char *what)
{
    const attention_case *c = (const attention_case *)user;
    for (int i = 0; i < NUM_GRADS; ++i) {
        if (out[i] == NULL) continue;
        if (!c->backward && i == OUT_LSE)
            check_lse(out[i], expected[i], what);
        else
            guarded_check_bounds(out[i], expected[i], expected[i]->scale, what);
    }
}

// ---- Values -------------------------------------------------------------------------------------

static double uniform(test_rng *rng, double low, double high)
{
    return low + (high - low) * test_rng_unit(rng);
}

// Element (row, col) of q, k or v.
static double draw(const attention_case *c, test_rng *rng, int part, int64_t row, int64_t col)
{
    const int64_t in_head = col % c->shape->dim;
    switch (c->shape->rows) {
    case ROWS_STEEP:
        if (part == 2 || in_head > 0) return uniform(rng, -1, 1);
        return test_rng_below(rng, 2) ? 100.0 : -99.0;
    case ROWS_ZEROS: return row % 3 != 0 ? 0.0 : uniform(rng, -2, 2);
    case ROWS_LATE:
        if (part == 2 || in_head > 0) return uniform(rng, -1, 1);
        return part == 0   ? 1.0
               : row < 130 ? -INFINITY
                           : (row < 200 ? 7.0 : 10.0) * sqrt((double)c->shape->dim) / 1.4427;
    case ROWS_EQUAL: return 0.25 * (double)(in_head % 5) - 0.5;
    case ROWS_INFINITE:
        if (part == 2 && row % 9 == 4 && in_head == 3) return row % 2 ? INFINITY : -INFINITY;
        if (part == 1 && row % 11 == 5 && in_head == 0) return -INFINITY;
        if (part == 0 && in_head == 0) return row % 13 == 6 ? -1.0 : uniform(rng, 0.5, 1);
        return uniform(rng, -1, 1);
    default: return uniform(rng, -2, 2);
    }
}

static void put(guarded *g, double *values, int64_t row, int64_t col, double v)
{
    guarded_set(g, row, col, v);
    values[row * g->view.cols + col] = guarded_get(g, row, col);
}

// What the forward call gives, as inputs of the backward call.
static void put_outputs(const attention_case *c, guarded *const *in, double *const *values)
{
    const int64_t rows = c->lists.num_rows, cols = cols_of(c), heads = c->shape->heads;
    double *parts[3];
    ref_tensor o = ref_tensor_create(rows, cols), lse = ref_tensor_create(rows, heads);
    for (int i = 0; i < 3; ++i)
        parts[i] = unpack(c, (const double *const *)values, i);
    const ref_attention a = reference_of(c, (const double *const *)values, parts);
    ref_attention_forward(&a, &o, &lse);
    for (int64_t i = 0; i < rows * cols; ++i)
        put(in[O], values[O], i / cols, i % cols, o.value[i]);
    for (int64_t i = 0; i < rows * heads; ++i)
        put(in[LSE], values[LSE], i / heads, i % heads, lse.value[i]);
    ref_tensor_destroy(&o), ref_tensor_destroy(&lse);
    for (int i = 0; i < 3; ++i)
        free(parts[i]);
}

static void adjust(void *user, int version, test_rng *rng, guarded *const *in,
                   double *const *values)
{
    const attention_case *c = (const attention_case *)user;
    const int64_t rows = c->lists.num_rows, cols = cols_of(c);
    (void)version;
    for (int part = 0; part < 3; ++part) {
        const int64_t width = part_cols(c->shape, part);
        for (int64_t i = 0; i < part_rows(c, part) * width; ++i) {
            const double v = draw(c, rng, part, i / width, i % width);
            if (c->shape->layout == SEPARATE)
                put(in[part], values[part], i / width, i % width, v);
            else
                put(in[Q], values[Q], i / width, packed_col(c->shape, part, i % width), v);
        }
    }
    for (int which = COORDS; which <= KEY_COORDS; ++which)
        for (int64_t i = 0; in[which] != NULL && i < in[which]->view.rows * 3; ++i) {
            const bool whole = in[which]->view.dtype == SPOPS_DTYPE_I32;
            double x = c->shape->rows == ROWS_EQUAL ? 7.0 : uniform(rng, -40, 40);
            if (c->points != NULL) x = (double)c->points[i / 3 * 4 + i % 3] * (whole ? 10.0 : 1.0);
            put(in[which], values[which], i / 3, i % 3, whole ? floor(x) : x);
        }
    for (int which = Q_WEIGHT; which <= K_WEIGHT; ++which)
        for (int64_t i = 0; in[which] != NULL && i < in[which]->view.rows * c->shape->dim; ++i)
            put(in[which], values[which], i / c->shape->dim, i % c->shape->dim,
                uniform(rng, -1.5, 1.5));
    if (c->shape->range >= 0)
        for (int64_t i = 0; i < in[TABLE]->view.rows * in[TABLE]->view.cols; ++i)
            put(in[TABLE], values[TABLE], i / in[TABLE]->view.cols, i % in[TABLE]->view.cols,
                uniform(rng, -1, 1));
    if (!c->backward) return;
    for (int64_t i = 0; i < rows * cols; ++i)
        put(in[GRAD_O], values[GRAD_O], i / cols, i % cols, uniform(rng, -1, 1));
    put_outputs(c, in, values);
}

// ---- Cases --------------------------------------------------------------------------------------

// What is asked for depends on shapes alone: the data lie in one place.
static size_t scratch_of(const attention_case *c, const test_operator *op)
{
    static double place[3];
    spops_matrix views[TEST_MAX_MATRICES];
    const spops_matrix *in[TEST_MAX_MATRICES];
    attention_choice to;
    for (int i = 0; i < TEST_MAX_MATRICES; ++i) {
        const test_matrix *m = &op->in[i];
        views[i] = spops_matrix_dense(place, m->rows, m->cols, m->dtype);
        in[i] = m->name == NULL ? NULL : &views[i];
    }
    choose(c, in, &to);
    return spops_attention_scratch_bytes(c->lists.plan, cols_of(c), c->dtype, &to.options,
                                         c->backward);
}

// What a gradient reads besides the rows, and the gradient of the table.
static void draw_gradient(const attention_case *c, test_rng *rng, test_operator *op)
{
    const int64_t rows = c->lists.num_rows, cols = cols_of(c);
    const spops_dtype sums = test_sum_dtype(c->dtype);
    op->in[O] =
        test_view(test_input("o", rows, cols, c->dtype, VALUES_RANDOM), test_rng_below(rng, 9), 0);
    const int64_t apart = test_rng_below(rng, 9), shift = test_rng_below(rng, 2);
    op->in[GRAD_O] = test_view(test_input("grad_o", rows, cols, c->dtype, VALUES_RANDOM),
                               c->tile != 0 ? 0 : apart, c->tile != 0 ? 0 : shift);
    op->in[LSE] = test_input("lse", rows, c->shape->heads, sums, VALUES_RANDOM);
    if (c->wanted[GRAD_TABLE])
        op->out[GRAD_TABLE] = test_view(test_output("grad_table", 3 * (2 * c->shape->range + 1),
                                                    c->shape->heads, sums, CHECK_BOUND),
                                        test_rng_below(rng, 3), 0);
    for (int i = 0; i < 2; ++i)
        if (c->wanted[GRAD_Q_WEIGHT + i])
            op->out[GRAD_Q_WEIGHT + i] =
                test_view(test_output(i ? "grad_k_weight" : "grad_q_weight",
                                      op->in[Q_WEIGHT + i].rows, c->shape->dim, sums, CHECK_BOUND),
                          test_rng_below(rng, 3), 0);
}

static void draw_outputs(const attention_case *c, bool aligned, test_rng *rng, test_operator *op)
{
    const int64_t rows = c->lists.num_rows, cols = cols_of(c);
    // Rows of o may be words where those of q, k and v are pieces of 16 bytes.
    const int64_t padding = aligned ? 2 * test_rng_below(rng, 2) : test_rng_below(rng, 9);
    op->out[OUT_O] = test_view(test_output("o", rows, cols, c->dtype, CHECK_BOUND), padding,
                               aligned ? 0 : test_rng_below(rng, 2));
    if (test_rng_below(rng, 4) != 0)
        op->out[OUT_LSE] =
            test_output("lse", rows, c->shape->heads, test_sum_dtype(c->dtype), CHECK_BOUND);
}

// Coordinates, biases and norms.
static void draw_options(const attention_case *c, test_rng *rng, test_operator *op)
{
    const attention_shape *s = c->shape;
    const spops_dtype coords = s->rotary == ROTARY_F32 ? SPOPS_DTYPE_F32 : SPOPS_DTYPE_I32;
    const spops_dtype sums = test_sum_dtype(c->dtype);
    if (s->range >= 0)
        op->in[TABLE] =
            test_view(test_input("table", 3 * (2 * s->range + 1), s->heads, sums, VALUES_RANDOM),
                      test_rng_below(rng, 3), 0);
    if (s->range >= 0 || s->rotary != ROTARY_NONE) {
        op->in[COORDS] =
            test_view(test_input("coords", c->lists.num_rows, 3, coords, VALUES_RANDOM),
                      test_rng_below(rng, 2), 0);
        if (s->key_rows > 0 || test_rng_below(rng, 4) == 0)
            op->in[KEY_COORDS] =
                test_view(test_input("key_coords", c->lists.num_key_rows, 3, coords, VALUES_RANDOM),
                          test_rng_below(rng, 2), 0);
    }
    for (int i = 0; i < (s->norm == NORM_NONE ? 0 : s->norm == NORM_Q ? 1 : 2); ++i) {
        const int32_t heads = i ? kv_heads_of(s) : s->heads;
        op->in[Q_WEIGHT + i] =
            test_view(test_input(i ? "k_weight" : "q_weight", s->norm == NORM_ONE ? 1 : heads,
                                 s->dim, sums, VALUES_RANDOM),
                      test_rng_below(rng, 3), 0);
    }
}

// With a tile, rows are as every kernel takes them.
static void check_tile_case(test_device *d, const attention_shape *shape, const float *points,
                            bool backward, spops_dtype dtype, int32_t tile, uint64_t stream)
{
    char text[256];
    test_rng rng = test_rng_make(stream);
    attention_case c = {.shape = shape,
                        .lists = make_lists(d, shape, &rng),
                        .backward = backward,
                        // Every shape in one launch mode or another, both directions alike.
                        .tf32 = tile != 0 || ((stream >> 32) + (stream + 1) / 2) % 2 == 0,
                        .dtype = dtype,
                        .tile = tile,
                        .points = points};
    test_operator op = {.stream = stream,
                        .user = &c,
                        .run = run,
                        .reference = reference,
                        .adjust = adjust,
                        .verify = verify};
    const bool separate = shape->layout == SEPARATE;
    const bool aligned = test_rng_below(&rng, 2) == 0 || tile != 0; // to 16 bytes, where dim is
    const spops_dtype grad_dtype = test_rng_below(&rng, 2) ? SPOPS_DTYPE_F32 : dtype;
    static const char *const names[] = {"q", "k", "v"};
    static const char *const grad_names[] = {"grad_q", "grad_k", "grad_v"};

    c.rounds_tf32 = c.tf32 && dtype == SPOPS_DTYPE_F32 && d->backend == SPOPS_BACKEND_CUDA;
    c.scale = shape->rows == ROWS_STEEP ? 1.0f : test_rng_below(&rng, 2) ? 0.0f : 0.3f;
    for (int i = 0; i < 3; ++i) // all of a packed matrix, else some
        c.wanted[i] = !separate || i == (int)(stream % 3) || test_rng_below(&rng, 2) == 0;
    c.wanted[GRAD_TABLE] = shape->range >= 0;
    for (int i = 0; i < 3; ++i) {
        const int64_t padding = separate ? test_rng_below(&rng, 2) * (aligned ? 8 : 5) : 0;
        const int64_t shift = aligned ? 0 : test_rng_below(&rng, 2);
        const int64_t rows = part_rows(&c, i);
        const int64_t cols = separate ? part_cols(shape, i) : packed_cols(shape);
        if (i > 0 && !separate) break;
        op.in[i] =
            test_view(test_input(separate ? names[i] : "qkv", rows, cols, dtype, VALUES_RANDOM),
                      padding, shift);
        if (backward && c.wanted[i])
            op.out[i] = test_view(test_output(separate ? grad_names[i] : "grad_qkv", rows, cols,
                                              grad_dtype, CHECK_BOUND),
                                  padding, shift);
    }
    draw_options(&c, &rng, &op);
    for (int i = 0; i < 2; ++i)
        c.wanted[GRAD_Q_WEIGHT + i] =
            backward && op.in[Q_WEIGHT + i].name != NULL && test_rng_below(&rng, 4) > 0;
    if (backward)
        draw_gradient(&c, &rng, &op);
    else
        draw_outputs(&c, aligned, &rng, &op);
    op.what = test_describe(text, "attention%s, %s, tile %d", backward ? " backward" : "",
                            shape->name, (int)tile);
    op.scratch_bytes = scratch_of(&c, &op);
    test_expect_ok(d->ctx, spops_context_reserve(d->ctx, op.scratch_bytes), op.what);
    test_operator_run(d, &op);
    destroy_lists(&c.lists);
}

static void check_case(test_device *d, const attention_shape *shape, const float *points,
                       bool backward, spops_dtype dtype, uint64_t stream)
{
    check_tile_case(d, shape, points, backward, dtype, 0, stream);
}

CaseTest(attention, agrees, every_case(test_row_dtypes, NUM_REAL_DTYPES, NULL, 0), .timeout = 600)
{
    uint64_t stream = case_number(p) << 32;
    // A narrow dtype differs on the CPU where rows are loaded and stored alone.
    const int step = test_quick() && p->backend == SPOPS_BACKEND_CPU && p->dtype ? 3 : 1;
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int i = step / 2; i < NUM_SHAPES; i += step) {
        check_case(&d, &shapes[i], NULL, false, (spops_dtype)p->dtype, ++stream);
        check_case(&d, &shapes[i], NULL, true, (spops_dtype)p->dtype, ++stream);
    }
    test_close(&d);
}

CaseTest(attention, agrees_with_other_keys, every_case(test_row_dtypes, NUM_REAL_DTYPES, NULL, 0),
         .timeout = 600)
{
    uint64_t stream = (case_number(p) << 32) + 5000;
    const int step = test_quick() && p->backend == SPOPS_BACKEND_CPU && p->dtype ? 3 : 1;
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int i = step / 2; i < NUM_WIDE_SHAPES; i += step) {
        check_case(&d, &wide_shapes[i], NULL, false, (spops_dtype)p->dtype, ++stream);
        check_case(&d, &wide_shapes[i], NULL, true, (spops_dtype)p->dtype, ++stream);
    }
    test_close(&d);
}

static struct criterion_test_params device_cases(void)
{
    static struct case_param params[] = {{SPOPS_BACKEND_CUDA, LAUNCH_DEFAULT, SPOPS_DTYPE_F32, 0},
                                         {SPOPS_BACKEND_CUDA, LAUNCH_DEFAULT, SPOPS_DTYPE_F16, 0},
                                         {SPOPS_BACKEND_CUDA, LAUNCH_DEFAULT, SPOPS_DTYPE_BF16, 0}};
    return tested_here(cr_make_param_array(struct case_param, params, 3));
}

// For sanitizers (scripts/gpu-test), and on devices alone: elsewhere `agrees` has all of it.
CaseTest(attention, small, device_cases(), .timeout = 600)
{
    uint64_t stream = case_number(p) << 32;
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int i = 0; i < NUM_SMALL_SHAPES; ++i) {
        check_case(&d, &small_shapes[i], NULL, false, (spops_dtype)p->dtype, ++stream);
        check_case(&d, &small_shapes[i], NULL, true, (spops_dtype)p->dtype, ++stream);
    }
    test_close(&d);
}

// More tiles times heads than a device has blocks, so that a block goes from one to the next: of queries
// without keys, of other patches, of lines with fewer heads.
static const attention_shape many_shapes[] = {
    {"3 x 16, late", ORDER_SIZES, 3, 16, LISTS_SCAN, PACKED, ROTARY_NONE, 0, -1, ROWS_LATE,
     PLAIN_HEADS},
    {"1 x 64, late", ORDER_SIZES, 1, 64, LISTS_SCAN, PACKED, ROTARY_NONE, 0, -1, ROWS_LATE,
     PLAIN_HEADS},
    {"2 x 128, late", ORDER_SIZES, 2, 128, LISTS_SCAN, SEPARATE, ROTARY_NONE, 0, -1, ROWS_LATE,
     PLAIN_HEADS},
    {"70 of 35 x 128, in order", ORDER_SIZES, 70, 128, LISTS_SCAN, PACKED, ROTARY_NONE, 0, -1,
     ROWS_RANDOM, 35, 0, NORM_NONE},
    {"224 x 16", TALL_SIZES, 224, 16, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"227 x 16", TALL_SIZES, 227, 16, LISTS_CROSS, SEPARATE, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"181 x 32", TALL_SIZES, 181, 32, LISTS_CROSS, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"120 x 48", SOME_SIZES, 120, 48, LISTS_CROSS, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"120 x 48, tall", TALL_SIZES, 120, 48, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"120 x 64", TILE_SIZES, 120, 64, LISTS_CROSS, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"120 x 64, small", SOME_SIZES, 120, 64, LISTS_CROSS, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"80 x 96", TALL_SIZES, 80, 96, LISTS_CROSS, SEPARATE, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"80 of 40 x 128", TALL_SIZES, 80, 128, LISTS_CROSS, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     40, 0, NORM_NONE},
    {"80 x 128, steep", TALL_SIZES, 80, 128, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_STEEP,
     PLAIN_HEADS},
    {"80 x 256", TALL_SIZES, 80, 256, LISTS_CROSS, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
};
enum { NUM_MANY_SHAPES = sizeof many_shapes / sizeof *many_shapes };

// Kernels of matrix units alone: 16 bits on CUDA.
static struct criterion_test_params halves_on_cuda(void)
{
    static struct case_param params[] = {{SPOPS_BACKEND_CUDA, LAUNCH_DEFAULT, SPOPS_DTYPE_F16, 0},
                                         {SPOPS_BACKEND_CUDA, LAUNCH_DEFAULT, SPOPS_DTYPE_BF16, 0}};
    return tested_here(cr_make_param_array(struct case_param, params, 2));
}

CaseTest(attention, many_tiles_of_a_block, halves_on_cuda(), .timeout = 600)
{
    uint64_t stream = (case_number(p) << 32) + 9000;
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int i = 0; i < NUM_MANY_SHAPES; ++i)
        check_case(&d, &many_shapes[i], NULL, false, (spops_dtype)p->dtype, ++stream);
    test_close(&d);
}

// ---- Every tile that is compiled, whatever the table says of the heads ---------------------------

static const attention_shape tile_shapes[] = {
    {"tile, 16", TALL_SIZES, 5, 16, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"tile, 32", TALL_SIZES, 3, 32, LISTS_TAIL, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"tile, 48", TALL_SIZES, 1, 48, LISTS_SAME, PACKED, ROTARY_F32, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"tile, 64", TALL_SIZES, 1, 64, LISTS_TAIL, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"tile, 3 x 64", TALL_SIZES, 3, 64, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"tile, 96", TALL_SIZES, 1, 96, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"tile, 128", TALL_SIZES, 1, 128, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"tile, 2 x 96 in order", ORDER_SIZES, 2, 96, LISTS_SCAN, SEPARATE, ROTARY_NONE, 0, -1,
     ROWS_RANDOM, PLAIN_HEADS},
    {"tile, 2 x 128 in order", ORDER_SIZES, 2, 128, LISTS_SCAN, INTERLEAVED, ROTARY_NONE, 0, -1,
     ROWS_RANDOM, PLAIN_HEADS},
    {"tile, 256", TALL_SIZES, 1, 256, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS}};

// Whether heads of the shape run on the tile. If so it is prepared, and read back.
static bool takes_tile(test_device *d, const attention_shape *shape, bool backward,
                       spops_dtype dtype, int32_t tile)
{
    spops_attention_options options = spops_attention_options_default();
    const int64_t cols = (int64_t)shape->heads * shape->dim;
    test_rng rng = test_rng_make(5);
    row_lists lists = make_lists(d, shape, &rng);
    int32_t found = -1;
    options.heads = shape->heads;
    options.math = SPOPS_MATH_TF32;
    options.tile = tile;
    const spops_status status =
        spops_attention_get_tile(d->ctx, lists.plan, cols, dtype, &options, backward, &found);
    if (status == SPOPS_STATUS_OK) {
        cr_assert_eq(found, tile, "%s: tile %d, expected %d", shape->name, (int)found, (int)tile);
        test_expect_ok(d->ctx,
                       spops_attention_reserve(d->ctx, lists.plan, cols, dtype, &options, backward),
                       "reserve");
    } else {
        test_expect(d->ctx, status, SPOPS_STATUS_INVALID_ARGUMENT, "options->tile is", shape->name);
    }
    destroy_lists(&lists);
    return status == SPOPS_STATUS_OK;
}

CaseTest(attention, every_tile, device_cases(), .timeout = 600)
{
    const spops_dtype dtype = (spops_dtype)p->dtype;
    uint64_t stream = case_number(p) << 32;
    test_device d;
    if (!test_open(&d, SPOPS_BACKEND_CUDA, LAUNCH_DEFAULT)) return;
    for (int32_t tile = 1; tile <= SPOPS_ATTENTION_NUM_TILES; ++tile) {
        const spops_attention_row *row = spops_attention_row_of(tile);
        const bool here =
            row->kernel != SPOPS_ATTENTION_SM90 || d.ctx->info.compute_capability == 90;
        int taken = 0;
        for (size_t i = 0; i < sizeof tile_shapes / sizeof *tile_shapes; ++i) {
            if (!takes_tile(&d, &tile_shapes[i], row->backward, dtype, tile)) continue;
            const int32_t prepared = d.ctx->prepared_kernels.num;
            check_tile_case(&d, &tile_shapes[i], NULL, row->backward, dtype, tile, ++stream);
            cr_assert_eq(d.ctx->prepared_kernels.num, prepared, "a call prepared a kernel");
            ++taken;
        }
        const bool has_dtype = row->bytes == 0 || row->bytes == (int32_t)spops_dtype_bytes(dtype);
        cr_assert_eq(taken > 0, here && has_dtype, "tile %d takes %d shapes", (int)tile, taken);
    }
    test_close(&d);
}

// One pass for keys and queries: more items than a device has blocks, patches of more queries than a block
// holds at a time, and all that is made of its sums.
#define WRAP_SIZES                                                                                 \
    {                                                                                              \
        900, 130, -1                                                                               \
    }
#define LONG_SIZES                                                                                 \
    {                                                                                              \
        1100, 40, -1                                                                               \
    }
#define TAIL_SIZES                                                                                 \
    {                                                                                              \
        1024, 300, -1                                                                              \
    }
#define MANY_TAIL_SIZES                                                                            \
    {                                                                                              \
        600, 100, -1                                                                               \
    }
#define STEEP_SIZES                                                                                \
    {                                                                                              \
        65, 530, -1                                                                                \
    }
#define INFINITE_SIZES                                                                             \
    {                                                                                              \
        70, 30, 20, -1                                                                             \
    }
#define FEW_SIZES                                                                                  \
    {                                                                                              \
        450, 130, -1                                                                               \
    }
static const attention_shape joint_shapes[] = {
    {"14 x 64", WRAP_SIZES, 14, 64, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"6 of 2 x 64, norms", SOME_SIZES, 6, 64, LISTS_CROSS, PACKED, ROTARY_F32, 16, -1, ROWS_RANDOM,
     2, 0, NORM_EACH},
    {"3 x 40, tall", TALL_SIZES, 3, 40, LISTS_CROSS, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"24 x 128", FEW_SIZES, 24, 128, LISTS_SAME, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"3 of 1 x 96, rotary", SOME_SIZES, 3, 96, LISTS_TAIL, PACKED, ROTARY_I32, 0, -1, ROWS_RANDOM,
     1, 0, NORM_NONE},
    // Clusters have a patch (on 132 multiprocessors).
    {"2 x 16, tail", TAIL_SIZES, 2, 16, LISTS_TAIL, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"1 x 16, long", LONG_SIZES, 1, 16, LISTS_SAME, SEPARATE, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"150 x 16", TALL_SIZES, 150, 16, LISTS_CROSS, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"6 of 2 x 16, norms", SOME_SIZES, 6, 16, LISTS_CROSS, PACKED, ROTARY_F32, 4, -1, ROWS_RANDOM,
     2, 0, NORM_EACH},
    {"2 x 16, steep", STEEP_SIZES, 2, 16, LISTS_SAME, SEPARATE, ROTARY_NONE, 0, -1, ROWS_STEEP,
     PLAIN_HEADS},
    {"1 x 16, infinite", INFINITE_SIZES, 1, 16, LISTS_SAME, SEPARATE, ROTARY_NONE, 0, -1,
     ROWS_INFINITE, PLAIN_HEADS},
    // So many heads that a block has a patch alone.
    {"230 x 16", TALL_SIZES, 230, 16, LISTS_CROSS, PACKED, ROTARY_NONE, 0, -1, ROWS_RANDOM,
     PLAIN_HEADS},
    {"100 x 16, tail", MANY_TAIL_SIZES, 100, 16, LISTS_TAIL, PACKED, ROTARY_NONE, 0, -1,
     ROWS_RANDOM, PLAIN_HEADS},
};

CaseTest(attention, both_sides_in_one_pass, halves_on_cuda(), .timeout = 600)
{
    uint64_t stream = (case_number(p) << 32) + 9500;
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int32_t tile = 1; tile <= SPOPS_ATTENTION_NUM_TILES; ++tile) {
        const spops_attention_row *row = spops_attention_row_of(tile);
        if (!row->fused || d.ctx->info.compute_capability != 90) continue;
        for (size_t i = 0; i < sizeof joint_shapes / sizeof *joint_shapes; ++i) {
            const int32_t dim = joint_shapes[i].dim;
            if (dim <= row->columns && dim > row->columns / 2)
                check_tile_case(&d, &joint_shapes[i], NULL, true, (spops_dtype)p->dtype, tile,
                                ++stream);
        }
    }
    test_close(&d);
}

// The gradient of a table by patches [first, last) of two rows each; q: [rows, 3 * DIM], of which k and
// v are parts too.
enum { TABLE_PATCHES = 210, TABLE_ROWS = 2 * TABLE_PATCHES, TABLE_DIM = 8, TABLE_LENGTH = 3 * 5 };

static void table_gradient(test_device *d, spops_matrix qkv, spops_matrix o, const float *lse,
                           const spops_attention_bias *bias, int first, int last, float *table)
{
    const spops_matrix q = spops_matrix_columns(qkv, 0, TABLE_DIM);
    const spops_matrix k = spops_matrix_columns(qkv, TABLE_DIM, TABLE_DIM);
    const spops_matrix v = spops_matrix_columns(qkv, 2 * TABLE_DIM, TABLE_DIM);
    spops_attention_options options = spops_attention_options_default();
    spops_patches *patches = NULL;
    int32_t offsets[TABLE_PATCHES + 1], rows[TABLE_ROWS];
    for (int p = 0; p <= last - first; ++p)
        offsets[p] = 2 * p;
    for (int r = 0; r < 2 * (last - first); ++r)
        rows[r] = 2 * first + r;
    int32_t *offsets_there = test_upload_i32(d, offsets, last - first + 1);
    int32_t *rows_there = test_upload_i32(d, rows, 2 * (last - first));
    int32_t *found = test_upload_i32(d, rows, TABLE_LENGTH);
    const spops_matrix grad = spops_matrix_dense(found, TABLE_LENGTH, 1, SPOPS_DTYPE_F32);
    const spops_patch_lists lists = {last - first, offsets_there, rows_there, NULL, NULL, 0};
    options.bias = bias;
    test_expect_ok(d->ctx, spops_patches_create(d->ctx, TABLE_ROWS, &lists, &patches), "patches");
    test_expect_ok(
        d->ctx,
        spops_context_reserve(d->ctx, spops_attention_scratch_bytes(patches, TABLE_DIM,
                                                                    SPOPS_DTYPE_F32, &options, 1)),
        "scratch");
    test_expect_ok(
        d->ctx,
        spops_attention_execute(d->ctx, patches, q, k, v, &options, o, (float *)(uintptr_t)lse),
        "forward");
    test_expect_ok(d->ctx,
                   spops_attention_execute_backward(d->ctx, patches, q, q, k, v, o, lse, &options,
                                                    NULL, NULL, NULL, &grad, NULL, NULL),
                   "backward");
    test_wait(d);
    test_download_i32(d, (int32_t *)(void *)table, found, TABLE_LENGTH);
    spops_patches_destroy(patches);
    test_free(d, offsets_there), test_free(d, rows_there), test_free(d, found);
}

// As many tiles as parts of the gradient take in several rounds: all patches give what the first 200
// and the rest do.
BackendTest(attention, tables_of_many_tiles)
{
    spops_attention_bias bias = spops_attention_bias_default();
    float all[TABLE_LENGTH], head[TABLE_LENGTH], rest[TABLE_LENGTH];
    static float values[TABLE_ROWS * 3 * TABLE_DIM];
    static int32_t places[TABLE_ROWS * 3];
    test_rng rng = test_rng_make(31);
    double sum = 0.0;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    for (int i = 0; i < TABLE_ROWS * 3 * TABLE_DIM; ++i)
        values[i] = (float)(2.0 * test_rng_unit(&rng) - 1.0);
    for (int i = 0; i < TABLE_ROWS * 3; ++i)
        places[i] = (int32_t)test_rng_below(&rng, 3);
    const int32_t *const bits = (const int32_t *)(const void *)values;
    int32_t *qkv = test_upload_i32(&d, bits, TABLE_ROWS * 3 * TABLE_DIM);
    int32_t *o = test_upload_i32(&d, bits, TABLE_ROWS * TABLE_DIM);
    int32_t *lse = test_upload_i32(&d, bits, TABLE_ROWS), *coords;
    int32_t *table = test_upload_i32(&d, bits, TABLE_LENGTH);
    coords = test_upload_i32(&d, places, TABLE_ROWS * 3);
    const spops_matrix m = spops_matrix_dense(qkv, TABLE_ROWS, 3 * TABLE_DIM, SPOPS_DTYPE_F32);
    const spops_matrix to = spops_matrix_dense(o, TABLE_ROWS, TABLE_DIM, SPOPS_DTYPE_F32);
    const float *const sums = (const float *)(const void *)lse;
    bias.table = spops_matrix_dense(table, TABLE_LENGTH, 1, SPOPS_DTYPE_F32);
    bias.coords = spops_matrix_dense(coords, TABLE_ROWS, 3, SPOPS_DTYPE_I32);
    table_gradient(&d, m, to, sums, &bias, 0, TABLE_PATCHES, all);
    table_gradient(&d, m, to, sums, &bias, 0, 200, head);
    table_gradient(&d, m, to, sums, &bias, 200, TABLE_PATCHES, rest);
    for (int i = 0; i < TABLE_LENGTH; ++i) {
        sum += fabs((double)rest[i]);
        cr_assert(fabs((double)all[i] - (double)head[i] - (double)rest[i]) <= 1e-4,
                  "element %d: %g, of %g and %g", i, (double)all[i], (double)head[i],
                  (double)rest[i]);
    }
    cr_assert(sum > 0.01);
    test_free(&d, qkv), test_free(&d, o), test_free(&d, lse), test_free(&d, table);
    test_free(&d, coords);
    test_close(&d);
}

// The vector code that this processor would not choose by itself.
Test(attention, agrees_with_lesser_instruction_sets, .timeout = 600)
{
    static const char *const sets[] = {"baseline", "avx2"};
    for (int i = 0; i < 2; ++i) {
        test_device d;
        if (!test_has_cpu_isa(sets[i])) continue;
        cr_assert(setenv("SPOPS_CPU_ISA", sets[i], 1) == 0);
        const bool opened = test_open(&d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT);
        for (int k = 0; opened && k < NUM_SHAPES; k += 4) {
            check_case(&d, &shapes[k], NULL, false, SPOPS_DTYPE_F32, (uint64_t)k);
            check_case(&d, &shapes[k], NULL, true, SPOPS_DTYPE_F16, (uint64_t)k);
        }
        if (opened) test_close(&d);
    }
    unsetenv("SPOPS_CPU_ISA");
}

BackendTest(attention, agrees_where_patches_are_large, .timeout = 600)
{
    const bool cuda = p->backend == SPOPS_BACKEND_CUDA;
    const spops_dtype dtype = cuda ? SPOPS_DTYPE_BF16 : SPOPS_DTYPE_F32;
    test_device d;
    if (test_quick() && !cuda) return;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    const int num_shapes = cuda ? NUM_LARGE_SHAPES : 1; // the CPU has no stages
    for (int i = 0; i < num_shapes; ++i) {
        check_case(&d, &large_shapes[i], NULL, false, dtype, 1);
        check_case(&d, &large_shapes[i], NULL, true, dtype, 2);
    }
    test_close(&d);
}

LaunchTest(attention, agrees_on_scans, .timeout = 600)
{
    enum { ROWS_TAKEN = 1200 };
    static float points[ROWS_TAKEN][4];
    const spops_dtype narrow = p->launch == LAUNCH_CAPTURED ? SPOPS_DTYPE_F16 : SPOPS_DTYPE_BF16;
    int64_t rows = 0, cols = 0;
    float *file = NULL;
    test_device d;
    if (!cloud_load_f32("kitti_odom_a.npy", &rows, &cols, &file)) return;
    cr_assert(cols == 4 && rows >= ROWS_TAKEN);
    for (int64_t i = 0; i < ROWS_TAKEN; ++i)
        memcpy(points[i], file + i * (rows / ROWS_TAKEN) * 4, sizeof points[i]);
    free(file);
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int i = 0; i < 2; ++i) {
        const uint64_t stream = (uint64_t)(p->launch * 16 + i * 2);
        check_case(&d, &scan_shapes[i], points[0], false, i ? narrow : SPOPS_DTYPE_F32, stream);
        check_case(&d, &scan_shapes[i], points[0], true, i ? SPOPS_DTYPE_F32 : narrow, stream + 1);
    }
    test_close(&d);
}

// ---- By hand ------------------------------------------------------------------------------------

enum { ROWS = 6, HEADS = 2, DIM = 6, COLS = HEADS * DIM, BIG = 4 * ROWS * COLS };

// Rows 0 to 3 are a patch, row 4 another, row 5 none; q is also k and v.
typedef struct small_case {
    test_device d;
    spops_patches *plan;
    float *q, *o, *lse, *place;     // where d runs: [BIG] each
    float host_q[BIG], before[BIG]; // before: what o and lse hold, a pattern
    spops_attention_options options;
} small_case;

static bool open_small(small_case *s, int backend)
{
    static const int32_t offsets[] = {0, 4, 5}, rows[] = {3, 1, 0, 2, 4};
    test_rng rng = test_rng_make(77);
    if (!test_open(&s->d, (spops_backend_kind)backend, LAUNCH_DEFAULT)) return false;
    int32_t *q_offsets = test_upload_i32(&s->d, offsets, 3);
    int32_t *q_rows = test_upload_i32(&s->d, rows, 5);
    const spops_patch_lists lists = {2, q_offsets, q_rows, NULL, NULL, 0};
    test_expect_ok(s->d.ctx, spops_patches_create(s->d.ctx, ROWS, &lists, &s->plan), "plan");
    test_free(&s->d, q_offsets), test_free(&s->d, q_rows);
    for (int i = 0; i < BIG; ++i) {
        s->host_q[i] = (float)uniform(&rng, -1, 1);
        s->before[i] = (float)i;
    }
    s->q = test_upload_f32(&s->d, s->host_q, BIG);
    s->o = test_upload_f32(&s->d, s->before, BIG);
    s->lse = test_upload_f32(&s->d, s->before, BIG);
    s->place = test_upload_f32(&s->d, s->before, BIG);
    s->options = spops_attention_options_default();
    s->options.heads = HEADS;
    return true;
}

static void close_small(small_case *s)
{
    test_free(&s->d, s->q), test_free(&s->d, s->o);
    test_free(&s->d, s->lse), test_free(&s->d, s->place);
    spops_patches_destroy(s->plan);
    test_close(&s->d);
}

static spops_matrix dense(float *data)
{
    return spops_matrix_dense(data, ROWS, COLS, SPOPS_DTYPE_F32);
}

static void fetch(small_case *s, const float *from, float *to)
{
    cr_assert(device_download(s->d.backend, to, from, BIG * sizeof *to), "%s", device_error());
}

// Heads that lie apart in o: the same values, and nothing between them is touched.
BackendTest(attention, writes_between_other_columns)
{
    enum { STRIDE = DIM + 2, WIDE = HEADS * STRIDE + 3 };
    small_case s;
    float together[BIG], apart[BIG];
    if (!open_small(&s, p->backend)) return;
    const spops_matrix q = dense(s.q);
    spops_matrix o = dense(s.o);
    test_expect_ok(s.d.ctx, spops_attention_execute(s.d.ctx, s.plan, q, q, q, &s.options, o, NULL),
                   "together");
    test_wait(&s.d);
    fetch(&s, s.o, together);
    cr_assert(device_upload(s.d.backend, s.o, s.before, sizeof s.before), "%s", device_error());
    o.row_stride = WIDE;
    s.options.o_head_stride = STRIDE;
    test_expect_ok(s.d.ctx, spops_attention_execute(s.d.ctx, s.plan, q, q, q, &s.options, o, NULL),
                   "apart");
    test_wait(&s.d);
    fetch(&s, s.o, apart);
    for (int i = 0; i < BIG; ++i) {
        const int row = i / WIDE, head = i % WIDE / STRIDE, c = i % WIDE % STRIDE;
        const bool is_o = row < ROWS && head < HEADS && c < DIM;
        const float expected = is_o ? together[row * COLS + head * DIM + c] : s.before[i];
        cr_assert_eq(apart[i], expected, "element %d is %g, expected %g", i, (double)apart[i],
                     (double)expected);
    }
    for (int c = 0; c < COLS; ++c) // a patch of one row, and a row in none
        cr_assert(together[4 * COLS + c] == s.host_q[4 * COLS + c] && together[5 * COLS + c] == 0);
    close_small(&s);
}

// Of no rows there is nothing to write but the gradient of a table, which is 0.
BackendTest(attention, of_no_rows)
{
    static const int32_t offsets[] = {0};
    float ones[9 * HEADS], table[9 * HEADS];
    const spops_matrix none = spops_matrix_dense(NULL, 0, COLS, SPOPS_DTYPE_F32);
    spops_attention_options options = spops_attention_options_default();
    spops_attention_bias bias = spops_attention_bias_default();
    spops_patches *plan = NULL;
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    for (int i = 0; i < 9 * HEADS; ++i)
        ones[i] = 1.0f;
    int32_t *there = test_upload_i32(&d, offsets, 1);
    float *table_there = test_upload_f32(&d, ones, 9 * HEADS);
    float *grad_there = test_upload_f32(&d, ones, 9 * HEADS);
    const spops_matrix grad = spops_matrix_dense(grad_there, 9, HEADS, SPOPS_DTYPE_F32);
    const spops_patch_lists lists = {0, there, NULL, NULL, NULL, 0};
    options.heads = HEADS;
    options.bias = &bias;
    bias.coords = spops_matrix_dense(NULL, 0, 3, SPOPS_DTYPE_I32);
    bias.table = spops_matrix_dense(table_there, 9, HEADS, SPOPS_DTYPE_F32);
    test_expect_ok(d.ctx, spops_patches_create(d.ctx, 0, &lists, &plan), "plan");
    test_expect_ok(d.ctx, spops_attention_reserve(d.ctx, plan, COLS, SPOPS_DTYPE_F32, &options, 1),
                   "reserve");
    test_expect_ok(d.ctx,
                   spops_attention_execute(d.ctx, plan, none, none, none, &options, none, NULL),
                   "forward");
    test_expect_ok(d.ctx,
                   spops_attention_execute_backward(d.ctx, plan, none, none, none, none, none, NULL,
                                                    &options, &none, &none, &none, &grad, NULL,
                                                    NULL),
                   "backward");
    test_wait(&d);
    cr_assert(device_download(d.backend, table, grad_there, sizeof table), "%s", device_error());
    for (int i = 0; i < 9 * HEADS; ++i)
        cr_assert_eq(table[i], 0.0f, "element %d is %g", i, (double)table[i]);
    spops_patches_destroy(plan);
    test_free(&d, there), test_free(&d, table_there), test_free(&d, grad_there);
    test_close(&d);
}

// Keys that are less alike count more: as with queries of the other sign.
BackendTest(attention, scale_may_be_negative)
{
    small_case s;
    float turned[BIG], got[2][BIG];
    if (!open_small(&s, p->backend)) return;
    for (int i = 0; i < BIG; ++i)
        turned[i] = -s.host_q[i];
    cr_assert(device_upload(s.d.backend, s.place, turned, sizeof turned), "%s", device_error());
    for (int i = 0; i < 2; ++i) {
        s.options.scale = i ? -0.75f : 0.75f;
        test_expect_ok(s.d.ctx,
                       spops_attention_execute(s.d.ctx, s.plan, dense(i ? s.q : s.place),
                                               dense(s.q), dense(s.q), &s.options, dense(s.o),
                                               NULL),
                       "scale");
        test_wait(&s.d);
        fetch(&s, s.o, got[i]);
    }
    for (int i = 0; i < ROWS * COLS; ++i)
        cr_assert_float_eq(got[0][i], got[1][i], 1e-5, "element %d: %g, expected %g", i,
                           (double)got[1][i], (double)got[0][i]);
    close_small(&s);
}

// A plan that is refilled, with room to spare, gives what a plan made to measure gives.
BackendTest(attention, runs_on_refilled_patches)
{
    enum { GRADS = 3 * ROWS * COLS };
    static const int32_t q_offsets[][4] = {{0, 2, 2, 5}, {0, 6, 6, 6}, {0, 1, 4, 4}};
    static const int32_t k_offsets[][4] = {{0, 4, 5, 7}, {0, 0, 3, 3}, {0, 3, 7, 9}};
    static const int32_t q_rows[] = {5, 0, 3, 1, 4, 2}, k_rows[] = {1, 1, 5, 3, 0, 2, 4, 5, 3};
    spops_patches_capacity shape = spops_patches_capacity_default();
    spops_patches *refilled = NULL;
    small_case s;
    float measured[3][BIG], got[3][BIG];
    if (!open_small(&s, p->backend)) return;
    spops_context *ctx = s.d.ctx;
    shape.num_rows = ROWS;
    shape.max_patches = 9;
    shape.max_queries = 40;
    shape.max_keys = 50;
    test_expect_ok(ctx, spops_patches_reserve(ctx, &shape, &refilled), "reserve");
    s.options.heads = HEADS;
    test_expect_ok(ctx,
                   spops_attention_reserve(ctx, refilled, COLS, SPOPS_DTYPE_F32, &s.options, 1),
                   "reserve");
    for (int set = 0; set < 3; ++set) {
        int32_t *arrays[] = {
            test_upload_i32(&s.d, q_offsets[set], 4), test_upload_i32(&s.d, q_rows, 6),
            test_upload_i32(&s.d, k_offsets[set], 4), test_upload_i32(&s.d, k_rows, 9)};
        const spops_patch_lists lists = {3, arrays[0], arrays[1], arrays[2], arrays[3], 0};
        spops_patches *made = NULL;
        test_expect_ok(ctx, spops_patches_create(ctx, ROWS, &lists, &made), "create");
        test_expect_ok(ctx, spops_patches_update(ctx, refilled, NULL, &lists), "set");
        for (int plan = 0; plan < 2; ++plan) {
            const spops_patches *patches = plan ? refilled : made;
            float(*to)[BIG] = plan ? got : measured;
            const spops_matrix q = dense(s.q), o = dense(s.o), g = dense(s.q + ROWS * COLS);
            spops_matrix grads[3];
            for (int i = 0; i < 3; ++i)
                grads[i] = dense(s.place + i * ROWS * COLS);
            cr_assert(device_upload(s.d.backend, s.o, s.before, sizeof s.before));
            cr_assert(device_upload(s.d.backend, s.place, s.before, sizeof s.before));
            test_expect_ok(
                ctx, spops_attention_execute(ctx, patches, q, q, q, &s.options, o, s.lse), "o");
            test_expect_ok(ctx,
                           spops_attention_execute_backward(ctx, patches, g, q, q, q, o, s.lse,
                                                            &s.options, &grads[0], &grads[1],
                                                            &grads[2], NULL, NULL, NULL),
                           "gradients");
            test_wait(&s.d);
            fetch(&s, s.o, to[0]), fetch(&s, s.lse, to[1]), fetch(&s, s.place, to[2]);
        }
        for (int i = 0; i < ROWS * COLS; ++i)
            cr_assert(got[0][i] == measured[0][i], "set %d: o[%d]", set, i);
        for (int i = 0; i < ROWS * HEADS; ++i)
            cr_assert(got[1][i] == measured[1][i], "set %d: lse[%d]", set, i);
        for (int i = 0; i < GRADS; ++i)
            cr_assert(got[2][i] == measured[2][i], "set %d: gradient %d", set, i);
        spops_patches_destroy(made);
        for (int i = 0; i < 4; ++i)
            test_free(&s.d, arrays[i]);
    }
    spops_patches_destroy(refilled);
    close_small(&s);
}

// Every refusal: its message, and nothing written.
// What the rows cannot say; tests/test_operators.c has the faults of arguments.
BackendTest(attention, refuses)
{
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    small_case s;
    float after[BIG];
    if (!open_small(&s, p->backend)) return;
    const spops_matrix q = dense(s.q), o = dense(s.o);
    spops_attention_rotary rotary = spops_attention_rotary_default();
    spops_attention_bias bias = spops_attention_bias_default();
    spops_attention_norm norm = spops_attention_norm_default();
    spops_context *ctx = s.d.ctx;
    spops_matrix m;

#define FORWARD(q_, k_, v_, o_, lse_, status_, fragment_)                                          \
    test_expect(ctx,                                                                               \
                spops_attention_execute(ctx, s.plan, (q_), (k_), (v_), &s.options, (o_), (lse_)),  \
                (status_), (fragment_), #fragment_)
    m = q, m.cols = 0;
    FORWARD(m, m, m, o, NULL, invalid, "q has 0 columns, expected a multiple of 2 heads");
    m = q, m.cols = COLS - 1;
    FORWARD(m, m, m, o, NULL, invalid, "q has 11 columns, expected a multiple of 2 heads");
    m = q, m.cols = m.row_stride = 514;
    FORWARD(m, m, m, o, NULL, SPOPS_STATUS_NOT_SUPPORTED,
            "q has 257 columns a head, expected 1 to 256");
    s.options.qkv_head_stride = DIM - 1;
    FORWARD(q, q, q, o, NULL, invalid, "options->qkv_head_stride is 5, expected 6 to");
    s.options.qkv_head_stride = 3 * DIM;
    FORWARD(q, q, q, o, NULL, invalid,
            "q.row_stride is 12, less than 24, where the last of its heads ends");
    s.options.qkv_head_stride = 0;
    s.options.o_head_stride = 1;
    FORWARD(q, q, q, o, NULL, invalid, "options->o_head_stride is 1, expected 6 to");
    s.options.o_head_stride = 0;
    s.options.tile = 1000;
    FORWARD(q, q, q, o, NULL, invalid, "options->tile is 1000, expected that of a kernel for this");
    s.options.tile = 0;
    s.options.kv_heads = -1;
    FORWARD(q, q, q, o, NULL, invalid, "options->kv_heads is -1, expected a divisor of 2 heads");
    s.options.kv_heads = 4;
    FORWARD(q, q, q, o, NULL, invalid, "options->kv_heads is 4, expected a divisor of 2 heads");
    s.options.kv_heads = 1;
    FORWARD(q, q, q, o, NULL, invalid, "k is [6, 12], expected [6, 6]");
    s.options.kv_heads = 0;
    s.options.struct_size = 4;
    FORWARD(q, q, q, o, NULL, invalid, "struct_size is 4");
    s.options.struct_size = sizeof s.options;

    s.options.rotary = &rotary;
    rotary.coords = spops_matrix_dense(s.place, ROWS, 3, SPOPS_DTYPE_I32);
    rotary.base = -1.0f;
    FORWARD(q, q, q, o, NULL, invalid, "options->rotary->base is -1, expected more than 0");
    rotary.base = 0.0f;
    rotary.axis_dim = 3;
    FORWARD(q, q, q, o, NULL, invalid, "options->rotary->axis_dim is 3, expected an even number");
    rotary.axis_dim = 4;
    FORWARD(q, q, q, o, NULL, invalid, "axis_dim is 4, expected an even number up to 2");
    rotary.axis_dim = 0;
    rotary.struct_size = 3;
    FORWARD(q, q, q, o, NULL, invalid, "options->rotary: struct_size is 3");
    rotary.struct_size = sizeof rotary;
    s.options.heads = 3;
    FORWARD(q, q, q, o, NULL, invalid, "q has 4 columns a head, expected a multiple of 6");
    s.options.heads = HEADS;
    s.options.rotary = NULL;

    s.options.bias = &bias;
    bias.coords = spops_matrix_dense(s.place, ROWS, 3, SPOPS_DTYPE_I32);
    bias.table = spops_matrix_dense(s.q, 4, HEADS, SPOPS_DTYPE_F32);
    FORWARD(q, q, q, o, NULL, invalid, "bias_table has 4 rows, expected 3 *");
    bias.table = spops_matrix_dense(s.q, 9, HEADS, SPOPS_DTYPE_F32);
    bias.struct_size = sizeof bias + 1;
    FORWARD(q, q, q, o, NULL, invalid, "options->bias: struct_size is");
    bias.struct_size = sizeof bias;
    s.options.bias = NULL;

    s.options.norm = &norm;
    norm.epsilon = -1.0f;
    FORWARD(q, q, q, o, NULL, invalid, "options->norm->epsilon is -1, expected 0 or more");
    norm.epsilon = NAN;
    FORWARD(q, q, q, o, NULL, invalid, "options->norm->epsilon is nan, expected 0 or more");
    norm.epsilon = 0.0f;
    norm.q_weight = spops_matrix_dense(s.q, 3, DIM, SPOPS_DTYPE_F32);
    FORWARD(q, q, q, o, NULL, invalid, "q_weight is [3, 6], expected [2, 6]");
    norm.q_weight = spops_matrix_dense(s.q, 1, DIM + 1, SPOPS_DTYPE_F32);
    FORWARD(q, q, q, o, NULL, invalid, "q_weight is [1, 7], expected [1, 6]");
    norm.q_weight = spops_matrix_dense(NULL, 0, 0, SPOPS_DTYPE_F32);
    norm.k_weight = spops_matrix_dense(s.q, HEADS, DIM, SPOPS_DTYPE_F16);
    FORWARD(q, q, q, o, NULL, invalid, "k_weight.dtype is f16");
    norm.struct_size = 5;
    FORWARD(q, q, q, o, NULL, invalid, "options->norm: struct_size is 5");
    s.options.norm = NULL;

    m = q, m.dtype = (spops_dtype)77;
    test_expect(ctx,
                spops_attention_execute_backward(ctx, s.plan, q, m, q, q, q, s.lse, &s.options, &o,
                                                 NULL, NULL, NULL, NULL, NULL),
                invalid, "q.dtype is 77, which is no dtype", "no dtype");
    bias.coords.rows = ROWS;
    s.options.bias = &bias;
    if (spops_attention_scratch_bytes(s.plan, COLS, SPOPS_DTYPE_F32, &s.options, 1) > 0) {
        m = spops_matrix_dense(s.o, 9, HEADS, SPOPS_DTYPE_F32);
        test_expect(ctx,
                    spops_attention_execute_backward(ctx, s.plan, q, q, q, q, q, s.lse, &s.options,
                                                     NULL, NULL, NULL, &m, NULL, NULL),
                    SPOPS_STATUS_SCRATCH_TOO_SMALL, ": call spops_attention_reserve", "no scratch");
    }
#undef FORWARD
#define RESERVE(ctx, plan, backward, wanted)                                                       \
    test_expect(ctx,                                                                               \
                spops_attention_reserve(ctx, plan, COLS, SPOPS_DTYPE_F32, &s.options, backward),   \
                SPOPS_STATUS_INVALID_ARGUMENT, wanted, wanted)
    RESERVE(ctx, NULL, 0, "attention_reserve: patches is NULL");
    RESERVE(ctx, s.plan, 2, "attention_reserve: backward is 2, expected 0 or 1");
    s.options.heads = -7; // as the call itself would refuse
    RESERVE(ctx, s.plan, 0, "attention_reserve: options->heads is -7, expected 1 to 1024");
#undef RESERVE
    cr_assert_eq(spops_attention_scratch_bytes(s.plan, COLS, SPOPS_DTYPE_F32, &s.options, 1), 0);
    cr_assert_not_null(strstr(spops_last_error(NULL), "options->heads is -7, expected 1 to 1024"));
    cr_assert_eq(spops_attention_scratch_bytes(NULL, COLS, SPOPS_DTYPE_F32, NULL, 1), 0);
    test_wait(&s.d);
    fetch(&s, s.o, after);
    cr_assert_arr_eq(after, s.before, sizeof after);
    fetch(&s, s.lse, after);
    cr_assert_arr_eq(after, s.before, sizeof after);
    close_small(&s);
}
