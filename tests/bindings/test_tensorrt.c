// SPDX-License-Identifier: Apache-2.0
// Every operator of the list as a plugin of TensorRT: creators, dtypes, shapes, fields that are written
// and read, and enqueue, direct and in a captured graph, with the bits of the boxed call. The plugins and
// their driver are loaded; where they were not built (no headers of TensorRT) the tests are skipped.
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bindings/common/node.h"
#include "core/plan.h"
#include "support/device.h"
#include "tests/bindings/drive_tensorrt.h"
#include "tests/support/drawn_block.h"
#include "tests/support/params.h"

enum { TRIES = 3000, DRAWS = 300, POISON = 0x11, MAX_TENSORS = 2 * SPOPS_ROW_MAX_ARGS };

// The driver's functions.
static struct {
    __typeof__(drive_open) *open;
    __typeof__(drive_creator) *creator;
    __typeof__(drive_create) *create;
    __typeof__(drive_destroy) *destroy;
    __typeof__(drive_num_outputs) *num_outputs;
    __typeof__(drive_aliased) *aliased;
    __typeof__(drive_shapes) *shapes;
    __typeof__(drive_supports) *supports;
    __typeof__(drive_workspace) *workspace;
    __typeof__(drive_change) *change;
    __typeof__(drive_enqueue) *enqueue;
    __typeof__(drive_error) *error;
    __typeof__(drive_function) *function;
    int32_t num_creators;
} drive;

static const char *path_of(const char *variable, const char *built)
{
    const char *given = getenv(variable);
    return given != NULL ? given : built;
}

static void find(void *library, const char *name, void *to)
{
    void *address = dlsym(library, name);
    cr_assert(address != NULL, "%s", name);
    memcpy(to, &address, sizeof address);
}

// False where there is no driver.
static bool load(void)
{
    const char *path =
        path_of("SPOPS_TENSORRT_DRIVE", SPOPS_BINARY_DIR "/libspops_tensorrt_drive.so");
    const char *plugins =
        path_of("SPOPS_TENSORRT_PLUGINS", SPOPS_BINARY_DIR "/libspops_tensorrt.so");
    void *library = dlopen(path, RTLD_NOW);

    if (library == NULL) {
        cr_assert(getenv("SPOPS_REQUIRE_TENSORRT") == NULL, "%s", dlerror());
        printf("skipped: tensorrt: %s\n", dlerror());
        return false;
    }
    find(library, "drive_open", &drive.open);
    find(library, "drive_creator", &drive.creator);
    find(library, "drive_create", &drive.create);
    find(library, "drive_destroy", &drive.destroy);
    find(library, "drive_num_outputs", &drive.num_outputs);
    find(library, "drive_aliased", &drive.aliased);
    find(library, "drive_shapes", &drive.shapes);
    find(library, "drive_supports", &drive.supports);
    find(library, "drive_workspace", &drive.workspace);
    find(library, "drive_change", &drive.change);
    find(library, "drive_enqueue", &drive.enqueue);
    find(library, "drive_error", &drive.error);
    find(library, "drive_function", &drive.function);
    drive.num_creators = drive.open(plugins, getenv("SPOPS_TENSORRT_RUNTIME"));
    cr_assert(drive.num_creators > 0, "%s: %s", plugins, drive.error());
    return true;
}

// ---- Creators -----------------------------------------------------------------------------------

static bool has_word(const char *words, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = strstr(words, word); at != NULL; at = strstr(at + 1, word))
        if ((at == words || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0')) return true;
    return false;
}

Test(tensorrt, creators)
{
    int32_t num, num_creators = 0;
    const spops_operator *const *ops = spops_operators(&num);

    if (!load()) return;
    for (int32_t i = 0; i < num; ++i) { // operators whose handles an engine cannot hold have none
        const char *fields = "", *name = NULL;
        if (ops[i]->needs_handles != 0) continue;
        ++num_creators;
        for (int32_t k = 0;
             k < drive.num_creators && (name == NULL || strcmp(name, ops[i]->name) != 0); ++k)
            name = drive.creator(k, &fields);
        cr_assert(name != NULL && strcmp(name, ops[i]->name) == 0, "%s has no creator",
                  ops[i]->name);
        const int32_t num_args = ops[i]->num_inputs + ops[i]->num_outputs;
        for (int32_t a = 0; a < num_args + ops[i]->num_attributes; ++a) {
            const spops_operator_argument *arg = ops[i]->arguments[a];
            char word[64];
            if (arg->kind == SPOPS_ARGUMENT_TENSOR) continue;
            snprintf(word, sizeof word, "%s%s", arg->name,
                     arg->kind == SPOPS_ARGUMENT_PLAN ? "_ints" : "");
            cr_expect(has_word(fields, word), "%s has no field %s", name, word);
        }
    }
    cr_assert_eq(drive.num_creators, num_creators);
}

Test(tensorrt, refusals)
{
    static const int64_t kind[8] = {SPOPS_PLAN_SEGMENTS, 1, 3, 6, 6, 6, 0, 0}, two[2] = {1, 2};
    static const double real = 0.5;
    const struct {
        const char *name;
        drive_field field;
        const char *message;
    } refused[] = {
        {"segreduce",
         {"reduce", SPOPS_NODE_DATA_TEXT, 4, "most"},
         "segreduce: reduce is \"most\", expected sum mean min max prod ..."},
        {"segreduce",
         {"reduce", SPOPS_NODE_DATA_I64, 2, two},
         "segreduce: reduce is a list, expected one number"},
        {"segreduce",
         {"reduce", SPOPS_NODE_DATA_F64, 1, &real},
         "segreduce: reduce is floating-point numbers, expected integers"},
        {"segreduce",
         {"present", SPOPS_NODE_DATA_TEXT, 3, "w x"},
         "segreduce: present is \"x\", expected names of arguments that it may have"},
        {"segreduce",
         {"alias", SPOPS_NODE_DATA_TEXT, 3, "out"},
         "segreduce: alias is \"out\", expected names of arguments that it may have"},
        {"segreduce",
         {"output_dtype", SPOPS_NODE_DATA_TEXT, 3, "f16"},
         "segreduce: output_dtype is given, expected none, as inputs say the dtypes of outputs"},
        {"convert",
         {"output_dtype", SPOPS_NODE_DATA_TEXT, 3, "f12"},
         "convert: output_dtype is another text, expected the name of a dtype"},
        {"segreduce",
         {"weights", SPOPS_NODE_DATA_I64, 1, two},
         "segreduce: weights is no field of this operator"},
        {"segreduce",
         {"present", SPOPS_NODE_DATA_I64, 2, two},
         "segreduce: present is numbers, expected text"},
    };
    drive_tensor keys = {SPOPS_NODE_I32, 1, {6}, NULL}, out[2];
    const drive_field short_ints = {"segments_ints", SPOPS_NODE_DATA_I64, 7, kind};

    if (!load()) return;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; ++i) {
        void *p = drive.create(refused[i].name, &refused[i].field, 1);
        cr_expect(p == NULL, "%zu", i);
        cr_expect_str_eq(drive.error(), refused[i].message, "%zu", i);
    }
    void *p = drive.create("segments", &short_ints, 1);
    cr_assert(p != NULL);
    cr_expect_eq(drive.shapes(p, &keys, 1, out, 1, 0), -1);
    cr_expect(strstr(drive.error(), "segments: segments_ints: plan_measure: num_ints is 7") !=
              NULL);
    cr_expect_eq(drive.shapes(p, &keys, 0, out, 1, 0), -1);
    cr_expect_str_eq(drive.error(), "segments: 0 inputs and 1 outputs, expected 1 and 1");
    drive.destroy(p);
    p = drive.create("segments", NULL, 0);
    cr_assert(p != NULL);
    cr_expect_eq(drive.shapes(p, &keys, 1, out, 1, 0), -1);
    cr_expect_str_eq(drive.error(), "segments: segments_ints is not given, expected the "
                                    "description of the plan that is made");
    drive.destroy(p);
}

// ---- Memory of inputs for outputs -----------------------------------------------------------------

static spops_backend_kind backend_of_plugins(void)
{
    int (*has_cuda)(void) = NULL;
    void *address = drive.function("spops_has_cuda");
    memcpy(&has_cuda, &address, sizeof address);
    cr_assert(has_cuda != NULL);
    return has_cuda() != 0 ? SPOPS_BACKEND_CUDA : SPOPS_BACKEND_CPU;
}

static void *upload(test_device *d, const void *data, size_t bytes)
{
    void *there = NULL;
    cr_assert(device_alloc(d->backend, bytes, &there));
    cr_assert(device_upload(d->backend, there, data, bytes));
    return there;
}

// ReLU in the memory of its input, whose rows behind those that count stay.
static void check_in_place(test_device *d)
{
    static const float x[6] = {-1, 2, 3, -4, -5, 6}, expected[6] = {0, 2, 3, 0, -5, 6};
    static const int32_t count = 2;
    const drive_field fields[] = {{"alias", SPOPS_NODE_DATA_TEXT, 3, "out"},
                                  {"present", SPOPS_NODE_DATA_TEXT, 8, "num_rows"}};
    float found[6];
    drive_tensor in[2] = {{SPOPS_NODE_F32, 2, {3, 2}, NULL}, {SPOPS_NODE_I32, 1, {1}, NULL}}, out;
    void *apart = drive.create("activation", fields + 1, 1);
    void *p = drive.create("activation", fields, 2);

    cr_assert(p != NULL && apart != NULL, "%s", drive.error());
    cr_expect_eq(drive.aliased(apart, 0), -1);
    cr_expect_eq(drive.aliased(p, 0), 0);
    cr_expect_eq(drive.aliased(p, 1), -1);
    in[0].data = upload(d, x, sizeof x);
    in[1].data = upload(d, &count, sizeof count);
    out = in[0];
    cr_assert_eq(drive.change(p, in, 2, &out, 1), 0, "%s", drive.error());
    cr_assert_eq(drive.enqueue(p, in, 2, &out, 1, NULL, NULL), 0, "%s", drive.error());
    cr_assert(device_stream_wait(d->backend, NULL));
    cr_assert(device_download(d->backend, found, out.data, sizeof found));
    cr_expect(memcmp(found, expected, sizeof found) == 0);
    device_free(d->backend, in[0].data);
    device_free(d->backend, in[1].data);
    drive.destroy(p);
    drive.destroy(apart);
}

// Rows that a call leaves alone: what `begin` gives, in the same memory or copied; else zeros.
static void check_begin(test_device *d)
{
    static const int64_t ints[8] = {SPOPS_PLAN_SEGMENTS, 1, 2, 3, 3, 3, 0, 0};
    static const int32_t keys[3] = {1, 0, 1}, count = 2;
    static const float x[2] = {5, 7}, began[3] = {1, 2, 3};
    static const float expected[3][3] = {{7, 5, 0}, {7, 5, 3}, {7, 5, 3}};
    const drive_field plan[] = {{"segments_ints", SPOPS_NODE_DATA_I64, 8, ints},
                                {"present", SPOPS_NODE_DATA_TEXT, 9, "num_terms"}};
    const drive_field fields[] = {{"rows_ints", SPOPS_NODE_DATA_I64, 8, ints},
                                  {"begin", SPOPS_NODE_DATA_TEXT, 3, "out"},
                                  {"alias", SPOPS_NODE_DATA_TEXT, 3, "out"}};
    drive_tensor in[3] = {{SPOPS_NODE_I32, 1, {3}, NULL}, {SPOPS_NODE_I32, 1, {1}, NULL}}, block,
                 out;
    void *p = drive.create("segments", plan, 2);
    void *of_keys = upload(d, keys, sizeof keys), *of_count = upload(d, &count, sizeof count);

    cr_assert(p != NULL, "%s", drive.error());
    in[0].data = of_keys;
    in[1].data = of_count;
    cr_assert_eq(drive.shapes(p, in, 2, &block, 1, 0), 0, "%s", drive.error());
    cr_assert(device_alloc(d->backend, (size_t)block.dims[0] * 4, &block.data));
    cr_assert_eq(drive.enqueue(p, in, 2, &block, 1, NULL, NULL), 0, "%s", drive.error());
    drive.destroy(p);
    in[0] = (drive_tensor){SPOPS_NODE_F32, 2, {2, 1}, upload(d, x, sizeof x)};
    in[1] = block;
    for (int how = 0; how < 3; ++how) { // zeros, copied, in the same memory
        const int32_t num = how == 0 ? 2 : 3;
        float found[3];
        p = drive.create("gather", fields, how + 1);
        cr_assert(p != NULL, "%s", drive.error());
        cr_expect_eq(drive.aliased(p, 0), how == 2 ? 2 : -1);
        in[2] = (drive_tensor){SPOPS_NODE_F32, 2, {3, 1}, upload(d, began, sizeof began)};
        out = in[2];
        if (how < 2) cr_assert(device_alloc(d->backend, sizeof found, &out.data));
        cr_assert_eq(drive.change(p, in, num, &out, 1), 0, "%s", drive.error());
        cr_assert_eq(drive.enqueue(p, in, num, &out, 1, NULL, NULL), 0, "%s", drive.error());
        cr_assert(device_stream_wait(d->backend, NULL));
        cr_assert(device_download(d->backend, found, out.data, sizeof found));
        cr_expect(memcmp(found, expected[how], sizeof found) == 0, "%d: %g %g %g", how,
                  (double)found[0], (double)found[1], (double)found[2]);
        if (how < 2) device_free(d->backend, out.data);
        device_free(d->backend, in[2].data);
        drive.destroy(p);
    }
    device_free(d->backend, in[0].data);
    device_free(d->backend, block.data);
    device_free(d->backend, of_count);
    device_free(d->backend, of_keys);
}

Test(tensorrt, aliases)
{
    test_device d;
    if (!load() || !test_open(&d, backend_of_plugins(), LAUNCH_DEFAULT)) return;
    check_in_place(&d);
    check_begin(&d);
    test_close(&d);
}

// ---- A drawn call as a plugin ---------------------------------------------------------------------

typedef struct trial {
    test_device d;
    drawn_call c;
    drawn_blocks blocks;
    spops_value values[DRAWN_MAX_VALUES]; // with blocks for plans, and tensors without gaps
    spops_tensor tensors[SPOPS_ROW_MAX_ARGS];
    drive_tensor inputs[MAX_TENSORS], outputs[SPOPS_ROW_MAX_ARGS];
    unsigned char *memory[MAX_TENSORS + SPOPS_ROW_MAX_ARGS];
    drive_field fields[SPOPS_NODE_MAX_FIELDS];
    int64_t numbers[SPOPS_NODE_MAX_FIELDS];
    char present[256], begin[256], names[SPOPS_ROW_MAX_ARGS][64];
    int32_t num_inputs, num_outputs, num_memory, num_fields;
    int64_t num_workspaces, num_captured;
    // Poisoned before each run: blocks of plans may hold what scratch held, where nothing counts.
    void *workspace;
    size_t workspace_bytes;
    void *stream; // of captures
} trial;

static spops_node_dtype dtype_of(const spops_tensor *t)
{
    static const struct {
        uint8_t code, bits, lanes, dtype;
    } dtypes[] = {{2, 32, 1, SPOPS_NODE_F32},  {2, 16, 1, SPOPS_NODE_F16},
                  {4, 16, 1, SPOPS_NODE_BF16}, {10, 8, 1, SPOPS_NODE_F8E4M3},
                  {0, 8, 1, SPOPS_NODE_I8},    {0, 32, 1, SPOPS_NODE_I32},
                  {0, 64, 1, SPOPS_NODE_I64},  {1, 8, 1, SPOPS_NODE_U8}};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; ++i)
        if (dtypes[i].code == t->dtype_code && dtypes[i].bits == t->dtype_bits &&
            dtypes[i].lanes == t->dtype_lanes)
            return (spops_node_dtype)dtypes[i].dtype;
    return SPOPS_NODE_NONE; // TensorRT has none, or the driver
}

static size_t elements(const drive_tensor *t)
{
    size_t n = 1;
    for (int32_t i = 0; i < t->num_dims; ++i)
        n *= (size_t)t->dims[i];
    return n;
}

static size_t bytes_of(const drive_tensor *t)
{
    return spops_node_dtype_bytes((spops_node_dtype)t->dtype, (int64_t)elements(t));
}

static unsigned char *take(trial *t, size_t bytes)
{
    unsigned char **at = &t->memory[t->num_memory++];
    cr_assert(device_alloc(t->d.backend, bytes + 256, (void **)at));
    cr_assert(device_fill(t->d.backend, *at, POISON, bytes + 256));
    return *at;
}

// A tensor without gaps, with what is drawn in it.
static void pack(trial *t, const spops_tensor *from, bool with_contents, drive_tensor *to)
{
    const size_t element = (size_t)from->dtype_bits / 8;
    const int64_t rows = from->num_dims > 0 ? from->shape[0] : 1;
    const int64_t cols = from->num_dims > 1 ? from->shape[1] : 1;
    const int64_t stride = from->strides == NULL ? cols : from->strides[0];

    to->dtype = dtype_of(from);
    to->num_dims = from->num_dims;
    for (int32_t i = 0; i < from->num_dims; ++i)
        to->dims[i] = from->shape[i];
    to->data = take(t, bytes_of(to));
    unsigned char *row = malloc((size_t)cols * element + 1);
    for (int64_t r = 0; with_contents && r < rows && cols > 0; ++r) {
        const unsigned char *data = (const unsigned char *)from->data + from->byte_offset;
        cr_assert(device_download(t->d.backend, row, data + (size_t)(r * stride) * element,
                                  (size_t)cols * element));
        cr_assert(device_upload(t->d.backend,
                                (unsigned char *)to->data + (size_t)(r * cols) * element, row,
                                (size_t)cols * element));
    }
    free(row);
}

static void add_field(trial *t, const char *name, int32_t type, const void *data, int64_t length)
{
    t->fields[t->num_fields++] = (drive_field){name, type, (int32_t)length, data};
}

static void add_word(char *words, const char *word)
{
    if (words[0] != '\0') strcat(words, " ");
    strcat(words, word);
}

// Descriptions, attributes, and which arguments are there.
static void add_fields(trial *t)
{
    const spops_row *row = t->c.row;
    int at = row->num_args;

    for (int i = 0; i < row->num_args; ++i) {
        if (!row->args[i].is_plan) continue;
        const spops_value *v = &t->values[at++];
        if (v->type != SPOPS_VALUE_TENSOR) continue;
        const spops_tensor *ints = v->v.p;
        snprintf(t->names[i], sizeof t->names[i], "%s_ints", row->args[i].name);
        add_field(t, t->names[i], SPOPS_NODE_DATA_I64, ints->data, ints->shape[0]);
    }
    for (int i = 0; i < row->num_attributes; ++i) {
        const spops_value *v = &t->values[at++];
        const char *name = row->attributes[i].row->name;
        if (v->type == SPOPS_VALUE_TENSOR) {
            const spops_tensor *list = v->v.p;
            add_field(t, name, list->dtype_code == 2 ? SPOPS_NODE_DATA_F64 : SPOPS_NODE_DATA_I64,
                      list->data, list->shape[0]);
        } else if (v->type == SPOPS_VALUE_STRING) {
            add_field(t, name, SPOPS_NODE_DATA_TEXT, v->v.s, (int64_t)strlen(v->v.s));
        } else if (v->type != SPOPS_VALUE_NONE) {
            memcpy(&t->numbers[i], &v->v, sizeof t->numbers[i]);
            add_field(t, name,
                      v->type == SPOPS_VALUE_FLOAT ? SPOPS_NODE_DATA_F64 : SPOPS_NODE_DATA_I64,
                      &t->numbers[i], 1);
        }
    }
    add_field(t, "present", SPOPS_NODE_DATA_TEXT, t->present, (int64_t)strlen(t->present));
    add_field(t, "begin", SPOPS_NODE_DATA_TEXT, t->begin, (int64_t)strlen(t->begin));
}

// False where TensorRT has not all of its dtypes.
static bool add_tensors(trial *t)
{
    const spops_row *row = t->c.row;
    const spops_node_row *of = spops_node_row_find(t->c.op->name);

    t->present[0] = t->begin[0] = '\0';
    for (int i = 0; i < row->num_args; ++i) {
        const bool is_output = i >= row->num_inputs;
        spops_value *v = &t->values[i];
        if (v->type != SPOPS_VALUE_TENSOR) continue;
        if (row->args[i].is_optional) add_word(t->present, row->args[i].name);
        const spops_tensor *from = v->v.p;
        if (dtype_of(from) == SPOPS_NODE_NONE) return false;
        drive_tensor *to = is_output ? &t->outputs[t->num_outputs++] : &t->inputs[t->num_inputs++];
        if (row->args[i].is_plan && !is_output) { // as it is
            *to = (drive_tensor){SPOPS_NODE_I32, 1, {from->shape[0]}, from->data};
            continue;
        }
        pack(t, from, !is_output, to);
        if (is_output && row->args[i].is_optional && to->dtype != t->inputs[0].dtype &&
            strchr(t->c.op->arguments[i]->type, '|') != NULL)
            return false; // where a dtype may be chosen, an engine takes that of the inputs
        t->tensors[i] = *from;
        t->tensors[i].data = to->data;
        t->tensors[i].byte_offset = 0;
        t->tensors[i].strides = NULL;
        v->v.p = &t->tensors[i];
        if (is_output && !row->args[i].is_plan && (of->free_outputs >> i & 1) != 0)
            add_field(t, "output_dtype", SPOPS_NODE_DATA_TEXT,
                      spops_node_dtype_name((spops_node_dtype)to->dtype),
                      (int64_t)strlen(spops_node_dtype_name((spops_node_dtype)to->dtype)));
    }
    for (int k = 0; k < of->num_begins; ++k) {
        const int arg = of->begins[k];
        if (t->values[arg].type != SPOPS_VALUE_TENSOR) continue;
        add_word(t->begin, row->args[arg].name);
        pack(t, &t->tensors[arg], false, &t->inputs[t->num_inputs++]);
    }
    return true;
}

static void poison(trial *t)
{
    for (int32_t i = 0; i < t->num_outputs; ++i)
        cr_assert(device_fill(t->d.backend, t->outputs[i].data, POISON, bytes_of(&t->outputs[i])));
    if (t->workspace_bytes > 0)
        cr_assert(device_fill(t->d.backend, t->workspace, POISON, t->workspace_bytes));
}

static void wait_for(trial *t, void *stream)
{
    cr_assert(device_stream_wait(t->d.backend, stream));
    test_wait(&t->d);
}

static int compare_words(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(int32_t));
}

// All bytes of the outputs, to be freed. Of a plan on CUDA in order, as threads put entries into hash
// tables in any.
static unsigned char *outputs(trial *t, size_t *bytes)
{
    unsigned char *all;
    size_t at = 0;
    *bytes = 0;
    for (int32_t i = 0; i < t->num_outputs; ++i)
        *bytes += bytes_of(&t->outputs[i]);
    all = malloc(*bytes + 1);
    cr_assert(all != NULL);
    for (int32_t i = 0; i < t->num_outputs; ++i) {
        const size_t n = bytes_of(&t->outputs[i]);
        if (n > 0) cr_assert(device_download(t->d.backend, all + at, t->outputs[i].data, n));
        at += n;
    }
    if (t->d.backend == SPOPS_BACKEND_CUDA && t->c.row->args[t->c.row->num_args - 1].is_plan)
        qsort(all, at / sizeof(int32_t), sizeof(int32_t), compare_words);
    return all;
}

static void expect_same(trial *t, const unsigned char *expected, size_t bytes, const char *what)
{
    size_t n, at = 0;
    unsigned char *found = outputs(t, &n);
    while (at < bytes && found[at] == expected[at])
        ++at;
    cr_expect(n == bytes && at == bytes, "%s, %s: byte %zu of %zu differs", t->c.op->name, what, at,
              bytes);
    free(found);
}

// Dtypes, shapes and formats, as a builder asks for them.
static void check_building(trial *t, void *p)
{
    const char *name = t->c.op->name;
    cr_assert_eq(drive.num_outputs(p), t->num_outputs, "%s", name);
    for (int symbolic = 0; symbolic < 2; ++symbolic) {
        drive_tensor made[SPOPS_ROW_MAX_ARGS] = {{0}};
        cr_assert_eq(drive.shapes(p, t->inputs, t->num_inputs, made, t->num_outputs, symbolic), 0,
                     "%s: %s", name, drive.error());
        for (int32_t i = 0; i < t->num_outputs; ++i) {
            cr_expect_eq(made[i].dtype, t->outputs[i].dtype, "%s: output %d", name, (int)i);
            cr_expect_eq(made[i].num_dims, t->outputs[i].num_dims, "%s: output %d", name, (int)i);
            cr_expect(memcmp(made[i].dims, t->outputs[i].dims,
                             (size_t)made[i].num_dims * sizeof(int64_t)) == 0,
                      "%s: output %d", name, (int)i);
        }
    }
    cr_expect_eq(drive.supports(p, t->inputs, t->num_inputs, t->outputs, t->num_outputs, 0), 1,
                 "%s", name);
    cr_expect_eq(drive.supports(p, t->inputs, t->num_inputs, t->outputs, t->num_outputs, 1), 0,
                 "%s takes another format", name);
    for (int32_t i = 0; i < t->num_inputs; ++i) { // which no operator has
        const int32_t dtype = t->inputs[i].dtype;
        t->inputs[i].dtype = -1;
        cr_expect_eq(drive.supports(p, t->inputs, t->num_inputs, t->outputs, t->num_outputs, 0), 0,
                     "%s takes input %d of another dtype", name, (int)i);
        t->inputs[i].dtype = dtype;
    }
}

// ---- Hooks: what is asked for while calls are counted ----------------------------------------------

// CUPTI calls back at every call of the driver's; the library's allocator is counted everywhere.
static struct {
    bool is_counting, has_driver;
    int64_t calls, driver_calls, requests, allocations, waits;
    char first[80]; // of allocations and waits
} counted;

static bool begins(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

static bool is_allocation(const char *name)
{
    static const char *const names[] = {"cuMemAlloc",        "cuMemHostAlloc", "cuMemCreate",
                                        "cuMemHostRegister", "cuArrayCreate",  "cuMemPoolCreate",
                                        "cuMemFree",         "cuModuleLoad",   "cuLibraryLoad",
                                        "cuStreamCreate",    "cuEventCreate",  "cuMemMap"};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
        if (begins(name, names[i])) return true;
    return false;
}

static bool is_wait(const char *name)
{
    return strstr(name, "Synchronize") != NULL ||
           ((begins(name, "cuMemcpy") || begins(name, "cuMemset")) &&
            strstr(name, "Async") == NULL);
}

// As CUPTI declares it, of a callback's data what comes first.
static void on_driver_call(void *user, int domain, uint32_t id, const void *data)
{
    enum { ENTERS = 0 };
    const struct {
        int site;
        const char *function;
    } *call = data;
    (void)user, (void)domain, (void)id;
    if (!counted.is_counting || call->site != ENTERS || call->function == NULL) return;
    ++counted.driver_calls;
    const bool allocates = is_allocation(call->function), waits = is_wait(call->function);
    counted.allocations += allocates;
    counted.waits += waits;
    if ((allocates || waits) && counted.first[0] == '\0')
        snprintf(counted.first, sizeof counted.first, "%s", call->function);
}

// SPOPS_CUPTI names the library where the loader does not find it; without it the driver is not counted.
static void hook_driver(void)
{
    enum { DRIVER_API = 1 };
    typedef void callback(void *user, int domain, uint32_t id, const void *data);
    static void *subscriber;
    int (*subscribe)(void **, callback *, void *) = NULL;
    int (*enable)(uint32_t, void *, int) = NULL;
    const char *path = path_of("SPOPS_CUPTI", "libcupti.so");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (library == NULL) {
        cr_assert(getenv("SPOPS_CUPTI") == NULL, "%s", dlerror());
        printf("tensorrt: calls of the driver are not counted: %s\n", dlerror());
        return;
    }
    find(library, "cuptiSubscribe", &subscribe);
    find(library, "cuptiEnableDomain", &enable);
    cr_assert_eq(subscribe(&subscriber, on_driver_call, NULL), 0);
    cr_assert_eq(enable(1, subscriber, DRIVER_API), 0);
    counted.has_driver = true;
}

static void *allocate(void *user, size_t bytes, void *stream)
{
    void *memory = NULL;
    (void)user, (void)stream;
    counted.requests += counted.is_counting;
    return device_alloc(SPOPS_BACKEND_CUDA, bytes, &memory) ? memory : NULL;
}

static void release(void *user, void *memory, size_t bytes, void *stream)
{
    (void)user, (void)bytes, (void)stream;
    device_free(SPOPS_BACKEND_CUDA, memory);
}

// Enqueues, counted.
static int32_t enqueue_counted(trial *t, void *p, void *stream)
{
    counted.is_counting = true;
    const int32_t result = drive.enqueue(p, t->inputs, t->num_inputs, t->outputs, t->num_outputs,
                                         t->workspace, stream);
    counted.is_counting = false;
    ++counted.calls;
    return result;
}

// Of the enqueues of an operator.
static void expect_none_counted(const char *name)
{
    cr_expect_eq(counted.requests, 0, "%s asks for memory in enqueue", name);
    cr_expect(counted.allocations == 0 && counted.waits == 0,
              "%s: %d allocations and %d waits in enqueue, the first by %s", name,
              (int)counted.allocations, (int)counted.waits, counted.first);
}

// In a captured stream, where neither waiting nor allocating is allowed, and no memory is asked for.
static void check_captured(trial *t, void *p, const unsigned char *expected, size_t bytes)
{
    void *stream = t->stream;
    device_graph *graph = NULL;
    int32_t result;

    if (t->d.backend != SPOPS_BACKEND_CUDA) return;
    poison(t);
    wait_for(t, NULL);
    cr_assert_eq(drive.enqueue(p, t->inputs, t->num_inputs, t->outputs, t->num_outputs,
                               t->workspace, stream),
                 0, "%s: %s", t->c.op->name, drive.error());
    wait_for(t, stream);
    expect_same(t, expected, bytes, "another stream");
    cr_expect_eq(enqueue_counted(t, p, stream), 0, "%s, again: %s", t->c.op->name, drive.error());
    wait_for(t, stream);
    cr_assert(device_capture_begin(stream), "%s", device_error());
    result = enqueue_counted(t, p, stream);
    const bool is_whole = device_capture_end(stream, &graph);
    cr_expect(result == 0 && is_whole, "%s, captured: %s", t->c.op->name,
              result != 0 ? drive.error() : device_error());
    expect_none_counted(t->c.op->name);
    if (!is_whole) return;
    for (int i = 0; i < 2; ++i) {
        poison(t);
        wait_for(t, NULL);
        cr_assert(device_graph_launch(graph, stream));
        wait_for(t, stream);
        expect_same(t, expected, bytes, "captured");
    }
    device_graph_destroy(graph);
    ++t->num_captured;
}

static void check_plugin(trial *t)
{
    void *p;
    unsigned char *expected;
    size_t bytes, workspace_bytes;
    spops_value ret;

    add_fields(t);
    t->workspace_bytes = 0;
    t->workspace = NULL;
    test_expect_ok(
        NULL, spops_call_scratch_bytes(NULL, t->c.op, t->values, t->c.num_values, &workspace_bytes),
        t->c.op->name);
    workspace_bytes = workspace_bytes > 0 ? spops_context_scratch_memory(workspace_bytes) : 0;
    if (workspace_bytes > 0) t->workspace = take(t, workspace_bytes);
    t->workspace_bytes = workspace_bytes;
    poison(t);
    wait_for(t, NULL);
    test_expect_ok(NULL,
                   spops_call_on_stream(NULL, t->workspace, workspace_bytes, t->c.op, t->values,
                                        t->c.num_values, &ret),
                   t->c.op->name);
    wait_for(t, NULL);
    expected = outputs(t, &bytes);
    p = drive.create(t->c.op->name, t->fields, t->num_fields);
    cr_assert(p != NULL, "%s: %s", t->c.op->name, drive.error());
    check_building(t, p);
    cr_assert_eq(drive.workspace(p, t->inputs, t->num_inputs, t->outputs, t->num_outputs),
                 workspace_bytes, "%s", t->c.op->name);
    t->num_workspaces += workspace_bytes > 0;
    cr_assert_eq(drive.change(p, t->inputs, t->num_inputs, t->outputs, t->num_outputs), 0, "%s: %s",
                 t->c.op->name, drive.error());
    poison(t);
    wait_for(t, NULL);
    cr_assert_eq(
        drive.enqueue(p, t->inputs, t->num_inputs, t->outputs, t->num_outputs, t->workspace, NULL),
        0, "%s: %s", t->c.op->name, drive.error());
    wait_for(t, NULL);
    expect_same(t, expected, bytes, "enqueue");
    check_captured(t, p, expected, bytes);
    drive.destroy(p);
    free(expected);
}

// How many plans the call takes.
static int num_plans(const drawn_call *c)
{
    int num = 0;
    for (int i = 0; i < c->row->num_inputs; ++i)
        num += c->row->args[i].is_plan && c->values[i].type == SPOPS_VALUE_POINTER;
    return num;
}

// A plan of `made`'s description fills a block; false where the operator fills none.
static bool add_output(trial *t, const spops_plan *made)
{
    spops_value ret;
    if (drawn_blocks_output(&t->blocks, &t->c, &t->d, made, t->values) == NULL) return false;
    const spops_status status = spops_call(NULL, t->c.op, t->values, t->c.num_values, &ret);
    wait_for(t, NULL);
    return status == SPOPS_STATUS_OK;
}

// Of inputs without rows a size may not follow that drawn outputs have (spops_call_output).
static bool says_sizes(const trial *t)
{
    const spops_row *row = t->c.row;
    bool is_empty = false;

    for (int i = 0; i < row->num_inputs; ++i)
        is_empty |= !row->args[i].is_plan && t->values[i].type == SPOPS_VALUE_TENSOR &&
                    ((const spops_tensor *)t->values[i].v.p)->shape[0] == 0;
    for (int i = row->num_inputs; i < row->num_args && is_empty; ++i) {
        const spops_tensor *is = t->values[i].v.p;
        int64_t shape[SPOPS_CALL_MAX_DIMS];
        spops_tensor out;
        if (row->args[i].is_plan || t->values[i].type != SPOPS_VALUE_TENSOR) continue;
        test_expect_ok(NULL,
                       spops_call_output(NULL, t->c.op, t->values, t->c.num_values,
                                         i - row->num_inputs, NULL, &out, shape),
                       t->c.op->name);
        for (int d = 0; d < is->num_dims; ++d)
            if (shape[d] == 0 && is->shape[d] != 0) return false;
    }
    return true;
}

// A block may lack what a handle has by how it was made: both sides of triplets that are the same.
static bool serves(trial *t)
{
    spops_value ret;
    const spops_status status = spops_call(NULL, t->c.op, t->values, t->c.num_values, &ret);
    wait_for(t, NULL);
    if (num_plans(&t->c) == 0) test_expect_ok(NULL, status, t->c.op->name);
    return status == SPOPS_STATUS_OK;
}

// What a draw lacks, NULL: it is one for TensorRT.
static const char *prepare(trial *t, const spops_value *ret)
{
    t->num_inputs = t->num_outputs = t->num_memory = t->num_fields = 0;
    if (!drawn_call_is_specified(&t->c)) return "specified bits";
    if (drawn_blocks_make(&t->blocks, &t->c, &t->d, t->values) != num_plans(&t->c))
        return "a block of each plan";
    if (ret->type == SPOPS_VALUE_POINTER && !add_output(t, ret->v.p))
        return "a block that is filled";
    if (!add_tensors(t)) return "dtypes of TensorRT";
    if (!says_sizes(t)) return "inputs that say all sizes";
    return serves(t) ? NULL : "blocks that serve it";
}

// False where the draw is none for TensorRT.
static bool check_draw(trial *t, const spops_value *ret)
{
    const char *lack = prepare(t, ret);
    const bool is_done = lack == NULL;

    if (is_done)
        check_plugin(t);
    else if (getenv("SPOPS_TEST_VERBOSE") != NULL)
        printf("%s: a draw without %s: %s\n", t->c.op->name, lack, spops_last_error(NULL));
    while (t->num_memory > 0)
        device_free(t->d.backend, t->memory[--t->num_memory]);
    drawn_call_drop(&t->c, ret);
    drawn_blocks_free(&t->blocks, &t->d);
    return is_done;
}

// Operators that fill no block of their own kind of drawn plans, or take dtypes that TensorRT has not.
static bool may_be_none(const char *name)
{
    static const char *const names[] = {"segments_offsets", "kernel_map_inverse", "bev_plan",
                                        "bev_plan_ranks"};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

static void count_allocations(void)
{
    void (*set)(const spops_allocator *) = NULL;
    const spops_allocator hooks = {NULL, NULL, NULL, allocate, release};
    void *address = drive.function("spops_call_set_allocator");
    if (address == NULL) address = dlsym(RTLD_DEFAULT, "spops_call_set_allocator");
    cr_assert(address != NULL);
    memcpy(&set, &address, sizeof address);
    set(&hooks);
}

TestOver(tensorrt, operators, struct backend_param *param, every_backend(), .timeout = 600)
{
    int32_t num;
    const spops_operator *const *ops = spops_operators(&num);
    static trial one; // of a process
    trial *const t = &one;
    int done = 0;

    if (!load() || !test_open(&t->d, (spops_backend_kind)param->backend, LAUNCH_DEFAULT)) return;
    // Plugins of a library with CUDA take memory of a device, others that of the host.
    if (backend_of_plugins() == t->d.backend) {
        if (t->d.backend == SPOPS_BACKEND_CUDA) {
            count_allocations();
            hook_driver();
        }
        cr_assert(device_stream_create(t->d.backend, &t->stream));
        for (int32_t i = 0; i < num; ++i) {
            bool is_done = false;
            spops_value ret;
            if (ops[i]->needs_handles != 0) continue;
            for (int draw = 0; draw < DRAWS && !is_done; ++draw) {
                test_rng rng = drawn_call_rng(ops[i], 12000 + draw);
                if (drawn_call_find(&t->c, &t->d, ops[i], &rng, TRIES, &ret) == 0) break;
                is_done = check_draw(t, &ret);
                drawn_call_free(&t->c);
            }
            cr_expect(is_done || may_be_none(ops[i]->name), "%s: no draw for TensorRT",
                      ops[i]->name);
            if (getenv("SPOPS_TEST_VERBOSE") != NULL) printf("%-28s %d\n", ops[i]->name, is_done);
            done += is_done;
        }
        printf("tensorrt: %d plugins ran, %d with a workspace, %d captured\n", done,
               (int)t->num_workspaces, (int)t->num_captured);
        printf(
            "tensorrt: %d enqueues counted: %d calls of the driver, %d allocations, %d waits, %d "
            "requests for memory\n",
            (int)counted.calls, (int)counted.driver_calls, (int)counted.allocations,
            (int)counted.waits, (int)counted.requests);
        device_stream_destroy(t->d.backend, t->stream);
        cr_expect(done > 100 && t->num_workspaces > 10, "%d, %d", done, (int)t->num_workspaces);
    }
    spops_call_release();
    test_close(&t->d);
}
