// The interface of a backend: one table of typed functions, a slot per core pattern, filled in
// src/backends. An empty slot makes the public call return NOT_SUPPORTED. Slots get checked
// arguments; they allocate and wait only where said.
#ifndef SPOPS_CORE_BACKEND_H
#define SPOPS_CORE_BACKEND_H

#include "core/context.h"
#include "core/lists.h"
#include "spops/bevpool.h"

#ifdef __cplusplus
extern "C" {
#endif

// out[o] = reduce over positions p of owner o of w[b(p)] * x[a(p)].
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
    uint32_t *tickets; // zero; left zero
} spops_segreduce_args;

// grad_x[o] = sum over positions p of owner (row) o, with s = a(p), m = b(p), t = order(p), of
//             w[m] * grad(w[m] * x[o], t, states[s], count(s)) * grad_out[s]
// Runs over the by-row lists. SUM goes to segreduce instead.
typedef struct spops_seggrad_args {
    const spops_lists *lists; // by row: pairs = segment, weight
    spops_reduce reduce;
    const spops_custom_reduce *custom;
    spops_matrix grad_out, x;
    spops_matrix w; // data NULL: all ones
    spops_matrix grad_x;
    const void *states;             // traced states of the forward pass; NULL for MEAN
    const int32_t *segment_offsets; // of the forward lists: count(s)
    void *partials;                 // [lists->max_pieces][x.cols] f32
    uint32_t *tickets;
} spops_seggrad_args;

// grad_w[o] = sum over positions p of owner (weight) o, with j = a(p), s = b(p), t = order(p), of
//             sum over c of x[j, c] * grad(w[o] * x[j, c], t, states[s, c], count(s)) * grad_out[s,
//             c]
// Runs over the by-weight lists.
typedef struct spops_segdot_args {
    const spops_lists *lists; // by weight: pairs = row, segment
    spops_reduce reduce;
    const spops_custom_reduce *custom;
    spops_matrix grad_out, x, w; // w.data NULL: ones (never for SUM and MEAN, which do not read it)
    spops_matrix grad_w;
    const void *states;             // NULL for SUM and MEAN
    const int32_t *segment_offsets; // NULL for SUM
    void *partials;                 // [lists->max_pieces] f32
    uint32_t *tickets;
} spops_segdot_args;

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
// [batches * cols, rows].
typedef struct spops_transpose_args {
    int64_t batches, rows, cols;
    spops_matrix in, out;
} spops_transpose_args;

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
    spops_status (*seggrad)(spops_context *ctx, const spops_seggrad_args *args);
    spops_status (*segdot)(spops_context *ctx, const spops_segdot_args *args);
    // A fused way to the two gradients of SUM; without it (empty slot, or arguments that do not
    // fit) segreduce and segdot do the same.
    bool (*sumgrad_fits)(const spops_sumgrad_args *args);
    spops_status (*sumgrad)(spops_context *ctx, const spops_sumgrad_args *args);
    spops_status (*gather)(spops_context *ctx, const spops_gather_args *args);
    spops_status (*transpose)(spops_context *ctx, const spops_transpose_args *args);
    spops_status (*bev_points)(spops_context *ctx, const spops_bev_points_args *args);
} spops_backend;

extern const spops_backend spops_backend_cpu;

// The CUDA table, or NULL in a build without CUDA.
const spops_backend *spops_backend_cuda(void);

#ifdef __cplusplus
}
#endif

#endif
