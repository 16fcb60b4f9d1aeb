// SPDX-License-Identifier: Apache-2.0
#include "tapconv/dataflow.h"

#include "spops/sparseconv.h"

// What is tried first where neither the plan nor a tuning names a dataflow; where a device does not
// have it, and where it does not take a call, rows are fetched on demand. H200, f16, the 42 layers of a
// MinkUNet on a LiDAR scan, forward: 2,057 us; fetch on demand 10,330 us, and no layer gains less than
// 2.15 times. Gradients on lidar, 32 to 256 channels: 5.4 to 79 times. GATHER_MATMUL_SCATTER is the
// fastest for gradients of weights in f32 (lidar, 64 to 64: 452 us; fetch on demand 7,488 us), but its
// buffers hold all pairs, and plans that may take it open cuBLAS: for a caller to decide, by name or
// by a tuning.
#define FIRST_DATAFLOW SPOPS_DATAFLOW_IMPLICIT_GEMM

// The middle of what is fastest for the layers of a MinkUNet on an H200 in f16.
static const spops_tap_grouping default_grouping = {SPOPS_GROUPING_ADAPTIVE, 0.8, 65536};

struct spops_tuned_row {
    spops_conv_choice choice;
    const spops_buffer_layout *layout; // of GATHER_MATMUL_SCATTER
};

// ---- What is left to pairs ----------------------------------------------------------------------

// cuBLAS drops terms of long reductions in 16 bits (docs/sparseconv.md), so the gradients of W of a plan
// for GATHER_MATMUL_SCATTER are FETCH_ON_DEMAND's, unless all is f32.
static bool loses_pairs(const spops_context *ctx, const spops_conv_choice *layer)
{
    return ctx->info.backend == SPOPS_BACKEND_CUDA && layer->pass == SPOPS_PASS_GRAD_W &&
           (layer->dtype != SPOPS_DTYPE_F32 || layer->math != SPOPS_MATH_EXACT);
}

bool spops_dataflow_needs_pairs(const spops_context *ctx, spops_dataflow named, bool backward)
{
    if (named == SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER)
        return backward && ctx->info.backend == SPOPS_BACKEND_CUDA; // as loses_pairs
    return named != SPOPS_DATAFLOW_IMPLICIT_GEMM;
}

// ---- Layouts ------------------------------------------------------------------------------------

static bool same_grouping(const spops_tap_grouping *a, const spops_tap_grouping *b)
{
    return a->grouping == b->grouping &&
           (a->grouping != SPOPS_GROUPING_ADAPTIVE ||
            (a->epsilon == b->epsilon && a->batch_rows == b->batch_rows));
}

// The layout of a grouping, made where it is not there yet.
static spops_status find_layout(spops_context *ctx, const char *call, spops_dataflow_choice *c,
                                const spops_tap_grouping *grouping, const spops_buffer_layout **out)
{
    const spops_gather_scatter_options options = {*grouping, c->max_in_channels,
                                                  c->max_out_channels};
    spops_buffer_layout *layout = &c->layouts[c->num_layouts];

    for (int32_t i = 0; i < c->num_layouts; ++i) {
        *out = &c->layouts[i];
        if (same_grouping(&c->layouts[i].grouping, grouping)) return SPOPS_STATUS_OK;
    }
    SPOPS_TRY(
        spops_gather_scatter_create(ctx, call, c->relation, &options, &layout->gather_scatter));
    layout->grouping = *grouping;
    ++c->num_layouts;
    *out = layout;
    return spops_context_reserve(ctx, spops_gather_scatter_scratch_bytes(layout->gather_scatter));
}

static spops_status make_named(spops_context *ctx, const char *call,
                               const spops_tap_grouping *grouping, spops_dataflow_choice *c)
{
    const spops_buffer_layout *layout;

    if (c->refillable)
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "%s: map was made by reserve, expected one made by create for %s", call,
                          spops_dataflow_name(c->named));
    return find_layout(ctx, call, c,
                       grouping->grouping == SPOPS_GROUPING_AUTO ? &default_grouping : grouping,
                       &layout);
}

// ---- Rows of a tuning ---------------------------------------------------------------------------

static bool same_layer(const spops_conv_choice *a, const spops_conv_choice *b)
{
    return a->pass == b->pass && a->dtype == b->dtype && a->in_channels == b->in_channels &&
           a->out_channels == b->out_channels &&
           (a->math == b->math || a->dtype != SPOPS_DTYPE_F32);
}

// How far a row's map is from this one: the larger number of pairs over the smaller.
static double distance(const spops_dataflow_choice *c, const spops_conv_choice *row)
{
    const double here = (double)c->relation->max_terms + 1.0, there = (double)row->num_pairs + 1.0;
    return here > there ? here / there : there / here;
}

static bool row_counts(const spops_context *ctx, const spops_dataflow_choice *c,
                       const spops_conv_choice *row)
{
    if (row->dataflow == SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER && loses_pairs(ctx, row))
        return false;
    return row->num_taps == c->relation->num_keys && row->in_channels <= c->max_in_channels &&
           row->out_channels <= c->max_out_channels &&
           (row->pass == SPOPS_PASS_FORWARD || c->backward) &&
           (row->dataflow != SPOPS_DATAFLOW_IMPLICIT_GEMM || c->has_igemm) &&
           (row->dataflow != SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER || !c->refillable);
}

// Whether rows of gather-matmul-scatter count: there are some, and a library of products.
static spops_status find_products(spops_context *ctx, const char *call,
                                  const spops_dataflow_choice *c, const spops_conv_choice *rows,
                                  int64_t num_rows, bool *found)
{
    const spops_matmul_open_args args = {call};
    spops_status status;

    *found = false;
    for (int64_t i = 0; i < num_rows && !*found; ++i)
        *found = row_counts(ctx, c, &rows[i]) &&
                 rows[i].dataflow == SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER;
    if (!*found) return SPOPS_STATUS_OK;
    SPOPS_TRY_FORGIVING(ctx, SPOPS_STATUS_NOT_SUPPORTED, status,
                        ctx->backend->matmul_open(ctx, &args));
    *found = status == SPOPS_STATUS_OK; // else another dataflow serves
    return status == SPOPS_STATUS_NOT_SUPPORTED ? SPOPS_STATUS_OK : status;
}

// Keep the rows that count, the nearest of those for the same pass of a layer.
static spops_status make_tuned(spops_context *ctx, const char *call, const spops_conv_choice *rows,
                               int64_t num_rows, spops_dataflow_choice *c)
{
    bool has_products;

    SPOPS_TRY(find_products(ctx, call, c, rows, num_rows, &has_products));
    for (int64_t i = 0; i < num_rows; ++i) {
        int64_t at = 0;
        if (!row_counts(ctx, c, &rows[i])) continue;
        if (rows[i].dataflow == SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER && !has_products) continue;
        while (at < c->num_tuned && !same_layer(&c->tuned[at].choice, &rows[i]))
            ++at;
        if (at == c->num_tuned)
            ++c->num_tuned;
        else if (distance(c, &rows[i]) >= distance(c, &c->tuned[at].choice))
            continue;
        c->tuned[at].choice = rows[i];
    }
    for (int64_t i = 0; i < c->num_tuned; ++i) {
        const spops_conv_choice *row = &c->tuned[i].choice;
        const spops_tap_grouping grouping = {row->grouping, row->epsilon, row->batch_rows};
        if (row->dataflow == SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER)
            SPOPS_TRY(find_layout(ctx, call, c, &grouping, &c->tuned[i].layout));
    }
    return SPOPS_STATUS_OK;
}

// ---- The choice of a plan -----------------------------------------------------------------------

spops_status spops_dataflow_choice_make(spops_context *ctx, const char *call,
                                        const spops_tap_grouping *grouping,
                                        const spops_conv_choice *tuning, int64_t num_tuning,
                                        spops_dataflow_choice *c)
{
    const bool is_auto = c->named == SPOPS_DATAFLOW_AUTO;

    // Room for as many as there may be, so that none moves.
    c->max_tuned = is_auto ? num_tuning : 0;
    c->max_layouts = is_auto                                            ? (int32_t)num_tuning
                     : c->named == SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER ? 1
                                                                        : 0;
    if (c->max_layouts == 0) return SPOPS_STATUS_OK;
    c->tuned = spops_host_alloc(ctx, (size_t)c->max_tuned + 1, sizeof *c->tuned);
    c->layouts = spops_host_alloc(ctx, (size_t)c->max_layouts, sizeof *c->layouts);
    if (c->tuned == NULL || c->layouts == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    return is_auto ? make_tuned(ctx, call, tuning, num_tuning, c)
                   : make_named(ctx, call, grouping, c);
}

void spops_dataflow_choice_free(spops_context *ctx, spops_dataflow_choice *c)
{
    for (int32_t i = 0; i < c->num_layouts; ++i)
        spops_gather_scatter_destroy(c->layouts[i].gather_scatter);
    spops_host_free(ctx, c->layouts, (size_t)c->max_layouts, sizeof *c->layouts);
    spops_host_free(ctx, c->tuned, (size_t)c->max_tuned + 1, sizeof *c->tuned);
}

size_t spops_dataflow_choice_bytes(const spops_dataflow_choice *c)
{
    size_t bytes = c->tuned == NULL ? 0 : ((size_t)c->max_tuned + 1) * sizeof *c->tuned;
    bytes += (size_t)c->max_layouts * sizeof *c->layouts;
    for (int32_t i = 0; i < c->num_layouts; ++i)
        bytes += spops_gather_scatter_bytes(c->layouts[i].gather_scatter);
    return bytes;
}

size_t spops_dataflow_choice_scratch_bytes(const spops_dataflow_choice *c)
{
    size_t most = 0;
    for (int32_t i = 0; i < c->num_layouts; ++i) {
        const size_t bytes = spops_gather_scatter_scratch_bytes(c->layouts[i].gather_scatter);
        if (bytes > most) most = bytes;
    }
    return most;
}

spops_wanted_dataflow spops_dataflow_choice_get(const spops_context *ctx,
                                                const spops_dataflow_choice *c,
                                                const spops_conv_choice *layer, int32_t groups)
{
    spops_wanted_dataflow wanted = {c->named, NULL};

    if (c->named == SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER) {
        if (loses_pairs(ctx, layer))
            wanted.dataflow = SPOPS_DATAFLOW_FETCH_ON_DEMAND;
        else
            wanted.layout = c->layouts;
    }
    if (c->named != SPOPS_DATAFLOW_AUTO) return wanted;
    wanted.dataflow = FIRST_DATAFLOW;
    for (int64_t i = 0; i < c->num_tuned && groups == 1; ++i)
        if (same_layer(&c->tuned[i].choice, layer)) {
            wanted.dataflow = c->tuned[i].choice.dataflow;
            wanted.layout = c->tuned[i].layout;
        }
    return wanted;
}
