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
spops_status spops_cpu_seggrad(spops_context *ctx, const spops_seggrad_args *args);
spops_status spops_cpu_segdot(spops_context *ctx, const spops_segdot_args *args);

// src/gather/gather_cpu.c
spops_status spops_cpu_gather(spops_context *ctx, const spops_gather_args *args);
spops_status spops_cpu_transpose(spops_context *ctx, const spops_transpose_args *args);

// src/bevpool/bevpool_cpu.c
spops_status spops_cpu_bev_points(spops_context *ctx, const spops_bev_points_args *args);

#endif
