// From the cell of every frustum point to the span form of a plan (core/bev_spans.h), on the
// stream. Scans and the sort are CUB's. Nothing depends on the order in which threads run: spans
// are numbered by tile and depth, cells by their first span.
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/block/block_scan.cuh>

#include <climits>

#include "kernels/core/launch.cuh"

namespace
{

using spops::bits_for;
using spops::blocks_for;
using spops::launch;
using spops::stream_of;

constexpr int threads = 256, warp = 32;
constexpr uint32_t whole_warp = 0xffffffffu;

// Cells are ordered by kind, and within one by their first span. SEVERAL and ONE lie in a single
// tile, with several spans or one.
enum { MULTI = 0, SEVERAL = 1, ONE = 2, num_kinds = 3 };

// The cell that begins with a provisional span, and its spans in sorted order.
struct cell_head {
    int32_t cell; // -1: no cell begins here
    int32_t first, count;
    int32_t kind;
};

// How many cells of each kind begin before a place.
struct kind_counts {
    int32_t n[num_kinds];
};
struct add_counts {
    __host__ __device__ kind_counts operator()(const kind_counts &a, const kind_counts &b) const
    {
        kind_counts sum;
        for (int k = 0; k < num_kinds; ++k)
            sum.n[k] = a.n[k] + b.n[k];
        return sum;
    }
};

// Bundles of each class of teams, and steps behind the first ones, before a bundle; and of itself.
struct bundle_counts {
    int32_t teams[SPOPS_BEV_NUM_TEAMS];
    int32_t more;
};
struct add_bundles {
    __host__ __device__ bundle_counts operator()(const bundle_counts &a,
                                                 const bundle_counts &b) const
    {
        bundle_counts sum;
        for (int c = 0; c < SPOPS_BEV_NUM_TEAMS; ++c)
            sum.teams[c] = a.teams[c] + b.teams[c];
        sum.more = a.more + b.more;
        return sum;
    }
};

// A span of the build, by itself.
struct loose_span {
    int32_t feature;
    int32_t plane; // tile * num_depths + depth
    uint32_t mask;
};

struct build_workspace {
    int32_t *plane_begin;     // [num_planes + 1] first provisional span of a tile at a depth
    uint32_t *cells[2];       // [max_spans] of provisional spans, double buffer of the sort
    int32_t *places[2];       // [max_spans]
    loose_span *loose;        // [max_spans] by tile and depth
    loose_span *sorted;       // [max_spans] by cell, then tile and depth
    cell_head *heads;         // [max_spans]
    kind_counts *before;      // [max_spans + 1]
    int4 *owners;             // [max_spans] cell, first sorted span, their count; by kind
    int32_t *tile_begin;      // [2][num_tiles + 1] first owner of a tile, of SEVERAL and ONE
    int32_t *group_begin;     // [2 * num_groups + 1] first bundle of a group of tiles
    bundle_counts *places_of; // [max_bundles + 1] in the plan, of a bundle
    int32_t *num_steps;       // [max_bundles]
    void *temp;               // of CUB
    size_t temp_bytes;
};

int64_t groups_of(const spops_bev_spans &s)
{
    return (s.num_tiles + s.group_tiles - 1) / s.group_tiles;
}

cudaError_t scan_planes(void *temp, size_t &bytes, int32_t *counts, int64_t n, cudaStream_t stream)
{
    return cub::DeviceScan::ExclusiveSum(temp, bytes, counts, counts, (int)n, stream);
}

cudaError_t scan_heads(void *temp, size_t &bytes, kind_counts *counts, int64_t n,
                       cudaStream_t stream)
{
    return cub::DeviceScan::ExclusiveScan(temp, bytes, counts, counts, add_counts(), kind_counts(),
                                          (int)n, stream);
}

cudaError_t scan_bundles(void *temp, size_t &bytes, bundle_counts *counts, int64_t n,
                         cudaStream_t stream)
{
    return cub::DeviceScan::ExclusiveScan(temp, bytes, counts, counts, add_bundles(),
                                          bundle_counts(), (int)n, stream);
}

cudaError_t sort_spans(void *temp, size_t &bytes, cub::DoubleBuffer<uint32_t> &cells,
                       cub::DoubleBuffer<int32_t> &places, int64_t n, int64_t num_cells,
                       cudaStream_t stream)
{
    return cub::DeviceRadixSort::SortPairs(temp, bytes, cells, places, (int)n, 0,
                                           bits_for(num_cells), stream);
}

build_workspace carve_workspace(const spops_bev_spans &s, int64_t num_planes, int64_t num_cells,
                                spops_carver *c)
{
    build_workspace ws = {};
    const int64_t n = s.max_spans;
    ws.plane_begin = (int32_t *)spops_carve(c, num_planes + 1, 1, sizeof(int32_t));
    for (int i = 0; i < 2; ++i) {
        ws.cells[i] = (uint32_t *)spops_carve(c, n, 1, sizeof(uint32_t));
        ws.places[i] = (int32_t *)spops_carve(c, n, 1, sizeof(int32_t));
    }
    ws.loose = (loose_span *)spops_carve(c, n, 1, sizeof(loose_span));
    ws.sorted = (loose_span *)spops_carve(c, n, 1, sizeof(loose_span));
    ws.heads = (cell_head *)spops_carve(c, n, 1, sizeof(cell_head));
    ws.before = (kind_counts *)spops_carve(c, n + 1, 1, sizeof(kind_counts));
    ws.owners = (int4 *)spops_carve(c, n, 1, sizeof(int4));
    ws.tile_begin = (int32_t *)spops_carve(c, 2 * (s.num_tiles + 1), 1, sizeof(int32_t));
    ws.group_begin = (int32_t *)spops_carve(c, 2 * groups_of(s) + 1, 1, sizeof(int32_t));
    ws.places_of = (bundle_counts *)spops_carve(c, s.max_bundles + 1, 1, sizeof(bundle_counts));
    ws.num_steps = (int32_t *)spops_carve(c, s.max_bundles, 1, sizeof(int32_t));
    size_t planes = 0, heads = 0, sort = 0, bundles = 0;
    cub::DoubleBuffer<uint32_t> cells;
    cub::DoubleBuffer<int32_t> places;
    scan_planes(nullptr, planes, nullptr, num_planes + 1, 0);
    scan_heads(nullptr, heads, nullptr, n + 1, 0);
    scan_bundles(nullptr, bundles, nullptr, s.max_bundles + 1, 0);
    sort_spans(nullptr, sort, cells, places, n, num_cells, 0);
    ws.temp_bytes = planes > heads ? planes : heads;
    if (sort > ws.temp_bytes) ws.temp_bytes = sort;
    if (bundles > ws.temp_bytes) ws.temp_bytes = bundles;
    ws.temp = spops_carve(c, (int64_t)ws.temp_bytes, 1, 1);
    return ws;
}

struct plane_params {
    const int32_t *cells; // of frustum points
    int32_t num_depths, height, width;
    int32_t tile_height, tile_width, tiles_x, tiles_per_camera;
    int64_t num_planes, max_spans;
    spops_bev_tile_span *tile_spans; // or NULL
    uint32_t *plane_masks;           // or NULL
};

// A tile at a depth, seen by one lane: its pixel and that one's cell (-1: none).
struct plane_pixel {
    int32_t depth;           // bin
    int32_t feature, weight; // of the tile's first pixel
    int32_t cell;
};

__device__ plane_pixel pixel_of(const plane_params &p, int64_t plane, int lane)
{
    const int32_t tile = (int32_t)(plane / p.num_depths);
    const int32_t d = (int32_t)(plane - (int64_t)tile * p.num_depths);
    const int32_t camera = tile / p.tiles_per_camera, in_camera = tile % p.tiles_per_camera;
    const int32_t h = in_camera / p.tiles_x * p.tile_height;
    const int32_t w = in_camera % p.tiles_x * p.tile_width;
    const int32_t image = p.height * p.width, first = h * p.width + w;
    const int32_t row = lane / p.tile_width, column = lane % p.tile_width;
    plane_pixel pixel;
    pixel.depth = d;
    pixel.feature = camera * image + first;
    pixel.weight = (camera * p.num_depths + d) * image + first;
    const bool inside = h + row < p.height && w + column < p.width;
    pixel.cell = inside ? p.cells[pixel.weight + row * p.width + column] : -1;
    return pixel;
}

// How many cells a tile has at a depth. One warp each.
__global__ void __launch_bounds__(threads)
    count_planes(const __grid_constant__ plane_params p, int32_t *counts)
{
    const int64_t plane = ((int64_t)blockIdx.x * threads + threadIdx.x) / warp;
    const int lane = (int)(threadIdx.x % warp);
    if (plane > p.num_planes) return;
    uint32_t leaders = 0;
    if (plane < p.num_planes) {
        const plane_pixel pixel = pixel_of(p, plane, lane);
        const uint32_t alike = __match_any_sync(whole_warp, pixel.cell);
        leaders = __ballot_sync(whole_warp, pixel.cell >= 0 && __ffs(alike) - 1 == lane);
    }
    if (lane == 0) counts[plane] = __popc(leaders);
}

__global__ void __launch_bounds__(threads)
    emit_spans(const __grid_constant__ plane_params p, const int32_t *plane_begin, uint32_t *cells,
               loose_span *loose)
{
    const int64_t plane = ((int64_t)blockIdx.x * threads + threadIdx.x) / warp;
    const int lane = (int)(threadIdx.x % warp);
    if (plane >= p.num_planes) return;
    const plane_pixel pixel = pixel_of(p, plane, lane);
    const uint32_t alike = __match_any_sync(whole_warp, pixel.cell);
    const uint32_t covered = __ballot_sync(whole_warp, pixel.cell >= 0);
    if (lane == 0 && p.plane_masks != nullptr) p.plane_masks[plane] = covered;
    const bool leads = pixel.cell >= 0 && __ffs((int)alike) - 1 == lane;
    const uint32_t leaders = __ballot_sync(whole_warp, leads);
    const int64_t at = (int64_t)plane_begin[plane] + __popc(leaders & ((1u << lane) - 1));
    if (!leads || at >= p.max_spans) return;
    cells[at] = (uint32_t)pixel.cell;
    loose[at] = loose_span{pixel.feature, (int32_t)plane, alike};
    if (p.tile_spans != nullptr)
        p.tile_spans[at] = spops_bev_tile_span{pixel.cell, pixel.depth, alike};
}

// What the sort and the scans find where there is no span; counts; no cell covered, no bundle full.
__global__ void __launch_bounds__(threads)
    clear_rest(const int32_t *num_spans, const build_workspace ws, const spops_bev_spans s,
               int64_t num_cells)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i < (num_cells + 31) / 32) s.covered[i] = 0;
    if (i == 0) {
        spops_bev_span_counts counts = {};
        counts.num_spans = *num_spans;
        counts.overflow = *num_spans > s.max_spans;
        *s.counts = counts;
    }
    if (i > s.max_spans) return;
    ws.before[i] = kind_counts();
    if (i == s.max_spans) return;
    ws.places[0][i] = (int32_t)i;
    ws.heads[i].cell = -1;
    if (i >= *num_spans) ws.cells[0][i] = (uint32_t)num_cells;
}

// Spans in sorted order; and where a cell's run begins, the cell's head at its first span.
__global__ void __launch_bounds__(threads)
    find_cells(const uint32_t *cells, const int32_t *places, const build_workspace ws,
               const spops_bev_spans s, int64_t num_cells)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i >= s.max_spans) return;
    const uint32_t cell = cells[i];
    if (cell == (uint32_t)num_cells) return;
    const loose_span span = ws.loose[places[i]];
    ws.sorted[i] = span;
    if (i > 0 && cells[i - 1] == cell) return;
    // A longer run than a bundle may have steps need not be counted to its end.
    int32_t count = 1;
    while (i + count < s.max_spans && cells[i + count] == cell && count <= SPOPS_BEV_MAX_STEPS)
        ++count;
    if (count > SPOPS_BEV_MAX_STEPS) s.counts->overflow = 1;
    const bool one_tile = ws.loose[places[i + count - 1]].feature == span.feature;
    const int kind = !one_tile ? MULTI : count > 1 ? SEVERAL : ONE;
    ws.heads[places[i]] = cell_head{(int32_t)cell, (int32_t)i, count, kind};
    ws.before[places[i]].n[kind] = 1;
    atomicOr(s.covered + cell / 32, 1u << cell % 32);
}

// Owners by kind, and where each tile's begin.
__global__ void __launch_bounds__(threads)
    place_cells(const build_workspace ws, const spops_bev_spans s, int32_t num_depths)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    const kind_counts total = ws.before[s.max_spans];
    const int32_t kind_begin[num_kinds] = {0, total.n[MULTI], total.n[MULTI] + total.n[SEVERAL]};
    if (i < s.max_spans && ws.heads[i].cell >= 0) {
        const cell_head head = ws.heads[i];
        const kind_counts before = ws.before[i];
#pragma unroll
        for (int k = 0; k < num_kinds; ++k)
            if (k == head.kind)
                ws.owners[kind_begin[k] + before.n[k]] =
                    make_int4(head.cell, head.first, head.count, 0);
    }
    if (i > s.num_tiles) return;
    const int64_t at = min((int64_t)ws.plane_begin[i * num_depths], s.max_spans);
    const kind_counts before = ws.before[at];
    if (s.tile_begin != nullptr) s.tile_begin[i] = (int32_t)at;
    ws.tile_begin[i] = kind_begin[SEVERAL] + before.n[SEVERAL];
    ws.tile_begin[s.num_tiles + 1 + i] = kind_begin[ONE] + before.n[ONE];
}

__device__ int32_t bundles_of(int32_t cells)
{
    return (cells + SPOPS_BEV_BUNDLE_CELLS - 1) / SPOPS_BEV_BUNDLE_CELLS;
}

// Bundles before each group of tiles: those of MULTI cells come first. One block.
constexpr int group_threads = 1024;

__global__ void __launch_bounds__(group_threads)
    count_groups(const build_workspace ws, const spops_bev_spans s, int64_t num_groups)
{
    typedef cub::BlockScan<int32_t, group_threads> block_scan;
    __shared__ typename block_scan::TempStorage storage;
    int32_t done = bundles_of(ws.before[s.max_spans].n[MULTI]);
    for (int64_t base = 0; base < 2 * num_groups; base += group_threads) {
        const int64_t i = base + threadIdx.x;
        int32_t bundles = 0;
        if (i < 2 * num_groups) {
            const int32_t *begin = ws.tile_begin + i / num_groups * (s.num_tiles + 1);
            const int64_t first = i % num_groups * s.group_tiles;
            for (int64_t t = first; t < min(first + s.group_tiles, s.num_tiles); ++t)
                bundles += bundles_of(begin[t + 1] - begin[t]);
        }
        int32_t before, total;
        block_scan(storage).ExclusiveSum(bundles, before, total);
        if (i < 2 * num_groups) ws.group_begin[i] = done + before;
        done += total;
        __syncthreads();
    }
    if (threadIdx.x == 0) ws.group_begin[2 * num_groups] = done;
}

// The owners of a bundle, first and end. Bundles of neighbouring tiles at about the same depth
// follow each other: their weights share sectors of memory.
__device__ int2 owners_of(const build_workspace &ws, const spops_bev_spans &s, int64_t num_groups,
                          int32_t bundle)
{
    const int32_t multi = ws.before[s.max_spans].n[MULTI];
    if (bundle < bundles_of(multi)) {
        const int32_t first = bundle * SPOPS_BEV_BUNDLE_CELLS;
        return make_int2(first, min(first + SPOPS_BEV_BUNDLE_CELLS, multi));
    }
    int64_t low = 0, high = 2 * num_groups; // the last group that begins at or before the bundle
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (ws.group_begin[middle] <= bundle)
            low = middle;
        else
            high = middle;
    }
    const int32_t *begin = ws.tile_begin + low / num_groups * (s.num_tiles + 1);
    const int64_t tile = low % num_groups * s.group_tiles;
    const int64_t end = min(tile + s.group_tiles, s.num_tiles);
    int32_t rest = bundle - ws.group_begin[low];
    for (int32_t first = 0;; first += SPOPS_BEV_BUNDLE_CELLS) {
        for (int64_t t = tile; t < end; ++t) {
            const int32_t from = begin[t] + first;
            if (from >= begin[t + 1]) continue;
            if (rest-- == 0)
                return make_int2(from, min(from + SPOPS_BEV_BUNDLE_CELLS, begin[t + 1]));
        }
    }
}

// A lane's place in the spans of its cell, which ascend by tile.
struct span_cursor {
    int32_t next, end;
    loose_span span; // of the step that comes; feature INT_MAX: none
};

__device__ void advance(const loose_span *sorted, span_cursor &at)
{
    at.span = loose_span{INT_MAX, 0, 0};
    if (at.next < at.end) at.span = sorted[at.next++];
}

__device__ int32_t next_tile(const span_cursor &at)
{
    int32_t tile = at.span.feature;
    for (int step = SPOPS_BEV_BUNDLE_CELLS / 2; step > 0; step /= 2)
        tile = min(tile, __shfl_xor_sync(whole_warp, tile, step));
    return tile;
}

// A warp's bundle: lanes 0 to 15 (and, doing the same, 16 to 31) have a cell each. A step takes,
// from every cell that has one, its next span in the first tile that any has.
struct bundle_walk {
    int4 owner; // cell -1: none
    span_cursor at;
};

__device__ bundle_walk begin_walk(const build_workspace &ws, const spops_bev_spans &s,
                                  int64_t num_groups, int32_t bundle, int cell_lane)
{
    const int2 range = owners_of(ws, s, num_groups, bundle);
    bundle_walk walk = {};
    walk.owner = make_int4(-1, 0, 0, 0);
    if (range.x + cell_lane < range.y) walk.owner = ws.owners[range.x + cell_lane];
    walk.at.next = walk.owner.y;
    walk.at.end = walk.owner.y + walk.owner.z;
    advance(ws.sorted, walk.at);
    return walk;
}

// Steps of a warp, as long as four warps are enough: few where the device would not be full, more
// where a warp's start is to be paid for less often. H200, f16, C = 80: map C (34,285 spans) 8.7 us
// with 2, 10.1 with 5; B (121,192) 24.1 and 22.7.
__device__ int warp_steps_of(const spops_bev_spans &s)
{
    return min(max(s.counts->num_spans / s.full_spans, 2), 5);
}

__device__ int team_of(int32_t num_steps, int32_t warp_steps)
{
    if (num_steps > 2 * warp_steps) return SPOPS_BEV_TEAM4;
    return num_steps > warp_steps ? SPOPS_BEV_TEAM2 : SPOPS_BEV_TEAM1;
}

__global__ void __launch_bounds__(threads)
    count_steps(const build_workspace ws, const spops_bev_spans s, int64_t num_groups)
{
    const int64_t bundle = ((int64_t)blockIdx.x * threads + threadIdx.x) / warp;
    const int lane = (int)(threadIdx.x % warp);
    if (bundle > s.max_bundles) return;
    bundle_counts counts = {};
    if (bundle < ws.group_begin[2 * num_groups] && bundle < s.max_bundles) {
        bundle_walk walk =
            begin_walk(ws, s, num_groups, (int32_t)bundle, lane % SPOPS_BEV_BUNDLE_CELLS);
        int32_t num_steps = 0;
        for (int32_t tile; (tile = next_tile(walk.at)) != INT_MAX; ++num_steps)
            if (walk.at.span.feature == tile) advance(ws.sorted, walk.at);
        const int team = team_of(num_steps, warp_steps_of(s));
#pragma unroll
        for (int c = 0; c < SPOPS_BEV_NUM_TEAMS; ++c)
            counts.teams[c] = c == team;
        counts.more = num_steps - 1;
        if (lane == 0) {
            ws.num_steps[bundle] = num_steps;
            atomicMax(&s.counts->longest, num_steps);
        }
    }
    if (lane == 0) ws.places_of[bundle] = counts;
}

__global__ void __launch_bounds__(threads)
    make_bundles(const build_workspace ws, const spops_bev_spans s, int64_t num_groups)
{
    const int64_t bundle = ((int64_t)blockIdx.x * threads + threadIdx.x) / warp;
    const int lane = (int)(threadIdx.x % warp);
    const int32_t num_bundles = ws.group_begin[2 * num_groups];
    const bundle_counts total = ws.places_of[s.max_bundles];
    const bool fits = num_bundles <= s.max_bundles && total.more <= s.max_more &&
                      s.counts->longest <= SPOPS_BEV_MAX_STEPS;
    if (bundle == 0 && lane == 0) {
        for (int c = 0; c < SPOPS_BEV_NUM_TEAMS; ++c)
            s.counts->num_bundles[c] = total.teams[c];
        s.counts->num_more = total.more;
        if (!fits) s.counts->overflow = 1;
    }
    if (!fits || bundle >= num_bundles) return;

    const int32_t num_steps = ws.num_steps[bundle];
    const int team = team_of(num_steps, warp_steps_of(s));
    const bundle_counts before = ws.places_of[bundle];
    int32_t place = team * (int32_t)s.max_bundles;
#pragma unroll
    for (int c = 0; c < SPOPS_BEV_NUM_TEAMS; ++c)
        if (c == team) place += before.teams[c];
    const int32_t more = SPOPS_BEV_NUM_TEAMS * (int32_t)s.max_bundles + before.more;
    if (lane == 0) s.bundles[place] = spops_bev_bundle{num_steps, more};

    bundle_walk walk =
        begin_walk(ws, s, num_groups, (int32_t)bundle, lane % SPOPS_BEV_BUNDLE_CELLS);
    const bool writes = lane < SPOPS_BEV_BUNDLE_CELLS;
    if (writes) s.cells[(int64_t)place * SPOPS_BEV_BUNDLE_CELLS + lane] = walk.owner.x;
    for (int32_t i = 0; i < num_steps; ++i) {
        const int64_t step = i == 0 ? place : more + i - 1;
        const int32_t tile = next_tile(walk.at);
        const loose_span span = walk.at.span;
        const bool takes = span.feature == tile;
        uint32_t used = takes ? span.mask : 0u;
        for (int distance = SPOPS_BEV_BUNDLE_CELLS / 2; distance > 0; distance /= 2)
            used |= __shfl_xor_sync(whole_warp, used, distance);
        if (lane == 0) s.steps[step] = spops_bev_step{tile, used};
        if (writes)
            s.spans[step * SPOPS_BEV_BUNDLE_CELLS + lane] =
                spops_bev_span{takes ? span.plane : 0, takes ? span.mask : 0u};
        if (takes) advance(ws.sorted, walk.at);
    }
}

int64_t cells_of(const spops_bev_shape &shape)
{
    return (int64_t)shape.num_batches * shape.num_cells_z * shape.num_cells_y * shape.num_cells_x;
}

plane_params params_of(const spops_bev_spans_args *args)
{
    const spops_bev_spans &s = *args->spans;
    const spops_bev_shape &shape = args->shape;
    plane_params p = {};
    p.cells = args->cells;
    p.num_depths = shape.num_depths;
    p.height = shape.feature_height;
    p.width = shape.feature_width;
    p.tile_height = s.tile_height;
    p.tile_width = s.tile_width;
    p.tiles_x = s.tiles_x;
    p.tiles_per_camera = s.tiles_x * s.tiles_y;
    p.num_planes = s.num_planes;
    p.max_spans = s.max_spans;
    p.tile_spans = s.tile_spans;
    p.plane_masks = s.plane_masks;
    return p;
}

} // namespace

extern "C" size_t spops_cuda_bev_spans_workspace_bytes(spops_context *ctx,
                                                       const spops_bev_spans *spans,
                                                       const spops_bev_shape *shape)
{
    (void)ctx;
    spops_carver c = {nullptr, 0};
    carve_workspace(*spans, spans->num_planes, cells_of(*shape), &c);
    return c.used;
}

extern "C" spops_status spops_cuda_bev_spans_build(spops_context *ctx,
                                                   const spops_bev_spans_args *args)
{
    const spops_bev_spans s = *args->spans;
    const plane_params p = params_of(args);
    const int64_t num_cells = cells_of(args->shape), num_groups = groups_of(s);
    const cudaStream_t stream = stream_of(ctx);
    spops_carver c = {(char *)args->workspace, 0};
    const build_workspace ws = carve_workspace(s, p.num_planes, num_cells, &c);
    const int32_t *num_spans = ws.plane_begin + p.num_planes;
    size_t bytes = ws.temp_bytes;

    SPOPS_TRY(launch(ctx, "bev_spans: count_planes", count_planes,
                     blocks_for((p.num_planes + 1) * warp, threads), threads, p, ws.plane_begin));
    SPOPS_TRY(spops_cuda_status(
        ctx, "bev_spans: scan of planes",
        (int)scan_planes(ws.temp, bytes, ws.plane_begin, p.num_planes + 1, stream)));
    SPOPS_TRY(launch(ctx, "bev_spans: emit_spans", emit_spans,
                     blocks_for(p.num_planes * warp, threads), threads, p, ws.plane_begin,
                     ws.cells[0], ws.loose));
    const int64_t covered_words = (num_cells + 31) / 32;
    SPOPS_TRY(
        launch(ctx, "bev_spans: clear_rest", clear_rest,
               blocks_for(s.max_spans >= covered_words ? s.max_spans + 1 : covered_words, threads),
               threads, num_spans, ws, s, num_cells));
    cub::DoubleBuffer<uint32_t> cells(ws.cells[0], ws.cells[1]);
    cub::DoubleBuffer<int32_t> places(ws.places[0], ws.places[1]);
    bytes = ws.temp_bytes;
    SPOPS_TRY(spops_cuda_status(
        ctx, "bev_spans: sort by cell",
        (int)sort_spans(ws.temp, bytes, cells, places, s.max_spans, num_cells, stream)));
    SPOPS_TRY(launch(ctx, "bev_spans: find_cells", find_cells, blocks_for(s.max_spans, threads),
                     threads, cells.Current(), places.Current(), ws, s, num_cells));
    bytes = ws.temp_bytes;
    SPOPS_TRY(
        spops_cuda_status(ctx, "bev_spans: scan of cells",
                          (int)scan_heads(ws.temp, bytes, ws.before, s.max_spans + 1, stream)));
    SPOPS_TRY(launch(ctx, "bev_spans: place_cells", place_cells,
                     blocks_for(s.max_spans > s.num_tiles ? s.max_spans : s.num_tiles + 1, threads),
                     threads, ws, s, p.num_depths));
    SPOPS_TRY(launch(ctx, "bev_spans: count_groups", count_groups, dim3(1), group_threads, ws, s,
                     num_groups));
    SPOPS_TRY(launch(ctx, "bev_spans: count_steps", count_steps,
                     blocks_for((s.max_bundles + 1) * warp, threads), threads, ws, s, num_groups));
    bytes = ws.temp_bytes;
    SPOPS_TRY(spops_cuda_status(
        ctx, "bev_spans: scan of bundles",
        (int)scan_bundles(ws.temp, bytes, ws.places_of, s.max_bundles + 1, stream)));
    return launch(ctx, "bev_spans: make_bundles", make_bundles,
                  blocks_for(s.max_bundles * warp, threads), threads, ws, s, num_groups);
}
