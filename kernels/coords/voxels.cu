// SPDX-License-Identifier: Apache-2.0
// Points and voxels on the GPU: which of a voxel's points count, and which voxels surround a point.
#include "kernels/coords/coord_index.cuh"
#include "kernels/coords/coords_source.cuh"

namespace
{

using spops::blocks_for;
using spops::coord_index;
using spops::launch;
using spops::WAITS_FOR_PREVIOUS;

constexpr int threads = 256;

// ---- Points of voxels ---------------------------------------------------------------------------

struct voxel_params {
    spops_coords_source source;
    spops_voxel_points points;
    uint32_t seed;
    int32_t most_points;
    int64_t max_rows;
    const int32_t *num_rows;
    const int32_t *rows, *row_item, *item_row;
    int32_t *num_points, *chosen, *keys;
    unsigned long long *nearest; // [max_rows][most_points]
    int32_t columns;
};

__global__ void __launch_bounds__(threads) start_voxels(const __grid_constant__ voxel_params p)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int64_t r = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (r >= p.max_rows) return;
    p.num_points[r] = 0;
    if (p.points == SPOPS_VOXEL_POINTS_ALL) return;
    const bool used = r < *p.num_rows;
    if (p.most_points > 1) {
        for (int32_t k = 0; k < p.most_points; ++k)
            p.nearest[r * p.most_points + k] = ~0ull;
        p.chosen[r] = -1;
    } else if (p.points == SPOPS_VOXEL_POINTS_FIRST) {
        p.chosen[r] = used ? p.row_item[r] : -1;
    } else {
        p.nearest[r] = ~0ull;
        p.chosen[r] = -1; // rows in use get theirs in choose_points
    }
}

// What the smallest of a voxel's points wins by. NEAREST: the bits of its squared distance from the
// centre (not negative: ordered as they are). RANDOM: what it draws, then the point's number.
__device__ unsigned long long point_rank(const voxel_params &p, int64_t i, int32_t r)
{
    if (p.points == SPOPS_VOXEL_POINTS_FIRST) return (unsigned long long)i;
    if (p.points == SPOPS_VOXEL_POINTS_RANDOM)
        return (unsigned long long)spops_voxel_hash(p.seed, (uint32_t)i) << 32 |
               (unsigned long long)i;
    const int32_t *row = p.rows + (int64_t)r * p.columns;
    double sum = 0.0;
    for (int a = 0; a < p.source.dims; ++a) {
        const double u = spops_voxel_position(spops::source_point(p.source, i, a),
                                              p.source.origin[a], p.source.size[a], 0.0);
        sum = SPOPS_ADD_F64(sum, spops_voxel_distance2(u, row[a + 1], p.source.size[a]));
    }
    return (unsigned long long)__double_as_longlong(sum);
}

// Into a voxel's places, which ascend: at each the lesser rank stays and the greater goes on to the next.
// Whatever the order of threads, place k is left with the (k + 1)-th least rank of all.
__device__ void enter_rank(const voxel_params &p, unsigned long long rank, int32_t r)
{
    unsigned long long *const places = p.nearest + (int64_t)r * p.most_points;
    // The last place only falls: what is greater now has no place in the end.
    if (rank > spops::load_relaxed((const uint64_t *)places + p.most_points - 1)) return;
    for (int32_t k = 0; k < p.most_points; ++k) {
        const unsigned long long before = atomicMin(places + k, rank);
        if (before == ~0ull) return;
        if (before > rank) rank = before;
    }
}

__global__ void __launch_bounds__(threads) count_points(const __grid_constant__ voxel_params p)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i >= p.source.max_items) return;
    const int32_t r = p.item_row[i];
    if (r >= 0) {
        atomicAdd(p.num_points + r, 1);
        if (p.most_points > 1)
            enter_rank(p, point_rank(p, i, r), r);
        else if (p.points >= SPOPS_VOXEL_POINTS_NEAREST)
            atomicMin(p.nearest + r, point_rank(p, i, r));
    }
    if (p.points == SPOPS_VOXEL_POINTS_FIRST && p.most_points == 1)
        p.keys[i] = r >= 0 && p.row_item[r] == i ? r : -1;
}

// Point i has the key of voxel r if it is the earliest of those as near as it to the centre of voxel r. The
// key of a later one, which has been written before it was found here, is taken back.
__device__ void take_nearest(const voxel_params &p, int32_t i, int32_t r)
{
    p.keys[i] = r;
    __threadfence();
    const uint32_t before = atomicMin((uint32_t *)p.chosen + r, (uint32_t)i); // -1 is the largest
    __threadfence();
    if (before < (uint32_t)i)
        p.keys[i] = -1;
    else if (before != UINT32_MAX)
        p.keys[before] = -1;
}

// The points that won, now that all have been looked at.
__global__ void __launch_bounds__(threads) choose_points(const __grid_constant__ voxel_params p)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i >= p.source.max_items) return;
    const int32_t r = p.item_row[i];
    if (p.most_points > 1) {
        p.keys[i] = -1;
        if (r < 0) return;
        const unsigned long long *const places = p.nearest + (int64_t)r * p.most_points;
        const unsigned long long rank = point_rank(p, i, r);
        if (rank <= places[p.most_points - 1]) p.keys[i] = r;
        if (rank == places[0]) p.chosen[r] = (int32_t)i;
        return;
    }
    if (p.points == SPOPS_VOXEL_POINTS_NEAREST) {
        if (r >= 0 && p.nearest[r] == point_rank(p, i, r))
            take_nearest(p, (int32_t)i, r);
        else
            p.keys[i] = -1;
        return;
    }
    const bool won = r >= 0 && (int64_t)(p.nearest[r] & 0xffffffffu) == i;
    p.keys[i] = won ? r : -1;
    if (won) p.chosen[r] = (int32_t)i;
}

// ---- Voxels of points ---------------------------------------------------------------------------

constexpr int max_corners = 1 << SPOPS_MAX_DIMS;

struct devoxel_params {
    spops_devoxelize_args args;
    spops_coords_source source;
    coord_index index;
};

// How many terms come, also where they are more than fit.
__device__ int32_t num_terms_of(const devoxel_params &p)
{
    const int64_t given =
        p.source.num_items != nullptr ? (int64_t)*p.source.num_items : p.source.max_items;
    const int64_t terms = given < 0 ? 0 : given * p.args.corners;
    return terms < INT32_MAX ? (int32_t)terms : INT32_MAX;
}

template <class Finder>
__global__ void __launch_bounds__(threads) devoxelize(const __grid_constant__ devoxel_params p)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const spops_coords_source &s = p.source;
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    const int corners = p.args.corners, dims = s.dims;
    const bool linear = p.args.interpolation == SPOPS_DEVOXELS_INTERPOLATION_LINEAR;
    double fraction[SPOPS_MAX_DIMS], weight[max_corners], sum = 0.0;
    int32_t low[SPOPS_MAX_DIMS], row[max_corners];

    if (i == 0) *p.args.num_terms = num_terms_of(p);
    if (i >= s.max_items) return;
    const bool used = i < spops::source_items(s.num_items, s.max_items);
    const int32_t batch = used && s.batch != nullptr ? s.batch[i] : 0;
    bool inside = used && spops_key_fits(&p.index.layout, 0, batch);
#pragma unroll
    for (int a = 0; a < SPOPS_MAX_DIMS; ++a) {
        fraction[a] = 0.0;
        low[a] = 0;
        if (a >= dims || !inside) continue;
        const double u = spops_voxel_position(spops::source_point(s, i, a), s.origin[a], s.size[a],
                                              linear ? 0.5 : 0.0);
        inside = spops_voxel_floor(u, &low[a]);
        fraction[a] = SPOPS_ADD_F64(u, -(double)low[a]);
    }
#pragma unroll
    for (int c = 0; c < max_corners; ++c) {
        if (c >= corners) break;
        bool fits = inside;
        double w = 1.0;
        uint64_t code = fits ? Finder::part(p.index, 0, batch) : 0;
#pragma unroll
        for (int a = 0; a < SPOPS_MAX_DIMS; ++a) {
            if (a >= dims || !fits) break;
            const int up = linear ? c >> (dims - 1 - a) & 1 : 0;
            const int64_t v = (int64_t)low[a] + up;
            if (linear) w = SPOPS_MUL_F64(w, up ? fraction[a] : SPOPS_ADD_F64(1.0, -fraction[a]));
            fits = spops_key_fits(&p.index.layout, a + 1, v);
            if (fits) code += Finder::part(p.index, a + 1, v);
        }
        row[c] = -1;
        if (fits && w != 0.0) row[c] = Finder::finish(p.index, code, Finder::begin(p.index, code));
        weight[c] = w;
        if (row[c] >= 0) sum = SPOPS_ADD_F64(sum, w);
    }
#pragma unroll
    for (int c = 0; c < max_corners; ++c) {
        if (c >= corners) break;
        const int64_t at = i * corners + c;
        const double w =
            p.args.missing == SPOPS_DEVOXELS_MISSING_RESCALE ? weight[c] / sum : weight[c];
        p.args.points[at] = used ? (int32_t)i : -1;
        p.args.voxels[at] = row[c];
        p.args.weights[at] = row[c] >= 0 ? (float)w : 0.0f;
    }
}

} // namespace

extern "C" spops_status spops_cuda_voxel_points(spops_context *ctx,
                                                const spops_voxel_points_args *args)
{
    const spops_coords_arrays *coords = args->coords;
    voxel_params p = {};
    p.source = *args->source;
    if (p.source.points.rows <= 1) p.source.points.row_stride = 0;
    p.points = args->points;
    p.seed = args->seed;
    p.max_rows = coords->max_rows;
    p.num_rows = &coords->state->num_rows;
    p.rows = coords->rows;
    p.row_item = coords->row_item;
    p.item_row = coords->item_row;
    p.num_points = args->num_points;
    p.chosen = args->chosen;
    p.keys = args->keys;
    p.most_points = args->most_points > 1 ? args->most_points : 1;
    p.nearest = (unsigned long long *)args->ranks;
    p.columns = 1 + coords->layout.dims;
    const dim3 blocks = blocks_for(p.source.max_items, threads);
    SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "voxels: start_voxels", start_voxels,
                                         blocks_for(p.max_rows, threads), threads, p));
    SPOPS_TRY(
        launch<WAITS_FOR_PREVIOUS>(ctx, "voxels: count_points", count_points, blocks, threads, p));
    if (p.points < SPOPS_VOXEL_POINTS_NEAREST && p.most_points == 1) return SPOPS_STATUS_OK;
    return launch<WAITS_FOR_PREVIOUS>(ctx, "voxels: choose_points", choose_points, blocks, threads,
                                      p);
}

extern "C" spops_status spops_cuda_devoxelize(spops_context *ctx, const spops_devoxelize_args *args)
{
    devoxel_params p = {};
    p.args = *args;
    p.source = *args->source;
    if (p.source.points.rows <= 1) p.source.points.row_stride = 0;
    p.index = spops::index_of(args->coords);
    // One block also without room for any point: it writes how many terms come.
    const dim3 blocks = blocks_for(p.source.max_items > 0 ? p.source.max_items : 1, threads);
    return spops::with_finder(p.index, [&](auto finder) {
        return launch<WAITS_FOR_PREVIOUS>(ctx, "devoxels: devoxelize", devoxelize<decltype(finder)>,
                                          blocks, threads, p);
    });
}
