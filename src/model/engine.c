// SPDX-License-Identifier: Apache-2.0
// A network that a reader has described gets capacities, plans and memory, and is run step by step.
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/half.h"
#include "core/integers.h"
#include "core/status.h"
#include "model/model.h"
#include "spops/activation.h"
#include "spops/convert.h"
#include "spops/dense.h"
#include "spops/gather.h"
#include "spops/quantize.h"
#include "spops/segreduce.h"
#include "spops/weights.h"

enum { INT8_LARGEST = 127, DEFAULT_ROWS = 150000, MOST_GRID_CELLS = 1 << 20 };

// ---- Capacities -----------------------------------------------------------------------------------

static int64_t times(int64_t a, int64_t b)
{
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

static void choose_capacities(spops_model *m)
{
    const spops_model_options *o = &m->options;
    for (int32_t i = 0; i < m->sets.num; ++i) {
        spops_model_set *set = spops_model_set_at(m, i);
        int64_t rows = m->num_batches;
        for (int32_t a = 0; a < m->dims; ++a)
            rows = times(rows, set->size[a]);
        rows = spops_least(rows, INT32_MAX - 1);
        if (i == 0) {
            const int64_t bound = set->bound > 0 ? set->bound : DEFAULT_ROWS;
            rows = spops_least(rows, o->max_rows > 0 ? o->max_rows : bound);
            m->max_points = o->max_points > 0 ? o->max_points : rows;
            if (m->has_voxels) rows = spops_least(rows, m->max_points);
        } else if (set->is_permuted) {
            rows = spops_model_set_at(m, set->from)->max_rows;
        } else {
            const int64_t from = spops_model_set_at(m, set->from)->max_rows;
            rows = spops_least(rows, o->max_inner_rows > 0 ? o->max_inner_rows : set->bound);
            rows =
                spops_least(rows, times(from, spops_kernel_shape_num_candidates(&set->kernel, 0)));
        }
        set->max_rows = rows;
    }
}

// ---- Plans ----------------------------------------------------------------------------------------

static spops_status count_plan(spops_model *m, spops_model_step *step, const void *plan)
{
    const size_t bytes = spops_plan_bytes((const spops_plan *)plan);
    const size_t scratch = spops_plan_scratch_bytes((const spops_plan *)plan);
    m->plan_bytes += bytes;
    if (step != NULL) step->plan_bytes += bytes;
    if (scratch > m->scratch_bytes) m->scratch_bytes = scratch;
    return SPOPS_STATUS_OK;
}

static const spops_coords *coords_of(const spops_model *m, int32_t set)
{
    const spops_coords *coords = spops_model_set_at(m, set)->coords;
    return coords != NULL || set > 0 ? coords : spops_voxels_coords(m->voxels);
}

static size_t permuted_bytes(const spops_model *m, const spops_model_set *set)
{
    return (size_t)set->max_rows * (size_t)(1 + m->dims) * sizeof *set->permuted;
}

static spops_status alloc_permuted(spops_model *m, spops_model_set *set)
{
    void *rows = NULL;
    SPOPS_TRY(spops_backend_alloc(m->ctx, permuted_bytes(m, set), &rows));
    set->permuted = rows;
    m->plan_bytes += permuted_bytes(m, set);
    spops_model_step_at(m, 1)->plan_bytes += permuted_bytes(m, set);
    return SPOPS_STATUS_OK;
}

void spops_model_free_sets(spops_model *m)
{
    for (int32_t i = m->sets.num - 1; i >= 0; --i) {
        spops_model_set *set = spops_model_set_at(m, i);
        spops_coords_destroy(set->coords);
        if (set->permuted != NULL)
            spops_backend_free(m->ctx, set->permuted, permuted_bytes(m, set));
    }
}

static spops_status reserve_set(spops_model *m, int32_t i)
{
    spops_model_set *set = spops_model_set_at(m, i);
    spops_coords_box box;
    spops_coords_options options = spops_coords_options_default();
    int64_t items = set->max_rows, cells = m->num_batches;

    memset(&box, 0, sizeof box);
    box.upper[0] = m->num_batches - 1;
    for (int32_t a = 0; a < m->dims; ++a) {
        box.upper[1 + a] = set->size[a] - 1;
        cells = times(cells, set->size[a]);
    }
    options.box = &box;
    // Each cell of a dense grid is looked up: an array of a small one is faster than a hash.
    if (set->is_dense && cells <= MOST_GRID_CELLS) options.search = SPOPS_COORDS_SEARCH_GRID;
    if (set->is_permuted) SPOPS_TRY(alloc_permuted(m, set));
    if (i > 0 && !set->is_permuted)
        items = times(spops_model_set_at(m, set->from)->max_rows,
                      spops_kernel_shape_num_candidates(&set->kernel, 0));
    if (i == 0 && m->has_voxels) {
        spops_voxels_options voxels = m->voxel_options;
        voxels.coords = &options;
        voxels.max_cols = spops_model_value_at(m, 0)->row_stride;
        SPOPS_TRY(spops_voxels_reserve(m->ctx, m->dims, m->max_points, set->max_rows, &voxels,
                                       &m->voxels));
        return count_plan(m, spops_model_step_at(m, 0), m->voxels);
    }
    SPOPS_TRY(spops_coords_reserve(m->ctx, m->dims, set->max_rows, items, &options, &set->coords));
    return count_plan(m, spops_model_step_at(m, i == 0 ? 0 : 1), set->coords);
}

// Whether this device has implicit GEMM for rows of 16 bits: what a map for convolutions then holds.
static spops_status find_implicit_gemm(spops_model *m, bool *has)
{
    spops_coords_box box;
    spops_coords_options options = spops_coords_options_default();
    spops_kernel_map_options contents = spops_kernel_map_options_default();
    spops_kernel_map_info info = spops_kernel_map_info_default();
    const spops_kernel_shape kernel = spops_kernel_shape_cube(1, 3, 1, 1);
    spops_coords *set = NULL;
    spops_kernel_map *map = NULL;
    spops_status status;

    memset(&box, 0, sizeof box);
    options.box = &box;
    contents.contents = SPOPS_MAP_FOR_CONV;
    SPOPS_TRY_GOTO(spops_coords_reserve(m->ctx, 1, 1, 1, &options, &set), status, done);
    SPOPS_TRY_GOTO(spops_kernel_map_reserve(m->ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, set, NULL,
                                            &contents, &map),
                   status, done);
    SPOPS_TRY_GOTO(spops_kernel_map_get_info_sync(m->ctx, map, &info), status, done);
    *has = m->dtype == SPOPS_DTYPE_F16 && (info.contents & SPOPS_MAP_ORDER) != 0;
done:
    spops_kernel_map_destroy(map);
    spops_coords_destroy(set);
    return status;
}

static spops_status reserve_map(spops_model *m, spops_model_map *map, bool has_implicit_gemm)
{
    spops_kernel_map_options contents = spops_kernel_map_options_default();
    spops_sparseconv_options options = spops_sparseconv_options_default();
    const bool is_same = map->kind == SPOPS_MAP_SUBMANIFOLD;

    // Where kernels of matrix units take every layer, no pairs are needed, nor another way.
    contents.contents = SPOPS_MAP_FOR_CONV;
    if (has_implicit_gemm && !map->is_narrow) {
        contents.contents = SPOPS_MAP_ORDER;
        options.dataflow = SPOPS_DATAFLOW_IMPLICIT_GEMM;
    }
    SPOPS_TRY(spops_kernel_map_reserve(m->ctx, map->kind, &map->kernel, coords_of(m, map->in),
                                       is_same ? NULL : coords_of(m, map->out), &contents,
                                       &map->map));
    SPOPS_TRY(spops_sparseconv_create(m->ctx, map->map, &options, &map->conv));
    map->bytes = spops_plan_bytes((const spops_plan *)map->map) +
                 spops_plan_bytes((const spops_plan *)map->conv);
    SPOPS_TRY(count_plan(m, NULL, map->map));
    SPOPS_TRY(count_plan(m, NULL, map->conv));
    m->plans[m->num_plans++] = (spops_plan *)map->map;
    m->plans[m->num_plans++] = (spops_plan *)map->conv;
    return SPOPS_STATUS_OK;
}

// The first node that uses the map; -1.
static int32_t node_of_map(const spops_model *m, int32_t map)
{
    for (int32_t i = 0; i < m->steps.num; ++i) {
        spops_model_step *s = spops_model_step_at(m, i);
        if (s->map != map) continue;
        s->plan_bytes += spops_model_map_at(m, map)->bytes;
        return s->node;
    }
    return -1;
}

// Row t of a permuted tensor is row keys[t] of its input. Trailing dimensions that stay are a row.
static spops_status plan_permutation(spops_model *m, spops_model_step *s)
{
    const spops_model_value *x = spops_model_value_at(m, s->x),
                            *out = spops_model_value_at(m, s->out);
    int64_t strides[SPOPS_MODEL_MAX_DIMS], index[SPOPS_MODEL_MAX_DIMS] = {0}, cols = 1, rows = 1;
    int32_t moved = out->num_dims;
    spops_segments_options options = spops_segments_options_default();
    void *keys_there = NULL;
    spops_status status = SPOPS_STATUS_OUT_OF_MEMORY;

    for (; moved > 0 && s->order[moved - 1] == moved - 1; --moved)
        cols *= x->shape[moved - 1];
    for (int32_t i = moved - 1; i >= 0; --i) {
        strides[i] = rows;
        rows *= x->shape[i];
    }
    const size_t bytes = (size_t)rows * sizeof(int32_t);
    int32_t *keys = spops_host_alloc(m->ctx, (size_t)rows, sizeof *keys);
    if (keys == NULL) return status;
    for (int64_t t = 0; t < rows; ++t) {
        int64_t key = 0;
        for (int32_t i = 0; i < moved; ++i)
            key += index[i] * strides[s->order[i]];
        keys[t] = (int32_t)key;
        for (int32_t i = moved - 1; i >= 0 && ++index[i] == out->shape[i]; --i)
            index[i] = 0;
    }
    s->in_cols = s->out_cols = options.max_cols = cols;
    SPOPS_TRY_GOTO(spops_backend_alloc(m->ctx, bytes, &keys_there), status, done);
    SPOPS_TRY_GOTO(m->ctx->backend->upload(m->ctx, keys_there, keys, bytes), status, done);
    SPOPS_TRY_GOTO(spops_segments_create_from_keys(m->ctx, rows, rows, (const int32_t *)keys_there,
                                                   SPOPS_KEYS_UNSORTED, &options, &s->copies),
                   status, done);
    status = count_plan(m, s, s->copies);
done:
    spops_backend_free(m->ctx, keys_there, bytes);
    spops_host_free(m->ctx, keys, (size_t)rows, sizeof *keys);
    return status;
}

spops_status spops_model_plan(spops_model *m)
{
    bool has_implicit_gemm = false;

    choose_capacities(m);
    m->plans = spops_host_alloc(m->ctx, 2 * (size_t)m->maps.num + 1, sizeof *m->plans);
    if (m->plans == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    for (int32_t i = 0; i < m->sets.num; ++i)
        SPOPS_TRY(spops_model_at_node(m, spops_model_set_at(m, i)->node, reserve_set(m, i)));
    if (m->maps.num > 0) SPOPS_TRY(find_implicit_gemm(m, &has_implicit_gemm));
    for (int32_t i = 0; i < m->maps.num; ++i) {
        spops_model_map *map = spops_model_map_at(m, i);
        const spops_status status = reserve_map(m, map, has_implicit_gemm);
        SPOPS_TRY(spops_model_at_node(m, node_of_map(m, i), status));
    }
    for (int32_t i = 0; i < m->steps.num; ++i) {
        spops_model_step *s = spops_model_step_at(m, i);
        spops_status status = SPOPS_STATUS_OK;
        if (s->kind == SPOPS_MODEL_PERMUTE) status = plan_permutation(m, s);
        if (s->kind == SPOPS_MODEL_CALL) status = spops_model_prepare_call(m, s);
        SPOPS_TRY(spops_model_at_node(m, s->node, status));
    }
    return SPOPS_STATUS_OK;
}

// ---- Weights --------------------------------------------------------------------------------------

static size_t element_bytes(spops_dtype dtype)
{
    return dtype == SPOPS_MODEL_U8 ? 1 : spops_dtype_bytes(dtype);
}

static float half_at(spops_span data, size_t i)
{
    return spops_float_of_f16((uint16_t)(data.at[2 * i] | data.at[2 * i + 1] << 8));
}

// The value that an int8 layer has instead of w: range stands for 127.
static float round_to_int8(float w, float range)
{
    const float step = range / (float)INT8_LARGEST;
    float q;
    if (!(step > 0)) return w;
    q = rintf(w / step);
    q = q > (float)INT8_LARGEST    ? (float)INT8_LARGEST
        : q < -(float)INT8_LARGEST ? -(float)INT8_LARGEST
                                   : q;
    return q * step;
}

static void store(spops_dtype dtype, void *to, size_t i, float value)
{
    if (dtype == SPOPS_DTYPE_F32)
        ((float *)to)[i] = value;
    else
        ((uint16_t *)to)[i] = spops_f16_of_float(value);
}

// Whether a layer multiplies codes of i8. Maps without plans for matrix units have none for codes.
static bool has_codes(const spops_model *m, const spops_model_step *s)
{
    return m->options.int8 == SPOPS_MODEL_INT8_CODES && s->ranges != NULL && s->x_range > 0 &&
           !spops_model_map_at(m, s->map)->is_narrow;
}

static int64_t padded_cols(const spops_model_step *s)
{
    return (s->in_cols + 15) / 16 * 16;
}

static spops_matrix codes_of_weights(const spops_model *m, const spops_model_step *s)
{
    return spops_matrix_dense((char *)m->weights + s->weight_offset, s->num_taps * s->out_cols,
                              padded_cols(s), SPOPS_DTYPE_I8);
}

// What a code of an output column counts; where its range is 0, that of the largest weight.
static float scale_of_column(const spops_model_step *s, size_t o)
{
    const size_t each = (size_t)(s->num_taps * s->file_cols);
    const float range = s->ranges[s->num_ranges == 1 ? 0 : o];
    float most = 0;
    if (range > 0) return range / (float)INT8_LARGEST;
    for (size_t i = 0; i < each; ++i) {
        const float weight = fabsf(half_at(s->weights, o * each + i));
        if (weight > most) most = weight;
    }
    return most > 0 ? most / (float)INT8_LARGEST : 1.0f;
}

// [out][taps][file_cols] of f16 as [taps][out][in_cols rounded up to 16] of i8, and scales.
static void write_codes(const spops_model_step *s, void *to, float *scales)
{
    const size_t taps = (size_t)s->num_taps, from_cols = (size_t)s->file_cols;
    const size_t in = (size_t)padded_cols(s), out = (size_t)s->out_cols;
    for (size_t o = 0; o < out; ++o) {
        const float scale = scale_of_column(s, o), largest = (float)INT8_LARGEST;
        scales[o] = scale;
        for (size_t k = 0; k < taps; ++k)
            for (size_t c = 0; c < from_cols; ++c) {
                const float q = rintf(half_at(s->weights, (o * taps + k) * from_cols + c) / scale);
                const float code = q > largest ? largest : q < -largest ? -largest : q;
                ((int8_t *)to)[(k * out + o) * in + c] = (int8_t)code;
            }
    }
    scales[out] = s->x_range / (float)INT8_LARGEST;
}

// [out][taps][file_cols] of f16 as [taps][in_cols][out] of the model's dtype, 0 in the columns of padding.
static void write_weights(const spops_model *m, const spops_model_step *s, void *to)
{
    const size_t taps = (size_t)s->num_taps, from_cols = (size_t)s->file_cols;
    const size_t in = (size_t)s->in_cols, out = (size_t)s->out_cols;
    for (size_t o = 0; o < out; ++o) {
        const float range = s->ranges == NULL ? 0.0f : s->ranges[s->num_ranges == 1 ? 0 : o];
        for (size_t k = 0; k < taps; ++k)
            for (size_t c = 0; c < from_cols; ++c) {
                float w = half_at(s->weights, (o * taps + k) * from_cols + c);
                if (s->ranges != NULL) w = round_to_int8(w, range);
                store(m->dtype, to, (k * in + c) * out + o, w);
            }
    }
}

static spops_status upload_parameters(spops_model *m, const spops_model_step *s)
{
    const size_t bytes = s->weight_bytes, out = (size_t)s->out_cols;
    char *host = spops_host_alloc(m->ctx, bytes, 1);
    spops_status status;

    if (host == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    if (has_codes(m, s))
        write_codes(s, host, (float *)(void *)(host + (s->scales_offset - s->weight_offset)));
    else
        write_weights(m, s, host);
    for (size_t o = 0; o < out && s->has_bias; ++o)
        ((float *)(void *)(host + (s->bias_offset - s->weight_offset)))[o] = half_at(s->bias, o);
    status = m->ctx->backend->upload(m->ctx, (char *)m->weights + s->weight_offset, host, bytes);
    spops_host_free(m->ctx, host, bytes, 1);
    return status;
}

// The block of weights: measured without a base, else carved.
static void carve_weights(spops_model *m, spops_carver *c)
{
    const size_t each = element_bytes(m->dtype);
    size_t codes = 0;
    for (int32_t i = 0; i < m->steps.num; ++i) {
        spops_model_step *s = spops_model_step_at(m, i);
        if (s->kind != SPOPS_MODEL_CONV) continue;
        s->weight_offset = spops_align_bytes(c->used);
        if (has_codes(m, s)) {
            const size_t rows = (size_t)spops_model_matrix(m, s->x).rows;
            const size_t bytes = spops_mul_bytes(rows, (size_t)s->in_cols);
            (void)spops_carve(c, s->num_taps * s->out_cols, padded_cols(s), 1);
            s->scales_offset = spops_align_bytes(c->used);
            (void)spops_carve(c, s->out_cols + 1, 1, sizeof(float));
            if (bytes > codes) codes = bytes;
        } else {
            (void)spops_carve(c, s->num_taps * s->in_cols, s->out_cols, each);
        }
        s->bias_offset = spops_align_bytes(c->used);
        if (s->has_bias) (void)spops_carve(c, s->out_cols, 1, sizeof(float));
        s->weight_bytes = c->used - s->weight_offset;
    }
    m->codes_offset =
        spops_align_bytes(c->used); // layers run one after the other: one place for all
    if (codes > 0) (void)spops_carve(c, (int64_t)codes, 1, 1);
    for (int32_t i = 0; i < m->values.num; ++i) { // initializers of operators
        spops_model_value *v = spops_model_value_at(m, i);
        if (spops_span_bytes(v->init) == 0) continue;
        v->offset = spops_align_bytes(c->used);
        (void)spops_carve(c, (int64_t)v->bytes, 1, 1);
        v->data = m->weights == NULL ? NULL : (char *)m->weights + v->offset;
    }
}

static spops_status place_weights(spops_model *m)
{
    spops_carver c = {NULL, 0};

    carve_weights(m, &c);
    m->weight_bytes = c.used;
    if (c.used == SIZE_MAX)
        return spops_model_refuse(m, SPOPS_STATUS_OUT_OF_MEMORY, -1, "its weights are too large");
    SPOPS_TRY(spops_backend_alloc(m->ctx, c.used, &m->weights));
    c = (spops_carver){NULL, 0};
    carve_weights(m, &c);
    for (int32_t i = 0; i < m->steps.num; ++i) {
        const spops_model_step *s = spops_model_step_at(m, i);
        if (s->weight_bytes > 0) SPOPS_TRY(upload_parameters(m, s));
    }
    for (int32_t i = 0; i < m->values.num; ++i) {
        const spops_model_value *v = spops_model_value_at(m, i);
        if (spops_span_bytes(v->init) > 0)
            SPOPS_TRY(m->ctx->backend->upload(m->ctx, v->data, v->init.at, v->bytes));
    }
    return SPOPS_STATUS_OK;
}

// ---- Features -------------------------------------------------------------------------------------

static int32_t root_of(const spops_model *m, int32_t value)
{
    while (spops_model_value_at(m, value)->parent >= 0)
        value = spops_model_value_at(m, value)->parent;
    return value;
}

static size_t bytes_of(const spops_model *m, const spops_model_value *v)
{
    size_t bytes = element_bytes(v->dtype);
    if (v->set >= 0)
        return spops_mul_bytes(bytes,
                               spops_mul_bytes((size_t)spops_model_set_at(m, v->set)->max_rows,
                                               (size_t)v->row_stride));
    for (int32_t i = 0; i < v->num_dims; ++i)
        bytes = spops_mul_bytes(bytes, (size_t)v->shape[i]);
    return bytes;
}

static void use_value(const spops_model *m, int32_t value, int32_t step)
{
    if (value < 0) return;
    spops_model_value *v = spops_model_value_at(m, root_of(m, value));
    if (v->first < 0 || step < v->first) v->first = step;
    if (step > v->last) v->last = step;
}

static void find_lives(const spops_model *m)
{
    for (int32_t i = 0; i < m->values.num; ++i) {
        spops_model_value *v = spops_model_value_at(m, i);
        v->first = v->last = -1;
        if (spops_span_bytes(v->init) == 0) v->bytes = bytes_of(m, v);
        if (v->is_output) spops_model_value_at(m, root_of(m, i))->is_pinned = true;
    }
    for (int32_t i = 0; i < m->steps.num; ++i) {
        const spops_model_step *s = spops_model_step_at(m, i);
        use_value(m, s->x, i);
        use_value(m, s->residual, i);
        use_value(m, s->out, i);
        for (int32_t k = 0; k < s->num_used; ++k)
            use_value(m, s->used[k], i);
    }
    for (int32_t i = 0; i < m->values.num; ++i) { // ctx keeps handles by the addresses of blocks
        spops_model_value *v = spops_model_value_at(m, i);
        if (!v->is_plan || v->first < 0) continue;
        v->first = 0;
        v->last = m->steps.num;
    }
}

static bool is_feature(const spops_model_value *v)
{
    return v->parent < 0 && !v->is_pinned && v->first >= 0 && spops_span_bytes(v->init) == 0;
}

static bool overlap(const spops_model_value *a, const spops_model_value *b)
{
    return a->first <= b->last && b->first <= a->last;
}

// Each value at the lowest place that no other one has while it is needed, the largest first.
static spops_status choose_places(spops_model *m)
{
    const int32_t num = m->values.num;
    spops_model_value **placed = spops_host_alloc(m->ctx, (size_t)num + 1, sizeof(void *));
    int32_t n = 0;

    if (placed == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    m->feature_bytes = 0;
    for (;;) {
        spops_model_value *v = NULL;
        for (int32_t i = 0; i < num; ++i) {
            spops_model_value *w = spops_model_value_at(m, i);
            if (is_feature(w) && !w->is_placed && (v == NULL || w->bytes > v->bytes)) v = w;
        }
        if (v == NULL) break;
        v->is_placed = true;
        v->offset = 0;
        for (int32_t i = 0; i < n; ++i) { // by ascending place
            const size_t end = spops_add_bytes(v->offset, v->bytes);
            if (!overlap(placed[i], v)) continue;
            if (end <= placed[i]->offset) break;
            const size_t after =
                spops_align_bytes(spops_add_bytes(placed[i]->offset, placed[i]->bytes));
            if (after > v->offset) v->offset = after;
        }
        int32_t at = n++;
        for (; at > 0 && placed[at - 1]->offset > v->offset; --at)
            placed[at] = placed[at - 1];
        placed[at] = v;
        const size_t end = spops_add_bytes(v->offset, v->bytes);
        if (end > m->feature_bytes) m->feature_bytes = end;
    }
    spops_host_free(m->ctx, placed, (size_t)num + 1, sizeof(void *));
    return SPOPS_STATUS_OK;
}

// ---- Inputs and outputs -----------------------------------------------------------------------------

static void carve_arrays(spops_model *m, spops_carver *c)
{
    if (m->sets.num > 0) {
        const spops_model_value *x = spops_model_value_at(m, 0);
        const int64_t rows = m->has_voxels ? m->max_points : spops_model_set_at(m, 0)->max_rows;
        m->num_rows = spops_carve(c, 1, 1, sizeof(int32_t));
        if (m->has_voxels) {
            m->points = spops_carve(c, rows, m->dims, sizeof(float));
            m->point_features = spops_carve(c, rows, x->row_stride, element_bytes(x->dtype));
            if (m->num_batches > 1) m->batch = spops_carve(c, rows, 1, sizeof(int32_t));
        } else {
            m->coords = spops_carve(c, rows, 1 + m->dims, sizeof(int32_t));
        }
    }
    for (int outputs = 0; outputs < 2; ++outputs) {
        for (int32_t i = 0; i < m->values.num; ++i) {
            spops_model_value *v = spops_model_value_at(m, i);
            if (v->parent >= 0 || !v->is_pinned || spops_span_bytes(v->init) > 0 ||
                v->is_input == (outputs == 1))
                continue;
            v->data = spops_carve(c, (int64_t)v->bytes, 1, 1);
        }
        if (outputs == 0) m->input_bytes = c->used;
    }
    m->output_bytes = c->used - m->input_bytes;
}

static spops_status place_arrays(spops_model *m)
{
    spops_carver c = {NULL, 0};

    carve_arrays(m, &c);
    if (c.used == SIZE_MAX || m->feature_bytes == SIZE_MAX)
        return spops_model_refuse(m, SPOPS_STATUS_OUT_OF_MEMORY, -1,
                                  "its features are too large for an address");
    m->array_bytes = c.used;
    SPOPS_TRY(spops_backend_alloc(m->ctx, m->array_bytes, &m->arrays));
    SPOPS_TRY(m->ctx->backend->fill_zero(m->ctx, m->arrays, m->array_bytes));
    c = (spops_carver){(char *)m->arrays, 0};
    carve_arrays(m, &c);
    SPOPS_TRY(spops_backend_alloc(m->ctx, m->feature_bytes, &m->features));
    for (int32_t i = 0; i < m->values.num; ++i) {
        spops_model_value *v = spops_model_value_at(m, i);
        if (is_feature(v)) v->data = (char *)m->features + v->offset;
    }
    for (int32_t i = 0; i < m->values.num; ++i)
        spops_model_value_at(m, i)->data = spops_model_value_at(m, root_of(m, i))->data;
    return SPOPS_STATUS_OK;
}

spops_status spops_model_place(spops_model *m)
{
    if (m->has_voxels) spops_model_value_at(m, 0)->is_pinned = false; // the means of points
    SPOPS_TRY(place_weights(m));
    find_lives(m);
    SPOPS_TRY(choose_places(m));
    return place_arrays(m);
}

// ---- Running --------------------------------------------------------------------------------------

spops_matrix spops_model_matrix(const spops_model *m, int32_t value)
{
    const spops_model_value *v = spops_model_value_at(m, value);
    int64_t rows = 1, cols;
    if (v->set >= 0) {
        rows = spops_model_set_at(m, v->set)->max_rows;
        cols = v->cols;
    } else {
        for (int32_t i = 0; i + 1 < v->num_dims; ++i)
            rows *= v->shape[i];
        cols = v->num_dims > 0 ? v->shape[v->num_dims - 1] : 1;
    }
    spops_matrix matrix = spops_matrix_dense(v->data, rows, cols, v->dtype);
    if (v->set >= 0) matrix.row_stride = v->row_stride;
    return matrix;
}

static spops_status run_voxels(const spops_model *m, const spops_model_step *s)
{
    const spops_model_value *x = spops_model_value_at(m, s->out);
    spops_matrix means = spops_model_matrix(m, s->out);
    means.cols = x->row_stride; // its padding too, which is 0
    SPOPS_TRY(spops_voxels_update(
        m->ctx, m->voxels, m->num_rows,
        spops_matrix_dense(m->points, m->max_points, m->dims, SPOPS_DTYPE_F32), m->batch));
    return spops_segreduce_execute(
        m->ctx, spops_voxels_segments(m->voxels), SPOPS_REDUCE_MEAN,
        spops_matrix_dense(m->point_features, m->max_points, x->row_stride, x->dtype), NULL, means,
        NULL);
}

// Rows column by column, each copied to where its axis is; then the set of them, in the same order.
static spops_status run_permuted(const spops_model *m, const spops_model_set *set)
{
    const int64_t cols = 1 + m->dims;
    spops_coords_view view = spops_coords_view_default();

    SPOPS_TRY(spops_coords_get_view(m->ctx, coords_of(m, set->from), &view));
    const spops_matrix from =
        spops_matrix_dense_const(view.rows, set->max_rows, cols, SPOPS_DTYPE_I32);
    const spops_matrix to = spops_matrix_dense(set->permuted, set->max_rows, cols, SPOPS_DTYPE_I32);
    for (int64_t k = 0; k < cols; ++k)
        SPOPS_TRY(spops_convert_execute(
            m->ctx, spops_matrix_columns(from, k == 0 ? 0 : 1 + set->order[k - 1], 1),
            spops_matrix_columns(to, k, 1)));
    return spops_coords_update(m->ctx, set->coords, view.num_rows, set->permuted);
}

static spops_status run_sets(const spops_model *m)
{
    for (int32_t i = 1; i < m->sets.num; ++i) {
        const spops_model_set *set = spops_model_set_at(m, i);
        if (set->is_permuted) {
            SPOPS_TRY(run_permuted(m, set));
            continue;
        }
        SPOPS_TRY(spops_coords_update_downsampled(m->ctx, set->coords, coords_of(m, set->from),
                                                  &set->kernel));
    }
    return SPOPS_STATUS_OK;
}

// Rows become codes first.
static spops_status run_codes(const spops_model *m, const spops_model_step *s, spops_matrix x)
{
    const float *scales = (const float *)(const void *)((char *)m->weights + s->scales_offset);
    const spops_matrix codes = spops_matrix_dense((char *)m->weights + m->codes_offset, x.rows,
                                                  s->in_cols, SPOPS_DTYPE_I8);
    spops_quantized_layer layer = spops_quantized_layer_default();
    spops_matrix residual;

    layer.x_scale = scales + s->out_cols;
    layer.w_scales = scales;
    layer.activation = s->activation;
    if (s->has_bias)
        layer.bias = (const float *)(const void *)((char *)m->weights + s->bias_offset);
    if (s->residual >= 0) {
        residual = spops_model_matrix(m, s->residual);
        layer.residual = &residual;
    }
    SPOPS_TRY(spops_quantize_execute(m->ctx, x, layer.x_scale, codes, NULL));
    return spops_sparseconv_execute_quantized(m->ctx, spops_model_map_at(m, s->map)->conv, codes,
                                              codes_of_weights(m, s), &layer,
                                              spops_model_matrix(m, s->out));
}

// Whether a layer before step i is younger than plans and weights: the steps between write features alone.
static bool follows_layer(const spops_model *m, int32_t i)
{
    while (--i >= 0) {
        const spops_model_step *s = spops_model_step_at(m, i);
        if (s->kind == SPOPS_MODEL_CONV && !has_codes(m, s))
            return spops_model_matrix(m, s->out).rows > 0;
        if (s->kind != SPOPS_MODEL_CONV && s->kind != SPOPS_MODEL_ADD &&
            s->kind != SPOPS_MODEL_ACTIVATION)
            return false;
    }
    return false;
}

static spops_status run_conv(const spops_model *m, const spops_model_step *s, bool reads_ahead)
{
    const spops_matrix w = spops_matrix_dense((char *)m->weights + s->weight_offset,
                                              s->num_taps * s->in_cols, s->out_cols, m->dtype);
    spops_matrix x = spops_model_matrix(m, s->x), residual;
    spops_conv_layer layer = spops_conv_layer_default();

    x.cols = s->in_cols;
    if (has_codes(m, s)) return run_codes(m, s, x);
    layer.activation = s->activation;
    layer.reads_ahead = reads_ahead;
    if (s->has_bias) layer.bias = (char *)m->weights + s->bias_offset;
    if (s->residual >= 0) {
        residual = spops_model_matrix(m, s->residual);
        layer.residual = &residual;
    }
    return spops_sparseconv_execute(m->ctx, spops_model_map_at(m, s->map)->conv, x, w, &layer,
                                    spops_model_matrix(m, s->out));
}

// Where the device says how many rows of a value are in use; NULL of a tensor.
static spops_status count_rows(const spops_model *m, int32_t value, const int32_t **num_rows)
{
    const int32_t set = spops_model_value_at(m, value)->set;
    spops_coords_view view = spops_coords_view_default();

    *num_rows = NULL;
    if (set < 0) return SPOPS_STATUS_OK;
    SPOPS_TRY(spops_coords_get_view(m->ctx, coords_of(m, set), &view));
    *num_rows = view.num_rows;
    return SPOPS_STATUS_OK;
}

// The sum is rounded before a ReLU, which changes no bit of it.
static spops_status run_sum(const spops_model *m, const spops_model_step *s)
{
    const spops_matrix out = spops_model_matrix(m, s->out);
    spops_add_options options = spops_add_options_default();
    spops_activation_options after = spops_activation_options_default();

    SPOPS_TRY(count_rows(m, s->x, &options.num_rows));
    SPOPS_TRY(spops_add_execute(m->ctx, spops_model_matrix(m, s->x),
                                spops_model_matrix(m, s->residual), &options, out));
    after.num_rows = options.num_rows;
    return s->activation == SPOPS_ACTIVATION_NONE
               ? SPOPS_STATUS_OK
               : spops_activation_execute(m->ctx, s->activation, out, &after, out);
}

static spops_status run_activation(const spops_model *m, const spops_model_step *s)
{
    spops_activation_options options = spops_activation_options_default();

    SPOPS_TRY(count_rows(m, s->x, &options.num_rows));
    return spops_activation_execute(m->ctx, s->activation, spops_model_matrix(m, s->x), &options,
                                    spops_model_matrix(m, s->out));
}

static spops_status run_dense(const spops_model *m, const spops_model_step *s)
{
    const int32_t set = spops_model_dense_set(m, s);
    const spops_matrix x = spops_model_matrix(m, s->x);
    spops_dense_shape shape = spops_dense_shape_default();
    int64_t cells = 1;

    shape.num_batches = m->num_batches;
    for (int32_t a = 0; a < m->dims; ++a) {
        shape.size[a] = spops_model_set_at(m, set)->size[a];
        cells *= shape.size[a];
    }
    return spops_dense_execute(m->ctx, coords_of(m, set), x, &shape,
                               spops_matrix_dense(spops_model_value_at(m, s->out)->data,
                                                  m->num_batches * x.cols, cells, x.dtype));
}

static spops_status run_permutation(const spops_model *m, const spops_model_step *s)
{
    const spops_model_value *x = spops_model_value_at(m, s->x);
    const int64_t elements = (int64_t)(x->bytes / element_bytes(x->dtype));
    const int64_t rows = elements / s->in_cols;
    return spops_gather_execute(
        m->ctx, s->copies, spops_matrix_dense(x->data, rows, s->in_cols, x->dtype), NULL,
        spops_matrix_dense(spops_model_value_at(m, s->out)->data, rows, s->in_cols, x->dtype));
}

spops_status spops_model_run_step(const spops_model *m, int32_t i, bool in_turn)
{
    const spops_model_step *s = spops_model_step_at(m, i);
    switch (s->kind) {
    case SPOPS_MODEL_INPUT:
        return spops_coords_update(m->ctx, spops_model_set_at(m, 0)->coords, m->num_rows,
                                   m->coords);
    case SPOPS_MODEL_VOXELS: return run_voxels(m, s);
    case SPOPS_MODEL_SETS: return run_sets(m);
    case SPOPS_MODEL_PLANS:
        return m->num_plans == 0 ? SPOPS_STATUS_OK : spops_update(m->ctx, m->plans, m->num_plans);
    case SPOPS_MODEL_CONV: return run_conv(m, s, in_turn && follows_layer(m, i));
    case SPOPS_MODEL_ADD: return run_sum(m, s);
    case SPOPS_MODEL_ACTIVATION: return run_activation(m, s);
    case SPOPS_MODEL_DENSE: return run_dense(m, s);
    case SPOPS_MODEL_PERMUTE: return run_permutation(m, s);
    case SPOPS_MODEL_CALL: return spops_model_run_call(m, s);
    }
    return SPOPS_STATUS_OK;
}
