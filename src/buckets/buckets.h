// SPDX-License-Identifier: Apache-2.0
// Buckets: their arrays, what the backends build them from, and the hashes that both compute alike.
#ifndef SPOPS_BUCKETS_BUCKETS_H
#define SPOPS_BUCKETS_BUCKETS_H

#include <math.h>

#include "coords/coord_keys.h"
#include "points/point_rules.h"
#include "core/backend.h"
#include "core/plan.h"
#include "spops/buckets.h"

#ifdef __cplusplus
extern "C" {
#endif

// In backend memory.
typedef struct spops_buckets_state {
    int32_t num_rows, num_samples, num_buckets;
    int32_t num_placed[SPOPS_MAX_BUCKET_ROUNDS];
    int32_t num_late;
    int32_t num_not_finite, first_not_finite; // INT32_MAX: none
    int32_t bad_offsets;
    int32_t full_sample; // the first that has too many rows; INT32_MAX: none
} spops_buckets_state;

// What a row is hashed by; options, checked and with defaults filled in.
typedef struct spops_bucket_rule {
    int32_t bucket_rows, num_buckets; // num_buckets 0: by a sample's rows
    int32_t num_rounds, bits;
    int32_t hashes[SPOPS_MAX_BUCKET_ROUNDS];
    int32_t steps[SPOPS_MAX_BUCKET_ROUNDS][3];
    double size[3], origin[3];
} spops_bucket_rule;

typedef struct spops_buckets_arrays {
    spops_bucket_rule rule;
    int64_t max_rows, max_samples, max_buckets;
    int32_t most_buckets; // of a sample
    spops_buckets_state *state;
    int32_t *offsets;                     // [max_buckets + 1]
    int32_t *sample_buckets;              // [max_samples + 1]
    int32_t *rows, *places, *row_buckets; // [max_rows]
    uint64_t *codes;                      // [max_rows] Z-order codes of rows' cells
} spops_buckets_arrays;

typedef struct spops_buckets_args {
    const spops_buckets_arrays *arrays;
    const spops_point_cloud *cloud; // NULL: there are no rows
    void *workspace;                // buckets_workspace_bytes
} spops_buckets_args;

// Runs of sub_rows rows inside buckets, along the Z-order curve; ties by row.
typedef struct spops_sub_buckets_args {
    const spops_buckets_arrays *buckets;
    int32_t sub_rows;
    int32_t *rows;           // [max_rows] the row at each place of that order
    int32_t *subs;           // [max_rows] its sub-bucket
    int32_t *sample_offsets; // [max_samples + 1] the first sub-bucket of a sample
    void *workspace;         // sub_buckets_workspace_bytes
} spops_sub_buckets_args;

// Bits of what rows are sorted by: their bucket, then their code. 64 at most.
SPOPS_HD int spops_sub_bucket_bits(const spops_buckets_arrays *a)
{
    int bits = 1;
    while (a->max_buckets >> bits != 0)
        ++bits;
    return bits + 3 * a->rule.bits;
}

struct spops_buckets {
    spops_plan base;
    spops_buckets_arrays arrays;
};

// Sizes and origin of cells from options, and a cloud of f32 or i32, are right in themselves.
spops_status spops_bucket_rule_set_cells(spops_context *ctx, const char *call,
                                         const double size_m[3], const double origin_m[3],
                                         spops_bucket_rule *rule);
spops_status spops_buckets_check_cloud(spops_context *ctx, const char *call,
                                       const spops_point_cloud *cloud);

// Buckets of a sample with so many rows.
SPOPS_HD int32_t spops_buckets_of(const spops_bucket_rule *rule, int32_t num_rows)
{
    return rule->num_buckets > 0
               ? rule->num_buckets
               : (int32_t)(((int64_t)num_rows + rule->bucket_rows - 1) / rule->bucket_rows);
}

// The cell of a coordinate along one axis, before steps: far outside of any that counts where the
// coordinate is. `p` is finite.
SPOPS_HD int32_t spops_bucket_cell(const spops_bucket_rule *rule, int axis, double p)
{
    const double u = SPOPS_ADD_F64(p, -rule->origin[axis]) / rule->size[axis];
    if (u < -1e9) return -1000000000;
    if (u > 1e9) return 1000000000;
    return (int32_t)floor(u);
}

// Whether the coordinates of a row of points, f32 or i32, are numbers.
SPOPS_HD int spops_bucket_row_is_finite(const spops_matrix *points, int64_t row)
{
    const float *p = (const float *)points->data + row * points->row_stride;
    return points->dtype != SPOPS_DTYPE_F32 ||
           (spops_is_finite(p[0]) && spops_is_finite(p[1]) && spops_is_finite(p[2]));
}

// The cell of a row of points; 0 on every axis where a coordinate is no number.
SPOPS_HD void spops_bucket_row_cell(const spops_bucket_rule *rule, const spops_matrix *points,
                                    int64_t row, int32_t v[3])
{
    const float *p = (const float *)points->data + row * points->row_stride;
    const int32_t *c = (const int32_t *)points->data + row * points->row_stride;
    const int real = points->dtype == SPOPS_DTYPE_F32;
    const int finite = spops_bucket_row_is_finite(points, row);
    for (int a = 0; a < 3; ++a)
        v[a] = finite ? spops_bucket_cell(rule, a, real ? (double)p[a] : (double)c[a]) : 0;
}

// Bits of v at every third place.
SPOPS_HD uint64_t spops_bucket_spread(uint32_t v)
{
    uint64_t x = v & 0xffff;
    x = (x | x << 16) & 0x0000ff0000ffull;
    x = (x | x << 8) & 0x00f00f00f00full;
    x = (x | x << 4) & 0x0c30c30c30c3ull;
    return (x | x << 2) & 0x249249249249ull;
}

// The Z-order code of cells v of 2^bits a side, or of the nearest ones.
SPOPS_HD uint64_t spops_bucket_zorder(const uint32_t v[3])
{
    return spops_bucket_spread(v[0]) << 2 | spops_bucket_spread(v[1]) << 1 |
           spops_bucket_spread(v[2]);
}

SPOPS_HD uint32_t spops_bucket_clamp(const spops_bucket_rule *rule, int32_t v)
{
    const int32_t last = (int32_t)(1u << rule->bits) - 1;
    return (uint32_t)(v < 0 ? 0 : v > last ? last : v);
}

// The bucket that a round names for a row in cell v, of num_buckets.
SPOPS_HD int32_t spops_bucket_hash_of(const spops_bucket_rule *rule, int round, const int32_t v[3],
                                      int32_t num_buckets)
{
    const uint64_t k = (uint64_t)num_buckets;
    uint32_t c[3], x;
    for (int a = 0; a < 3; ++a)
        c[a] = spops_bucket_clamp(rule, v[a] + rule->steps[round][a]);
    x = c[0] ^ c[1] ^ c[2];
    switch (rule->hashes[round]) {
    case SPOPS_BUCKET_HASH_XOR_MOD: return (int32_t)(x % (uint32_t)num_buckets);
    case SPOPS_BUCKET_HASH_XOR_DIV: return (int32_t)(x * k >> rule->bits);
    case SPOPS_BUCKET_HASH_ZORDER_MOD: return (int32_t)(spops_bucket_zorder(c) % k);
    default: return (int32_t)(spops_bucket_zorder(c) * k >> 3 * rule->bits);
    }
}

#ifdef __cplusplus
}
#endif

#endif
