// SPDX-License-Identifier: Apache-2.0
// The public calls: a file is read, planned, placed, run once without rows, and captured.
#include "model/model.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"

// ---- Memory of the host -----------------------------------------------------------------------------

typedef struct list_block {
    void *memory;
    size_t bytes;
} list_block;

void *spops_model_add(spops_model *m, spops_model_list *list, size_t bytes)
{
    char *items = list->items;
    if (list->num == list->room) {
        const int32_t room = list->room == 0 ? 16 : 2 * list->room;
        items = spops_host_alloc(m->ctx, (size_t)room, bytes);
        if (items == NULL) return NULL;
        if (list->num > 0) memcpy(items, list->items, (size_t)list->num * bytes);
        spops_host_free(m->ctx, list->items, (size_t)list->room, bytes);
        list->items = items;
        list->room = room;
    }
    items += (size_t)list->num++ * bytes;
    memset(items, 0, bytes);
    return items;
}

static void free_list(spops_model *m, spops_model_list *list, size_t bytes)
{
    spops_host_free(m->ctx, list->items, (size_t)list->room, bytes);
}

void *spops_model_memory(spops_model *m, size_t bytes)
{
    list_block *block = spops_model_add(m, &m->memory, sizeof *block);
    if (block == NULL) return NULL;
    block->bytes = bytes > 0 ? bytes : 1;
    block->memory = spops_host_alloc(m->ctx, block->bytes, 1);
    return block->memory;
}

char *spops_model_text(spops_model *m, spops_span name)
{
    const size_t n = spops_span_bytes(name);
    char *text = spops_model_memory(m, n + 1);
    if (text != NULL && n > 0) memcpy(text, name.at, n);
    return text;
}

int32_t spops_model_find_value(const spops_model *m, spops_span name)
{
    const size_t n = spops_span_bytes(name);
    for (int32_t i = 0; i < m->values.num; ++i) {
        const char *there = spops_model_value_at(m, i)->name;
        if (strncmp(there, (const char *)name.at, n) == 0 && there[n] == '\0') return i;
    }
    return -1;
}

// ---- Errors -----------------------------------------------------------------------------------------

spops_status spops_model_refuse(const spops_model *m, spops_status status, int32_t node,
                                const char *format, ...)
{
    char line[SPOPS_ERROR_BYTES];
    va_list arguments;

    va_start(arguments, format);
    if (vsnprintf(line, sizeof line, format, arguments) < 0) line[0] = '\0';
    va_end(arguments);
    if (node < 0 || m->onnx == NULL) return spops_fail(m->ctx, status, "%s: %s", m->call, line);
    const spops_onnx_node *n = &m->onnx->nodes[node];
    return spops_fail(m->ctx, status, "%s: node %" PRId32 " '%.*s' (%.*s), byte %zu: %s", m->call,
                      node, (int)spops_span_bytes(n->name), (const char *)n->name.at,
                      (int)spops_span_bytes(n->op), (const char *)n->op.at, n->offset, line);
}

spops_status spops_model_at_node(const spops_model *m, int32_t node, spops_status status)
{
    return status == SPOPS_STATUS_OK
               ? status
               : spops_model_refuse(m, status, node, "%s", spops_last_error(m->ctx));
}

// ---- Loading ----------------------------------------------------------------------------------------

static spops_status check_count(spops_context *ctx, const char *call, const char *name,
                                int64_t value)
{
    SPOPS_REQUIRE(ctx, value >= 0 && value <= SPOPS_MAX_COUNT,
                  "%s: %s is %" PRId64 ", expected 0 to %" PRId64, call, name, value,
                  SPOPS_MAX_COUNT);
    return SPOPS_STATUS_OK;
}

static spops_status read_options(spops_model *m, const spops_model_options *given)
{
    spops_context *ctx = m->ctx;
    spops_model_options *o = &m->options;

    SPOPS_TRY(spops_read_options(ctx, m->call, given, o, sizeof *o));
    SPOPS_TRY(check_count(ctx, m->call, "max_points", o->max_points));
    SPOPS_TRY(check_count(ctx, m->call, "max_rows", o->max_rows));
    SPOPS_TRY(check_count(ctx, m->call, "max_inner_rows", o->max_inner_rows));
    SPOPS_REQUIRE(ctx, o->num_batches >= 0 && o->num_batches <= 65536,
                  "%s: num_batches is %" PRId32 ", expected 0 to 65536", m->call, o->num_batches);
    SPOPS_TRY(spops_check_flag(ctx, m->call, "widen", o->widen));
    SPOPS_TRY(spops_check_flag(ctx, m->call, "no_graph", o->no_graph));
    SPOPS_REQUIRE(ctx, (int)o->int8 >= 0 && o->int8 <= SPOPS_MODEL_INT8_CODES,
                  "%s: int8 is %d, expected 0 to 3", m->call, (int)o->int8);
    m->dtype = o->widen ? SPOPS_DTYPE_F32 : SPOPS_DTYPE_F16;
    if (o->voxels == NULL) return SPOPS_STATUS_OK;
    m->has_voxels = true;
    SPOPS_TRY(spops_read_struct(ctx, m->call, "voxels", o->voxels, &m->voxel_options,
                                sizeof m->voxel_options));
    const spops_voxels_options *v = &m->voxel_options;
    SPOPS_REQUIRE(ctx, v->coords == NULL && v->memory == NULL && v->crop == 0 && v->dims == 0,
                  "%s: voxels has coords, memory, crop or dims, expected none of them", m->call);
    m->voxel_options.struct_size = sizeof m->voxel_options;
    return SPOPS_STATUS_OK;
}

// Every step once, without rows: what the first call of a kind allocates or loads is there then.
static spops_status run_once(spops_model *m)
{
    for (int32_t i = 0; i < m->steps.num; ++i)
        SPOPS_TRY(spops_model_at_node(m, spops_model_step_at(m, i)->node,
                                      spops_model_run_step(m, i, false)));
    return m->ctx->backend->wait(m->ctx);
}

static spops_status run_all(void *user)
{
    const spops_model *m = user;
    for (int32_t i = 0; i < m->steps.num; ++i)
        SPOPS_TRY(spops_model_run_step(m, i, true));
    return SPOPS_STATUS_OK;
}

static spops_status build(spops_model *m, const void *data, size_t bytes,
                          const spops_model_options *options)
{
    spops_onnx onnx;
    bool is_domain = false;
    spops_status status;

    SPOPS_TRY(read_options(m, options));
    SPOPS_TRY(spops_onnx_read(m->ctx, m->call, data, bytes, &onnx));
    m->onnx = &onnx;
    for (int32_t i = 0; i < onnx.num_nodes && !is_domain; ++i)
        is_domain = spops_span_is(onnx.nodes[i].domain, "spops");
    SPOPS_TRY_GOTO(is_domain ? spops_model_read_domain(m) : spops_model_read_dialect(m), status,
                   done);
    SPOPS_TRY_GOTO(spops_model_plan(m), status, done);
    SPOPS_TRY_GOTO(spops_model_place(m), status, done);
    SPOPS_TRY_GOTO(run_once(m), status, done);
    if (m->ctx->backend->capture != NULL && !m->options.no_graph)
        status = m->ctx->backend->capture(m->ctx, run_all, m, &m->graph);
done:
    m->onnx = NULL;
    spops_onnx_free(m->ctx, &onnx);
    return status;
}

static void destroy(spops_model *m)
{
    spops_context *ctx = m->ctx;
    (void)ctx->backend->wait(ctx);
    if (m->graph != NULL) ctx->backend->destroy_graph(ctx, m->graph);
    for (int32_t i = 0; i < m->steps.num; ++i)
        spops_segments_destroy(spops_model_step_at(m, i)->copies);
    for (int32_t i = m->maps.num - 1; i >= 0; --i) {
        spops_sparseconv_destroy(spops_model_map_at(m, i)->conv);
        spops_kernel_map_destroy(spops_model_map_at(m, i)->map);
    }
    spops_model_free_sets(m);
    spops_voxels_destroy(m->voxels);
    spops_backend_free(ctx, m->features, m->feature_bytes);
    spops_backend_free(ctx, m->arrays, m->array_bytes);
    spops_backend_free(ctx, m->weights, m->weight_bytes);
    if (m->plans != NULL)
        spops_host_free(ctx, m->plans, 2 * (size_t)m->maps.num + 1, sizeof *m->plans);
    for (int32_t i = 0; i < m->memory.num; ++i) {
        const list_block *b = SPOPS_MODEL_AT(m->memory, list_block, i);
        spops_host_free(ctx, b->memory, b->bytes, 1);
    }
    free_list(m, &m->memory, sizeof(list_block));
    free_list(m, &m->values, sizeof(spops_model_value));
    free_list(m, &m->sets, sizeof(spops_model_set));
    free_list(m, &m->maps, sizeof(spops_model_map));
    free_list(m, &m->steps, sizeof(spops_model_step));
    free_list(m, &m->inputs, sizeof(int32_t));
    free_list(m, &m->outputs, sizeof(int32_t));
    spops_host_free(ctx, m, 1, sizeof *m);
}

// What load and load_file do. The message of a failure outlives what destroying the model does.
static spops_status load(spops_context *ctx, const char *call, const void *data, size_t bytes,
                         const spops_model_options *options, spops_model **model)
{
    spops_model *m = spops_host_alloc(ctx, 1, sizeof *m);
    spops_status status;
    char line[SPOPS_ERROR_BYTES];

    if (m == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    m->ctx = ctx;
    m->call = call;
    status = build(m, data, bytes, options);
    if (status == SPOPS_STATUS_OK) {
        *model = m;
        return status;
    }
    if (strncmp(ctx->error, call, strlen(call)) != 0)
        (void)spops_fail(ctx, status, "%s: %s", call, ctx->error);
    memcpy(line, ctx->error, sizeof line);
    destroy(m);
    memcpy(ctx->error, line, sizeof line);
    return status;
}

static spops_status begin_load(spops_context *ctx, const char *call, const void *given,
                               const char *name, spops_model **model)
{
    if (model != NULL && (uintptr_t)model % sizeof model == 0) *model = NULL;
    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_check_object(ctx, call, "model", model, sizeof *model));
    SPOPS_TRY(spops_check_not_capturing(ctx, call));
    SPOPS_REQUIRE(ctx, given != NULL, "%s: %s is NULL", call, name);
    return SPOPS_STATUS_OK;
}

spops_status spops_model_load(spops_context *ctx, const void *data, size_t bytes,
                              const spops_model_options *options, spops_model **model)
{
    SPOPS_TRY(begin_load(ctx, "model_load", data, "data", model));
    return load(ctx, "model_load", data, bytes, options, model);
}

static spops_status read_failure(spops_context *ctx, const char *path)
{
    return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT, "model_load_file: %s cannot be read: %s",
                      path, strerror(errno != 0 ? errno : EIO));
}

spops_status spops_model_load_file(spops_context *ctx, const char *path,
                                   const spops_model_options *options, spops_model **model)
{
    FILE *file;
    long size = -1;
    void *data = NULL;
    spops_status status = SPOPS_STATUS_OUT_OF_MEMORY;

    SPOPS_TRY(begin_load(ctx, "model_load_file", path, "path", model));
    errno = 0;
    file = fopen(path, "rb");
    if (file == NULL) return read_failure(ctx, path);
    if (fseek(file, 0, SEEK_END) == 0) size = ftell(file);
    if (size < 0 || size == LONG_MAX || fseek(file, 0, SEEK_SET) != 0) {
        status = read_failure(ctx, path);
        goto done;
    }
    data = spops_host_alloc(ctx, (size_t)size + 1, 1);
    if (data == NULL) goto done;
    if (fread(data, 1, (size_t)size, file) != (size_t)size) {
        status = read_failure(ctx, path);
        goto done;
    }
    status = load(ctx, "model_load_file", data, (size_t)size, options, model);
done:
    if (data != NULL) spops_host_free(ctx, data, (size_t)size + 1, 1);
    fclose(file);
    return status;
}

void spops_model_destroy(spops_model *model)
{
    if (model != NULL) destroy(model);
}

// ---- What it is -------------------------------------------------------------------------------------

static spops_status begin(spops_context *ctx, const char *call, const spops_model *model)
{
    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_REQUIRE(ctx, model != NULL, "%s: model is NULL", call);
    SPOPS_REQUIRE(ctx, model->ctx == ctx, "%s: model was loaded with another context", call);
    return SPOPS_STATUS_OK;
}

static spops_status check_index(spops_context *ctx, const char *call, int32_t index, int32_t num)
{
    SPOPS_REQUIRE(ctx, index >= 0 && index < num,
                  "%s: index is %" PRId32 ", expected 0 to %" PRId32, call, index, num - 1);
    return SPOPS_STATUS_OK;
}

spops_status spops_model_get_info(spops_context *ctx, const spops_model *model,
                                  spops_model_info *info)
{
    const char *call = "model_get_info";
    spops_model_info i = spops_model_info_default();

    SPOPS_TRY(begin(ctx, call, model));
    i.num_inputs = model->inputs.num;
    i.num_outputs = model->outputs.num;
    i.num_layers = model->steps.num;
    i.num_sets = model->sets.num;
    i.has_graph = model->graph != NULL;
    i.num_int8 = model->num_int8;
    i.weight_bytes = model->weight_bytes;
    i.plan_bytes = model->plan_bytes;
    i.feature_bytes = model->feature_bytes;
    i.input_bytes = model->input_bytes;
    i.output_bytes = model->output_bytes;
    i.scratch_bytes = spops_context_scratch_memory(model->scratch_bytes);
    i.peak_bytes = i.weight_bytes + i.plan_bytes + i.feature_bytes + i.input_bytes +
                   i.output_bytes + i.scratch_bytes;
    return spops_write_struct(ctx, call, "info", info, &i, sizeof i);
}

spops_status spops_model_get_layer(spops_context *ctx, const spops_model *model, int32_t index,
                                   spops_model_layer *layer)
{
    const char *call = "model_get_layer";
    spops_model_layer l = spops_model_layer_default();

    SPOPS_TRY(begin(ctx, call, model));
    SPOPS_TRY(check_index(ctx, call, index, model->steps.num));
    const spops_model_step *s = spops_model_step_at(model, index);
    l.name = s->name;
    l.op = s->op;
    l.set = -1;
    l.num_nodes = s->num_nodes;
    l.in_cols = s->in_cols;
    l.out_cols = s->out_cols;
    l.num_taps = s->num_taps;
    l.weight_bytes = s->weight_bytes;
    l.plan_bytes = s->plan_bytes;
    if (s->out >= 0) {
        const spops_model_value *v = spops_model_value_at(model, s->out);
        l.set = v->set;
        l.max_rows = v->set < 0 ? 0 : spops_model_set_at(model, v->set)->max_rows;
        l.output_bytes = v->bytes;
    }
    return spops_write_struct(ctx, call, "layer", layer, &l, sizeof l);
}

static void describe_rows(const spops_model *m, const spops_model_value *v, bool is_input,
                          spops_model_array *a)
{
    spops_model_set *set = spops_model_set_at(m, v->set);
    spops_coords_view view = spops_coords_view_default();

    a->set = v->set;
    a->dims = m->dims;
    a->num_dims = 2;
    a->shape[0] = set->max_rows;
    a->shape[1] = v->cols;
    a->row_stride = v->row_stride;
    if (is_input) {
        a->num_rows = m->num_rows;
        a->coords = m->coords;
        a->points = m->points;
        a->batch = m->batch;
        if (!m->has_voxels) return;
        a->shape[0] = m->max_points;
        a->data = m->point_features;
        return;
    }
    const spops_coords *coords = set->coords != NULL ? set->coords : spops_voxels_coords(m->voxels);
    (void)spops_coords_get_view(m->ctx, coords, &view);
    a->num_rows = (int32_t *)(uintptr_t)view.num_rows;
    a->coords = (int32_t *)(uintptr_t)view.rows;
}

static spops_status get_array(spops_context *ctx, const char *call, const spops_model *m,
                              bool is_input, int32_t index, spops_model_array *array)
{
    spops_model_array a = spops_model_array_default();

    SPOPS_TRY(begin(ctx, call, m));
    const spops_model_list *list = is_input ? &m->inputs : &m->outputs;
    SPOPS_TRY(check_index(ctx, call, index, list->num));
    const spops_model_value *v = spops_model_value_at(m, *SPOPS_MODEL_AT(*list, int32_t, index));
    a.name = v->name;
    a.dtype = v->dtype;
    a.data = v->data;
    a.set = -1;
    if (v->set >= 0) {
        describe_rows(m, v, is_input, &a);
    } else {
        a.num_dims = v->num_dims;
        memcpy(a.shape, v->shape, sizeof a.shape);
        a.row_stride = v->num_dims > 0 ? v->shape[v->num_dims - 1] : 1;
    }
    return spops_write_struct(ctx, call, "array", array, &a, sizeof a);
}

spops_status spops_model_get_input(spops_context *ctx, const spops_model *model, int32_t index,
                                   spops_model_array *array)
{
    return get_array(ctx, "model_get_input", model, true, index, array);
}

spops_status spops_model_get_output(spops_context *ctx, const spops_model *model, int32_t index,
                                    spops_model_array *array)
{
    return get_array(ctx, "model_get_output", model, false, index, array);
}

// ---- Running ----------------------------------------------------------------------------------------

spops_status spops_model_execute(spops_context *ctx, spops_model *model)
{
    SPOPS_TRY(begin(ctx, "model_execute", model));
    if (model->graph != NULL && !ctx->backend->is_capturing(ctx))
        return ctx->backend->launch_graph(ctx, model->graph);
    return run_all(model);
}

spops_status spops_model_execute_layer(spops_context *ctx, spops_model *model, int32_t index)
{
    SPOPS_TRY(begin(ctx, "model_execute_layer", model));
    SPOPS_TRY(check_index(ctx, "model_execute_layer", index, model->steps.num));
    return spops_model_run_step(model, index, false);
}

static spops_status get_set(const spops_model *m, int32_t index, spops_coords_info *info)
{
    const spops_coords *coords = spops_model_set_at(m, index)->coords;
    return spops_coords_get_info_sync(
        m->ctx, coords != NULL ? coords : spops_voxels_coords(m->voxels), info);
}

spops_status spops_model_get_set_sync(spops_context *ctx, const spops_model *model, int32_t index,
                                      spops_coords_info *info)
{
    SPOPS_TRY(begin(ctx, "model_get_set_sync", model));
    SPOPS_TRY(check_index(ctx, "model_get_set_sync", index, model->sets.num));
    return get_set(model, index, info);
}

static spops_status check_set(const spops_model *m, int32_t i)
{
    const spops_model_set *set = spops_model_set_at(m, i);
    spops_coords_info info = spops_coords_info_default();
    const spops_status status = get_set(m, i, &info);

    if (status == SPOPS_STATUS_CAPACITY_EXCEEDED) {
        if (i == 0)
            return spops_fail(m->ctx, status,
                              "model_check_sync: the input has more rows than the %" PRId64
                              " that there is room for (max_rows, max_points)",
                              set->max_rows);
        return spops_fail(m->ctx, status,
                          "model_check_sync: the output of '%s' has more rows than the %" PRId64
                          " that there is room for (max_inner_rows, output_bound)",
                          set->name, set->max_rows);
    }
    SPOPS_TRY(status);
    if (i > 0 || m->has_voxels || info.num_dropped + info.num_merged == 0) return status;
    return spops_fail(m->ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                      "model_check_sync: %" PRId64 " rows of the input are outside the grid, and "
                      "%" PRId64 " are given twice, expected none",
                      info.num_dropped, info.num_merged);
}

spops_status spops_model_check_sync(spops_context *ctx, const spops_model *model)
{
    SPOPS_TRY(begin(ctx, "model_check_sync", model));
    SPOPS_TRY(spops_check_not_capturing(ctx, "model_check_sync"));
    for (int32_t i = 0; i < model->sets.num; ++i)
        SPOPS_TRY(check_set(model, i));
    return ctx->backend->wait(ctx);
}
