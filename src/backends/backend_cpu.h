// The CPU functions that fill the table in backend_cpu.c, each with its slot's signature and
// contract (core/backend.h). They live with the module they belong to.
#ifndef SPOPS_BACKENDS_BACKEND_CPU_H
#define SPOPS_BACKENDS_BACKEND_CPU_H

#include "core/backend.h"

// src/segments/segments_cpu.c
int32_t spops_cpu_split_terms(const spops_context *ctx, int64_t max_terms, int64_t max_cols);
size_t spops_cpu_lists_workspace_bytes(spops_context *ctx, int64_t num_owners, int64_t max_terms);
spops_status spops_cpu_lists_build(spops_context *ctx, const spops_lists_source *source,
                                   spops_lists *lists, void *workspace);
spops_status spops_cpu_lists_invert(spops_context *ctx, const spops_lists *forward,
                                    spops_inverse inverse, spops_lists *lists, void *workspace);
spops_status spops_cpu_check(spops_context *ctx, spops_check_rule rule, const int32_t *a, int64_t n,
                             int64_t low, int64_t high, spops_check_result *result);

// src/segreduce/segreduce_cpu.c
spops_status spops_cpu_segreduce(spops_context *ctx, const spops_segreduce_args *args);
spops_status spops_cpu_seggrad(spops_context *ctx, const spops_grad_args *args);
spops_status spops_cpu_segdot(spops_context *ctx, const spops_grad_args *args);

// src/gather/gather_cpu.c
spops_status spops_cpu_gather(spops_context *ctx, const spops_gather_args *args);
spops_status spops_cpu_transpose(spops_context *ctx, const spops_transpose_args *args);

// src/bevpool/bevpool_cpu.c
spops_status spops_cpu_bev_points(spops_context *ctx, const spops_bev_points_args *args);

// src/quantize/quantize_cpu.c
spops_status spops_cpu_quantize_scale(spops_context *ctx, const spops_quantize_scale_args *args);
spops_status spops_cpu_quantize(spops_context *ctx, const spops_quantize_args *args);
spops_status spops_cpu_dequantize(spops_context *ctx, const spops_quantize_args *args);

// src/coords/coord_index_cpu.c
spops_search spops_cpu_coords_search(const spops_context *ctx, const spops_key_layout *layout,
                                     int64_t max_rows, size_t max_grid_bytes);
size_t spops_cpu_coords_index_bytes(spops_context *ctx, const spops_key_layout *layout,
                                    spops_search search, int64_t max_rows);

// src/coords/coords_cpu.c
spops_status spops_cpu_coords_bounds(spops_context *ctx, const spops_coords_source *source,
                                     const spops_coords_box *box, spops_coords_bounds *bounds);
size_t spops_cpu_coords_workspace_bytes(spops_context *ctx, const spops_coords_arrays *coords,
                                        int64_t max_candidates);
spops_status spops_cpu_coords_build(spops_context *ctx, const spops_coords_source *source,
                                    const spops_coords_arrays *coords, void *workspace);

// src/coords/voxels_cpu.c
spops_status spops_cpu_voxel_points(spops_context *ctx, const spops_voxel_points_args *args);
spops_status spops_cpu_devoxelize(spops_context *ctx, const spops_devoxelize_args *args);

// src/coords/kernel_map_cpu.c
size_t spops_cpu_map_workspace_bytes(spops_context *ctx, const spops_map_arrays *map,
                                     int32_t parts);
spops_status spops_cpu_map_search(spops_context *ctx, const spops_coords_arrays *in,
                                  const spops_coords_arrays *out, const spops_map_arrays *map,
                                  void *workspace);
spops_status spops_cpu_map_reverse(spops_context *ctx, const spops_map_arrays *map,
                                   const spops_map_side *from, const spops_map_side *to,
                                   void *workspace);
spops_status spops_cpu_map_order(spops_context *ctx, const spops_map_arrays *map,
                                 const spops_map_side *side, void *workspace);
spops_status spops_cpu_map_pairs(spops_context *ctx, const spops_map_arrays *map, void *workspace);

#endif
