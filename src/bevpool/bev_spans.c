// SPDX-License-Identifier: Apache-2.0
// The span form of a plan: whether it has one, its memory, and whether a call can use it.
#include "bevpool/bev_span_form.h"
#include "bevpool/bev_spans_sizes.h"
#include "kernels/bevpool/bev_spans_tuning.h"

static int32_t ceil_div(int32_t a, int32_t b)
{
    return (a + b - 1) / b;
}

// Tiles are as high as the feature map allows: the pixels above each other at one depth mostly fall
// in one cell.
static void set_tiles(const spops_bev_shape *shape, spops_bev_spans *s)
{
    s->tile_height = SPOPS_BEV_TILE_PIXELS;
    while (s->tile_height > 8 && s->tile_height / 2 >= shape->feature_height)
        s->tile_height /= 2;
    s->tile_width = SPOPS_BEV_TILE_PIXELS / s->tile_height;
    s->tile_width_log2 = 0;
    while (1 << s->tile_width_log2 < s->tile_width)
        ++s->tile_width_log2;
    s->tiles_x = ceil_div(shape->feature_width, s->tile_width);
    s->tiles_y = ceil_div(shape->feature_height, s->tile_height);
    s->windows_x = ceil_div(s->tiles_x, SPOPS_BEV_WINDOW_COLUMNS / s->tile_width);
    const int64_t rows_of_tiles = (int64_t)shape->num_batches * shape->num_cameras * s->tiles_y;
    s->num_tiles = rows_of_tiles * s->tiles_x;
    s->num_windows = rows_of_tiles * s->windows_x;
    s->num_planes = s->num_tiles * shape->num_depths;
}

// Room for the most that there can be, where that is not much.
static void set_room(const spops_context *ctx, int64_t num_points, spops_bev_spans *s)
{
    const int64_t processors = ctx->info.num_processors;
    s->max_spans = s->num_planes * SPOPS_BEV_PLANE_SPANS;
    if (s->max_spans < num_points && s->max_spans < SPOPS_BEV_SMALL_SPANS)
        s->max_spans = num_points < SPOPS_BEV_SMALL_SPANS ? num_points : SPOPS_BEV_SMALL_SPANS;
    // The build cuts for at most so many blocks, and a window's wedges are rounded up.
    s->max_wedges = 2 * processors;
    if (s->max_wedges < 2 * s->num_windows) s->max_wedges = 2 * s->num_windows;
    s->max_wedges += s->num_windows;
    s->max_bundles = s->max_spans / SPOPS_BEV_BUNDLE_PARTS + SPOPS_BEV_PART_KINDS * s->max_wedges;
    s->max_steps =
        s->max_bundles + (s->max_spans <= SPOPS_BEV_SMALL_SPANS ? s->max_spans : s->max_spans / 4);
}

static void carve_spans(int64_t num_cells, spops_bev_spans *s, spops_carver *carver)
{
    const int64_t tile_spans = s->backward ? s->max_spans : 0;
    const int64_t tile_ends = s->backward ? s->num_tiles + 1 : 0;
    s->counts = spops_carve(carver, 1, 1, sizeof *s->counts);
    s->wedges = spops_carve(carver, s->max_wedges, 1, sizeof *s->wedges);
    s->bundles = spops_carve(carver, s->max_bundles, 1, sizeof *s->bundles);
    s->rows = spops_carve(carver, s->max_bundles, SPOPS_BEV_BUNDLE_PARTS, sizeof *s->rows);
    s->spans = spops_carve(carver, s->max_steps, SPOPS_BEV_BUNDLE_PARTS, sizeof *s->spans);
    s->shared_cells = spops_carve(carver, s->max_spans / 2 + 1, 1, sizeof *s->shared_cells);
    s->covered = spops_carve(carver, (num_cells + 31) / 32, 1, sizeof *s->covered);
    s->tile_spans = spops_carve(carver, tile_spans, 1, sizeof *s->tile_spans);
    s->tile_begin = spops_carve(carver, tile_ends, 1, sizeof *s->tile_begin);
    s->plane_masks = spops_carve(carver, s->backward ? s->num_planes : 0, 1, sizeof(uint32_t));
}

bool spops_bev_has_spans(const spops_context *ctx)
{
    return ctx->backend->bev_spans_build != NULL && ctx->info.compute_capability >= 80;
}

bool spops_bev_wants_spans(const spops_context *ctx, const spops_bev_span_form *form)
{
    if (form->kernel == SPOPS_BEV_KERNEL_INTERVALS || !spops_bev_has_spans(ctx)) return false;
    return form->kernel == SPOPS_BEV_KERNEL_SPANS || form->num_points >= SPOPS_BEV_SPANS_POINTS;
}

int spops_bev_cut_for(const spops_bev_span_form *form, int64_t cols)
{
    const bool wide = cols > SPOPS_BEV_NARROW_COLS;
    return wide && form->num_points >= SPOPS_BEV_WIDE_POINTS ? SPOPS_BEV_CUT_WIDE
                                                             : SPOPS_BEV_CUT_NARROW;
}

static int num_cuts(const spops_bev_span_form *form)
{
    return spops_bev_cut_for(form, form->max_cols) + 1;
}

static void carve_cuts(spops_bev_span_form *form, spops_carver *carver)
{
    for (int i = 0; i < num_cuts(form); ++i)
        carve_spans(form->num_cells, &form->cuts[i], carver);
}

spops_status spops_bev_spans_enqueue(spops_context *ctx, const char *call,
                                     spops_bev_span_form *form, const spops_bev_shape *shape,
                                     const int32_t *cells)
{
    spops_bev_spans s = {0};
    spops_bev_spans_args args;
    spops_carver carver = {NULL, 0};

    set_tiles(shape, &s);
    set_room(ctx, form->num_points, &s);
    if (s.max_spans > INT32_MAX / 2 || s.max_steps > INT32_MAX / SPOPS_BEV_BUNDLE_PARTS ||
        s.max_wedges > INT32_MAX / SPOPS_BEV_PART_KINDS) {
        SPOPS_REQUIRE(ctx, form->kernel != SPOPS_BEV_KERNEL_SPANS,
                      "%s: kernel is spans, and the frustum is too large for them", call);
        return SPOPS_STATUS_OK;
    }
    form->cuts[SPOPS_BEV_CUT_WIDE] = s;
    s.backward = form->backward;
    form->cuts[SPOPS_BEV_CUT_NARROW] = s;
    carve_cuts(form, &carver);
    SPOPS_TRY(spops_backend_alloc(ctx, carver.used, &form->block));
    form->block_bytes = carver.used;
    carver = (spops_carver){form->block, 0};
    carve_cuts(form, &carver);

    args.shape = *shape;
    args.cells = cells;
    args.spans = form->cuts;
    args.num_cuts = num_cuts(form);
    args.workspace = NULL;
    form->workspace_bytes = ctx->backend->bev_spans_workspace_bytes(ctx, &args);
    SPOPS_TRY(spops_backend_alloc(ctx, form->workspace_bytes, &form->workspace));
    args.workspace = form->workspace;
    return ctx->backend->bev_spans_build(ctx, &args);
}

static void free_workspace(spops_context *ctx, spops_bev_span_form *form)
{
    spops_backend_free(ctx, form->workspace, form->workspace_bytes);
    form->workspace = NULL;
    form->workspace_bytes = 0;
}

void spops_bev_spans_free(spops_context *ctx, spops_bev_span_form *form)
{
    free_workspace(ctx, form);
    spops_backend_free(ctx, form->block, form->block_bytes);
    form->block = NULL;
    form->block_bytes = 0;
}

int32_t spops_bev_variant_for(const spops_bev_span_form *form, int64_t cols)
{
    const int64_t width = (cols + 7) / 8;
    if (form->pool_variant != 0)
        return spops_bev_pool_accepts(form->pool_variant, cols) ? form->pool_variant : 0;
    if (width < 1) return 0;
    return form->variants[(width < SPOPS_BEV_WIDTHS ? width : SPOPS_BEV_WIDTHS) - 1];
}

// Choose the variants of all widths that the plan may meet, and prepare their kernels.
static spops_status choose_variants(spops_context *ctx, spops_bev_span_form *form)
{
    const int64_t widths = (form->max_cols + 7) / 8;
    spops_bev_spans_prepare_args prepare = {.variants = 1u << form->pool_variant,
                                            .gradients = form->backward};
    for (int64_t i = 0; i < widths && i < SPOPS_BEV_WIDTHS; ++i) {
        const int64_t cols = 8 * (i + 1);
        const spops_bev_spans_choose_args args = {
            .spans = &form->cuts[spops_bev_cut_for(form, cols)], .cols = cols};
        form->variants[i] = (uint8_t)ctx->backend->bev_spans_choose(ctx, &args);
        if (form->pool_variant == 0) prepare.variants |= 1u << form->variants[i];
    }
    return ctx->backend->bev_spans_prepare(ctx, &prepare);
}

static spops_status check_no_variant(spops_context *ctx, const char *call,
                                     const spops_bev_span_form *form)
{
    SPOPS_REQUIRE(ctx, form->pool_variant == 0,
                  "%s: pool_variant is %" PRId32 ", and the plan pools by lists, expected 0", call,
                  form->pool_variant);
    return SPOPS_STATUS_OK;
}

spops_status spops_bev_spans_finish(spops_context *ctx, const char *call, spops_bev_span_form *form)
{
    const bool forced = form->kernel == SPOPS_BEV_KERNEL_SPANS;
    const spops_bev_spans *narrow = &form->cuts[SPOPS_BEV_CUT_NARROW];
    bool overflow = false;

    form->kernel = SPOPS_BEV_KERNEL_INTERVALS;
    if (form->block == NULL) return check_no_variant(ctx, call, form);
    free_workspace(ctx, form);
    for (int i = 0; i < num_cuts(form); ++i) {
        spops_bev_spans *s = &form->cuts[i];
        SPOPS_TRY(ctx->backend->download(ctx, &s->host_counts, s->counts, sizeof s->host_counts));
        overflow = overflow || s->host_counts.overflow;
    }
    if (!overflow) {
        form->kernel = SPOPS_BEV_KERNEL_SPANS;
        return choose_variants(ctx, form);
    }
    spops_bev_spans_free(ctx, form);
    if (!forced) return check_no_variant(ctx, call, form);
    return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                      "%s: kernel is spans, and the plan has %" PRId32 " spans (at most %" PRId64
                      "), up to %" PRId32
                      " of a cell in a window (at most %d): neighbouring pixels do not share cells",
                      call, narrow->host_counts.num_spans, narrow->max_spans,
                      narrow->host_counts.longest, SPOPS_BEV_MAX_SPANS);
}

bool spops_bev_spans_serve(const spops_context *ctx, const spops_bev_span_form *form,
                           const spops_bev_spans_pool_args *args)
{
    // Lists may meet wider rows than the plan was built for; the scratch of shared parts may not.
    return form->kernel == SPOPS_BEV_KERNEL_SPANS && args->variant != 0 &&
           args->feat.cols <= spops_bev_padded_cols(form->max_cols) &&
           ctx->backend->bev_spans_pool_fits(ctx, args);
}

bool spops_bev_spans_serve_gradients(const spops_context *ctx, const spops_bev_span_form *form,
                                     const spops_bev_spans_grad_args *args)
{
    const spops_dtype dtype = args->feat.dtype;
    if (form->block == NULL || !form->cuts[SPOPS_BEV_CUT_NARROW].backward) return false;
    if (dtype == SPOPS_DTYPE_F32 || args->depth.dtype != dtype) return false;
    return ctx->backend->bev_spans_grad_fits(ctx, args);
}
