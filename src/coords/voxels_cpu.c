// SPDX-License-Identifier: Apache-2.0
// Points and voxels on the CPU: which points of a voxel count, and which voxels a point takes.
#include <string.h>

#include "backends/backend_cpu.h"
#include "coords/coord_index_cpu.h"
#include "coords/points_cpu.h"
#include "core/half.h"
#include "core/threads.h"

static int64_t points_in_use(const spops_coords_source *source)
{
    int64_t n = source->max_items;
    if (source->num_items != NULL && *source->num_items < n)
        n = *source->num_items < 0 ? 0 : *source->num_items;
    return n;
}

// ---- Points of voxels ---------------------------------------------------------------------------

// What the smallest of a voxel's points wins by, the earliest of equals.
static uint64_t rank_of(const spops_voxel_points_args *args, int64_t i, int32_t voxel)
{
    const spops_coords_source *source = args->source;
    const spops_coords_arrays *coords = args->coords;
    const int32_t *row = coords->rows + (int64_t)voxel * (source->dims + 1);
    float wide[SPOPS_MAX_DIMS];
    const float *p = spops_point_of(source, i, wide);
    double distance2 = 0.0;
    uint64_t rank;
    if (args->points == SPOPS_VOXEL_POINTS_FIRST) return (uint64_t)i;
    if (args->points == SPOPS_VOXEL_POINTS_RANDOM)
        return (uint64_t)spops_voxel_hash(args->seed, (uint32_t)i);
    for (int a = 0; a < source->dims; ++a) {
        const double u = spops_voxel_position(p[a], source->origin[a], source->size[a], 0.0);
        distance2 = SPOPS_ADD_F64(distance2, spops_voxel_distance2(u, row[a + 1], source->size[a]));
    }
    memcpy(&rank, &distance2, sizeof rank); // not negative: ordered as its bits are
    return rank;
}

static void keys_of_chosen(const void *work, int64_t begin, int64_t end)
{
    const spops_voxel_points_args *args = (const spops_voxel_points_args *)work;
    const int32_t *item_row = args->coords->item_row;
    for (int64_t i = begin; i < end; ++i) {
        const int32_t voxel = item_row[i];
        args->keys[i] = voxel >= 0 && args->chosen[voxel] == i ? voxel : -1;
    }
}

// Several points of a voxel: those of the least ranks, which have the point's number below.
static uint64_t numbered_rank(const spops_voxel_points_args *args, int64_t i)
{
    if (args->points == SPOPS_VOXEL_POINTS_FIRST) return (uint64_t)i;
    return (uint64_t)spops_voxel_hash(args->seed, (uint32_t)i) << 32 | (uint64_t)i;
}

static void keys_of_ranks(const void *work, int64_t begin, int64_t end)
{
    const spops_voxel_points_args *args = (const spops_voxel_points_args *)work;
    const int64_t most = args->most_points;
    for (int64_t i = begin; i < end; ++i) {
        const int32_t voxel = args->coords->item_row[i];
        const bool counts =
            voxel >= 0 && numbered_rank(args, i) <= args->ranks[voxel * most + most - 1];
        args->keys[i] = counts ? voxel : -1;
    }
}

static void take_several(spops_context *ctx, const spops_voxel_points_args *args)
{
    const int64_t n = args->source->max_items, num_voxels = args->coords->max_rows;
    const int64_t most = args->most_points;

    memset(args->num_points, 0, (size_t)num_voxels * sizeof *args->num_points);
    for (int64_t k = 0; k < num_voxels * most; ++k)
        args->ranks[k] = UINT64_MAX;
    for (int64_t i = 0; i < n; ++i) {
        const int32_t voxel = args->coords->item_row[i];
        if (voxel < 0) continue;
        const uint64_t rank = numbered_rank(args, i);
        uint64_t *ranks = args->ranks + voxel * most;
        int64_t at = args->num_points[voxel]++;
        if (at >= most) {
            if (rank > ranks[most - 1]) continue;
            at = most - 1;
        }
        for (; at > 0 && ranks[at - 1] > rank; --at)
            ranks[at] = ranks[at - 1];
        ranks[at] = rank;
    }
    for (int64_t v = 0; v < num_voxels; ++v)
        args->chosen[v] = args->num_points[v] > 0 ? (int32_t)(uint32_t)args->ranks[v * most] : -1;
    spops_parallel_for(spops_team_for(ctx, n), n, 0, keys_of_ranks, args);
}

static void count_points(const void *work, int64_t begin, int64_t end)
{
    const spops_voxel_points_args *args = (const spops_voxel_points_args *)work;
    const int32_t *offsets = args->point_offsets;
    for (int64_t v = begin; v < end; ++v)
        args->num_points[v] = offsets[v + 1] - offsets[v];
}

spops_status spops_cpu_voxel_points(spops_context *ctx, const spops_voxel_points_args *args)
{
    const spops_coords_arrays *coords = args->coords;
    const int32_t *item_row = coords->item_row;
    const int64_t n = args->source->max_items, num_voxels = coords->max_rows;
    uint64_t *best = args->ranks;

    if (args->point_offsets != NULL) {
        spops_parallel_for(spops_team_for(ctx, num_voxels), num_voxels, 0, count_points, args);
        return SPOPS_STATUS_OK;
    }
    if (args->most_points > 1 && num_voxels > 0) {
        take_several(ctx, args);
        return SPOPS_STATUS_OK;
    }
    // Counting goes from point to voxel in one thread: it costs a fraction of what brought the
    // points here, and needs no atomic operations.
    if (num_voxels > 0) memset(args->num_points, 0, (size_t)num_voxels * sizeof *args->num_points);
    for (int64_t i = 0; i < n; ++i)
        if (item_row[i] >= 0) ++args->num_points[item_row[i]];
    if (args->points == SPOPS_VOXEL_POINTS_ALL) return SPOPS_STATUS_OK;

    for (int64_t v = 0; v < num_voxels; ++v) {
        best[v] = UINT64_MAX;
        args->chosen[v] = -1;
    }
    for (int64_t i = 0; i < n; ++i) {
        const int32_t voxel = item_row[i];
        if (voxel < 0) continue;
        const uint64_t rank = rank_of(args, i, voxel);
        if (rank >= best[voxel]) continue;
        best[voxel] = rank;
        args->chosen[voxel] = (int32_t)i;
    }
    spops_parallel_for(spops_team_for(ctx, n), n, 0, keys_of_chosen, args);
    return SPOPS_STATUS_OK;
}

// ---- Voxels of points ---------------------------------------------------------------------------

// Where a point lies on each axis: the coordinate below it, and how far it is on the way to the
// next. False if it has no voxels.
static bool place_point(const spops_devoxelize_args *args, int64_t i, int32_t *below, double *on)
{
    const spops_coords_source *source = args->source;
    const double shift = args->interpolation == SPOPS_DEVOXELS_INTERPOLATION_LINEAR ? 0.5 : 0.0;
    float wide[SPOPS_MAX_DIMS];
    const float *p = spops_point_of(source, i, wide);
    for (int a = 0; a < source->dims; ++a) {
        const double u = spops_voxel_position(p[a], source->origin[a], source->size[a], shift);
        if (!spops_voxel_floor(u, &below[a])) return false;
        on[a] = SPOPS_ADD_F64(u, -(double)below[a]);
    }
    return true;
}

static double corner_weight(const spops_devoxelize_args *args, int32_t corner, const double *on)
{
    const int dims = args->source->dims;
    double weight = 1.0;
    if (args->interpolation == SPOPS_DEVOXELS_INTERPOLATION_NEAREST) return weight;
    for (int a = 0; a < dims; ++a)
        weight = SPOPS_MUL_F64(weight,
                               corner >> (dims - 1 - a) & 1 ? on[a] : SPOPS_ADD_F64(1.0, -on[a]));
    return weight;
}

static uint64_t corner_key(const spops_devoxelize_args *args, int32_t batch, int32_t corner,
                           const int32_t *below)
{
    const spops_key_layout *layout = &args->coords->layout;
    const int dims = layout->dims;
    uint64_t key;
    if (!spops_key_fits(layout, 0, batch)) return SPOPS_KEY_NONE;
    key = spops_key_column(layout, 0, batch);
    for (int a = 0; a < dims; ++a) {
        const int64_t v = (int64_t)below[a] + (corner >> (dims - 1 - a) & 1);
        if (!spops_key_fits(layout, a + 1, v)) return SPOPS_KEY_NONE;
        key |= spops_key_column(layout, a + 1, v);
    }
    return key;
}

static void devoxelize_point(const spops_devoxelize_args *args, const spops_cpu_index *index,
                             int64_t i)
{
    const int32_t batch = args->source->batch != NULL ? args->source->batch[i] : 0;
    int32_t *voxels = args->voxels + i * args->corners;
    float *weights = args->weights + i * args->corners;
    double exact[1 << SPOPS_MAX_DIMS], on[SPOPS_MAX_DIMS], sum = 0.0;
    int32_t below[SPOPS_MAX_DIMS];
    const bool placed = place_point(args, i, below, on);

    for (int32_t c = 0; c < args->corners; ++c) {
        uint64_t key;
        exact[c] = placed ? corner_weight(args, c, on) : 0.0;
        key = exact[c] > 0.0 ? corner_key(args, batch, c, below) : SPOPS_KEY_NONE;
        voxels[c] =
            key == SPOPS_KEY_NONE ? -1 : spops_index_find(index, &args->coords->layout, key);
        if (voxels[c] < 0) exact[c] = 0.0;
        sum = SPOPS_ADD_F64(sum, exact[c]);
        args->points[i * args->corners + c] = (int32_t)i;
    }
    for (int32_t c = 0; c < args->corners; ++c)
        weights[c] =
            (float)(args->missing == SPOPS_DEVOXELS_MISSING_RESCALE && sum > 0.0 ? exact[c] / sum
                                                                                 : exact[c]);
}

typedef struct devoxelize_work {
    const spops_devoxelize_args *args;
    spops_cpu_index index;
    int64_t used;
} devoxelize_work;

static void devoxelize_range(const void *work, int64_t begin, int64_t end)
{
    const devoxelize_work *w = (const devoxelize_work *)work;
    const spops_devoxelize_args *args = w->args;
    for (int64_t i = begin; i < end; ++i) {
        if (i < w->used) {
            devoxelize_point(args, &w->index, i);
            continue;
        }
        for (int64_t t = i * args->corners; t < (i + 1) * args->corners; ++t) {
            args->points[t] = args->voxels[t] = -1;
            args->weights[t] = 0.0f;
        }
    }
}

spops_status spops_cpu_devoxelize(spops_context *ctx, const spops_devoxelize_args *args)
{
    const spops_coords_source *source = args->source;
    const int64_t n = source->max_items;
    const int64_t given = source->num_items == NULL ? n : *source->num_items;
    const int64_t terms = given * args->corners;
    const devoxelize_work work = {args, spops_cpu_index_made(ctx, args->coords),
                                  points_in_use(source)};

    spops_parallel_for(spops_team_for(ctx, n * args->corners), n, 0, devoxelize_range, &work);
    *args->num_terms = terms < 0 ? 0 : terms > INT32_MAX ? INT32_MAX : (int32_t)terms;
    return SPOPS_STATUS_OK;
}
