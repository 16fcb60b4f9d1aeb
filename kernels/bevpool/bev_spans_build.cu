// SPDX-License-Identifier: Apache-2.0
// From the cell of every frustum point to the span form of a plan (bevpool/bev_spans.h), on the
// stream. Scans and sorts are CUB's. Nothing depends on the order in which threads run: spans are
// numbered by tile and depth, parts by wedge, kind and first span.
#include <cub/block/block_scan.cuh>

#include <algorithm>
#include <climits>

#include "kernels/core/device_wide.h"
#include "kernels/core/launch.cuh"
#include "bevpool/bev_spans.h"
#include "bevpool/bev_spans_sizes.h"

namespace
{

using spops::bits_for;
using spops::blocks_for;
using spops::launch;
using spops::sort_buffers;
using spops::stream_of;

constexpr int threads = 256, warp = 32;
constexpr uint32_t whole_warp = 0xffffffffu;

// The parts of a wedge are ordered by kind. SEVERAL and ONE have spans in several tiles, or one.
enum { SHARED = 0, SEVERAL = 1, ONE = 2, num_kinds = SPOPS_BEV_PART_KINDS };

// A span of the build, by itself; planes are numbered tile * num_depths + depth.
struct loose_span {
    int32_t plane;
    uint32_t mask;
};

// Spans of one cell and one window, in sorted order.
struct part_spans {
    int32_t cell, first, count;
};

// Shared parts and shared cells that begin before a span in sorted order.
struct shared_counts {
    int32_t parts, cells;
};
static_assert(sizeof(shared_counts) == sizeof(int2), "scanned as two counts");

// What is found out about a wedge while its bundles are counted.
struct wedge_limits {
    int32_t first_depth, last_depth;
};

struct build_workspace {
    int32_t *plane_begin;    // [num_planes + 1] first provisional span of a tile at a depth
    int32_t *bands;          // [num_windows][num_depths] wedge of its window
    int32_t *wedge_begin;    // [num_windows + 1] first wedge of a window
    uint32_t *cells[2];      // [max_spans] of provisional spans, double buffer of the sort
    int32_t *places[2];      // [max_spans]
    loose_span *loose;       // [max_spans] by tile and depth
    loose_span *sorted;      // [max_spans] by cell, then tile and depth
    part_spans *parts;       // [max_spans] at the part's first span in sorted order
    shared_counts *shared;   // [max_spans + 1]
    uint32_t *part_keys[2];  // [max_spans] wedge * num_kinds + kind, at the provisional first span
    int32_t *part_places[2]; // [max_spans] in `parts`
    int32_t *kind_begin;     // [max_wedges * num_kinds + 1] first part
    int32_t *bundle_begin;   // [max_wedges + 1]
    wedge_limits *limits;    // [max_wedges]
    int32_t *step_begin;     // [max_bundles + 1]
    uint32_t *costs[2];      // [max_wedges] to sort wedges by
    int32_t *wedge_order[2]; // [max_wedges]
    spops::device_wide wide;
};

build_workspace carve_workspace(const spops_bev_spans &s, int32_t num_depths, int64_t num_cells,
                                spops_carver *c)
{
    build_workspace ws = {};
    const int64_t n = s.max_spans;
    ws.plane_begin = (int32_t *)spops_carve(c, s.num_planes + 1, 1, sizeof(int32_t));
    ws.bands = (int32_t *)spops_carve(c, s.num_windows, num_depths, sizeof(int32_t));
    ws.wedge_begin = (int32_t *)spops_carve(c, s.num_windows + 1, 1, sizeof(int32_t));
    for (int i = 0; i < 2; ++i) {
        ws.cells[i] = (uint32_t *)spops_carve(c, n, 1, sizeof(uint32_t));
        ws.places[i] = (int32_t *)spops_carve(c, n, 1, sizeof(int32_t));
        ws.part_keys[i] = (uint32_t *)spops_carve(c, n, 1, sizeof(uint32_t));
        ws.part_places[i] = (int32_t *)spops_carve(c, n, 1, sizeof(int32_t));
        ws.costs[i] = (uint32_t *)spops_carve(c, s.max_wedges, 1, sizeof(uint32_t));
        ws.wedge_order[i] = (int32_t *)spops_carve(c, s.max_wedges, 1, sizeof(int32_t));
    }
    ws.loose = (loose_span *)spops_carve(c, n, 1, sizeof(loose_span));
    ws.sorted = (loose_span *)spops_carve(c, n, 1, sizeof(loose_span));
    ws.parts = (part_spans *)spops_carve(c, n, 1, sizeof(part_spans));
    ws.shared = (shared_counts *)spops_carve(c, n + 1, 1, sizeof(shared_counts));
    ws.kind_begin = (int32_t *)spops_carve(c, s.max_wedges * num_kinds + 1, 1, sizeof(int32_t));
    ws.bundle_begin = (int32_t *)spops_carve(c, s.max_wedges + 1, 1, sizeof(int32_t));
    ws.limits = (wedge_limits *)spops_carve(c, s.max_wedges, 1, sizeof(wedge_limits));
    ws.step_begin = (int32_t *)spops_carve(c, s.max_bundles + 1, 1, sizeof(int32_t));

    ws.wide.needs_scan<int32_t>(s.num_planes + 1);
    ws.wide.needs_scan<int32_t>(s.max_bundles + 1);
    ws.wide.needs_scan<int2>(n + 1);
    ws.wide.needs_sort<sort_buffers>(n, bits_for((uint64_t)num_cells));
    ws.wide.needs_sort<sort_buffers>(n, bits_for((uint64_t)s.max_wedges * num_kinds));
    ws.wide.needs_sort<sort_buffers>(s.max_wedges, 32);
    ws.wide.carve(c);
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
    int32_t depth;  // bin
    int32_t weight; // element of depth of the tile's first pixel
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
    loose[at] = loose_span{(int32_t)plane, alike};
    if (p.tile_spans != nullptr)
        p.tile_spans[at] = spops_bev_tile_span{pixel.cell, pixel.depth, alike};
}

// Windows of one feature map or another, and what lies in them.
struct window_params {
    int32_t num_depths, height, width;
    int32_t tile_height, tile_width_log2, tiles_x, tiles_y, windows_x;
    int32_t num_processors;
    bool wide; // rows of features
};

__device__ int32_t tiles_per_window(const window_params &p)
{
    return SPOPS_BEV_WINDOW_COLUMNS >> p.tile_width_log2;
}
__device__ int32_t first_tile(const window_params &p, int32_t window)
{
    return window / p.windows_x * p.tiles_x + window % p.windows_x * tiles_per_window(p);
}
__device__ int32_t window_of(const window_params &p, int32_t tile)
{
    return tile / p.tiles_x * p.windows_x + tile % p.tiles_x / tiles_per_window(p);
}

// Spans that a wedge should have. Blocks of the kernel that pools should fill each multiprocessor
// once or, where there is enough to do, twice; and windows should be cut evenly. The plan has room
// for two blocks a multiprocessor, or two wedges a window, and one more wedge a window.
constexpr int spans_worth_two = 600;

__device__ float wanted_spans(const window_params &p, int32_t num_spans, int32_t num_windows)
{
    int32_t blocks = p.wide || num_spans < p.num_processors * spans_worth_two ? 1 : 2;
    blocks = max(blocks, 2 * num_windows / p.num_processors);
    // A window's last wedge is half a wedge too small, on average; a block more than fit at once
    // costs more than a few that are missing.
    const float wanted = 0.97f * (float)(blocks * p.num_processors);
    return (float)num_spans / fmaxf(wanted - 0.5f * (float)num_windows, 0.5f * wanted);
}

// Cut each window into wedges of about equally many spans. One block a window.
constexpr int cut_threads = 128;

__global__ void __launch_bounds__(cut_threads)
    cut_windows(const __grid_constant__ window_params p, const build_workspace ws,
                const spops_bev_spans s)
{
    typedef cub::BlockScan<int32_t, cut_threads> block_scan;
    __shared__ typename block_scan::TempStorage storage;
    const int32_t window = (int32_t)blockIdx.x;
    const int32_t tile = first_tile(p, window);
    const int32_t end = min(tile + tiles_per_window(p), (tile / p.tiles_x + 1) * p.tiles_x);
    const int32_t *begin = ws.plane_begin + (int64_t)tile * p.num_depths;
    const int32_t in_window = ws.plane_begin[(int64_t)end * p.num_depths] - begin[0];
    const float wanted = wanted_spans(p, ws.plane_begin[s.num_planes], (int32_t)s.num_windows);
    const int32_t wedges = (int32_t)ceilf((float)in_window / wanted);
    const float scale = (float)wedges / (float)max(in_window, 1);
    int32_t done = 0;
    for (int32_t base = 0; base < p.num_depths; base += cut_threads) {
        const int32_t d = base + (int32_t)threadIdx.x;
        int32_t spans = 0;
        for (int32_t t = 0; d < p.num_depths && t < end - tile; ++t)
            spans += begin[t * p.num_depths + d + 1] - begin[t * p.num_depths + d];
        int32_t before, total;
        block_scan(storage).ExclusiveSum(spans, before, total);
        if (d < p.num_depths) {
            const float middle = (float)(done + before) + 0.5f * (float)spans;
            ws.bands[(int64_t)window * p.num_depths + d] =
                max(min((int32_t)(middle * scale), wedges - 1), 0);
        }
        done += total;
        __syncthreads();
    }
    if (threadIdx.x != 0) return;
    ws.wedge_begin[window] = wedges;
    if (window == 0) ws.wedge_begin[s.num_windows] = 0;
}

// What the sort by cell finds besides spans.
__global__ void __launch_bounds__(threads)
    fill_rest(const int32_t *num_spans, const build_workspace ws, int64_t max_spans,
              int64_t num_cells)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i >= max_spans) return;
    ws.places[0][i] = (int32_t)i;
    if (i >= *num_spans) ws.cells[0][i] = (uint32_t)num_cells;
}

// What the sorts and scans of a cut find where there is nothing; counts; no cell covered.
__global__ void __launch_bounds__(threads)
    clear_cut(const int32_t *num_spans, const build_workspace ws, const spops_bev_spans s,
              int64_t num_cells)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i <= s.max_bundles) ws.step_begin[i] = 0;
    if (i < (num_cells + 31) / 32) s.covered[i] = 0;
    if (i < s.max_wedges) {
        ws.limits[i] = wedge_limits{INT_MAX, 0};
        ws.costs[0][i] = UINT_MAX;
        ws.wedge_order[0][i] = (int32_t)i;
    }
    if (i == 0) {
        spops_bev_span_counts counts = {};
        counts.num_spans = *num_spans;
        counts.overflow = *num_spans > s.max_spans;
        *s.counts = counts;
    }
    if (i > s.max_spans) return;
    ws.shared[i] = shared_counts{0, 0};
    if (i == s.max_spans) return;
    ws.part_keys[0][i] = (uint32_t)(s.max_wedges * num_kinds);
}

// Spans in sorted order; and where those of a cell in one window begin, the part they are.
__global__ void __launch_bounds__(threads)
    find_parts(const __grid_constant__ window_params p, const uint32_t *cells,
               const int32_t *places, const build_workspace ws, const spops_bev_spans s,
               int64_t num_cells)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i >= s.max_spans) return;
    const uint32_t cell = cells[i];
    if (cell == (uint32_t)num_cells) return;
    const loose_span span = ws.loose[places[i]];
    const int32_t tile = span.plane / p.num_depths, window = window_of(p, tile);
    ws.sorted[i] = span;
    const auto plane_at = [&](int64_t k) { return ws.loose[places[k]].plane; };
    const bool first_of_cell = i == 0 || cells[i - 1] != cell;
    if (!first_of_cell && window_of(p, plane_at(i - 1) / p.num_depths) == window) return;

    const int32_t *bands = ws.bands + (int64_t)window * p.num_depths;
    int32_t band = bands[span.plane % p.num_depths], last_tile = tile, count = 1;
    bool last_of_cell = true;
    for (; i + count < s.max_spans && cells[i + count] == cell; ++count) {
        const int32_t plane = plane_at(i + count), its_tile = plane / p.num_depths;
        last_of_cell = window_of(p, its_tile) == window;
        // A longer part than there may be need not be counted to its end.
        if (!last_of_cell || count > SPOPS_BEV_MAX_SPANS) break;
        last_tile = its_tile;
        band = min(band, bands[plane % p.num_depths]);
    }
    atomicMax(&s.counts->longest, count);
    const bool shared = !first_of_cell || !last_of_cell;
    const int kind = shared ? SHARED : last_tile != tile ? SEVERAL : ONE;
    const int32_t wedge = ws.wedge_begin[window] + band;
    if (wedge >= s.max_wedges) return; // make_wedges says so
    ws.parts[i] = part_spans{(int32_t)cell, (int32_t)i, count};
    ws.part_keys[0][places[i]] = (uint32_t)(wedge * num_kinds + kind);
    ws.part_places[0][places[i]] = (int32_t)i;
    ws.shared[i] = shared_counts{shared, shared && first_of_cell};
    if (first_of_cell) atomicOr(s.covered + cell / 32, 1u << cell % 32);
}

// Where each wedge's parts of each kind begin; and the shared cells.
__global__ void __launch_bounds__(threads)
    place_parts(const uint32_t *keys, const build_workspace ws, const spops_bev_spans s)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i > s.max_spans) return;
    const int64_t num_keys = s.max_wedges * num_kinds;
    const int64_t key = i < s.max_spans ? keys[i] : num_keys;
    for (int64_t k = i > 0 ? (int64_t)keys[i - 1] + 1 : 0; k <= key; ++k)
        ws.kind_begin[k] = (int32_t)i;
    const shared_counts shared = ws.shared[i];
    if (i == s.max_spans) {
        s.shared_cells[shared.cells] = spops_bev_shared_cell{-1, shared.parts};
        s.counts->num_shared_parts = shared.parts;
        s.counts->num_shared_cells = shared.cells;
    } else if (ws.shared[i + 1].cells > shared.cells) {
        s.shared_cells[shared.cells] = spops_bev_shared_cell{ws.parts[i].cell, shared.parts};
    }
}

__device__ int32_t bundles_of(int32_t parts)
{
    return (parts + SPOPS_BEV_BUNDLE_PARTS - 1) / SPOPS_BEV_BUNDLE_PARTS;
}

__device__ int32_t bundles_of_kind(const build_workspace &ws, int32_t wedge, int kind)
{
    const int32_t *begin = ws.kind_begin + wedge * num_kinds + kind;
    return bundles_of(begin[1] - begin[0]);
}

// Bundles before each wedge. One block.
constexpr int count_threads = 1024;

__global__ void __launch_bounds__(count_threads)
    count_bundles(const build_workspace ws, const spops_bev_spans s)
{
    typedef cub::BlockScan<int32_t, count_threads> block_scan;
    __shared__ typename block_scan::TempStorage storage;
    int32_t done = 0;
    for (int64_t base = 0; base < s.max_wedges; base += count_threads) {
        const int64_t wedge = base + threadIdx.x;
        int32_t bundles = 0;
        for (int kind = 0; wedge < s.max_wedges && kind < num_kinds; ++kind)
            bundles += bundles_of_kind(ws, (int32_t)wedge, kind);
        int32_t before, total;
        block_scan(storage).ExclusiveSum(bundles, before, total);
        if (wedge < s.max_wedges) ws.bundle_begin[wedge] = done + before;
        done += total;
        __syncthreads();
    }
    if (threadIdx.x == 0) ws.bundle_begin[s.max_wedges] = done;
}

// A lane's place in the spans of its part, which ascend by tile.
struct span_cursor {
    int32_t next, end;
    int32_t tile; // of the step that comes; INT_MAX: none
    loose_span span;
};

__device__ void advance(const window_params &p, const loose_span *sorted, span_cursor &at)
{
    at.tile = INT_MAX;
    if (at.next >= at.end) return;
    at.span = sorted[at.next++];
    at.tile = at.span.plane / p.num_depths;
}

template <class Combine> __device__ int32_t over_parts(int32_t value, const Combine &combine)
{
    for (int distance = SPOPS_BEV_BUNDLE_PARTS / 2; distance > 0; distance /= 2)
        value = combine(value, __shfl_xor_sync(whole_warp, value, distance));
    return value;
}
struct smallest {
    __device__ int32_t operator()(int32_t a, int32_t b) const { return min(a, b); }
};
struct largest {
    __device__ int32_t operator()(int32_t a, int32_t b) const { return max(a, b); }
};

// Of n ranges, which begin at ascending places: the last that begins at or before a place, which is
// the one that has it where ranges may be empty.
__device__ int32_t last_at_or_before(const int32_t *begin, int32_t n, int32_t place)
{
    int32_t low = 0, high = n;
    while (high - low > 1) {
        const int32_t middle = (low + high) / 2;
        if (begin[middle] <= place)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// A warp's bundle: lanes 0 to 15 (and, doing the same, 16 to 31) have a part each. A step takes,
// from every part that has one, its next span in the first tile that any has.
struct bundle_walk {
    int32_t wedge;
    int kind;
    part_spans part; // cell -1: none
    span_cursor at;
};

__device__ bundle_walk begin_walk(const window_params &p, const build_workspace &ws,
                                  const spops_bev_spans &s, int32_t bundle)
{
    const int32_t wedge = last_at_or_before(ws.bundle_begin, (int32_t)s.max_wedges, bundle);
    bundle_walk walk = {};
    walk.wedge = wedge;
    int32_t rest = bundle - ws.bundle_begin[wedge];
    for (walk.kind = 0; rest >= bundles_of_kind(ws, wedge, walk.kind); ++walk.kind)
        rest -= bundles_of_kind(ws, wedge, walk.kind);
    const int32_t *begin = ws.kind_begin + wedge * num_kinds + walk.kind;
    const int32_t i =
        begin[0] + rest * SPOPS_BEV_BUNDLE_PARTS + (int32_t)threadIdx.x % SPOPS_BEV_BUNDLE_PARTS;
    walk.part = part_spans{-1, 0, 0};
    if (i < begin[1]) walk.part = ws.parts[ws.part_places[0][i]];
    walk.at.next = walk.part.first;
    walk.at.end = walk.part.first + walk.part.count;
    advance(p, ws.sorted, walk.at);
    return walk;
}

__global__ void __launch_bounds__(threads)
    count_steps(const __grid_constant__ window_params p, const build_workspace ws,
                const spops_bev_spans s)
{
    const int64_t bundle = ((int64_t)blockIdx.x * threads + threadIdx.x) / warp;
    const int lane = (int)(threadIdx.x % warp);
    if (bundle >= ws.bundle_begin[s.max_wedges] || bundle >= s.max_bundles) return;
    bundle_walk walk = begin_walk(p, ws, s, (int32_t)bundle);
    int32_t num_steps = 0, nearest = INT_MAX, farthest = 0;
    for (int32_t tile; (tile = over_parts(walk.at.tile, smallest())) != INT_MAX; ++num_steps) {
        if (walk.at.tile != tile) continue;
        const int32_t depth = walk.at.span.plane % p.num_depths;
        nearest = min(nearest, depth);
        farthest = max(farthest, depth);
        advance(p, ws.sorted, walk.at);
    }
    nearest = over_parts(nearest, smallest());
    farthest = over_parts(farthest, largest());
    if (lane != 0) return;
    ws.step_begin[bundle] = num_steps;
    atomicMin(&ws.limits[walk.wedge].first_depth, nearest);
    atomicMax(&ws.limits[walk.wedge].last_depth, farthest);
}

__global__ void __launch_bounds__(threads)
    make_bundles(const __grid_constant__ window_params p, const build_workspace ws,
                 const spops_bev_spans s)
{
    const int64_t bundle = ((int64_t)blockIdx.x * threads + threadIdx.x) / warp;
    const int lane = (int)(threadIdx.x % warp);
    if (bundle >= ws.bundle_begin[s.max_wedges] || bundle >= s.max_bundles) return;
    const int32_t first_step = ws.step_begin[bundle], end_step = ws.step_begin[bundle + 1];
    if (end_step > s.max_steps) return; // make_wedges says so
    bundle_walk walk = begin_walk(p, ws, s, (int32_t)bundle);
    if (lane == 0)
        s.bundles[bundle] = spops_bev_bundle{
            first_step - ws.step_begin[ws.bundle_begin[walk.wedge]], end_step - first_step};
    const bool writes = lane < SPOPS_BEV_BUNDLE_PARTS;
    int32_t row = walk.part.cell;
    if (row >= 0 && walk.kind == SHARED) row = ws.shared[walk.part.first].parts;
    if (writes) s.rows[bundle * SPOPS_BEV_BUNDLE_PARTS + lane] = row;
    const int32_t first_depth = ws.limits[walk.wedge].first_depth;
    for (int32_t step = first_step; step < end_step; ++step) {
        const int32_t tile = over_parts(walk.at.tile, smallest());
        const bool takes = walk.at.tile == tile;
        const loose_span span = walk.at.span;
        const uint32_t in_window = (uint32_t)(tile - first_tile(p, window_of(p, tile))) << 16;
        const uint32_t depth = (uint32_t)(span.plane % p.num_depths - first_depth);
        if (writes)
            s.spans[(int64_t)step * SPOPS_BEV_BUNDLE_PARTS + lane] =
                spops_bev_span{in_window | (takes ? depth : 0u), takes ? span.mask : 0u};
        if (takes) advance(p, ws.sorted, walk.at);
    }
}

// What a block's time is made of (a fit over the blocks of a plan that noted the time: 30 ns a
// step, 48 a bundle, 39 more a shared one); from large to small, as the sort sees it.
__global__ void __launch_bounds__(threads)
    weigh_wedges(const build_workspace ws, const spops_bev_spans s)
{
    const int64_t wedge = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (wedge >= s.max_wedges || wedge >= ws.wedge_begin[s.num_windows]) return;
    const int32_t first = ws.bundle_begin[wedge], end = ws.bundle_begin[wedge + 1];
    if (end > s.max_bundles) return;
    const int32_t steps = ws.step_begin[end] - ws.step_begin[first];
    const int32_t shared = bundles_of_kind(ws, (int32_t)wedge, SHARED); // rows of f32 to store
    ws.costs[0][wedge] = UINT_MAX - 1 - (uint32_t)(steps + 2 * (end - first) + 5 * shared);
}

// Wedges from the one with most to do to the one with least, but the second round of blocks the
// other way around: a multiprocessor's two blocks have about equally much to do together.
__global__ void __launch_bounds__(threads)
    make_wedges(const __grid_constant__ window_params p, const int32_t *order,
                const build_workspace ws, const spops_bev_spans s)
{
    const int32_t rank = (int32_t)(blockIdx.x * threads + threadIdx.x);
    const int32_t num_wedges = ws.wedge_begin[s.num_windows];
    const int32_t num_bundles = ws.bundle_begin[s.max_wedges];
    const bool fits = num_wedges <= s.max_wedges && num_bundles <= s.max_bundles &&
                      ws.step_begin[min((int64_t)num_bundles, s.max_bundles)] <= s.max_steps &&
                      s.counts->longest <= SPOPS_BEV_MAX_SPANS;
    if (rank == 0) {
        s.counts->num_wedges = num_wedges;
        s.counts->num_bundles = num_bundles;
        s.counts->num_steps = ws.step_begin[min((int64_t)num_bundles, s.max_bundles)];
        if (!fits) s.counts->overflow = 1;
    }
    if (!fits || rank >= num_wedges) return;
    const int32_t wedge = order[rank], second = min(num_wedges, 2 * p.num_processors);
    const int32_t place =
        rank >= p.num_processors && rank < second ? p.num_processors + second - 1 - rank : rank;
    const int32_t window = last_at_or_before(ws.wedge_begin, (int32_t)s.num_windows, wedge);
    const int32_t row_of_tiles = window / p.windows_x, camera = row_of_tiles / p.tiles_y;
    const int32_t h = row_of_tiles % p.tiles_y * p.tile_height;
    const int32_t x = window % p.windows_x * SPOPS_BEV_WINDOW_COLUMNS;
    const wedge_limits limits = ws.limits[wedge];
    const bool empty = limits.first_depth > limits.last_depth;
    spops_bev_wedge made = {};
    made.feature = (camera * p.height + h) * p.width + x;
    made.depth =
        ((camera * p.num_depths + (empty ? 0 : limits.first_depth)) * p.height + h) * p.width + x;
    made.num_depths = empty ? 0 : limits.last_depth - limits.first_depth + 1;
    made.rows = (uint8_t)min(p.tile_height, p.height - h);
    made.columns = (uint8_t)min(SPOPS_BEV_WINDOW_COLUMNS, p.width - x);
    made.num_shared = (uint16_t)bundles_of_kind(ws, wedge, SHARED);
    made.first_bundle = ws.bundle_begin[wedge];
    made.num_bundles = ws.bundle_begin[wedge + 1] - made.first_bundle;
    made.first_step = ws.step_begin[made.first_bundle];
    made.num_steps = ws.step_begin[made.first_bundle + made.num_bundles] - made.first_step;
    s.wedges[place] = made;
    atomicMax(&s.counts->max_depths, made.num_depths);
    atomicMax(&s.counts->max_bundles, made.num_bundles);
    atomicMax(&s.counts->max_steps, made.num_steps);
}

__global__ void __launch_bounds__(threads)
    begin_tiles(const build_workspace ws, const spops_bev_spans s, int32_t num_depths)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i <= s.num_tiles)
        s.tile_begin[i] = (int32_t)min((int64_t)ws.plane_begin[i * num_depths], s.max_spans);
}

int64_t cells_of(const spops_bev_shape &shape)
{
    return (int64_t)shape.num_batches * shape.num_cells_z * shape.num_cells_y * shape.num_cells_x;
}

plane_params planes_of(const spops_bev_spans_args *args)
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

window_params windows_of(const spops_context *ctx, const spops_bev_spans_args *args, bool wide)
{
    const spops_bev_spans &s = *args->spans;
    window_params p = {};
    p.num_depths = args->shape.num_depths;
    p.height = args->shape.feature_height;
    p.width = args->shape.feature_width;
    p.tile_height = s.tile_height;
    p.tile_width_log2 = s.tile_width_log2;
    p.tiles_x = s.tiles_x;
    p.tiles_y = s.tiles_y;
    p.windows_x = s.windows_x;
    p.num_processors = ctx->info.num_processors;
    p.wide = wide;
    return p;
}

// A cut of the spans, from them in the order of cells.
spops_status cut_spans(spops_context *ctx, const window_params &w, const spops_bev_spans &s,
                       build_workspace ws, const uint32_t *cells, const int32_t *places,
                       int64_t num_cells)
{
    const dim3 for_spans = blocks_for(s.max_spans + 1, threads);
    const dim3 for_bundles = blocks_for(s.max_bundles * warp, threads);
    const dim3 for_wedges = blocks_for(s.max_wedges, threads);
    SPOPS_TRY(launch(ctx, "bev_spans: cut_windows", cut_windows, dim3((unsigned)s.num_windows),
                     cut_threads, w, ws, s));
    SPOPS_TRY(ws.wide.scan(ctx, "bev_spans: scan of windows", ws.wedge_begin, ws.wedge_begin,
                           s.num_windows + 1));
    const int64_t most =
        std::max({s.max_spans, s.max_bundles, (num_cells + 31) / 32, s.max_wedges});
    SPOPS_TRY(launch(ctx, "bev_spans: clear_cut", clear_cut, blocks_for(most + 1, threads), threads,
                     ws.plane_begin + s.num_planes, ws, s, num_cells));
    SPOPS_TRY(launch(ctx, "bev_spans: find_parts", find_parts, for_spans, threads, w, cells, places,
                     ws, s, num_cells));
    SPOPS_TRY(ws.wide.scan(ctx, "bev_spans: scan of shared parts",
                           reinterpret_cast<int2 *>(ws.shared), s.max_spans + 1));
    sort_buffers parts = {
        {ws.part_keys[0], ws.part_keys[1]}, {ws.part_places[0], ws.part_places[1]}, 0};
    SPOPS_TRY(ws.wide.sort(ctx, "bev_spans: sort by wedge", &parts, s.max_spans,
                           bits_for((uint64_t)s.max_wedges * num_kinds)));
    ws.part_places[0] = parts.values[parts.current];
    SPOPS_TRY(launch(ctx, "bev_spans: place_parts", place_parts, for_spans, threads,
                     parts.keys[parts.current], ws, s));
    SPOPS_TRY(
        launch(ctx, "bev_spans: count_bundles", count_bundles, dim3(1), count_threads, ws, s));
    SPOPS_TRY(launch(ctx, "bev_spans: count_steps", count_steps, for_bundles, threads, w, ws, s));
    SPOPS_TRY(ws.wide.scan(ctx, "bev_spans: scan of steps", ws.step_begin, ws.step_begin,
                           s.max_bundles + 1));
    SPOPS_TRY(launch(ctx, "bev_spans: make_bundles", make_bundles, for_bundles, threads, w, ws, s));
    SPOPS_TRY(launch(ctx, "bev_spans: weigh_wedges", weigh_wedges, for_wedges, threads, ws, s));
    sort_buffers order = {{ws.costs[0], ws.costs[1]}, {ws.wedge_order[0], ws.wedge_order[1]}, 0};
    SPOPS_TRY(ws.wide.sort(ctx, "bev_spans: sort by cost", &order, s.max_wedges, 32));
    return launch(ctx, "bev_spans: make_wedges", make_wedges, for_wedges, threads, w,
                  order.values[order.current], ws, s);
}

} // namespace

extern "C" size_t spops_cuda_bev_spans_workspace_bytes(spops_context *ctx,
                                                       const spops_bev_spans_args *args)
{
    (void)ctx;
    spops_carver c = {nullptr, 0};
    carve_workspace(args->spans[0], args->shape.num_depths, cells_of(args->shape), &c);
    return c.used;
}

extern "C" spops_status spops_cuda_bev_spans_build(spops_context *ctx,
                                                   const spops_bev_spans_args *args)
{
    const spops_bev_spans &s = args->spans[0];
    const plane_params p = planes_of(args);
    const int64_t num_cells = cells_of(args->shape);
    spops_carver c = {(char *)args->workspace, 0};
    const build_workspace ws = carve_workspace(s, p.num_depths, num_cells, &c);

    SPOPS_TRY(launch(ctx, "bev_spans: count_planes", count_planes,
                     blocks_for((p.num_planes + 1) * warp, threads), threads, p, ws.plane_begin));
    SPOPS_TRY(ws.wide.scan(ctx, "bev_spans: scan of planes", ws.plane_begin, ws.plane_begin,
                           p.num_planes + 1));
    SPOPS_TRY(launch(ctx, "bev_spans: emit_spans", emit_spans,
                     blocks_for(p.num_planes * warp, threads), threads, p, ws.plane_begin,
                     ws.cells[0], ws.loose));
    if (s.tile_begin != nullptr)
        SPOPS_TRY(launch(ctx, "bev_spans: begin_tiles", begin_tiles,
                         blocks_for(s.num_tiles + 1, threads), threads, ws, s, p.num_depths));
    SPOPS_TRY(launch(ctx, "bev_spans: fill_rest", fill_rest, blocks_for(s.max_spans, threads),
                     threads, ws.plane_begin + p.num_planes, ws, s.max_spans, num_cells));
    sort_buffers spans = {{ws.cells[0], ws.cells[1]}, {ws.places[0], ws.places[1]}, 0};
    SPOPS_TRY(ws.wide.sort(ctx, "bev_spans: sort by cell", &spans, s.max_spans,
                           bits_for((uint64_t)num_cells)));
    for (int i = 0; i < args->num_cuts; ++i)
        SPOPS_TRY(cut_spans(ctx, windows_of(ctx, args, i > 0), args->spans[i], ws,
                            spans.keys[spans.current], spans.values[spans.current], num_cells));
    return SPOPS_STATUS_OK;
}
