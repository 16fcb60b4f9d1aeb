// BEV pooling over spans (core/bev_spans.h) on tensor cores. A warp has a bundle of 16 cells, or
// some of its steps: it gathers the step's weights into a 16 x 32 matrix, zero where a pixel is not
// the cell's, and the tile's 32 rows of features, and multiplies. Sums are f32.
//
// A zero weight times an infinity would be NaN in cells that the pixel is not in: a bundle whose
// sums are not all finite is summed again, term by term.
//
// Registers of a multiplication (mma.m16n8k16), for lane = 4 g + q:
//     weights    cells g, g + 8; pixels 2 q, 2 q + 1 (+ 8) of each 16
//     features   the same pixels; channel chunk_of(g) of the block's eight, a channel each time
//     sums       cells g, g + 8; chunks q and q + 4, whose 8 channels are 8 multiplications
#include "kernels/core/float8.cuh"
#include "kernels/core/functors.cuh"
#include "spops/device/walk.cuh"

namespace
{

using namespace spops;

constexpr int warp = 32, warps_log2 = 2, warps = 1 << warps_log2, threads = warps * warp;
constexpr uint32_t whole_warp = 0xffffffffu;
constexpr int pixel_pairs = 4; // that a lane has of a tile

struct pool_params {
    const spops_bev_bundle *bundles;
    const int32_t *cells;
    const int2 *steps;
    const int2 *spans;
    const uint32_t *covered;
    int32_t max_bundles;
    int32_t num_bundles[SPOPS_BEV_NUM_TEAMS];
    int32_t slot_begin[SPOPS_BEV_NUM_TEAMS + 1]; // first block of a class; then of empty cells
    int64_t num_cells;
    int32_t feature_width, tile_width_log2;
    int32_t cols;
    const uint8_t *feat;
    int64_t feat_stride; // bytes, as all strides here
    const uint8_t *feat_scales;
    int64_t feat_scales_stride;
    const void *depth;
    int32_t depth_dtype;
    bool depth_pairs; // the weights of pixels 2 k, 2 k + 1 can be loaded at once
    uint8_t *out;
    int64_t out_stride;
    int32_t out_dtype;
    const float *feat_scale, *depth_scale, *out_scale;
};

// Where pixel k of a tile lies, in rows of feat from the tile's first.
__device__ __forceinline__ int32_t pixel_offset(const pool_params &p, int32_t k)
{
    return (k >> p.tile_width_log2) * p.feature_width + (k & ((1 << p.tile_width_log2) - 1));
}

template <class T>
__device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t *a, uint32_t b0,
                                         uint32_t b1);
#if __CUDA_ARCH__ >= 800
template <>
__device__ __forceinline__ void multiply<f16>(float (&sum)[4], const uint32_t *a, uint32_t b0,
                                              uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply<bf16>(float (&sum)[4], const uint32_t *a, uint32_t b0,
                                               uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
// Plans have no spans on such devices.
template <>
__device__ __forceinline__ void multiply<f16>(float (&)[4], const uint32_t *, uint32_t, uint32_t)
{
}
template <>
__device__ __forceinline__ void multiply<bf16>(float (&)[4], const uint32_t *, uint32_t, uint32_t)
{
}
#endif

// COLS columns of 16 cells: panels of 64 columns, of which a lane loads 8 a row, and one of 16, of
// which it loads 2. FULL: there are all eight columns of a chunk, or none; and rows are aligned.
template <class X, int COLS, bool FULL> struct bundle_sums {
    typedef row_words<X> words;
    typedef typename words::half_type half_type;
    static constexpr int panels = COLS / 64, rest = COLS % 64 / 16, parts = panels * 8 + rest * 2;
    static_assert(COLS == panels * 64 + rest * 16 && rest <= 1, "");

    const pool_params &p;
    int32_t col; // first column
    int g, q;
    int32_t pixel[2 * pixel_pairs]; // of this lane, as rows of feat from the tile's first
    float sum[parts][4];
    uint32_t rows[panels * 32 + rest * 8]; // features of the tile
    int32_t tile;                          // that rows are of

    __device__ __forceinline__ bundle_sums(const pool_params &params, int32_t column)
        : p(params), col(column), g((int)(threadIdx.x % warp) / 4), q((int)(threadIdx.x % 4)),
          tile(-1)
    {
#pragma unroll
        for (int i = 0; i < 2 * pixel_pairs; ++i)
            pixel[i] = pixel_offset(p, i / 2 * 8 + 2 * q + i % 2);
#pragma unroll
        for (int j = 0; j < parts; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                sum[j][i] = 0.0f;
    }

    static __device__ __forceinline__ int chunk_of(int column)
    {
        return column / 2 + column % 2 * 4;
    }

    // The tile's rows of this lane's pixels: all loads first.
    __device__ __forceinline__ void load_tile(int32_t feature, uint32_t inside)
    {
        tile = feature;
        const uint8_t *base = p.feat + (int64_t)feature * p.feat_stride;
        const uint8_t *scale_base = p.feat_scales + (int64_t)feature * p.feat_scales_stride;
        const int32_t stride = (int32_t)p.feat_stride;
        const int32_t scales_stride = (int32_t)p.feat_scales_stride;
        typename words::codes8 chunk[2 * pixel_pairs][panels > 0 ? panels : 1];
        typename words::codes2 pair[2 * pixel_pairs];
        uint32_t scale[2 * pixel_pairs][panels + rest];
        // Bits of this lane's pixels, for each panel: none where it has no column.
        uint32_t loads[panels + rest];
        int32_t at[panels + rest];
#pragma unroll
        for (int panel = 0; panel < panels + rest; ++panel) {
            at[panel] = col + panel * 64 + (panel < panels ? chunk_of(g) * 8 : g * 2);
            loads[panel] = at[panel] < p.cols ? inside >> 2 * q : 0u;
        }
#pragma unroll
        for (int k = 0; k < 2 * pixel_pairs; ++k) {
            const uint8_t *row = base + pixel[k] * stride;
            const uint8_t *scales = scale_base + pixel[k] * scales_stride;
            const uint32_t bit = 1u << (k / 2 * 8 + k % 2);
#pragma unroll
            for (int panel = 0; panel < panels; ++panel) {
                chunk[k][panel] = typename words::codes8();
                scale[k][panel] = 0;
                if (loads[panel] & bit) {
                    chunk[k][panel] =
                        words::template load8<FULL>(row, at[panel], p.cols - at[panel]);
                    scale[k][panel] = load_scale<X>(scales, at[panel]);
                }
            }
            if constexpr (rest > 0) {
                pair[k] = 0;
                scale[k][panels] = 0;
                if (loads[panels] & bit) {
                    pair[k] = words::load2(row, at[panels]);
                    scale[k][panels] = load_scale<X>(scales, at[panels]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < pixel_pairs; ++i) {
#pragma unroll
            for (int panel = 0; panel < panels; ++panel) {
                const uint4 x0 =
                    words::widen8(chunk[2 * i][panel], widen_scale(scale[2 * i][panel]));
                const uint4 x1 =
                    words::widen8(chunk[2 * i + 1][panel], widen_scale(scale[2 * i + 1][panel]));
                uint32_t *r = rows + panel * 32 + i * 8;
                interleave(x0.x, x1.x, r);
                interleave(x0.y, x1.y, r + 2);
                interleave(x0.z, x1.z, r + 4);
                interleave(x0.w, x1.w, r + 6);
            }
            if constexpr (rest > 0)
                interleave(words::widen2_of(pair[2 * i], widen_scale(scale[2 * i][panels])),
                           words::widen2_of(pair[2 * i + 1], widen_scale(scale[2 * i + 1][panels])),
                           rows + panels * 32 + i * 2);
        }
    }

    // Two channels of two pixels: from a word a pixel to a word a channel.
    static __device__ __forceinline__ void interleave(uint32_t x0, uint32_t x1, uint32_t *to)
    {
        to[0] = __byte_perm(x0, x1, 0x5410);
        to[1] = __byte_perm(x0, x1, 0x7632);
    }

    // Weights of pixels 2 k, 2 k + 1 as a word of two; 0 where the mask has no bit.
    template <class T, bool PAIRS>
    __device__ __forceinline__ void load_weights(const int2 (&span)[2],
                                                 uint32_t (&weights)[2 * pixel_pairs])
    {
        typedef typename std::conditional<sizeof(T) == 2, uint16_t, uint8_t>::type code;
        typedef typename std::conditional<sizeof(T) == 2, uint32_t, uint16_t>::type pair;
        constexpr int bits = 8 * sizeof(T);
        constexpr uint32_t low = (1u << bits) - 1, high = low << bits;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const code *w = static_cast<const code *>(p.depth) + span[r].x;
            const uint32_t mask = (uint32_t)span[r].y >> 2 * q;
#pragma unroll
            for (int i = 0; i < pixel_pairs; ++i) {
                const uint32_t first = 1u << 8 * i, second = first << 1;
                uint32_t word = 0;
                if (PAIRS) {
                    if (mask & (first | second))
                        word = *reinterpret_cast<const pair *>(w + pixel[2 * i]);
                    if (!(mask & first)) word &= high;
                    if (!(mask & second)) word &= low;
                } else {
                    uint32_t next = 0;
                    if (mask & first) word = w[pixel[2 * i]];
                    if (mask & second) next = w[pixel[2 * i + 1]];
                    word |= next << bits;
                }
                weights[2 * i + r] = word;
            }
        }
        if constexpr (sizeof(T) == 1) {
#pragma unroll
            for (int i = 0; i < 2 * pixel_pairs; ++i)
                weights[i] = widen2(T(), weights[i]);
        }
    }
    template <class T>
    __device__ __forceinline__ void load_weights(const int2 (&span)[2],
                                                 uint32_t (&weights)[2 * pixel_pairs])
    {
        if (p.depth_pairs)
            load_weights<T, true>(span, weights);
        else
            load_weights<T, false>(span, weights);
    }

    // Steps `first` to `end` - 1 of a bundle: step 0 lies at the bundle's own place, the others
    // from `more` on.
    __device__ __forceinline__ void add_steps(int32_t bundle, int32_t more, int first, int end)
    {
        int2 step, span[2];
        load_step(first == 0 ? bundle : more + first - 1, step, span);
        walk_wait_previous(); // weights and features may come from the kernel before
        for (int i = first; i < end; ++i) {
            uint32_t weights[2 * pixel_pairs];
            if (sizeof(X) == 2 || p.depth_dtype == SPOPS_DTYPE_F16)
                load_weights<f16>(span, weights); // bits of a bf16 as well
            else if (p.depth_dtype == SPOPS_DTYPE_F8E4M3)
                load_weights<f8e4m3>(span, weights);
            else
                load_weights<f8e5m2>(span, weights);
            if (step.x != tile) load_tile(step.x, (uint32_t)step.y);
            if (i + 1 < end) load_step(more + i, step, span);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (int j = 0; j < parts; ++j) {
                    const bool in_rest = j >= panels * 8;
                    const uint32_t *r = in_rest ? rows + panels * 32 + half * 4 + (j - panels * 8)
                                                : rows + j / 8 * 32 + half * 16 + j % 8;
                    multiply<half_type>(sum[j], weights + half * 4, r[0], r[in_rest ? 2 : 8]);
                }
            }
        }
    }

    __device__ __forceinline__ void load_step(int64_t at, int2 &step, int2 (&span)[2])
    {
        step = __ldg(p.steps + at);
        span[0] = __ldg(p.spans + at * SPOPS_BEV_BUNDLE_CELLS + g);
        span[1] = __ldg(p.spans + at * SPOPS_BEV_BUNDLE_CELLS + g + 8);
    }

    __device__ __forceinline__ bool all_finite() const
    {
        float zero[4] = {};
#pragma unroll
        for (int j = 0; j < parts; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                zero[i] += sum[j][i] * 0.0f;
        return __all_sync(whole_warp, zero[0] + zero[1] + (zero[2] + zero[3]) == 0.0f);
    }

    __device__ __forceinline__ void store(const int32_t (&cell)[2], float scale) const
    {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            if (cell[r] < 0) continue;
            uint8_t *row = p.out + (int64_t)cell[r] * p.out_stride;
#pragma unroll
            for (int panel = 0; panel < panels; ++panel) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int32_t at = col + panel * 64 + chunk_of(2 * q + h) * 8;
                    float v[8];
#pragma unroll
                    for (int j = 0; j < 8; ++j)
                        v[j] = sum[panel * 8 + j][2 * r + h] * scale;
                    if (at < p.cols) store_row<FULL>(p.out_dtype, row, at, p.cols - at, v);
                }
            }
            if constexpr (rest > 0) {
                const int32_t at = col + panels * 64 + q * 4;
                constexpr int j = panels * 8;
                const float v[4] = {sum[j][2 * r] * scale, sum[j + 1][2 * r] * scale,
                                    sum[j][2 * r + 1] * scale, sum[j + 1][2 * r + 1] * scale};
                if (at < p.cols) store_row<FULL>(p.out_dtype, row, at, p.cols - at, v);
            }
        }
    }
};

// One value of feat.
template <class X>
__device__ __forceinline__ float feature(const pool_params &p, int64_t row, int32_t at)
{
    typedef row_words<X> words;
    const uint8_t *from = p.feat + row * p.feat_stride;
    const uint8_t *scales = p.feat_scales + row * p.feat_scales_stride;
    const int32_t even = at / 2 * 2;
    const uint4 two = words::widen8(words::template load8<false>(from, even, min(p.cols - even, 2)),
                                    widen_scale(load_scale<X>(scales, even)));
    float v[2];
    unpack2<typename words::half_type>(two.x, v[0], v[1]);
    return at % 2 != 0 ? v[1] : v[0];
}

// A bundle's columns col to end - 1 term by term, with nothing from pixels outside a cell.
template <class X>
__device__ __noinline__ void sum_apart(const pool_params &p, int32_t bundle, spops_bev_bundle b,
                                       int32_t col, int32_t end, float scale)
{
    for (int i = 0; i < SPOPS_BEV_BUNDLE_CELLS; ++i) {
        const int32_t cell = p.cells[(int64_t)bundle * SPOPS_BEV_BUNDLE_CELLS + i];
        if (cell < 0) continue;
        for (int32_t at = col + (int32_t)(threadIdx.x % warp); at < end; at += warp) {
            float total = 0.0f;
            for (int32_t step = 0; step < b.num_steps; ++step) {
                const int64_t place = step == 0 ? bundle : b.more + step - 1;
                const int2 span = p.spans[place * SPOPS_BEV_BUNDLE_CELLS + i];
                const int32_t first = p.steps[place].x;
                for (uint32_t mask = (uint32_t)span.y; mask != 0; mask &= mask - 1) {
                    const int32_t k = __ffs((int)mask) - 1;
                    const int32_t off = pixel_offset(p, k);
                    total += load_weight_f32(p.depth, p.depth_dtype, span.x + off) *
                             feature<X>(p, (int64_t)first + off, at);
                }
            }
            const float v[4] = {total * scale};
            store_row<false>(p.out_dtype, p.out + (int64_t)cell * p.out_stride, at, 1, v);
        }
    }
}

// Add the sums of a team's warps in the first one's, half by half. All warps of the block come
// here.
template <class Sums>
__device__ __forceinline__ void combine_team(Sums &sums, float *shared, int part, int team,
                                             int team_warps)
{
    const int lane = (int)(threadIdx.x % warp);
    constexpr int values = Sums::parts * 4;
    for (int half = team_warps / 2; half > 0; half /= 2) {
        float *s = shared + (team * (team_warps / 2) + (part & (half - 1))) * values * warp + lane;
        if (part >= half && part < 2 * half) {
#pragma unroll
            for (int i = 0; i < values; ++i)
                s[i * warp] = sums.sum[i / 4][i % 4];
        }
        __syncthreads();
        if (part < half) {
#pragma unroll
            for (int i = 0; i < values; ++i)
                sums.sum[i / 4][i % 4] += s[i * warp];
        }
        if (half > 1) __syncthreads();
    }
}

// Rows of cells that no span is in: 32 cells a warp.
template <int COLS, bool FULL> __device__ void clear_cells(const pool_params &p, int32_t block)
{
    const int lane = (int)(threadIdx.x % warp);
    const int64_t word = (int64_t)block * warps + threadIdx.x / warp;
    if (word * 32 >= p.num_cells) return;
    const int32_t col = (int32_t)blockIdx.y * COLS;
    const int32_t bytes = p.out_dtype == SPOPS_DTYPE_F32                                      ? 4
                          : p.out_dtype == SPOPS_DTYPE_F16 || p.out_dtype == SPOPS_DTYPE_BF16 ? 2
                                                                                              : 1;
    const int32_t n = min(COLS, p.cols - col) * bytes;
    uint32_t empty = ~__ldg(p.covered + word);
    walk_wait_previous();
    for (; empty != 0; empty &= empty - 1) {
        const int64_t cell = word * 32 + __ffs((int)empty) - 1;
        if (cell >= p.num_cells) return;
        uint8_t *row = p.out + cell * p.out_stride + (int64_t)col * bytes;
        if (FULL) {
            for (int32_t i = lane * 8; i < n; i += warp * 8)
                *reinterpret_cast<uint2 *>(row + i) = make_uint2(0, 0);
        } else {
            for (int32_t i = lane; i < n; i += warp)
                row[i] = 0;
        }
    }
}

template <class X, int COLS, bool FULL>
__global__ void __launch_bounds__(threads, 4) pool_kernel(const __grid_constant__ pool_params p)
{
    typedef bundle_sums<X, COLS, FULL> sums_type;
    __shared__ float shared[warps / 2 * warp * sums_type::parts * 4];
    const int32_t block = (int32_t)blockIdx.x;
    walk_release_next();
    if (block >= p.slot_begin[SPOPS_BEV_NUM_TEAMS]) {
        clear_cells<COLS, FULL>(p, block - p.slot_begin[SPOPS_BEV_NUM_TEAMS]);
        return;
    }
    const int c = block >= p.slot_begin[SPOPS_BEV_TEAM1]   ? SPOPS_BEV_TEAM1
                  : block >= p.slot_begin[SPOPS_BEV_TEAM2] ? SPOPS_BEV_TEAM2
                                                           : SPOPS_BEV_TEAM4;
    const int team_log2 = warps_log2 - c, team_warps = 1 << team_log2;
    const int at = (int)(threadIdx.x / warp);
    const int part = at & (team_warps - 1), team = at >> team_log2;
    const int32_t in_class = ((block - p.slot_begin[c]) << c) + team;
    const bool there = in_class < p.num_bundles[c];
    const int32_t bundle = c * p.max_bundles + in_class;

    sums_type sums(p, (int32_t)blockIdx.y * COLS);
    spops_bev_bundle b = {};
    int32_t cell[2] = {-1, -1};
    if (there) {
        b = p.bundles[bundle];
        cell[0] = __ldg(p.cells + (int64_t)bundle * SPOPS_BEV_BUNDLE_CELLS + sums.g);
        cell[1] = __ldg(p.cells + (int64_t)bundle * SPOPS_BEV_BUNDLE_CELLS + sums.g + 8);
        const int each = (b.num_steps + team_warps - 1) >> team_log2;
        const int first = part * each, end = min(first + each, b.num_steps);
        if (first < end) sums.add_steps(bundle, b.more, first, end);
    }
    walk_wait_previous();
    combine_team(sums, shared, part, team, team_warps);
    if (part != 0 || !there) return;
    const float scale = scale_of(p.feat_scale, p.depth_scale, p.out_scale);
    if (sums.all_finite())
        sums.store(cell, scale);
    else
        sum_apart<X>(p, bundle, b, sums.col, min(sums.col + COLS, p.cols), scale);
}

template <class X, int COLS, bool FULL>
spops_status launch_pool(spops_context *ctx, const pool_params &p, int32_t blocks)
{
    const dim3 grid((unsigned)blocks, (unsigned)((p.cols + COLS - 1) / COLS));
    return launch<WAITS_FOR_PREVIOUS>(ctx, "bev_spans: pool", pool_kernel<X, COLS, FULL>, grid,
                                      threads, p);
}

template <class X>
spops_status launch_features(spops_context *ctx, const pool_params &p, bool full, int32_t blocks)
{
    if (!full) return launch_pool<X, 64, false>(ctx, p, blocks);
    if (p.cols % 80 == 0) return launch_pool<X, 80, true>(ctx, p, blocks);
    if (p.cols <= 16) return launch_pool<X, 16, true>(ctx, p, blocks);
    return launch_pool<X, 64, true>(ctx, p, blocks);
}

} // namespace

extern "C" spops_status spops_cuda_bev_spans_pool(spops_context *ctx,
                                                  const spops_bev_spans_pool_args *args)
{
    const spops_bev_spans &s = *args->spans;
    const spops_matrix feat = args->feat, out = args->out, depth = args->depth;
    if (feat.cols == 0 || args->num_cells == 0) return SPOPS_STATUS_OK;
    pool_params p = {};
    p.bundles = s.bundles;
    p.cells = s.cells;
    p.steps = (const int2 *)s.steps;
    p.spans = (const int2 *)s.spans;
    p.covered = s.covered;
    p.max_bundles = (int32_t)s.max_bundles;
    for (int c = 0; c < SPOPS_BEV_NUM_TEAMS; ++c) {
        const int32_t per_block = 1 << c; // bundles
        p.num_bundles[c] = s.host_counts.num_bundles[c];
        p.slot_begin[c + 1] = p.slot_begin[c] + (p.num_bundles[c] + per_block - 1) / per_block;
    }
    const int64_t words = (args->num_cells + 31) / 32;
    const int32_t blocks =
        p.slot_begin[SPOPS_BEV_NUM_TEAMS] + (int32_t)((words + warps - 1) / warps);
    p.num_cells = args->num_cells;
    p.feature_width = args->feature_width;
    while (1 << p.tile_width_log2 < s.tile_width)
        ++p.tile_width_log2;
    p.cols = (int32_t)feat.cols;
    p.feat = (const uint8_t *)feat.data;
    p.feat_stride = spops_elements_bytes(feat.dtype, feat.row_stride);
    p.feat_scales = (const uint8_t *)args->feat_scales.data;
    p.feat_scales_stride = args->feat_scales.row_stride;
    p.depth = depth.data;
    p.depth_dtype = depth.dtype;
    const size_t pair = 2 * spops_dtype_bytes(depth.dtype);
    p.depth_pairs =
        s.tile_width % 2 == 0 && args->feature_width % 2 == 0 && (uintptr_t)depth.data % pair == 0;
    p.out = (uint8_t *)out.data;
    p.out_stride = spops_elements_bytes(out.dtype, out.row_stride);
    p.out_dtype = out.dtype;
    p.feat_scale = args->feat_scale;
    p.depth_scale = args->depth_scale;
    p.out_scale = args->out_scale;
    const bool full = rows_in_eights(feat, out);
    switch (feat.dtype) {
    case SPOPS_DTYPE_F16: return launch_features<f16>(ctx, p, full, blocks);
    case SPOPS_DTYPE_BF16: return launch_features<bf16>(ctx, p, full, blocks);
    case SPOPS_DTYPE_F8E4M3: return launch_features<f8e4m3>(ctx, p, full, blocks);
    case SPOPS_DTYPE_F8E5M2: return launch_features<f8e5m2>(ctx, p, full, blocks);
    case SPOPS_DTYPE_F4E2M1: return launch_features<f4e2m1>(ctx, p, full, blocks);
    default: break;
    }
    return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "bev_spans: feat is %s",
                      spops_dtype_name(feat.dtype));
}
