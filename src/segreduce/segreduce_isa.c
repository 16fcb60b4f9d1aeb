// The vector code of segreduce, seggrad and segdot, compiled once per instruction set
// (SPOPS_ISA_NAME and the compiler's -m flags say which). Every function below is written for any
// reduction, dtype and block width; these are constants where it is inlined, so that the compiler
// sees plain loops over columns with the accumulators in vector registers. The lists at the end
// name the instances.
//
//     terms of an owner        block of columns
//     row a(p) of x  * w --->  acc[0 .. width-1]  --->  out, arg, states or partial
//
// One table comes out: spops_isa_table_<SPOPS_ISA_NAME>.

#if defined(__GNUC__) && !defined(__clang__)
// Loops over columns become straight vector code. Jamming two terms into one pass, or a copy of the
// loop for each invariant condition, would take the accumulators out of their registers.
// Comparisons need not keep the floating-point exception flags; no value depends on any of these.
#pragma GCC optimize("no-loop-unroll-and-jam", "no-unswitch-loops", "no-trapping-math")
#ifdef __AVX512F__
#pragma GCC target("prefer-vector-width=512")
#endif
#elif defined(__clang__)
// Without optimization a loop marked `omp simd` stays as it is; that is no fault.
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

#include "segreduce/segreduce_isa.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

#include "core/float8.h"
#include "core/matrix.h"
#include "spops/device/reduce_ops.h"

// A sanitizer multiplies this code; instances then share functions, with the choices made at run
// time.
#if defined(__SANITIZE_ADDRESS__)
#define INLINE static inline
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define INLINE static inline
#endif
#endif
#ifndef INLINE
#define INLINE static inline __attribute__((always_inline))
#endif

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
#include "core/reduce_ops.def"
#undef SPOPS_REDUCE_OP
} state;

_Static_assert(sizeof(state) == SPOPS_REDUCE_STATE_BYTES_MAX, "a state is one or two words");

INLINE size_t state_bytes(int op)
{
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name: return sizeof(spops_##plain);                                        \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        return sizeof(spops_##traced);
#include "core/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: return 0;
    }
}

INLINE state identity(int op)
{
    state a = {{0.0f, 0}};
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name: a.plain_##name = spops_##plain##_identity(); break;                  \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        a.traced_##name = spops_##traced##_identity();                                             \
        break;
#include "core/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: break;
    }
    return a;
}

INLINE state lift(int op, float v, int32_t term)
{
    state a = {{0.0f, 0}};
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name: a.plain_##name = spops_##plain##_lift(v, term); break;               \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        a.traced_##name = spops_##traced##_lift(v, term);                                          \
        break;
#include "core/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: break;
    }
    return a;
}

INLINE state combine(int op, state a, state b)
{
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name:                                                                      \
        a.plain_##name = spops_##plain##_combine(a.plain_##name, b.plain_##name);                  \
        break;                                                                                     \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        a.traced_##name = spops_##traced##_combine(a.traced_##name, b.traced_##name);              \
        break;
#include "core/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: break;
    }
    return a;
}

INLINE float finalize(int op, state a, int64_t count)
{
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name: return spops_##plain##_finalize(a.plain_##name, count);              \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        return spops_##traced##_finalize(a.traced_##name, count);
#include "core/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: return 0.0f;
    }
}

INLINE int32_t winner(int op, state a)
{
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        return spops_##traced##_arg(a.traced_##name);
#include "core/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: return -1;
    }
}

INLINE float gradient(int op, float v, int32_t term, state a, int64_t count)
{
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        return spops_##traced##_grad(v, term, a.traced_##name, count);
#include "core/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: return 0.0f;
    }
}

// SUM and MEAN have gradients that read no state (core/backend.h), SUM's no count either.
INLINE bool gradient_reads_state(int op)
{
    return op != SPOPS_REDUCE_SUM + TRACED && op != SPOPS_REDUCE_MEAN + TRACED;
}
INLINE bool gradient_reads_count(int op)
{
    return op != SPOPS_REDUCE_SUM + TRACED;
}

INLINE state load_state(int op, const char *src)
{
    state a = {{0.0f, 0}};
    memcpy(&a, src, state_bytes(op));
    return a;
}

INLINE void store_state(int op, state a, char *dst)
{
    memcpy(dst, &a, state_bytes(op));
}

// ---- Rows: `width` neighbouring elements of a dtype, as f32 -------------------------------------

INLINE size_t element_bytes(int dtype)
{
    return dtype == SPOPS_DTYPE_F32 ? 4 : dtype <= SPOPS_DTYPE_BF16 ? 2 : 1;
}

INLINE const char *element(int dtype, spops_matrix m, int64_t row, int64_t col)
{
    return (const char *)m.data + (size_t)(row * m.row_stride + col) * element_bytes(dtype);
}

INLINE float load_1(int dtype, const char *src)
{
    uint16_t half;
    float f;
    if (dtype == SPOPS_DTYPE_F32) {
        memcpy(&f, src, sizeof f);
        return f;
    }
    if (dtype == SPOPS_DTYPE_F8E4M3) return spops_float_of_f8e4m3((uint8_t)*src);
    if (dtype == SPOPS_DTYPE_F8E5M2) return spops_float_of_f8e5m2((uint8_t)*src);
    memcpy(&half, src, sizeof half);
    if (dtype == SPOPS_DTYPE_BF16) return spops_float_of_bf16(half);
#ifdef __F16C__
    return _cvtsh_ss(half);
#else
    return spops_float_of_f16(half);
#endif
}

INLINE void store_1(int dtype, float f, char *dst)
{
    uint16_t half;
    if (dtype == SPOPS_DTYPE_F32) {
        memcpy(dst, &f, sizeof f);
        return;
    }
    if (dtype == SPOPS_DTYPE_F8E4M3 || dtype == SPOPS_DTYPE_F8E5M2) {
        *dst = (char)(dtype == SPOPS_DTYPE_F8E4M3 ? spops_f8e4m3_of_float(f)
                                                  : spops_f8e5m2_of_float(f));
        return;
    }
    if (dtype == SPOPS_DTYPE_BF16)
        half = spops_bf16_of_float(f);
    else
#ifdef __F16C__
        half = _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
        half = spops_f16_of_float(f);
#endif
    memcpy(dst, &half, sizeof half);
}

#ifdef __F16C__
// f8 by way of f16, whose exponent is as wide as that of e5m2 and wider than that of e4m3. Sixteen
// f16 of as many codes; for e4m3 they are 2^-8 of the values.
INLINE __m256i f16_of_f8(int dtype, const char *src)
{
    const __m128i codes = _mm_loadu_si128((const __m128i *)(const void *)src);
    if (dtype == SPOPS_DTYPE_F8E5M2) return _mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8);
    const __m256i moved = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
    const __m256i finite = _mm256_and_si256(moved, _mm256_set1_epi16((int16_t)0xbf80));
    const __m128i nan =
        _mm_cmpeq_epi8(_mm_or_si128(codes, _mm_set1_epi8((char)0x80)), _mm_set1_epi8((char)0xff));
    const __m256i exponent = _mm256_and_si256(_mm256_cvtepi8_epi16(nan), _mm256_set1_epi16(0x7e00));
    return _mm256_or_si256(finite, exponent);
}

INLINE void load_16_f8(int dtype, const char *src, float *dst)
{
    const __m256i half = f16_of_f8(dtype, src);
#ifdef __AVX512F__
    __m512 v = _mm512_cvtph_ps(half);
    if (dtype == SPOPS_DTYPE_F8E4M3) v = _mm512_mul_ps(v, _mm512_set1_ps(0x1p8f));
    _mm512_storeu_ps(dst, v);
#else
    __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
    __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
    if (dtype == SPOPS_DTYPE_F8E4M3) {
        low = _mm256_mul_ps(low, _mm256_set1_ps(0x1p8f));
        high = _mm256_mul_ps(high, _mm256_set1_ps(0x1p8f));
    }
    _mm256_storeu_ps(dst, low);
    _mm256_storeu_ps(dst + 8, high);
#endif
}
#endif

INLINE void load_lanes(int dtype, int width, const char *src, float *dst)
{
    const size_t bytes = element_bytes(dtype);
    int c = 0;
#ifdef __F16C__
    if (dtype == SPOPS_DTYPE_F16) {
#ifdef __AVX512F__
        for (; c + 16 <= width; c += 16) {
            const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)(src + 2 * c));
            _mm512_storeu_ps(dst + c, _mm512_cvtph_ps(half));
        }
#endif
        for (; c + 8 <= width; c += 8) {
            const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)(src + 2 * c));
            _mm256_storeu_ps(dst + c, _mm256_cvtph_ps(half));
        }
    }
    if (dtype == SPOPS_DTYPE_BF16) { // the upper halves of f32
#ifdef __AVX512F__
        for (; c + 16 <= width; c += 16) {
            const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)(src + 2 * c));
            _mm512_storeu_si512(dst + c, _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
        }
#endif
        for (; c + 8 <= width; c += 8) {
            const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)(src + 2 * c));
            _mm256_storeu_si256((__m256i *)(void *)(dst + c),
                                _mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
        }
    }
    if (dtype == SPOPS_DTYPE_F8E4M3 || dtype == SPOPS_DTYPE_F8E5M2) {
        for (; c + 16 <= width; c += 16)
            load_16_f8(dtype, src + c, dst + c);
    }
#endif
#pragma omp simd
    for (int i = c; i < width; ++i)
        dst[i] = load_1(dtype, src + (size_t)i * bytes);
}

#ifdef __AVX512F__
// Sixteen codes of an f8 dtype, as float8.h has them. A power of two that is 2^23 of the codes'
// spacing at v, added, leaves v rounded in the last bits of the sum.
INLINE __m128i f8_of_16(int dtype, __m512 v)
{
    const int fraction = dtype == SPOPS_DTYPE_F8E4M3 ? 3 : 2;
    const float largest = dtype == SPOPS_DTYPE_F8E4M3 ? SPOPS_F8E4M3_MAX : SPOPS_F8E5M2_MAX;
    const float least = dtype == SPOPS_DTYPE_F8E4M3 ? 0x1p-6f : 0x1p-14f; // normal number
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i least_bits = _mm512_castps_si512(_mm512_set1_ps(least));
    const __m512i m = _mm512_min_epu32(_mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)),
                                       _mm512_castps_si512(_mm512_set1_ps(largest)));
    const __m512i exponent =
        _mm512_max_epu32(_mm512_and_si512(m, _mm512_set1_epi32(0x7f800000)), least_bits);
    const __m512i magic = _mm512_add_epi32(exponent, _mm512_set1_epi32((23 - fraction) << 23));
    const __m512i sum =
        _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(m), _mm512_castsi512_ps(magic)));
    const __m512i binade =
        _mm512_srli_epi32(_mm512_sub_epi32(exponent, least_bits), 23 - (unsigned)fraction);
    const __m512i code = _mm512_add_epi32(binade, _mm512_sub_epi32(sum, magic));
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi8(
        _mm512_mask_mov_epi32(_mm512_or_si512(code, sign), nan, _mm512_set1_epi32(0x7f)));
}
#endif

// Sixteen at a time, first to words and then narrowed: loops over wider blocks of narrow elements
// would leave the rest of a block to scalar code.
INLINE void store_16(int dtype, const float *src, char *dst)
{
    uint32_t codes[16];
    uint16_t halves[16];
    uint8_t bytes[16];
#ifdef __AVX512F__
    if (dtype != SPOPS_DTYPE_BF16) {
        _mm_storeu_si128((__m128i *)(void *)dst, f8_of_16(dtype, _mm512_loadu_ps(src)));
        return;
    }
#endif
#pragma omp simd
    for (int c = 0; c < 16; ++c)
        codes[c] = dtype == SPOPS_DTYPE_BF16     ? spops_bf16_of_float(src[c])
                   : dtype == SPOPS_DTYPE_F8E4M3 ? spops_f8e4m3_of_float(src[c])
                                                 : spops_f8e5m2_of_float(src[c]);
    if (dtype == SPOPS_DTYPE_BF16) {
#pragma omp simd
        for (int c = 0; c < 16; ++c)
            halves[c] = (uint16_t)codes[c];
        memcpy(dst, halves, sizeof halves);
    } else {
#pragma omp simd
        for (int c = 0; c < 16; ++c)
            bytes[c] = (uint8_t)codes[c];
        memcpy(dst, bytes, sizeof bytes);
    }
}

INLINE void store_lanes(int dtype, int width, const float *src, char *dst)
{
    const size_t bytes = element_bytes(dtype);
    int c = 0;
#ifdef __F16C__
    if (dtype == SPOPS_DTYPE_F16) {
        enum { rounding = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
#ifdef __AVX512F__
        for (; c + 16 <= width; c += 16) {
            const __m256i half = _mm512_cvtps_ph(_mm512_loadu_ps(src + c), rounding);
            _mm256_storeu_si256((__m256i *)(void *)(dst + 2 * c), half);
        }
#endif
        for (; c + 8 <= width; c += 8) {
            const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(src + c), rounding);
            _mm_storeu_si128((__m128i *)(void *)(dst + 2 * c), half);
        }
    }
#endif
    if (dtype == SPOPS_DTYPE_BF16 || element_bytes(dtype) == 1) {
        for (; c + 16 <= width; c += 16)
            store_16(dtype, src + c, dst + (size_t)c * bytes);
    }
#pragma omp simd
    for (int i = c; i < width; ++i)
        store_1(dtype, src[i], dst + (size_t)i * bytes);
}

// 16 columns of an f4e2m1 row, times their block scale.
INLINE void load_16_f4(const char *src, float scale, float *dst)
{
#ifdef __AVX512F__
    // Lane i holds the word with its code, shifted by its place; of an index only the last four
    // bits count.
    static const float values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                     -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    const __m512i word = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m512i place =
        _mm512_set_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0);
    const __m128i codes = _mm_loadl_epi64((const __m128i *)(const void *)src);
    const __m512i index =
        _mm512_srlv_epi32(_mm512_permutexvar_epi32(word, _mm512_castsi128_si512(codes)), place);
    const __m512 v = _mm512_permutexvar_ps(index, _mm512_loadu_ps(values));
    _mm512_storeu_ps(dst, _mm512_mul_ps(v, _mm512_set1_ps(scale)));
#elif defined(__F16C__)
    // The upper halves of f16: their lower ones are zero.
    const __m128i values =
        _mm_set_epi8((char)0xc6, (char)0xc4, (char)0xc2, (char)0xc0, (char)0xbe, (char)0xbc,
                     (char)0xb8, (char)0x80, 0x46, 0x44, 0x42, 0x40, 0x3e, 0x3c, 0x38, 0x00);
    const __m128i codes = _mm_loadl_epi64((const __m128i *)(const void *)src);
    const __m128i mask = _mm_set1_epi8(0x0f);
    const __m128i even = _mm_and_si128(codes, mask);
    const __m128i odd = _mm_and_si128(_mm_srli_epi16(codes, 4), mask);
    const __m128i upper = _mm_shuffle_epi8(values, _mm_unpacklo_epi8(even, odd));
    const __m128i zero = _mm_setzero_si128();
    const __m256 s = _mm256_set1_ps(scale);
    _mm256_storeu_ps(dst, _mm256_mul_ps(_mm256_cvtph_ps(_mm_unpacklo_epi8(zero, upper)), s));
    _mm256_storeu_ps(dst + 8, _mm256_mul_ps(_mm256_cvtph_ps(_mm_unpackhi_epi8(zero, upper)), s));
#else
    for (int c = 0; c < SPOPS_BLOCK_COLS; ++c)
        dst[c] = scale * spops_float_of_f4e2m1((uint8_t)((uint8_t)src[c / 2] >> c % 2 * 4));
#endif
}

static void load(spops_dtype dtype, const void *src, int64_t n, float *dst)
{
    const char *from = (const char *)src;
    int64_t i = 0;
#define LOAD(name)                                                                                 \
    for (; i + 16 <= n; i += 16)                                                                   \
        load_lanes(SPOPS_DTYPE_##name, 16, from + (size_t)i * element_bytes(dtype), dst + i);      \
    for (; i < n; ++i)                                                                             \
    load_lanes(SPOPS_DTYPE_##name, 1, from + (size_t)i * element_bytes(dtype), dst + i)
    if (dtype == SPOPS_DTYPE_F32) {
        LOAD(F32);
    } else if (dtype == SPOPS_DTYPE_F16) {
        LOAD(F16);
    } else {
        LOAD(BF16);
    }
#undef LOAD
}

static void store(spops_dtype dtype, const float *src, int64_t n, void *dst)
{
    char *to = (char *)dst;
    int64_t i = 0;
#define STORE(name)                                                                                \
    for (; i + 16 <= n; i += 16)                                                                   \
        store_lanes(SPOPS_DTYPE_##name, 16, src + i, to + (size_t)i * element_bytes(dtype));       \
    for (; i < n; ++i)                                                                             \
    store_lanes(SPOPS_DTYPE_##name, 1, src + i, to + (size_t)i * element_bytes(dtype))
    if (dtype == SPOPS_DTYPE_F32) {
        STORE(F32);
    } else if (dtype == SPOPS_DTYPE_F16) {
        STORE(F16);
    } else {
        STORE(BF16);
    }
#undef STORE
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

INLINE cursor cursor_at(const spops_lists *lists, int64_t position)
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

INLINE int64_t cursor_a(const cursor *at)
{
    return at->pair[0] + at->pair_base;
}
INLINE int64_t cursor_b(const cursor *at)
{
    return at->pair[1] + at->pair_base;
}
INLINE int32_t cursor_term(const cursor *at)
{
    return (int32_t)(*at->order + at->order_base);
}

INLINE void cursor_step(cursor *at)
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
static const uint16_t one_f16 = 0x3c00, one_bf16 = 0x3f80;

INLINE weights weights_of(int dtype, spops_matrix w)
{
    weights v;
    v.data = w.data != NULL             ? (const char *)w.data
             : dtype == SPOPS_DTYPE_F32 ? (const char *)&one
             : dtype == SPOPS_DTYPE_F16 ? (const char *)&one_f16
                                        : (const char *)&one_bf16;
    v.stride = w.data != NULL ? (int64_t)element_bytes(dtype) : 0;
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

INLINE int wide_of(int op)
{
    return state_bytes(op) > 4 ? WIDE_2 : WIDE_1;
}

// Accumulators of one block: the two words of each column's state apart, so that both vectorise.
typedef struct accumulators {
    float first[MAX_WIDTH];
    int32_t second[MAX_WIDTH];
} accumulators;

INLINE state get(const accumulators *acc, int c)
{
    state a;
    a.word.first = acc->first[c];
    a.word.second = acc->second[c];
    return a;
}

INLINE void put(accumulators *acc, int c, state a)
{
    acc->first[c] = a.word.first;
    acc->second[c] = a.word.second;
}

// ---- segreduce ----------------------------------------------------------------------------------

// Where the states of an owner's block go once all its terms are in.
INLINE void finish_block(int op, int dtype, int width, const spops_segreduce_args *args,
                         int64_t owner, int64_t col, int64_t count, const accumulators *acc)
{
    if (args->out.data != NULL) {
        float v[MAX_WIDTH];
#pragma omp simd
        for (int c = 0; c < width; ++c)
            v[c] = finalize(op, get(acc, c), count);
        store_lanes(dtype, width, v, (char *)element(dtype, args->out, owner, col));
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

INLINE void reduce_block(int op, int xtype, int wtype, int width, const spops_segreduce_args *args,
                         int64_t owner, int64_t begin, int64_t end, int64_t col, char *partial)
{
    const int64_t row_bytes = args->x.row_stride * (int64_t)element_bytes(xtype);
    const char *x = element(xtype, args->x, 0, col);
    const weights w = weights_of(wtype, args->w);
    cursor at = cursor_at(args->lists, begin);
    accumulators acc;

#pragma omp simd
    for (int c = 0; c < width; ++c)
        put(&acc, c, identity(op));
    for (int64_t p = begin; p < end; ++p, cursor_step(&at)) {
        const float weight = load_1(wtype, w.data + cursor_b(&at) * w.stride);
        const int32_t term = cursor_term(&at);
        float v[MAX_WIDTH];
        load_lanes(xtype, width, x + cursor_a(&at) * row_bytes, v);
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

INLINE void reduce_range(int op, int xtype, int wtype, const spops_segreduce_args *args,
                         int64_t owner, int64_t begin, int64_t end, char *partial)
{
    const int64_t cols = args->x.cols;
#define BLOCK(width, col)                                                                          \
    reduce_block(op, xtype, wtype, width, args, owner, begin, end, col, partial)
    FOR_EACH_BLOCK(cols, wide_of(op), BLOCK)
#undef BLOCK
}

INLINE void split_block(int op, int dtype, int width, const spops_segreduce_args *args,
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

INLINE void reduce_split(int op, int dtype, const spops_segreduce_args *args,
                         const spops_split *split)
{
    const int64_t cols = args->x.cols;
#define BLOCK(width, col) split_block(op, dtype, width, args, split, col)
    FOR_EACH_BLOCK(cols, 16, BLOCK)
#undef BLOCK
}

// Weights of 8 bits, one at a time: from tables.
#define CODES_1(f, c) f(c), f((c) + 1), f((c) + 2), f((c) + 3)
#define CODES_2(f, c) CODES_1(f, c), CODES_1(f, (c) + 4), CODES_1(f, (c) + 8), CODES_1(f, (c) + 12)
#define CODES_3(f, c)                                                                              \
    CODES_2(f, c), CODES_2(f, (c) + 16), CODES_2(f, (c) + 32), CODES_2(f, (c) + 48)
#define CODES(f) CODES_3(f, 0), CODES_3(f, 64), CODES_3(f, 128), CODES_3(f, 192)
#define SIGN(c)  ((c) < 128 ? 1.0f : -1.0f)
// Fraction, with its leading one, and exponent as a product of powers of two that no step
// overflows.
#define E4M3(c)                                                                                    \
    (((c)&127) == 127 ? __builtin_nanf("")                                                         \
                      : SIGN(c) * 0x1p-10f * (float)(((c)&7) + ((c)&120 ? 8 : 0)) *                \
                            (float)(1 << ((c)&120 ? (c) >> 3 & 15 : 1)))
#define E5M2(c)                                                                                    \
    (((c)&127) > 124    ? __builtin_nanf("")                                                       \
     : ((c)&127) == 124 ? SIGN(c) * __builtin_inff()                                               \
                        : SIGN(c) * 0x1p-17f * (float)(((c)&3) + ((c)&124 ? 4 : 0)) *              \
                              (float)(1u << ((c)&124 ? (c) >> 2 & 31 : 1)))
static const float e4m3_values[256] = {CODES(E4M3)}, e5m2_values[256] = {CODES(E5M2)};

INLINE float load_weight(int dtype, const char *src)
{
    if (dtype == SPOPS_DTYPE_F8E4M3) return e4m3_values[(uint8_t)*src];
    if (dtype == SPOPS_DTYPE_F8E5M2) return e5m2_values[(uint8_t)*src];
    return load_1(dtype, src);
}

// ---- segreduce: sums of other dtypes and scales (core/backend.h) --------------------------------

// Scale and store the sums of an owner.
INLINE void finish_sum(int width, const spops_segreduce_args *args, int64_t owner, int64_t col,
                       const float *acc)
{
    const int dtype = (int)args->out.dtype;
    char *dst = (char *)element(dtype, args->out, owner, col);
    float factor = args->x_scale != NULL ? *args->x_scale : 1.0f;
    float v[MAX_WIDTH];

    if (args->w_scale != NULL) factor *= *args->w_scale;
    if (args->out_scale != NULL) factor /= *args->out_scale;
#pragma omp simd
    for (int c = 0; c < width; ++c)
        v[c] = acc[c] * factor;
    switch (dtype) {
    case SPOPS_DTYPE_F32: store_lanes(SPOPS_DTYPE_F32, width, v, dst); break;
    case SPOPS_DTYPE_F16: store_lanes(SPOPS_DTYPE_F16, width, v, dst); break;
    case SPOPS_DTYPE_BF16: store_lanes(SPOPS_DTYPE_BF16, width, v, dst); break;
    case SPOPS_DTYPE_F8E4M3: store_lanes(SPOPS_DTYPE_F8E4M3, width, v, dst); break;
    default: store_lanes(SPOPS_DTYPE_F8E5M2, width, v, dst); break;
    }
}

// A row of 8- or 4-bit codes as f16, which has all their values, and all products of an f4e2m1 with
// its block scale.
static void decode(spops_dtype dtype, const void *src, const uint8_t *scales, int64_t n,
                   uint16_t *dst)
{
    const char *from = (const char *)src;
    int64_t c = 0;

    if (dtype == SPOPS_DTYPE_F4E2M1) {
        float v[SPOPS_BLOCK_COLS];
        for (; c + SPOPS_BLOCK_COLS <= n; c += SPOPS_BLOCK_COLS) {
            load_16_f4(from + c / 2, e4m3_values[scales[c / SPOPS_BLOCK_COLS]], v);
            store_lanes(SPOPS_DTYPE_F16, SPOPS_BLOCK_COLS, v, (char *)(dst + c));
        }
        if (c < n) {
            char codes[SPOPS_BLOCK_COLS / 2] = {0};
            memcpy(codes, from + c / 2, (size_t)(n - c) / 2);
            load_16_f4(codes, e4m3_values[scales[c / SPOPS_BLOCK_COLS]], v);
            for (int64_t i = 0; c < n; ++i, ++c)
                store_1(SPOPS_DTYPE_F16, v[i], (char *)(dst + c));
        }
        return;
    }
#define DECODE(name)                                                                               \
    for (; c + 16 <= n; c += 16) {                                                                 \
        float v[16];                                                                               \
        load_lanes(SPOPS_DTYPE_##name, 16, from + c, v);                                           \
        store_lanes(SPOPS_DTYPE_F16, 16, v, (char *)(dst + c));                                    \
    }                                                                                              \
    for (; c < n; ++c)                                                                             \
    store_1(SPOPS_DTYPE_F16, load_1(SPOPS_DTYPE_##name, from + c), (char *)(dst + c))
    if (dtype == SPOPS_DTYPE_F8E4M3) {
        DECODE(F8E4M3);
    } else {
        DECODE(F8E5M2);
    }
#undef DECODE
}

INLINE void sum_block(int xtype, int wtype, int width, const spops_segreduce_args *args,
                      int64_t owner, int64_t begin, int64_t end, int64_t col, float *partial)
{
    const int64_t row_bytes = args->x.row_stride * (int64_t)element_bytes(xtype);
    const char *x = element(xtype, args->x, 0, col);
    const weights w = weights_of(wtype, args->w);
    cursor at = cursor_at(args->lists, begin);
    float acc[MAX_WIDTH];

#pragma omp simd
    for (int c = 0; c < width; ++c)
        acc[c] = 0.0f;
    for (int64_t p = begin; p < end; ++p, cursor_step(&at)) {
        const float weight = load_weight(wtype, w.data + cursor_b(&at) * w.stride);
        float v[MAX_WIDTH];
        load_lanes(xtype, width, x + cursor_a(&at) * row_bytes, v);
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

INLINE void sum_range(int xtype, int wtype, const spops_segreduce_args *args, int64_t owner,
                      int64_t begin, int64_t end, float *partial)
{
    const int64_t cols = args->x.cols;
    if (begin == end && partial == NULL) { // zero, whatever the scales
        const int dtype = (int)args->out.dtype;
        memset((char *)element(dtype, args->out, owner, 0), 0, (size_t)cols * element_bytes(dtype));
        return;
    }
#define BLOCK(width, col) sum_block(xtype, wtype, width, args, owner, begin, end, col, partial)
    FOR_EACH_BLOCK(cols, WIDE_1, BLOCK)
#undef BLOCK
}

INLINE void sum_split_block(int width, const spops_segreduce_args *args, const spops_split *split,
                            int64_t col)
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

INLINE const char *states_of(int op, const void *states, int64_t segment, int64_t cols, int64_t col)
{
    return (const char *)states + (size_t)(segment * cols + col) * state_bytes(op);
}

// grad[c] = grad_out[segment, col + c] * d out / d v[c]
INLINE void term_gradients(int op, int xtype, int width, spops_matrix grad_out, const void *states,
                           const int32_t *segment_offsets, int64_t segment, int32_t term,
                           int64_t col, const float *v, float *grad)
{
    const int64_t count = gradient_reads_count(op)
                              ? (int64_t)segment_offsets[segment + 1] - segment_offsets[segment]
                              : 0;
    float g[MAX_WIDTH];

    load_lanes(xtype, width, element(xtype, grad_out, segment, col), g);
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

INLINE void grad_block(int op, int xtype, int wtype, int width, const spops_grad_args *args,
                       int64_t owner, int64_t begin, int64_t end, int64_t col, float *partial)
{
    const weights w = weights_of(wtype, args->w);
    cursor at = cursor_at(args->lists, begin);
    float acc[MAX_WIDTH], x[MAX_WIDTH];

    load_lanes(xtype, width, element(xtype, args->x, owner, col), x);
#pragma omp simd
    for (int c = 0; c < width; ++c)
        acc[c] = 0.0f;
    for (int64_t p = begin; p < end; ++p, cursor_step(&at)) {
        const float weight = load_1(wtype, w.data + cursor_b(&at) * w.stride);
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
        store_lanes(xtype, width, acc, (char *)element(xtype, args->grad, owner, col));
    }
}

INLINE void grad_range(int op, int xtype, int wtype, const spops_grad_args *args, int64_t owner,
                       int64_t begin, int64_t end, float *partial)
{
    const int64_t cols = args->x.cols;
#define BLOCK(width, col) grad_block(op, xtype, wtype, width, args, owner, begin, end, col, partial)
    FOR_EACH_BLOCK(cols, WIDE_2, BLOCK)
#undef BLOCK
}

// ---- segdot -------------------------------------------------------------------------------------

#define DOT_WIDTH 16

// acc[c] gathers the products of columns c, c + 16, c + 32 ... of every term.
INLINE void dot_block(int op, int xtype, int width, const spops_grad_args *args, float weight,
                      int64_t row, int64_t segment, int32_t term, int64_t col, float *acc)
{
    float x[MAX_WIDTH], v[MAX_WIDTH], grad[MAX_WIDTH];

    load_lanes(xtype, width, element(xtype, args->x, row, col), x);
#pragma omp simd
    for (int c = 0; c < width; ++c)
        v[c] = weight * x[c];
    term_gradients(op, xtype, width, args->grad_out, args->states, args->segment_offsets, segment,
                   term, col, v, grad);
#pragma omp simd
    for (int c = 0; c < width; ++c)
        acc[c] += x[c] * grad[c];
}

INLINE float dot_range(int op, int xtype, const spops_grad_args *args, int64_t owner, int64_t begin,
                       int64_t end)
{
    const int64_t cols = args->x.cols;
    cursor at = cursor_at(args->lists, begin);
    float acc[4 * DOT_WIDTH];
    float weight = 1.0f;

    if (begin == end) return 0.0f;
    if (args->w.data != NULL)
        weight = load_1((int)args->w.dtype, (const char *)args->w.data +
                                                (size_t)owner * element_bytes((int)args->w.dtype));
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
#include "core/reduce_ops.def"
#undef SPOPS_REDUCE_OP

#define PASTE(a, b) a##b
#define TABLE(isa)  PASTE(spops_isa_table_, isa)
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

const spops_isa_table TABLE(SPOPS_ISA_NAME) = {
    .reduce_range =
        {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    [SPOPS_REDUCE_##name] = {PAIRS(reduce_range_##name##_##plain),                                 \
                             PAIRS(reduce_range_##name##_##traced##_traced)},
#include "core/reduce_ops.def"
#undef SPOPS_REDUCE_OP
        },
    .reduce_split =
        {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    [SPOPS_REDUCE_##name] = {SINGLES(reduce_split_##name##_##plain),                               \
                             SINGLES(reduce_split_##name##_##traced##_traced)},
#include "core/reduce_ops.def"
#undef SPOPS_REDUCE_OP
        },
    .grad_range =
        {
#define SPOPS_REDUCE_OP(name, plain, traced) [SPOPS_REDUCE_##name] = PAIRS(grad_range_##name),
#include "core/reduce_ops.def"
#undef SPOPS_REDUCE_OP
        },
    .dot_range =
        {
#define SPOPS_REDUCE_OP(name, plain, traced) [SPOPS_REDUCE_##name] = SINGLES(dot_range_##name),
#include "core/reduce_ops.def"
#undef SPOPS_REDUCE_OP
        },
    .state_bytes =
        {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    [SPOPS_REDUCE_##name] = {sizeof(spops_##plain), sizeof(spops_##traced)},
#include "core/reduce_ops.def"
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
