// What the CUDA backend and the launchers in kernels/ know of each other. No CUDA type appears
// here: streams are void *, errors are int.
//
// The launchers have their slot's signature and contract (core/backend.h). backend_cuda.c calls
// them with the context's device current, so they need not set it.
#ifndef SPOPS_KERNELS_LAUNCHERS_H
#define SPOPS_KERNELS_LAUNCHERS_H

#include "core/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// OK for cudaSuccess. Else reports "<what>: <error string>" on ctx, as OUT_OF_MEMORY for
// cudaErrorMemoryAllocation and as CUDA for the rest. Name the call and the CUDA function in
// `what`: "segreduce_execute: cudaLaunchKernel". Clears the error where the runtime remembers it.
spops_status spops_cuda_status(spops_context *ctx, const char *what, int cuda_error);

// kernels/segments/segments.cu
int spops_cuda_probe(void); // the CUDA error of looking up a kernel on the current device
int32_t spops_cuda_split_terms(const spops_context *ctx, int64_t max_terms, int64_t max_cols);
size_t spops_cuda_lists_workspace_bytes(spops_context *ctx, int64_t num_owners, int64_t max_terms);
spops_status spops_cuda_lists_build(spops_context *ctx, const spops_lists_source *source,
                                    spops_lists *lists, void *workspace);
spops_status spops_cuda_lists_invert(spops_context *ctx, const spops_lists *forward,
                                     spops_inverse inverse, spops_lists *lists, void *workspace);
spops_status spops_cuda_check(spops_context *ctx, spops_check_rule rule, const int32_t *a,
                              int64_t n, int64_t low, int64_t high, spops_check_result *result);

// kernels/core/custom_reduce.cu
spops_status spops_cuda_reduce_create(spops_context *ctx, spops_custom_reduce *custom);
void spops_cuda_reduce_destroy(spops_context *ctx, spops_custom_reduce *custom);

// kernels/segreduce/
spops_status spops_cuda_segreduce(spops_context *ctx, const spops_segreduce_args *args);
spops_status spops_cuda_segsum_mixed(spops_context *ctx, const spops_segreduce_args *args);
spops_status spops_cuda_seggrad(spops_context *ctx, const spops_grad_args *args);
spops_status spops_cuda_segdot(spops_context *ctx, const spops_grad_args *args);
bool spops_cuda_sumgrad_fits(const spops_sumgrad_args *args);
spops_status spops_cuda_sumgrad(spops_context *ctx, const spops_sumgrad_args *args);

// kernels/gather/
spops_status spops_cuda_gather(spops_context *ctx, const spops_gather_args *args);
spops_status spops_cuda_transpose(spops_context *ctx, const spops_transpose_args *args);

// kernels/bevpool/bev_points.cu
spops_status spops_cuda_bev_points(spops_context *ctx, const spops_bev_points_args *args);

// kernels/bevpool/bev_spans_build.cu, bev_spans_pool.cu, bev_spans_grad.cu
size_t spops_cuda_bev_spans_workspace_bytes(spops_context *ctx, const spops_bev_spans *spans,
                                            const spops_bev_shape *shape);
spops_status spops_cuda_bev_spans_build(spops_context *ctx, const spops_bev_spans_args *args);
bool spops_cuda_bev_spans_pool_fits(const spops_context *ctx,
                                    const spops_bev_spans_pool_args *args);
spops_status spops_cuda_bev_spans_pool(spops_context *ctx, const spops_bev_spans_pool_args *args);
bool spops_cuda_bev_spans_grad_fits(const spops_context *ctx,
                                    const spops_bev_spans_grad_args *args);
spops_status spops_cuda_bev_spans_grad(spops_context *ctx, const spops_bev_spans_grad_args *args);

// kernels/coords/
spops_search spops_cuda_coords_search(const spops_context *ctx, const spops_key_layout *layout,
                                      int64_t max_rows, size_t max_grid_bytes);
size_t spops_cuda_coords_index_bytes(spops_context *ctx, const spops_key_layout *layout,
                                     spops_search search, int64_t max_rows);
spops_status spops_cuda_coords_bounds(spops_context *ctx, const spops_coords_source *source,
                                      const spops_coords_box *box, spops_coords_bounds *bounds);
size_t spops_cuda_coords_workspace_bytes(spops_context *ctx, const spops_coords_arrays *coords,
                                         int64_t max_candidates);
spops_status spops_cuda_coords_build(spops_context *ctx, const spops_coords_source *source,
                                     const spops_coords_arrays *coords, void *workspace);
spops_status spops_cuda_voxel_points(spops_context *ctx, const spops_voxel_points_args *args);
spops_status spops_cuda_devoxelize(spops_context *ctx, const spops_devoxelize_args *args);
size_t spops_cuda_map_workspace_bytes(spops_context *ctx, const spops_map_arrays *map,
                                      int32_t parts);
spops_status spops_cuda_map_search(spops_context *ctx, const spops_coords_arrays *in,
                                   const spops_coords_arrays *out, const spops_map_arrays *map,
                                   void *workspace);
spops_status spops_cuda_map_reverse(spops_context *ctx, const spops_map_arrays *map,
                                    const spops_map_side *from, const spops_map_side *to,
                                    void *workspace);
spops_status spops_cuda_map_order(spops_context *ctx, const spops_map_arrays *map,
                                  const spops_map_side *side, void *workspace);
spops_status spops_cuda_map_pairs(spops_context *ctx, const spops_map_arrays *map, void *workspace);

// kernels/quantize/quantize.cu
spops_status spops_cuda_quantize_scale(spops_context *ctx, const spops_quantize_scale_args *args);
spops_status spops_cuda_quantize(spops_context *ctx, const spops_quantize_args *args);
spops_status spops_cuda_dequantize(spops_context *ctx, const spops_quantize_args *args);

#ifdef __cplusplus
}
#endif

#endif
