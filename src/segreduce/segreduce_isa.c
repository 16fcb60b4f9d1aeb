// The vector code of segreduce, seggrad and segdot, compiled once per instruction set. Every function below is written for any
// reduction, dtype and block width; these are constants where it is inlined, so that the compiler
// sees plain loops over columns with the accumulators in vector registers. The lists at the end
// name the instances.
//
//     terms of an owner        block of columns
//     row a(p) of x  * w --->  acc[0 .. width-1]  --->  out, arg, states or partial
//
// One table comes out.

#include "core/simd_rows.h"

#include "segreduce/segreduce_isa.h"

#include "spops/device/reduce_ops.h"

// Columns whose accumulators fit the vector registers: one word per column, or two.
#if defined(__AVX512F__)
#define WIDE_1 128
#define WIDE_2 64
#elif defined(__AVX2__) || defined(__aarch64__)
#define WIDE_1 80
#define WIDE_2 32
#else
#define WIDE_1 32
#define WIDE_2 16
#endif

// ---- States: the traced and the plain op of every reduction behind one set of functions ---------

// `op` is a reduction's id, plus TRACED for its traced op.
#define TRACED 64

typedef union state {
    struct {
        float first;
        int32_t second;
    } word; // as an accumulator holds it; ops of one word leave the second alone
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    spops_##plain plain_##name;                                                                    \
    spops_##traced traced_##name;
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
} state;

_Static_assert(sizeof(state) == SPOPS_REDUCE_STATE_BYTES_MAX, "a state is one or two words");

SPOPS_INLINE size_t state_bytes(int op)
{
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name: return sizeof(spops_##plain);                                        \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        return sizeof(spops_##traced);
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: return 0;
    }
}

SPOPS_INLINE state identity(int op)
{
    state a = {{0.0f, 0}};
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name: a.plain_##name = spops_##plain##_identity(); break;                  \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        a.traced_##name = spops_##traced##_identity();                                             \
        break;
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: break;
    }
    return a;
}

SPOPS_INLINE state lift(int op, float v, int32_t term)
{
    state a = {{0.0f, 0}};
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name: a.plain_##name = spops_##plain##_lift(v, term); break;               \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        a.traced_##name = spops_##traced##_lift(v, term);                                          \
        break;
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: break;
    }
    return a;
}

SPOPS_INLINE state combine(int op, state a, state b)
{
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name:                                                                      \
        a.plain_##name = spops_##plain##_combine(a.plain_##name, b.plain_##name);                  \
        break;                                                                                     \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        a.traced_##name = spops_##traced##_combine(a.traced_##name, b.traced_##name);              \
        break;
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: break;
    }
    return a;
}

SPOPS_INLINE float finalize(int op, state a, int64_t count)
{
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name: return spops_##plain##_finalize(a.plain_##name, count);              \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        return spops_##traced##_finalize(a.traced_##name, count);
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: return 0.0f;
    }
}

SPOPS_INLINE int32_t winner(int op, state a)
{
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        return spops_##traced##_arg(a.traced_##name);
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: return -1;
    }
}

SPOPS_INLINE float gradient(int op, float v, int32_t term, state a, int64_t count)
{
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        return spops_##traced##_grad(v, term, a.traced_##name, count);
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: return 0.0f;
    }
}

// SUM and MEAN have gradients that read no state (core/backend.h), SUM's no count either.
SPOPS_INLINE bool gradient_reads_state(int op)
{
    return op != SPOPS_REDUCE_SUM + TRACED && op != SPOPS_REDUCE_MEAN + TRACED;
}
SPOPS_INLINE bool gradient_reads_count(int op)
{
    return op != SPOPS_REDUCE_SUM + TRACED;
}

SPOPS_INLINE state load_state(int op, const char *src)
{
    state a = {{0.0f, 0}};
    memcpy(&a, src, state_bytes(op));
    return a;
}

SPOPS_INLINE void store_state(int op, state a, char *dst)
{
    memcpy(dst, &a, state_bytes(op));
}

// ---- Rows of any length -------------------------------------------------------------------------

static void load(spops_dtype dtype, const void *src, int64_t n, float *dst)
{
    const char *from = (const char *)src;
    int64_t i = 0;
    switch (dtype) {
#define SPOPS_DTYPE_FLOAT(NAME, name, bits, c_type, device_type)                                   \
    case SPOPS_DTYPE_##NAME:                                                                       \
        for (; i + 16 <= n; i += 16)                                                               \
            spops_load_lanes(SPOPS_DTYPE_##NAME, 16, from + (size_t)i * sizeof(c_type), dst + i);  \
        for (; i < n; ++i)                                                                         \
            dst[i] = spops_load_1(SPOPS_DTYPE_##NAME, from + (size_t)i * sizeof(c_type));          \
        break;
#include "core/dtypes.def"
    default: break;
    }
}

static void store(spops_dtype dtype, const float *src, int64_t n, void *dst)
{
    char *to = (char *)dst;
    int64_t i = 0;
    switch (dtype) {
#define SPOPS_DTYPE_FLOAT(NAME, name, bits, c_type, device_type)                                   \
    case SPOPS_DTYPE_##NAME:                                                                       \
        for (; i + 16 <= n; i += 16)                                                               \
            spops_store_lanes(SPOPS_DTYPE_##NAME, 16, src + i, to + (size_t)i * sizeof(c_type));   \
        for (; i < n; ++i)                                                                         \
            spops_store_1(SPOPS_DTYPE_##NAME, src[i], to + (size_t)i * sizeof(c_type));            \
        break;
#include "core/dtypes.def"
    default: break;
    }
}

// ---- Terms: the numbers of a position, whether or not the lists store them ----------------------

// An array that is absent stands for the position itself: its pointer then rests on a zero, and the
// position is added. No branch per term.
typedef struct cursor {
    const int32_t *pair, *order;
    int64_t pair_step, order_step;
    int64_t pair_base, order_base;
} cursor;

static const int32_t no_pair[2] = {0, 0};

SPOPS_INLINE cursor cursor_at(const spops_lists *lists, int64_t position)
{
    const bool pairs = lists->pairs != NULL, order = lists->order != NULL;
    cursor at;
    at.pair = pairs ? lists->pairs + 2 * position : no_pair;
    at.pair_step = pairs ? 2 : 0;
    at.pair_base = pairs ? 0 : position;
    at.order = order ? lists->order + position : no_pair;
    at.order_step = order ? 1 : 0;
    at.order_base = order ? 0 : position;
    return at;
}

SPOPS_INLINE int64_t cursor_a(const cursor *at)
{
    return at->pair[0] + at->pair_base;
}
SPOPS_INLINE int64_t cursor_b(const cursor *at)
{
    return at->pair[1] + at->pair_base;
}
SPOPS_INLINE int32_t cursor_term(const cursor *at)
{
    return (int32_t)(*at->order + at->order_base);
}

SPOPS_INLINE void cursor_step(cursor *at)
{
    at->pair += at->pair_step;
    at->pair_base += at->pair_step == 0;
    at->order += at->order_step;
    at->order_base += at->order_step == 0;
}

// Weights that are absent are a one that every term reads.
typedef struct weights {
    const char *data;
    int64_t stride; // bytes
} weights;

static const float one = 1.0f;

SPOPS_INLINE weights weights_of(int dtype, spops_matrix w)
{
    weights v;
    v.data = w.data != NULL ? (const char *)w.data : (const char *)&one;
    v.stride = w.data != NULL ? (int64_t)spops_element_bytes(dtype) : 0;
    return v;
}

// ---- Blocks of columns --------------------------------------------------------------------------

// Run `block(width, col)` over `cols` columns, widest blocks first: each block walks the terms
// anew. Columns left over at the end are served by a block that overlaps the one before: it writes
// the same values again, which is cheaper than a scalar tail.
#define FOR_EACH_BLOCK(cols, wide, block)                                                          \
    for (int64_t col = 0; col < (cols);) {                                                         \
        const int64_t left = (cols)-col;                                                           \
        WIDE_BLOCK(128, wide, block)                                                               \
        WIDE_BLOCK(80, wide, block)                                                                \
        WIDE_BLOCK(64, wide, block)                                                                \
        WIDE_BLOCK(48, wide, block)                                                                \
        WIDE_BLOCK(32, wide, block)                                                                \
        LAST_BLOCK(16, cols, block)                                                                \
        LAST_BLOCK(4, cols, block)                                                                 \
        LAST_BLOCK(1, cols, block)                                                                 \
    }
#define WIDE_BLOCK(width, wide, block)                                                             \
    if ((width) <= (wide) && left >= (width)) {                                                    \
        block((width), col);                                                                       \
        col += (width);                                                                            \
        continue;                                                                                  \
    }
#define LAST_BLOCK(width, cols, block)                                                             \
    if ((cols) >= (width)) {                                                                       \
        col = left >= (width) ? col : (cols) - (width);                                            \
        block((width), col);                                                                       \
        col += (width);                                                                            \
        continue;                                                                                  \
    }

#define MAX_WIDTH 128

SPOPS_INLINE int wide_of(int op)
{
    return state_bytes(op) > 4 ? WIDE_2 : WIDE_1;
}

// Accumulators of one block: the two words of each column's state apart, so that both vectorise.
typedef struct accumulators {
    float first[MAX_WIDTH];
    int32_t second[MAX_WIDTH];
} accumulators;

SPOPS_INLINE state get(const accumulators *acc, int c)
{
    state a;
    a.word.first = acc->first[c];
    a.word.second = acc->second[c];
    return a;
}

SPOPS_INLINE void put(accumulators *acc, int c, state a)
{
    acc->first[c] = a.word.first;
    acc->second[c] = a.word.second;
}

// ---- segreduce ----------------------------------------------------------------------------------

// Where the states of an owner's block go once all its terms are in.
SPOPS_INLINE void finish_block(int op, int dtype, int width, const spops_segreduce_args *args,
                               int64_t owner, int64_t col, int64_t count, const accumulators *acc)
{
    if (args->out.data != NULL) {
        float v[MAX_WIDTH];
#pragma omp simd
        for (int c = 0; c < width; ++c)
            v[c] = finalize(op, get(acc, c), count);
        spops_store_lanes(dtype, width, v, (char *)spops_element(dtype, args->out, owner, col));
    }
    if (op >= TRACED && args->arg.data != NULL) {
        int32_t *arg = (int32_t *)args->arg.data + owner * args->arg.row_stride + col;
#pragma omp simd
        for (int c = 0; c < width; ++c)
            arg[c] = winner(op, get(acc, c));
    }
    if (op >= TRACED && args->states != NULL) {
        char *states =
            (char *)args->states + (size_t)(owner * args->x.cols + col) * state_bytes(op);
#pragma omp simd
        for (int c = 0; c < width; ++c)
            store_state(op, get(acc, c), states + (size_t)c * state_bytes(op));
    }
}

SPOPS_INLINE void reduce_block(int op, int xtype, int wtype, int width,
                               const spops_segreduce_args *args, int64_t owner, int64_t begin,
                               int64_t end, int64_t col, char *partial)
{
    const int64_t row_bytes = args->x.row_stride * (int64_t)spops_element_bytes(xtype);
    const char *x = spops_element(xtype, args->x, 0, col);
    const weights w = weights_of(wtype, args->w);
    cursor at = cursor_at(args->lists, begin);
    accumulators acc;

#pragma omp simd
    for (int c = 0; c < width; ++c)
        put(&acc, c, identity(op));
    for (int64_t p = begin; p < end; ++p, cursor_step(&at)) {
        const float weight = spops_load_1(wtype, w.data + cursor_b(&at) * w.stride);
        const int32_t term = cursor_term(&at);
        float v[MAX_WIDTH];
        spops_load_lanes(xtype, width, x + cursor_a(&at) * row_bytes, v);
#pragma omp simd
        for (int c = 0; c < width; ++c)
            put(&acc, c, combine(op, get(&acc, c), lift(op, weight * v[c], term)));
    }
    if (partial != NULL) {
#pragma omp simd
        for (int c = 0; c < width; ++c)
            store_state(op, get(&acc, c), partial + (size_t)(col + c) * state_bytes(op));
    } else {
        finish_block(op, xtype, width, args, owner, col, end - begin, &acc);
    }
}

SPOPS_INLINE void reduce_range(int op, int xtype, int wtype, const spops_segreduce_args *args,
                               int64_t owner, int64_t begin, int64_t end, char *partial)
{
    const int64_t cols = args->x.cols;
#define BLOCK(width, col)                                                                          \
    reduce_block(op, xtype, wtype, width, args, owner, begin, end, col, partial)
    FOR_EACH_BLOCK(cols, wide_of(op), BLOCK)
#undef BLOCK
}

SPOPS_INLINE void split_block(int op, int dtype, int width, const spops_segreduce_args *args,
                              const spops_split *split, int64_t col)
{
    const size_t piece_bytes = (size_t)args->x.cols * state_bytes(op);
    const char *partial = (const char *)args->partials + (size_t)split->first_piece * piece_bytes +
                          (size_t)col * state_bytes(op);
    accumulators acc;

#pragma omp simd
    for (int c = 0; c < width; ++c)
        put(&acc, c, load_state(op, partial + (size_t)c * state_bytes(op)));
    for (int32_t i = 1; i < split->num_pieces; ++i) {
        partial += piece_bytes;
#pragma omp simd
        for (int c = 0; c < width; ++c) {
            const state b = load_state(op, partial + (size_t)c * state_bytes(op));
            put(&acc, c, combine(op, get(&acc, c), b));
        }
    }
    finish_block(op, dtype, width, args, split->owner, col, split->count, &acc);
}

SPOPS_INLINE void reduce_split(int op, int dtype, const spops_segreduce_args *args,
                               const spops_split *split)
{
    const int64_t cols = args->x.cols;
#define BLOCK(width, col) split_block(op, dtype, width, args, split, col)
    FOR_EACH_BLOCK(cols, 16, BLOCK)
#undef BLOCK
}

// ---- segreduce: sums of other dtypes and scales (core/backend.h) --------------------------------

// Scale and store the sums of an owner.
SPOPS_INLINE void finish_sum(int width, const spops_segreduce_args *args, int64_t owner,
                             int64_t col, const float *acc)
{
    const int dtype = (int)args->out.dtype;
    char *dst = (char *)spops_element(dtype, args->out, owner, col);
    float factor = args->x_scale != NULL ? *args->x_scale : 1.0f;
    float v[MAX_WIDTH];

    if (args->w_scale != NULL) factor *= *args->w_scale;
    if (args->out_scale != NULL) factor /= *args->out_scale;
#pragma omp simd
    for (int c = 0; c < width; ++c)
        v[c] = acc[c] * factor;
    switch (dtype) {
#define STORE(NAME, name, bits, c_type, device_type)                                               \
    case SPOPS_DTYPE_##NAME:                                                                       \
        spops_store_lanes(SPOPS_DTYPE_##NAME, width, v, dst);                                      \
        break;
#define SPOPS_DTYPE_FLOAT  STORE
#define SPOPS_DTYPE_FLOAT8 STORE
#include "core/dtypes.def"
#undef STORE
    default: break;
    }
}

// A row of 8- or 4-bit codes as f16, which has all their values, and all products of an f4e2m1 with
// its block scale.
static void decode(spops_dtype dtype, const void *src, const uint8_t *scales, int64_t n,
                   uint16_t *dst)
{
    const char *from = (const char *)src;
    int64_t c = 0;

    if (spops_dtype_is_packed(dtype)) {
        float v[SPOPS_BLOCK_COLS];
        for (; c + SPOPS_BLOCK_COLS <= n; c += SPOPS_BLOCK_COLS) {
            spops_load_16_f4(from + c / 2, spops_f8e4m3_values[scales[c / SPOPS_BLOCK_COLS]], v);
            spops_store_lanes(SPOPS_DTYPE_F16, SPOPS_BLOCK_COLS, v, (char *)(dst + c));
        }
        if (c < n) {
            char codes[SPOPS_BLOCK_COLS / 2] = {0};
            memcpy(codes, from + c / 2, (size_t)(n - c) / 2);
            spops_load_16_f4(codes, spops_f8e4m3_values[scales[c / SPOPS_BLOCK_COLS]], v);
            for (int64_t i = 0; c < n; ++i, ++c)
                spops_store_1(SPOPS_DTYPE_F16, v[i], (char *)(dst + c));
        }
        return;
    }
    switch (dtype) {
#define SPOPS_DTYPE_FLOAT8(NAME, name, bits, c_type, device_type)                                  \
    case SPOPS_DTYPE_##NAME:                                                                       \
        for (; c + 16 <= n; c += 16) {                                                             \
            float v[16];                                                                           \
            spops_load_lanes(SPOPS_DTYPE_##NAME, 16, from + c, v);                                 \
            spops_store_lanes(SPOPS_DTYPE_F16, 16, v, (char *)(dst + c));                          \
        }                                                                                          \
        for (; c < n; ++c)                                                                         \
            spops_store_1(SPOPS_DTYPE_F16, spops_load_1(SPOPS_DTYPE_##NAME, from + c),             \
                          (char *)(dst + c));                                                      \
        break;
#include "core/dtypes.def"
    default: break;
    }
}

SPOPS_INLINE void sum_block(int xtype, int wtype, int width, const spops_segreduce_args *args,
                            int64_t owner, int64_t begin, int64_t end, int64_t col, float *partial)
{
    const int64_t row_bytes = args->x.row_stride * (int64_t)spops_element_bytes(xtype);
    const char *x = spops_element(xtype, args->x, 0, col);
    const weights w = weights_of(wtype, args->w);
    cursor at = cursor_at(args->lists, begin);
    float acc[MAX_WIDTH];

#pragma omp simd
    for (int c = 0; c < width; ++c)
        acc[c] = 0.0f;
    for (int64_t p = begin; p < end; ++p, cursor_step(&at)) {
        const float weight = spops_load_weight(wtype, w.data + cursor_b(&at) * w.stride);
        float v[MAX_WIDTH];
        spops_load_lanes(xtype, width, x + cursor_a(&at) * row_bytes, v);
#pragma omp simd
        for (int c = 0; c < width; ++c)
            acc[c] += weight * v[c];
    }
    if (partial == NULL) {
        finish_sum(width, args, owner, col, acc);
        return;
    }
#pragma omp simd
    for (int c = 0; c < width; ++c)
        partial[col + c] = acc[c];
}

SPOPS_INLINE void sum_range(int xtype, int wtype, const spops_segreduce_args *args, int64_t owner,
                            int64_t begin, int64_t end, float *partial)
{
    const int64_t cols = args->x.cols;
    if (begin == end && partial == NULL) { // zero, whatever the scales
        const int dtype = (int)args->out.dtype;
        memset((char *)spops_element(dtype, args->out, owner, 0), 0,
               (size_t)cols * spops_element_bytes(dtype));
        return;
    }
#define BLOCK(width, col) sum_block(xtype, wtype, width, args, owner, begin, end, col, partial)
    FOR_EACH_BLOCK(cols, WIDE_1, BLOCK)
#undef BLOCK
}

SPOPS_INLINE void sum_split_block(int width, const spops_segreduce_args *args,
                                  const spops_split *split, int64_t col)
{
    const int64_t cols = args->x.cols;
    const float *partial = (const float *)args->partials + split->first_piece * cols + col;
    float acc[MAX_WIDTH];

#pragma omp simd
    for (int c = 0; c < width; ++c)
        acc[c] = partial[c];
    for (int32_t i = 1; i < split->num_pieces; ++i) {
        partial += cols;
#pragma omp simd
        for (int c = 0; c < width; ++c)
            acc[c] += partial[c];
    }
    finish_sum(width, args, split->owner, col, acc);
}

static void sum_split(const spops_segreduce_args *args, const spops_split *split)
{
    const int64_t cols = args->x.cols;
#define BLOCK(width, col) sum_split_block(width, args, split, col)
    FOR_EACH_BLOCK(cols, 16, BLOCK)
#undef BLOCK
}

// ---- seggrad ------------------------------------------------------------------------------------

SPOPS_INLINE const char *states_of(int op, const void *states, int64_t segment, int64_t cols,
                                   int64_t col)
{
    return (const char *)states + (size_t)(segment * cols + col) * state_bytes(op);
}

// grad[c] = grad_out[segment, col + c] * d out / d v[c]
SPOPS_INLINE void term_gradients(int op, int xtype, int width, spops_matrix grad_out,
                                 const void *states, const int32_t *segment_offsets,
                                 int64_t segment, int32_t term, int64_t col, const float *v,
                                 float *grad)
{
    const int64_t count = gradient_reads_count(op)
                              ? (int64_t)segment_offsets[segment + 1] - segment_offsets[segment]
                              : 0;
    float g[MAX_WIDTH];

    spops_load_lanes(xtype, width, spops_element(xtype, grad_out, segment, col), g);
    if (gradient_reads_state(op)) {
        const char *s = states_of(op, states, segment, grad_out.cols, col);
#pragma omp simd
        for (int c = 0; c < width; ++c) {
            const state a = load_state(op, s + (size_t)c * state_bytes(op));
            grad[c] = gradient(op, v[c], term, a, count) * g[c];
        }
    } else {
#pragma omp simd
        for (int c = 0; c < width; ++c)
            grad[c] = gradient(op, v[c], term, identity(op), count) * g[c];
    }
}

SPOPS_INLINE void grad_block(int op, int xtype, int wtype, int width, const spops_grad_args *args,
                             int64_t owner, int64_t begin, int64_t end, int64_t col, float *partial)
{
    const weights w = weights_of(wtype, args->w);
    cursor at = cursor_at(args->lists, begin);
    float acc[MAX_WIDTH], x[MAX_WIDTH];

    spops_load_lanes(xtype, width, spops_element(xtype, args->x, owner, col), x);
#pragma omp simd
    for (int c = 0; c < width; ++c)
        acc[c] = 0.0f;
    for (int64_t p = begin; p < end; ++p, cursor_step(&at)) {
        const float weight = spops_load_1(wtype, w.data + cursor_b(&at) * w.stride);
        float v[MAX_WIDTH], grad[MAX_WIDTH];
#pragma omp simd
        for (int c = 0; c < width; ++c)
            v[c] = weight * x[c];
        term_gradients(op, xtype, width, args->grad_out, args->states, args->segment_offsets,
                       cursor_a(&at), cursor_term(&at), col, v, grad);
#pragma omp simd
        for (int c = 0; c < width; ++c)
            acc[c] += weight * grad[c];
    }
    if (partial != NULL) {
#pragma omp simd
        for (int c = 0; c < width; ++c)
            partial[col + c] = acc[c];
    } else {
        spops_store_lanes(xtype, width, acc, (char *)spops_element(xtype, args->grad, owner, col));
    }
}

SPOPS_INLINE void grad_range(int op, int xtype, int wtype, const spops_grad_args *args,
                             int64_t owner, int64_t begin, int64_t end, float *partial)
{
    const int64_t cols = args->x.cols;
#define BLOCK(width, col) grad_block(op, xtype, wtype, width, args, owner, begin, end, col, partial)
    FOR_EACH_BLOCK(cols, WIDE_2, BLOCK)
#undef BLOCK
}

// ---- segdot -------------------------------------------------------------------------------------

#define DOT_WIDTH 16

// acc[c] gathers the products of columns c, c + 16, c + 32 ... of every term.
SPOPS_INLINE void dot_block(int op, int xtype, int width, const spops_grad_args *args, float weight,
                            int64_t row, int64_t segment, int32_t term, int64_t col, float *acc)
{
    float x[MAX_WIDTH], v[MAX_WIDTH], grad[MAX_WIDTH];

    spops_load_lanes(xtype, width, spops_element(xtype, args->x, row, col), x);
#pragma omp simd
    for (int c = 0; c < width; ++c)
        v[c] = weight * x[c];
    term_gradients(op, xtype, width, args->grad_out, args->states, args->segment_offsets, segment,
                   term, col, v, grad);
#pragma omp simd
    for (int c = 0; c < width; ++c)
        acc[c] += x[c] * grad[c];
}

SPOPS_INLINE float dot_range(int op, int xtype, const spops_grad_args *args, int64_t owner,
                             int64_t begin, int64_t end)
{
    const int64_t cols = args->x.cols;
    cursor at = cursor_at(args->lists, begin);
    float acc[4 * DOT_WIDTH];
    float weight = 1.0f;

    if (begin == end) return 0.0f;
    if (args->w.data != NULL)
        weight = spops_load_1((int)args->w.dtype,
                              (const char *)args->w.data +
                                  (size_t)owner * spops_element_bytes((int)args->w.dtype));
#pragma omp simd
    for (int c = 0; c < 4 * DOT_WIDTH; ++c)
        acc[c] = 0.0f;
    for (int64_t p = begin; p < end; ++p, cursor_step(&at)) {
        const int64_t row = cursor_a(&at), segment = cursor_b(&at);
        const int32_t term = cursor_term(&at);
        int64_t col = 0;
        // Four vectors at a time, so that their chains of additions run side by side.
        for (; col + 4 * DOT_WIDTH <= cols; col += 4 * DOT_WIDTH)
            dot_block(op, xtype, 4 * DOT_WIDTH, args, weight, row, segment, term, col, acc);
        for (; col + DOT_WIDTH <= cols; col += DOT_WIDTH)
            dot_block(op, xtype, DOT_WIDTH, args, weight, row, segment, term, col, acc);
        for (; col < cols; ++col)
            dot_block(op, xtype, 1, args, weight, row, segment, term, col,
                      acc + (col & (DOT_WIDTH - 1)));
    }
    for (int half = 2 * DOT_WIDTH; half > 0; half /= 2) {
#pragma omp simd
        for (int c = 0; c < half; ++c)
            acc[c] += acc[c + half];
    }
    return acc[0];
}

// ---- Instances ----------------------------------------------------------------------------------

#define REDUCE(name, op, tag, xtype, wtype)                                                        \
    static void reduce_range_##name##_##tag##_##xtype##_##wtype(const spops_segreduce_args *args,  \
                                                                int64_t owner, int64_t begin,      \
                                                                int64_t end, void *partial)        \
    {                                                                                              \
        reduce_range(op, SPOPS_DTYPE_##xtype, SPOPS_DTYPE_##wtype, args, owner, begin, end,        \
                     (char *)partial);                                                             \
    }
#define SUM(xtype, wtype)                                                                          \
    static void sum_range_##xtype##_##wtype(const spops_segreduce_args *args, int64_t owner,       \
                                            int64_t begin, int64_t end, void *partial)             \
    {                                                                                              \
        sum_range(SPOPS_DTYPE_##xtype, SPOPS_DTYPE_##wtype, args, owner, begin, end,               \
                  (float *)partial);                                                               \
    }
SUM(F32, F32)
SUM(F16, F32)
SUM(F16, F16)
SUM(F16, F8E4M3)
SUM(F16, F8E5M2)
SUM(BF16, F32)
SUM(BF16, BF16)
#define SPLIT(name, op, tag, dtype)                                                                \
    static void reduce_split_##name##_##tag##_##dtype(const spops_segreduce_args *args,            \
                                                      const spops_split *split)                    \
    {                                                                                              \
        reduce_split(op, SPOPS_DTYPE_##dtype, args, split);                                        \
    }
#define GRAD(name, xtype, wtype)                                                                   \
    static void grad_range_##name##_##xtype##_##wtype(const spops_grad_args *args, int64_t owner,  \
                                                      int64_t begin, int64_t end, float *partial)  \
    {                                                                                              \
        grad_range(SPOPS_REDUCE_##name + TRACED, SPOPS_DTYPE_##xtype, SPOPS_DTYPE_##wtype, args,   \
                   owner, begin, end, partial);                                                    \
    }
#define DOT(name, dtype)                                                                           \
    static float dot_range_##name##_##dtype(const spops_grad_args *args, int64_t owner,            \
                                            int64_t begin, int64_t end)                            \
    {                                                                                              \
        return dot_range(SPOPS_REDUCE_##name + TRACED, SPOPS_DTYPE_##dtype, args, owner, begin,    \
                         end);                                                                     \
    }
#define REDUCE_DTYPES(name, op, tag)                                                               \
    REDUCE(name, op, tag, F32, F32)                                                                \
    REDUCE(name, op, tag, F16, F32)                                                                \
    REDUCE(name, op, tag, F16, F16)                                                                \
    REDUCE(name, op, tag, BF16, F32)                                                               \
    REDUCE(name, op, tag, BF16, BF16)                                                              \
    SPLIT(name, op, tag, F32)                                                                      \
    SPLIT(name, op, tag, F16)                                                                      \
    SPLIT(name, op, tag, BF16)
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    REDUCE_DTYPES(name, SPOPS_REDUCE_##name, plain)                                                \
    REDUCE_DTYPES(name, SPOPS_REDUCE_##name + TRACED, traced##_traced)                             \
    GRAD(name, F32, F32)                                                                           \
    GRAD(name, F16, F32)                                                                           \
    GRAD(name, F16, F16)                                                                           \
    GRAD(name, BF16, F32)                                                                          \
    GRAD(name, BF16, BF16)                                                                         \
    DOT(name, F32)                                                                                 \
    DOT(name, F16)                                                                                 \
    DOT(name, BF16)
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP

#define PAIRS(f)                                                                                   \
    {                                                                                              \
        {f##_F32_F32, f##_F32_F32}, {f##_F16_F32, f##_F16_F16},                                    \
        {                                                                                          \
            f##_BF16_F32, f##_BF16_BF16                                                            \
        }                                                                                          \
    }
#define SINGLES(f)                                                                                 \
    {                                                                                              \
        f##_F32, f##_F16, f##_BF16                                                                 \
    }

const spops_segreduce_table SPOPS_ISA_TABLE(spops_segreduce_table) = {
    .reduce_range =
        {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    [SPOPS_REDUCE_##name] = {PAIRS(reduce_range_##name##_##plain),                                 \
                             PAIRS(reduce_range_##name##_##traced##_traced)},
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
        },
    .reduce_split =
        {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    [SPOPS_REDUCE_##name] = {SINGLES(reduce_split_##name##_##plain),                               \
                             SINGLES(reduce_split_##name##_##traced##_traced)},
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
        },
    .grad_range =
        {
#define SPOPS_REDUCE_OP(name, plain, traced) [SPOPS_REDUCE_##name] = PAIRS(grad_range_##name),
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
        },
    .dot_range =
        {
#define SPOPS_REDUCE_OP(name, plain, traced) [SPOPS_REDUCE_##name] = SINGLES(dot_range_##name),
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
        },
    .state_bytes =
        {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    [SPOPS_REDUCE_##name] = {sizeof(spops_##plain), sizeof(spops_##traced)},
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
        },
    .sum_range =
        {[SPOPS_DTYPE_F32] = {[SPOPS_DTYPE_F32] = sum_range_F32_F32},
         [SPOPS_DTYPE_F16] = {[SPOPS_DTYPE_F32] = sum_range_F16_F32,
                              [SPOPS_DTYPE_F16] = sum_range_F16_F16,
                              [SPOPS_DTYPE_F8E4M3] = sum_range_F16_F8E4M3,
                              [SPOPS_DTYPE_F8E5M2] = sum_range_F16_F8E5M2},
         [SPOPS_DTYPE_BF16] =
             {[SPOPS_DTYPE_F32] = sum_range_BF16_F32, [SPOPS_DTYPE_BF16] = sum_range_BF16_BF16}},
    .decode = decode,
    .sum_split = sum_split,
    .load = load,
    .store = store,
};
