// The interface of a backend: one table of typed functions, a slot per core pattern, filled in
// src/backends. An empty slot makes the public call return NOT_SUPPORTED. Slots get checked
// arguments; they allocate and wait only where said.
#ifndef SPOPS_CORE_BACKEND_H
#define SPOPS_CORE_BACKEND_H

#include "core/bev_spans.h"
#include "core/context.h"
#include "core/coord_arrays.h"
#include "core/lists.h"
#include "spops/bevpool.h"

#ifdef __cplusplus
extern "C" {
#endif

// out[o] = reduce over positions p of owner o of w[b(p)] * x[a(p)].
//
// What SUM may be asked for beyond that (all zero for every other use): an x of F8E4M3, F8E5M2 or
// F4E2M1, w and out of other dtypes than x (those of bevpool.h's table), and scales:
//     out[o, c] = sum * x_scale * w_scale / out_scale,
// where the factor is (x_scale * w_scale) / out_scale in f32, owners without positions get 0, and
// an element of an F4E2M1 x counts as its value times x_scales[row, c / 16]. An out of an 8-bit
// dtype saturates.
typedef struct spops_segreduce_args {
    const spops_lists *lists;
    spops_reduce reduce;
    const spops_custom_reduce *custom; // set when reduce is a custom id
    spops_matrix x;
    spops_matrix w;   // data NULL: all ones
    spops_matrix out; // data NULL: not wanted
    spops_matrix arg; // i32; data NULL: not wanted
    void *states;     // [num_owners][x.cols] states of the reduction's traced op (reduce_ops.h), or
                      // NULL. With states or arg the traced op runs, else the plain one.
    void *partials;   // [lists->max_pieces][x.cols] states of at most 8 bytes
    uint32_t *tickets;     // zero; left zero
    spops_matrix x_scales; // F8E4M3 [x.rows, ceil(x.cols / 16)] of an F4E2M1 x; else data NULL
    const float *x_scale, *w_scale, *out_scale; // backend memory, one each; NULL: 1
    spops_accumulate accumulate;
    void *x_f16; // CPU: scratch that an 8- or 4-bit x is widened to, [x.rows][x.cols] f16
} spops_segreduce_args;

// A gradient of a reduction, with t = order(p).
//
// Slot seggrad, with respect to rows, over the by-row lists (SUM goes to segreduce instead):
//     grad[o] = sum over positions p of owner (row) o, with s = a(p), m = b(p), of
//               w[m] * grad(w[m] * x[o], t, states[s], count(s)) * grad_out[s]
//
// Slot segdot, with respect to weights, over the by-weight lists:
//     grad[o] = sum over positions p of owner (weight) o, with j = a(p), s = b(p), of
//               sum over c of x[j, c] * grad(w[o] * x[j, c], t, states[s, c], count(s)) *
//               grad_out[s, c]
typedef struct spops_grad_args {
    const spops_lists *lists; // by row: pairs = segment, weight; by weight: row, segment
    spops_reduce reduce;
    const spops_custom_reduce *custom;
    spops_matrix grad_out, x;
    spops_matrix w; // data NULL: all ones
    spops_matrix grad;
    const void *states;             // traced states of the forward pass; NULL for SUM and MEAN
    const int32_t *segment_offsets; // of the forward lists: count(s)
    void *partials;                 // [lists->max_pieces] f32, each as wide as a row of grad
    uint32_t *tickets;
} spops_grad_args;

// Both gradients of SUM in one walk over the by-row lists, for plans whose weights are each named
// once (segments.h, weights_unique):
//     grad_x[o] = sum over positions p of owner o of  w[b(p)] * grad_out[a(p)]
//     grad_w[b(p)] = <x[o], grad_out[a(p)]>;  weights that no position names are left alone.
typedef struct spops_sumgrad_args {
    const spops_lists *lists;
    spops_matrix grad_out, x, w, grad_x, grad_w;
    void *partials; // [lists->max_pieces][x.cols] f32
    uint32_t *tickets;
} spops_sumgrad_args;

// out[a(p)] = w[b(p)] * x[o] for every position p of owner o.
typedef struct spops_gather_args {
    const spops_lists *lists;
    spops_matrix x;
    spops_matrix w; // data NULL: plain copies
    spops_matrix out;
} spops_gather_args;

// out[c, r] = in[r, c] for each of `batches` slices: in [batches * rows, cols] -> out
// [batches * cols, rows]. Any dtype of 1, 2 or 4 bytes, the same on both sides.
typedef struct spops_transpose_args {
    int64_t batches, rows, cols;
    spops_matrix in, out;
} spops_transpose_args;

// scale[0] = max |x| / the largest value of dtype, as spops/quantize.h has it. x may be empty.
typedef struct spops_quantize_scale_args {
    spops_matrix x;
    spops_dtype dtype;
    float *scale; // backend memory
} spops_quantize_scale_args;

// x (f32, f16, bf16) to q (f8e4m3, f8e5m2, f4e2m1) and block_scales, or back. Not empty.
typedef struct spops_quantize_args {
    spops_matrix x, q;
    spops_matrix block_scales; // of an f4e2m1 q; else data NULL
    const float *scale;        // backend memory; NULL: 1
} spops_quantize_args;

// keys[p] = cell of frustum point p, or -1 outside; feat[p] = its pixel row (bev_geometry.h).
typedef struct spops_bev_points_args {
    spops_bev_shape shape;
    double pixel_step_u, pixel_step_v; // input px per feature px
    double depth_start_m, depth_step_m;
    const double *depths_m; // [num_depths] backend memory, or NULL
    double grid_lower_m[3], cell_size_m[3];
    const double *transforms; // [B * N][12] backend memory
    int32_t *keys;            // [B*N*D*H*W]
    int32_t *feat;            // [B*N*D*H*W]
} spops_bev_points_args;

// The first element of an index array that breaks a rule.
typedef enum spops_check_rule {
    SPOPS_CHECK_RANGE = 0,    // low <= a[i] < high
    SPOPS_CHECK_ASCENDING = 1 // a[i - 1] <= a[i]
} spops_check_rule;

typedef struct spops_check_result {
    int64_t index;    // -1: all are fine
    int32_t value;    // a[index]
    int32_t previous; // a[index - 1], for ASCENDING
} spops_check_result;

// Which of the forward lists' numbers becomes the owner of inverted lists.
typedef enum spops_inverse {
    SPOPS_BY_ROW = 0,   // owner a(p); pairs = segment, b(p)
    SPOPS_BY_WEIGHT = 1 // owner b(p); pairs = a(p), segment
} spops_inverse;

typedef struct spops_backend {
    spops_backend_kind kind;
    const char *name; // "cpu", "cuda"

    // Device. open fills ctx->info and backend_state, or reports BACKEND_UNAVAILABLE.
    spops_status (*open)(spops_context *ctx, int device);
    void (*close)(spops_context *ctx);
    spops_status (*alloc)(spops_context *ctx, size_t bytes, void **ptr);
    void (*free)(spops_context *ctx, void *ptr, size_t bytes);
    spops_status (*upload)(spops_context *ctx, void *dst, const void *src, size_t bytes);   // waits
    spops_status (*download)(spops_context *ctx, void *dst, const void *src, size_t bytes); // waits
    spops_status (*copy)(spops_context *ctx, void *dst, const void *src, size_t bytes); // enqueues
    spops_status (*fill_zero)(spops_context *ctx, void *dst, size_t bytes);             // enqueues
    spops_status (*wait)(spops_context *ctx);
    bool (*is_capturing)(spops_context *ctx);

    // Plans. lists arrive carved (arrays set, contents not); these enqueue the work that fills
    // offsets, pairs, order, schedule, entries, pieces and splits. workspace is backend memory of
    // at least lists_workspace_bytes. Nothing allocates or waits, so a captured graph may hold it.
    int32_t (*split_terms)(const spops_context *ctx, int64_t max_terms, int64_t max_cols);
    size_t (*lists_workspace_bytes)(spops_context *ctx, int64_t num_owners, int64_t max_terms);
    spops_status (*lists_build)(spops_context *ctx, const spops_lists_source *source,
                                spops_lists *lists, void *workspace);
    spops_status (*lists_invert)(spops_context *ctx, const spops_lists *forward,
                                 spops_inverse inverse, spops_lists *lists, void *workspace);
    spops_status (*check)(spops_context *ctx, spops_check_rule rule, const int32_t *a, int64_t n,
                          int64_t low, int64_t high, spops_check_result *result);   // waits
    spops_status (*reduce_create)(spops_context *ctx, spops_custom_reduce *custom); // may compile
    void (*reduce_destroy)(spops_context *ctx, spops_custom_reduce *custom);

    // Core patterns: enqueue and return.
    spops_status (*segreduce)(spops_context *ctx, const spops_segreduce_args *args);
    spops_status (*seggrad)(spops_context *ctx, const spops_grad_args *args);
    spops_status (*segdot)(spops_context *ctx, const spops_grad_args *args);
    // A fused way to the two gradients of SUM; without it (empty slot, or arguments that do not
    // fit) segreduce and segdot do the same.
    bool (*sumgrad_fits)(const spops_sumgrad_args *args);
    spops_status (*sumgrad)(spops_context *ctx, const spops_sumgrad_args *args);
    spops_status (*gather)(spops_context *ctx, const spops_gather_args *args);
    spops_status (*transpose)(spops_context *ctx, const spops_transpose_args *args);
    spops_status (*bev_points)(spops_context *ctx, const spops_bev_points_args *args);

    // The span form of BEV plans (core/bev_spans.h); all six or none.
    size_t (*bev_spans_workspace_bytes)(spops_context *ctx, const spops_bev_spans *spans,
                                        const spops_bev_shape *shape);
    spops_status (*bev_spans_build)(spops_context *ctx, const spops_bev_spans_args *args);
    bool (*bev_spans_pool_fits)(const spops_context *ctx, const spops_bev_spans_pool_args *args);
    spops_status (*bev_spans_pool)(spops_context *ctx, const spops_bev_spans_pool_args *args);
    bool (*bev_spans_grad_fits)(const spops_context *ctx, const spops_bev_spans_grad_args *args);
    spops_status (*bev_spans_grad)(spops_context *ctx, const spops_bev_spans_grad_args *args);
    spops_status (*quantize_scale)(spops_context *ctx, const spops_quantize_scale_args *args);
    spops_status (*quantize)(spops_context *ctx, const spops_quantize_args *args);
    spops_status (*dequantize)(spops_context *ctx, const spops_quantize_args *args);

    // Coordinates (core/coord_arrays.h). search never returns AUTO: the strategy for a set of this
    // layout and capacity, where the grid may take max_grid_bytes.
    spops_search (*coords_search)(const spops_context *ctx, const spops_key_layout *layout,
                                  int64_t max_rows, size_t max_grid_bytes);
    // Bytes of the index of such a set; SIZE_MAX: too large to count.
    size_t (*coords_index_bytes)(spops_context *ctx, const spops_key_layout *layout,
                                 spops_search search, int64_t max_rows);
    // Of the first bad item, and of the box, of ROWS or POINTS; box NULL: none. Waits.
    spops_status (*coords_bounds)(spops_context *ctx, const spops_coords_source *source,
                                  const spops_coords_box *box, spops_coords_bounds *bounds);
    // Workspace of coords_build for up to max_candidates candidates; coords holds layout, order,
    // search, max_rows and max_items. Enough for every kind of source with no more candidates.
    size_t (*coords_workspace_bytes)(spops_context *ctx, const spops_coords_arrays *coords,
                                     int64_t max_candidates);
    // Fill every array of coords from source. Candidates outside the box are left out, and counted
    // except for DOWN and UP, and for items that KEPT leaves out. Rows are in coords->order;
    // where more are found than fit, the first max_rows are kept. Enqueues.
    spops_status (*coords_build)(spops_context *ctx, const spops_coords_source *source,
                                 const spops_coords_arrays *coords, void *workspace);
    spops_status (*voxel_points)(spops_context *ctx, const spops_voxel_points_args *args);
    spops_status (*devoxelize)(spops_context *ctx, const spops_devoxelize_args *args);

    // Kernel maps. workspace_bytes: of any of the four; map holds sizes and which parts are wanted
    // (arrays not NULL need not be true yet). All four enqueue.
    size_t (*map_workspace_bytes)(spops_context *ctx, const spops_map_arrays *map, int32_t parts);
    // out.table, out.masks, tap_counts and the state's num_out, num_in and num_pairs.
    spops_status (*map_search)(spops_context *ctx, const spops_coords_arrays *in,
                               const spops_coords_arrays *out, const spops_map_arrays *map,
                               void *workspace);
    // to's table and masks from from's: to[j][k] = i where from[i][k] = j, -1 elsewhere.
    spops_status (*map_reverse)(spops_context *ctx, const spops_map_arrays *map,
                                const spops_map_side *from, const spops_map_side *to,
                                void *workspace);
    // order, tile_masks and tile_order of a side from its masks.
    spops_status (*map_order)(spops_context *ctx, const spops_map_arrays *map,
                              const spops_map_side *side, void *workspace);
    // tap_offsets, in_rows, out_rows and the state's overflow; then offsets, list and positions of
    // the sides that want them. Needs tables and tap_counts.
    spops_status (*map_pairs)(spops_context *ctx, const spops_map_arrays *map, void *workspace);
} spops_backend;

extern const spops_backend spops_backend_cpu;

// The CUDA table, or NULL in a build without CUDA.
const spops_backend *spops_backend_cuda(void);

#ifdef __cplusplus
}
#endif

#endif
