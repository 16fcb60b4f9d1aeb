// SPDX-License-Identifier: Apache-2.0
// Which dataflow each pass of a layer shall run on: one that was named, a row of the caller's tuning, or
// a row of the library's own; and what gather-matmul-scatter needs for that.
#ifndef SPOPS_TAPCONV_DATAFLOW_H
#define SPOPS_TAPCONV_DATAFLOW_H

#include "tapconv/gather_scatter.h"

// The buffers of gather-matmul-scatter for a grouping.
typedef struct spops_buffer_layout {
    spops_tap_grouping grouping;
    spops_gather_scatter *gather_scatter;
} spops_buffer_layout;

// What a pass shall run on, if that takes the call.
typedef struct spops_wanted_dataflow {
    spops_dataflow dataflow;           // not AUTO
    const spops_buffer_layout *layout; // of GATHER_MATMUL_SCATTER, else NULL
} spops_wanted_dataflow;

typedef struct spops_tuned_row spops_tuned_row;

// Part of a plan. The first block is set before it is made.
typedef struct spops_dataflow_choice {
    const spops_relation *relation; // with lists by key where gather-matmul-scatter may serve
    bool refillable;                // its counts are known where it runs alone
    int64_t max_in_channels, max_out_channels;
    spops_dataflow named; // or AUTO
    bool backward, has_igemm;

    spops_buffer_layout *layouts; // by name one; with AUTO those of the tuning's rows
    int32_t num_layouts, max_layouts;
    spops_tuned_row *tuned; // rows that count here, one for each pass of a layer
    int64_t num_tuned, max_tuned;
} spops_dataflow_choice;

// Whether a plan that names a dataflow, or AUTO, may run on fetch-on-demand.
bool spops_dataflow_needs_pairs(const spops_context *ctx, spops_dataflow named, bool backward);

// Make what the named dataflow needs, with a grouping that may be AUTO, or what the rows of a tuning
// need that count here. Reserves scratch. Free it also after a failure.
spops_status spops_dataflow_choice_make(spops_context *ctx, const char *call,
                                        const spops_tap_grouping *grouping,
                                        const spops_conv_choice *tuning, int64_t num_tuning,
                                        spops_dataflow_choice *choice);
void spops_dataflow_choice_free(spops_context *ctx, spops_dataflow_choice *choice);
size_t spops_dataflow_choice_bytes(const spops_dataflow_choice *choice);
size_t spops_dataflow_choice_scratch_bytes(const spops_dataflow_choice *choice);

// layer: its pass, dtype, math and channels count.
spops_wanted_dataflow spops_dataflow_choice_get(const spops_context *ctx,
                                                const spops_dataflow_choice *choice,
                                                const spops_conv_choice *layer, int32_t groups);

#endif
