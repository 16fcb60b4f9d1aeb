// SPDX-License-Identifier: Apache-2.0
// Files of libspconv: nodes SparseConvolution, Add, QuantAdd, Relu, ScatterDense, Reshape, Transpose
// become sets, maps and steps. A convolution, the sum that it alone feeds and the ReLU after it are one
// step.
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/status.h"
#include "model/model.h"

enum { DEFAULT_BOUND = 150000, MOST_COLS = 1 << 16, MOST_CELLS = 1 << 24, COLS_MULTIPLE = 8 };

typedef struct node_reader {
    spops_model *m;
    const spops_onnx_node *node;
    int32_t index;
} node_reader;

#define REFUSE(r, ...)                                                                             \
    spops_model_refuse((r)->m, SPOPS_STATUS_CORRUPT_DATA, (r)->index, __VA_ARGS__)
#define UNREAD(r, ...)                                                                             \
    spops_model_refuse((r)->m, SPOPS_STATUS_NOT_SUPPORTED, (r)->index, __VA_ARGS__)

// ---- Attributes -----------------------------------------------------------------------------------

// An integer from low to high; `otherwise` where there is none.
static spops_status get_int(const node_reader *r, const char *name, int64_t otherwise, int64_t low,
                            int64_t high, int64_t *value)
{
    const spops_onnx_attribute *a = spops_onnx_find_attribute(r->node, name);
    *value = otherwise;
    if (a == NULL) return SPOPS_STATUS_OK;
    if (!a->has_i) return REFUSE(r, "%s has no integer; byte %zu", name, a->offset);
    if (a->i < low || a->i > high)
        return REFUSE(r, "%s is %" PRId64 ", expected %" PRId64 " to %" PRId64 "; byte %zu", name,
                      a->i, low, high, a->offset);
    *value = a->i;
    return SPOPS_STATUS_OK;
}

// m->dims integers; `otherwise` for each where there are none.
static spops_status get_ints(const node_reader *r, const char *name, int32_t otherwise, int32_t low,
                             int32_t high, int32_t *values)
{
    const spops_onnx_attribute *a = spops_onnx_find_attribute(r->node, name);
    for (int32_t i = 0; i < r->m->dims; ++i)
        values[i] = otherwise;
    if (a == NULL) return SPOPS_STATUS_OK;
    if (a->num_ints != r->m->dims)
        return REFUSE(r, "%s has %" PRId32 " integers, expected %" PRId32 "; byte %zu", name,
                      a->num_ints, r->m->dims, a->offset);
    for (int32_t i = 0; i < r->m->dims; ++i) {
        if (a->ints[i] < low || a->ints[i] > high)
            return REFUSE(
                r, "%s[%" PRId32 "] is %" PRId64 ", expected %" PRId32 " to %" PRId32 "; byte %zu",
                name, i, a->ints[i], low, high, a->offset);
        values[i] = (int32_t)a->ints[i];
    }
    return SPOPS_STATUS_OK;
}

static bool has_text(const node_reader *r, const char *name, const char *text)
{
    const spops_onnx_attribute *a = spops_onnx_find_attribute(r->node, name);
    return a == NULL || !a->has_s ? *text == '\0' : spops_span_is(a->s, text);
}

static spops_status check_range(const node_reader *r, const char *name)
{
    const spops_onnx_attribute *a = spops_onnx_find_attribute(r->node, name);
    if (a == NULL || (a->has_f && isfinite(a->f) && a->f >= 0)) return SPOPS_STATUS_OK;
    return REFUSE(r, "%s is %g, expected a finite number of 0 or more; byte %zu", name,
                  a->has_f ? (double)a->f : 0.0, a->offset);
}

// precision and output_precision: "fp16", "int8" or nothing.
static spops_status read_precision(const node_reader *r, bool *is_int8)
{
    *is_int8 = has_text(r, "precision", "int8");
    if (!*is_int8 && !has_text(r, "precision", "fp16") && !has_text(r, "precision", ""))
        return UNREAD(r, "precision is neither fp16 nor int8");
    if (!*is_int8) return SPOPS_STATUS_OK;
    ++r->m->num_int8;
    if (r->m->options.int8 == SPOPS_MODEL_INT8_REFUSE)
        return UNREAD(r, "precision is int8, which the options refuse");
    return SPOPS_STATUS_OK;
}

// ---- Values ---------------------------------------------------------------------------------------

static spops_status get_input(const node_reader *r, int32_t i, bool rows, int32_t *value)
{
    const spops_onnx_node *n = r->node;
    if (i >= n->num_inputs) return REFUSE(r, "it has %" PRId32 " inputs", n->num_inputs);
    *value = spops_model_find_value(r->m, n->inputs[i]);
    if (*value < 0)
        return REFUSE(r, "input %" PRId32 " '%.*s' is no output of a node before it", i,
                      (int)spops_span_bytes(n->inputs[i]), (const char *)n->inputs[i].at);
    if ((spops_model_value_at(r->m, *value)->set >= 0) != rows)
        return UNREAD(r, "input %" PRId32 " is %s, expected %s", i,
                      rows ? "a tensor" : "rows of a set", rows ? "rows of a set" : "a tensor");
    return SPOPS_STATUS_OK;
}

// The output of the node, a new name.
static spops_status add_value(spops_model *m, int32_t node, spops_span name,
                              const spops_model_value *like, int32_t *index)
{
    spops_model_value *v;
    char *text;
    if (spops_span_bytes(name) == 0)
        return spops_model_refuse(m, SPOPS_STATUS_CORRUPT_DATA, node, "an output has no name");
    if (spops_model_find_value(m, name) >= 0)
        return spops_model_refuse(m, SPOPS_STATUS_CORRUPT_DATA, node,
                                  "output '%.*s' is there already", (int)spops_span_bytes(name),
                                  (const char *)name.at);
    if (m->values.num >= SPOPS_ONNX_MAX_VALUES)
        return spops_model_refuse(m, SPOPS_STATUS_CORRUPT_DATA, node, "more than %d values",
                                  SPOPS_ONNX_MAX_VALUES);
    text = spops_model_text(m, name);
    if (text == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    v = spops_model_add(m, &m->values, sizeof *v);
    if (v == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    *v = *like;
    v->name = text;
    *index = m->values.num - 1;
    return SPOPS_STATUS_OK;
}

static spops_status add_output(const node_reader *r, const spops_model_value *like, int32_t *index)
{
    if (r->node->num_outputs != 1)
        return REFUSE(r, "it has %" PRId32 " outputs, expected 1", r->node->num_outputs);
    return add_value(r->m, r->index, r->node->outputs[0], like, index);
}

static spops_model_value rows_of(const spops_model *m, int32_t set, int64_t cols)
{
    return (spops_model_value){
        .dtype = m->dtype, .set = set, .parent = -1, .cols = cols, .row_stride = cols};
}

// A step of the node, of which the caller fills in the rest; NULL: no memory.
static spops_model_step *add_step(const node_reader *r, spops_model_step_kind kind, int32_t x,
                                  int32_t out)
{
    static const char *const ops[] = {[SPOPS_MODEL_CONV] = "SparseConvolution",
                                      [SPOPS_MODEL_ADD] = "Add",
                                      [SPOPS_MODEL_ACTIVATION] = "Relu",
                                      [SPOPS_MODEL_DENSE] = "ScatterDense",
                                      [SPOPS_MODEL_PERMUTE] = "Transpose"};
    spops_model *m = r->m;
    char *name = spops_model_text(m, r->node->name);
    spops_model_step *s =
        name == NULL ? NULL : spops_model_add(m, &m->steps, sizeof(spops_model_step));
    if (s == NULL) return NULL;
    s->kind = kind;
    s->name = name;
    s->op = ops[kind];
    s->node = r->index;
    s->num_nodes = 1;
    s->x = x;
    s->out = out;
    s->residual = s->map = s->permuted_set = -1;
    return s;
}

// ---- Sets and maps --------------------------------------------------------------------------------

static bool same_kernel(const spops_kernel_shape *a, const spops_kernel_shape *b)
{
    for (int32_t i = 0; i < a->dims; ++i)
        if (a->size[i] != b->size[i] || a->stride[i] != b->stride[i] ||
            a->padding[i] != b->padding[i] || a->dilation[i] != b->dilation[i])
            return false;
    return true;
}

static spops_status find_map(spops_model *m, spops_kernel_map_kind kind, int32_t in, int32_t out,
                             const spops_kernel_shape *kernel, int32_t *index)
{
    spops_model_map *map;
    for (int32_t i = 0; i < m->maps.num; ++i) {
        map = spops_model_map_at(m, i);
        if (map->kind != kind || map->in != in || map->out != out ||
            !same_kernel(&map->kernel, kernel))
            continue;
        *index = i;
        return SPOPS_STATUS_OK;
    }
    map = spops_model_add(m, &m->maps, sizeof *map);
    if (map == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    map->kind = kind;
    map->in = in;
    map->out = out;
    map->kernel = *kernel;
    *index = m->maps.num - 1;
    return SPOPS_STATUS_OK;
}

// Cells of the outputs; the file may say them too.
static spops_status get_out_size(const node_reader *r, const spops_kernel_shape *kernel,
                                 const int32_t *in_size, int32_t *size)
{
    for (int32_t a = 0; a < r->m->dims; ++a) {
        const int64_t reach = (int64_t)in_size[a] + 2 * (int64_t)kernel->padding[a] -
                              (int64_t)kernel->dilation[a] * (kernel->size[a] - 1) - 1;
        if (reach < 0)
            return REFUSE(r, "its kernel is larger than the %" PRId32 " cells of axis %" PRId32,
                          in_size[a], a);
        size[a] = (int32_t)(reach / kernel->stride[a]) + 1;
    }
    return SPOPS_STATUS_OK;
}

static spops_status check_size(const node_reader *r, const char *name, const int32_t *size)
{
    int32_t said[SPOPS_MAX_DIMS];
    if (spops_onnx_find_attribute(r->node, name) == NULL) return SPOPS_STATUS_OK;
    SPOPS_TRY(get_ints(r, name, 0, 1, MOST_CELLS, said));
    for (int32_t a = 0; a < r->m->dims; ++a)
        if (said[a] != size[a])
            return REFUSE(r, "%s[%" PRId32 "] is %" PRId32 ", expected %" PRId32, name, a, said[a],
                          size[a]);
    return SPOPS_STATUS_OK;
}

static spops_status find_set(const node_reader *r, int32_t from, const spops_kernel_shape *kernel,
                             int64_t bound, int32_t *index)
{
    spops_model *m = r->m;
    spops_model_set *set;
    int32_t size[SPOPS_MAX_DIMS];

    for (int32_t i = 1; i < m->sets.num; ++i) {
        set = spops_model_set_at(m, i);
        if (set->from != from || !same_kernel(&set->kernel, kernel)) continue;
        if (bound > set->bound) set->bound = bound;
        *index = i;
        return SPOPS_STATUS_OK;
    }
    SPOPS_TRY(get_out_size(r, kernel, spops_model_set_at(m, from)->size, size));
    char *name = spops_model_text(m, r->node->name);
    set = name == NULL ? NULL : spops_model_add(m, &m->sets, sizeof *set);
    if (set == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    set->name = name;
    set->from = from;
    set->kernel = *kernel;
    memcpy(set->size, size, sizeof size);
    set->bound = bound;
    set->node = r->index;
    *index = m->sets.num - 1;
    return SPOPS_STATUS_OK;
}

// The step whose rulebook has this name; NULL.
static const spops_model_step *find_rulebook(const spops_model *m, const char *name)
{
    for (int32_t i = 0; *name != '\0' && i < m->steps.num; ++i) {
        const spops_model_step *s = spops_model_step_at(m, i);
        if (s->kind == SPOPS_MODEL_CONV && strcmp(s->rulebook, name) == 0 &&
            spops_model_map_at(m, s->map)->kind != SPOPS_MAP_TRANSPOSED)
            return s;
    }
    return NULL;
}

static spops_status read_kernel(const node_reader *r, bool submanifold, spops_kernel_shape *kernel)
{
    *kernel = spops_kernel_shape_default();
    kernel->dims = r->m->dims;
    SPOPS_TRY(get_ints(r, "kernel_size", 0, 1, SPOPS_MAX_KERNEL_SIZE, kernel->size));
    if (kernel->size[0] == 0) return REFUSE(r, "it has no kernel_size");
    SPOPS_TRY(get_ints(r, "stride", 1, 1, 64, kernel->stride));
    SPOPS_TRY(get_ints(r, "padding", 0, 0, 64, kernel->padding));
    SPOPS_TRY(get_ints(r, "dilation", 1, 1, 64, kernel->dilation));
    if (spops_kernel_shape_num_taps(kernel) == 0 ||
        spops_kernel_shape_num_taps(kernel) > SPOPS_MAX_KERNEL_TAPS)
        return UNREAD(r, "its kernel has more than %d taps", SPOPS_MAX_KERNEL_TAPS);
    for (int32_t a = 0; a < kernel->dims && submanifold; ++a) {
        if (kernel->stride[a] != 1 || kernel->size[a] % 2 == 0)
            return REFUSE(r,
                          "subm is 1 with stride %" PRId32 " and size %" PRId32
                          ", expected stride 1 and an odd size",
                          kernel->stride[a], kernel->size[a]);
        kernel->padding[a] = 0; // it is centred, whatever the file says
    }
    return SPOPS_STATUS_OK;
}

static bool is_pointwise(const spops_kernel_shape *kernel)
{
    for (int32_t a = 0; a < kernel->dims; ++a)
        if (kernel->size[a] != 1 || kernel->stride[a] != 1 || kernel->padding[a] != 0) return false;
    return true;
}

// The map and the output's set of a convolution of x.
static spops_status read_relation(const node_reader *r, const char *rulebook, int32_t x,
                                  int32_t *map)
{
    spops_model *m = r->m;
    const int32_t in = spops_model_value_at(m, x)->set;
    const spops_model_step *same = find_rulebook(m, rulebook);
    spops_kernel_shape kernel;
    int64_t submanifold, inverse, transposed, bound;
    int32_t out = in;

    SPOPS_TRY(get_int(r, "subm", 0, 0, 1, &submanifold));
    SPOPS_TRY(get_int(r, "inverse", 0, 0, 1, &inverse));
    SPOPS_TRY(get_int(r, "transposed", 0, 0, 1, &transposed));
    SPOPS_TRY(get_int(r, "output_bound", DEFAULT_BOUND, 1, INT32_MAX - 1, &bound));
    SPOPS_TRY(read_kernel(r, submanifold != 0, &kernel));
    SPOPS_TRY(check_size(r, "input_spatial_shape", spops_model_set_at(m, in)->size));
    if (inverse) {
        if (same == NULL || spops_model_map_at(m, same->map)->kind != SPOPS_MAP_CONVOLUTION ||
            spops_model_map_at(m, same->map)->out != in)
            return REFUSE(r,
                          "inverse is 1, and rulebook '%s' is no convolution that leads to its "
                          "input",
                          rulebook);
        const spops_model_map down = *spops_model_map_at(m, same->map);
        if (memcmp(down.kernel.size, kernel.size, (size_t)m->dims * sizeof *kernel.size) != 0)
            return REFUSE(r, "kernel_size is not that of rulebook '%s'", rulebook);
        SPOPS_TRY(check_size(r, "output_spatial_shape", spops_model_set_at(m, down.in)->size));
        return find_map(m, SPOPS_MAP_TRANSPOSED, in, down.in, &down.kernel, map);
    }
    if (transposed) return UNREAD(r, "transposed is 1 without inverse");
    if (submanifold || is_pointwise(&kernel)) {
        spops_model_set *set = spops_model_set_at(m, in);
        if (set->from < 0 && bound > set->bound) set->bound = bound;
        SPOPS_TRY(find_map(m, SPOPS_MAP_SUBMANIFOLD, in, in, &kernel, map));
    } else {
        SPOPS_TRY(find_set(r, in, &kernel, bound, &out));
        SPOPS_TRY(find_map(m, SPOPS_MAP_CONVOLUTION, in, out, &kernel, map));
    }
    SPOPS_TRY(check_size(r, "output_spatial_shape", spops_model_set_at(m, out)->size));
    if (same != NULL && same->map != *map)
        return REFUSE(r, "rulebook '%s' is that of node '%s', which has another kernel or input",
                      rulebook, same->name);
    return SPOPS_STATUS_OK;
}

// ---- Nodes ----------------------------------------------------------------------------------------

// An initializer of f16 with these dimensions.
static spops_status read_parameter(const node_reader *r, int32_t input, const char *what,
                                   const int64_t *dims, int32_t num_dims, spops_span *data)
{
    const spops_onnx *onnx = r->m->onnx;
    const spops_onnx_tensor *t =
        spops_onnx_find_tensor(onnx->initializers, onnx->num_initializers, r->node->inputs[input]);
    int64_t count = 1;

    if (t == NULL)
        return REFUSE(r, "its %s '%.*s' is no initializer", what,
                      (int)spops_span_bytes(r->node->inputs[input]),
                      (const char *)r->node->inputs[input].at);
    if (t->type != SPOPS_ONNX_FLOAT16)
        return UNREAD(r, "its %s is of data_type %" PRId32 ", expected 10 (f16); byte %zu", what,
                      t->type, t->offset);
    if (t->num_dims != num_dims)
        return REFUSE(r, "its %s has %" PRId32 " dimensions, expected %" PRId32 "; byte %zu", what,
                      t->num_dims, num_dims, t->offset);
    for (int32_t i = 0; i < num_dims; ++i) {
        if (dims[i] >= 0 ? t->dims[i] != dims[i] : t->dims[i] < 1 || t->dims[i] > MOST_COLS)
            return REFUSE(
                r, "dimension %" PRId32 " of its %s is %" PRId64 ", expected %" PRId64 "; byte %zu",
                i, what, t->dims[i], dims[i] >= 0 ? dims[i] : 1, t->offset);
        count *= t->dims[i]; // at most 2^16 2^16 and the taps
    }
    if ((uint64_t)count * 2 != spops_span_bytes(t->data))
        return REFUSE(r, "its %s has %zu bytes, expected %" PRId64 "; byte %zu", what,
                      spops_span_bytes(t->data), 2 * count, t->offset);
    *data = t->data;
    return SPOPS_STATUS_OK;
}

static spops_status read_activation(const node_reader *r, spops_activation *activation)
{
    *activation = SPOPS_ACTIVATION_NONE;
    if (has_text(r, "activation", "ReLU"))
        *activation = SPOPS_ACTIVATION_RELU;
    else if (has_text(r, "activation", "Sigmoid"))
        *activation = SPOPS_ACTIVATION_SIGMOID;
    else if (!has_text(r, "activation", "None") && !has_text(r, "activation", ""))
        return UNREAD(r, "activation is none of None, ReLU, Sigmoid");
    return SPOPS_STATUS_OK;
}

static spops_status read_int8(const node_reader *r, spops_model_step *s)
{
    const spops_onnx_attribute *a = spops_onnx_find_attribute(r->node, "weight_dynamic_ranges");
    bool is_int8;

    SPOPS_TRY(check_range(r, "input_dynamic_range"));
    SPOPS_TRY(read_precision(r, &is_int8));
    if (!is_int8) return SPOPS_STATUS_OK;
    if (a == NULL || (a->num_floats != s->out_cols && a->num_floats != 1))
        return REFUSE(r,
                      "precision is int8, and weight_dynamic_ranges has %" PRId32
                      " numbers, expected 1 or %" PRId64,
                      a == NULL ? 0 : a->num_floats, s->out_cols);
    for (int32_t i = 0; i < a->num_floats; ++i)
        if (!isfinite(a->floats[i]) || a->floats[i] < 0)
            return REFUSE(r,
                          "weight_dynamic_ranges[%" PRId32
                          "] is %g, expected a finite number of 0 or more; byte %zu",
                          i, (double)a->floats[i], a->offset);
    if (r->m->options.int8 == SPOPS_MODEL_INT8_IGNORE) return SPOPS_STATUS_OK;
    s->ranges = a->floats;
    s->num_ranges = a->num_floats;
    a = spops_onnx_find_attribute(r->node, "input_dynamic_range");
    if (a != NULL && a->has_f) s->x_range = a->f;
    return SPOPS_STATUS_OK;
}

static spops_status read_conv(const node_reader *r)
{
    spops_model *m = r->m;
    const spops_onnx_attribute *key = spops_onnx_find_attribute(r->node, "rulebook");
    const spops_onnx_tensor *w;
    int64_t dims[SPOPS_MAX_DIMS + 2], said;
    int32_t x = -1, out = -1, map = -1;
    char *rulebook;
    spops_model_step s = {.ranges = NULL};

    SPOPS_TRY(get_input(r, 0, true, &x));
    if (r->node->num_inputs < 2 || r->node->num_inputs > 3)
        return REFUSE(r, "it has %" PRId32 " inputs, expected rows, a weight and a bias",
                      r->node->num_inputs);
    SPOPS_TRY(get_int(r, "ndim", m->dims, m->dims, m->dims, &said));
    SPOPS_TRY(get_int(r, "groups", 1, 1, MOST_COLS, &said));
    if (said != 1) return UNREAD(r, "groups is %" PRId64 ", expected 1", said);
    rulebook = spops_model_text(m, key != NULL && key->has_s &&
                                           spops_span_bytes(key->s) <= SPOPS_ONNX_MAX_NAME_BYTES
                                       ? key->s
                                       : (spops_span){m->onnx->bytes.at, m->onnx->bytes.at});
    if (rulebook == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    SPOPS_TRY(read_relation(r, rulebook, x, &map));
    const spops_model_map relation = *spops_model_map_at(m, map);
    s.in_cols = spops_model_value_at(m, x)->row_stride;
    s.file_cols = spops_model_value_at(m, x)->cols;
    s.num_taps = spops_kernel_shape_num_taps(&relation.kernel);
    dims[0] = -1;
    for (int32_t a = 0; a < m->dims; ++a)
        dims[1 + a] = relation.kernel.size[a];
    dims[1 + m->dims] = s.file_cols;
    SPOPS_TRY(read_parameter(r, 1, "weight", dims, m->dims + 2, &s.weights));
    w = spops_onnx_find_tensor(m->onnx->initializers, m->onnx->num_initializers,
                               r->node->inputs[1]);
    s.out_cols = w->dims[0];
    if (r->node->num_inputs > 2 && spops_span_bytes(r->node->inputs[2]) > 0)
        SPOPS_TRY(read_parameter(r, 2, "bias", &s.out_cols, 1, &s.bias));
    s.has_bias = spops_span_bytes(s.bias) > 0;
    SPOPS_TRY(get_int(r, "in_channels", s.file_cols, s.file_cols, s.file_cols, &said));
    SPOPS_TRY(get_int(r, "out_channels", s.out_cols, s.out_cols, s.out_cols, &said));
    SPOPS_TRY(read_activation(r, &s.activation));
    SPOPS_TRY(read_int8(r, &s));
    const spops_model_value rows = rows_of(m, relation.out, s.out_cols);
    SPOPS_TRY(add_output(r, &rows, &out));
    spops_model_step *step = add_step(r, SPOPS_MODEL_CONV, x, out);
    if (step == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    s.kind = step->kind;
    s.name = step->name;
    s.op = step->op;
    s.node = step->node;
    s.num_nodes = 1;
    s.x = x;
    s.out = out;
    s.residual = -1;
    s.map = map;
    s.rulebook = rulebook;
    *step = s;
    if (s.in_cols % COLS_MULTIPLE != 0 || s.out_cols % COLS_MULTIPLE != 0)
        spops_model_map_at(m, map)->is_narrow = true;
    return SPOPS_STATUS_OK;
}

static spops_status read_add(const node_reader *r)
{
    spops_model *m = r->m;
    int32_t a = -1, b = -1, out = -1;
    bool is_int8;

    SPOPS_TRY(get_input(r, 0, true, &a));
    SPOPS_TRY(get_input(r, 1, true, &b));
    if (r->node->num_inputs != 2)
        return REFUSE(r, "it has %" PRId32 " inputs, expected 2", r->node->num_inputs);
    const spops_model_value va = *spops_model_value_at(m, a), vb = *spops_model_value_at(m, b);
    if (va.set != vb.set || va.cols != vb.cols)
        return REFUSE(
            r, "its inputs are rows of different sets, or have %" PRId64 " and %" PRId64 " columns",
            va.cols, vb.cols);
    SPOPS_TRY(check_range(r, "input0_dynamic_range"));
    SPOPS_TRY(check_range(r, "input1_dynamic_range"));
    SPOPS_TRY(read_precision(r, &is_int8));
    const spops_model_value rows = rows_of(m, va.set, va.cols);
    SPOPS_TRY(add_output(r, &rows, &out));
    spops_model_step *s = add_step(r, SPOPS_MODEL_ADD, a, out);
    if (s == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    s->residual = b;
    s->in_cols = s->out_cols = va.cols;
    return SPOPS_STATUS_OK;
}

static spops_status read_relu(const node_reader *r)
{
    spops_model *m = r->m;
    int32_t x = -1, out = -1;

    if (r->node->num_inputs != 1)
        return REFUSE(r, "it has %" PRId32 " inputs, expected 1", r->node->num_inputs);
    x = spops_model_find_value(m, r->node->inputs[0]);
    SPOPS_TRY(get_input(r, 0, x < 0 || spops_model_value_at(m, x)->set >= 0, &x));
    spops_model_value like = *spops_model_value_at(m, x);
    like.parent = -1;
    like.is_input = like.is_output = like.is_pinned = false;
    like.row_stride = like.cols;
    SPOPS_TRY(add_output(r, &like, &out));
    spops_model_step *s = add_step(r, SPOPS_MODEL_ACTIVATION, x, out);
    if (s == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    s->activation = SPOPS_ACTIVATION_RELU;
    s->in_cols = s->out_cols = like.cols;
    return SPOPS_STATUS_OK;
}

static spops_status read_dense(const node_reader *r)
{
    spops_model *m = r->m;
    const spops_onnx_attribute *shape = spops_onnx_find_attribute(r->node, "output_shape");
    spops_model_value out = {.dtype = m->dtype, .set = -1, .parent = -1};
    int64_t cells = 1;
    int32_t x = -1, index = -1;

    SPOPS_TRY(get_input(r, 0, true, &x));
    const spops_model_value rows = *spops_model_value_at(m, x);
    const spops_model_set set = *spops_model_set_at(m, rows.set);
    SPOPS_TRY(check_size(r, "input_spatial_shape", set.size));
    SPOPS_TRY(check_range(r, "input_dynamic_range"));
    if (!has_text(r, "output_layout", "NCHW") && !has_text(r, "output_layout", ""))
        return UNREAD(r, "output_layout is not NCHW");
    // Axes are in the order of coordinates, in both.
    if (!has_text(r, "format", "zyx") && !has_text(r, "format", "xyz") &&
        !has_text(r, "format", ""))
        return UNREAD(r, "format is neither zyx nor xyz");
    out.num_dims = 2 + m->dims;
    out.shape[0] = m->num_batches;
    out.shape[1] = rows.cols;
    for (int32_t a = 0; a < m->dims; ++a) {
        out.shape[2 + a] = set.size[a];
        if (__builtin_mul_overflow(cells, set.size[a], &cells) || cells >= INT32_MAX)
            return UNREAD(r, "its grid has 2^31 - 1 cells or more");
    }
    if (shape != NULL && shape->num_ints != out.num_dims)
        return REFUSE(r, "output_shape has %" PRId32 " integers, expected %" PRId32 "; byte %zu",
                      shape->num_ints, out.num_dims, shape->offset);
    for (int32_t i = 0; shape != NULL && i < out.num_dims; ++i)
        if (shape->ints[i] != out.shape[i])
            return REFUSE(
                r, "output_shape[%" PRId32 "] is %" PRId64 ", expected %" PRId64 "; byte %zu", i,
                shape->ints[i], out.shape[i], shape->offset);
    SPOPS_TRY(add_output(r, &out, &index));
    spops_model_step *s = add_step(r, SPOPS_MODEL_DENSE, x, index);
    if (s == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    s->in_cols = s->out_cols = rows.cols;
    return SPOPS_STATUS_OK;
}

static int64_t elements_of(const spops_model_value *v)
{
    int64_t n = 1;
    for (int32_t i = 0; i < v->num_dims; ++i)
        n *= v->shape[i];
    return n;
}

static spops_status read_reshape(const node_reader *r)
{
    spops_model *m = r->m;
    const spops_onnx_attribute *dims = spops_onnx_find_attribute(r->node, "dims");
    int64_t count = 1;
    int32_t x = -1, index = -1, unknown = -1;

    SPOPS_TRY(get_input(r, 0, false, &x));
    spops_model_value v = *spops_model_value_at(m, x);
    const int64_t all = elements_of(&v);
    if (dims == NULL || dims->num_ints < 1 || dims->num_ints > SPOPS_MODEL_MAX_DIMS)
        return REFUSE(r, "dims has %" PRId32 " integers, expected 1 to 8",
                      dims == NULL ? 0 : dims->num_ints);
    v.num_dims = dims->num_ints;
    for (int32_t i = 0; i < v.num_dims; ++i) {
        v.shape[i] = dims->ints[i];
        if (v.shape[i] == -1 && unknown < 0) {
            unknown = i;
            continue;
        }
        if (v.shape[i] < 1 || __builtin_mul_overflow(count, v.shape[i], &count))
            return REFUSE(r,
                          "dims[%" PRId32 "] is %" PRId64 ", expected 1 or more, or -1 once; "
                          "byte %zu",
                          i, v.shape[i], dims->offset);
    }
    if (unknown >= 0) v.shape[unknown] = all / count;
    if (unknown >= 0 ? all % count != 0 : all != count)
        return REFUSE(r, "dims do not make the %" PRId64 " elements of its input; byte %zu", all,
                      dims->offset);
    v.parent = x;
    v.is_output = false;
    return add_output(r, &v, &index);
}

static spops_status read_transpose(const node_reader *r)
{
    spops_model *m = r->m;
    const spops_onnx_attribute *dims = spops_onnx_find_attribute(r->node, "dims");
    int32_t x = -1, index = -1, order[SPOPS_MODEL_MAX_DIMS];
    bool is_same = true, seen[SPOPS_MODEL_MAX_DIMS] = {false};

    SPOPS_TRY(get_input(r, 0, false, &x));
    spops_model_value v = *spops_model_value_at(m, x);
    const spops_model_value from = v;
    if (dims == NULL || dims->num_ints != v.num_dims)
        return REFUSE(r, "dims has %" PRId32 " integers, expected %" PRId32,
                      dims == NULL ? 0 : dims->num_ints, v.num_dims);
    for (int32_t i = 0; i < v.num_dims; ++i) {
        const int64_t d = dims->ints[i] < 0 ? dims->ints[i] + v.num_dims : dims->ints[i];
        if (d < 0 || d >= v.num_dims || seen[d])
            return REFUSE(r,
                          "dims[%" PRId32 "] is %" PRId64 ", expected each of 0 to %" PRId32
                          " once; byte %zu",
                          i, dims->ints[i], v.num_dims - 1, dims->offset);
        seen[d] = true;
        order[i] = (int32_t)d;
        v.shape[i] = from.shape[d];
        is_same = is_same && d == i;
    }
    v.parent = is_same ? x : -1;
    v.is_output = false;
    SPOPS_TRY(add_output(r, &v, &index));
    if (is_same) return SPOPS_STATUS_OK;
    if (elements_of(&v) >= INT32_MAX) return UNREAD(r, "its tensor has 2^31 - 1 elements or more");
    spops_model_step *s = add_step(r, SPOPS_MODEL_PERMUTE, x, index);
    if (s == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    memcpy(s->order, order, sizeof order);
    return SPOPS_STATUS_OK;
}

static spops_status read_node(spops_model *m, int32_t index)
{
    static const struct {
        const char *op;
        spops_status (*read)(const node_reader *r);
    } readers[] = {{"SparseConvolution", read_conv}, {"Add", read_add},
                   {"QuantAdd", read_add},           {"Relu", read_relu},
                   {"ScatterDense", read_dense},     {"Reshape", read_reshape},
                   {"Transpose", read_transpose}};
    const node_reader r = {m, &m->onnx->nodes[index], index};
    for (size_t i = 0; i < sizeof readers / sizeof *readers; ++i)
        if (spops_span_is(r.node->op, readers[i].op)) return readers[i].read(&r);
    return UNREAD(&r, "there is no such operator in files of libspconv");
}

// ---- Steps that run as one ------------------------------------------------------------------------

// The only step that takes `value`, if one does and nothing else needs it; -1.
static bool is_used_once(const spops_model *m, int32_t value)
{
    int32_t uses = spops_model_value_at(m, value)->is_output ? 2 : 0;
    for (int32_t i = 0; i < m->steps.num; ++i) {
        const spops_model_step *s = spops_model_step_at(m, i);
        uses += (s->op != NULL && s->x == value) + (s->op != NULL && s->residual == value);
    }
    for (int32_t i = 0; i < m->values.num; ++i)
        uses += spops_model_value_at(m, i)->parent == value;
    return uses == 1;
}

// The step before `end` that makes `value` for one step alone, without an activation; NULL.
static spops_model_step *find_source(const spops_model *m, int32_t end, int32_t value)
{
    for (int32_t i = 0; i < end; ++i) {
        spops_model_step *s = spops_model_step_at(m, i);
        if (s->op == NULL || s->out != value) continue;
        const bool joins = (s->kind == SPOPS_MODEL_CONV || s->kind == SPOPS_MODEL_ADD) &&
                           s->activation == SPOPS_ACTIVATION_NONE && is_used_once(m, value);
        return joins ? s : NULL;
    }
    return NULL;
}

// A ReLU into the sum or the convolution before it.
static void join_activation(const spops_model *m, int32_t i)
{
    spops_model_step *s = spops_model_step_at(m, i), *before = find_source(m, i, s->x);
    if (before == NULL || s->activation != SPOPS_ACTIVATION_RELU) return;
    before->activation = s->activation;
    before->out = s->out;
    before->name = s->name;
    before->num_nodes += s->num_nodes;
    s->op = NULL;
}

// A convolution into the sum after it, whose place it takes: all that the sum reads is there then.
static void join_sum(const spops_model *m, int32_t i)
{
    spops_model_step *s = spops_model_step_at(m, i);
    spops_model_step *a = find_source(m, i, s->x), *b = find_source(m, i, s->residual);
    if (a != NULL && (a->kind != SPOPS_MODEL_CONV || a->residual >= 0)) a = NULL;
    if (b != NULL && (b->kind != SPOPS_MODEL_CONV || b->residual >= 0)) b = NULL;
    spops_model_step *conv = a == NULL ? b : b == NULL ? a : a > b ? a : b; // the later one
    if (conv == NULL || s->x == s->residual) return;
    spops_model_step joined = *conv;
    joined.residual = conv == a ? s->residual : s->x;
    joined.activation = s->activation;
    joined.out = s->out;
    joined.name = s->name;
    joined.num_nodes += s->num_nodes;
    *s = joined;
    conv->op = NULL;
}

// The set whose axes are permuted as the file permutes the axes of a dense grid.
static spops_status find_permuted(spops_model *m, int32_t from, const int32_t *order, int32_t node,
                                  int32_t *index)
{
    const spops_model_set source = *spops_model_set_at(m, from);
    spops_model_set *set;

    for (int32_t i = from + 1; i < m->sets.num; ++i) {
        set = spops_model_set_at(m, i);
        *index = i;
        if (set->is_permuted && set->from == from &&
            memcmp(set->order, order, (size_t)m->dims * sizeof *order) == 0)
            return SPOPS_STATUS_OK;
    }
    set = spops_model_add(m, &m->sets, sizeof *set);
    if (set == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    *set = source;
    set->from = from;
    set->is_permuted = true;
    set->node = node;
    for (int32_t a = 0; a < m->dims; ++a) {
        set->order[a] = order[a];
        set->size[a] = source.size[order[a]];
    }
    *index = m->sets.num - 1;
    return SPOPS_STATUS_OK;
}

// A transposition of axes into the dense grid before it, which is then written by permuted rows: no pass over
// the grid.
static spops_status join_transpose(spops_model *m, int32_t i)
{
    spops_model_step *s = spops_model_step_at(m, i), *dense = NULL;
    int32_t order[SPOPS_MAX_DIMS] = {0}, set;

    for (int32_t k = 0; k < i; ++k)
        if (spops_model_step_at(m, k)->op != NULL && spops_model_step_at(m, k)->out == s->x)
            dense = spops_model_step_at(m, k);
    if (dense == NULL || dense->kind != SPOPS_MODEL_DENSE || !is_used_once(m, s->x) ||
        s->order[0] != 0 || s->order[1] != 1)
        return SPOPS_STATUS_OK;
    for (int32_t a = 0; a < m->dims; ++a)
        order[a] = s->order[2 + a] - 2;
    SPOPS_TRY(find_permuted(m, spops_model_value_at(m, dense->x)->set, order, dense->node, &set));
    dense->permuted_set = set;
    dense->out = s->out;
    dense->name = s->name;
    dense->num_nodes += s->num_nodes;
    s->op = NULL;
    return SPOPS_STATUS_OK;
}

static spops_status join_steps(spops_model *m)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < m->steps.num; ++i)
        if (spops_model_step_at(m, i)->kind == SPOPS_MODEL_PERMUTE) SPOPS_TRY(join_transpose(m, i));
    for (int32_t i = 0; i < m->steps.num; ++i)
        if (spops_model_step_at(m, i)->kind == SPOPS_MODEL_ACTIVATION) join_activation(m, i);
    for (int32_t i = 0; i < m->steps.num; ++i)
        if (spops_model_step_at(m, i)->op != NULL &&
            spops_model_step_at(m, i)->kind == SPOPS_MODEL_ADD)
            join_sum(m, i);
    for (int32_t i = 0; i < m->steps.num; ++i) {
        const spops_model_step s = *spops_model_step_at(m, i);
        if (s.op != NULL) *spops_model_step_at(m, kept++) = s;
        if (s.op != NULL && s.kind == SPOPS_MODEL_DENSE)
            spops_model_set_at(m, spops_model_dense_set(m, &s))->is_dense = true;
    }
    m->steps.num = kept;
    return SPOPS_STATUS_OK;
}

// ---- The graph ------------------------------------------------------------------------------------

// Axes and cells of the input are in the first convolution; batches in the first ScatterDense.
static spops_status read_grid(spops_model *m, int32_t *size)
{
    const spops_onnx *onnx = m->onnx;
    int64_t batches = 0;
    int32_t first = -1;

    for (int32_t i = onnx->num_nodes - 1; i >= 0; --i) {
        const spops_onnx_node *n = &onnx->nodes[i];
        if (spops_span_is(n->op, "SparseConvolution")) first = i;
        if (!spops_span_is(n->op, "ScatterDense")) continue;
        const spops_onnx_attribute *shape = spops_onnx_find_attribute(n, "output_shape");
        if (shape != NULL && shape->num_ints > 0) batches = shape->ints[0];
    }
    if (first < 0)
        return spops_model_refuse(m, SPOPS_STATUS_NOT_SUPPORTED, -1,
                                  "no node is a SparseConvolution or of the domain spops");
    const node_reader r = {m, &onnx->nodes[first], first};
    const spops_onnx_attribute *shape = spops_onnx_find_attribute(r.node, "input_spatial_shape");
    if (shape == NULL || shape->num_ints < 1 || shape->num_ints > SPOPS_MAX_DIMS)
        return REFUSE(&r, "input_spatial_shape has %" PRId32 " integers, expected 1 to %d",
                      shape == NULL ? 0 : shape->num_ints, SPOPS_MAX_DIMS);
    m->dims = shape->num_ints;
    SPOPS_TRY(get_ints(&r, "input_spatial_shape", 0, 1, MOST_CELLS, size));
    m->num_batches = m->options.num_batches;
    if (m->num_batches == 0)
        m->num_batches = batches >= 1 && batches <= 65536 ? (int32_t)batches : 1;
    return SPOPS_STATUS_OK;
}

static spops_status read_input(spops_model *m, const int32_t *size)
{
    const spops_onnx *onnx = m->onnx;
    const spops_onnx_tensor *input = NULL;
    spops_model_set *set;
    int32_t index = -1;

    for (int32_t i = 0; i < onnx->num_inputs; ++i) {
        const spops_onnx_tensor *t = &onnx->inputs[i];
        if (spops_onnx_find_tensor(onnx->initializers, onnx->num_initializers, t->name) != NULL)
            continue; // older files name them among inputs too
        if (input != NULL)
            return spops_model_refuse(m, SPOPS_STATUS_NOT_SUPPORTED, -1, "a second input; byte %zu",
                                      t->offset);
        input = t;
    }
    if (input == NULL)
        return spops_model_refuse(m, SPOPS_STATUS_CORRUPT_DATA, -1, "the graph has no input");
    if (input->num_dims != 2 || input->dims[1] < 1 || input->dims[1] > MOST_COLS)
        return spops_model_refuse(m, SPOPS_STATUS_CORRUPT_DATA, -1,
                                  "input '%.*s' has no shape of rows and columns; byte %zu",
                                  (int)spops_span_bytes(input->name), (const char *)input->name.at,
                                  input->offset);
    set = spops_model_add(m, &m->sets, sizeof *set);
    if (set == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    set->from = set->node = -1;
    memcpy(set->size, size, sizeof set->size);
    spops_model_value v = rows_of(m, 0, input->dims[1]);
    v.row_stride = (v.cols + COLS_MULTIPLE - 1) / COLS_MULTIPLE * COLS_MULTIPLE;
    v.is_input = v.is_pinned = true;
    SPOPS_TRY(add_value(m, -1, input->name, &v, &index));
    int32_t *listed = spops_model_add(m, &m->inputs, sizeof *listed);
    if (listed == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    *listed = index;
    return SPOPS_STATUS_OK;
}

static spops_status read_outputs(spops_model *m)
{
    for (int32_t i = 0; i < m->onnx->num_outputs; ++i) {
        const spops_onnx_tensor *t = &m->onnx->outputs[i];
        const int32_t v = spops_model_find_value(m, t->name);
        if (v < 0 || spops_model_value_at(m, v)->is_input)
            return spops_model_refuse(
                m, SPOPS_STATUS_CORRUPT_DATA, -1, "output '%.*s' is that of no node; byte %zu",
                (int)spops_span_bytes(t->name), (const char *)t->name.at, t->offset);
        spops_model_value_at(m, v)->is_output = true;
        int32_t *listed = spops_model_add(m, &m->outputs, sizeof *listed);
        if (listed == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
        *listed = v;
    }
    if (m->outputs.num == 0)
        return spops_model_refuse(m, SPOPS_STATUS_CORRUPT_DATA, -1, "the graph has no output");
    return SPOPS_STATUS_OK;
}

// What comes before the nodes.
static spops_status add_first_steps(spops_model *m)
{
    static const struct {
        spops_model_step_kind kind;
        const char *op;
    } first[] = {
        {SPOPS_MODEL_INPUT, "input"}, {SPOPS_MODEL_SETS, "sets"}, {SPOPS_MODEL_PLANS, "plans"}};
    for (int i = 0; i < 3; ++i) {
        spops_model_step *s = spops_model_add(m, &m->steps, sizeof *s);
        if (s == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
        s->kind = first[i].kind;
        s->op = first[i].op;
        if (i == 0 && m->has_voxels) {
            s->kind = SPOPS_MODEL_VOXELS;
            s->op = "voxels";
        }
        s->name = spops_model_text(m, (spops_span){m->onnx->bytes.at, m->onnx->bytes.at});
        if (s->name == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
        s->node = s->x = s->residual = s->map = -1;
        s->out = i == 0 ? 0 : -1;
        s->rulebook = s->name;
    }
    return SPOPS_STATUS_OK;
}

spops_status spops_model_read_dialect(spops_model *m)
{
    int32_t size[SPOPS_MAX_DIMS] = {0};

    SPOPS_TRY(read_grid(m, size));
    SPOPS_TRY(read_input(m, size));
    SPOPS_TRY(add_first_steps(m));
    for (int32_t i = 0; i < m->onnx->num_nodes; ++i)
        SPOPS_TRY(read_node(m, i));
    SPOPS_TRY(read_outputs(m));
    return join_steps(m);
}
